//! Appending: records go into frames, frames into the open segment of a device.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use terrace_types::limits::{KEY_LEN_MAX, NAMESPACE_LEN_MAX};
use terrace_types::{Checksum, Hint, Nanos};

use super::lane::{Lane, OpenFrame, OpenSegment};
use super::segments::{Location, Phase, SegmentIx};
use super::{NvmeTier, State, TierError, units_of};
use crate::UNIT;
use crate::buffer::{AlignedBuffer, IoBuffer};
use crate::format::{EntryKind, EntryRef, FooterBuilder, FrameBuilder, Sequence};
use crate::ops::IoFuture;

/// Length of a frame's head: some 40 records of usual keys, and any single one.
const FRAME_HEAD_LEN: u32 = UNIT as u32;

/// Payloads that may be under way while callers wait for them to be durable.
const AWAITED_WRITES: u64 = 32;

/// Bytes that a name and an entry take up in a footer at most.
const ENTRY_LEN_MAX: usize = 1 + NAMESPACE_LEN_MAX + 48 + KEY_LEN_MAX;

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What it is.
    pub kind: EntryKind,
    /// The namespace's name.
    pub namespace: &'a str,
    /// The key; empty for a tombstone of a namespace.
    pub key: &'a [u8],
    /// The payload's checksum.
    pub checksum: Checksum,
    /// The payload's length in bytes; 0 for tombstones.
    pub len: u32,
    /// What is known of the block.
    pub hint: Hint,
    /// Its sequence, when it is written again; `None` draws a new one.
    pub sequence: Option<Sequence>,
    /// The segment it is moved out of by reclaim: it goes to the same device, into room that
    /// was set aside for it.
    pub from: Option<SegmentIx>,
}

/// A write that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(super) lane: usize,
    pub(super) write: u64,
}

/// Where a record went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The payload's location; not to be read before the write is complete.
    pub location: Location,
    /// The write that holds it.
    pub ticket: Ticket,
}

impl NvmeTier {
    /// Whether a record could be placed now: there is room, and writes have their turn.
    #[must_use]
    pub fn has_room(&self, len: u32, from: Option<SegmentIx>) -> bool {
        let state = self.state.borrow();
        let units = units_of(u64::from(len));
        (0..state.lanes.len()).any(|lane| self.lane_takes(&state, lane, units, from))
    }

    /// Whether a segment has space for a record, whoever's turn it is to write.
    #[must_use]
    pub fn has_space(&self, len: u32) -> bool {
        let state = self.state.borrow();
        let units = units_of(u64::from(len));
        let mut lanes = 0..state.lanes.len();
        lanes.any(|at| state.lanes[at].takes_blocks() && state.lane_fits(at, units, None))
    }

    fn lane_takes(&self, state: &State, at: usize, units: u32, from: Option<SegmentIx>) -> bool {
        let lane = &state.lanes[at];
        lane.takes_blocks()
            && lane.bytes_in_flight < self.write_window(lane, units)
            && lane.payloads_in_flight < self.config.payloads_max
            && state.lane_fits(at, units, from)
    }

    /// Bytes of writes that may be under way when a payload of `units` is to follow: fewer while
    /// callers wait for reads. While they wait for writes alone, more for long payloads: the count of
    /// writes stays what the ring takes.
    fn write_window(&self, lane: &Lane, units: u32) -> u64 {
        let (usual, awaited) = (self.config.write_window, self.config.write_window_awaited);
        if lane.reads_in_flight > 0 {
            self.config.write_window_min
        } else if lane.committing {
            let many = AWAITED_WRITES * u64::from(units) * UNIT;
            many.clamp(usual, awaited.max(usual))
        } else {
            usual
        }
    }

    /// Waits until a record of `len` bytes may be placed, or `deadline` passed.
    ///
    /// # Errors
    /// [`TierError::TooLarge`], or [`TierError::ReadOnly`] when no device takes writes.
    /// [`TierError::NoRoom`] when what was set aside at reclaim is used up.
    pub async fn room(
        &self,
        len: u32,
        from: Option<SegmentIx>,
        deadline: Nanos,
    ) -> Result<bool, TierError> {
        if u64::from(len) > self.block_len_max() {
            let any = self.state.borrow().lanes.iter().any(Lane::takes_blocks);
            return Err(if any {
                TierError::TooLarge
            } else {
                TierError::ReadOnly
            });
        }
        if self.has_room(len, from) {
            return Ok(true);
        }
        self.check_room_aside(len, from)?;
        self.state.borrow_mut().counters[0].write_waits += 1;
        let late = async {
            self.tasks.sleep_until(deadline).await;
            Ok(false)
        };
        let room = poll_fn(|context| {
            if self.has_room(len, from) {
                return Poll::Ready(Ok(true));
            }
            let mut state = self.state.borrow_mut();
            if !state.lanes.iter().any(Lane::takes_blocks) {
                return Poll::Ready(Err(TierError::ReadOnly));
            }
            let waker = context.waker();
            state.lanes.iter_mut().for_each(|lane| lane.wait(waker));
            Poll::Pending
        });
        first(room, late).await
    }

