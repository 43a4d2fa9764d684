//! What one peer's rails share: the backlog, the slices under way, and who has which.
//!
//! **Invariants**
//! - A slice is in `slices` from when it is cut until its request has heard of its end.
//! - A slice is with one rail, or in `returned`, or held for its rail's fence.
//! - Locks are taken in the order link, flight.

mod failures;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::chooser::{Chooser, RailFigures, RailTraits, SliceTraits};
use super::clock::{now, now_ns};
use super::error::{Status, TransferError};
use super::flight::{Cursor, Cut, Flight};
use super::transport::{Ended, RailLink, Slice, SliceId};

/// Times of a link, from its engine's settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkTimes {
    /// How long a rail with slices may end none.
    pub(super) stall: Duration,
    /// How long all rails may be down before requests end.
    pub(super) lost: Duration,
    /// The longest rest of a rail.
    pub(super) rest_max: Duration,
}

/// A request of which something is to be cut.
struct Job {
    flight: Arc<Flight>,
    request: usize,
    cursor: Cursor,
}

/// A slice that was cut.
struct Held {
    slice: Slice,
    flight: Arc<Flight>,
    request: usize,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// With this rail.
    Rail(usize),
    /// To be given to a rail again.
    Returned,
    /// A write of this rail, which the peer has not fenced.
    Unfenced(usize),
}

/// What the other threads want of a rail's.
struct RailInbox {
    wake: EventFd,
    is_asleep: bool,
    /// Something may be for it that was not when it last looked.
    has_news: bool,
    cancels: Vec<SliceId>,
    /// It is to be failed: it did not let go of a slice.
    must_fail: bool,
    link: RailLink,
}

pub(super) struct State {
    chooser: Chooser,
    urgent: VecDeque<Job>,
    bulk: VecDeque<Job>,
    /// Bytes of `bulk` that were not cut.
    bulk_len: u64,
    returned: VecDeque<SliceId>,
    slices: HashMap<SliceId, Held>,
    rails: Vec<RailInbox>,
    /// Batches that are not over, for their deadlines.
    flights: Vec<Arc<Flight>>,
    next_deadline: Option<Instant>,
    next_slice: u64,
    down_since: Option<Instant>,
    is_closing: bool,
}

/// One peer's rails.
pub(super) struct Link {
    state: Mutex<State>,
    slice_len: u64,
    pub(super) times: LinkTimes,
}

/// How a rail is and what it has done.
#[derive(Clone, Debug)]
pub struct RailReport {
    /// What is known of it.
    pub link: RailLink,
    /// Its figures.
    pub figures: RailFigures,
}

