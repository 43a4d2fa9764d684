//! One device as a shard writes to it: the open segment, the frame being filled, and how far
//! everything written is complete and durable.
//!
//! Every frame head with its payloads, every footer and every segment head is one *write*,
//! numbered in the order of the lane.
//!
//! **Invariants**
//! - All writes below `complete` have completed; all below `durable` survive power loss.
//! - `durable <= complete <= next`; none of them goes back.
//! - A lane that failed a write is read-only from then on: nothing later becomes durable.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use terrace_types::Nanos;

use super::SEGMENT_OVERHEAD_UNITS;
use super::segments::SegmentIx;
use crate::device::BlockDevice;
use crate::format::{FooterBuilder, FrameBuilder};
use crate::ops::IoFuture;

/// Whether a device takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Reads and writes.
    Good,
    /// A write failed: it is only read.
    ReadOnly,
    /// It does not answer: its blocks are unavailable.
    Offline,
}

/// How far a write has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// It and all before it have completed.
    Complete,
    /// It and all before it survive power loss.
    Durable,
}

/// Who waits for a write to come so far.
struct Awaiting {
    write: u64,
    reach: Reach,
    waker: Waker,
}

/// The frame being filled.
pub(super) struct OpenFrame {
    pub(super) write: u64,
    pub(super) builder: FrameBuilder,
    /// Unit of its head.
    pub(super) place: u32,
    pub(super) payload_bytes: u64,
    pub(super) payloads: Vec<IoFuture>,
}

/// The segment being filled.
pub(super) struct OpenSegment {
    pub(super) segment: SegmentIx,
    /// Unit at which the next payload or head goes.
    pub(super) end: u32,
    pub(super) frames: u32,
    pub(super) footer: FooterBuilder,
    pub(super) frame: Option<OpenFrame>,
}

/// See the module's text.
pub(super) struct Lane {
    pub(super) device: Rc<dyn BlockDevice>,
    /// Units of a segment.
    pub(super) units: u32,
    pub(super) health: Health,
    /// Nothing new is written to it: what it holds moves to the other devices.
    pub(super) draining: bool,
    /// Segments that are the shard's to write to; none when there is only one.
    pub(super) owned: u32,
    pub(super) open: Option<OpenSegment>,
    pub(super) ready: VecDeque<SegmentIx>,
    pub(super) free: VecDeque<SegmentIx>,
    /// Oldest first; the last of them may still be sealing.
    pub(super) sealed: VecDeque<SegmentIx>,
    /// A segment is being made ready.
    pub(super) preparing: bool,
    /// Units of the open segment that are set aside for what reclaim keeps.
    pub(super) reserved: u32,
    next: u64,
    complete: u64,
    /// Whether the writes from `complete` on are complete.
    pending: VecDeque<bool>,
    durable: u64,
    /// The highest write that somebody waits for to be durable, plus one.
    pub(super) wanted: u64,
    pub(super) committing: bool,
    pub(super) bytes_in_flight: u64,
    pub(super) payloads_in_flight: u32,
    pub(super) reads_in_flight: u32,
    pub(super) late: u32,
    /// Who waits for anything else to change.
    waiting: Vec<Waker>,
    awaiting: Vec<Awaiting>,
    /// When the frame being filled is closed at the latest.
    pub(super) frame_due: Nanos,
}

impl Lane {
    pub(super) fn new(device: Rc<dyn BlockDevice>, units: u32, draining: bool) -> Self {
        Self {
            device,
            units,
            health: Health::Good,
            draining,
            owned: 0,
            open: None,
            ready: VecDeque::new(),
            free: VecDeque::new(),
            sealed: VecDeque::new(),
            preparing: false,
            reserved: 0,
            next: 0,
            complete: 0,
            pending: VecDeque::new(),
            durable: 0,
            wanted: 0,
            committing: false,
            bytes_in_flight: 0,
            payloads_in_flight: 0,
            reads_in_flight: 0,
            late: 0,
            waiting: Vec::new(),
            awaiting: Vec::new(),
            frame_due: Nanos::ZERO,
        }
    }

    /// Whether blocks may be written to it.
    pub(super) fn takes_blocks(&self) -> bool {
        self.health == Health::Good && !self.draining && self.owned > 0
    }

