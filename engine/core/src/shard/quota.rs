//! Who goes when namespaces have rules: own blocks at a quota, none at a floor, the lowest
//! priority first, and what is past its time before all.
//!
//! Every look is bounded: sixteen of the blocks that the policy offers, a stretch of the index for
//! what the policy would not offer soon.

use std::collections::HashMap;
use std::rc::Rc;

use terrace_nvme::tier::NvmeTier;
use terrace_slab::ClassIx;
use terrace_types::BlockIx;

use super::room::Asker;
use super::{Shard, State};
use crate::events::EventKind;
use crate::index::{DEMOTING, PASSING, PROMOTING, Record, WARM};

/// Blocks of the policy's order among which the lowest priority is looked for.
const OFFERS_MAX: usize = 16;
/// Records looked at for a block of one namespace that the policy would not offer soon.
const STRETCH: u32 = 4096;
/// Records looked at for a block past its time, each time that room is needed.
const SWEEP_STRETCH: u32 = 16;

impl State {
    /// The next victim when there are rules; the policy has forgotten it.
    pub(super) fn victim_by_rules(
        &mut self,
        class: Option<ClassIx>,
        asker: &Asker,
    ) -> Option<BlockIx> {
        if let Some(block) = self.next_expired(class) {
            self.policy.on_remove(block);
            return Some(block);
        }
        let asks = asker.namespace.map(|namespace| namespace.index());
        let (index, pool, tenants, epochs) = (&self.index, &self.pool, &self.tenants, &self.epochs);
        let (mut best, mut looked) = (None, 0);
        let mut offered = |block: BlockIx| {
            let record = index.record(block);
            if looked == OFFERS_MAX || !asker.lets_go(record, class, pool) {
                return false;
            }
            let owner = epochs.namespace_of(record.namespace()).index();
            if asks != Some(owner) && tenants.is_at_floor(owner, record.pinned_len()) {
                return false;
            }
            looked += 1;
            let rank = tenants.rank(owner, block, record);
            if best.is_none_or(|(lowest, _)| rank < lowest) {
                best = Some((rank, block));
            }
            rank == 0
        };
        let lowest = self.policy.victim(&mut offered);
        if lowest.is_some() {
            return lowest;
        }
        let (_, chosen) = best?;
        self.policy.victim(&mut |block| block == chosen)
    }

    /// A block in DRAM whose time is over, of the next stretch of the index.
    fn next_expired(&mut self, class: Option<ClassIx>) -> Option<BlockIx> {
        if !self.tenants.has_lifetimes() {
            return None;
        }
        let from = self.tenants.sweep;
        let end = from.saturating_add(SWEEP_STRETCH);
        self.tenants.sweep = if end >= self.index.numbers() { 0 } else { end };
        let (asker, pool) = (Asker::default(), &self.pool);
        let found = self
            .index
            .scan(from, SWEEP_STRETCH)
            .find(|(block, record)| {
                record.slot().is_some()
                    && is_still(record)
                    && asker.lets_go(record, class, pool)
                    && self.tenants.is_expired(self.owner(record), *block)
            });
        found.map(|(block, _)| block)
    }

    /// Makes room for `len` bytes within the quota of who asks, out of its own blocks. False when
    /// none of them can go now.
    pub(super) fn make_room_in_quota(
        &mut self,
        len: u64,
        shard: usize,
        tier: Option<&NvmeTier>,
        asker: &Asker,
    ) -> bool {
        let Some(namespace) = asker.namespace.map(|namespace| namespace.index()) else {
            return true;
        };
        let bytes = len.next_multiple_of(terrace_types::limits::SLOT_ALIGN);
        // A block from before the quota may be longer: nothing is given up for it in vain.
        if bytes > self.tenants.block_len_max(namespace) {
            return false;
        }
        while !self.tenants.fits_dram(namespace, bytes) {
            if !self.may_begin_demotion() {
                return false;
            }
            let Some(victim) = self.own_victim(namespace, asker) else {
                return false;
            };
            self.counters.quota_evictions += 1;
            if !self.let_go(victim, shard, tier) {
                return false;
            }
        }
        true
    }

    /// A block in DRAM of one namespace that can go; the policy has forgotten it.
    fn own_victim(&mut self, namespace: u16, asker: &Asker) -> Option<BlockIx> {
        let (index, pool, epochs) = (&self.index, &self.pool, &self.epochs);
        let owns = |record: &Record| epochs.namespace_of(record.namespace()).index() == namespace;
        let mut own = |block: BlockIx| {
            let record = index.record(block);
            owns(record) && asker.lets_go(record, None, pool)
        };
        if let Some(victim) = self.policy.victim(&mut own) {
            return Some(victim);
        }
        let victim = self.next_of(namespace, |record| {
            record.slot().is_some() && asker.lets_go(record, None, &self.pool)
        });
        let (victim, next) = victim;
        self.tenants.hand = next;
        let victim = victim?;
        self.policy.on_remove(victim);
        Some(victim)
    }

