//! Ghosts: the ids of blocks that are gone, in the order in which they were remembered.
//!
//! A table of chains over numbered ghosts. The number of a forgotten ghost is used again, so
//! that a policy can keep more of a ghost in an array of its own beside this one.
//!
//! **Invariants**
//! - There are at most as many ghosts as allowed; the oldest is forgotten first. The one that is
//!   expected to go does not count and is not forgotten for others.
//! - Every remembered ghost is in the chain of its id, and in no other.
//!
//! Where the bound is given, nothing is moved or rehashed while blocks come and go, so no
//! insert is slower than the others; only a larger bound makes the table larger. Without a
//! bound the table doubles when there are as many ghosts as chains.

use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::{BlockIx, KeyHash};

use super::list::{Links, List};

/// Ghosts of a history that is unlimited as its paper has it. An array has to end somewhere;
/// this is 16 million ghosts, half a GiB of them.
pub(super) const UNBOUNDED: u32 = 1 << 24;

/// Ids that are gone. See the module's text.
pub(super) struct Ghosts {
    count_max: usize,
    ids: HugeVec<u64>,
    /// The next ghost of the chain that a ghost is in, as its number plus one; zero at the end.
    chain_next: HugeVec<u32>,
    /// The first ghost of each chain, in the same way. A power of two of them.
    chain_first: HugeVec<u32>,
    links: Links,
    remembered: List,
    unused: List,
    /// The ghost of a block that is about to come; see [`Ghosts::expect`].
    expected: Option<BlockIx>,
}

impl Ghosts {
    /// At most `ghosts_max` ghosts ever, and `count_max` until that is changed.
    pub(super) fn bounded(ghosts_max: u32, count_max: usize) -> Result<Self, HugeVecError> {
        let mut ghosts = Self::empty(ghosts_max)?;
        ghosts.set_count_max(count_max);
        Ok(ghosts)
    }

    /// [`UNBOUNDED`] ghosts. The table takes memory as they become more.
    pub(super) fn unbounded() -> Result<Self, HugeVecError> {
        let mut ghosts = Self::empty(UNBOUNDED)?;
        ghosts.set_count_max(1);
        ghosts.count_max = UNBOUNDED as usize;
        Ok(ghosts)
    }

    fn empty(ghosts_max: u32) -> Result<Self, HugeVecError> {
        // One more while one is expected.
        let numbers = ghosts_max.saturating_add(1);
        let capacity = numbers as usize;
        Ok(Self {
            count_max: 0,
            ids: HugeVec::with_capacity(capacity)?,
            chain_next: HugeVec::with_capacity(capacity)?,
            chain_first: HugeVec::with_capacity(capacity.next_power_of_two())?,
            links: Links::new(numbers)?,
            remembered: List::EMPTY,
            unused: List::EMPTY,
            expected: None,
        })
    }

    /// Changes how many ids are remembered.
    pub(super) fn set_count_max(&mut self, count_max: usize) {
        self.count_max = count_max.min(self.ids.capacity() - 1);
        self.trim();
        self.grow_table(self.count_max.next_power_of_two());
    }

    /// Count of ids remembered, but for one that is expected.
    pub(super) const fn len(&self) -> usize {
        self.remembered.len() - self.expected.is_some() as usize
    }

    /// Whether one more id makes the oldest go.
    pub(super) const fn is_full(&self) -> bool {
        self.len() >= self.count_max
    }

    /// The number of the ghost of `id`, if it is remembered.
    pub(super) fn find(&self, id: KeyHash) -> Option<BlockIx> {
        let mut ghost = self.chain_first[self.chain_of(id.0)];
        while ghost != 0 && self.ids[ghost as usize - 1] != id.0 {
            ghost = self.chain_next[ghost as usize - 1];
        }
        (ghost != 0).then(|| BlockIx(ghost - 1))
    }

