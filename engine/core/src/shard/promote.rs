//! The way up: a block that lies below is read into a slot, once for all who want it.
//!
//! **Invariants**
//! - A block is read by one task at a time, marked by `PROMOTING`; who wants it meanwhile waits
//!   for that task.
//! - The read ends and cleans up by itself, whoever goes away.

use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use terrace_nvme::IoBuffer;
use terrace_nvme::tier::ReadClass;
use terrace_runtime::LocalFuture;
use terrace_slab::SlotWriter;
use terrace_types::{Access, BlockIx, BlockKey, Checksum, UnavailableReason};

use super::flight::{Caller, Flight, Outcome, UnderWay};
use super::get::{Found, GetOptions, LocalPin};
use super::room::{Asker, Need};
use super::{Filler, Shard, State};
use crate::events::EventKind;
use crate::index::{ERASED, PASSING, PROMOTING, WARM};
use crate::policy::Admission;

/// Why a block comes up from below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A caller waits for it.
    Wanted,
    /// Somebody may want it soon; see `prefetch`.
    Ahead,
    /// It was in DRAM when the engine was closed, with this tag of its policy.
    Restored { tag: u8 },
}

/// A block that is being read.
#[derive(Default)]
pub(super) struct Promotion {
    /// The read, as long as its caller runs it.
    read: Option<Weak<dyn UnderWay>>,
    /// Who else waits for it.
    pub(super) joined: Vec<Waker>,
}

impl Promotion {
    fn is_known(&self, waker: &Waker) -> bool {
        self.joined.iter().any(|known| known.will_wake(waker))
    }
}

impl Shard {
    pub(super) fn is_promoting(&self, block: BlockIx) -> bool {
        self.state.borrow().index.record(block).is(PROMOTING)
    }

