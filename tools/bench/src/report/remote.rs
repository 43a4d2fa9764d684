//! What a replay to a node came to: the lookups and costs of any replay, and what a network adds.

use serde_json::{Value, json};
use terrace_sim::trace::Trace;
use terrace_types::ByteLen;

use super::{cpu_s_per_gb, gb_per_s, micros, print_costs, print_outcomes, puts_json, row};
use crate::remote::{RemoteOptions, RemoteOutcome};

fn to_json(outcome: &RemoteOutcome) -> Value {
    let (replay, failures, client) = (&outcome.replay, &outcome.failures, outcome.client);
    json!({
        "requests": replay.requests,
        "accesses": replay.accesses,
        "dram": {
            "hits": replay.dram_hits,
            "p50_us": micros(&replay.dram_ns, 0.5),
            "p99_us": micros(&replay.dram_ns, 0.99),
        },
        "nvme": {
            "hits": replay.nvme_hits,
            "p50_us": micros(&replay.nvme_ns, 0.5),
            "p99_us": micros(&replay.nvme_ns, 0.99),
        },
        "misses": replay.misses,
        "unavailable": replay.unavailable,
        "verify_failures": replay.verify_failures,
        "puts": puts_json(replay),
        "failures": {
            "unavailable": failures.unavailable,
            "timed_out": failures.timed_out,
            "connection_lost": failures.connection_lost,
            "refused": failures.refused,
            "corrupt": failures.corrupt,
            "other": failures.other,
            "first": failures.first,
        },
        "client": {
            "connects": client.connects,
            "connect_failures": client.connect_failures,
            "retries": client.retries,
            "timeouts": client.timeouts,
            "one_sided_gets": client.one_sided_gets,
            "pulled_puts": client.pulled_puts,
            "one_sided_fallbacks": client.one_sided_fallbacks,
            "rails_lost": client.rails_lost,
            "one_sided_fault": outcome.one_sided_fault,
        },
        "shards": outcome.shards,
        "gb_per_s": gb_per_s(replay),
        "cpu_s_per_gb": cpu_s_per_gb(replay),
        "elapsed_s": replay.elapsed.as_secs_f64(),
        "client_s": replay.client.as_secs_f64(),
        "memory_bytes": replay.memory_bytes,
    })
}

/// Prints the report of a replay to a node as one JSON object.
///
/// # Errors
/// When it cannot be turned into text.
pub fn print_remote_json(outcome: &RemoteOutcome) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(&to_json(outcome))?);
    Ok(())
}

/// Prints the report of a replay to a node as a table.
pub fn print_remote_table(trace: &Trace, options: &RemoteOptions, outcome: &RemoteOutcome) {
    let replay = &outcome.replay;
    println!(
        "replay of {} to {}: {} requests, {} blocks",
        trace.name, options.address, replay.requests, replay.accesses
    );
    let (shards, threads) = (outcome.shards, options.threads);
    row(
        "node",
        format!("{shards} shard(s), namespace {}", options.name()),
    );
    row("threads", format!("{threads}, iodepth {}", options.iodepth));
    row("block length", ByteLen(options.block_len).to_string());
    print_outcomes(replay);
    let failures = &outcome.failures;
    row(
        "calls without answer",
        format!(
            "{} not available, {} timed out, {} connection lost, {} refused, {} corrupt, {} other",
            failures.unavailable,
            failures.timed_out,
            failures.connection_lost,
            failures.refused,
            failures.corrupt,
            failures.other
        ),
    );
    if let Some(first) = &failures.first {
        row("the first of them", first);
    }
    let client = outcome.client;
    row(
        "connections",
        format!(
            "{} made, {} attempts failed; {} blocks asked for again",
            client.connects, client.connect_failures, client.retries
        ),
    );
    if options.one_sided.is_some() {
        print_one_sided(outcome);
    }
    print_costs(replay);
}

fn print_one_sided(outcome: &RemoteOutcome) {
    let client = outcome.client;
    row(
        "one-sided",
        format!(
            "{} blocks read, {} pulled, {} over connections; rails lost {} times",
            client.one_sided_gets,
            client.pulled_puts,
            client.one_sided_fallbacks,
            client.rails_lost
        ),
    );
    if let Some(fault) = &outcome.one_sided_fault {
        row("why over connections", fault);
    }
    for rail in &outcome.rails {
        let (name, moved) = (&rail.link.name, ByteLen(rail.figures.moved_len));
        row("rail", format!("{name}: {moved} moved"));
    }
}
