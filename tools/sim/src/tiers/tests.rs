//! Aim: the tiers come to the counts of independent simulators and stay at their own, and the rule
//! of writes reaches what it promises.
//!
//! Method: small chains by hand, and whole traces with integers. Expected counts that are not our
//! own are those of a simulator written apart from this one.

use std::path::PathBuf;

use terrace_engine::policy::WritePrice;

use super::*;
use crate::error::SimError;
use crate::trace::{Trace, TraceRequest};
use crate::workload::Workload;

const BLOCK_LEN: u32 = 64 << 10;
const CONVERSATION: &str = "conversation_trace.jsonl.zst";
/// A hundredth and a tenth of the blocks of conversation.
const BLOCKS: TierBlocks = TierBlocks {
    dram: 1827,
    nvme: 18_279,
};

/// LRU over LRU, copies stay below, all is written.
const LRU: IdealOptions = IdealOptions {
    blocks: BLOCKS,
    dram: Order::Lru,
    nvme: Order::Lru,
    exclusive: false,
    writes_tails: true,
    rule: WriteRule::All,
};

/// A trace of the reference folder, or none where it is not there.
fn recorded(file: &str) -> Option<Workload> {
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

fn chains(requests: &[&[u64]]) -> Workload {
    let requests = requests
        .iter()
        .enumerate()
        .map(|(second, blocks)| TraceRequest {
            timestamp_ms: second as u64 * 1000,
            input_tokens: 0,
            output_tokens: 0,
            blocks: blocks.to_vec(),
            is_chain: true,
        });
    let trace = Trace {
        name: "by hand".to_owned(),
        requests: requests.collect(),
    };
    Workload::new(&trace, BLOCK_LEN).unwrap()
}

/// Hits, those in DRAM, writes.
fn row(workload: &Workload, options: &IdealOptions) -> (u64, u64, u64) {
    let counts = ideal(workload, options).unwrap();
    (counts.hits(), counts.dram_hits, counts.writes)
}

fn priced(base: f64) -> WriteRule {
    WriteRule::Price(WritePrice::default().with_base(base))
}

#[test]
fn ideal_brings_a_chain_back_from_below() {
    let workload = chains(&[&[1, 2, 3], &[7, 8, 9], &[1, 2, 3, 4]]);
    let options = IdealOptions {
        blocks: TierBlocks { dram: 3, nvme: 3 },
        ..LRU
    };
    let counts = ideal(&workload, &options).unwrap();
    // The second request sends three blocks down. The third brings them up again: its first three
    // victims are written in place of blocks whose copies have come up, and of its last one's.
    assert_eq!((counts.dram_hits, counts.nvme_hits), (0, 3));
    assert_eq!(counts.prefix_valid_hits, 3);
    assert_eq!(
        counts.demand_reads, 3,
        "a tenth of three blocks is none ahead"
    );
}

#[test]
fn ideal_ends_hits_at_the_first_block_that_is_gone() {
    let workload = chains(&[&[1, 2, 3], &[1, 5], &[1, 2, 3]]);
    let options = IdealOptions {
        blocks: TierBlocks { dram: 2, nvme: 1 },
        ..LRU
    };
    let counts = ideal(&workload, &options).unwrap();
    assert_eq!(counts.hits(), counts.prefix_valid_hits);
    assert_eq!(counts.accesses, 8);
}

#[test]
fn ideal_refuses_what_is_no_chain() {
    let two_parents = chains(&[&[1, 2], &[3, 2]]);
    let twice = chains(&[&[1, 2, 1]]);
    for workload in [two_parents, twice] {
        let refused = ideal(&workload, &LRU);
        assert!(matches!(refused, Err(SimError::NotChains { .. })));
    }
}

#[test]
fn add_counts_one_demand_read_for_what_is_fetched_ahead() {
    let mut counts = TierCounts::default();
    let found = [
        Found::Dram,
        Found::Nvme,
        Found::Nvme,
        Found::Nvme,
        Found::Nowhere,
        Found::Nvme,
    ];
    counts.add(&found, 2);
    assert_eq!((counts.dram_hits, counts.nvme_hits), (1, 4));
    assert_eq!(
        counts.demand_reads, 2,
        "the fourth hit is beyond what was fetched"
    );
    assert_eq!(counts.prefix_valid_hits, 4);
}

#[test]
fn log_of_a_device_has_the_engines_segments() {
    let log = LogShape::of_device(18_279 * u64::from(BLOCK_LEN), BLOCK_LEN);
    let expected = LogShape {
        segments: 67,
        blocks_per_segment: 270,
    };
    assert_eq!(log, Some(expected));
    assert_eq!(
        LogShape::of_device(17 << 20, BLOCK_LEN),
        None,
        "two segments"
    );
    let count = LogShape::of_device(25 << 20, BLOCK_LEN).map(|log| log.segments);
    assert_eq!(count, Some(3));
}

#[test]
fn ideal_comes_to_the_counts_of_another_simulator() {
    let Some(workload) = recorded(CONVERSATION) else {
        return;
    };
    let without_tails = IdealOptions {
        writes_tails: false,
        ..LRU
    };
    let exclusive = IdealOptions {
        exclusive: true,
        ..LRU
    };
    assert_eq!(row(&workload, &exclusive), (83_261, 15_136, 271_537));
    assert_eq!(row(&workload, &LRU), (82_681, 15_136, 204_458));
    assert_eq!(row(&workload, &without_tails), (83_992, 15_136, 191_199));
    let by_index = IdealOptions {
        nvme: Order::Index,
        ..exclusive
    };
    assert_eq!(row(&workload, &by_index), (89_278, 15_136, 271_537));
    let both = IdealOptions {
        dram: Order::Index,
        nvme: Order::Index,
        ..without_tails
    };
    for (times, expected) in [
        (3.0, (86_433, 29_971, 149_233)),
        (4.0, (84_510, 29_971, 133_438)),
    ] {
        let rule = WriteRule::Index(times);
        assert_eq!(row(&workload, &IdealOptions { rule, ..both }), expected);
    }
    let moving = IdealOptions {
        exclusive: true,
        rule: WriteRule::Index(1.5),
        ..both
    };
    assert_eq!(row(&workload, &moving), (89_224, 29_971, 237_408));
}

#[test]
fn price_of_a_write_reaches_the_hits_of_writing_all() {
    let Some(workload) = recorded(CONVERSATION) else {
        return;
    };
    let rule = WriteRule::Price(WritePrice::default());
    for (dram, expected) in [
        (Order::Lru, (88_561, 15_136, 166_573)),
        (Order::Index, (87_717, 29_971, 167_399)),
    ] {
        let options = IdealOptions {
            dram,
            nvme: Order::Index,
            rule,
            ..LRU
        };
        assert_eq!(row(&workload, &options), expected);
        let counts = ideal(&workload, &options).unwrap();
        assert!(
            counts.demand_reads * 100 <= 12 * counts.nvme_hits,
            "{counts:?}"
        );
    }
}

#[test]
fn price_and_budget_trade_hits_for_writes() {
    let Some(workload) = recorded(CONVERSATION) else {
        return;
    };
    let both = IdealOptions {
        dram: Order::Index,
        nvme: Order::Index,
        ..LRU
    };
    let of_rule = |rule| row(&workload, &IdealOptions { rule, ..both });
    let by_price = [0.0, 0.1, 0.25].map(|price| of_rule(priced(price)));
    assert!(
        by_price.is_sorted_by(|dear, cheap| dear.2 > cheap.2),
        "{by_price:?}"
    );
    // The trace takes 3,537 seconds; a minute's writes may be ahead of the budget.
    let budget = WritePrice::default().with_budget(20.0);
    let (hits, _, writes) = of_rule(WriteRule::Price(budget));
    assert!(writes <= 20 * (3537 + 60), "{writes}");
    assert!(hits > 65_000, "{hits}");
}

#[test]
fn segments_come_to_the_counts_of_before() {
    let log = LogShape {
        segments: 67,
        blocks_per_segment: 270,
    };
    let Some(workload) = recorded(CONVERSATION) else {
        return;
    };
    for (policy, expected) in [
        ("LRU", (82_603, 14_903, 251_330, 46_794)),
        ("P-GIT", (85_267, 29_550, 225_383, 65_255)),
    ] {
        let options = SegmentOptions {
            policy: policy.to_owned(),
            dram: BLOCKS.dram,
            log,
            announced: true,
            price: WritePrice::default(),
        };
        let counts = segments(&workload, &options).unwrap();
        let row = (
            counts.hits(),
            counts.dram_hits,
            counts.writes,
            counts.reinsertions,
        );
        assert_eq!(row, expected, "{policy}");
    }
}
