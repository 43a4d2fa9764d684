//! What becomes of slices when rails fail and return.
//!
//! **Invariants**
//! - A write goes to another rail only after its own was fenced by the peer.

use std::time::Duration;

use super::{Held, Place, State};
use crate::transfer::clock::{now, now_ns};
use crate::transfer::error::Status;
use crate::transfer::transport::{Operation, SliceId};

impl State {
    /// A rail failed and is quiesced: its reads go elsewhere, its writes wait for its fence.
    pub(in crate::transfer) fn rail_failed(&mut self, ix: usize, needs_fence: bool) {
        self.chooser.failed(ix, now_ns());
        if !self.chooser.is_any_up() {
            self.down_since.get_or_insert_with(now);
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
                None => self.returned.push_back(id),
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
        self.down_since = None;
        self.wake_sleepers();
    }

    /// Ends everything when no rail has been up for `lost`, or at once when the link closes.
    pub(in crate::transfer) fn end_if_lost(&mut self, lost: Duration) {
        let since = self.down_since.map(|since| now().duration_since(since));
        let is_lost = !self.chooser.is_any_up() && since.is_some_and(|since| since >= lost);
        if is_lost || self.is_closing {
            let status = if self.is_closing {
                Status::Cancelled
            } else {
                Status::PeerLost
            };
            for flight in std::mem::take(&mut self.flights) {
                flight.fail_all(status);
            }
            // Slices of rails that still run are theirs to end.
            let is_idle = |held: &Held| !matches!(held.place, Place::Rail(_));
            let idle = self.slices.iter().filter(|(_, held)| is_idle(held));
            let idle: Vec<SliceId> = idle.map(|(id, _)| *id).collect();
            for id in idle {
                self.end_slice(id, status);
            }
            self.urgent.clear();
            self.bulk.clear();
            self.returned.clear();
            self.bulk_len = 0;
        }
    }
}
