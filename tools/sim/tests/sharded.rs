//! Aim: shards judge a chain alike, so that it is worth about as much in eight shards as in one.
//! Method: made conversations; hits of the default, and those that no miss comes before, in eight
//! shards against one.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

use terrace_sim::trace::{SynthConfig, Trace};
use terrace_sim::{Contender, HitCounts, Workload, simulate};

const BLOCK_LEN: u32 = 65_536;
/// Room for blocks: about a tenth of those in use.
const CAPACITY: usize = 6000;

fn hits(workload: &Workload, shards: usize) -> HitCounts {
    let contender = Contender::by_name("default").unwrap();
    let outcome = simulate(contender, workload, CAPACITY, shards);
    outcome.unwrap().hits
}

#[test]
fn default_in_eight_shards_hits_at_most_three_in_a_hundred_less() {
    let config = SynthConfig {
        requests: 6000,
        ..SynthConfig::default()
    };
    let trace = Trace::synthesize(&config).unwrap();
    let workload = Workload::new(&trace, BLOCK_LEN).unwrap();
    let (one, eight) = (hits(&workload, 1), hits(&workload, 8));
    eprintln!(
        "of {} blocks: {} hits in one shard, {} in eight, {} of them valid",
        workload.unique_blocks(),
        one.hits,
        eight.hits,
        eight.prefix_valid_hits
    );
    assert!(eight.hits * 100 >= one.hits * 97);
    // More of those that count is lost: docs/policies.md, "Shards".
    assert!(eight.prefix_valid_hits * 100 >= one.prefix_valid_hits * 92);
}
