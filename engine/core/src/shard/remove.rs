//! Removal: one block, or a namespace at once with its records swept afterwards.

use std::rc::Rc;

use terrace_nvme::IoBuffer;
use terrace_nvme::format::{EntryKind, Sequence};
use terrace_nvme::tier::{NvmeTier, Record, TierError};
use terrace_types::{
    BlockIx, BlockKey, Checksum, Hint, Lookup, Namespace, NamespaceName, Tier, UnavailableReason,
};

use super::{Shard, State};
use crate::events::EventKind;
use crate::index::DEMOTING;

/// A removal that has to survive a crash.
pub(crate) struct Tombstone {
    namespace: NamespaceName,
    /// `None` when the whole namespace was removed.
    key: Option<Box<[u8]>>,
    /// Drawn when the key was taken out: what is stored later has a higher one.
    sequence: Sequence,
}

/// Record numbers a sweep looks at before it lets other tasks run.
const SWEEP_STEP: u32 = 1024;

impl Shard {
    /// Removes a block from every tier. Pins and leases that are out stay readable. When a
    /// device may hold the block, the removal survives a crash once this returns.
    pub async fn remove(self: &Rc<Self>, key: &BlockKey) -> Lookup<()> {
        let (found, tombstone) = self.take_key_out(key);
        match tombstone {
            None => found,
            Some(tombstone) => self.buried(found, tombstone).await,
        }
    }

    /// `found`, once the removal it speaks of survives a crash.
    pub(crate) async fn buried(
        self: &Rc<Self>,
        found: Lookup<()>,
        tombstone: Tombstone,
    ) -> Lookup<()> {
        match self.bury(tombstone).await {
            Ok(()) => found,
            Err(_) => Lookup::Unavailable(UnavailableReason::TierFailed),
        }
    }

