//! The way down: blocks that leave DRAM, or have to survive, are written to the NVMe tier.
//!
//! One task a shard writes; it keeps as many writes under way as the tier takes, so that a
//! victim's slot is free by the time a put needs it.

use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

use futures_lite::future::or;
use terrace_nvme::IoBuffer;
use terrace_nvme::format::EntryKind;
use terrace_nvme::tier::{Location, NvmeTier, Placed, Record, TierError};
use terrace_slab::PinnedBlock;
use terrace_types::{Access, BlockIx, Hint};

use super::get::Found;
use super::room::Asker;
use super::way_down::OnItsWay;
use super::{Shard, State};
use crate::events::EventKind;
use crate::index::{DEMOTING, ERASED, PROMISED, WARM};
use crate::policy::Admission;

/// Writes of demotions that are awaited at once. The tier's own window is in bytes.
const WRITES_MAX: usize = 512;

/// What the writing task does next.
enum Step {
    Write(BlockIx, OnItsWay),
    Await,
    End,
}

impl Shard {
    /// Starts the task that writes blocks below, when there are some to write or too little of
    /// DRAM is free.
    pub(super) fn start_writer(self: &Rc<Self>) {
        if self.tier.is_none() {
            return;
        }
        let mut state = self.state.borrow_mut();
        let full = state.fill_ratio() > self.config.fill_ratio_high;
        if (!full && state.leaving.is_empty()) || std::mem::replace(&mut state.writer_runs, true) {
            return;
        }
        drop(state);
        let shard = Rc::clone(self);
        self.spawn(Box::pin(async move { shard.write_down().await }));
    }

    async fn write_down(self: &Rc<Self>) {
        let mut under_way: VecDeque<(BlockIx, Placed)> = VecDeque::new();
        loop {
            self.end_demotions(&mut under_way);
            match self.next_step(&under_way) {
                Step::Write(block, on_its_way) => {
                    let written = self.write_next(block, &mut under_way).await;
                    self.arrive(on_its_way, written.as_ref().err());
                    match written {
                        Ok(Some(placed)) => under_way.push_back((block, placed)),
                        Ok(None) => self.end_demotion(block, None, Ok(())),
                        Err(error) => self.end_demotion(block, None, Err(error)),
                    }
                }
                Step::Await => {
                    let Some((_, placed)) = under_way.front() else {
                        continue;
                    };
                    if let Some(tier) = &self.tier {
                        tier.hasten(placed.ticket);
                        // Failure is taken in with the block.
                        let _ = tier.written(placed.ticket).await;
                    }
                }
                Step::End => return,
            }
        }
    }

    /// Begins the write of a block. While it waits for room, demotions whose writes complete are
    /// taken in: who waits for room in DRAM gets their slots.
    async fn write_next(
        self: &Rc<Self>,
        block: BlockIx,
        under_way: &mut VecDeque<(BlockIx, Placed)>,
    ) -> Result<Option<Placed>, TierError> {
        let hint = Hint::default();
        let mut write = pin!(self.write_block(block, &hint));
        loop {
            let (Some((_, front)), Some(tier)) = (under_way.front().copied(), &self.tier) else {
                return write.await;
            };
            let completed = async {
                tier.hasten(front.ticket);
                // Failure is taken in with the block.
                let _ = tier.written(front.ticket).await;
                None
            };
            match or(async { Some(write.as_mut().await) }, completed).await {
                Some(begun) => return begun,
                None => self.end_demotions(under_way),
            }
        }
    }

    fn next_step(&self, under_way: &VecDeque<(BlockIx, Placed)>) -> Step {
        if under_way.len() >= WRITES_MAX {
            return Step::Await;
        }
        let mut state = self.state.borrow_mut();
        let mut freed = false;
        let step = loop {
            if let Some((block, on_its_way)) = state.leaving.pop_front() {
                break Step::Write(block, on_its_way);
            }
            let wanted = state.fill_ratio() > self.config.fill_ratio_low;
            if !wanted || self.unavailable().is_some() {
                break Step::End;
            }
            let Some(victim) = state.victim_of(None, &Asker::default()) else {
                break Step::End;
            };
            freed |= state.let_go(victim, self.number, self.tier.as_deref());
        };
        if freed {
            state.wake_waiting();
        }
        match step {
            Step::End if !under_way.is_empty() => Step::Await,
            Step::End => {
                state.writer_runs = false;
                Step::End
            }
            step => step,
        }
    }

