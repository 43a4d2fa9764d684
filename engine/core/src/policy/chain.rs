//! Which resident block comes before which: 8 bytes a block, and 8 more for one with several
//! children. The prefix-aware policies share it: they give up leaves only, blocks without a
//! resident child, so that what is resident is whole from its roots on.
//!
//! A block with one child names that child and the child names it. The children of a block with
//! more name a family, and so does their parent: thus children become roots in one step when
//! their parent leaves, and no list of them is kept.
//!
//! **Invariants**
//! - A known block has at most one parent, which is known, and no block comes before itself.
//! - A family counts the children that name it; one that nobody names is unused.
//!
//! A leaf has room for a number of its policy's own, its mark, where others name their child.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::BlockIx;

use super::list::Search;

/// Largest mark of a leaf.
pub(super) const MARK_MAX: u32 = (1 << 30) - 1;

/// What a word of a block holds is told by its lowest bits; the number is above them.
const KIND_BITS: u32 = 2;
/// In `below`: a leaf and its mark. In `above`: a root. Zero, so that fresh memory is right.
const NONE: u32 = 0;
/// The number of a block.
const BLOCK: u32 = 1;
/// The number of a family.
const FAMILY: u32 = 2;

/// See the module's text.
pub(super) struct Chain {
    /// By block: its parent, or the family it is in.
    above: HugeVec<u32>,
    /// By block: its only child, or the family of its children, or a leaf's mark.
    below: HugeVec<u32>,
    /// By family: its parent plus one, zero when that is gone, and the count of its children. Of
    /// an unused one the next unused plus one.
    families: HugeVec<[u32; 2]>,
    /// The first unused family plus one.
    unused: u32,
}

const fn word(kind: u32, number: u32) -> u32 {
    number << KIND_BITS | kind
}

const fn split(word: u32) -> (u32, u32) {
    (word & ((1 << KIND_BITS) - 1), word >> KIND_BITS)
}

impl Chain {
    /// A chain for blocks numbered below `blocks_max`. Takes address space, not memory.
    pub(super) fn new(blocks_max: u32) -> Result<Self, HugeVecError> {
        // A number plus one must fit beside the bits of its kind.
        let capacity = blocks_max.min(MARK_MAX) as usize;
        Ok(Self {
            above: HugeVec::with_capacity(capacity)?,
            below: HugeVec::with_capacity(capacity)?,
            families: HugeVec::with_capacity(capacity)?,
            unused: 0,
        })
    }

    /// Asks the processor for what is known of a block.
    pub(super) fn prefetch(&self, block: BlockIx) {
        self.above.prefetch(block.0 as usize);
        self.below.prefetch(block.0 as usize);
    }

    /// Takes in a block that is not known, as a leaf with mark zero below `parent`, which is
    /// known. The mark that `parent` had as a leaf is lost.
    pub(super) fn insert(&mut self, block: BlockIx, parent: Option<BlockIx>) {
        let index = block.0 as usize;
        self.above.grow_to(index + 1);
        self.below.grow_to(index + 1);
        self.above[index] = word(NONE, 0);
        self.below[index] = word(NONE, 0);
        if let Some(parent) = parent {
            self.link(block, parent);
        }
    }

    /// Puts a root below `parent`, which is known and does not come after it. The mark that
    /// `parent` had as a leaf is lost.
    pub(super) fn link(&mut self, block: BlockIx, parent: BlockIx) {
        debug_assert_eq!(self.parent(block), None, "{block:?} is no root");
        debug_assert_ne!(block, parent);
        if let (FAMILY, orphans) = split(self.above[block.0 as usize]) {
            self.leave(orphans);
        }
        let (kind, number) = split(self.below[parent.0 as usize]);
        let above = match kind {
            BLOCK => {
                let family = self.found(parent);
                self.above[number as usize] = word(FAMILY, family);
                self.families[family as usize][1] = 2;
                word(FAMILY, family)
            }
            FAMILY => {
                self.families[number as usize][1] += 1;
                word(FAMILY, number)
            }
            _ => {
                self.below[parent.0 as usize] = word(BLOCK, block.0);
                word(BLOCK, parent.0)
            }
        };
        self.above[block.0 as usize] = above;
    }

