//! What a server tells of its requests: how long they took, where their time went, and the slow ones.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod plain;
mod served;

use std::path::PathBuf;
use std::time::Duration;

use plain::{PlainClient, value};
use served::{engine, start_with};
use terrace_engine::{Engine, EngineConfig, NvmeConfig, block_on};
use terrace_server::{Hop, Latencies, Server, ServerConfig, ServerReport};
use terrace_types::Hint;
use terrace_wire::{GetEntry, KeyStatus, Options, Verb};

struct Device(PathBuf);

impl Drop for Device {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A server of one shard over a file.
fn start(name: &str, slow: Duration) -> (Device, Engine, Server) {
    let name = format!("terrace-observe-{name}-{}", std::process::id());
    let device = Device(std::env::temp_dir().join(name));
    let config = EngineConfig {
        nvme: NvmeConfig {
            paths: vec![device.0.clone()],
            file_bytes: Some(128 << 20),
            lazy: true,
            ..NvmeConfig::default()
        },
        ..engine(64, 1)
    };
    let server = ServerConfig {
        slow,
        ..ServerConfig::default()
    };
    let (engine, server) = start_with(config, server);
    (device, engine, server)
}

/// The report of the only shard, once it has counted `requests` as answered: a client has a reply
/// before the server has noted that it is sent.
fn report(server: &Server, requests: u64) -> ServerReport {
    let observer = server.observer();
    loop {
        let report = block_on(observer.reports()).remove(0).unwrap();
        let answered: u64 = report.latencies.requests().map(|(_, h)| h.count()).sum();
        assert!(answered <= requests, "{answered} of {requests}");
        if answered == requests {
            return *report;
        }
        std::thread::yield_now();
    }
}

fn of_verb(latencies: &Latencies, verb: Verb) -> u64 {
    let mut all = latencies.requests();
    all.find(|(name, _)| *name == verb.name())
        .unwrap()
        .1
        .count()
}

fn of_hop(latencies: &Latencies, hop: Hop) -> u64 {
    let mut all = latencies.hops();
    all.find(|(name, _)| *name == hop.name()).unwrap().1.count()
}

/// Aim: each request is counted once, by its verb, and its hops tell where its time went. Method:
/// with a threshold of 1 ns every request is slow, so that all are told one by one.
#[test]
fn requests_are_timed_by_verb_and_hop() {
    let (_device, _engine, server) = start("hops", Duration::from_nanos(1));
    let mut client = PlainClient::connect(server.address(), None, "m");
    let block = value(1, 300_000);
    let put = client.put(&[(b"k", &block)], Options::DURABLE);
    assert_eq!(put, [KeyStatus::Stored { durable: true }]);
    client.get(&[b"k", b"absent"]);
    let part = GetEntry {
        offset: 1000,
        len: 100_000,
        ..GetEntry::whole(b"k", Hint::default())
    };
    client.get_parts(&[part]);
    client.of_keys(Verb::Exists, &[b"k"]);
    assert_eq!(client.of_stat(&[b"k"])[0].block_len, 300_000);

    // The namespace's request comes first.
    let report = report(&server, 6);
    for (verb, count) in [
        (Verb::OpenNamespace, 1),
        (Verb::Put, 1),
        (Verb::Get, 2),
        (Verb::Exists, 1),
        (Verb::Stat, 1),
        (Verb::Remove, 0),
    ] {
        assert_eq!(of_verb(&report.latencies, verb), count, "{verb:?}");
    }
    for (hop, count) in [
        (Hop::Queue, 6),
        (Hop::Receive, 1),
        (Hop::Hash, 2),
        (Hop::Device, 1),
        (Hop::Socket, 6),
    ] {
        assert_eq!(of_hop(&report.latencies, hop), count, "{hop:?}");
    }
    assert_eq!(report.counters.requests_slow, 6);
    assert_eq!(report.counters.requests_under_way, 0);
    let verbs: Vec<&str> = report.slow.iter().map(|slow| slow.verb).collect();
    assert_eq!(
        verbs,
        ["open_namespace", "put", "get", "get", "exists", "stat"]
    );
    let (put, get) = (&report.slow[1], &report.slow[2]);
    assert!(put.hops[Hop::Device as usize] > Duration::ZERO);
    assert!(put.hops.iter().all(|hop| *hop <= put.time), "{put:?}");
    assert_eq!((put.keys, get.keys), (1, 2));
    assert!(put.bytes_received > 300_000 && put.bytes_sent < 1000);
    assert!(get.bytes_sent > 300_000 && get.bytes_received < 1000);
    assert_eq!(put.peer, client.socket.local_addr().unwrap());
    assert!(put.request < get.request && put.arrived < get.arrived);
}

/// Aim: a threshold of zero is none.
#[test]
fn threshold_of_zero_remembers_nothing() {
    let (_device, _engine, server) = start("off", Duration::ZERO);
    let mut client = PlainClient::connect(server.address(), None, "m");
    client.of_keys(Verb::Exists, &[b"k"]);
    let report = report(&server, 2);
    assert!(report.slow.is_empty());
    assert_eq!(report.counters.requests_slow, 0);
}

/// Aim: requests of one connection that are sent together wait for each other, and that is told.
#[test]
fn later_requests_of_a_batch_wait_for_their_turn() {
    let (_device, _engine, server) = start("turn", Duration::from_nanos(1));
    let mut client = PlainClient::connect(server.address(), None, "m");
    assert!(client.terms.credit_requests >= 64);
    let head = terrace_wire::RequestHead::default();
    for _ in 0..64 {
        client.begin_keys(Verb::Exists, &[b"k"], &head);
    }
    for _ in 0..64 {
        client.statuses();
    }
    let report = report(&server, 65);
    assert_eq!(of_verb(&report.latencies, Verb::Exists), 64);
    assert_eq!(of_hop(&report.latencies, Hop::Device), 0);
    let spans = report.slow.iter().map(|slow| (slow.hops, slow.time));
    for (hops, time) in spans {
        assert!(hops.iter().sum::<Duration>() <= time);
    }
}
