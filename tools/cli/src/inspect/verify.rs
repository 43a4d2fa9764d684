//! Reading all of a sealed segment: its frame heads, and every payload that its footer names.
//!
//! The units are visited in order, so that a segment is read once from its start to its end.

use std::sync::Arc;

use terrace_nvme::format::{EntryKind, FrameView, SegmentHead, units};

use super::device::Device;
use super::segment::{Segment, SegmentState};
use super::units::{UnitReader, Unsound};
use super::{BlockName, Finding, InspectOptions, VerifyTotals, parallel, walk};

/// Verifies all sealed segments; the payloads of others were read by a walk.
pub(super) fn verify_all(
    devices: &[Device],
    segments: &mut [Segment],
    names: &[Arc<str>],
    findings: &mut Vec<Finding>,
    options: &InspectOptions,
) -> VerifyTotals {
    let is_sealed = |segment: &&Segment| segment.state == SegmentState::Sealed;
    let payload = |segment: &Segment| -> u64 {
        let entries = segment.entries.iter();
        entries.map(|entry| u64::from(entry.len)).sum()
    };
    let total = segments.iter().filter(is_sealed).map(payload).sum();
    let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let bar = super::bar(total, style, options.progress);
    bar.set_message("payloads");
    let count_up = |bytes: u64| bar.inc(bytes);
    let verified = parallel::map(segments.len(), |at| {
        let segment = segments.get(at).filter(is_sealed)?;
        let device = devices.get(segment.device)?;
        let (head, len) = (segment.head?, device.geometry.as_ref()?.segment_len);
        let mut reader = UnitReader::new(&device.medium, segment.number, len);
        Some(verify(&mut reader, segment, &head, names, &count_up))
    });
    let mut totals = VerifyTotals {
        elapsed: bar.elapsed(),
        ..VerifyTotals::default()
    };
    bar.finish_and_clear();
    for (segment, verified) in segments.iter_mut().zip(verified) {
        match verified {
            Some(verified) => {
                totals.blocks += verified.blocks;
                totals.bytes += verified.bytes;
                take_verified(segment, names, verified, findings);
            }
            // A walk has read them.
            None => {
                let read = segment.entries.iter();
                totals.blocks += read.filter(|it| has_payload(it.kind)).count() as u64;
                totals.bytes += payload(segment);
            }
        }
    }
    totals
}

fn take_verified(
    segment: &mut Segment,
    names: &[Arc<str>],
    verified: Verified,
    findings: &mut Vec<Finding>,
) {
    let (device, number) = (segment.device, segment.number);
    for (unit, what) in verified.frame_heads {
        let what = format!("the frame head here is damaged ({what}); the footer stands in for it");
        findings.push(Finding::damage((device, number, unit), what));
    }
    for unit in verified.torn_frames {
        let what = "a frame that was cut off before it was durable".to_owned();
        findings.push(Finding::notice((device, number, unit), what));
    }
    for (at, unsound) in verified.payloads {
        let Some(entry) = segment.entries.get_mut(at) else {
            continue;
        };
        entry.damaged = true;
        let name = names.get(entry.name as usize).map_or("", |name| name);
        let mut block = BlockName::new(name, &entry.key, entry.len);
        block.live = Some(entry.live);
        let what = unsound.describe(entry.checksum);
        let finding = Finding::damage((device, number, entry.place), what);
        findings.push(finding.with(Some(block)));
    }
}

/// What is wrong with a sealed segment.
#[derive(Debug, Default)]
struct Verified {
    /// Payloads that do not match: place among the segment's entries, and why.
    payloads: Vec<(usize, Unsound)>,
    /// Units where a frame head should be that leads to payloads.
    frame_heads: Vec<(u32, String)>,
    /// Units where a frame is that never became whole. A crash leaves those.
    torn_frames: Vec<u32>,
    /// Payloads read.
    blocks: u64,
    /// Bytes of them.
    bytes: u64,
}

