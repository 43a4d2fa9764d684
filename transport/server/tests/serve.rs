//! A server over a real engine, and plain sockets as its clients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod plain;

use std::net::TcpListener;

use plain::{PlainClient, value};
use terrace_engine::{Engine, EngineConfig, HugepageMode, Tier};
use terrace_server::{Server, ServerConfig};
use terrace_types::{Hint, KeyHash};
use terrace_wire::{GetEntry, KeyStatus, Options, Verb};

const STORED: KeyStatus = KeyStatus::Stored { durable: false };

fn start_with(engine: EngineConfig, config: ServerConfig) -> (Engine, Server) {
    let engine = Engine::open(engine).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(&engine, listener, config).unwrap();
    (engine, server)
}

fn engine(dram_mib: u64, shards: usize) -> EngineConfig {
    EngineConfig {
        dram_bytes: dram_mib << 20,
        shards,
        hugepages: HugepageMode::Off,
        ..EngineConfig::default()
    }
}

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
