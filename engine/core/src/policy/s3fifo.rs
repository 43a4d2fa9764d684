//! S3-FIFO: a small queue that new blocks must survive, a main queue with reinsertion, and
//! ghosts of the blocks that did not survive.
//!
//! After Yang, Zhang, Qiu, Yue and Rashmi, "FIFO Queues are All You Need for Cache Eviction"
//! (SOSP'23), Algorithm 1. The small queue has a tenth of the capacity. A block that leaves it
//! after two hits or more is promoted to the main queue, any other is given up and remembered
//! as a ghost; a block whose ghost is found is inserted in the main queue. Hits are counted up
//! to three; in the main queue a block spends one for every round.
//!
//! Two things differ between this text and what is in use, so there are [`S3FifoVariant`]s: a
//! block may be promoted after one hit, and the library that the authors measured with, released
//! as libCacheSim, looks for the ghost before it makes room, gives up blocks of the main queue
//! only when that has more than its share, and fills both queues before it evicts at all.
//!
//! Over a clean restart queues and hits are kept and ghosts are lost: a block that comes back
//! after that enters the small queue although the earlier run had a ghost of it. A pending block
//! comes back as the oldest of the small queue. A block's tag is its state, and means the same
//! to all variants. That nothing was evicted yet is lost, too.
//!
//! **Invariants**
//! - A known block is in the queue that its state names: small, main or pending.
//! - Pending blocks are those that the last search gave up and that nobody took yet. A
//!   promotion into a full main queue gives up a block of that queue on top of the victim.
//! - There are at most as many ghosts as the main queue's share, the oldest goes first.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use super::ghost::Ghosts;
use super::list::{Links, List, Search};
use super::{Admission, Policy, PolicyBytes, PolicyConfig, PolicyError};

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

/// Which rules S3-FIFO follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S3FifoVariant {
    /// The policy's name, as users write it.
    pub name: &'static str,
    /// Hits a block must have to be promoted instead of given up.
    pub promote_hits_min: u8,
    /// Follow the library, not the paper: the ghost of a new block is looked for before room is
    /// made, a promotion gives up nothing, and the main queue yields only above its share. With
    /// a small queue of one block or none it admits no block.
    pub is_library: bool,
    /// Until the first eviction new blocks that the small queue has no room for go straight to
    /// the main queue.
    pub fills_main: bool,
}

impl S3FifoVariant {
    /// Algorithm 1 of the paper.
    pub const PAPER: Self = Self {
        name: "S3FIFO",
        promote_hits_min: 2,
        is_library: false,
        fills_main: false,
    };
    /// Algorithm 1 with promotion after one hit.
    pub const PAPER_ONE_HIT: Self = Self {
        name: "S3FIFO-t1",
        promote_hits_min: 1,
        ..Self::PAPER
    };
    /// The library since its version 0.3.
    pub const LIBRARY: Self = Self {
        name: "S3FIFO-lcs",
        promote_hits_min: 2,
        is_library: true,
        fills_main: true,
    };
    /// The library since its version 0.3 with promotion after one hit.
    pub const LIBRARY_ONE_HIT: Self = Self {
        name: "S3FIFO-lcs-t1",
        promote_hits_min: 1,
        ..Self::LIBRARY
    };
    /// The library as of October 2024, which fills the small queue first.
    pub const LIBRARY_2024: Self = Self {
        name: "S3FIFO-lcs24",
        fills_main: false,
        ..Self::LIBRARY
    };
}

/// Three FIFO queues: small, main and ghosts. A hit counts up in one byte.
pub struct S3Fifo {
    variant: S3FifoVariant,
    has_evicted: bool,
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
    ghosts: usize,
}

impl Shares {
    fn of(capacity_blocks: usize, variant: S3FifoVariant) -> Self {
        let small = (capacity_blocks / 10).max(usize::from(!variant.is_library));
        let main = capacity_blocks.saturating_sub(small);
        Self {
            small,
            main,
            ghosts: if variant.is_library {
                (capacity_blocks as u64 * 9 / 10) as usize
            } else {
                main
            },
        }
    }
}

