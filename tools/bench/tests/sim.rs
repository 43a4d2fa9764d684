//! Aim: `terrace-bench replay --mode sim` and `golden` as a user calls them, with right and wrong
//! input, and a simulation beside a real engine. Method: the built binary as a child process; exit
//! codes, what it says and what it writes are compared.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace-bench"))
        .args(args)
        .env_remove("TERRACE_TRACES")
        .output()
        .unwrap()
}

const SIM: [&str; 5] = ["replay", "--mode", "sim", "--requests", "60"];

fn sim(args: &[&str]) -> Output {
    bench(&[&SIM[..], args].concat())
}

/// What a command that must succeed prints.
fn said(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn rows(args: &[&str]) -> Vec<Value> {
    let printed = said(&sim(&[args, &["--json"]].concat()));
    serde_json::from_str::<Vec<Value>>(&printed).unwrap()
}

/// A file of this test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("terrace-sim-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn with(name: &str, text: &str) -> Self {
        let file = Self::new(name);
        std::fs::write(&file.0, text).unwrap();
        file
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Two chains, each asked for twice.
const CHAINS: &str = r#"{"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 5, "input_length": 1300, "output_length": 1, "hash_ids": [1, 3, 4]}
{"timestamp": 9, "input_length": 1000, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 9, "input_length": 1300, "output_length": 1, "hash_ids": [1, 3, 4]}
"#;

#[test]
fn lists_make_a_row_for_each_combination() {
    let trace = Scratch::with("lists", CHAINS);
    let args = ["--trace", trace.path(), "--policy", "lru,opt,P-LRU"];
    let rows = rows(&[&args[..], &["--capacity", "2,100%", "--shards", "1,2"]].concat());
    let shown: Vec<_> = rows
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_u64().unwrap();
            let name = row["policy"].as_str().unwrap();
            (name, number("capacity_blocks"), number("shards"))
        })
        .collect();
    let expected = ["LRU", "OPT", "P-LRU"].map(|name| {
        [(2, 1), (2, 2), (4, 1), (4, 2)].map(|(blocks, shards)| (name, blocks, shards))
    });
    assert_eq!(shown, expected.concat());
    let whole = &rows[2];
    for (name, expected) in [
        ("accesses", 10),
        ("unique_blocks", 4),
        ("hits", 6),
        ("prefix_valid_hits", 6),
        ("misses", 4),
        ("evictions", 0),
        ("tokens", 4600),
        ("token_hits", 512 + 1000 + 1300),
    ] {
        assert_eq!(whole[name], expected, "{name}");
    }
    assert_eq!(whole["hit_ratio"], 0.6);
    for name in [
        "token_hit_ratio",
        "prefill_seconds_saved",
        "accesses_per_second",
        "bytes_per_block",
    ] {
        assert!(whole[name].as_f64().unwrap() > 0.0, "{name}");
    }
    assert!(rows[4]["bytes_per_block"].is_null(), "a bound has no state");
}

#[test]
fn csv_and_plot_are_written_beside_the_table() {
    let (csv, plot) = (Scratch::new("csv"), Scratch::new("svg"));
    let policies = ["--policy", "LRU,SIEVE,P-LRU", "--capacity", "1%,5%,20%"];
    let files = ["--csv", csv.path(), "--plot", plot.path()];
    let table = said(&sim(&[&policies[..], &files].concat()));
    assert_eq!(table.lines().count(), 10, "{table}");
    let csv = csv.text();
    let head: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    assert_eq!(csv.lines().count(), 10);
    assert!(
        csv.lines()
            .all(|line| line.split(',').count() == head.len())
    );
    assert_eq!(head[..3], ["trace", "policy", "capacity_blocks"]);
    let svg = plot.text();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for name in ["LRU", "SIEVE", "P-LRU"] {
        assert!(svg.contains(name), "{name} is in the legend");
    }
    assert!(svg.matches("<polyline").count() >= 3, "a line each");
}

#[test]
fn all_policies_run_without_a_panic() {
    let rows = rows(&["--policy", "ALL", "--capacity", "1,7%"]);
    let names: Vec<_> = rows.iter().map(|row| row["policy"].as_str()).collect();
    assert!(names.contains(&Some("P-OPT")) && names.contains(&Some("2Q")));
    assert!(rows.iter().all(|row| row["hits"].is_u64()));
}

