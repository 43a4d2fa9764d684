//! The reference's history: exact ghosts of blocks that are gone, four for each block.

use bytemuck::Zeroable;
use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::KeyHash;

use super::super::ghost::Ghosts;
use super::facts::Facts;
use super::groups::{GroupIx, Groups};

/// Exact ghosts for each block of the capacity.
const PER_BLOCK: u32 = 4;

/// Every id, in the order of leaving. A ghost counts in the group that its facts name.
pub(super) struct History {
    ghosts: Ghosts,
    /// By ghost number.
    facts: HugeVec<Facts>,
}

impl History {
    /// A history as long as the reference has it.
    pub(super) fn new(blocks_max: u32, blocks: usize) -> Result<Self, HugeVecError> {
        let ghosts_max = PER_BLOCK * blocks_max;
        Ok(Self {
            ghosts: Ghosts::bounded(ghosts_max, ghosts_for(blocks))?,
            facts: HugeVec::with_capacity(ghosts_max as usize + 1)?,
        })
    }

    /// Most ghosts that a history for so many blocks has.
    pub(super) const fn len_max(blocks_max: u32) -> usize {
        ghosts_for(blocks_max as usize)
    }

    /// The shard holds `blocks` blocks now.
    pub(super) fn set_blocks(&mut self, blocks: usize, groups: &mut Groups) {
        while self.ghosts.len() > ghosts_for(blocks) {
            let oldest = self.ghosts.forget_oldest();
            forget(oldest.map(|ghost| self.facts[ghost.0 as usize]), groups);
        }
        self.ghosts.set_count_max(ghosts_for(blocks));
    }

    /// What is remembered of `id`.
    pub(super) fn get(&self, id: KeyHash) -> Option<Facts> {
        let ghost = self.ghosts.find(id)?;
        Some(self.facts[ghost.0 as usize])
    }

    /// Forgets `id`, because the block is used: what was remembered. The block counts in its group
    /// still.
    pub(super) fn take(&mut self, id: KeyHash) -> Option<Facts> {
        let ghost = self.ghosts.forget(id)?;
        Some(self.facts[ghost.0 as usize])
    }

    /// A block is gone, for which `facts` count in a group.
    pub(super) fn remember(&mut self, id: KeyHash, facts: Facts, groups: &mut Groups) {
        // Two keys with one hash may both leave.
        forget(self.take(id), groups);
        if self.ghosts.is_full() {
            let oldest = self.ghosts.forget_oldest();
            forget(oldest.map(|ghost| self.facts[ghost.0 as usize]), groups);
        }
        match self.ghosts.remember(id) {
            Some(ghost) => {
                self.facts.grow_to(ghost.0 as usize + 1);
                self.facts[ghost.0 as usize] = facts;
            }
            None => forget(Some(facts), groups),
        }
    }

    /// Count of ghosts.
    pub(super) const fn len(&self) -> usize {
        self.ghosts.len()
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        self.ghosts.bytes() + self.facts.bytes()
    }

    /// The groups that ghosts name; panics when an invariant is broken. For tests.
    pub(super) fn check(&self) -> impl Iterator<Item = GroupIx> {
        self.ghosts.check();
        let numbers = self.ghosts.numbers();
        numbers.map(|ghost| self.facts[ghost].group)
    }
}

const fn ghosts_for(blocks: usize) -> usize {
    blocks.saturating_mul(PER_BLOCK as usize)
}

fn forget(facts: Option<Facts>, groups: &mut Groups) {
    let group = facts.unwrap_or(Facts::zeroed()).group;
    if group != 0 {
        groups.leave(group, 1);
    }
}
