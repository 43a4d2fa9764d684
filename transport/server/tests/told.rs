//! Events and locates over plain sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod plain;
mod served;

use std::time::Duration;

use plain::{Frame, PlainClient, hello, read_frame, value};
use served::{engine, start_with};
use terrace_engine::{Engine, EngineConfig, Tier, block_on};
use terrace_server::{Server, ServerConfig, ServerCounters};
use terrace_types::Checksum;
use terrace_wire::{
    Descriptor, ErrorCode, EventKind, Facts, Features, Flags, FrameLimits, KeyStatus,
    NamespaceNumber, OpenNamespace, Options, Reply, RequestHead, Verb, request,
};

const ALL_KINDS: u32 = 0x3f;
const ALL_NAMESPACES: NamespaceNumber = NamespaceNumber::NONE;

fn start() -> (Engine, Server) {
    start_with(engine(64, 1), ServerConfig::default())
}

fn counters(server: &Server) -> ServerCounters {
    block_on(server.observer().counters())
}

/// What a frame of events tells: kind, namespace, key.
type Told = (EventKind, u16, Vec<u8>);

/// Subscribes, and takes the frame that says that it holds.
fn subscribe(client: &mut PlainClient, namespace: NamespaceNumber, kinds: u32) -> u64 {
    let id = ask_events(client, namespace, kinds);
    let first = client.frame();
    assert!(first.head.flags.has(Flags::MORE));
    assert_eq!(told(&first), (0, Vec::new()));
    id
}

fn ask_events(client: &mut PlainClient, namespace: NamespaceNumber, kinds: u32) -> u64 {
    let head = RequestHead {
        namespace,
        ..RequestHead::default()
    };
    let mut out = [0; 256];
    let id = client.session.next_id();
    let len = request::encode_events(id, &head, kinds, &mut out).unwrap();
    client.begin(Verb::Events, &out[..len], 0, 0)
}

/// How many events are lost by the end of a frame, and those in it.
fn told(frame: &Frame) -> (u64, Vec<(u64, Told)>) {
    let Reply::Events(_, lost, records) = frame.reply() else {
        panic!("no events but {:?}", frame.reply());
    };
    let events = records.iter().map(|event| {
        let told = (event.kind, event.namespace.0, event.key.to_vec());
        (event.sequence, told)
    });
    (lost, events.collect())
}

/// The next `count` events, none of them lost.
fn next(client: &mut PlainClient, count: usize) -> Vec<Told> {
    let mut all = Vec::new();
    while all.len() < count {
        let (lost, events) = told(&client.frame());
        assert_eq!(lost, 0);
        all.extend(events.into_iter().map(|(_, told)| told));
    }
    all
}

fn error_code(frame: &Frame) -> ErrorCode {
    match frame.reply() {
        Reply::Error(error) => error.code,
        other => panic!("no error but {other:?}"),
    }
}

fn cancel(client: &mut PlainClient, id: u64) {
    use std::io::Write;

    let mut out = [0; 32];
    let len = request::encode_cancel(id, &mut out).unwrap();
    client.socket.write_all(&out[..len]).unwrap();
}

/// Aim: a subscriber is told of what it asked for, in order, and of nothing else. Method: one that
/// wants stored and removed blocks of one namespace, one that wants all of all; blocks of three.
#[test]
fn subscribers_are_told_of_their_kinds_and_namespaces() {
    let (_engine, server) = start();
    let mut writers =
        ["a", "b", "c"].map(|name| PlainClient::connect(server.address(), None, name));
    let mut one = PlainClient::connect(server.address(), None, "a");
    let wanted = EventKind::Stored.bit() | EventKind::Removed.bit();
    subscribe(&mut one, NamespaceNumber(0), wanted);
    let mut all = PlainClient::connect(server.address(), None, "a");
    subscribe(&mut all, ALL_NAMESPACES, ALL_KINDS);
    // Opened behind the subscription, under a number of its own.
    let open = OpenNamespace {
        number: NamespaceNumber(9),
        name: "b",
    };
    let mut out = [0; 256];
    let id = all.session.next_id();
    let len = open.encode(id, &mut out).unwrap();
    all.begin(Verb::OpenNamespace, &out[..len], 0, 0);
    assert!(matches!(all.frame().reply(), Reply::Statuses(..)));

    for writer in &mut writers {
        writer.put(&[(b"k", &[1; 100])], Options::NONE);
        writer.of_keys(Verb::Remove, &[b"k"]);
    }
    let (stored, removed) = (EventKind::Stored, EventKind::Removed);
    let of = |kind, number| (kind, number, b"k".to_vec());
    assert_eq!(next(&mut one, 2), [of(stored, 0), of(removed, 0)]);
    let expected = [of(stored, 0), of(removed, 0), of(stored, 9), of(removed, 9)];
    assert_eq!(next(&mut all, 4), expected);
    // Calls of the connection go on beside it.
    assert_eq!(one.get(&[b"k"]), [None]);
    assert_eq!(counters(&server).subscriptions, 2);
}

