//! 2Q: new blocks wait in a FIFO queue and are remembered when they leave it; a block that comes
//! back while it is remembered is worth a place in the LRU queue.
//!
//! After Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
//! Algorithm" (VLDB'94), the full version: a quarter of the capacity for new blocks (A1in), ghosts
//! for half of it (A1out), the rest for blocks that came back (Am). A hit in the queue of new
//! blocks does nothing; a block that leaves the LRU queue is not remembered.
//!
//! Over a clean restart both queues are kept and ghosts are lost.
//!
//! **Invariant**: a known block is in the queue that its state names.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use super::ghost::Ghosts;
use super::list::{Links, List, Search};
use super::{Admission, Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a block in the LRU queue; others have 0. No other policy built in gives it.
const TAG_BACK: u8 = 73;

/// Two queues and ghosts of the first.
pub struct TwoQ {
    links: Links,
    new: List,
    back: List,
    /// Whether each block is in the queue of those that came back.
    is_back: HugeVec<bool>,
    new_max: usize,
    /// The id under which each block would be remembered.
    ids: HugeVec<u64>,
    ghosts: Ghosts,
}

const fn new_max(capacity_blocks: usize) -> usize {
    let quarter = capacity_blocks / 4;
    if quarter > 1 { quarter } else { 1 }
}

fn ghosts_max(capacity_blocks: usize) -> usize {
    (capacity_blocks / 2).max(1)
}

impl TwoQ {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        let ghosts = ghosts_max(config.capacity_blocks);
        Ok(Self {
            links: Links::new(config.blocks_max)?,
            new: List::EMPTY,
            back: List::EMPTY,
            is_back: HugeVec::with_capacity(config.blocks_max as usize)?,
            new_max: new_max(config.capacity_blocks),
            ids: HugeVec::with_capacity(config.blocks_max as usize)?,
            ghosts: Ghosts::bounded(config.blocks_max, ghosts)?,
        })
    }

    /// Puts a block that is not known at the head of a queue.
    fn enter(&mut self, block: BlockIx, id: KeyHash, is_back: bool) {
        let index = block.0 as usize;
        self.is_back.grow_to(index + 1);
        self.ids.grow_to(index + 1);
        self.is_back[index] = is_back;
        self.ids[index] = id.0;
        let queue = if is_back {
            &mut self.back
        } else {
            &mut self.new
        };
        self.links.push_head(queue, block);
    }

    fn leave(&mut self, block: BlockIx) {
        let queue = if self.is_back[block.0 as usize] {
            &mut self.back
        } else {
            &mut self.new
        };
        self.links.unlink(queue, block);
    }
}

impl Policy for TwoQ {
    fn name(&self) -> &'static str {
        "2Q"
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.new_max = new_max(blocks);
        self.ghosts.set_count_max(ghosts_max(blocks));
    }

    #[inline]
    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        debug_assert!(self.links.is_linked(block), "{block:?} is not known");
        if self.is_back[block.0 as usize] {
            self.links.move_to_head(&mut self.back, block);
        }
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        let is_back = self.ghosts.forget(access.id).is_some();
        self.enter(block, access.id, is_back);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.leave(block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let mut search = Search::new(evictable);
        let queues = if self.new.len() > self.new_max || self.back.is_empty() {
            [&self.new, &self.back]
        } else {
            [&self.back, &self.new]
        };
        let oldest = |queue| self.links.find_oldest(queue, &mut search);
        let victim = queues.into_iter().find_map(oldest)?;
        self.leave(victim);
        if !self.is_back[victim.0 as usize] {
            self.ghosts.remember(KeyHash(self.ids[victim.0 as usize]));
        }
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for (queue, tag) in [(&self.new, 0), (&self.back, TAG_BACK)] {
            self.links
                .oldest_first(queue)
                .for_each(|block| visit(block, tag));
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        let is_back = self.ghosts.forget(access.id).is_some() || tag == TAG_BACK;
        self.enter(block, access.id, is_back);
    }

    /// Admits all. The ghost of the block does not count while room is made for it: in the paper it
    /// is gone by then.
    fn admit(&mut self, access: &Access) -> Admission {
        self.ghosts.expect(access.id);
        Admission::Admit
    }

    fn len(&self) -> usize {
        self.new.len() + self.back.len()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: self.links.bytes() + self.is_back.bytes(),
            ghosts: self.ids.bytes() + self.ghosts.bytes(),
        }
    }

    fn check(&self) {
        self.links.check(&[&self.new, &self.back]);
        for (queue, is_back) in [(&self.new, false), (&self.back, true)] {
            for block in self.links.oldest_first(queue) {
                assert_eq!(
                    self.is_back[block.0 as usize], is_back,
                    "queue of {block:?}"
                );
            }
        }
        self.ghosts.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(id: u64) -> Access {
        Access::plain(KeyHash(id))
    }

    fn filled(count: u32) -> TwoQ {
        let config = PolicyConfig {
            capacity_blocks: count as usize,
            blocks_max: count,
            below_blocks: 0,
            shards: 1,
        };
        let mut policy = TwoQ::new(config).unwrap();
        (0..count).for_each(|number| policy.on_insert(BlockIx(number), &access(number.into())));
        policy
    }

    #[test]
    fn twoq_block_that_comes_back_outlives_new_ones_and_a_hit_on_a_new_one_does_nothing() {
        let mut policy = filled(4);
        policy.on_hit(BlockIx(0), &access(0));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        policy.on_insert(BlockIx(0), &access(0));
        policy.check();
        let order: Vec<_> = std::iter::from_fn(|| policy.victim(&mut |_| true)).collect();
        // At its share of one the queue of new blocks is spared.
        assert_eq!(order, [1, 2, 0, 3].map(BlockIx));
    }

    #[test]
    fn twoq_block_that_left_the_lru_queue_is_not_remembered() {
        let mut policy = filled(4);
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        policy.on_insert(BlockIx(0), &access(0));
        assert_eq!(policy.victim(&mut |block| block.0 == 0), Some(BlockIx(0)));
        policy.on_insert(BlockIx(0), &access(0));
        assert_eq!((policy.new.len(), policy.back.len()), (4, 0));
        policy.check();
    }
}
