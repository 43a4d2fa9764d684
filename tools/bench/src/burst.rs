//! An unpaced burst: more blocks than DRAM holds, stored as fast as the engine takes them, then
//! every one of them that was answered `Stored` read back and verified.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::{Value, json};
use terrace_engine::{
    Engine, EngineConfig, GetOptions, HugepageMode, Lookup, Namespace, PutOptions, PutOutcome,
    block_on, hugepages,
};
use terrace_types::limits::BLOCK_LEN_MAX;

use crate::payload;
use crate::replay::{CLOSE_DEADLINE, NvmeOptions, cpu_time, now};

/// How to burst.
#[derive(Clone, Debug)]
pub struct BurstOptions {
    /// Payload bytes to store.
    pub bytes: u64,
    /// Length of each block.
    pub block_len: u64,
    /// DRAM in bytes.
    pub dram: u64,
    /// The NVMe tier.
    pub nvme: NvmeOptions,
    /// Shards of the engine.
    pub shards: usize,
    /// Puts in flight.
    pub iodepth: usize,
    /// Whether DRAM must lie on hugepages.
    pub hugepages: HugepageMode,
}

/// One half of a burst.
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    elapsed: Duration,
    /// Time spent on making or verifying payloads.
    client: Duration,
    cpu: Duration,
}

impl Half {
    /// Bytes a second in GB, over the time that was not the client's own.
    #[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
    fn gb_per_s(&self, bytes: u64) -> f64 {
        bytes as f64
            / 1e9
            / self
                .elapsed
                .saturating_sub(self.client)
                .as_secs_f64()
                .max(1e-9)
    }

    #[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
    fn cpu_s_per_gb(&self, bytes: u64) -> f64 {
        self.cpu.saturating_sub(self.client).as_secs_f64() / (bytes as f64 / 1e9).max(1e-9)
    }
}

#[derive(Default)]
struct Tally {
    stored: Vec<u64>,
    busy: u64,
    rejected: u64,
    missing: u64,
    wrong: u64,
    unavailable: u64,
    client: Duration,
    buffers: Vec<Vec<u8>>,
}

struct Burst<'a> {
    engine: &'a Engine,
    namespace: Namespace,
    block_len: u64,
    tally: RefCell<Tally>,
}

/// Runs a burst; the value holds what came of it. The second value is the count of stored
/// blocks that were not read back right.
///
/// # Errors
/// When an option is out of range or the engine cannot be opened.
pub fn run(options: &BurstOptions) -> anyhow::Result<(Value, u64)> {
    let len = options.block_len;
    ensure!(
        (1..=BLOCK_LEN_MAX).contains(&len),
        "--block-len is {len}; allowed is 1 to {BLOCK_LEN_MAX}"
    );
    let depth = options.iodepth;
    ensure!(
        (1..=4096).contains(&depth),
        "--iodepth is {depth}; allowed is 1 to 4096"
    );
    let count = options.bytes / len;
    ensure!(
        count > 0,
        "--bytes is {}; allowed is at least one block of {len}",
        options.bytes
    );
    options.nvme.validate()?;
    options.nvme.remove();
    let outcome = run_on(options, count);
    options.nvme.remove();
    outcome
}

fn run_on(options: &BurstOptions, count: u64) -> anyhow::Result<(Value, u64)> {
    let engine = Engine::open(EngineConfig {
        dram_bytes: options.dram,
        shards: options.shards,
        hugepages: options.hugepages,
        block_lens: vec![options.block_len],
        nvme: options.nvme.config(),
        ..EngineConfig::default()
    })
    .context("open the engine")?;
    let burst = Burst {
        engine: &engine,
        namespace: engine.namespace("burst")?,
        block_len: options.block_len,
        tally: RefCell::default(),
    };
    let put = burst.half(|| async {
        let puts = stream::iter(0..count).map(|id| burst.put(id));
        puts.buffer_unordered(options.iodepth)
            .for_each(|()| async {})
            .await;
    });
    let ids = burst.tally.borrow().stored.clone();
    let get = burst.half(|| async {
        let gets = stream::iter(&ids).map(|id| burst.get(*id));
        gets.buffer_unordered(options.iodepth)
            .for_each(|()| async {})
            .await;
    });
    let stats = block_on(engine.stats());
    let memory = hugepages::process_memory_bytes();
    let tally = burst.tally.into_inner();
    block_on(engine.close(CLOSE_DEADLINE));
    let stored = tally.stored.len() as u64;
    let bytes = stored * options.block_len;
    let lost = tally.missing + tally.wrong + tally.unavailable;
    let report = json!({
        "blocks": count,
        "stored": stored,
        "busy": tally.busy,
        "rejected": tally.rejected,
        "read_back": stored - lost,
        "missing": tally.missing,
        "wrong": tally.wrong,
        "unavailable": tally.unavailable,
        "put": {
            "gb_per_s": put.gb_per_s(bytes),
            "cpu_s_per_gb": put.cpu_s_per_gb(bytes),
            "elapsed_s": put.elapsed.as_secs_f64(),
        },
        "get": {
            "gb_per_s": get.gb_per_s(bytes),
            "cpu_s_per_gb": get.cpu_s_per_gb(bytes),
            "elapsed_s": get.elapsed.as_secs_f64(),
        },
        "evictions": stats.counters.evictions,
        "device_bytes_written": stats.nvme_counters().bytes_written,
        "memory_bytes": memory,
    });
    Ok((report, lost))
}

impl Burst<'_> {
    fn half<F: Future<Output = ()>>(&self, work: impl FnOnce() -> F) -> Half {
        self.tally.borrow_mut().client = Duration::ZERO;
        let (started, cpu) = (now(), cpu_time());
        block_on(work());
        Half {
            elapsed: started.elapsed(),
            client: self.tally.borrow().client,
            cpu: cpu_time().saturating_sub(cpu),
        }
    }

    async fn put(&self, id: u64) {
        let Ok(key) = self.namespace.key(&id.to_le_bytes()) else {
            return;
        };
        let mut buffer = self.tally.borrow_mut().buffers.pop().unwrap_or_default();
        let making = now();
        buffer.resize(usize::try_from(self.block_len).unwrap_or(0), 0);
        payload::fill(id, &mut buffer);
        self.tally.borrow_mut().client += making.elapsed();
        let outcome = self.engine.put(&key, &buffer, &PutOptions::default()).await;
        let mut tally = self.tally.borrow_mut();
        tally.buffers.push(buffer);
        match outcome {
            PutOutcome::Stored { .. } | PutOutcome::AlreadyExists { .. } => tally.stored.push(id),
            PutOutcome::Busy => tally.busy += 1,
            PutOutcome::Rejected(_) => tally.rejected += 1,
        }
    }

    async fn get(&self, id: u64) {
        let Ok(key) = self.namespace.key(&id.to_le_bytes()) else {
            return;
        };
        let found = self.engine.get(&key, &GetOptions::default()).await;
        let mut tally = self.tally.borrow_mut();
        match found {
            Lookup::Hit { value, .. } => {
                let checking = now();
                let whole = value.len() as u64 == self.block_len;
                tally.wrong += u64::from(!whole || !payload::verify(id, &value));
                tally.client += checking.elapsed();
            }
            Lookup::Miss => tally.missing += 1,
            Lookup::Unavailable(_) => tally.unavailable += 1,
        }
    }
}
