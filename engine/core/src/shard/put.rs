//! Puts: reserve a slot, let the caller fill it on its own thread, publish it.
//!
//! The two steps keep copies off the shard's thread: a block of 80 MiB would stop every
//! other request for tens of milliseconds.

use std::rc::Rc;

use terrace_nvme::tier::{Phase, Placed, TierError};
use terrace_runtime::Runtime;
use terrace_slab::SlotWriter;
use terrace_types::{BlockIx, BlockKey, Checksum, Hint, PutOutcome, RejectReason, RequestContext};

use super::get::LocalPin;
use super::room::{Asker, Need};
use super::{Shard, State};
use crate::config::WriteMode;
use crate::events::EventKind;
use crate::index::{ERASED, PASSING, PROMISED, PROMOTING, Record};
use crate::policy::Admission;
use crate::shard::GetOptions;

/// What must hold before a put is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The block is readable; a crash may lose it.
    #[default]
    Volatile,
    /// The block survives kill -9 and power loss.
    Durable,
}

/// What a caller tells with a put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// What must hold before the acknowledgement.
    pub durability: Durability,
    /// What is known about the block.
    pub hint: Hint,
    /// What is known about the request.
    pub context: RequestContext,
    /// The checksum the value came with; it is compared before the block is published.
    pub checksum: Option<Checksum>,
}

impl PutOptions {
    /// What a put tells the policy, as a lookup would.
    pub(super) fn told(&self) -> GetOptions {
        GetOptions {
            hint: self.hint,
            context: self.context,
            ..GetOptions::default()
        }
    }
}

/// A put's first step.
#[derive(Debug)]
pub enum Reservation {
    /// Fill this slot, then [`Shard::commit`] it.
    Granted(SlotWriter),
    /// The put is over, with this outcome.
    Done(PutOutcome),
}

impl Shard {
    /// Takes a slot for a block of `len` bytes. Evicts, or waits a bounded time for room.
    pub async fn reserve(
        self: &Rc<Self>,
        key: &BlockKey,
        len: u64,
        options: &PutOptions,
    ) -> Reservation {
        let admission = match self.refuse_put(key, len, options) {
            Ok(admission) => admission,
            Err(outcome) => {
                let outcome = self.ensured(key, outcome, options).await;
                return self.done(outcome);
            }
        };
        match self.room_for(len, Need::Store, &Asker::of(key)).await {
            Some(writer) => self.granted(writer, admission),
            None => self.done(
                self.rejecting()
                    .map_or(PutOutcome::Busy, PutOutcome::Rejected),
            ),
        }
    }

    /// As [`Shard::reserve`], when that needs no waiting; `None` when it does.
    pub fn try_reserve(
        self: &Rc<Self>,
        key: &BlockKey,
        len: u64,
        options: &PutOptions,
    ) -> Option<Reservation> {
        let admission = match self.refuse_put(key, len, options) {
            Ok(admission) => admission,
            Err(outcome) => {
                let waits = outcome.is_present() && options.durability == Durability::Durable;
                return (!waits).then(|| self.done(outcome));
            }
        };
        if self.stands_back(Need::Store, None) {
            return None;
        }
        self.try_room(len, &Asker::of(key))
            .map(|writer| self.granted(writer, admission))
    }

    /// A slot for a block that the policy wants in DRAM, or does not.
    fn granted(&self, writer: SlotWriter, admission: Admission) -> Reservation {
        if admission == Admission::Decline
            && let Some(filling) = self.state.borrow_mut().writers.get_mut(&writer.slot())
        {
            filling.passes = true;
        }
        Reservation::Granted(writer)
    }