    /// Reclaim does not wait for a segment to be made ready: it is what makes them so.
    fn check_room_aside(&self, len: u32, from: Option<SegmentIx>) -> Result<(), TierError> {
        let Some(from) = from else { return Ok(()) };
        let state = self.state.borrow();
        let units = units_of(u64::from(len));
        let mut takers = (0..state.lanes.len()).filter(|at| state.lanes[*at].takes_blocks());
        let fits = takers.any(|at| state.lane_fits(at, units, Some(from)));
        if fits || state.lanes[state.segments.get(from).lane].draining {
            return Ok(());
        }
        Err(TierError::NoRoom)
    }

    /// Appends a record and begins its write. Gives `buffer` back when there is no room now:
    /// wait for [`NvmeTier::room`], check that the record still counts, and try again.
    ///
    /// # Errors
    /// The buffer.
    pub fn try_place(
        self: &Rc<Self>,
        record: &Record<'_>,
        buffer: IoBuffer,
    ) -> Result<Placed, IoBuffer> {
        let units = units_of(u64::from(record.len));
        let lane = {
            let mut state = self.state.borrow_mut();
            let count = state.lanes.len();
            let order = (0..count).map(|step| (state.turn + step) % count);
            let mut takers =
                order.filter(|lane| self.lane_takes(&state, *lane, units, record.from));
            let Some(lane) = takers.next() else {
                return Err(buffer);
            };
            state.turn = lane;
            lane
        };
        self.make_place(lane, record, units);
        Ok(self.append(lane, record, buffer, units))
    }

    /// Sees to it that the open frame of a lane takes the record.
    fn make_place(self: &Rc<Self>, lane: usize, record: &Record<'_>, units: u32) {
        let mut state = self.state.borrow_mut();
        let it = &state.lanes[lane];
        if it.open.as_ref().is_some_and(|open| !fits(it, open, units)) {
            drop(state);
            self.seal(lane);
            state = self.state.borrow_mut();
        }
        if state.lanes[lane].open.is_none() {
            state.open_segment(lane, self.config.epoch);
        }
        let full = |frame: &OpenFrame| !frame.builder.fits(record.namespace, record.key);
        let open = state.lanes[lane].open.as_ref();
        if open.is_some_and(|open| open.frame.as_ref().is_some_and(full)) {
            // `fits` counts a frame head in any case, so the segment takes the next frame too.
            drop(state);
            self.close_frame(lane);
        }
    }

    fn append(
        self: &Rc<Self>,
        at: usize,
        record: &Record<'_>,
        buffer: IoBuffer,
        units: u32,
    ) -> Placed {
        let now = self.tasks.now();
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let sequence = match record.sequence {
            Some(sequence) => sequence,
            None => state.sequence(self.config.epoch),
        };
        let mut opened = false;
        let lane = &mut state.lanes[at];
        if lane.open.as_ref().is_some_and(|open| open.frame.is_none()) {
            opened = true;
            let write = lane.begin_write();
            let segments = &state.segments;
            lane.frame_due = now + self.config.frame_wait;
            if let Some(open) = &mut lane.open {
                let identity = segments.get(open.segment).identity;
                open.frame = Some(OpenFrame {
                    write,
                    builder: FrameBuilder::new(FRAME_HEAD_LEN, &identity, open.end, open.frames),
                    place: open.end,
                    payload_bytes: 0,
                    payloads: Vec::new(),
                });
                open.frames += 1;
                open.end += units_of(u64::from(FRAME_HEAD_LEN));
            }
        }
        let (open, device) = (lane.open.as_mut(), &lane.device);
        let open = open.expect("make_place opened a segment");
        let frame = open.frame.as_mut().expect("opened above");
        let entry = EntryRef {
            kind: record.kind,
            namespace: record.namespace,
            key: record.key,
            sequence,
            checksum: record.checksum,
            len: record.len,
            place: if units > 0 { open.end } else { 0 },
            hint: record.hint,
        };
        frame.builder.push(&entry);
        open.footer.push(&entry);
        let (segment, place, write) = (open.segment, open.end, frame.write);
        if units > 0 {
            let base = state.segments.get(segment).base;
            let len = units * UNIT as u32;
            let deadline = now + self.config.io_deadline;
            let payload = device.write(base + u64::from(place) * UNIT, len, buffer, deadline);
            frame.payloads.push(payload);
            frame.payload_bytes += u64::from(len);
            lane.bytes_in_flight += u64::from(len);
            lane.payloads_in_flight += 1;
            if record.from.is_some() {
                lane.reserved = lane.reserved.saturating_sub(units);
            }
            open.end += units;
        }
        let close = frame.payload_bytes >= self.config.frame_bytes;
        count(&mut state.counters[at], record, units);
        let placed = Placed {
            location: state.segments.locate(segment, place),
            ticket: Ticket { lane: at, write },
        };
        drop(guard);
        if close {
            self.close_frame(at);
        } else if opened {
            self.close_when_due(at, write);
        }
        placed
    }
}

