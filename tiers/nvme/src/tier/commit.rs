//! From placed to durable: frames close, writes complete, flushes cover them, segments seal.
//!
//! Group commit: a flush waits for half of what is waited for; the other half is written while
//! the device flushes, and is what the next flush covers.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::lane::{Health, OpenSegment, Reach};
use super::place::{Ticket, Writes, owned};
use super::segments::{Location, Phase, SegmentIx};
use super::{NvmeTier, TierError, units_of};
use crate::UNIT;
use crate::buffer::{AlignedBuffer, IoBuffer};
use crate::format::{FooterBuilder, SegmentIdentity};
use crate::ops::{IoError, IoFuture};

impl NvmeTier {
    /// Waits until the write is complete: its blocks can be read from the device.
    ///
    /// # Errors
    /// [`TierError::ReadOnly`] when it failed.
    pub async fn written(&self, ticket: Ticket) -> Result<(), TierError> {
        self.reached(ticket, Reach::Complete).await
    }

    /// Waits until the write survives power loss.
    //= docs/on-disk-format.md#OD-6
    ///
    /// # Errors
    /// [`TierError::ReadOnly`] when it, one before it, or the flush failed.
    pub async fn durable(self: &Rc<Self>, ticket: Ticket) -> Result<(), TierError> {
        let lane = ticket.lane;
        {
            let mut state = self.state.borrow_mut();
            let it = &mut state.lanes[lane];
            if it.is_durable(ticket.write) {
                return Ok(());
            }
            it.wanted = it.wanted.max(ticket.write + 1);
            if !std::mem::replace(&mut it.committing, true) {
                // More may be written from here on.
                it.wake();
                drop(state);
                let tier = Rc::clone(self);
                self.spawn(async move { tier.commit(lane).await });
            }
        }
        self.reached(ticket, Reach::Durable).await
    }

    /// Waits until whatever lies at `location` survives power loss.
    ///
    /// # Errors
    /// As for [`NvmeTier::durable`].
    pub async fn durable_at(self: &Rc<Self>, location: Location) -> Result<(), TierError> {
        if self.is_durable(location) {
            return Ok(());
        }
        let ticket = {
            let mut state = self.state.borrow_mut();
            let (ix, _) = state.segments.split(location);
            let segment = state.segments.get(ix);
            let lane = segment.lane;
            let it = &mut state.lanes[lane];
            Ticket {
                lane,
                write: it.last_write(),
            }
        };
        self.durable(ticket).await
    }

    /// Whether what lies at `location` survives power loss for certain, without asking the
    /// device.
    #[must_use]
    pub fn is_durable(&self, location: Location) -> bool {
        let state = self.state.borrow();
        let (ix, _) = state.segments.split(location);
        let segment = state.segments.get(ix);
        // Of a segment that is being reclaimed nothing is promised: its end may be durable now.
        segment.proven && matches!(segment.phase, Phase::Sealed | Phase::Guest)
    }

    /// Closes the frame of a write now, when it is still being filled.
    pub fn hasten(self: &Rc<Self>, ticket: Ticket) {
        let is_open = {
            let state = self.state.borrow();
            let open = state.lanes[ticket.lane].open.as_ref();
            let frame = open.and_then(|open| open.frame.as_ref());
            frame.is_some_and(|frame| frame.write == ticket.write)
        };
        if is_open {
            self.close_frame(ticket.lane);
        }
    }

    /// Whether a write is complete, without waiting.
    ///
    /// # Errors
    /// As for [`NvmeTier::written`].
    pub fn is_written(&self, ticket: Ticket) -> Result<bool, TierError> {
        let state = self.state.borrow();
        let lane = &state.lanes[ticket.lane];
        if lane.is_complete(ticket.write) {
            return Ok(true);
        }
        if lane.health > Health::Good {
            return Err(TierError::ReadOnly);
        }
        Ok(false)
    }

    /// Whether a write survives power loss already, without waiting.
    #[must_use]
    pub fn has_made_durable(&self, ticket: Ticket) -> bool {
        self.state.borrow().lanes[ticket.lane].is_durable(ticket.write)
    }

