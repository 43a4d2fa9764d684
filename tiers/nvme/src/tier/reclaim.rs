//! Segments come back into use: what is kept was written elsewhere, then a new head ends their
//! old life.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::commit::footer_units;
use super::lane::{Health, Lane, OpenSegment};
use super::place::{fits, payload_room};
use super::segments::{Phase, SegmentIx};
use super::{Contents, NvmeTier, TierError};
use crate::UNIT;
use crate::format::{DeviceId, FooterBuilder, Sequence};

/// A segment that is to be made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It holds nothing.
    Blank(SegmentIx),
    /// It is the oldest of its device: see what is in it first.
    Oldest(SegmentIx),
}

impl NvmeTier {
    /// The next segment to be made ready, when a device has none. The caller makes it ready,
    /// one at a time for each device.
    #[must_use]
    pub fn next_to_reclaim(&self) -> Option<Next> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        for at in 0..state.lanes.len() {
            let lane = &mut state.lanes[at];
            if lane.preparing || lane.health > Health::Good {
                continue;
            }
            if lane.draining {
                let Some(oldest) = lane.sealed.pop_front() else {
                    continue;
                };
                lane.preparing = true;
                state.segments.get_mut(oldest).transition(Phase::Reclaiming);
                return Some(Next::Oldest(oldest));
            }
            if !lane.ready.is_empty() || !lane.takes_blocks() {
                continue;
            }
            if let Some(blank) = lane.free.pop_front() {
                lane.preparing = true;
                return Some(Next::Blank(blank));
            }
            let oldest = lane.sealed.front().copied();
            let sealed = |ix: SegmentIx| state.segments.get(ix).phase == Phase::Sealed;
            if let Some(oldest) = oldest.filter(|ix| sealed(*ix)) {
                lane.sealed.pop_front();
                lane.preparing = true;
                // Until it is known what is kept, all room that is left is set aside for it.
                lane.reserved = u32::MAX;
                state.segments.get_mut(oldest).transition(Phase::Reclaiming);
                return Some(Next::Oldest(oldest));
            }
        }
        None
    }

    /// Whether [`NvmeTier::next_to_reclaim`] may have something to do.
    #[must_use]
    pub fn wants_reclaim(&self) -> bool {
        let state = self.state.borrow();
        state.lanes.iter().any(|lane| {
            let work = if lane.draining {
                !lane.sealed.is_empty() && state.lanes.iter().any(Lane::takes_blocks)
            } else {
                let some = !(lane.free.is_empty() && lane.sealed.is_empty());
                lane.takes_blocks() && lane.ready.is_empty() && some
            };
            work && !lane.preparing && lane.health == Health::Good
        })
    }

    /// Wakes all who wait for a device; their shard ends.
    pub fn wake(&self) {
        let mut state = self.state.borrow_mut();
        state.lanes.iter_mut().for_each(super::lane::Lane::wake);
    }

    /// Waits until a segment is sealed, or a device's state changes otherwise.
    pub async fn changed(&self) {
        let mut registered = false;
        poll_fn(|context| {
            if std::mem::replace(&mut registered, true) {
                return Poll::Ready(());
            }
            let mut state = self.state.borrow_mut();
            let waker = context.waker();
            state.lanes.iter_mut().for_each(|lane| lane.wait(waker));
            Poll::Pending
        })
        .await;
    }

    /// Ends a segment's old life: writes the head of the next one, and makes it durable. All
    /// that is kept must be durable elsewhere. Until [`NvmeTier::release`] nothing is written
    /// to it.
    ///
    /// # Errors
    /// [`TierError::ReadOnly`] when the device failed: the old contents still count.
    pub async fn renew(self: &Rc<Self>, segment: SegmentIx) -> Result<(), TierError> {
        let outcome = self.put_head(segment).await;
        if outcome.is_err() {
            self.restore(segment);
        }
        outcome
    }

    /// Gives up making a segment ready: what it holds still counts.
    pub fn restore(&self, segment: SegmentIx) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let it = state.segments.get_mut(segment);
        let lane = &mut state.lanes[it.lane];
        if it.phase == Phase::Reclaiming {
            it.transition(Phase::Sealed);
            lane.sealed.push_front(segment);
        } else {
            lane.free.push_front(segment);
        }
        lane.preparing = false;
        lane.reserved = 0;
        lane.wake();
    }

    /// Whether a device that takes blocks has no segment ready yet, though it could have.
    #[must_use]
    pub fn is_reclaiming(&self) -> bool {
        let reclaims = |lane: &Lane| {
            let could = !(lane.free.is_empty() && lane.sealed.is_empty());
            lane.takes_blocks() && (lane.preparing || lane.ready.is_empty() && could)
        };
        self.state.borrow().lanes.iter().any(reclaims)
    }

    /// A segment cannot be reclaimed: its tombstones have nowhere to go. Its device takes no
    /// more writes; what it holds is served.
    pub fn keep_segment(&self, segment: SegmentIx) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let it = state.segments.get_mut(segment);
        it.transition(Phase::Sealed);
        let lane = &mut state.lanes[it.lane];
        lane.sealed.push_front(segment);
        lane.preparing = false;
        lane.reserved = 0;
        lane.worsen(Health::ReadOnly);
    }

    /// Lets a renewed segment be opened. Its index entries are gone.
    pub fn release(&self, segment: SegmentIx) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let it = state.segments.get_mut(segment);
        let reclaimed = it.phase == Phase::Reclaiming;
        let lane = &mut state.lanes[it.lane];
        state.counters[it.lane].segments_reclaimed += u64::from(reclaimed);
        it.live_units = 0;
        if lane.draining {
            it.transition(Phase::Free);
            lane.free.push_back(segment);
        } else {
            it.transition(Phase::Ready);
            lane.ready.push_back(segment);
        }
        lane.preparing = false;
        lane.reserved = 0;
        lane.wake();
    }

    /// Bytes of payload that can be kept of a segment that is being reclaimed.
    #[must_use]
    pub fn keep_room(&self, segment: SegmentIx) -> u64 {
        let state = self.state.borrow();
        let lane = &state.lanes[state.segments.get(segment).lane];
        if lane.draining {
            return u64::MAX;
        }
        payload_room(lane)
    }

    /// Sets room aside for `units` of payload in `count` records that are kept of a segment;
    /// the rest of the room is free for others again.
    pub fn set_aside(&self, segment: SegmentIx, units: u32, count: u32) {
        let mut state = self.state.borrow_mut();
        let at = state.segments.get(segment).lane;
        let lane = &mut state.lanes[at];
        if !lane.draining {
            // Heads of frames by bytes and by entries, and what the footer grows by.
            lane.reserved = units + units / 64 + count / 4 + 8;
        }
        lane.wake();
    }

    /// Whether a tombstone in a segment that is being reclaimed is needed any longer: as long
    /// as a segment may hold an older record.
    //= docs/on-disk-format.md#OD-11
    #[must_use]
    pub fn tombstone_counts(&self, sequence: Sequence, segment: SegmentIx) -> bool {
        let state = self.state.borrow();
        state.absent
            || state
                .segments
                .lowest_live(segment)
                .is_some_and(|lowest| lowest < sequence)
    }

    /// Ends the recovery of a segment: one that was walked gets the footer it has not, an empty
    /// one is free.
    ///
    /// # Errors
    /// [`TierError::ReadOnly`] when the device failed.
    pub async fn recovered(self: &Rc<Self>, contents: Contents) -> Result<(), TierError> {
        let segment = contents.segment();
        let owned = self.state.borrow().segments.get(segment).phase == Phase::Sealed;
        if !owned || !contents.walked {
            return Ok(());
        }
        if contents.unreadable {
            // What could not be read now may be read later: no footer may deny it.
            self.state.borrow_mut().segments.get_mut(segment).proven = false;
            return Ok(());
        }
        if contents.is_empty() {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            let it = state.segments.get_mut(segment);
            it.transition(Phase::Free);
            let lane = &mut state.lanes[it.lane];
            lane.sealed.retain(|known| *known != segment);
            // It is used first: its head alone makes every open look through it.
            lane.free.push_front(segment);
            return Ok(());
        }
        // What the walk verified may still be in the device's own memory.
        let lane = self.state.borrow().segments.get(segment).lane;
        if let Err(error) = self.flush(lane).await {
            self.state.borrow_mut().segments.get_mut(segment).proven = false;
            return Err(error);
        }
        if self.reopen(&contents) {
            return Ok(());
        }
        let units = self.state.borrow().lanes[lane].units;
        if contents.end_units() + footer_units(&contents.footer) <= units {
            self.put_footer(segment, contents.footer).await?;
        }
        Ok(())
    }

    /// Goes on with the segment that was open when power was lost: its room may be all there is
    /// for what the next reclaim keeps.
    fn reopen(&self, contents: &Contents) -> bool {
        let segment = contents.segment();
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let it = state.segments.get_mut(segment);
        let lane = &mut state.lanes[it.lane];
        let newest = lane.sealed.back() == Some(&segment) && lane.free.is_empty();
        if !newest || !lane.takes_blocks() || it.legacy || lane.open.is_some() {
            return false;
        }
        let mut open = OpenSegment {
            segment,
            end: contents.end_units(),
            frames: contents.frames,
            footer: FooterBuilder::new(),
            frame: None,
        };
        contents.for_each(|entry| open.footer.push(entry));
        if !fits(lane, &open, 1) {
            return false;
        }
        it.transition(Phase::Open);
        it.proven = false;
        lane.sealed.pop_back();
        lane.open = Some(open);
        true
    }

    /// The segment of a device by its number there; for other shards that share it.
    #[must_use]
    pub fn find(&self, device: DeviceId, number: u32) -> Option<SegmentIx> {
        let lane = self.ids.iter().position(|id| *id == device)?;
        let state = self.state.borrow();
        let mut list = state.segments.list.iter();
        let at = list.position(|segment| segment.lane == lane && segment.number == number)?;
        Some(SegmentIx(at as u32))
    }

    /// The device and number of a segment, and whether other shards have blocks in it.
    #[must_use]
    pub fn identify(&self, segment: SegmentIx) -> (DeviceId, u32, bool) {
        let state = self.state.borrow();
        let it = state.segments.get(segment);
        (self.ids[it.lane], it.number, it.legacy)
    }

    /// Another shard reclaimed a segment that this one only read: its new head is durable.
    pub fn leave_guest(&self, segment: SegmentIx) {
        let mut state = self.state.borrow_mut();
        let it = state.segments.get_mut(segment);
        if it.phase == Phase::Guest {
            it.transition(Phase::Free);
            it.legacy = false;
            it.live_units = 0;
        }
    }

    /// Reads of a segment that are under way.
    #[must_use]
    pub fn readers(&self, segment: SegmentIx) -> u32 {
        self.state.borrow().segments.get(segment).readers
    }

    /// Whether every device that is being emptied holds nothing any more.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let state = self.state.borrow();
        let mut draining = state.lanes.iter().filter(|lane| lane.draining);
        draining.all(|lane| lane.sealed.is_empty() && !lane.preparing)
    }

    /// Whether a segment's device is being emptied.
    #[must_use]
    pub fn is_draining(&self, segment: SegmentIx) -> bool {
        let state = self.state.borrow();
        state.lanes[state.segments.get(segment).lane].draining
    }

    /// Length of a segment in bytes.
    #[must_use]
    pub fn segment_len(&self, segment: SegmentIx) -> u64 {
        let state = self.state.borrow();
        u64::from(state.lanes[state.segments.get(segment).lane].units) * UNIT
    }
}
