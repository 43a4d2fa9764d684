//! Blocks that go between registered memory and the node's by transfer engines, over rails of TCP.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_io::block_on;
use futures_lite::future::poll_once;
use terrace_client::{
    CallOptions, Cause, Client, ClientConfig, Leased, Located, Namespace, OneSided,
    OneSidedOptions, Part, Place, Region, RegisteredRegion,
};
use terrace_types::{Lookup, PutOutcome, RejectReason};

use crate::calls::value;
use crate::node::Node;
use crate::rails::INLINE_LEN_MAX;

const MINUTE: Duration = Duration::from_secs(60);
const STORED: PutOutcome = PutOutcome::Stored { durable: false };

fn options(listen: Option<&str>) -> OneSidedOptions {
    OneSidedOptions {
        devices: Vec::new(),
        listen: listen.map(|address| address.parse().unwrap()),
    }
}

fn client(node: &Node, one_sided: OneSided) -> Client {
    let config = ClientConfig::new(&node.address()).one_sided(one_sided);
    Client::new(config).unwrap()
}

fn auto(node: &Node) -> Client {
    client(node, OneSided::Auto(options(None)))
}

/// A node, and a client that it may read values of.
fn pulled_from() -> (Arc<Node>, Client, Namespace) {
    let node = Node::with_rails(1);
    let client = client(&node, OneSided::Auto(options(Some("127.0.0.1"))));
    let blocks = client.namespace("m").unwrap();
    (node, client, blocks)
}

fn region(client: &Client, len: usize) -> Region {
    let memory = RegisteredRegion::allocate(len).unwrap();
    client.register(&memory).unwrap()
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.memory().copy_to(&mut bytes);
    bytes
}

/// Stores a block by another client, of which nothing is counted here.
async fn store(node: &Node, key: &str, value: &[u8]) {
    let blocks = crate::calls::client(node).namespace("m").unwrap();
    let plain = CallOptions::default();
    let stored = blocks.put(key.as_bytes(), value, &plain);
    assert_eq!(stored.await.unwrap(), STORED);
}

async fn read(
    blocks: &Namespace,
    key: &str,
    target: &Region,
) -> Result<Lookup<Part>, terrace_client::Error> {
    let plain = CallOptions::default();
    blocks.get_into_region(key.as_bytes(), target, &plain).await
}

fn part(found: &Lookup<Part>) -> Part {
    match found {
        Lookup::Hit { value, .. } => *value,
        other => panic!("{other:?}"),
    }
}