    /// Whether a segment has to be reclaimed and nothing has begun with it yet.
    pub(super) fn is_due(&self) -> bool {
        self.ready.is_empty() && !self.preparing && self.free.is_empty() && !self.sealed.is_empty()
    }

    /// Units of the longest block: one that is the first in a segment leaves room for the
    /// tombstones of the segment that is reclaimed next.
    pub(super) const fn block_units_max(&self) -> u32 {
        (self.units - self.units / 4).saturating_sub(SEGMENT_OVERHEAD_UNITS)
    }

    /// Numbers the next write.
    pub(super) fn begin_write(&mut self) -> u64 {
        self.pending.push_back(false);
        self.next += 1;
        self.next - 1
    }

    /// Takes in that a write completed.
    pub(super) fn end_write(&mut self, write: u64) {
        self.pending[(write - self.complete) as usize] = true;
        while self.pending.front() == Some(&true) {
            self.pending.pop_front();
            self.complete += 1;
        }
        self.wake();
        self.wake_reached();
    }

    /// A write without bytes: when it is durable, so is all that was begun before it.
    pub(super) fn barrier(&mut self) -> u64 {
        let write = self.begin_write();
        self.end_write(write);
        write
    }

    /// A write that is durable only when all that was placed is: the open frame's, or a barrier.
    pub(super) fn last_write(&mut self) -> u64 {
        let open = self.open.as_ref().and_then(|open| open.frame.as_ref());
        match open.map(|frame| frame.write) {
            Some(write) if write + 1 == self.next => write,
            _ => self.barrier(),
        }
    }

    pub(super) const fn is_complete(&self, write: u64) -> bool {
        self.reaches(write, Reach::Complete)
    }

    pub(super) const fn is_durable(&self, write: u64) -> bool {
        self.reaches(write, Reach::Durable)
    }

    pub(super) const fn reaches(&self, write: u64, reach: Reach) -> bool {
        write < self.mark(reach)
    }

    /// All writes below have come so far.
    const fn mark(&self, reach: Reach) -> u64 {
        match reach {
            Reach::Complete => self.complete,
            Reach::Durable => self.durable,
        }
    }

    /// Below which write the next flush is to reach: the older half of what is waited for, so
    /// that the device has the younger half to write while it flushes.
    pub(super) const fn commit_target(&self) -> u64 {
        let waiting = self.wanted.saturating_sub(self.durable);
        self.durable + waiting.div_ceil(2)
    }

    /// Whether everything that was begun is durable.
    pub(super) const fn is_all_durable(&self) -> bool {
        self.durable == self.next
    }

    /// The count of writes that a flush submitted now covers.
    pub(super) const fn complete(&self) -> u64 {
        self.complete
    }

    /// Takes in that a flush returned which covers all writes below `covered`.
    pub(super) fn end_flush(&mut self, covered: u64) {
        assert!(covered <= self.complete, "a flush covers complete writes");
        self.durable = self.durable.max(covered);
        self.wake();
        self.wake_reached();
    }

    /// The lane lets nothing more through.
    pub(super) fn worsen(&mut self, health: Health) {
        self.health = self.health.max(health);
        self.wake();
        let awaiting = self.awaiting.drain(..).map(|it| it.waker);
        awaiting.for_each(Waker::wake);
    }

    pub(super) fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    pub(super) fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// Has a task woken when a write has come so far, or the lane lets nothing more through.
    pub(super) fn wait_for(&mut self, write: u64, reach: Reach, waker: &Waker) {
        let is_it =
            |it: &Awaiting| (it.write, it.reach) == (write, reach) && it.waker.will_wake(waker);
        if !self.awaiting.iter().any(is_it) {
            let waker = waker.clone();
            self.awaiting.push(Awaiting {
                write,
                reach,
                waker,
            });
        }
    }

    fn wake_reached(&mut self) {
        let (complete, durable) = (self.mark(Reach::Complete), self.mark(Reach::Durable));
        let reached = |it: &mut Awaiting| match it.reach {
            Reach::Complete => it.write < complete,
            Reach::Durable => it.write < durable,
        };
        let reached = self.awaiting.extract_if(.., reached);
        reached.for_each(|it| it.waker.wake());
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
