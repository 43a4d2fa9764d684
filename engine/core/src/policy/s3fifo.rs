//! S3-FIFO: a small queue that new blocks must survive, a main queue with reinsertion, and
//! ghosts of the blocks that did not survive.
//!
//! After Yang, Zhang, Qiu, Yue and Rashmi, "FIFO Queues are All You Need for Cache Eviction"
//! (SOSP'23), Algorithm 1. The small queue has a tenth of the capacity. A block that leaves it
//! after two hits or more is promoted to the main queue, any other is given up and remembered
//! as a ghost; a block whose ghost is found is inserted in the main queue. Hits are counted up
//! to three; in the main queue a block spends one for every round.
//!
//! Over a clean restart queues and hits are kept and ghosts are lost: a block that comes back
//! after that enters the small queue although the earlier run had a ghost of it. A pending block
//! comes back as the oldest of the small queue. A block's tag is its state.
//!
//! **Invariants**
//! - A known block is in the queue that its state names: small, main or pending.
//! - Pending blocks are those that the last search gave up and that nobody took yet. A
//!   promotion into a full main queue gives up a block of that queue on top of the victim.
//! - There are at most as many ghosts as the main queue's share, the oldest goes first.

use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::{Access, BlockIx, KeyHash};

use super::list::{Links, List, Search};
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Hits a block must have to be promoted instead of given up.
const PROMOTE_HITS_MIN: u8 = 2;
/// Hits are counted up to this; two bits of a block's state.
const HITS_MAX: u8 = 3;
/// The bits of a block's state that count its hits; the bits above name its queue.
const HITS: u8 = 0b11;

/// State of a block that is not known.
const UNKNOWN: u8 = 0 << 2;
/// State of a block in the small queue without hits.
const SMALL: u8 = 1 << 2;
/// State of a block in the main queue without hits.
const MAIN: u8 = 2 << 2;
/// State of a block that is given up but not taken yet.
const PENDING: u8 = 3 << 2;

/// Three FIFO queues: small, main and ghosts. A hit counts up in one byte.
pub struct S3Fifo {
    links: Links,
    states: HugeVec<u8>,
    small: List,
    main: List,
    pending: List,
    shares: Shares,
    /// The id under which each block would be remembered.
    ids: HugeVec<u64>,
    ghosts: Ghosts,
}

/// How the capacity is divided.
#[derive(Clone, Copy)]
struct Shares {
    small: usize,
    main: usize,
}

impl Shares {
    fn of(capacity_blocks: usize) -> Self {
        let small = (capacity_blocks / 10).max(1);
        Self {
            small,
            main: capacity_blocks.saturating_sub(small),
        }
    }
}

