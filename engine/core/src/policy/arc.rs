//! ARC: two LRU queues, of blocks used once and of blocks used more often, and ghosts of both,
//! by which the share of each is learned.
//!
//! After Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache" (FAST'03),
//! Figure 4, with the share as a real number. A hit on a ghost of the first queue makes its share
//! larger, one on a ghost of the second smaller. There are as many ghosts as blocks; the arrays
//! of the two kinds are apart and each may come to hold all of them.
//!
//! Over a clean restart both queues are kept. Ghosts are lost and the share begins with zero.
//!
//! **Invariants**
//! - A known block is in the queue that its state names.
//! - After an insert the first queue and its ghosts together are no more than the capacity, and
//!   all together no more than twice that, unless the blocks alone are more.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use super::ghost::Ghosts;
use super::list::{Links, List, Search};
use super::{Admission, Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a block used more than once; others have 0. No other policy built in gives it.
const TAG_OFTEN: u8 = 74;

/// The queues, as places in arrays of two.
const ONCE: usize = 0;
const OFTEN: usize = 1;

/// ARC: two LRU queues and ghosts of both.
pub struct AdaptiveReplacement {
    links: Links,
    queues: [List; 2],
    /// The queue of each block.
    queue_of: HugeVec<u8>,
    capacity: usize,
    /// How many of the blocks should be ones used once: `p` of the paper.
    once_target: f64,
    /// The id under which each block would be remembered.
    ids: HugeVec<u64>,
    ghosts: [Ghosts; 2],
    /// The block that is about to come, and the queue that its ghost is of.
    expected: Option<(KeyHash, Option<usize>)>,
}

impl AdaptiveReplacement {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        // While the ghost of the block that comes is still there, there is one more.
        let ghosts = || {
            Ghosts::bounded(
                config.blocks_max.saturating_add(1),
                config.capacity_blocks + 1,
            )
        };
        Ok(Self {
            links: Links::new(config.blocks_max)?,
            queues: [List::EMPTY; 2],
            queue_of: HugeVec::with_capacity(config.blocks_max as usize)?,
            capacity: config.capacity_blocks,
            once_target: 0.0,
            ids: HugeVec::with_capacity(config.blocks_max as usize)?,
            ghosts: [ghosts()?, ghosts()?],
            expected: None,
        })
    }

    /// Looks for the ghost of `id` and learns from it: the queue that it is of.
    fn learn(&mut self, id: KeyHash) -> Option<usize> {
        let [once, often] = [ONCE, OFTEN].map(|queue| self.ghosts[queue].len() as f64);
        if self.ghosts[ONCE].find(id).is_some() {
            let target = self.once_target + (often / once).max(1.0);
            self.once_target = target.min(self.capacity as f64);
            Some(ONCE)
        } else if self.ghosts[OFTEN].find(id).is_some() {
            let target = self.once_target - (once / often).max(1.0);
            self.once_target = target.max(0.0);
            Some(OFTEN)
        } else {
            None
        }
    }

    /// Puts a block that is not known at the head of a queue.
    fn enter(&mut self, block: BlockIx, id: KeyHash, queue: usize) {
        let index = block.0 as usize;
        self.queue_of.grow_to(index + 1);
        self.ids.grow_to(index + 1);
        self.links.push_head(&mut self.queues[queue], block);
        self.queue_of[index] = queue as u8;
        self.ids[index] = id.0;
        self.trim_ghosts();
    }

    fn leave(&mut self, block: BlockIx) -> usize {
        let queue = usize::from(self.queue_of[block.0 as usize]);
        self.links.unlink(&mut self.queues[queue], block);
        queue
    }

    /// Forgets the oldest ghosts beyond the bounds of the paper.
    fn trim_ghosts(&mut self) {
        let [once, often] = [ONCE, OFTEN].map(|queue| self.queues[queue].len());
        let once_max = self.capacity.saturating_sub(once);
        while self.ghosts[ONCE].len() > once_max {
            self.ghosts[ONCE].forget_oldest();
        }
        let all = once + often + self.ghosts[ONCE].len();
        let often_max = (2 * self.capacity).saturating_sub(all);
        while self.ghosts[OFTEN].len() > often_max {
            self.ghosts[OFTEN].forget_oldest();
        }
    }

    /// The queue that gives up a block: `REPLACE` of the paper.
    fn next_queue(&self) -> usize {
        let once = self.queues[ONCE].len() as f64;
        let for_often = matches!(self.expected, Some((_, Some(OFTEN))));
        let takes_once =
            once > self.once_target || for_often && (once - self.once_target).abs() == 0.0;
        if self.queues[OFTEN].is_empty() || once > 0.0 && takes_once {
            ONCE
        } else {
            OFTEN
        }
    }
}

