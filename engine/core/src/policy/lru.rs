//! LRU: the block that was not used for the longest time goes first.
//!
//! **Invariant**: the queue holds every known block in order of its last use.

use terrace_types::{Access, BlockIx};

use super::list::{Links, List, Search};
use super::{Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Least recently used. A hit moves the block to the head of the queue.
pub struct Lru {
    links: Links,
    queue: List,
}

impl Lru {
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

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "LRU"
    }

    fn set_capacity(&mut self, _blocks: usize) {}

    #[inline]
    fn on_hit(&mut self, block: BlockIx, _access: &Access) {
        self.links.move_to_head(&mut self.queue, block);
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
