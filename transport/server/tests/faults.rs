//! Clients that break rules, go away, or do not read: nothing is kept, and others do not notice.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod plain;
mod served;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use plain::{PlainClient, hello, read_frame, value};
use served::engine;
use terrace_engine::{Engine, block_on};
use terrace_server::{Server, ServerConfig};
use terrace_types::{Checksum, Hint};
use terrace_wire::{
    ErrorCode, Facts, Features, GetEntry, KeyStatus, ListRequest, Options, PutEntry, PutPart,
    Reply, RequestHead, StreamEnd, Verb, request,
};

const STORED: KeyStatus = KeyStatus::Stored { durable: false };

fn start_with(config: ServerConfig) -> (Engine, Server) {
    served::start_with(engine(128, 1), config)
}

fn start() -> (Engine, Server) {
    start_with(ServerConfig::default())
}

/// Waits until `holds` is true; other threads get their turns meanwhile.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000_000 {
        if holds() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{what} did not come to be");
}

/// The error by which a node answers a connection that sent `bytes`.
fn last_words(server: &Server, greeting: bool, bytes: &[u8]) -> Option<ErrorCode> {
    let mut socket = if greeting {
        PlainClient::connect(server.address(), None, "m").socket
    } else {
        TcpStream::connect(server.address()).unwrap()
    };
    socket.write_all(bytes).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut code = None;
    while let Some(frame) = read_frame(&mut socket) {
        if let Reply::Error(error) = frame.reply() {
            code = Some(error.code);
        }
    }
    code
}

fn ping(id: u64) -> Vec<u8> {
    let mut out = vec![0; 64];
    let len = request::encode_ping(id, &mut out).unwrap();
    out.truncate(len);
    out
}

/// `frame` with a byte changed, and its head's checksum as it was.
fn flipped(frame: &[u8], at: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] ^= 1;
    frame
}

//= docs/wire-protocol.md#WP-1
//= docs/wire-protocol.md#WP-2
//= docs/wire-protocol.md#WP-7
//= docs/wire-protocol.md#WP-8
//= docs/wire-protocol.md#WP-9
#[test]
fn broken_frames_end_their_connection_with_the_error_of_their_rule() {
    let (_engine, server) = start();
    let mut out = vec![0; 8192];
    let keys = [terrace_wire::KeyEntry::plain(b"key")];
    let told = RequestHead::default();
    let len = request::encode(Verb::Exists, 2, &told, keys, &mut out).unwrap();
    let exists = out[..len].to_vec();
    let len = hello(None).encode(&mut out).unwrap();
    let greeting = out[..len].to_vec();
    let mut old = hello(None);
    (old.version_low, old.version_high) = (2, 9);
    let len = old.encode(&mut out).unwrap();
    let newer = out[..len].to_vec();
    let malformed = Some(ErrorCode::MalformedFrame);
    let cases: [(&str, bool, Vec<u8>, Option<ErrorCode>); 11] = [
        (
            "not ours",
            false,
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            malformed,
        ),
        ("short and not ours", false, b"x".to_vec(), malformed),
        ("flag flipped", true, flipped(&exists, 6), malformed),
        ("length flipped", true, flipped(&exists, 16), malformed),
        ("body flipped", true, flipped(&exists, 40), malformed),
        (
            "request first",
            false,
            exists.clone(),
            Some(ErrorCode::HelloExpected),
        ),
        (
            "hello again",
            true,
            greeting.clone(),
            Some(ErrorCode::HelloExpected),
        ),
        ("no common version", false, newer, Some(ErrorCode::Version)),
        ("id again", true, ping(1), Some(ErrorCode::RequestId)),
        ("cut off head", true, exists[..20].to_vec(), None),
        ("cut off body", true, exists[..50].to_vec(), None),
    ];
    for (what, greets, bytes, code) in cases {
        assert_eq!(last_words(&server, greets, &bytes), code, "{what}");
    }
    let mut client = PlainClient::connect(server.address(), None, "m");
    assert_eq!(client.put(&[(b"k", b"value")], Options::NONE), [STORED]);
}

