//! A shard's io_uring: operations go in, one call hands them over, completions come out.
//!
//! **Invariants**
//! - Made, used and dropped on one thread; the type is neither `Send` nor `Sync`.
//! - The memory of an operation that the kernel has lies in the [`OpTable`] until its
//!   completion, whatever becomes of the future. A ring that is dropped waits for the kernel,
//!   or leaks the table.
//! - The kernel has no more operations than the completion queue has places; more wait in the
//!   ring's own queue.
//!
//! Nothing is retried here: short transfers and errors come out as they are.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use terrace_types::Nanos;

use super::fixed::{FixedMemory, PLACES};
use super::setup::{self, FILES_MAX, OPS_MAX};
use super::setup::{RingConfig, RingCounts, RingError, RingReport};
use crate::UNIT;
use crate::buffer::IoBuffer;
use crate::device::{Completion, IoBackend};
use crate::ops::{IoError, IoFuture, IoOutcome, OpId, OpTable};

/// Bytes that operations move after which a ring with a driver hands them over before its turn,
/// so that the device works on them while tasks go on. Reads complete in groups, and each block is
/// hashed before its reader asks for the next: the device would wait for the last of the group.
/// Measured at depth 32 by `terrace-bench raw --modes hybrid,hybrid-hash`: hashing cost 15% of the
/// throughput of 1 MiB reads, 8% at 256 KiB and 10% at 64 KiB, and with this 2%, 1% and none. The
/// calls cost 0.4 us of CPU for a read of 64 KiB and 1.8 us for one of 1 MiB.
///
/// As many are taken in at once, so that the readers of a group ask for more before the next group
/// is hashed: with an engine, whose reads are tasks of their own, 5% more at 64 KiB and 15% at
/// 256 KiB and 1 MiB.
const EARLY_LEN: u64 = 512 << 10;

/// A file's place on one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIx(pub(super) u16);

pub(super) struct RingFile {
    pub(super) handle: OwnedFd,
    /// Whether it has the same place in the kernel's table.
    pub(super) registered: bool,
}

/// What an operation does to its file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Read { offset: u64, len: u32 },
    Write { offset: u64, len: u32 },
    Flush,
}

/// See the module's text.
pub struct Ring {
    /// Dropped before `ops`, and only when the kernel has no operation left.
    pub(super) io: ManuallyDrop<RefCell<IoUring>>,
    pub(super) ops: ManuallyDrop<OpTable>,
    /// Operations that the kernel is given at once.
    ops_max: usize,
    /// Operations that are not in the kernel's queue yet.
    pub(super) queue: RefCell<VecDeque<squeue::Entry>>,
    /// Operations in the kernel's queue that it has not taken.
    unsent: Cell<usize>,
    /// Bytes that operations move which were queued since the last submission.
    queued_bytes: Cell<u64>,
    /// Somebody waits for operations to hand over.
    driven: Cell<bool>,
    /// Operations were handed over outside the driver's turn, and it has not been told yet.
    submitted_early: Cell<bool>,
    /// Operations under way: queued, unsent and taken.
    pub(super) pending: Cell<usize>,
    queued_waker: Cell<Option<Waker>>,
    pub(super) fixed: RefCell<FixedMemory>,
    pub(super) files: RefCell<Vec<RingFile>>,
    /// Reused by `reap`.
    completed: Cell<Vec<(u64, i32)>>,
    /// The kernel's answer that ended the use of the ring; a defect of ours.
    broken: Cell<Option<i32>>,
    /// Whether the kernel opened a table of fixed memory, and one of files.
    pub(super) tables: (bool, bool),
    told: Completion,
    report: Cell<RingReport>,
    counts: Cell<RingCounts>,
}

