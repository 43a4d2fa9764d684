//! What the node measures, as samples that become Prometheus text or JSON.

use std::fmt::Write as _;

use terrace_engine::{EngineStats, hugepages};
use terrace_server::ServerCounters;

/// What one look at engine and server found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) engine: EngineStats,
    pub(crate) server: ServerCounters,
}

/// A number with a name.
pub(crate) struct Sample {
    name: String,
    label: Option<(&'static str, String)>,
    value: u64,
}

impl Sample {
    fn plain(name: &str, value: u64) -> Self {
        Self {
            name: name.to_owned(),
            label: None,
            value,
        }
    }

    fn of_device(name: &str, device: &str, value: u64) -> Self {
        Self {
            label: Some(("device", device.to_owned())),
            ..Self::plain(name, value)
        }
    }
}

/// All samples; those of one name follow each other.
pub(crate) fn samples(snapshot: &Snapshot) -> Vec<Sample> {
    let (stats, gauges) = (&snapshot.engine, &snapshot.engine.gauges);
    let fenced = |shard: &&Option<terrace_engine::ShardStats>| {
        shard.as_ref().is_none_or(|shard| shard.fenced)
    };
    let mut all: Vec<Sample> = [
        ("terrace_up", 1),
        ("terrace_shards", stats.shards.len() as u64),
        (
            "terrace_shards_fenced",
            stats.shards.iter().filter(fenced).count() as u64,
        ),
        ("terrace_dram_blocks", gauges.dram_blocks),
        ("terrace_dram_payload_bytes", gauges.payload_bytes),
        ("terrace_dram_bytes", gauges.pool.arena_bytes),
        ("terrace_dram_free_bytes", gauges.pool.free_page_bytes),
        ("terrace_index_blocks", gauges.index_blocks),
        ("terrace_slots_being_written", gauges.writers),
        ("terrace_pinned_bytes", gauges.pinned_bytes),
        ("terrace_leases", gauges.leases),
        ("terrace_overhead_bytes", gauges.overhead_bytes()),
        ("terrace_devices_missing", stats.missing.len() as u64),
        (
            "terrace_process_memory_bytes",
            hugepages::process_memory_bytes(),
        ),
    ]
    .into_iter()
    .map(|(name, value)| Sample::plain(name, value))
    .collect();
    for (name, value) in stats.counters.named() {
        all.push(Sample::plain(name, value));
    }
    let devices: Vec<_> = stats
        .nvme
        .iter()
        .map(|device| (&device.name, device.counters.named()))
        .collect();
    let names = devices.first().map_or(0, |(_, named)| named.len());
    for at in 0..names {
        for (device, named) in &devices {
            if let Some((name, value)) = named.get(at) {
                all.push(Sample::of_device(name, device, *value));
            }
        }
    }
    for (name, value) in snapshot.server.named() {
        all.push(Sample::plain(name, value));
    }
    all
}

/// The samples as Prometheus reads them.
pub(crate) fn text(samples: &[Sample]) -> String {
    let (mut out, mut last) = (String::new(), "");
    for sample in samples {
        if sample.name != last {
            let kind = match sample.name.ends_with("_total") {
                true => "counter",
                false => "gauge",
            };
            let _ = writeln!(out, "# TYPE {} {kind}", sample.name);
            last = &sample.name;
        }
        let _ = match &sample.label {
            None => writeln!(out, "{} {}", sample.name, sample.value),
            Some((label, of)) => {
                let of = of.replace('\\', "\\\\").replace('"', "\\\"");
                writeln!(out, "{}{{{label}=\"{of}\"}} {}", sample.name, sample.value)
            }
        };
    }
    out
}

/// The samples as one JSON object.
pub(crate) fn json(samples: &[Sample]) -> serde_json::Value {
    let mut object = serde_json::Map::new();
    for sample in samples {
        let key = match &sample.label {
            None => sample.name.clone(),
            Some((_, of)) => format!("{}/{of}", sample.name),
        };
        object.insert(key, sample.value.into());
    }
    serde_json::Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_one_type_for_each_name_and_escapes_labels() {
        let samples = [
            Sample::plain("terrace_up", 1),
            Sample::of_device("terrace_writes_total", "a\"b", 2),
            Sample::of_device("terrace_writes_total", "c", 3),
        ];
        let expected = "# TYPE terrace_up gauge\nterrace_up 1\n\
            # TYPE terrace_writes_total counter\n\
            terrace_writes_total{device=\"a\\\"b\"} 2\n\
            terrace_writes_total{device=\"c\"} 3\n";
        assert_eq!(text(&samples), expected);
    }

    #[test]
    fn samples_of_a_name_follow_each_other() {
        let all = samples(&Snapshot::default());
        let mut seen = std::collections::HashSet::new();
        let mut last = "";
        for sample in &all {
            if sample.name != last {
                assert!(seen.insert(&sample.name), "{} comes apart", sample.name);
                last = &sample.name;
            }
        }
    }
}
