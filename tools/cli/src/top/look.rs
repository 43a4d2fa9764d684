//! What a node tells of itself, and what happened between two such looks.
//!
//! **Invariants**
//! - Counters of a node that was started again count from zero: no rate is negative.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The counters of a part, by the names of their metrics.
type Counts = BTreeMap<String, u64>;

/// What `/stats` holds, as far as it is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stats {
    #[serde(rename = "terrace_start_time_seconds")]
    started: f64,
    #[serde(rename = "terrace_ready")]
    ready: u64,
    #[serde(rename = "terrace_scrape_old")]
    old: u64,
    #[serde(rename = "terrace_process_memory_bytes")]
    memory_bytes: u64,
    edges_ns: Vec<u64>,
    shards: Vec<ShardStats>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ShardStats {
    shard: u64,
    fenced: bool,
    pages: String,
    rings: Vec<String>,
    dram_bytes: u64,
    dram_free_bytes: u64,
    dram_payload_bytes: u64,
    dram_blocks: u64,
    pinned_bytes: u64,
    slots_being_written: u64,
    engine: Counts,
    server: Counts,
    devices: Vec<DeviceStats>,
    requests: BTreeMap<String, Times>,
    hops: BTreeMap<String, Times>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct DeviceStats {
    device: String,
    counts: Counts,
}

/// A histogram: how many times lie in each bucket.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Times {
    counts: Vec<u64>,
}

/// What was there, and when.
pub(super) struct Look {
    pub(super) stats: Stats,
    pub(super) at: Instant,
}

/// What happened between two looks, and what there is at the later one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Change {
    pub(super) seconds: f64,
    pub(super) ready: bool,
    /// A shard does not answer: the numbers are those of an earlier look.
    pub(super) old: bool,
    /// The node was started between the looks.
    pub(super) restarted: bool,
    pub(super) started_unix_seconds: f64,
    pub(super) memory_bytes: u64,
    pub(super) shards: Vec<ShardChange>,
    /// By verb.
    pub(super) requests: BTreeMap<String, Latency>,
    /// By hop.
    pub(super) hops: BTreeMap<String, Latency>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ShardChange {
    pub(super) shard: u64,
    pub(super) fenced: bool,
    pub(super) dram: Dram,
    pub(super) nvme: Vec<Device>,
    pub(super) server: Server,
    pub(super) in_force: InForce,
}

/// The DRAM tier of a shard.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Dram {
    pub(super) bytes: u64,
    pub(super) fill_ratio: f64,
    pub(super) payload_bytes: u64,
    pub(super) blocks: u64,
    pub(super) pinned_bytes: u64,
    pub(super) slots_being_written: u64,
    /// `None` without lookups.
    pub(super) hit_ratio: Option<f64>,
    pub(super) lookups_per_second: f64,
    pub(super) puts_per_second: f64,
    pub(super) promotions_per_second: f64,
    pub(super) demotions_per_second: f64,
    pub(super) evictions_per_second: f64,
}

/// A shard's share of a device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Device {
    pub(super) device: String,
    /// 0 good, 1 read only, 2 offline.
    pub(super) health: u64,
    pub(super) bytes: u64,
    pub(super) fill_ratio: f64,
    pub(super) segments_free: u64,
    /// Of lookups that DRAM did not answer, over all devices of the shard; `None` without any.
    pub(super) hit_ratio: Option<f64>,
    pub(super) reads_per_second: f64,
    pub(super) read_bytes_per_second: f64,
    pub(super) written_bytes_per_second: f64,
    pub(super) write_waits_per_second: f64,
    /// Waits of requests for the shard's tiers.
    pub(super) wait: Latency,
}

/// A shard's part of the server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Server {
    pub(super) connections: u64,
    pub(super) requests_under_way: u64,
    pub(super) unsent_bytes: u64,
    pub(super) requests_per_second: f64,
    pub(super) slow_per_second: f64,
    pub(super) received_bytes_per_second: f64,
    pub(super) sent_bytes_per_second: f64,
    pub(super) get: Latency,
    pub(super) put: Latency,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct InForce {
    pub(super) pages: String,
    pub(super) rings: Vec<String>,
}

/// How often something was, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) per_second: f64,
    /// `None` when there was none.
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

impl Change {
    pub(super) fn between(before: &Look, now: &Look) -> Self {
        let span = now.at.saturating_duration_since(before.at);
        let restarted = before.stats.started.total_cmp(&now.stats.started).is_ne();
        let span = span.max(Duration::from_millis(1));
        let none = ShardStats::default();
        let earlier = |shard: &ShardStats| {
            let known = before.stats.shards.iter();
            let mut same = known.filter(|known| known.shard == shard.shard);
            same.next().filter(|_| !restarted)
        };
        let pairs = now.stats.shards.iter().map(|shard| Pair {
            // A shard that did not answer has no rates; one that was started counts from zero.
            before: earlier(shard).unwrap_or(if restarted { &none } else { shard }),
            now: shard,
            seconds: span.as_secs_f64(),
            edges_ns: &now.stats.edges_ns,
        });
        let pairs: Vec<Pair<'_>> = pairs.collect();
        Self {
            seconds: span.as_secs_f64(),
            ready: now.stats.ready > 0,
            old: now.stats.old > 0,
            restarted,
            started_unix_seconds: now.stats.started,
            memory_bytes: now.stats.memory_bytes,
            requests: summed(&pairs, |shard| &shard.requests),
            hops: summed(&pairs, |shard| &shard.hops),
            shards: pairs.iter().map(Pair::change).collect(),
        }
    }
}

