//! LRU-2: the block whose last use but one is longest ago goes first; those used once before all
//! others, of several the one not used for longest.
//!
//! After O'Neil, O'Neil and Weikum, "The LRU-K Page Replacement Algorithm for Database Disk
//! Buffering" (SIGMOD'93), with K of two and no correlated reference period. What makes it strong
//! is the history: when a block comes back, the last use in its earlier life counts as the last
//! but one. [`Lru2History`] says how much of it is kept. The paper's is unlimited, which is the
//! exact form; the bounded one remembers as many blocks as the shard holds, at 32 to 36 bytes a
//! ghost.
//!
//! Over a clean restart the order and which blocks were used twice are kept. When each was used
//! last is lost but for that order, and the history with it.
//!
//! **Invariants**
//! - The heap holds every known block under the ticks of its last use but one, zero when there
//!   was none, and its last use.
//! - A known block has no ghost of its own making: its id left the history when it came.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use super::ghost::{Ghosts, UNBOUNDED};
use super::heap::Heap;
use super::list::Search;
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a block that was used twice or more; others have 0. Among the policies built in
/// only those with LRU-2 in their names give it.
pub(super) const TAG_TWICE: u8 = 72;

/// What LRU-2 keeps of the blocks that are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lru2History {
    /// Nothing: a block that comes back is new.
    None,
    /// The last use of as many blocks as the shard is expected to hold.
    Bounded,
    /// The last use of every block, up to 16 million of them.
    Unbounded,
}

/// LRU-2 by a heap. A hit costs the logarithm of the count of blocks.
pub struct Lru2 {
    history: Lru2History,
    heap: Heap,
    /// Counts inserts and hits; the order of uses.
    tick: u64,
    past: Option<Past>,
}

/// The history, and what is needed to enter blocks in it.
struct Past {
    /// The id under which each block would be remembered.
    ids: HugeVec<u64>,
    ghosts: Ghosts,
    /// The last use of each ghost, by its number.
    last_uses: HugeVec<u64>,
}

impl Past {
    /// Forgets `id`; its last use, or zero.
    fn take(&mut self, id: KeyHash) -> u64 {
        let ghost = self.ghosts.forget(id);
        ghost.map_or(0, |ghost| self.last_uses[ghost.0 as usize])
    }

    fn remember(&mut self, block: BlockIx, last_use: u64) {
        let id = KeyHash(self.ids[block.0 as usize]);
        if let Some(ghost) = self.ghosts.remember(id) {
            self.last_uses.grow_to(ghost.0 as usize + 1);
            self.last_uses[ghost.0 as usize] = last_use;
        }
    }
}

impl Lru2 {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(history: Lru2History, config: PolicyConfig) -> Result<Self, PolicyError> {
        let past = |ghosts, ghosts_max: u32| {
            Ok::<_, PolicyError>(Past {
                ids: HugeVec::with_capacity(config.blocks_max as usize)?,
                ghosts,
                last_uses: HugeVec::with_capacity(ghosts_max as usize)?,
            })
        };
        let past = match history {
            Lru2History::None => None,
            Lru2History::Bounded => Some(past(
                Ghosts::bounded(config.blocks_max, config.capacity_blocks)?,
                config.blocks_max,
            )?),
            Lru2History::Unbounded => Some(past(Ghosts::unbounded()?, UNBOUNDED)?),
        };
        Ok(Self {
            history,
            heap: Heap::new(config.blocks_max)?,
            tick: 0,
            past,
        })
    }

    /// Takes in a block whose last use but one is `before`, if it is in no history.
    fn enter(&mut self, block: BlockIx, id: KeyHash, before: Option<u64>) {
        self.tick += 1;
        let mut remembered = 0;
        if let Some(past) = &mut self.past {
            past.ids.grow_to(block.0 as usize + 1);
            past.ids[block.0 as usize] = id.0;
            remembered = past.take(id);
        }
        let before = before.unwrap_or(remembered);
        self.heap.insert(block, [before, self.tick]);
    }
}

impl Policy for Lru2 {
    fn name(&self) -> &'static str {
        match self.history {
            Lru2History::None => "LRU2nohist",
            Lru2History::Bounded => "LRU2-bounded",
            Lru2History::Unbounded => "LRU2hist",
        }
    }

    fn set_capacity(&mut self, blocks: usize) {
        if let (Lru2History::Bounded, Some(past)) = (self.history, &mut self.past) {
            past.ghosts.set_count_max(blocks);
        }
    }

    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        self.tick += 1;
        let [_, last_use] = self.heap.key(block);
        self.heap.raise(block, [last_use, self.tick]);
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        self.enter(block, access.id, None);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.heap.remove(block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let victim = self.heap.pop(&mut Search::new(evictable))?;
        if let Some(past) = &mut self.past {
            let [_, last_use] = self.heap.last_key(victim);
            past.remember(victim, last_use);
        }
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for block in self.heap.in_order() {
            let [before, _] = self.heap.key(block);
            visit(block, if before > 0 { TAG_TWICE } else { 0 });
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        let before = (tag == TAG_TWICE).then_some(self.tick + 1);
        self.enter(block, access.id, before);
    }

    fn len(&self) -> usize {
        self.heap.len()
    }

    fn bytes(&self) -> PolicyBytes {
        let (mut resident, mut ghosts) = (self.heap.bytes(), 0);
        if let Some(past) = &self.past {
            resident += past.ids.bytes();
            ghosts = past.ghosts.bytes() + past.last_uses.bytes();
        }
        PolicyBytes { resident, ghosts }
    }

    fn check(&self) {
        self.heap.check();
        if let Some(past) = &self.past {
            past.ghosts.check();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of victims when block 0 goes and comes back, then 2 comes; 1 is used twice.
    fn order_after_a_return(history: Lru2History) -> Vec<u32> {
        let config = PolicyConfig {
            capacity_blocks: 3,
            blocks_max: 3,
            below_blocks: 0,
            shards: 1,
        };
        let mut policy = Lru2::new(history, config).unwrap();
        let access = |id| Access::plain(KeyHash(id));
        policy.on_insert(BlockIx(0), &access(0));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
        policy.on_insert(BlockIx(1), &access(1));
        policy.on_hit(BlockIx(1), &access(1));
        policy.on_insert(BlockIx(0), &access(0));
        policy.on_insert(BlockIx(2), &access(2));
        policy.check();
        let order = std::iter::from_fn(|| policy.victim(&mut |_| true));
        order.map(|block| block.0).collect()
    }

    #[test]
    fn lru2_block_that_comes_back_counts_its_earlier_life_if_there_is_a_history() {
        assert_eq!(order_after_a_return(Lru2History::None), [0, 2, 1]);
        for history in [Lru2History::Bounded, Lru2History::Unbounded] {
            assert_eq!(order_after_a_return(history), [2, 0, 1]);
        }
    }
}
