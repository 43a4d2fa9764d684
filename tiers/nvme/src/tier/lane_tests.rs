//! How far a lane is complete and durable, against a list of its writes.
//!
//! Aim: a write counts as complete only with all before it, and as durable only when a flush covers
//! it that was submitted after that; whoever waits is woken. Method: writes and flushes begin at
//! random and end in any order, and each step is compared with the lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::mem::MemDevice;

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How many of a list are done with none before them that is not.
fn in_a_row(list: &[bool]) -> u64 {
    list.iter().take_while(|done| **done).count() as u64
}

struct World {
    lane: Lane,
    /// Whether each write completed.
    writes: Vec<bool>,
    /// For each flush under way what it covers, by the lane and by the list.
    flushes: Vec<(u64, Vec<bool>)>,
    /// Writes that survive power loss.
    flushed: u64,
}

impl World {
    fn new() -> Self {
        Self {
            lane: Lane::new(MemDevice::new(1 << 20), 2048, false),
            writes: Vec::new(),
            flushes: Vec::new(),
            flushed: 0,
        }
    }

    fn begin(&mut self) {
        assert_eq!(self.lane.begin_write(), self.writes.len() as u64);
        self.writes.push(false);
    }

    fn barrier(&mut self) {
        assert_eq!(self.lane.barrier(), self.writes.len() as u64);
        self.writes.push(true);
    }

    fn end_write(&mut self, which: Index) {
        let open: Vec<usize> = (0..self.writes.len())
            .filter(|write| !self.writes[*write])
            .collect();
        if !open.is_empty() {
            let write = *which.get(&open);
            self.writes[write] = true;
            self.wakes(|lane| lane.end_write(write as u64));
        }
    }

    fn begin_flush(&mut self) {
        let covers = self.lane.complete();
        self.flushes.push((covers, self.writes.clone()));
    }

    fn end_flush(&mut self, which: Index) {
        if !self.flushes.is_empty() {
            let at = which.index(self.flushes.len());
            let (covers, completed) = self.flushes.swap_remove(at);
            self.flushed = self.flushed.max(in_a_row(&completed));
            self.wakes(|lane| lane.end_flush(covers));
        }
    }

    /// Does a step and makes sure that it wakes who waits, once, and of those who wait for a
    /// write only whose write has come so far.
    fn wakes(&mut self, step: impl FnOnce(&mut Lane)) {
        let woken: Arc<Woken> = Arc::default();
        let waker = Waker::from(Arc::clone(&woken));
        self.lane.wait(&waker);
        self.lane.wait(&waker);
        let next = self.writes.len() as u64;
        let writes = [
            self.flushed,
            self.lane.complete(),
            next.saturating_sub(1),
            next,
        ];
        let both = |write| [Reach::Complete, Reach::Durable].map(|reach| (write, reach));
        let waits: Vec<(u64, Reach, Arc<Woken>)> = writes
            .into_iter()
            .flat_map(both)
            .filter(|(write, reach)| !self.lane.reaches(*write, *reach))
            .map(|(write, reach)| (write, reach, Arc::default()))
            .collect();
        for (write, reach, woken) in &waits {
            let waker = Waker::from(Arc::clone(woken));
            self.lane.wait_for(*write, *reach, &waker);
            self.lane.wait_for(*write, *reach, &waker);
        }
        step(&mut self.lane);
        for (write, reach, woken) in &waits {
            let reached = self.lane.reaches(*write, *reach);
            assert_eq!(
                woken.0.load(Ordering::Relaxed),
                reached,
                "{write} {reach:?}"
            );
        }
        assert!(woken.0.swap(false, Ordering::Relaxed));
        self.lane.wake();
        assert!(!woken.0.load(Ordering::Relaxed), "it waits no more");
    }

    fn check(&self) {
        let complete = in_a_row(&self.writes);
        assert_eq!(self.lane.complete(), complete);
        for write in 0..=self.writes.len() as u64 {
            assert_eq!(self.lane.is_complete(write), write < complete);
            assert_eq!(self.lane.is_durable(write), write < self.flushed);
        }
        let all = self.flushed == self.writes.len() as u64;
        assert_eq!(self.lane.is_all_durable(), all);
    }
}

proptest! {
    #[test]
    fn writes_and_flushes_in_any_order_agree_with_a_list(
        steps in vec((0_u8..12, any::<Index>()), 1..150),
        last in any::<Index>(),
    ) {
        let mut world = World::new();
        for (step, which) in steps {
            match step {
                0..4 => world.begin(),
                4 => world.barrier(),
                5..9 => world.end_write(which),
                9 => world.begin_flush(),
                _ => world.end_flush(which),
            }
            world.check();
        }
        // Whatever is under way ends at last, and one more flush covers all of it.
        while world.lane.complete() < world.writes.len() as u64 {
            world.end_write(last);
        }
        world.begin_flush();
        while !world.flushes.is_empty() {
            world.end_flush(last);
        }
        world.check();
        prop_assert!(world.lane.is_all_durable());
    }
}

/// Aim: health only worsens, and a lane that is not good, is being emptied or has nothing to write
/// to takes no blocks.
#[test]
fn lane_takes_blocks_only_while_all_allows_it() {
    let lane = |owned, draining| {
        let mut lane = Lane::new(MemDevice::new(1 << 20), 2048, draining);
        lane.owned = owned;
        lane
    };
    assert!(lane(2, false).takes_blocks());
    assert!(!lane(0, false).takes_blocks());
    assert!(!lane(2, true).takes_blocks());
    let mut failed = lane(2, false);
    let woken: Arc<Woken> = Arc::default();
    failed.wait_for(7, Reach::Durable, &Waker::from(Arc::clone(&woken)));
    failed.worsen(Health::Offline);
    failed.worsen(Health::ReadOnly);
    assert_eq!(failed.health, Health::Offline);
    assert!(!failed.takes_blocks());
    assert!(
        woken.0.load(Ordering::Relaxed),
        "its write comes no further"
    );
}

#[test]
#[should_panic(expected = "a flush covers complete writes")]
fn flush_that_covers_more_than_is_complete_is_refused() {
    let mut world = World::new();
    world.begin();
    world.lane.end_flush(1);
}