async fn locate(blocks: &Namespace, key: &str) -> Located {
    let plain = CallOptions::default();
    let mut found = blocks.locate(&[key], MINUTE, &plain).await;
    match found.remove(0).unwrap() {
        Lookup::Hit { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

fn assert_send<T: Send>(future: T) -> T {
    future
}

/// Waits until the node holds no lease.
fn wait_for_releases(node: &Node) {
    node.wait_until(|_| node.engine().leases.lock().unwrap().is_empty());
}

#[test]
fn batch_of_all_shards_is_read_into_one_region_and_released() {
    let node = Node::with_rails(3);
    let client = auto(&node);
    let blocks = client.namespace("m").unwrap();
    let lens = [1, INLINE_LEN_MAX, INLINE_LEN_MAX + 1, 100_000, 3 << 20];
    let keys: Vec<String> = (0..20).map(|number| format!("key {number}")).collect();
    block_on(async {
        let all = region(&client, lens.iter().sum::<usize>() * 4);
        let (mut start, mut parts, mut values) = (0, Vec::new(), Vec::new());
        for (seed, key) in keys.iter().enumerate() {
            let len = lens[seed % lens.len()];
            values.push(value(len, seed as u8));
            store(&node, key, &values[seed]).await;
            parts.push(all.slice(start..start + len).unwrap());
            start += len;
        }
        let mut targets: Vec<(&[u8], &Region)> = Vec::new();
        targets.extend(keys.iter().map(String::as_bytes).zip(&parts));
        targets.push((b"absent", &all));
        targets.push((b"", &all));
        let plain = CallOptions::default();
        let found = assert_send(blocks.get_regions_into(&targets, &plain)).await;
        assert_eq!(found.len(), 22);
        for (at, value) in values.iter().enumerate() {
            let read = part(found[at].as_ref().unwrap());
            assert_eq!(read.len, value.len());
            assert_eq!(read.block_len, value.len() as u64);
            assert!(bytes_of(&parts[at]) == *value, "{at}");
        }
        assert!(matches!(found[20], Ok(Lookup::Miss)));
        assert!(matches!(
            found[21].as_ref().unwrap_err().cause(),
            Cause::Key(_)
        ));
    });
    let stats = client.stats();
    assert_eq!(node.seen.gets.load(SeqCst), 0);
    assert_eq!((stats.one_sided_gets, stats.one_sided_fallbacks), (12, 0));
    assert_eq!((stats.rails, stats.rails_lost), (3, 0));
    assert_eq!(client.one_sided_fault(), None);
    wait_for_releases(&node);
}

#[test]
fn bytes_with_another_checksum_are_wiped() {
    let node = Node::with_rails(1);
    let client = auto(&node);
    let blocks = client.namespace("m").unwrap();
    block_on(async {
        store(&node, "a", &value(50_000, 1)).await;
        let target = region(&client, 60_000);
        target.memory().copy_from(&[7; 60_000]);
        node.engine().corrupt.store(1, SeqCst);
        let error = read(&blocks, "a", &target).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Corrupt { .. }), "{error}");
        let bytes = bytes_of(&target);
        assert!(bytes[..50_000].iter().all(|byte| *byte == 0));
        assert!(bytes[50_000..].iter().all(|byte| *byte == 7));
        assert_eq!(client.stats().corrupt, 1);
        assert_eq!(node.seen.gets.load(SeqCst), 0);
        // Nothing is wrong with the rails.
        part(&read(&blocks, "a", &target).await.unwrap());
        assert_eq!(client.stats().rails, 1);
    });
    wait_for_releases(&node);
}

#[test]
fn block_longer_than_its_region_is_read_as_far_as_that_reaches() {
    let node = Node::with_rails(1);
    let client = client(&node, OneSided::Required(options(None)));
    let blocks = client.namespace("m").unwrap();
    block_on(async {
        let (long, short) = (value(50_000, 1), value(100, 2));
        store(&node, "long", &long).await;
        store(&node, "short", &short).await;
        let target = region(&client, 50);
        for (key, value) in [("long", &long), ("short", &short)] {
            let read = part(&read(&blocks, key, &target).await.unwrap());
            assert_eq!((read.len, read.block_len), (50, value.len() as u64));
            assert!(bytes_of(&target) == value[..50]);
        }
    });
    wait_for_releases(&node);
}

#[test]
fn rails_that_were_taken_back_are_asked_for_again() {
    let node = Node::with_rails(1);
    let client = auto(&node);
    let blocks = client.namespace("m").unwrap();
    let value = value(50_000, 1);
    block_on(async {
        store(&node, "a", &value).await;
        let target = region(&client, value.len());
        part(&read(&blocks, "a", &target).await.unwrap());
        for times in 2..5 {
            node.engine().expel_all();
            target.memory().copy_from(&[0; 50_000]);
            part(&read(&blocks, "a", &target).await.unwrap());
            assert!(bytes_of(&target) == value);
            let stats = client.stats();
            assert_eq!((stats.rails, stats.rails_lost), (times, times - 1));
        }
    });
    assert_eq!(node.seen.gets.load(SeqCst), 0);
    assert_eq!(client.stats().one_sided_fallbacks, 0);
    wait_for_releases(&node);
}

#[test]
fn batch_that_has_more_blocks_than_there_may_be_leases_is_read_in_turns() {
    let node = Node::with_rails(1);
    let client = client(&node, OneSided::Required(options(None)));
    let blocks = client.namespace("m").unwrap();
    let keys: Vec<String> = (0..10).map(|number| format!("key {number}")).collect();
    let plain = CallOptions::default();
    block_on(async {
        for key in &keys {
            store(&node, key, &value(5000, 1)).await;
        }
        let all = region(&client, 50_000);
        let parts: Vec<_> = (0..10)
            .map(|at| all.slice(at * 5000..(at + 1) * 5000).unwrap())
            .collect();
        let targets: Vec<_> = keys.iter().map(String::as_bytes).zip(&parts).collect();
        node.engine().leases_max.store(4, SeqCst);
        let found = blocks.get_regions_into(&targets, &plain).await;
        assert!(
            found
                .iter()
                .all(|found| part(found.as_ref().unwrap()).len == 5000)
        );
        assert_eq!(client.stats().one_sided_gets, 10);
        wait_for_releases(&node);
        node.engine().leases_max.store(0, SeqCst);
        let error = read(&blocks, "key 1", &all).await.unwrap_err();
        assert!(error.to_string().contains("no lease"), "{error}");
    });
}

#[test]
fn located_block_is_read_again_without_the_node_until_its_lease_ends() {
    let node = Node::with_rails(2);
    let client = auto(&node);
    let blocks = client.namespace("m").unwrap();
    let plain = CallOptions::default();
    let bytes = value(50_000, 1);
    block_on(async {
        store(&node, "a", &bytes).await;
        let located = locate(&blocks, "a").await;
        assert_eq!((located.key(), located.len()), (&b"a"[..], 50_000));
        assert!(matches!(
            located.place(),
            Place::Leased {
                offset: Some(_),
                ..
            }
        ));
        let asked = node.seen.requests.load(SeqCst);
        let target = region(&client, 60_000);
        for _ in 0..3 {
            target.memory().copy_from(&[0; 60_000]);
            let read = assert_send(located.read_into(&target, &plain));
            assert_eq!(read.await.unwrap().len, 50_000);
            assert!(bytes_of(&target)[..50_000] == bytes);
        }
        assert_eq!(node.seen.requests.load(SeqCst), asked);
        let short = target.slice(0..49_999).unwrap();
        let error = located.read_into(&short, &plain).await.unwrap_err();
        assert!(error.to_string().contains("at least 50000"), "{error}");

        let renewed = blocks
            .renew(std::slice::from_ref(&located), MINUTE, &plain)
            .await;
        let Ok(Lookup::Hit { value: renewed, .. }) = &renewed[0] else {
            panic!("{renewed:?}");
        };
        renewed.read_into(&target, &plain).await.unwrap();
        let released = blocks.release(&[located], &plain).await;
        assert!(released[0].as_ref().unwrap().is_hit());
        wait_for_releases(&node);

        node.engine().lease_ms.store(0, SeqCst);
        let ended = locate(&blocks, "a").await;
        let error = ended.read_into(&target, &plain).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::LeaseEnded), "{error}");
        // A get whose lease does not last goes over the connection.
        part(&read(&blocks, "a", &target).await.unwrap());
        assert_eq!(node.seen.gets.load(SeqCst), 1);
    });
}

