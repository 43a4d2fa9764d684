//! The way down: blocks that leave DRAM are written to the tier below.

use std::rc::Rc;

use terrace_slab::published_bytes;
use terrace_types::{Access, BlockIx};

use super::Shard;
use crate::below::Demoted;
use crate::events::EventKind;
use crate::index::{DEMOTING, ERASED};

impl Shard {
    /// Writes a block, which the policy has given up, to the tier below, and frees its slot
    /// unless somebody took an interest in it meanwhile.
    pub(super) async fn demote(self: &Rc<Self>, block: BlockIx) {
        let Some(below) = &self.below else { return };
        let (key, checksum, slot, len) = {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            let record = state.index.record_mut(block);
            let Some(slot) = record.slot() else { return };
            record.flags |= DEMOTING;
            // A pin of the write's own, not counted against callers' bound.
            record.pins += 1;
            state.pinned_bytes += state.pool.slot_len(slot);
            let record = state.index.record(block);
            (
                Box::<[u8]>::from(state.index.key_of(record)),
                record.checksum(),
                slot,
                record.len,
            )
        };
        let payload = published_bytes(&self.shared, slot, len);
        let stored = below
            .store(Demoted {
                block,
                key: &key,
                checksum,
                payload,
            })
            .await;
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.index.record_mut(block).flags &= !DEMOTING;
        let mut keep = false;
        match stored {
            Ok(stored) => {
                state.counters.demotions += 1;
                state.counters.demoted_bytes += u64::from(len);
                for (gone, location) in stored.gone {
                    state.forget_below(gone, location);
                }
                if state.index.record(block).is(ERASED) {
                    below.forget(stored.location);
                } else {
                    state
                        .index
                        .record_mut(block)
                        .set_below(Some(stored.location));
                    keep = state.index.record(block).pins > 1;
                }
            }
            Err(error) => {
                state.counters.demotions_failed += 1;
                tracing::warn!(shard = self.number, %error, "a block could not be written below");
            }
        }
        if !state.index.record(block).is(ERASED) {
            if keep || state.index.record(block).pins > 1 {
                // Read again while on its way: it stays up, its copy below stays too.
                let id = state.index.record(block).hash();
                state.policy.on_insert(
                    block,
                    &Access {
                        len,
                        ..Access::plain(id)
                    },
                );
                state.unpin(block);
            } else {
                state.unpin(block);
                state.evict(block, self.number, Some(&**below));
            }
        } else {
            state.unpin(block);
        }
        while let Some(pending) = state.policy.take_pending() {
            state.evict(pending, self.number, Some(&**below));
        }
        state.wake_waiting();
    }

    /// Starts the task that keeps some of DRAM free, when too little is.
    pub(super) fn start_demoter(self: &Rc<Self>) {
        if self.below.is_none() || !self.is_low() {
            return;
        }
        if std::mem::replace(&mut self.state.borrow_mut().demoter_runs, true) {
            return;
        }
        let shard = Rc::clone(self);
        self.spawn(Box::pin(async move {
            while shard.unavailable().is_none() && shard.is_below_high() {
                let victim = {
                    let mut state = shard.state.borrow_mut();
                    let state = &mut *state;
                    let index = &state.index;
                    state
                        .policy
                        .victim(&mut |block| index.record(block).pins == 0)
                };
                let Some(victim) = victim else { break };
                let clean = shard.state.borrow().index.record(victim).below().is_some();
                if clean {
                    let below = shard.below.as_deref();
                    shard.state.borrow_mut().evict(victim, shard.number, below);
                } else {
                    shard.demote(victim).await;
                }
                shard.runtime.yield_now().await;
            }
            shard.state.borrow_mut().demoter_runs = false;
        }));
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a share of memory needs no last bit"
    )]
    fn free_ratio(&self) -> f64 {
        let state = self.state.borrow();
        let by_bytes = {
            let stats = state.pool.stats();
            1.0 - stats.slot_bytes as f64 / stats.arena_bytes as f64
        };
        if state.blocks_cap == usize::MAX {
            return by_bytes;
        }
        let by_blocks =
            1.0 - (state.dram_blocks + state.writers.len()) as f64 / state.blocks_cap as f64;
        by_bytes.min(by_blocks)
    }

    fn is_low(&self) -> bool {
        self.free_ratio() < self.config.free_ratio_low
    }

    fn is_below_high(&self) -> bool {
        self.free_ratio() < self.config.free_ratio_high
    }
}

impl super::State {
    /// The tier below gave a block up by itself.
    fn forget_below(&mut self, block: BlockIx, location: u32) {
        let record = self.index.record_mut(block);
        if record.is(ERASED) || record.below() != Some(location) {
            return;
        }
        record.set_below(None);
        self.counters.below_evictions += 1;
        if self.index.record(block).slot().is_none() {
            self.counters.evictions += 1;
            self.emit(0, EventKind::Evicted, block);
            self.erase(block, None);
        }
    }
}
