//! What the node measures, as samples that become Prometheus text or JSON.

use std::fmt::Write as _;
use std::time::Duration;

use terrace_engine::{DeviceGauges, EngineStats, Health, hugepages};
use terrace_server::{EDGES_NS, Histogram, Latencies, ServerCounters, ServerReport};

use crate::help::declare;

/// What one look at engine and server found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) engine: EngineStats,
    /// Each shard's part of the server; `None` where it did not answer.
    pub(crate) server: Vec<Option<Box<ServerReport>>>,
}

impl Snapshot {
    fn server_counters(&self) -> ServerCounters {
        let mut sum = ServerCounters::default();
        let reports = self.server.iter().flatten();
        reports.for_each(|report| sum.add(&report.counters));
        sum
    }

    fn latencies(&self) -> Latencies {
        let mut sum = Latencies::default();
        let reports = self.server.iter().flatten();
        reports.for_each(|report| sum.add(&report.latencies));
        sum
    }
}

/// What is known of the process itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Process {
    /// When it started, since the beginning of 1970.
    pub(crate) started: Duration,
    pub(crate) is_ready: bool,
    /// The snapshot is of an earlier look: a shard does not answer.
    pub(crate) is_old: bool,
    pub(crate) log_lines_lost: u64,
}

/// A number, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Count(u64),
    Span(Duration),
}

/// A number with a name.
pub(crate) struct Sample {
    name: String,
    label: Option<(&'static str, String)>,
    number: Number,
}

impl Sample {
    fn plain(name: &str, count: u64) -> Self {
        Self {
            name: name.to_owned(),
            label: None,
            number: Number::Count(count),
        }
    }

    fn span(name: &str, span: Duration) -> Self {
        Self {
            number: Number::Span(span),
            ..Self::plain(name, 0)
        }
    }

    fn labelled(name: &str, label: &'static str, of: &str, count: u64) -> Self {
        Self {
            label: Some((label, of.to_owned())),
            ..Self::plain(name, count)
        }
    }
}

/// All samples; those of one name follow each other.
pub(crate) fn samples(snapshot: &Snapshot, process: &Process) -> Vec<Sample> {
    let stats = &snapshot.engine;
    let version = env!("CARGO_PKG_VERSION");
    let mut all = vec![
        Sample::plain("terrace_up", 1),
        Sample::plain("terrace_ready", process.is_ready.into()),
        Sample::plain("terrace_scrape_old", process.is_old.into()),
        Sample::labelled("terrace_info", "version", version, 1),
        Sample::span("terrace_start_time_seconds", process.started),
        Sample::plain("terrace_log_lines_lost_total", process.log_lines_lost),
    ];
    all.extend(gauges(stats));
    let counts = stats.counters.named().into_iter();
    let counts = counts.chain(snapshot.server_counters().named());
    all.extend(counts.map(|(name, count)| Sample::plain(name, count)));
    all.extend(of_devices(&stats.nvme));
    all
}

fn gauges(stats: &EngineStats) -> Vec<Sample> {
    let (gauges, recovery) = (&stats.gauges, &stats.recovery);
    let fenced = |shard: &&Option<terrace_engine::ShardStats>| {
        shard.as_ref().is_none_or(|shard| shard.fenced)
    };
    let fenced = stats.shards.iter().filter(fenced).count() as u64;
    let counts = [
        ("terrace_shards", stats.shards.len() as u64),
        ("terrace_shards_fenced", fenced),
        ("terrace_dram_blocks", gauges.dram_blocks),
        ("terrace_dram_payload_bytes", gauges.payload_bytes),
        ("terrace_dram_bytes", gauges.pool.arena_bytes),
        ("terrace_dram_free_bytes", gauges.pool.free_page_bytes),
        ("terrace_dram_ahead_bytes", gauges.ahead_bytes),
        ("terrace_slab_moves_total", gauges.pool.slab_moves),
        ("terrace_index_blocks", gauges.index_blocks),
        ("terrace_slots_being_written", gauges.writers),
        ("terrace_pinned_bytes", gauges.pinned_bytes),
        ("terrace_leases", gauges.leases),
        ("terrace_overhead_bytes", gauges.overhead_bytes()),
        ("terrace_devices_missing", stats.missing.len() as u64),
        ("terrace_recovered_blocks", recovery.blocks),
        ("terrace_recovered_blocks_torn", recovery.blocks_torn),
        ("terrace_recovered_segments_lost", recovery.segments_lost),
        (
            "terrace_process_memory_bytes",
            hugepages::process_memory_bytes(),
        ),
    ];
    let counts = counts.into_iter();
    let mut all: Vec<Sample> = counts.map(|(name, of)| Sample::plain(name, of)).collect();
    all.push(Sample::span("terrace_recovery_seconds", recovery.time));
    all
}

/// What is known of a device, by the names of metrics.
pub(crate) fn device_counts(device: &DeviceGauges) -> Vec<(&'static str, u64)> {
    let health = match device.health {
        Health::Good => 0,
        Health::ReadOnly => 1,
        Health::Offline => 2,
    };
    let mut all = vec![
        ("terrace_nvme_health", health),
        ("terrace_nvme_draining", device.draining.into()),
        ("terrace_nvme_bytes", device.bytes),
        ("terrace_nvme_live_bytes", device.live_bytes),
        ("terrace_nvme_segments_free", device.segments_free.into()),
        ("terrace_nvme_segments_used", device.segments_used.into()),
        ("terrace_nvme_late_total", device.late.into()),
    ];
    all.extend(device.counters.named());
    all
}

fn of_devices(devices: &[DeviceGauges]) -> Vec<Sample> {
    let counts: Vec<_> = devices.iter().map(device_counts).collect();
    let names = counts.first().map_or(0, Vec::len);
    let mut all = Vec::new();
    for at in 0..names {
        for (device, counts) in devices.iter().zip(&counts) {
            if let Some((name, count)) = counts.get(at) {
                all.push(Sample::labelled(name, "device", &device.name, *count));
            }
        }
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
            declare(&mut out, &sample.name, kind);
            last = &sample.name;
        }
        let _ = write!(out, "{}", sample.name);
        if let Some((label, of)) = &sample.label {
            let of = of.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = write!(out, "{{{label}=\"{}\"}}", of.replace('\n', "\\n"));
        }
        let _ = match sample.number {
            Number::Count(count) => writeln!(out, " {count}"),
            Number::Span(span) => writeln!(out, " {}", span.as_secs_f64()),
        };
    }
    out
}

