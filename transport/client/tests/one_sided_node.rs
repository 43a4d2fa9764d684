//! Aim: one-sided gets and pulled puts come to what the others do, at a node of this process with
//! an engine. Method: both of its reaches, over RDMA where there is a device, else over rails of TCP.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::time::Duration;

use terrace_client::blocking::{Client, Namespace};
use terrace_client::{
    CallOptions, Cause, ClientConfig, OneSided, OneSidedOptions, Region, RegisteredRegion,
};
use terrace_engine::{Engine, EngineConfig, HugepageMode};
use terrace_fabric::verbs::{RdmaConfig, RdmaTransport};
use terrace_server::{OneSidedConfig, OneSidedReach, Server, ServerConfig};
use terrace_types::{Lookup, PutOutcome};

const STAGED: OneSidedReach = OneSidedReach::Staged {
    client_len: 8 << 20,
    clients_max: 2,
};
const LEN: usize = 300_000;
const COUNT: usize = 60;

/// A node, and a client of it.
struct Pair {
    blocks: Namespace,
    client: Client,
    _server: Server,
    _engine: Engine,
}

impl Pair {
    fn start(reach: OneSidedReach) -> Self {
        let engine = Engine::open(EngineConfig {
            dram_bytes: 64 << 20,
            shards: 2,
            hugepages: HugepageMode::Off,
            ..EngineConfig::default()
        })
        .unwrap();
        let one_sided = OneSidedConfig {
            reach,
            hosts: vec!["127.0.0.1".parse().unwrap()],
            rdma: RdmaTransport::open(&RdmaConfig::default())
                .is_ok()
                .then(RdmaConfig::default),
            skip_fence: false,
        };
        let config = ServerConfig {
            one_sided: Some(one_sided),
            ..ServerConfig::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::start(&engine, listener, config).unwrap();
        let options = OneSidedOptions {
            devices: Vec::new(),
            listen: Some("127.0.0.1".parse().unwrap()),
        };
        let config = ClientConfig::new(&server.address().to_string());
        let client = Client::connect(config.one_sided(OneSided::Auto(options))).unwrap();
        Self {
            blocks: client.namespace("m").unwrap(),
            client,
            _server: server,
            _engine: engine,
        }
    }

    fn region(&self, len: usize) -> Region {
        let memory = RegisteredRegion::allocate(len).unwrap();
        self.client.register(&memory).unwrap()
    }
}

fn value(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| ((at * (seed + 3)) >> 3) as u8).collect()
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.memory().copy_to(&mut bytes);
    bytes
}

#[test]
fn blocks_are_pulled_and_read_one_sided() {
    for reach in [OneSidedReach::Arena, STAGED] {
        let pair = Pair::start(reach);
        let plain = CallOptions::default();
        let all = pair.region(COUNT * LEN);
        let parts: Vec<_> = (0..COUNT)
            .map(|at| all.slice(at * LEN..(at + 1) * LEN).unwrap())
            .collect();
        let keys: Vec<String> = (0..COUNT).map(|at| format!("key {at}")).collect();
        let pairs: Vec<_> = keys.iter().map(String::as_bytes).zip(&parts).collect();
        for (at, part) in parts.iter().enumerate() {
            part.memory().copy_from(&value(at));
        }
        for put in pair.blocks.put_regions_from(&pairs, &plain) {
            assert!(matches!(put.unwrap(), PutOutcome::Stored { .. }));
        }
        for rounds in 1..4 {
            all.memory().copy_from(&vec![0; COUNT * LEN]);
            for found in pair.blocks.get_regions_into(&pairs, &plain) {
                let Lookup::Hit { value: part, .. } = found.unwrap() else {
                    panic!("a block is missing");
                };
                assert_eq!((part.len, part.block_len), (LEN, LEN as u64));
            }
            for (at, part) in parts.iter().enumerate() {
                assert!(bytes_of(part) == value(at), "{reach:?}: {at}");
            }
            let stats = pair.client.stats();
            let fault = pair.client.one_sided_fault();
            assert_eq!(stats.one_sided_gets as usize, rounds * COUNT, "{fault:?}");
        }
        let stats = pair.client.stats();
        let fault = pair.client.one_sided_fault();
        assert_eq!((stats.rails, stats.rails_lost), (2, 0), "{fault:?}");
        assert_eq!(
            stats.pulled_puts as usize + stats.one_sided_fallbacks as usize,
            COUNT,
            "{fault:?}"
        );
        let found = pair.blocks.get(b"key 7", &plain).unwrap();
        assert!(matches!(found, Lookup::Hit { value: found, .. } if found == value(7)));
    }
}

/// A lease that is left to its time costs the client its rails, and it finds new ones.
#[test]
fn client_whose_lease_ended_is_fenced_and_comes_back() {
    for reach in [OneSidedReach::Arena, STAGED] {
        let pair = Pair::start(reach);
        let plain = CallOptions::default();
        let target = pair.region(LEN);
        target.memory().copy_from(&value(1));
        let put = pair.blocks.put_from_region(b"a", &target, &plain);
        assert!(matches!(put.unwrap(), PutOutcome::Stored { .. }));
        let found = pair
            .blocks
            .locate(&[b"a"], Duration::from_millis(50), &plain);
        let Ok(Lookup::Hit { value: located, .. }) = &found[0] else {
            panic!("{found:?}");
        };
        // Until it is over, or was read for the last time.
        let error = loop {
            if let Err(error) = pair.blocks.read_located(located, &target, &plain) {
                break error;
            }
        };
        assert!(
            matches!(error.cause(), Cause::LeaseEnded | Cause::OneSided { .. }),
            "{error}"
        );
        // The fence goes up some time after the lease; whatever is read is right.
        while pair.client.stats().rails_lost == 0 {
            target.memory().copy_from(&[0; LEN]);
            let got = pair.blocks.get_into_region(b"a", &target, &plain);
            assert!(got.unwrap().is_hit());
            assert!(bytes_of(&target) == value(1));
        }
        let before = pair.client.stats().one_sided_gets;
        let got = pair.blocks.get_into_region(b"a", &target, &plain);
        assert!(got.unwrap().is_hit() && bytes_of(&target) == value(1));
        let fault = pair.client.one_sided_fault();
        assert_eq!(pair.client.stats().one_sided_gets, before + 1, "{fault:?}");
    }
}