/// Aim: blocks that go down and come up again are told of. Method: a node with room for two blocks in
/// DRAM and a device below.
#[test]
fn moves_between_tiers_are_told() {
    let device = std::env::temp_dir().join(format!("terrace-told-{}", std::process::id()));
    let mut config = EngineConfig {
        dram_blocks: Some(2),
        ..engine(64, 1)
    };
    config.nvme.paths = vec![device.clone()];
    config.nvme.file_bytes = Some(128 << 20);
    config.nvme.lazy = true;
    let (_engine, server) = start_with(config, ServerConfig::default());
    let mut client = PlainClient::connect(server.address(), None, "m");
    let kinds = EventKind::Demoted.bit() | EventKind::Promoted.bit();
    let mut subscriber = PlainClient::connect(server.address(), None, "m");
    subscribe(&mut subscriber, NamespaceNumber(0), kinds);
    for key in [b"a", b"b", b"c"] {
        client.put(&[(key, &[1; 4096])], Options::DURABLE);
    }
    let demoted = next(&mut subscriber, 1).remove(0);
    assert_eq!(demoted.0, EventKind::Demoted);
    // Read often enough, so that no policy declines it.
    let mut seen = Vec::new();
    while !seen.contains(&(EventKind::Promoted, 0, demoted.2.clone())) {
        assert!(client.get(&[&demoted.2])[0].is_some());
        seen.extend(next(&mut subscriber, 1));
    }
    std::fs::remove_file(device).unwrap();
}

/// Aim: a subscriber that does not read costs bounded memory, slows nobody, and is told how much it
/// lost. Method: one that reads nothing while far more is stored than its queue and its socket hold;
/// what it was told and what it lost together is all that happened.
#[test]
fn slow_subscriber_loses_events_and_is_told_how_many() {
    let (engine, server) = start();
    let mut client = PlainClient::connect(server.address(), None, "m");
    let mut slow = PlainClient::connect(server.address(), None, "m");
    subscribe(&mut slow, NamespaceNumber(0), EventKind::Stored.bit());
    // Long keys fill the socket sooner.
    let (mut stored, mut lost) = (0_u64, 0);
    while lost == 0 {
        let keys: Vec<Vec<u8>> = (0..500)
            .map(|place| format!("{:0500}", stored + place).into_bytes())
            .collect();
        let blocks: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &[7; 8][..])).collect();
        client.put(&blocks, Options::NONE);
        stored += 500;
        lost = block_on(engine.stats()).counters.events_lost;
        assert!(stored < 200_000, "nothing was lost");
    }
    let unsent = counters(&server).unsent_bytes;
    assert!(unsent < 512 << 10, "{unsent} bytes wait");
    let (mut seen, mut last, mut gone) = (0, 0, 0);
    // One more, so that a frame comes that tells of all that was lost.
    client.put(&[(b"last", &[1])], Options::NONE);
    stored += 1;
    while seen + gone < stored {
        let (lost, events) = told(&slow.frame());
        assert!(lost >= gone);
        gone = lost;
        for (sequence, _) in events {
            assert!(sequence > last, "{sequence} behind {last}");
            (last, seen) = (sequence, seen + 1);
        }
        if seen + gone < stored {
            // The queue has room again: what happens now is told.
            client.put(
                &[(format!("more {stored}").as_bytes(), &[1])],
                Options::NONE,
            );
            stored += 1;
        }
    }
    assert_eq!(seen + gone, stored);
    assert_eq!(gone, block_on(engine.stats()).counters.events_lost);
}

