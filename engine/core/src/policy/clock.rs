//! CLOCK: first in, first out, with a second chance for blocks that were read.
//!
//! After Corbato, "A Paging Experiment with the Multics System" (1968), as a queue with
//! reinsertion: the oldest block goes, unless it was read since it last came to the tail;
//! then it loses a mark and moves to the head. In the plain form a block has one mark, in the
//! form with two bits each read gives it one more, up to three.
//!
//! **Invariants**
//! - The queue holds every known block.
//! - A block's marks are set by hits and cleared when the block moves to the head or leaves.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx};

use super::list::{Links, List, Search};
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a block with marks: one of four, and the count of marks less one. Others have 0. No
/// other policy built in gives these tags, so that after a change of policy nothing is read
/// into them.
const TAG_READ: u8 = 1 << 6;

/// FIFO with reinsertion. A hit counts up in one byte.
pub struct Clock {
    links: Links,
    queue: List,
    marks: HugeVec<u8>,
    name: &'static str,
    marks_max: u8,
}

impl Clock {
    /// A policy that knows no block, with one mark a block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        Self::with("CLOCK", 1, config)
    }

    /// A policy that knows no block, with two bits a block: up to three marks.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn two_bits(config: PolicyConfig) -> Result<Self, PolicyError> {
        Self::with("CLOCK2b", 3, config)
    }

    fn with(name: &'static str, marks_max: u8, config: PolicyConfig) -> Result<Self, PolicyError> {
        Ok(Self {
            name,
            marks_max,
            links: Links::new(config.blocks_max)?,
            queue: List::EMPTY,
            marks: HugeVec::with_capacity(config.blocks_max as usize)?,
        })
    }
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        self.name
    }

    fn set_capacity(&mut self, _blocks: usize) {}

    #[inline]
    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        debug_assert!(self.links.is_linked(block), "{block:?} is not known");
        let marks = &mut self.marks[block.0 as usize];
        *marks = (*marks + 1).min(self.marks_max);
    }

    fn on_insert(&mut self, block: BlockIx, _access: &Access) {
        self.links.push_head(&mut self.queue, block);
        self.marks.grow_to(block.0 as usize + 1);
        self.marks[block.0 as usize] = 0;
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.links.unlink(&mut self.queue, block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let marks = &mut self.marks;
        let spend = |block: BlockIx| {
            let marks = &mut marks[block.0 as usize];
            let has_marks = *marks > 0;
            *marks -= u8::from(has_marks);
            has_marks
        };
        let mut search = Search::new(evictable);
        let victim = self
            .links
            .find_without_chance(&mut self.queue, &mut search, spend)?;
        self.links.unlink(&mut self.queue, victim);
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for block in self.links.oldest_first(&self.queue) {
            let marks = self.marks[block.0 as usize];
            visit(block, if marks > 0 { TAG_READ + marks - 1 } else { 0 });
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.on_insert(block, access);
        if tag & !0b11 == TAG_READ {
            self.marks[block.0 as usize] = (tag - TAG_READ + 1).min(self.marks_max);
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: self.links.bytes() + self.marks.bytes(),
            ghosts: 0,
        }
    }

    fn check(&self) {
        self.links.check(&[&self.queue]);
        assert!(self.marks.iter().all(|&marks| marks <= self.marks_max));
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
            below_blocks: 0,
            shards: 1,
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
            below_blocks: 0,
            shards: 1,
        })
        .unwrap();
        let access = Access::plain(KeyHash(0));
        (0..3).for_each(|number| clock.on_insert(BlockIx(number), &access));
        clock.on_hit(BlockIx(0), &access);
        assert_eq!(clock.victim(&mut |block| block.0 > 0), Some(BlockIx(1)));
        assert_eq!(clock.marks[0], 1);
        assert_eq!(clock.queue.tail(), Some(BlockIx(0)));
    }
}