impl S3Fifo {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        let shares = Shares::of(config.capacity_blocks);
        Ok(Self {
            links: Links::new(config.blocks_max)?,
            states: HugeVec::with_capacity(config.blocks_max as usize)?,
            small: List::EMPTY,
            main: List::EMPTY,
            pending: List::EMPTY,
            shares,
            ids: HugeVec::with_capacity(config.blocks_max as usize)?,
            ghosts: Ghosts::new(config.blocks_max, shares.main)?,
        })
    }

    /// Gives up at least one block, unless the search accepts none.
    fn evict(&mut self, search: &mut Search<'_>) {
        let count_before = self.pending.len();
        let small_first = self.small.len() >= self.shares.small || self.main.is_empty();
        let mut promoted = None;
        if small_first {
            promoted = self.evict_small(search);
        }
        // The small queue may have promoted all it has, or all of a queue may be refused.
        if self.pending.len() == count_before {
            self.evict_main(search);
        }
        if self.pending.len() == count_before && !small_first {
            promoted = self.evict_small(search);
        }
        if self.pending.len() == count_before
            && let Some(block) = promoted
        {
            self.links.unlink(&mut self.main, block);
            self.give_up(block);
        }
    }

    /// Gives up the oldest accepted block of the small queue with fewer than two hits. Those
    /// with more are promoted on the way; the first of them is returned.
    fn evict_small(&mut self, search: &mut Search<'_>) -> Option<BlockIx> {
        let mut promoted = None;
        let mut cursor = self.small.tail();
        while let Some(block) = cursor {
            if search.is_over() {
                break;
            }
            cursor = self.links.toward_head(block);
            if !search.accepts(block) {
                continue;
            }
            if self.states[block.0 as usize] & HITS < PROMOTE_HITS_MIN {
                self.ghosts.remember(KeyHash(self.ids[block.0 as usize]));
                self.links.unlink(&mut self.small, block);
                self.give_up(block);
                break;
            }
            if self.main.len() >= self.shares.main {
                self.evict_main(search);
            }
            self.links.unlink(&mut self.small, block);
            self.links.push_head(&mut self.main, block);
            self.states[block.0 as usize] = MAIN;
            promoted = promoted.or(Some(block));
        }
        promoted
    }

    /// Gives up the oldest accepted block of the main queue that has no hits left.
    fn evict_main(&mut self, search: &mut Search<'_>) {
        let states = &mut self.states;
        let spend = |block: BlockIx| {
            let state = &mut states[block.0 as usize];
            let has_hits = *state & HITS > 0;
            *state -= u8::from(has_hits);
            has_hits
        };
        if let Some(block) = self
            .links
            .find_without_chance(&mut self.main, search, spend)
        {
            self.links.unlink(&mut self.main, block);
            self.give_up(block);
        }
    }

    /// Puts a block that is not known at the head of the queue that `state` names.
    fn enter(&mut self, block: BlockIx, id: KeyHash, state: u8) {
        let index = block.0 as usize;
        self.states.grow_to(index + 1);
        self.ids.grow_to(index + 1);
        let queue = if state & !HITS == MAIN {
            &mut self.main
        } else {
            &mut self.small
        };
        self.links.push_head(queue, block);
        self.states[index] = state;
        self.ids[index] = id.0;
    }

    /// Makes a block that left its queue pending.
    fn give_up(&mut self, block: BlockIx) {
        self.links.push_head(&mut self.pending, block);
        self.states[block.0 as usize] = PENDING;
    }

    /// Forgets a pending block.
    fn take(&mut self, block: BlockIx) -> Option<BlockIx> {
        assert_eq!(
            self.states[block.0 as usize] & !HITS,
            PENDING,
            "state of {block:?}"
        );
        self.links.unlink(&mut self.pending, block);
        self.states[block.0 as usize] = UNKNOWN;
        Some(block)
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "S3FIFO"
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.shares = Shares::of(blocks);
        self.ghosts.set_count_max(self.shares.main);
    }

    #[inline]
    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        let state = &mut self.states[block.0 as usize];
        debug_assert!(*state >= SMALL, "{block:?} is not known");
        *state += u8::from(*state & HITS < HITS_MAX);
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        let has_ghost = self.ghosts.forget(access.id);
        self.enter(block, access.id, if has_ghost { MAIN } else { SMALL });
    }

    fn on_remove(&mut self, block: BlockIx) {
        let index = block.0 as usize;
        match self.states[index] & !HITS {
            SMALL => self.links.unlink(&mut self.small, block),
            MAIN => self.links.unlink(&mut self.main, block),
            PENDING => {
                self.links.unlink(&mut self.pending, block);
                self.ghosts.forget(KeyHash(self.ids[index]));
            }
            _ => panic!("{block:?} is not known"),
        }
        self.states[index] = UNKNOWN;
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let mut search = Search::new(evictable);
        let mut victim = self.links.find_oldest(&self.pending, &mut search);
        if victim.is_none() {
            let count_before = self.pending.len();
            self.evict(&mut search);
            victim = self.links.oldest_first(&self.pending).nth(count_before);
        }
        self.take(victim?)
    }

    fn take_pending(&mut self) -> Option<BlockIx> {
        self.take(self.pending.tail()?)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        // Nobody's filter accepted a pending block after a restart, so it must not be pending.
        self.links
            .oldest_first(&self.pending)
            .for_each(|block| visit(block, SMALL));
        for queue in [&self.small, &self.main] {
            for block in self.links.oldest_first(queue) {
                visit(block, self.states[block.0 as usize]);
            }
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        if matches!(tag & !HITS, SMALL | MAIN) {
            // It may have come and gone in this run already.
            self.ghosts.forget(access.id);
            self.enter(block, access.id, tag);
        } else {
            self.on_insert(block, access);
        }
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len() + self.pending.len()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: self.links.bytes() + self.states.bytes(),
            ghosts: self.ids.bytes() + self.ghosts.bytes(),
        }
    }

    fn check(&self) {
        self.links.check(&[&self.small, &self.main, &self.pending]);
        for (queue, state) in [
            (&self.small, SMALL),
            (&self.main, MAIN),
            (&self.pending, PENDING),
        ] {
            for block in self.links.oldest_first(queue) {
                assert_eq!(
                    self.states[block.0 as usize] & !HITS,
                    state,
                    "queue of {block:?}"
                );
            }
        }
        let known = self
            .states
            .iter()
            .filter(|&&state| state != UNKNOWN)
            .count();
        assert_eq!(known, self.len(), "states of known blocks");
        self.ghosts.check();
    }
}