#[test]
fn subscription_ends_by_a_cancel_and_credit_comes_back() {
    let (_engine, server) = start();
    let mut client = PlainClient::connect(server.address(), None, "m");
    let credit = client.session.credit();
    let id = subscribe(&mut client, NamespaceNumber(0), ALL_KINDS);
    cancel(&mut client, id);
    let last = client.frame();
    assert_eq!(last.head.request_id, id);
    assert!(!last.head.flags.has(Flags::MORE));
    assert_eq!(client.session.credit(), credit);
    client.put(&[(b"k", &[1])], Options::NONE);
    assert_eq!(counters(&server).subscriptions, 0);
}

/// Aim: a drain and a goodbye end subscriptions, as they would never end by themselves.
#[test]
fn subscription_ends_with_a_drain_and_with_its_client() {
    let (_engine, mut server) = start();
    let mut leaving = PlainClient::connect(server.address(), None, "m");
    subscribe(&mut leaving, NamespaceNumber(0), ALL_KINDS);
    leaving.socket.shutdown(std::net::Shutdown::Write).unwrap();
    let last = read_frame(&mut leaving.socket).unwrap();
    assert!(!last.head.flags.has(Flags::MORE));
    assert!(read_frame(&mut leaving.socket).is_none());

    let mut vanished = PlainClient::connect(server.address(), None, "m");
    subscribe(&mut vanished, NamespaceNumber(0), ALL_KINDS);
    drop(vanished);

    let mut drained = PlainClient::connect(server.address(), None, "m");
    subscribe(&mut drained, NamespaceNumber(0), ALL_KINDS);
    let report = server.drain(Duration::from_secs(10));
    assert_eq!(report.cut_off, 0, "cut off");
    let goodbye = read_frame(&mut drained.socket).unwrap();
    assert!(matches!(goodbye.reply(), Reply::Goodbye(_)));
    let last = read_frame(&mut drained.socket).unwrap();
    assert_eq!(told(&last), (0, Vec::new()));
    assert!(!last.head.flags.has(Flags::MORE));
}

#[test]
fn wrong_subscriptions_are_refused() {
    let (_engine, server) = start();
    let mut client = PlainClient::connect(server.address(), None, "m");
    ask_events(&mut client, NamespaceNumber(0), 1 << 6);
    assert_eq!(error_code(&client.frame()), ErrorCode::UnknownOption);
    ask_events(&mut client, NamespaceNumber(5), ALL_KINDS);
    assert_eq!(error_code(&client.frame()), ErrorCode::NamespaceNumber);
    for _ in 0..4 {
        subscribe(&mut client, NamespaceNumber(0), ALL_KINDS);
    }
    ask_events(&mut client, NamespaceNumber(0), ALL_KINDS);
    assert_eq!(error_code(&client.frame()), ErrorCode::NotPermitted);
}

#[test]
fn silent_subscribers_are_not_closed() {
    let config = ServerConfig {
        silence_max: Duration::from_millis(200),
        ..ServerConfig::default()
    };
    let (_engine, server) = start_with(engine(64, 1), config);
    let mut subscriber = PlainClient::connect(server.address(), None, "m");
    subscribe(&mut subscriber, NamespaceNumber(0), ALL_KINDS);
    let mut idle = PlainClient::connect(server.address(), None, "m");
    let frame = read_frame(&mut idle.socket).expect("it is told why");
    assert!(matches!(frame.reply(), Reply::Goodbye(_)));
    let mut client = PlainClient::connect(server.address(), None, "m");
    client.put(&[(b"k", &[1])], Options::NONE);
    let stored = (EventKind::Stored, 0, b"k".to_vec());
    assert_eq!(next(&mut subscriber, 1), [stored]);
}

