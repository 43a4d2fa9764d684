//! Aim: the engine over real files: what leaves DRAM comes back, what is durable survives.
//! Method: engines of a few MiB over files made for the test, on real rings.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use terrace_engine::{
    BlockKey, Durability, Engine, EngineConfig, GetOptions, HugepageMode, Lookup, Namespace,
    NvmeConfig, PutOptions, PutOutcome, Tier, block_on,
};

const STORED: PutOutcome = PutOutcome::Stored { durable: false };
const DURABLE: PutOutcome = PutOutcome::Stored { durable: true };
const CLOSE: Duration = Duration::from_secs(60);

/// A file of a test's own, removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn config(dram_mib: u64, file: &Scratch, file_mib: u64) -> EngineConfig {
    EngineConfig {
        dram_bytes: dram_mib << 20,
        hugepages: HugepageMode::Off,
        nvme: NvmeConfig {
            paths: vec![file.0.clone()],
            file_bytes: Some(file_mib << 20),
            ..NvmeConfig::default()
        },
        ..EngineConfig::default()
    }
}

fn key(ns: Namespace, number: u64) -> BlockKey {
    ns.key(&number.to_le_bytes()).unwrap()
}

/// Bytes that tell blocks and positions apart.
fn value(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 8 * 8)) as u8 ^ at as u8)
        .collect()
}

fn options(durability: Durability) -> PutOptions {
    PutOptions {
        durability,
        ..PutOptions::default()
    }
}

async fn put(
    engine: &Engine,
    ns: Namespace,
    number: u64,
    len: usize,
    durability: Durability,
) -> PutOutcome {
    let (key, options) = (key(ns, number), options(durability));
    engine.put(&key, value(number, len), &options).await
}

/// Whether the block is there; its bytes must be right.
async fn found(engine: &Engine, ns: Namespace, number: u64, len: usize) -> Option<Tier> {
    match engine.get(&key(ns, number), &GetOptions::default()).await {
        Lookup::Hit { tier, value: block } => {
            assert!(block[..] == value(number, len)[..], "block {number}");
            Some(tier)
        }
        Lookup::Miss => None,
        Lookup::Unavailable(reason) => panic!("{number}: {reason}"),
    }
}

#[test]
fn blocks_that_leave_dram_come_back_from_the_device() {
    let file = Scratch::new("leave-dram");
    let engine = Engine::open(config(4, &file, 64)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        for number in 0..400 {
            assert_eq!(
                put(&engine, ns, number, 65_536, Durability::Volatile).await,
                STORED
            );
        }
        for number in 0..400 {
            assert!(
                found(&engine, ns, number, 65_536).await.is_some(),
                "{number}"
            );
        }
        assert!(engine.check().await);
        let counters = engine.stats().await.counters;
        assert!(counters.demotions >= 300, "{counters:?}");
        assert_eq!(counters.evictions, 0, "{counters:?}");
        assert_eq!(counters.checksum_mismatches, 0);
        let report = engine.close(CLOSE).await;
        assert_eq!(report.blocks_lost, 0, "{report:?}");
        assert!(report.devices_clean, "{report:?}");
    });
}

#[test]
fn blocks_survive_a_clean_close() {
    let file = Scratch::new("clean-close");
    let open = || Engine::open(config(4, &file, 64)).unwrap();
    block_on(async {
        let engine = open();
        let ns = engine.namespace("m").unwrap();
        for number in 0..100 {
            assert_eq!(
                put(&engine, ns, number, 65_536, Durability::Volatile).await,
                STORED
            );
        }
        assert!(engine.close(CLOSE).await.devices_clean);
        drop(engine);
        let engine = open();
        let ns = engine.namespace("m").unwrap();
        for number in 0..100 {
            assert!(
                found(&engine, ns, number, 65_536).await.is_some(),
                "{number}"
            );
        }
        assert!(engine.check().await);
        engine.close(CLOSE).await;
    });
}

#[test]
fn durable_blocks_survive_without_a_close() {
    let file = Scratch::new("no-close");
    let open = || Engine::open(config(4, &file, 64)).unwrap();
    block_on(async {
        let engine = open();
        let ns = engine.namespace("m").unwrap();
        for number in 0..40 {
            assert_eq!(
                put(&engine, ns, number, 10_000, Durability::Durable).await,
                DURABLE
            );
        }
        drop(engine);
        let engine = loop {
            // The shards of the dropped engine end by themselves.
            match Engine::open(config(4, &file, 64)) {
                Ok(engine) => break engine,
                Err(error) => assert!(error.to_string().contains("in use"), "{error}"),
            }
        };
        let ns = engine.namespace("m").unwrap();
        for number in 0..40 {
            assert!(
                found(&engine, ns, number, 10_000).await.is_some(),
                "{number}"
            );
        }
        engine.close(CLOSE).await;
    });
}

#[test]
fn full_device_gives_up_the_oldest_and_keeps_what_is_read() {
    let file = Scratch::new("full-device");
    let engine = Engine::open(config(4, &file, 64)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        for number in 0..3000 {
            assert_eq!(
                put(&engine, ns, number, 65_536, Durability::Volatile).await,
                STORED
            );
            if number >= 600 {
                // These are read again and again.
                let _ = found(&engine, ns, number % 50 + 200, 65_536).await;
            }
        }
        let kept = futures_util::future::join_all(
            (200..250).map(|number| found(&engine, ns, number, 65_536)),
        );
        let kept = kept.await.into_iter().flatten().count();
        assert!(kept >= 45, "{kept} of 50 blocks in use were kept");
        assert!(found(&engine, ns, 0, 65_536).await.is_none());
        assert!(engine.check().await);
        let stats = engine.stats().await;
        assert!(
            stats.counters.below_evictions > 1000,
            "{:?}",
            stats.counters
        );
        engine.close(CLOSE).await;
    });
}
