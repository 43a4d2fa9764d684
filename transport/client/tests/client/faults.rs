//! What calls come to when something goes wrong.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_io::block_on;
use futures_lite::future::poll_once;
use terrace_client::{CallOptions, Cause, Client, ClientConfig};
use terrace_types::{Lookup, PutOutcome, RejectReason};
use terrace_wire::ErrorCode;

use crate::calls::{client, value};
use crate::node::Node;

const STORED: PutOutcome = PutOutcome::Stored { durable: false };

fn soon() -> CallOptions {
    CallOptions::within(Duration::from_millis(200))
}

#[test]
fn silent_node_ends_calls_at_their_deadlines() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.put(b"k", b"v", &plain).await.unwrap();
        node.switches.silent.store(true, SeqCst);
        let error = blocks.get(b"k", &soon()).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::TimedOut { .. }), "{error}");
        assert_eq!(error.key(), Some("k"));
        assert_eq!(error.address(), node.address());
        let error = blocks.put(b"l", b"v", &soon()).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::TimedOut { .. }), "{error}");
        node.switches.silent.store(false, SeqCst);
        let got = blocks.get(b"k", &plain).await.unwrap();
        assert_eq!(got.hit().unwrap(), b"v");
    });
    assert_eq!(blocks.client().stats().timeouts, 2);
}

#[test]
fn node_that_takes_connections_and_says_nothing_is_a_bounded_error() {
    let node = Node::start(1);
    node.switches.mute.store(true, SeqCst);
    let mut config = ClientConfig::new(&node.address());
    config.connect_timeout = Duration::from_millis(50);
    let blocks = Client::new(config).unwrap().namespace("m").unwrap();
    let options = CallOptions::within(Duration::from_secs(5));
    let error = block_on(blocks.exists(b"k", &options)).unwrap_err();
    let Cause::Unavailable { why } = error.cause() else {
        panic!("{error}");
    };
    assert!(why.contains("no handshake within 50ms"), "{why}");
    let error = block_on(blocks.exists(b"k", &CallOptions::within(Duration::from_millis(20))));
    assert!(error.is_err());
}

#[test]
fn nobody_at_the_address_is_unavailable() {
    let node = Node::start(1);
    node.kill();
    let blocks = client(&node).namespace("m").unwrap();
    let error = block_on(blocks.get(b"k", &CallOptions::default())).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Unavailable { .. }),
        "{error}"
    );
    assert!(error.is_retryable());
    assert!(error.to_string().starts_with(&node.address()), "{error}");
    let error = block_on(Client::connect(ClientConfig::new(&node.address()))).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Unavailable { .. }),
        "{error}"
    );
}

#[test]
fn wrong_token_is_rejected_and_not_tried_again() {
    let node = Node::start(1);
    *node.token.lock().unwrap() = b"secret".to_vec();
    let error = block_on(Client::connect(ClientConfig::new(&node.address()))).unwrap_err();
    let Cause::Rejected { code, text } = error.cause() else {
        panic!("{error}");
    };
    assert_eq!(
        (*code, text.as_str()),
        (ErrorCode::NotAuthenticated, "give a token")
    );
    assert!(!error.is_retryable());
    assert!(
        error
            .to_string()
            .contains("not authenticated: give a token"),
        "{error}"
    );
    let config = ClientConfig::new(&node.address()).token(b"secret");
    assert!(!format!("{config:?}").contains("secret"));
    block_on(Client::connect(config)).unwrap();
}

#[test]
fn corrupt_value_is_never_handed_out() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    let sent = value(400_000, 1);
    block_on(async {
        blocks.put(b"k", &sent, &plain).await.unwrap();
        // Reads are tried three times.
        node.switches.corrupt.store(2, SeqCst);
        let got = blocks.get(b"k", &plain).await.unwrap();
        assert_eq!(got.hit().unwrap(), sent);
        node.switches.corrupt.store(3, SeqCst);
        let error = blocks.get(b"k", &plain).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Corrupt { .. }), "{error}");
        assert_eq!(error.key(), Some("k"));
        node.switches.corrupt.store(3, SeqCst);
        let mut target = vec![7; 400_000];
        let error = blocks
            .get_into(b"k", &mut target, &plain)
            .await
            .unwrap_err();
        assert!(matches!(error.cause(), Cause::Corrupt { .. }), "{error}");
        assert!(target.iter().all(|byte| *byte == 0));
        node.switches.corrupt.store(3, SeqCst);
        let error = blocks
            .get_range(b"k", 5, &mut target[..99], &plain)
            .await
            .unwrap_err();
        assert!(matches!(error.cause(), Cause::Corrupt { .. }), "{error}");
    });
    assert_eq!(blocks.client().stats().corrupt, 11);
    assert_eq!(
        node.seen.connections.load(SeqCst),
        1,
        "the connection is sound"
    );
}

