//! Removal: one block, or a namespace at once with its records swept afterwards.

use std::collections::HashMap;
use std::rc::Rc;

use terrace_nvme::IoBuffer;
use terrace_nvme::format::{EntryKind, Origin, Sequence};
use terrace_nvme::tier::{NvmeTier, Record, TierError};
use terrace_types::{
    BlockIx, BlockKey, Checksum, Hint, KeyHash, Lookup, Namespace, NamespaceName, Tier,
    UnavailableReason,
};

use super::{Shard, State};
use crate::events::EventKind;
use crate::index::{DEMOTING, PASSING};

/// A removal that has to survive a crash.
pub(crate) struct Tombstone {
    pub(super) namespace: NamespaceName,
    /// `None` when the whole namespace was removed.
    pub(super) key: Option<Box<[u8]>>,
    /// Drawn when the key was taken out: what is stored later has a higher one.
    pub(super) sequence: Sequence,
}

/// Keys of which a device may hold a record though the index does not point to it: a write
/// failed or its removal is not durable yet. Their removal leaves a tombstone all the same.
///
/// What was lost track of has a sequence below the one that is noted.
#[derive(Default)]
pub(super) struct Strays {
    keys: HashMap<KeyHash, Sequence>,
    /// By namespace number.
    namespaces: HashMap<u16, Sequence>,
}

impl Strays {
    fn may_hold(&self, namespace: Namespace, hash: KeyHash) -> bool {
        if self.keys.is_empty() && self.namespaces.is_empty() {
            return false;
        }
        self.keys.contains_key(&hash) || self.namespaces.contains_key(&namespace.index())
    }

    fn may_hold_any(&self, namespace: Namespace) -> bool {
        !self.keys.is_empty() || self.namespaces.contains_key(&namespace.index())
    }

    pub(super) fn note(&mut self, hash: KeyHash, sequence: Sequence) {
        let known = self.keys.entry(hash).or_insert(sequence);
        *known = (*known).max(sequence);
    }

    pub(super) fn note_all(&mut self, namespace: Namespace, sequence: Sequence) {
        let known = self.namespaces.entry(namespace.index()).or_insert(sequence);
        *known = (*known).max(sequence);
    }

    fn end(&mut self, hash: KeyHash, tombstone: Sequence) {
        if self
            .keys
            .get(&hash)
            .is_some_and(|known| *known <= tombstone)
        {
            self.keys.remove(&hash);
        }
    }

    fn end_all(&mut self, namespace: Namespace, tombstone: Sequence) {
        let number = namespace.index();
        let known = self.namespaces.get(&number);
        if known.is_some_and(|known| *known <= tombstone) {
            self.namespaces.remove(&number);
        }
    }
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
        let stray = state.strays.may_hold(key.namespace(), key.hash());
        let tier = self.tier.as_ref();
        let tier = tier.filter(|tier| stray || tier.always_tombstone())?;
        let sequence = tier.draw_sequence();
        state.strays.note(key.hash(), sequence);
        Some(Tombstone {
            namespace: state.epochs.name_of(key.namespace(), &self.registry)?,
            key: Some(Box::from(key.bytes())),
            sequence,
        })
    }

    /// Writes a tombstone and waits until it is durable.
    //= docs/on-disk-format.md#OD-10
    pub(crate) async fn bury(self: &Rc<Self>, tombstone: Tombstone) -> Result<(), TierError> {
        let Some(tier) = &self.tier else {
            return Ok(());
        };
        let origin = Origin {
            shard: self.number as u32,
            shards: self.config.shards as u32,
        };
        let origin = origin.encode();
        let record = Record {
            kind: match tombstone.key {
                Some(_) => EntryKind::Tombstone,
                None => EntryKind::NamespaceTombstone,
            },
            namespace: tombstone.namespace.as_str(),
            key: tombstone.key.as_deref().unwrap_or(&origin),
            checksum: Checksum::default(),
            len: 0,
            hint: Hint::default(),
            sequence: Some(tombstone.sequence),
            from: None,
        };
        loop {
            if let Ok(placed) = tier.try_place(&record, IoBuffer::None) {
                self.start_reclaim();
                tier.durable(placed.ticket).await?;
                self.end_stray(&tombstone);
                return Ok(());
            }
            self.start_reclaim();
            let deadline = self.runtime.now() + self.config.nvme.io_deadline;
            tier.room(0, None, deadline).await?;
        }
    }

    /// Writes a tombstone that nobody waits for.
    pub(super) fn bury_soon(self: &Rc<Self>, tombstone: Option<Tombstone>) {
        let Some(tombstone) = tombstone else { return };
        let shard = Rc::clone(self);
        self.spawn(Box::pin(async move {
            let _ = shard.bury(tombstone).await;
        }));
    }

    /// A durable tombstone hides every record that was lost track of before it.
    fn end_stray(&self, tombstone: &Tombstone) {
        let Ok(namespace) = self.registry.get(tombstone.namespace.as_str()) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        match tombstone.key.as_deref().map(|key| namespace.key(key)) {
            None => state.strays.end_all(namespace, tombstone.sequence),
            Some(Ok(key)) => state.strays.end(key.hash(), tombstone.sequence),
            Some(Err(_)) => {}
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
        let stray = state.strays.may_hold_any(namespace);
        let held = held.filter(|tier| ended.is_some() || stray || tier.always_tombstone());
        let tombstone = held.zip(name).map(|(tier, namespace)| Tombstone {
            namespace,
            key: None,
            sequence: tier.draw_sequence(),
        });
        if let Some(tombstone) = &tombstone {
            state.strays.note_all(namespace, tombstone.sequence);
        }
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
        let (hash, below) = (record.hash(), record.below());
        let namespace = self.epochs.namespace_of(record.namespace());
        let stray = self.strays.may_hold(namespace, hash);
        if below.is_none() && !stray && !tier.always_tombstone() {
            return None;
        }
        let name = self.epochs.name_of(namespace, &shard.registry)?;
        let sequence = tier.draw_sequence();
        self.strays.note(hash, sequence);
        Some(Tombstone {
            namespace: name,
            key: Some(Box::from(self.index.key_of(self.index.record(block)))),
            sequence,
        })
    }

    /// Takes a block out of policy, index and all tiers.
    fn take_out(&mut self, block: BlockIx, shard: usize, tier: Option<&NvmeTier>) {
        self.policy_forgets(block);
        self.emit(shard, EventKind::Removed, block);
        self.erase(block, tier);
    }

    /// Has the policy forget a block, if it knows it.
    pub(super) fn policy_forgets(&mut self, block: BlockIx) {
        let record = self.index.record(block);
        if record.slot().is_some() && !record.is(DEMOTING | PASSING) {
            self.policy.on_remove(block);
        }
    }
}
