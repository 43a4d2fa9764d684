//! A server over a real engine, and plain sockets as its clients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod plain;
mod served;

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use plain::{PlainClient, value};
use served::{engine, start_with};
use terrace_engine::{Engine, Tier, UnavailableReason, block_on};
use terrace_server::{Server, ServerConfig};
use terrace_types::{Hint, KeyHash};
use terrace_wire::{
    Facts, FrameLimits, GetEntry, Goodbye, GoodbyeReason, KeyStatus, LeaseId, ListRequest, Options,
    Reply, RequestHead, Verb, request,
};

const STORED: KeyStatus = KeyStatus::Stored { durable: false };

fn start(dram_mib: u64, shards: usize) -> (Engine, Server) {
    start_with(engine(dram_mib, shards), ServerConfig::default())
}

/// Aim: blocks of all lengths come back as they were put. Method: from one byte to 128 MiB, each
/// verified against its checksum by the client.
#[test]
fn blocks_of_all_lengths_come_back() {
    let (_engine, server) = start(512, 1);
    let mut client = PlainClient::connect(server.address(), None, "m");
    let lens = [
        1,
        4095,
        4096,
        4097,
        65_536,
        131_073,
        1 << 20,
        5_000_001,
        128 << 20,
    ];
    for (seed, len) in lens.into_iter().enumerate() {
        let key = format!("block {len}");
        let bytes = value(seed as u64, len);
        let put = client.put(&[(key.as_bytes(), &bytes)], Options::NONE);
        assert_eq!(put, [STORED], "{len}");
        let got = client.get(&[key.as_bytes()]);
        assert!(got[0].as_deref() == Some(&bytes[..]), "{len}");
    }
}

#[test]
fn batch_has_one_status_for_each_key() {
    let (_engine, server) = start(64, 1);
    let mut client = PlainClient::connect(server.address(), Some(0), "m");
    let (a, b, c) = (value(1, 10), value(2, 100_000), value(3, 4096));
    let put = client.put(
        &[(b"a", &a), (b"b", &b), (b"a", &a), (b"c", &c)],
        Options::NONE,
    );
    let exists = KeyStatus::AlreadyExists { durable: false };
    assert_eq!(put, [STORED, STORED, exists, STORED]);
    let got = client.get(&[b"c", b"x", b"a", b"b"]);
    assert_eq!(got, [Some(c), None, Some(a), Some(b)]);
    let hit = KeyStatus::Hit(Tier::Dram);
    let there = client.of_keys(Verb::Exists, &[b"a", b"x", b"b"]);
    assert_eq!(there, [hit, KeyStatus::Miss, hit]);
    let removed = client.of_keys(Verb::Remove, &[b"a", b"x"]);
    assert_eq!(removed, [hit, KeyStatus::Miss]);
    assert_eq!(client.get(&[b"a"]), [None]);
}

#[test]
fn parts_are_what_was_asked_for() {
    let (_engine, server) = start(64, 1);
    let mut client = PlainClient::connect(server.address(), None, "m");
    let bytes = value(9, 100_000);
    client.put(&[(b"k", &bytes)], Options::NONE);
    for (offset, len, expected) in [
        (0, 10, 0..10),
        (99_990, 100, 99_990..100_000),
        (5000, 4096, 5000..9096),
        (200_000, 5, 100_000..100_000),
        (0, u32::MAX, 0..100_000),
    ] {
        let entry = GetEntry {
            key: b"k",
            hint: Hint::default(),
            offset,
            len,
        };
        let got = client.get_parts(&[entry]);
        assert_eq!(got[0].0.block_len, 100_000);
        assert_eq!(got[0].1, bytes[expected]);
    }
}

/// Aim: a connection serves one shard, the one it asks for, and says where other keys belong.
#[test]
fn keys_of_another_shard_are_answered_with_it() {
    let (_engine, server) = start(64, 2);
    let mut clients = [0, 1].map(|shard| PlainClient::connect(server.address(), Some(shard), "m"));
    for (shard, client) in clients.iter().enumerate() {
        assert_eq!(client.terms.shard, shard as u32);
        assert_eq!(client.terms.shards, 2);
    }
    for number in 0..20_u32 {
        let key = format!("key {number}");
        let owner = KeyHash::of_named("m", key.as_bytes()).shard(2);
        let bytes = value(number.into(), 5000);
        for shard in [0, 1] {
            let client = &mut clients[shard as usize];
            let status = client.put(&[(key.as_bytes(), &bytes)], Options::NONE);
            let expected = if shard == owner {
                STORED
            } else {
                KeyStatus::WrongShard { shard: owner }
            };
            assert_eq!(status, [expected]);
            let there = client.of_keys(Verb::Exists, &[key.as_bytes()]);
            assert_eq!(matches!(there[0], KeyStatus::Hit(_)), shard == owner);
        }
    }
}

