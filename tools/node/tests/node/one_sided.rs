//! Aim: one-sided gets and pulled puts come to what the others do, and whoever dies in the midst of them
//! costs nobody wrong bytes, and the node no memory. Method: both of the node's reaches, over RDMA where
//! there is a device, as in the virtual machines of `cargo xtask rdma`, else over rails of TCP; the clients
//! that are killed are processes that run [`child`] of this program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use terrace_client::blocking::{Client, Namespace};
use terrace_client::{
    CallOptions, Cause, ClientConfig, OneSided, OneSidedOptions, Region, RegisteredRegion,
};
use terrace_types::{Lookup, PutOutcome};

use crate::plain::value;
use crate::started::{Folder, Node, Process};

const REACHES: [&str; 2] = ["arena", "staged"];
const LEN: usize = 300_000;
const COUNT: usize = 60;

/// What a child process is to do, and where its node is.
const ROLE: &str = "ONE_SIDED_ROLE";
const NODE: &str = "ONE_SIDED_NODE";

/// Time after which a test fails.
const HANG: Duration = Duration::from_secs(60);

/// A node, and a client of it.
struct Pair {
    blocks: Namespace,
    client: Client,
    node: Node,
    _folder: Folder,
}

/// A client with one-sided access.
fn connect(address: SocketAddr) -> (Client, Namespace) {
    let options = OneSidedOptions {
        devices: Vec::new(),
        listen: Some("127.0.0.1".parse().unwrap()),
    };
    let config = ClientConfig::new(&address.to_string()).one_sided(OneSided::Auto(options));
    let client = Client::connect(config).unwrap();
    let blocks = client.namespace("m").unwrap();
    (client, blocks)
}

fn region(client: &Client, len: usize) -> Region {
    let memory = RegisteredRegion::allocate(len).unwrap();
    client.register(&memory).unwrap()
}

impl Pair {
    fn start(test: &str, reach: &str) -> Self {
        let folder = Folder::new(&format!("one-sided-{test}-{reach}"));
        let flags = ["--nvme", "0", "--one-sided", reach, "--staging", "8MiB"];
        let node = Node::start(&folder.0, &flags);
        let (client, blocks) = connect(node.address);
        Self {
            blocks,
            client,
            node,
            _folder: folder,
        }
    }

    fn region(&self, len: usize) -> Region {
        region(&self.client, len)
    }
}

fn block(seed: usize) -> Vec<u8> {
    value(seed as u64, LEN)
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.memory().copy_to(&mut bytes);
    bytes
}

#[test]
fn blocks_are_pulled_and_read_one_sided() {
    for reach in REACHES {
        let pair = Pair::start("moved", reach);
        let plain = CallOptions::default();
        let all = pair.region(COUNT * LEN);
        let parts: Vec<_> = (0..COUNT)
            .map(|at| all.slice(at * LEN..(at + 1) * LEN).unwrap())
            .collect();
        let keys: Vec<String> = (0..COUNT).map(|at| format!("key {at}")).collect();
        let pairs: Vec<_> = keys.iter().map(String::as_bytes).zip(&parts).collect();
        for (at, part) in parts.iter().enumerate() {
            part.memory().copy_from(&block(at));
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
                assert!(bytes_of(part) == block(at), "{reach}: {at}");
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
        assert!(matches!(found, Lookup::Hit { value: found, .. } if found == block(7)));
    }
}

/// Aim: blocks of any length are pulled, read and read again, the last without a request. Method: on
/// hugepages where there are enough.
#[test]
fn blocks_of_every_length_are_read_again_without_the_node() {
    let folder = Folder::new("one-sided-lengths");
    let flags = ["--nvme", "0", "--one-sided", "arena", "--dram", "300MiB"];
    let flags = [&flags[..], &["--shards", "1", "--hugepages", "prefer"]].concat();
    let node = Node::start(&folder.0, &flags);
    let (client, blocks) = connect(node.address);
    let plain = CallOptions::within(HANG);
    let target = region(&client, 128 << 20);
    for len in [
        1,
        100,
        4096,
        4097,
        65_536,
        1 << 20,
        (16 << 20) + 1,
        128 << 20,
    ] {
        let key = format!("{len} bytes");
        let part = target.slice(0..len).unwrap();
        let bytes = value(len as u64, len);
        part.memory().copy_from(&bytes);
        let put = blocks.put_from_region(key.as_bytes(), &part, &plain);
        assert!(matches!(put.unwrap(), PutOutcome::Stored { .. }), "{len}");
        part.memory().copy_from(&vec![0; len]);
        let got = blocks.get_into_region(key.as_bytes(), &part, &plain);
        assert!(got.unwrap().is_hit() && bytes_of(&part) == bytes, "{len}");
        let found = blocks.locate(&[key.as_bytes()], 2 * HANG, &plain);
        let Some(Ok(Lookup::Hit { value: located, .. })) = found.into_iter().next() else {
            panic!("{len}: no block");
        };
        let requests = node.metric("terrace_server_requests_total");
        for _ in 0..3 {
            part.memory().copy_from(&vec![0; len]);
            let read = blocks.read_located(&located, &part, &plain);
            assert_eq!(read.unwrap().len, len);
            assert!(bytes_of(&part) == bytes, "{len}");
        }
        assert_eq!(node.metric("terrace_server_requests_total"), requests);
        blocks.release(&[located], &plain);
    }
    let (stats, fault) = (client.stats(), client.one_sided_fault());
    // Short ones come with the answer.
    assert!(
        stats.pulled_puts >= 4 && stats.one_sided_gets >= 5,
        "{stats:?} {fault:?}"
    );
    // In an emulated machine the longest block takes longer than the lease of a get.
    assert!(stats.rails_lost <= 1 && stats.corrupt == 0, "{stats:?}");
}

/// A lease that is left to its time costs the client its rails, and it finds new ones.
#[test]
fn client_whose_lease_ended_is_fenced_and_comes_back() {
    for reach in REACHES {
        let pair = Pair::start("fenced", reach);
        let plain = CallOptions::default();
        let target = pair.region(LEN);
        target.memory().copy_from(&block(1));
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
            assert!(bytes_of(&target) == block(1));
        }
        let before = pair.client.stats().one_sided_gets;
        let got = pair.blocks.get_into_region(b"a", &target, &plain);
        assert!(got.unwrap().is_hit() && bytes_of(&target) == block(1));
        let fault = pair.client.one_sided_fault();
        assert_eq!(pair.client.stats().one_sided_gets, before + 1, "{fault:?}");
    }
}

