//! A change as text: tables of tiers, shards, verbs and hops.

use terrace_types::ByteLen;

use super::look::{Change, Latency, ShardChange};

/// The change as lines for people.
pub(super) fn lines(address: &str, change: &Change) -> Vec<String> {
    let state = match (change.old, change.ready) {
        (true, _) => "a shard does not answer",
        (false, true) => "ready",
        (false, false) => "opens or drains",
    };
    let restarted = if change.restarted {
        ", started again"
    } else {
        ""
    };
    let memory = ByteLen(change.memory_bytes);
    let mut all = vec![format!(
        "{address}: {state}{restarted}, memory {memory}, over {:.1} s",
        change.seconds
    )];
    for table in [
        dram(&change.shards),
        nvme(&change.shards),
        server(&change.shards),
        latencies("VERB", &change.requests),
        latencies("HOP", &change.hops),
    ] {
        // A table without rows says nothing.
        if table.len() > 1 {
            all.push(String::new());
            all.extend(aligned(&table));
        }
    }
    all.push(String::new());
    all.extend(change.shards.iter().flat_map(in_force));
    all
}

type Table = Vec<Vec<String>>;

fn head(names: &[&str]) -> Table {
    vec![names.iter().map(|name| (*name).to_owned()).collect()]
}

fn dram(shards: &[ShardChange]) -> Table {
    let mut table = head(&[
        "DRAM",
        "fill",
        "of",
        "blocks",
        "payload",
        "pinned",
        "hits",
        "lookups/s",
        "puts/s",
        "promoted/s",
        "demoted/s",
        "evicted/s",
    ]);
    for shard in shards {
        let dram = &shard.dram;
        let name = match shard.fenced {
            true => format!("shard {} fenced", shard.shard),
            false => format!("shard {}", shard.shard),
        };
        table.push(vec![
            name,
            percent(Some(dram.fill_ratio)),
            bytes(dram.bytes as f64),
            dram.blocks.to_string(),
            bytes(dram.payload_bytes as f64),
            bytes(dram.pinned_bytes as f64),
            percent(dram.hit_ratio),
            rate(dram.lookups_per_second),
            rate(dram.puts_per_second),
            rate(dram.promotions_per_second),
            rate(dram.demotions_per_second),
            rate(dram.evictions_per_second),
        ]);
    }
    table
}

fn nvme(shards: &[ShardChange]) -> Table {
    let mut table = head(&[
        "NVME",
        "device",
        "health",
        "fill",
        "of",
        "free segments",
        "hits",
        "reads/s",
        "read/s",
        "written/s",
        "write waits/s",
        "wait p50",
        "wait p99",
    ]);
    for shard in shards {
        for device in &shard.nvme {
            let health = match device.health {
                0 => "good",
                1 => "read only",
                _ => "offline",
            };
            table.push(vec![
                format!("shard {}", shard.shard),
                device.device.clone(),
                health.to_owned(),
                percent(Some(device.fill_ratio)),
                bytes(device.bytes as f64),
                device.segments_free.to_string(),
                percent(device.hit_ratio),
                rate(device.reads_per_second),
                bytes(device.read_bytes_per_second),
                bytes(device.written_bytes_per_second),
                rate(device.write_waits_per_second),
                time(device.wait.p50_us),
                time(device.wait.p99_us),
            ]);
        }
    }
    table
}

fn server(shards: &[ShardChange]) -> Table {
    let mut table = head(&[
        "SERVER",
        "connections",
        "requests/s",
        "under way",
        "slots filling",
        "unsent",
        "received/s",
        "sent/s",
        "slow/s",
        "get p50",
        "get p99",
        "put p50",
        "put p99",
    ]);
    for shard in shards {
        let server = &shard.server;
        table.push(vec![
            format!("shard {}", shard.shard),
            server.connections.to_string(),
            rate(server.requests_per_second),
            server.requests_under_way.to_string(),
            shard.dram.slots_being_written.to_string(),
            bytes(server.unsent_bytes as f64),
            bytes(server.received_bytes_per_second),
            bytes(server.sent_bytes_per_second),
            rate(server.slow_per_second),
            time(server.get.p50_us),
            time(server.get.p99_us),
            time(server.put.p50_us),
            time(server.put.p99_us),
        ]);
    }
    table
}

fn latencies<'a>(
    what: &str,
    latencies: impl IntoIterator<Item = (&'a String, &'a Latency)>,
) -> Table {
    let mut table = head(&[what, "count/s", "p50", "p99"]);
    for (name, latency) in latencies {
        table.push(vec![
            name.clone(),
            rate(latency.per_second),
            time(latency.p50_us),
            time(latency.p99_us),
        ]);
    }
    table
}

fn in_force(shard: &ShardChange) -> Vec<String> {
    let name = format!("shard {}", shard.shard);
    let pages = &shard.in_force.pages;
    let mut all = Vec::new();
    if !pages.is_empty() {
        all.push(format!("{name}: DRAM on {pages}"));
    }
    let rings = shard.in_force.rings.iter();
    all.extend(rings.map(|ring| format!("{name}: {ring}")));
    all
}

/// The rows of a table as lines: first column to the left, others to the right.
fn aligned(table: &Table) -> Vec<String> {
    let columns = table.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = table.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(at, (cell, width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells
            .collect::<Vec<String>>()
            .join("  ")
            .trim_end()
            .to_owned()
    };
    table.iter().map(line).collect()
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1}%", ratio * 100.0))
}

fn rate(per_second: f64) -> String {
    if per_second == 0.0 {
        return "-".to_owned();
    }
    let digits = usize::from(per_second < 10.0);
    format!("{per_second:.digits$}")
}

fn bytes(count: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1.0 {
        return "-".to_owned();
    }
    let (mut count, mut unit) = (count, 0);
    while count >= 1024.0 && unit + 1 < UNITS.len() {
        (count, unit) = (count / 1024.0, unit + 1);
    }
    let digits = usize::from(unit > 0 && count < 100.0);
    format!("{count:.digits$} {}", UNITS[unit])
}

fn time(us: Option<f64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us < 1000.0 => format!("{us:.0} us"),
        Some(us) if us < 1_000_000.0 => format!("{:.1} ms", us / 1000.0),
        Some(us) => format!("{:.1} s", us / 1_000_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_units() {
        assert_eq!(bytes(0.0), "-");
        assert_eq!(bytes(1000.0), "1000 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(300.0 * 1024.0 * 1024.0), "300 MiB");
        assert_eq!(time(Some(12.3)), "12 us");
        assert_eq!(time(Some(12_340.0)), "12.3 ms");
        assert_eq!(time(Some(3_400_000.0)), "3.4 s");
        assert_eq!(
            (rate(0.0), rate(2.51), rate(1234.5)),
            ("-".into(), "2.5".into(), "1234".into())
        );
        assert_eq!(
            (percent(None), percent(Some(0.5))),
            ("-".into(), "50.0%".into())
        );
    }

    #[test]
    fn columns_stand_below_each_other() {
        let mut table = head(&["A", "long"]);
        table.push(vec!["shard 0".to_owned(), "1".to_owned()]);
        assert_eq!(aligned(&table), ["A        long", "shard 0     1"]);
    }
}
