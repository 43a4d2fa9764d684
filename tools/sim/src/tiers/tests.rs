//! Aim: hits, demand reads and closed chains are counted as defined, and the log has the engine's
//! shape.
//!
//! Method: small chains by hand. Whole traces are in `tests/tiers.rs`.

use super::*;
use crate::error::SimError;
use crate::trace::{Trace, TraceRequest};
use crate::workload::Workload;

const BLOCK_LEN: u32 = 64 << 10;

/// LRU over LRU, copies stay below, all is written.
const LRU: IdealOptions = IdealOptions {
    blocks: TierBlocks { dram: 1, nvme: 1 },
    dram: Order::Lru,
    nvme: Order::Lru,
    exclusive: false,
    writes_tails: true,
    rule: WriteRule::All,
};

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

#[test]
fn ideal_brings_a_chain_back_from_below() {
    let workload = chains(&[&[1, 2, 3], &[7, 8, 9], &[1, 2, 3, 4]]);
    let options = IdealOptions {
        blocks: TierBlocks { dram: 3, nvme: 3 },
        ..LRU
    };
    let counts = ideal(&workload, &options).unwrap();
    // The second request sends the first chain down, the third brings it up again.
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
