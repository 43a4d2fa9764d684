//! What a replay came to, for people and for programs.

#![expect(clippy::print_stdout, reason = "printing is what this module is for")]

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use terrace_types::ByteLen;

use crate::replay::{ReplayOptions, ReplayOutcome};
use crate::trace::Trace;

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

/// The report as one JSON value.
#[must_use]
pub fn to_json(outcome: &ReplayOutcome) -> Value {
    let gauges = &outcome.stats.gauges;
    let counters = &outcome.stats.counters;
    json!({
        "requests": outcome.requests,
        "accesses": outcome.accesses,
        "dram": {
            "hits": outcome.dram_hits,
            "p50_us": micros(&outcome.dram_ns, 0.5),
            "p99_us": micros(&outcome.dram_ns, 0.99),
        },
        "nvme": {
            "hits": outcome.nvme_hits,
            "p50_us": micros(&outcome.nvme_ns, 0.5),
            "p99_us": micros(&outcome.nvme_ns, 0.99),
            "bytes_read": counters.promoted_bytes,
            "bytes_written": counters.demoted_bytes,
        },
        "misses": outcome.misses,
        "unavailable": outcome.unavailable,
        "verify_failures": outcome.verify_failures,
        "puts": {
            "stored": outcome.puts.stored,
            "exists": outcome.puts.exists,
            "rejected": outcome.puts.rejected,
            "busy": outcome.puts.busy,
            "p50_us": micros(&outcome.put_ns, 0.5),
            "p99_us": micros(&outcome.put_ns, 0.99),
        },
        "evictions": counters.evictions,
        "write_amplification": if counters.demoted_bytes > 0 { 1.0 } else { 0.0 },
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
        "recovery": { "blocks": 0, "bytes_read": 0, "seconds": 0.0 },
        "in_force": {
            "hugepages": backing(outcome),
            "odirect": false,
            "registered_buffers": false,
            "iopoll": false,
            "tier_below": if counters.demotions > 0 { "memory" } else { "none" },
        },
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
    #[expect(clippy::cast_precision_loss, reason = "a ratio with one digit")]
    let share = |count: u64| 100.0 * count as f64 / outcome.accesses.max(1) as f64;
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
    if options.nvme > 0 {
        row(
            "tier below",
            format!("{} in memory (no device yet)", ByteLen(options.nvme)),
        );
    }
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
    print_costs(outcome);
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
    let gauges = &outcome.stats.gauges;
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
    let index = ByteLen(gauges.index.records + gauges.policy.resident);
    let (keys, ghosts) = (ByteLen(gauges.index.keys), ByteLen(gauges.policy.ghosts));
    row(
        "index with policy",
        format_args!("{index}, keys {keys}, ghosts {ghosts}"),
    );
}
