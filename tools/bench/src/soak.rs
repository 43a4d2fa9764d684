//! Everything at once for some minutes: clients on keys of their own put, upsert, remove, look up,
//! lease and prefetch; each hit is verified, and what a process may leak is looked at.
//!
//! A client is the only one who writes its keys, so it knows what a hit has to be. Between two
//! closes nothing that was stored may be wrong; what is missing must have been evicted. Memory,
//! descriptors and mappings of the second half must not exceed those of the first.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use terrace_engine::{
    BlockKey, Durability, Engine, EngineConfig, GetOptions, HugepageMode, Lookup, Namespace,
    NvmeConfig, PutOptions, PutOutcome, RequestContext, block_on, hugepages,
};
use terrace_sim::trace::Random;

use crate::payload;
use crate::replay::{CLOSE_DEADLINE, now};

const CLIENTS: u64 = 24;
const KEYS: u64 = 400;
/// Shortest and longest blocks.
const LEN_MIN: u64 = 4 << 10;
const LEN_MAX: u64 = 1 << 20;
/// How often the process is looked at.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// What memory may vary by: buffers of clients, and the allocator's own.
const MEMORY_SLACK: u64 = 16 << 20;
/// Longer than any call may take.
const CALL_MAX: Duration = Duration::from_secs(30);
/// How long pins and leases have to come home once all clients stopped.
const SETTLE_WAIT: Duration = Duration::from_secs(10);

/// How to soak.
#[derive(Clone, Debug)]
pub struct SoakOptions {
    /// The data set's file. It must not be there, and is removed at the end.
    pub path: PathBuf,
    /// Its length.
    pub nvme: u64,
    /// DRAM in bytes.
    pub dram: u64,
    /// Shards of the engine.
    pub shards: usize,
    /// How long, in minutes.
    pub minutes: f64,
    /// Closes and openings meanwhile.
    pub reopens: u32,
    /// Decides what is done.
    pub seed: u64,
    /// Whether DRAM must lie on hugepages.
    pub hugepages: HugepageMode,
}

/// What the process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    memory: u64,
    descriptors: u64,
    mappings: u64,
}

impl Held {
    fn now() -> Self {
        let folder = |path: &str| std::fs::read_dir(path).map_or(0, |items| items.count() as u64);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Self {
            memory: hugepages::process_memory_bytes(),
            descriptors: folder("/proc/self/fd"),
            mappings: maps.lines().count() as u64,
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            descriptors: self.descriptors.max(other.descriptors),
            mappings: self.mappings.max(other.mappings),
        }
    }

    fn to_json(self) -> Value {
        json!({
            "memory_bytes": self.memory,
            "descriptors": self.descriptors,
            "mappings": self.mappings,
        })
    }
}

#[derive(Default)]
struct Counts {
    calls: u64,
    hits: u64,
    misses: u64,
    busy: u64,
    unavailable: u64,
    wrong: u64,
    first_wrong: Option<String>,
}

/// Soaks; the value holds what came of it, the second one counts wrong answers and leaks.
///
/// # Errors
/// When an option is out of range or the engine cannot be opened.
pub fn run(options: &SoakOptions) -> anyhow::Result<(Value, u64)> {
    let minutes = options.minutes;
    ensure!(
        (0.01..=10_000.0).contains(&minutes),
        "--minutes is {minutes}; allowed is 0.01 to 10000"
    );
    ensure!(
        !options.path.exists(),
        "{} is there already; the set is made anew, so name a path where nothing is",
        options.path.display()
    );
    let outcome = Soak::new(options).run();
    if options.path.is_file() {
        std::fs::remove_file(&options.path)
            .with_context(|| format!("remove {}", options.path.display()))?;
    }
    outcome
}

struct Soak<'a> {
    options: &'a SoakOptions,
    /// The version of each block that its client stored last.
    stored: RefCell<HashMap<(u64, u64), u64>>,
    version: Cell<u64>,
    random: RefCell<Random>,
    counts: RefCell<Counts>,
    leaks: RefCell<Vec<String>>,
}

impl<'a> Soak<'a> {
    fn new(options: &'a SoakOptions) -> Self {
        Self {
            options,
            stored: RefCell::default(),
            version: Cell::new(1),
            random: RefCell::new(Random::new(options.seed)),
            counts: RefCell::default(),
            leaks: RefCell::default(),
        }
    }

