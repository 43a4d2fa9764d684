//! Aim: the recorded traces are read as documented. Method: read every file and compare the counts
//! of requests, block accesses and different blocks with the ones of an independent reader.
//! Without the traces the tests say that they are skipped.

use std::collections::{HashMap, HashSet};

use terrace_sim::trace::Trace;
use traces_folder::find;

mod traces_folder;

/// File, requests, block accesses, different blocks, whether requests are chains.
const TRACES: [(&str, usize, usize, usize, bool); 9] = [
    (
        "conversation_trace.jsonl.zst",
        12_031,
        288_500,
        182_790,
        true,
    ),
    ("mooncake_trace_1000.jsonl.zst", 1_000, 19_686, 12_207, true),
    ("weka_agentic_512.jsonl.zst", 3_514, 895_981, 53_517, true),
    ("OLTP.lis.zst", 914_145, 914_145, 186_880, false),
    ("lirs_loop.trace.gz", 505_500, 505_500, 1_011, false),
    ("lirs_gli.trace.gz", 6_015, 6_015, 2_529, false),
    ("cache2k_web12.trace.xz", 95_607, 95_607, 13_756, false),
    // No block ids: one fresh block per 512 tokens of context.
    (
        "AzureLLMInferenceTrace_conv.csv.zst",
        19_366,
        52_913,
        52_913,
        true,
    ),
    (
        "AzureLLMInferenceTrace_code.csv.zst",
        8_819,
        40_014,
        40_014,
        true,
    ),
];

#[test]
fn open_recorded_traces_have_the_documented_counts() {
    for (name, requests, accesses, unique, is_chain) in TRACES {
        let Some(path) = find(name) else { continue };
        let trace = Trace::open(&path, None).unwrap();
        let counts = (
            trace.requests.len(),
            trace.accesses(),
            trace.unique_blocks(),
        );
        assert_eq!(counts, (requests, accesses, unique), "{name}");
        assert!(
            trace
                .requests
                .iter()
                .all(|request| request.is_chain == is_chain),
            "{name}"
        );
        assert!(
            trace
                .requests
                .is_sorted_by_key(|request| request.timestamp_ms),
            "{name}"
        );
    }
}

#[test]
fn open_first_requests_are_the_start_of_the_whole() {
    for (name, requests, ..) in TRACES {
        let Some(path) = find(name) else { continue };
        let first = Trace::open(&path, Some(100)).unwrap();
        let more = Trace::open(&path, Some(1000)).unwrap();
        assert_eq!(
            (first.requests.len(), more.requests.len()),
            (100, requests.min(1000))
        );
        assert_eq!(first.requests, more.requests[..100], "{name}");
    }
}

#[test]
fn recorded_chains_have_true_prefix_ids() {
    for (name, _, _, _, is_chain) in TRACES {
        let Some(path) = find(name).filter(|_| is_chain) else {
            continue;
        };
        let mut predecessors = HashMap::new();
        for request in Trace::open(&path, None).unwrap().requests {
            let unique: HashSet<_> = request.blocks.iter().collect();
            assert_eq!(unique.len(), request.blocks.len(), "{name}: an id repeats");
            let mut previous = None;
            for id in request.blocks {
                assert_eq!(
                    *predecessors.entry(id).or_insert(previous),
                    previous,
                    "{name}: {id}"
                );
                previous = Some(id);
            }
        }
    }
}
