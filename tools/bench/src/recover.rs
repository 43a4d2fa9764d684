//! What opening a full data set costs: a child fills it with durable puts and is killed, then the
//! set is opened after the kill and once more after a clean close, round by round.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use terrace_engine::{
    Durability, Engine, EngineConfig, GetOptions, HugepageMode, Lookup, Namespace, NvmeConfig,
    PutOptions, PutOutcome, RecoveryReport, block_on,
};
use terrace_types::limits::BLOCK_LEN_MAX;

use crate::payload;
use crate::replay::{CLOSE_DEADLINE, now};

/// Durable puts in flight while the set is filled.
const FILLING: usize = 32;

/// Puts that a child does before it may be killed, in a set that is full.
const PUTS_BEFORE_KILL: u64 = 1000;

/// Blocks that are read back and verified after each opening.
const SAMPLE: u64 = 256;

/// The line by which a child says that it may be killed: with it the count of blocks it put.
const READY: &str = "filled";

/// How to measure recovery.
#[derive(Clone, Debug)]
pub struct RecoverOptions {
    /// The data set's file. It must not be there, and is removed at the end.
    pub path: PathBuf,
    /// Its length.
    pub nvme: u64,
    /// Length of each block.
    pub block_len: u64,
    /// DRAM in bytes.
    pub dram: u64,
    /// Shards of the engine.
    pub shards: usize,
    /// Kills, each followed by two openings.
    pub rounds: usize,
    /// Whether DRAM must lie on hugepages.
    pub hugepages: HugepageMode,
}

impl RecoverOptions {
    fn validate(&self) -> anyhow::Result<()> {
        let (len, rounds) = (self.block_len, self.rounds);
        ensure!(
            (8..=BLOCK_LEN_MAX).contains(&len),
            "--block-len is {len}; allowed is 8 to {BLOCK_LEN_MAX}"
        );
        ensure!(
            (1..=1000).contains(&rounds),
            "--rounds is {rounds}; allowed is 1 to 1000"
        );
        ensure!(
            !self.path.exists(),
            "{} is there already; the set is made anew, so name a path where nothing is",
            self.path.display()
        );
        Ok(())
    }

    fn open(&self) -> anyhow::Result<Engine> {
        let engine = Engine::open(EngineConfig {
            dram_bytes: self.dram,
            shards: self.shards,
            hugepages: self.hugepages,
            block_lens: vec![self.block_len],
            nvme: NvmeConfig {
                paths: vec![self.path.clone()],
                file_bytes: Some(self.nvme),
                ..NvmeConfig::default()
            },
            ..EngineConfig::default()
        });
        engine.context("open the engine")
    }
}

/// One opening.
struct Opening {
    after: &'static str,
    elapsed: Duration,
    found: RecoveryReport,
    verified: u64,
}

/// Measures; the value holds each opening, the second one the count of blocks that were wrong.
///
/// # Errors
/// When an option is out of range, a child fails, or the engine cannot be opened.
pub fn run(options: &RecoverOptions) -> anyhow::Result<(Value, u64)> {
    options.validate()?;
    let outcome = measure(options);
    if options.path.is_file() {
        std::fs::remove_file(&options.path)
            .with_context(|| format!("remove {}", options.path.display()))?;
    }
    outcome
}

fn measure(options: &RecoverOptions) -> anyhow::Result<(Value, u64)> {
    let (mut openings, mut wrong, mut first) = (Vec::new(), 0, 0);
    for _ in 0..options.rounds {
        let last = kill_under_load(options, first)?;
        for after in ["kill", "close"] {
            let opening = open_once(options, after, last)?;
            wrong += SAMPLE.min(last) - opening.verified;
            openings.push(opening);
        }
        // The numbers of the killed child's last puts are not known: they are left out.
        first = last + (1 << 20);
    }
    let rows = openings.iter().map(Opening::to_json).collect::<Vec<_>>();
    Ok((json!({ "openings": rows, "not_read_back": wrong }), wrong))
}

