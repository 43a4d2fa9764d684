//! What one peer's rails share: the backlog, the slices under way, and who has which.
//!
//! **Invariants**
//! - A slice is in `slices` from when it is cut until its request has heard of its end.
//! - A slice is with one rail, or in `returned` of its backlog, or held for its rail's fence.
//! - What waits in a backlog can be moved by every rail of the backlog's kinds.
//! - Locks are taken in the order link, flight.

mod backlog;
mod failures;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::chooser::{Chooser, RailFigures, RailTraits, SliceTraits};
use super::clock::{now, now_ns};
use super::error::{Status, TransferError};
use super::flight::{Cut, Flight};
use super::transport::{Ended, RailLink, Slice, SliceId, TransportKind, TransportSet};
use backlog::Backlog;

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

/// A slice that was cut.
struct Held {
    slice: Slice,
    flight: Arc<Flight>,
    request: usize,
    /// The kinds of rails that can move it, of those that there are.
    kinds: TransportSet,
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
    /// What waits, by the kinds of rails that can move it: seven at most.
    backlogs: Vec<Backlog>,
    slices: HashMap<SliceId, Held>,
    rails: Vec<RailInbox>,
    /// Batches that are not over, for their deadlines.
    flights: Vec<Arc<Flight>>,
    next_deadline: Option<Instant>,
    next_slice: u64,
    /// Since when no rail of a kind has been up; `None`: one is.
    down_since: Vec<(TransportKind, Option<Instant>)>,
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
        let kinds: BTreeSet<TransportKind> = rails.iter().map(|(link, _)| link.kind).collect();
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
            backlogs: Vec::new(),
            slices: HashMap::new(),
            rails: rails
                .into_iter()
                .map(inbox)
                .collect::<Result<_, TransferError>>()?,
            flights: Vec::new(),
            next_deadline: None,
            next_slice: 0,
            down_since: kinds.into_iter().map(|kind| (kind, None)).collect(),
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
        let all = state.kinds();
        for (request, checked) in flight.requests.iter().enumerate() {
            let kinds = checked.kinds.common(all);
            if kinds.is_empty() {
                // There are rails, and none that leads to this memory.
                flight.fail(request, Status::AccessDenied);
            } else {
                state.backlog(kinds).push(flight, request);
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

    /// Whether a rail has no slices.
    pub(super) fn is_idle(&self, rail: usize) -> bool {
        let state = self.state();
        let figures = state.chooser.rails().get(rail);
        figures.is_some_and(|figures| figures.outstanding_count == 0)
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

    /// The kinds of rails that there are.
    fn kinds(&self) -> TransportSet {
        self.down_since.iter().map(|(kind, _)| *kind).collect()
    }

    /// The backlog of rails of these kinds.
    fn backlog(&mut self, kinds: TransportSet) -> &mut Backlog {
        let found = self.backlogs.iter().position(|of| of.kinds == kinds);
        let at = found.unwrap_or(self.backlogs.len());
        if at == self.backlogs.len() {
            self.backlogs.push(Backlog::new(kinds));
        }
        &mut self.backlogs[at]
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
        let kind = self.rails[ix].link.kind;
        for at in 0..self.backlogs.len() {
            if self.backlogs[at].kinds.contains(kind) {
                self.give_from(at, ix, slice_len, now_ns, slices);
            }
        }
    }

    /// [`State::give`] of one backlog.
    fn give_from(
        &mut self,
        at: usize,
        ix: usize,
        slice_len: u64,
        now_ns: u64,
        slices: &mut VecDeque<Slice>,
    ) {
        while let Some(&id) = self.backlogs[at].returned.front() {
            let Some(held) = self.slices.get(&id) else {
                self.backlogs[at].returned.pop_front();
                continue;
            };
            let traits = SliceTraits {
                len: held.slice.len,
                node: held.slice.local.node(),
                kinds: held.kinds,
            };
            let is_urgent = held.slice.is_urgent;
            let backlog_len = self.backlogs[at].bulk_len + traits.len;
            if !self.is_for(ix, traits, is_urgent, backlog_len, now_ns) {
                return;
            }
            self.backlogs[at].returned.pop_front();
            self.place(ix, id, now_ns, slices);
        }
        for is_urgent in [true, false] {
            while let Some(id) = self.cut_next(at, ix, is_urgent, slice_len, now_ns) {
                self.place(ix, id, now_ns, slices);
            }
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

    /// Cuts the next slice off a backlog, if it is for rail `ix`.
    fn cut_next(
        &mut self,
        at: usize,
        ix: usize,
        is_urgent: bool,
        slice_len: u64,
        now_ns: u64,
    ) -> Option<SliceId> {
        let (flight, request, cut, traits) = self.backlogs[at].next_cut(is_urgent, slice_len)?;
        let backlog_len = self.backlogs[at].bulk_len;
        if !self.is_for(ix, traits, is_urgent, backlog_len, now_ns) {
            return None;
        }
        let is_last = self.backlogs[at].take(is_urgent, &cut);
        flight.cut(request, is_last);
        Some(self.hold(flight, request, &cut, traits.kinds))
    }

    fn hold(
        &mut self,
        flight: Arc<Flight>,
        request: usize,
        cut: &Cut,
        kinds: TransportSet,
    ) -> SliceId {
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
            kinds,
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
        for backlog in &mut self.backlogs {
            backlog.forget(flight);
        }
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
        let kind = self.rails[ix].link.kind;
        let mut backlogs = self.backlogs.iter();
        let has_backlog = backlogs.any(|of| of.kinds.contains(kind) && of.has_bulk());
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

    /// What is known of rail `ix`.
    pub(super) fn rail_link(&self, ix: usize) -> RailLink {
        self.rails[ix].link.clone()
    }

    /// The descriptor that wakes rail `ix`.
    pub(super) fn wake_fd(&self, ix: usize) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&self.rails[ix].wake))
    }
}
