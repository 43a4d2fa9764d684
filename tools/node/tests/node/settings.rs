//! What the node says of wrong settings: exit code 2, and at most three lines that name what is
//! wrong.

use std::path::Path;
use std::process::Output;

use crate::certificates::{Files, expired};
use crate::started::{Folder, program};

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
const WRONG_FILES: [(&str, &[&str]); 44] = [
    ("listen = 7440", &["line 1", "listen", "string"]),
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
    ("dram = 5", &["line 1", "dram", "string"]),
    ("nvme = \"1MiB\"", &["nvme", "1048576", "at least"]),
    ("nvme = \"-1\"", &["nvme", "-1"]),
    ("nvme = \"1GiB\"\ndevices = [\"a\"]", &["nvme", "devices"]),
    ("devices = [\"a\", \"a\"]", &["devices", "once"]),
    ("devices = \"a\"", &["line 1", "devices", "sequence"]),
    ("shards = 0", &["shards", "0", "1 to 1024"]),
    ("shards = 1000", &["shards", "1000", "processors"]),
    ("shards = -1", &["line 1", "shards", "-1"]),
    ("shards = \"two\"", &["line 1", "shards", "two"]),
    ("hugepages = \"some\"", &["hugepages", "some", "prefer"]),
    ("policy = \"MRU\"", &["policy", "MRU", "LRU"]),
    (
        "token_file = \"no/such/file\"",
        &["token_file", "no/such/file"],
    ),
    ("one_sided = \"both\"", &["one_sided", "both", "staged"]),
    ("one_sided = true", &["line 1", "one_sided", "string"]),
    ("staging = \"4KiB\"", &["staging", "4096", "1 MiB to 1 TiB"]),
    ("rdma = \"\"", &["rdma", "auto", "devices"]),
    ("rdma = \"a,,b\"", &["rdma", "a,,b", "auto"]),
    (
        "rdma = \"no0\"",
        &["rdma", "no0", "device that can be used"],
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
    ("listen = ", &["line 1", "listen"]),
    ("pinned = \"yes\"", &["line 1", "pinned", "boolean"]),
    ("silence = 1.5", &["line 1", "silence", "1.5"]),
    ("connections = 600000", &["connections", "600000", "524288"]),
    ("nvme = \"99999999999TiB\"", &["nvme", "99999999999TiB"]),
    ("dram = \"64MiB\"\ndram = \"1GiB\"", &["line 2", "dram"]),
    (
        "token_file = \"node.toml\"\nlisten = \"0.0.0.0:7440\"\nshards = 2000",
        &["shards", "2000", "1 to 1024"],
    ),
];

#[test]
fn wrong_files_are_refused_by_field_value_and_limit() {
    let folder = Folder::new("wrong-files");
    let path = folder.0.join("node.toml");
    for (text, words) in WRONG_FILES {
        std::fs::write(&path, text).unwrap();
        let output = program(&folder.0)
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
        let output = program(&folder.0)
            .arg("--check")
            .args(flags)
            .output()
            .unwrap();
        assert_refused(&format!("{flags:?}"), &output, words);
    }
    for (name, value, words) in [
        ("TERRACE_TLS_KEY", "x", &["tls_key", "x", "tls_cert"][..]),
        ("TERRACE_SHARDS", "x", &["shards", "x"][..]),
        ("TERRACE_LISEN", "x", &["TERRACE_LISEN", "TERRACE_LISTEN"]),
        ("TERRACE_DRAM", "2 stones", &["dram", "stones"]),
        ("TERRACE_INSECURE", "maybe", &["insecure", "maybe"]),
    ] {
        let output = program(&folder.0).arg("--check").env(name, value).output();
        assert_refused(name, &output.unwrap(), words);
    }
}

/// Flags of TLS that are wrong in one way each, and the words of field, file and limit.
const WRONG_TLS: [(&str, &[&str]); 15] = [
    ("--tls-cert node.pem", &["tls_cert", "node.pem", "tls_key"]),
    ("--tls-key node.key", &["tls_key", "node.key", "tls_cert"]),
    (
        "--tls-client-ca ca.pem",
        &["tls_client_ca", "ca.pem", "tls_cert"],
    ),
    (
        "--tls-cert no.pem --tls-key node.key",
        &["tls_cert", "no.pem", "No such file"],
    ),
    (
        "--tls-cert node.pem --tls-key no.key",
        &["tls_key", "no.key", "No such file"],
    ),
    (
        "--tls-cert . --tls-key node.key",
        &["tls_cert is .;", "a file"],
    ),
    (
        "--tls-cert long --tls-key node.key",
        &["tls_cert", "long", "1048576"],
    ),
    (
        "--tls-cert empty --tls-key node.key",
        &["tls_cert", "empty", "none is in it"],
    ),
    (
        "--tls-cert node.key --tls-key node.key",
        &["tls_cert", "node.key", "none is in it"],
    ),
    (
        "--tls-cert ca.pem --tls-key node.key",
        &["tls_cert", "ca.pem", "may show"],
    ),
    (
        "--tls-cert old.pem --tls-key old.key",
        &["tls_cert", "old.pem", "expired"],
    ),
    (
        "--tls-cert node.pem --tls-key other.key",
        &["tls_key", "other.key", "another one"],
    ),
    (
        "--tls-cert node.pem --tls-key open.key",
        &["tls_key", "open.key", "644", "chmod"],
    ),
    (
        "--tls-cert node.pem --tls-key locked.key",
        &["tls_key", "locked.key", "not encrypted"],
    ),
    (
        "--tls-cert node.pem --tls-key node.key --tls-client-ca empty",
        &["tls_client_ca", "empty", "none is in it"],
    ),
];

/// Aim: each file of TLS is checked before the node listens, and what is wrong named by field, file and
/// limit. Method: a node's files that are sound, and one flag or file that is not.
#[test]
fn wrong_files_of_tls_are_refused() {
    let (files, authority) = Files::of_node("wrong-tls");
    let (old, other) = (authority.issue(expired), authority.issue(|_| {}));
    files.write("old.pem", &old.certificate);
    files.write("old.key", &old.key);
    files.write("other.key", &other.key);
    files.write_as("open.key", &other.key, 0o644);
    files.write("empty", "");
    files.write("long", &" ".repeat((1 << 20) + 1));
    files.write(
        "locked.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    for (flags, words) in WRONG_TLS {
        for check in [&["--check"][..], &[]] {
            let flags = check.iter().copied().chain(flags.split(' '));
            let output = program(&files.0).args(flags.clone()).output().unwrap();
            assert_refused(&format!("{:?}", flags.collect::<Vec<_>>()), &output, words);
        }
    }
}

/// Aim: certificates of clients are authentication, TLS alone is not.
#[test]
fn only_certificates_of_clients_open_the_node_to_others() {
    let (files, _authority) = Files::of_node("tls-exposure");
    let tls = [
        "--check",
        "--listen",
        "0.0.0.0:7440",
        "--tls-cert",
        "node.pem",
    ];
    let check = |more: &[&str]| {
        let mut command = program(&files.0);
        command.args(tls).args(["--tls-key", "node.key"]).args(more);
        command.output().unwrap()
    };
    assert_refused(
        "TLS alone",
        &check(&[]),
        &["listen", "0.0.0.0", "tls_client_ca"],
    );
    let output = check(&["--tls-client-ca", "ca.pem"]);
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("tls_client_ca = \"ca.pem\""), "{shown}");
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
    let output = program(&folder.0)
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
    let output = program(&folder.0).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("\nnvme = 269484032\n"), "{shown}");
}