/// Has a child put durable blocks from number `first` on, and kills it while it does. The value
/// is the number after the last one that is known to be stored.
fn kill_under_load(options: &RecoverOptions, first: u64) -> anyhow::Result<u64> {
    let mut child = Killed(spawn(options, first)?);
    let output = child.0.stdout.take().context("the child has no output")?;
    for line in BufReader::new(output).lines() {
        let line = line.context("read what the child says")?;
        if let Some(last) = line.strip_prefix(READY) {
            return last.trim().parse().context("read the child's count");
        }
    }
    bail!("the child that fills the set ended early")
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(options: &RecoverOptions, first: u64) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("find this program")?;
    let mut command = Command::new(program);
    command
        .arg("recover")
        .arg(&options.path)
        .args(["--nvme", &options.nvme.to_string()])
        .args(["--block-len", &options.block_len.to_string()])
        .args(["--dram", &options.dram.to_string()])
        .args(["--shards", &options.shards.to_string()])
        .args(["--fill-from", &first.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command.spawn().context("start a child")
}

fn open_once(options: &RecoverOptions, after: &'static str, last: u64) -> anyhow::Result<Opening> {
    let started = now();
    let engine = options.open()?;
    let elapsed = started.elapsed();
    let namespace = engine.namespace("recover")?;
    let found = block_on(engine.stats()).recovery;
    let verified = block_on(verify(&engine, namespace, last));
    block_on(engine.close(CLOSE_DEADLINE));
    Ok(Opening {
        after,
        elapsed,
        found,
        verified,
    })
}

/// Reads the last blocks that were told to be durable; counts those that are right.
async fn verify(engine: &Engine, namespace: Namespace, last: u64) -> u64 {
    let mut verified = 0;
    for number in last.saturating_sub(SAMPLE)..last {
        let Ok(key) = namespace.key(&number.to_le_bytes()) else {
            continue;
        };
        if let Lookup::Hit { value, .. } = engine.get(&key, &GetOptions::default()).await {
            verified += u64::from(payload::verify(number, &value));
        }
    }
    verified
}

/// The child's part: puts durable blocks for good, and says when the set is full.
///
/// # Errors
/// When the engine cannot be opened or a put is not durable.
pub fn fill(options: &RecoverOptions, first: u64, say: impl Fn(&str)) -> anyhow::Result<()> {
    let engine = options.open()?;
    let namespace = engine.namespace("recover")?;
    let stats = block_on(engine.stats());
    let capacity: u64 = stats.nvme.iter().map(|device| device.bytes).sum();
    let missing = (capacity / options.block_len).saturating_sub(stats.recovery.blocks);
    let ready = first + missing.max(PUTS_BEFORE_KILL);
    block_on(async {
        let (mut puts, mut next, mut said) = (FuturesUnordered::new(), first, false);
        loop {
            while puts.len() < FILLING {
                puts.push(put(&engine, namespace, options.block_len, next));
                next += 1;
            }
            if let Some(outcome) = puts.next().await {
                outcome?;
            }
            // Puts end in any order: of all that were begun, the last ones may be under way.
            if next >= ready + FILLING as u64 && !said {
                said = true;
                while let Some(outcome) = puts.next().await {
                    outcome?;
                }
                say(&format!("{READY} {next}"));
            }
        }
    })
}

async fn put(engine: &Engine, namespace: Namespace, len: u64, number: u64) -> anyhow::Result<()> {
    let key = namespace.key(&number.to_le_bytes())?;
    let options = PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    };
    loop {
        let fill = |slot: &mut [u8]| payload::fill(number, slot);
        match engine.put_with(&key, len, &options, fill).await {
            PutOutcome::Stored { durable: true } | PutOutcome::AlreadyExists { durable: true } => {
                return Ok(());
            }
            PutOutcome::Busy => {}
            outcome => bail!("a durable put of block {number} came to {outcome:?}"),
        }
    }
}

impl Opening {
    #[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
    fn to_json(&self) -> Value {
        let found = &self.found;
        let seconds = found.time.as_secs_f64().max(1e-9);
        let index_seconds = found.index_time.as_secs_f64().max(1e-9);
        json!({
            "after": self.after,
            "open_s": self.elapsed.as_secs_f64(),
            "recovery_s": found.time.as_secs_f64(),
            "index_s": found.index_time.as_secs_f64(),
            "blocks": found.blocks,
            "bytes_read": found.bytes_read,
            "segments": found.segments,
            "segments_walked": found.segments_walked,
            "blocks_torn": found.blocks_torn,
            "blocks_per_s": found.blocks as f64 / seconds,
            "index_entries_per_s": found.entries as f64 / index_seconds,
            "gb_per_s": found.bytes_read as f64 / 1e9 / seconds,
            "read_back": self.verified,
        })
    }
}