/// A shard at two looks.
struct Pair<'a> {
    before: &'a ShardStats,
    now: &'a ShardStats,
    seconds: f64,
    edges_ns: &'a [u64],
}

impl Pair<'_> {
    fn change(&self) -> ShardChange {
        let shard = self.now;
        ShardChange {
            shard: shard.shard,
            fenced: shard.fenced,
            dram: self.dram(),
            nvme: shard
                .devices
                .iter()
                .map(|device| self.device(device))
                .collect(),
            server: self.server(),
            in_force: InForce {
                pages: shard.pages.clone(),
                rings: shard.rings.clone(),
            },
        }
    }

    fn dram(&self) -> Dram {
        let shard = self.now;
        let engine = |name: &str| self.grown(|shard| &shard.engine, name);
        let hits = engine("terrace_dram_hits_total");
        let lookups = hits + engine("terrace_below_hits_total") + engine("terrace_misses_total");
        let used = shard.dram_bytes.saturating_sub(shard.dram_free_bytes);
        Dram {
            bytes: shard.dram_bytes,
            fill_ratio: ratio(used, shard.dram_bytes).unwrap_or(0.0),
            payload_bytes: shard.dram_payload_bytes,
            blocks: shard.dram_blocks,
            pinned_bytes: shard.pinned_bytes,
            slots_being_written: shard.slots_being_written,
            hit_ratio: ratio(hits, lookups),
            lookups_per_second: self.rate(lookups),
            puts_per_second: self.rate(engine("terrace_puts_stored_total")),
            promotions_per_second: self.rate(engine("terrace_promotions_total")),
            demotions_per_second: self.rate(engine("terrace_demotions_total")),
            evictions_per_second: self.rate(engine("terrace_evictions_total")),
        }
    }

    fn device(&self, device: &DeviceStats) -> Device {
        let of = |name: &str| device.counts.get(name).copied().unwrap_or(0);
        let mut earlier = self.before.devices.iter();
        let earlier = earlier.find(|known| known.device == device.device);
        let grown = |name: &str| {
            let before = earlier.and_then(|earlier| earlier.counts.get(name));
            self.rate(of(name).saturating_sub(before.copied().unwrap_or(0)))
        };
        let engine = |name: &str| self.grown(|shard| &shard.engine, name);
        let hits = engine("terrace_below_hits_total");
        let reads = ["demand", "prefetch", "background"];
        let reads = reads.map(|kind| grown(&format!("terrace_nvme_{kind}_reads_total")));
        Device {
            device: device.device.clone(),
            health: of("terrace_nvme_health"),
            bytes: of("terrace_nvme_bytes"),
            fill_ratio: ratio(of("terrace_nvme_live_bytes"), of("terrace_nvme_bytes"))
                .unwrap_or(0.0),
            segments_free: of("terrace_nvme_segments_free"),
            hit_ratio: ratio(hits, hits + engine("terrace_misses_total")),
            reads_per_second: reads.iter().sum(),
            read_bytes_per_second: grown("terrace_nvme_bytes_read_total"),
            written_bytes_per_second: grown("terrace_nvme_bytes_written_total"),
            write_waits_per_second: grown("terrace_nvme_write_waits_total"),
            wait: self.latency(|shard| &shard.hops, "device"),
        }
    }

    fn server(&self) -> Server {
        let of = |name: &str| self.now.server.get(name).copied().unwrap_or(0);
        let grown = |name: &str| self.rate(self.grown(|shard| &shard.server, name));
        Server {
            connections: of("terrace_server_connections"),
            requests_under_way: of("terrace_server_requests_under_way"),
            unsent_bytes: of("terrace_server_unsent_bytes"),
            requests_per_second: grown("terrace_server_requests_total"),
            slow_per_second: grown("terrace_server_requests_slow_total"),
            received_bytes_per_second: grown("terrace_server_bytes_received_total"),
            sent_bytes_per_second: grown("terrace_server_bytes_sent_total"),
            get: self.latency(|shard| &shard.requests, "get"),
            put: self.latency(|shard| &shard.requests, "put"),
        }
    }

    /// How much a counter grew.
    fn grown(&self, of: impl Fn(&ShardStats) -> &Counts, name: &str) -> u64 {
        let count = |shard| of(shard).get(name).copied().unwrap_or(0);
        count(self.now).saturating_sub(count(self.before))
    }

    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    /// What was added to each bucket of a histogram.
    fn added(&self, of: impl Fn(&ShardStats) -> &BTreeMap<String, Times>, name: &str) -> Vec<u64> {
        let times = |shard| of(shard).get(name).map(|times| times.counts.as_slice());
        let before = times(self.before).unwrap_or_default();
        let before = before.iter().copied().chain(std::iter::repeat(0));
        let now = times(self.now).unwrap_or_default().iter();
        now.zip(before)
            .map(|(now, before)| now.saturating_sub(before))
            .collect()
    }

    fn latency(&self, of: impl Fn(&ShardStats) -> &BTreeMap<String, Times>, name: &str) -> Latency {
        latency(&self.added(of, name), self.edges_ns, self.seconds)
    }
}

