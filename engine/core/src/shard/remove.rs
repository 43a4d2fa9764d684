//! Removal: one block, or a namespace at once with its records swept afterwards.

use std::rc::Rc;

use terrace_types::{BlockIx, BlockKey, Lookup, Namespace, Tier, UnavailableReason};

use super::{Shard, State};
use crate::below::TierBelow;
use crate::events::EventKind;
use crate::index::DEMOTING;

/// Record numbers a sweep looks at before it lets other tasks run.
const SWEEP_STEP: u32 = 1024;

impl Shard {
    /// Removes a block from every tier. Pins and leases that are out stay readable.
    pub fn remove(&self, key: &BlockKey) -> Lookup<()> {
        if let Some(reason) = self.refusal(key) {
            return Lookup::Unavailable(reason);
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let found = state
            .epochs
            .of(key.namespace())
            .and_then(|ns| state.index.find(key, ns));
        let Some(block) = found else {
            return Lookup::Miss;
        };
        let in_dram = state.index.record(block).slot().is_some();
        state.take_out(block, self.number, self.below.as_deref());
        state.counters.removals += 1;
        state.wake_waiting();
        Lookup::Hit {
            tier: if in_dram { Tier::Dram } else { Tier::Nvme },
            value: (),
        }
    }

    /// Removes all blocks of a namespace. From the return on no lookup finds one of them;
    /// their memory comes back in steps. The value is the count of blocks removed.
    pub fn remove_namespace(
        self: &Rc<Self>,
        namespace: Namespace,
    ) -> Result<u64, UnavailableReason> {
        if let Some(reason) = self.unavailable() {
            return Err(reason);
        }
        if namespace.engine() != self.engine {
            return Err(UnavailableReason::ForeignNamespace);
        }
        let mut state = self.state.borrow_mut();
        let Some(epoch) = state.epochs.end(namespace) else {
            return Ok(0);
        };
        let count = u64::from(state.epochs.count(epoch));
        state.counters.removals += count;
        let runs = std::mem::replace(&mut state.sweeper_runs, true);
        drop(state);
        if !runs {
            let shard = Rc::clone(self);
            self.spawn(Box::pin(async move { shard.sweep().await }));
        }
        Ok(count)
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
            state.take_out(block, self.number, self.below.as_deref());
        }
        state.wake_waiting();
    }
}

impl State {
    /// Takes a block out of policy, index and all tiers.
    fn take_out(&mut self, block: BlockIx, shard: usize, below: Option<&dyn TierBelow>) {
        let record = self.index.record(block);
        if record.slot().is_some() && !record.is(DEMOTING) {
            self.policy.on_remove(block);
        }
        self.emit(shard, EventKind::Removed, block);
        self.erase(block, below);
    }
}
