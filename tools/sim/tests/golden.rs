//! Hit counts of every policy over public traces, against those of independent simulators.
//!
//! Method: a plain simulation in which every access is a read, a miss inserts what the policy
//! admits, all blocks count one and nothing is pinned. The hits must equal `golden.json` as integers:
//! one block evicted out of order shows. Traces of requests have a second count: of a request's hits
//! only those count whose earlier blocks all hit, too, because a block is worth nothing without
//! those before it. Without the traces the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

mod traces_folder;

use terrace_sim::golden::{self, Expected, TRACES};
use terrace_sim::{Contender, HitCounts, Workload, simulate};

/// Ends the names of counts of hits whose earlier blocks all hit.
const PREFIX_VALID: &str = ":prefix_valid";

/// Which of the policies that `golden.json` has numbers for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Flat,
    PrefixAware,
}

impl Which {
    /// Of a name there; none when it is the second count of a policy.
    fn of(name: &str) -> Option<Self> {
        if name.ends_with(PREFIX_VALID) {
            None
        } else if name.starts_with("P-") || name == "LengthAware" {
            Some(Self::PrefixAware)
        } else {
            Some(Self::Flat)
        }
    }
}

/// The trace of this name and what is expected over it; none where there are no traces.
fn expected(name: &str) -> Option<(Workload, Expected)> {
    let file = TRACES.iter().find(|(known, _)| *known == name).unwrap().1;
    let path = traces_folder::find(file)?;
    let mut all = golden::read(&traces_folder::find(golden::FILE)?).unwrap();
    let expected = all.remove(name).unwrap();
    let workload = expected.workload(&path).unwrap();
    Some((workload, expected))
}

/// What hits under the policy, or bound, of this name.
fn hits(name: &str, workload: &Workload, capacity: u64) -> HitCounts {
    let contender = Contender::by_name(name).unwrap();
    simulate(contender, workload, usize::try_from(capacity).unwrap(), 1)
        .unwrap()
        .hits
}

/// Runs the policies over a trace that `golden.json` has numbers for; there must be `policies`.
fn compare(name: &str, which: Which, policies: usize) {
    let Some((workload, golden)) = expected(name) else {
        return;
    };
    assert_eq!(golden.capacities.len(), 6);

    let mut compared = 0;
    for (key, expected) in &golden.hits {
        if Which::of(key) != Some(which) {
            continue;
        }
        let capacities = golden.capacities.iter();
        let hits: Vec<_> = capacities
            .map(|&capacity| hits(key, &workload, capacity))
            .collect();
        let flat: Vec<_> = hits.iter().map(|hits| hits.hits).collect();
        assert_eq!(flat, *expected, "{key} over {name}");
        let valid: Vec<_> = hits.iter().map(|hits| hits.prefix_valid_hits).collect();
        if let Some(expected) = golden.hits.get(&format!("{key}{PREFIX_VALID}")) {
            assert_eq!(valid, *expected, "prefix-valid, {key} over {name}");
        } else if which == Which::PrefixAware {
            assert_eq!(valid, flat, "a hit of {key} behind a miss");
        }
        eprintln!("{name} {key}: {flat:?} as expected");
        compared += 1;
    }
    assert_eq!(compared, policies, "{name} has numbers for");
}

#[test]
fn hits_over_conversation_equal_golden() {
    compare("conversation", Which::Flat, 19);
}

#[test]
fn hits_of_prefix_aware_policies_over_conversation_equal_golden() {
    compare("conversation", Which::PrefixAware, 14);
}

#[test]
fn hits_over_arxiv1000_equal_golden() {
    compare("arxiv1000", Which::Flat, 19);
}

#[test]
fn hits_of_prefix_aware_policies_over_arxiv1000_equal_golden() {
    compare("arxiv1000", Which::PrefixAware, 14);
}

/// No numbers for the others.
#[test]
fn hits_over_weka120_equal_golden() {
    compare("weka120", Which::Flat, 11);
}

#[test]
fn hits_of_prefix_aware_policies_over_weka120_equal_golden() {
    compare("weka120", Which::PrefixAware, 14);
}

#[test]
fn hits_over_oltp_equal_golden() {
    compare("OLTP", Which::Flat, 18);
}

#[test]
fn hits_over_lirs_loop_equal_golden() {
    compare("lirs_loop", Which::Flat, 19);
}

#[test]
fn hits_over_lirs_gli_equal_golden() {
    compare("lirs_gli", Which::Flat, 19);
}

#[test]
fn hits_over_web12_equal_golden() {
    compare("web12", Which::Flat, 19);
}

/// Nobody else has numbers for the default: these are its own, so that a change of it shows. Its
/// ghosts keep few bits of a hash, so what hits differs with the keys: first those of a replay,
/// then blocks by their numbers.
#[test]
fn hits_of_the_default_are_as_recorded() {
    let traces = [
        (
            "conversation",
            [13_960, 31_517, 66_602, 86_749, 100_873, 104_081],
            [13_267, 31_952, 66_265, 86_969, 100_999, 104_081],
        ),
        (
            "arxiv1000",
            [4384, 5571, 5710, 5905, 6081, 6737],
            [4077, 5571, 5704, 5892, 6103, 6737],
        ),
        (
            "weka120",
            [18_058, 141_181, 478_686, 657_058, 790_990, 829_879],
            [16_519, 142_763, 478_717, 658_128, 791_178, 829_878],
        ),
    ];
    for (name, recorded, numbered) in traces {
        let Some((workload, golden)) = expected(name) else {
            return;
        };
        let of = |workload: &Workload| -> Vec<u64> {
            let capacities = golden.capacities.iter();
            let hits = capacities.map(|&capacity| hits("default", workload, capacity));
            hits.map(|hits| hits.prefix_valid_hits).collect()
        };
        assert_eq!(of(&workload), recorded, "{name}");
        assert_eq!(of(&workload.numbered()), numbered, "{name}, numbered");
    }
}

/// There are no numbers of others for these: what the bounded forms lose against the exact ones,
/// and against no history at all, at one and ten percent of the blocks.
#[test]
fn bounded_forms_over_conversation_hit_nearly_what_the_exact_ones_do() {
    let Some((workload, _)) = expected("conversation") else {
        return;
    };
    let workload = workload.numbered();
    for capacity in [1827, 18_279] {
        let hits = |name| hits(name, &workload, capacity).hits;
        let share = |bounded, exact| hits(bounded) as f64 / hits(exact) as f64;
        let shares = [
            share("LRU2-bounded", "LRU2hist"),
            share("LIRS-bounded", "LIRS"),
            share("WTinyLFU", "WTinyLFUx"),
        ];
        eprintln!("{capacity}: {shares:.3?}");
        for (share, least) in shares.into_iter().zip([0.7, 0.9, 0.95]) {
            assert!((least..1.02).contains(&share), "{capacity}: {shares:?}");
        }
        assert!(hits("LRU2-bounded") > hits("LRU2nohist"));
        // Blocks of one length: what it has over LFU is aging.
        assert!(hits("GDSF") > hits("LRU"));
    }
}
