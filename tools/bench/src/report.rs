//! What a replay came to, for people and for programs.

#![expect(clippy::print_stdout, reason = "printing is what this module is for")]

mod remote;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use terrace_engine::{DeviceGauges, RingReport, TierCounters};
use terrace_sim::trace::Trace;
use terrace_types::ByteLen;

use crate::replay::{ReplayOptions, ReplayOutcome};

pub use remote::{print_remote_json, print_remote_table};

#[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
fn micros(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
fn gigabytes(outcome: &ReplayOutcome) -> f64 {
    outcome.bytes as f64 / 1e9
}

/// Bytes per second in GB, over the time that was not the client's own.
#[must_use]
pub fn gb_per_s(outcome: &ReplayOutcome) -> f64 {
    let busy = outcome.elapsed.saturating_sub(outcome.client).as_secs_f64();
    if busy > 0.0 {
        gigabytes(outcome) / busy
    } else {
        0.0
    }
}

/// CPU seconds per GB, without the client's own work.
#[must_use]
pub fn cpu_s_per_gb(outcome: &ReplayOutcome) -> f64 {
    let bytes = gigabytes(outcome);
    if bytes > 0.0 {
        outcome.cpu.as_secs_f64() / bytes
    } else {
        0.0
    }
}

fn backing(outcome: &ReplayOutcome) -> String {
    let shards = outcome.stats.shards.iter().flatten();
    let mut kinds: Vec<String> = shards.map(|shard| shard.backing.to_string()).collect();
    kinds.sort();
    kinds.dedup();
    kinds.join("+")
}

/// Bytes written to devices for each byte of blocks written for the first time.
#[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
fn write_amplification(nvme: &TierCounters) -> f64 {
    if nvme.payload_bytes == 0 {
        return 0.0;
    }
    nvme.bytes_written as f64 / nvme.payload_bytes as f64
}

fn rings(outcome: &ReplayOutcome) -> impl Iterator<Item = &RingReport> {
    let shards = outcome.stats.shards.iter().flatten();
    shards.flat_map(|shard| &shard.rings)
}

fn any_ring(outcome: &ReplayOutcome, holds: impl Fn(&RingReport) -> bool) -> bool {
    rings(outcome).any(holds)
}

fn all_rings(outcome: &ReplayOutcome, holds: impl Fn(&RingReport) -> bool) -> bool {
    rings(outcome).next().is_some() && rings(outcome).all(holds)
}

fn devices(outcome: &ReplayOutcome) -> Vec<Value> {
    let device = |device: &DeviceGauges| {
        json!({
            "name": device.name,
            "health": format!("{:?}", device.health),
            "draining": device.draining,
            "bytes": device.bytes,
            "live_bytes": device.live_bytes,
            "segments_used": device.segments_used,
            "segments_free": device.segments_free,
        })
    };
    outcome.stats.nvme.iter().map(device).collect()
}

fn nvme_json(outcome: &ReplayOutcome) -> Value {
    let nvme = outcome.stats.nvme_counters();
    let counters = &outcome.stats.counters;
    json!({
        "hits": outcome.nvme_hits,
        "p50_us": micros(&outcome.nvme_ns, 0.5),
        "p99_us": micros(&outcome.nvme_ns, 0.99),
        "bytes_read": nvme.bytes_read,
        "bytes_written": nvme.bytes_written,
        "payload_bytes_written": nvme.payload_bytes,
        "blocks_written": nvme.blocks_written,
        "reinsertions": nvme.reinsertions,
        "reinserted_bytes": nvme.reinserted_bytes,
        "demand_reads": nvme.demand_reads,
        "prefetch_reads": nvme.prefetch_reads,
        "background_reads": nvme.background_reads,
        "prefetched": counters.prefetched,
        "prefetched_used": counters.prefetched_used,
        "prefetched_unused": counters.prefetched_unused,
        "prefetch_cancelled": counters.prefetch_cancelled,
        "flushes": nvme.flushes,
        "frames": nvme.frames,
        "segments_reclaimed": nvme.segments_reclaimed,
        "evictions": counters.below_evictions,
        "devices": devices(outcome),
    })
}

fn in_force_json(outcome: &ReplayOutcome) -> Value {
    json!({
        "hugepages": backing(outcome),
        "odirect": !outcome.stats.nvme.is_empty(),
        "registered_buffers": all_rings(outcome, |ring| ring.fixed_buffers),
        "registered_files": all_rings(outcome, |ring| ring.registered_files),
        "iopoll": any_ring(outcome, |ring| ring.polled),
        "sqpoll": any_ring(outcome, |ring| ring.sq_poll),
        "vectored_fixed_writes": "not used",
        "tier_below": if outcome.stats.nvme.is_empty() { "none" } else { "nvme" },
    })
}

fn puts_json(outcome: &ReplayOutcome) -> Value {
    json!({
        "stored": outcome.puts.stored,
        "exists": outcome.puts.exists,
        "rejected": outcome.puts.rejected,
        "busy": outcome.puts.busy,
        "p50_us": micros(&outcome.put_ns, 0.5),
        "p99_us": micros(&outcome.put_ns, 0.99),
    })
}

/// The report as one JSON value.
#[must_use]
pub fn to_json(outcome: &ReplayOutcome) -> Value {
    let gauges = &outcome.stats.gauges;
    let counters = &outcome.stats.counters;
    let nvme = outcome.stats.nvme_counters();
    let recovery = outcome.stats.recovery;
    json!({
        "requests": outcome.requests,
        "accesses": outcome.accesses,
        "dram": {
            "hits": outcome.dram_hits,
            "p50_us": micros(&outcome.dram_ns, 0.5),
            "p99_us": micros(&outcome.dram_ns, 0.99),
        },
        "nvme": nvme_json(outcome),
        "misses": outcome.misses,
        "unavailable": outcome.unavailable,
        "verify_failures": outcome.verify_failures,
        "puts": puts_json(outcome),
        "evictions": counters.evictions,
        "write_amplification": write_amplification(&nvme),
        "gb_per_s": gb_per_s(outcome),
        "cpu_s_per_gb": cpu_s_per_gb(outcome),
        "elapsed_s": outcome.elapsed.as_secs_f64(),
        "client_s": outcome.client.as_secs_f64(),
        "memory_bytes": outcome.memory_bytes,
        "memory": {
            "arena_bytes": gauges.pool.arena_bytes,
            "index_bytes": gauges.index.records,
            "key_bytes": gauges.index.keys,
            "policy_bytes": gauges.policy.resident,
            "ghost_bytes": gauges.policy.ghosts,
            "slab_bookkeeping_bytes": gauges.pool_bytes,
        },
        "recovery": {
            "blocks": recovery.blocks,
            "payload_bytes": recovery.payload_bytes,
            "bytes_read": recovery.bytes_read,
            "segments": recovery.segments,
            "segments_walked": recovery.segments_walked,
            "seconds": recovery.time.as_secs_f64(),
        },
        "closed": outcome.closed.map(|closed| json!({
            "blocks_written": closed.blocks_written,
            "blocks_lost": closed.blocks_lost,
            "devices_clean": closed.devices_clean,
        })),
        "in_force": in_force_json(outcome),
    })
}

/// Prints the report as one JSON object.
///
/// # Errors
/// When it cannot be turned into text.
pub fn print_json(outcome: &ReplayOutcome) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(&to_json(outcome))?);
    Ok(())
}