impl Ring {
    /// Makes a ring for the calling thread. Completions signal `event`; without one, or when
    /// the ring is polled, it has to be asked. `buffers` are fixed beforehand as
    /// [`Ring::register_region`] does; when the limit on locked memory forbids that, the ring
    /// warns and goes on without.
    ///
    /// # Errors
    /// [`RingError`] says what the kernel refused.
    pub fn new(
        config: &RingConfig,
        event: Option<BorrowedFd<'_>>,
        buffers: &[(NonNull<u8>, usize)],
    ) -> Result<Rc<Self>, RingError> {
        let (io, report) = setup::make(config)?;
        let mut told = Completion::Polled;
        if let Some(event) = event.filter(|_| !config.polled) {
            io.submitter()
                .register_eventfd(event.as_raw_fd())
                .map_err(|cause| RingError::Register {
                    what: "an eventfd",
                    cause,
                })?;
            told = Completion::Event;
        }
        let submitter = io.submitter();
        let memory =
            config.register && submitter.register_buffers_sparse(u32::from(PLACES)).is_ok();
        let files = config.register && submitter.register_files_sparse(FILES_MAX as u32).is_ok();
        let ring = Self {
            io: ManuallyDrop::new(RefCell::new(io)),
            ops: ManuallyDrop::new(OpTable::new(OPS_MAX)),
            ops_max: config.ops_max,
            queue: RefCell::new(VecDeque::with_capacity(config.ops_max)),
            unsent: Cell::new(0),
            queued_bytes: Cell::new(0),
            driven: Cell::new(false),
            submitted_early: Cell::new(false),
            pending: Cell::new(0),
            queued_waker: Cell::new(None),
            fixed: RefCell::default(),
            files: RefCell::default(),
            completed: Cell::new(Vec::with_capacity(config.ops_max)),
            broken: Cell::new(None),
            tables: (memory, files),
            told,
            report: Cell::new(report),
            counts: Cell::default(),
        };
        ring.change_report(|report| {
            report.fixed_buffers = memory;
            report.registered_files = files;
        });
        for (address, len) in buffers {
            match ring.register_region(*address, *len) {
                Ok(()) => {}
                Err(error @ RingError::Memlock { .. }) => {
                    ring.change_report(|report| report.fixed_buffers = false);
                    tracing::warn!(%error, "the kernel pins memory anew for each operation");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Rc::new(ring))
    }

    /// What is in force.
    #[must_use]
    pub fn report(&self) -> RingReport {
        self.report.get()
    }

    /// Operations and calls so far.
    #[must_use]
    pub fn counts(&self) -> RingCounts {
        self.counts.get()
    }

    pub(super) fn change_report(&self, change: impl FnOnce(&mut RingReport)) {
        let mut report = self.report.get();
        change(&mut report);
        self.report.set(report);
    }

    fn count(&self, change: impl FnOnce(&mut RingCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Queues an operation.
    ///
    /// # Panics
    /// When the range or the memory does not lie at multiples of 4096, when the memory is
    /// shorter than the range, or when a polled ring is to flush.
    pub(super) fn start(
        &self,
        file: FileIx,
        work: Work,
        buffer: IoBuffer,
        deadline: Nanos,
    ) -> IoFuture {
        let wanted = self.check(work, &buffer);
        let refused = |errno, buffer| {
            IoFuture::ready(IoOutcome {
                result: Err(errno),
                buffer: Some(buffer),
            })
        };
        if let Some(errno) = self.broken.get() {
            return refused(IoError::Os { errno }, buffer);
        }
        let id = match self.ops.begin(buffer, wanted, deadline) {
            Ok(id) => id,
            Err(buffer) => return refused(IoError::Full, buffer),
        };
        let submission = self.submission(file, work, id);
        self.queue.borrow_mut().push_back(submission);
        self.pending.set(self.pending.get() + 1);
        self.wake_queued();
        self.queued_bytes
            .set(self.queued_bytes.get() + u64::from(wanted));
        if self.driven.get() && self.queued_bytes.get() >= EARLY_LEN {
            self.submit();
            self.submitted_early.set(true);
        }
        self.ops.future(id)
    }

    fn check(&self, work: Work, buffer: &IoBuffer) -> u32 {
        let (offset, len) = match work {
            Work::Read { offset, len } | Work::Write { offset, len } => (offset, len),
            Work::Flush => {
                assert!(!self.report.get().polled, "a polled ring cannot flush");
                return 0;
            }
        };
        let (address, room) = buffer.range();
        assert!(len > 0, "an operation moves bytes");
        assert!(len as usize <= room, "{len} bytes in memory of {room}");
        assert!(offset.is_multiple_of(UNIT), "offset {offset}");
        assert!(u64::from(len).is_multiple_of(UNIT), "length {len}");
        assert!(
            address.addr().get().is_multiple_of(UNIT as usize),
            "memory at {address:p}"
        );
        len
    }

    fn submission(&self, file: FileIx, work: Work, id: OpId) -> squeue::Entry {
        let address = self.ops.range(id).0;
        let place = |len: u32| {
            let fixed = self.fixed.borrow();
            fixed.place_of(address.addr().get(), len as usize)
        };
        let files = self.files.borrow();
        let file_of = &files[usize::from(file.0)];
        let (fd, flags) = if file_of.registered {
            (Fd(i32::from(file.0)), squeue::Flags::FIXED_FILE)
        } else {
            (Fd(file_of.handle.as_raw_fd()), squeue::Flags::empty())
        };
        let memory = address.as_ptr();
        let submission = match work {
            Work::Read { offset, len } => match place(len) {
                Some(place) => opcode::ReadFixed::new(fd, memory, len, place)
                    .offset(offset)
                    .build(),
                None => opcode::Read::new(fd, memory, len).offset(offset).build(),
            },
            Work::Write { offset, len } => match place(len) {
                Some(place) => opcode::WriteFixed::new(fd, memory, len, place)
                    .offset(offset)
                    .build(),
                None => opcode::Write::new(fd, memory, len).offset(offset).build(),
            },
            Work::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        submission.flags(flags).user_data(id.0)
    }

    /// Whether there is something that the kernel can be given now.
    fn has_queued(&self) -> bool {
        let waits = !self.queue.borrow().is_empty() && self.has_place();
        self.broken.get().is_none() && (self.unsent.get() > 0 || waits)
    }

    /// Whether one more completion has its place.
    fn has_place(&self) -> bool {
        self.pending.get() - self.queue.borrow().len() < self.ops_max
    }

    fn wake_queued(&self) {
        if let Some(waker) = self.queued_waker.take() {
            waker.wake();
        }
    }

    /// Operations that the kernel took and did not complete.
    pub(super) fn taken(&self) -> usize {
        self.pending.get() - self.unsent.get() - self.queue.borrow().len()
    }

    /// Moves as many operations as fit from our queue to the kernel's.
    fn fill(&self, io: &mut IoUring) {
        let mut submissions = io.submission();
        while !submissions.is_full() && self.has_place() {
            let Some(submission) = self.queue.borrow_mut().pop_front() else {
                break;
            };
            // SAFETY: the operation's memory lies in the table until its completion, and its
            // file stays open with the ring.
            unsafe { submissions.push(&submission) }.expect("the queue is not full");
            self.unsent.set(self.unsent.get() + 1);
        }
    }

    /// Hands over as much as the kernel's queue holds, and sleeps until `awaited` completions
    /// can be reaped. True when the kernel may take more at once.
    fn hand_over(&self, io: &mut IoUring, awaited: usize) -> bool {
        let sq_poll = self.report.get().sq_poll;
        self.fill(io);
        self.queued_bytes.set(0);
        self.count(|counts| counts.enters += 1);
        match io.submit_and_wait(awaited) {
            Ok(taken) => {
                // With a thread of the kernel's, what is in its queue is on its way.
                let taken = if sq_poll { self.unsent.get() } else { taken };
                self.unsent.set(self.unsent.get() - taken);
                self.count(|counts| counts.submitted += taken as u64);
                taken > 0 && !sq_poll
            }
            Err(error) => {
                if !matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)
                ) {
                    tracing::error!(%error, "the kernel refuses a ring's submissions");
                    let errno = error.raw_os_error();
                    self.broken.set(Some(errno.unwrap_or(libc::EIO)));
                }
                false
            }
        }
    }

    /// Hands over what is queued and sleeps until something can be reaped, by one call: for a
    /// thread that has nothing but this ring to wait for. Returns at once when nothing is under
    /// way, and early when a signal comes. Deadlines are not looked at meanwhile.
    pub fn submit_and_wait(&self) {
        let mut io = self.io.borrow_mut();
        let entries = self.report.get().sq_entries as usize;
        while self.queue.borrow().len() + self.unsent.get() > entries && self.hand_over(&mut io, 0)
        {
        }
        if self.pending.get() > 0 && self.broken.get().is_none() {
            self.hand_over(&mut io, 1);
        }
    }

    /// Lets the kernel poll the device, or run completions that it put off.
    fn ask_kernel(&self, io: &mut IoUring) {
        let put_off = io.submission().taskrun();
        let polled = self.report.get().polled && !self.report.get().sq_poll;
        if !(put_off || polled) || self.taken() == 0 || !io.completion().is_empty() {
            return;
        }
        let flags = EnterFlags::GETEVENTS.bits();
        self.count(|counts| counts.enters += 1);
        // SAFETY: no argument is passed, and nothing is submitted.
        let asked = unsafe { io.submitter().enter::<libc::sigset_t>(0, 0, flags, None) };
        // A signal or a lack of memory: the next call asks again.
        drop(asked);
    }
}

impl IoBackend for Ring {
    fn poll_queued(&self, context: &mut Context<'_>) -> Poll<()> {
        self.driven.set(true);
        if self.submitted_early.take() || self.has_queued() {
            return Poll::Ready(());
        }
        self.queued_waker.set(Some(context.waker().clone()));
        Poll::Pending
    }

    fn submit(&self) {
        let mut io = self.io.borrow_mut();
        while self.has_queued() && self.hand_over(&mut io, 0) {}
        drop(io);
        if self.has_queued() {
            self.wake_queued();
        }
    }

    fn reap(&self, _now: Nanos) -> usize {
        let mut completed = self.completed.take();
        {
            let mut io = self.io.borrow_mut();
            self.ask_kernel(&mut io);
            let mut moved = 0;
            for completion in io.completion() {
                completed.push((completion.user_data(), completion.result()));
                moved += u64::try_from(completion.result()).unwrap_or(0);
                if moved >= EARLY_LEN {
                    break;
                }
            }
        }
        let count = completed.len();
        self.pending.set(self.pending.get() - count);
        self.count(|counts| counts.completed += count as u64);
        for (id, result) in completed.drain(..) {
            let moved = u32::try_from(result).map_err(|_| -result);
            self.ops.complete(OpId(id), moved);
        }
        self.completed.set(completed);
        if count > 0 && self.has_queued() {
            self.wake_queued();
        }
        count
    }

    fn expire(&self, now: Nanos) {
        self.ops.expire(now);
    }

    fn in_flight(&self) -> usize {
        self.pending.get()
    }

    fn completion(&self) -> Completion {
        self.told
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
