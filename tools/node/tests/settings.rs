//! What the node says of wrong settings: exit code 2, and at most three lines that name what is
//! wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn node(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-node"));
    command.current_dir(folder).env_clear();
    command
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_refused(what: &str, output: &Output, words: &[&str]) {
    let text = told(output);
    assert_eq!(output.status.code(), Some(2), "{what}: {text}");
    assert!(text.lines().count() <= 3, "{what}: {text}");
    for word in words {
        assert!(text.contains(word), "{what}: no `{word}` in {text}");
    }
}

/// Each of these files is wrong in one way; the words are of field, value and limit.
const WRONG_FILES: [(&str, &[&str]); 32] = [
    ("listen = 7440", &["line 1", "string"]),
    ("listen = \"7440\"", &["listen", "7440", "127.0.0.1:7440"]),
    ("listen = \"localhost:99999\"", &["listen", "99999"]),
    (
        "listen = \"0.0.0.0:7440\"",
        &["listen", "0.0.0.0", "token_file", "--insecure"],
    ),
    ("listen = \"[::]:7440\"", &["listen", "--insecure"]),
    (
        "metrics = \"0.0.0.0:7441\"",
        &["metrics", "0.0.0.0", "--insecure"],
    ),
    ("metrics = \"here\"", &["metrics", "here"]),
    (
        "metrics = \"127.0.0.1:7440\"",
        &["metrics", "7440", "another"],
    ),
    ("data = \"\"", &["data", "folder"]),
    ("dram = \"much\"", &["dram", "much", "length"]),
    ("dram = \"1KiB\"", &["dram", "1024"]),
    ("dram = \"1 furlong\"", &["dram", "furlong"]),
    ("dram = 5", &["line 1", "string"]),
    ("nvme = \"1MiB\"", &["nvme", "1048576", "at least"]),
    ("nvme = \"-1\"", &["nvme", "-1"]),
    ("nvme = \"1GiB\"\ndevices = [\"a\"]", &["nvme", "devices"]),
    ("devices = [\"a\", \"a\"]", &["devices", "once"]),
    ("devices = \"a\"", &["line 1", "sequence"]),
    ("shards = 0", &["shards", "0", "1 to 1024"]),
    ("shards = 1000", &["shards", "1000", "processors"]),
    ("shards = -1", &["line 1"]),
    ("shards = \"two\"", &["line 1", "two"]),
    ("hugepages = \"some\"", &["hugepages", "some", "prefer"]),
    ("policy = \"MRU\"", &["policy", "MRU", "LRU"]),
    (
        "token_file = \"no/such/file\"",
        &["token_file", "no/such/file"],
    ),
    ("connections = 0", &["connections", "0", "524288"]),
    ("silence = 0", &["silence", "0", "86400"]),
    ("slow_ms = 86400001", &["slow_ms", "86400001", "86400000"]),
    ("log_format = \"xml\"", &["log_format", "xml", "json"]),
    ("drain = 100000", &["drain", "100000", "86400"]),
    (
        "\n\nlisen = \"127.0.0.1:7440\"",
        &["line 3", "lisen", "listen"],
    ),
    ("listen = ", &["line 1"]),
];

#[test]
fn wrong_files_are_refused_by_field_value_and_limit() {
    let folder = Folder::new("wrong-files");
    let path = folder.0.join("node.toml");
    for (text, words) in WRONG_FILES {
        std::fs::write(&path, text).unwrap();
        let output = node(&folder.0)
            .args(["--check", "--config"])
            .arg(&path)
            .output();
        assert_refused(text, &output.unwrap(), words);
    }
}