#[test]
fn located_block_of_an_expelled_client_is_not_read() {
    let node = Node::with_rails(1);
    let client = auto(&node);
    let blocks = client.namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        store(&node, "a", &value(50_000, 1)).await;
        let located = locate(&blocks, "a").await;
        let target = region(&client, 50_000);
        located.read_into(&target, &plain).await.unwrap();
        node.engine().expel_all();
        let error = located.read_into(&target, &plain).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::OneSided { .. }), "{error}");
        assert!(error.is_retryable());
        let again = locate(&blocks, "a").await;
        again.read_into(&target, &plain).await.unwrap();
    });
}

#[test]
fn short_block_is_located_with_its_bytes() {
    let node = Node::start(1);
    let plain_client = crate::calls::client(&node);
    let blocks = plain_client.namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        let bytes = value(100, 1);
        store(&node, "a", &bytes).await;
        store(&node, "long", &value(50_000, 1)).await;
        let found = blocks.locate(&["absent", "", "a"], MINUTE, &plain).await;
        assert!(matches!(found[0], Ok(Lookup::Miss)));
        assert!(matches!(
            found[1].as_ref().unwrap_err().cause(),
            Cause::Key(_)
        ));
        let located = locate(&blocks, "a").await;
        assert!(matches!(located.place(), Place::Here(here) if here == bytes));
        assert!(located.lease().is_none());
        let target = region(&plain_client, 200);
        located.read_into(&target, &plain).await.unwrap();
        assert!(bytes_of(&target)[..100] == bytes);
        let both = [located, locate(&blocks, "long").await];
        // Without one-sided access there is a lease and no way to the bytes.
        assert!(matches!(
            both[1].place(),
            Place::Leased { offset: None, .. }
        ));
        let target = region(&plain_client, 50_000);
        let error = both[1].read_into(&target, &plain).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::OneSided { .. }), "{error}");
        let released = blocks.release(&both, &plain).await;
        assert!(
            released
                .iter()
                .all(|released| matches!(released, Ok(Lookup::Hit { .. })))
        );
        let renewed = blocks.renew(&both, MINUTE, &plain).await;
        assert!(matches!(
            renewed[..],
            [Ok(Lookup::Hit { .. }), Ok(Lookup::Hit { .. })]
        ));
    });
}

