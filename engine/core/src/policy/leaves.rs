//! Leaves in the order in which they go: a heap, or several, over the blocks of a chain that
//! have no resident child. With the chain 28 bytes a block, and 8 more for one with several
//! children.
//!
//! A block keeps its key while it is no leaf. The tip, the last block of the request under way,
//! is in no heap while it is the tip, leaf or not: the block that comes next is to go after it.
//!
//! **Invariants**
//! - A heap holds every leaf but the tip, once; a leaf's mark is its place plus one, and zero for
//!   one that is in no heap.
//! - No leaf's key is smaller than that of the leaf above it in its heap. Of equal keys, which
//!   only wrong hints make, the smaller block number is the smaller.

use bytemuck::Zeroable;
use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::BlockIx;

use super::chain::{Chain, MARK_MAX};
use super::list::Search;

/// Children of a place in a heap.
const WIDTH: usize = 4;

/// What leaves are compared by, and all that is known of a block's uses: from the highest bits
/// its rank, its last use, its depth (deeper is smaller) and its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Zeroable)]
#[repr(transparent)]
pub(super) struct Key(u128);

impl Key {
    /// Bits of the rank and of the last use: counters of requests and uses.
    const WIDE: u32 = 40;
    /// Bits of the depth and of the uses.
    const NARROW: u32 = 24;

    /// A key; what is too large is cut to the largest there is.
    pub(super) fn new(rank: u64, last_use: u64, depth: u32, uses: u32) -> Self {
        let wide = |number: u64| u128::from(number.min((1 << Self::WIDE) - 1));
        let narrow = |number: u32| u128::from(number.min((1 << Self::NARROW) - 1));
        let shallower = ((1 << Self::NARROW) - 1) - narrow(depth);
        let upper = wide(rank) << Self::WIDE | wide(last_use);
        let lower = shallower << Self::NARROW | narrow(uses);
        Self(upper << (2 * Self::NARROW) | lower)
    }

    fn bits(self, from: u32, count: u32) -> u64 {
        (self.0 >> from) as u64 & ((1 << count) - 1)
    }

    /// What comes first in the order.
    pub(super) fn rank(self) -> u64 {
        self.bits(2 * Self::NARROW + Self::WIDE, Self::WIDE)
    }

    /// When the block was used last.
    pub(super) fn last_use(self) -> u64 {
        self.bits(2 * Self::NARROW, Self::WIDE)
    }

    /// Count of blocks before it in its chain, at its last use.
    pub(super) fn depth(self) -> u32 {
        ((1 << Self::NARROW) - 1) - self.bits(Self::NARROW, Self::NARROW) as u32
    }

    /// How often it was used.
    pub(super) fn uses(self) -> u32 {
        self.bits(0, Self::NARROW) as u32
    }
}

/// One heap.
struct Heap {
    /// By place. Those from `len` on are stale.
    blocks: HugeVec<u32>,
    len: usize,
}

/// See the module's text.
pub(super) struct Leaves {
    pub(super) chain: Chain,
    /// By block; stale when the block is not known.
    keys: HugeVec<Key>,
    heaps: Vec<Heap>,
    /// The heap that a leaf of this key is in.
    heap_of: fn(Key) -> usize,
    tip: Option<BlockIx>,
    len: usize,
}

impl Leaves {
    /// No blocks, of those numbered below `blocks_max`, and `heaps` heaps for them. Takes
    /// address space, not memory.
    pub(super) fn new(
        blocks_max: u32,
        heaps: usize,
        heap_of: fn(Key) -> usize,
    ) -> Result<Self, HugeVecError> {
        let capacity = blocks_max.min(MARK_MAX) as usize;
        let heap = |_| {
            Ok(Heap {
                blocks: HugeVec::with_capacity(capacity)?,
                len: 0,
            })
        };
        Ok(Self {
            chain: Chain::new(blocks_max)?,
            keys: HugeVec::with_capacity(capacity)?,
            heaps: (0..heaps).map(heap).collect::<Result<_, HugeVecError>>()?,
            heap_of,
            tip: None,
            len: 0,
        })
    }

