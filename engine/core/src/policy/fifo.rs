//! FIFO: the block that became resident first goes first.
//!
//! **Invariant**: the queue holds every known block in order of insertion.

use terrace_types::{Access, BlockIx};

use super::list::{Links, List, Search};
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// First in, first out. A hit changes nothing.
pub struct Fifo {
    links: Links,
    queue: List,
}

impl Fifo {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        Ok(Self {
            links: Links::new(config.blocks_max)?,
            queue: List::EMPTY,
        })
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "FIFO"
    }

    fn set_capacity(&mut self, _blocks: usize) {}

    #[inline]
    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        debug_assert!(self.links.is_linked(block), "{block:?} is not known");
    }

    fn on_insert(&mut self, block: BlockIx, _access: &Access) {
        self.links.push_head(&mut self.queue, block);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.links.unlink(&mut self.queue, block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let victim = self
            .links
            .find_oldest(&self.queue, &mut Search::new(evictable))?;
        self.links.unlink(&mut self.queue, victim);
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        self.links
            .oldest_first(&self.queue)
            .for_each(|block| visit(block, 0));
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: self.links.bytes(),
            ghosts: 0,
        }
    }

    fn check(&self) {
        self.links.check(&[&self.queue]);
    }
}
