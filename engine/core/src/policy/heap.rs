//! A heap of blocks with a key each: the block with the smallest key is at hand. 24 bytes a
//! block, in arrays by block number and by place.
//!
//! Four children a place: a step down compares four keys, and there are half as many steps as
//! with two.
//!
//! **Invariants**
//! - A known block has one place; `places` and `blocks` name each other.
//! - No block's key is smaller than that of the block above it. Keys differ, so that what comes
//!   out next does not depend on the order in which blocks went in.

use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::BlockIx;

use super::VICTIM_SCAN_MAX;
use super::list::Search;

/// Children of a place.
const WIDTH: usize = 4;

/// What blocks are compared by: the first number, then the second.
pub(super) type Key = [u64; 2];

/// See the module's text.
pub(super) struct Heap {
    /// By block number; stale when the block is not known.
    keys: HugeVec<Key>,
    /// By block number: its place plus one, zero when it is not known.
    places: HugeVec<u32>,
    /// By place: the block there. Those from `len` on are stale.
    blocks: HugeVec<u32>,
    len: usize,
}

impl Heap {
    /// A heap of blocks numbered below `blocks_max`. Takes address space, not memory.
    pub(super) fn new(blocks_max: u32) -> Result<Self, HugeVecError> {
        // A place plus one must fit in 32 bits.
        let capacity = blocks_max.min(u32::MAX - 1) as usize;
        Ok(Self {
            keys: HugeVec::with_capacity(capacity)?,
            places: HugeVec::with_capacity(capacity)?,
            blocks: HugeVec::with_capacity(capacity)?,
            len: 0,
        })
    }

    /// Count of known blocks.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The key of a known block.
    #[inline]
    pub(super) fn key(&self, block: BlockIx) -> Key {
        debug_assert_ne!(self.places[block.0 as usize], 0, "{block:?} is not known");
        self.keys[block.0 as usize]
    }

    /// The key of the block that was taken out last, or of one that is known.
    pub(super) fn last_key(&self, block: BlockIx) -> Key {
        self.keys[block.0 as usize]
    }

    /// The smallest key there is.
    pub(super) fn smallest_key(&self) -> Option<Key> {
        (self.len > 0).then(|| self.keys[self.blocks[0] as usize])
    }

    /// Takes in a block that is not known.
    pub(super) fn insert(&mut self, block: BlockIx, key: Key) {
        let index = block.0 as usize;
        self.keys.grow_to(index + 1);
        self.places.grow_to(index + 1);
        self.blocks.grow_to(self.len + 1);
        assert_eq!(self.places[index], 0, "{block:?} is already known");
        self.keys[index] = key;
        self.put(self.len, block.0);
        self.len += 1;
        self.rise(self.len - 1);
    }

    /// Gives a known block another key, which is not smaller than the one it has.
    #[inline]
    pub(super) fn raise(&mut self, block: BlockIx, key: Key) {
        debug_assert!(key >= self.key(block), "a smaller key for {block:?}");
        self.keys[block.0 as usize] = key;
        self.sink(self.place_of(block));
    }

    /// Takes a known block out.
    pub(super) fn remove(&mut self, block: BlockIx) {
        let place = self.place_of(block);
        self.places[block.0 as usize] = 0;
        self.len -= 1;
        if place < self.len {
            self.put(place, self.blocks[self.len]);
            self.rise(place);
            self.sink(place);
        }
    }

    /// Takes out the block with the smallest key among those that the search accepts. Refused
    /// ones leave the heap while it looks on, and come back.
    pub(super) fn pop(&mut self, search: &mut Search<'_>) -> Option<BlockIx> {
        let mut refused = [BlockIx(0); VICTIM_SCAN_MAX];
        let mut count = 0;
        let mut found = None;
        while found.is_none() && self.len > 0 && !search.is_over() {
            let block = BlockIx(self.blocks[0]);
            self.remove(block);
            if search.accepts(block) {
                found = Some(block);
            } else {
                refused[count] = block;
                count += 1;
            }
        }
        for &block in &refused[..count] {
            self.insert(block, self.keys[block.0 as usize]);
        }
        found
    }

    /// All blocks, the smallest key first. Allocates.
    pub(super) fn in_order(&self) -> Vec<BlockIx> {
        let mut blocks = self.blocks[..self.len].to_vec();
        blocks.sort_unstable_by_key(|&block| self.keys[block as usize]);
        blocks.into_iter().map(BlockIx).collect()
    }

