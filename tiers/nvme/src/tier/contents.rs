//! What a segment holds: by its footer, or by walking its frames and reading every payload.

use std::rc::Rc;

use terrace_types::Checksum;

use super::read::ReadClass;
use super::segments::{Phase, SegmentIx};
use super::{NvmeTier, units_of};
use crate::UNIT;
use crate::buffer::{AlignedBuffer, IoBuffer};
use crate::format::{
    EntryKind, EntryRef, FooterBuilder, FooterView, FrameView, SegmentIdentity,
    footer_len_from_tail,
};
use crate::ops::IoError;

/// Units looked at in one read when a frame head is searched for.
const SEARCH_UNITS: u32 = 64;

/// The entries of a segment.
pub struct Contents {
    segment: SegmentIx,
    identity: SegmentIdentity,
    units: u32,
    pub(super) footer: AlignedBuffer,
    /// Whether its frames were walked, for want of a footer.
    pub walked: bool,
    /// Blocks found by the walk whose payload did not match.
    pub damaged: u32,
    /// The device failed reads of the walk: there may be more than was found.
    pub unreadable: bool,
    /// Frames that the walk found.
    pub(super) frames: u32,
    /// Bytes read.
    pub bytes_read: u64,
}

impl Contents {
    /// The segment.
    #[must_use]
    pub const fn segment(&self) -> SegmentIx {
        self.segment
    }

