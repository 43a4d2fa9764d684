//! What is remembered of blocks that are gone: by the reference's exact ghosts, by compact ones, or
//! by milestones of their chains.

use bytemuck::Zeroable;
use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::KeyHash;

use super::super::ghost::Ghosts;
use super::compact::{CHILD_MASK, Compact, is_end};
use super::facts::Facts;
use super::groups::{GroupIx, Groups};
use super::index::Index;
use super::milestones::Milestones;

/// Exact ghosts for each block of the capacity.
const EXACT_PER_BLOCK: u32 = 4;

/// See the module's text. A ghost counts in the group that its facts name.
pub(super) enum History {
    /// Every id, in the order of leaving; a block counts for itself alone.
    Exact {
        ghosts: Ghosts,
        /// By ghost number.
        facts: HugeVec<Facts>,
    },
    /// Few bits of each id, and ends of chains for longer than what is before them.
    Compact(Compact),
    /// What stands for the blocks of chains, resident or gone, of all shards.
    Milestones(Milestones),
}

impl History {
    /// A history as long as the reference has it.
    pub(super) fn exact(blocks_max: u32, blocks: usize) -> Result<Self, HugeVecError> {
        let ghosts_max = EXACT_PER_BLOCK * blocks_max;
        Ok(Self::Exact {
            ghosts: Ghosts::bounded(ghosts_max, exact_for(blocks))?,
            facts: HugeVec::with_capacity(ghosts_max as usize + 1)?,
        })
    }

    /// Most ghosts that an exact history for so many blocks has.
    pub(super) const fn exact_max(blocks_max: u32) -> usize {
        exact_for(blocks_max as usize)
    }

    /// A compact history.
    pub(super) fn compact(blocks_max: u32, blocks: usize) -> Result<Self, HugeVecError> {
        Compact::new(blocks_max, blocks).map(Self::Compact)
    }

    /// Milestones of chains.
    pub(super) fn milestones(blocks_max: u32, blocks: usize) -> Result<Self, HugeVecError> {
        Milestones::new(blocks_max, blocks).map(Self::Milestones)
    }

    /// Which bits of a child are remembered.
    pub(super) const fn child_mask(&self) -> u16 {
        match self {
            Self::Exact { .. } => u16::MAX,
            Self::Compact(_) | Self::Milestones(_) => CHILD_MASK,
        }
    }

    /// Whether a ghost tells of the blocks before it, too.
    pub(super) const fn stands_for_chain(&self) -> bool {
        matches!(self, Self::Compact(_))
    }

    /// The shard holds `blocks` blocks now.
    pub(super) fn set_blocks(&mut self, blocks: usize, groups: &mut Groups) {
        match self {
            Self::Exact { ghosts, facts } => {
                while ghosts.len() > exact_for(blocks) {
                    let oldest = ghosts.forget_oldest();
                    forget_exact(oldest.map(|ghost| facts[ghost.0 as usize]), groups);
                }
                ghosts.set_count_max(exact_for(blocks));
            }
            Self::Compact(ghosts) => ghosts.set_blocks(blocks, groups),
            Self::Milestones(milestones) => milestones.set_blocks(blocks, groups),
        }
    }

    /// Brings what is remembered of `id` near, for a lookup soon.
    pub(super) fn prefetch(&self, id: KeyHash) {
        if let Self::Compact(ghosts) = self {
            ghosts.prefetch(id);
        }
    }

    /// What is remembered of `id`.
    pub(super) fn get(&self, id: KeyHash) -> Option<Facts> {
        match self {
            Self::Exact { ghosts, facts } => ghosts.find(id).map(|ghost| facts[ghost.0 as usize]),
            Self::Compact(ghosts) => ghosts.get(id),
            Self::Milestones(milestones) => milestones.get(id).map(|it| it.facts),
        }
    }

    /// Forgets `id`, because the block is used: what was remembered. The block counts in its group
    /// still; those it stood for are used with it and leave.
    pub(super) fn take(
        &mut self,
        id: KeyHash,
        groups: &mut Groups,
        index: &mut Index,
    ) -> Option<Facts> {
        match self {
            Self::Exact { ghosts, facts } => ghosts.forget(id).map(|ghost| facts[ghost.0 as usize]),
            Self::Compact(ghosts) => {
                let facts = ghosts.take(id)?;
                if is_end(facts) {
                    let share = groups.forget_end(facts.group);
                    let (category, bin) = (groups.category(facts.group), groups.bin(facts.group));
                    index.use_again(category, bin, share);
                }
                Some(facts)
            }
            // They are taken when a chain is settled.
            Self::Milestones(_) => None,
        }
    }

    /// A block is gone, for which `facts` count in a group.
    pub(super) fn remember(
        &mut self,
        id: KeyHash,
        facts_of_id: Facts,
        now_ms: u64,
        groups: &mut Groups,
        index: &mut Index,
    ) {
        // Two keys with one hash may both leave.
        if let Some(same) = self.take(id, groups, index) {
            groups.leave(same.group);
        }
        match self {
            Self::Exact { ghosts, facts } => {
                if ghosts.is_full() {
                    let oldest = ghosts.forget_oldest();
                    forget_exact(oldest.map(|ghost| facts[ghost.0 as usize]), groups);
                }
                match ghosts.remember(id) {
                    Some(ghost) => {
                        facts.grow_to(ghost.0 as usize + 1);
                        facts[ghost.0 as usize] = facts_of_id;
                    }
                    None => forget_exact(Some(facts_of_id), groups),
                }
            }
            Self::Compact(ghosts) => ghosts.remember(id, facts_of_id, now_ms, groups, index),
            Self::Milestones(milestones) => {
                milestones.remember_by_itself(id, facts_of_id, now_ms, groups);
            }
        }
    }

    /// Count of ghosts.
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Exact { ghosts, .. } => ghosts.len(),
            Self::Compact(ghosts) => ghosts.len(),
            Self::Milestones(milestones) => milestones.len(),
        }
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Exact { ghosts, facts } => ghosts.bytes() + facts.bytes(),
            Self::Compact(ghosts) => ghosts.bytes(),
            Self::Milestones(milestones) => milestones.bytes(),
        }
    }

    /// The groups that ghosts name; panics when an invariant is broken. For tests.
    pub(super) fn check(&self) -> Vec<GroupIx> {
        match self {
            Self::Exact { ghosts, facts } => {
                ghosts.check();
                ghosts.numbers().map(|ghost| facts[ghost].group).collect()
            }
            Self::Compact(ghosts) => ghosts.check().collect(),
            Self::Milestones(milestones) => milestones.check(),
        }
    }
}

const fn exact_for(blocks: usize) -> usize {
    blocks.saturating_mul(EXACT_PER_BLOCK as usize)
}

fn forget_exact(facts: Option<Facts>, groups: &mut Groups) {
    let group = facts.unwrap_or(Facts::zeroed()).group;
    if group != 0 {
        groups.leave(group);
    }
}
