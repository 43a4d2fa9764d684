//! A device in ordinary memory that forgets like a real one: what was written and not flushed
//! may be lost, in part or in whole, and tests say what else goes wrong.
//!
//! **Invariants**
//! - A write is seen by reads from its completion on; it is durable when a flush that was
//!   asked for later than that has completed.
//! - Every operation is carried out as the fault plan said when it was submitted.
//!
//! Units that were never written cost nothing.

mod crash;
mod faults;
mod guard;
mod image;
mod state;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use terrace_types::{Clock, Nanos};

pub use crash::PowerCut;
pub use faults::{Behaviour, Fault, Kind, Operation, SeededFaults};
pub use image::MemImage;

use crate::UNIT;
use crate::buffer::IoBuffer;
use crate::device::{BlockDevice, Completion, DeviceInfo, IoBackend};
use crate::ops::{IoError, IoFuture, IoOutcome, OpTable};
use guard::Guard;
use state::{Flight, State, Unflushed};

/// Bytes that a device writes at once whatever happens.
const SECTOR: u32 = 512;

/// Operations that were submitted, and the bytes that they asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes that reads asked for.
    pub bytes_read: u64,
    /// Bytes that writes asked for.
    pub bytes_written: u64,
}

/// What just became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The device has it; it may carry it out at any time from now on.
    Submitted,
    /// It was carried out, and nobody knows of it yet.
    Completed,
}

type Plan = Box<dyn FnMut(&Operation) -> Behaviour>;
type Watch = Rc<dyn Fn(&Operation, Moment)>;

/// See the module's text.
pub struct MemDevice {
    info: DeviceInfo,
    ops: OpTable,
    clock: Option<Rc<dyn Clock>>,
    state: RefCell<State>,
    plan: RefCell<Option<Plan>>,
    watch: RefCell<Option<Watch>>,
    misuses: RefCell<Vec<String>>,
    counts: Cell<MemCounts>,
    waker: Cell<Option<Waker>>,
    /// Something changed that the driver has to look at.
    changed: Cell<bool>,
}

impl MemDevice {
    /// An empty device of `len` bytes whose operations complete when it is next asked.
    #[must_use]
    pub fn new(len: u64) -> Rc<Self> {
        Self::from_image(MemImage::empty(len), None)
    }

    /// A device with an image on it. With a clock, operations take the time that the plan
    /// says; without one, none.
    ///
    /// # Panics
    /// When the image's length is zero or no multiple of 4096.
    #[must_use]
    pub fn from_image(image: MemImage, clock: Option<Rc<dyn Clock>>) -> Rc<Self> {
        let len = image.len();
        assert!(
            len > 0 && len.is_multiple_of(UNIT),
            "a device of {len} bytes"
        );
        Rc::new(Self {
            info: DeviceInfo {
                name: "memory".to_owned(),
                len,
                sector: SECTOR,
            },
            ops: OpTable::new(4096),
            clock,
            state: RefCell::new(State {
                volatile: image.clone(),
                durable: image,
                ..State::default()
            }),
            plan: RefCell::default(),
            watch: RefCell::default(),
            misuses: RefCell::default(),
            counts: Cell::default(),
            waker: Cell::default(),
            changed: Cell::default(),
        })
    }

    /// Says how each operation from now on behaves; it is asked when one is submitted.
    pub fn set_plan(&self, plan: impl FnMut(&Operation) -> Behaviour + 'static) {
        *self.plan.borrow_mut() = Some(Box::new(plan));
    }

    /// Lets all operations from now on succeed at once.
    pub fn clear_plan(&self) {
        *self.plan.borrow_mut() = None;
    }

    /// Tells `watch` of each operation from now on, one at a time: between two calls no task
    /// learns of more than one completion.
    pub fn set_watch(&self, watch: impl Fn(&Operation, Moment) + 'static) {
        *self.watch.borrow_mut() = Some(Rc::new(watch));
    }

    fn tell(&self, operation: &Operation, moment: Moment) {
        let watch = self.watch.borrow().clone();
        if let Some(watch) = watch {
            watch(operation, moment);
        }
    }

    /// Lets stuck operations complete, as well as they would have without being stuck.
    pub fn release_stuck(&self) {
        for flight in &mut self.state.borrow_mut().flying {
            flight.due = Some(flight.due.unwrap_or(Nanos::ZERO));
        }
        self.wake();
    }

    /// What was submitted so far.
    #[must_use]
    pub fn counts(&self) -> MemCounts {
        self.counts.get()
    }