/// Aim: a list names every block once, whatever the pages. Method: keys of many lengths, pages of
/// one entry and of more, a prefix, another namespace beside it.
#[test]
fn list_names_every_block_once() {
    let (_engine, server) = start(64, 1);
    let mut client = PlainClient::connect(server.address(), None, "m");
    let mut other = PlainClient::connect(server.address(), None, "n");
    other.put(&[(b"a of another", b"x")], Options::NONE);
    let mut keys: Vec<Vec<u8>> = (0..50).map(|i| vec![b"ab"[i % 2]; 1 + i * 10]).collect();
    keys.sort();
    for key in &keys {
        assert_eq!(client.put(&[(key, b"value")], Options::NONE), [STORED]);
    }
    for (most, prefix) in [(1, &b""[..]), (7, b""), (0, b"a"), (3, b"b"), (5, b"c")] {
        let (mut named, mut cursor) = (Vec::new(), 0);
        loop {
            let told = RequestHead {
                argument: most,
                ..RequestHead::default()
            };
            let mut out = vec![0; 4096];
            let id = client.session.next_id();
            let list = ListRequest { cursor, prefix };
            let len = request::encode_list(id, &told, &list, &mut out).unwrap();
            client.begin(Verb::List, &out[..len], 0, 0);
            let frame = client.frame();
            let Reply::Listed(_, next, blocks) = frame.reply() else {
                panic!("no list but {:?}", frame.reply());
            };
            assert!(most == 0 || blocks.len() <= most as usize);
            assert!(blocks.iter().all(|block| block.len == 5 && !block.durable));
            named.extend(blocks.iter().map(|block| block.key.to_vec()));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        named.sort();
        let expected: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
        assert_eq!(named.iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn leases_are_granted_renewed_and_released() {
    let (engine, server) = start(64, 1);
    let mut client = PlainClient::connect(server.address(), None, "m");
    client.put(&[(b"k", &[1; 4096])], Options::NONE);
    let told = RequestHead {
        argument: 60_000,
        ..RequestHead::default()
    };
    client.begin_keys(Verb::Lease, &[b"k", b"x"], &told);
    let frame = client.frame();
    let Reply::Leases(_, leases) = frame.reply() else {
        panic!("no leases but {:?}", frame.reply());
    };
    let leases: Vec<_> = leases.iter().collect();
    assert_eq!((leases[0].block_len, leases[0].duration_ms), (4096, 60_000));
    assert_eq!(leases[1].status, KeyStatus::Miss);
    let facts = client.of_stat(&[b"k"]);
    assert_eq!(
        facts[0].bits,
        Facts::IN_DRAM | Facts::PINNED | Facts::LEASED
    );
    let ids = [leases[0].id, LeaseId(9999)];
    let mut out = vec![0; 4096];
    let id = client.session.next_id();
    let len = request::encode(Verb::Renew, id, &told, ids, &mut out).unwrap();
    client.begin(Verb::Renew, &out[..len], 0, 2);
    let frame = client.frame();
    let Reply::Leases(_, renewed) = frame.reply() else {
        panic!("no leases but {:?}", frame.reply());
    };
    let statuses: Vec<_> = renewed.iter().map(|lease| lease.status).collect();
    assert_eq!(statuses, [KeyStatus::Hit(Tier::Dram), KeyStatus::Miss]);
    let id = client.session.next_id();
    let len = request::encode(Verb::Release, id, &told, ids, &mut out).unwrap();
    client.begin(Verb::Release, &out[..len], 0, 2);
    assert_eq!(
        client.statuses(),
        [KeyStatus::Hit(Tier::Dram), KeyStatus::Miss]
    );
    assert_eq!(block_on(engine.stats()).gauges.leases, 0);
    client.begin_keys(Verb::Lease, &[b"k"], &told);
    client.frame();
    assert_eq!(block_on(engine.stats()).gauges.leases, 1);
    drop(client);
    while block_on(engine.stats()).gauges.leases > 0 {
        std::thread::yield_now();
    }
}

/// Aim: a client cannot make the node keep leases without end. Method: more of one block than a
/// connection may have, in one request.
#[test]
fn leases_of_a_connection_are_bounded() {
    let (engine, server) = start(64, 1);
    let mut client = PlainClient::connect(server.address(), None, "m");
    client.put(&[(b"k", &[1; 4096])], Options::NONE);
    let told = RequestHead {
        argument: 60_000,
        ..RequestHead::default()
    };
    client.begin_keys(Verb::Lease, &[&b"k"[..]; 4100], &told);
    let frame = client.frame();
    let Reply::Leases(_, leases) = frame.reply() else {
        panic!("no leases but {:?}", frame.reply());
    };
    let statuses: Vec<_> = leases.iter().map(|lease| lease.status).collect();
    assert_eq!(statuses[..4096], [KeyStatus::Hit(Tier::Dram); 4096]);
    let refused = KeyStatus::Unavailable(UnavailableReason::PinLimit);
    assert_eq!(statuses[4096..], [refused; 4]);
    assert_eq!(block_on(engine.stats()).gauges.leases, 4096);
}

/// Aim: a client that holds a pin or a lease may be silent. Method: two that hold something and one
/// that does not, which is closed; by then the others were silent for longer.
#[test]
fn silent_clients_that_hold_something_are_not_closed() {
    let config = ServerConfig {
        silence_max: Duration::from_millis(200),
        ..ServerConfig::default()
    };
    let (engine, server) = start_with(engine(64, 1), config);
    let told = RequestHead {
        argument: 60_000,
        ..RequestHead::default()
    };
    let mut holders = [Verb::Pin, Verb::Lease].map(|verb| {
        let mut client = PlainClient::connect(server.address(), None, "m");
        client.put(&[(b"k", &[1; 4096])], Options::NONE);
        client.begin_keys(verb, &[b"k"], &told);
        client.frame();
        client
    });
    let mut idle = PlainClient::connect(server.address(), None, "m");
    let frame = plain::read_frame(&mut idle.socket).expect("it is told why");
    assert!(matches!(frame.reply(), Reply::Goodbye(_)));
    assert_eq!(block_on(engine.stats()).gauges.leases, 1);
    let hit = KeyStatus::Hit(Tier::Dram);
    assert_eq!(holders[0].of_keys(Verb::Unpin, &[b"k"]), [hit]);
    assert_eq!(holders[1].of_keys(Verb::Exists, &[b"k"]), [hit]);
}

#[test]
fn prefix_namespace_and_touch_are_served() {
    let (_engine, server) = start(64, 1);
    let mut client = PlainClient::connect(server.address(), None, "m");
    client.put(&[(b"1", b"a"), (b"2", b"b"), (b"4", b"d")], Options::NONE);
    client.begin_keys(
        Verb::MatchPrefix,
        &[b"1", b"2", b"3", b"4"],
        &RequestHead::default(),
    );
    let frame = client.frame();
    let Reply::Matched(_, matched) = frame.reply() else {
        panic!("no match but {:?}", frame.reply());
    };
    assert_eq!((matched.count, matched.end), (2, Some(KeyStatus::Miss)));
    let hit = KeyStatus::Hit(Tier::Dram);
    for verb in [Verb::Touch, Verb::Prefetch] {
        assert_eq!(client.of_keys(verb, &[b"1", b"3"]), [hit, KeyStatus::Miss]);
    }
    let upsert = client.store(Verb::Upsert, &[(b"1", b"new")], Options::NONE);
    assert_eq!(upsert, [STORED]);
    assert_eq!(client.get(&[b"1"]), [Some(b"new".to_vec())]);
    let mut out = vec![0; 256];
    let id = client.session.next_id();
    let len = request::encode_remove_namespace(id, &RequestHead::default(), &mut out).unwrap();
    client.begin(Verb::RemoveNamespace, &out[..len], 0, 0);
    let frame = client.frame();
    assert!(matches!(frame.reply(), Reply::Removed(removed) if removed.count == 3));
    assert_eq!(client.get(&[b"1", b"2"]), [None, None]);
}

/// Aim: many requests in one go are all answered, credit included, when replies are split into frames
/// as short as a client may ask for.
#[test]
fn pipelined_requests_of_a_modest_client_are_answered() {
    let (_engine, server) = start(64, 1);
    let mut greeting = plain::hello(None);
    greeting.limits = FrameLimits {
        body_len_max: 4096,
        values_len_max: 4096,
    };
    let mut client = PlainClient::connect_as(server.address(), &greeting, "m");
    let bytes = value(3, 10_000);
    client.put(&[(b"k", &bytes)], Options::NONE);
    let keys = vec![&b"k"[..]; 3000];
    let ids: Vec<u64> = (0..20)
        .map(|_| client.begin_keys(Verb::Exists, &keys, &RequestHead::default()))
        .collect();
    for _ in ids {
        assert_eq!(client.statuses(), vec![KeyStatus::Hit(Tier::Dram); 3000]);
    }
    let entries = vec![GetEntry::whole(b"k", Hint::default()); 500];
    for (record, part) in client.get_parts(&entries) {
        assert_eq!((record.block_len, record.len), (10_000, 4096));
        assert!(part[..] == bytes[..4096]);
    }
}

/// Aim: a client that sends no more, and one that says goodbye, get their answers first.
#[test]
fn answers_come_after_the_last_request() {
    let (_engine, server) = start(64, 1);
    for says_goodbye in [false, true] {
        let mut client = PlainClient::connect(server.address(), None, "m");
        let bytes = value(4, 6 << 20);
        client.store(Verb::Upsert, &[(b"k", &bytes)], Options::NONE);
        let entries = [GetEntry::whole(b"k", Hint::default())];
        (0..4).for_each(|_| {
            client.begin_get(&entries);
        });
        if says_goodbye {
            let mut out = [0; 64];
            let goodbye = Goodbye {
                reason: GoodbyeReason::Done,
                close_ms: 0,
            };
            let len = goodbye.encode(&mut out).unwrap();
            client.socket.write_all(&out[..len]).unwrap();
        } else {
            client.socket.shutdown(Shutdown::Write).unwrap();
        }
        let mut answers = 0;
        while let Some(frame) = plain::read_frame(&mut client.socket) {
            if let Reply::Values(..) = frame.reply() {
                assert!(frame.values == bytes);
                answers += 1;
            }
        }
        assert_eq!(answers, 4);
    }
}
