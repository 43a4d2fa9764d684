//! Aim: `terrace-bench raw` as a user calls it: every mode does something on a small file, the
//! report can be read by programs, and wrong input is named. Method: the built binary as a child
//! process, on a file of 64 MiB, for tenths of a second.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use terrace_engine::{Engine, EngineConfig, HugepageMode, NvmeConfig, block_on};

/// A place for one test's files on a file system with direct I/O, gone when the test is.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("terrace-raw-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        Self(place)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn raw(path: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace-bench"))
        .args(["raw", path, "--hugepages", "off"])
        .args(args)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs briefly on 64 KiB blocks and reads the report.
fn report(path: &str, args: &[&str]) -> Value {
    let brief = [
        "--json",
        "--bs",
        "64KiB",
        "--rounds",
        "2",
        "--seconds",
        "0.2",
    ];
    let output = raw(path, &[&brief, args].concat());
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every mode of a cell did something in every round.
fn check_cell(cell: &Value, modes: &[&str]) {
    let listed = cell["modes"].as_array().unwrap();
    let names: Vec<&str> = listed.iter().map(|m| m["mode"].as_str().unwrap()).collect();
    assert_eq!(names, modes);
    for mode in listed {
        let rounds = mode["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 2, "{mode}");
        for field in [
            "gb_per_s",
            "iops",
            "p50_us",
            "p99_us",
            "cpu_us_per_io",
            "share_of_ring",
        ] {
            assert!(mode[field].as_f64().unwrap() > 0.0, "{field} of {mode}");
        }
        for round in rounds {
            assert!(round["ios"].as_u64().unwrap() > 0, "{round}");
            assert_eq!(
                round["engine"]["failures"].as_u64().unwrap_or(0),
                0,
                "{round}"
            );
        }
    }
    let ring = &listed[0];
    assert!((ring["share_of_ring"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    assert!(cell["hash_us"].as_f64().unwrap() >= 0.0);
}

#[test]
fn reads_run_in_every_mode_and_leave_only_the_file() {
    let place = Place::new("reads");
    let path = place.path("disk");
    let modes = ["ring", "hybrid", "hybrid-hash", "engine", "engine-remote"];
    let list = modes.join(",");
    let args = ["--size", "64MiB", "--iodepth", "1,4", "--modes", &list];
    let report = report(&path, &args);
    for field in ["kernel", "device", "hugepages", "ring", "load_before"] {
        assert!(!report[field].as_str().unwrap().is_empty(), "{field}");
    }
    assert!(report["ring"].as_str().unwrap().contains("+fixed-buffers"));
    assert_eq!(report["hugepages"], "4KiB");
    let cells = report["cells"].as_array().unwrap();
    let depths: Vec<u64> = cells
        .iter()
        .map(|c| c["iodepth"].as_u64().unwrap())
        .collect();
    assert_eq!(depths, [1, 4]);
    cells.iter().for_each(|cell| check_cell(cell, &modes));
    let left: Vec<_> = std::fs::read_dir(&place.0).unwrap().collect();
    assert_eq!(left.len(), 1, "the engine's data set is gone: {left:?}");
}

#[test]
fn writes_run_in_every_mode_and_flush_as_the_engine_does() {
    let place = Place::new("writes");
    let path = place.path("disk");
    let modes = [
        "ring",
        "hybrid",
        "engine",
        "engine-in-place",
        "engine-remote",
    ];
    let list = modes.join(",");
    let durable = report(
        &path,
        &[
            "--size",
            "64MiB",
            "--iodepth",
            "4",
            "--rw",
            "durable",
            "--modes",
            &list,
        ],
    );
    let cell = &durable["cells"][0];
    check_cell(cell, &modes);
    assert_eq!(cell["flush_every_of_engine"], true);
    let flushed = |mode: usize, field: &str| {
        cell["modes"][mode]["rounds"][0]
            .pointer(field)
            .unwrap()
            .as_u64()
            .unwrap()
    };
    assert!(flushed(0, "/bytes_per_flush") >= 64 << 10);
    assert!(flushed(2, "/engine/flushes") > 0);
    let given = [
        "--iodepth",
        "4",
        "--rw",
        "durable",
        "--flush-every",
        "1MiB",
        "--modes",
        "ring",
    ];
    let given = report(&path, &given);
    assert_eq!(given["cells"][0]["flush_every"], 1 << 20);
    // The file was made by this tool: it may be written again.
    check_cell(
        &report(
            &path,
            &["--iodepth", "2", "--rw", "write", "--modes", &list],
        )["cells"][0],
        &modes,
    );
}

#[test]
fn table_names_the_machine_first() {
    let place = Place::new("table");
    let args = [
        "--size",
        "64MiB",
        "--bs",
        "1MiB",
        "--iodepth",
        "2",
        "--rounds",
        "1",
    ];
    let brief = ["--seconds", "0.1", "--modes", "ring,hybrid"];
    let output = raw(&place.path("disk"), &[&args[..], &brief[..]].concat());
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("written once, 64 MiB"),
        "{}",
        said(&output)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let first = text.lines().next().unwrap();
    for part in ["Linux", "64 MiB", "4KiB", "io_uring"] {
        assert!(first.contains(part), "{first}");
    }
    assert!(
        text.contains("of ring") && text.contains("randread, 1 MiB, depth 2"),
        "{text}"
    );
}

fn refused(path: &str, args: &[&str], parts: &[&str]) {
    let output = raw(path, args);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    assert!(!text.contains("panicked"), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?}");
    for part in parts {
        assert!(text.contains(part), "{args:?} should say `{part}`: {text}");
    }
}

#[test]
fn wrong_input_is_named_with_value_and_limit() {
    let place = Place::new("wrong");
    let path = place.path("disk");
    let cases: &[(&[&str], &[&str])] = &[
        (&["--bs", "0"], &["--bs", "0", "4096"]),
        (&["--bs", "6000"], &["--bs", "6000", "4096"]),
        (&["--bs", "129MiB"], &["--bs", "135266304", "134217728"]),
        (&["--bs", "12parsec"], &["parsec"]),
        (&["--iodepth", "0"], &["--iodepth", "0", "4096"]),
        (&["--iodepth", "1,4097"], &["--iodepth", "4097", "4096"]),
        (&["--rounds", "0"], &["--rounds", "0", "1000"]),
        (&["--seconds", "0"], &["--seconds", "0", "3600"]),
        (&["--seconds", "-1"], &["-1"]),
        (&["--seconds", "NaN"], &["--seconds", "NaN"]),
        (
            &["--modes", "engine-in-place"],
            &["--modes engine-in-place", "randread", "durable"],
        ),
        (&["--rw", "randwrite"], &["randwrite", "durable"]),
        (&["--modes", "ring,fast"], &["fast", "hybrid"]),
        (&["--modes", "ring,ring"], &["--modes", "ring", "twice"]),
        (
            &["--flush-every", "1MiB"],
            &["--flush-every", "randread", "durable"],
        ),
        (&["--io-poll", "--rw", "durable"], &["--io-poll", "durable"]),
        (
            &["--bs", "1MiB", "--iodepth", "64", "--dram", "64MiB"],
            &["--bs", "--iodepth", "64", "--dram", "128 MiB", "64 MiB"],
        ),
        (
            &["--bs", "128MiB", "--iodepth", "4096"],
            &["--dram", "1 TiB", "1 GiB"],
        ),
        (&["--size", "67112961"], &["67112961", "4096"]),
        (&["--size", "12parsec"], &["parsec"]),
    ];
    for (args, parts) in cases {
        refused(&path, args, parts);
    }
    assert!(
        !Path::new(&path).exists(),
        "nothing is made for wrong input"
    );
    refused(
        "/nowhere/at/all",
        &["--size", "64MiB"],
        &["/nowhere/at/all"],
    );
    refused(
        "/dev/nvme99n1",
        &["--size", "64MiB"],
        &["/dev/nvme99n1", "no such device"],
    );
    refused("/tmp", &[], &["/tmp", "directory"]);
    refused("/dev/zero", &[], &["/dev/zero", "block device"]);
}

#[test]
fn devices_that_do_not_fit_are_named() {
    let place = Place::new("fit");
    let path = place.path("disk");
    std::fs::write(&path, vec![0; 8 << 20]).unwrap();
    let args = ["--bs", "1MiB", "--iodepth", "16", "--modes", "ring"];
    refused(&path, &args, &[&path, "8388608", "17825792"]);
    let args = ["--bs", "64KiB", "--iodepth", "4", "--modes", "engine"];
    refused(&path, &args, &["--size", "8 MiB", "64 MiB"]);
    let args = ["--size", "64MiB", "--modes", "ring"];
    refused(&path, &args, &[&path, "8388608", "67108864"]);
    let args = ["--modes", "engine", "--engine-path", &path];
    refused(&path, &args, &["--engine-path", "own"]);
    let shm = format!("/dev/shm/terrace-raw-{}", std::process::id());
    std::fs::write(&shm, vec![0; 4 << 20]).unwrap();
    let args = [
        "--bs",
        "64KiB",
        "--iodepth",
        "1",
        "--modes",
        "ring",
        "--rounds",
        "1",
    ];
    let output = raw(&shm, &[&args[..], &["--seconds", "0.01"]].concat());
    std::fs::remove_file(&shm).unwrap();
    if output.status.success() {
        eprintln!("skipped: tmpfs has direct I/O here");
    } else {
        assert!(said(&output).contains("O_DIRECT"), "{}", said(&output));
    }
}

/// Aim: what somebody would miss is not written over without being asked for.
#[test]
fn contents_of_others_are_not_written_over() {
    let place = Place::new("kept");
    let (set, text) = (place.path("set"), place.path("text"));
    let config = EngineConfig {
        dram_bytes: 8 << 20,
        hugepages: HugepageMode::Off,
        nvme: NvmeConfig {
            paths: vec![PathBuf::from(&set)],
            file_bytes: Some(64 << 20),
            ..NvmeConfig::default()
        },
        ..EngineConfig::default()
    };
    let engine = Engine::open(config).unwrap();
    block_on(engine.close(std::time::Duration::from_secs(10)));
    std::fs::write(&text, vec![b'x'; 64 << 20]).unwrap();
    let brief = [
        "--bs",
        "64KiB",
        "--iodepth",
        "2",
        "--rounds",
        "1",
        "--seconds",
        "0.05",
    ];
    let run = |more: &[&'static str]| [&brief[..], more].concat();
    for rw in ["write", "durable"] {
        let args = run(&["--modes", "ring", "--rw", rw]);
        refused(&set, &args, &[&set, "Terrace", "--overwrite"]);
        refused(&text, &args, &[&text, "--overwrite"]);
    }
    assert!(
        std::fs::read(&text)
            .unwrap()
            .iter()
            .all(|byte| *byte == b'x')
    );
    // The engine's own data set is as careful.
    let args = run(&["--modes", "engine", "--engine-path"]);
    let args: Vec<&str> = args.into_iter().chain([text.as_str()]).collect();
    refused(&set, &args, &[&text, "--overwrite"]);
    assert!(
        raw(&set, &run(&["--modes", "ring"])).status.success(),
        "reads do no harm"
    );
    let args = run(&["--modes", "ring", "--rw", "write", "--overwrite"]);
    assert!(raw(&set, &args).status.success());
    let args = run(&["--modes", "ring", "--rw", "write"]);
    assert!(
        raw(&set, &args).status.success(),
        "it is no data set any more"
    );
}