    /// Ends the demotions whose writes are complete.
    fn end_demotions(self: &Rc<Self>, under_way: &mut VecDeque<(BlockIx, Placed)>) {
        let Some(tier) = &self.tier else { return };
        while let Some((block, placed)) = under_way.front().copied() {
            let location = Some(placed.location);
            match tier.is_written(placed.ticket) {
                Ok(false) => return,
                Ok(true) => self.end_demotion(block, location, Ok(())),
                Err(error) => self.end_demotion(block, location, Err(error)),
            }
            under_way.pop_front();
        }
    }

    /// Begins the write of a block that is in DRAM. `None` when it is gone, or below already.
    ///
    /// # Errors
    /// [`TierError`] when the tier does not take it.
    pub(super) async fn write_block(
        self: &Rc<Self>,
        block: BlockIx,
        hint: &Hint,
    ) -> Result<Option<Placed>, TierError> {
        let Some(tier) = &self.tier else {
            return Err(TierError::ReadOnly);
        };
        let mut pinned = None;
        loop {
            let len = {
                let mut state = self.state.borrow_mut();
                let record = state.index.record(block);
                let ended = state.epochs.is_ended(record.namespace());
                if ended || record.is(ERASED) || record.below().is_some() {
                    return Ok(None);
                }
                let len = record.len;
                if !state.fits_below(block, self.number, tier) {
                    return Ok(None);
                }
                let buffer = match pinned.take() {
                    Some(buffer) => buffer,
                    None => match state.pin_for_write(self, block) {
                        Some(pin) => IoBuffer::Pinned(pin),
                        None => return Ok(None),
                    },
                };
                match state.place(self, tier, block, hint, buffer) {
                    Ok(placed) => {
                        drop(state);
                        self.start_reclaim();
                        return Ok(Some(placed));
                    }
                    Err(buffer) => pinned = Some(buffer),
                }
                len
            };
            self.start_reclaim();
            // Nothing stored is dropped because devices are slow: puts wait, and say so.
            let deadline = self.runtime.now() + self.config.nvme.io_deadline;
            tier.room(len, None, deadline).await?;
            if self.unavailable().is_some() {
                return Err(TierError::Closing);
            }
        }
    }

    /// Takes in what a demotion's write came to: the block leaves DRAM, stays for a reader that
    /// came meanwhile, or is gone because its key was removed.
    fn end_demotion(
        self: &Rc<Self>,
        block: BlockIx,
        location: Option<Location>,
        written: Result<(), TierError>,
    ) {
        // The write's own pin came back with its memory.
        self.drain_returns();
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.demoting -= 1;
        let record = state.index.record_mut(block);
        record.flags &= !DEMOTING;
        let below = record.below();
        let (erased, len, pins, id) = (record.is(ERASED), record.len, record.pins, record.hash());
        if !erased {
            state.end_leaving(block);
        }
        match written {
            // It was not to be written any more.
            Ok(()) if location.is_none() => {}
            Ok(()) => {
                state.counters.demotions += 1;
                state.counters.demoted_bytes += u64::from(len);
            }
            Err(error) => {
                tracing::warn!(shard = self.number, %error, "a block could not be written below");
                state.counters.demotions_failed += 1;
                // It may have been written again elsewhere meanwhile.
                if !erased && location.is_some() && location == below {
                    state.lose_below(block, self.tier.as_deref());
                }
            }
        }
        if erased {
            state.vacate_if_idle(block);
        } else if pins > 0 {
            let access = Access {
                len,
                ..Access::plain(id)
            };
            state.policy.on_insert(block, &access);
        } else {
            state.give_up(block, self.number, self.tier.as_deref());
        }
        state.wake_waiting();
    }
}

