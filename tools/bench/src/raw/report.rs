//! What was measured, for people and for programs.

#![expect(clippy::print_stdout, reason = "printing is what this module is for")]

use serde_json::{Value, json};
use terrace_types::ByteLen;

use super::meter::Sample;
use super::{Cell, Mode, ModeSamples, RawOptions, RawOutcome};

/// The middle of the values, or the mean of the two middle ones; `None` without any.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(*values.get(low)?, *values.get(high)?))
}

impl ModeSamples {
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(self.rounds.iter().map(of)).unwrap_or(0.0)
    }

    fn written_gb_per_s(&self) -> Option<f64> {
        median(self.rounds.iter().filter_map(Sample::written_gb_per_s))
    }

    /// The median over rounds of this mode's throughput as a share of another's.
    fn share_of(&self, other: &Self) -> Option<f64> {
        let pairs = self.rounds.iter().zip(&other.rounds);
        median(pairs.map(|(own, other)| own.gb_per_s() / other.gb_per_s().max(1e-9)))
    }

    fn sum(&self, of: impl Fn(&super::meter::EngineShare) -> u64) -> u64 {
        let shares = self
            .rounds
            .iter()
            .filter_map(|sample| sample.engine.as_ref());
        shares.map(of).sum()
    }

    /// Share of lookups that DRAM answered.
    #[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
    fn dram_hit_share(&self) -> f64 {
        let hits = self.sum(|engine| engine.dram_hits);
        let ios: u64 = self.rounds.iter().map(|sample| sample.ios).sum();
        hits as f64 / (hits + ios).max(1) as f64
    }
}

impl Cell {
    fn mode(&self, mode: Mode) -> Option<&ModeSamples> {
        self.modes.iter().find(|samples| samples.mode == mode)
    }

    fn hash_us(&self) -> f64 {
        median(self.hash_us.iter().copied()).unwrap_or(0.0)
    }

    /// CPU time of an engine's operation without its hash.
    fn cpu_without_hash(&self, samples: &ModeSamples) -> Option<f64> {
        let hashes = samples.mode.needs_engine() || samples.mode.only_hashes();
        hashes.then(|| samples.median(Sample::cpu_us_per_io) - self.hash_us())
    }
}

fn sample_json(sample: &Sample) -> Value {
    json!({
        "ios": sample.ios,
        "bytes": sample.bytes,
        "elapsed_s": sample.elapsed.as_secs_f64(),
        "cpu_s": sample.cpu.as_secs_f64(),
        "gb_per_s": sample.gb_per_s(),
        "iops": sample.iops(),
        "p50_us": sample.latency_us(0.5),
        "p99_us": sample.latency_us(0.99),
        "cpu_us_per_io": sample.cpu_us_per_io(),
        "enters_per_io": sample.enters_per_io,
        "bytes_per_flush": sample.bytes_per_flush,
        "written_gb_per_s": sample.written_gb_per_s(),
        "engine": sample.engine.as_ref().map(|engine| json!({
            "dram_hits": engine.dram_hits,
            "failures": engine.failures,
            "first_failure": engine.first_failure,
            "bytes_written": engine.bytes_written,
            "payload_bytes": engine.payload_bytes,
            "flushes": engine.flushes,
        })),
    })
}

fn mode_json(cell: &Cell, samples: &ModeSamples) -> Value {
    let share_of = |mode| cell.mode(mode).and_then(|other| samples.share_of(other));
    json!({
        "mode": samples.mode.name(),
        "gb_per_s": samples.median(Sample::gb_per_s),
        "iops": samples.median(Sample::iops),
        "p50_us": samples.median(|sample| sample.latency_us(0.5)),
        "p99_us": samples.median(|sample| sample.latency_us(0.99)),
        "cpu_us_per_io": samples.median(Sample::cpu_us_per_io),
        "cpu_us_per_io_without_hash": cell.cpu_without_hash(samples),
        "written_gb_per_s": samples.written_gb_per_s(),
        "share_of_ring": share_of(Mode::Ring),
        "share_of_ring_hash": share_of(Mode::RingHash),
        "share_of_hybrid": share_of(Mode::Hybrid),
        "dram_hit_share": samples.mode.needs_engine().then(|| samples.dram_hit_share()),
        "failures": samples.mode.needs_engine().then(|| samples.sum(|engine| engine.failures)),
        "rounds": samples.rounds.iter().map(sample_json).collect::<Vec<_>>(),
    })
}