    fn run(self) -> anyhow::Result<(Value, u64)> {
        let opens = self.options.reopens + 1;
        let span = Duration::from_secs_f64(self.options.minutes * 60.0) / opens;
        let (mut halves, mut closed) = ([Held::default(); 2], Vec::new());
        for open in 0..opens {
            let held = self.one_opening(span)?;
            // The first opening warms the process up.
            if open > 0 || opens == 1 {
                halves[0] = halves[0].max(held[0]);
                halves[1] = halves[1].max(held[1]);
            }
            closed.push(Held::now());
        }
        self.compare("while open", halves[0], halves[1]);
        if let (Some(first), Some(last), true) = (closed.get(1), closed.last(), opens > 2) {
            self.compare("after a close", *first, *last);
        }
        Ok(self.report(halves, &closed))
    }

    fn one_opening(&self, span: Duration) -> anyhow::Result<[Held; 2]> {
        let engine = Engine::open(EngineConfig {
            dram_bytes: self.options.dram,
            shards: self.options.shards,
            hugepages: self.options.hugepages,
            nvme: NvmeConfig {
                paths: vec![self.options.path.clone()],
                file_bytes: Some(self.options.nvme),
                ..NvmeConfig::default()
            },
            ..EngineConfig::default()
        })
        .context("open the engine")?;
        let namespace = engine.namespace("soak")?;
        let until = now() + span;
        let mut halves = [Held::default(); 2];
        block_on(async {
            let clients = (0..CLIENTS).map(|id| self.client(&engine, namespace, id, until));
            let clients: FuturesUnordered<_> = clients.collect();
            let sampling = async {
                while now() < until {
                    async_io::Timer::after(SAMPLE_INTERVAL.min(span / 4)).await;
                    let half = usize::from(now() + span / 2 > until);
                    halves[half] = halves[half].max(Held::now());
                }
            };
            futures_lite::future::zip(clients.collect::<()>(), sampling).await;
            self.settle(&engine).await;
        });
        let report = block_on(engine.close(CLOSE_DEADLINE));
        if report.shards_unclean > 0 || report.blocks_lost > 0 {
            self.leak(format!("a close left something behind: {report:?}"));
        }
        Ok(halves)
    }

    /// Waits until nothing is pinned, leased or being written; says what stays.
    async fn settle(&self, engine: &Engine) {
        let deadline = now() + SETTLE_WAIT;
        loop {
            let gauges = engine.stats().await.gauges;
            let held = (gauges.pinned_bytes, gauges.leases, gauges.writers);
            if held == (0, 0, 0) {
                break;
            }
            if now() > deadline {
                let (pinned, leases, writers) = held;
                return self.leak(format!(
                    "{pinned} pinned bytes, {leases} leases and {writers} writers stay"
                ));
            }
            async_io::Timer::after(SAMPLE_INTERVAL / 100).await;
        }
        if !engine.check().await {
            self.leak("a shard was fenced".to_owned());
        }
    }

    fn leak(&self, what: String) {
        self.leaks.borrow_mut().push(what);
    }