#[test]
fn wrong_flags_and_variables_are_refused() {
    let folder = Folder::new("wrong-flags");
    let flags: [(&[&str], &[&str]); 6] = [
        (&["--dram", "x"], &["dram", "x"]),
        (&["--shards", "many"], &["many", "--shards"]),
        (&["--nonsense"], &["--nonsense", "--help"]),
        (&["--listen"], &["--listen"]),
        (&["--config", "no/such.toml"], &["no/such.toml", "--config"]),
        (&["surplus"], &["surplus"]),
    ];
    for (flags, words) in flags {
        let output = node(&folder.0).arg("--check").args(flags).output().unwrap();
        assert_refused(&format!("{flags:?}"), &output, words);
    }
    for (name, value, words) in [
        ("TERRACE_SHARDS", "x", &["shards", "x"][..]),
        ("TERRACE_LISEN", "x", &["TERRACE_LISEN", "TERRACE_LISTEN"]),
        ("TERRACE_DRAM", "2 stones", &["dram", "stones"]),
        ("TERRACE_INSECURE", "maybe", &["insecure", "maybe"]),
    ] {
        let output = node(&folder.0).arg("--check").env(name, value).output();
        assert_refused(name, &output.unwrap(), words);
    }
}

/// Aim: flags are stronger than the environment, and that than the file.
#[test]
fn sources_are_taken_by_strength() {
    let folder = Folder::new("strength");
    let path = folder.0.join("node.toml");
    std::fs::write(
        &path,
        "dram = \"64MiB\"\nsilence = 7\ndrain = 7\nnvme = \"0\"",
    )
    .unwrap();
    let output = node(&folder.0)
        .args(["--check", "--drain", "9", "--config"])
        .arg(&path)
        .env("TERRACE_SILENCE", "8")
        .env("TERRACE_DRAIN", "8")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in ["dram = 67108864", "silence = 8", "drain = 9", "nvme = 0"] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
}

/// Aim: a node of defaults finds its file again, whatever is free by then. Method: a file of a length
/// that no default has.
#[test]
fn file_that_is_there_keeps_its_length_without_settings() {
    let folder = Folder::new("length");
    let data = folder.0.join("terrace-data");
    std::fs::create_dir_all(&data).unwrap();
    let file = std::fs::File::create(data.join("blocks.nvme")).unwrap();
    file.set_len(257 << 20).unwrap();
    let output = node(&folder.0).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("\nnvme = 269484032\n"), "{shown}");
}

/// Aim: variables that are not the node's do not keep it from its start: those of a Kubernetes
/// Service named terrace, and those of tests.
#[test]
fn variables_of_others_are_passed_over() {
    let folder = Folder::new("variables");
    let output = node(&folder.0)
        .arg("--check")
        .envs([
            ("TERRACE_SERVICE_HOST", "10.0.0.1"),
            ("TERRACE_SERVICE_PORT", "7440"),
            ("TERRACE_SERVICE_PORT_CLIENTS", "7440"),
            ("TERRACE_PORT", "tcp://10.0.0.1:7440"),
            ("TERRACE_PORT_7440_TCP_ADDR", "10.0.0.1"),
            ("TERRACE_SIM_SEED", "1"),
            ("TERRACE_SIM_SEEDS", "1"),
            ("TERRACE_CUT", "all"),
            ("TERRACE_CUTS", "all"),
            ("TERRACE_KILLS", "1"),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output));
    for name in ["TERRACE_PORTS", "TERRACE_SERVICES"] {
        let output = node(&folder.0).arg("--check").env(name, "1").output();
        assert_refused(name, &output.unwrap(), &[name]);
    }
}

#[test]
fn node_without_settings_checks_out() {
    let folder = Folder::new("bare");
    let output = node(&folder.0).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("listen = \"127.0.0.1:7440\""), "{shown}");
    assert!(
        !folder.0.join("terrace-data").exists(),
        "a check makes nothing"
    );
    // The document names every setting.
    let document = include_str!("../../../docs/node.md");
    let table = document.split("## Settings").nth(1).unwrap();
    let table = table.split("## ").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let named: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    for line in shown.lines() {
        let name = line.split(" =").next().unwrap();
        assert!(named.contains(&name), "{name} is not in docs/node.md");
    }
}
