//! LIRS: blocks whose last two uses lie close together stay; the others share a hundredth.
//!
//! After Jiang and Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy
//! to Improve Buffer Cache Performance" (SIGMETRICS'02). A stack holds, in order of last use,
//! the near blocks (LIR), and those others (HIR, here far) that were used since the oldest near
//! block was, resident or not. A far block that is used while it is in the stack becomes near,
//! and the oldest near block becomes far. Far blocks that are resident stand in a queue, whose
//! oldest goes. The first blocks become near until these have their share, all but a hundredth.
//!
//! The history is the far blocks in the stack that are gone. The paper's has no bound but the
//! oldest near block; [`LirsHistory`] offers this, the exact form, and one of twice as many
//! ghosts as the shard holds blocks, the one that left first forgotten first. A ghost costs 32
//! to 36 bytes.
//!
//! Over a clean restart the near blocks and the queue are kept, each in their order. Lost are the
//! ghosts and which resident far blocks were in the stack: none is after it.
//!
//! **Invariants**
//! - The block at the stack's tail is near, or the stack is empty.
//! - Every near block is in the stack; every far one that is resident is in the queue and may be
//!   in the stack; every ghost is in the stack.
//! - There are never more near blocks than their share after a call.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use super::ghost::{Ghosts, UNBOUNDED};
use super::list::{Links, List, Search};
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a near block; others have 0. No other policy built in gives it.
const TAG_NEAR: u8 = 75;

/// State of a block that is not known.
const UNKNOWN: u8 = 0;
/// State of a block with a small distance between its last two uses.
const NEAR: u8 = 1;
/// State of any other resident block.
const FAR: u8 = 2;

/// What LIRS keeps of the blocks that are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LirsHistory {
    /// Twice as many as the shard is expected to hold blocks.
    Bounded,
    /// All that the paper keeps, up to 16 million.
    Unbounded,
}

/// A stack of blocks and ghosts, and a queue of the blocks that may go.
pub struct Lirs {
    history: LirsHistory,
    near_max: usize,
    /// Blocks and ghosts in order of last use. A ghost stands there under its number plus
    /// `ghosts_from`, which no block has.
    stack: List,
    stack_links: Links,
    ghosts_from: u32,
    queue: List,
    queue_links: Links,
    states: HugeVec<u8>,
    near_count: usize,
    /// The id under which each block would be remembered.
    ids: HugeVec<u64>,
    ghosts: Ghosts,
}

fn near_max(capacity_blocks: usize) -> usize {
    capacity_blocks.saturating_sub((capacity_blocks / 100).max(1))
}

impl Lirs {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(history: LirsHistory, config: PolicyConfig) -> Result<Self, PolicyError> {
        let (ghosts, ghosts_max) = match history {
            LirsHistory::Bounded => {
                let ghosts_max = config.blocks_max.saturating_mul(2);
                let count_max = config.capacity_blocks.saturating_mul(2);
                (Ghosts::bounded(ghosts_max, count_max)?, ghosts_max)
            }
            LirsHistory::Unbounded => (Ghosts::unbounded()?, UNBOUNDED),
        };
        Ok(Self {
            history,
            near_max: near_max(config.capacity_blocks),
            stack: List::EMPTY,
            stack_links: Links::new(config.blocks_max.saturating_add(ghosts_max))?,
            ghosts_from: config.blocks_max,
            queue: List::EMPTY,
            queue_links: Links::new(config.blocks_max)?,
            states: HugeVec::with_capacity(config.blocks_max as usize)?,
            near_count: 0,
            ids: HugeVec::with_capacity(config.blocks_max as usize)?,
            ghosts,
        })
    }

    const fn in_stack(&self, ghost: BlockIx) -> BlockIx {
        BlockIx(ghost.0 + self.ghosts_from)
    }

    /// Whether what stands in the stack is a near block.
    fn is_near(&self, block: BlockIx) -> bool {
        block.0 < self.ghosts_from && self.states[block.0 as usize] == NEAR
    }

    /// Takes in a block that is not known, at the top of the stack.
    fn enter(&mut self, block: BlockIx, id: KeyHash, state: u8) {
        let index = block.0 as usize;
        self.states.grow_to(index + 1);
        self.ids.grow_to(index + 1);
        assert_eq!(self.states[index], UNKNOWN, "{block:?} is already known");
        self.ids[index] = id.0;
        self.states[index] = state;
        if state == NEAR {
            self.near_count += 1;
        } else {
            self.queue_links.push_head(&mut self.queue, block);
        }
        // Without near blocks nothing would ever leave the stack.
        if self.near_count > 0 {
            self.stack_links.push_head(&mut self.stack, block);
        }
        self.settle();
    }

