//! Batches between the registered memory of two processes, over each transport that is named, beside
//! a copy and a hash of the same bytes in one process.
//!
//! The other process is this program again. Transports and shapes take turns, round after round;
//! what is printed are medians.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde_json::{Value, json};
use terrace_fabric::transfer::{
    Access, BatchOptions, EngineConfig, LocalPart, Memory, Peer, Region, RemotePart, RemoteRegion,
    Request, Status, TransferEngine, TransportChoice, TransportKind,
};
use terrace_types::ByteLen;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::payload;
use crate::replay::now;
use crate::report::print_line;

/// Memory registered at each end, at most.
const REGION_LEN_MAX: u64 = 4 << 30;

/// Only a hang takes longer.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Seed of all checksums here.
const SEED: u64 = 7;

/// How bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// What the engine chooses.
    Auto,
    /// TCP.
    Tcp,
    /// Shared memory of this host, copied.
    Shm,
}

impl Over {
    const fn choice(self) -> TransportChoice {
        match self {
            Self::Auto => TransportChoice::Auto,
            Self::Tcp => TransportChoice::Only(TransportKind::Tcp),
            Self::Shm => TransportChoice::Only(TransportKind::SharedMemory),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }
}

/// What is moved, and how often.
#[derive(Clone, Debug, Parser)]
pub struct TransferArgs {
    /// How bytes go.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,shm")]
    transport: Vec<Over>,
    /// Lengths of requests.
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "64KiB,1MiB"
    )]
    bs: Vec<ByteLen>,
    /// Requests of a batch.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16")]
    batch: Vec<u64>,
    /// Threads, each with one batch under way.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8")]
    threads: Vec<u64>,
    /// Write to the other process instead of reading from it.
    #[arg(long)]
    write: bool,
    /// Give each request the checksum its bytes must have.
    #[arg(long)]
    verify: bool,
    /// Rails: addresses that the other process listens at.
    #[arg(long, value_name = "N", default_value_t = 1)]
    rails: usize,
    /// Turns of every transport and shape.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long a turn takes, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    turn: u64,
    /// Print one JSON object on stdout and nothing else there.
    #[arg(long)]
    json: bool,
    /// What the other process is told: the length of its memory.
    #[arg(long, hide = true)]
    source: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    len: u64,
    batch: u64,
    threads: u64,
}

/// What a turn came to.
#[derive(Clone, Debug, Default)]
struct Sample {
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    latencies: Vec<Duration>,
}

/// The other process, which ends when its input does.
struct Source {
    child: Child,
    addresses: Vec<std::net::SocketAddr>,
}

impl Source {
    fn start(rails: usize, len: u64) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let mut child = Command::new(program)
            .args([
                "transfer",
                "--rails",
                &rails.to_string(),
                "--source",
                &len.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the other process")?;
        let mut line = String::new();
        let output = child
            .stdout
            .take()
            .context("the other process has no output")?;
        BufReader::new(output)
            .read_line(&mut line)
            .context("read its addresses")?;
        let addresses = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<_>, _>>()
            .context("read its addresses")?;
        ensure!(!addresses.is_empty(), "the other process did not start");
        Ok(Self { child, addresses })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It may have ended by itself.
        let _ = self.child.wait();
    }
}

/// The other process: its memory can be read and written until its input ends.
fn serve(rails: usize, len: u64) -> anyhow::Result<()> {
    let listen = vec!["127.0.0.1:0".parse().context("the loopback address")?; rails];
    let engine = TransferEngine::start(EngineConfig {
        listen,
        ..EngineConfig::default()
    })?;
    let region = engine.register(Memory::shared(len)?, Access::ReadWrite)?;
    fill(&region)?;
    let addresses: Vec<String> = engine.addresses().iter().map(ToString::to_string).collect();
    print_line(&addresses.join(" "));
    let mut end = Vec::new();
    std::io::stdin()
        .read_to_end(&mut end)
        .context("wait for the end")?;
    Ok(())
}

/// Bytes of a region, the same in both processes.
fn fill(region: &Region) -> anyhow::Result<()> {
    let mut piece = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < region.len() {
        let count = (region.len() - offset).min(1 << 20);
        payload::fill(offset, &mut piece[..count as usize]);
        ensure!(
            region.memory().write_at(offset, &piece[..count as usize]),
            "fill a region"
        );
        offset += count;
    }
    Ok(())
}

/// One transport, opened.
struct Way {
    over: Over,
    // The peer's threads end before its engine's.
    peer: Peer,
    remote: Arc<RemoteRegion>,
    local: Arc<Region>,
    _engine: TransferEngine,
}

impl Way {
    fn open(over: Over, source: &Source, len: u64) -> anyhow::Result<Self> {
        let config = EngineConfig {
            transports: over.choice(),
            ..EngineConfig::default()
        };
        let engine = TransferEngine::start(config)?;
        let local = engine.register(Memory::shared(len)?, Access::Local)?;
        fill(&local)?;
        let peer = engine
            .open(&source.addresses)
            .context("open the other process")?;
        let remote = peer
            .regions()
            .into_iter()
            .next()
            .context("it has no region")?;
        Ok(Self {
            over,
            peer,
            remote,
            local,
            _engine: engine,
        })
    }

