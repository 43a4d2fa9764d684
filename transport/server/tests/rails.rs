//! One-sided reads: over RDMA where there is a device, as in the virtual machines of
//! `cargo xtask rdma`, else over TCP.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test measures from outside")]
#![expect(clippy::print_stdout, reason = "what was counted is of interest too")]

#[expect(dead_code, reason = "not every test program uses all of it")]
mod plain;
mod served;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plain::{PlainClient, hello, value};
use served::{engine, start_with};
use terrace_engine::{Engine, block_on};
use terrace_fabric::transfer::{
    Access, BatchOptions, EngineConfig, LocalPart, Memory, Peer, Region, RegionId, RemotePart,
    RemoteRegion, Request, Status, Ticket, TransferEngine, Transport,
};
use terrace_fabric::verbs::{RdmaConfig, RdmaTransport};
use terrace_server::{OneSidedConfig, OneSidedReach, Server, ServerConfig};
use terrace_wire::{
    Descriptor, ErrorCode, Features, Flags, KeyStatus, LeaseId, Options, Reach, Reply, RequestHead,
    Verb, rails, request,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const NAMESPACE: &str = "m";
const HANG: Duration = Duration::from_secs(60);
const STAGED: OneSidedReach = OneSidedReach::Staged {
    client_len: 8 << 20,
    clients_max: 2,
};

fn rdma() -> Option<Arc<RdmaTransport>> {
    RdmaTransport::open(&RdmaConfig::default()).ok()
}

fn one_sided(reach: OneSidedReach) -> OneSidedConfig {
    OneSidedConfig {
        reach,
        hosts: vec!["127.0.0.1".parse().unwrap()],
        rdma: rdma().map(|_| RdmaConfig::default()),
        skip_fence: false,
    }
}

fn start(one_sided: OneSidedConfig, dram_mib: u64) -> (Engine, Server) {
    let config = ServerConfig {
        one_sided: Some(one_sided),
        ..ServerConfig::default()
    };
    start_with(engine(dram_mib, 1), config)
}

/// The end that reads.
struct Reader {
    client: PlainClient,
    peer: Peer,
    remote: Arc<RemoteRegion>,
    local: Arc<Region>,
    engine: TransferEngine,
    reach: Reach,
}

/// Asks for rails; what the node says, and where.
fn ask(client: &mut PlainClient) -> Result<(rails::RailsTerms, Vec<SocketAddr>), ErrorCode> {
    let id = client.session.next_id();
    let mut out = [0; 256];
    let len = rails::encode_wanted(id, &[0; 16], [], &mut out).unwrap();
    client.begin(Verb::Rails, &out[..len], 0, 0);
    let frame = client.frame();
    match frame.reply() {
        Reply::Rails(found) => {
            let at = |host: &str, port| SocketAddr::new(host.parse().unwrap(), port);
            let endpoints = found.endpoints.iter().map(|of| at(of.host, of.port));
            Ok((found.terms, endpoints.collect()))
        }
        Reply::Error(error) => Err(error.code),
        other => panic!("{other:?}"),
    }
}

impl Reader {
    fn connect(address: SocketAddr, client_id: u8) -> Self {
        let mut hello = hello(None);
        hello.client_id = [client_id; 16];
        let client = PlainClient::connect_as(address, &hello, NAMESPACE);
        assert!(client.terms.features.has(Features::ONE_SIDED));
        let transports = rdma().map(|rdma| rdma as Arc<dyn Transport>);
        let config = EngineConfig {
            lost_timeout: Duration::from_millis(20),
            ..EngineConfig::default()
        };
        let engine = TransferEngine::start_with(config, transports.into_iter().collect()).unwrap();
        let local = Memory::host(4 << 20).unwrap();
        let local = engine.register(local, Access::Local).unwrap();
        Self::with(client, engine, local)
    }

    fn with(mut client: PlainClient, engine: TransferEngine, local: Arc<Region>) -> Self {
        let (terms, addresses) = ask(&mut client).unwrap();
        let ticket = Ticket::from_bytes(terms.ticket);
        let peer = engine.open_as(&addresses, &ticket).unwrap();
        let id = RegionId {
            slot: terms.slot,
            epoch: terms.epoch,
        };
        Self {
            remote: peer.region(id).unwrap(),
            reach: terms.reach,
            client,
            peer,
            local,
            engine,
        }
    }

    /// The same with new rails.
    fn renewed(self) -> Self {
        let Self {
            client,
            peer,
            local,
            engine,
            ..
        } = self;
        drop(peer);
        Self::with(client, engine, local)
    }

    fn locate(&mut self, key: &[u8], lease: Duration) -> Result<Descriptor, ErrorCode> {
        let told = RequestHead {
            argument: lease.as_millis() as u32,
            ..RequestHead::default()
        };
        self.client.begin_keys(Verb::Locate, &[key], &told);
        let frame = self.client.frame();
        match frame.reply() {
            Reply::Descriptors(_, records) => Ok(records.iter().next().unwrap()),
            Reply::Error(error) => Err(error.code),
            other => panic!("{other:?}"),
        }
    }

    /// Reads what a descriptor names, and compares it with its checksum.
    fn read(&self, key: &[u8], descriptor: &Descriptor) -> Status {
        let len = descriptor.lease.block_len;
        let local = LocalPart {
            region: Arc::clone(&self.local),
            offset: 0,
            len: len.into(),
        };
        let remote = RemotePart {
            region: Arc::clone(&self.remote),
            offset: descriptor.address,
            len: len.into(),
        };
        let hash = terrace_types::KeyHash::of_named(NAMESPACE, key);
        let seed = xxh3_64_with_seed(&u64::from(len).to_le_bytes(), hash.0);
        let read = Request::read(local, remote).expecting(seed, descriptor.checksum.0);
        let options = BatchOptions {
            timeout: Duration::from_secs(5),
            ..BatchOptions::default()
        };
        let mut transfer = self.peer.submit(&[read], options).unwrap();
        transfer.wait(HANG).unwrap()[0]
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.local.memory().read_at(0, &mut bytes));
        bytes
    }

    fn release(&mut self, lease: LeaseId) -> KeyStatus {
        let mut out = [0; 256];
        let id = self.client.session.next_id();
        let told = RequestHead::default();
        let len = request::encode(Verb::Release, id, &told, [lease], &mut out).unwrap();
        self.client.begin(Verb::Release, &out[..len], 0, 1);
        self.client.statuses()[0]
    }
}