#[test]
fn several_traces_have_rows_of_their_own_or_are_joined() {
    let (first, second) = (Scratch::with("a.x", CHAINS), Scratch::with("b.x", CHAINS));
    let list = format!("{},{}", first.path(), second.path());
    let apart = rows(&["--trace", &list, "--capacity", "100%"]);
    let counts = |rows: &[Value], name: &str| -> Vec<_> {
        rows.iter().map(|row| row[name].as_u64().unwrap()).collect()
    };
    assert_eq!(counts(&apart, "hits"), [6, 6]);
    let joined = rows(&["--trace", &list, "--capacity", "100%", "--join"]);
    assert_eq!(counts(&joined, "unique_blocks"), [8]);
    assert_eq!(counts(&joined, "hits"), [12]);
}

#[test]
fn two_tiers_are_simulated_by_scheme() {
    let rows = rows(&["--tiers", "excl,incl-backinv", "--capacity", "1%+10%,2+20"]);
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let number = |name: &str| row[name].as_u64().unwrap();
        let found = number("dram_hits") + number("nvme_hits");
        assert_eq!(found, number("hits"));
        assert_eq!(found + number("misses"), number("accesses"));
        assert!(number("demand_reads_prefetch_chain") <= number("demand_reads_prefetch_1"));
    }
    assert_eq!(rows[1]["dram_blocks"], 2);
}

#[test]
fn tiers_that_follow_chains_trade_hits_for_writes() {
    let rows = rows(&[
        "--tiers",
        "lru+git,GIT+GIT",
        "--capacity",
        "5%+20%",
        "--write-price",
        "0,0.05,0.9",
    ]);
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert_eq!(row["layout"], "ideal");
        assert_eq!(row["hits"], row["prefix_valid_hits"]);
        assert!(row["demand_reads"].as_u64() <= row["hits"].as_u64());
    }
    for priced in rows.chunks(3) {
        let writes: Vec<u64> = priced
            .iter()
            .map(|row| row["nvme_writes"].as_u64().unwrap())
            .collect();
        assert!(
            writes.is_sorted_by(|dear, cheap| dear >= cheap),
            "{writes:?}"
        );
        assert!(writes[2] < writes[0], "{writes:?}");
    }
}

/// Two tiers of an engine come to about the hits and writes of its log in simulation: LRU, which
/// writes all, would write three times as much. What takes time there moves them, the more the
/// busier the machine; docs/tiering.md has the figures of a whole trace.
#[test]
fn simulated_log_is_that_of_an_engine() {
    let (requests, nvme) = (["--requests", "600"], (1600 * 65_536).to_string());
    let args = [
        "--layout",
        "segments",
        "--tiers",
        "P-GIT",
        "--block-len",
        "65536",
        "--capacity",
        "300+1600",
        "--json",
    ];
    let said_by_sim = said(&bench(
        &[&["replay", "--mode", "sim"], &requests[..], &args].concat(),
    ));
    let row = &serde_json::from_str::<Vec<Value>>(&said_by_sim).unwrap()[0];
    let args = [
        "--policy",
        "P-GIT",
        "--block-len",
        "65536",
        "--dram-blocks",
        "300",
        "--iodepth",
        "1",
        "--hugepages",
        "off",
        "--json",
        "--nvme",
        &nvme,
    ];
    let said_by_engine = said(&bench(&[&["replay"], &requests[..], &args].concat()));
    let engine: Value = serde_json::from_str(&said_by_engine).unwrap();
    let count = |value: &Value| value.as_u64().unwrap();
    let hits = count(&engine["dram"]["hits"]) + count(&engine["nvme"]["hits"]);
    let writes = count(&engine["nvme"]["blocks_written"]) + count(&engine["nvme"]["reinsertions"]);
    let is_near = |found: u64, expected: u64, percent: u64| {
        found.abs_diff(expected) * 100 <= expected * percent
    };
    assert!(
        is_near(hits, count(&row["hits"]), 15),
        "{hits}, simulated {row}"
    );
    assert!(
        is_near(writes, count(&row["nvme_writes"]), 40),
        "{writes}, simulated {row}"
    );
}

