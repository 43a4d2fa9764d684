//! Completion queues: where NICs tell what became of work requests.
//!
//! A queue serves any number of queue pairs. It is polled by the classic call: the newer
//! iterator over completions invents some with the soft-RoCE driver of rdma-core 44. Whoever has
//! nothing else to do waits on the queue's file descriptor, after a bounded number of polls.
//!
//! **Invariants**
//! - The queue has room for every request that its queue pairs can have under way, as each may
//!   end with an error of its own: it cannot overflow.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::abi::{self, Wc};
use super::device::Device;
use super::error::VerbsError;
use super::in_flight::RequestId;

/// What became of a work request, by the names of the InfiniBand standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It was done.
    Success,
    /// A message does not fit where it should go, or is longer than a port allows.
    LocalLength,
    /// The NIC found the queue pair or the request inconsistent.
    LocalQueuePairOperation,
    /// This end's memory is not registered as the request needs it.
    LocalProtection,
    /// The queue pair went to the error state before the request was done.
    Flushed,
    /// An answer of the peer was not understood.
    BadResponse,
    /// This end's memory may not be used as the request did.
    LocalAccess,
    /// The peer's NIC found the request malformed.
    RemoteInvalidRequest,
    /// The peer's NIC refused the key, the range or the kind of access.
    RemoteAccess,
    /// The peer's NIC could not do it.
    RemoteOperation,
    /// The peer did not answer, after all retries: it, its port or the way to it is down.
    RetriesExceeded,
    /// The peer had no receive posted, after all retries.
    ReceiverNotReady,
    /// The peer took its queue pair down while the request was under way.
    RemoteAborted,
    /// The NIC is in trouble.
    Fatal,
    /// Another number of the standard.
    Other(u32),
}

impl Status {
    pub(super) fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Success,
            1 => Self::LocalLength,
            2 => Self::LocalQueuePairOperation,
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            7 => Self::BadResponse,
            8 => Self::LocalAccess,
            9 => Self::RemoteInvalidRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::RetriesExceeded,
            13 => Self::ReceiverNotReady,
            16 => Self::RemoteAborted,
            19 => Self::Fatal,
            other => Self::Other(other),
        }
    }

    /// Whether the request was done.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Success
    }

    /// Whether the same request may succeed on another way to the peer: nothing was wrong with
    /// the request itself. A NIC whose own link is down may call it an error of the queue pair;
    /// requests that would be one are refused before they are posted.
    #[must_use]
    pub fn is_of_the_way(self) -> bool {
        matches!(
            self,
            Self::Flushed
                | Self::LocalQueuePairOperation
                | Self::RetriesExceeded
                | Self::RemoteAborted
                | Self::Fatal
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQueuePairOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "flushed: the queue pair failed before",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccess => "remote access error: key, range or right refused",
            Self::RemoteOperation => "remote operation error",
            Self::RetriesExceeded => "retries exceeded: the peer does not answer",
            Self::ReceiverNotReady => "receiver not ready: no receive posted",
            Self::RemoteAborted => "remote abort",
            Self::Fatal => "fatal error of the NIC",
            Self::Other(raw) => return write!(f, "status {raw}"),
        })
    }
}

/// What a NIC told about one work request. Its queue pair knows which one it was, and which
/// others are done with it: see [`super::QueuePair::resolve`].
#[derive(Clone, Copy, Debug)]
pub struct WorkCompletion(pub(super) Wc);

impl WorkCompletion {
    /// The number of the queue pair it belongs to.
    #[must_use]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }
}

/// How many completions are asked for at once: a cache line each or less, on the stack.
const POLL_BATCH: usize = 32;

/// A completion queue with its channel for waiting. Clones are the same queue.
#[derive(Clone)]
pub struct CompletionQueue(Arc<OpenQueue>);

struct OpenQueue {
    queue: NonNull<abi::Cq>,
    channel: NonNull<abi::CompChannel>,
    // Behind queue and channel, which `drop` destroys first.
    device: Device,
    /// Places, and how many of them queue pairs have taken.
    capacity: u32,
    taken: AtomicU32,
    /// Completions taken from the queue and not yet by a caller.
    waiting: Mutex<VecDeque<WorkCompletion>>,
    completions: AtomicU64,
}