    /// Waits until a write has come so far.
    async fn reached(&self, Ticket { lane, write }: Ticket, reach: Reach) -> Result<(), TierError> {
        poll_fn(|context| {
            let lane = &mut self.state.borrow_mut().lanes[lane];
            if lane.reaches(write, reach) {
                return Poll::Ready(Ok(()));
            }
            if lane.health > Health::Good {
                return Poll::Ready(Err(TierError::ReadOnly));
            }
            lane.wait_for(write, reach, context.waker());
            Poll::Pending
        })
        .await
    }

    /// Flushes a lane until nobody waits for more to become durable.
    async fn commit(self: &Rc<Self>, lane: usize) {
        loop {
            let (mut target, open) = self.commit_target(lane);
            if open < target {
                // Whoever else comes in this turn of the executor joins.
                self.tasks.yield_now().await;
                let open;
                (target, open) = self.commit_target(lane);
                if open < target {
                    self.close_frame(lane);
                }
            }
            let write = target - 1;
            let complete = self.reached(Ticket { lane, write }, Reach::Complete).await;
            let flushed = match complete {
                Ok(()) => self.flush(lane).await,
                Err(error) => Err(error),
            };
            let mut state = self.state.borrow_mut();
            let it = &mut state.lanes[lane];
            if flushed.is_err() || it.is_durable(it.wanted - 1) {
                it.committing = false;
                return;
            }
        }
    }

    /// Below which write the next flush is to reach, and the write of the frame that is being
    /// filled.
    fn commit_target(&self, lane: usize) -> (u64, u64) {
        let state = self.state.borrow();
        let it = &state.lanes[lane];
        let frame = it.open.as_ref().and_then(|open| open.frame.as_ref());
        (
            it.commit_target(),
            frame.map_or(u64::MAX, |frame| frame.write),
        )
    }

