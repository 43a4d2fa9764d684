//! LFU: the block that was used least often goes first, of several the one not used for longest.
//!
//! The textbook's in-cache form, as in Robinson and Devarakonda, "Data Cache Management Using
//! Frequency-Based Replacement" (SIGMETRICS'90) before their improvements: a count begins with
//! one and is forgotten when the block goes. Nothing ages: a block once popular stays.
//!
//! Over a clean restart counts are kept up to 64; those above come back as 64, in their order.
//!
//! **Invariant**: the heap holds every known block under its count and the tick of its last use.

use terrace_types::{Access, BlockIx};

use super::heap::Heap;
use super::list::Search;
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a block with two uses; see [`tag_of_uses`].
const TAG_TWO: u8 = 128;
/// Uses above this are saved as this many.
const USES_SAVED_MAX: u8 = 64;

/// The tag of a block with `uses` uses, where one with two has `tag_two`, each more adds one, and
/// one with fewer has none. Among the policies built in only those that count uses give tags from
/// 128 on.
pub(super) fn tag_of_uses(tag_two: u8, uses: u64) -> u8 {
    let uses = uses.min(USES_SAVED_MAX.into()) as u8;
    uses.checked_sub(2).map_or(0, |more| tag_two + more)
}

/// The uses that [`tag_of_uses`] gave `tag` for; one when it did not.
pub(super) fn uses_of_tag(tag_two: u8, tag: u8) -> u8 {
    let more = tag.checked_sub(tag_two);
    more.filter(|&more| more <= USES_SAVED_MAX - 2)
        .map_or(1, |more| more + 2)
}

/// Least frequently used, by a heap. A hit costs the logarithm of the count of blocks.
pub struct Lfu {
    heap: Heap,
    /// Counts inserts and hits; the order of uses.
    tick: u64,
}

impl Lfu {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        Ok(Self {
            heap: Heap::new(config.blocks_max)?,
            tick: 0,
        })
    }

    fn enter(&mut self, block: BlockIx, uses: u64) {
        self.tick += 1;
        self.heap.insert(block, [uses, self.tick]);
    }
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        "LFU"
    }

    fn set_capacity(&mut self, _blocks: usize) {}

    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        self.tick += 1;
        let [uses, _] = self.heap.key(block);
        self.heap.raise(block, [uses + 1, self.tick]);
    }

    fn on_insert(&mut self, block: BlockIx, _access: &Access) {
        self.enter(block, 1);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.heap.remove(block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        self.heap.pop(&mut Search::new(evictable))
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for block in self.heap.in_order() {
            let [uses, _] = self.heap.key(block);
            visit(block, tag_of_uses(TAG_TWO, uses));
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, _access: &Access) {
        self.enter(block, uses_of_tag(TAG_TWO, tag).into());
    }

    fn len(&self) -> usize {
        self.heap.len()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: self.heap.bytes(),
            ghosts: 0,
        }
    }

    fn check(&self) {
        self.heap.check();
    }
}

#[cfg(test)]
mod tests {
    use terrace_types::KeyHash;

    use super::*;

    #[test]
    fn lfu_count_above_64_is_saved_as_64_and_keeps_its_order() {
        let config = PolicyConfig {
            capacity_blocks: 3,
            blocks_max: 3,
            below_blocks: 0,
            shards: 1,
        };
        let access = Access::plain(KeyHash(0));
        let (mut lfu, mut restored) = (Lfu::new(config).unwrap(), Lfu::new(config).unwrap());
        for (block, hits) in [(0, 300), (1, 62), (2, 63)] {
            lfu.on_insert(BlockIx(block), &access);
            (0..hits).for_each(|_| lfu.on_hit(BlockIx(block), &access));
        }
        let mut saved = Vec::new();
        lfu.save(&mut |block, tag| saved.push((block.0, tag)));
        assert_eq!(saved, [(1, 189), (2, 190), (0, 190)]);
        for (block, tag) in saved {
            restored.restore(BlockIx(block), tag, &access);
        }
        assert_eq!(restored.heap.key(BlockIx(0))[0], 64);
        let order: Vec<_> = std::iter::from_fn(|| restored.victim(&mut |_| true)).collect();
        assert_eq!(order, [BlockIx(1), BlockIx(2), BlockIx(0)]);
    }
}
