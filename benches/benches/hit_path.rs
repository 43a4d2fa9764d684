//! DRAM hits by reference on the shard's thread, for each policy and two shapes of cache.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use terrace_benches::{filled_engine, local_hits, median};
use terrace_engine::policy::POLICY_NAMES;

fn main() {
    println!(
        "{:<8} {:>10} {:>8} {:>8} {:>12}",
        "policy", "blocks", "length", "ns", "hash"
    );
    for (blocks, len) in [(1_000_000, 4096), (30_000, 65_536)] {
        for policy in POLICY_NAMES {
            let Some(engine) = filled_engine(policy, blocks, len) else {
                eprintln!("{policy}: the engine could not be filled");
                continue;
            };
            let run = || local_hits(&engine, blocks, 2_000_000).expect("the shard answers");
            let result = median(5, run);
            println!(
                "{policy:<8} {blocks:>10} {len:>8} {:>8.1} {:>12x}",
                result.ns, result.hash
            );
        }
    }
}