    /// What reads see now.
    #[must_use]
    pub fn image(&self) -> MemImage {
        self.state.borrow().volatile.clone()
    }

    fn start(&self, operation: Operation, buffer: IoBuffer, deadline: Nanos) -> IoFuture {
        let Operation { offset, len, .. } = operation;
        let (address, room) = buffer.range();
        let end = offset.checked_add(u64::from(len));
        assert!(end.is_some_and(|end| end <= self.info.len), "{operation:?}");
        assert!(len as usize <= room, "{operation:?} in memory of {room}");
        assert!(offset.is_multiple_of(UNIT), "{operation:?}");
        assert!(u64::from(len).is_multiple_of(UNIT), "{operation:?}");
        let aligned = operation.kind == Kind::Flush
            || len > 0 && address.addr().get().is_multiple_of(UNIT as usize);
        assert!(aligned, "{operation:?} at {address:p}");
        let bytes = bytes_at(address, len as usize);
        let id = match self.ops.begin(buffer, len, deadline) {
            Ok(id) => id,
            Err(buffer) => {
                return IoFuture::ready(IoOutcome {
                    result: Err(IoError::Full),
                    buffer: Some(buffer),
                });
            }
        };
        let moves = operation.kind != Kind::Flush;
        let memory = moves.then(|| Guard::take(&operation, address.addr().get()));
        if memory.as_ref().is_some_and(|(_, taken)| *taken) {
            self.misuse(&operation, "its memory is another operation's");
        }
        let mut state = self.state.borrow_mut();
        let flight = Flight {
            id,
            operation,
            bytes,
            _memory: memory.map(|(guard, _)| guard),
            fault: None,
            due: Some(Nanos::ZERO),
            completed_before: state.writes_completed,
        };
        state.queued.push_back(flight);
        drop(state);
        self.wake();
        self.ops.future(id)
    }

    fn wake(&self) {
        self.changed.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn count(&self, operation: &Operation) {
        let mut counts = self.counts.get();
        let len = u64::from(operation.len);
        match operation.kind {
            Kind::Read => {
                counts.reads += 1;
                counts.bytes_read += len;
            }
            Kind::Write => {
                counts.writes += 1;
                counts.bytes_written += len;
            }
            Kind::Flush => counts.flushes += 1,
        }
        self.counts.set(counts);
    }

    fn carry_out(&self, flight: &Flight) -> Result<u32, i32> {
        if let Some(Fault::Os { errno }) = flight.fault {
            return Err(errno);
        }
        match flight.operation.kind {
            Kind::Read => self.read_out(flight),
            Kind::Write => self.write_in(flight),
            Kind::Flush => {
                self.state.borrow_mut().flush(flight.completed_before);
                return Ok(0);
            }
        }
        match flight.fault {
            Some(Fault::Short { done }) => Ok(done.min(flight.operation.len)),
            _ => Ok(flight.operation.len),
        }
    }

    fn read_out(&self, flight: &Flight) {
        let state = self.state.borrow();
        let Operation { offset, len, .. } = flight.operation;
        let mut bytes = match flight.fault {
            Some(Fault::Misdirected { offset }) => state.volatile.read(offset, len),
            Some(Fault::Stale) => state.stale(offset, len),
            _ => state.volatile.read(offset, len),
        };
        match flight.fault {
            Some(Fault::Short { done }) => bytes.truncate(done as usize),
            Some(Fault::BitFlip { bit }) => faults::flip(&mut bytes, bit),
            _ => {}
        }
        let address = self.ops.range(flight.id).0;
        // SAFETY: `start` checked that the operation's memory, which is in the table until the
        // operation completes, is at least as long as was asked for; `bytes` is not longer.
        unsafe { address.copy_from_nonoverlapping(bytes_start(&mut bytes), bytes.len()) };
    }

    fn write_in(&self, flight: &Flight) {
        let mut bytes = Rc::clone(&flight.bytes);
        let mut offset = flight.operation.offset;
        let cut = |len: u32| Rc::from(&flight.bytes[..flight.bytes.len().min(len as usize)]);
        match flight.fault {
            Some(Fault::Short { done }) => bytes = cut(done),
            Some(Fault::Torn { sectors }) => bytes = cut(sectors * SECTOR),
            Some(Fault::Misdirected { offset: other }) => offset = other,
            Some(Fault::BitFlip { bit }) => faults::flip(Rc::make_mut(&mut bytes), bit),
            _ => {}
        }
        let mut state = self.state.borrow_mut();
        for at in (offset..offset + bytes.len() as u64).step_by(UNIT as usize) {
            let unit = state.volatile.unit(at / UNIT);
            state.previous.insert(at / UNIT, unit);
        }
        state.volatile.write(offset, &bytes);
        state.writes_completed += 1;
        let number = flight.operation.number;
        state.unflushed.push(Unflushed {
            number,
            offset,
            bytes,
        });
    }
}

/// A copy of the memory of an operation.
fn bytes_at(address: std::ptr::NonNull<u8>, len: usize) -> Rc<[u8]> {
    let mut bytes = vec![0; len];
    // SAFETY: `start` checked that the operation's memory is at least that long; it is called
    // with memory that `start` was given, or that is in the table until the operation completes.
    unsafe { address.copy_to_nonoverlapping(bytes_start(&mut bytes), bytes.len()) };
    Rc::from(bytes)
}

fn bytes_start(bytes: &mut [u8]) -> std::ptr::NonNull<u8> {
    std::ptr::NonNull::from(bytes).cast()
}

impl BlockDevice for MemDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, len: u32, buffer: IoBuffer, deadline: Nanos) -> IoFuture {
        self.start(Operation::new(Kind::Read, offset, len), buffer, deadline)
    }

    fn write(&self, offset: u64, len: u32, buffer: IoBuffer, deadline: Nanos) -> IoFuture {
        self.start(Operation::new(Kind::Write, offset, len), buffer, deadline)
    }

    fn flush(&self, deadline: Nanos) -> IoFuture {
        self.start(Operation::new(Kind::Flush, 0, 0), IoBuffer::None, deadline)
    }
}