    /// Makes the oldest near blocks far until there are no more than their share, and takes what
    /// is older than the oldest near block out of the stack.
    fn settle(&mut self) {
        loop {
            match self.stack.tail() {
                Some(oldest) if self.is_near(oldest) => {
                    if self.near_count <= self.near_max {
                        return;
                    }
                    self.near_count -= 1;
                    self.states[oldest.0 as usize] = FAR;
                    self.stack_links.unlink(&mut self.stack, oldest);
                    self.queue_links.push_head(&mut self.queue, oldest);
                }
                Some(oldest) => {
                    self.stack_links.unlink(&mut self.stack, oldest);
                    if oldest.0 >= self.ghosts_from {
                        let ghost = BlockIx(oldest.0 - self.ghosts_from);
                        self.ghosts.forget_ghost(ghost);
                    }
                }
                None => return,
            }
        }
    }

    /// Forgets the ghost of `id`; whether there was one.
    fn take_ghost(&mut self, id: KeyHash) -> bool {
        let Some(ghost) = self.ghosts.forget(id) else {
            return false;
        };
        let ghost = self.in_stack(ghost);
        self.stack_links.unlink(&mut self.stack, ghost);
        true
    }

    /// Puts a ghost of `id` in the stack where `block` is.
    fn remember(&mut self, block: BlockIx, id: KeyHash) {
        // Two keys with one hash may both be resident and leave one after the other.
        self.take_ghost(id);
        if self.ghosts.is_full()
            && let Some(oldest) = self.ghosts.forget_oldest()
        {
            let oldest = self.in_stack(oldest);
            self.stack_links.unlink(&mut self.stack, oldest);
        }
        if let Some(ghost) = self.ghosts.remember(id) {
            let ghost = self.in_stack(ghost);
            self.stack_links.push_beside(&mut self.stack, ghost, block);
        }
    }

    /// Forgets a block that is near or far; leaves a ghost of a far one that is in the stack if
    /// it may.
    fn leave(&mut self, block: BlockIx, leaves_ghost: bool) {
        let state = std::mem::replace(&mut self.states[block.0 as usize], UNKNOWN);
        match state {
            NEAR => self.near_count -= 1,
            FAR => self.queue_links.unlink(&mut self.queue, block),
            _ => panic!("{block:?} is not known"),
        }
        if self.stack_links.is_linked(block) {
            if leaves_ghost && state == FAR {
                self.remember(block, KeyHash(self.ids[block.0 as usize]));
            }
            self.stack_links.unlink(&mut self.stack, block);
        }
        self.settle();
    }

    /// The oldest near block that the search accepts.
    fn find_near(&self, search: &mut Search<'_>) -> Option<BlockIx> {
        self.stack_links
            .oldest_first(&self.stack)
            .filter(|&block| self.is_near(block))
            .take(self.near_count)
            .find(|&block| search.accepts(block))
    }

    fn forget_ghosts(&mut self, count_max: usize) {
        while self.ghosts.len() > count_max
            && let Some(oldest) = self.ghosts.forget_oldest()
        {
            let oldest = self.in_stack(oldest);
            self.stack_links.unlink(&mut self.stack, oldest);
        }
    }
}