/// Prints a line at once, for whoever waits for it.
pub fn print_line(line: &str) {
    println!("{line}");
}

/// Prints the report as a table.
pub fn print_table(trace: &Trace, options: &ReplayOptions, outcome: &ReplayOutcome) {
    let gauges = &outcome.stats.gauges;
    println!(
        "replay of {}: {} requests, {} blocks",
        trace.name, outcome.requests, outcome.accesses
    );
    row(
        "policy",
        format!(
            "{}, {} shard(s)",
            options.policy.to_uppercase(),
            options.shards
        ),
    );
    row("block length", ByteLen(options.block_len).to_string());
    let pages = backing(outcome);
    row(
        "DRAM",
        format!("{} on {pages} pages", ByteLen(gauges.pool.arena_bytes)),
    );
    print_devices(outcome);
    print_outcomes(outcome);
    print_nvme(outcome);
    print_costs(outcome);
    print_index(outcome);
}

fn print_outcomes(outcome: &ReplayOutcome) {
    #[expect(clippy::cast_precision_loss, reason = "a ratio with one digit")]
    let share = |count: u64| 100.0 * count as f64 / outcome.accesses.max(1) as f64;
    row(
        "DRAM hits",
        format!("{} ({:.1}%)", outcome.dram_hits, share(outcome.dram_hits)),
    );
    row(
        "NVMe hits",
        format!("{} ({:.1}%)", outcome.nvme_hits, share(outcome.nvme_hits)),
    );
    row(
        "misses",
        format!("{} ({:.1}%)", outcome.misses, share(outcome.misses)),
    );
    row("unavailable", outcome.unavailable.to_string());
    row("wrong bytes", outcome.verify_failures.to_string());
    let puts = outcome.puts;
    let (stored, exists, rejected, busy) = (puts.stored, puts.exists, puts.rejected, puts.busy);
    row(
        "puts",
        format!("{stored} stored, {exists} existed, {rejected} rejected, {busy} busy"),
    );
}