impl S3Fifo {
    /// A policy that knows no block, by the rules of the paper.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        Self::with(S3FifoVariant::PAPER, config)
    }

    /// A policy that knows no block, by the rules of `variant`.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn with(variant: S3FifoVariant, config: PolicyConfig) -> Result<Self, PolicyError> {
        let shares = Shares::of(config.capacity_blocks, variant);
        Ok(Self {
            variant,
            has_evicted: false,
            links: Links::new(config.blocks_max)?,
            states: HugeVec::with_capacity(config.blocks_max as usize)?,
            small: List::EMPTY,
            main: List::EMPTY,
            pending: List::EMPTY,
            shares,
            ids: HugeVec::with_capacity(config.blocks_max as usize)?,
            ghosts: Ghosts::bounded(config.blocks_max, shares.ghosts)?,
        })
    }

    /// Whether the next block is given up from the small queue, if it has one to give.
    const fn is_small_next(&self) -> bool {
        if self.variant.is_library {
            !self.small.is_empty() && self.main.len() <= self.shares.main
        } else {
            self.small.len() >= self.shares.small || self.main.is_empty()
        }
    }

    /// Gives up at least one block, unless the search accepts none.
    fn evict(&mut self, search: &mut Search<'_>) {
        let count_before = self.pending.len();
        let small_first = self.is_small_next();
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

    /// Gives up the oldest accepted block of the small queue with too few hits. Those with more
    /// are promoted on the way; the first of them is returned.
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
            if self.states[block.0 as usize] & HITS < self.variant.promote_hits_min {
                self.ghosts.remember(KeyHash(self.ids[block.0 as usize]));
                self.links.unlink(&mut self.small, block);
                self.give_up(block);
                break;
            }
            if !self.variant.is_library && self.main.len() >= self.shares.main {
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
        self.has_evicted = true;
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
        self.variant.name
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.shares = Shares::of(blocks, self.variant);
        self.ghosts.set_count_max(self.shares.ghosts);
    }

    #[inline]
    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        let state = &mut self.states[block.0 as usize];
        debug_assert!(*state >= SMALL, "{block:?} is not known");
        *state += u8::from(*state & HITS < HITS_MAX);
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        let is_filling = self.variant.fills_main && !self.has_evicted;
        let to_main = self.ghosts.forget(access.id).is_some()
            || is_filling && self.small.len() >= self.shares.small;
        self.enter(block, access.id, if to_main { MAIN } else { SMALL });
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
            self.has_evicted = true;
            self.enter(block, access.id, tag);
        } else {
            self.on_insert(block, access);
        }
    }

    fn admit(&mut self, access: &Access) -> Admission {
        if !self.variant.is_library {
            return Admission::Admit;
        }
        if self.shares.small <= 1 {
            return Admission::Decline;
        }
        self.ghosts.expect(access.id);
        Admission::Admit
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
            below_blocks: 0,
            shards: 1,
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
        assert_eq!(policy.ghosts.len(), 0);
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
        assert_eq!((policy.pending.len(), policy.ghosts.len()), (1, 1));
        policy.on_remove(BlockIx(1));
        policy.check();
        assert_eq!((policy.len(), policy.ghosts.len()), (1, 0));
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
        assert_eq!(policy.ghosts.len(), 0);
        assert_eq!((policy.states[0], policy.small.len()), (SMALL + 1, 10));
    }

    fn library(variant: S3FifoVariant, capacity: u32) -> S3Fifo {
        let config = PolicyConfig {
            capacity_blocks: capacity as usize,
            blocks_max: capacity,
            below_blocks: 0,
            shards: 1,
        };
        let mut policy = S3Fifo::with(variant, config).unwrap();
        (0..capacity).for_each(|number| policy.on_insert(BlockIx(number), &access(number.into())));
        policy.check();
        policy
    }

    #[test]
    fn s3fifo_of_the_library_fills_the_main_queue_and_that_of_2024_the_small_one() {
        let lens = |policy: S3Fifo| (policy.small.len(), policy.main.len());
        assert_eq!(lens(library(S3FifoVariant::LIBRARY, 20)), (2, 18));
        assert_eq!(lens(library(S3FifoVariant::LIBRARY_2024, 20)), (20, 0));
    }

    #[test]
    fn s3fifo_of_the_library_admits_nothing_to_a_small_queue_of_one() {
        for (capacity, admission) in [(19, Admission::Decline), (20, Admission::Admit)] {
            let mut policy = library(S3FifoVariant::LIBRARY, capacity);
            assert_eq!(policy.admit(&access(99)), admission);
        }
    }

    #[test]
    fn s3fifo_of_the_library_finds_the_ghost_that_making_room_would_have_pushed_out() {
        // Of the 18 ghosts there may be, that of block 0 is the oldest.
        let mut policy = library(S3FifoVariant::LIBRARY_2024, 20);
        for id in 0..18_u32 {
            assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(id)));
            policy.on_insert(BlockIx(id), &access(u64::from(id) + 100));
        }
        policy.admit(&access(0));
        let block = policy.victim(&mut |_| true).unwrap();
        policy.on_insert(block, &access(0));
        assert_eq!((policy.main.len(), policy.ghosts.len()), (1, 18));
    }
}
