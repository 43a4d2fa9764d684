//! SIEVE: first in, first out, with a hand that sifts out what was not read.
//!
//! After Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is Simpler than LRU" (NSDI'24). Unlike
//! CLOCK it moves no block: the hand walks from tail to head and begins again at the tail, so
//! new blocks and survivors are not mixed.
//!
//! **Invariants**
//! - The queue holds every known block in order of insertion.
//! - The hand is at a known block, or nowhere, which means at the tail.
//! - A block's mark is set by a hit and cleared when the hand passes or the block leaves.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx};

use super::list::{Links, List, Search};
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Bit in the tag of a block whose mark is set.
const TAG_READ: u8 = 1 << 4;
/// Bit in the tags of the block at the hand and of all newer ones. Were the hand's block alone
/// to have it, the hand would be lost with that block; so it is at the next newer one, where it
/// would have gone.
///
/// No other policy built in gives tags with these bits, so that after a change of policy nothing
/// is read into its tags.
const TAG_AHEAD: u8 = 1 << 5;

/// FIFO with a hand. A hit sets one byte.
pub struct Sieve {
    links: Links,
    queue: List,
    hand: Option<BlockIx>,
    was_read: HugeVec<bool>,
}

impl Sieve {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        Ok(Self {
            links: Links::new(config.blocks_max)?,
            queue: List::EMPTY,
            hand: None,
            was_read: HugeVec::with_capacity(config.blocks_max as usize)?,
        })
    }

    /// Walks on from the hand to the first accepted block that was not read, clearing the
    /// marks of accepted blocks on the way. When only marked ones were accepted, the first of
    /// them is next: the hand would come round to it.
    fn find(&mut self, search: &mut Search<'_>) -> Option<BlockIx> {
        let begin = self.hand.or(self.queue.tail())?;
        let mut block = begin;
        let mut spared = None;
        while !search.is_over() {
            if search.accepts(block) {
                if !std::mem::take(&mut self.was_read[block.0 as usize]) {
                    return Some(block);
                }
                spared = spared.or(Some(block));
            }
            block = self.links.toward_head(block).or(self.queue.tail())?;
            if block == begin {
                break;
            }
        }
        spared
    }

    /// Takes `block` out of the queue; a hand that was at it moves on.
    fn forget(&mut self, block: BlockIx) {
        if self.hand == Some(block) {
            self.hand = self.links.toward_head(block);
        }
        self.links.unlink(&mut self.queue, block);
    }
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        "SIEVE"
    }

    fn set_capacity(&mut self, _blocks: usize) {}

    #[inline]
    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        debug_assert!(self.links.is_linked(block), "{block:?} is not known");
        self.was_read[block.0 as usize] = true;
    }

    fn on_insert(&mut self, block: BlockIx, _access: &Access) {
        self.links.push_head(&mut self.queue, block);
        self.was_read.grow_to(block.0 as usize + 1);
        self.was_read[block.0 as usize] = false;
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.forget(block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let victim = self.find(&mut Search::new(evictable))?;
        self.hand = Some(victim);
        self.forget(victim);
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        let mut ahead = 0;
        for block in self.links.oldest_first(&self.queue) {
            if self.hand == Some(block) {
                ahead = TAG_AHEAD;
            }
            let was_read = self.was_read[block.0 as usize];
            visit(block, ahead | if was_read { TAG_READ } else { 0 });
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.on_insert(block, access);
        if tag & !(TAG_READ | TAG_AHEAD) != 0 {
            return;
        }
        self.was_read[block.0 as usize] = tag & TAG_READ != 0;
        if tag & TAG_AHEAD != 0 && self.hand.is_none() {
            self.hand = Some(block);
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: self.links.bytes() + self.was_read.bytes(),
            ghosts: 0,
        }
    }

    fn check(&self) {
        self.links.check(&[&self.queue]);
        assert!(
            self.hand.is_none_or(|block| self.links.is_linked(block)),
            "hand at {:?}",
            self.hand
        );
    }
}

#[cfg(test)]
mod tests {
    use terrace_types::KeyHash;

    use super::*;

    const ACCESS: Access = Access {
        id: KeyHash(0),
        len: 0,
        hint: terrace_types::Hint {
            parent: None,
            depth: 0,
            kind: terrace_types::BlockKind::Unknown,
        },
        context: terrace_types::RequestContext {
            clock_ms: 0,
            tenant: 0,
            priority: 0,
        },
    };

    fn sieve_of(count: u32) -> Sieve {
        let config = PolicyConfig {
            capacity_blocks: count as usize,
            blocks_max: 4,
            below_blocks: 0,
            shards: 1,
        };
        let mut sieve = Sieve::new(config).unwrap();
        (0..count).for_each(|number| sieve.on_insert(BlockIx(number), &ACCESS));
        sieve
    }

    fn drain(mut sieve: Sieve) -> Vec<u32> {
        std::iter::from_fn(|| sieve.victim(&mut |_| true))
            .map(|block| block.0)
            .collect()
    }

    #[test]
    fn sieve_survivors_stay_in_place_behind_the_hand() {
        let mut sieve = sieve_of(4);
        sieve.on_hit(BlockIx(0), &ACCESS);
        assert_eq!(sieve.victim(&mut |_| true), Some(BlockIx(1)));
        assert_eq!(sieve.hand, Some(BlockIx(2)));
        assert_eq!(drain(sieve), [2, 3, 0]);
    }

    #[test]
    fn sieve_removed_block_under_the_hand_moves_the_hand() {
        let mut sieve = sieve_of(4);
        assert_eq!(sieve.victim(&mut |_| true), Some(BlockIx(0)));
        sieve.on_remove(BlockIx(1));
        assert_eq!(sieve.hand, Some(BlockIx(2)));
        sieve.check();
        assert_eq!(drain(sieve), [2, 3]);
    }

    #[test]
    fn sieve_removed_head_under_the_hand_sends_the_hand_to_the_tail() {
        let mut sieve = sieve_of(3);
        assert_eq!(sieve.victim(&mut |block| block.0 == 1), Some(BlockIx(1)));
        sieve.on_remove(BlockIx(2));
        assert_eq!(sieve.hand, None);
        sieve.on_insert(BlockIx(1), &ACCESS);
        assert_eq!(drain(sieve), [0, 1]);
    }

    #[test]
    fn sieve_with_all_read_gives_up_the_first_it_came_to() {
        let mut sieve = sieve_of(3);
        (0..3).for_each(|number| sieve.on_hit(BlockIx(number), &ACCESS));
        assert_eq!(drain(sieve), [0, 1, 2]);
    }

    #[test]
    fn sieve_refused_block_keeps_its_mark() {
        let mut sieve = sieve_of(3);
        (0..3).for_each(|number| sieve.on_hit(BlockIx(number), &ACCESS));
        assert_eq!(sieve.victim(&mut |block| block.0 == 1), Some(BlockIx(1)));
        assert_eq!(&sieve.was_read[..], [true, false, true]);
    }

    #[test]
    fn sieve_hand_at_a_block_that_is_lost_is_restored_at_the_next_newer() {
        let mut sieve = sieve_of(4);
        assert_eq!(sieve.victim(&mut |block| block.0 == 1), Some(BlockIx(1)));
        assert_eq!(sieve.hand, Some(BlockIx(2)));
        let mut restored = sieve_of(0);
        sieve.save(&mut |block, tag| {
            if block != BlockIx(2) {
                restored.restore(block, tag, &ACCESS);
            }
        });
        assert_eq!(restored.hand, Some(BlockIx(3)));
        assert_eq!(drain(restored), [3, 0]);
    }

    #[test]
    fn sieve_tag_with_other_bits_counts_as_none() {
        let mut sieve = sieve_of(1);
        sieve.on_remove(BlockIx(0));
        sieve.restore(BlockIx(0), TAG_READ | TAG_AHEAD | 1, &ACCESS);
        assert_eq!((sieve.was_read[0], sieve.hand), (false, None));
    }
}
