//! Aim: `terrace-bench` as a user calls it, with right and wrong input, and killed. Method: the
//! built binary as a child process; exit codes and what it says are compared.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use terrace_engine::hugepages;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace-bench"))
        .args(args)
        .output()
        .unwrap()
}

fn replay(args: &[&str]) -> Output {
    let base = [
        "replay",
        "--requests",
        "60",
        "--dram",
        "32MiB",
        "--hugepages",
        "off",
    ];
    bench(&[&base, args].concat())
}

#[test]
fn replay_reports_each_field_and_no_wrong_byte() {
    let output = replay(&["--json", "--iodepth", "3", "--shards", "2"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |path: &str| report.pointer(path).unwrap_or_else(|| panic!("{path}"));
    for path in [
        "/requests",
        "/accesses",
        "/dram/hits",
        "/nvme/hits",
        "/misses",
        "/verify_failures",
        "/puts/stored",
        "/puts/exists",
        "/puts/rejected",
        "/puts/busy",
        "/dram/p50_us",
        "/dram/p99_us",
        "/nvme/p50_us",
        "/nvme/p99_us",
        "/nvme/bytes_read",
        "/nvme/bytes_written",
        "/write_amplification",
        "/gb_per_s",
        "/cpu_s_per_gb",
        "/memory_bytes",
        "/recovery/blocks",
        "/recovery/bytes_read",
        "/recovery/seconds",
    ] {
        assert!(number(path).is_number(), "{path}");
    }
    for path in ["/hugepages", "/odirect", "/registered_buffers", "/iopoll"] {
        assert!(report["in_force"].pointer(path).is_some(), "{path}");
    }
    assert_eq!(number("/requests"), 60);
    assert_eq!(number("/verify_failures"), 0);
    assert!(number("/dram/p50_us").as_f64().unwrap() > 0.0);
    let sum: u64 = ["/dram/hits", "/nvme/hits", "/misses", "/unavailable"]
        .iter()
        .map(|path| number(path).as_u64().unwrap())
        .sum();
    assert_eq!(number("/accesses").as_u64().unwrap(), sum);
}

#[test]
fn replay_over_two_tiers_loses_nothing() {
    let output = replay(&[
        "--json",
        "--dram-blocks",
        "64",
        "--nvme",
        "256MiB",
        "--scratch",
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["nvme"]["hits"].as_u64().unwrap() > 0);
    assert_eq!(report["verify_failures"], 0);
}

#[test]
fn wrong_input_is_named_with_value_and_limit() {
    let damaged: PathBuf = std::env::temp_dir().join(format!("terrace-{}.zst", std::process::id()));
    std::fs::write(&damaged, [0x28, 0xb5, 0x2f, 0xfd, 9, 9, 9]).unwrap();
    let damaged_name = damaged.to_str().unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--policy", "MRU"], &["policy", "MRU", "LRU"]),
        (&["--shards", "0"], &["shards", "0", "1024"]),
        (&["--shards", "999"], &["shards", "999", "processors"]),
        (&["--block-len", "0"], &["block-len", "0", "134217728"]),
        (&["--block-len", "129MiB"], &["block-len", "134217728"]),
        (&["--block-len", "12parsec"], &["parsec"]),
        (&["--dram-blocks", "0"], &["dram-blocks", "0"]),
        (&["--iodepth", "0"], &["iodepth", "0", "4096"]),
        (&["--speed", "0"], &["speed", "0"]),
        (&["--speed", "quick"], &["quick", "max"]),
        (&["--trace", "/nowhere/at.all"], &["/nowhere/at.all"]),
        (&["--trace", damaged_name], &[damaged_name]),
        (&["--unknown-flag"], &["--unknown-flag"]),
    ];
    for (args, said) in cases {
        let output = replay(args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{args:?}: {text}");
        for part in *said {
            assert!(text.contains(part), "{args:?} should say `{part}`: {text}");
        }
    }
    std::fs::remove_file(damaged).unwrap();
}

#[test]
fn hugepages_that_are_not_there_are_named() {
    let output = bench(&[
        "idle",
        "--dram",
        "900GiB",
        "--hugepages",
        "require",
        "--seconds",
        "0",
    ]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("460800 hugepages") && text.contains("vm.nr_hugepages="),
        "{text}"
    );
}

/// Aim: after kill -9 an instant reopen gets its hugepages, though the kernel takes a while to
/// hand them back. Method: each engine wants more than half of the pool, and requires it.
#[test]
fn reopen_after_kill_gets_its_hugepages() {
    let pool = hugepages::pool(2 << 20);
    if pool.free < 64 || pool.free < pool.total * 9 / 10 {
        eprintln!(
            "skipped: {} of {} hugepages are free",
            pool.free, pool.total
        );
        return;
    }
    let dram = format!("{}MiB", pool.total * 6 / 10 * 2);
    let args = [
        "idle",
        "--dram",
        &dram,
        "--hugepages",
        "require",
        "--seconds",
        "600",
    ];
    for _ in 0..3 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_terrace-bench"))
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// What a command that must succeed prints.
fn report_of(args: &[&str]) -> serde_json::Value {
    let output = bench(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn recover_and_soak_find_nothing_wrong() {
    let folder = std::env::temp_dir();
    let path = |name: &str| folder.join(format!("terrace-{name}-{}", std::process::id()));
    let (recover, soak) = (path("recover"), path("soak"));
    let small = ["--nvme", "128MiB", "--dram", "64MiB"];
    let line = ["recover", recover.to_str().unwrap(), "--rounds", "1"];
    let report = report_of(&[&line[..], &small, &["--block-len", "16KiB"]].concat());
    assert_eq!(report["not_read_back"], 0, "{report}");
    let openings = report["openings"].as_array().unwrap();
    assert_eq!(openings[0]["after"], "kill");
    assert!(openings[0]["segments_walked"].as_u64().unwrap() > 0);
    assert_eq!(openings[1]["segments_walked"], 0, "after a close");
    assert!(openings[1]["blocks"].as_u64().unwrap() > 1000);

    let line = ["soak", soak.to_str().unwrap(), "--minutes", "0.04"];
    let report = report_of(&[&line[..], &small, &["--reopens", "2"]].concat());
    assert_eq!(report["wrong"], 0, "{report}");
    assert!(report["hits"].as_u64().unwrap() > 0);
    assert_eq!(report["leaks"].as_array().unwrap().len(), 0, "{report}");
    assert!(!recover.exists() && !soak.exists());
}
