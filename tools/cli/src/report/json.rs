//! The report as one JSON object. Numbers that may need all of 64 bits are hexadecimal text.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use terrace_nvme::format::{FORMAT_VERSION, SUPERBLOCK_OFFSETS, Sequence};
use terrace_nvme::set::SetMedium;

use super::{ReportOptions, SegmentTally, live_blocks, segment_blocks};
use crate::inspect::catalog::{Tally, Usage};
use crate::inspect::device::Device;
use crate::inspect::findings::{hex, printable};
use crate::inspect::segment::{Entry, Segment};
use crate::inspect::set::{SetView, state_word};
use crate::inspect::survey::{Origin, SuperblockCopy};
use crate::inspect::{Finding, Inspection, Severity};

#[derive(Serialize)]
struct Report<'a> {
    set: Value,
    devices: Vec<Value>,
    usage: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<SegmentList<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<KeyList<'a>>,
    verified: Value,
    damage: Vec<Value>,
    notices: Vec<Value>,
    errors: &'a [String],
    exit_code: u8,
}

/// Turned into text one by one: a set has many.
struct SegmentList<'a>(&'a Inspection);

impl Serialize for SegmentList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.segments.iter().map(segment))
    }
}

/// Turned into text one by one: a set has many.
struct KeyList<'a>(&'a Inspection);

impl Serialize for KeyList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let blocks = live_blocks(self.0);
        serializer.collect_seq(blocks.iter().map(|(name, segment, entry)| {
            let mut value = key(name, &entry.key);
            place(&mut value, segment, entry);
            value
        }))
    }
}

