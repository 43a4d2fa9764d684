//! Engines over files made for a test, and blocks whose bytes tell which they are.

mod scratch;

use terrace_engine::{
    BlockKey, Durability, Engine, EngineConfig, GetOptions, HugepageMode, Lookup, Namespace,
    NvmeConfig, PutOptions, PutOutcome, Tier,
};

pub(crate) use scratch::{CLOSE, Scratch};

/// An engine over files, each of `file_mib` when it is made.
pub(crate) fn config(dram_mib: u64, files: &[&Scratch], file_mib: u64) -> EngineConfig {
    EngineConfig {
        dram_bytes: dram_mib << 20,
        hugepages: HugepageMode::Off,
        nvme: NvmeConfig {
            paths: files.iter().map(|file| file.0.clone()).collect(),
            file_bytes: Some(file_mib << 20),
            ..NvmeConfig::default()
        },
        ..EngineConfig::default()
    }
}

pub(crate) fn key(ns: Namespace, number: u64) -> BlockKey {
    ns.key(&number.to_le_bytes()).unwrap()
}

/// Bytes that tell blocks and positions apart.
pub(crate) fn value(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 8 * 8)) as u8 ^ at as u8)
        .collect()
}

pub(crate) async fn put(
    engine: &Engine,
    number: u64,
    len: usize,
    durability: Durability,
) -> PutOutcome {
    let options = PutOptions {
        durability,
        ..PutOptions::default()
    };
    let key = key(engine.namespace("m").unwrap(), number);
    engine.put(&key, value(number, len), &options).await
}

/// Looks a block up; its bytes must be right.
pub(crate) async fn look(engine: &Engine, number: u64, len: usize) -> Lookup<()> {
    let key = key(engine.namespace("m").unwrap(), number);
    let found = engine.get(&key, &GetOptions::default()).await;
    found.map(|block| assert!(block[..] == value(number, len)[..], "block {number}"))
}

/// The numbers among `0..count` that are served, and those that are unavailable.
pub(crate) async fn served(engine: &Engine, count: u64, len: usize) -> (Vec<u64>, Vec<u64>) {
    let (mut there, mut unavailable) = (Vec::new(), Vec::new());
    for number in 0..count {
        match look(engine, number, len).await {
            Lookup::Hit { tier, .. } => {
                assert!(matches!(tier, Tier::Dram | Tier::Nvme));
                there.push(number);
            }
            Lookup::Miss => {}
            Lookup::Unavailable(_) => unavailable.push(number),
        }
    }
    assert!(engine.check().await);
    (there, unavailable)
}