fn is_hit(status: KeyStatus) -> bool {
    matches!(status, KeyStatus::Hit(_))
}

/// Aim: leased blocks are read without the node's shards, again and again, whatever their length.
/// Method: blocks of many lengths, read 20 times each, with the node's counter of requests beside.
fn blocks_are_read_without_a_request(reach: OneSidedReach, wanted: Reach) {
    let (engine, server) = start(one_sided(reach), 64);
    let mut reader = Reader::connect(server.address(), 1);
    assert_eq!(reader.reach, wanted);
    let counters = || block_on(server.observer().counters());
    for len in [4097, 65_536, 1 << 20, (4 << 20) - 1] {
        let (key, bytes) = (format!("block {len}"), value(len as u64, len));
        reader
            .client
            .put(&[(key.as_bytes(), &bytes)], Options::NONE);
        let descriptor = reader.locate(key.as_bytes(), HANG).unwrap();
        assert!(is_hit(descriptor.lease.status), "{:?}", descriptor.lease);
        let before = counters();
        for _ in 0..20 {
            assert_eq!(reader.read(key.as_bytes(), &descriptor), Status::Done);
            assert!(reader.bytes(len) == bytes);
        }
        let after = counters();
        assert_eq!(after.requests, before.requests);
        assert_eq!(after.bytes_sent, before.bytes_sent);
        assert!(is_hit(reader.release(descriptor.lease.id)));
    }
    assert_eq!(block_on(engine.stats()).gauges.leases, 0);
}

#[test]
fn blocks_are_read_in_place_without_a_request() {
    blocks_are_read_without_a_request(OneSidedReach::Arena, Reach::Arena);
}

#[test]
fn blocks_are_read_from_copies_without_a_request() {
    blocks_are_read_without_a_request(STAGED, Reach::Staged);
}