/// The report as one JSON value.
#[must_use]
pub fn to_json(options: &RawOptions, outcome: &RawOutcome) -> Value {
    let cells = outcome.cells.iter().map(|cell| {
        json!({
            "rw": options.rw.name(),
            "bs": cell.len,
            "iodepth": cell.iodepth,
            "memory_bytes": cell.memory_bytes,
            "flush_every": cell.flush_every.map(|(bytes, _)| bytes),
            "flush_every_of_engine": cell.flush_every.map(|(_, of_engine)| of_engine),
            "hash_us": cell.hash_us(),
            "modes": cell.modes.iter().map(|mode| mode_json(cell, mode)).collect::<Vec<_>>(),
        })
    });
    json!({
        "kernel": outcome.kernel,
        "device": outcome.device,
        "hugepages": outcome.hugepages,
        "ring": outcome.ring,
        "load_before": outcome.load[0],
        "load_after": outcome.load[1],
        "rounds": options.rounds,
        "seconds": options.span.as_secs_f64(),
        "cells": cells.collect::<Vec<_>>(),
    })
}

/// Prints the report as one JSON object.
///
/// # Errors
/// When it cannot be turned into text.
pub fn print_json(options: &RawOptions, outcome: &RawOutcome) -> anyhow::Result<()> {
    println!(
        "{}",
        serde_json::to_string_pretty(&to_json(options, outcome))?
    );
    Ok(())
}

/// Prints the report as a table: medians over the rounds.
pub fn print_table(options: &RawOptions, outcome: &RawOutcome) {
    println!(
        "Linux {}; {}; memory on {} pages; {}",
        outcome.kernel, outcome.device, outcome.hugepages, outcome.ring
    );
    println!(
        "{} rounds of {} s in turns, medians; load {} before, {} after",
        options.rounds,
        options.span.as_secs_f64(),
        outcome.load[0],
        outcome.load[1]
    );
    for cell in &outcome.cells {
        print_cell(options, cell);
    }
}

fn print_cell(options: &RawOptions, cell: &Cell) {
    println!();
    println!(
        "{}, {}, depth {}; {} of memory; hashing a block costs {:.1} us CPU",
        options.rw.name(),
        ByteLen(cell.len),
        cell.iodepth,
        ByteLen(cell.memory_bytes),
        cell.hash_us()
    );
    if let Some((bytes, of_engine)) = cell.flush_every {
        let whence = if of_engine {
            ", as the engine does"
        } else {
            ""
        };
        println!("  a flush after {}{whence}", ByteLen(bytes));
    }
    println!(
        "  {:<16}{:>8}{:>10}{:>11}{:>11}{:>12}{:>12}{:>9}{:>11}{:>11}",
        "",
        "GB/s",
        "IOPS",
        "p50 us",
        "p99 us",
        "CPU us/IO",
        "without",
        "of ring",
        "of hashed",
        "of hybrid"
    );
    for samples in &cell.modes {
        print_mode(cell, samples);
    }
}

fn print_mode(cell: &Cell, samples: &ModeSamples) {
    let share = |mode| {
        let share = cell.mode(mode).and_then(|other| samples.share_of(other));
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", share * 100.0))
    };
    let without = cell.cpu_without_hash(samples);
    println!(
        "  {:<16}{:>8.3}{:>10.0}{:>11.1}{:>11.1}{:>12.2}{:>12}{:>9}{:>11}{:>11}",
        samples.mode.name(),
        samples.median(Sample::gb_per_s),
        samples.median(Sample::iops),
        samples.median(|sample| sample.latency_us(0.5)),
        samples.median(|sample| sample.latency_us(0.99)),
        samples.median(Sample::cpu_us_per_io),
        without.map_or_else(|| "-".to_owned(), |us| format!("{us:.2}")),
        share(Mode::Ring),
        share(Mode::RingHash),
        share(Mode::Hybrid)
    );
    if let Some(written) = samples.written_gb_per_s() {
        println!("  {:<16}{written:.3} GB/s written meanwhile", "");
    }
    let dram = samples.dram_hit_share() * 100.0;
    if dram > 0.0 {
        println!(
            "  {:<16}{dram:.1}% of its lookups were DRAM hits, and not counted",
            ""
        );
    }
    let failures = samples.sum(|engine| engine.failures);
    let firsts = samples
        .rounds
        .iter()
        .filter_map(|sample| sample.engine.as_ref());
    if let Some(first) = firsts
        .filter_map(|engine| engine.first_failure.as_deref())
        .next()
    {
        println!("  {:<16}{failures} calls failed; the first: {first}", "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
    }
}
