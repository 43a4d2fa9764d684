//! The report as text.

use std::io::{self, Write};

use terrace_nvme::UNIT;
use terrace_nvme::format::{FORMAT_VERSION, Sequence};
use terrace_nvme::set::SetMedium;
use terrace_types::ByteLen;

use super::{ReportOptions, SegmentTally, findings, live_blocks, segment_blocks};
use crate::inspect::catalog::Tally;
use crate::inspect::device::Device;
use crate::inspect::segment::Segment;
use crate::inspect::set::{SetView, state_word};
use crate::inspect::survey::{Origin, SuperblockCopy};
use crate::inspect::{Inspection, VerifyTotals};

/// Writes the report.
///
/// # Errors
/// What the operating system said.
pub fn write(
    out: &mut dyn Write,
    inspection: &Inspection,
    options: ReportOptions,
) -> io::Result<()> {
    if inspection.devices.is_empty() {
        return Ok(());
    }
    match &inspection.set {
        Some(set) => write_set(out, inspection, set)?,
        None => writeln!(out, "no superblock can be read: the set is not known")?,
    }
    for (place, device) in inspection.devices.iter().enumerate() {
        write_device(out, inspection, place, device)?;
    }
    write_usage(out, inspection)?;
    if options.segments {
        write_segments(out, inspection)?;
    }
    if options.keys {
        write_keys(out, inspection)?;
    }
    if let Some(verified) = &inspection.verified {
        write_verified(out, verified)?;
    }
    findings::write(out, inspection)
}

fn row(out: &mut dyn Write, name: &str, text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(out, "  {name:<18}{text}")
}

fn write_set(out: &mut dyn Write, inspection: &Inspection, set: &SetView) -> io::Result<()> {
    writeln!(out, "set {}", set.set_id)?;
    row(out, "node", set.node_id)?;
    let epochs = format!("set epoch {}, open epoch {}", set.set_epoch, set.open_epoch);
    row(out, "epochs", epochs)?;
    row(out, "last close", closed(set.closed_cleanly))?;
    row(out, "shards", set.shards)?;
    for device in &set.devices {
        let place = match device.given {
            Some(given) => {
                let it = inspection.devices.get(given);
                it.map_or("given", |it| it.medium.name())
            }
            None => "missing",
        };
        let (id, state) = (device.listed.id, state_word(device.listed.state));
        let len = ByteLen(device.listed.len);
        row(out, "device", format!("{id}  {state}, {len}: {place}"))?;
    }
    Ok(())
}

const fn closed(cleanly: bool) -> &'static str {
    if cleanly { "clean" } else { "not clean" }
}

fn write_device(
    out: &mut dyn Write,
    inspection: &Inspection,
    place: usize,
    device: &Device,
) -> io::Result<()> {
    let medium = &device.medium;
    let kind = if medium.is_disk {
        "block device"
    } else {
        "file"
    };
    let path = if medium.is_direct {
        "read with O_DIRECT"
    } else {
        "read through the kernel's memory"
    };
    writeln!(out, "\ndevice {place}: {}", medium.name())?;
    let len = medium.len();
    row(out, "kind", format!("{kind}, {path}"))?;
    row(out, "length", format!("{} ({len} bytes)", ByteLen(len)))?;
    let id = device.id();
    row(
        out,
        "id",
        id.map_or("not known".to_owned(), |id| id.to_string()),
    )?;
    for (copy, state) in device.survey.copies.iter().enumerate() {
        row(
            out,
            &format!("superblock {copy}"),
            copy_text(device, copy, state),
        )?;
    }
    if let Some(superblock) = device.superblock() {
        row(out, "set", superblock.set_id)?;
        row(out, "node", superblock.node_id)?;
        row(out, "format version", FORMAT_VERSION)?;
        let (set_epoch, open_epoch) = (superblock.set_epoch, superblock.open_epoch);
        row(
            out,
            "epochs",
            format!("set epoch {set_epoch}, open epoch {open_epoch}"),
        )?;
        row(out, "last close", closed(superblock.closed_cleanly))?;
        row(out, "shards", superblock.shards)?;
    }
    let Some(geometry) = &device.geometry else {
        return row(out, "segments", "not known");
    };
    let origin = match geometry.origin {
        Origin::Superblock => String::new(),
        Origin::Given => ", as given".to_owned(),
        Origin::Head(number) => format!(", from the head of segment {number}"),
    };
    let segment_len = ByteLen(geometry.segment_len);
    row(out, "segment length", format!("{segment_len}{origin}"))?;
    row(
        out,
        "segments",
        tally_text(&SegmentTally::of(inspection, place)),
    )
}

