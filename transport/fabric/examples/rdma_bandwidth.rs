//! Reads over RDMA beside perftest's `ib_read_bw`: the same device, lengths and depth, in turns.
//!
//! `rdma_bandwidth [DEVICE]` reads from the machine's own port, by queue pairs alone and by the
//! transfer engine, and prints medians and ratios. `cargo xtask rdma --bandwidth` runs it in a
//! virtual machine, where only the ratios say something.

#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::error::Error;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_fabric::transfer::{
    Access as PeerAccess, BatchOptions, EngineConfig, LocalPart, Memory, RemotePart, Request,
    Status, TransferEngine, TransportChoice, TransportKind,
};
use terrace_fabric::verbs::{
    Access, CompletionQueue, Device, MemoryRegion, Operation, ProtectionDomain, QueuePair,
    QueuePairCounters, QueuePairSettings, RdmaConfig, RdmaTransport, RegionOptions, RemoteSlice,
    WorkRequest, device_names,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Rounds, each of all three ways.
const ROUNDS: usize = 5;

/// Bytes that one measurement moves at least.
const MOVED: u64 = 64 << 20;

/// Reads under way, as perftest has them.
const DEPTH: u64 = 128;

/// Length of the memory read: perftest, too, reads the same bytes again and again.
const MEMORY_LEN: u64 = 2 << 20;

fn main() -> Outcome<()> {
    let name = match std::env::args().nth(1) {
        Some(name) => name,
        None => device_names()?.swap_remove(0),
    };
    println!("length     way              MB/s  of ib_read_bw");
    for len in [64 << 10, 1 << 20] {
        let mut rates: [Vec<f64>; 3] = Default::default();
        let mut done = QueuePairCounters::default();
        for _ in 0..ROUNDS {
            rates[0].push(perftest(&name, len)?);
            rates[1].push(queue_pairs(&name, len)?);
            let (rate, counters) = engine(&name, len)?;
            rates[2].push(rate);
            done = counters;
        }
        let medians = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!(
            "the engine's last round: {} requests by {} doorbells and {} completions, {} bytes copied",
            done.requests, done.doorbells, done.completions, done.copied_bytes
        );
        for (way, rate) in ["ib_read_bw", "queue pairs", "transfer engine"]
            .iter()
            .zip(medians)
        {
            println!(
                "{len:<10} {way:<16} {rate:>5.1}  {:>5.3}",
                rate / medians[0]
            );
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a measurement on a real machine")]
fn rate(len: u64, work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let start = Instant::now();
    work()?;
    Ok((count(len) * len) as f64 / 1e6 / start.elapsed().as_secs_f64())
}

fn count(len: u64) -> u64 {
    MOVED / len
}

/// What `ib_read_bw` says, in MB/s.
fn perftest(device: &str, len: u64) -> Outcome<f64> {
    let command = || {
        let mut command = Command::new("ib_read_bw");
        command
            .args([
                "-d",
                device,
                "-s",
                &len.to_string(),
                "-t",
                &DEPTH.to_string(),
            ])
            .args(["-n", &count(len).to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let mut server = command().stdout(Stdio::null()).spawn()?;
    // The server may not listen yet.
    let rate = (0..100).find_map(|_| {
        let output = command().arg("127.0.0.1").output().ok()?;
        average(&String::from_utf8_lossy(&output.stdout))
    });
    if rate.is_none() {
        server.kill()?;
    }
    server.wait()?;
    Ok(rate.ok_or("ib_read_bw gives no figure")?)
}

/// The average of its one line of figures: length, iterations, peak, average, message rate; in
/// MiB/s.
fn average(output: &str) -> Option<f64> {
    let line = output.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.next().is_some_and(|word| word.parse::<u64>().is_ok()) && words.count() == 4
    })?;
    let average: f64 = line.split_whitespace().nth(3)?.parse().ok()?;
    Some(average * 1.048_576)
}

fn register(domain: &ProtectionDomain, access: Access) -> Outcome<Arc<MemoryRegion>> {
    let memory = Memory::hugepages(MEMORY_LEN)?;
    let options = RegionOptions {
        access,
        page_len: 2 << 20,
        ..RegionOptions::default()
    };
    let (base, len) = (memory.address(), memory.len());
    // SAFETY: the memory is mapped until the region drops it, and nobody looks at its bytes.
    let region =
        unsafe { MemoryRegion::register(domain, base, len, &options, Box::new(memory), &|_| ()) };
    Ok(region?)
}

/// Reads in batches of 16 between two queue pairs of the device.
fn queue_pairs(device: &str, len: u64) -> Outcome<f64> {
    let domain = ProtectionDomain::new(&Device::open(device)?)?;
    let open = |peer_access| -> Outcome<_> {
        let settings = QueuePairSettings {
            peer_access,
            ..QueuePairSettings::default()
        };
        let completions = CompletionQueue::new(domain.device(), settings.completion_count())?;
        let queue_pair = QueuePair::new(&domain, &completions, settings)?;
        Ok((queue_pair, completions, register(&domain, peer_access)?))
    };
    let (mut theirs, _, remote) = open(Access::RemoteRead)?;
    let (mut ours, completions, local) = open(Access::Local)?;
    ours.connect(&theirs.address())?;
    theirs.connect(&ours.address())?;
    let from = remote.remote(0, len)?;
    rate(len, || read_all(&mut ours, &completions, &local, from, len))
}

fn read_all(
    ours: &mut QueuePair,
    completions: &CompletionQueue,
    local: &Arc<MemoryRegion>,
    from: RemoteSlice,
    len: u64,
) -> Outcome<()> {
    let (mut posted, mut found, mut ended) = (0, Vec::new(), Vec::new());
    while (ended.len() as u64) < count(len) {
        if posted < count(len) && ours.room() >= 16 {
            let batch = 16.min(count(len) - posted);
            let requests = (0..batch).map(|token| -> Outcome<_> {
                let into = vec![local.slice(0, len as u32)?];
                let operation = Operation::Read { into, from };
                Ok(WorkRequest { token, operation })
            });
            ours.post(requests.collect::<Outcome<_>>()?)?;
            posted += batch;
            continue;
        }
        completions.wait(1000, Duration::from_secs(10))?;
        completions.poll(&mut found)?;
        for completion in found.drain(..) {
            ours.resolve(&completion, &mut ended);
        }
    }
    match ended.iter().find(|one| !one.status.is_success()) {
        Some(failed) => Err(failed.status.to_string().into()),
        None => Ok(()),
    }
}

/// Reads in one batch between two engines.
fn engine(device: &str, len: u64) -> Outcome<(f64, QueuePairCounters)> {
    let start = |listen: &[&str]| -> Outcome<(TransferEngine, Arc<RdmaTransport>)> {
        let transport = RdmaTransport::open(&RdmaConfig {
            devices: vec![device.to_owned()],
            ..RdmaConfig::default()
        })?;
        let config = EngineConfig {
            listen: listen
                .iter()
                .map(|at| at.parse())
                .collect::<Result<_, _>>()?,
            transports: TransportChoice::Only(TransportKind::Rdma),
            slice_len: 1 << 20,
            ..EngineConfig::default()
        };
        let engine = TransferEngine::start_with(config, vec![transport.clone()])?;
        Ok((engine, transport))
    };
    let (server, _) = start(&["127.0.0.1:0"])?;
    let (client, transport) = start(&[])?;
    let theirs = server.register(Memory::hugepages(MEMORY_LEN)?, PeerAccess::Read)?;
    let ours = client.register(Memory::hugepages(MEMORY_LEN)?, PeerAccess::Local)?;
    let peer = client.open(server.addresses())?;
    let remote = peer
        .region(theirs.id())
        .ok_or("the region is not offered")?;
    let request = Request::read(
        LocalPart {
            region: ours,
            offset: 0,
            len,
        },
        RemotePart {
            region: remote,
            offset: 0,
            len,
        },
    );
    let batch = vec![request; count(len) as usize];
    let rate = rate(len, || {
        let mut transfer = peer.submit(&batch, BatchOptions::default())?;
        let statuses = transfer.wait(Duration::from_secs(60));
        match statuses.is_some_and(|all| all.iter().all(|status| *status == Status::Done)) {
            true => Ok(()),
            false => Err("a read was not done".into()),
        }
    })?;
    Ok((rate, transport.counters()))
}