    /// Waits until a block that is being read is not any more.
    pub(super) async fn join_promotion(&self, block: BlockIx) {
        let mut registered = false;
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            let is_promoting = state.index.record(block).is(PROMOTING);
            let promotion = state.promotions.get(&block);
            let joined = promotion.is_some_and(|it| it.is_known(context.waker()));
            if joined && registered {
                // Its task was woken for something else.
                return Poll::Pending;
            }
            if registered || !is_promoting {
                return Poll::Ready(());
            }
            registered = true;
            let promotion = state.promotions.entry(block).or_default();
            if !joined {
                promotion.joined.push(context.waker().clone());
            }
            let read = promotion.read.take().and_then(|read| read.upgrade());
            drop(state);
            if let Some(read) = read {
                // It is awaited by more than its caller now.
                read.leave();
            }
            Poll::Pending
        })
        .await;
    }

    /// Reads a block from the tier below into a slot. `None` when it is gone or was damaged.
    ///
    /// The read ends and cleans up by itself when this future is dropped.
    pub(super) async fn promote(
        self: &Rc<Self>,
        key: &BlockKey,
        block: BlockIx,
        options: &GetOptions,
        arrival: Arrival,
    ) -> Outcome<LocalPin> {
        let (shard, key, options) = (Rc::clone(self), key.clone(), *options);
        let read = Box::pin(async move {
            let asker = Asker::of(&key);
            let read = shard.read_up(&key, block, &options, arrival, &asker);
            let outcome = read.await;
            shard.end_promotion(block);
            // Whoever waits may go away before it takes the answer: the pin goes back by itself.
            outcome.map(|found| found.map(|found| shard.local_pin(found)))
        });
        self.begin_promotion(block, read).await
    }

    /// Marks a block as being read, by its caller as long as nobody else waits for it.
    pub(super) fn begin_promotion<T: 'static>(
        self: &Rc<Self>,
        block: BlockIx,
        read: LocalFuture<'static, Outcome<T>>,
    ) -> Caller<T> {
        let flight = Flight::new(self, read);
        let under_way: Rc<dyn UnderWay> = flight.clone();
        let mut state = self.state.borrow_mut();
        state.index.record_mut(block).flags |= PROMOTING;
        let promotion = state.promotions.entry(block).or_default();
        promotion.read = Some(Rc::downgrade(&under_way));
        flight.caller()
    }

    pub(super) async fn read_up(
        self: &Rc<Self>,
        key: &BlockKey,
        block: BlockIx,
        options: &GetOptions,
        arrival: Arrival,
        asker: &Asker,
    ) -> Result<Option<Found>, UnavailableReason> {
        let len = self.state.borrow().index.record(block).len;
        let access = self.access(key.hash(), len, options);
        let declined = arrival == Arrival::Wanted
            && self.state.borrow_mut().policy.admit(&access) == Admission::Decline;
        let writer = match arrival {
            Arrival::Wanted => self.room_for(u64::from(len), Need::Read, asker).await,
            Arrival::Ahead => self.room_ahead(block, asker).await,
            Arrival::Restored { .. } => self.room_for(u64::from(len), Need::Store, asker).await,
        };
        let Some(writer) = writer else {
            return Err(UnavailableReason::NoRoom);
        };
        self.fill_by_read(&writer);
        // Its segment may be reclaimed while there is no room, or while others go first.
        let location = || self.state.borrow().index.record(block).below();
        let mut class = ReadClass::Demand;
        if let (true, Some(tier), Some(location)) =
            (arrival != Arrival::Wanted, &self.tier, location())
        {
            class = self.class_ahead(block, tier, location).await;
        }
        let (Some(tier), Some(location)) = (&self.tier, location()) else {
            return Ok(None);
        };
        let read = tier.read(location, len, IoBuffer::Writer(writer), class);
        let outcome = read.await;
        let writer = outcome.buffer.and_then(IoBuffer::writer);
        let mut state = self.state.borrow_mut();
        let (Ok(()), Some(writer)) = (outcome.result, writer) else {
            // A writer that came back with the failure goes home by the queue of returns.
            state.counters.promotions_failed += 1;
            return Err(UnavailableReason::TierFailed);
        };
        state.counters.promotions += 1;
        state.counters.promoted_bytes += u64::from(len);
        let slot = writer.slot();
        let sound = Checksum::of(key, writer.bytes()) == state.index.record(block).checksum();
        if !sound || state.index.record(block).is(ERASED) {
            let _ = writer.finish();
            state.end_filling(slot);
            state.pool.give(slot);
            state.wake_waiting();
            let erased = state.index.record(block).is(ERASED);
            drop(state);
            if !erased {
                self.give_up_damaged(block);
            }
            return Ok(None);
        }
        state.settle(writer.finish(), block);
        Ok(self.welcome(&mut state, block, &access, (arrival, declined, class)))
    }

    /// Tells the policy of a block that has just come up, and pins it for who waits for it.
    fn welcome(
        &self,
        state: &mut State,
        block: BlockIx,
        access: &Access,
        (arrival, declined, class): (Arrival, bool, ReadClass),
    ) -> Option<Found> {
        state.counters.below_hits += u64::from(arrival == Arrival::Wanted);
        if declined && let Some(found) = state.pin_passing(block) {
            return Some(found);
        }
        let was_warm = state.index.record(block).is(WARM);
        match arrival {
            Arrival::Restored { tag } => state.policy.restore(block, tag, access),
            Arrival::Wanted | Arrival::Ahead => state.policy.on_insert(block, access),
        }
        state.emit(self.number, EventKind::Promoted, block);
        if arrival == Arrival::Ahead {
            state.arrive_ahead(block, class);
            return None;
        }
        let found = state.pin(block);
        if arrival != Arrival::Wanted && !was_warm {
            // Nobody used it yet: that it came up is no reason to keep it below.
            state.index.record_mut(block).flags &= !WARM;
        }
        found
    }

    /// A block's bytes on the device are wrong: it becomes a miss, now and after a restart.
    pub(super) fn give_up_damaged(self: &Rc<Self>, block: BlockIx) {
        let mut state = self.state.borrow_mut();
        state.counters.checksum_mismatches += 1;
        if state.index.record(block).slot().is_some() {
            // DRAM has it as it should be: only the copy below is given up.
            state.lose_below(block, self.tier.as_deref());
            state.counters.durability_lost += 1;
            state.emit(self.number, EventKind::Undurable, block);
            return;
        }
        let tombstone = state.tombstone_of(self, block);
        state.count_eviction(block);
        state.emit(self.number, EventKind::Evicted, block);
        state.erase(block, self.tier.as_deref());
        drop(state);
        tracing::error!(
            shard = self.number,
            "a block came back with wrong bytes; it is given up"
        );
        // Should it fail, the checksum still keeps the block from being served.
        self.bury_soon(tombstone);
    }

    /// A slot is filled by a read and not by a put: one that fails is no put that was given up.
    pub(super) fn fill_by_read(&self, writer: &SlotWriter) {
        let mut state = self.state.borrow_mut();
        if let Some(filling) = state.writers.get_mut(&writer.slot()) {
            filling.filler = Filler::Read;
        }
    }

    pub(super) fn end_promotion(self: &Rc<Self>, block: BlockIx) {
        let mut state = self.state.borrow_mut();
        let record = state.index.record_mut(block);
        record.flags &= !PROMOTING;
        let nowhere = record.slot().is_none() && record.below().is_none();
        if record.is(ERASED) {
            state.vacate_if_idle(block);
        } else if nowhere {
            // Its segment went while it was being read, and the read failed.
            state.count_eviction(block);
            state.emit(self.number, EventKind::Evicted, block);
            state.erase(block, None);
        }
        let promotion = state.promotions.remove(&block).unwrap_or_default();
        drop(state);
        promotion.joined.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Whether others than its caller wait for a block that is being read.
    pub(super) fn is_joined(&self, block: BlockIx) -> bool {
        let promotion = self.promotions.get(&block);
        promotion.is_some_and(|promotion| !promotion.joined.is_empty())
    }

    /// Pins a block that has just come up and that the policy declined: it goes again with its
    /// last pin. `None` when it has to stay: others wait for it, too, no device holds it any
    /// more, or it cannot be pinned.
    fn pin_passing(&mut self, block: BlockIx) -> Option<Found> {
        if self.is_joined(block) || self.index.record(block).below().is_none() {
            return None;
        }
        let found = self.pin(block)?;
        self.index.record_mut(block).flags |= PASSING;
        self.counters.promotions_declined += 1;
        Some(found)
    }
}