fn copy_text(device: &Device, copy: usize, state: &SuperblockCopy) -> String {
    match state {
        SuperblockCopy::Valid(superblock) => {
            let is_current = device
                .survey
                .current()
                .is_some_and(|(place, _)| place == copy);
            let counts = if is_current {
                ", the one that counts"
            } else {
                ""
            };
            format!("valid, write count {}{counts}", superblock.write_count)
        }
        SuperblockCopy::Damaged(error) => format!("damaged: {error}"),
        SuperblockCopy::Later(version) => format!("of version {version}"),
        SuperblockCopy::Absent => "none".to_owned(),
        SuperblockCopy::Unreadable(error) => format!("cannot be read: {error}"),
    }
}

fn tally_text(tally: &SegmentTally) -> String {
    let mut text = format!("{}: {} free, {} used", tally.all, tally.free, tally.used());
    let parts = [
        (tally.sealed, "sealed"),
        (tally.unsealed, "unsealed, walked"),
        (tally.footer_damaged, "with a damaged footer, walked"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !parts.is_empty() {
        text += &format!(" ({})", parts.join("; "));
    }
    let others = [
        (tally.ready, "made ready"),
        (tally.head_damaged, "with a damaged head"),
        (tally.unreadable, "that cannot be read"),
        (tally.cut, "cut off"),
    ];
    for (count, what) in others.iter().filter(|(count, _)| *count > 0) {
        text += &format!(", {count} {what}");
    }
    text
}

fn tally(tally: Tally) -> String {
    format!("{} blocks, {}", tally.blocks, ByteLen(tally.bytes))
}

fn write_usage(out: &mut dyn Write, inspection: &Inspection) -> io::Result<()> {
    let usage = &inspection.usage;
    writeln!(out, "\nusage")?;
    row(out, "live", tally(usage.live))?;
    row(out, "dead", tally(usage.dead))?;
    let (keys, namespaces) = (usage.tombstones, usage.namespace_tombstones);
    row(
        out,
        "tombstones",
        format!("{keys} of keys, {namespaces} of namespaces"),
    )?;
    let checkpoints = usage.checkpoints;
    row(
        out,
        "checkpoints",
        format!("{}, {}", checkpoints.blocks, ByteLen(checkpoints.bytes)),
    )?;
    for namespace in &usage.namespaces {
        let (live, dead) = (tally(namespace.live), tally(namespace.dead));
        writeln!(
            out,
            "  namespace {}: live {live}; dead {dead}",
            namespace.name
        )?;
    }
    Ok(())
}

fn sequence(sequence: Sequence) -> String {
    format!("{}.{}", sequence.open_epoch(), sequence.counter())
}

fn write_segments(out: &mut dyn Write, inspection: &Inspection) -> io::Result<()> {
    writeln!(
        out,
        "\nsegments: device:segment state shard/shards sequence end entries blocks live live-bytes"
    )?;
    for segment in &inspection.segments {
        write_segment(out, segment)?;
    }
    Ok(())
}

fn write_segment(out: &mut dyn Write, segment: &Segment) -> io::Result<()> {
    let place = format!("{}:{}", segment.device, segment.number);
    let state = segment.state.word();
    let Some(head) = &segment.head else {
        return writeln!(out, "  {place:<9} {state}");
    };
    let (shard, shards) = (head.shard, head.shards);
    let (blocks, live, live_bytes) = segment_blocks(segment);
    let end = ByteLen(u64::from(segment.end_units) * UNIT);
    writeln!(
        out,
        "  {place:<9} {state:<14} {shard}/{shards} {} {end} {} {blocks} {live} {}",
        sequence(head.sequence),
        segment.entries.len(),
        ByteLen(live_bytes)
    )
}

fn write_keys(out: &mut dyn Write, inspection: &Inspection) -> io::Result<()> {
    writeln!(
        out,
        "\nkeys: namespace key length sequence device:segment:unit checksum"
    )?;
    for (name, segment, entry) in live_blocks(inspection) {
        let damaged = if entry.damaged { " damaged" } else { "" };
        writeln!(
            out,
            "  {name} {} {} {} {}:{}:{} {:016x}{damaged}",
            findings::key_text(&entry.key),
            entry.len,
            sequence(entry.sequence),
            segment.device,
            segment.number,
            entry.place,
            entry.checksum.0
        )?;
    }
    Ok(())
}

fn write_verified(out: &mut dyn Write, verified: &VerifyTotals) -> io::Result<()> {
    let seconds = verified.elapsed.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "printed with two digits only")]
    let rate = verified.bytes as f64 / 1e9 / seconds.max(1e-9);
    let (blocks, bytes) = (verified.blocks, ByteLen(verified.bytes));
    writeln!(
        out,
        "\nverified {blocks} payloads, {bytes}, in {seconds:.2} s ({rate:.2} GB/s)"
    )
}