    /// Takes a key out at once; what is returned beside the outcome has to be buried.
    pub(crate) fn take_key_out(&self, key: &BlockKey) -> (Lookup<()>, Option<Tombstone>) {
        if let Some(reason) = self.refusal(key) {
            return (Lookup::Unavailable(reason), None);
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let found = state
            .epochs
            .of(key.namespace())
            .and_then(|ns| state.index.find(key, ns));
        let Some(block) = found else {
            return (Lookup::Miss, self.tombstone_of_unknown(state, key));
        };
        let tombstone = state.tombstone_of(self, block);
        let in_dram = state.index.record(block).slot().is_some();
        state.take_out(block, self.number, self.tier.as_deref());
        state.counters.removals += 1;
        state.wake_waiting();
        let tier = if in_dram { Tier::Dram } else { Tier::Nvme };
        (Lookup::Hit { tier, value: () }, tombstone)
    }

    /// A key that is not in the index may still be on a device that is away.
    fn tombstone_of_unknown(&self, state: &mut State, key: &BlockKey) -> Option<Tombstone> {
        let tier = self.tier.as_ref().filter(|tier| tier.always_tombstone())?;
        Some(Tombstone {
            namespace: state.epochs.name_of(key.namespace(), &self.registry)?,
            key: Some(Box::from(key.bytes())),
            sequence: tier.draw_sequence(),
        })
    }

    /// Writes a tombstone and waits until it is durable.
    //= docs/on-disk-format.md#OD-10
    pub(crate) async fn bury(self: &Rc<Self>, tombstone: Tombstone) -> Result<(), TierError> {
        let Some(tier) = &self.tier else {
            return Ok(());
        };
        let record = Record {
            kind: match tombstone.key {
                Some(_) => EntryKind::Tombstone,
                None => EntryKind::NamespaceTombstone,
            },
            namespace: tombstone.namespace.as_str(),
            key: tombstone.key.as_deref().unwrap_or_default(),
            checksum: Checksum::default(),
            len: 0,
            hint: Hint::default(),
            sequence: Some(tombstone.sequence),
            from: None,
        };
        loop {
            if let Ok(placed) = tier.try_place(&record, IoBuffer::None) {
                self.start_reclaim();
                return tier.durable(placed.ticket).await;
            }
            self.start_reclaim();
            let deadline = self.runtime.now() + self.config.nvme.io_deadline;
            tier.room(0, None, deadline).await?;
        }
    }

    /// Removes all blocks of a namespace. From the return on no lookup finds one of them;
    /// their memory comes back in steps. The value is the count of blocks removed.
    ///
    /// # Errors
    /// [`UnavailableReason::TierFailed`] when the removal could not be made to survive a crash.
    pub async fn remove_namespace(
        self: &Rc<Self>,
        namespace: Namespace,
    ) -> Result<u64, UnavailableReason> {
        let (count, tombstone) = self.end_namespace(namespace)?;
        if let Some(tombstone) = tombstone {
            let buried = self.bury(tombstone).await;
            buried.map_err(|_| UnavailableReason::TierFailed)?;
        }
        Ok(count)
    }

    fn end_namespace(
        self: &Rc<Self>,
        namespace: Namespace,
    ) -> Result<(u64, Option<Tombstone>), UnavailableReason> {
        if let Some(reason) = self.unavailable() {
            return Err(reason);
        }
        if namespace.engine() != self.engine {
            return Err(UnavailableReason::ForeignNamespace);
        }
        let mut state = self.state.borrow_mut();
        let name = state.epochs.name_of(namespace, &self.registry);
        let ended = state.epochs.end(namespace);
        let held = self.tier.as_ref();
        let held = held.filter(|tier| ended.is_some() || tier.always_tombstone());
        let tombstone = held.zip(name).map(|(tier, namespace)| Tombstone {
            namespace,
            key: None,
            sequence: tier.draw_sequence(),
        });
        let Some(epoch) = ended else {
            return Ok((0, tombstone));
        };
        let count = u64::from(state.epochs.count(epoch));
        state.counters.removals += count;
        let runs = std::mem::replace(&mut state.sweeper_runs, true);
        drop(state);
        if !runs {
            let shard = Rc::clone(self);
            self.spawn(Box::pin(async move { shard.sweep().await }));
        }
        Ok((count, tombstone))
    }

    /// Frees the records of namespaces that were removed, a step at a time.
    async fn sweep(&self) {
        loop {
            let mut from = 0;
            while from < self.state.borrow().index.numbers() && !self.fenced.get() {
                self.sweep_step(from);
                from += SWEEP_STEP;
                self.runtime.yield_now().await;
            }
            // Epochs that ended during this pass may have records behind it.
            let mut state = self.state.borrow_mut();
            if state.epochs.finish_swept() || self.fenced.get() {
                state.sweeper_runs = false;
                return;
            }
        }
    }

    fn sweep_step(&self, from: u32) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let dead: Vec<BlockIx> = state
            .index
            .scan(from, SWEEP_STEP)
            .filter(|(_, record)| state.epochs.is_ended(record.namespace()))
            .map(|(block, _)| block)
            .collect();
        for block in dead {
            state.take_out(block, self.number, self.tier.as_deref());
        }
        state.wake_waiting();
    }
}

impl State {
    /// The tombstone that the removal of a block needs: one when a device may hold a record.
    pub(super) fn tombstone_of(&mut self, shard: &Shard, block: BlockIx) -> Option<Tombstone> {
        let tier = shard.tier.as_ref()?;
        let record = self.index.record(block);
        if record.below().is_none() && !tier.always_tombstone() {
            return None;
        }
        let namespace = self.epochs.namespace_of(record.namespace());
        let name = self.epochs.name_of(namespace, &shard.registry)?;
        Some(Tombstone {
            namespace: name,
            key: Some(Box::from(self.index.key_of(self.index.record(block)))),
            sequence: tier.draw_sequence(),
        })
    }

    /// Takes a block out of policy, index and all tiers.
    fn take_out(&mut self, block: BlockIx, shard: usize, tier: Option<&NvmeTier>) {
        let record = self.index.record(block);
        if record.slot().is_some() && !record.is(DEMOTING) {
            self.policy.on_remove(block);
        }
        self.emit(shard, EventKind::Removed, block);
        self.erase(block, tier);
    }
}
