//! Aim: images of every format version are opened by this build, with all they hold.
//! Method: compressed images under `tiers/nvme/fixtures/`, made by `examples/make_fixture.rs` and never
//! edited; each is unpacked and opened twice, the second time after a clean close.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_engine::{
    Engine, EngineConfig, GetOptions, HugepageMode, Lookup, NvmeConfig, block_on,
};

/// The bytes of block `number`, as `make_fixture` stored them.
fn value(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; 1 + number as usize * 1001 % 9000]
}

fn verify(data: &Path, shards: usize) {
    let engine = Engine::open(EngineConfig {
        dram_bytes: 8 << 20,
        shards,
        hugepages: HugepageMode::Off,
        nvme: NvmeConfig {
            paths: vec![data.to_owned()],
            ..NvmeConfig::default()
        },
        ..EngineConfig::default()
    })
    .unwrap();
    let kept = engine.namespace("fixture/kept").unwrap();
    let dropped = engine.namespace("fixture/dropped").unwrap();
    block_on(async {
        for number in 0..40 {
            let name = format!("block {number}");
            let found = engine
                .get(
                    &dropped.key(name.as_bytes()).unwrap(),
                    &GetOptions::default(),
                )
                .await;
            assert!(matches!(found, Lookup::Miss), "{name} was dropped");
            let found = engine
                .get(&kept.key(name.as_bytes()).unwrap(), &GetOptions::default())
                .await
                .hit();
            let expected = match number {
                0..5 => None,
                7 => Some(value(70)),
                _ => Some(value(number)),
            };
            assert_eq!(found.as_deref(), expected.as_deref(), "{name}");
        }
        assert!(engine.check().await);
        assert!(engine.close(Duration::from_secs(20)).await.devices_clean);
    });
}

#[test]
fn image_of_version_1_is_opened() {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tiers/nvme/fixtures/v1.gz");
    let mut image = Vec::new();
    let packed = std::fs::File::open(packed).unwrap();
    flate2::read::GzDecoder::new(packed)
        .read_to_end(&mut image)
        .unwrap();
    let data = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fixture-v1");
    std::fs::write(&data, image).unwrap();
    verify(&data, 1);
    verify(&data, 1);
    std::fs::remove_file(&data).unwrap();
}
