//! Cost of a hit and of an eviction with its insert, on each policy alone.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use terrace_benches::{median, policy_churn, policy_hits};
use terrace_engine::policy::POLICY_NAMES;

fn main() {
    println!("{:<8} {:>10} {:>14}", "policy", "hit ns", "evict+insert ns");
    for policy in POLICY_NAMES {
        let hits = median(5, || {
            policy_hits(policy, 1_000_000, 5_000_000).expect("known")
        });
        let churn = median(5, || {
            policy_churn(policy, 1_000_000, 5_000_000).expect("known")
        });
        println!("{policy:<8} {:>10.1} {:>14.1}", hits.ns, churn.ns);
    }
}
