//! Aim: memory stays within what was asked for: DRAM, index as stated, 5%, and a fixed part.
//! Method: bursts of mixed sizes from 1 byte to 80 MiB, with slab reassignment, in a process of
//! its own under nextest; resident memory plus hugetlb is read after each.

#![forbid(unsafe_code)]

use terrace_engine::{Engine, EngineConfig, PutOptions, block_on, hugepages};

/// What a process takes beside the engine's stated parts: code, glommio's rings, stacks, the
/// allocator, and at most one transparent hugepage a table.
const FIXED: u64 = 48 << 20;

/// Block lengths of the common models, bf16 and fp8, per 16 and 64 tokens and per TP8 rank.
const KV_LENS: [usize; 12] = [
    2_097_152, 5_242_880, 1_835_008, 2_359_296, 4_194_304, 1_124_352, 562_176, 769_088, 262_144,
    655_360, 294_912, 4_497_408,
];

#[test]
fn memory_under_bursts_and_mixed_sizes_stays_within_its_bound() {
    let source = vec![5_u8; 80 << 20];
    let before = hugepages::process_memory_bytes();
    let dram = 256_u64 << 20;
    let engine = Engine::open(EngineConfig {
        dram_bytes: dram,
        ..Default::default()
    })
    .unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        let mut number = 0_u64;
        for len in [
            1,
            100,
            4096,
            70_000,
            1_124_352,
            80 << 20,
            3,
            9_000_000,
            65_536,
            1,
        ] {
            let count = (2 * dram as usize / len.max(4096)).clamp(3, 40_000);
            for _ in 0..count {
                number += 1;
                let key = ns.key(&number.to_le_bytes()).unwrap();
                let put = engine
                    .put(&key, &source[..len], &PutOptions::default())
                    .await;
                assert!(put.is_present(), "{len}: {put:?}");
            }
            let used = hugepages::process_memory_bytes() - before;
            let stated = engine.stats().await.gauges.overhead_bytes();
            let bound = dram + stated + dram / 20 + FIXED;
            eprintln!("{len:>9} B x {count}: {used} of at most {bound} bytes, index {stated}");
            assert!(used <= bound, "{used} bytes, at most {bound}");
        }
        let stats = engine.stats().await;
        assert!(stats.gauges.pool.slab_moves > 0);
        assert!(engine.check().await);
    });
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "printed as a share")]
fn waste_under_a_mix_of_kv_geometries_is_small() {
    let dram = 512_u64 << 20;
    let config = EngineConfig {
        dram_bytes: dram,
        ..Default::default()
    };
    let engine = Engine::open(config).unwrap();
    let ns = engine.namespace("m").unwrap();
    let source = vec![5_u8; 5_242_880];
    block_on(async {
        for number in 0..2000_usize {
            let key = ns.key(&number.to_le_bytes()).unwrap();
            let len = KV_LENS[number * 7 % KV_LENS.len()];
            assert!(
                engine
                    .put(&key, &source[..len], &PutOptions::default())
                    .await
                    .is_present()
            );
        }
        let gauges = engine.stats().await.gauges;
        let waste = 1.0 - gauges.payload_bytes as f64 / gauges.pool.slot_bytes as f64;
        let filled = gauges.payload_bytes as f64 / dram as f64;
        eprintln!(
            "waste inside slots {:.2}%, payload {:.1}% of DRAM",
            waste * 100.0,
            filled * 100.0
        );
        assert!(waste <= 0.05);
        assert!(engine.check().await);
    });
}