/// The node grants a lease, and nobody is there any more to hear of it.
#[test]
fn lease_of_a_call_that_was_given_up_is_released() {
    let node = Node::with_rails(1);
    let client = auto(&node);
    let blocks = client.namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        store(&node, "a", &value(50_000, 1)).await;
        let target = region(&client, 50_000);
        part(&read(&blocks, "a", &target).await.unwrap());
        wait_for_releases(&node);
        let has_lease = || !node.engine().leases.lock().unwrap().is_empty();
        {
            let mut given_up = pin!(read(&blocks, "a", &target));
            assert!(poll_once(given_up.as_mut()).await.is_none());
            node.wait_until(|_| has_lease());
        }
        assert!(has_lease());
        // Who reads the socket next finds it.
        assert!(blocks.exists(b"a", &plain).await.unwrap().is_hit());
        wait_for_releases(&node);
        part(&read(&blocks, "a", &target).await.unwrap());
        let stats = client.stats();
        assert_eq!((stats.connects, stats.rails, stats.rails_lost), (1, 1, 0));
    });
}

/// What keeps a node from being read one-sided, and how often a client then asks it for rails.
type Hindrance = (&'static str, fn() -> Arc<Node>, usize);

const HINDRANCES: [Hindrance; 2] = [
    ("the node grants none", || Node::start(1), 0),
    (
        "no rails",
        || {
            let node = Node::with_rails(1);
            node.engine().refuses.store(true, SeqCst);
            node
        },
        1,
    ),
];

#[test]
fn node_without_rails_is_read_over_connections_unless_they_are_required() {
    for (why, node, asked) in HINDRANCES {
        let node = node();
        let auto = auto(&node);
        let required = client(&node, OneSided::Required(options(None)));
        let value = value(50_000, 1);
        block_on(async {
            store(&node, "a", &value).await;
            let blocks = auto.namespace("m").unwrap();
            for times in 1..4 {
                let target = region(&auto, value.len());
                part(&read(&blocks, "a", &target).await.unwrap());
                assert!(bytes_of(&target) == value);
                assert_eq!(auto.stats().one_sided_fallbacks, times);
            }
            let fault = auto.one_sided_fault().unwrap();
            assert!(fault.contains(why), "{fault}");
            if let Some(engine) = node.engine.get() {
                // It is not asked again at once.
                assert_eq!(engine.rails_asked.load(SeqCst), asked);
            }
            let blocks = required.namespace("m").unwrap();
            let target = region(&required, value.len());
            let error = read(&blocks, "a", &target).await.unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        });
        assert_eq!(node.seen.gets.load(SeqCst), 3);
    }
}

#[test]
fn device_that_is_not_there_is_named() {
    let node = Node::with_rails(1);
    let named = OneSidedOptions {
        devices: vec!["no_such_device".to_owned()],
        listen: None,
    };
    block_on(async {
        store(&node, "a", &value(50_000, 1)).await;
        let config = ClientConfig::new(&node.address());
        let required = config.one_sided(OneSided::Required(named.clone()));
        let error = Client::connect(required).await.map(drop).unwrap_err();
        assert!(matches!(error.cause(), Cause::OneSided { .. }), "{error}");
        let client = client(&node, OneSided::Auto(named));
        let blocks = client.namespace("m").unwrap();
        let target = region(&client, 50_000);
        part(&read(&blocks, "a", &target).await.unwrap());
        assert_eq!(client.stats().one_sided_fallbacks, 1);
        assert!(client.one_sided_fault().is_some());
    });
}

#[test]
fn block_that_lies_in_no_region_is_read_over_a_connection() {
    let node = Node::with_rails(1);
    let client = auto(&node);
    let blocks = client.namespace("m").unwrap();
    let value = value(50_000, 1);
    block_on(async {
        store(&node, "a", &value).await;
        let target = region(&client, value.len());
        node.engine().far.store(1, SeqCst);
        part(&read(&blocks, "a", &target).await.unwrap());
        assert!(bytes_of(&target) == value);
        assert_eq!(client.stats().one_sided_fallbacks, 1);
        let fault = client.one_sided_fault().unwrap();
        assert!(fault.contains("rails are down"), "{fault}");
    });
    wait_for_releases(&node);
}

#[test]
fn memory_of_another_client_is_read_into_over_a_connection() {
    let node = Node::with_rails(1);
    let (client, other) = (auto(&node), auto(&node));
    let blocks = client.namespace("m").unwrap();
    block_on(async {
        store(&node, "a", &value(50_000, 1)).await;
        let target = region(&other, 50_000);
        part(&read(&blocks, "a", &target).await.unwrap());
        assert_eq!(client.stats().one_sided_fallbacks, 1);
        let fault = client.one_sided_fault().unwrap();
        assert!(fault.contains("another client"), "{fault}");
    });
    let nothing = RegisteredRegion::allocate(1).unwrap().slice(1..1).unwrap();
    assert!(client.register(&nothing).is_err());
}

#[test]
fn values_are_pulled_out_of_registered_memory() {
    let node = Node::with_rails(2);
    let client = client(&node, OneSided::Required(options(Some("127.0.0.1"))));
    let blocks = client.namespace("m").unwrap();
    let plain = CallOptions::default();
    let bytes = value(300_000, 1);
    block_on(async {
        let all = region(&client, bytes.len());
        all.memory().copy_from(&bytes);
        let parts = [0..1, 1..5000, 5000..300_000];
        let parts = parts.map(|range| (range.clone(), all.slice(range).unwrap()));
        let keys = ["a", "b", "c"];
        let mut sources: Vec<(&[u8], &Region)> = Vec::new();
        sources.extend(
            keys.iter()
                .zip(&parts)
                .map(|(key, (_, part))| (key.as_bytes(), part)),
        );
        let none = all.slice(7..7).unwrap();
        sources.push((b"d", &none));
        sources.push((b"", &all));
        let put = assert_send(blocks.put_regions_from(&sources, &plain)).await;
        assert!(
            put[..3]
                .iter()
                .all(|put| matches!(put, Ok(outcome) if *outcome == STORED))
        );
        let empty = PutOutcome::Rejected(RejectReason::BlockEmpty);
        assert_eq!(*put[3].as_ref().unwrap(), empty);
        assert!(put[4].is_err());
        for (key, (range, _)) in keys.iter().zip(&parts) {
            let found = blocks.get(key.as_bytes(), &plain).await.unwrap();
            assert!(matches!(found, Lookup::Hit { value, .. } if value == bytes[range.clone()]));
        }
        // Rails that were taken back are asked for again.
        node.engine().expel_all();
        let put = blocks.put_from_region(b"e", &all, &plain).await.unwrap();
        assert_eq!(put, STORED);
    });
    assert_eq!(node.seen.puts.load(SeqCst), 0);
    assert_eq!(client.stats().pulled_puts, 4);
    assert_eq!(client.stats().one_sided_fallbacks, 0);
}

#[test]
fn node_that_pulls_nothing_gets_values_over_connections() {
    let (node, client, blocks) = pulled_from();
    let plain = CallOptions::default();
    block_on(async {
        let source = region(&client, 50_000);
        source.memory().copy_from(&value(50_000, 1));
        let put = blocks.put_from_region(b"a", &source, &plain).await.unwrap();
        assert_eq!(put, STORED);
        assert_eq!(node.seen.puts.load(SeqCst), 0);
        node.engine().pulls_nothing.store(true, SeqCst);
        let mut requests = Vec::new();
        for key in ["b", "c", "d"] {
            let before = node.seen.requests.load(SeqCst);
            let put = blocks.put_from_region(key.as_bytes(), &source, &plain);
            assert_eq!(put.await.unwrap(), STORED);
            requests.push(node.seen.requests.load(SeqCst) - before);
        }
        assert_eq!(requests, [2, 1, 1], "the first asks");
        assert_eq!(node.seen.puts.load(SeqCst), 3);
        assert_eq!(client.stats().one_sided_fallbacks, 3);
    });
}

/// It is asked twice, with rails in between by which it opens the client's engine again.
#[test]
fn node_that_cannot_read_values_gets_them_over_connections() {
    let (node, client, blocks) = pulled_from();
    let plain = CallOptions::default();
    block_on(async {
        let source = region(&client, 50_000);
        node.engine().reads_nothing.store(true, SeqCst);
        for key in ["a", "b"] {
            let put = blocks.put_from_region(key.as_bytes(), &source, &plain);
            assert_eq!(put.await.unwrap(), STORED);
        }
        assert_eq!(node.engine().pulls.load(SeqCst), 2);
        assert_eq!(client.stats().one_sided_fallbacks, 2);
        // Blocks are still read.
        part(&read(&blocks, "a", &source).await.unwrap());
        let stats = client.stats();
        assert_eq!((stats.rails, stats.one_sided_gets), (2, 1));
    });
}