fn count(counters: &mut super::TierCounters, record: &Record<'_>, units: u32) {
    counters.bytes_written += u64::from(units) * UNIT;
    match (record.kind, record.sequence) {
        (EntryKind::Tombstone | EntryKind::NamespaceTombstone, _) => counters.tombstones += 1,
        (EntryKind::Block, Some(_)) => {
            counters.reinsertions += 1;
            counters.reinserted_bytes += u64::from(record.len);
        }
        (EntryKind::Block, None) => {
            counters.blocks_written += 1;
            counters.payload_bytes += u64::from(record.len);
        }
        (EntryKind::Checkpoint, _) => {}
    }
}

/// Whether a payload of `units`, in a frame of its own if need be, leaves room for the footer.
pub(super) fn fits(lane: &Lane, open: &OpenSegment, units: u32) -> bool {
    let head = units_of(u64::from(FRAME_HEAD_LEN));
    let footer = units_of(u64::from(open.footer.len_after(ENTRY_LEN_MAX)));
    let end = u64::from(open.end) + u64::from(head) + u64::from(units) + u64::from(footer);
    end <= u64::from(lane.units)
}

impl State {
    /// Whether a device has room for a payload of `units`, but for what is set aside.
    fn lane_fits(&self, at: usize, units: u32, from: Option<SegmentIx>) -> bool {
        let lane = &self.lanes[at];
        // Until the reclaim that is due has begun, all that is left is for what it keeps.
        let mut aside = if lane.is_due() {
            u32::MAX
        } else {
            lane.reserved
        };
        if let Some(from) = from.map(|from| self.segments.get(from)) {
            if from.lane == at {
                aside = 0;
            } else if !self.lanes[from.lane].draining && units > 0 {
                return false;
            }
        }
        let next = lane.ready.front();
        let ready = units <= lane.block_units_max()
            && next.is_some_and(|ix| self.segments.get(*ix).readers == 0);
        let open = lane.open.as_ref();
        ready || open.is_some_and(|open| fits(lane, open, units.saturating_add(aside)))
    }

    /// Opens the next ready segment of a lane.
    fn open_segment(&mut self, at: usize, epoch: u32) {
        let Some(segment) = self.lanes[at].ready.pop_front() else {
            return;
        };
        let sequence = self.sequence(epoch);
        let lane = &mut self.lanes[at];
        let opened = self.segments.get_mut(segment);
        opened.transition(Phase::Open);
        opened.proven = false;
        opened.opened = sequence;
        lane.open = Some(OpenSegment {
            segment,
            end: 1,
            frames: 0,
            footer: FooterBuilder::new(),
            frame: None,
        });
    }
}

/// Bytes of payload that the open segment of a device still takes, frame heads and the footer's
/// growth allowed for.
pub(super) fn payload_room(lane: &Lane) -> u64 {
    let Some(open) = &lane.open else { return 0 };
    let free = lane.units.saturating_sub(open.end);
    let footer = units_of(u64::from(open.footer.len_bytes()));
    let overhead = footer + free / 32 + 8;
    u64::from(free.saturating_sub(overhead)) * UNIT
}

/// The output of whichever future ends first.
pub(super) async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    poll_fn(|context| {
        if let Poll::Ready(output) = one.as_mut().poll(context) {
            return Poll::Ready(output);
        }
        other.as_mut().poll(context)
    })
    .await
}

/// A head or footer as an operation's memory.
pub(super) fn owned(bytes: AlignedBuffer) -> IoBuffer {
    IoBuffer::Owned(bytes)
}

/// The futures of a frame's writes.
pub(super) type Writes = Vec<IoFuture>;
