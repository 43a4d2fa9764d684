//! The replay: requests of a trace as clients of an engine would make them.
//!
//! Each request reads its blocks in chain order; a miss is generated and put. Generating and
//! verifying payloads is the client's own work: its time is taken off the elapsed time that
//! throughput is computed from, and off the CPU time that is reported.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use terrace_engine::{
    CloseReport, Durability, Engine, EngineConfig, EngineStats, GetOptions, Hint, HugepageMode,
    Lookup, Missing, Namespace, NvmeConfig, PutOptions, PutOutcome, RequestContext, Tier, Use,
    WriteMode, block_on, hugepages,
};
use terrace_sim::trace::{Trace, TraceRequest};
use terrace_types::limits::{BLOCK_LEN_MAX, HUGEPAGE_LEN, SLOT_ALIGN};

use crate::chain::{self, ChainOptions};
use crate::pace::{Pace, Speed, drive};
use crate::payload;

/// Most requests in flight: each holds a payload of its own.
pub(crate) const IODEPTH_MAX: usize = 4096;

/// How long a close may take: all of DRAM may have to be written.
pub(crate) const CLOSE_DEADLINE: Duration = Duration::from_secs(600);

/// The NVMe tier of a replay.
#[derive(Clone, Debug, Default)]
pub struct NvmeOptions {
    /// Bytes over all devices; `None` for the lengths they have, 0 for no tier.
    pub bytes: Option<u64>,
    /// Files or block devices. Without one, a file in the folder for temporary files is made
    /// and removed again.
    pub paths: Vec<PathBuf>,
    /// Devices to be emptied onto the others.
    pub drain: Vec<PathBuf>,
    /// Serve what is there when a device of the set is missing.
    pub accept_missing: bool,
    /// Take devices that hold something else.
    pub format: bool,
    /// Polled completions.
    pub io_poll: Use,
    /// Puts wait until their blocks survive power loss.
    pub durable: bool,
    /// Blocks are written when they are put, not when they leave DRAM.
    pub write_through: bool,
    /// Start from nothing, and keep nothing.
    pub scratch: bool,
}

impl NvmeOptions {
    fn is_used(&self) -> bool {
        self.bytes.is_none_or(|bytes| bytes > 0) && (self.bytes.is_some() || !self.paths.is_empty())
    }

    /// The files to be used; a temporary one is named when none is given.
    fn files(&self) -> Vec<PathBuf> {
        if !self.is_used() {
            return Vec::new();
        }
        if self.paths.is_empty() {
            let name = format!("terrace-replay-{}.nvme", std::process::id());
            return vec![std::env::temp_dir().join(name)];
        }
        self.paths.clone()
    }

    fn share(&self) -> Option<u64> {
        let count = self.files().len().max(1) as u64;
        self.bytes
            .map(|bytes| (bytes / count).next_multiple_of(SLOT_ALIGN))
    }

    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        ensure!(
            self.bytes != Some(0) || self.paths.is_empty(),
            "--nvme is 0 and --nvme-path is {}; leave one of them out",
            self.paths[0].display()
        );
        ensure!(
            self.is_used() || !(self.durable || self.write_through || !self.drain.is_empty()),
            "--durable, --write-through and --nvme-drain need an NVMe tier: give --nvme-path"
        );
        for path in &self.paths {
            self.validate_path(path)?;
        }
        Ok(())
    }

    fn validate_path(&self, path: &Path) -> anyhow::Result<()> {
        let Ok(there) = std::fs::metadata(path) else {
            ensure!(
                self.bytes.is_some(),
                "{} is not there; to have it made, give its size by --nvme",
                path.display()
            );
            return Ok(());
        };
        if let Some(wanted) = self.share().filter(|_| there.is_file() && !self.scratch) {
            ensure!(
                there.len() == wanted,
                "--nvme asks for {wanted} bytes at {}, which has {}; leave --nvme out to use it \
                 as it is, or start anew with --scratch",
                path.display(),
                there.len()
            );
        }
        Ok(())
    }

    /// Removes the files that a run must not find, or must not leave.
    pub(crate) fn remove(&self) {
        if !self.scratch && !self.paths.is_empty() {
            return;
        }
        for path in self.files() {
            // A block device is left: its contents are replaced, not removed.
            if std::fs::metadata(&path).is_ok_and(|there| there.is_file()) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    pub(crate) fn config(&self) -> NvmeConfig {
        NvmeConfig {
            paths: self.files(),
            file_bytes: self.share(),
            drain: self.drain.clone(),
            format: self.format,
            missing: if self.accept_missing {
                Missing::Accept
            } else {
                Missing::Refuse
            },
            write_mode: if self.write_through {
                WriteMode::Through
            } else {
                WriteMode::Back
            },
            io_poll: self.io_poll,
            ..NvmeConfig::default()
        }
    }
}

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Name of the policy.
    pub policy: String,
    /// Shards of the engine.
    pub shards: usize,
    /// Bytes of DRAM; `None` lets them follow from `dram_blocks`, or is 1 GiB.
    pub dram: Option<u64>,
    /// Cap in blocks.
    pub dram_blocks: Option<usize>,
    /// The NVMe tier.
    pub nvme: NvmeOptions,
    /// What is done with a chain before it is read.
    pub chain: ChainOptions,
    /// Length of every block, in bytes.
    pub block_len: u64,
    /// Requests in flight.
    pub iodepth: usize,
    /// Arrival of requests.
    pub speed: Speed,
    /// Whether DRAM must lie on hugepages.
    pub hugepages: HugepageMode,
    /// Whether to show progress on a terminal.
    pub progress: bool,
}

