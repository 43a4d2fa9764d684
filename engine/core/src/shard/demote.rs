//! The way down: blocks that leave DRAM are written to the tier below.

use std::rc::Rc;

use terrace_slab::{SlotIx, published_bytes};
use terrace_types::{Access, BlockIx, Checksum};

use super::Shard;
use crate::below::{Demoted, StoredBelow, TierBelow, TierError};
use crate::events::EventKind;
use crate::index::{DEMOTING, ERASED};

/// A block on its way down.
pub(super) struct Leaving {
    block: BlockIx,
    key: Box<[u8]>,
    checksum: Checksum,
    slot: SlotIx,
    len: u32,
}

impl Shard {
    /// Writes blocks, marked as on their way down, to the tier below, and frees their slots
    /// unless somebody took an interest in them meanwhile.
    pub(super) async fn demote(self: &Rc<Self>, leaving: Vec<Leaving>) {
        let Some(below) = &self.below else { return };
        for Leaving {
            block,
            key,
            checksum,
            slot,
            len,
        } in leaving
        {
            let payload = published_bytes(&self.shared, slot, len);
            let stored = below
                .store(Demoted {
                    block,
                    key: &key,
                    checksum,
                    payload,
                })
                .await;
            if let Err(error) = &stored {
                tracing::warn!(shard = self.number, %error, "a block could not be written below");
            }
            self.state
                .borrow_mut()
                .end_demotion(block, stored, self.number, &**below);
        }
    }

    /// Starts the task that keeps some of DRAM free, when too little is.
    pub(super) fn start_demoter(self: &Rc<Self>) {
        if self.below.is_none() || self.fill_ratio() <= self.config.fill_ratio_high {
            return;
        }
        if std::mem::replace(&mut self.state.borrow_mut().demoter_runs, true) {
            return;
        }
        let shard = Rc::clone(self);
        self.spawn(Box::pin(async move {
            while shard.unavailable().is_none() && shard.fill_ratio() > shard.config.fill_ratio_low
            {
                let leaving = {
                    let mut state = shard.state.borrow_mut();
                    let below = shard.below.as_deref();
                    state
                        .victim_of(None)
                        .map(|victim| state.let_go(victim, shard.number, below))
                };
                let Some(leaving) = leaving else { break };
                shard.demote(leaving).await;
                shard.runtime.yield_now().await;
            }
            shard.state.borrow_mut().demoter_runs = false;
        }));
    }

    /// The fuller of bytes and blocks, from 0 to 1.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share of memory needs no last bit"
    )]
    fn fill_ratio(&self) -> f64 {
        let state = self.state.borrow();
        let stats = state.pool.stats();
        let by_bytes = stats.slot_bytes as f64 / stats.arena_bytes as f64;
        let blocks = state.dram_blocks + state.writers.len();
        by_bytes.max(blocks as f64 / state.blocks_cap as f64)
    }
}

impl super::State {
    /// Gives up a victim of the policy and whatever else it gave up with it. Blocks that have
    /// to be written below first are marked and returned; the rest leave DRAM here.
    pub(super) fn let_go(
        &mut self,
        victim: BlockIx,
        shard: usize,
        below: Option<&dyn TierBelow>,
    ) -> Vec<Leaving> {
        let mut leaving = Vec::new();
        let mut next = Some(victim);
        while let Some(block) = next {
            if below.is_some() && self.index.record(block).below().is_none() {
                leaving.extend(self.begin_demotion(block));
            } else {
                self.give_up(block, shard, below);
            }
            next = self.policy.take_pending();
        }
        leaving
    }

    /// Marks a block as on its way down, held by a pin of the write's own.
    fn begin_demotion(&mut self, block: BlockIx) -> Option<Leaving> {
        let record = self.index.record_mut(block);
        let slot = record.slot()?;
        record.flags |= DEMOTING;
        // The policy picked a block without pins, so this is the first.
        record.pins += 1;
        self.pinned_bytes += record.pinned_len();
        let record = self.index.record(block);
        let key = Box::from(self.index.key_of(record));
        Some(Leaving {
            block,
            key,
            checksum: record.checksum(),
            slot,
            len: record.len,
        })
    }

    /// Takes in what the write came to: the block leaves DRAM, stays for a reader that came
    /// meanwhile, or is gone because its key was removed.
    fn end_demotion(
        &mut self,
        block: BlockIx,
        stored: Result<StoredBelow, TierError>,
        shard: usize,
        below: &dyn TierBelow,
    ) {
        let record = self.index.record_mut(block);
        record.flags &= !DEMOTING;
        let (erased, len, id) = (record.is(ERASED), record.len, record.hash());
        let read_meanwhile = record.pins > 1;
        match stored {
            Ok(StoredBelow { location, gone }) => {
                self.counters.demotions += 1;
                self.counters.demoted_bytes += u64::from(len);
                for (gone, at) in gone {
                    self.forget_below(gone, at, shard);
                }
                if erased {
                    below.forget(location);
                } else {
                    self.index.record_mut(block).set_below(Some(location));
                }
            }
            Err(_) => self.counters.demotions_failed += 1,
        }
        if !erased && read_meanwhile {
            self.policy.on_insert(
                block,
                &Access {
                    len,
                    ..Access::plain(id)
                },
            );
        }
        self.unpin(block);
        if !erased && !read_meanwhile {
            self.give_up(block, shard, Some(below));
        }
        self.wake_waiting();
    }

    /// The tier below gave a block up by itself.
    fn forget_below(&mut self, block: BlockIx, location: u32, shard: usize) {
        let record = self.index.record_mut(block);
        if record.is(ERASED) || record.below() != Some(location) {
            return;
        }
        record.set_below(None);
        self.counters.below_evictions += 1;
        if self.index.record(block).slot().is_none() {
            self.counters.evictions += 1;
            self.emit(shard, EventKind::Evicted, block);
            self.erase(block, None);
        }
    }
}
