//! What an inspection came to, for people and for programs.

mod findings;
pub mod json;
pub mod text;

use terrace_nvme::format::EntryKind;

use crate::inspect::Inspection;
use crate::inspect::segment::{Entry, Segment, SegmentState};

/// What is listed one by one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportOptions {
    /// Live blocks.
    pub keys: bool,
    /// Segments.
    pub segments: bool,
}

/// Segments of a device by state; those that are cut off lie behind its end.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentTally {
    all: u32,
    free: u32,
    sealed: u32,
    ready: u32,
    unsealed: u32,
    footer_damaged: u32,
    head_damaged: u32,
    unreadable: u32,
    cut: u32,
}

impl SegmentTally {
    fn of(inspection: &Inspection, device: usize) -> Self {
        let mut tally = Self::default();
        let own = inspection.segments.iter();
        for segment in own.filter(|segment| segment.device == device) {
            tally.all += 1;
            let count = match segment.state {
                SegmentState::Free => &mut tally.free,
                SegmentState::Sealed => &mut tally.sealed,
                SegmentState::Ready => &mut tally.ready,
                SegmentState::Unsealed => &mut tally.unsealed,
                SegmentState::FooterDamaged => &mut tally.footer_damaged,
                SegmentState::HeadDamaged => &mut tally.head_damaged,
                SegmentState::Unreadable => &mut tally.unreadable,
            };
            *count += 1;
        }
        let geometry = inspection.devices.get(device);
        let geometry = geometry.and_then(|device| device.geometry.as_ref());
        let all = geometry.map_or(tally.all, |geometry| geometry.segment_count);
        tally.cut = all.saturating_sub(tally.all);
        tally.all = all;
        tally
    }

    const fn used(&self) -> u32 {
        self.sealed + self.unsealed + self.footer_damaged
    }
}

/// The live blocks, by namespace and key.
fn live_blocks(inspection: &Inspection) -> Vec<(&str, &Segment, &Entry)> {
    let mut blocks = Vec::new();
    for segment in &inspection.segments {
        for entry in segment.entries.iter().filter(|entry| entry.live) {
            let name = inspection.names.get(entry.name as usize);
            blocks.push((name.map_or("", |name| &**name), segment, entry));
        }
    }
    blocks.sort_by_key(|(name, _, entry)| (*name, &entry.key));
    blocks
}

/// Blocks, live blocks and live bytes of a segment.
fn segment_blocks(segment: &Segment) -> (u64, u64, u64) {
    let (mut all, mut live, mut live_bytes) = (0, 0, 0);
    let blocks = segment.entries.iter();
    for entry in blocks.filter(|entry| entry.kind == EntryKind::Block) {
        all += 1;
        live += u64::from(entry.live);
        live_bytes += u64::from(entry.len) * u64::from(entry.live);
    }
    (all, live, live_bytes)
}
