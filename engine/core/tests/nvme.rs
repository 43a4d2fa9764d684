//! Aim: the engine over real files: what leaves DRAM comes back, what is durable survives.
//! Method: engines of a few MiB over files made for the test, on real rings.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

#[path = "files/scratch.rs"]
mod scratch;

use terrace_engine::{
    BlockKey, Durability, Engine, EngineConfig, GetOptions, Health, HugepageMode, Lookup,
    Namespace, NvmeConfig, Placement, PutOptions, PutOutcome, RegisteredRegion, Tier, WriteMode,
    block_on,
};

use futures_util::future::join_all;
use scratch::{CLOSE, Scratch};

const STORED: PutOutcome = PutOutcome::Stored { durable: false };
const DURABLE: PutOutcome = PutOutcome::Stored { durable: true };

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

/// Aim: short blocks are no more than a ring takes, however many are to be written: a device that is
/// well stays in use. Method: far more puts at once than a small ring takes, each written through.
#[test]
fn short_blocks_do_not_overrun_a_ring() {
    let file = Scratch::new("short");
    let mut config = config(16, &file, 128);
    config.nvme.write_mode = WriteMode::Through;
    config.nvme.queue_depth = 8;
    let engine = Engine::open(config).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        let puts = (0..2000).map(|number| put(&engine, ns, number, 4096, Durability::Volatile));
        for outcome in join_all(puts).await {
            assert_eq!(outcome, STORED);
        }
        engine.sync().await.unwrap();
        let stats = engine.stats().await;
        assert!(
            stats
                .nvme
                .iter()
                .all(|device| device.health == Health::Good)
        );
        assert_eq!(stats.nvme_counters().blocks_written, 2000);
        engine.close(CLOSE).await;
    });
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
            if number >= 300 {
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

/// The numbers among `0..count` that are served; their bytes are verified.
async fn served(engine: &Engine, count: u64, len: usize) -> Vec<u64> {
    let ns = engine.namespace("m").unwrap();
    let mut there = Vec::new();
    for number in 0..count {
        if found(engine, ns, number, len).await.is_some() {
            there.push(number);
        }
    }
    assert!(engine.check().await);
    there
}

#[test]
fn contents_survive_every_change_of_the_shard_count() {
    let file = Scratch::new("reshard");
    let all: Vec<u64> = (0..300).collect();
    block_on(async {
        let mut fill = true;
        for shards in [1, 2, 4, 1] {
            let engine = Engine::open(EngineConfig {
                shards,
                ..config(8, &file, 256)
            })
            .unwrap();
            if std::mem::take(&mut fill) {
                let ns = engine.namespace("m").unwrap();
                for number in &all {
                    assert!(
                        put(&engine, ns, *number, 50_000, Durability::Volatile)
                            .await
                            .is_present()
                    );
                }
            }
            assert_eq!(served(&engine, 300, 50_000).await, all, "{shards} shards");
            let report = engine.close(CLOSE).await;
            assert!(
                report.devices_clean && report.blocks_lost == 0,
                "{report:?}"
            );
        }
    });
}

#[test]
fn resharded_device_is_reclaimed_without_wrong_bytes() {
    let file = Scratch::new("reshard-reclaim");
    block_on(async {
        for (shards, first) in [(1, 0), (2, 1600), (1, 3200)] {
            let engine = Engine::open(EngineConfig {
                shards,
                ..config(8, &file, 96)
            })
            .unwrap();
            let ns = engine.namespace("m").unwrap();
            for number in first..first + 1600 {
                let outcome = put(&engine, ns, number, 65_536, Durability::Volatile).await;
                assert_eq!(outcome, STORED, "{shards} shards, {number}");
            }
            let there = served(&engine, first + 1600, 65_536).await;
            assert!(
                there.len() > 800,
                "{} blocks with {shards} shards",
                there.len()
            );
            let newest = there
                .iter()
                .filter(|number| **number >= first + 1100)
                .count();
            assert!(
                newest > 480,
                "{newest} of the newest 500 with {shards} shards"
            );
            assert_eq!(engine.stats().await.counters.checksum_mismatches, 0);
            assert!(engine.close(CLOSE).await.devices_clean);
        }
    });
}

#[test]
fn devices_come_and_go_with_their_contents_kept() {
    let (one, two) = (Scratch::new("device-one"), Scratch::new("device-two"));
    let all: Vec<u64> = (0..500).collect();
    let open = |paths: &[&Scratch], drain: &[&Scratch], dram_mib: u64| {
        let mut config = config(dram_mib, &one, 96);
        config.nvme.paths = paths.iter().map(|file| file.0.clone()).collect();
        config.nvme.drain = drain.iter().map(|file| file.0.clone()).collect();
        Engine::open(config)
    };
    block_on(async {
        let engine = open(&[&one], &[], 8).unwrap();
        let ns = engine.namespace("m").unwrap();
        for number in 0..250 {
            put(&engine, ns, number, 65_536, Durability::Volatile).await;
        }
        assert!(engine.close(CLOSE).await.devices_clean);

        let engine = open(&[&one, &two], &[], 8).unwrap();
        let ns = engine.namespace("m").unwrap();
        for number in 250..500 {
            put(&engine, ns, number, 65_536, Durability::Volatile).await;
        }
        assert_eq!(served(&engine, 500, 65_536).await, all);
        assert!(engine.close(CLOSE).await.devices_clean);
        let stats = std::fs::metadata(&two.0).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&stats) & 0o777, 0o600);

        // Without leave, a device of the set may not be left out.
        let error = open(&[&one], &[], 8).err().unwrap().to_string();
        assert!(error.contains("missing"), "{error}");

        let engine = open(&[&one], &[&two], 4).unwrap();
        assert_eq!(served(&engine, 500, 65_536).await, all);
        while engine
            .stats()
            .await
            .nvme
            .iter()
            .any(|d| d.draining && d.segments_used > 0)
        {}
        assert_eq!(served(&engine, 500, 65_536).await, all);
        let report = engine.close(CLOSE).await;
        assert!(
            report.devices_clean && report.blocks_lost == 0,
            "{report:?}"
        );

        let engine = open(&[&one], &[], 4).unwrap();
        assert_eq!(served(&engine, 500, 65_536).await, all);
        engine.close(CLOSE).await;
    });
}

