//! Makes the image that `tests/fixture.rs` opens: `cargo run -p terrace-engine --example
//! make_fixture -- DATA.gz`. Run once for each format version; images are never made again.
//! Without a name it makes one and throws it away.

use std::io::Write;

use terrace_engine::{
    Durability, Engine, EngineConfig, Hint, HugepageMode, NvmeConfig, PutOptions, block_on,
};

/// The bytes of block `number`: as long and as regular as the test expects.
fn value(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; 1 + number as usize * 1001 % 9000]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::env::args().nth(1);
    let data = std::env::temp_dir().join(format!("terrace-fixture-{}", std::process::id()));
    let engine = Engine::open(EngineConfig {
        dram_bytes: 4 << 20,
        hugepages: HugepageMode::Off,
        nvme: NvmeConfig {
            paths: vec![data.clone()],
            file_bytes: Some(64 << 20),
            ..NvmeConfig::default()
        },
        ..EngineConfig::default()
    })?;
    let options = PutOptions {
        durability: Durability::Durable,
        hint: Hint {
            depth: 3,
            ..Hint::default()
        },
        ..PutOptions::default()
    };
    let (kept, dropped) = (
        engine.namespace("fixture/kept")?,
        engine.namespace("fixture/dropped")?,
    );
    block_on(async {
        for number in 0..40_u64 {
            let name = format!("block {number}");
            for namespace in [kept, dropped] {
                let key = namespace.key(name.as_bytes())?;
                let outcome = engine.put(&key, value(number), &options).await;
                assert!(outcome.is_present(), "{name}: {outcome:?}");
            }
        }
        for number in 0..5 {
            engine
                .remove(&kept.key(format!("block {number}").as_bytes())?)
                .await;
        }
        let replaced = kept.key(b"block 7")?;
        engine.upsert(&replaced, value(70), &options).await;
        engine
            .remove_namespace(dropped)
            .await
            .map_err(|reason| reason.to_string())?;
        // Not closed: the open segment has no footer, and there is no checkpoint.
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    let image = std::fs::read(&data)?;
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gz.write_all(&image)?;
    let packed = gz.finish()?;
    if let Some(out) = out {
        std::fs::write(out, packed)?;
    }
    std::fs::remove_file(&data)?;
    Ok(())
}
