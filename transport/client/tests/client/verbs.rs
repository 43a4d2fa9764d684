//! The verbs that carry no values, and the calls that wait.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_io::block_on;
use terrace_client::{Announced, CallOptions, ClientConfig, blocking};
use terrace_types::{Hint, Lookup, PutOutcome};
use terrace_wire::EventKind;

use crate::calls::client;
use crate::node::Node;

const MINUTE: Duration = Duration::from_secs(60);

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key {number}")).collect()
}

#[test]
fn prefix_is_matched_over_shards_up_to_the_first_that_is_missing() {
    let node = Node::start(4);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    let keys = keys(500);
    block_on(async {
        assert_eq!(blocks.match_prefix(&keys, &plain).await.unwrap(), 0);
        for key in &keys {
            blocks.put(key.as_bytes(), b"v", &plain).await.unwrap();
        }
        assert_eq!(blocks.match_prefix(&keys, &plain).await.unwrap(), 500);
        assert_eq!(blocks.match_prefix(&keys[..0], &plain).await.unwrap(), 0);
        for gap in [499, 321, 77, 5, 0] {
            blocks.remove(keys[gap].as_bytes(), &plain).await.unwrap();
            assert_eq!(blocks.match_prefix(&keys, &plain).await.unwrap(), gap);
        }
    });
}

#[test]
fn all_blocks_are_listed_and_removed_over_shards() {
    let node = Node::start(3);
    let client = client(&node);
    let blocks = client.namespace("m").unwrap();
    let plain = CallOptions::default();
    let names = keys(40);
    block_on(async {
        for key in &names {
            blocks.put(key.as_bytes(), b"v", &plain).await.unwrap();
        }
        let mut listing = blocks.list(b"key 1", &plain);
        let mut found = Vec::new();
        while let Some(page) = listing.next_page().await.unwrap() {
            found.extend(page.into_iter().map(|block| block.key));
        }
        found.sort();
        let mut expected: Vec<_> = names
            .iter()
            .filter(|key| key.starts_with("key 1"))
            .collect();
        expected.sort();
        assert!(found.iter().eq(expected.iter().map(|key| key.as_bytes())));
        let error = blocks
            .list(&[1; 513], &plain)
            .next_page()
            .await
            .unwrap_err();
        let expected = "prefix length is 513, it has to be at most 512";
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(blocks.remove_all(&plain).await.unwrap(), 40);
        assert_eq!(blocks.remove_all(&plain).await.unwrap(), 0);
        let pongs = client.ping(&plain).await.unwrap();
        let shards: Vec<_> = pongs.iter().map(|pong| pong.shard).collect();
        assert_eq!(shards, [0, 1, 2]);
    });
}

#[test]
fn stat_prefetch_touch_and_announce_have_one_result_for_each_key() {
    let node = Node::start(2);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.put(b"a", b"value", &plain).await.unwrap();
        let asked = ["a", "", "b"];
        let facts = blocks.stat(&asked, &plain).await;
        let Lookup::Hit { value, .. } = facts[0].as_ref().unwrap() else {
            panic!("{facts:?}");
        };
        assert!(value.len == 5 && value.in_dram && !value.on_nvme);
        assert!(facts[1].is_err());
        assert_eq!(facts[2].as_ref().unwrap(), &Lookup::Miss);
        for results in [
            blocks.prefetch(&asked, MINUTE, &plain).await,
            blocks.touch(&asked, &plain).await,
        ] {
            assert!(results[0].as_ref().unwrap().is_hit());
            assert!(results[1].is_err());
            assert_eq!(results[2].as_ref().unwrap(), &Lookup::Miss);
        }
        let announced = |key| Announced {
            key,
            hint: Hint::default(),
            len: 0,
        };
        let told = [announced(b"a"), announced(b""), announced(b"b")];
        let told = blocks.announce(&told, &plain).await;
        assert!(told[0].is_ok() && told[1].is_err() && told[2].is_ok());
    });
}

