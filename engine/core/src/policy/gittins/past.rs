//! What is remembered beside resident blocks, by form.

use terrace_types::KeyHash;

use super::groups::{GroupIx, Groups};
use super::history::History;
use super::milestones::Milestones;

/// See the module's text.
pub(super) enum Past {
    /// Of P-GIT: every block that is gone.
    Exact(History),
    /// Of the default: milestones of chains.
    Milestones(Milestones),
}

impl Past {
    /// The shard holds `blocks` blocks now.
    pub(super) fn set_blocks(&mut self, blocks: usize, groups: &mut Groups) {
        match self {
            Self::Exact(history) => history.set_blocks(blocks, groups),
            Self::Milestones(milestones) => milestones.set_blocks(blocks, groups),
        }
    }

    /// The group of a block that is remembered.
    pub(super) fn group_of(&self, id: KeyHash) -> Option<GroupIx> {
        match self {
            Self::Exact(history) => history.get(id).map(|facts| facts.group),
            Self::Milestones(milestones) => milestones.get(id).map(|it| it.facts.group),
        }
    }

    /// Count of ghosts that share groups with resident blocks.
    pub(super) const fn ghosts(&self) -> usize {
        match self {
            Self::Exact(history) => history.len(),
            Self::Milestones(_) => 0,
        }
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Exact(history) => history.bytes(),
            Self::Milestones(milestones) => milestones.bytes(),
        }
    }

    /// The groups that are named, and for how many blocks each; panics when an invariant is
    /// broken. For tests.
    pub(super) fn check(&self) -> Vec<(GroupIx, u32)> {
        match self {
            Self::Exact(history) => history.check().map(|group| (group, 1)).collect(),
            Self::Milestones(milestones) => milestones.check().collect(),
        }
    }
}