    /// Takes a known block out; its children become roots. The parent, if this made it a leaf
    /// (its mark is zero then).
    pub(super) fn remove(&mut self, block: BlockIx) -> Option<BlockIx> {
        let index = block.0 as usize;
        match split(self.below[index]) {
            (BLOCK, child) => self.above[child as usize] = word(NONE, 0),
            (FAMILY, family) => self.families[family as usize][0] = 0,
            _ => {}
        }
        self.below[index] = word(NONE, 0);
        let parent = match split(std::mem::take(&mut self.above[index])) {
            (BLOCK, parent) => Some(parent),
            (FAMILY, family) => self.leave(family),
            _ => None,
        }?;
        self.below[parent as usize] = word(NONE, 0);
        Some(BlockIx(parent))
    }

    /// One child fewer in `family`. The parent, if it is there and this was the last.
    fn leave(&mut self, family: u32) -> Option<u32> {
        let [parent, count] = &mut self.families[family as usize];
        *count -= 1;
        if *count > 0 {
            return None;
        }
        let gone = std::mem::replace(parent, self.unused);
        self.unused = family + 1;
        gone.checked_sub(1)
    }

    /// A new family of `parent`.
    fn found(&mut self, parent: BlockIx) -> u32 {
        let family = match self.unused.checked_sub(1) {
            Some(family) => {
                self.unused = self.families[family as usize][0];
                family
            }
            None => {
                // A family has two children or had: there are fewer of them than blocks.
                let family = self.families.len();
                self.families.grow_to(family + 1);
                family as u32
            }
        };
        self.families[family as usize] = [parent.0 + 1, 0];
        self.below[parent.0 as usize] = word(FAMILY, family);
        family
    }

    /// The block before a known block, if that is resident.
    pub(super) fn parent(&self, block: BlockIx) -> Option<BlockIx> {
        match split(self.above[block.0 as usize]) {
            (BLOCK, parent) => Some(BlockIx(parent)),
            (FAMILY, family) => self.families[family as usize][0]
                .checked_sub(1)
                .map(BlockIx),
            _ => None,
        }
    }

    /// Count of a known block's resident children.
    pub(super) fn children(&self, block: BlockIx) -> u32 {
        match split(self.below[block.0 as usize]) {
            (BLOCK, _) => 1,
            (FAMILY, family) => self.families[family as usize][1],
            _ => 0,
        }
    }

    /// Whether a known block has no resident child.
    #[inline]
    pub(super) fn is_leaf(&self, block: BlockIx) -> bool {
        split(self.below[block.0 as usize]).0 == NONE
    }

    /// The mark of a leaf.
    #[inline]
    pub(super) fn mark(&self, leaf: BlockIx) -> u32 {
        debug_assert!(self.is_leaf(leaf), "{leaf:?} has children");
        split(self.below[leaf.0 as usize]).1
    }

    /// Marks a leaf with a number of up to [`MARK_MAX`].
    #[inline]
    pub(super) fn set_mark(&mut self, leaf: BlockIx, mark: u32) {
        debug_assert!(self.is_leaf(leaf), "{leaf:?} has children");
        debug_assert!(mark <= MARK_MAX);
        self.below[leaf.0 as usize] = word(NONE, mark);
    }

    /// A block to give up when the search refused every leaf it came to: the nearest of the
    /// blocks above those, and above `spared`, that it accepts. Its children will be roots.
    ///
    /// Slots come in classes and blocks are pinned, so it may be that no leaf serves. A filter
    /// that refused nothing has no need of this.
    pub(super) fn last_resort(
        &self,
        spared: Option<BlockIx>,
        search: &mut Search<'_>,
    ) -> Option<BlockIx> {
        // The list of refused blocks grows while it is walked: it is the front of a walk upward.
        let mut at = 0;
        while let Some(&refused) = search.refused().get(at) {
            at += 1;
            let above = self.parent(refused).filter(|above| Some(*above) != spared);
            if let Some(block) = above.filter(|above| search.accepts_unless_refused(*above)) {
                return Some(block);
            }
        }
        let mut above = spared.and_then(|spared| self.parent(spared));
        while let Some(block) = above.filter(|_| at > 0 && !search.is_over()) {
            if search.accepts_unless_refused(block) {
                return Some(block);
            }
            above = self.parent(block);
        }
        None
    }