/// Ids in the order in which they were remembered, oldest forgotten first: a table of chains
/// over numbered ghosts. The numbers of forgotten ghosts are used again.
///
/// Nothing here is moved or rehashed while blocks come and go, so no insert is slower than the
/// others; only a larger capacity makes the table larger.
struct Ghosts {
    count_max: usize,
    ids: HugeVec<u64>,
    /// The next ghost of the chain that a ghost is in, as its number plus one; zero at the end.
    chain_next: HugeVec<u32>,
    /// The first ghost of each chain, in the same way. A power of two of them.
    chain_first: HugeVec<u32>,
    links: Links,
    remembered: List,
    unused: List,
}

impl Ghosts {
    /// At most `ghosts_max` ghosts ever, and `count_max` until that is changed.
    fn new(ghosts_max: u32, count_max: usize) -> Result<Self, HugeVecError> {
        let capacity = ghosts_max as usize;
        let mut ghosts = Self {
            count_max: 0,
            ids: HugeVec::with_capacity(capacity)?,
            chain_next: HugeVec::with_capacity(capacity)?,
            chain_first: HugeVec::with_capacity(capacity.next_power_of_two())?,
            links: Links::new(ghosts_max)?,
            remembered: List::EMPTY,
            unused: List::EMPTY,
        };
        ghosts.set_count_max(count_max);
        Ok(ghosts)
    }

    /// Changes how many ids are remembered.
    fn set_count_max(&mut self, count_max: usize) {
        self.count_max = count_max.min(self.ids.capacity());
        while self.remembered.len() > self.count_max {
            self.forget_oldest();
        }
        let chains = self.count_max.next_power_of_two();
        if chains > self.chain_first.len() {
            self.chain_first.fill(0);
            self.chain_first.grow_to(chains);
            let mut cursor = self.remembered.tail();
            while let Some(ghost) = cursor {
                self.chain(ghost);
                cursor = self.links.toward_head(ghost);
            }
        }
    }

    /// Remembers `id` as the newest.
    fn remember(&mut self, id: KeyHash) {
        if self.count_max == 0 {
            return;
        }
        // Two keys with one hash may both be resident and leave one after the other.
        self.forget(id);
        if self.remembered.len() >= self.count_max {
            self.forget_oldest();
        }
        let ghost = self.links.pop_tail(&mut self.unused).unwrap_or_else(|| {
            let number = u32::try_from(self.remembered.len());
            BlockIx(number.expect("ghosts are numbered below a u32"))
        });
        self.ids.grow_to(ghost.0 as usize + 1);
        self.chain_next.grow_to(ghost.0 as usize + 1);
        self.ids[ghost.0 as usize] = id.0;
        self.chain(ghost);
        self.links.push_head(&mut self.remembered, ghost);
    }

    /// Forgets `id`; whether it was remembered.
    fn forget(&mut self, id: KeyHash) -> bool {
        let chain = self.chain_of(id.0);
        let mut ghost = self.chain_first[chain];
        while ghost != 0 && self.ids[ghost as usize - 1] != id.0 {
            ghost = self.chain_next[ghost as usize - 1];
        }
        if ghost != 0 {
            self.forget_ghost(BlockIx(ghost - 1));
        }
        ghost != 0
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.remembered.tail() {
            self.forget_ghost(oldest);
        }
    }

    fn forget_ghost(&mut self, ghost: BlockIx) {
        let chain = self.chain_of(self.ids[ghost.0 as usize]);
        let next = self.chain_next[ghost.0 as usize];
        let mut link = self.chain_first[chain];
        if link == ghost.0 + 1 {
            self.chain_first[chain] = next;
        } else {
            while self.chain_next[link as usize - 1] != ghost.0 + 1 {
                link = self.chain_next[link as usize - 1];
                assert_ne!(link, 0, "a remembered ghost is in its chain");
            }
            self.chain_next[link as usize - 1] = next;
        }
        self.links.unlink(&mut self.remembered, ghost);
        self.links.push_head(&mut self.unused, ghost);
    }