/// The hits of a real engine are those of the simulation, also when keys are split.
#[test]
fn simulated_hits_are_those_of_an_engine() {
    for shards in ["1", "2"] {
        let common = [
            "--requests",
            "60",
            "--block-len",
            "4KiB",
            "--shards",
            shards,
        ];
        let engine = [
            "replay",
            "--hugepages",
            "off",
            "--iodepth",
            "1",
            "--dram-blocks",
            "90",
            "--policy",
            "LRU",
            "--json",
        ];
        let report: Value =
            serde_json::from_str(&said(&bench(&[&engine[..], &common].concat()))).unwrap();
        let sim = ["replay", "--mode", "sim", "--capacity", "90", "--json"];
        let rows: Vec<Value> =
            serde_json::from_str(&said(&bench(&[&sim[..], &common].concat()))).unwrap();
        assert_eq!(rows[0]["accesses"], report["accesses"]);
        assert_eq!(rows[0]["hits"], report["dram"]["hits"], "{shards} shards");
        assert_eq!(rows[0]["evictions"], report["evictions"], "{shards} shards");
    }
}

/// Flags, and what the refusal must say.
type Case = (&'static [&'static str], &'static [&'static str]);

const WRONG_LISTS: [Case; 16] = [
    (&["--policy", "LRU,MRU"], &["--policy", "`MRU`", "SIEVE"]),
    (&["--policy", ""], &["--policy", "empty"]),
    (&["--policy", "LRU,,FIFO"], &["--policy", "empty"]),
    (&["--policy", "LRU,lru"], &["--policy", "`lru`", "twice"]),
    (&["--capacity", "0"], &["--capacity", "0", "one"]),
    (&["--capacity", "0%"], &["--capacity", "0%", "100%"]),
    (&["--capacity", "101%"], &["--capacity", "101%", "100%"]),
    (&["--capacity", "some"], &["--capacity", "some", "1%"]),
    (&["--capacity", "1e3"], &["--capacity", "1e3"]),
    (&["--capacity", ""], &["--capacity", "empty"]),
    (&["--capacity", "1%,1%"], &["--capacity", "1%", "twice"]),
    (&["--shards", "0"], &["--shards", "0", "1024"]),
    (&["--shards", "1,1"], &["--shards", "1", "twice"]),
    (&["--shards", "x"], &["--shards", "x"]),
    (&["--trace", ""], &["--trace", "value"]),
    (&["--trace", "a,,b"], &["--trace", "empty"]),
];

const WRONG_TOGETHER: [Case; 28] = [
    (&["--join"], &["--join", "two"]),
    (&["--block-len", "0"], &["--block-len", "0", "134217728"]),
    (&["--requests", "0"], &["--requests", "0"]),
    (&["--iodepth", "4"], &["--iodepth", "engine", "--mode"]),
    (&["--hugepages", "off"], &["--hugepages", "engine"]),
    (&["--dram-blocks", "4"], &["--dram-blocks", "engine"]),
    (&["--nvme", "1GiB"], &["--nvme ", "engine"]),
    (&["--speed", "max"], &["--speed", "engine"]),
    (&["--durable"], &["--durable", "engine"]),
    (&["--tiers", "both"], &["--tiers", "`both`", "excl"]),
    (&["--tiers", "excl,EXCL"], &["--tiers", "twice"]),
    (
        &["--tiers", "excl", "--capacity", "1%"],
        &["--capacity", "1%+10%"],
    ),
    (
        &["--tiers", "excl", "--capacity", "1%+0"],
        &["--capacity", "0"],
    ),
    (
        &["--tiers", "excl", "--policy", "LRU"],
        &["--policy", "--tiers"],
    ),
    (
        &["--tiers", "excl", "--shards", "2"],
        &["--shards", "--tiers"],
    ),
    (&["--tiers", "excl", "--plot", "x"], &["--plot", "--tiers"]),
    (&["--layout", "segments"], &["--layout", "--tiers"]),
    (&["--write-price", "0.1"], &["--write-price", "--tiers"]),
    (
        &["--tiers", "lru+git,excl"],
        &["--tiers", "`excl`", "lru+git", "--layout segments"],
    ),
    (&["--tiers", "lru+git,LRU+git"], &["--tiers", "twice"]),
    (
        &["--tiers", "lru+git", "--write-price", "1.5"],
        &["--write-price", "1.5", "0 to 1"],
    ),
    (
        &["--tiers", "lru+git", "--write-price", "0.1,0.1"],
        &["--write-price", "twice"],
    ),
    (
        &["--tiers", "lru+git", "--write-budget", "few"],
        &["--write-budget", "few", "0 to"],
    ),
    (
        &["--tiers", "OPT", "--layout", "segments"],
        &["--tiers", "OPT", "future"],
    ),
    (
        &["--tiers", "nobody", "--layout", "segments"],
        &["--tiers", "nobody"],
    ),
    (
        &[
            "--tiers",
            "LRU",
            "--layout",
            "segments",
            "--capacity",
            "4+9",
        ],
        &["--capacity", "9 blocks", "three segments"],
    ),
    (&["--csv", "/nowhere/at.all"], &["--csv", "/nowhere/at.all"]),
    (
        &["--plot", "/nowhere/at.all"],
        &["--plot", "/nowhere/at.all"],
    ),
];