/// Aim: what is wrong with one request ends that request only.
//= docs/wire-protocol.md#WP-5
//= docs/wire-protocol.md#WP-6
#[test]
fn wrong_requests_are_answered_and_the_connection_goes_on() {
    let (_engine, server) = start();
    let mut modest = hello(None);
    // All but events.
    modest.features.0 &= !Features::EVENTS.0;
    let mut client = PlainClient::connect_as(server.address(), &modest, "m");
    let refused = |client: &mut PlainClient, frame: &[u8], rest: &[u8]| {
        client.socket.write_all(frame).unwrap();
        client.socket.write_all(rest).unwrap();
        let frame = read_frame(&mut client.socket).unwrap();
        let Reply::Error(error) = frame.reply() else {
            panic!("no error but {:?}", frame.reply());
        };
        error.code
    };
    let mut out = vec![0; 8192];
    let entries = [PutEntry {
        key: b"k",
        hint: Hint::default(),
        len: 5,
        checksum: Checksum(0),
    }];
    let strange = RequestHead {
        namespace: terrace_wire::NamespaceNumber(9),
        ..RequestHead::default()
    };
    let len = request::encode(Verb::Put, 2, &strange, entries, &mut out).unwrap();
    let code = refused(&mut client, &out[..len], b"value");
    assert_eq!(code, ErrorCode::NamespaceNumber);
    // An unknown verb: its body and values are passed over.
    let mut unknown = out[..len].to_vec();
    unknown[5] = 200;
    unknown[8] = 3;
    let checksum = xxhash_rust::xxh3::xxh3_64(&unknown[..28]) as u32;
    unknown[28..32].copy_from_slice(&checksum.to_le_bytes());
    let code = refused(&mut client, &unknown, b"value");
    assert_eq!(code, ErrorCode::UnknownVerb);
    // Options that the verb does not have are at byte 24 of the request head.
    let keys = [terrace_wire::KeyEntry::plain(b"key")];
    let told = RequestHead::default();
    let len = request::encode(Verb::Exists, 4, &told, keys, &mut out).unwrap();
    let mut strange = out[..len].to_vec();
    strange[32 + 24] = 4;
    let checksum = xxhash_rust::xxh3::xxh3_64(&strange[32..]) as u32;
    strange[24..28].copy_from_slice(&checksum.to_le_bytes());
    let checksum = xxhash_rust::xxh3::xxh3_64(&strange[..28]) as u32;
    strange[28..32].copy_from_slice(&checksum.to_le_bytes());
    let code = refused(&mut client, &strange, b"");
    assert_eq!(code, ErrorCode::UnknownOption);
    let part = PutPart {
        begun: 77,
        offset: 0,
    };
    let len = part.encode(5, 5, &mut out).unwrap();
    let code = refused(&mut client, &out[..len], b"value");
    assert_eq!(code, ErrorCode::NoSuchPut);
    let len = request::encode_events(6, &RequestHead::default(), 1, &mut out).unwrap();
    let code = refused(&mut client, &out[..len], b"");
    assert_eq!(code, ErrorCode::FeatureNotInForce);
    client.socket.write_all(&ping(7)).unwrap();
    let frame = read_frame(&mut client.socket).unwrap();
    assert!(matches!(frame.reply(), Reply::Pong(_)));
}

#[test]
fn token_is_asked_for() {
    let token = b"a secret of some length".to_vec();
    let (_engine, server) = start_with(ServerConfig {
        token: Some(token.clone()),
        ..ServerConfig::default()
    });
    let mut out = vec![0; 4096];
    for wrong in [
        &b""[..],
        b"a secret of some lengtH",
        b"a secret of some length and more",
    ] {
        let mut greeting = hello(None);
        greeting.token = wrong;
        let len = greeting.encode(&mut out).unwrap();
        let code = last_words(&server, false, &out[..len]);
        assert_eq!(code, Some(ErrorCode::NotAuthenticated));
    }
    let mut greeting = hello(None);
    greeting.token = &token;
    PlainClient::connect_as(server.address(), &greeting, "m");
}