impl IoBackend for MemDevice {
    fn poll_queued(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.changed.get() {
            return Poll::Ready(());
        }
        self.waker.set(Some(context.waker().clone()));
        Poll::Pending
    }

    fn submit(&self) {
        self.changed.set(false);
        loop {
            let mut state = self.state.borrow_mut();
            let Some(mut flight) = state.queued.pop_front() else {
                return;
            };
            flight.operation.number = state.submitted;
            state.submitted += 1;
            drop(state);
            self.count(&flight.operation);
            let behaviour = match &mut *self.plan.borrow_mut() {
                Some(plan) => plan(&flight.operation),
                None => Behaviour::default(),
            };
            flight.fault = behaviour.fault;
            flight.due = match (behaviour.stuck, &self.clock) {
                (true, _) => None,
                (false, Some(clock)) => Some(clock.now() + behaviour.latency),
                (false, None) => Some(Nanos::ZERO),
            };
            let operation = flight.operation;
            self.state.borrow_mut().flying.push(flight);
            self.tell(&operation, Moment::Submitted);
        }
    }

    fn reap(&self, now: Nanos) -> usize {
        let mut due: Vec<_> = {
            let state = self.state.borrow();
            let is_due = |flight: &&Flight| flight.due.is_some_and(|due| due <= now);
            let due = state.flying.iter().filter(is_due);
            due.map(|flight| (flight.due, flight.operation.number))
                .collect()
        };
        due.sort_unstable();
        for (_, number) in &due {
            let flight = {
                let mut state = self.state.borrow_mut();
                let mut flying = state.flying.iter();
                let at = flying.position(|flight| flight.operation.number == *number);
                at.map(|at| state.flying.remove(at))
            };
            let Some(flight) = flight else { continue };
            let (address, _) = self.ops.range(flight.id);
            if bytes_at(address, flight.bytes.len()) != flight.bytes {
                self.misuse(&flight.operation, "its memory was written to");
            }
            let moved = self.carry_out(&flight);
            self.tell(&flight.operation, Moment::Completed);
            self.ops.complete(flight.id, moved);
        }
        due.len()
    }

    fn expire(&self, now: Nanos) {
        self.ops.expire(now);
    }

    fn in_flight(&self) -> usize {
        let state = self.state.borrow();
        state.queued.len() + state.flying.len()
    }

    fn completion(&self) -> Completion {
        let state = self.state.borrow();
        let next = state.flying.iter().filter_map(|flight| flight.due).min();
        Completion::At(next.unwrap_or(Nanos::MAX))
    }
}

impl Drop for MemDevice {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        for flight in state.queued.drain(..).chain(state.flying.drain(..)) {
            self.ops.complete(flight.id, Err(libc::ECANCELED));
        }
    }
}

#[cfg(test)]
#[path = "mem_tests.rs"]
mod tests;
