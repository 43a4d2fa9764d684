//! What calls come to when nothing goes wrong.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_io::block_on;
use terrace_client::{CallOptions, Client, ClientConfig, PutItem, Target};
use terrace_types::{Hint, Lookup, PutOutcome, RejectReason, Tier};

use crate::node::Node;

pub(crate) fn value(len: usize, seed: u8) -> Vec<u8> {
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

pub(crate) fn client(node: &Node) -> Client {
    Client::new(ClientConfig::new(&node.address())).unwrap()
}

const STORED: PutOutcome = PutOutcome::Stored { durable: false };
const PLAIN: CallOptions = CallOptions {
    deadline: None,
    context: terrace_types::RequestContext {
        clock_ms: 0,
        tenant: 0,
        priority: 0,
    },
    hint: Hint {
        parent: None,
        depth: 0,
        kind: terrace_types::BlockKind::Unknown,
    },
    durable: false,
    bypass: false,
};

#[test]
fn put_and_get_return_the_bytes_of_any_length() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    block_on(async {
        for len in [1, 7, 500, 4096, 65536, 131_072, 131_073, 3 << 20] {
            let key = format!("key {len}");
            let sent = value(len, 1);
            let outcome = blocks.put(key.as_bytes(), &sent, &PLAIN).await;
            assert_eq!(outcome.unwrap(), STORED);
            let got = blocks.get(key.as_bytes(), &PLAIN).await.unwrap();
            assert_eq!(got.hit().unwrap(), sent);
            let mut target = vec![0; len + 5];
            let got = blocks.get_into(key.as_bytes(), &mut target, &PLAIN).await;
            let part = got.unwrap().hit().unwrap();
            assert_eq!((part.len, part.block_len), (len, len as u64));
            assert_eq!(&target[..len], sent);
        }
        assert_eq!(blocks.get(b"none", &PLAIN).await.unwrap(), Lookup::Miss);
        let again = blocks.put(b"key 7", b"other", &PLAIN).await.unwrap();
        assert_eq!(again, PutOutcome::AlreadyExists { durable: false });
        assert_eq!(
            blocks.upsert(b"key 7", b"other", &PLAIN).await.unwrap(),
            STORED
        );
        let got = blocks.get(b"key 7", &PLAIN).await.unwrap();
        assert_eq!(got.hit().unwrap(), b"other");
    });
    assert_eq!(node.seen.connections.load(SeqCst), 1, "it is used again");
}

#[test]
fn ranges_and_scatter_and_gather_go_by_pieces() {
    let node = Node::start(2);
    let blocks = client(&node).namespace("m").unwrap();
    block_on(async {
        let whole = value(300_000, 2);
        let pieces: Vec<&[u8]> = whole.chunks(70_001).collect();
        let outcome = blocks.put_gather(b"k", &pieces, &PLAIN).await;
        assert_eq!(outcome.unwrap(), STORED);
        let mut part = vec![0; 1000];
        let got = blocks.get_range(b"k", 123_456, &mut part, &PLAIN).await;
        let got = got.unwrap().hit().unwrap();
        assert_eq!((got.len, got.block_len), (1000, 300_000));
        assert_eq!(part, whole[123_456..124_456]);
        let got = blocks.get_range(b"k", 299_990, &mut part, &PLAIN).await;
        assert_eq!(got.unwrap().hit().unwrap().len, 10);
        assert_eq!(part[..10], whole[299_990..]);
        let got = blocks.get_range(b"k", 400_000, &mut part, &PLAIN).await;
        assert_eq!(got.unwrap().hit().unwrap().len, 0);

        let (mut first, mut second) = (vec![0; 100_000], vec![0; 200_000]);
        let target = Target {
            key: b"k",
            offset: 0,
            memory: vec![&mut first, &mut second],
        };
        let got = blocks.get_batch_into(vec![target], &PLAIN).await;
        assert!(got[0].as_ref().unwrap().is_hit());
        assert_eq!([first, second].concat(), whole);
    });
}

#[test]
fn batches_over_shards_have_one_result_for_each_key_in_order() {
    let node = Node::start(5);
    let blocks = client(&node).namespace("m").unwrap();
    let keys: Vec<String> = (0..300).map(|number| format!("key {number}")).collect();
    let values: Vec<Vec<u8>> = (0..300).map(|number| value(100 + number, 3)).collect();
    node.switches.split.store(true, SeqCst);
    block_on(async {
        let slices: Vec<[&[u8]; 1]> = values.iter().map(|value| [&value[..]]).collect();
        let items: Vec<_> = keys
            .iter()
            .zip(&slices)
            .map(|(key, value)| PutItem {
                key: key.as_bytes(),
                value,
                hint: Hint::default(),
            })
            .collect();
        for outcome in blocks.put_batch(&items, &PLAIN).await {
            assert_eq!(outcome.unwrap(), STORED);
        }
        let mut asked = keys.clone();
        asked.insert(150, "absent".to_owned());
        asked.insert(0, String::new());
        let got = blocks.get_batch(&asked, &PLAIN).await;
        assert_eq!(got.len(), 302);
        assert!(got[0].as_ref().unwrap_err().to_string().contains("empty"));
        assert_eq!(got[151].as_ref().unwrap(), &Lookup::Miss);
        let hits = got.into_iter().flatten().filter_map(Lookup::hit);
        assert!(hits.eq(values.iter().cloned()));
        let there = blocks.exists_batch(&asked, &PLAIN).await;
        assert_eq!(
            there.iter().flatten().filter(|one| one.is_hit()).count(),
            300
        );
        let gone = blocks.remove_batch(&keys[..10], &PLAIN).await;
        assert!(gone.iter().flatten().all(Lookup::is_hit));
        let there = blocks.exists_batch(&keys, &PLAIN).await;
        assert_eq!(
            there.iter().flatten().filter(|one| one.is_hit()).count(),
            290
        );
    });
}