/// Aim: variables that are not the node's do not keep it from its start: those of a Kubernetes
/// Service named terrace, and those of tests.
#[test]
fn variables_of_others_are_passed_over() {
    let folder = Folder::new("variables");
    let output = program(&folder.0)
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
            ("TERRACE_CLIENT_TLS_CA", "ca.pem"),
            ("TERRACE_OUTAGE_SECONDS", "1"),
            ("TERRACE_FUZZ_SECONDS", "1"),
            ("TERRACE_IDLE_CONNECTIONS", "1"),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output));
    for name in ["TERRACE_PORTS", "TERRACE_SERVICES"] {
        let output = program(&folder.0).arg("--check").env(name, "1").output();
        assert_refused(name, &output.unwrap(), &[name]);
    }
}

#[test]
fn node_without_settings_checks_out() {
    let folder = Folder::new("bare");
    let output = program(&folder.0).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("listen = \"127.0.0.1:7440\""), "{shown}");
    assert!(
        !folder.0.join("terrace-data").exists(),
        "a check makes nothing"
    );
    let table = table_of_settings(&folder.0);
    // What is there of RDMA comes as comments, so that what is printed is a config file.
    assert!(shown.contains("\n# limit of locked memory: "), "{shown}");
    for line in shown.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(" =").next().unwrap();
        assert!(table.contains(&format!("\n| `{name}` |")), "{name}");
    }
}

fn table_of_settings(folder: &Path) -> String {
    let output = program(folder).arg("--help-config").output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Aim: the document's table is what the node says of its settings, no row more and none less.
#[test]
fn document_has_the_table_of_settings() {
    let folder = Folder::new("table");
    let document = include_str!("../../../../docs/node.md");
    let section = document.split("## Settings").nth(1).unwrap();
    let section = section.split("## ").next().unwrap();
    let rows: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .collect();
    let table = table_of_settings(&folder.0);
    let printed: Vec<&str> = table.lines().collect();
    assert_eq!(
        rows, printed,
        "docs/node.md has to have what --help-config prints"
    );
}
