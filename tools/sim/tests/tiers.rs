//! Aim: the tiers come to the counts of another simulator and stay at their own, and the price of a
//! write reaches what docs/tiering.md says.
//!
//! Method: whole traces, integers. Expected counts that are not our own are those of a simulator
//! written apart from this one; the engine's log comes to those of a replay within a hundredth.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

mod traces_folder;

use terrace_engine::policy::WritePrice;
use terrace_sim::Workload;
use terrace_sim::tiers::{
    IdealOptions, LogShape, Order, SegmentOptions, TierBlocks, WriteRule, ideal, segments,
};
use terrace_sim::trace::Trace;

const BLOCK_LEN: u32 = 64 << 10;
const CONVERSATION: &str = "conversation_trace.jsonl.zst";
const TOOLS: &str = "mooncake_trace_1000.jsonl.zst";

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

/// A recorded trace, or none where it is not there.
fn recorded(file: &str) -> Option<Workload> {
    let trace = Trace::open(&traces_folder::find(file)?, None).unwrap();
    Some(Workload::new(&trace, BLOCK_LEN).unwrap())
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
fn price_of_a_write_saves_most_of_them_where_little_comes_back() {
    let Some(workload) = recorded(TOOLS) else {
        return;
    };
    let options = IdealOptions {
        blocks: TierBlocks {
            dram: 122,
            nvme: 1220,
        },
        dram: Order::Index,
        nvme: Order::Index,
        ..LRU
    };
    let rule = WriteRule::Price(WritePrice::default());
    assert_eq!(row(&workload, &options), (5798, 5288, 12_895));
    let priced = IdealOptions { rule, ..options };
    assert_eq!(row(&workload, &priced), (5858, 5288, 5174));
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