impl Policy for AdaptiveReplacement {
    fn name(&self) -> &'static str {
        "ARC"
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.capacity = blocks;
        self.once_target = self.once_target.min(blocks as f64);
        let most = blocks.saturating_add(1);
        self.ghosts
            .iter_mut()
            .for_each(|ghosts| ghosts.set_count_max(most));
        self.trim_ghosts();
    }

    #[inline]
    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        let queue = self.leave(block);
        debug_assert!(queue <= OFTEN);
        self.links.push_head(&mut self.queues[OFTEN], block);
        self.queue_of[block.0 as usize] = OFTEN as u8;
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        let ghost_of = match self.expected.take_if(|(id, _)| *id == access.id) {
            Some((_, ghost_of)) => ghost_of,
            None => self.learn(access.id),
        };
        for ghosts in &mut self.ghosts {
            ghosts.forget(access.id);
        }
        let queue = if ghost_of.is_some() { OFTEN } else { ONCE };
        self.enter(block, access.id, queue);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.leave(block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let mut search = Search::new(evictable);
        let first = self.next_queue();
        let victim = [first, 1 - first]
            .into_iter()
            .find_map(|queue| self.links.find_oldest(&self.queues[queue], &mut search))?;
        let queue = self.leave(victim);
        self.ghosts[queue].remember(KeyHash(self.ids[victim.0 as usize]));
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for (queue, tag) in [(ONCE, 0), (OFTEN, TAG_OFTEN)] {
            self.links
                .oldest_first(&self.queues[queue])
                .for_each(|block| visit(block, tag));
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        if tag == TAG_OFTEN {
            for ghosts in &mut self.ghosts {
                ghosts.forget(access.id);
            }
            self.enter(block, access.id, OFTEN);
        } else {
            self.on_insert(block, access);
        }
    }

    /// Admits all. The share is learned before room is made for the block, as the paper has it.
    fn admit(&mut self, access: &Access) -> Admission {
        if self.expected.is_none_or(|(id, _)| id != access.id) {
            self.expected = Some((access.id, self.learn(access.id)));
        }
        Admission::Admit
    }

    fn len(&self) -> usize {
        self.queues.iter().map(List::len).sum()
    }

    fn bytes(&self) -> PolicyBytes {
        let ghosts: u64 = self.ghosts.iter().map(Ghosts::bytes).sum();
        PolicyBytes {
            resident: self.links.bytes() + self.queue_of.bytes(),
            ghosts: self.ids.bytes() + ghosts,
        }
    }

    fn check(&self) {
        let [once, often] = &self.queues;
        self.links.check(&[once, often]);
        self.links.check_named(&self.queues, &self.queue_of);
        self.ghosts.iter().for_each(Ghosts::check);
        assert!(self.once_target >= 0.0);
        assert!(self.once_target <= self.capacity as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(id: u64) -> Access {
        Access::plain(KeyHash(id))
    }

    fn filled(count: u32) -> AdaptiveReplacement {
        let config = PolicyConfig {
            capacity_blocks: count as usize,
            blocks_max: count,
            below_blocks: 0,
            shards: 1,
        };
        let mut policy = AdaptiveReplacement::new(config).unwrap();
        (0..count).for_each(|number| policy.on_insert(BlockIx(number), &access(number.into())));
        policy
    }

    fn lens(policy: &AdaptiveReplacement) -> [usize; 4] {
        policy.check();
        let [once, often] = &policy.queues;
        let [once_ghosts, often_ghosts] = &policy.ghosts;
        [
            once.len(),
            often.len(),
            once_ghosts.len(),
            often_ghosts.len(),
        ]
    }

    #[test]
    fn arc_ghost_of_the_first_queue_makes_its_share_larger_and_one_of_the_second_smaller() {
        let mut policy = filled(4);
        policy.on_hit(BlockIx(1), &access(1));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        policy.admit(&access(0));
        policy.on_insert(BlockIx(0), &access(0));
        assert_eq!(lens(&policy), [2, 2, 0, 0]);
        assert_eq!(policy.once_target, 1.0);
        assert_eq!(policy.victim(&mut |block| block.0 == 1), Some(BlockIx(1)));
        assert_eq!(lens(&policy), [2, 1, 0, 1]);
        policy.admit(&access(1));
        policy.admit(&access(1));
        assert_eq!(policy.once_target, 0.0);
        policy.on_insert(BlockIx(1), &access(1));
        assert_eq!(lens(&policy), [2, 2, 0, 0]);
    }

    #[test]
    fn arc_scan_leaves_blocks_used_twice_and_no_more_ghosts_than_the_paper_has() {
        let mut policy = filled(4);
        policy.on_hit(BlockIx(0), &access(0));
        for id in 10..30 {
            policy.admit(&access(id));
            let block = policy.victim(&mut |_| true).unwrap();
            assert_ne!(block, BlockIx(0));
            policy.on_insert(block, &access(id));
            let [once, often, once_ghosts, often_ghosts] = lens(&policy);
            assert_eq!((once, often, often_ghosts), (3, 1, 0));
            assert!(once_ghosts <= 1);
        }
    }

    #[test]
    fn arc_announced_block_that_does_not_come_leaves_its_ghost() {
        let mut policy = filled(2);
        policy.on_hit(BlockIx(1), &access(1));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        policy.admit(&access(0));
        policy.admit(&access(5));
        policy.on_insert(BlockIx(0), &access(0));
        assert_eq!(lens(&policy), [0, 2, 0, 0]);
    }
}