#[test]
fn reads_are_tried_again_when_the_connection_breaks() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    let sent = value(100_000, 1);
    block_on(async {
        blocks.put(b"k", &sent, &plain).await.unwrap();
        node.switches.vanish.store(2, SeqCst);
        assert!(blocks.exists(b"k", &plain).await.unwrap().is_hit());
        node.switches.vanish_in_value.store(2, SeqCst);
        let got = blocks.get(b"k", &plain).await.unwrap();
        assert_eq!(got.hit().unwrap(), sent);
        node.switches.vanish.store(3, SeqCst);
        let error = blocks.get(b"k", &plain).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Io { .. }), "{error}");
    });
    assert_eq!(node.switches.vanish.load(SeqCst), 0);
}

#[test]
fn put_that_may_have_been_taken_is_not_sent_again() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        node.switches.vanish.store(1, SeqCst);
        let error = blocks.put(b"k", b"v", &plain).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Io { .. }), "{error}");
        assert_eq!(node.seen.puts.load(SeqCst), 1);
        // It was taken, as the caller can see.
        assert!(blocks.exists(b"k", &plain).await.unwrap().is_hit());
        node.switches.vanish.store(1, SeqCst);
        let error = blocks.remove(b"k", &plain).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Io { .. }), "{error}");
    });
}

#[test]
fn put_that_was_refused_whole_is_sent_again() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.exists(b"k", &plain).await.unwrap();
        node.switches.draining.store(2, SeqCst);
        assert_eq!(blocks.put(b"k", b"v", &plain).await.unwrap(), STORED);
        node.switches.draining.store(3, SeqCst);
        let error = blocks.put(b"l", b"v", &plain).await.unwrap_err();
        let Cause::Rejected { code, .. } = error.cause() else {
            panic!("{error}");
        };
        assert_eq!(*code, ErrorCode::Draining);
        assert!(error.is_retryable());
    });
    assert_eq!(node.seen.puts.load(SeqCst), 1);
}

#[test]
fn outcomes_of_puts_are_no_errors() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        node.switches.put_status.store(1, SeqCst);
        assert_eq!(
            blocks.put(b"k", b"v", &plain).await.unwrap(),
            PutOutcome::Busy
        );
        node.switches.put_status.store(2, SeqCst);
        let outcome = blocks.put(b"k", b"v", &plain).await.unwrap();
        assert_eq!(outcome, PutOutcome::Rejected(RejectReason::NotAdmitted));
    });
    assert_eq!(node.seen.puts.load(SeqCst), 2);
}

#[test]
fn refused_namespace_says_what_the_node_said() {
    let node = Node::start(1);
    node.switches.refuse_namespaces.store(true, SeqCst);
    let blocks = client(&node).namespace("m").unwrap();
    let error = block_on(blocks.get(b"k", &CallOptions::default())).unwrap_err();
    let Cause::Rejected { code, text } = error.cause() else {
        panic!("{error}");
    };
    assert_eq!(*code, ErrorCode::NamespaceRefused);
    assert_eq!(text, "as the test wants it");
}

#[test]
fn node_that_comes_back_is_found_without_a_new_client() {
    let node = Node::start(2);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        for number in 0..10_u8 {
            assert_eq!(blocks.put(&[number], b"v", &plain).await.unwrap(), STORED);
        }
        node.kill();
        let error = blocks.get(&[1], &plain).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        node.restart();
        // The first put finds that its connection is closed before it sends anything.
        for number in 10..20_u8 {
            assert_eq!(blocks.put(&[number], b"v", &plain).await.unwrap(), STORED);
            assert!(blocks.get(&[number - 10], &plain).await.unwrap().is_hit());
        }
    });
}

#[test]
fn changed_shard_map_is_learned_and_nothing_is_lost() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    let keys: Vec<[u8; 1]> = (0..40).map(|number| [number]).collect();
    block_on(async {
        for key in &keys {
            assert_eq!(blocks.put(key, b"v", &plain).await.unwrap(), STORED);
        }
        node.shards.store(4, SeqCst);
        node.map_epoch.store(2, SeqCst);
        // Most keys are at the wrong shard now, puts too.
        for key in 40..80_u8 {
            assert_eq!(blocks.put(&[key], b"v", &plain).await.unwrap(), STORED);
        }
        let there = blocks.exists_batch(&keys, &plain).await;
        assert!(there.into_iter().all(|one| one.unwrap().is_hit()));
    });
}

#[test]
fn prefix_is_whole_after_a_change_of_the_shard_map() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    let keys: Vec<[u8; 1]> = (0..40).map(|number| [number]).collect();
    block_on(async {
        for key in &keys {
            assert_eq!(blocks.put(key, b"v", &plain).await.unwrap(), STORED);
        }
        node.shards.store(4, SeqCst);
        node.map_epoch.store(2, SeqCst);
        assert_eq!(blocks.match_prefix(&keys, &plain).await.unwrap(), 40);
        assert!(blocks.remove(&keys[30], &plain).await.unwrap().is_hit());
        node.shards.store(3, SeqCst);
        node.map_epoch.store(3, SeqCst);
        assert_eq!(blocks.match_prefix(&keys, &plain).await.unwrap(), 30);
    });
}