    /// Count of known blocks.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The key of a block that is known, or was the last to be taken out.
    pub(super) fn key(&self, block: BlockIx) -> Key {
        self.keys[block.0 as usize]
    }

    /// Count of heaps.
    pub(super) const fn heaps(&self) -> usize {
        self.heaps.len()
    }

    /// Makes `tip` the tip, and the one before a leaf as any other.
    pub(super) fn set_tip(&mut self, tip: Option<BlockIx>) {
        if tip == self.tip {
            return;
        }
        let before = std::mem::replace(&mut self.tip, tip);
        if let Some(leaf) = before.filter(|before| self.chain.is_leaf(*before)) {
            self.enter_heap(leaf);
        }
        if let Some(leaf) = tip.filter(|tip| self.chain.is_leaf(*tip)) {
            self.leave_heap(leaf);
        }
    }

    /// Takes in a block that is not known, below a known one, and makes it the tip.
    pub(super) fn insert(&mut self, block: BlockIx, parent: Option<BlockIx>, key: Key) {
        self.keys.grow_to(block.0 as usize + 1);
        self.keys[block.0 as usize] = key;
        self.leave_order(parent);
        self.chain.insert(block, parent);
        self.len += 1;
        // Not by `set_tip` for the block itself, which is in no heap yet.
        self.set_tip(None);
        self.tip = Some(block);
    }

    /// Gives a known block another key and makes it the tip. A block without parent goes below
    /// `parent`, when it has no children that might come before that.
    pub(super) fn use_again(&mut self, block: BlockIx, parent: Option<BlockIx>, key: Key) {
        self.set_tip(Some(block));
        self.keys[block.0 as usize] = key;
        let parent = parent.filter(|parent| *parent != block);
        if parent.is_some() && self.chain.is_leaf(block) && self.chain.parent(block).is_none() {
            self.leave_order(parent);
            parent
                .into_iter()
                .for_each(|parent| self.chain.link(block, parent));
        }
    }

    /// Takes a known block out.
    pub(super) fn remove(&mut self, block: BlockIx) {
        if self.tip == Some(block) {
            self.tip = None;
        } else if self.chain.is_leaf(block) {
            self.leave_heap(block);
        }
        self.len -= 1;
        let leaf = self.chain.remove(block);
        if let Some(leaf) = leaf.filter(|leaf| Some(*leaf) != self.tip) {
            self.enter_heap(leaf);
        }
    }

    /// Whether there is a leaf that is not the tip.
    pub(super) fn has_leaf(&self) -> bool {
        self.heaps.iter().any(|heap| heap.len > 0)
    }

    /// The smallest leaf of a heap.
    pub(super) fn first(&self, heap: usize) -> Option<BlockIx> {
        let heap = &self.heaps[heap];
        (heap.len > 0).then(|| BlockIx(heap.blocks[0]))
    }

    /// Takes out the block to give up: of the leaves that `choose` names one by one, heap by
    /// heap, the first that the search accepts, else the last resort. Refused leaves stay.
    pub(super) fn pop(
        &mut self,
        search: &mut Search<'_>,
        mut choose: impl FnMut(&Self) -> Option<usize>,
    ) -> Option<BlockIx> {
        let mut found = None;
        while let Some(heap) = choose(self).filter(|_| !search.is_over()) {
            let Some(leaf) = self.first(heap) else { break };
            if search.accepts(leaf) {
                found = Some(leaf);
                break;
            }
            self.leave_heap(leaf);
        }
        for &leaf in search.refused() {
            self.enter_heap(leaf);
        }
        let found = found.or_else(|| self.chain.last_resort(self.tip, search))?;
        self.remove(found);
        Some(found)
    }

