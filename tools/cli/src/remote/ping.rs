//! `terrace ping`: whether a node's shards are there, and by which rails their memory is reached.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use terrace_client::{
    CallOptions, Cause, ClientStats, Located, OneSided, RailReport, RailState, RdmaFlags, Region,
    RegisteredRegion, ShardPong,
};
use terrace_types::{ByteLen, Lookup, PutOutcome};

use super::said::print;
use super::{DONE, Node, NodeArgs, REJECTED, Stop, UNAVAILABLE};

/// Length of the block whose reads tell the latency: more than comes with a descriptor.
const SHORT_LEN: usize = 16 << 10;
const SHORT_READS: usize = 300;

/// Blocks whose reads tell the bandwidth, and how often they are read.
const LONG_LEN: usize = 1 << 20;
const LONG_COUNT: usize = 16;
const LONG_READS: usize = 4;

/// How long a descriptor is asked for; the node may give less.
const LEASE: Duration = Duration::from_secs(10);

/// Which node, and whether by RDMA.
#[derive(Args, Debug)]
pub struct PingArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    rdma: RdmaFlags,
}

/// What reads out of the node's memory came to.
struct Measured {
    /// Of one block of [`SHORT_LEN`], in order.
    short: Vec<Duration>,
    /// Of all of the long ones, the shortest.
    long: Duration,
    rails: Vec<RailReport>,
    stats: ClientStats,
}

/// `terrace ping`; its exit code.
///
/// # Errors
/// What ends it early.
pub fn run(args: &PingArgs) -> Result<u8, Stop> {
    let one_sided = args.rdma.options().map(OneSided::Required);
    let has_rdma = one_sided.is_some();
    let node = args.node.node_by(one_sided.unwrap_or_default())?;
    let pongs = node.client.ping(&node.options)?;
    let measured = has_rdma.then(|| measure(&node)).transpose()?;
    let text = match args.node.json {
        true => format!("{}\n", as_json(&pongs, measured.as_ref())),
        false => as_text(&pongs, measured.as_ref()),
    };
    print(text.as_bytes())?;
    Ok(DONE)
}

/// Stores blocks, reads them and removes them.
fn measure(node: &Node) -> Result<Measured, Stop> {
    // Pings of several machines at once must not take each other's blocks for their own.
    let random = RandomState::new().hash_one(std::process::id());
    let keys: Vec<Vec<u8>> = (0..=LONG_COUNT)
        .map(|at| format!("terrace-ping-{random:016x}-{at}").into_bytes())
        .collect();
    let measured = exchange(node, &keys, random);
    let removed = node.blocks.remove_batch(&keys, &node.options);
    let measured = measured?;
    removed.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(measured)
}

fn exchange(node: &Node, keys: &[Vec<u8>], seed: u64) -> Result<Measured, Stop> {
    let (memory, region) = region(node, LONG_COUNT * LONG_LEN + SHORT_LEN)?;
    let bytes = noise(seed, region.len());
    memory.copy_from(&bytes);
    let mut blocks = Vec::with_capacity(keys.len());
    for (at, key) in keys.iter().enumerate() {
        let start = at * LONG_LEN;
        let end = region.len().min(start + LONG_LEN);
        blocks.push((key.as_slice(), region.slice(start..end)?));
    }
    let blocks: Vec<(&[u8], &Region)> = blocks.iter().map(|(key, part)| (*key, part)).collect();
    store(node, &blocks)?;
    memory.copy_from(&vec![0; region.len()]);
    let (&(short_key, short), long) = blocks.split_last().ok_or_else(none)?;
    let short = latencies(node, short_key, short)?;
    let mut shortest = Duration::MAX;
    for _ in 0..LONG_READS {
        let begun = now();
        for found in node.blocks.get_regions_into(long, &node.options) {
            let found = found.map_err(|error| one_sided(node, error))?;
            if !found.is_hit() {
                return Err(none());
            }
        }
        shortest = shortest.min(begun.elapsed());
    }
    let mut read = vec![0; region.len()];
    memory.copy_to(&mut read);
    if read != bytes {
        return Err(Stop {
            code: UNAVAILABLE,
            line: "blocks came back with other bytes than were stored".to_owned(),
        });
    }
    Ok(Measured {
        short,
        long: shortest,
        rails: node.client.rails(),
        stats: node.client.stats(),
    })
}

fn region(node: &Node, len: usize) -> Result<(RegisteredRegion, Region), Stop> {
    let memory = RegisteredRegion::allocate(len)
        .map_err(|error| Stop::usage(format!("memory for blocks: {error}")))?;
    let region = node.client.register(&memory)?;
    Ok((memory, region))
}

/// A stored block is gone.
fn none() -> Stop {
    Stop {
        code: UNAVAILABLE,
        line: "blocks that were stored a moment ago are gone: the node has no room for them"
            .to_owned(),
    }
}

/// What an error says, with why nothing goes one-sided.
fn one_sided(node: &Node, error: terrace_client::Error) -> Stop {
    let mut stop = Stop::from(error);
    if let Some(fault) = node.client.one_sided_fault()
        && !stop.line.contains(&fault)
    {
        let _ = write!(stop.line, ": {fault}");
    }
    stop
}