/// The times of requests and hops as Prometheus reads them, each counted in the buckets of all longer
/// times too.
pub(crate) fn histograms(snapshot: &Snapshot) -> String {
    let latencies = snapshot.latencies();
    let mut out = String::new();
    let request = "terrace_server_request_seconds";
    declare(&mut out, request, "histogram");
    for (verb, histogram) in latencies.requests() {
        histogram_lines(&mut out, request, ("verb", verb), histogram);
    }
    let hop = "terrace_server_hop_seconds";
    declare(&mut out, hop, "histogram");
    for (name, histogram) in latencies.hops() {
        histogram_lines(&mut out, hop, ("hop", name), histogram);
    }
    out
}

fn histogram_lines(out: &mut String, name: &str, (label, of): (&str, &str), histogram: &Histogram) {
    let mut sum = 0;
    for (count, edge) in histogram.counts().iter().zip(EDGES_NS) {
        sum += count;
        let le = Duration::from_nanos(edge).as_secs_f64();
        let _ = writeln!(out, "{name}_bucket{{{label}=\"{of}\",le=\"{le}\"}} {sum}");
    }
    let count = histogram.count();
    let _ = writeln!(out, "{name}_bucket{{{label}=\"{of}\",le=\"+Inf\"}} {count}");
    let seconds = Duration::from_nanos(histogram.sum_ns()).as_secs_f64();
    let _ = writeln!(out, "{name}_sum{{{label}=\"{of}\"}} {seconds}");
    let _ = writeln!(out, "{name}_count{{{label}=\"{of}\"}} {count}");
}

/// The samples as the members of a JSON object.
pub(crate) fn json(samples: &[Sample]) -> serde_json::Map<String, serde_json::Value> {
    let mut object = serde_json::Map::new();
    for sample in samples {
        let key = match &sample.label {
            None => sample.name.clone(),
            Some((_, of)) => format!("{}/{of}", sample.name),
        };
        let number = match sample.number {
            Number::Count(count) => count.into(),
            Number::Span(span) => span.as_secs_f64().into(),
        };
        object.insert(key, number);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_one_type_for_each_name_and_escapes_labels() {
        let samples = [
            Sample::plain("terrace_up", 1),
            Sample::span("terrace_some_seconds", Duration::from_millis(1500)),
            Sample::labelled("terrace_writes_total", "device", "a\"b\n", 2),
            Sample::labelled("terrace_writes_total", "device", "c", 3),
        ];
        let expected = "# HELP terrace_up 1: the process answers\n\
            # TYPE terrace_up gauge\nterrace_up 1\n\
            # TYPE terrace_some_seconds gauge\nterrace_some_seconds 1.5\n\
            # TYPE terrace_writes_total counter\n\
            terrace_writes_total{device=\"a\\\"b\\n\"} 2\n\
            terrace_writes_total{device=\"c\"} 3\n";
        assert_eq!(text(&samples), expected);
    }

    #[test]
    fn samples_of_a_name_follow_each_other() {
        let all = samples(&Snapshot::default(), &Process::default());
        let mut seen = std::collections::HashSet::new();
        let mut last = "";
        for sample in &all {
            if sample.name != last {
                assert!(seen.insert(&sample.name), "{} comes apart", sample.name);
                last = &sample.name;
            }
        }
    }

    #[test]
    fn buckets_count_what_is_shorter_too() {
        let mut histogram = Histogram::default();
        for span_ns in [1, 2049, 2050, u64::MAX / 2] {
            histogram.record(span_ns);
        }
        let mut out = String::new();
        histogram_lines(&mut out, "t", ("verb", "get"), &histogram);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], "t_bucket{verb=\"get\",le=\"0.000002048\"} 1");
        assert_eq!(lines[1], "t_bucket{verb=\"get\",le=\"0.000003072\"} 3");
        assert_eq!(
            lines[EDGES_NS.len()],
            "t_bucket{verb=\"get\",le=\"+Inf\"} 4"
        );
        assert_eq!(lines[EDGES_NS.len() + 2], "t_count{verb=\"get\"} 4");
    }
}
