//! GDSF: the block with the least uses for its length goes first, and age counts against uses.
//!
//! After Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
//! Policy" (HP Labs, 1998), with a cost of one for each block: a block's priority is the age of
//! the shard plus its uses over its length, and the age is the priority of the last victim.
//! With blocks of one length it is LFU with aging. Uses are forgotten when the block goes.
//!
//! Over a clean restart the order and uses up to 64 are kept. How far priorities are apart is
//! lost: all ages begin with zero.
//!
//! **Invariant**: the heap holds every known block under its priority and the tick of its last
//! use.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx};

use super::heap::Heap;
use super::lfu::{tag_of_uses, uses_of_tag};
use super::list::Search;
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a block with two uses; see [`tag_of_uses`].
const TAG_TWO: u8 = 192;

/// What one use of a block of one byte is worth: 256 for the longest blocks of 16 MiB, and room
/// for four thousand million of it.
const USE_WORTH: u64 = 1 << 32;

/// Greedy dual by length and frequency, by a heap. A hit costs the logarithm of the count of
/// blocks.
pub struct Gdsf {
    heap: Heap,
    uses: HugeVec<u32>,
    /// The priority of the last victim.
    age: u64,
    /// Counts inserts and hits; the order of uses.
    tick: u64,
}

impl Gdsf {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        Ok(Self {
            heap: Heap::new(config.blocks_max)?,
            uses: HugeVec::with_capacity(config.blocks_max as usize)?,
            age: 0,
            tick: 0,
        })
    }

    fn priority(&self, uses: u32, access: &Access) -> u64 {
        let worth = USE_WORTH / u64::from(access.len.max(1));
        self.age.saturating_add(worth.saturating_mul(uses.into()))
    }

    fn enter(&mut self, block: BlockIx, uses: u32, access: &Access) {
        self.tick += 1;
        self.uses.grow_to(block.0 as usize + 1);
        self.uses[block.0 as usize] = uses;
        let priority = self.priority(uses, access);
        self.heap.insert(block, [priority, self.tick]);
    }
}

impl Policy for Gdsf {
    fn name(&self) -> &'static str {
        "GDSF"
    }

    fn set_capacity(&mut self, _blocks: usize) {}

    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        self.tick += 1;
        let uses = self.uses[block.0 as usize].saturating_add(1);
        self.uses[block.0 as usize] = uses;
        // A block is never worth less by a hit, whatever length the hit tells.
        let [before, _] = self.heap.key(block);
        let priority = self.priority(uses, access).max(before);
        self.heap.raise(block, [priority, self.tick]);
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        self.enter(block, 1, access);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.heap.remove(block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let victim = self.heap.pop(&mut Search::new(evictable))?;
        let [priority, _] = self.heap.last_key(victim);
        // A block taken because colder ones were refused must not age these.
        self.age = self
            .heap
            .smallest_key()
            .map_or(priority, |[least, _]| least.min(priority));
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for block in self.heap.in_order() {
            let uses = self.uses[block.0 as usize];
            visit(block, tag_of_uses(TAG_TWO, uses.into()));
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.enter(block, uses_of_tag(TAG_TWO, tag).into(), access);
    }

    fn len(&self) -> usize {
        self.heap.len()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: self.heap.bytes() + self.uses.bytes(),
            ghosts: 0,
        }
    }

    fn check(&self) {
        self.heap.check();
        let least = self
            .heap
            .smallest_key()
            .map_or(u64::MAX, |[least, _]| least);
        assert!(self.age <= least, "age above the least priority");
    }
}

#[cfg(test)]
mod tests {
    use terrace_types::KeyHash;

    use super::*;

    fn access(len: u32) -> Access {
        Access {
            len,
            ..Access::plain(KeyHash(0))
        }
    }

    fn policy_of(lens: &[u32]) -> Gdsf {
        let config = PolicyConfig {
            capacity_blocks: 10,
            blocks_max: 10,
            below_blocks: 0,
            shards: 1,
        };
        let mut policy = Gdsf::new(config).unwrap();
        for (block, &len) in (0..).zip(lens) {
            policy.on_insert(BlockIx(block), &access(len));
        }
        policy
    }

    fn drain(mut policy: Gdsf) -> Vec<u32> {
        let next = || {
            policy.check();
            policy.victim(&mut |_| true)
        };
        std::iter::from_fn(next).map(|block| block.0).collect()
    }

    #[test]
    fn gdsf_long_blocks_go_first_and_uses_make_up_for_length() {
        let mut policy = policy_of(&[1000, 3000, 2000, 3000]);
        (0..3).for_each(|_| policy.on_hit(BlockIx(3), &access(3000)));
        assert_eq!(drain(policy), [1, 2, 0, 3]);
    }

    #[test]
    fn gdsf_block_popular_long_ago_goes_before_newer_ones() {
        let mut policy = policy_of(&[100]);
        (0..5).for_each(|_| policy.on_hit(BlockIx(0), &access(100)));
        for turn in 0..5 {
            policy.on_insert(BlockIx(1), &access(100));
            assert_eq!(
                policy.victim(&mut |_| true),
                Some(BlockIx(1)),
                "turn {turn}"
            );
        }
        policy.on_insert(BlockIx(1), &access(100));
        assert_eq!(drain(policy), [0, 1]);
    }
}
