//! Who is on the way to the devices and has no place there yet; what a sync waits for.
//!
//! **Invariants**
//! - Every block that was queued or begun to be written has one number from [`WayDown::begin`]
//!   until [`Shard::arrive`] takes it back, whatever became of it.
//! - Numbers only grow: a sync waits for those given out before it, and for no later ones.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use terrace_nvme::tier::TierError;

use super::Shard;

/// A block that is on its way down and was not placed yet.
pub(super) struct OnItsWay(u64);

/// See the module's text.
#[derive(Default)]
pub(super) struct WayDown {
    next: u64,
    unplaced: BTreeSet<u64>,
    /// Blocks that no device took.
    failed: u64,
    waiting: Vec<Waker>,
}

impl WayDown {
    /// Numbers a block that sets out.
    pub(super) fn begin(&mut self) -> OnItsWay {
        let number = self.next;
        self.next += 1;
        self.unplaced.insert(number);
        OnItsWay(number)
    }

    /// Has all who wait look again.
    pub(super) fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

impl Shard {
    /// A block was placed, is not to be written any more, or could not be.
    pub(super) fn arrive(&self, block: OnItsWay, failure: Option<&TierError>) {
        let mut state = self.state.borrow_mut();
        let way_down = &mut state.way_down;
        way_down.unplaced.remove(&block.0);
        // A block that is too long for any segment never was on its way to one.
        let failed = failure.is_some_and(|error| *error != TierError::TooLarge);
        way_down.failed += u64::from(failed);
        way_down.wake();
    }

    /// Waits until every block that is on its way now has its place; false when a device failed
    /// one meanwhile.
    pub(super) async fn all_placed(&self) -> bool {
        let (end, failed) = {
            let way_down = &self.state.borrow().way_down;
            (way_down.next, way_down.failed)
        };
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            let way_down = &mut state.way_down;
            let waits = way_down.unplaced.first().is_some_and(|first| *first < end);
            if !waits || self.unavailable().is_some() {
                return Poll::Ready(way_down.failed == failed);
            }
            way_down.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}
