//! Aim: the tiers come to the counts of independent simulators, and to their own of before.
//!
//! Method: whole traces, integers.

use std::path::PathBuf;

use terrace_engine::policy::WritePrice;

use super::*;
use crate::trace::Trace;
use crate::workload::Workload;

const BLOCK_LEN: u32 = 64 << 10;

/// A trace of the reference folder, or none where it is not there.
fn workload(file: &str) -> Option<Workload> {
    let folder = std::env::var_os("TERRACE_TRACES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"),
        PathBuf::from,
    );
    let path = folder.join(file);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    let trace = Trace::open(&path, None).unwrap();
    Some(Workload::new(&trace, BLOCK_LEN).unwrap())
}

#[test]
fn zz_print() {
    let workload = workload("conversation_trace.jsonl.zst").unwrap();
    let b = IdealOptions {
        blocks: TierBlocks {
            dram: 1827,
            nvme: 18279,
        },
        dram: Order::Lru,
        nvme: Order::Lru,
        exclusive: false,
        writes_tails: true,
        rule: WriteRule::All,
    };
    let run = |name: &str, o: &IdealOptions| {
        let c = ideal(&workload, o).unwrap();
        println!(
            "{name}: {} {} {} demand {}",
            c.hits(),
            c.dram_hits,
            c.writes,
            c.demand_reads
        );
    };
    run(
        "83261 15136 271537",
        &IdealOptions {
            exclusive: true,
            ..b
        },
    );
    run("82681 15136 204458", &b);
    run(
        "83992 15136 191199",
        &IdealOptions {
            writes_tails: false,
            ..b
        },
    );
    let b = IdealOptions {
        nvme: Order::Index,
        ..b
    };
    run(
        "89278 15136 271537",
        &IdealOptions {
            exclusive: true,
            ..b
        },
    );
    run("88518 198622", &b);
    let g = IdealOptions {
        dram: Order::Index,
        writes_tails: false,
        ..b
    };
    for (m, h, w) in [
        (1.0, 87599, 178384),
        (1.5, 87779, 172713),
        (2., 87789, 168516),
        (3., 86433, 149233),
        (4., 84510, 133438),
    ] {
        run(
            &format!("{h} {w}"),
            &IdealOptions {
                rule: WriteRule::Index(m),
                ..g
            },
        );
    }
    for (m, h, w) in [(1.5, 89224, 237408), (3.0, 88961, 224511)] {
        run(
            &format!("excl {h} {w}"),
            &IdealOptions {
                exclusive: true,
                rule: WriteRule::Index(m),
                ..g
            },
        );
    }
    for price in [0.01, 0.02, 0.05, 0.1] {
        run(
            &format!("{price}"),
            &IdealOptions {
                writes_tails: true,
                rule: WriteRule::Price(WritePrice::default().with_base(price)),
                ..g
            },
        );
    }
    let log = LogShape::of_device(18279 * 65536, BLOCK_LEN).unwrap();
    println!("{log:?} {}", log.blocks());
    for p in ["LRU", "P-LRU", "FIFO", "ARC"] {
        for announced in [false, true] {
            let t = std::time::Instant::now();
            if let Ok(c) = segments(
                &workload,
                &SegmentOptions {
                    policy: p.into(),
                    dram: 1827,
                    log,
                    announced,
                },
            ) {
                println!("{p} {announced} {c:?} {} {:?}", c.hits(), t.elapsed());
            }
        }
    }
}
