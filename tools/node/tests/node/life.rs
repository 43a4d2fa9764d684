//! A node as a process of its own: it serves, is killed, comes back, and is told to stop.

use nix::sys::signal::Signal;
use terrace_wire::{Facts, KeyStatus, Options, Verb};

use crate::plain::{PlainClient, value};
use crate::started::{Folder, Node, add_flags, program};

#[test]
fn node_killed_serves_durable_blocks_after_its_restart() {
    let folder = Folder::new("killed");
    let flags = ["--nvme", "256MiB", "--shards", "1"];
    let mut node = Node::start(&folder.0, &flags);
    let mut client = PlainClient::connect(node.address, None, "m");
    let epoch = client.terms.node_epoch;
    let blocks: Vec<(Vec<u8>, Vec<u8>)> = (0..16_u64)
        .map(|number| (format!("key {number}").into_bytes(), value(number, 300_000)))
        .collect();
    let durable = KeyStatus::Stored { durable: true };
    for (key, bytes) in &blocks {
        assert_eq!(client.put(&[(key, bytes)], Options::DURABLE), [durable]);
    }
    node.process.kill();
    let node = Node::start(&folder.0, &flags);
    let id = client.terms.node_id;
    let mut client = PlainClient::connect(node.address, None, "m");
    assert_eq!(client.terms.node_id, id);
    assert_eq!(client.terms.node_epoch, epoch + 1);
    let facts = client.of_stat(&[&blocks[0].0]);
    assert_eq!(facts[0].bits, Facts::DURABLE | Facts::ON_NVME);
    for (key, bytes) in &blocks {
        assert!(client.get(&[key])[0].as_ref() == Some(bytes));
    }
    assert_eq!(node.metric("terrace_server_get_hits_total"), 16);
}

/// Aim: SIGTERM drains: the exit code is 0, and what was in DRAM only is there after it.
#[test]
fn node_told_to_stop_writes_down_what_it_has() {
    let folder = Folder::new("stopped");
    let flags = ["--nvme", "256MiB", "--shards", "1"];
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let node = Node::start(&folder.0, &flags);
        let mut client = PlainClient::connect(node.address, None, "m");
        let key = format!("{signal}");
        let bytes = value(7, 100_000);
        let put = client.put(&[(key.as_bytes(), &bytes)], Options::NONE);
        assert_eq!(put, [KeyStatus::Stored { durable: false }]);
        node.end_by(signal);
        let node = Node::start(&folder.0, &flags);
        let mut client = PlainClient::connect(node.address, None, "m");
        assert!(client.get(&[key.as_bytes()])[0].as_ref() == Some(&bytes));
    }
}

#[test]
fn admin_interface_answers() {
    let folder = Folder::new("admin");
    let node = Node::start(&folder.0, &["--nvme", "0", "--shards", "1"]);
    let mut client = PlainClient::connect(node.address, None, "m");
    client.put(&[(b"k", b"value")], Options::NONE);
    client.of_keys(Verb::Exists, &[b"k"]);
    assert!(node.http("/healthz").starts_with("HTTP/1.1 200"));
    assert!(node.http("/readyz").starts_with("HTTP/1.1 200"));
    assert!(node.http("/config").contains("\"dram\":134217728"));
    assert!(node.http("/stats").contains("\"terrace_dram_blocks\":1"));
    assert!(node.http("/").starts_with("HTTP/1.1 404"));
    assert_eq!(node.metric("terrace_puts_stored_total"), 1);
    assert_eq!(node.metric("terrace_server_connections"), 1);
    assert_eq!(node.metric("terrace_slots_being_written"), 0);
    assert_eq!(node.metric("terrace_scrape_old"), 0);
}

#[test]
fn port_and_folder_in_use_are_named() {
    let folder = Folder::new("in-use");
    let node = Node::start(&folder.0, &["--nvme", "0", "--data", "store"]);
    let refused = |flags: &[&str]| {
        let mut command = program(&folder.0);
        add_flags(&mut command, flags);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.lines().count() <= 3, "{text}");
        text
    };
    let text = refused(&["--nvme", "0", "--data", "store"]);
    assert!(text.contains("another node holds it"), "{text}");
    let at = node.address.to_string();
    let text = refused(&["--listen", &at, "--data", "other", "--nvme", "0"]);
    assert!(text.contains(&at) && text.contains("taken"), "{text}");
}