/// The descriptors of a locate, and the values of all its frames.
fn locate(client: &mut PlainClient, keys: &[&[u8]]) -> (Vec<Descriptor>, Vec<u8>, usize) {
    let told = RequestHead {
        argument: 60_000,
        ..RequestHead::default()
    };
    client.begin_keys(Verb::Locate, keys, &told);
    let (mut all, mut values, mut frames) = (Vec::new(), Vec::new(), 0);
    loop {
        let frame = client.frame();
        let Reply::Descriptors(_, records) = frame.reply() else {
            panic!("no descriptors but {:?}", frame.reply());
        };
        all.extend(records);
        values.extend(&frame.values);
        frames += 1;
        if !frame.head.flags.has(Flags::MORE) {
            return (all, values, frames);
        }
    }
}

/// Aim: short blocks come with the reply, longer ones are leased, and where no fabric has the memory
/// there is no address. Method: blocks around the limit, each compared with its checksum.
#[test]
fn short_blocks_come_inline_and_others_are_leased() {
    let (engine, server) = start();
    let mut client = PlainClient::connect(server.address(), None, "m");
    assert!(client.terms.features.has(Features::DESCRIPTORS));
    assert!(!client.terms.features.has(Features::ONE_SIDED));
    assert!(!client.terms.features.has(Features::SHARED_MEMORY));
    let lens = [1, 4096, 4097, 100_000];
    let names = lens.map(|len: usize| format!("block {len}"));
    for (name, len) in names.iter().zip(lens) {
        client.put(&[(name.as_bytes(), &value(1, len))], Options::NONE);
    }
    let mut keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    keys.push(b"absent");
    let (found, values, _) = locate(&mut client, &keys);
    let mut at = 0;
    for ((descriptor, name), len) in found.iter().zip(&names).zip(lens) {
        let expected = client.checksum(name.as_bytes(), &value(1, len));
        assert_eq!(descriptor.checksum, expected, "{len}");
        assert_eq!(descriptor.lease.status, KeyStatus::Hit(Tier::Dram));
        assert_eq!(descriptor.lease.block_len as usize, len);
        assert_eq!((descriptor.address, descriptor.rkey), (0, 0));
        let is_short = len <= 4096;
        assert_eq!(descriptor.lease.id.0 == 0, is_short, "{len}");
        assert_eq!(
            descriptor.inline_len as usize,
            if is_short { len } else { 0 }
        );
        if is_short {
            assert_eq!(values[at..at + len], value(1, len));
            at += len;
        } else {
            assert_eq!(descriptor.lease.duration_ms, 60_000);
        }
    }
    assert_eq!(at, values.len());
    let absent = found[4];
    assert_eq!(absent.lease.status, KeyStatus::Miss);
    assert_eq!((absent.checksum, absent.lease.id.0), (Checksum(0), 0));
    assert_eq!(block_on(engine.stats()).gauges.leases, 2);
    let facts = client.of_stat(&[keys[1], keys[2]]);
    let leased = facts.iter().map(|facts| facts.bits & Facts::LEASED != 0);
    assert_eq!(leased.collect::<Vec<_>>(), [false, true]);
    // They are leases like others.
    let ids = [found[2].lease.id, found[3].lease.id];
    let mut out = vec![0; 4096];
    let id = client.session.next_id();
    let len = request::encode(Verb::Release, id, &RequestHead::default(), ids, &mut out).unwrap();
    client.begin(Verb::Release, &out[..len], 0, 2);
    assert_eq!(client.statuses(), [KeyStatus::Hit(Tier::Dram); 2]);
    assert_eq!(block_on(engine.stats()).gauges.leases, 0);
}

/// Aim: a client that takes little in a frame gets all in several. Method: values of 4096 bytes at
/// most, and many short blocks.
#[test]
fn locate_keeps_to_the_limits_of_its_client() {
    let (_engine, server) = start();
    let mut modest = hello(None);
    modest.limits = FrameLimits {
        body_len_max: 4096,
        values_len_max: 4096,
    };
    let mut client = PlainClient::connect_as(server.address(), &modest, "m");
    let names: Vec<String> = (0..100).map(|place| format!("{place}")).collect();
    let bytes = value(3, 3000);
    for name in &names {
        client.put(&[(name.as_bytes(), &bytes)], Options::NONE);
    }
    let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let (found, values, frames) = locate(&mut client, &keys);
    assert_eq!((found.len(), frames), (100, 100));
    assert!(values.chunks(3000).all(|value| value == bytes));
    assert!(found.iter().all(|one| one.inline_len == 3000));
}
