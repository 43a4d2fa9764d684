//! Prefix-aware forms of the simple policies: a block goes only when no block after it is
//! resident, so that what is resident of a chain is whole from its first block on.
//!
//! Each is an order of the leaves, and its clock counts requests; see [`PrefixOrder`] for what
//! goes first. LRU in this form is what serving engines do when they free the blocks of a
//! request deepest first. `LengthAware` and `P-LRU` are described with the Mooncake traces
//! (arXiv 2407.00079), P-HAZ after "KVCache Cache in the Wild" (USENIX ATC'25).
//!
//! The `hist` forms remember the uses of every block ever seen, up to 16 million: exact forms,
//! to compare with, as `LRU2hist` is.
//!
//! A block whose parent in the chain stays out is declined, unless tiers below may hold the
//! parent. When the filter refuses every leaf it is asked about, a block with children goes.
//!
//! Over a clean restart the order and up to 64 uses are kept, and what P-HAZ has learned. Which
//! block comes before which is told by the next request that uses them; when each was used is
//! lost but for the order, and so is the history.
//!
//! **Invariants**
//! - [`Leaves`] holds every known block; the last use in its key is the number of a request.
//! - The blocks of the request under way have its number for their last use.

use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use super::ghost::{Ghosts, UNBOUNDED};
use super::hazard::{self, CATEGORIES, Hazards};
use super::leaves::{Key, Leaves};
use super::lfu::{tag_of_uses, uses_of_tag};
use super::list::Search;
use super::lru2::TAG_TWICE;
use super::request::Request;
use super::{Admission, Policy, PolicyBytes, PolicyConfig, PolicyError};

/// Tag of a block with two uses: the same as that of LFU, and it means the same.
const TAG_TWO: u8 = 128;

/// Bits of a depth in the rank of `LengthAware`.
const DEPTH_BITS: u32 = 24;
/// Uses above this count as this many in `LengthAware`: its rank holds a depth, too.
const RANKED_USES_MAX: u32 = (1 << 16) - 1;
/// The number of requests goes no further; those after it count as one.
const REQUESTS_MAX: u64 = (1 << 40) - 1;

/// Which leaf goes first. Of several leaves that are equal by it the one not used for longest
/// goes, of those that one request used the deepest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixOrder {
    /// The one not used for longest: `P-LRU`.
    Recency,
    /// The one that came first: `P-FIFO`.
    Arrival,
    /// The one with the least uses: `P-LFU`, `P-LFUhist`.
    Uses,
    /// The one with the least uses, and of these the deepest whenever it was used: `LengthAware`.
    UsesAndDepth,
    /// The one with the least uses above those of the last victim: `P-LFUDA`, `P-LFUDAhist`.
    AgedUses,
    /// The one whose last use but one is longest ago: `P-LRU2hist`.
    LastUseButOne,
    /// The one least likely to be used soon, as learned for blocks of as many uses: `P-HAZ`,
    /// `P-HAZ-hist`.
    Hazard,
    /// The same, as learned for blocks of as many uses and like depth: `P-HAZ-depth`,
    /// `P-HAZ-depth-hist`.
    HazardByDepth,
}

/// A prefix-aware policy by heaps of leaves. A hit costs the logarithm of the count of leaves.
pub struct Prefix {
    name: &'static str,
    order: PrefixOrder,
    leaves: Leaves,
    history: Option<History>,
    hazards: Hazards,
    request: Request,
    /// Counts requests.
    number: u64,
    /// The largest rank of a victim, or of a leaf refused in its place.
    age: u64,
    capacity: usize,
    /// How many blocks there were when the last victim was given up, while no more have come.
    full_len: usize,
    /// Whether a block that is not resident may lie in a tier below.
    has_below: bool,
    /// Whether the tip is not to go: the block asked about last comes after it.
    spares_tip: bool,
}

/// The uses of the blocks that are gone, and what is needed to enter blocks.
struct History {
    /// The id under which each block would be remembered.
    ids: HugeVec<u64>,
    ghosts: Ghosts,
    /// The last key of each ghost, by its number.
    keys: HugeVec<Key>,
}

impl History {
    fn new(blocks_max: u32) -> Result<Self, PolicyError> {
        Ok(Self {
            ids: HugeVec::with_capacity(blocks_max as usize)?,
            ghosts: Ghosts::unbounded()?,
            keys: HugeVec::with_capacity(UNBOUNDED as usize)?,
        })
    }

    /// `block` came under `id`; its key when it left, if it did.
    fn take(&mut self, block: BlockIx, id: KeyHash) -> Option<Key> {
        self.ids.grow_to(block.0 as usize + 1);
        self.ids[block.0 as usize] = id.0;
        let ghost = self.ghosts.forget(id)?;
        Some(self.keys[ghost.0 as usize])
    }

    fn remember(&mut self, block: BlockIx, key: Key) {
        let id = KeyHash(self.ids[block.0 as usize]);
        if let Some(ghost) = self.ghosts.remember(id) {
            self.keys.grow_to(ghost.0 as usize + 1);
            self.keys[ghost.0 as usize] = key;
        }
    }
}