const NOT_FOR_AN_ENGINE: [Case; 9] = [
    (&["--mode", "real"], &["--mode", "real"]),
    (&["--capacity", "1%"], &["--capacity", "--mode"]),
    (&["--tiers", "excl"], &["--tiers", "--mode"]),
    (
        &["--tiers", "excl", "--layout", "ideal"],
        &["--tiers", "--mode"],
    ),
    (&["--csv", "x"], &["--csv", "--mode"]),
    (&["--plot", "x"], &["--plot", "--mode"]),
    (&["--join"], &["--join", "--mode"]),
    (&["--shards", "1,2"], &["--shards", "--mode"]),
    (&["--trace", "a", "--trace", "b"], &["--trace", "--mode"]),
];

#[test]
fn wrong_input_names_the_flag_and_what_is_allowed() {
    for (args, parts) in WRONG_LISTS.into_iter().chain(WRONG_TOGETHER) {
        refused(
            &bench(&[&["replay", "--mode", "sim"], args].concat()),
            args,
            parts,
        );
    }
    for (args, parts) in NOT_FOR_AN_ENGINE {
        refused(&bench(&[&["replay"][..], args].concat()), args, parts);
    }
}

#[test]
fn wrong_values_for_a_trace_name_the_flag_and_the_trace() {
    let (empty, short) = (
        Scratch::with("empty", "*\n"),
        Scratch::with("short", CHAINS),
    );
    let twice = format!("{0},{0}", short.path());
    let (empty, short) = (empty.path(), short.path());
    let cases: [(&[&str], &[&str]); 5] = [
        (
            &["--trace", short, "--capacity", "5"],
            &["--capacity", "5", "4 different"],
        ),
        (
            &["--trace", short, "--shards", "8"],
            &["--shards", "8", "blocks"],
        ),
        (&["--trace", empty], &["--trace", "no accesses"]),
        (&["--trace", &twice], &["--trace", "twice"]),
        (&["--trace", "/nowhere/at.all"], &["/nowhere/at.all"]),
    ];
    for (args, parts) in cases {
        refused(&sim(args), args, parts);
    }
}

fn refused(output: &Output, args: &[&str], parts: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    assert!(!text.contains("panicked"), "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?} should say `{part}`: {text}");
    }
    assert!(output.stdout.is_empty(), "{args:?} prints nothing else");
}

#[test]
fn golden_marks_what_differs_and_what_is_missing() {
    let folder = Scratch::new("traces");
    std::fs::create_dir_all(&folder.0).unwrap();
    std::fs::write(folder.0.join("lirs_loop.trace.gz"), "1\n2\n1\n2\n").unwrap();
    let counts = |hits: u64| {
        let loops = format!(r#"{{"N": 4, "U": 2, "caps": [1, 2], "LRU": [0, {hits}]}}"#);
        let text = format!(r#"{{"lirs_loop": {loops}, "OLTP": {loops}}}"#);
        std::fs::write(folder.0.join("golden.json"), text).unwrap();
        bench(&["golden", "--traces", folder.path()])
    };
    let printed = said(&counts(2));
    assert!(
        printed.contains("2 numbers compared, 0 differ"),
        "{printed}"
    );
    assert!(
        printed.contains("OLTP"),
        "the missing one is named: {printed}"
    );
    let output = counts(3);
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.contains("2*") && printed.contains("1 differ"),
        "{printed}"
    );

    std::fs::write(folder.0.join("lirs_loop.trace.gz"), "1\n2\n").unwrap();
    refused(
        &bench(&["golden", "--traces", "/nowhere"]),
        &["golden"],
        &["--golden", "/nowhere"],
    );
    let other = bench(&["golden", "--traces", folder.path()]);
    assert_eq!(
        other.status.code(),
        Some(2),
        "another trace than the expected one"
    );
    std::fs::remove_dir_all(&folder.0).unwrap();
}
