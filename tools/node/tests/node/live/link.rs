//! Aim: a link that goes down costs bounded errors, and service goes on when it is back. Method: node and
//! client in network namespaces of their own, joined by a pair of virtual links, of which one is taken
//! down under calls. Needs root and `ip`; says so where it cannot run.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use terrace_client::CallOptions;
use terrace_client::blocking::Namespace;
use terrace_types::PutOutcome;

use super::process::{is_of_outage, now, outage, value};
use crate::started::{Folder, Node, blocks_at};

const ADDRESS: &str = "10.231.7.1:7440";
const DEADLINE: Duration = Duration::from_millis(500);
/// As in `stopped.rs`: how many times its deadline a call may take on a busy machine.
const LATE_MAX: u32 = 10;

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split_whitespace()).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_done = output.status.success();
    is_done
        .then_some(())
        .ok_or_else(|| format!("ip {line}: {}", told.trim()))
}

/// Two hosts and the link between them, gone with this.
struct Pair {
    node: String,
    client: String,
}

impl Pair {
    fn new() -> Result<Self, String> {
        let name = |end: char| format!("tr{end}{}", std::process::id());
        let pair = Self {
            node: name('n'),
            client: name('c'),
        };
        let (node, client) = (&pair.node, &pair.client);
        for line in [
            format!("netns add {node}"),
            format!("netns add {client}"),
            format!("link add {node} netns {node} type veth peer name {client} netns {client}"),
            format!("-n {node} addr add 10.231.7.1/24 dev {node}"),
            format!("-n {client} addr add 10.231.7.2/24 dev {client}"),
            format!("-n {node} link set lo up"),
            format!("-n {node} link set {node} up"),
            format!("-n {client} link set {client} up"),
        ] {
            ip(&line)?;
        }
        Ok(pair)
    }

    fn set_link(&self, state: &str) {
        ip(&format!("-n {0} link set {0} {state}", self.node)).unwrap();
    }

    /// Moves the calling thread, and what it connects, to the client's host.
    fn enter_client(&self) {
        let file = File::open(format!("/run/netns/{}", self.client)).unwrap();
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in [&self.node, &self.client] {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Calls until `span` is over; how many there were, and the longest one.
fn calls_that_fail(blocks: &Namespace, span: Duration) -> (u64, Duration) {
    let soon = CallOptions::within(DEADLINE);
    let (started, mut count, mut longest) = (now(), 0, Duration::ZERO);
    while count < 2 || started.elapsed() < span {
        let begun = now();
        let error = blocks.get(b"before", &soon).unwrap_err();
        longest = longest.max(begun.elapsed());
        assert!(is_of_outage(&error), "{error}");
        count += 1;
    }
    (count, longest)
}

fn run_client(pair: &Pair) {
    pair.enter_client();
    let blocks = blocks_at(ADDRESS);
    let plain = CallOptions::default();
    let sent = value(1, 300_000);
    let stored = PutOutcome::Stored { durable: false };
    assert_eq!(blocks.put(b"before", &sent, &plain).unwrap(), stored);
    let span = outage(Duration::from_secs(3));
    pair.set_link("down");
    let (count, longest) = calls_that_fail(&blocks, span);
    pair.set_link("up");
    let (back, tries) = first_answer(&blocks, &sent);
    eprintln!(
        "link down for {span:?}: {count} calls of {DEADLINE:?} failed, longest {longest:?}; \
         the first answer {back:?} after it was up, at try {tries}"
    );
    assert!(longest < DEADLINE * LATE_MAX, "{longest:?}");
    assert_eq!(blocks.put(b"after", &sent, &plain).unwrap(), stored);
}

/// How long the first answer takes, and how many calls that are as short as those that failed.
fn first_answer(blocks: &Namespace, expected: &[u8]) -> (Duration, u64) {
    let soon = CallOptions::within(DEADLINE);
    let begun = now();
    for tries in 1..=60 {
        match blocks.get(b"before", &soon) {
            Ok(got) => {
                assert!(got.hit().unwrap() == expected);
                return (begun.elapsed(), tries);
            }
            Err(error) => assert!(is_of_outage(&error), "{error}"),
        }
    }
    panic!("no answer in {:?}", begun.elapsed());
}

#[test]
fn link_that_goes_down_and_up_costs_bounded_errors() {
    let pair = match Pair::new() {
        Ok(pair) => pair,
        Err(why) => {
            eprintln!("skipped: two hosts need root and iproute2: {why}");
            return;
        }
    };
    let folder = Folder::new("live-link");
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &pair.node])
        .arg(env!("CARGO_BIN_EXE_terrace-node"))
        .stdin(Stdio::null());
    let flags = ["--listen", ADDRESS, "--nvme", "0", "--insecure"];
    let node = Node::start_by(command, &folder.0, &flags);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| run_client(&pair));
        client.join().unwrap();
    });
    node.end();
}