/// One pass over a segment.
struct Pass<'p, 'a> {
    reader: &'p mut UnitReader<'a>,
    segment: &'p Segment,
    names: &'p [Arc<str>],
    /// Entries with a payload, by its place.
    order: Vec<usize>,
    next: usize,
    found: Verified,
    progress: &'p (dyn Fn(u64) + Sync),
}

/// Verifies a sealed segment; `progress` is told the bytes of each payload.
fn verify(
    reader: &mut UnitReader<'_>,
    segment: &Segment,
    head: &SegmentHead,
    names: &[Arc<str>],
    progress: &(dyn Fn(u64) + Sync),
) -> Verified {
    let entries = segment.entries.iter().enumerate();
    let with_payload = entries.filter(|(_, entry)| has_payload(entry.kind));
    let mut order: Vec<usize> = with_payload.map(|(place, _)| place).collect();
    order.sort_by_key(|place| segment.entries.get(*place).map(|entry| entry.place));
    let mut pass = Pass {
        reader,
        segment,
        names,
        order,
        next: 0,
        found: Verified::default(),
        progress,
    };
    // What is empty lies at unit 0.
    pass.check_until(1);
    pass.run(head);
    pass.check_until(u32::MAX);
    pass.found
}

/// Whether entries of a kind have a payload.
const fn has_payload(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::Block | EntryKind::Checkpoint)
}

impl Pass<'_, '_> {
    fn run(&mut self, head: &SegmentHead) {
        let end = self.segment.end_units.min(self.reader.given);
        let mut at = 1;
        // Why there is no frame head where one should be, until the next one.
        let mut gap: Option<(u32, String)> = None;
        while at < end {
            let failure = match walk::head_at(self.reader, head, at) {
                Ok(Some(bytes)) => {
                    gap = None;
                    at = self.check_frame(head, at, &bytes);
                    continue;
                }
                Ok(None) => "the device does not give this unit".to_owned(),
                Err(what) => what,
            };
            let is_first = gap.is_none();
            let (start, what) = gap.get_or_insert((at, failure)).clone();
            match self.next_place().filter(|place| *place <= at) {
                // A payload without a frame head that leads to it.
                Some(place) => {
                    if self.found.frame_heads.last().map(|(unit, _)| *unit) != Some(start) {
                        self.found.frame_heads.push((start, what));
                    }
                    at = at.max(self.check_next().unwrap_or(place + 1));
                }
                None => {
                    if is_first && self.reader.carries(at, &head.identity()) {
                        self.found.torn_frames.push(at);
                    }
                    at += 1;
                }
            }
        }
        let heads = &self.found.frame_heads;
        let is_head = |unit: &u32| heads.iter().any(|(damaged, _)| damaged == unit);
        self.found.torn_frames.retain(|unit| !is_head(unit));
    }

    fn check_frame(&mut self, head: &SegmentHead, at: u32, bytes: &[u8]) -> u32 {
        let frame = FrameView::decode(bytes, &head.identity(), at, self.reader.units);
        let end = at + frame.map_or(1, |frame| frame.frame_units);
        self.check_until(end);
        end
    }

    fn next_place(&self) -> Option<u32> {
        let entry = self.segment.entries.get(*self.order.get(self.next)?)?;
        Some(entry.place)
    }

    /// Checks the payloads that lie before a unit.
    fn check_until(&mut self, end: u32) {
        while self.next_place().is_some_and(|place| place < end) {
            self.check_next();
        }
    }

    /// Checks the next payload; returns the unit behind it.
    fn check_next(&mut self) -> Option<u32> {
        let at = *self.order.get(self.next)?;
        self.next += 1;
        let entry = self.segment.entries.get(at)?;
        let name = self.names.get(entry.name as usize)?;
        let place = (entry.place, entry.len);
        let named = (&**name, &*entry.key);
        if let Err(unsound) = self.reader.check_payload(named, place, entry.checksum) {
            self.found.payloads.push((at, unsound));
        }
        self.found.blocks += 1;
        self.found.bytes += u64::from(entry.len);
        (self.progress)(u64::from(entry.len));
        Some(entry.place + units(entry.len))
    }
}