impl Prefix {
    /// A policy that knows no block, in this order; with history if that is asked for.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(
        order: PrefixOrder,
        with_history: bool,
        config: PolicyConfig,
    ) -> Result<Self, PolicyError> {
        let blocks_max = config.blocks_max;
        let leaves = match order {
            PrefixOrder::Hazard => Leaves::new(blocks_max, CATEGORIES, hazard::by_uses),
            PrefixOrder::HazardByDepth => {
                Leaves::new(blocks_max, CATEGORIES, hazard::by_uses_and_depth)
            }
            _ => Leaves::new(blocks_max, 1, |_| 0),
        };
        // The last use but one is nothing without a history.
        let with_history = with_history || order == PrefixOrder::LastUseButOne;
        Ok(Self {
            name: name_of(order, with_history),
            order,
            leaves: leaves?,
            history: with_history.then(|| History::new(blocks_max)).transpose()?,
            hazards: Hazards::new(),
            request: Request::default(),
            number: 0,
            age: 0,
            capacity: config.capacity_blocks,
            full_len: usize::MAX,
            has_below: config.below_blocks > 0,
            spares_tip: false,
        })
    }

    /// The step of an access in the request under way, or the first of the next one.
    fn step_of(&mut self, access: &Access) -> usize {
        self.spares_tip = false;
        self.request.step_of(access).unwrap_or_else(|| {
            self.begin();
            self.request.begin_unannounced(access);
            0
        })
    }

    /// The next request begins; nothing of the one before is spared any more.
    fn begin(&mut self) {
        self.number = (self.number + 1).min(REQUESTS_MAX);
        self.spares_tip = false;
        self.leaves.set_tip(None);
    }

    /// The key of a block that is used at this depth; `before` is its key until now.
    fn key(&self, before: Option<Key>, depth: u32, is_new: bool) -> Key {
        let uses = before.map_or(0, Key::uses).saturating_add(1);
        let rank = match self.order {
            PrefixOrder::Recency | PrefixOrder::Hazard | PrefixOrder::HazardByDepth => 0,
            PrefixOrder::Arrival if is_new => self.number,
            PrefixOrder::Arrival => before.map_or(0, Key::rank),
            PrefixOrder::Uses => uses.into(),
            PrefixOrder::UsesAndDepth => {
                let deepest = (1 << DEPTH_BITS) - 1;
                u64::from(uses.min(RANKED_USES_MAX)) << DEPTH_BITS
                    | u64::from(deepest - depth.min(deepest))
            }
            PrefixOrder::AgedUses => self.age + u64::from(uses),
            PrefixOrder::LastUseButOne => before.map_or(0, Key::last_use),
        };
        Key::new(rank, self.number, depth, uses)
    }

    /// A block came, or was used again if `before` is its key until now.
    fn learn(&mut self, before: Option<Key>, now: Key) {
        let category = match self.order {
            PrefixOrder::Hazard => hazard::by_uses,
            PrefixOrder::HazardByDepth => hazard::by_uses_and_depth,
            _ => return,
        };
        if let Some(before) = before {
            let age = now.last_use() - before.last_use();
            self.hazards.use_again(category(before), exact(age));
        }
        self.hazards.enter(category(now));
    }

    /// Whether the next block needs the room of another.
    fn is_full(&self) -> bool {
        self.leaves.len() >= self.capacity.min(self.full_len)
    }

    /// A block that is about to leave is no step of the request any more.
    fn leave_request(&mut self, block: BlockIx) {
        if self.leaves.key(block).last_use() == self.number {
            self.request.leave(block);
        }
    }
}

/// The heap whose first leaf goes next.
fn choose(leaves: &Leaves, hazards: &Hazards, number: u64) -> Option<usize> {
    let firsts = (0..leaves.heaps()).filter_map(|heap| Some((heap, leaves.first(heap)?)));
    if leaves.heaps() == 1 {
        return firsts.map(|(heap, _)| heap).next();
    }
    let scored = firsts.map(|(heap, leaf)| {
        let age = number - leaves.key(leaf).last_use();
        (heap, hazards.score(heap, exact(age)))
    });
    // Not `min_by`: of equal scores the first.
    let lowest = scored.reduce(|low, next| if next.1 < low.1 { next } else { low });
    lowest.map(|(heap, _)| heap)
}

/// A count of requests as a number with a fraction; it has 40 bits, so nothing is lost.
#[expect(
    clippy::cast_precision_loss,
    reason = "requests are counted in 40 bits, a fraction has 53"
)]
const fn exact(requests: u64) -> f64 {
    requests as f64
}