/// Aim: a client that vanishes gives back what it held. Method: connections cut in the middle of a
/// value, of a streamed put, and of a reply that nobody reads; then the gauges.
#[test]
fn clients_that_vanish_leave_no_slots_and_no_pins() {
    let (engine, server) = start();
    let bytes = value(1, 4 << 20);
    let mut first = PlainClient::connect(server.address(), None, "m");
    assert_eq!((first.terms.shard, first.terms.shards), (0, 1));
    assert_eq!(first.put(&[(b"k", &bytes)], Options::NONE), [STORED]);
    for round in 0..8 {
        let mut client = PlainClient::connect(server.address(), None, "m");
        let key = format!("half {round}");
        client.begin_put(Verb::Put, &[(key.as_bytes(), &bytes)], Options::NONE);
        client.socket.write_all(&bytes[..3_000_000]).unwrap();
        drop(client);
        let mut client = PlainClient::connect(server.address(), None, "m");
        client.begin_put(Verb::PutBegin, &[(key.as_bytes(), &bytes)], Options::NONE);
        assert_eq!(client.statuses(), [KeyStatus::Granted]);
        drop(client);
        let mut client = PlainClient::connect(server.address(), None, "m");
        let entry = GetEntry::whole(b"k", Hint::default());
        (0..8).for_each(|_| {
            client.begin_get(&[entry]);
        });
        let mut some = [0; 100];
        client.socket.read_exact(&mut some).unwrap();
        drop(client);
    }
    until("the slots' return", || {
        let gauges = block_on(engine.stats()).gauges;
        gauges.writers == 0 && gauges.pinned_bytes == 0
    });
    assert!(block_on(engine.check()));
    assert_eq!(first.get(&[b"k"]), [Some(bytes)]);
    let observer = server.observer();
    until("one connection left", || {
        block_on(observer.counters()).connections == 1
    });
}

/// Aim: a client that does not read stalls nobody and is closed. Method: one asks for much and reads
/// nothing, another goes on; then the counter of closed ones.
#[test]
fn client_that_does_not_read_stalls_nobody() {
    let (engine, server) = start_with(ServerConfig {
        stall_max: Duration::from_millis(300),
        ..ServerConfig::default()
    });
    let bytes = value(1, 8 << 20);
    let mut client = PlainClient::connect(server.address(), None, "m");
    assert_eq!(client.put(&[(b"k", &bytes)], Options::NONE), [STORED]);
    let mut slow = PlainClient::connect(server.address(), None, "m");
    let entry = GetEntry::whole(b"k", Hint::default());
    (0..16).for_each(|_| {
        slow.begin_get(&[entry]);
    });
    let observer = server.observer();
    until("the slow one's end", || {
        assert_eq!(client.get(&[b"k"]), [Some(bytes.clone())]);
        block_on(observer.counters()).closed_slow == 1
    });
    until("its pins' return", || {
        block_on(engine.stats()).gauges.pinned_bytes == 0
    });
}

/// Aim: replies that nobody reads are bounded, also those without blocks. Method: a client asks for
/// lists, each far longer than its request, and reads none; the node stops to take its requests.
#[test]
fn client_that_does_not_read_its_lists_is_not_listened_to() {
    let (_engine, server) = start_with(ServerConfig {
        stall_max: Duration::from_secs(2),
        ..ServerConfig::default()
    });
    let mut client = PlainClient::connect(server.address(), None, "m");
    for number in 0..128_u16 {
        let key = [number as u8 + 1; 512];
        assert_eq!(client.put(&[(&key, b"value")], Options::NONE), [STORED]);
    }
    let observer = server.observer();
    let before = block_on(observer.counters()).requests;
    let mut out = vec![0; 4096];
    let list = ListRequest {
        cursor: 0,
        prefix: b"",
    };
    let first = client.session.next_id();
    for id in (first..).step_by(2).take(8192) {
        let told = RequestHead::default();
        let len = request::encode_list(id, &told, &list, &mut out).unwrap();
        if client.socket.write_all(&out[..len]).is_err() {
            break;
        }
    }
    until("its end", || block_on(observer.counters()).closed_slow == 1);
    // Of 65 KiB each: a window, the kernel's buffers, and what may be under way.
    let replies_max = (8 << 20) / (64 << 10) + (16 << 20) / (64 << 10) + 128;
    let taken = block_on(observer.counters()).requests - before;
    assert!(taken <= replies_max, "{taken} lists were answered");
}

/// Aim: the error that ends a connection arrives, also behind a reply that the client is slow to
/// read. Method: a get of more than the kernel's buffers take, then a broken frame, then reading.
#[test]
fn last_error_arrives_behind_what_waits() {
    let (_engine, server) = start();
    let bytes = value(1, (8 << 20) - 4096);
    let mut client = PlainClient::connect(server.address(), None, "m");
    assert_eq!(client.put(&[(b"k", &bytes)], Options::NONE), [STORED]);
    let observer = server.observer();
    client.begin_get(&[GetEntry::whole(b"k", Hint::default())]);
    client.socket.write_all(&[0; 64]).unwrap();
    until("the error", || {
        block_on(observer.counters()).closed_malformed == 1
    });
    let frame = read_frame(&mut client.socket).unwrap();
    assert!(frame.values == bytes);
    let frame = read_frame(&mut client.socket).expect("it is told why");
    assert!(
        matches!(frame.reply(), Reply::Error(error) if error.code == ErrorCode::MalformedFrame)
    );
}

