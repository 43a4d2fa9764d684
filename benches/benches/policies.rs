//! Cost of a hit, of an eviction with its insert, and of a block of announced chains, on each
//! policy alone; and the longest that one of these chains takes: each is run five times, and its
//! shortest time counts, as a machine that takes the thread away is no stall of the policy's.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use terrace_benches::{median, policy_chains, policy_churn, policy_hits};
use terrace_engine::policy::POLICY_NAMES;

fn main() {
    println!(
        "{:<16} {:>8} {:>16} {:>14} {:>14}",
        "policy", "hit ns", "evict+insert ns", "chain block ns", "longest chain us"
    );
    // Names may be given, for a part of the table.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &&str| {
        wanted.iter().all(|arg| arg.starts_with('-')) || wanted.iter().any(|arg| arg == name)
    };
    for policy in POLICY_NAMES.into_iter().filter(|name| is_wanted(name)) {
        let hits = median(5, || {
            policy_hits(policy, 1_000_000, 5_000_000).expect("known")
        });
        let churn = median(5, || {
            policy_churn(policy, 1_000_000, 5_000_000).expect("known")
        });
        let mut shortest: Vec<f64> = Vec::new();
        let chains = median(5, || {
            let (chains, times) = policy_chains(policy, 1_000_000, 400_000).expect("known");
            shortest.resize(times.len(), f64::INFINITY);
            for (known, time) in shortest.iter_mut().zip(times) {
                *known = known.min(time);
            }
            chains
        });
        let longest_ns = shortest.into_iter().fold(0.0, f64::max);
        println!(
            "{policy:<16} {:>8.1} {:>16.1} {:>14.1} {:>14.1}",
            hits.ns,
            churn.ns,
            chains.ns,
            longest_ns / 1e3
        );
    }
}
