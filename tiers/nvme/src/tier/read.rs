//! Reads: by whom they are waited for decides which go first.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::lane::Health;
use super::segments::{Location, SegmentIx};
use super::{NvmeTier, units_of};
use crate::UNIT;
use crate::buffer::IoBuffer;
use crate::ops::{IoError, IoOutcome};

/// For whom a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadClass {
    /// A caller waits for it.
    Demand,
    /// Somebody may want it soon.
    Prefetch,
    /// The tier's own: reclaim, recovery, scrub.
    Background,
}

/// Counts a read on its segment and device while it is waited for.
struct Reading<'a> {
    tier: &'a NvmeTier,
    segment: SegmentIx,
    lane: usize,
    class: ReadClass,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.tier.state.borrow_mut();
        let segment = state.segments.get_mut(self.segment);
        segment.readers -= 1;
        let unread = segment.readers == 0;
        let lane = &mut state.lanes[self.lane];
        if self.class != ReadClass::Background {
            lane.reads_in_flight -= 1;
        }
        // Writers wait for a window that reads make narrow, and for segments to be unread.
        let turn = lane.reads_in_flight + 1 == self.tier.config.prefetch_window;
        if unread || turn || lane.reads_in_flight == 0 {
            lane.wake();
        }
    }
}

impl NvmeTier {
    /// Reads the `len` bytes at `location` to the start of `buffer`, with whatever follows up
    /// to a whole unit. The bytes are not verified here. The read begins when this is first
    /// polled: look the location up right before.
    //= docs/on-disk-format.md#OD-12
    pub async fn read(
        self: &Rc<Self>,
        location: Location,
        len: u32,
        buffer: IoBuffer,
        class: ReadClass,
    ) -> IoOutcome {
        let (segment, unit) = self.split(location);
        self.read_units(segment, unit, units_of(u64::from(len)), buffer, class)
            .await
    }

    /// Reads whole units of a segment.
    pub(super) async fn read_units(
        &self,
        segment: SegmentIx,
        unit: u32,
        units: u32,
        buffer: IoBuffer,
        class: ReadClass,
    ) -> IoOutcome {
        let (reading, read) = {
            let mut state = self.state.borrow_mut();
            let it = state.segments.get_mut(segment);
            let (at, base) = (it.lane, it.base);
            let lane = &mut state.lanes[at];
            if lane.health == Health::Offline || unit + units > lane.units {
                return IoOutcome {
                    result: Err(IoError::Os { errno: libc::EIO }),
                    buffer: Some(buffer),
                };
            }
            lane.reads_in_flight += u32::from(class != ReadClass::Background);
            let (offset, len) = (base + u64::from(unit) * UNIT, units * UNIT as u32);
            let read = lane.device.read(offset, len, buffer, self.deadline());
            state.segments.get_mut(segment).readers += 1;
            let counters = &mut state.counters[at];
            counters.bytes_read += u64::from(len);
            match class {
                ReadClass::Demand => counters.demand_reads += 1,
                ReadClass::Prefetch => counters.prefetch_reads += 1,
                ReadClass::Background => counters.background_reads += 1,
            }
            let reading = Reading {
                tier: self,
                segment,
                lane: at,
                class,
            };
            (reading, read)
        };
        let outcome = read.await;
        if let Err(error) = &outcome.result {
            self.read_failed(reading.lane, *error);
        }
        outcome
    }

    fn read_failed(&self, lane: usize, error: IoError) {
        let mut state = self.state.borrow_mut();
        state.counters[lane].reads_failed += 1;
        let it = &mut state.lanes[lane];
        let device = it.device.info().name.as_str();
        tracing::warn!(device, %error, "a read failed");
        it.late += u32::from(matches!(error, IoError::TimedOut | IoError::Full));
        if it.late > self.config.late_max && it.health < Health::Offline {
            tracing::error!(
                device,
                late = it.late,
                "the device does not answer: offline"
            );
            it.worsen(Health::Offline);
        }
    }

    /// Waits until a read ahead of need has its turn on the device of `location`. What lies
    /// there may have moved meanwhile.
    pub async fn prefetch_turn(&self, location: Location) {
        let (segment, _) = self.split(location);
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            let at = state.segments.get(segment).lane;
            let lane = &mut state.lanes[at];
            if lane.reads_in_flight < self.config.prefetch_window || lane.health > Health::ReadOnly
            {
                return Poll::Ready(());
            }
            lane.wait(context.waker());
            Poll::Pending
        })
        .await;
    }
}
