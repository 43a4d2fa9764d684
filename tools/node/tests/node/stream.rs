//! Aim: a block that comes piece by piece is stored when all of it is there, and not at all when its
//! caller goes away; registered memory is read into and put from by many threads. Method: the client
//! against a real node.

use terrace_client::blocking::{Client, PutStart, PutStream};
use terrace_client::{CallOptions, Cause, ClientConfig, RegisteredRegion};
use terrace_types::{Lookup, PutOutcome, RejectReason};

use crate::plain::value;
use crate::started::{Folder, Node};

const STORED: PutOutcome = PutOutcome::Stored { durable: false };
const WRITING: &str = "terrace_slots_being_written";

fn opened(start: PutStart) -> Box<PutStream> {
    match start {
        PutStart::Open(stream) => stream,
        PutStart::Done(outcome) => panic!("the put is decided: {outcome:?}"),
    }
}

fn decided(start: PutStart) -> PutOutcome {
    match start {
        PutStart::Open(stream) => panic!("the put goes on: {stream:?}"),
        PutStart::Done(outcome) => outcome,
    }
}

#[test]
fn block_that_comes_in_pieces_is_stored_when_all_are_there() {
    let folder = Folder::new("stream-pieces");
    let node = Node::start(&folder.0, &["--nvme", "0"]);
    let blocks = node.blocks();
    let plain = CallOptions::default();
    // Pieces of all lengths: none, of a byte, and longer than one part.
    let sent = value(1, 11_000_003);
    let mut stream = opened(blocks.put_stream(b"k", 11_000_003, &plain).unwrap());
    let mut at = 0;
    for len in [0, 1, 65_536, 9_000_000, 3] {
        stream.push(&sent[at..at + len]).unwrap();
        at += len;
        assert_eq!(blocks.get(b"k", &plain).unwrap(), Lookup::Miss);
    }
    assert_eq!(stream.left(), (sent.len() - at) as u64);
    // Too much is refused, and the put goes on.
    let error = stream.push(&sent).unwrap_err();
    assert!(matches!(error.cause(), Cause::Argument { .. }), "{error}");
    stream.push(&sent[at..]).unwrap();
    assert_eq!(stream.finish().unwrap(), STORED);
    assert!(blocks.get(b"k", &plain).unwrap().hit().unwrap() == sent);
    // What is there already is told at the begin, and so is what no node takes.
    let exists = PutOutcome::AlreadyExists { durable: false };
    assert_eq!(decided(blocks.put_stream(b"k", 5, &plain).unwrap()), exists);
    let empty = PutOutcome::Rejected(RejectReason::BlockEmpty);
    assert_eq!(decided(blocks.put_stream(b"l", 0, &plain).unwrap()), empty);
    let long = decided(blocks.put_stream(b"l", (128 << 20) + 1, &plain).unwrap());
    assert!(matches!(
        long,
        PutOutcome::Rejected(RejectReason::BlockTooLarge { .. })
    ));
}

/// Aim: nothing of a put that is dropped or short is published, and its slot comes back.
#[test]
fn put_that_is_given_up_leaves_nothing() {
    let folder = Folder::new("stream-dropped");
    let node = Node::start(&folder.0, &["--nvme", "0"]);
    let blocks = node.blocks();
    let plain = CallOptions::default();
    let sent = value(2, 3_000_000);
    let begin = || opened(blocks.put_stream(b"k", 3_000_000, &plain).unwrap());
    let mut stream = begin();
    stream.push(&sent[..2_000_000]).unwrap();
    assert_eq!(node.metric(WRITING), 1);
    drop(stream);
    node.until_metric(WRITING, 0);
    let mut stream = begin();
    stream.push(&sent[..2_999_999]).unwrap();
    let error = stream.finish().unwrap_err();
    assert!(matches!(error.cause(), Cause::Argument { .. }), "{error}");
    node.until_metric(WRITING, 0);
    assert_eq!(blocks.get(b"k", &plain).unwrap(), Lookup::Miss);
    // The key is free for another one.
    let mut stream = begin();
    stream.push(&sent).unwrap();
    assert_eq!(stream.finish().unwrap(), STORED);
}

/// Aim: a node that goes away ends a streamed put by an error, and every call after it.
#[test]
fn put_whose_node_goes_away_fails_for_good() {
    let folder = Folder::new("stream-killed");
    let mut node = Node::start(&folder.0, &["--nvme", "0"]);
    let blocks = node.blocks();
    let plain = CallOptions::default();
    let mut stream = opened(blocks.put_stream(b"k", 64 << 20, &plain).unwrap());
    let piece = value(3, 1 << 20);
    stream.push(&piece).unwrap();
    node.process.kill();
    let first = (0..63).find_map(|_| stream.push(&piece).err()).unwrap();
    assert!(!matches!(first.cause(), Cause::Argument { .. }), "{first}");
    let again = stream.push(&piece).unwrap_err();
    assert_eq!(again.to_string(), first.to_string());
}

#[test]
fn threads_share_registered_memory() {
    let folder = Folder::new("stream-region");
    let node = Node::start(&folder.0, &["--nvme", "0"]);
    let client = Client::connect(ClientConfig::new(&node.address.to_string())).unwrap();
    let blocks = client.namespace("model").unwrap();
    let plain = CallOptions::default();
    let len = 300_000;
    let memory = RegisteredRegion::allocate(4 * len).unwrap();
    let region = client.register(&memory).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (region, blocks) = (&region, &blocks);
            scope.spawn(move || {
                let own = region.slice(thread * len..(thread + 1) * len).unwrap();
                for round in 0..10_u64 {
                    let seed = thread as u64 * 100 + round;
                    let (key, sent) = (seed.to_le_bytes(), value(seed, len));
                    own.memory().copy_from(&sent);
                    let put = blocks.put_from_region(&key, &own, &plain).unwrap();
                    assert_eq!(put, STORED);
                    own.memory().copy_from(&vec![0; len]);
                    let got = blocks.get_into_region(&key, &own, &plain).unwrap();
                    let part = got.hit().unwrap();
                    assert_eq!((part.len, part.block_len), (len, len as u64));
                    let mut read = vec![0; len];
                    own.memory().copy_to(&mut read);
                    assert!(read == sent);
                }
            });
        }
    });
    // A region that is too short has the front of the block, as all memory does.
    let short = region.slice(0..1000).unwrap();
    let key = 0_u64.to_le_bytes();
    let got = blocks.get_into_region(&key, &short, &plain).unwrap();
    assert_eq!(got.hit().unwrap().len, 1000);
    let mut read = vec![0; 1000];
    short.memory().copy_to(&mut read);
    assert!(read == value(0, len)[..1000]);
    let error = region.slice(0..4 * len + 1).unwrap_err();
    assert!(error.to_string().contains("1200001"), "{error}");
}