/// Writes the report.
///
/// # Errors
/// What the operating system said.
pub fn write(
    out: &mut dyn Write,
    inspection: &Inspection,
    options: ReportOptions,
) -> io::Result<()> {
    let devices = inspection.devices.iter().enumerate();
    let findings = |severity| {
        let found = inspection.findings.iter();
        let found = found.filter(|finding: &&Finding| finding.severity == severity);
        found.map(|it| finding(inspection, it)).collect()
    };
    let verified = inspection.verified.map(|verified| {
        json!({
            "blocks": verified.blocks,
            "bytes": verified.bytes,
            "seconds": verified.elapsed.as_secs_f64(),
        })
    });
    let report = Report {
        set: inspection
            .set
            .as_ref()
            .map_or(Value::Null, |it| set(inspection, it)),
        devices: devices.map(|(at, it)| device(inspection, at, it)).collect(),
        usage: usage(&inspection.usage),
        segments: options.segments.then_some(SegmentList(inspection)),
        keys: options.keys.then_some(KeyList(inspection)),
        verified: verified.unwrap_or(Value::Null),
        damage: findings(Severity::Damage),
        notices: findings(Severity::Notice),
        errors: &inspection.errors,
        exit_code: inspection.exit_code(),
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    writeln!(out)
}

fn set(inspection: &Inspection, set: &SetView) -> Value {
    let path = |given: Option<usize>| {
        let device = given.and_then(|at| inspection.devices.get(at));
        device.map(|it| it.medium.name().to_owned())
    };
    let devices = set.devices.iter().map(|it| {
        json!({
            "id": it.listed.id.to_string(),
            "len": it.listed.len,
            "state": state_word(it.listed.state),
            "last_set_epoch": it.listed.last_set_epoch,
            "path": path(it.given),
        })
    });
    json!({
        "id": set.set_id.to_string(),
        "node_id": set.node_id.to_string(),
        "set_epoch": set.set_epoch,
        "open_epoch": set.open_epoch,
        "closed_cleanly": set.closed_cleanly,
        "shards": set.shards,
        "devices": devices.collect::<Vec<_>>(),
        "missing": set.missing().map(|it| it.id.to_string()).collect::<Vec<_>>(),
    })
}

fn device(inspection: &Inspection, at: usize, device: &Device) -> Value {
    let tally = SegmentTally::of(inspection, at);
    let geometry = device.geometry.as_ref();
    let superblock = device.superblock();
    let copies = device.survey.copies.iter().zip(SUPERBLOCK_OFFSETS);
    json!({
        "path": device.medium.name(),
        "kind": if device.medium.is_disk { "block device" } else { "file" },
        "direct": device.medium.is_direct,
        "len": device.medium.len(),
        "sector": device.medium.sector(),
        "id": device.id().map(|id| id.to_string()),
        "set_id": superblock.map(|it| it.set_id.to_string()),
        "node_id": superblock.map(|it| it.node_id.to_string()),
        "format_version": superblock.map(|_| FORMAT_VERSION),
        "device_len": superblock.map(|it| it.device_len),
        "set_epoch": superblock.map(|it| it.set_epoch),
        "open_epoch": superblock.map(|it| it.open_epoch),
        "closed_cleanly": superblock.map(|it| it.closed_cleanly),
        "shards": superblock.map(|it| it.shards),
        "superblocks": copies.map(|(it, offset)| copy(it, offset)).collect::<Vec<_>>(),
        "segment_len": geometry.map(|it| it.segment_len),
        "geometry_from": geometry.map(|it| match it.origin {
            Origin::Superblock => "superblock",
            Origin::Given => "argument",
            Origin::Head(_) => "segment head",
        }),
        "segments": {
            "all": tally.all,
            "free": tally.free,
            "used": tally.used(),
            "ready": tally.ready,
            "sealed": tally.sealed,
            "unsealed": tally.unsealed,
            "footer_damaged": tally.footer_damaged,
            "head_damaged": tally.head_damaged,
            "unreadable": tally.unreadable,
            "cut_off": tally.cut,
        },
    })
}

fn copy(copy: &SuperblockCopy, offset: u64) -> Value {
    let (state, why) = match copy {
        SuperblockCopy::Valid(_) => ("valid", None),
        SuperblockCopy::Damaged(error) => ("damaged", Some(error.to_string())),
        SuperblockCopy::Later(_) => ("later version", None),
        SuperblockCopy::Absent => ("none", None),
        SuperblockCopy::Unreadable(error) => ("unreadable", Some(error.clone())),
    };
    let write_count = match copy {
        SuperblockCopy::Valid(superblock) => Some(superblock.write_count),
        _ => None,
    };
    json!({ "offset": offset, "state": state, "write_count": write_count, "why": why })
}

fn usage(usage: &Usage) -> Value {
    let tally = |tally: Tally| json!({ "blocks": tally.blocks, "bytes": tally.bytes });
    let namespaces = usage
        .namespaces
        .iter()
        .map(|it| json!({ "name": &*it.name, "live": tally(it.live), "dead": tally(it.dead) }));
    json!({
        "blocks": usage.live.blocks + usage.dead.blocks,
        "payload_bytes": usage.live.bytes + usage.dead.bytes,
        "live": tally(usage.live),
        "dead": tally(usage.dead),
        "tombstones": usage.tombstones,
        "namespace_tombstones": usage.namespace_tombstones,
        "checkpoints": tally(usage.checkpoints),
        "namespaces": namespaces.collect::<Vec<_>>(),
    })
}

fn sequence(sequence: Sequence) -> Value {
    json!({ "open_epoch": sequence.open_epoch(), "counter": sequence.counter() })
}

fn segment(segment: &Segment) -> Value {
    let head = segment.head.as_ref();
    let (blocks, live, live_bytes) = segment_blocks(segment);
    json!({
        "device": segment.device,
        "number": segment.number,
        "state": segment.state.word(),
        "shard": head.map(|it| it.shard),
        "shards": head.map(|it| it.shards),
        "sequence": head.map(|it| sequence(it.sequence)),
        "end_units": head.map(|_| segment.end_units),
        "entries": segment.entries.len(),
        "blocks": blocks,
        "live_blocks": live,
        "live_bytes": live_bytes,
    })
}

fn key(namespace: &str, key: &[u8]) -> Value {
    json!({ "namespace": namespace, "key": hex(key), "key_text": printable(key) })
}

fn place(value: &mut Value, segment: &Segment, entry: &Entry) {
    value["len"] = entry.len.into();
    value["sequence"] = sequence(entry.sequence);
    value["device"] = segment.device.into();
    value["segment"] = segment.number.into();
    value["unit"] = entry.place.into();
    value["checksum"] = format!("{:016x}", entry.checksum.0).into();
    value["damaged"] = entry.damaged.into();
}

fn finding(inspection: &Inspection, finding: &Finding) -> Value {
    let device = finding.device.and_then(|at| inspection.devices.get(at));
    let block = finding.block.as_ref().map(|block| {
        let mut value = key(&block.namespace, &block.key);
        value["len"] = block.len.into();
        value["live"] = block.live.into();
        value
    });
    json!({
        "path": device.map(|it| it.medium.name()),
        "device": finding.device,
        "segment": finding.segment.map(|(segment, _)| segment),
        "unit": finding.segment.map(|(_, unit)| unit),
        "what": finding.what,
        "block": block,
    })
}