impl State {
    /// The fuller of bytes and blocks, from 0 to 1; blocks on their way down count as gone.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share of memory needs no last bit"
    )]
    pub(super) fn fill_ratio(&self) -> f64 {
        let stats = self.pool.stats();
        let blocks = (self.dram_blocks + self.writers.len()).max(1);
        let staying = 1.0 - self.demoting as f64 / blocks as f64;
        let by_bytes = stats.slot_bytes as f64 / stats.arena_bytes as f64;
        by_bytes.max(blocks as f64 / self.blocks_cap as f64) * staying
    }

    /// Gives up a victim of the policy and whatever else it gave up with it. What has to be
    /// written below first is marked and queued; the rest leaves DRAM here. True when a slot
    /// came free.
    pub(super) fn let_go(
        &mut self,
        victim: BlockIx,
        shard: usize,
        tier: Option<&NvmeTier>,
    ) -> bool {
        let mut freed = false;
        let mut next = Some(victim);
        while let Some(block) = next {
            if tier.is_some_and(|tier| self.goes_below(block, shard, tier)) {
                self.begin_demotion(block);
            } else {
                self.give_up(block, shard, tier);
                freed = true;
            }
            next = self.policy.take_pending();
        }
        freed
    }

    /// Whether a block that the policy gave up is written below. One that was promised to be
    /// durable is not for the policy to decline.
    fn goes_below(&mut self, block: BlockIx, shard: usize, tier: &NvmeTier) -> bool {
        let record = self.index.record(block);
        if record.below().is_some() || record.slot().is_none() || !tier.takes_blocks() {
            return false;
        }
        let (id, len, promised) = (record.hash(), record.len, record.is(PROMISED));
        let access = Access {
            len,
            ..Access::plain(id)
        };
        if self.tenants.has_lifetimes() && self.is_expired(block) {
            self.counters.expired += 1;
            return false;
        }
        if !promised && self.policy.admit_below(&access) == Admission::Decline {
            self.counters.below_declined += 1;
            return false;
        }
        // The budget first: own blocks are not given up for a write that it declines.
        tier.admit(len) && self.fits_below(block, shard, tier)
    }

    /// Marks a block as on its way down and queues it for the writer.
    pub(super) fn begin_demotion(&mut self, block: BlockIx) {
        self.index.record_mut(block).flags |= DEMOTING;
        self.begin_leaving(block);
        self.demoting += 1;
        let on_its_way = self.way_down.begin();
        self.leaving.push_back((block, on_its_way));
    }

    /// A pin for a write, beyond the bound on pins: it frees memory in the end.
    fn pin_for_write(&mut self, shard: &Shard, block: BlockIx) -> Option<PinnedBlock> {
        let Found { slot, len, .. } = self.pin_beyond(block)?;
        Some(PinnedBlock::new(&shard.shared, slot, len, block))
    }

    /// Counts a pin on a block in DRAM, beyond the bound on pins.
    pub(super) fn pin_beyond(&mut self, block: BlockIx) -> Option<Found> {
        let record = self.index.record_mut(block);
        let slot = record.slot()?;
        let pins = record.pins.checked_add(1)?;
        if record.pins == 0 {
            self.pinned_bytes += record.pinned_len();
        }
        record.pins = pins;
        let len = record.len;
        Some(Found { slot, len, block })
    }

    /// Appends a block to the tier and notes where.
    fn place(
        &mut self,
        shard: &Shard,
        tier: &Rc<NvmeTier>,
        block: BlockIx,
        hint: &Hint,
        buffer: IoBuffer,
    ) -> Result<Placed, IoBuffer> {
        let record = self.index.record(block);
        let namespace = self.epochs.namespace_of(record.namespace());
        let Some(name) = self.epochs.name_of(namespace, &shard.registry) else {
            return Err(buffer);
        };
        let record = self.index.record(block);
        let len = record.len;
        let placed = tier.try_place(
            &Record {
                kind: EntryKind::Block,
                namespace: name.as_str(),
                key: self.index.key_of(record),
                checksum: record.checksum(),
                len,
                hint: *hint,
                sequence: None,
                from: None,
            },
            buffer,
        )?;
        tier.retain(placed.location, len);
        self.count_below(block);
        let record = self.index.record_mut(block);
        record.set_below(Some(placed.location));
        record.flags &= !WARM;
        Ok(placed)
    }

    /// The copy of a block below is bad: it lies in DRAM only. The device may hold it all the
    /// same.
    pub(super) fn lose_below(&mut self, block: BlockIx, tier: Option<&NvmeTier>) {
        if let (Some(_), Some(tier)) = (self.index.record(block).below(), tier) {
            let hash = self.index.record(block).hash();
            self.strays.note(hash, tier.draw_sequence());
        }
        self.unplace(block, tier);
    }

    /// A block does not lie below any more.
    fn unplace(&mut self, block: BlockIx, tier: Option<&NvmeTier>) {
        let record = self.index.record_mut(block);
        let (location, len) = (record.below(), record.len);
        record.set_below(None);
        if let (Some(location), Some(tier)) = (location, tier) {
            tier.forget(location, len);
            self.count_out_of_below(block);
        }
    }

    /// A block leaves the tier below because its segment is reclaimed or lost.
    pub(super) fn forget_below(&mut self, block: BlockIx, shard: usize, tier: &NvmeTier) {
        self.unplace(block, Some(tier));
        self.counters.below_evictions += 1;
        let record = self.index.record(block);
        if record.slot().is_some() {
            // Whoever was told that it is durable learns that it is not any more.
            self.counters.durability_lost += 1;
            self.emit(shard, EventKind::Undurable, block);
            return;
        }
        // One that is being read comes up, or goes, at the end of that read.
        if !record.is(crate::index::PROMOTING) {
            self.count_eviction(block);
            self.emit(shard, EventKind::Evicted, block);
            self.erase(block, None);
        }
    }
}