// SAFETY: the library's calls on a completion queue may come from any thread.
unsafe impl Send for OpenQueue {}
// SAFETY: as above; they may also come at the same time.
unsafe impl Sync for OpenQueue {}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        let library = self.device.library();
        // SAFETY: made by `new`; queue pairs held this, so are gone; all events are answered.
        unsafe { (library.destroy_cq)(self.queue.as_ptr()) };
        // SAFETY: made by `new`; its only queue is gone.
        unsafe { (library.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

impl CompletionQueue {
    /// A queue of `capacity` places: one for each request that its queue pairs can have under
    /// way, sends and receives together.
    ///
    /// # Errors
    /// [`VerbsError::Setting`] when the capacity is 0 or beyond the device's limit; or the
    /// device has no room for another queue.
    pub fn new(device: &Device, capacity: u32) -> Result<Self, VerbsError> {
        let max = device.limits().completion_depth_max;
        if capacity == 0 || capacity > max {
            return Err(VerbsError::Setting {
                field: "completion queue capacity",
                value: u64::from(capacity),
                min: 1,
                max: u64::from(max),
            });
        }
        let library = device.library();
        let failed = |op| VerbsError::last_os(op, device.name());
        // SAFETY: the device is open.
        let channel = unsafe { (library.create_comp_channel)(device.raw()) };
        let channel = NonNull::new(channel).ok_or_else(|| failed("making a completion channel"))?;
        // SAFETY: device and channel are there; there is no context to pass.
        let queue = unsafe {
            (library.create_cq)(
                device.raw(),
                capacity as i32,
                std::ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(queue) = NonNull::new(queue) else {
            let error = failed("making a completion queue");
            // SAFETY: just made, and nothing uses it.
            unsafe { (library.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let this = Self(Arc::new(OpenQueue {
            queue,
            channel,
            device: device.clone(),
            capacity,
            taken: AtomicU32::new(0),
            waiting: Mutex::new(VecDeque::new()),
            completions: AtomicU64::new(0),
        }));
        this.never_block()?;
        Ok(this)
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// How many completions NICs have written to it and were taken from it.
    #[must_use]
    pub fn completions(&self) -> u64 {
        self.0.completions.load(Ordering::Relaxed)
    }

    /// Appends the completions that are there to `found`; how many they are.
    ///
    /// # Errors
    /// The device is in trouble.
    pub fn poll(&self, found: &mut Vec<WorkCompletion>) -> Result<usize, VerbsError> {
        let mut waiting = self.waiting();
        self.collect(&mut waiting)?;
        let count = waiting.len();
        found.extend(waiting.drain(..));
        Ok(count)
    }

    /// Waits until a completion is there, at most `timeout` since the last event; whether there is
    /// one. It polls `spins` times before it sleeps. A signal makes it return early.
    ///
    /// # Errors
    /// The device is in trouble.
    pub fn wait(&self, spins: u32, timeout: Duration) -> Result<bool, VerbsError> {
        let mut spins = spins;
        loop {
            if self.prepare_wait(spins)? {
                return Ok(true);
            }
            if !self.sleep(timeout)? {
                return self.is_ready();
            }
            // The event may be of a completion that was polled earlier: then wait for the next.
            spins = 0;
        }
    }

    /// Polls `spins` times, then makes the descriptor readable at the next completion. `true`:
    /// one is there already, so nobody should sleep.
    ///
    /// # Errors
    /// The device is in trouble.
    pub fn prepare_wait(&self, spins: u32) -> Result<bool, VerbsError> {
        for _ in 0..spins {
            if self.is_ready()? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        self.take_event()?;
        self.arm()?;
        // What came before the queue was armed makes no event.
        self.is_ready()
    }

    /// Sleeps until an event is there; `false` without one.
    fn sleep(&self, timeout: Duration) -> Result<bool, VerbsError> {
        let milliseconds = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut watched = libc::pollfd {
            fd: self.descriptor(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one record, which lives through the call.
        let count = unsafe { libc::poll(&raw mut watched, 1, milliseconds) };
        Ok(count > 0)
    }

    /// Asks for an event on the descriptor at the next completion.
    fn arm(&self) -> Result<(), VerbsError> {
        let Some(request) = self.device().ops().req_notify_cq else {
            return Err(self.unsupported("asking for an event"));
        };
        // SAFETY: the queue is there.
        match unsafe { request(self.raw(), 0) } {
            0 => Ok(()),
            code => Err(VerbsError::os(
                "asking for an event",
                self.device().name(),
                code,
            )),
        }
    }

    /// Takes the event that made the descriptor readable, if there is one.
    fn take_event(&self) -> Result<(), VerbsError> {
        let library = self.device().library();
        let mut queue = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        // SAFETY: the channel is there and does not block; both places are the library's.
        let code = unsafe {
            (library.get_cq_event)(self.0.channel.as_ptr(), &raw mut queue, &raw mut context)
        };
        if code == 0 {
            // SAFETY: the channel has one queue, and an event of it was just taken.
            unsafe { (library.ack_cq_events)(self.raw(), 1) };
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            // There is none, or another thread took it.
            Some(libc::EAGAIN | libc::EINTR) => Ok(()),
            _ => Err(VerbsError::last_os("taking an event", self.device().name())),
        }
    }

    /// Takes `count` places for a queue pair.
    pub(super) fn reserve(&self, count: u32) -> Result<(), VerbsError> {
        let fits = |taken: u32| {
            let sum = taken.checked_add(count)?;
            (sum <= self.0.capacity).then_some(sum)
        };
        let taken = &self.0.taken;
        let reserved = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        reserved.map(drop).map_err(|taken| VerbsError::QueueFull {
            count: count as usize,
            room: (self.0.capacity - taken) as usize,
            capacity: self.0.capacity as usize,
        })
    }

    /// Gives places of a queue pair back that has ended.
    pub(super) fn release(&self, count: u32) {
        self.0.taken.fetch_sub(count, Ordering::Relaxed);
    }

    /// Drops what is there of a queue pair that is gone, so that it takes no room.
    pub(super) fn forget(&self, life: u32) -> Result<(), VerbsError> {
        let mut waiting = self.waiting();
        self.collect(&mut waiting)?;
        waiting.retain(|completion| RequestId::from_raw(completion.0.wr_id).life() != life);
        Ok(())
    }

    pub(super) fn raw(&self) -> *mut abi::Cq {
        self.0.queue.as_ptr()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<WorkCompletion>> {
        self.0
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ready(&self) -> Result<bool, VerbsError> {
        let mut waiting = self.waiting();
        self.collect(&mut waiting)?;
        Ok(!waiting.is_empty())
    }

    /// Takes all that is there from the queue.
    fn collect(&self, waiting: &mut VecDeque<WorkCompletion>) -> Result<(), VerbsError> {
        let Some(poll) = self.device().ops().poll_cq else {
            return Err(self.unsupported("polling"));
        };
        loop {
            let mut batch = [Wc::default(); POLL_BATCH];
            // SAFETY: the queue is there, and the batch has so many records.
            let code = unsafe { poll(self.raw(), POLL_BATCH as i32, batch.as_mut_ptr()) };
            let count = usize::try_from(code)
                .map_err(|_| VerbsError::os("polling", self.device().name(), -code))?;
            let count = count.min(POLL_BATCH);
            waiting.extend(batch[..count].iter().map(|raw| WorkCompletion(*raw)));
            let completions = &self.0.completions;
            completions.fetch_add(count as u64, Ordering::Relaxed);
            if count < POLL_BATCH {
                return Ok(());
            }
        }
    }

    fn unsupported(&self, op: &'static str) -> VerbsError {
        VerbsError::os(op, self.device().name(), libc::EOPNOTSUPP)
    }

    fn descriptor(&self) -> i32 {
        // SAFETY: the channel is there, and its descriptor does not change.
        unsafe { (*self.0.channel.as_ptr()).fd }
    }

    fn never_block(&self) -> Result<(), VerbsError> {
        let failed = || VerbsError::last_os("making a channel not block", self.device().name());
        // SAFETY: the descriptor is open.
        let flags = unsafe { libc::fcntl(self.descriptor(), libc::F_GETFL) };
        if flags < 0 {
            return Err(failed());
        }
        // SAFETY: as above.
        let code =
            unsafe { libc::fcntl(self.descriptor(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
        if code < 0 { Err(failed()) } else { Ok(()) }
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the queue.
        unsafe { BorrowedFd::borrow_raw(self.descriptor()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_numbers_are_those_of_the_standard() {
        assert_eq!(Status::from_raw(0), Status::Success);
        assert_eq!(Status::from_raw(5), Status::Flushed);
        assert_eq!(Status::from_raw(10), Status::RemoteAccess);
        assert_eq!(Status::from_raw(12), Status::RetriesExceeded);
        assert_eq!(Status::from_raw(21), Status::Other(21));
        assert_eq!(Status::from_raw(21).to_string(), "status 21");
    }

    #[test]
    fn status_another_rail_helps_only_when_the_way_failed() {
        assert!(Status::RetriesExceeded.is_of_the_way());
        assert!(Status::Flushed.is_of_the_way());
        assert!(!Status::RemoteAccess.is_of_the_way());
        assert!(!Status::Success.is_of_the_way());
    }
}
