//! The end of a ring: no memory goes away while the kernel may still write to it.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::types::{CancelBuilder, Timespec};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use terrace_types::Nanos;

use super::ring::Ring;
use crate::device::IoBackend;
use crate::ops::OpId;

/// How long a dropped ring waits for the kernel to let go of memory.
const DRAIN_MS: u16 = 5000;

impl Ring {
    /// Gives up what the kernel has not taken, and waits for what it has.
    fn drain(&self) -> bool {
        for submission in std::mem::take(&mut *self.queue.borrow_mut()) {
            self.pending.set(self.pending.get() - 1);
            let id = OpId(submission.get_user_data());
            self.ops.complete(id, Err(libc::ECANCELED));
        }
        if self.taken() > 0 {
            let at_once = Some(Timespec::new());
            let io = self.io.borrow();
            // Operations at the device cannot be cancelled; those still in a queue can.
            let _ = io
                .submitter()
                .register_sync_cancel(at_once, CancelBuilder::any());
        }
        // A polled ring only moves when it is asked.
        let round_ms = if self.report().polled { 1 } else { 50 };
        for _ in 0..DRAIN_MS / round_ms {
            while self.reap(Nanos::ZERO) > 0 {}
            if self.taken() == 0 {
                return true;
            }
            let number = self.io.borrow().as_raw_fd();
            // SAFETY: the ring's descriptor is open until the ring is dropped below.
            let number = unsafe { BorrowedFd::borrow_raw(number) };
            let mut ready = [PollFd::new(number.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut ready, PollTimeout::from(round_ms));
        }
        false
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.drain() {
            tracing::error!(
                operations = self.taken(),
                "the kernel does not let go of a ring's operations: their memory is leaked"
            );
            return;
        }
        // The kernel takes a ring apart some time after it was closed. Files carry locks, and
        // memory may be wanted for the next ring: both go now.
        {
            let io = self.io.borrow();
            if self.tables.0 {
                let _ = io.submitter().unregister_buffers();
            }
            if self.tables.1 {
                let _ = io.submitter().unregister_files();
            }
        }
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.io) };
        // SAFETY: as above; the kernel has no operation whose memory the table owns.
        unsafe { ManuallyDrop::drop(&mut self.ops) };
    }
}