#[test]
fn removed_and_replaced_blocks_stay_away_after_a_crash() {
    let file = Scratch::new("removed");
    let reopen = || loop {
        match Engine::open(config(4, &file, 64)) {
            Ok(engine) => break engine,
            Err(error) => assert!(error.to_string().contains("in use"), "{error}"),
        }
    };
    block_on(async {
        let engine = reopen();
        let (ns, other) = (
            engine.namespace("m").unwrap(),
            engine.namespace("n").unwrap(),
        );
        for number in 0..20 {
            assert_eq!(
                put(&engine, ns, number, 9000, Durability::Durable).await,
                DURABLE
            );
            assert_eq!(
                put(&engine, other, number, 9000, Durability::Durable).await,
                DURABLE
            );
        }
        for number in 0..10 {
            assert!(engine.remove(&key(ns, number)).await.is_hit());
        }
        let replaced = value(77, 5000);
        engine
            .upsert(&key(ns, 15), &replaced, &options(Durability::Durable))
            .await;
        engine
            .upsert(&key(ns, 16), &replaced, &options(Durability::Volatile))
            .await;
        assert_eq!(engine.remove_namespace(other).await, Ok(20));
        // Stored after the removal: it counts again.
        assert_eq!(
            put(&engine, ns, 3, 9000, Durability::Durable).await,
            DURABLE
        );
        drop(engine);

        let engine = reopen();
        let (ns, other) = (
            engine.namespace("m").unwrap(),
            engine.namespace("n").unwrap(),
        );
        for number in 0..20 {
            assert!(
                found(&engine, other, number, 9000).await.is_none(),
                "{number}"
            );
            match number {
                3 | 10..15 | 17.. => {
                    assert!(found(&engine, ns, number, 9000).await.is_some(), "{number}")
                }
                15 => {
                    let block = engine
                        .get(&key(ns, 15), &GetOptions::default())
                        .await
                        .hit()
                        .unwrap();
                    assert!(block[..] == replaced[..]);
                }
                _ => assert!(found(&engine, ns, number, 9000).await.is_none(), "{number}"),
            }
        }
        engine.close(CLOSE).await;
    });
}

#[test]
fn cold_block_is_read_once_for_many_readers() {
    let file = Scratch::new("single-flight");
    let engine = Engine::open(config(4, &file, 64)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        for number in 0..200 {
            put(&engine, ns, number, 65_536, Durability::Volatile).await;
        }
        let before = engine.stats().await.nvme_counters().demand_reads;
        for number in 0..30 {
            let readers = (0..8).map(|_| found(&engine, ns, number, 65_536));
            for tier in futures_util::future::join_all(readers).await {
                assert!(tier.is_some(), "{number}");
            }
        }
        let reads = engine.stats().await.nvme_counters().demand_reads - before;
        assert_eq!(reads, 30);
        engine.close(CLOSE).await;
    });
}

#[test]
fn damaged_block_is_a_miss_and_stays_one() {
    use std::os::unix::fs::FileExt;
    let file = Scratch::new("damaged");
    block_on(async {
        let engine = Engine::open(config(4, &file, 64)).unwrap();
        let ns = engine.namespace("m").unwrap();
        for number in 0..30 {
            put(&engine, ns, number, 65_536, Durability::Durable).await;
        }
        assert!(engine.close(CLOSE).await.devices_clean);
        // The payload of block 7 begins with bytes that no other block begins with.
        let image = std::fs::read(&file.0).unwrap();
        let wanted = value(7, 65_536);
        let at = image
            .chunks(4096)
            .position(|unit| unit == &wanted[..4096])
            .unwrap()
            * 4096;
        let disk = std::fs::OpenOptions::new()
            .write(true)
            .open(&file.0)
            .unwrap();
        disk.write_all_at(&[image[at + 100] ^ 1], at as u64 + 100)
            .unwrap();
        drop(disk);
        for _ in 0..2 {
            let mut config = config(4, &file, 64);
            // Nothing is read ahead of the gets.
            config.fill_ratio_low = 0.1;
            config.fill_ratio_high = 0.5;
            let engine = Engine::open(config).unwrap();
            let ns = engine.namespace("m").unwrap();
            for number in 0..30 {
                assert_eq!(
                    found(&engine, ns, number, 65_536).await.is_some(),
                    number != 7,
                    "{number}"
                );
            }
            engine.close(CLOSE).await;
        }
    });
}