/// Stores the blocks: the node pulls them where it can, else they are sent.
fn store(node: &Node, blocks: &[(&[u8], &Region)]) -> Result<(), Stop> {
    for put in node.blocks.put_regions_from(blocks, &node.options) {
        match put.map_err(|error| one_sided(node, error))? {
            PutOutcome::Stored { .. } | PutOutcome::AlreadyExists { .. } => {}
            PutOutcome::Rejected(reason) => {
                return Err(Stop {
                    code: REJECTED,
                    line: format!("the node does not store blocks to read: {reason}"),
                });
            }
            PutOutcome::Busy => {
                return Err(Stop {
                    code: UNAVAILABLE,
                    line: "the node has no room for blocks to read: busy".to_owned(),
                });
            }
        }
    }
    Ok(())
}

/// How long reads of one block take that nobody asks the node about.
fn latencies(node: &Node, key: &[u8], target: &Region) -> Result<Vec<Duration>, Stop> {
    let mut located = locate(node, key)?;
    let mut spans = Vec::with_capacity(SHORT_READS);
    while spans.len() < SHORT_READS {
        let begun = now();
        match node.blocks.read_located(&located, target, &node.options) {
            Ok(_) => spans.push(begun.elapsed()),
            Err(error) if matches!(error.cause(), Cause::LeaseEnded) => {
                located = locate(node, key)?;
            }
            Err(error) => return Err(one_sided(node, error)),
        }
    }
    node.blocks.release(&[located], &node.options);
    spans.sort_unstable();
    Ok(spans)
}

fn locate(node: &Node, key: &[u8]) -> Result<Located, Stop> {
    let options = CallOptions::default();
    let found = node.blocks.locate(&[key], LEASE, &options);
    match found.into_iter().next() {
        Some(Ok(Lookup::Hit { value, .. })) => Ok(value),
        Some(Err(error)) => Err(one_sided(node, error)),
        _ => Err(none()),
    }
}

/// Bytes that repeat nowhere near.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command times its calls outside of any runtime"
)]
fn now() -> Instant {
    Instant::now()
}

fn micros(span: Duration) -> u64 {
    span.as_micros() as u64
}

impl Measured {
    fn short_at(&self, share: usize) -> Duration {
        let last = self.short.len().saturating_sub(1);
        self.short
            .get(last * share / 100)
            .copied()
            .unwrap_or_default()
    }

    /// Bytes a second.
    fn bandwidth(&self) -> f64 {
        (LONG_COUNT * LONG_LEN) as f64 / self.long.as_secs_f64()
    }
}

fn state(rail: &RailReport) -> &'static str {
    match rail.figures.state {
        RailState::Up => "up",
        RailState::Resting { .. } => "down",
        RailState::Probing => "probed",
    }
}

fn as_json(pongs: &[ShardPong], measured: Option<&Measured>) -> Value {
    let shards = pongs.iter().map(|pong| {
        json!({
            "shard": pong.shard,
            "node_epoch": pong.node_epoch,
            "took_us": micros(pong.took),
        })
    });
    let mut said = json!({ "shards": shards.collect::<Vec<_>>(), "exit_code": DONE });
    if let Some(measured) = measured {
        let rails = measured.rails.iter().map(|rail| {
            json!({
                "name": rail.link.name,
                "transport": rail.link.kind.to_string(),
                "device": rail.link.device,
                "state": state(rail),
                "bytes": rail.figures.moved_len,
                "failures": rail.figures.failures,
                "bytes_per_s": rail.figures.bandwidth,
            })
        });
        said["one_sided"] = json!({
            "block_bytes": SHORT_LEN,
            "p50_us": measured.short_at(50).as_nanos() as f64 / 1e3,
            "p99_us": measured.short_at(99).as_nanos() as f64 / 1e3,
            "bytes_per_s": measured.bandwidth(),
            "pulled_puts": measured.stats.pulled_puts,
            "gets": measured.stats.one_sided_gets,
            "rails": rails.collect::<Vec<_>>(),
        });
    }
    said
}

fn as_text(pongs: &[ShardPong], measured: Option<&Measured>) -> String {
    let mut text = String::new();
    for pong in pongs {
        let (shard, epoch, took) = (pong.shard, pong.node_epoch, pong.took);
        // Writing to a text cannot fail.
        let _ = writeln!(text, "shard {shard}\tnode epoch {epoch}\t{took:.1?}");
    }
    let Some(measured) = measured else {
        return text;
    };
    let _ = writeln!(
        text,
        "one-sided\t{} in {:.1?} (p99 {:.1?})\t{:.2} GB/s at {} x {}\t{} of {} puts pulled",
        ByteLen(SHORT_LEN as u64),
        measured.short_at(50),
        measured.short_at(99),
        measured.bandwidth() / 1e9,
        LONG_COUNT,
        ByteLen(LONG_LEN as u64),
        measured.stats.pulled_puts,
        LONG_COUNT + 1,
    );
    for rail in &measured.rails {
        let _ = writeln!(
            text,
            "rail {}\t{}\t{}\t{} moved, {:.2} GB/s, {} failures",
            rail.link.name,
            rail.link.kind,
            state(rail),
            ByteLen(rail.figures.moved_len),
            rail.figures.bandwidth / 1e9,
            rail.figures.failures
        );
    }
    text
}
