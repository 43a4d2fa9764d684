//! Batches under way: what of each request was given out, and what became of it.
//!
//! **Invariants**
//! - A request is final when nothing of it is waiting to be cut and no slice of it is under way.
//! - A final status never changes, but for what is verified afterwards.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::error::Status;
use super::region::RegionPin;
use super::request::{Expected, RemotePart};
use super::transport::{Operation, TransportSet};

/// Bytes of a local region, kept in use.
#[derive(Debug)]
pub(super) struct PinnedPart {
    pub(super) region: RegionPin,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A request that was checked.
#[derive(Debug)]
pub(super) struct CheckedRequest {
    pub(super) operation: Operation,
    pub(super) local: Vec<PinnedPart>,
    pub(super) remote: Vec<RemotePart>,
    pub(super) expected: Option<Expected>,
    /// The transports that can move all its parts.
    pub(super) kinds: TransportSet,
}

/// Where cutting has come to in a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    local: usize,
    local_done: u64,
    remote: usize,
    remote_done: u64,
}

/// A run of bytes that is contiguous at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) local: usize,
    pub(super) local_offset: u64,
    pub(super) remote: usize,
    pub(super) remote_offset: u64,
    pub(super) len: u64,
}

impl Cursor {
    /// Before the first byte.
    pub(super) const START: Self = Self {
        local: 0,
        local_done: 0,
        remote: 0,
        remote_done: 0,
    };
}

impl CheckedRequest {
    /// The next cut of at most `len_max` bytes; `None` when all was cut.
    pub(super) fn next_cut(&self, cursor: Cursor, len_max: u64) -> Option<Cut> {
        let local = self.local.get(cursor.local)?;
        let remote = self.remote.get(cursor.remote)?;
        let len = (local.len - cursor.local_done).min(remote.len - cursor.remote_done);
        Some(Cut {
            local: cursor.local,
            local_offset: local.offset + cursor.local_done,
            remote: cursor.remote,
            remote_offset: remote.offset + cursor.remote_done,
            len: len.min(len_max),
        })
    }

    /// The cursor behind a cut.
    pub(super) fn behind(&self, mut cursor: Cursor, cut: &Cut) -> Cursor {
        cursor.local_done += cut.len;
        cursor.remote_done += cut.len;
        if cursor.local_done == self.local[cut.local].len {
            (cursor.local, cursor.local_done) = (cursor.local + 1, 0);
        }
        if cursor.remote_done == self.remote[cut.remote].len {
            (cursor.remote, cursor.remote_done) = (cursor.remote + 1, 0);
        }
        cursor
    }

    /// Bytes over all parts.
    pub(super) fn len(&self) -> u64 {
        self.local.iter().map(|part| part.len).sum()
    }
}

/// What became of one request so far.
#[derive(Clone, Copy, Debug)]
struct Progress {
    status: Status,
    /// What it will end as, when it failed.
    failed: Option<Status>,
    is_cut: bool,
    under_way: u32,
}

#[derive(Debug)]
struct State {
    progress: Vec<Progress>,
    unfinished: usize,
    waker: Option<Waker>,
}

/// A batch that was submitted.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) requests: Vec<CheckedRequest>,
    pub(super) is_urgent: bool,
    pub(super) deadline: Option<Instant>,
    state: Mutex<State>,
    over: Condvar,
}

impl Flight {
    pub(super) fn new(
        requests: Vec<CheckedRequest>,
        is_urgent: bool,
        deadline: Option<Instant>,
    ) -> Arc<Self> {
        let pending = Progress {
            status: Status::Pending,
            failed: None,
            is_cut: false,
            under_way: 0,
        };
        let state = State {
            progress: vec![pending; requests.len()],
            unfinished: requests.len(),
            waker: None,
        };
        Arc::new(Self {
            requests,
            is_urgent,
            deadline,
            state: Mutex::new(state),
            over: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, request: usize, change: impl FnOnce(&mut Progress)) {
        let mut state = self.state();
        let progress = &mut state.progress[request];
        change(progress);
        if !progress.status.is_final() && progress.is_cut && progress.under_way == 0 {
            progress.status = progress.failed.unwrap_or(Status::Done);
            state.unfinished -= 1;
            if state.unfinished == 0 {
                let waker = state.waker.take();
                drop(state);
                self.over.notify_all();
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }

    /// A slice of a request was cut off; `is_last`: nothing is left to cut.
    pub(super) fn cut(&self, request: usize, is_last: bool) {
        self.change(request, |progress| {
            progress.under_way += 1;
            progress.is_cut |= is_last;
        });
    }

    /// A slice of a request ended.
    pub(super) fn slice_ended(&self, request: usize, status: Status) {
        self.change(request, |progress| {
            progress.under_way -= 1;
            if status != Status::Done {
                progress.failed.get_or_insert(status);
                progress.is_cut = true;
            }
        });
    }

    /// Nothing more is to be given out of a request; it ends as `status` when what is under way
    /// is over. Does nothing to one that is final.
    pub(super) fn fail(&self, request: usize, status: Status) {
        self.change(request, |progress| {
            progress.failed.get_or_insert(status);
            progress.is_cut = true;
        });
    }

    /// [`Flight::fail`] for all requests.
    pub(super) fn fail_all(&self, status: Status) {
        for request in 0..self.requests.len() {
            self.fail(request, status);
        }
    }

    /// A request that went no rail's way is over.
    pub(super) fn finish(&self, request: usize, status: Status) {
        self.change(request, |progress| {
            progress.failed = (status != Status::Done).then_some(status);
            progress.is_cut = true;
        });
    }

    /// Why nothing more of a request is to be given out, if that is so.
    pub(super) fn failure(&self, request: usize) -> Option<Status> {
        self.state().progress[request].failed
    }

    /// Whether every request is final.
    pub(super) fn is_over(&self) -> bool {
        self.state().unfinished == 0
    }

    /// As [`Flight::is_over`]; when it is not, `waker` is woken once it is.
    pub(super) fn is_over_or_wake(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        if state.unfinished > 0 {
            state.waker = Some(waker.clone());
        }
        state.unfinished == 0
    }

    /// Waits until every request is final; whether that came within `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let is_unfinished = |state: &mut State| state.unfinished > 0;
        let waited = self
            .over
            .wait_timeout_while(self.state(), timeout, is_unfinished);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The status of each request.
    pub(super) fn statuses(&self) -> Vec<Status> {
        self.state()
            .progress
            .iter()
            .map(|progress| progress.status)
            .collect()
    }

    /// A request that is done turned out not to be what was expected.
    pub(super) fn set_mismatch(&self, request: usize) {
        self.state().progress[request].status = Status::ChecksumMismatch;
    }
}