fn print_devices(outcome: &ReplayOutcome) {
    for device in &outcome.stats.nvme {
        let (bytes, live) = (ByteLen(device.bytes), ByteLen(device.live_bytes));
        row(
            "NVMe",
            format!(
                "{}: {bytes}, {live} in use, {:?}",
                device.name, device.health
            ),
        );
    }
    if let Some(ring) = rings(outcome).last() {
        row("ring", ring);
    }
    let found = outcome.stats.recovery;
    if found.segments > 0 {
        let (payload, read) = (ByteLen(found.payload_bytes), ByteLen(found.bytes_read));
        let (segments, walked) = (found.segments, found.segments_walked);
        row(
            "recovered",
            format!(
                "{} blocks of {payload} from {segments} segments ({walked} walked), {read} read, \
                 {:.3} s",
                found.blocks,
                found.time.as_secs_f64()
            ),
        );
    }
}

fn print_nvme(outcome: &ReplayOutcome) {
    if outcome.stats.nvme.is_empty() {
        return;
    }
    let nvme = outcome.stats.nvme_counters();
    let (written, payload) = (ByteLen(nvme.bytes_written), ByteLen(nvme.payload_bytes));
    row(
        "device writes",
        format!(
            "{written} for {payload} of blocks: {:.3}; {} blocks written again",
            write_amplification(&nvme),
            nvme.reinsertions
        ),
    );
    let (demand, background) = (nvme.demand_reads, nvme.background_reads);
    row(
        "device reads",
        format!(
            "{}: {demand} demand, {} prefetch, {background} background",
            ByteLen(nvme.bytes_read),
            nvme.prefetch_reads
        ),
    );
    let counters = &outcome.stats.counters;
    if counters.prefetched > 0 {
        let (used, unused) = (counters.prefetched_used, counters.prefetched_unused);
        row(
            "read ahead",
            format!(
                "{}: {used} used, {unused} not used; {} cancelled",
                counters.prefetched, counters.prefetch_cancelled
            ),
        );
    }
    if let Some(closed) = outcome.closed {
        row(
            "closed",
            format!(
                "{} blocks written, {} lost, {}",
                closed.blocks_written,
                closed.blocks_lost,
                if closed.devices_clean {
                    "clean"
                } else {
                    "not clean"
                }
            ),
        );
    }
}

fn row(name: &str, text: impl std::fmt::Display) {
    println!("  {name:<22}{text}");
}

fn print_latency(name: &str, histogram: &Histogram<u64>) {
    if !histogram.is_empty() {
        let (p50, p99) = (micros(histogram, 0.5), micros(histogram, 0.99));
        row(name, format_args!("p50 {p50:.1} us, p99 {p99:.1} us"));
    }
}

fn print_costs(outcome: &ReplayOutcome) {
    print_latency("DRAM hit", &outcome.dram_ns);
    print_latency("NVMe hit", &outcome.nvme_ns);
    print_latency("put", &outcome.put_ns);
    row("throughput", format_args!("{:.2} GB/s", gb_per_s(outcome)));
    row("CPU", format_args!("{:.3} s per GB", cpu_s_per_gb(outcome)));
    let (elapsed, client) = (outcome.elapsed.as_secs_f64(), outcome.client.as_secs_f64());
    row(
        "elapsed",
        format_args!("{elapsed:.2} s, {client:.2} s of it on payloads"),
    );
    row("memory", ByteLen(outcome.memory_bytes));
}

fn print_index(outcome: &ReplayOutcome) {
    let gauges = &outcome.stats.gauges;
    let index = ByteLen(gauges.index.records + gauges.policy.resident);
    let (keys, ghosts) = (ByteLen(gauges.index.keys), ByteLen(gauges.policy.ghosts));
    row(
        "index with policy",
        format_args!("{index}, keys {keys}, ghosts {ghosts}"),
    );
}