    /// Its entries, in the order they were placed.
    pub fn for_each(&self, mut f: impl FnMut(&EntryRef<'_>)) {
        // Decoded before: it was built here or checked when it was read.
        if let Ok(view) = FooterView::decode(self.footer.bytes(), &self.identity, self.units) {
            view.entries().for_each(|entry| f(&entry));
        }
    }

    /// Unit behind the last frame.
    pub(super) fn end_units(&self) -> u32 {
        let view = FooterView::decode(self.footer.bytes(), &self.identity, self.units);
        view.map_or(self.units, |view| view.end_units)
    }

    /// Count of its entries.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut count = 0;
        self.for_each(|_| count += 1);
        count
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a walk found so far.
struct Walk {
    found: FooterBuilder,
    end: u32,
    frames: u32,
    damaged: u32,
    unreadable: bool,
    bytes_read: u64,
}

impl NvmeTier {
    /// The segments that hold something, oldest first; guests included.
    #[must_use]
    pub fn used_segments(&self) -> Vec<SegmentIx> {
        let state = self.state.borrow();
        let used = |phase| matches!(phase, Phase::Sealed | Phase::Guest);
        let mut list: Vec<SegmentIx> = (0..state.segments.list.len() as u32)
            .map(SegmentIx)
            .filter(|ix| used(state.segments.get(*ix).phase))
            .collect();
        list.sort_by_key(|ix| state.segments.get(*ix).identity.sequence);
        list
    }

    /// The entries of a segment that is not written to, as far as they can be read.
    pub async fn contents(self: &Rc<Self>, segment: SegmentIx) -> Contents {
        let (identity, units) = {
            let state = self.state.borrow();
            let it = state.segments.get(segment);
            (it.identity, state.lanes[it.lane].units)
        };
        if let Some(contents) = self.by_footer(segment, identity, units).await {
            return contents;
        }
        self.by_walk(segment, identity, units).await
    }

    async fn by_footer(
        self: &Rc<Self>,
        segment: SegmentIx,
        identity: SegmentIdentity,
        units: u32,
    ) -> Option<Contents> {
        let tail = self.fetch(segment, units - 1, 1).await.ok()?;
        let len = footer_len_from_tail(tail.bytes(), &identity, units).ok()?;
        let count = units_of(u64::from(len));
        if count >= units {
            return None;
        }
        let footer = if count == 1 {
            tail
        } else {
            self.fetch(segment, units - count, count).await.ok()?
        };
        FooterView::decode(footer.bytes(), &identity, units).ok()?;
        Some(Contents {
            segment,
            identity,
            units,
            bytes_read: footer.bytes().len() as u64,
            footer,
            walked: false,
            damaged: 0,
            unreadable: false,
            frames: 0,
        })
    }

    //= docs/on-disk-format.md#OD-8
    async fn by_walk(
        self: &Rc<Self>,
        segment: SegmentIx,
        identity: SegmentIdentity,
        units: u32,
    ) -> Contents {
        let mut walk = Walk {
            found: FooterBuilder::new(),
            end: 1,
            frames: 0,
            damaged: 0,
            unreadable: false,
            bytes_read: 0,
        };
        let mut at = 1;
        let (mut window, mut window_at) = (AlignedBuffer::zeroed(0), u32::MAX);
        while at < units {
            let held = (window.bytes().len() as u64 / UNIT) as u32;
            if window_at == u32::MAX || at < window_at || at >= window_at + held {
                let count = SEARCH_UNITS.min(units - at);
                match self.fetch(segment, at, count).await {
                    Ok(read) => (window, window_at) = (read, at),
                    Err(_) => {
                        // An unreadable stretch is stepped over like any damage.
                        at += count;
                        window_at = u32::MAX;
                        walk.unreadable = true;
                        continue;
                    }
                }
                walk.bytes_read += window.bytes().len() as u64;
            }
            let start = ((at - window_at) as usize) * UNIT as usize;
            let first = &window.bytes()[start..start + UNIT as usize];
            let next = match FrameView::head_len_hint(first) {
                Ok(len) => {
                    self.walk_frame(segment, identity, (at, len, units), &mut walk)
                        .await
                }
                Err(_) => None,
            };
            at = next.unwrap_or(at + 1);
        }
        let footer = super::commit::built_footer(&walk.found, walk.end, &identity);
        Contents {
            segment,
            identity,
            units,
            footer,
            walked: true,
            damaged: walk.damaged,
            unreadable: walk.unreadable,
            frames: walk.frames,
            bytes_read: walk.bytes_read,
        }
    }

    /// Takes in the frame whose head lies at `place` and has `head_len` bytes; returns where
    /// the next may be.
    async fn walk_frame(
        self: &Rc<Self>,
        segment: SegmentIx,
        identity: SegmentIdentity,
        (place, head_len, units): (u32, u32, u32),
        walk: &mut Walk,
    ) -> Option<u32> {
        let head_units = units_of(u64::from(head_len)).min(units - place);
        let head = match self.fetch(segment, place, head_units).await {
            Ok(head) => head,
            Err(_) => {
                walk.unreadable = true;
                return None;
            }
        };
        let frame = FrameView::decode(head.bytes(), &identity, place, units).ok()?;
        let end = place + frame.frame_units;
        for entry in frame.entries() {
            if matches!(entry.kind, EntryKind::Block | EntryKind::Checkpoint) {
                let payload = self
                    .fetch(segment, entry.place, units_of(u64::from(entry.len)))
                    .await;
                walk.bytes_read += u64::from(entry.len);
                walk.unreadable |= payload.is_err();
                let sound = payload.is_ok_and(|payload| is_sound(&entry, payload.bytes()));
                if !sound {
                    walk.damaged += 1;
                    continue;
                }
            }
            walk.found.push(&entry);
        }
        walk.end = walk.end.max(end);
        walk.frames += 1;
        Some(end)
    }

    /// Reads units of a segment into memory of the tier's own.
    pub(super) async fn fetch(
        self: &Rc<Self>,
        segment: SegmentIx,
        unit: u32,
        units: u32,
    ) -> Result<AlignedBuffer, IoError> {
        let buffer = AlignedBuffer::zeroed(units as usize * UNIT as usize);
        let read = self.read_units(
            segment,
            unit,
            units,
            IoBuffer::Owned(buffer),
            ReadClass::Background,
        );
        let outcome = read.await;
        outcome.result?;
        outcome
            .buffer
            .and_then(IoBuffer::owned)
            .ok_or(IoError::TimedOut)
    }
}

/// Whether a payload, with what follows it up to a whole unit, is the one that the entry names.
#[must_use]
pub fn is_sound(entry: &EntryRef<'_>, payload: &[u8]) -> bool {
    payload.get(..entry.len as usize).is_some_and(|payload| {
        Checksum::of_named(entry.namespace, entry.key, payload) == entry.checksum
    })
}