/// The latencies of all shards together, by name.
fn summed(
    pairs: &[Pair<'_>],
    of: impl Fn(&ShardStats) -> &BTreeMap<String, Times>,
) -> BTreeMap<String, Latency> {
    let mut sums: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for pair in pairs {
        for name in of(pair.now).keys() {
            let added = pair.added(&of, name);
            let sum = sums.entry(name.clone()).or_default();
            sum.resize(sum.len().max(added.len()), 0);
            sum.iter_mut()
                .zip(added)
                .for_each(|(sum, more)| *sum += more);
        }
    }
    let Some(first) = pairs.first() else {
        return BTreeMap::new();
    };
    let of_sum =
        |(name, sum): (String, Vec<u64>)| (name, latency(&sum, first.edges_ns, first.seconds));
    sums.into_iter().map(of_sum).collect()
}

fn latency(counts: &[u64], edges_ns: &[u64], seconds: f64) -> Latency {
    let count: u64 = counts.iter().sum();
    Latency {
        per_second: count as f64 / seconds,
        p50_us: quantile_us(counts, edges_ns, 0.5),
        p99_us: quantile_us(counts, edges_ns, 0.99),
    }
}

/// The time in microseconds that a share of all does not pass; within a bucket by its even spread.
/// What lies past the last edge counts as that edge.
fn quantile_us(counts: &[u64], edges_ns: &[u64], share: f64) -> Option<f64> {
    let count: u64 = counts.iter().sum();
    if count == 0 {
        return None;
    }
    let wanted = share * count as f64;
    let (mut below, mut low) = (0.0, 0.0);
    for (count, edge) in counts.iter().zip(edges_ns) {
        let (count, high) = (*count as f64, *edge as f64);
        if count > 0.0 && below + count >= wanted {
            return Some((low + (high - low) * (wanted - below) / count) / 1000.0);
        }
        (below, low) = (below + count, high);
    }
    Some(low / 1000.0)
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::super::http::now;
    use super::*;

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let edges = [1000, 2000, 4000];
        assert_eq!(quantile_us(&[0, 0, 0, 0], &edges, 0.5), None);
        assert_eq!(quantile_us(&[2, 0, 0, 0], &edges, 0.5), Some(0.5));
        assert_eq!(quantile_us(&[1, 1, 2, 0], &edges, 0.75), Some(3.0));
        assert_eq!(quantile_us(&[0, 0, 0, 5], &edges, 0.99), Some(4.0));
    }

    fn stats(started: f64, hits: u64, gets: u64) -> Stats {
        let text = serde_json::json!({
            "terrace_start_time_seconds": started,
            "terrace_ready": 1,
            "terrace_of_later_versions": "anything",
            "edges_ns": [1000, 2000],
            "shards": [{
                "shard": 0, "dram_bytes": 100, "dram_free_bytes": 25,
                "engine": { "terrace_dram_hits_total": hits, "terrace_misses_total": 10 },
                "requests": { "get": { "counts": [0, gets, 0] } },
            }],
        });
        serde_json::from_value(text).unwrap()
    }

    fn change(before: Stats, now_stats: Stats) -> Change {
        let at = now();
        let before = Look { stats: before, at };
        let at = at + Duration::from_secs(2);
        let now = Look {
            stats: now_stats,
            at,
        };
        Change::between(&before, &now)
    }

    #[test]
    fn rates_are_what_was_added_in_a_second() {
        let change = change(stats(5.0, 100, 4), stats(5.0, 140, 10));
        let dram = &change.shards[0].dram;
        assert!(!change.restarted && change.ready);
        assert_eq!((dram.lookups_per_second, dram.hit_ratio), (20.0, Some(1.0)));
        assert_eq!(dram.fill_ratio, 0.75);
        let get = change.requests["get"];
        assert_eq!((get.per_second, get.p50_us), (3.0, Some(1.5)));
        assert_eq!(change.shards[0].server.get, get);
    }

    #[test]
    fn node_that_was_started_again_counts_from_zero() {
        let change = change(stats(5.0, 100, 4), stats(9.0, 30, 2));
        assert!(change.restarted);
        assert_eq!(change.shards[0].dram.hit_ratio, Some(0.75));
        assert_eq!(change.requests["get"].per_second, 1.0);
    }

    #[test]
    fn shard_that_did_not_answer_before_has_no_rates() {
        let change = change(
            Stats {
                started: 5.0,
                ..Stats::default()
            },
            stats(5.0, 30, 2),
        );
        assert_eq!(change.shards[0].dram.lookups_per_second, 0.0);
        assert_eq!(change.shards[0].dram.hit_ratio, None);
    }
}