#[test]
fn pins_end_on_the_connection_that_made_them() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.put(b"a", b"value", &plain).await.unwrap();
        // More connections than one.
        let gets = (0..8).map(|_| blocks.get(b"a", &plain));
        futures_util::future::join_all(gets).await;
        assert!(node.seen.connections.load(SeqCst) > 1);
        for _ in 0..4 {
            let pinned = blocks.pin(&["a"], MINUTE, &plain).await;
            assert!(pinned[0].as_ref().unwrap().is_hit());
            let gets = (0..3).map(|_| blocks.get(b"a", &plain));
            futures_util::future::join_all(gets).await;
            let unpinned = blocks.unpin(&["a"], &plain).await;
            assert!(unpinned[0].as_ref().unwrap().is_hit());
        }
    });
}

#[test]
fn first_pins_at_once_end_on_the_connection_that_made_them() {
    let node = Node::start(2);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    let names = keys(8);
    block_on(async {
        let pins = (0..4).map(|_| blocks.pin(&names, MINUTE, &plain));
        let pinned = futures_util::future::join_all(pins).await;
        assert!(pinned.iter().flatten().all(Result::is_ok));
        for _ in 0..4 {
            let unpinned = blocks.unpin(&names, &plain).await;
            assert!(unpinned.into_iter().all(|one| one.unwrap().is_hit()));
        }
    });
}

#[test]
fn leases_are_renewed_and_released() {
    let node = Node::start(3);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    let names = keys(9);
    block_on(async {
        for key in &names {
            blocks.put(key.as_bytes(), b"v", &plain).await.unwrap();
        }
        let granted = blocks.lease(&names, MINUTE, &plain).await;
        let granted: Vec<_> = granted
            .into_iter()
            .map(|lease| lease.unwrap().hit().unwrap())
            .collect();
        assert_eq!(granted[3].key(), b"key 3");
        let renewed = blocks.renew(&granted, 2 * MINUTE, &plain).await;
        for (renewed, granted) in renewed.into_iter().zip(&granted) {
            let renewed = renewed.unwrap().hit().unwrap();
            assert!(renewed.until > granted.until + MINUTE / 2);
        }
        let released = blocks.release(&granted, &plain).await;
        assert!(released.into_iter().all(|one| one.unwrap().is_hit()));
        let none = blocks.lease(&["absent"], MINUTE, &plain).await;
        assert!(matches!(none[0], Ok(Lookup::Miss)));
    });
}

#[test]
fn events_of_all_shards_are_told_and_end_when_a_node_goes() {
    let node = Node::start(2);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.put(b"a", b"value", &plain).await.unwrap();
        let mut events = blocks.events(&[EventKind::Stored], &plain).await.unwrap();
        let mut shards = Vec::new();
        for _ in 0..2 {
            let batch = events.next_batch().await.unwrap();
            assert_eq!((batch.lost, batch.events.len()), (3, 1));
            assert_eq!(batch.events[0].key, b"a");
            shards.push(batch.shard);
        }
        shards.sort_unstable();
        assert_eq!(shards, [0, 1]);
        node.kill();
        assert!(events.next_batch().await.is_err());
    });
}

#[test]
fn events_of_a_busy_shard_do_not_hold_up_those_of_the_others() {
    let node = Node::start(2);
    node.switches.events_again.store(true, SeqCst);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.put(b"a", b"value", &plain).await.unwrap();
        let mut events = blocks.events(&[EventKind::Stored], &plain).await.unwrap();
        let mut shards = Vec::new();
        for _ in 0..5 {
            shards.push(events.next_batch().await.unwrap().shard);
        }
        // What came with the answers, and then each in its turn.
        assert_eq!(shards, [0, 1, 0, 1, 0]);
    });
}

#[test]
fn calls_that_wait_work_from_many_threads() {
    let node = Node::start(2);
    let client = blocking::Client::connect(ClientConfig::new(&node.address())).unwrap();
    let blocks = client.namespace("m").unwrap();
    let plain = CallOptions::default();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let blocks = &blocks;
            scope.spawn(move || {
                let value = vec![thread; 100_000];
                let stored = PutOutcome::Stored { durable: false };
                assert_eq!(blocks.put(&[thread], &value, &plain).unwrap(), stored);
                let got = blocks.get(&[thread], &plain).unwrap();
                assert_eq!(got.hit().unwrap(), value);
            });
        }
    });
    assert_eq!(client.ping(&plain).unwrap().len(), 2);
    let page = blocks.list(b"", &plain).next_page().unwrap().unwrap();
    assert!(!page.is_empty());
}