/// Aim: memory that its callers dropped is let go, so a caller may register and drop more regions
/// than a ring has places for, and what is still used stays.
#[test]
fn dropped_regions_leave_the_rings() {
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.matches("terrace-region").count()
    };
    let file = Scratch::new("regions");
    let engine = Engine::open(config(4, &file, 64)).unwrap();
    let region = || engine.register(RegisteredRegion::allocate(8192).unwrap());
    let kept = region();
    let slice = region().slice(0..4096).unwrap();
    for _ in 0..600 {
        drop(region());
    }
    // The last of them is taken note of with the next one at the latest.
    let last = region();
    block_on(engine.stats());
    assert_eq!(mapped(), 3);
    drop((kept, slice, last));
    block_on(engine.close(CLOSE));
    assert_eq!(mapped(), 0);
}

#[test]
fn block_is_read_past_dram_into_caller_memory() {
    let file = Scratch::new("direct");
    let engine = Engine::open(config(4, &file, 64)).unwrap();
    let ns = engine.namespace("m").unwrap();
    let memory = engine.register(RegisteredRegion::allocate(1 << 20).unwrap());
    let past = GetOptions {
        placement: Placement::Bypass,
        ..GetOptions::default()
    };
    block_on(async {
        for number in 0..200 {
            put(&engine, ns, number, 60_000, Durability::Volatile).await;
        }
        let before = engine.stats().await;
        let target = memory.slice(0..65_536).unwrap();
        let mut bytes = vec![0; 60_000];
        for number in 0..50 {
            let read = engine
                .get_into(&key(ns, number), std::slice::from_ref(&target), &past)
                .await;
            assert_eq!(read.hit(), Some(60_000));
            target.slice(0..60_000).unwrap().copy_to(&mut bytes);
            assert!(bytes == value(number, 60_000), "{number}");
        }
        let after = engine.stats().await;
        assert_eq!(
            after.counters.direct_reads - before.counters.direct_reads,
            50
        );
        assert_eq!(after.counters.promotions, before.counters.promotions);
        // Not aligned, or in pieces: through a slot, and as right.
        let odd = [
            memory.slice(1..30_001).unwrap(),
            memory.slice(40_000..70_000).unwrap(),
        ];
        assert_eq!(
            engine.get_into(&key(ns, 60), &odd, &past).await.hit(),
            Some(60_000)
        );
        // Of many readers one reads, into its memory; the others get a copy.
        let read = async {
            let read = engine
                .get_into(&key(ns, 70), std::slice::from_ref(&target), &past)
                .await;
            assert_eq!(read.hit(), Some(60_000));
        };
        let others = futures_util::future::join_all((0..8).map(|_| found(&engine, ns, 70, 60_000)));
        let reads = engine.stats().await.nvme_counters().demand_reads;
        let ((), others) = futures_util::future::join(read, others).await;
        assert!(others.iter().all(Option::is_some));
        assert_eq!(engine.stats().await.nvme_counters().demand_reads - reads, 1);
        assert!(engine.check().await);
        engine.close(CLOSE).await;
    });
}

#[test]
fn what_is_stored_after_a_namespace_was_dropped_survives_resharding() {
    let file = Scratch::new("drop-reshard");
    block_on(async {
        let engine = Engine::open(EngineConfig {
            shards: 2,
            ..config(4, &file, 128)
        })
        .unwrap();
        let ns = engine.namespace("m").unwrap();
        for number in 0..100 {
            put(&engine, ns, number, 9000, Durability::Durable).await;
        }
        assert_eq!(engine.remove_namespace(ns).await, Ok(100));
        for number in 0..40 {
            let outcome = put(&engine, ns, number, 9000, Durability::Durable).await;
            assert_eq!(outcome, DURABLE);
        }
        engine.close(CLOSE).await;
        for shards in [1, 2] {
            let engine = Engine::open(EngineConfig {
                shards,
                ..config(4, &file, 128)
            })
            .unwrap();
            let all: Vec<u64> = (0..40).collect();
            assert_eq!(served(&engine, 100, 9000).await, all, "{shards} shards");
            engine.close(CLOSE).await;
        }
    });
}

#[test]
fn file_made_for_an_open_that_failed_does_not_stay() {
    let file = Scratch::new("too-small");
    let error = Engine::open(EngineConfig {
        shards: 2,
        ..config(4, &file, 64)
    });
    let error = error.err().unwrap().to_string();
    assert!(error.contains("2 shards need 4 each"), "{error}");
    assert!(!file.0.exists());
}
