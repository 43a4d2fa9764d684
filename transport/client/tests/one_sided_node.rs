//! Aim: one-sided gets and pulled puts come to what the others do, at a node with an engine, and
//! whoever dies in the midst of them costs nobody wrong bytes, and the node no memory. Method: both of
//! its reaches, over RDMA where there is a device, else over rails of TCP; what is killed is a process
//! that runs [`child`] of this program.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test measures from outside")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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

/// What a child process is to be, and where its node is.
const ROLE: &str = "TERRACE_TEST_ROLE";
const NODE: &str = "TERRACE_TEST_NODE";

/// Time after which a test fails.
const HANG: Duration = Duration::from_secs(60);

struct Node {
    server: Server,
    engine: Engine,
}

/// A node, and a client of it.
struct Pair {
    blocks: Namespace,
    client: Client,
    node: Node,
}

impl Node {
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
        Self { server, engine }
    }
}

/// A client with one-sided access.
fn connect(address: &str) -> (Client, Namespace) {
    let options = OneSidedOptions {
        devices: Vec::new(),
        listen: Some("127.0.0.1".parse().unwrap()),
    };
    let config = ClientConfig::new(address).one_sided(OneSided::Auto(options));
    let client = Client::connect(config).unwrap();
    let blocks = client.namespace("m").unwrap();
    (client, blocks)
}

fn region(client: &Client, len: usize) -> Region {
    let memory = RegisteredRegion::allocate(len).unwrap();
    client.register(&memory).unwrap()
}

impl Pair {
    fn start(reach: OneSidedReach) -> Self {
        let node = Node::start(reach);
        let (client, blocks) = connect(&node.server.address().to_string());
        Self {
            blocks,
            client,
            node,
        }
    }

    fn region(&self, len: usize) -> Region {
        region(&self.client, len)
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

/// A process of this program that is killed with this.
struct Process {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(role: &str, node: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .envs([(ROLE, role), (NODE, node)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// What the next line with this mark says behind it.
    fn line(&mut self, mark: &str) -> String {
        let lines = self.said.by_ref().lines().map(Result::unwrap);
        let mut found = lines.filter_map(|line| {
            let (_, rest) = line.split_once(mark)?;
            Some(rest.trim().to_owned())
        });
        found.next().expect("the process ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// What is done over and over until the process is killed.
#[test]
#[ignore = "a process of other tests"]
fn child() {
    let role = std::env::var(ROLE).unwrap();
    if role == "node" {
        let node = Node::start(STAGED);
        say(&format!("listens {}", node.server.address()));
        loop {
            std::thread::park();
        }
    }
    let (client, blocks) = connect(&std::env::var(NODE).unwrap());
    let plain = CallOptions::default();
    let all = region(&client, 8 * LEN);
    for round in 0.. {
        let parts = (0..8).map(|at| (at, all.slice(at * LEN..(at + 1) * LEN).unwrap()));
        let parts: Vec<_> = parts.collect();
        let seed_of = |at: usize| if role == "putter" { round * 8 + at } else { at };
        let named = parts.iter().map(|(at, part)| {
            if role == "putter" {
                part.memory().copy_from(&value(seed_of(*at)));
            }
            (format!("key {}", seed_of(*at)), part)
        });
        let named: Vec<_> = named.collect();
        let pairs: Vec<_> = named
            .iter()
            .map(|(key, part)| (key.as_bytes(), *part))
            .collect();
        if role == "putter" {
            blocks.put_regions_from(&pairs, &plain);
        } else {
            blocks.get_regions_into(&pairs, &plain);
        }
        let stats = client.stats();
        say(&format!(
            "moved {}",
            stats.pulled_puts + stats.one_sided_gets
        ));
    }
}

/// Waits until no client has anything of the node's memory.
fn wait_for_quiet(node: &Node) {
    let begun = Instant::now();
    loop {
        let gauges = terrace_engine::block_on(node.engine.stats()).gauges;
        if gauges.writers == 0 && gauges.leases == 0 && gauges.pinned_bytes == 0 {
            return;
        }
        assert!(begun.elapsed() < HANG, "{gauges:?}");
        std::thread::yield_now();
    }
}

#[test]
fn client_killed_in_a_put_or_a_get_costs_the_node_nothing() {
    for reach in [OneSidedReach::Arena, STAGED] {
        let pair = Pair::start(reach);
        let plain = CallOptions::default();
        let address = pair.node.server.address().to_string();
        let own = pair.region(LEN);
        for (turn, role) in (0..6).zip(["putter", "getter"].into_iter().cycle()) {
            let mut process = Process::start(role, &address);
            // At another place in each turn.
            let mut moved = 0;
            while moved < 20 + turn * 7 {
                moved = process.line("moved ").parse().unwrap();
            }
            drop(process);
            wait_for_quiet(&pair.node);
            // Whole and right, or not there.
            for seed in 0..64 {
                let key = format!("key {seed}");
                let found = pair.blocks.get_into_region(key.as_bytes(), &own, &plain);
                if found.unwrap().is_hit() {
                    assert!(bytes_of(&own) == value(seed), "{reach:?} {role}: {key}");
                }
            }
        }
        let fault = pair.client.one_sided_fault();
        assert_eq!(pair.client.stats().rails_lost, 0, "{fault:?}");
    }
}

#[test]
fn node_killed_in_a_get_is_an_error_in_time() {
    let mut node = Process::start("node", "");
    let (client, blocks) = connect(&node.line("listens "));
    let target = region(&client, 8 * LEN);
    let parts: Vec<_> = (0..8)
        .map(|at| target.slice(at * LEN..(at + 1) * LEN).unwrap())
        .collect();
    let keys: Vec<String> = (0..8).map(|at| format!("key {at}")).collect();
    let pairs: Vec<_> = keys.iter().map(String::as_bytes).zip(&parts).collect();
    for (at, part) in parts.iter().enumerate() {
        part.memory().copy_from(&value(at));
    }
    for put in blocks.put_regions_from(&pairs, &CallOptions::default()) {
        assert!(matches!(put.unwrap(), PutOutcome::Stored { .. }));
    }
    let span = Duration::from_secs(2);
    let mut killer = None;
    let mut rounds = 0;
    loop {
        let begun = Instant::now();
        let found = blocks.get_regions_into(&pairs, &CallOptions::within(span));
        // A read of a rail that stands still is given up a few seconds later.
        assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
        for (at, (found, part)) in found.iter().zip(&parts).enumerate() {
            if matches!(found, Ok(Lookup::Hit { .. })) {
                assert!(bytes_of(part) == value(at), "{at}");
            }
        }
        if let Some(error) = found.iter().find_map(|found| found.as_ref().err()) {
            assert!(killer.is_some(), "{error}");
            let is_named = matches!(
                error.cause(),
                Cause::Io { .. } | Cause::Unavailable { .. } | Cause::TimedOut { .. }
            );
            assert!(is_named, "{error}");
            break;
        }
        rounds += 1;
        if rounds == 3 {
            let id = node.child.id().to_string();
            let kill = Command::new("kill").args(["-9", &id]).spawn().unwrap();
            killer = Some(kill);
        }
    }
    assert!(client.stats().one_sided_gets >= 24);
    killer.unwrap().wait().unwrap();
}
