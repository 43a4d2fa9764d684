//! The table: medians of the rounds, and ratios to the bare exchange and to the peers.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;

use crate::measure::{Sample, real};
use crate::shape::Shape;

/// Samples by shape and peer.
#[derive(Default)]
pub(crate) struct Table(BTreeMap<Shape, Vec<(&'static str, Vec<Sample>)>>);

/// Medians of one peer's samples.
struct Row {
    name: &'static str,
    mib_per_second: f64,
    cpu_per_gib: f64,
    p50_us: f64,
    p99_us: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

impl Row {
    fn of(name: &'static str, samples: &[Sample]) -> Self {
        let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
        Self {
            name,
            mib_per_second: of(|sample| sample.bytes / sample.seconds / real(1 << 20)),
            cpu_per_gib: of(|sample| sample.cpu_seconds / sample.bytes * real(1 << 30)),
            p50_us: of(|sample| sample.p50_us),
            p99_us: of(|sample| sample.p99_us),
        }
    }
}

impl Table {
    pub(crate) fn add(&mut self, shape: &Shape, name: &'static str, sample: Sample) {
        let rows = self.0.entry(*shape).or_default();
        match rows.iter_mut().find(|(known, _)| *known == name) {
            Some((_, samples)) => samples.push(sample),
            None => rows.push((name, vec![sample])),
        }
    }

    /// Prints all of it. A ratio is that of the node to the row.
    pub(crate) fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "| shape | who | MiB/s | CPU-s/GiB | p50 us | p99 us | node's speed to it | node's CPU to it |"
        )?;
        writeln!(out, "|---|---|--:|--:|--:|--:|--:|--:|")?;
        for (shape, peers) in &self.0 {
            let rows = peers.iter().map(|(name, samples)| Row::of(name, samples));
            let rows: Vec<_> = rows.collect();
            let node = peers.iter().position(|(name, _)| *name == "terrace");
            let mut rows_in_order: Vec<_> = (0..rows.len()).collect();
            rows_in_order.sort_by_key(|at| rows[*at].name != "terrace");
            for at in rows_in_order {
                let row = &rows[at];
                let (speed, cpu) = match node {
                    Some(node) if node != at => ratios(&peers[node].1, &peers[at].1),
                    _ => (String::new(), String::new()),
                };
                writeln!(
                    out,
                    "| {shape} | {} | {:.0} | {:.3} | {:.0} | {:.0} | {speed} | {cpu} |",
                    row.name, row.mib_per_second, row.cpu_per_gib, row.p50_us, row.p99_us
                )?;
            }
        }
        Ok(())
    }
}

/// Speed and CPU of the node in proportion to a peer: medians of the ratios within each round, so
/// that a busy round counts for both.
fn ratios(node: &[Sample], peer: &[Sample]) -> (String, String) {
    let of = |ratio: fn(&Sample, &Sample) -> f64| {
        let all = node.iter().zip(peer).map(|(node, peer)| ratio(node, peer));
        format!("{:.2}", median(all))
    };
    (
        of(|node, peer| (node.bytes / node.seconds) / (peer.bytes / peer.seconds)),
        of(|node, peer| (node.cpu_seconds / node.bytes) / (peer.cpu_seconds / peer.bytes)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::all;

    fn sample(bytes: f64, cpu_seconds: f64) -> Sample {
        Sample {
            bytes,
            seconds: 1.0,
            cpu_seconds,
            ..Sample::default()
        }
    }

    #[test]
    fn ratio_is_the_median_of_the_rounds() {
        let node = [sample(9.0, 1.0), sample(4.0, 1.0), sample(1.0, 2.0)];
        let peer = [sample(10.0, 1.0), sample(5.0, 1.0), sample(1.0, 1.0)];
        assert_eq!(ratios(&node, &peer), ("0.90".to_owned(), "1.25".to_owned()));
    }

    #[test]
    fn table_has_a_row_for_each_shape_and_peer() {
        let shapes = all(true);
        let mut table = Table::default();
        for shape in &shapes {
            for name in ["bare", "terrace"] {
                table.add(shape, name, sample(1e9, 0.5));
            }
        }
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2 + 2 * shapes.len());
        assert!(text.contains("| get 16 x 64 KiB, 8 threads | bare | 954 | 0.537 |"));
    }
}
