//! What waits for rails of the same kinds.
//!
//! **Invariants**
//! - `bulk_len` is the sum of what is left to cut of the jobs in `bulk`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::transfer::chooser::SliceTraits;
use crate::transfer::flight::{Cursor, Cut, Flight};
use crate::transfer::transport::{SliceId, TransportSet};

/// A request of which something is to be cut.
struct Job {
    flight: Arc<Flight>,
    request: usize,
    cursor: Cursor,
}

/// What waits for rails of some kinds, each of which can move it.
pub(super) struct Backlog {
    pub(super) kinds: TransportSet,
    /// Slices of rails that failed.
    pub(super) returned: VecDeque<SliceId>,
    urgent: VecDeque<Job>,
    bulk: VecDeque<Job>,
    /// Bytes of `bulk` that were not cut.
    pub(super) bulk_len: u64,
}

impl Backlog {
    pub(super) const fn new(kinds: TransportSet) -> Self {
        Self {
            kinds,
            returned: VecDeque::new(),
            urgent: VecDeque::new(),
            bulk: VecDeque::new(),
            bulk_len: 0,
        }
    }

    /// Adds a request of which nothing was cut.
    pub(super) fn push(&mut self, flight: &Arc<Flight>, request: usize) {
        let job = Job {
            flight: Arc::clone(flight),
            request,
            cursor: Cursor::START,
        };
        if flight.is_urgent {
            self.urgent.push_back(job);
        } else {
            self.bulk_len += flight.requests[request].len();
            self.bulk.push_back(job);
        }
    }

    const fn jobs(&mut self, is_urgent: bool) -> &mut VecDeque<Job> {
        if is_urgent {
            &mut self.urgent
        } else {
            &mut self.bulk
        }
    }

    /// The next slice, and the request that it is of. It is there until [`Backlog::take`].
    pub(super) fn next_cut(
        &mut self,
        is_urgent: bool,
        slice_len: u64,
    ) -> Option<(Arc<Flight>, usize, Cut, SliceTraits)> {
        loop {
            let job = self.jobs(is_urgent).front()?;
            let (flight, request, cursor) = (Arc::clone(&job.flight), job.request, job.cursor);
            let checked = &flight.requests[request];
            let (None, Some(cut)) = (flight.failure(request), checked.next_cut(cursor, slice_len))
            else {
                self.jobs(is_urgent).pop_front();
                if !is_urgent {
                    self.bulk_len -= left_of(&flight, request, cursor);
                }
                continue;
            };
            let traits = SliceTraits {
                len: cut.len,
                node: checked.local[cut.local].region.node(),
                kinds: self.kinds,
            };
            return Some((flight, request, cut, traits));
        }
    }

    /// Takes the cut that [`Backlog::next_cut`] told of; whether it was the last of its request.
    pub(super) fn take(&mut self, is_urgent: bool, cut: &Cut) -> bool {
        if !is_urgent {
            self.bulk_len -= cut.len;
        }
        let jobs = self.jobs(is_urgent);
        let Some(job) = jobs.front_mut() else {
            return true;
        };
        let checked = &job.flight.requests[job.request];
        job.cursor = checked.behind(job.cursor, cut);
        let is_last = checked.next_cut(job.cursor, u64::MAX).is_none();
        if is_last {
            jobs.pop_front();
        }
        is_last
    }

    /// Drops the jobs of a batch: they keep its regions in use.
    pub(super) fn forget(&mut self, flight: &Arc<Flight>) {
        self.urgent.retain(|job| !Arc::ptr_eq(&job.flight, flight));
        let mut dropped = 0;
        self.bulk.retain(|job| {
            let is_other = !Arc::ptr_eq(&job.flight, flight);
            if !is_other {
                dropped += left_of(flight, job.request, job.cursor);
            }
            is_other
        });
        self.bulk_len -= dropped;
    }

    /// Whether something waits that is not urgent, or was given back.
    pub(super) fn has_bulk(&self) -> bool {
        !self.bulk.is_empty() || !self.returned.is_empty()
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.kinds);
    }
}

/// Bytes of a request behind a cursor.
fn left_of(flight: &Flight, request: usize, mut cursor: Cursor) -> u64 {
    let checked = &flight.requests[request];
    let mut left = 0;
    while let Some(cut) = checked.next_cut(cursor, u64::MAX) {
        left += cut.len;
        cursor = checked.behind(cursor, &cut);
    }
    left
}