#[test]
fn new_map_epoch_alone_makes_the_client_ask_again() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.exists(b"k", &plain).await.unwrap();
        node.map_epoch.store(9, SeqCst);
        // The one that tells of it, the one that asks, and one on the new connection.
        for _ in 0..3 {
            assert_eq!(blocks.exists(b"k", &plain).await.unwrap(), Lookup::Miss);
        }
    });
    assert_eq!(node.seen.connections.load(SeqCst), 2);
}

#[test]
fn shard_map_that_never_fits_is_a_bounded_error() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    node.switches.wrong_shard.store(true, SeqCst);
    let error = block_on(blocks.exists(b"k", &plain)).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Unavailable { .. }),
        "{error}"
    );
    assert!(node.seen.requests.load(SeqCst) < 20);
}

#[test]
fn goodbye_moves_new_calls_to_another_connection() {
    let node = Node::start(1);
    let blocks = client(&node).namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.exists(b"k", &plain).await.unwrap();
        node.switches.closes.store(true, SeqCst);
        node.switches.goodbye.store(true, SeqCst);
        blocks.put(b"k", b"v", &plain).await.unwrap();
        for _ in 0..3 {
            assert!(blocks.exists(b"k", &plain).await.unwrap().is_hit());
            let outcome = blocks.put(b"k", b"v", &plain).await.unwrap();
            assert!(outcome.is_present());
        }
    });
}

#[test]
fn dropped_call_is_cancelled_and_its_connection_goes_on() {
    let node = Node::start(1);
    let mut config = ClientConfig::new(&node.address());
    config.connections_per_shard = 1;
    let blocks = Client::new(config).unwrap().namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        let sent = value(200_000, 1);
        blocks.put(b"k", &sent, &plain).await.unwrap();
        node.switches.hold_gets.store(true, SeqCst);
        let mut target = vec![7; 200_000];
        {
            let get = blocks.get_into(b"k", &mut target, &plain);
            let mut get = Box::pin(get);
            assert!(poll_once(&mut get).await.is_none());
            node.wait_until(|seen| seen.gets.load(SeqCst) == 1);
        }
        node.wait_until(|seen| seen.cancels.load(SeqCst) == 1);
        node.switches.hold_gets.store(false, SeqCst);
        // Its reply is read and dropped.
        blocks.touch(&["k"], &plain).await[0].as_ref().unwrap();
        let got = blocks.get(b"k", &plain).await.unwrap();
        assert_eq!(got.hit().unwrap(), sent);
        assert!(target.iter().all(|byte| *byte == 7));
    });
    assert_eq!(node.seen.connections.load(SeqCst), 1);
}

#[test]
fn put_that_is_dropped_while_it_is_written_stores_nothing() {
    let node = Node::start(1);
    let mut config = ClientConfig::new(&node.address());
    config.connections_per_shard = 1;
    let blocks = Client::new(config).unwrap().namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        blocks.exists(b"k", &plain).await.unwrap();
        let sent = value(64 << 20, 1);
        let mut put = Box::pin(blocks.put(b"k", &sent, &plain));
        // Longer than a socket takes at once, and hashed in pieces with a yield behind each.
        for _ in 0..18 {
            assert!(poll_once(&mut put).await.is_none());
        }
        drop(put);
        assert_eq!(blocks.get(b"k", &plain).await.unwrap(), Lookup::Miss);
        assert_eq!(blocks.put(b"k", b"v", &plain).await.unwrap(), STORED);
    });
    assert_eq!(node.seen.connections.load(SeqCst), 1);
    assert_eq!(
        node.seen.puts.load(SeqCst),
        2,
        "the broken one arrived whole"
    );
}

#[test]
fn call_that_stays_away_does_not_hold_up_the_others() {
    let node = Node::start(1);
    let mut config = ClientConfig::new(&node.address());
    config.connections_per_shard = 1;
    let blocks = Client::new(config).unwrap().namespace("m").unwrap();
    let plain = CallOptions::default();
    block_on(async {
        let sent = value(3 << 20, 1);
        blocks.put(b"k", &sent, &plain).await.unwrap();
        let mut away = Box::pin(blocks.get(b"k", &plain));
        assert!(poll_once(&mut away).await.is_none());
        // Its value is in front of this one's reply, and nobody polls it.
        let got = blocks.get(b"k", &plain).await.unwrap();
        assert_eq!(got.hit().unwrap(), sent);
        assert_eq!(away.await.unwrap().hit().unwrap(), sent);
    });
    assert_eq!(node.seen.connections.load(SeqCst), 1);
}