#[test]
fn silent_and_stalled_connections_are_closed() {
    let (_engine, server) = start_with(ServerConfig {
        stall_max: Duration::from_millis(100),
        silence_max: Duration::from_millis(200),
        ..ServerConfig::default()
    });
    let mut mute = TcpStream::connect(server.address()).unwrap();
    let frame = read_frame(&mut mute).expect("it is told why");
    assert!(matches!(frame.reply(), Reply::Error(error) if error.code == ErrorCode::Silent));
    let mut idle = PlainClient::connect(server.address(), None, "m");
    let frame = read_frame(&mut idle.socket).expect("it is told why");
    assert!(matches!(frame.reply(), Reply::Goodbye(_)));
    let mut half = PlainClient::connect(server.address(), None, "m");
    half.begin_put(Verb::Put, &[(b"k", &[1; 4096])], Options::NONE);
    half.socket.write_all(&[1; 100]).unwrap();
    let frame = read_frame(&mut half.socket).expect("it is told why");
    assert!(matches!(frame.reply(), Reply::Error(error) if error.code == ErrorCode::Silent));
}

/// Aim: a client that sends too slowly holds no slot past its deadline, and goes on. Method: a put
/// with a short deadline whose value comes in two halves, the second when the slot is back.
//= docs/wire-protocol.md#WP-13
#[test]
fn put_that_comes_too_late_is_timed_out() {
    let (engine, server) = start();
    let mut client = PlainClient::connect(server.address(), None, "m");
    let bytes = value(1, 100_000);
    let entries = [PutEntry {
        key: b"k",
        hint: Hint::default(),
        len: bytes.len() as u32,
        checksum: client.checksum(b"k", &bytes),
    }];
    let told = RequestHead {
        deadline_ms: 50,
        ..RequestHead::default()
    };
    let mut out = vec![0; 4096];
    let id = client.session.next_id();
    let len = request::encode(Verb::Put, id, &told, entries, &mut out).unwrap();
    client.begin(Verb::Put, &out[..len], bytes.len() as u64, 1);
    client.socket.write_all(&bytes[..50_000]).unwrap();
    let mut sent = 50_000;
    until("the slot's return", || {
        if sent < 90_000 {
            client.socket.write_all(&bytes[sent..=sent]).unwrap();
            sent += 1;
        }
        block_on(engine.stats()).gauges.writers == 0
    });
    client.socket.write_all(&bytes[sent..]).unwrap();
    assert_eq!(client.statuses(), [KeyStatus::TimedOut]);
    assert_eq!(client.put(&[(b"k", &bytes)], Options::NONE), [STORED]);
}

/// Aim: bytes of no sense at a live port do no harm. Method: random bytes, and frames that are right
/// up to a random place, on many connections; then another client is served.
#[test]
fn random_bytes_do_no_harm() {
    let (engine, server) = start();
    let mut out = vec![0; 8192];
    let greeting = hello(None);
    let greeting_len = greeting.encode(&mut out).unwrap();
    let prefix = out[..greeting_len].to_vec();
    for seed in 0..200_u64 {
        let mut noise = value(seed, 1 + (seed as usize * 37) % 3000);
        if seed % 2 == 0 {
            let mut begun = prefix.clone();
            begun.append(&mut noise);
            noise = begun;
        }
        let mut socket = TcpStream::connect(server.address()).unwrap();
        let _ = socket.write_all(&noise);
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    }
    let mut client = PlainClient::connect(server.address(), None, "m");
    assert_eq!(client.put(&[(b"k", b"value")], Options::NONE), [STORED]);
    assert!(block_on(engine.check()));
}

#[test]
fn connections_are_bounded() {
    let (_engine, server) = start_with(ServerConfig {
        connections_max: 2,
        ..ServerConfig::default()
    });
    let first = PlainClient::connect(server.address(), None, "m");
    let _second = PlainClient::connect(server.address(), None, "m");
    let mut third = TcpStream::connect(server.address()).unwrap();
    let frame = read_frame(&mut third).unwrap();
    let Reply::Error(error) = frame.reply() else {
        panic!("no error but {:?}", frame.reply());
    };
    assert_eq!(
        (error.code, error.argument),
        (ErrorCode::TooManyConnections, 2)
    );
    drop(first);
    until("a free place", || {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        let mut out = [0; 256];
        let len = hello(None).encode(&mut out).unwrap();
        let _ = socket.write_all(&out[..len]);
        read_frame(&mut socket).is_some_and(|frame| matches!(frame.reply(), Reply::Hello(_)))
    });
}