impl ReplayOptions {
    /// Checks what the engine does not check itself.
    ///
    /// # Errors
    /// Names the flag, its value and the limit.
    pub fn validate(&self) -> anyhow::Result<()> {
        let (len, depth) = (self.block_len, self.iodepth);
        ensure!(
            (1..=BLOCK_LEN_MAX).contains(&len),
            "--block-len is {len}; allowed is 1 to {BLOCK_LEN_MAX}"
        );
        ensure!(
            (1..=IODEPTH_MAX).contains(&depth),
            "--iodepth is {depth}; allowed is 1 to {IODEPTH_MAX}"
        );
        if self.dram_blocks == Some(0) {
            bail!("--dram-blocks is 0; allowed is at least one a shard");
        }
        self.nvme.validate()?;
        self.engine_config().validate().context("open the engine")
    }

    /// The engine to replay on.
    #[must_use]
    pub fn engine_config(&self) -> EngineConfig {
        EngineConfig {
            dram_bytes: self.dram_bytes(),
            dram_blocks: self.dram_blocks,
            shards: self.shards,
            hugepages: self.hugepages,
            policy: self.policy.clone(),
            block_lens: vec![self.block_len],
            nvme: self.nvme.config(),
            ..EngineConfig::default()
        }
    }

    /// With a cap in blocks only: room for them, their slabs' tails, and one slab a shard.
    fn dram_bytes(&self) -> u64 {
        let Some(blocks) = self.dram_blocks.filter(|_| self.dram.is_none()) else {
            return self.dram.unwrap_or(1 << 30);
        };
        let slot = self.block_len.next_multiple_of(SLOT_ALIGN);
        let shards = self.shards.max(1) as u64;
        let share = (blocks as u64).div_ceil(shards).saturating_mul(slot);
        let arena = share
            .saturating_add(share / 16)
            .saturating_add(2 * slot.max(HUGEPAGE_LEN));
        arena
            .checked_next_multiple_of(HUGEPAGE_LEN)
            .unwrap_or(u64::MAX)
            .saturating_mul(shards)
    }
}

/// Adds fields of a part, each held by a variable of its name, to those of a sum.
macro_rules! add_up {
    ($sum:ident; $($field:ident),+) => { $($sum.$field += $field;)+ };
}
pub(crate) use add_up;

/// What became of the puts.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutCounts {
    /// Stored.
    pub stored: u64,
    /// Stored already.
    pub exists: u64,
    /// Rejected.
    pub rejected: u64,
    /// No room within the wait.
    pub busy: u64,
}

/// What a replay came to.
pub struct ReplayOutcome {
    /// Requests replayed.
    pub requests: u64,
    /// Blocks looked up.
    pub accesses: u64,
    /// Hits in DRAM.
    pub dram_hits: u64,
    /// Hits in the tier below.
    pub nvme_hits: u64,
    /// Lookups that found nothing.
    pub misses: u64,
    /// Lookups answered `Unavailable`.
    pub unavailable: u64,
    /// Hits whose bytes were not those of their block.
    pub verify_failures: u64,
    /// Outcomes of puts.
    pub puts: PutCounts,
    /// Latency of lookups that hit DRAM, in nanoseconds.
    pub dram_ns: Histogram<u64>,
    /// Latency of lookups that hit the tier below, in nanoseconds.
    pub nvme_ns: Histogram<u64>,
    /// Latency of puts, in nanoseconds.
    pub put_ns: Histogram<u64>,
    /// Time from the first request to the end of the last.
    pub elapsed: Duration,
    /// Time the client spent on generating and verifying payloads.
    pub client: Duration,
    /// CPU time of the process, without the client's own.
    pub cpu: Duration,
    /// Payload bytes handed out and taken in.
    pub bytes: u64,
    /// RSS plus hugetlb pages at the end, in bytes.
    pub memory_bytes: u64,
    /// The engine's own counters.
    pub stats: EngineStats,
    /// What was left when the engine was closed.
    pub closed: Option<CloseReport>,
}

