//! What becomes of slices when rails fail and return.
//!
//! **Invariants**
//! - A write goes to another rail only after its own was fenced by the peer.

use std::time::{Duration, Instant};

use super::{Held, Place, State};
use crate::transfer::clock::{now, now_ns};
use crate::transfer::error::Status;
use crate::transfer::transport::{Operation, SliceId, TransportKind, TransportSet};

impl State {
    /// A rail failed and is quiesced: its reads go elsewhere, its writes wait for its fence.
    pub(in crate::transfer) fn rail_failed(&mut self, ix: usize, needs_fence: bool) {
        self.chooser.failed(ix, now_ns());
        let kind = self.rails[ix].link.kind;
        if !self.chooser.is_any_up(kind) {
            self.down_since_of(kind).get_or_insert_with(now);
        }
        self.rails[ix].cancels.clear();
        self.rails[ix].must_fail = false;
        let of_rail = |(id, held): (&SliceId, &mut Held)| {
            if held.place != Place::Rail(ix) {
                return None;
            }
            let is_held = needs_fence && held.slice.operation == Operation::Write;
            held.place = if is_held {
                Place::Unfenced(ix)
            } else {
                Place::Returned
            };
            (!is_held).then_some(*id)
        };
        let moved = self.slices.iter_mut().filter_map(of_rail).collect();
        self.give_back(moved);
    }

    /// Ends the writes of a rail that nobody can ask the peer to fence.
    pub(in crate::transfer) fn lose_writes(&mut self, ix: usize) {
        let is_lost = |held: &Held| {
            let is_of_rail = [Place::Rail(ix), Place::Unfenced(ix)].contains(&held.place);
            is_of_rail && held.slice.operation == Operation::Write
        };
        let lost = self.slices.iter().filter(|(_, held)| is_lost(held));
        let lost: Vec<SliceId> = lost.map(|(id, _)| *id).collect();
        for id in lost {
            self.end_slice(id, Status::PeerLost);
        }
    }

    /// The peer has fenced a rail: its writes may go elsewhere.
    pub(in crate::transfer) fn fenced(&mut self, ix: usize) {
        let of_rail = |(id, held): (&SliceId, &mut Held)| {
            let is_held = held.place == Place::Unfenced(ix);
            if is_held {
                held.place = Place::Returned;
            }
            is_held.then_some(*id)
        };
        let moved = self.slices.iter_mut().filter_map(of_rail).collect();
        self.give_back(moved);
    }

    fn give_back(&mut self, mut moved: Vec<SliceId>) {
        moved.sort_unstable();
        for id in moved {
            let failure = self
                .slices
                .get(&id)
                .and_then(|held| held.flight.failure(held.request));
            match failure {
                Some(status) => self.end_slice(id, status),
                None => {
                    if let Some(kinds) = self.slices.get(&id).map(|held| held.kinds) {
                        self.backlog(kinds).returned.push_back(id);
                    }
                }
            }
        }
        self.flights.retain(|flight| !flight.is_over());
        self.wake_sleepers();
    }

    /// How long rail `ix` goes on resting.
    pub(in crate::transfer) fn rest_of(&mut self, ix: usize) -> Duration {
        self.chooser.rest_of(ix, now_ns()).unwrap_or_default()
    }

    pub(in crate::transfer) fn probe_failed(&mut self, ix: usize) {
        self.chooser.failed(ix, now_ns());
    }

    pub(in crate::transfer) fn rail_returned(&mut self, ix: usize) {
        self.chooser.returned(ix, now_ns());
        *self.down_since_of(self.rails[ix].link.kind) = None;
        self.wake_sleepers();
    }

    fn down_since_of(&mut self, kind: TransportKind) -> &mut Option<Instant> {
        let found = self.down_since.iter().position(|(of, _)| *of == kind);
        let at = found.unwrap_or(self.down_since.len());
        if at == self.down_since.len() {
            self.down_since.push((kind, None));
        }
        &mut self.down_since[at].1
    }

    /// The kinds of rails of which none has been up for `lost`.
    fn lost(&self, lost: Duration) -> TransportSet {
        let now = now();
        let is_lost =
            |since: Option<Instant>| since.is_some_and(|at| now.duration_since(at) >= lost);
        let kinds = self.down_since.iter();
        let kinds = kinds.filter(|(_, since)| is_lost(*since));
        kinds.map(|(kind, _)| *kind).collect()
    }

    /// Ends what no rail can move that has been up within `lost`, or everything at once when the
    /// link closes.
    pub(in crate::transfer) fn end_if_lost(&mut self, lost: Duration) {
        let (status, lost) = if self.is_closing {
            (Status::Cancelled, TransportSet::ALL)
        } else {
            (Status::PeerLost, self.lost(lost))
        };
        if lost.is_empty() {
            return;
        }
        let all = self.kinds();
        let is_lost = |kinds: TransportSet| kinds.common(lost) == kinds.common(all);
        for flight in std::mem::take(&mut self.flights) {
            let mut is_whole = true;
            for (request, checked) in flight.requests.iter().enumerate() {
                if is_lost(checked.kinds) {
                    flight.fail(request, status);
                } else {
                    is_whole = false;
                }
            }
            if !is_whole {
                self.flights.push(flight);
            }
        }
        // Slices of rails that still run are theirs to end.
        let is_idle = |held: &Held| !matches!(held.place, Place::Rail(_)) && is_lost(held.kinds);
        let idle = self.slices.iter().filter(|(_, held)| is_idle(held));
        let idle: Vec<SliceId> = idle.map(|(id, _)| *id).collect();
        for id in idle {
            self.end_slice(id, status);
        }
        let backlogs = self.backlogs.iter_mut();
        for backlog in backlogs.filter(|of| is_lost(of.kinds)) {
            backlog.clear();
        }
    }
}
