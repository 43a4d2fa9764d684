//! The blocks of a workload as chains: which comes before which.

use crate::error::SimError;
use crate::workload::Workload;

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// Parent and depth of each block.
pub(super) struct Forest {
    parents: Vec<u32>,
    depths: Vec<u32>,
}

impl Forest {
    /// Reads the chains of a workload.
    ///
    /// # Errors
    /// [`SimError::NotChains`] when a request is no chain, or a block has two places in chains.
    pub(super) fn of(workload: &Workload) -> Result<Self, SimError> {
        let unique = workload.unique_blocks();
        let (mut parents, mut depths) = (vec![NONE; unique], vec![NONE; unique]);
        for request in workload.requests() {
            let mut parent = NONE;
            for (depth, &block) in (0_u32..).zip(request.blocks) {
                let at = block as usize;
                if depths[at] == NONE {
                    (parents[at], depths[at]) = (parent, depth);
                }
                // With these two told once, no chain meets itself.
                if !request.is_chain || (parents[at], depths[at]) != (parent, depth) {
                    return Err(SimError::NotChains {
                        name: workload.name().to_owned(),
                    });
                }
                parent = block;
            }
        }
        Ok(Self { parents, depths })
    }

    /// The block before this one in its chain.
    pub(super) fn parent(&self, block: u32) -> Option<u32> {
        let parent = self.parents[block as usize];
        (parent != NONE).then_some(parent)
    }

    /// Count of blocks before this one in its chain.
    pub(super) fn depth(&self, block: u32) -> u32 {
        self.depths[block as usize]
    }
}