impl std::ops::AddAssign for PutCounts {
    fn add_assign(&mut self, part: Self) {
        let Self {
            stored,
            exists,
            rejected,
            busy,
        } = part;
        add_up!(self; stored, exists, rejected, busy);
    }
}

impl ReplayOutcome {
    /// Adds what another thread of the same replay came to; times, memory and the engine's own are of
    /// all threads together, and left.
    ///
    /// # Errors
    /// When latencies do not add up.
    pub(crate) fn add(&mut self, part: Self) -> anyhow::Result<()> {
        let Self {
            requests,
            accesses,
            dram_hits,
            nvme_hits,
            misses,
            unavailable,
            verify_failures,
            puts,
            client,
            bytes,
            dram_ns,
            nvme_ns,
            put_ns,
            elapsed: _,
            cpu: _,
            memory_bytes: _,
            stats: _,
            closed: _,
        } = part;
        add_up!(self; requests, accesses, dram_hits, nvme_hits, misses, unavailable);
        add_up!(self; verify_failures, puts, client, bytes);
        let histograms = [
            (&mut self.dram_ns, dram_ns),
            (&mut self.nvme_ns, nvme_ns),
            (&mut self.put_ns, put_ns),
        ];
        for (sum, part) in histograms {
            sum.add(part).context("add up latencies")?;
        }
        Ok(())
    }
}

struct Tally {
    outcome: ReplayOutcome,
    buffers: Vec<Vec<u8>>,
}

struct Client<'a> {
    engine: &'a Engine,
    namespace: Namespace,
    block_len: u64,
    durability: Durability,
    chain: ChainOptions,
    tally: RefCell<Tally>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the client measures from outside the engine"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Replays `trace` on a new engine and closes it.
///
/// # Errors
/// When the engine cannot be opened; the message names the field or resource.
pub fn run(options: &ReplayOptions, trace: &Trace) -> anyhow::Result<ReplayOutcome> {
    options.validate()?;
    options.nvme.remove();
    let outcome = run_on(options, trace);
    options.nvme.remove();
    outcome
}

fn run_on(options: &ReplayOptions, trace: &Trace) -> anyhow::Result<ReplayOutcome> {
    let engine = Engine::open(options.engine_config()).context("open the engine")?;
    let namespace = engine.namespace(&format!("replay/{}", options.block_len))?;
    let client = Client {
        engine: &engine,
        namespace,
        block_len: options.block_len,
        durability: if options.nvme.durable {
            Durability::Durable
        } else {
            Durability::Volatile
        },
        chain: options.chain,
        tally: RefCell::new(Tally {
            outcome: empty()?,
            buffers: Vec::new(),
        }),
    };
    let bar = progress_bar(options.progress, trace);
    let (started, cpu_before) = (now(), cpu_time());
    let pace = Pace {
        iodepth: options.iodepth,
        speed: options.speed,
        started,
    };
    let requests = trace.requests.iter();
    block_on(drive(requests, pace, &bar, |request| {
        client.request(request)
    }));
    let elapsed = started.elapsed();
    let cpu = cpu_time().saturating_sub(cpu_before);
    bar.finish_and_clear();
    let mut outcome = client.tally.into_inner().outcome;
    outcome.elapsed = elapsed;
    outcome.cpu = cpu.saturating_sub(outcome.client);
    outcome.memory_bytes = hugepages::process_memory_bytes();
    outcome.stats = block_on(engine.stats());
    outcome.closed = Some(block_on(engine.close(CLOSE_DEADLINE)));
    Ok(outcome)
}