    /// The first block of a namespace from the hand on that `can_go`, and where the hand stands
    /// then.
    fn next_of(&self, namespace: u16, can_go: impl Fn(&Record) -> bool) -> (Option<BlockIx>, u32) {
        let numbers = self.index.numbers();
        let from = if self.tenants.hand < numbers {
            self.tenants.hand
        } else {
            0
        };
        let found = self.index.scan(from, STRETCH).find(|(_, record)| {
            is_still(record) && self.owner(record) == namespace && can_go(record)
        });
        let found = found.map(|(block, _)| block);
        let next = found.map_or(from.saturating_add(STRETCH), |block| block.0 + 1);
        (found, if next >= numbers { 0 } else { next })
    }

    /// Makes room for `bytes` of a namespace within its quota on the devices. False when none of
    /// its blocks there can go now.
    pub(super) fn make_room_below(
        &mut self,
        namespace: u16,
        bytes: u64,
        shard: usize,
        tier: &NvmeTier,
    ) -> bool {
        if !self.tenants.may_hold_nvme(namespace, bytes) {
            return false;
        }
        while !self.tenants.fits_nvme(namespace, bytes) {
            let Some(block) = self.own_below(namespace) else {
                return false;
            };
            // A device holds it until its segment is reclaimed: a removal of its key, which the
            // index does not know any more, has to leave a tombstone.
            let owner = self
                .epochs
                .namespace_of(self.index.record(block).namespace());
            self.strays.note_all(owner, tier.draw_sequence());
            self.counters.quota_below_evictions += 1;
            self.forget_below(block, shard, tier);
        }
        true
    }

    /// A block of one namespace that can leave the devices: rather one that is not in DRAM and was
    /// not hit lately.
    fn own_below(&mut self, namespace: u16) -> Option<BlockIx> {
        for only_idle in [true, false] {
            let can_go = |record: &Record| {
                let idle = record.slot().is_none() && !record.is(WARM);
                record.below().is_some() && record.pins == 0 && (idle || !only_idle)
            };
            let (found, next) = self.next_of(namespace, can_go);
            if found.is_some() || !only_idle {
                self.tenants.hand = next;
                return found;
            }
        }
        None
    }

    /// Whether the copy of a block may be written to the devices, or is there.
    pub(super) fn fits_below(&mut self, block: BlockIx, shard: usize, tier: &NvmeTier) -> bool {
        let record = self.index.record(block);
        if !self.tenants.is_active() || record.below().is_some() {
            return true;
        }
        let (owner, bytes) = (self.owner(record), record.pinned_len());
        let fits = self.make_room_below(owner, bytes, shard, tier);
        self.counters.quota_declined += u64::from(!fits);
        fits
    }

    /// Whether a namespace would fall below its floor if all of these blocks went.
    pub(super) fn hits_a_floor(&self, blocks: &[BlockIx]) -> bool {
        let mut going: HashMap<u16, u64> = HashMap::new();
        for block in blocks {
            let record = self.index.record(*block);
            *going.entry(self.owner(record)).or_default() += record.pinned_len();
        }
        let mut going = going.into_iter();
        going.any(|(owner, bytes)| self.tenants.is_at_floor(owner, bytes))
    }

    /// Whether the lifetime of a block is over.
    pub(super) fn is_expired(&self, block: BlockIx) -> bool {
        self.tenants.has_lifetimes()
            && self
                .tenants
                .is_expired(self.owner(self.index.record(block)), block)
    }

    /// Has a namespace give up what is beyond its quotas, as far as it can at once.
    pub(super) fn trim(&mut self, namespace: u16, shard: usize, tier: Option<&NvmeTier>) {
        // One turn of the hand over all of the index finds whatever can go.
        let turns = self.index.numbers() / STRETCH + 2;
        if let Some(tier) = tier {
            for _ in 0..turns {
                if self.make_room_below(namespace, 0, shard, tier) {
                    break;
                }
            }
        }
        let asker = Asker::default();
        for _ in 0..turns {
            while self.tenants.is_over_dram(namespace)
                && let Some(victim) = self.own_victim(namespace, &asker)
            {
                self.counters.quota_evictions += 1;
                self.let_go(victim, shard, tier);
            }
        }
    }
}

impl Shard {
    /// Gives up a block whose lifetime is over, for good: after a restart it is not found again.
    #[cold]
    pub(super) fn expire(self: &Rc<Self>, state: &mut State, block: BlockIx) {
        let tombstone = state.tombstone_of(self, block);
        state.counters.expired += 1;
        state.count_eviction(block);
        state.emit(self.number, EventKind::Evicted, block);
        state.policy_forgets(block);
        state.erase(block, self.tier.as_deref());
        state.wake_waiting();
        self.bury_soon(tombstone);
    }
}

/// Whether nothing moves a block.
const fn is_still(record: &Record) -> bool {
    !record.is(DEMOTING | PROMOTING | PASSING)
}