    /// Requests of one thread's batch.
    fn requests(
        &self,
        args: &TransferArgs,
        shape: &Shape,
        sums: &[u64],
        thread: u64,
    ) -> Vec<Request> {
        let request = |i| {
            let block = thread * shape.batch + i;
            let (offset, len) = (block * shape.len, shape.len);
            let local = LocalPart {
                region: Arc::clone(&self.local),
                offset,
                len,
            };
            let remote = RemotePart {
                region: Arc::clone(&self.remote),
                offset,
                len,
            };
            match (args.write, args.verify) {
                (true, _) => Request::write(local, remote),
                (false, false) => Request::read(local, remote),
                (false, true) => Request::read(local, remote).expecting(SEED, sums[block as usize]),
            }
        };
        (0..shape.batch).map(request).collect()
    }
}

/// What one thread does over and over: a batch.
type Batch<'a> = Box<dyn FnMut() -> anyhow::Result<()> + Send + 'a>;

/// Batches over a transport.
fn moving<'a>(args: &TransferArgs, way: &'a Way, shape: &Shape, sums: &[u64]) -> Vec<Batch<'a>> {
    let batch = |thread| -> Batch<'a> {
        let requests = way.requests(args, shape, sums, thread);
        Box::new(move || {
            let mut transfer = way.peer.submit(&requests, BatchOptions::default())?;
            let statuses = transfer.wait(BATCH_TIMEOUT).context("a batch hangs")?;
            let wrong = statuses.iter().find(|status| **status != Status::Done);
            ensure!(wrong.is_none(), "a request ended as {wrong:?}");
            Ok(())
        })
    };
    (0..shape.threads).map(batch).collect()
}

/// Batches that copy and hash what the others move.
fn copying<'a>(shape: &Shape, source: &'a [u8], target: &'a mut [u8]) -> Vec<Batch<'a>> {
    let (len, whole) = (shape.len as usize, (shape.len * shape.batch) as usize);
    let pairs = source
        .chunks_exact(whole)
        .zip(target.chunks_exact_mut(whole));
    let batch = |(source, target): (&'a [u8], &'a mut [u8])| -> Batch<'a> {
        Box::new(move || {
            for (from, to) in source.chunks_exact(len).zip(target.chunks_exact_mut(len)) {
                to.copy_from_slice(from);
                std::hint::black_box(xxh3_64_with_seed(to, SEED));
            }
            Ok(())
        })
    };
    pairs.take(shape.threads as usize).map(batch).collect()
}

