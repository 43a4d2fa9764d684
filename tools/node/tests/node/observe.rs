//! What a node shows of itself, against what the documents say of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use terrace_wire::{Options, Verb};

use crate::plain::{PlainClient, value};
use crate::started::{Folder, Node};

const METRICS: &str = include_str!("../../../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../../../docs/grafana/terrace.json");
const ALERTS: &str = include_str!("../../../../docs/alerts.yml");

/// A metric's type and its labels.
type Shape = (String, String);

/// What a look at `/metrics` has, by name.
fn shown(text: &str) -> BTreeMap<String, Shape> {
    let body = text.split("\r\n\r\n").nth(1).unwrap();
    let mut all: BTreeMap<String, Shape> = BTreeMap::new();
    let mut last = String::new();
    let mut helped = String::new();
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, meaning) = help.split_once(' ').unwrap();
            assert!(meaning.len() > 10, "{line}");
            helped = name.to_owned();
            continue;
        }
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            last = name.to_owned();
            let before = all.insert(last.clone(), (kind.to_owned(), String::new()));
            assert!(before.is_none(), "{name} is declared twice");
            assert_eq!(helped, name, "what it means stands before its type");
            continue;
        }
        let (named, number) = line.rsplit_once(' ').unwrap();
        assert!(number.parse::<f64>().is_ok(), "{line}");
        let (name, labels) = named.split_once('{').unwrap_or((named, ""));
        let shape = all.get_mut(&last).unwrap();
        let is_its = match shape.0.as_str() {
            "histogram" => of_histogram(name) == last,
            _ => name == last,
        };
        assert!(is_its, "`{line}` below the type of {last}");
        let labels = labels.split(',').filter_map(|label| label.split_once('='));
        let names: Vec<&str> = labels.map(|(name, _)| name).collect();
        let names: Vec<&str> = names.into_iter().filter(|name| *name != "le").collect();
        shape.1 = names.join(", ");
    }
    all
}

/// The histogram that a sample belongs to.
fn of_histogram(name: &str) -> &str {
    let ends = ["_bucket", "_sum", "_count"];
    let stripped = ends.iter().find_map(|end| name.strip_suffix(end));
    stripped.unwrap_or(name)
}

/// The rows of docs/metrics.md: name, type and labels.
fn documented() -> BTreeMap<String, Shape> {
    let rows = METRICS.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |row: &str| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [name, kind, labels, unit, meaning] = cells[..] else {
            panic!("a row of {} cells: {row}", cells.len());
        };
        assert!(!unit.is_empty() && meaning.len() > 10, "{row}");
        let labels = labels.replace('`', "");
        let shape = (kind.to_owned(), labels.trim_matches('-').to_owned());
        (name.trim_matches('`').to_owned(), shape)
    };
    rows.map(row).collect()
}

/// All names of metrics in a text.
fn used(text: &str) -> BTreeSet<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_of_name(c));
    words.filter(|word| word.starts_with("terrace_")).collect()
}

fn node(folder: &Folder, flags: &[&str]) -> Node {
    let mut all = vec!["--nvme", "256MiB", "--data", "store", "--shards", "1"];
    all.extend(flags);
    Node::start(&folder.0, &all)
}

/// Aim: the documents and the node name the same metrics, in both directions, with their types and
/// labels; the dashboard and the alerts use none that is not there.
#[test]
fn documents_and_node_have_the_same_metrics() {
    let folder = Folder::new("metrics");
    let node = node(&folder, &[]);
    let mut client = PlainClient::connect(node.address, None, "m");
    client.put(&[(b"k", &value(1, 10_000))], Options::DURABLE);
    assert!(client.get(&[b"k"])[0].is_some());
    let shown = shown(&node.http("/metrics"));
    let documented = documented();
    for (name, shape) in &shown {
        assert_eq!(
            Some(shape),
            documented.get(name),
            "{name} in docs/metrics.md"
        );
    }
    for name in documented.keys() {
        assert!(shown.contains_key(name), "docs/metrics.md has {name}");
    }
    serde_json::from_str::<Value>(DASHBOARD).unwrap();
    for (document, text) in [("terrace.json", DASHBOARD), ("alerts.yml", ALERTS)] {
        let used = used(text);
        assert!(used.len() > 10, "{document} uses {}", used.len());
        for name in used {
            let is_shown = shown.contains_key(name) || {
                let whole = shown.get(of_histogram(name));
                whole.is_some_and(|(kind, _)| kind == "histogram")
            };
            assert!(is_shown, "{document} uses {name}");
        }
    }
}

/// Aim: numbers are there right after a restart, from zero, and tell what was found.
#[test]
fn counters_begin_anew_after_a_restart() {
    let folder = Folder::new("anew");
    let mut first = node(&folder, &[]);
    let mut client = PlainClient::connect(first.address, None, "m");
    for key in [b"a", b"b", b"c"] {
        client.put(&[(key, &value(1, 10_000))], Options::DURABLE);
    }
    assert_eq!(first.metric("terrace_puts_stored_total"), 3);
    first.process.kill();
    let node = node(&folder, &[]);
    assert_eq!(node.metric("terrace_puts_stored_total"), 0);
    assert_eq!(node.metric("terrace_recovered_blocks"), 3);
    assert_eq!(node.metric("terrace_ready"), 1);
    let count = "terrace_server_request_seconds_count{verb=\"get\"}";
    assert_eq!(node.metric(count), 0);
    let mut client = PlainClient::connect(node.address, None, "m");
    assert_eq!(client.terms.node_epoch, 2);
    assert_eq!(client.of_stat(&[b"a"])[0].block_len, 10_000);
    assert!(client.get(&[b"a"])[0].is_some());
    client.of_keys(Verb::Exists, &[b"a"]);
    // The answer to the last one says that the one before is counted.
    assert_eq!(node.metric(count), 1);
}

/// Aim: a slow request is told with its hops, by the admin interface and by one line of the log.
/// Method: durable puts, which wait for the device for longer than the threshold of 1 ms.
#[test]
fn slow_requests_are_told_and_logged() {
    let folder = Folder::new("slow");
    let node = node(&folder, &["--slow-ms", "1", "--log-format", "json"]);
    let mut client = PlainClient::connect(node.address, None, "m");
    client.put(&[(b"k", &value(1, 10_000))], Options::DURABLE);
    client.of_keys(Verb::Exists, &[b"k"]);
    let answer = node.http("/slow");
    let told: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(told["threshold_ms"], 1);
    let is_put = |slow: &&Value| slow["verb"] == "put";
    let slow = told["requests"].as_array().unwrap();
    let slow = slow.iter().find(is_put).unwrap();
    assert_eq!(slow["keys"], 1);
    let (time, device) = (&slow["time_us"], &slow["hops_us"]["device"]);
    assert!(
        time.as_u64() >= device.as_u64() && device.as_u64() > Some(0),
        "{slow}"
    );
    assert!(
        node.http("/config")
            .contains("\"slow_ms\":1,\"log_format\":\"json\"")
    );

    node.end();
    let log = std::fs::read_to_string(folder.0.join("log")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    let is_same = |line: &&Value| {
        let is_slow = line["message"] == "a slow request";
        is_slow && line["fields"]["request"] == slow["request"]
    };
    let line = lines.iter().find(is_same).unwrap();
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["fields"]["connection"], slow["connection"]);
    assert_eq!(line["fields"]["device_us"], *device);
}