#[test]
fn values_that_are_no_blocks_are_rejected_before_they_are_sent() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    block_on(async {
        let empty = blocks.put(b"k", b"", &PLAIN).await.unwrap();
        assert_eq!(empty, PutOutcome::Rejected(RejectReason::BlockEmpty));
        let long = vec![0; (128 << 20) + 1];
        let long = blocks.put(b"k", &long, &PLAIN).await.unwrap();
        let PutOutcome::Rejected(RejectReason::BlockTooLarge { len, limit }) = long else {
            panic!("{long:?}");
        };
        assert_eq!((len, limit), ((128 << 20) + 1, 128 << 20));
        for (key, wrong) in [(vec![], "empty"), (vec![1; 513], "513")] {
            let error = blocks.put(&key, b"v", &PLAIN).await.unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
        let late = CallOptions::within(Duration::ZERO);
        let error = blocks.put(b"k", b"v", &late).await.unwrap_err();
        assert!(error.to_string().contains("deadline is 0ns"), "{error}");
    });
    assert_eq!(node.seen.requests.load(SeqCst), 0);
}

#[test]
fn eight_threads_share_one_client() {
    let node = Node::start(3);
    let client = client(&node);
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let blocks = client.namespace("m").unwrap();
            scope.spawn(move || {
                block_on(async {
                    for round in 0..20 {
                        let key = format!("{thread} {round}");
                        let sent = value(1 + usize::from(thread) * 40_000 + round, thread);
                        let outcome = blocks.put(key.as_bytes(), &sent, &PLAIN).await;
                        assert_eq!(outcome.unwrap(), STORED);
                        let got = blocks.get(key.as_bytes(), &PLAIN).await.unwrap();
                        assert_eq!(
                            got,
                            Lookup::Hit {
                                tier: Tier::Dram,
                                value: sent
                            }
                        );
                    }
                });
            });
        }
    });
    assert!(node.seen.connections.load(SeqCst) <= 3 * 4 + 1);
}

#[test]
fn many_calls_share_one_connection_and_their_replies_come_in_any_order() {
    let node = Node::start(1);
    let mut config = ClientConfig::new(&node.address());
    config.connections_per_shard = 1;
    let blocks = Client::new(config).unwrap().namespace("m").unwrap();
    node.switches.hold_gets.store(true, SeqCst);
    block_on(async {
        let keys: Vec<String> = (0..10).map(|number| format!("key {number}")).collect();
        for (key, seed) in keys.iter().zip(0..) {
            let sent = value(50_000, seed);
            blocks.put(key.as_bytes(), &sent, &PLAIN).await.unwrap();
        }
        let gets = keys.iter().map(|key| blocks.get(key.as_bytes(), &PLAIN));
        let gets = futures_util::future::join_all(gets);
        // Ten gets are with the node when the touch comes, which lets their replies go.
        let touch = async {
            let blocks = blocks.clone();
            blocks.touch(&["key 0"], &PLAIN).await
        };
        let (got, touched) = futures_util::future::join(gets, touch).await;
        assert!(touched[0].as_ref().unwrap().is_hit());
        for (got, seed) in got.into_iter().zip(0..) {
            assert_eq!(got.unwrap().hit().unwrap(), value(50_000, seed));
        }
    });
    assert_eq!(node.seen.connections.load(SeqCst), 1);
}

#[test]
fn credit_of_one_request_serves_many_calls_one_by_one() {
    let node = Node::start(1);
    node.credit.store(1, SeqCst);
    let mut config = ClientConfig::new(&node.address());
    config.connections_per_shard = 1;
    let blocks = Client::new(config).unwrap().namespace("m").unwrap();
    block_on(async {
        let puts = (0..20_u8).map(|number| {
            let blocks = blocks.clone();
            async move { blocks.put(&[number], &value(9000, number), &PLAIN).await }
        });
        for outcome in futures_util::future::join_all(puts).await {
            assert_eq!(outcome.unwrap(), STORED);
        }
        let keys: Vec<[u8; 1]> = (0..20).map(|number| [number]).collect();
        let gets = keys.iter().map(|key| blocks.get(key, &PLAIN));
        for (got, seed) in futures_util::future::join_all(gets)
            .await
            .into_iter()
            .zip(0..)
        {
            assert_eq!(got.unwrap().hit().unwrap(), value(9000, seed));
        }
    });
}