pub(crate) fn progress_bar(is_wanted: bool, trace: &Trace) -> indicatif::ProgressBar {
    if !is_wanted {
        return indicatif::ProgressBar::hidden();
    }
    // Draws on stderr, and only when that is a terminal.
    let bar = indicatif::ProgressBar::new(trace.requests.len() as u64);
    let style = "{wide_bar} {pos}/{len} requests {per_sec} eta {eta}";
    if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

pub(crate) fn empty() -> anyhow::Result<ReplayOutcome> {
    let histogram = || Histogram::new(3).context("make a histogram");
    Ok(ReplayOutcome {
        requests: 0,
        accesses: 0,
        dram_hits: 0,
        nvme_hits: 0,
        misses: 0,
        unavailable: 0,
        verify_failures: 0,
        puts: PutCounts::default(),
        dram_ns: histogram()?,
        nvme_ns: histogram()?,
        put_ns: histogram()?,
        elapsed: Duration::ZERO,
        client: Duration::ZERO,
        cpu: Duration::ZERO,
        bytes: 0,
        memory_bytes: 0,
        stats: EngineStats::default(),
        closed: None,
    })
}

pub(crate) fn cpu_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    let total = usage.user_time() + usage.system_time();
    let micros = total.tv_sec() * 1_000_000 + total.tv_usec();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The share of one core that this process uses while `span` passes.
#[must_use]
pub fn idle_cpu(span: Duration) -> f64 {
    let before = cpu_time();
    block_on(async { async_io::Timer::after(span).await });
    cpu_time().saturating_sub(before).as_secs_f64() / span.as_secs_f64().max(1e-9)
}

impl Client<'_> {
    async fn request(&self, request: &TraceRequest) {
        let links = chain::links(self.namespace, request);
        // Dropped with the request: what was not begun until then is not wanted any more.
        let _ahead = self.chain.begin(self.engine, request, &links).await;
        for link in &links {
            self.access(&link.key, link.id, link.hint, link.context)
                .await;
        }
        self.tally.borrow_mut().outcome.requests += 1;
    }

    async fn access(
        &self,
        key: &terrace_engine::BlockKey,
        id: u64,
        hint: Hint,
        context: RequestContext,
    ) {
        let told = GetOptions {
            hint,
            context,
            ..GetOptions::default()
        };
        let begun = now();
        let found = self.engine.get(key, &told).await;
        let took = nanos(begun);
        let missed = {
            let mut tally = self.tally.borrow_mut();
            let outcome = &mut tally.outcome;
            outcome.accesses += 1;
            match found {
                Lookup::Hit { tier, value } => {
                    let (hits, histogram) = match tier {
                        Tier::Dram => (&mut outcome.dram_hits, &mut outcome.dram_ns),
                        Tier::Nvme => (&mut outcome.nvme_hits, &mut outcome.nvme_ns),
                    };
                    *hits += 1;
                    record(histogram, took);
                    outcome.bytes += value.len() as u64;
                    let checking = now();
                    let whole = value.len() as u64 == self.block_len;
                    if !whole || !payload::verify(id, &value) {
                        outcome.verify_failures += 1;
                    }
                    outcome.client += checking.elapsed();
                    false
                }
                Lookup::Miss => {
                    outcome.misses += 1;
                    true
                }
                Lookup::Unavailable(_) => {
                    outcome.unavailable += 1;
                    false
                }
            }
        };
        if missed {
            self.put(key, id, hint, context).await;
        }
    }

    async fn put(
        &self,
        key: &terrace_engine::BlockKey,
        id: u64,
        hint: Hint,
        context: RequestContext,
    ) {
        let mut buffer = self.tally.borrow_mut().buffers.pop().unwrap_or_default();
        let making = now();
        buffer.resize(usize::try_from(self.block_len).unwrap_or(0), 0);
        payload::fill(id, &mut buffer);
        self.tally.borrow_mut().outcome.client += making.elapsed();
        let begun = now();
        let options = PutOptions {
            hint,
            context,
            durability: self.durability,
            ..PutOptions::default()
        };
        let put = self.engine.put(key, &buffer, &options).await;
        let took = nanos(begun);
        let mut tally = self.tally.borrow_mut();
        tally.buffers.push(buffer);
        let outcome = &mut tally.outcome;
        record(&mut outcome.put_ns, took);
        match put {
            PutOutcome::Stored { .. } => {
                outcome.puts.stored += 1;
                outcome.bytes += self.block_len;
            }
            PutOutcome::AlreadyExists { .. } => outcome.puts.exists += 1,
            PutOutcome::Rejected(_) => outcome.puts.rejected += 1,
            PutOutcome::Busy => outcome.puts.busy += 1,
        }
    }
}

/// Histograms grow as needed, so that recording fails for no value.
pub(crate) fn record(histogram: &mut Histogram<u64>, ns: u64) {
    let recorded = histogram.record(ns);
    debug_assert!(recorded.is_ok());
}

pub(crate) fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
