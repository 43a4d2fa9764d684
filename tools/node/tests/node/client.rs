//! Aim: the client and a real node agree, and the client lives through what becomes of the node.
//! Method: a node as a process of its own, stopped, killed and started again under the client's calls.

use std::collections::BTreeSet;
use std::time::Duration;

use terrace_client::blocking::Client;
use terrace_client::{CallOptions, Cause, ClientConfig, EventKind, PutItem};
use terrace_types::{Hint, Lookup, PutOutcome};

use crate::started::{Folder, Node, free_address};

fn start(folder: &Folder, address: &str) -> Node {
    let flags = ["--listen", address, "--nvme", "256MiB", "--data", "store"];
    Node::start(&folder.0, &flags)
}

fn value(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    })
    .take(len)
    .collect()
}

const STORED: PutOutcome = PutOutcome::Stored { durable: false };

#[test]
fn calls_of_the_client_come_to_what_they_say() {
    let folder = Folder::new("client-calls");
    let node = start(&folder, &free_address());
    let blocks = node.blocks();
    let client = Client::connect(ClientConfig::new(&node.address.to_string())).unwrap();
    let plain = CallOptions::default();
    assert_eq!(client.ping(&plain).unwrap().len(), 2);
    for (seed, len) in (0..).zip([1, 4095, 65_536, 1 << 20, (8 << 20) + 3]) {
        let (key, sent) = (format!("single {len}"), value(seed, len));
        assert_eq!(blocks.put(key.as_bytes(), &sent, &plain).unwrap(), STORED);
        let got = blocks.get(key.as_bytes(), &plain).unwrap();
        assert!(got.hit().unwrap() == sent, "{len}");
    }
    let mut part = vec![0; 1000];
    let got = blocks.get_range(b"single 1048576", 500_000, &mut part, &plain);
    let got = got.unwrap().hit().unwrap();
    assert_eq!((got.len, got.block_len), (1000, 1 << 20));
    assert_eq!(part, value(3, 1 << 20)[500_000..501_000]);

    let keys: Vec<String> = (0..200)
        .map(|number| format!("batch {number:03}"))
        .collect();
    let values: Vec<Vec<u8>> = (0..200).map(|seed| value(seed, 20_000)).collect();
    let slices: Vec<[&[u8]; 2]> = values
        .iter()
        .map(|value| <[&[u8]; 2]>::from(value.split_at(7000)))
        .collect();
    let items = keys.iter().zip(&slices).map(|(key, value)| PutItem {
        key: key.as_bytes(),
        value,
        hint: Hint::default(),
    });
    let items: Vec<_> = items.collect();
    let outcomes = blocks.put_batch(&items, &plain);
    assert!(
        outcomes
            .into_iter()
            .all(|outcome| outcome.unwrap() == STORED)
    );
    let got = blocks.get_batch(&keys, &plain);
    let got = got.into_iter().map(|one| one.unwrap().hit().unwrap());
    assert!(got.eq(values.iter().cloned()));
    assert_eq!(blocks.match_prefix(&keys, &plain).unwrap(), 200);
    blocks.remove(keys[150].as_bytes(), &plain).unwrap();
    assert_eq!(blocks.match_prefix(&keys, &plain).unwrap(), 150);
    assert_eq!(
        blocks.get(keys[150].as_bytes(), &plain).unwrap(),
        Lookup::Miss
    );
    let facts = blocks.stat(&keys[..1], &plain).remove(0).unwrap();
    assert_eq!(facts.hit().unwrap().len, 20_000);
    assert_eq!(blocks.remove_all(&plain).unwrap(), 204);
    assert_eq!(blocks.match_prefix(&keys, &plain).unwrap(), 0);
}

/// Aim: a client is told of what happens at all shards from the return of its call on.
#[test]
fn events_of_a_real_node_come_to_the_client() {
    let folder = Folder::new("client-events");
    let node = start(&folder, &free_address());
    let blocks = node.blocks();
    let plain = CallOptions::default();
    let wanted = [EventKind::Stored, EventKind::Removed];
    let mut events = blocks.events(&wanted, &plain).unwrap();
    let keys: BTreeSet<Vec<u8>> = (0..40_u8).map(|key| vec![key]).collect();
    for key in &keys {
        assert_eq!(blocks.put(key, b"value", &plain).unwrap(), STORED);
        assert!(blocks.remove(key, &plain).unwrap().is_hit());
    }
    let (mut stored, mut removed, mut shards) = (keys.clone(), keys, BTreeSet::new());
    while !removed.is_empty() {
        let batch = events.next_batch().unwrap();
        assert_eq!(batch.lost, 0);
        shards.insert(batch.shard);
        for event in batch.events {
            let left = match event.kind {
                EventKind::Stored => &mut stored,
                _ => &mut removed,
            };
            assert!(left.remove(&event.key), "{event:?} is told twice");
        }
    }
    assert!(stored.is_empty());
    assert_eq!(shards, BTreeSet::from([0, 1]));
}

#[test]
fn eight_threads_get_the_bytes_that_they_put() {
    let folder = Folder::new("client-threads");
    let node = start(&folder, &free_address());
    let blocks = node.blocks();
    let plain = CallOptions::default();
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let blocks = &blocks;
            scope.spawn(move || {
                for round in 0..30_u8 {
                    let sent = value(thread ^ round, 1000 + usize::from(round) * 9001);
                    let key = [thread, round];
                    assert_eq!(blocks.put(&key, &sent, &plain).unwrap(), STORED);
                    let mut target = vec![0; sent.len()];
                    let got = blocks.get_into(&key, &mut target, &plain).unwrap();
                    assert!(got.is_hit() && target == sent);
                }
            });
        }
    });
}

#[test]
fn stopped_node_ends_calls_at_their_deadlines_and_goes_on_later() {
    let folder = Folder::new("client-stopped");
    let node = start(&folder, &free_address());
    let blocks = node.blocks();
    let plain = CallOptions::default();
    assert_eq!(
        blocks.put(b"k", &value(1, 100_000), &plain).unwrap(),
        STORED
    );
    node.process.stop();
    let soon = CallOptions::within(Duration::from_millis(300));
    for _ in 0..2 {
        let error = blocks.get(b"k", &soon).unwrap_err();
        assert!(matches!(error.cause(), Cause::TimedOut { .. }), "{error}");
        let error = blocks.put(b"l", &value(1, 5 << 20), &soon).unwrap_err();
        assert!(matches!(error.cause(), Cause::TimedOut { .. }), "{error}");
    }
    node.process.go_on();
    let got = blocks.get(b"k", &plain).unwrap();
    assert!(got.hit().unwrap() == value(1, 100_000));
    let outcome = blocks.put(b"m", b"v", &plain).unwrap();
    assert_eq!(outcome, STORED);
}

#[test]
fn killed_node_that_comes_back_serves_the_same_client() {
    let folder = Folder::new("client-killed");
    let address = free_address();
    let mut node = start(&folder, &address);
    let blocks = node.blocks();
    let durable = CallOptions::default().durable();
    for seed in 0..8 {
        let outcome = blocks.put(&[seed], &value(seed, 200_000), &durable);
        assert_eq!(outcome.unwrap(), PutOutcome::Stored { durable: true });
    }
    node.process.kill();
    let error = blocks.get(&[0], &CallOptions::default()).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Unavailable { .. }),
        "{error}"
    );
    let node = start(&folder, &address);
    for seed in 0..8 {
        let got = blocks.get(&[seed], &CallOptions::default()).unwrap();
        assert!(got.hit().unwrap() == value(seed, 200_000));
    }
    drop(node);
}