/// A client that is a process of this program, and what it says.
struct Other {
    process: Process,
    said: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(role: &str, node: SocketAddr) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_sided::child", "--nocapture"])
            .envs([(ROLE, role), (NODE, &node.to_string())])
            .stdout(Stdio::piped())
            .spawn();
        let mut process = Process(child.unwrap());
        let said = BufReader::new(process.0.stdout.take().unwrap());
        Self { process, said }
    }

    /// Waits until it has moved so many blocks one-sided.
    fn until_moved(&mut self, count: u64) {
        let lines = self.said.by_ref().lines().map(Result::unwrap);
        let mut moved = lines.filter_map(|line| line.strip_prefix("moved ")?.parse::<u64>().ok());
        assert!(moved.any(|moved| moved >= count), "the process ended");
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// What a killed client did over and over; nothing where no other test asks for it.
#[test]
fn child() {
    let (Ok(role), Ok(node)) = (std::env::var(ROLE), std::env::var(NODE)) else {
        return;
    };
    let (client, blocks) = connect(node.parse().unwrap());
    let plain = CallOptions::default();
    let all = region(&client, 8 * LEN);
    let parts: Vec<_> = (0..8)
        .map(|at| all.slice(at * LEN..(at + 1) * LEN).unwrap())
        .collect();
    let is_putter = role == "putter";
    for round in 0.. {
        let first = if is_putter { round * 8 } else { 0 };
        let keys: Vec<String> = (first..first + 8)
            .map(|seed| format!("key {seed}"))
            .collect();
        let pairs: Vec<_> = keys.iter().map(String::as_bytes).zip(&parts).collect();
        if is_putter {
            for (seed, part) in (first..).zip(&parts) {
                part.memory().copy_from(&block(seed));
            }
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
fn until_quiet(node: &Node) {
    for name in [
        "terrace_slots_being_written",
        "terrace_leases",
        "terrace_pinned_bytes",
    ] {
        node.until_metric(name, 0);
    }
}

#[test]
fn client_killed_in_a_put_or_a_get_costs_the_node_nothing() {
    for reach in REACHES {
        let pair = Pair::start("killed", reach);
        let plain = CallOptions::default();
        let own = pair.region(LEN);
        for (turn, role) in (0..6).zip(["putter", "getter"].into_iter().cycle()) {
            let mut other = Other::start(role, pair.node.address);
            // At another place in each turn.
            other.until_moved(20 + turn * 7);
            other.process.kill();
            until_quiet(&pair.node);
            // Whole and right, or not there.
            for seed in 0..64 {
                let key = format!("key {seed}");
                let found = pair.blocks.get_into_region(key.as_bytes(), &own, &plain);
                if found.unwrap().is_hit() {
                    assert!(bytes_of(&own) == block(seed), "{reach} {role}: {key}");
                }
            }
        }
        let (stats, fault) = (pair.client.stats(), pair.client.one_sided_fault());
        assert_eq!(stats.rails_lost, 0, "{fault:?}");
        assert!(stats.one_sided_gets > 0, "{fault:?}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test measures from outside")]
fn node_killed_in_a_get_is_an_error_in_time() {
    let mut pair = Pair::start("node", "staged");
    let target = pair.region(8 * LEN);
    let parts: Vec<_> = (0..8)
        .map(|at| target.slice(at * LEN..(at + 1) * LEN).unwrap())
        .collect();
    let keys: Vec<String> = (0..8).map(|at| format!("key {at}")).collect();
    let pairs: Vec<_> = keys.iter().map(String::as_bytes).zip(&parts).collect();
    for (seed, part) in parts.iter().enumerate() {
        part.memory().copy_from(&block(seed));
    }
    for put in pair
        .blocks
        .put_regions_from(&pairs, &CallOptions::default())
    {
        assert!(matches!(put.unwrap(), PutOutcome::Stored { .. }));
    }
    let within = CallOptions::within(Duration::from_secs(2));
    let mut rounds = 0;
    let error = loop {
        let begun = Instant::now();
        let found = pair.blocks.get_regions_into(&pairs, &within);
        // A read of a rail that stands still is given up a few seconds after the deadline.
        assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
        for (seed, (found, part)) in found.iter().zip(&parts).enumerate() {
            if matches!(found, Ok(Lookup::Hit { .. })) {
                assert!(bytes_of(part) == block(seed), "{seed}");
            }
        }
        if let Some(error) = found.into_iter().find_map(Result::err) {
            break error;
        }
        rounds += 1;
        if rounds == 3 {
            // Without waiting for its end.
            pair.node.process.signal(Signal::SIGKILL);
        }
    };
    let is_named = matches!(
        error.cause(),
        Cause::Io { .. } | Cause::Unavailable { .. } | Cause::TimedOut { .. }
    );
    assert!(is_named && rounds >= 3, "{rounds}: {error}");
    assert!(pair.client.stats().one_sided_gets >= 24);
    pair.node.process.kill();
}
