//! Aim: the reference schemes of two tiers move blocks as they are defined. Method: traces small
//! enough to follow by hand, and recorded ones, of which an independent simulator's counts are
//! known as integers. Without the recorded traces the tests say that they are skipped.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use terrace_sim::Workload;
use terrace_sim::trace::{Trace, TraceRequest};
use terrace_sim::two_tier::{TwoTierOutcome, TwoTierScheme, two_tier};
use traces_folder::find;

mod traces_folder;

const CONVERSATION: (&str, usize, usize) = ("conversation_trace.jsonl.zst", 1827, 18_279);
const ARXIV: (&str, usize, usize) = ("mooncake_trace_1000.jsonl.zst", 122, 1220);
const WEKA: (&str, usize, usize) = ("weka_agentic_512.jsonl.zst", 535, 5351);

/// A scheme; hits in DRAM, hits in NVMe, misses; writes; requests with a hit in NVMe; reads that
/// are left with 1, 4, 8 and all blocks fetched ahead.
type Expected = (&'static str, [u64; 3], u64, u64, [u64; 4]);

fn simulate(scheme: &str, workload: &Workload, dram: usize, nvme: usize) -> TwoTierOutcome {
    two_tier(
        TwoTierScheme::by_name(scheme).unwrap(),
        workload,
        dram,
        nvme,
    )
}

fn found(outcome: &TwoTierOutcome) -> [u64; 3] {
    [outcome.dram_hits, outcome.nvme_hits, outcome.hits.misses()]
}

fn compare((file, dram, nvme): (&str, usize, usize), table: &[Expected]) {
    let Some(path) = find(file) else { return };
    let workload = Workload::new(&Trace::open(&path, None).unwrap(), 1).unwrap();
    for &(scheme, expected, writes, requests, reads) in table {
        let outcome = simulate(scheme, &workload, dram, nvme);
        assert_eq!(found(&outcome), expected, "{scheme} over {file}");
        assert_eq!(outcome.nvme_writes, Some(writes), "{scheme} over {file}");
        assert_eq!(outcome.nvme_requests, requests, "{scheme} over {file}");
        assert_eq!(outcome.demand_reads, reads, "{scheme} over {file}");
    }
}

fn compare_by_request((file, dram, nvme): (&str, usize, usize), hits: [[u64; 2]; 2]) {
    let Some(path) = find(file) else { return };
    let workload = Workload::new(&Trace::open(&path, None).unwrap(), 1).unwrap();
    for (scheme, expected) in ["p-lru-excl", "p-lru-incl"].into_iter().zip(hits) {
        let outcome = simulate(scheme, &workload, dram, nvme);
        let [dram_hits, nvme_hits, _] = found(&outcome);
        assert_eq!([dram_hits, nvme_hits], expected, "{scheme} over {file}");
        assert_eq!(outcome.nvme_writes, None);
    }
}

#[test]
fn conversation_counts_equal_the_reference() {
    let incl = [33_528, 14_585, 9003, 3396];
    let table = [
        (
            "excl",
            [15_080, 68_148, 205_272],
            271_593,
            3530,
            [35_014, 15_223, 9395, 3530],
        ),
        (
            "incl-backinv",
            [15_068, 65_243, 208_189],
            208_189,
            3396,
            incl,
        ),
        (
            "incl-propagate",
            [15_080, 65_243, 208_177],
            208_177,
            3396,
            incl,
        ),
        (
            "excl-reuse",
            [15_080, 4982, 268_438],
            7033,
            245,
            [2565, 1121, 690, 245],
        ),
    ];
    compare(CONVERSATION, &table);
    compare_by_request(CONVERSATION, [[15_136, 68_125], [15_136, 65_330]]);
}

#[test]
fn arxiv1000_counts_equal_the_reference() {
    let table = [
        ("excl", [4932, 683, 14_071], 14_632, 95, [371, 176, 136, 95]),
        (
            "incl-backinv",
            [4931, 635, 14_120],
            14_120,
            93,
            [346, 165, 129, 93],
        ),
    ];
    compare(ARXIV, &table);
}

#[test]
fn weka120_counts_equal_the_reference() {
    let incl = [26_576, 586_861, 282_544];
    let incl_reads = [294_065, 118_385, 66_376, 2553];
    let table = [
        (
            "excl",
            [26_576, 627_362, 242_043],
            868_870,
            2672,
            [314_349, 126_530, 70_933, 2672],
        ),
        ("incl-backinv", incl, 282_544, 2553, incl_reads),
        ("incl-propagate", incl, 282_544, 2553, incl_reads),
    ];
    compare(WEKA, &table);
    compare_by_request(WEKA, [[37_362, 637_408], [37_362, 602_679]]);
}

/// A trace of these chains.
fn chains(requests: &[&[u64]]) -> Workload {
    let request = |blocks: &&[u64]| TraceRequest {
        timestamp_ms: 0,
        input_tokens: 512 * blocks.len() as u32,
        output_tokens: 0,
        blocks: blocks.to_vec(),
        is_chain: true,
    };
    let trace = Trace {
        name: "by hand".to_owned(),
        requests: requests.iter().map(request).collect(),
    };
    Workload::new(&trace, 1).unwrap()
}

/// Room for one block above and two below: 1 and 2 go down, 1 comes up again and 3 goes down.
#[test]
fn exclusive_tiers_hold_a_block_once() {
    let workload = chains(&[&[1], &[2], &[3], &[1], &[1], &[2], &[3]]);
    let outcome = simulate("excl", &workload, 1, 2);
    assert_eq!(found(&outcome), [1, 3, 3]);
    assert_eq!(outcome.nvme_writes, Some(5));
    assert_eq!(outcome.nvme_requests, 3);
}

/// 1 is in both; it is the oldest below, as hits above are not told there, and 2 and 3 push it
/// out: it leaves DRAM as well. Told of them, NVMe gives up 2 first.
#[test]
fn inclusive_tiers_differ_in_what_nvme_learns() {
    let workload = chains(&[&[1], &[2], &[1], &[3], &[1]]);
    assert_eq!(found(&simulate("incl-backinv", &workload, 2, 2)), [1, 0, 4]);
    assert_eq!(
        found(&simulate("incl-propagate", &workload, 2, 2)),
        [2, 0, 3]
    );
}

/// Only 1 is used twice in DRAM, so only 1 is written below.
#[test]
fn reuse_filter_writes_what_was_used_again() {
    let workload = chains(&[&[1], &[1], &[2], &[3], &[1], &[2]]);
    let outcome = simulate("excl-reuse", &workload, 1, 2);
    assert_eq!(found(&outcome), [1, 1, 4]);
    // Once when 2 comes, and once again when it leaves DRAM at the end.
    assert_eq!(outcome.nvme_writes, Some(2));
}

#[test]
fn reads_ahead_leave_the_first_of_each_run() {
    let chain: Vec<u64> = (0..12).collect();
    let other: Vec<u64> = (100..112).collect();
    let workload = chains(&[&chain, &other, &chain]);
    let outcome = simulate("excl", &workload, 12, 12);
    assert_eq!(found(&outcome), [0, 12, 24]);
    assert_eq!(outcome.nvme_requests, 1);
    // Twelve in a row: every second one, every fifth, every ninth, the first.
    assert_eq!(outcome.demand_reads, [6, 3, 2, 1]);
}

/// A chain longer than DRAM keeps its first blocks there.
#[test]
fn tiers_by_request_keep_the_root_above() {
    let workload = chains(&[&[1, 2, 3, 4], &[1, 2, 3, 4]]);
    let outcome = simulate("p-lru-excl", &workload, 1, 2);
    assert_eq!(found(&outcome), [1, 2, 5]);
    assert_eq!(outcome.hits.prefix_valid_hits, 3);
    assert_eq!(found(&simulate("p-lru-incl", &workload, 1, 2)), [1, 1, 6]);
}

#[test]
fn names_are_taken_in_any_case_and_others_refused() {
    for name in TwoTierScheme::NAMES {
        let scheme = TwoTierScheme::by_name(&name.to_uppercase()).unwrap();
        assert_eq!(scheme.name(), name);
    }
    let said = TwoTierScheme::by_name("both").unwrap_err().to_string();
    assert!(
        said.contains("`both`") && said.contains("excl-reuse"),
        "{said}"
    );
}
