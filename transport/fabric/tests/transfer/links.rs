//! Aim: with one of two links cut during a transfer, all of it arrives at the speed of what is left,
//! and the link is used again when it is back. Method: two engines in network namespaces of their
//! own, joined by two pairs of virtual links with a bandwidth each; one is taken down and up while
//! bytes move. Needs root and `ip` with `tc`; says so where it cannot run.

use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use terrace_fabric::transfer::{
    Access, BatchOptions, EngineConfig, LocalPart, Memory, Peer, Region, RemotePart, Request,
    Status, TransferEngine, TransportChoice, TransportKind,
};

use crate::pair::{HANG, bytes_of, fill};

/// What is moved while a link is cut.
const LEN: u64 = 128 << 20;
/// Each link's bandwidth: so slow that two processors do not matter.
const LINK_MBIT: u64 = 800;
/// How long a rail may show no progress.
const STALL: Duration = Duration::from_millis(300);

fn run(program: &str, line: &str) -> Result<(), String> {
    let output = Command::new(program).args(line.split_whitespace()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_done = output.status.success();
    is_done
        .then_some(())
        .ok_or_else(|| format!("{program} {line}: {}", told.trim()))
}

/// Two hosts and the two links between them, gone with this.
struct Hosts {
    owner: String,
    opener: String,
}

impl Hosts {
    fn new() -> Result<Self, String> {
        let name = |end: char| format!("tf{end}{}", std::process::id());
        let hosts = Self {
            owner: name('o'),
            opener: name('p'),
        };
        let (owner, opener) = (&hosts.owner, &hosts.opener);
        run("ip", &format!("netns add {owner}"))?;
        run("ip", &format!("netns add {opener}"))?;
        for link in 0..2 {
            let subnet = 40 + link;
            for line in [
                format!(
                    "link add l{link} netns {owner} type veth peer name l{link} netns {opener}"
                ),
                format!("-n {owner} addr add 10.231.{subnet}.1/24 dev l{link}"),
                format!("-n {opener} addr add 10.231.{subnet}.2/24 dev l{link}"),
                format!("-n {owner} link set l{link} up"),
                format!("-n {opener} link set l{link} up"),
            ] {
                run("ip", &line)?;
            }
            let limit = format!("rate {LINK_MBIT}mbit burst 256kb latency 20ms");
            run(
                "tc",
                &format!("-n {owner} qdisc add dev l{link} root tbf {limit}"),
            )?;
        }
        Ok(hosts)
    }

    fn set_link(&self, link: usize, state: &str) {
        run("ip", &format!("-n {} link set l{link} {state}", self.owner)).unwrap();
    }

    /// Does something on a thread of one host; threads made by it are there too.
    fn on<T: Send>(host: &str, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                let file = File::open(format!("/run/netns/{host}")).unwrap();
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                act()
            });
            there.join().unwrap()
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in [&self.owner, &self.opener] {
            let _ = run("ip", &format!("netns del {name}"));
        }
    }
}

struct Ends {
    peer: Peer,
    local: Arc<Region>,
    _opener: TransferEngine,
    served: Vec<u8>,
    _owner: TransferEngine,
}

fn ends(hosts: &Hosts) -> Ends {
    let listen = vec![
        "10.231.40.1:7500".parse().unwrap(),
        "10.231.41.1:7500".parse().unwrap(),
    ];
    let config = EngineConfig {
        listen,
        ..EngineConfig::default()
    };
    let owner = Hosts::on(&hosts.owner, || TransferEngine::start(config).unwrap());
    let region = owner
        .register(Memory::shared(LEN).unwrap(), Access::Read)
        .unwrap();
    let served = fill(&region, 1);
    let config = EngineConfig {
        transports: TransportChoice::Only(TransportKind::Tcp),
        stall_timeout: STALL,
        rest_max: Duration::from_millis(100),
        ..EngineConfig::default()
    };
    let (opener, peer) = Hosts::on(&hosts.opener, || {
        let opener = TransferEngine::start(config).unwrap();
        let peer = opener.open(owner.addresses()).unwrap();
        (opener, peer)
    });
    let local = opener
        .register(Memory::shared(LEN).unwrap(), Access::Local)
        .unwrap();
    Ends {
        peer,
        local,
        _opener: opener,
        served,
        _owner: owner,
    }
}

impl Ends {
    fn moved(&self) -> Vec<u64> {
        self.peer
            .rails()
            .iter()
            .map(|rail| rail.figures.moved_len)
            .collect()
    }

    /// Reads the whole region; `during` runs once a quarter has arrived. How long the bytes after
    /// it took.
    fn read(&self, during: impl FnOnce()) -> Duration {
        assert!(self.local.memory().write_at(0, &vec![0; LEN as usize]));
        let region = self.peer.regions().remove(0);
        let (offset, len) = (0, LEN);
        let local = LocalPart {
            region: Arc::clone(&self.local),
            offset,
            len,
        };
        let request = Request::read(
            local,
            RemotePart {
                region,
                offset,
                len,
            },
        );
        let before: u64 = self.moved().iter().sum();
        let mut transfer = self
            .peer
            .submit(&[request], BatchOptions::default())
            .unwrap();
        while self.moved().iter().sum::<u64>() - before < LEN / 4 {
            assert!(
                transfer.wait(Duration::from_millis(1)).is_none(),
                "it ended too early"
            );
        }
        during();
        let begun = now();
        assert_eq!(transfer.wait(HANG), Some(vec![Status::Done]));
        let taken = begun.elapsed();
        assert!(bytes_of(&self.local, 0, LEN) == self.served);
        taken
    }
}

#[expect(clippy::disallowed_methods, reason = "a test measures from outside")]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn link_that_is_cut_costs_its_share_and_is_used_again() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => {
            eprintln!("skipped: two hosts with two links need root and iproute2: {why}");
            return;
        }
    };
    let ends = ends(&hosts);
    let whole = ends.read(|| {});
    let before = ends.moved();
    assert!(
        before.iter().all(|len| *len > LEN / 5),
        "both rails carry: {before:?}"
    );
    let cut = ends.read(|| hosts.set_link(0, "down"));
    let after_cut = ends.moved();
    let alone = ends.read(|| {});
    let after_alone = ends.moved();
    hosts.set_link(0, "up");
    // The rail is back when it has carried something again.
    let mut reads = 0;
    while ends.moved()[0] <= after_alone[0] + LEN / 8 {
        ends.read(|| {});
        reads += 1;
        assert!(
            reads < 60,
            "the link is up, and its rail is not used: {:?}",
            ends.moved()
        );
    }
    let back = ends.read(|| {});
    eprintln!(
        "three quarters of {LEN} bytes: {whole:?} over both links, {cut:?} with one cut at their \
         beginning, {alone:?} over the other alone, {back:?} when it was back, after {reads} reads"
    );
    assert_eq!(
        after_alone[0], after_cut[0],
        "a link that is down carries nothing"
    );
    // One link is half of both: twice the time, and the time in which its loss is noticed.
    assert!(
        cut < alone * 2 + STALL * 4,
        "{cut:?} with the cut, {alone:?} without the link"
    );
    assert!(back < alone, "{back:?} over both, {alone:?} over one");
}
