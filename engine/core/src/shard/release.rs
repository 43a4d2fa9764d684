//! What is given back: pins, slots that were not filled, DRAM copies, and records.
//!
//! **Invariant**: a record is vacated when its key is gone, its last pin is back, and no task
//! moves it.

use terrace_nvme::tier::NvmeTier;
use terrace_slab::SlotIx;
use terrace_types::{Access, BlockIx};

use super::{Filler, Filling, State};
use crate::index::{AHEAD, DEMOTING, ERASED, PASSING, PROMOTING};

impl State {
    /// Gives one pin back; frees what waited for the last one.
    pub(super) fn unpin(&mut self, block: BlockIx) {
        let record = self.index.record_mut(block);
        assert!(record.pins > 0, "{block:?} has no pin to give back");
        record.pins -= 1;
        if record.pins > 0 {
            return;
        }
        self.pinned_bytes -= record.pinned_len();
        if record.is(ERASED) {
            self.vacate_if_idle(block);
        } else if record.is(PASSING) {
            self.end_passing(block);
        }
        self.wake_waiting();
    }

    /// A block that was in DRAM for its readers only leaves it; one that no device holds any
    /// more stays, as any other.
    fn end_passing(&mut self, block: BlockIx) {
        let record = self.index.record_mut(block);
        record.flags &= !PASSING;
        let (below, len, id) = (record.below(), record.len, record.hash());
        if below.is_some() {
            self.drop_slot(block);
            return;
        }
        let access = Access {
            len,
            ..Access::plain(id)
        };
        self.policy.on_insert(block, &access);
    }

    /// Frees the record and slot of a block that is out of the index, when nothing uses it.
    pub(super) fn vacate_if_idle(&mut self, block: BlockIx) {
        let record = self.index.record_mut(block);
        let busy = record.is(PROMOTING | DEMOTING);
        if !record.is(ERASED) || record.pins > 0 || busy {
            return;
        }
        if let Some(slot) = record.slot() {
            record.set_slot(None);
            self.pool.give(slot);
        }
        self.index.vacate(block);
    }

    /// A slot is not being filled any more.
    pub(super) fn end_filling(&mut self, slot: SlotIx) -> Option<Filling> {
        let filling = self.writers.remove(&slot)?;
        self.tenants.end_filling(&filling);
        Some(filling)
    }

    /// A writer came back without a block.
    pub(super) fn abandon(&mut self, slot: SlotIx) {
        let filling = self.end_filling(slot);
        if filling.is_some_and(|filling| filling.filler == Filler::Put) {
            self.counters.puts_abandoned += 1;
        }
        self.pool.give(slot);
        self.wake_waiting();
    }

    /// Drops the DRAM copy of a block that is in the index. With pins out, the slot follows
    /// when the last of them is gone.
    pub(super) fn drop_slot(&mut self, block: BlockIx) {
        let record = self.index.record_mut(block);
        let Some(slot) = record.slot() else { return };
        let (len, pins, unused) = (record.len, record.pins, record.is(AHEAD));
        if unused {
            self.end_ahead(block, false);
        }
        self.count_out_of_dram(block);
        self.dram_blocks -= 1;
        self.payload_bytes -= u64::from(len);
        if pins == 0 {
            self.index.record_mut(block).set_slot(None);
            self.pool.give(slot);
        }
    }

    /// Takes a block out of the index altogether, with what every tier holds of it.
    pub(super) fn erase(&mut self, block: BlockIx, tier: Option<&NvmeTier>) {
        let record = self.index.record(block);
        let (location, epoch, len) = (record.below(), record.namespace(), record.len);
        if let (Some(location), Some(tier)) = (location, tier) {
            tier.forget(location, len);
            self.count_out_of_below(block);
        }
        if self.index.record(block).is(DEMOTING) {
            self.end_leaving(block);
        }
        self.drop_slot(block);
        self.index.erase(block);
        self.epochs.count_down(epoch);
        self.index.record_mut(block).set_below(None);
        // What is still in use is vacated by its last pin, or by the task that moves it.
        self.vacate_if_idle(block);
    }
}