    /// All blocks in the order in which they would go, were nothing used any more and were
    /// there one heap. Allocates.
    pub(super) fn in_order(&self) -> Vec<BlockIx> {
        let heaps = self.heaps.iter();
        let leaves = heaps.flat_map(|heap| heap.blocks[..heap.len].iter().copied().map(BlockIx));
        let tip = self.tip.filter(|tip| self.chain.is_leaf(*tip));
        self.chain
            .in_order(leaves.chain(tip), |block| self.key(block))
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        let heaps = self.heaps.iter().map(|heap| heap.blocks.bytes());
        self.chain.bytes() + self.keys.bytes() + heaps.sum::<u64>()
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self) {
        let known = self.in_order();
        assert_eq!(
            known.len(),
            self.len,
            "blocks that are leaves or before one"
        );
        self.chain.check(&known);
        let mut in_heaps = 0;
        for (number, heap) in self.heaps.iter().enumerate() {
            for (place, &block) in heap.blocks[..heap.len].iter().enumerate() {
                let block = BlockIx(block);
                assert_eq!(
                    self.chain.mark(block) as usize,
                    place + 1,
                    "place of a leaf"
                );
                assert_eq!((self.heap_of)(self.key(block)), number, "heap of {block:?}");
                assert_ne!(Some(block), self.tip, "the tip is in no heap");
                let above = BlockIx(heap.blocks[place.saturating_sub(1) / WIDTH]);
                assert!(place == 0 || self.order(above) < self.order(block), "order");
                in_heaps += 1;
            }
        }
        let leaves = known.iter().filter(|block| self.chain.is_leaf(**block));
        let tip = self.tip.filter(|tip| self.chain.is_leaf(*tip));
        assert_eq!(
            leaves.count(),
            in_heaps + usize::from(tip.is_some()),
            "leaves"
        );
    }

    /// `parent` is about to be no leaf any more.
    fn leave_order(&mut self, parent: Option<BlockIx>) {
        let leaf = parent.filter(|parent| self.chain.is_leaf(*parent));
        if let Some(leaf) = leaf.filter(|leaf| Some(*leaf) != self.tip) {
            self.leave_heap(leaf);
        }
    }

    fn order(&self, block: BlockIx) -> (Key, BlockIx) {
        (self.key(block), block)
    }

    fn enter_heap(&mut self, leaf: BlockIx) {
        debug_assert_eq!(self.chain.mark(leaf), 0, "{leaf:?} is in a heap");
        let number = (self.heap_of)(self.key(leaf));
        let heap = &mut self.heaps[number];
        heap.len += 1;
        heap.blocks.grow_to(heap.len);
        let place = heap.len - 1;
        self.put(number, place, leaf);
        self.rise(number, place);
    }

    fn leave_heap(&mut self, leaf: BlockIx) {
        let place = self.chain.mark(leaf) as usize;
        assert_ne!(place, 0, "{leaf:?} is in no heap");
        let place = place - 1;
        self.chain.set_mark(leaf, 0);
        let number = (self.heap_of)(self.key(leaf));
        let heap = &mut self.heaps[number];
        heap.len -= 1;
        if place < heap.len {
            let last = BlockIx(heap.blocks[heap.len]);
            self.put(number, place, last);
            self.rise(number, place);
            self.sink(number, place);
        }
    }

    fn put(&mut self, heap: usize, place: usize, leaf: BlockIx) {
        self.heaps[heap].blocks[place] = leaf.0;
        self.chain.set_mark(leaf, place as u32 + 1);
    }

    /// Moves the leaf at `place` up to where the one above it is not larger.
    fn rise(&mut self, heap: usize, mut place: usize) {
        let leaf = BlockIx(self.heaps[heap].blocks[place]);
        while place > 0 {
            let above = (place - 1) / WIDTH;
            let other = BlockIx(self.heaps[heap].blocks[above]);
            if self.order(other) < self.order(leaf) {
                break;
            }
            self.put(heap, place, other);
            place = above;
        }
        self.put(heap, place, leaf);
    }