impl Link {
    pub(super) fn new(
        rails: Vec<(RailLink, RailTraits)>,
        slice_len: u64,
        times: LinkTimes,
    ) -> Result<Self, TransferError> {
        let traits: Vec<RailTraits> = rails.iter().map(|(_, traits)| *traits).collect();
        let inbox = |(link, _)| {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let wake =
                EventFd::from_value_and_flags(0, flags).map_err(|cause| TransferError::Os {
                    op: "create an eventfd",
                    source: cause.into(),
                })?;
            Ok(RailInbox {
                wake,
                is_asleep: false,
                has_news: false,
                cancels: Vec::new(),
                must_fail: false,
                link,
            })
        };
        let state = State {
            chooser: Chooser::new(&traits, times.rest_max),
            urgent: VecDeque::new(),
            bulk: VecDeque::new(),
            bulk_len: 0,
            returned: VecDeque::new(),
            slices: HashMap::new(),
            rails: rails
                .into_iter()
                .map(inbox)
                .collect::<Result<_, TransferError>>()?,
            flights: Vec::new(),
            next_deadline: None,
            next_slice: 0,
            down_since: None,
            is_closing: false,
        };
        Ok(Self {
            state: Mutex::new(state),
            slice_len,
            times,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a batch.
    pub(super) fn submit(&self, flight: &Arc<Flight>) {
        let mut state = self.state();
        if state.is_closing {
            flight.fail_all(Status::PeerLost);
        }
        if flight.is_over() {
            return;
        }
        for (request, checked) in flight.requests.iter().enumerate() {
            let job = Job {
                flight: Arc::clone(flight),
                request,
                cursor: Cursor::default(),
            };
            if flight.is_urgent {
                state.urgent.push_back(job);
            } else {
                state.bulk_len += checked.len();
                state.bulk.push_back(job);
            }
        }
        state.flights.push(Arc::clone(flight));
        state.next_deadline = earlier(state.next_deadline, flight.deadline);
        state.wake_sleepers();
    }

    /// Ends a batch as `status`, as soon as nothing of it is under way.
    pub(super) fn end(&self, flight: &Arc<Flight>, status: Status) {
        self.state().end_flight(flight, status);
    }

    /// Waits for a batch that was ended. A rail that does not let go of its slices is failed.
    pub(super) fn wait_quiet(&self, flight: &Arc<Flight>) {
        if flight.wait(self.times.stall) {
            return;
        }
        self.state().fail_rails_of(flight);
        // A write is let go when its rail is fenced, or the peer is lost.
        while !flight.wait(self.times.lost) {
            if self.state().is_closing {
                return;
            }
        }
    }

    /// What each rail has done.
    pub(super) fn report(&self) -> Vec<RailReport> {
        let state = self.state();
        let figures = state.chooser.rails().iter();
        let rails = state.rails.iter().zip(figures);
        rails
            .map(|(rail, figures)| RailReport {
                link: rail.link.clone(),
                figures: *figures,
            })
            .collect()
    }

    /// Ends all threads of rails, and with them everything under way.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closing = true;
        for rail in &state.rails {
            rail.wake();
        }
    }

    /// The length of the next slices.
    pub(super) const fn slice_len(&self) -> u64 {
        self.slice_len
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl RailInbox {
    /// Lets it look for slices again.
    fn tell(&mut self) {
        self.has_news = true;
        if std::mem::take(&mut self.is_asleep) {
            self.wake();
        }
    }

    fn wake(&self) {
        // A full counter is a rail that was woken already.
        let _ = self.wake.write(1);
    }
}

impl State {
    pub(super) const fn is_closing(&self) -> bool {
        self.is_closing
    }

    fn wake_sleepers(&mut self) {
        for rail in &mut self.rails {
            rail.tell();
        }
    }

    /// Gives rail `ix` what it is to have now, into `slices`. Another rail that should take
    /// something is woken for it.
    pub(super) fn give(&mut self, ix: usize, slice_len: u64, slices: &mut VecDeque<Slice>) {
        let now_ns = now_ns();
        self.rails[ix].has_news = false;
        while let Some(&id) = self.returned.front() {
            let Some(held) = self.slices.get(&id) else {
                self.returned.pop_front();
                continue;
            };
            let node = held.slice.local.node();
            let traits = SliceTraits {
                len: held.slice.len,
                node,
            };
            let (is_urgent, backlog_len) = (held.slice.is_urgent, self.bulk_len + traits.len);
            if !self.is_for(ix, traits, is_urgent, backlog_len, now_ns) {
                return;
            }
            self.returned.pop_front();
            self.place(ix, id, now_ns, slices);
        }
        while let Some(id) = self.cut_next(ix, true, slice_len, now_ns) {
            self.place(ix, id, now_ns, slices);
        }
        while let Some(id) = self.cut_next(ix, false, slice_len, now_ns) {
            self.place(ix, id, now_ns, slices);
        }
    }

    fn is_for(
        &mut self,
        ix: usize,
        slice: SliceTraits,
        is_urgent: bool,
        backlog_len: u64,
        now_ns: u64,
    ) -> bool {
        let chosen = if is_urgent {
            self.chooser.choose_urgent(slice, now_ns)
        } else {
            self.chooser.choose(slice, backlog_len, now_ns)
        };
        if let Some(other) = chosen.filter(|chosen| *chosen != ix) {
            self.rails[other].tell();
        }
        chosen == Some(ix)
    }

    /// Notes that rail `ix` has a slice.
    fn place(&mut self, ix: usize, id: SliceId, now_ns: u64, slices: &mut VecDeque<Slice>) {
        if let Some(held) = self.slices.get_mut(&id) {
            held.place = Place::Rail(ix);
            self.chooser.given(ix, held.slice.len, now_ns);
            let slice = held.slice.clone();
            if slice.is_urgent {
                let behind = slices.iter().take_while(|slice| slice.is_urgent).count();
                slices.insert(behind, slice);
            } else {
                slices.push_back(slice);
            }
        }
    }

    /// Cuts the next slice off the backlog, if it is for rail `ix`.
    fn cut_next(
        &mut self,
        ix: usize,
        is_urgent: bool,
        slice_len: u64,
        now_ns: u64,
    ) -> Option<SliceId> {
        loop {
            let jobs = if is_urgent {
                &mut self.urgent
            } else {
                &mut self.bulk
            };
            let job = jobs.front()?;
            let (flight, request, cursor) = (Arc::clone(&job.flight), job.request, job.cursor);
            let checked = &flight.requests[request];
            let cut = checked.next_cut(cursor, slice_len);
            let (None, Some(cut)) = (flight.failure(request), cut) else {
                jobs.pop_front();
                if !is_urgent {
                    self.bulk_len -= left_of(&flight, request, cursor);
                }
                continue;
            };
            let node = checked.local[cut.local].region.node();
            let traits = SliceTraits { len: cut.len, node };
            if !self.is_for(ix, traits, is_urgent, self.bulk_len, now_ns) {
                return None;
            }
            let behind = checked.behind(cursor, &cut);
            let is_last = checked.next_cut(behind, slice_len).is_none();
            let jobs = if is_urgent {
                &mut self.urgent
            } else {
                &mut self.bulk
            };
            if is_last {
                jobs.pop_front();
            } else if let Some(job) = jobs.front_mut() {
                job.cursor = behind;
            }
            if !is_urgent {
                self.bulk_len -= cut.len;
            }
            flight.cut(request, is_last);
            return Some(self.hold(flight, request, &cut));
        }
    }

    fn hold(&mut self, flight: Arc<Flight>, request: usize, cut: &Cut) -> SliceId {
        self.next_slice += 1;
        let id = SliceId(self.next_slice);
        let checked = &flight.requests[request];
        let slice = Slice {
            id,
            operation: checked.operation,
            is_urgent: flight.is_urgent,
            local: checked.local[cut.local].region.clone(),
            local_offset: cut.local_offset,
            remote: Arc::clone(&checked.remote[cut.remote].region),
            remote_offset: cut.remote_offset,
            len: cut.len,
        };
        let held = Held {
            slice,
            flight,
            request,
            place: Place::Returned,
        };
        self.slices.insert(id, held);
        id
    }

    /// Takes note of what ended on rail `ix`.
    pub(super) fn ended(&mut self, ix: usize, ended: &mut Vec<Ended>) {
        let now_ns = now_ns();
        for Ended { id, status } in ended.drain(..) {
            let is_here = self
                .slices
                .get(&id)
                .is_some_and(|held| held.place == Place::Rail(ix));
            if let (true, Some(held)) = (is_here, self.slices.remove(&id)) {
                let is_moved = status == Status::Done;
                self.chooser.ended(ix, held.slice.len, is_moved, now_ns);
                // The pin goes first: who waits for the request may unregister at once.
                let Held {
                    slice,
                    flight,
                    request,
                    ..
                } = held;
                drop(slice);
                flight.slice_ended(request, status);
            }
        }
        self.flights.retain(|flight| !flight.is_over());
    }

    /// Ends a batch; what rails have of it is cancelled there.
    fn end_flight(&mut self, flight: &Arc<Flight>, status: Status) {
        flight.fail_all(status);
        // Jobs keep the flight's regions in use.
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
        let mut over = Vec::new();
        for (id, held) in &self.slices {
            if !Arc::ptr_eq(&held.flight, flight) {
                continue;
            }
            match held.place {
                Place::Rail(ix) => self.rails[ix].cancels.push(*id),
                Place::Returned => over.push(*id),
                Place::Unfenced(_) => {}
            }
        }
        for id in over {
            self.end_slice(id, status);
        }
        for rail in self.rails.iter().filter(|rail| !rail.cancels.is_empty()) {
            rail.wake();
        }
        self.flights.retain(|flight| !flight.is_over());
    }

    fn end_slice(&mut self, id: SliceId, status: Status) {
        if let Some(Held {
            slice,
            flight,
            request,
            ..
        }) = self.slices.remove(&id)
        {
            drop(slice);
            flight.slice_ended(request, status);
        }
    }

    fn fail_rails_of(&mut self, flight: &Arc<Flight>) {
        for held in self.slices.values() {
            if let (true, Place::Rail(ix)) = (Arc::ptr_eq(&held.flight, flight), held.place) {
                self.rails[ix].must_fail = true;
                self.rails[ix].wake();
            }
        }
    }

    /// What is to be cancelled on rail `ix`; `Err`: the rail is to fail.
    pub(super) fn take_cancels(&mut self, ix: usize) -> Result<Vec<SliceId>, ()> {
        let rail = &mut self.rails[ix];
        let cancels = std::mem::take(&mut rail.cancels);
        if std::mem::take(&mut rail.must_fail) {
            return Err(());
        }
        Ok(cancels)
    }

    /// Ends batches whose time is over.
    pub(super) fn expire(&mut self) {
        let Some(next) = self.next_deadline else {
            return;
        };
        let now = now();
        if now < next {
            return;
        }
        let is_late = |flight: &Arc<Flight>| flight.deadline.is_some_and(|at| at <= now);
        let (late, left) = std::mem::take(&mut self.flights)
            .into_iter()
            .partition(is_late);
        self.flights = left;
        let late: Vec<Arc<Flight>> = late;
        for flight in &late {
            self.end_flight(flight, Status::DeadlineExceeded);
        }
        self.next_deadline = self
            .flights
            .iter()
            .filter_map(|flight| flight.deadline)
            .min();
    }

    /// How long a rail may sleep; it counts as asleep from now on.
    pub(super) fn fall_asleep(&mut self, ix: usize, longest: Duration) -> Duration {
        if std::mem::take(&mut self.rails[ix].has_news) {
            return Duration::ZERO;
        }
        self.rails[ix].is_asleep = true;
        let until = self
            .next_deadline
            .map(|at| at.saturating_duration_since(now()));
        let has_backlog = !self.bulk.is_empty() || !self.returned.is_empty();
        // What is expected of other rails changes with time alone.
        let longest = if has_backlog {
            Duration::from_millis(10)
        } else {
            longest
        };
        until.map_or(longest, |until| until.min(longest))
    }

    pub(super) fn woke(&mut self, ix: usize) {
        let rail = &mut self.rails[ix];
        rail.is_asleep = false;
        let _ = rail.wake.read();
    }

    pub(super) fn stalled_for(&self, ix: usize) -> Duration {
        self.chooser.stalled_for(ix, now_ns())
    }

    /// The descriptor that wakes rail `ix`.
    pub(super) fn wake_fd(&self, ix: usize) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&self.rails[ix].wake))
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
