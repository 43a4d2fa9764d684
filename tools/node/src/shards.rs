//! What each shard does and what is in force there, and its slow requests, as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};
use terrace_engine::{DeviceGauges, ShardStats};
use terrace_server::{EDGES_NS, Histogram, Hop, SLOW_MAX, ServerReport, SlowRequest};
use terrace_types::Nanos;

use crate::samples::{Snapshot, device_counts};

/// Every shard by its number, and the edges of the histograms' buckets.
pub(crate) fn shards(snapshot: &Snapshot) -> Map<String, Value> {
    let engine = snapshot.engine.shards.iter();
    let shards: Vec<Value> = engine
        .enumerate()
        .map(|(number, stats)| {
            let server = snapshot.server.get(number).and_then(Option::as_deref);
            shard(number, stats.as_ref(), server)
        })
        .collect();
    let mut object = Map::new();
    object.insert("edges_ns".to_owned(), json!(EDGES_NS.to_vec()));
    object.insert("shards".to_owned(), shards.into());
    object
}

fn shard(number: usize, stats: Option<&ShardStats>, server: Option<&ServerReport>) -> Value {
    let mut object = Map::new();
    let mut add = |name: &str, value: Value| object.insert(name.to_owned(), value);
    add("shard", number.into());
    add("fenced", stats.is_none_or(|stats| stats.fenced).into());
    if let Some(stats) = stats {
        let gauges = &stats.gauges;
        let rings = stats.rings.iter().map(ToString::to_string);
        add("pages", stats.backing.to_string().into());
        add("rings", rings.collect());
        add("dram_bytes", gauges.pool.arena_bytes.into());
        add("dram_free_bytes", gauges.pool.free_page_bytes.into());
        add("dram_payload_bytes", gauges.payload_bytes.into());
        add("dram_blocks", gauges.dram_blocks.into());
        add("index_blocks", gauges.index_blocks.into());
        add("pinned_bytes", gauges.pinned_bytes.into());
        add("slots_being_written", gauges.writers.into());
        add("engine", counts(stats.counters.named()));
        add("devices", stats.nvme.iter().map(device).collect());
    }
    if let Some(report) = server {
        let latencies = &report.latencies;
        add("server", counts(report.counters.named()));
        add("requests", times(latencies.requests()));
        add("hops", times(latencies.hops()));
    }
    object.into()
}

fn counts(named: Vec<(&'static str, u64)>) -> Value {
    let named = named.into_iter();
    let members = named.map(|(name, count)| (name.to_owned(), count.into()));
    Value::Object(members.collect())
}

fn device(device: &DeviceGauges) -> Value {
    json!({ "device": device.name, "counts": counts(device_counts(device)) })
}

/// The histograms that are not empty.
fn times<'h>(named: impl Iterator<Item = (&'static str, &'h Histogram)>) -> Value {
    let used = named.filter(|(_, histogram)| histogram.count() > 0);
    let members = used.map(|(name, histogram)| {
        let value = json!({
            "sum_ns": histogram.sum_ns(),
            "counts": histogram.counts().to_vec(),
        });
        (name.to_owned(), value)
    });
    Value::Object(members.collect())
}

/// The last slow requests of all shards, oldest first. `clock` is the time now by the monotonic clock
/// and since the beginning of 1970.
pub(crate) fn slow(
    snapshot: &Snapshot,
    threshold_ms: u64,
    (now, unix_now): (Nanos, Duration),
) -> Value {
    let reports = snapshot.server.iter().flatten();
    let mut all: Vec<&SlowRequest> = reports.flat_map(|report| &report.slow).collect();
    all.sort_by_key(|slow| slow.arrived);
    let last = all.len().saturating_sub(SLOW_MAX);
    let one = |slow: &&SlowRequest| {
        let start = unix_now.saturating_sub(now.since(slow.arrived));
        let hops = Hop::ALL.iter().zip(slow.hops);
        let hops = hops.map(|(hop, span)| (hop.name().to_owned(), us(span)));
        json!({
            "shard": slow.shard,
            "connection": slow.connection,
            "peer": slow.peer.to_string(),
            "request": slow.request,
            "verb": slow.verb,
            "keys": slow.keys,
            "bytes_received": slow.bytes_received,
            "bytes_sent": slow.bytes_sent,
            "start_unix_ms": u64::try_from(start.as_millis()).unwrap_or(u64::MAX),
            "time_us": us(slow.time),
            "hops_us": Value::Object(hops.collect()),
        })
    };
    let requests: Vec<Value> = all[last..].iter().map(one).collect();
    json!({ "threshold_ms": threshold_ms, "requests": requests })
}

fn us(span: Duration) -> Value {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_request(shard: usize, arrived: u64) -> SlowRequest {
        SlowRequest {
            shard,
            connection: 1,
            peer: "127.0.0.1:1".parse().unwrap(),
            request: arrived,
            verb: "get",
            keys: 1,
            bytes_received: 10,
            bytes_sent: 20,
            arrived: Nanos(arrived * 1_000_000),
            time: Duration::from_micros(7),
            hops: [1, 0, 0, 2, 3].map(Duration::from_micros),
        }
    }

    #[test]
    fn slow_requests_of_all_shards_are_the_last_ones_by_time() {
        let of_shard = |shard: usize| {
            let arrivals = (0..SLOW_MAX as u64).map(|at| 2 * at + shard as u64);
            Some(Box::new(ServerReport {
                slow: arrivals.map(|at| slow_request(shard, at)).collect(),
                ..ServerReport::default()
            }))
        };
        let snapshot = Snapshot {
            server: vec![of_shard(0), None, of_shard(1)],
            ..Snapshot::default()
        };
        let clock = (Nanos(1_000_000_000), Duration::from_secs(1_700_000_000));
        let told = slow(&snapshot, 5, clock);
        let requests = told["requests"].as_array().unwrap();
        assert_eq!(requests.len(), SLOW_MAX);
        let ids: Vec<_> = requests
            .iter()
            .map(|slow| slow["request"].as_u64())
            .collect();
        assert!(
            ids.is_sorted() && ids[0] == Some(SLOW_MAX as u64),
            "{ids:?}"
        );
        assert_eq!(requests[0]["start_unix_ms"], 1_699_999_999_128_u64);
        assert_eq!(requests[0]["hops_us"]["device"], 2);
        assert_eq!(told["threshold_ms"], 5);
    }
}