    /// Puts a ghost first in the chain of its id.
    fn chain(&mut self, ghost: BlockIx) {
        let chain = self.chain_of(self.ids[ghost.0 as usize]);
        self.chain_next[ghost.0 as usize] = self.chain_first[chain];
        self.chain_first[chain] = ghost.0 + 1;
    }

    /// The number of the chain that holds `id`, if anything does. Keys of one shard may share
    /// any bits of their hash, so all bits are mixed into the upper half (Fibonacci hashing).
    fn chain_of(&self, id: u64) -> usize {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        (id.wrapping_mul(GOLDEN) >> 32) as usize & (self.chain_first.len() - 1)
    }

    fn bytes(&self) -> u64 {
        self.ids.bytes() + self.chain_next.bytes() + self.chain_first.bytes() + self.links.bytes()
    }

    fn check(&self) {
        self.links.check(&[&self.remembered, &self.unused]);
        assert_eq!(
            self.ids.len(),
            self.remembered.len() + self.unused.len(),
            "ghost numbers"
        );
        assert!(
            self.remembered.len() <= self.count_max,
            "more ghosts than allowed"
        );
        let mut chained = 0;
        for (chain, &first) in self.chain_first.iter().enumerate() {
            let mut ghost = first;
            while ghost != 0 {
                let index = ghost as usize - 1;
                assert_eq!(self.chain_of(self.ids[index]), chain, "chain of a ghost");
                chained += 1;
                assert!(chained <= self.remembered.len(), "a chain goes on");
                ghost = self.chain_next[index];
            }
        }
        assert_eq!(chained, self.remembered.len(), "chained ghosts");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(id: u64) -> Access {
        Access::plain(KeyHash(id))
    }

    /// A policy with `capacity` blocks inserted, block `n` under id `n`.
    fn filled(capacity: u32) -> S3Fifo {
        let config = PolicyConfig {
            capacity_blocks: capacity as usize,
            blocks_max: capacity,
        };
        let mut policy = S3Fifo::new(config).unwrap();
        (0..capacity).for_each(|number| policy.on_insert(BlockIx(number), &access(number.into())));
        policy
    }

    fn hit(policy: &mut S3Fifo, block: u32, times: u32) {
        (0..times).for_each(|_| policy.on_hit(BlockIx(block), &access(block.into())));
        policy.check();
    }

    #[test]
    fn s3fifo_block_with_a_ghost_enters_the_main_queue() {
        let mut policy = filled(10);
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        policy.on_insert(BlockIx(0), &access(0));
        assert_eq!((policy.small.len(), policy.main.len()), (9, 1));
        assert!(policy.ghosts.remembered.is_empty());
    }

    #[test]
    fn s3fifo_block_with_two_hits_is_promoted_and_one_with_one_hit_is_not() {
        let mut policy = filled(10);
        hit(&mut policy, 0, 2);
        hit(&mut policy, 1, 1);
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(1)));
        assert_eq!(policy.states[0], MAIN);
        assert_eq!(policy.take_pending(), None);
    }

    #[test]
    fn s3fifo_promotion_into_a_full_main_queue_gives_up_two_blocks() {
        let mut policy = filled(10);
        (0..9).for_each(|block| hit(&mut policy, block, 2));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(9)));
        policy.on_insert(BlockIx(9), &access(10));
        hit(&mut policy, 9, 3);
        // The small queue has one block, which goes to the main queue; that gives up its oldest.
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        assert_eq!((policy.small.len(), policy.main.len()), (0, 9));

        policy.on_insert(BlockIx(0), &access(11));
        policy.set_capacity(9);
        policy.on_remove(BlockIx(1));
        hit(&mut policy, 0, 2);
        policy.on_insert(BlockIx(1), &access(12));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(2)));
        assert_eq!(policy.len(), 9);
        assert_eq!(policy.take_pending(), Some(BlockIx(1)));
        assert_eq!(policy.take_pending(), None);
        policy.check();
    }

    #[test]
    fn s3fifo_pending_block_may_be_removed_and_leaves_no_ghost() {
        let mut policy = filled(2);
        hit(&mut policy, 0, 2);
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(1)));
        policy.on_insert(BlockIx(1), &access(5));
        policy.evict_small(&mut Search::new(&mut |_| true));
        assert_eq!(
            (policy.pending.len(), policy.ghosts.remembered.len()),
            (1, 1)
        );
        policy.on_remove(BlockIx(1));
        policy.check();
        assert_eq!((policy.len(), policy.ghosts.remembered.len()), (1, 0));
    }

    #[test]
    fn s3fifo_pending_block_nobody_took_is_the_next_victim() {
        let mut policy = filled(2);
        policy.evict_small(&mut Search::new(&mut |_| true));
        assert_eq!(policy.victim(&mut |block| block.0 == 1), Some(BlockIx(1)));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        assert!(policy.is_empty());
        policy.check();
    }

    #[test]
    fn s3fifo_accepted_block_is_found_when_promoted_by_the_same_search() {
        let mut policy = filled(30);
        hit(&mut policy, 20, 3);
        assert_eq!(policy.victim(&mut |block| block.0 == 20), Some(BlockIx(20)));
        assert_eq!((policy.small.len(), policy.main.len()), (29, 0));
        assert_eq!(policy.victim(&mut |_| false), None);
        policy.check();
    }

    #[test]
    fn s3fifo_main_queue_with_hits_goes_round() {
        let mut policy = filled(4);
        (0..3).for_each(|block| hit(&mut policy, block, 2));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(3)));
        hit(&mut policy, 0, 3);
        hit(&mut policy, 1, 2);
        hit(&mut policy, 2, 2);
        let order: Vec<_> = std::iter::from_fn(|| policy.victim(&mut |_| true)).collect();
        assert_eq!(order, [BlockIx(1), BlockIx(2), BlockIx(0)]);
    }

    #[test]
    fn ghosts_beyond_their_count_forget_the_oldest() {
        let mut ghosts = Ghosts::new(100, 3).unwrap();
        (0..5).for_each(|id| ghosts.remember(KeyHash(id)));
        ghosts.remember(KeyHash(2));
        ghosts.check();
        let left: Vec<_> = (0..5).filter(|&id| ghosts.forget(KeyHash(id))).collect();
        assert_eq!(left, [2, 3, 4]);
        ghosts.check();
    }

    #[test]
    fn ghosts_survive_a_larger_count_and_yield_to_a_smaller_one() {
        let mut ghosts = Ghosts::new(1000, 4).unwrap();
        (0..4).for_each(|id| ghosts.remember(KeyHash(id << 32)));
        ghosts.set_count_max(500);
        ghosts.check();
        (4..500).for_each(|id| ghosts.remember(KeyHash(id << 32)));
        assert_eq!(ghosts.remembered.len(), 500);
        ghosts.set_count_max(10);
        ghosts.check();
        assert!(!ghosts.forget(KeyHash(489 << 32)));
        assert!(ghosts.forget(KeyHash(490 << 32)));
        ghosts.set_count_max(0);
        ghosts.remember(KeyHash(7));
        ghosts.check();
        assert!(ghosts.remembered.is_empty());
    }

    #[test]
    fn ghosts_are_never_more_than_numbers() {
        let mut ghosts = Ghosts::new(2, usize::MAX).unwrap();
        (0..9).for_each(|id| ghosts.remember(KeyHash(id)));
        ghosts.check();
        assert_eq!(ghosts.remembered.len(), 2);
    }

    #[test]
    fn s3fifo_saves_pending_blocks_as_small_then_the_small_queue_then_the_main_queue() {
        let mut policy = filled(10);
        hit(&mut policy, 0, 2);
        hit(&mut policy, 4, 1);
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(1)));
        policy.evict_small(&mut Search::new(&mut |block| block.0 == 5));
        hit(&mut policy, 0, 1);
        let mut saved = Vec::new();
        policy.save(&mut |block, tag| saved.push((block.0, tag)));
        let small = [(2, SMALL), (3, SMALL), (4, SMALL + 1)];
        assert_eq!(saved[..4], [&[(5, SMALL)], &small[..]].concat());
        assert_eq!(saved[saved.len() - 1], (0, MAIN + 1));
    }

    #[test]
    fn s3fifo_restored_block_leaves_no_ghost_behind() {
        let mut policy = filled(10);
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        policy.restore(BlockIx(0), SMALL + 1, &access(0));
        assert!(policy.ghosts.remembered.is_empty());
        assert_eq!((policy.states[0], policy.small.len()), (SMALL + 1, 10));
    }
}
