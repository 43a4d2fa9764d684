//! Turns: threads that call one after the other, and what they and the other end took.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::time::ClockId;
use nix::unistd::Pid;

use crate::peer::Worker;
use crate::shape::{Shape, Verb};

/// What a turn came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
    /// Of both ends together.
    pub(crate) cpu_seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Memory that the threads read to and store from, the same for all peers; touched before.
pub(crate) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    pub(crate) fn new(shapes: &[Shape]) -> Self {
        let threads = shapes.iter().map(|shape| shape.threads).max().unwrap_or(0);
        let len_of = |thread| {
            let used = shapes.iter().filter(|shape| thread < shape.threads);
            used.map(Shape::call_len).max().unwrap_or(0)
        };
        let buffer = |thread: usize| {
            let mut random = Random(thread as u64);
            let mut bytes = vec![1; len_of(thread)];
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes());
            }
            bytes
        };
        Self((0..threads).map(buffer).collect())
    }
}

/// A splitmix64 sequence.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }
}

/// Keys of puts: no key is stored twice.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1 << 32);

/// A key that was not stored before.
pub(crate) fn fresh_key() -> u64 {
    NEXT_KEY.fetch_add(1, Ordering::Relaxed)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures from outside"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The processes whose CPU time counts, beside this one.
pub(crate) struct CpuClocks(Vec<ClockId>);

impl CpuClocks {
    pub(crate) fn new(pids: &[u32]) -> Result<Self> {
        let clock = |pid: &u32| {
            let pid = Pid::from_raw(i32::try_from(*pid)?);
            ClockId::pid_cpu_clock_id(pid).context("find the clock of a process")
        };
        pids.iter().map(clock).collect::<Result<_>>().map(Self)
    }

    /// CPU time of all of them until now.
    pub(crate) fn read(&self) -> Result<Duration> {
        let own = ClockId::CLOCK_PROCESS_CPUTIME_ID;
        let times = self.0.iter().chain([&own]).map(|clock| clock.now());
        let mut sum = Duration::ZERO;
        for time in times {
            sum += Duration::from(time.context("read the CPU time of a process")?);
        }
        Ok(sum)
    }
}

/// Runs a shape: each worker calls until the turn is over.
pub(crate) fn turn<W: Worker>(
    shape: &Shape,
    span: Duration,
    blocks: u64,
    buffers: &mut Buffers,
    workers: &mut [W],
    clocks: &CpuClocks,
) -> Result<Sample> {
    let start = Barrier::new(shape.threads + 1);
    let mut latencies = Vec::new();
    let sample = thread::scope(|scope| -> Result<Sample> {
        let each = workers.iter_mut().zip(&mut buffers.0).take(shape.threads);
        let threads: Vec<_> = each
            .map(|(worker, memory)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    calls(shape, span, blocks, worker, &mut memory[..shape.call_len()])
                })
            })
            .collect();
        let cpu = clocks.read()?;
        let begun = now();
        start.wait();
        for thread in threads {
            let done = thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread died"))?;
            latencies.extend(done?);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let cpu = clocks.read()?.saturating_sub(cpu);
        Ok(Sample {
            bytes: real(latencies.len()) * real(shape.call_len()),
            seconds,
            cpu_seconds: cpu.as_secs_f64(),
            ..Sample::default()
        })
    })?;
    latencies.sort_unstable();
    let at = |percent: usize| {
        let place = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
        let latency = latencies.get(place).copied().unwrap_or_default();
        latency.as_secs_f64() * 1e6
    };
    Ok(Sample {
        p50_us: at(50),
        p99_us: at(99),
        ..sample
    })
}

/// Calls of one thread: how long each took.
fn calls(
    shape: &Shape,
    span: Duration,
    blocks: u64,
    worker: &mut impl Worker,
    memory: &mut [u8],
) -> Result<Vec<Duration>> {
    let mut random = Random(fresh_key());
    let mut latencies = Vec::with_capacity(1 << 14);
    let mut keys = vec![0; shape.batch];
    let begun = now();
    let mut last = begun;
    while last - begun < span {
        match shape.verb {
            Verb::Get => {
                keys.iter_mut().for_each(|key| *key = random.below(blocks));
                worker.get(&keys, shape.len, memory)?;
            }
            Verb::Put => {
                keys.iter_mut().for_each(|key| *key = fresh_key());
                worker.put(&keys, shape.len, memory)?;
            }
        }
        let done = now();
        latencies.push(done - last);
        last = done;
    }
    Ok(latencies)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a benchmark are far below 2^53"
)]
pub(crate) const fn real(count: usize) -> f64 {
    count as f64
}

/// What the numbers were measured under.
pub(crate) fn circumstances(rounds: u32, turn_ms: u64) -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let cpus = thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{rounds} rounds, turns of {turn_ms} ms; {cpus} processors, kernel {}, load at the end {load}",
        kernel.trim()
    )
}