impl Policy for Lirs {
    fn name(&self) -> &'static str {
        match self.history {
            LirsHistory::Bounded => "LIRS-bounded",
            LirsHistory::Unbounded => "LIRS",
        }
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.near_max = near_max(blocks);
        if self.history == LirsHistory::Bounded {
            let count_max = blocks.saturating_mul(2);
            self.forget_ghosts(count_max);
            self.ghosts.set_count_max(count_max);
        }
        self.settle();
    }

    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        let is_in_stack = self.stack_links.is_linked(block);
        if is_in_stack {
            self.stack_links.move_to_head(&mut self.stack, block);
        }
        if !self.is_near(block) {
            if is_in_stack {
                self.queue_links.unlink(&mut self.queue, block);
                self.states[block.0 as usize] = NEAR;
                self.near_count += 1;
            } else {
                self.queue_links.move_to_head(&mut self.queue, block);
                if self.near_count > 0 {
                    self.stack_links.push_head(&mut self.stack, block);
                }
            }
        }
        self.settle();
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        let has_ghost = self.take_ghost(access.id);
        let is_near = has_ghost || self.near_count < self.near_max;
        self.enter(block, access.id, if is_near { NEAR } else { FAR });
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.leave(block, false);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let mut search = Search::new(evictable);
        let victim = self
            .queue_links
            .find_oldest(&self.queue, &mut search)
            .or_else(|| self.find_near(&mut search))?;
        self.leave(victim, true);
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        self.queue_links
            .oldest_first(&self.queue)
            .for_each(|block| visit(block, 0));
        self.stack_links
            .oldest_first(&self.stack)
            .filter(|&block| self.is_near(block))
            .for_each(|block| visit(block, TAG_NEAR));
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        if tag != TAG_NEAR {
            self.on_insert(block, access);
            return;
        }
        self.take_ghost(access.id);
        self.enter(block, access.id, NEAR);
    }

    fn len(&self) -> usize {
        self.near_count + self.queue.len()
    }

    fn bytes(&self) -> PolicyBytes {
        let of_ghosts = self.stack_links.bytes_from(self.ghosts_from);
        PolicyBytes {
            resident: self.stack_links.bytes() - of_ghosts
                + self.queue_links.bytes()
                + self.states.bytes()
                + self.ids.bytes(),
            ghosts: of_ghosts + self.ghosts.bytes(),
        }
    }

    fn check(&self) {
        self.queue_links.check(&[&self.queue]);
        self.stack_links.check(&[&self.stack]);
        self.ghosts.check();
        let tail_is_near = self.stack.tail().is_none_or(|block| self.is_near(block));
        assert!(tail_is_near, "the stack's tail is near");
        assert!(self.near_count <= self.near_max, "share of near blocks");
        let (mut near, mut ghosts) = (0, 0);
        for block in self.stack_links.oldest_first(&self.stack) {
            near += usize::from(self.is_near(block));
            ghosts += usize::from(block.0 >= self.ghosts_from);
        }
        assert_eq!(near, self.near_count, "near blocks in the stack");
        assert_eq!(ghosts, self.ghosts.len(), "ghosts in the stack");
        for block in self.queue_links.oldest_first(&self.queue) {
            assert_eq!(self.states[block.0 as usize], FAR, "state of {block:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(id: u64) -> Access {
        Access::plain(KeyHash(id))
    }

    /// Room for three: two near blocks, 0 and 1, and a far one, 2.
    fn of_three(history: LirsHistory) -> Lirs {
        let config = PolicyConfig {
            capacity_blocks: 3,
            blocks_max: 3,
            below_blocks: 0,
            shards: 1,
        };
        let mut policy = Lirs::new(history, config).unwrap();
        (0..3).for_each(|number| policy.on_insert(BlockIx(number), &access(number.into())));
        policy.check();
        policy
    }

    fn drain(mut policy: Lirs) -> Vec<u32> {
        let next = || {
            policy.check();
            policy.victim(&mut |_| true)
        };
        std::iter::from_fn(next).map(|block| block.0).collect()
    }

    #[test]
    fn lirs_far_block_read_in_the_stack_becomes_near_for_the_oldest_near_one() {
        let mut policy = of_three(LirsHistory::Unbounded);
        policy.on_hit(BlockIx(2), &access(2));
        assert_eq!(drain(policy), [0, 1, 2]);
    }

    #[test]
    fn lirs_far_block_read_outside_the_stack_stays_far() {
        let mut policy = of_three(LirsHistory::Unbounded);
        policy.on_hit(BlockIx(2), &access(2));
        // Block 0 became far and left the stack; only its second read counts.
        policy.on_hit(BlockIx(0), &access(0));
        assert_eq!(policy.states[0], FAR);
        policy.on_hit(BlockIx(0), &access(0));
        assert_eq!(policy.states[0], NEAR);
        assert_eq!(drain(policy), [1, 2, 0]);
    }

    #[test]
    fn lirs_block_with_a_ghost_becomes_near_and_a_removed_one_has_no_ghost() {
        let mut policy = of_three(LirsHistory::Unbounded);
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(2)));
        assert_eq!(policy.ghosts.len(), 1);
        policy.on_insert(BlockIx(2), &access(2));
        assert_eq!((policy.states[2], policy.states[0]), (NEAR, FAR));
        policy.on_remove(BlockIx(0));
        policy.on_insert(BlockIx(0), &access(0));
        assert_eq!(policy.states[0], FAR);
        assert_eq!(policy.ghosts.len(), 0);
    }

    #[test]
    fn lirs_scan_leaves_near_blocks_and_the_bounded_form_forgets_its_oldest_ghosts() {
        for (history, ghosts) in [(LirsHistory::Unbounded, 100), (LirsHistory::Bounded, 6)] {
            let mut policy = of_three(history);
            for id in 10..110 {
                assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(2)));
                policy.on_insert(BlockIx(2), &access(id));
                policy.check();
            }
            assert_eq!(policy.ghosts.len(), ghosts, "{history:?}");
            assert!(policy.ghosts.find(KeyHash(108)).is_some());
        }
    }
}
