//! The rows of a simulation, and the columns that JSON, CSV and tables show of them.

use serde_json::{Value, json};
use terrace_sim::two_tier::{TwoTierOutcome, TwoTierScheme};
use terrace_sim::{Contender, Outcome};

/// One simulation of one tier.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the trace.
    pub trace: String,
    /// What was simulated.
    pub policy: Contender,
    /// Room.
    pub capacity_blocks: usize,
    /// Different blocks of the trace.
    pub unique_blocks: usize,
    /// Shards that the room was divided among.
    pub shards: usize,
    /// What it came to.
    pub outcome: Outcome,
}

/// One simulation of two tiers.
#[derive(Clone, Debug)]
pub struct TierRow {
    /// Name of the trace.
    pub trace: String,
    /// How blocks moved.
    pub scheme: TwoTierScheme,
    /// Room of DRAM.
    pub dram_blocks: usize,
    /// Room of NVMe.
    pub nvme_blocks: usize,
    /// What it came to.
    pub outcome: TwoTierOutcome,
}

/// A column: its name, what it holds, and how a table is headed where it shows it.
pub(super) struct Column<R> {
    /// Name in JSON and CSV.
    pub(super) name: &'static str,
    /// Head in a table; none when it is left out there.
    pub(super) head: Option<&'static str>,
    /// Its value in a row; null when there is none.
    pub(super) value: fn(&R) -> Value,
}

pub(super) const fn column<R>(
    name: &'static str,
    head: Option<&'static str>,
    value: fn(&R) -> Value,
) -> Column<R> {
    Column { name, head, value }
}

/// Columns of one tier.
pub(super) const COLUMNS: [Column<Row>; 23] = [
    column("trace", Some("trace"), |row| json!(row.trace)),
    column("policy", Some("policy"), |row| json!(row.policy.name())),
    column("capacity_blocks", Some("blocks"), |row| {
        json!(row.capacity_blocks)
    }),
    column("capacity_share", Some("share"), |row| {
        json!(ratio(row.capacity_blocks as u64, row.unique_blocks as u64))
    }),
    column("unique_blocks", None, |row| json!(row.unique_blocks)),
    column("shards", Some("shards"), |row| json!(row.shards)),
    column("accesses", None, |row| json!(row.outcome.hits.accesses)),
    column("hits", Some("hits"), |row| json!(row.outcome.hits.hits)),
    column("prefix_valid_hits", Some("prefix-valid"), |row| {
        json!(row.outcome.hits.prefix_valid_hits)
    }),
    column("misses", None, |row| json!(row.outcome.hits.misses())),
    column("hit_ratio", Some("hit ratio"), |row| {
        json!(ratio(row.outcome.hits.hits, row.outcome.hits.accesses))
    }),
    column("tokens", None, |row| json!(row.outcome.hits.tokens)),
    column("token_hits", None, |row| json!(row.outcome.hits.token_hits)),
    column("token_hit_ratio", Some("tokens"), |row| {
        json!(row.outcome.hits.token_hit_ratio())
    }),
    column("prefill_seconds_saved", Some("prefill s saved"), |row| {
        json!(row.outcome.hits.prefill_seconds_saved)
    }),
    column("evictions", None, |row| {
        of_policy(row, row.outcome.counts.evictions)
    }),
    column("declined", None, |row| {
        of_policy(row, row.outcome.counts.declined)
    }),
    column("without_room", None, |row| {
        of_policy(row, row.outcome.counts.without_room)
    }),
    column("policy_bytes", None, |row| {
        of_policy(row, row.outcome.policy_bytes.resident)
    }),
    column("ghost_bytes", None, |row| {
        of_policy(row, row.outcome.policy_bytes.ghosts)
    }),
    column("bytes_per_block", Some("bytes/block"), |row| {
        let bytes = row.outcome.policy_bytes;
        of_policy(
            row,
            ratio(bytes.resident + bytes.ghosts, row.capacity_blocks as u64),
        )
    }),
    column("elapsed_seconds", None, |row| {
        json!(row.outcome.elapsed.as_secs_f64())
    }),
    column("accesses_per_second", Some("million/s"), |row| {
        json!(row.outcome.accesses_per_second().round())
    }),
];

/// A number that a bound does not have.
fn of_policy(row: &Row, number: impl Into<Value>) -> Value {
    match row.policy {
        Contender::Policy(_) => number.into(),
        Contender::Bound(..) => Value::Null,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Columns of two tiers.
pub(super) const TIER_COLUMNS: [Column<TierRow>; 18] = [
    column("trace", Some("trace"), |row| json!(row.trace)),
    column("tiers", Some("tiers"), |row| json!(row.scheme.name())),
    column("policy", None, |row| json!(policy_of(row.scheme))),
    column("capacity_blocks", None, |row| {
        json!(row.dram_blocks + row.nvme_blocks)
    }),
    column("dram_blocks", Some("DRAM"), |row| json!(row.dram_blocks)),
    column("nvme_blocks", Some("NVMe"), |row| json!(row.nvme_blocks)),
    column("accesses", None, |row| json!(row.outcome.hits.accesses)),
    column("hits", None, |row| json!(row.outcome.hits.hits)),
    column("prefix_valid_hits", None, |row| {
        json!(row.outcome.hits.prefix_valid_hits)
    }),
    column("dram_hits", Some("DRAM hits"), |row| {
        json!(row.outcome.dram_hits)
    }),
    column("nvme_hits", Some("NVMe hits"), |row| {
        json!(row.outcome.nvme_hits)
    }),
    column("misses", Some("misses"), |row| {
        json!(row.outcome.hits.misses())
    }),
    column("nvme_writes", Some("writes"), |row| {
        json!(row.outcome.nvme_writes)
    }),
    column("nvme_requests", Some("requests"), |row| {
        json!(row.outcome.nvme_requests)
    }),
    column("demand_reads_prefetch_1", Some("pf 1"), |row| {
        json!(row.outcome.demand_reads[0])
    }),
    column("demand_reads_prefetch_4", Some("pf 4"), |row| {
        json!(row.outcome.demand_reads[1])
    }),
    column("demand_reads_prefetch_8", Some("pf 8"), |row| {
        json!(row.outcome.demand_reads[2])
    }),
    column("demand_reads_prefetch_chain", Some("pf chain"), |row| {
        json!(row.outcome.demand_reads[3])
    }),
];

const fn policy_of(scheme: TwoTierScheme) -> &'static str {
    match scheme {
        TwoTierScheme::RequestExcl | TwoTierScheme::RequestIncl => "P-LRU",
        _ => "LRU",
    }
}