    /// Remembers `id` as the newest, and says under which number; none when nothing may be
    /// remembered.
    pub(super) fn remember(&mut self, id: KeyHash) -> Option<BlockIx> {
        if self.count_max == 0 {
            return None;
        }
        // Two keys with one hash may both be resident and leave one after the other.
        self.forget(id);
        if self.is_full() {
            self.forget_oldest();
        }
        let chains = self.chain_first.len();
        if self.remembered.len() >= chains && self.count_max > chains {
            self.grow_table(2 * chains);
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
        Some(ghost)
    }

    /// Forgets `id`; the number of its ghost if it was remembered.
    pub(super) fn forget(&mut self, id: KeyHash) -> Option<BlockIx> {
        let ghost = self.find(id)?;
        self.forget_ghost(ghost);
        Some(ghost)
    }

    /// Forgets the oldest id that is not expected; the number of its ghost.
    pub(super) fn forget_oldest(&mut self) -> Option<BlockIx> {
        let mut oldest = self.remembered.tail()?;
        if self.expected == Some(oldest) {
            oldest = self.links.toward_head(oldest)?;
        }
        self.forget_ghost(oldest);
        Some(oldest)
    }

    /// Forgets the ghost of this number.
    pub(super) fn forget_ghost(&mut self, ghost: BlockIx) {
        if self.expected == Some(ghost) {
            self.expected = None;
        }
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

    /// The block of `id` is about to come and its ghost to be forgotten: from here on that ghost
    /// does not count, so that those of the blocks which make room find its place free. It stays
    /// where it is until then, and counts again when another block is expected instead.
    pub(super) fn expect(&mut self, id: KeyHash) {
        self.expected = self.find(id);
        self.trim();
    }

    fn trim(&mut self) {
        while self.len() > self.count_max {
            self.forget_oldest();
        }
    }

    /// Makes the table of chains at least this long.
    fn grow_table(&mut self, chains: usize) {
        if chains <= self.chain_first.len() {
            return;
        }
        self.chain_first.fill(0);
        self.chain_first.grow_to(chains);
        let mut cursor = self.remembered.tail();
        while let Some(ghost) = cursor {
            self.chain(ghost);
            cursor = self.links.toward_head(ghost);
        }
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

    /// The numbers of all remembered ghosts; for tests.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        let ghosts = self.links.oldest_first(&self.remembered);
        ghosts.map(|ghost| ghost.0 as usize)
    }

    /// Bytes in use: 20 a ghost, and 4 to 8 more for its chain.
    pub(super) fn bytes(&self) -> u64 {
        self.ids.bytes() + self.chain_next.bytes() + self.chain_first.bytes() + self.links.bytes()
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self) {
        self.links.check(&[&self.remembered, &self.unused]);
        assert_eq!(
            self.ids.len(),
            self.remembered.len() + self.unused.len(),
            "ghost numbers"
        );
        assert!(self.len() <= self.count_max, "more ghosts than allowed");
        if let Some(ghost) = self.expected {
            let id = KeyHash(self.ids[ghost.0 as usize]);
            assert_eq!(self.find(id), Some(ghost), "an expected ghost is there");
        }
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

    #[test]
    fn ghosts_beyond_their_count_forget_the_oldest() {
        let mut ghosts = Ghosts::bounded(100, 3).unwrap();
        (0..5).for_each(|id| {
            ghosts.remember(KeyHash(id));
        });
        ghosts.remember(KeyHash(2));
        ghosts.check();
        let left: Vec<_> = (0..5)
            .filter(|&id| ghosts.forget(KeyHash(id)).is_some())
            .collect();
        assert_eq!(left, [2, 3, 4]);
        ghosts.check();
    }

    #[test]
    fn ghosts_survive_a_larger_count_and_yield_to_a_smaller_one() {
        let mut ghosts = Ghosts::bounded(1000, 4).unwrap();
        (0..4).for_each(|id| {
            ghosts.remember(KeyHash(id << 32));
        });
        ghosts.set_count_max(500);
        ghosts.check();
        (4..500).for_each(|id| {
            ghosts.remember(KeyHash(id << 32));
        });
        assert_eq!(ghosts.len(), 500);
        ghosts.set_count_max(10);
        ghosts.check();
        assert!(ghosts.forget(KeyHash(489 << 32)).is_none());
        assert!(ghosts.forget(KeyHash(490 << 32)).is_some());
        ghosts.set_count_max(0);
        ghosts.remember(KeyHash(7));
        ghosts.check();
        assert!(ghosts.remembered.is_empty());
    }

    #[test]
    fn ghosts_are_never_more_than_numbers() {
        let mut ghosts = Ghosts::bounded(2, usize::MAX).unwrap();
        (0..9).for_each(|id| {
            ghosts.remember(KeyHash(id));
        });
        ghosts.check();
        assert_eq!(ghosts.len(), 2);
    }

    #[test]
    fn ghosts_without_a_bound_keep_all_and_the_table_grows() {
        let mut ghosts = Ghosts::unbounded().unwrap();
        for id in 0..1000 {
            ghosts.remember(KeyHash(id << 40));
        }
        ghosts.check();
        assert!((0..1000).all(|id| ghosts.find(KeyHash(id << 40)).is_some()));
        assert_eq!(ghosts.chain_first.len(), 1024);
    }

    fn remembered(ghosts: &Ghosts) -> Vec<u64> {
        ghosts.check();
        let oldest_first = ghosts.links.oldest_first(&ghosts.remembered);
        oldest_first
            .map(|ghost| ghosts.ids[ghost.0 as usize])
            .collect()
    }

    #[test]
    fn ghost_expected_gives_its_place_to_another_and_stays_until_its_block_comes() {
        let mut ghosts = Ghosts::bounded(2, 2).unwrap();
        for id in [1, 2] {
            ghosts.remember(KeyHash(id));
        }
        ghosts.expect(KeyHash(1));
        ghosts.remember(KeyHash(3));
        assert_eq!(remembered(&ghosts), [1, 2, 3]);
        ghosts.remember(KeyHash(4));
        assert_eq!(remembered(&ghosts), [1, 3, 4]);
        assert!(ghosts.forget(KeyHash(1)).is_some());
        assert_eq!(remembered(&ghosts), [3, 4]);
    }

    #[test]
    fn ghost_expected_counts_again_when_its_block_does_not_come() {
        let mut ghosts = Ghosts::bounded(2, 2).unwrap();
        for id in [1, 2] {
            ghosts.remember(KeyHash(id));
        }
        ghosts.expect(KeyHash(2));
        ghosts.remember(KeyHash(3));
        ghosts.expect(KeyHash(9));
        assert_eq!(remembered(&ghosts), [2, 3]);
        ghosts.expect(KeyHash(3));
        ghosts.set_count_max(0);
        assert_eq!(remembered(&ghosts), [3]);
        ghosts.expect(KeyHash(9));
        assert_eq!(remembered(&ghosts), []);
    }
}
