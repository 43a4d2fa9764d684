//! The segments one shard knows, and where in them a location points.
//!
//! **Invariants**
//! - A location is `segment * stride + unit` in the shard's own numbering; it means nothing to
//!   another shard, and nothing after a restart.
//! - A segment goes round: free, ready, open, sealing, sealed, reclaiming, ready.
//! - A ready segment has a durable head of its coming life and is read by nobody.

use crate::format::{SegmentIdentity, Sequence};

/// A segment in the numbering of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentIx(pub u32);

/// Where a block lies, in the numbering of one shard; below `u32::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location(pub u32);

/// What a segment is used for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing in it counts.
    Free,
    /// Its head is written; it waits to be opened.
    Ready,
    /// Frames are appended to it.
    Open,
    /// Its footer is being written.
    Sealing,
    /// Full, or found so at recovery.
    Sealed,
    /// What is kept of it is being written elsewhere.
    Reclaiming,
    /// Another shard owns it; only read here, until it is reclaimed there.
    Guest,
}

/// One segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) lane: usize,
    /// Its number on the device.
    pub(super) number: u32,
    /// First byte on the device.
    pub(super) base: u64,
    pub(super) identity: SegmentIdentity,
    /// No record lies in it that counted when a tombstone of a lower sequence was drawn: drawn
    /// itself when the segment was opened, or before.
    pub(super) opened: Sequence,
    pub(super) phase: Phase,
    /// Units of payload the index points to.
    pub(super) live_units: u32,
    /// Reads under way.
    pub(super) readers: u32,
    /// Written under another shard count: its keys belong to several shards.
    pub(super) legacy: bool,
    /// All that it holds survives power loss, as long as it is not written to.
    pub(super) proven: bool,
}

impl Segment {
    /// Moves to another phase.
    ///
    /// # Panics
    /// When the module's text does not allow the step.
    pub(super) fn transition(&mut self, to: Phase) {
        use Phase::{Free, Guest, Open, Ready, Reclaiming, Sealed, Sealing};
        let legal = matches!(
            (self.phase, to),
            (Free | Reclaiming, Ready)
                | (Ready | Sealed, Open)
                | (Open, Sealing)
                | (Sealing | Free | Reclaiming, Sealed)
                | (Sealed, Reclaiming)
                | (Guest | Reclaiming | Sealed | Ready, Free)
        );
        assert!(
            legal,
            "segment {} from {:?} to {to:?}",
            self.number, self.phase
        );
        self.phase = to;
    }
}

/// All segments of a shard.
pub(super) struct Segments {
    pub(super) list: Vec<Segment>,
    /// Units from one segment's locations to the next one's.
    stride: u32,
}

impl Segments {
    /// Segments of at most `units` each. `None` when their locations do not fit 32 bits.
    pub(super) fn new(list: Vec<Segment>, units: u32) -> Option<Self> {
        let end = (list.len() as u64).checked_mul(u64::from(units))?;
        (end < u64::from(u32::MAX)).then_some(Self {
            list,
            stride: units.max(1),
        })
    }

    pub(super) fn get(&self, ix: SegmentIx) -> &Segment {
        &self.list[ix.0 as usize]
    }

    pub(super) fn get_mut(&mut self, ix: SegmentIx) -> &mut Segment {
        &mut self.list[ix.0 as usize]
    }

    pub(super) const fn locate(&self, ix: SegmentIx, unit: u32) -> Location {
        Location(ix.0 * self.stride + unit)
    }

    pub(super) const fn split(&self, location: Location) -> (SegmentIx, u32) {
        (
            SegmentIx(location.0 / self.stride),
            location.0 % self.stride,
        )
    }

    /// The lowest sequence at which a segment was opened that may hold records, `except` left
    /// out. One that is ready holds none.
    pub(super) fn lowest_live(&self, except: SegmentIx) -> Option<Sequence> {
        self.list
            .iter()
            .enumerate()
            .filter(|(ix, segment)| {
                let empty = matches!(segment.phase, Phase::Free | Phase::Ready);
                *ix != except.0 as usize && !empty
            })
            .map(|(_, segment)| segment.opened)
            .min()
    }
}

#[cfg(test)]
#[path = "segments_tests.rs"]
mod tests;
