//! CLOCK: first in, first out, with a second chance for blocks that were read.
//!
//! After Corbato, "A Paging Experiment with the Multics System" (1968), as a queue with
//! reinsertion: the oldest block goes, unless it was read since it last came to the tail;
//! then it loses its mark and moves to the head.
//!
//! **Invariants**
//! - The queue holds every known block.
//! - A block's mark is set by a hit and cleared when the block moves to the head or leaves.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx};

use super::list::{Links, List, Search};
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a block whose mark is set; others have 0. No other policy built in gives this tag, so
/// that after a change of policy nothing is read into it.
const TAG_READ: u8 = 1 << 6;

/// FIFO with reinsertion. A hit sets one byte.
pub struct Clock {
    links: Links,
    queue: List,
    was_read: HugeVec<bool>,
}

impl Clock {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        Ok(Self {
            links: Links::new(config.blocks_max)?,
            queue: List::EMPTY,
            was_read: HugeVec::with_capacity(config.blocks_max as usize)?,
        })
    }
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        "CLOCK"
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
        self.links.unlink(&mut self.queue, block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let was_read = &mut self.was_read;
        let victim = self.links.find_without_chance(
            &mut self.queue,
            &mut Search::new(evictable),
            |block| std::mem::take(&mut was_read[block.0 as usize]),
        )?;
        self.links.unlink(&mut self.queue, victim);
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for block in self.links.oldest_first(&self.queue) {
            let was_read = self.was_read[block.0 as usize];
            visit(block, if was_read { TAG_READ } else { 0 });
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.on_insert(block, access);
        self.was_read[block.0 as usize] = tag == TAG_READ;
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
    }
}

#[cfg(test)]
mod tests {
    use terrace_types::KeyHash;

    use super::*;

    #[test]
    fn clock_block_read_once_survives_one_round() {
        let mut clock = Clock::new(PolicyConfig {
            capacity_blocks: 3,
            blocks_max: 3,
        })
        .unwrap();
        let access = Access::plain(KeyHash(0));
        (0..3).for_each(|number| clock.on_insert(BlockIx(number), &access));
        clock.on_hit(BlockIx(0), &access);
        let order: Vec<_> = std::iter::from_fn(|| clock.victim(&mut |_| true)).collect();
        assert_eq!(order, [BlockIx(1), BlockIx(2), BlockIx(0)]);
    }

    #[test]
    fn clock_refused_block_keeps_its_mark_and_place() {
        let mut clock = Clock::new(PolicyConfig {
            capacity_blocks: 3,
            blocks_max: 3,
        })
        .unwrap();
        let access = Access::plain(KeyHash(0));
        (0..3).for_each(|number| clock.on_insert(BlockIx(number), &access));
        clock.on_hit(BlockIx(0), &access);
        assert_eq!(clock.victim(&mut |block| block.0 > 0), Some(BlockIx(1)));
        assert!(clock.was_read[0]);
        assert_eq!(clock.queue.tail(), Some(BlockIx(0)));
    }
}
