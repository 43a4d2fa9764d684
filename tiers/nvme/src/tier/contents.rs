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
const SEARCH_UNITS: u32 = 256;

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
    /// What was read last, and the unit that it begins with.
    window: AlignedBuffer,
    window_at: u32,
}

impl Walk {
    /// `count` units from `at` on, when the window holds them.
    fn held(&self, at: u32, count: u32) -> Option<&[u8]> {
        let from = at.checked_sub(self.window_at)? as usize * UNIT as usize;
        let to = from + count as usize * UNIT as usize;
        self.window.bytes().get(from..to)
    }
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
            window: AlignedBuffer::zeroed(0),
            window_at: 0,
        };
        let mut at = 1;
        while at < units {
            if walk.held(at, 1).is_none() {
                let count = SEARCH_UNITS.min(units - at);
                if !self.move_window(segment, (at, count), &mut walk).await {
                    // An unreadable stretch is stepped over like any damage.
                    at += count;
                    walk.unreadable = true;
                    continue;
                }
            }
            let hint = walk.held(at, 1).map(FrameView::head_len_hint);
            let next = match hint {
                Some(Ok(len)) => {
                    let head = (at, units_of(u64::from(len)).min(units - at));
                    self.walk_frame(segment, identity, (head, units), &mut walk)
                        .await
                }
                _ => None,
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

    /// Reads `count` units from `at` on into the window. False when the device fails that.
    async fn move_window(
        self: &Rc<Self>,
        segment: SegmentIx,
        (at, count): (u32, u32),
        walk: &mut Walk,
    ) -> bool {
        let Ok(read) = self.fetch(segment, at, count).await else {
            return false;
        };
        walk.bytes_read += read.bytes().len() as u64;
        (walk.window, walk.window_at) = (read, at);
        true
    }

    /// Takes in the frame whose head takes up `count` units from `place` on; returns where the
    /// next may be.
    async fn walk_frame(
        self: &Rc<Self>,
        segment: SegmentIx,
        identity: SegmentIdentity,
        ((place, count), units): ((u32, u32), u32),
        walk: &mut Walk,
    ) -> Option<u32> {
        if walk.held(place, count).is_none()
            && !self.move_window(segment, (place, count), walk).await
        {
            walk.unreadable = true;
            return None;
        }
        let head = walk.held(place, count)?.to_vec();
        let frame = FrameView::decode(&head, &identity, place, units).ok()?;
        let end = place + frame.frame_units;
        // One read for all payloads and the first unit of the next head; one for each payload
        // where the device fails some of them.
        let wanted = (place, (frame.frame_units + 1).min(units - place));
        let whole =
            walk.held(place, wanted.1).is_some() || self.move_window(segment, wanted, walk).await;
        for entry in frame.entries() {
            let has_payload = matches!(entry.kind, EntryKind::Block | EntryKind::Checkpoint);
            if has_payload && !self.is_payload_sound(segment, &entry, whole, walk).await {
                walk.damaged += 1;
                continue;
            }
            walk.found.push(&entry);
        }
        walk.end = walk.end.max(end);
        walk.frames += 1;
        Some(end)
    }

    async fn is_payload_sound(
        self: &Rc<Self>,
        segment: SegmentIx,
        entry: &EntryRef<'_>,
        in_window: bool,
        walk: &mut Walk,
    ) -> bool {
        let place = (entry.place, units_of(u64::from(entry.len)));
        if !in_window && !self.move_window(segment, place, walk).await {
            walk.unreadable = true;
            return false;
        }
        let held = walk.held(place.0, place.1);
        held.is_some_and(|payload| is_sound(entry, payload))
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

#[cfg(test)]
#[path = "contents_tests.rs"]
mod tests;