/// Aim: a streamed put is readable after its commit, whole and verified, and not before.
//= docs/wire-protocol.md#WP-20
#[test]
fn streamed_puts_come_in_parts() {
    let (engine, server) = start();
    let mut client = PlainClient::connect(server.address(), None, "m");
    let bytes = value(5, 3_000_000);
    let mut out = vec![0; 4096];
    for (round, flip) in [(0, true), (1, false)] {
        let key = format!("s {round}");
        let begun = client.begin_put(Verb::PutBegin, &[(key.as_bytes(), &bytes)], Options::NONE);
        assert_eq!(client.statuses(), [KeyStatus::Granted]);
        let mut offset = 0;
        for piece in bytes.chunks(1_100_000) {
            let part = PutPart { begun, offset };
            let id = client.session.next_id();
            let len = part.encode(id, piece.len() as u32, &mut out).unwrap();
            client.begin(Verb::PutPart, &out[..len], piece.len() as u64, 1);
            client.socket.write_all(piece).unwrap();
            assert_eq!(client.statuses(), [KeyStatus::Granted]);
            offset += piece.len() as u32;
        }
        let there = client.of_keys(Verb::Exists, &[key.as_bytes()]);
        assert_eq!(there, [KeyStatus::Miss]);
        let mut checksum = client.checksum(key.as_bytes(), &bytes);
        checksum.0 ^= u64::from(flip);
        let end = StreamEnd { begun, checksum };
        let id = client.session.next_id();
        let len = end.encode_commit(id, &mut out).unwrap();
        client.begin(Verb::PutCommit, &out[..len], 0, 1);
        let expected = if flip {
            KeyStatus::Rejected(terrace_wire::Rejection::Checksum)
        } else {
            STORED
        };
        assert_eq!(client.statuses(), [expected]);
        let got = client.get(&[key.as_bytes()]);
        assert!(got == [(!flip).then(|| bytes.clone())]);
    }
    assert_eq!(block_on(engine.stats()).gauges.writers, 0);
}

/// Aim: a drain answers what is under way, tells clients, refuses what is new.
#[test]
fn drain_says_goodbye() {
    let (_engine, mut server) = start();
    let mut client = PlainClient::connect(server.address(), None, "m");
    assert_eq!(client.put(&[(b"k", b"value")], Options::NONE), [STORED]);
    let address = server.address();
    let report = server.drain(Duration::from_secs(5));
    assert_eq!(report.cut_off, 0);
    let frame = read_frame(&mut client.socket).unwrap();
    assert!(matches!(frame.reply(), Reply::Goodbye(_)));
    assert!(read_frame(&mut client.socket).is_none());
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
}

/// Aim: a drain says nothing to a client that has not said hello: it could not tell what it is.
#[test]
fn drain_closes_who_has_not_said_hello() {
    let (_engine, mut server) = start();
    let mut mute = TcpStream::connect(server.address()).unwrap();
    let observer = server.observer();
    until("the connection", || {
        block_on(observer.counters()).connections == 1
    });
    server.drain(Duration::from_secs(5));
    let mut said = Vec::new();
    let _ = mute.read_to_end(&mut said);
    assert_eq!(said, []);
}

#[test]
fn pins_keep_blocks_until_they_end() {
    let (engine, server) = start();
    let mut client = PlainClient::connect(server.address(), None, "m");
    assert_eq!(client.put(&[(b"k", &[1; 8192])], Options::NONE), [STORED]);
    let told = RequestHead {
        argument: 60_000,
        ..RequestHead::default()
    };
    client.begin_keys(Verb::Pin, &[b"k", b"x"], &told);
    let statuses = client.statuses();
    assert!(matches!(statuses[..], [KeyStatus::Hit(_), KeyStatus::Miss]));
    assert_eq!(block_on(engine.stats()).gauges.pinned_bytes, 8192);
    let facts = client.of_stat(&[b"k", b"x"]);
    assert_eq!(facts[0].bits, Facts::IN_DRAM | Facts::PINNED);
    assert_eq!(facts[0].checksum, client.checksum(b"k", &[1; 8192]));
    assert_eq!(facts[1].status, KeyStatus::Miss);
    let statuses = client.of_keys(Verb::Unpin, &[b"k", b"x"]);
    assert!(matches!(statuses[..], [KeyStatus::Hit(_), KeyStatus::Miss]));
    assert_eq!(block_on(engine.stats()).gauges.pinned_bytes, 0);
}