    fn compare(&self, when: &str, first: Held, second: Held) {
        let pairs = [
            ("memory bytes", first.memory + MEMORY_SLACK, second.memory),
            // A thread that is kept for the next opening holds one more once it sleeps.
            (
                "descriptors",
                first.descriptors + self.options.shards as u64,
                second.descriptors,
            ),
            ("mappings", first.mappings + 8, second.mappings),
        ];
        for (what, allowed, found) in pairs {
            if found > allowed {
                self.leak(format!(
                    "{found} {when} at the end; {allowed} {what} allowed"
                ));
            }
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().bits() % bound
    }

    async fn client(&self, engine: &Engine, namespace: Namespace, id: u64, until: Instant) {
        while now() < until {
            let number = self.below(KEYS);
            let Ok(key) = namespace.key(&(id << 32 | number).to_le_bytes()) else {
                return;
            };
            self.counts.borrow_mut().calls += 1;
            let choice = self.below(20);
            let late = async {
                async_io::Timer::after(CALL_MAX).await;
                self.leak(format!("call {choice} of client {id} does not end"));
            };
            let call = self.call(engine, &key, (id, number), choice);
            futures_lite::future::or(call, late).await;
        }
    }

    async fn call(&self, engine: &Engine, key: &BlockKey, block: (u64, u64), choice: u64) {
        match choice {
            0..9 => self.read(engine, key, block).await,
            9..14 => self.put(engine, key, block, Durability::Volatile).await,
            14 | 15 => self.put(engine, key, block, Durability::Durable).await,
            16 => {
                self.stored.borrow_mut().remove(&block);
                let removed = engine.remove(key).await;
                self.count_unavailable(&removed);
            }
            17 => {
                let ttl = Duration::from_millis(self.below(50));
                let options = GetOptions::default();
                let leased = engine.lease(key, ttl, &options).await;
                self.count_unavailable(&leased);
                if let (Lookup::Hit { value, .. }, 0) = (leased, self.below(2)) {
                    engine.release(&value).await;
                }
            }
            18 => {
                let budget = Duration::from_millis(5);
                let (keys, context) = (std::slice::from_ref(key), RequestContext::default());
                engine.prefetch(keys, budget, &context).await.await;
            }
            _ => self.give_up(engine, key, block).await,
        }
    }

    /// A lookup that its caller drops in the middle.
    async fn give_up(&self, engine: &Engine, key: &BlockKey, block: (u64, u64)) {
        let late = async {
            async_io::Timer::after(Duration::from_micros(self.below(300))).await;
        };
        futures_lite::future::or(self.read(engine, key, block), late).await;
    }

    async fn read(&self, engine: &Engine, key: &BlockKey, block: (u64, u64)) {
        let found = engine.get(key, &GetOptions::default()).await;
        self.count_unavailable(&found);
        let version = self.stored.borrow().get(&block).copied();
        let mut counts = self.counts.borrow_mut();
        match found {
            Lookup::Hit { value, .. } => {
                counts.hits += 1;
                let right = version.is_some_and(|version| {
                    value.len() as u64 == len_of(version) && payload::verify(version, &value)
                });
                if !right {
                    counts.wrong += 1;
                    let first = || format!("block {block:?} is not version {version:?}");
                    counts.first_wrong.get_or_insert_with(first);
                }
            }
            Lookup::Miss => counts.misses += 1,
            Lookup::Unavailable(_) => {}
        }
    }

    async fn put(
        &self,
        engine: &Engine,
        key: &BlockKey,
        block: (u64, u64),
        durability: Durability,
    ) {
        let version = self.version.get();
        self.version.set(version + 1);
        let options = PutOptions {
            durability,
            ..PutOptions::default()
        };
        let len = len_of(version);
        let fill = |slot: &mut [u8]| payload::fill(version, slot);
        match engine.put_with(key, len, &options, fill).await {
            PutOutcome::Stored { .. } => {
                self.stored.borrow_mut().insert(block, version);
            }
            PutOutcome::AlreadyExists { .. } | PutOutcome::Rejected(_) => {}
            PutOutcome::Busy => self.counts.borrow_mut().busy += 1,
        }
    }

    fn count_unavailable<T>(&self, found: &Lookup<T>) {
        let failed = matches!(found, Lookup::Unavailable(_));
        self.counts.borrow_mut().unavailable += u64::from(failed);
    }

    fn report(self, halves: [Held; 2], closed: &[Held]) -> (Value, u64) {
        let (counts, leaks) = (self.counts.into_inner(), self.leaks.into_inner());
        let faults = counts.wrong + leaks.len() as u64;
        let closed = closed.iter().map(|held| held.to_json()).collect::<Vec<_>>();
        let report = json!({
            "calls": counts.calls,
            "hits": counts.hits,
            "misses": counts.misses,
            "busy": counts.busy,
            "unavailable": counts.unavailable,
            "wrong": counts.wrong,
            "first_wrong": counts.first_wrong,
            "first_half": halves[0].to_json(),
            "second_half": halves[1].to_json(),
            "closed": closed,
            "leaks": leaks,
        });
        (report, faults)
    }
}

/// Lengths are spread over the classes; most are short.
const fn len_of(version: u64) -> u64 {
    let mix = version.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let top = if mix.is_multiple_of(16) {
        LEN_MAX
    } else {
        LEN_MAX / 8
    };
    LEN_MIN + mix % (top - LEN_MIN)
}
