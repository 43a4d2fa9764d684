//! W-TinyLFU: a small LRU window that new blocks pass, and a main part that takes in the block
//! leaving the window only if it was used more often of late than the one that would go for it.
//!
//! After Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy" (ACM
//! TOS 2017). The window has a hundredth of the capacity. The main part is a segmented LRU (after
//! Karedla, Love and Wherry, 1994): blocks come in on probation, those read there are protected,
//! up to four fifths of the main part. Uses are counted for blocks that are gone, too, see
//! `frequency.rs`: by a sketch, or exactly with a table of every id ever used, which has no bound.
//!
//! The simulator whose numbers the exact form is held to takes in nothing when the protected
//! share is less than one block, which is at capacities of one and two; so does this form.
//!
//! Over a clean restart the three queues are kept and the counts are lost.
//!
//! **Invariants**
//! - A known block is in the queue that its state names.
//! - After a call the window and the protected queue have no more than their shares.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use super::frequency::Frequency;
use super::list::{Links, List, Search};
use super::{Admission, Policy, PolicyBytes, PolicyConfig, PolicyError};

/// The queues, as places in an array of three.
const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// Tag of a block in the window; those of the other queues follow. No other policy built in
/// gives these.
const TAG_WINDOW: u8 = 76;

/// Window, probation and protected queues, and counts of uses.
pub struct WTinyLfu {
    name: &'static str,
    links: Links,
    queues: [List; 3],
    /// The queue of each block.
    queue_of: HugeVec<u8>,
    ids: HugeVec<u64>,
    shares: Shares,
    frequency: Frequency,
    /// Admit nothing where no block could be protected.
    declines_when_tiny: bool,
    /// The block that is about to come; its use is counted already.
    expected: Option<KeyHash>,
}

/// How the capacity is divided.
#[derive(Clone, Copy)]
struct Shares {
    window: usize,
    protected: usize,
}

impl Shares {
    fn of(capacity_blocks: usize) -> Self {
        let window = (capacity_blocks / 100).max(1);
        let main = capacity_blocks.saturating_sub(window);
        Self {
            window,
            protected: (main as u64 * 4 / 5) as usize,
        }
    }
}

impl WTinyLfu {
    /// A policy that knows no block, with a sketch.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        let frequency = Frequency::sketch(config.blocks_max, config.capacity_blocks)?;
        Self::with("WTinyLFU", frequency, config)
    }

    /// A policy that knows no block, with exact counts of all ids.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn exact(config: PolicyConfig) -> Result<Self, PolicyError> {
        let frequency = Frequency::exact(config.capacity_blocks);
        Self::with("WTinyLFUx", frequency, config)
    }

    fn with(
        name: &'static str,
        frequency: Frequency,
        config: PolicyConfig,
    ) -> Result<Self, PolicyError> {
        Ok(Self {
            name,
            links: Links::new(config.blocks_max)?,
            queues: [List::EMPTY; 3],
            queue_of: HugeVec::with_capacity(config.blocks_max as usize)?,
            ids: HugeVec::with_capacity(config.blocks_max as usize)?,
            shares: Shares::of(config.capacity_blocks),
            declines_when_tiny: frequency.is_exact(),
            frequency,
            expected: None,
        })
    }

    fn enter(&mut self, block: BlockIx, id: KeyHash, queue: usize) {
        let index = block.0 as usize;
        self.queue_of.grow_to(index + 1);
        self.ids.grow_to(index + 1);
        self.links.push_head(&mut self.queues[queue], block);
        self.queue_of[index] = queue as u8;
        self.ids[index] = id.0;
        self.settle();
    }

    fn leave(&mut self, block: BlockIx) {
        let queue = usize::from(self.queue_of[block.0 as usize]);
        self.links.unlink(&mut self.queues[queue], block);
    }

    /// Puts the oldest of what is beyond the shares on probation.
    fn settle(&mut self) {
        for (queue, share) in [
            (WINDOW, self.shares.window),
            (PROTECTED, self.shares.protected),
        ] {
            while self.queues[queue].len() > share
                && let Some(block) = self.links.pop_tail(&mut self.queues[queue])
            {
                self.links.push_head(&mut self.queues[PROBATION], block);
                self.queue_of[block.0 as usize] = PROBATION as u8;
            }
        }
    }

    fn uses_of(&self, block: BlockIx) -> u8 {
        self.frequency.of(KeyHash(self.ids[block.0 as usize]))
    }

    /// The victim: of the block that the next one pushes out of the window and the one that
    /// would go from the main part for it, the one used less often.
    fn find(&self, search: &mut Search<'_>) -> Option<BlockIx> {
        let mut oldest = |queue: usize| self.links.find_oldest(&self.queues[queue], search);
        let window_is_full = self.queues[WINDOW].len() >= self.shares.window;
        let candidate = window_is_full.then(|| oldest(WINDOW)).flatten();
        match (candidate, oldest(PROBATION).or_else(|| oldest(PROTECTED))) {
            (Some(candidate), Some(victim)) => {
                let is_better = self.uses_of(candidate) > self.uses_of(victim);
                Some(if is_better { victim } else { candidate })
            }
            (None, None) if !window_is_full => oldest(WINDOW),
            (candidate, victim) => candidate.or(victim),
        }
    }
}