const fn name_of(order: PrefixOrder, with_history: bool) -> &'static str {
    match (order, with_history) {
        (PrefixOrder::Recency, _) => "P-LRU",
        (PrefixOrder::Arrival, _) => "P-FIFO",
        (PrefixOrder::Uses, false) => "P-LFU",
        (PrefixOrder::Uses, true) => "P-LFUhist",
        (PrefixOrder::UsesAndDepth, _) => "LengthAware",
        (PrefixOrder::AgedUses, false) => "P-LFUDA",
        (PrefixOrder::AgedUses, true) => "P-LFUDAhist",
        (PrefixOrder::LastUseButOne, _) => "P-LRU2hist",
        (PrefixOrder::Hazard, false) => "P-HAZ",
        (PrefixOrder::Hazard, true) => "P-HAZ-hist",
        (PrefixOrder::HazardByDepth, false) => "P-HAZ-depth",
        (PrefixOrder::HazardByDepth, true) => "P-HAZ-depth-hist",
    }
}

impl Policy for Prefix {
    fn name(&self) -> &'static str {
        self.name
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.capacity = blocks;
        self.full_len = usize::MAX;
    }

    fn on_request(&mut self, accesses: &[Access]) {
        self.begin();
        self.request.begin(accesses);
    }

    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        let step = self.step_of(access);
        self.request.enter(step, block);
        let before = self.leaves.key(block);
        let key = self.key(Some(before), self.request.steps()[step].depth, false);
        self.learn(Some(before), key);
        self.leaves
            .use_again(block, self.request.parent_of(step), key);
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        let step = self.step_of(access);
        let history = self.history.as_mut();
        let before = history.and_then(|history| history.take(block, access.id));
        let key = self.key(before, self.request.steps()[step].depth, true);
        self.learn(before, key);
        self.leaves.insert(block, self.request.parent_of(step), key);
        self.request.enter(step, block);
        if self.leaves.len() > self.full_len {
            // There was room after all.
            self.full_len = usize::MAX;
        }
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.leave_request(block);
        self.leaves.remove(block);
    }

    fn admit(&mut self, access: &Access) -> Admission {
        let step = self.step_of(access);
        if self.request.breaks_at(step) && !self.has_below {
            return Admission::Decline;
        }
        let parent = self.request.parent_of(step);
        self.spares_tip = parent.is_some();
        self.leaves.set_tip(parent);
        if self.is_full() && !self.leaves.has_leaf() {
            return Admission::Decline;
        }
        Admission::Admit
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        if !self.spares_tip {
            self.leaves.set_tip(None);
        }
        let first = self.leaves.first(0);
        let first = first.map_or(u64::MAX, |leaf| self.leaves.key(leaf).rank());
        let (hazards, number) = (&self.hazards, self.number);
        let victim = self.leaves.pop(&mut Search::new(evictable), |leaves| {
            choose(leaves, hazards, number)
        })?;
        self.full_len = self.leaves.len() + 1;
        self.leave_request(victim);
        let key = self.leaves.key(victim);
        // A block taken because colder ones were refused must not age these.
        self.age = self.age.max(key.rank().min(first));
        if let Some(history) = &mut self.history {
            history.remember(victim, key);
        }
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        for block in self.leaves.in_order() {
            let key = self.leaves.key(block);
            let tag = match self.order {
                PrefixOrder::LastUseButOne if key.rank() > 0 => TAG_TWICE,
                PrefixOrder::Recency | PrefixOrder::Arrival | PrefixOrder::LastUseButOne => 0,
                _ => tag_of_uses(TAG_TWO, key.uses().into()),
            };
            visit(block, tag);
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.on_request(&[]);
        if let Some(history) = &mut self.history {
            history.take(block, access.id);
        }
        let depth = access.hint.depth;
        let uses_before = match self.order {
            PrefixOrder::LastUseButOne => u32::from(tag == TAG_TWICE),
            _ => u32::from(uses_of_tag(TAG_TWO, tag)) - 1,
        };
        let before = (uses_before > 0).then(|| Key::new(0, self.number, depth, uses_before));
        let key = self.key(before, depth, true);
        self.learn(None, key);
        self.leaves.insert(block, None, key);
        self.leaves.set_tip(None);
    }

    fn save_learned(&self) -> Vec<u8> {
        match self.order {
            PrefixOrder::Hazard | PrefixOrder::HazardByDepth => self.hazards.save(),
            _ => Vec::new(),
        }
    }

    fn restore_learned(&mut self, learned: &[u8]) {
        if let Some(hazards) = Hazards::of_saved(learned) {
            self.hazards = hazards;
        }
    }

    fn len(&self) -> usize {
        self.leaves.len()
    }

    fn bytes(&self) -> PolicyBytes {
        let (mut resident, mut ghosts) = (self.leaves.bytes(), 0);
        if let Some(history) = &self.history {
            resident += history.ids.bytes();
            ghosts = history.ghosts.bytes() + history.keys.bytes();
        }
        PolicyBytes { resident, ghosts }
    }

    fn check(&self) {
        self.leaves.check();
        if let Some(history) = &self.history {
            history.ghosts.check();
        }
        let steps = self.request.steps().iter();
        for block in steps.filter_map(|step| step.block) {
            let last_use = self.leaves.key(block).last_use();
            assert_eq!(last_use, self.number, "last use of a step's block");
        }
    }
}