/// Aim: a client reaches no more than it may. Method: what one client was granted is tried by
/// another one, and by nobody in particular.
#[test]
fn client_reaches_its_own_copies_and_nothing_else() {
    let (_engine, server) = start(one_sided(STAGED), 64);
    let mut one = Reader::connect(server.address(), 1);
    let mut two = Reader::connect(server.address(), 2);
    one.client.put(&[(b"k", &value(1, 100_000))], Options::NONE);
    let descriptor = one.locate(b"k", HANG).unwrap();
    assert_eq!(one.read(b"k", &descriptor), Status::Done);
    // The other one has nothing there: bytes it never was given are none of the block.
    assert_eq!(two.read(b"k", &descriptor), Status::ChecksumMismatch);
    assert!(
        two.peer.regions().len() == 1,
        "it knows its own region only"
    );
    let (terms, addresses) = ask(&mut one.client).unwrap();
    let (other, _) = ask(&mut two.client).unwrap();
    assert_ne!(terms.ticket, other.ticket);
    assert!(one.engine.open(&addresses).is_err(), "without a ticket");
    let other = Ticket::from_bytes(other.ticket);
    assert!(
        one.engine.open_as(&addresses, &other).is_err(),
        "with another's"
    );
    // A region that is forged is refused, and the block is read all the same afterwards.
    let forged = RemoteRegion {
        id: RegionId {
            epoch: one.remote.id.epoch ^ 1,
            ..one.remote.id
        },
        ..(*one.remote).clone()
    };
    let real = std::mem::replace(&mut one.remote, Arc::new(forged));
    if rdma().is_none() {
        assert_eq!(one.read(b"k", &descriptor), Status::StaleRegion);
    }
    one.remote = real;
    assert_eq!(one.read(b"k", &descriptor), Status::Done);
    // There is memory for two; who leaves makes room for a third.
    let mut third = hello(None);
    third.client_id = [3; 16];
    let mut third = PlainClient::connect_as(server.address(), &third, NAMESPACE);
    assert_eq!(ask(&mut third).unwrap_err(), ErrorCode::NoRails);
    assert!(third.get(&[b"k"])[0].is_some(), "by get it is read");
    drop(two);
    let begun = Instant::now();
    while ask(&mut third).is_err() {
        assert!(begun.elapsed() < HANG);
    }
}

/// Aim: a lease that ends without a release costs its client the rails, and nobody wrong bytes.
/// Method: a reader that is late, one whose connection ends, and one that asks for new rails.
#[test]
fn late_client_is_sent_away_and_comes_back() {
    let (engine, server) = start(one_sided(OneSidedReach::Arena), 8);
    let mut reader = Reader::connect(server.address(), 1);
    let mut other = Reader::connect(server.address(), 2);
    let bytes = value(1, 1 << 20);
    reader.client.put(&[(b"k", &bytes)], Options::NONE);
    let kept = other.locate(b"k", HANG).unwrap();
    let late = reader.locate(b"k", Duration::from_millis(300)).unwrap();
    assert_eq!(reader.read(b"k", &late), Status::Done);
    let begun = Instant::now();
    while reader.read(b"k", &late) == Status::Done {
        assert!(begun.elapsed() < HANG, "it reads for ever");
    }
    assert_eq!(reader.locate(b"k", HANG).unwrap_err(), ErrorCode::NoRails);
    assert!(!is_hit(reader.release(late.lease.id)));
    // Its own fault is nobody else's.
    assert_eq!(other.read(b"k", &kept), Status::Done);
    let mut reader = reader.renewed();
    let again = reader.locate(b"k", HANG).unwrap();
    assert_eq!(reader.read(b"k", &again), Status::Done);
    assert!(reader.bytes(1 << 20) == bytes);
    // A connection that ends without a word.
    let (peer, remote, local) = (reader.peer, reader.remote, reader.local);
    drop(reader.client);
    while block_on(engine.stats()).gauges.leases > 1 {
        assert!(begun.elapsed() < HANG, "its lease stays");
    }
    let local = LocalPart {
        region: local,
        offset: 0,
        len: 100,
    };
    let remote = RemotePart {
        region: remote,
        offset: again.address,
        len: 100,
    };
    let options = BatchOptions {
        timeout: Duration::from_secs(1),
        ..BatchOptions::default()
    };
    let mut transfer = peer
        .submit(&[Request::read(local, remote)], options)
        .unwrap();
    assert_ne!(transfer.wait(HANG).unwrap(), [Status::Done]);
    assert_eq!(other.read(b"k", &kept), Status::Done);
}

/// Blocks of slow readers and of those who want their slots, of which there are 32.
const SLOW_LEN: usize = 64 << 10;

/// What slow readers found.
#[derive(Debug, Default)]
struct Found {
    right: u32,
    cut_off: u32,
    wrong: u32,
}