/// Runs batches on a thread each until the turn is over; `cpu` counts with this process's own.
fn turn(
    shape: &Shape,
    span: Duration,
    batches: Vec<Batch<'_>>,
    cpu: Option<ClockId>,
) -> anyhow::Result<Sample> {
    let start = Barrier::new(batches.len() + 1);
    let clocks = || -> anyhow::Result<Duration> {
        let own = ClockId::CLOCK_PROCESS_CPUTIME_ID;
        let mut sum = Duration::ZERO;
        for clock in [own].into_iter().chain(cpu) {
            sum += Duration::from(clock.now().context("read the CPU time of a process")?);
        }
        Ok(sum)
    };
    std::thread::scope(|scope| {
        let start = &start;
        let spawn = |batch| scope.spawn(move || repeat(batch, span, start));
        let threads: Vec<_> = batches.into_iter().map(spawn).collect();
        let before = clocks()?;
        start.wait();
        let begun = now();
        let mut latencies = Vec::new();
        for thread in threads {
            let done = thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread died"))?;
            latencies.extend(done?);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let cpu = clocks()?.saturating_sub(before).as_secs_f64();
        let gb = (shape.len * shape.batch) as f64 * latencies.len() as f64 / 1e9;
        latencies.sort_unstable();
        Ok(Sample {
            gb_per_s: gb / seconds,
            cpu_s_per_gb: cpu / gb,
            latencies,
        })
    })
}

/// Does a batch until the turn is over, once at least; how long each took.
fn repeat(mut batch: Batch<'_>, span: Duration, start: &Barrier) -> anyhow::Result<Vec<Duration>> {
    start.wait();
    let (begun, mut latencies) = (now(), Vec::new());
    while latencies.is_empty() || begun.elapsed() < span {
        let before = now();
        batch()?;
        latencies.push(before.elapsed());
    }
    Ok(latencies)
}

/// Medians over all turns of one shape by one means.
struct Row {
    name: &'static str,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    p50: Duration,
    p99: Duration,
}

impl Row {
    fn new(name: &'static str, samples: &[Sample]) -> Self {
        let median = |of: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = samples.iter().map(of).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let mut latencies: Vec<Duration> = samples
            .iter()
            .flat_map(|sample| sample.latencies.iter().copied())
            .collect();
        latencies.sort_unstable();
        let at = |percent: usize| {
            let place = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
            latencies.get(place).copied().unwrap_or_default()
        };
        Self {
            name,
            gb_per_s: median(|sample| sample.gb_per_s),
            cpu_s_per_gb: median(|sample| sample.cpu_s_per_gb),
            p50: at(50),
            p99: at(99),
        }
    }
}

/// Takes turns at one shape; a row for each transport, the copy and hash last.
fn rows(
    args: &TransferArgs,
    ways: &[Way],
    shape: &Shape,
    cpu: ClockId,
    source: &[u8],
) -> anyhow::Result<Vec<Row>> {
    let span = Duration::from_millis(args.turn);
    let sums: Vec<u64> = source
        .chunks_exact(shape.len as usize)
        .map(|block| xxh3_64_with_seed(block, SEED))
        .collect();
    let mut target = source.to_vec();
    let mut samples = vec![Vec::new(); ways.len() + 1];
    for round in 0..args.rounds as usize {
        for i in 0..=ways.len() {
            // Who comes first changes, so that nobody always has the same one before it.
            let at = (i + round) % (ways.len() + 1);
            let sample = match ways.get(at) {
                Some(way) => turn(shape, span, moving(args, way, shape, &sums), Some(cpu)),
                None => turn(shape, span, copying(shape, source, &mut target), None),
            };
            samples[at].push(sample?);
        }
    }
    let names = ways
        .iter()
        .map(|way| way.over.name())
        .chain(["copy + hash"]);
    Ok(names
        .zip(&samples)
        .map(|(name, samples)| Row::new(name, samples))
        .collect())
}

/// How long it takes to get bytes by reference: a lease, given back at once.
fn leases(way: &Way, lens: &[ByteLen]) -> anyhow::Result<Vec<(ByteLen, Duration)>> {
    let mut lens: Vec<ByteLen> = lens.to_vec();
    lens.insert(0, ByteLen(64));
    let mut medians = Vec::new();
    let mut latencies = vec![Vec::new(); lens.len()];
    for _ in 0..2000 {
        for (len, latencies) in lens.iter().zip(&mut latencies) {
            let begun = now();
            let lease = way.peer.lease(&way.remote, 0, len.0, BATCH_TIMEOUT)?;
            let lease = lease.map_err(|status| anyhow::anyhow!("a lease ended as {status}"))?;
            ensure!(lease.address().is_some(), "a lease ended at once");
            latencies.push(begun.elapsed());
        }
    }
    for (len, mut latencies) in lens.into_iter().zip(latencies) {
        latencies.sort_unstable();
        medians.push((
            len,
            latencies
                .get(latencies.len() / 2)
                .copied()
                .unwrap_or_default(),
        ));
    }
    Ok(medians)
}

fn shapes(args: &TransferArgs) -> anyhow::Result<Vec<Shape>> {
    let mut shapes = Vec::new();
    for len in args.bs.iter().map(|len| len.0) {
        for &batch in &args.batch {
            for &threads in &args.threads {
                let whole = len
                    .checked_mul(batch)
                    .and_then(|whole| whole.checked_mul(threads));
                let is_possible = whole.is_some_and(|whole| (1..=REGION_LEN_MAX).contains(&whole));
                ensure!(
                    is_possible,
                    "{threads} threads with {batch} requests of {len} bytes: from 1 to \
                     {REGION_LEN_MAX} bytes in all can be had"
                );
                shapes.push(Shape {
                    len,
                    batch,
                    threads,
                });
            }
        }
    }
    Ok(shapes)
}

/// Measures and prints.
///
/// # Errors
/// A shape is too large, the other process cannot be had, or a request does not end well.
pub fn run(args: &TransferArgs) -> anyhow::Result<u64> {
    if let Some(len) = args.source {
        return serve(args.rails, len).map(|()| 0);
    }
    let shapes = shapes(args)?;
    let whole = shapes
        .iter()
        .map(|shape| shape.len * shape.batch * shape.threads)
        .max();
    let len = whole.context("no shape is given")?;
    let source = Source::start(args.rails, len)?;
    let pid = Pid::from_raw(i32::try_from(source.child.id())?);
    let cpu = ClockId::pid_cpu_clock_id(pid).context("find the clock of the other process")?;
    let ways = args
        .transport
        .iter()
        .map(|over| Way::open(*over, &source, len).with_context(|| over.name()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut copied = vec![0; len as usize];
    for (at, piece) in copied.chunks_mut(1 << 20).enumerate() {
        payload::fill((at as u64) << 20, piece);
    }
    let mut results = Vec::new();
    for shape in &shapes {
        let rows = rows(args, &ways, shape, cpu, &copied)?;
        let (title, lines) = table(shape, &rows);
        if args.json {
            results.push(json!({ "shape": title, "rows": lines }));
        } else {
            print_line(&title);
            for row in &rows {
                print_line(&line(row, &rows));
            }
        }
    }
    if let Some(way) = ways.iter().find(|way| way.peer.is_shared()) {
        for (len, median) in leases(way, &args.bs)? {
            let micros = median.as_secs_f64() * 1e6;
            if args.json {
                results.push(json!({ "lease": len.to_string(), "p50_us": micros }));
            } else {
                print_line(&format!("by reference, {len}: p50 {micros:.1} us"));
            }
        }
    }
    if args.json {
        print_line(&serde_json::to_string_pretty(&Value::Array(results))?);
    }
    std::io::stdout().flush().context("print")?;
    Ok(0)
}

fn line(row: &Row, rows: &[Row]) -> String {
    let copied = rows.last().map_or(row.gb_per_s, |copied| copied.gb_per_s);
    format!(
        "  {:12} {:7.2} GB/s {:5.2} of copy + hash, {:6.3} CPU s/GB, batch p50 {:?} p99 {:?}",
        row.name,
        row.gb_per_s,
        row.gb_per_s / copied,
        row.cpu_s_per_gb,
        row.p50,
        row.p99,
    )
}

fn table(shape: &Shape, rows: &[Row]) -> (String, Vec<Value>) {
    let len = ByteLen(shape.len);
    let title = format!("{len} x {}, {} threads", shape.batch, shape.threads);
    let value = |row: &Row| {
        json!({
            "by": row.name,
            "gb_per_s": row.gb_per_s,
            "cpu_s_per_gb": row.cpu_s_per_gb,
            "batch_p50_us": row.p50.as_secs_f64() * 1e6,
            "batch_p99_us": row.p99.as_secs_f64() * 1e6,
        })
    };
    (title, rows.iter().map(value).collect())
}
