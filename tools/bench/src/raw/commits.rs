//! Group commit, as any writer does it that has to answer for what it wrote: one flush at a
//! time, each covering the writes that completed before it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use terrace_nvme::{BlockDevice, IoError};
use terrace_types::Nanos;

/// See the module's text.
#[derive(Default)]
pub(super) struct Commits {
    flush_every: u64,
    /// Writes under way.
    writing: Cell<usize>,
    /// Bytes complete and not covered by a flush yet.
    open_bytes: Cell<u64>,
    /// The number of the next flush.
    next: Cell<u64>,
    /// Flushes that returned.
    done: Cell<u64>,
    flushing: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    flushed_bytes: Cell<u64>,
}

impl Commits {
    /// Flushes after `flush_every` bytes, or when nothing else is under way.
    pub(super) fn new(flush_every: u64) -> Self {
        Self {
            flush_every,
            ..Self::default()
        }
    }

    /// A write begins.
    pub(super) fn begin_write(&self) {
        self.writing.set(self.writing.get() + 1);
    }

    /// A write of `len` bytes completed; comes back when a flush covered it.
    pub(super) async fn commit(
        &self,
        device: &dyn BlockDevice,
        len: u64,
        deadline: impl Fn() -> Nanos,
    ) -> Result<(), IoError> {
        self.writing.set(self.writing.get() - 1);
        self.open_bytes.set(self.open_bytes.get() + len);
        let own = self.next.get();
        loop {
            if self.done.get() > own {
                return Ok(());
            }
            let due = self.open_bytes.get() >= self.flush_every || self.writing.get() == 0;
            if !due || self.flushing.get() {
                self.wait().await;
                continue;
            }
            self.flushing.set(true);
            self.next.set(self.next.get() + 1);
            let covered = self.open_bytes.take();
            let flushed = device.flush(deadline()).await.result;
            self.flushing.set(false);
            self.done.set(self.next.get());
            self.flushed_bytes.set(self.flushed_bytes.get() + covered);
            let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
            waiting.into_iter().for_each(Waker::wake);
            flushed?;
        }
    }

    async fn wait(&self) {
        let mut waited = false;
        poll_fn(|context| {
            if waited {
                return Poll::Ready(());
            }
            waited = true;
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Bytes that a flush covered on the average.
    pub(super) const fn bytes_per_flush(&self) -> Option<u64> {
        self.flushed_bytes.get().checked_div(self.done.get())
    }
}