    /// Moves the leaf at `place` down to where none below it is smaller.
    fn sink(&mut self, heap: usize, mut place: usize) {
        let leaf = BlockIx(self.heaps[heap].blocks[place]);
        loop {
            let Heap { blocks, len } = &self.heaps[heap];
            let first = place * WIDTH + 1;
            let children = first..(first + WIDTH).min(*len);
            let order_at = |&child: &usize| self.order(BlockIx(blocks[child]));
            match children.min_by_key(order_at) {
                Some(child) if order_at(&child) < self.order(leaf) => {
                    let smaller = BlockIx(blocks[child]);
                    self.put(heap, place, smaller);
                    place = child;
                }
                _ => break,
            }
        }
        self.put(heap, place, leaf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_tells_what_it_was_made_of_and_orders_deeper_first() {
        let key = Key::new(3, 70_000, 20, 9);
        let told = (key.rank(), key.last_use(), key.depth(), key.uses());
        assert_eq!(told, (3, 70_000, 20, 9));
        let ascending = [
            Key::new(0, u64::MAX, 0, u32::MAX),
            Key::new(3, 1, 21, 9),
            Key::new(3, 1, 20, 1),
            Key::new(3, 1, 20, 2),
            Key::new(3, 2, u32::MAX, 0),
            Key::new(u64::MAX, 0, 0, 0),
        ];
        assert!(ascending.is_sorted(), "{ascending:?}");
    }

    /// Two chains, 0 1 2 and 3 4, used in this order; 4 is the tip.
    fn two_chains() -> Leaves {
        let mut leaves = Leaves::new(10, 1, |_| 0).unwrap();
        for (block, parent) in (0..).zip([None, Some(0), Some(1), None, Some(3)]) {
            let key = Key::new(0, u64::from(block / 3), block % 3, 1);
            leaves.insert(BlockIx(block), parent.map(BlockIx), key);
            leaves.check();
        }
        leaves
    }

    fn pop(leaves: &mut Leaves, mut accepts: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut filter = |block: BlockIx| accepts(block.0);
        let mut search = Search::new(&mut filter);
        let popped = leaves.pop(&mut search, |leaves| leaves.has_leaf().then_some(0));
        leaves.check();
        popped.map(|block| block.0)
    }

    #[test]
    fn leaves_go_from_the_ends_of_their_chains_and_the_tip_not_at_all() {
        let mut leaves = two_chains();
        assert_eq!(leaves.in_order(), [2, 1, 0, 4, 3].map(BlockIx));
        let order = Vec::from_iter(std::iter::from_fn(|| pop(&mut leaves, |_| true)));
        assert_eq!(order, [2, 1, 0]);
        leaves.set_tip(None);
        let order = Vec::from_iter(std::iter::from_fn(|| pop(&mut leaves, |_| true)));
        assert_eq!(order, [4, 3]);
        assert_eq!(leaves.len(), 0);
    }

    #[test]
    fn block_above_refused_leaves_goes_and_its_children_are_roots() {
        let mut leaves = two_chains();
        assert_eq!(pop(&mut leaves, |block| block == 0), Some(0));
        assert_eq!(leaves.chain.parent(BlockIx(1)), None);
        assert_eq!(pop(&mut leaves, |_| false), None);
        leaves.set_tip(None);
        assert_eq!(leaves.in_order(), [2, 1, 4, 3].map(BlockIx));
    }

    #[test]
    fn root_used_after_a_block_goes_below_it() {
        let mut leaves = two_chains();
        leaves.remove(BlockIx(1));
        assert_eq!(leaves.chain.parent(BlockIx(2)), None);
        leaves.use_again(BlockIx(2), Some(BlockIx(4)), Key::new(0, 2, 2, 2));
        leaves.check();
        assert_eq!(leaves.chain.parent(BlockIx(2)), Some(BlockIx(4)));
        // 3 has a child and stays a root.
        leaves.use_again(BlockIx(3), Some(BlockIx(2)), Key::new(0, 3, 0, 2));
        leaves.check();
        assert_eq!(leaves.chain.parent(BlockIx(3)), None);
        assert_eq!(pop(&mut leaves, |_| true), Some(0));
    }
}