/// Readers that are late by random counts of puts, which want all slots there are.
fn slow_readers(skip_fence: bool, rounds: u32) -> Found {
    let config = OneSidedConfig {
        skip_fence,
        ..one_sided(OneSidedReach::Arena)
    };
    let (_engine, server) = start(config, 2);
    let (stop, puts) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut found = Found::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = PlainClient::connect(server.address(), None, "pressure");
            let bytes = value(7, SLOW_LEN);
            for number in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                writer.put(&[(&number.to_le_bytes(), &bytes)], Options::NONE);
                puts.store(number, Ordering::Relaxed);
            }
        });
        let mut reader = Reader::connect(server.address(), 1);
        let mut random = 0x5eed_u64;
        for round in 0..rounds {
            let (key, bytes) = (round.to_le_bytes(), value(round.into(), SLOW_LEN));
            reader.client.put(&[(&key, &bytes)], Options::NONE);
            // Every fourth is in time.
            let lease = if round % 4 == 0 {
                HANG
            } else {
                Duration::from_millis(1)
            };
            let descriptor = match reader.locate(&key, lease) {
                // The pressure was faster.
                Ok(descriptor) if !is_hit(descriptor.lease.status) => continue,
                Ok(descriptor) => descriptor,
                Err(code) => {
                    assert_eq!(code, ErrorCode::NoRails);
                    reader = reader.renewed();
                    continue;
                }
            };
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let until = puts.load(Ordering::Relaxed) + (random >> 33) % 100;
            while puts.load(Ordering::Relaxed) < until {
                std::thread::yield_now();
            }
            match reader.read(&key, &descriptor) {
                Status::Done => found.right += 1,
                Status::ChecksumMismatch => found.wrong += 1,
                _ => found.cut_off += 1,
            }
            reader.release(descriptor.lease.id);
        }
        stop.store(true, Ordering::Relaxed);
    });
    found
}

/// How many rounds; more by `TERRACE_RAILS_ROUNDS`.
fn rounds() -> u32 {
    let rounds = std::env::var("TERRACE_RAILS_ROUNDS").ok();
    rounds.map_or(200, |rounds| rounds.parse().unwrap())
}

/// Aim: no reader ever takes a slot for its block that has another one by now, by the fence alone.
/// Method: leases of 1 ms, and reads up to a hundred puts later, which want three times the slots there are; the checksum tells what the fence let through.
#[test]
fn slow_readers_get_no_wrong_bytes() {
    let found = slow_readers(false, rounds());
    println!("with the fence: {found:?}");
    assert_eq!(found.wrong, 0, "{found:?}");
    assert!(found.right > 0 && found.cut_off > 0, "{found:?}");
}

/// Aim: the test above can fail, and the checksum is a second line. Method: the same without the fence.
#[test]
fn slow_readers_without_the_fence_are_caught_by_the_checksum() {
    let found = slow_readers(true, 4 * rounds());
    println!("without the fence: {found:?}");
    assert!(found.wrong > 0, "{found:?}");
}

/// Aim: what cannot be is refused at once, by name.
#[test]
fn rails_that_cannot_be_are_refused_by_name() {
    type Break = fn(&mut OneSidedConfig);
    let cases: [(&str, Break); 4] = [
        ("addresses for rails is 0", |config| config.hosts.clear()),
        ("bytes for copies of a client is 5", |config| {
            config.reach = OneSidedReach::Staged {
                client_len: 5,
                clients_max: 1,
            };
        }),
        ("clients with copies is 0", |config| {
            config.reach = OneSidedReach::Staged {
                client_len: 1 << 20,
                clients_max: 0,
            };
        }),
        ("RDMA: ", |config| {
            config.rdma = Some(RdmaConfig {
                devices: vec!["nothere0".to_owned()],
                ..RdmaConfig::default()
            });
        }),
    ];
    for (expected, wrong) in cases {
        let mut one_sided = one_sided(STAGED);
        wrong(&mut one_sided);
        let engine = Engine::open(engine(8, 1)).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let config = ServerConfig {
            one_sided: Some(one_sided),
            ..ServerConfig::default()
        };
        let error = Server::start(&engine, listener, config)
            .map(drop)
            .unwrap_err();
        let said = error.to_string();
        assert!(said.contains(expected), "{said}");
    }
    // Without rails the feature is not in force, and the verb refused.
    let (_engine, server) = start_with(engine(8, 1), ServerConfig::default());
    let mut client = PlainClient::connect(server.address(), None, NAMESPACE);
    assert!(!client.terms.features.has(Features::ONE_SIDED));
    client.put(&[(b"k", &value(1, 5000))], Options::NONE);
    let told = RequestHead {
        argument: 1000,
        ..RequestHead::default()
    };
    client.begin_keys(Verb::Locate, &[b"k"], &told);
    let frame = client.frame();
    assert!(!frame.head.flags.has(Flags::MORE));
    let Reply::Descriptors(_, records) = frame.reply() else {
        panic!("{:?}", frame.reply());
    };
    assert_eq!(records.iter().next().unwrap().address, 0);
}
