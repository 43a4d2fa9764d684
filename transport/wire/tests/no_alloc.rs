//! Aim: a get and a put are encoded, framed, decoded and accounted for, on both ends, without an
//! allocation. Method: an allocator that counts, around many of them; the sessions before show that
//! it does count. Another thread of the test program may allocate, so a round is repeated: an
//! allocation of ours would show in every round.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use terrace_types::{Checksum, Hint, Tier};
use terrace_wire::{
    ClientHello, ClientSession, Expected, Features, Flags, FrameHead, FrameLimits, GetEntry,
    Incoming, KeyStatus, NodeTerms, Offer, Partial, PutEntry, Reply, ReplyHead, Request,
    RequestHead, Security, ServerSession, ValueRecord, Verb, reply, request,
};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KEYS: [&[u8]; 16] = [b"a key of 32 bytes, like a digest"; 16];

fn sessions() -> (ClientSession, ServerSession) {
    let limits = FrameLimits::default();
    let terms = NodeTerms {
        version: 1,
        security: Security::default(),
        shard: 0,
        features: Features::ALL,
        node_id: [1; 16],
        node_epoch: 1,
        map_epoch: 1,
        shards: 1,
        limits,
        batch_max: 64,
        credit_requests: 64,
        credit_bytes: 4 << 30,
        block_len_max: 1 << 20,
        lease_max_ms: 1000,
        deadline_max_ms: 1000,
        silence_max_ms: 0,
    };
    let features = Features::ALL;
    let hello = ClientHello {
        version_low: 1,
        version_high: 1,
        shard: None,
        features,
        client_id: [2; 16],
        limits,
        token: b"",
        name: "test",
    };
    let mut client = ClientSession::new(Offer { features, limits });
    let mut server = ServerSession::new(terms);
    let terms = server.on_hello(&hello).unwrap();
    client.on_hello(&terms).unwrap();
    (client, server)
}

fn parse(frame: &[u8]) -> (FrameHead, &[u8]) {
    match FrameHead::parse(frame, &FrameLimits::default()) {
        Ok(Partial::Whole(head)) => (head, head.body(&frame[32..]).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// One request of each kind, there and back.
fn exchange(client: &mut ClientSession, server: &mut ServerSession, frame: &mut [u8]) {
    let head = RequestHead::default();
    let gets = KEYS.map(|key| GetEntry::whole(key, Hint::default()));
    let puts = KEYS.map(|key| PutEntry {
        key,
        hint: Hint::default(),
        len: 65536,
        checksum: Checksum(7),
    });
    let id = client.next_id();
    let len = request::encode(Verb::Get, id, &head, gets, frame).unwrap();
    client.begin(Verb::Get, len - 32, 0, gets.len()).unwrap();
    let (head_read, body) = parse(&frame[..len]);
    let incoming = server.on_head(&head_read).unwrap();
    assert_eq!(incoming, Incoming::Request(Verb::Get));
    let asked = Request::decode(&head_read, body).unwrap();
    server.on_request(&head_read, &asked).unwrap();
    let Request::Get(_, entries) = asked else {
        panic!("{asked:?}")
    };
    assert_eq!(
        entries.iter().map(|entry| entry.key.len()).sum::<usize>(),
        512
    );
    let values = KEYS.map(|_| ValueRecord {
        status: KeyStatus::Hit(Tier::Dram),
        block_len: 65536,
        len: 65536,
        checksum: Checksum(7),
    });
    server.answer(id, 0, values.len()).unwrap();
    server.end(id, false, false).unwrap();
    let answer = ReplyHead::default();
    let len = reply::encode(Verb::Get, id, Flags::NONE, &answer, values, frame).unwrap();
    let (head_read, body) = parse(&frame[..len]);
    let expected = client.on_head(&head_read).unwrap();
    assert_eq!(expected, Expected::Reply(Verb::Get));
    let answered = Reply::decode(&head_read, body).unwrap();
    assert_eq!(client.on_reply(&head_read, &answered), Ok(true));

    let id = client.next_id();
    let len = request::encode(Verb::Put, id, &head, puts, frame).unwrap();
    let (head_read, body) = parse(&frame[..len]);
    let values_len = head_read.values_len.into();
    client
        .begin(Verb::Put, len - 32, values_len, puts.len())
        .unwrap();
    server.on_head(&head_read).unwrap();
    let asked = Request::decode(&head_read, body).unwrap();
    server.on_request(&head_read, &asked).unwrap();
    server.answer(id, 0, puts.len()).unwrap();
    server.end(id, false, false).unwrap();
    let statuses = KEYS.map(|_| KeyStatus::Stored { durable: false });
    let len = reply::encode(Verb::Put, id, Flags::NONE, &answer, statuses, frame).unwrap();
    let (head_read, body) = parse(&frame[..len]);
    client.on_head(&head_read).unwrap();
    let answered = Reply::decode(&head_read, body).unwrap();
    assert_eq!(client.on_reply(&head_read, &answered), Ok(true));
}

#[test]
fn requests_and_replies_allocate_nothing() {
    let region = Region::new(COUNTING);
    let (mut client, mut server) = sessions();
    assert!(region.change().allocations > 0, "the allocator must count");
    let mut frame = [0; 4096];
    let rounds = (0..20).map(|_| {
        let region = Region::new(COUNTING);
        for _ in 0..500 {
            exchange(&mut client, &mut server, &mut frame);
        }
        region.change().allocations
    });
    assert_eq!(rounds.min(), Some(0));
}