    /// Bytes in use.
    pub(super) const fn bytes(&self) -> u64 {
        self.keys.bytes() + self.places.bytes() + self.blocks.bytes()
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self) {
        for (place, &block) in self.blocks[..self.len].iter().enumerate() {
            assert_eq!(
                self.places[block as usize] as usize,
                place + 1,
                "place of a block"
            );
            if place > 0 {
                let above = self.blocks[(place - 1) / WIDTH] as usize;
                assert!(
                    self.keys[above] < self.keys[block as usize],
                    "order of keys"
                );
            }
        }
        let placed = self.places.iter().filter(|&&place| place != 0).count();
        assert_eq!(placed, self.len, "blocks with a place");
    }

    fn place_of(&self, block: BlockIx) -> usize {
        let place = self.places[block.0 as usize];
        assert_ne!(place, 0, "{block:?} is not known");
        place as usize - 1
    }

    fn put(&mut self, place: usize, block: u32) {
        self.blocks[place] = block;
        self.places[block as usize] = place as u32 + 1;
    }

    /// Moves the block at `place` up to where the key above it is not larger.
    fn rise(&mut self, mut place: usize) {
        let block = self.blocks[place];
        let key = self.keys[block as usize];
        while place > 0 {
            let above = (place - 1) / WIDTH;
            if self.keys[self.blocks[above] as usize] <= key {
                break;
            }
            self.put(place, self.blocks[above]);
            place = above;
        }
        self.put(place, block);
    }

    /// Moves the block at `place` down to where no key below it is smaller.
    fn sink(&mut self, mut place: usize) {
        let block = self.blocks[place];
        let key = self.keys[block as usize];
        loop {
            let first = place * WIDTH + 1;
            let children = first..(first + WIDTH).min(self.len);
            let key_at = |&child: &usize| self.keys[self.blocks[child] as usize];
            match children.min_by_key(key_at) {
                Some(child) if key_at(&child) < key => {
                    self.put(place, self.blocks[child]);
                    place = child;
                }
                _ => break,
            }
        }
        self.put(place, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap_of(keys: &[u64]) -> Heap {
        let mut heap = Heap::new(100).unwrap();
        for (block, &key) in (0..).zip(keys) {
            heap.insert(BlockIx(block), [key, 0]);
            heap.check();
        }
        heap
    }

    fn drain(heap: &mut Heap) -> Vec<u32> {
        let mut all = |_| true;
        let next = || {
            heap.check();
            heap.pop(&mut Search::new(&mut all))
        };
        std::iter::from_fn(next).map(|block| block.0).collect()
    }

    #[test]
    fn heap_gives_blocks_in_the_order_of_their_keys() {
        let keys: Vec<u64> = (0..50).map(|number| number * 37 % 50).collect();
        let mut heap = heap_of(&keys);
        let order: Vec<u32> = heap.in_order().iter().map(|block| block.0).collect();
        assert!(order.is_sorted_by_key(|&block| keys[block as usize]));
        assert_eq!(drain(&mut heap), order);
        assert_eq!(heap.len(), 0);
    }

    #[test]
    fn heap_with_raised_and_removed_blocks_stays_in_order() {
        let mut heap = heap_of(&[5, 1, 4, 2, 3, 9, 8, 7, 6]);
        heap.raise(BlockIx(1), [10, 0]);
        heap.check();
        heap.remove(BlockIx(3));
        heap.check();
        assert_eq!(drain(&mut heap), [4, 2, 0, 8, 7, 6, 5, 1]);
    }

    #[test]
    fn heap_keeps_refused_blocks_and_their_keys() {
        let mut heap = heap_of(&[1, 2, 3, 4]);
        let mut last_only = |block: BlockIx| block.0 == 3;
        assert_eq!(heap.pop(&mut Search::new(&mut last_only)), Some(BlockIx(3)));
        let mut none = |_| false;
        assert_eq!(heap.pop(&mut Search::new(&mut none)), None);
        assert_eq!(drain(&mut heap), [0, 1, 2]);
    }

    #[test]
    #[should_panic(expected = "is not known")]
    fn heap_remove_of_an_unknown_block_panics() {
        let mut heap = heap_of(&[1, 2]);
        heap.remove(BlockIx(0));
        heap.remove(BlockIx(0));
    }
}