    fn done(&self, outcome: PutOutcome) -> Reservation {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.count_put(outcome);
        }
        Reservation::Done(outcome)
    }

    /// Whether a put has to be given up before it has a slot; and if not, whether its block is
    /// to stay in DRAM. A durable put is not declined: its block passes through DRAM.
    fn refuse_put(
        self: &Rc<Self>,
        key: &BlockKey,
        len: u64,
        options: &PutOptions,
    ) -> Result<Admission, PutOutcome> {
        if let Some(reason) = self.rejecting() {
            return Err(PutOutcome::Rejected(reason));
        }
        if key.namespace().engine() != self.engine {
            return Err(PutOutcome::Rejected(RejectReason::ForeignNamespace));
        }
        if len == 0 {
            return Err(PutOutcome::Rejected(RejectReason::BlockEmpty));
        }
        let mut state = self.state.borrow_mut();
        let mut limit = state.pool.block_len_max();
        if options.durability == Durability::Durable {
            let Some(tier) = self.tier.as_ref().filter(|tier| tier.takes_blocks()) else {
                return Err(PutOutcome::Rejected(RejectReason::NotDurable));
            };
            limit = limit.min(tier.block_len_max());
        }
        let state = &mut *state;
        state.tenants.look_at_clock(self.now.get());
        limit = limit.min(state.tenants.block_len_max(key.namespace().index()));
        if len > limit {
            return Err(PutOutcome::Rejected(RejectReason::BlockTooLarge {
                len,
                limit,
            }));
        }
        let known = state
            .epochs
            .of(key.namespace())
            .and_then(|ns| state.index.find(key, ns));
        if let Some(block) = known.filter(|block| state.is_expired(*block)) {
            self.expire(state, block);
        } else if let Some(block) = known {
            let durable = self.is_durable(state.index.record(block));
            return Err(PutOutcome::AlreadyExists { durable });
        }
        let access = self.access(key.hash(), len as u32, &options.told());
        match (state.policy.admit(&access), options.durability) {
            (Admission::Decline, Durability::Volatile) => {
                Err(PutOutcome::Rejected(RejectReason::NotAdmitted))
            }
            (admission, _) => Ok(admission),
        }
    }

    /// Publishes a filled slot under `key`, and waits until the block is durable when that is
    /// asked for. `checksum` is that of the bytes in the slot.
    pub async fn commit(
        self: &Rc<Self>,
        key: &BlockKey,
        writer: SlotWriter,
        checksum: Checksum,
        options: &PutOptions,
    ) -> PutOutcome {
        let outcome = self.commit_now(key, writer, checksum, options);
        self.ensured(key, outcome, options).await
    }

    /// `outcome`, once the block it speaks of is as durable as asked for. When the devices do
    /// not take it, the outcome says that it is not.
    pub(crate) async fn ensured(
        self: &Rc<Self>,
        key: &BlockKey,
        outcome: PutOutcome,
        options: &PutOptions,
    ) -> PutOutcome {
        if options.durability != Durability::Durable || !outcome.is_present() {
            return outcome;
        }
        // Until it is durable, DRAM may hold the only copy.
        let _held = self.promise(key);
        let durable = match self.make_durable(key, &options.hint).await {
            Ok(durable) => durable,
            Err(error) => {
                tracing::warn!(shard = self.number, %error, "a durable put is not durable");
                false
            }
        };
        match outcome {
            PutOutcome::Stored { .. } => PutOutcome::Stored { durable },
            _ => PutOutcome::AlreadyExists { durable },
        }
    }

    /// Notes that a block is to be durable. One that only passes through DRAM is pinned.
    fn promise(self: &Rc<Self>, key: &BlockKey) -> Option<LocalPin> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let epoch = state.epochs.of(key.namespace())?;
        let block = state.index.find(key, epoch)?;
        let record = state.index.record_mut(block);
        record.flags |= PROMISED;
        let found = record.is(PASSING).then(|| state.pin_beyond(block))??;
        Some(self.local_pin(found))
    }

    /// Writes a block below unless it is there, and waits until it survives power loss. False
    /// when it was removed meanwhile.
    async fn make_durable(self: &Rc<Self>, key: &BlockKey, hint: &Hint) -> Result<bool, TierError> {
        let Some(tier) = &self.tier else {
            return Ok(false);
        };
        loop {
            let (block, below) = {
                let state = self.state.borrow();
                let epoch = state.epochs.of(key.namespace());
                let Some(block) = epoch.and_then(|ns| state.index.find(key, ns)) else {
                    return Ok(false);
                };
                let record = state.index.record(block);
                let nowhere = record.below().is_none() && record.slot().is_none();
                if nowhere && !record.is(PROMOTING) {
                    return Ok(false);
                }
                (block, record.below().ok_or(nowhere))
            };
            let below = match below {
                // Its segment went while it is being read: it comes up, or is gone after that.
                Err(true) => {
                    self.join_promotion(block).await;
                    continue;
                }
                below => below.ok(),
            };
            match below.map(|location| (location, tier.phase(tier.split(location).0))) {
                // It moves or goes with its segment: look again then.
                Some((_, Phase::Reclaiming)) => {
                    tier.changed().await;
                    continue;
                }
                Some((location, _)) => {
                    tier.durable_at(location).await?;
                    return Ok(true);
                }
                None => {}
            }
            if !self.state.borrow_mut().fits_below(block, self.number, tier) {
                return Ok(false);
            }
            let Some(placed) = self.write_block(block, hint).await? else {
                // Somebody else was faster: look again.
                self.runtime.yield_now().await;
                continue;
            };
            return match tier.durable(placed.ticket).await {
                Ok(()) => Ok(true),
                Err(error) => {
                    self.write_failed(block, placed);
                    Err(error)
                }
            };
        }
    }

    /// The write of a block that stays in DRAM failed: it does not lie below.
    fn write_failed(&self, block: BlockIx, placed: Placed) {
        let mut state = self.state.borrow_mut();
        let record = state.index.record(block);
        // The number may be another block's by now, or this one was written again elsewhere.
        if record.is(ERASED) || record.below() != Some(placed.location) {
            return;
        }
        state.lose_below(block, self.tier.as_deref());
        let record = state.index.record(block);
        if record.slot().is_none() && !record.is(PROMOTING) {
            state.count_eviction(block);
            state.emit(self.number, EventKind::Evicted, block);
            state.erase(block, self.tier.as_deref());
        }
    }

    /// Publishes a filled slot under `key`, durable or not. `checksum` is that of the bytes in
    /// it.
    pub(crate) fn commit_now(
        self: &Rc<Self>,
        key: &BlockKey,
        writer: SlotWriter,
        checksum: Checksum,
        options: &PutOptions,
    ) -> PutOutcome {
        assert!(
            writer.is_in(&self.shared),
            "the slot belongs to another shard"
        );
        let outcome = self.publish(key, writer, checksum, options);
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.count_put(outcome);
        }
        if matches!(outcome, PutOutcome::Stored { .. })
            && options.durability == Durability::Volatile
            && self.config.nvme.write_mode == WriteMode::Through
        {
            self.write_through(key, options.hint);
        }
        outcome
    }

    /// Writes a block below at once, without anybody waiting for it.
    fn write_through(self: &Rc<Self>, key: &BlockKey, hint: Hint) {
        let (shard, key) = (Rc::clone(self), key.clone());
        let on_its_way = self.state.borrow_mut().way_down.begin();
        self.spawn(Box::pin(async move {
            let block = {
                let state = shard.state.borrow();
                let epoch = state.epochs.of(key.namespace());
                epoch.and_then(|ns| state.index.find(&key, ns))
            };
            let begun = match block {
                Some(block) => shard.write_block(block, &hint).await,
                None => Ok(None),
            };
            shard.arrive(on_its_way, begun.as_ref().err());
            let written = match (block, begun, &shard.tier) {
                (Some(block), Ok(Some(placed)), Some(tier)) => {
                    let written = tier.written(placed.ticket).await;
                    if written.is_err() {
                        shard.write_failed(block, placed);
                    }
                    written
                }
                (_, begun, _) => begun.map(drop),
            };
            if let Err(error) = written {
                tracing::warn!(shard = shard.number, %error, "a block was not written through");
            }
        }));
    }

    fn publish(
        &self,
        key: &BlockKey,
        writer: SlotWriter,
        checksum: Checksum,
        options: &PutOptions,
    ) -> PutOutcome {
        if let Some(reason) = self.rejecting() {
            return PutOutcome::Rejected(reason);
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let len = writer.bytes().len() as u32;
        let slot = writer.finish();
        let passes = state.writers.get(&slot).is_some_and(|slot| slot.passes);
        let outcome = if options.checksum.is_some_and(|given| given != checksum) {
            PutOutcome::Rejected(RejectReason::ChecksumMismatch)
        } else {
            state.add(key, len)
        };
        if !matches!(outcome, PutOutcome::Stored { .. }) {
            state.end_filling(slot);
            state.pool.give(slot);
            state.wake_waiting();
            return outcome;
        }
        let epoch = state.epochs.of(key.namespace());
        let Some(block) = epoch.and_then(|ns| state.index.find(key, ns)) else {
            return PutOutcome::Busy;
        };
        state.index.record_mut(block).set_checksum(checksum);
        state.settle(slot, block);
        state.note_stored(block, options.context.priority);
        if options.durability == Durability::Durable {
            state.index.record_mut(block).flags |= PROMISED;
        }
        if passes {
            state.index.record_mut(block).flags |= PASSING;
        } else {
            let access = self.access(key.hash(), len, &options.told());
            state.policy.on_insert(block, &access);
        }
        state.emit(self.number, EventKind::Stored, block);
        outcome
    }

    /// Stores `value` under `key`, copied and hashed on the shard's thread.
    pub async fn put(
        self: &Rc<Self>,
        key: &BlockKey,
        value: &[u8],
        options: &PutOptions,
    ) -> PutOutcome {
        match self.reserve(key, value.len() as u64, options).await {
            Reservation::Done(outcome) => outcome,
            Reservation::Granted(mut writer) => {
                writer.bytes_mut().copy_from_slice(value);
                self.commit(key, writer, Checksum::of(key, value), options)
                    .await
            }
        }
    }

    /// Whether a block survives power loss as it is.
    fn is_durable(&self, record: &Record) -> bool {
        let below = record.below().zip(self.tier.as_ref());
        below.is_some_and(|(location, tier)| tier.is_durable(location))
    }

    pub(super) fn clock(&self) -> &dyn Runtime {
        &*self.runtime
    }
}

impl State {
    /// Adds a record under `key`, unless one came first while the slot was being filled.
    fn add(&mut self, key: &BlockKey, len: u32) -> PutOutcome {
        let Some(epoch) = self.epochs.of_or_new(key.namespace()) else {
            return PutOutcome::Busy;
        };
        if self.index.find(key, epoch).is_some() {
            return PutOutcome::AlreadyExists { durable: false };
        }
        if !self.index.has_room() {
            return PutOutcome::Busy;
        }
        self.index.insert(key, epoch, len);
        self.epochs.count_up(epoch);
        PutOutcome::Stored { durable: false }
    }

    fn count_put(&mut self, outcome: PutOutcome) {
        let counter = match outcome {
            PutOutcome::Stored { .. } => &mut self.counters.puts_stored,
            PutOutcome::AlreadyExists { .. } => &mut self.counters.puts_exists,
            PutOutcome::Rejected(_) => &mut self.counters.puts_rejected,
            PutOutcome::Busy => &mut self.counters.puts_busy,
        };
        *counter += 1;
    }
}