    /// All blocks in the order in which they would go from these leaves on, which are all there
    /// are, the smallest key first. Allocates.
    pub(super) fn in_order<K: Ord>(
        &self,
        leaves: impl Iterator<Item = BlockIx>,
        key: impl Fn(BlockIx) -> K,
    ) -> Vec<BlockIx> {
        let keyed = |block: BlockIx| Reverse((key(block), block));
        let mut next: BinaryHeap<_> = leaves.map(keyed).collect();
        let mut children: HashMap<BlockIx, u32> = HashMap::new();
        let mut order = Vec::new();
        while let Some(Reverse((_, block))) = next.pop() {
            order.push(block);
            let Some(parent) = self.parent(block) else {
                continue;
            };
            let left = children
                .entry(parent)
                .or_insert_with(|| self.children(parent));
            *left -= 1;
            if *left == 0 {
                next.push(keyed(parent));
            }
        }
        order
    }

    /// Bytes in use.
    pub(super) const fn bytes(&self) -> u64 {
        self.above.bytes() + self.below.bytes() + self.families.bytes()
    }

    /// Panics unless the `known` blocks name each other; for tests. That none comes before
    /// itself shows when all of them are [in order](Chain::in_order).
    pub(super) fn check(&self, known: &[BlockIx]) {
        let mut children: HashMap<BlockIx, u32> = HashMap::new();
        for parent in known.iter().filter_map(|&block| self.parent(block)) {
            *children.entry(parent).or_insert(0) += 1;
        }
        for block in known {
            let count = children.remove(block).unwrap_or(0);
            assert_eq!(self.children(*block), count, "children of {block:?}");
        }
        assert!(children.is_empty(), "parents that are gone: {children:?}");
        let mut unused = 0;
        let mut family = self.unused;
        while let Some(number) = family.checked_sub(1) {
            unused += 1;
            family = self.families[number as usize][0];
        }
        let used = self.families.iter().filter(|[_, count]| *count > 0);
        assert_eq!(used.count() + unused, self.families.len(), "families");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain of blocks from zero on, each below the one named.
    fn chain_of(parents: &[Option<u32>]) -> Chain {
        let mut chain = Chain::new(100).unwrap();
        for (block, parent) in (0..).zip(parents) {
            chain.insert(BlockIx(block), parent.map(BlockIx));
        }
        chain
    }

    fn check(chain: &Chain, known: &[u32]) {
        chain.check(&Vec::from_iter(known.iter().copied().map(BlockIx)));
    }

    fn parents(chain: &Chain, known: &[u32]) -> Vec<Option<u32>> {
        check(chain, known);
        let parents = known.iter().map(|&block| chain.parent(BlockIx(block)));
        parents.map(|parent| parent.map(|block| block.0)).collect()
    }

    #[test]
    fn parent_of_the_last_child_becomes_a_leaf() {
        let mut chain = chain_of(&[None, Some(0), Some(1)]);
        check(&chain, &[0, 1, 2]);
        assert_eq!(chain.remove(BlockIx(2)), Some(BlockIx(1)));
        assert_eq!(chain.remove(BlockIx(1)), Some(BlockIx(0)));
        assert_eq!(chain.remove(BlockIx(0)), None);
    }

    #[test]
    fn parent_of_several_children_becomes_a_leaf_with_the_last() {
        let mut chain = chain_of(&[None, Some(0), Some(0), Some(0)]);
        check(&chain, &[0, 1, 2, 3]);
        assert_eq!(chain.children(BlockIx(0)), 3);
        assert_eq!(chain.remove(BlockIx(1)), None);
        assert_eq!(chain.remove(BlockIx(3)), None);
        assert_eq!(parents(&chain, &[0, 2]), [None, Some(0)]);
        chain.insert(BlockIx(1), Some(BlockIx(0)));
        check(&chain, &[0, 1, 2]);
        assert_eq!(chain.remove(BlockIx(1)), None);
        assert_eq!(chain.remove(BlockIx(2)), Some(BlockIx(0)));
        assert!(chain.is_leaf(BlockIx(0)));
        assert_eq!(chain.mark(BlockIx(0)), 0);
    }

    #[test]
    fn children_of_a_removed_block_are_roots_also_when_its_number_is_used_again() {
        for count in 1..4 {
            let mut of = vec![None];
            of.extend(std::iter::repeat_n(Some(0), count));
            let mut chain = chain_of(&of);
            assert_eq!(chain.remove(BlockIx(0)), None);
            chain.insert(BlockIx(0), Some(BlockIx(1)));
            let known = Vec::from_iter(0..=count as u32);
            let mut expected = vec![None; count + 1];
            expected[0] = Some(1);
            assert_eq!(parents(&chain, &known), expected);
        }
    }

    #[test]
    fn family_is_used_again_only_when_its_last_orphan_is_gone() {
        let mut chain = chain_of(&[None, Some(0), Some(0), None, Some(3), Some(3)]);
        assert_eq!(chain.families.len(), 2);
        chain.remove(BlockIx(0));
        chain.insert(BlockIx(0), Some(BlockIx(1)));
        chain.insert(BlockIx(6), Some(BlockIx(1)));
        check(&chain, &[0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(chain.families.len(), 3);
        // The orphans 1 and 2 leave, and with them their family.
        chain.remove(BlockIx(2));
        chain.remove(BlockIx(1));
        chain.insert(BlockIx(1), Some(BlockIx(4)));
        chain.insert(BlockIx(2), Some(BlockIx(4)));
        check(&chain, &[0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(chain.families.len(), 3);
    }

    #[test]
    fn orphan_of_a_family_that_finds_a_parent_leaves_its_family() {
        let mut chain = chain_of(&[None, Some(0), Some(0), None]);
        chain.remove(BlockIx(0));
        chain.link(BlockIx(1), BlockIx(3));
        chain.link(BlockIx(2), BlockIx(3));
        assert_eq!(parents(&chain, &[1, 2, 3]), [Some(3), Some(3), None]);
        assert_eq!(chain.families.len(), 1);
    }

    #[test]
    fn linked_root_is_a_child_and_marks_are_of_leaves() {
        let mut chain = chain_of(&[None, None]);
        chain.set_mark(BlockIx(1), MARK_MAX);
        chain.link(BlockIx(1), BlockIx(0));
        assert_eq!(chain.mark(BlockIx(1)), MARK_MAX);
        assert_eq!(parents(&chain, &[0, 1]), [None, Some(0)]);
    }

    #[test]
    fn last_resort_is_the_nearest_block_above_a_refused_leaf() {
        // Two chains, 0 1 2 and 3 4, and 0 has a second child, 5.
        let chain = chain_of(&[None, Some(0), Some(1), None, Some(3), Some(0)]);
        let asked_with = |wanted: Option<u32>, spared: Option<u32>| {
            let mut asked = Vec::new();
            let mut filter = |block: BlockIx| {
                asked.push(block.0);
                Some(block.0) == wanted
            };
            let mut search = Search::new(&mut filter);
            for leaf in [2, 4, 5] {
                if Some(leaf) != spared {
                    assert!(!search.accepts(BlockIx(leaf)));
                }
            }
            let found = chain.last_resort(spared.map(BlockIx), &mut search);
            assert_eq!(found.map(|block| block.0), wanted);
            asked
        };
        assert_eq!(asked_with(Some(0), None), [2, 4, 5, 1, 3, 0]);
        assert_eq!(asked_with(None, None), [2, 4, 5, 1, 3, 0]);
        assert_eq!(asked_with(Some(1), Some(2)), [4, 5, 3, 0, 1]);
        assert_eq!(asked_with(None, Some(4)), [2, 5, 1, 0, 3]);
    }

    #[test]
    fn last_resort_is_none_when_nothing_was_refused() {
        let chain = chain_of(&[None, Some(0)]);
        let mut all = |_| true;
        let mut search = Search::new(&mut all);
        assert_eq!(chain.last_resort(Some(BlockIx(1)), &mut search), None);
    }
}