impl Policy for WTinyLfu {
    fn name(&self) -> &'static str {
        self.name
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.shares = Shares::of(blocks);
        self.frequency.set_capacity(blocks);
        self.settle();
    }

    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        self.frequency.count(access.id);
        let queue = usize::from(self.queue_of[block.0 as usize]);
        if queue == PROBATION {
            self.leave(block);
            self.links.push_head(&mut self.queues[PROTECTED], block);
            self.queue_of[block.0 as usize] = PROTECTED as u8;
            self.settle();
        } else {
            self.links.move_to_head(&mut self.queues[queue], block);
        }
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        if self.expected.take_if(|id| *id == access.id).is_none() {
            self.frequency.count(access.id);
        }
        self.enter(block, access.id, WINDOW);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.leave(block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let victim = self.find(&mut Search::new(evictable))?;
        self.leave(victim);
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for queue in [PROBATION, PROTECTED, WINDOW] {
            for block in self.links.oldest_first(&self.queues[queue]) {
                visit(block, TAG_WINDOW + queue as u8);
            }
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        match tag.checked_sub(TAG_WINDOW).map(usize::from) {
            Some(queue @ (PROBATION | PROTECTED)) => {
                self.frequency.count(access.id);
                self.enter(block, access.id, queue);
            }
            _ => self.on_insert(block, access),
        }
    }

    /// Admits all to the window, but for the exact form without room for a protected block. The
    /// use is counted before room is made, as the paper has it.
    fn admit(&mut self, access: &Access) -> Admission {
        if self.declines_when_tiny && self.shares.protected == 0 {
            return Admission::Decline;
        }
        if self.expected != Some(access.id) {
            self.frequency.count(access.id);
            self.expected = Some(access.id);
        }
        Admission::Admit
    }

    fn len(&self) -> usize {
        self.queues.iter().map(List::len).sum()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: self.links.bytes() + self.queue_of.bytes() + self.ids.bytes(),
            ghosts: self.frequency.bytes(),
        }
    }

    fn check(&self) {
        let [window, probation, protected] = &self.queues;
        self.links.check(&[window, probation, protected]);
        self.links.check_named(&self.queues, &self.queue_of);
        assert!(window.len() <= self.shares.window, "share of the window");
        assert!(protected.len() <= self.shares.protected, "protected share");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(id: u64) -> Access {
        Access::plain(KeyHash(id))
    }

    fn filled(count: u32) -> WTinyLfu {
        let config = PolicyConfig {
            capacity_blocks: count as usize,
            blocks_max: count,
            below_blocks: 0,
            shards: 1,
        };
        let mut policy = WTinyLfu::new(config).unwrap();
        (0..count).for_each(|number| policy.on_insert(BlockIx(number), &access(number.into())));
        policy.check();
        policy
    }

    #[test]
    fn wtinylfu_new_block_goes_for_an_older_one_unless_it_is_used_more() {
        let mut policy = filled(10);
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(9)));
        policy.on_insert(BlockIx(9), &access(9));
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(0)));
    }

    #[test]
    fn wtinylfu_block_read_on_probation_is_protected_up_to_its_share() {
        let mut policy = filled(11);
        for block in 0..10 {
            policy.on_hit(BlockIx(block), &access(block.into()));
        }
        policy.check();
        let lens: Vec<usize> = policy.queues.iter().map(List::len).collect();
        assert_eq!(lens, [1, 2, 8]);
    }

    #[test]
    fn wtinylfu_announced_block_is_counted_once() {
        let mut policy = filled(10);
        for _ in 0..2 {
            policy.admit(&access(77));
        }
        assert_eq!(policy.victim(&mut |_| true), Some(BlockIx(9)));
        policy.on_insert(BlockIx(9), &access(77));
        assert_eq!(policy.frequency.of(KeyHash(77)), 1);
    }
}