    pub(super) async fn flush(&self, lane: usize) -> Result<(), TierError> {
        let (flush, covered) = {
            let state = self.state.borrow();
            let it = &state.lanes[lane];
            (it.device.flush(self.deadline()), it.complete())
        };
        let result = flush.await.result;
        let mut state = self.state.borrow_mut();
        state.counters[lane].flushes += 1;
        match result {
            Ok(()) => state.lanes[lane].end_flush(covered),
            Err(error) => {
                drop(state);
                self.write_failed(lane, "flush", error);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Closes the frame being filled: its head is written, and a task awaits its writes.
    pub(super) fn close_frame(self: &Rc<Self>, at: usize) {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let lane = &mut state.lanes[at];
        let Some(open) = &mut lane.open else { return };
        let Some(frame) = open.frame.take() else {
            return;
        };
        let head_len = frame.builder.head_len();
        let mut head = AlignedBuffer::zeroed(head_len as usize);
        frame
            .builder
            .finish(open.end - frame.place, head.bytes_mut());
        let offset = state.segments.get(open.segment).base + u64::from(frame.place) * UNIT;
        let mut writes = frame.payloads;
        let payloads = (writes.len() as u32, frame.payload_bytes);
        let deadline = self.deadline();
        writes.push(lane.device.write(offset, head_len, owned(head), deadline));
        // The next frame goes to the next device.
        state.turn = (at + 1) % state.counters.len();
        let counters = &mut state.counters[at];
        counters.frames += 1;
        counters.bytes_written += u64::from(head_len);
        let (tier, write) = (Rc::clone(self), frame.write);
        // A new task may run at once, and to its end where the device answers at once.
        drop(guard);
        self.spawn(async move { tier.end_frame(at, write, payloads, writes).await });
    }

    async fn end_frame(
        &self,
        lane: usize,
        write: u64,
        (payloads, bytes): (u32, u64),
        writes: Writes,
    ) {
        let (mut failure, mut buffers) = (None, Vec::with_capacity(writes.len()));
        for write in writes {
            let outcome = write.await;
            failure = failure.or(outcome.result.err());
            buffers.push(outcome.buffer);
        }
        {
            let it = &mut self.state.borrow_mut().lanes[lane];
            it.bytes_in_flight -= bytes;
            it.payloads_in_flight -= payloads;
        }
        match failure {
            None => self.state.borrow_mut().lanes[lane].end_write(write),
            Some(error) => self.write_failed(lane, "write a frame", error),
        }
        // Pins of blocks go back only now: until its frame is whole, DRAM has the only copy.
        drop(buffers);
    }

    /// Latches a device after a failed write: what it holds is still served.
    fn write_failed(&self, lane: usize, what: &'static str, error: IoError) {
        let mut state = self.state.borrow_mut();
        state.counters[lane].writes_failed += 1;
        let late = matches!(error, IoError::TimedOut | IoError::Full);
        let it = &mut state.lanes[lane];
        it.late += u32::from(late);
        let health = if it.late > self.config.late_max {
            Health::Offline
        } else {
            Health::ReadOnly
        };
        if it.health < health {
            let device = it.device.info().name.as_str();
            tracing::error!(device, what, %error, ?health, "the device takes no more writes");
        }
        it.worsen(health);
    }

    /// Closes the frame `write` when its time has come, unless it was closed before.
    pub(super) fn close_when_due(self: &Rc<Self>, lane: usize, write: u64) {
        let timer = self
            .tasks
            .sleep_until(self.state.borrow().lanes[lane].frame_due);
        let tier = Rc::downgrade(self);
        self.spawn(async move {
            timer.await;
            let Some(tier) = tier.upgrade() else { return };
            let is_open = {
                let state = tier.state.borrow();
                let open = state.lanes[lane].open.as_ref();
                let frame = open.and_then(|open| open.frame.as_ref());
                frame.is_some_and(|frame| frame.write == write)
            };
            if is_open {
                tier.close_frame(lane);
            }
        });
    }

    /// Ends the open segment of a lane. Its footer follows when its frames are durable.
    pub(super) fn seal(self: &Rc<Self>, lane: usize) {
        self.close_frame(lane);
        let open = {
            let mut state = self.state.borrow_mut();
            let it = &mut state.lanes[lane];
            let Some(open) = it.open.take() else { return };
            it.sealed.push_back(open.segment);
            let segment = state.segments.get_mut(open.segment);
            segment.transition(Phase::Sealing);
            open
        };
        let tier = Rc::clone(self);
        self.spawn(async move {
            let segment = open.segment;
            if let Err(error) = tier.write_footer(lane, open).await {
                // Without a footer the frames are walked at recovery: nothing is lost.
                tracing::warn!(%error, "a segment was not sealed");
            }
            let mut state = tier.state.borrow_mut();
            state.counters[lane].segments_sealed += 1;
            state.segments.get_mut(segment).transition(Phase::Sealed);
            state.lanes[lane].wake();
        });
    }

    //= docs/on-disk-format.md#OD-7
    async fn write_footer(
        self: &Rc<Self>,
        lane: usize,
        open: OpenSegment,
    ) -> Result<(), TierError> {
        let last = self.state.borrow_mut().lanes[lane].barrier();
        self.durable(Ticket { lane, write: last }).await?;
        self.state
            .borrow_mut()
            .segments
            .get_mut(open.segment)
            .proven = true;
        let identity = self.state.borrow().segments.get(open.segment).identity;
        let footer = built_footer(&open.footer, open.end, &identity);
        self.put_footer(open.segment, footer).await
    }

    /// Writes a segment's footer where it ends, and makes it durable.
    pub(super) async fn put_footer(
        self: &Rc<Self>,
        segment: SegmentIx,
        footer: AlignedBuffer,
    ) -> Result<(), TierError> {
        let (lane, offset) = {
            let state = self.state.borrow();
            let it = state.segments.get(segment);
            let end = it.base + u64::from(state.lanes[it.lane].units) * UNIT;
            (it.lane, end - footer.bytes().len() as u64)
        };
        self.put(lane, offset, footer).await
    }

    /// Writes memory of the tier's own, and makes it durable.
    async fn put(
        self: &Rc<Self>,
        lane: usize,
        offset: u64,
        bytes: AlignedBuffer,
    ) -> Result<(), TierError> {
        let len = bytes.bytes().len() as u32;
        let (number, write) = {
            let mut state = self.state.borrow_mut();
            state.counters[lane].bytes_written += u64::from(len);
            let it = &mut state.lanes[lane];
            let number = it.begin_write();
            let write = it
                .device
                .write(offset, len, IoBuffer::Owned(bytes), self.deadline());
            (number, write)
        };
        // A task of its own: the write is taken in though the caller may go away.
        let tier = Rc::clone(self);
        self.spawn(async move { tier.end_put(lane, number, write).await });
        self.durable(Ticket {
            lane,
            write: number,
        })
        .await
    }

    async fn end_put(&self, lane: usize, number: u64, write: IoFuture) {
        match write.await.result {
            Ok(()) => self.state.borrow_mut().lanes[lane].end_write(number),
            Err(error) => self.write_failed(lane, "write a head or footer", error),
        }
    }

    /// Writes the head of a segment's next life and makes it durable: from then on nothing of
    /// its old contents counts.
    //= docs/on-disk-format.md#OD-5
    pub(super) async fn put_head(self: &Rc<Self>, segment: SegmentIx) -> Result<(), TierError> {
        let (lane, base, head) = {
            let mut state = self.state.borrow_mut();
            let identity = SegmentIdentity {
                sequence: state.sequence(self.config.epoch),
                salt: state.salt(),
            };
            let (lane, base, number) = {
                let it = state.segments.get(segment);
                (it.lane, it.base, it.number)
            };
            let head = crate::format::SegmentHead {
                device: self.ids[lane],
                number,
                shard: self.config.shard,
                shards: self.config.shards,
                sequence: identity.sequence,
                salt: identity.salt,
                len: u64::from(state.lanes[lane].units) * UNIT,
            };
            (lane, base, head)
        };
        let mut bytes = AlignedBuffer::zeroed(UNIT as usize);
        head.encode(bytes.bytes_mut());
        self.put(lane, base, bytes).await?;
        let mut state = self.state.borrow_mut();
        let it = state.segments.get_mut(segment);
        it.identity = head.identity();
        it.legacy = false;
        Ok(())
    }

    /// Makes all that was placed durable.
    ///
    /// # Errors
    /// [`TierError::ReadOnly`] when a device failed.
    pub async fn sync(self: &Rc<Self>) -> Result<(), TierError> {
        let count = self.state.borrow().lanes.len();
        let mut outcome = Ok(());
        for lane in 0..count {
            let last = {
                let mut state = self.state.borrow_mut();
                let it = &mut state.lanes[lane];
                if it.health > Health::Good {
                    if !it.is_all_durable() {
                        outcome = Err(TierError::ReadOnly);
                    }
                    continue;
                }
                it.last_write()
            };
            let durable = self.durable(Ticket { lane, write: last }).await;
            outcome = outcome.and(durable);
        }
        outcome
    }

    /// Seals the open segments; for a clean close.
    ///
    /// # Errors
    /// [`TierError::ReadOnly`] when a device failed.
    pub async fn close(self: &Rc<Self>) -> Result<(), TierError> {
        let count = self.state.borrow().lanes.len();
        for lane in 0..count {
            let is_open = self.state.borrow().lanes[lane].open.is_some();
            if is_open {
                self.seal(lane);
            }
        }
        let sealing = || {
            let state = self.state.borrow();
            let mut list = state.segments.list.iter();
            list.any(|segment| segment.phase == Phase::Sealing)
        };
        poll_fn(|context| {
            if !sealing() {
                return Poll::Ready(());
            }
            let mut state = self.state.borrow_mut();
            let waker = context.waker();
            state.lanes.iter_mut().for_each(|lane| lane.wait(waker));
            Poll::Pending
        })
        .await;
        self.blank_ready().await?;
        self.sync().await
    }

    /// Erases the heads of segments that were made ready and not used: without one the next
    /// open need not look through them.
    async fn blank_ready(self: &Rc<Self>) -> Result<(), TierError> {
        let count = self.state.borrow().lanes.len();
        for lane in 0..count {
            loop {
                let base = {
                    let mut state = self.state.borrow_mut();
                    let state = &mut *state;
                    let it = &mut state.lanes[lane];
                    let good = it.health == Health::Good;
                    let Some(ready) = it.ready.pop_front().filter(|_| good) else {
                        break;
                    };
                    it.free.push_back(ready);
                    let segment = state.segments.get_mut(ready);
                    segment.transition(Phase::Free);
                    segment.base
                };
                self.put(lane, base, AlignedBuffer::zeroed(UNIT as usize))
                    .await?;
            }
        }
        Ok(())
    }
}

/// A footer's bytes.
pub(super) fn built_footer(
    footer: &FooterBuilder,
    end: u32,
    identity: &SegmentIdentity,
) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::zeroed(footer.len_bytes() as usize);
    footer.finish(end, identity, bytes.bytes_mut());
    bytes
}

/// Units of a footer.
pub(super) fn footer_units(footer: &AlignedBuffer) -> u32 {
    units_of(footer.bytes().len() as u64)
}
