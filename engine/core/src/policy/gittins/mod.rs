//! P-GIT: the leaf that is worth least goes first, and a block worth less than that stays out.
//! Worth is the Gittins index: the most uses for the time held that can be had from now on, by
//! what was learned of blocks of the same category ([`index`]).
//!
//! The category of a block is decided at each use: the last block of a request; blocks that
//! requests share and then go apart, by how often they were used; all others by how many turns
//! their conversation had and how many new blocks the request brings. Ids of blocks that are
//! gone, four times as many as the shard holds, keep their place in a conversation and teach at
//! what age blocks come back.
//!
//! What a request changes is settled when its hits are known: at its first block that is not
//! resident, else when the next request begins; room may be made before that. An access that was
//! not announced, or comes out of order, is settled by itself.
//!
//! Where tiers below the shard may hold blocks, every block is admitted: one that stays out would
//! not reach them. Ghosts are then as many for each block of those tiers, too, and what is worth a
//! write there is decided by the same counts ([`below`]). When the filter refuses every leaf it is
//! asked about, a block with children goes.
//!
//! Over a clean restart the order of last uses, the categories and all that was learned are kept.
//! Ages begin anew; which block comes before which, and ghosts, are lost.
//!
//! **Invariants**
//! - A block is known when it is resident, a ghost, or a step of the request under way that is
//!   neither yet. Each known block counts in its group.
//! - A leaf is in the list of its group unless it is the tip, the deepest resident block of the
//!   request under way.

mod below;
mod facts;
mod groups;
mod index;
mod settle;

use bytemuck::Zeroable;
use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use self::facts::{Facts, category_of_turn};
use self::groups::{GroupIx, Groups};
use self::index::{CATEGORIES, Index};
use super::chain::{Chain, MARK_MAX};
use super::ghost::Ghosts;
use super::list::Search;
use super::request::Request;
use super::{Admission, BelowRule, Policy, PolicyBytes, PolicyConfig, PolicyError, WritePrice};

/// Ghosts for each block of the capacity.
const GHOSTS_PER_BLOCK: u32 = 4;
/// What was learned counts half after this many requests.
const HALVE_AFTER: u64 = 4096;

/// Tag of a block of the first category; those of the others follow. No other policy built in
/// gives them.
const TAG_FIRST: u8 = 80;

/// Where a step of the request is.
#[derive(Clone, Copy)]
enum Place {
    /// Not known, or no longer.
    Nowhere,
    Resident(BlockIx),
    /// Known, and neither resident nor a ghost yet.
    Waiting(Facts),
}

/// Eviction by Gittins index, with a filter on admission. A hit costs the logarithm of the count
/// of requests that have a leaf.
pub struct Gittins {
    chain: Chain,
    /// By block: the id under which it would be remembered.
    ids: HugeVec<u64>,
    /// By block; stale when the block is not known.
    facts: HugeVec<Facts>,
    len: usize,
    ghosts: Ghosts,
    /// By ghost number.
    ghost_facts: HugeVec<Facts>,
    groups: Groups,
    index: Index,
    current: Current,
    tip: Option<BlockIx>,
    /// Whether the tip is not to go: the block asked about last comes after it.
    spares_tip: bool,
    /// The latest clock of any request settled.
    now_ms: u64,
    /// Counts requests settled.
    requests: u64,
    capacity: usize,
    /// How many blocks there were when the last victim was given up, while no more have come.
    full_len: usize,
    /// What is worth a write to the tiers below, where there are any, and blocks that they hold.
    below: Option<BelowRule>,
    below_blocks: usize,
}

/// The request under way.
struct Current {
    request: Request,
    is_settled: bool,
    /// By step, once it is settled.
    places: Vec<Place>,
    /// Its groups, by category.
    groups: [GroupIx; CATEGORIES],
    /// The number of the first of these.
    first_number: u64,
    /// The latest clock told.
    clock_ms: u64,
    /// Turns of the conversation, and blocks it brings.
    turn: u8,
    new_blocks: usize,
}

impl Gittins {
    /// A policy that knows no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        let blocks_max = config.blocks_max.min(MARK_MAX);
        let ghosts_max = GHOSTS_PER_BLOCK * blocks_max;
        let blocks = blocks_max as usize;
        // Each group is named by a block, a ghost or the request under way.
        let groups_max = blocks + ghosts_max as usize + CATEGORIES;
        let current = Current {
            request: Request::default(),
            is_settled: true,
            places: Vec::new(),
            groups: [0; CATEGORIES],
            first_number: 0,
            clock_ms: 0,
            turn: 1,
            new_blocks: 0,
        };
        Ok(Self {
            chain: Chain::new(blocks_max)?,
            ids: HugeVec::with_capacity(blocks)?,
            facts: HugeVec::with_capacity(blocks)?,
            len: 0,
            ghosts: Ghosts::bounded(
                ghosts_max,
                ghosts_of(config.capacity_blocks, config.below_blocks),
            )?,
            ghost_facts: HugeVec::with_capacity(ghosts_max as usize + 1)?,
            groups: Groups::new(groups_max)?,
            index: Index::new(),
            current,
            tip: None,
            spares_tip: false,
            now_ms: 0,
            requests: 0,
            capacity: config.capacity_blocks,
            full_len: usize::MAX,
            below: (config.below_blocks > 0).then(|| BelowRule::new(config.below_blocks)),
            below_blocks: config.below_blocks,
        })
    }

    /// The step of an access in the request under way, or the first of the next one.
    fn step_of(&mut self, access: &Access) -> usize {
        self.spares_tip = false;
        let step = self.current.request.step_of(access).unwrap_or_else(|| {
            self.finish();
            self.current.request.begin_unannounced(access);
            self.begin(access.context.clock_ms);
            0
        });
        let clock_ms = &mut self.current.clock_ms;
        *clock_ms = access.context.clock_ms.max(*clock_ms);
        // One that goes on with a request which is settled.
        if self.current.is_settled && step == self.current.places.len() {
            let place = self.place_of_missed(step);
            self.current.new_blocks += usize::from(matches!(place, Place::Nowhere));
            self.current.places.push(place);
            self.release_step(step);
            self.use_step(step);
        }
        step
    }

    /// A request begins, with the steps it has.
    fn begin(&mut self, clock_ms: u64) {
        let current = &mut self.current;
        current.is_settled = false;
        current.places.clear();
        current.groups = [0; CATEGORIES];
        current.first_number = self.groups.next_number();
        current.clock_ms = clock_ms;
    }

    /// A known block leaves its group.
    fn leave_group(&mut self, group: GroupIx) {
        let category = self.groups.category(group);
        if self.groups.leave(group) && self.current.groups[category] == group {
            self.current.groups[category] = 0;
        }
    }

    /// The request under way is over: what it left out is remembered.
    fn finish(&mut self) {
        self.settle();
        self.spares_tip = false;
        self.set_tip(None);
        if self.current.places.is_empty() {
            return;
        }
        for step in (0..self.current.places.len()).rev() {
            if let Place::Waiting(facts) = self.current.places[step] {
                self.remember(self.current.request.steps()[step].id, facts);
            }
        }
        self.current.places.clear();
        if self.requests % HALVE_AFTER == HALVE_AFTER - 1 {
            self.index.halve();
        }
        self.requests += 1;
    }

    /// A block that is gone becomes a ghost.
    fn remember(&mut self, id: KeyHash, facts: Facts) {
        // Two keys with one hash may both leave.
        let same = self.ghosts.forget(id);
        self.forget_ghost(same);
        if self.ghosts.is_full() {
            let oldest = self.ghosts.forget_oldest();
            self.forget_ghost(oldest);
        }
        match self.ghosts.remember(id) {
            Some(ghost) => {
                self.ghost_facts.grow_to(ghost.0 as usize + 1);
                self.ghost_facts[ghost.0 as usize] = facts;
            }
            None => self.leave_group(facts.group),
        }
    }

    /// What a ghost that is forgotten leaves behind.
    fn forget_ghost(&mut self, ghost: Option<BlockIx>) {
        if let Some(ghost) = ghost {
            self.leave_group(self.ghost_facts[ghost.0 as usize].group);
        }
    }

    /// A leaf may go unless it is the tip; others are in no list.
    fn enter_order(&mut self, block: BlockIx) {
        if self.tip != Some(block) && self.chain.is_leaf(block) {
            let group = self.facts[block.0 as usize].group;
            self.groups
                .enter_leaf(group, block, &mut self.chain, &self.index);
        }
    }

    fn leave_order(&mut self, block: BlockIx) {
        if self.tip != Some(block) && self.chain.is_leaf(block) {
            let group = self.facts[block.0 as usize].group;
            self.groups.leave_leaf(group, block, &mut self.chain);
        }
    }

    /// Makes `tip` the tip, and the one before a leaf as any other.
    fn set_tip(&mut self, tip: Option<BlockIx>) {
        if self.tip != tip {
            tip.into_iter().for_each(|tip| self.leave_order(tip));
            let before = std::mem::replace(&mut self.tip, tip);
            before.into_iter().for_each(|leaf| self.enter_order(leaf));
        }
    }

    /// Takes in a block below its parent, as the tip.
    fn enter(&mut self, block: BlockIx, id: KeyHash, parent: Option<BlockIx>, facts: Facts) {
        self.ids.grow_to(block.0 as usize + 1);
        self.facts.grow_to(block.0 as usize + 1);
        self.ids[block.0 as usize] = id.0;
        self.facts[block.0 as usize] = facts;
        parent
            .into_iter()
            .for_each(|parent| self.leave_order(parent));
        self.chain.insert(block, parent);
        self.len += 1;
        if self.len > self.full_len {
            // There was room after all.
            self.full_len = usize::MAX;
        }
        let before = self.tip.replace(block);
        before.into_iter().for_each(|leaf| self.enter_order(leaf));
    }

    /// Takes a block out that is in no list; its facts are still those of a known block.
    fn take_out(&mut self, block: BlockIx) {
        if self.tip == Some(block) {
            self.tip = None;
        }
        let group = self.facts[block.0 as usize].group;
        let is_old = self.groups.number(group) < self.current.first_number;
        if !(is_old && self.current.is_settled) {
            self.current.request.leave(block);
            for place in &mut self.current.places {
                if matches!(place, Place::Resident(other) if *other == block) {
                    *place = Place::Nowhere;
                }
            }
        }
        self.len -= 1;
        let leaf = self.chain.remove(block);
        leaf.into_iter().for_each(|leaf| self.enter_order(leaf));
    }

    /// Room may be made between any two accesses. While hits of a request may still come it is not
    /// known yet what it finds, and the blocks that it has come to stay in their earlier groups.
    fn settle_unless_under_way(&mut self) {
        if !self.current.request.is_under_way() {
            self.settle();
        }
    }

    fn is_full(&self) -> bool {
        self.len >= self.capacity.min(self.full_len)
    }
}

const fn ghosts_of(blocks: usize, below: usize) -> usize {
    blocks
        .saturating_add(below)
        .saturating_mul(GHOSTS_PER_BLOCK as usize)
}

impl Policy for Gittins {
    fn name(&self) -> &'static str {
        "P-GIT"
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.capacity = blocks;
        self.full_len = usize::MAX;
        let ghosts_max = ghosts_of(blocks, self.below_blocks);
        while self.ghosts.len() > ghosts_max {
            let oldest = self.ghosts.forget_oldest();
            self.forget_ghost(oldest);
        }
        self.ghosts.set_count_max(ghosts_max);
    }

    fn on_request(&mut self, accesses: &[Access]) {
        self.finish();
        self.current.request.begin(accesses);
        self.begin(self.current.request.clock_ms());
    }

    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        let step = self.step_of(access);
        self.current.request.enter(step, block);
        if !self.current.is_settled {
            return;
        }
        // It was not expected to be resident.
        if let Place::Waiting(facts) = self.current.places[step] {
            self.leave_group(facts.group);
        }
        self.current.places[step] = Place::Resident(block);
        let group = self.facts[block.0 as usize].group;
        if self.groups.number(group) < self.current.first_number {
            self.release_step(step);
            self.use_step(step);
        }
        self.link(step);
        self.set_tip(Some(block));
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        let step = self.step_of(access);
        self.settle();
        if !matches!(self.current.places[step], Place::Waiting(_)) {
            self.current.places[step] = Place::Waiting(Facts::zeroed());
            self.use_step(step);
        }
        let facts = self.facts_at(step);
        self.current.places[step] = Place::Resident(block);
        let parent = self.current.request.parent_of(step);
        self.current.request.enter(step, block);
        self.enter(block, access.id, parent, facts);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.settle_unless_under_way();
        self.leave_order(block);
        self.take_out(block);
        self.leave_group(self.facts[block.0 as usize].group);
    }

    fn admit(&mut self, access: &Access) -> Admission {
        let step = self.step_of(access);
        self.settle();
        if self.current.request.breaks_at(step) && self.below.is_none() {
            return Admission::Decline;
        }
        let parent = self.current.request.parent_of(step);
        self.spares_tip = parent.is_some();
        self.set_tip(parent);
        if !self.is_full() {
            return Admission::Admit;
        }
        let Some(least) = self.groups.least() else {
            return Admission::Decline;
        };
        let group = self.facts_at(step).group;
        let is_worth_less = group != 0
            && self.index.worth(self.groups.category(group), 0) < least.worth
            && self.below.is_none();
        if is_worth_less {
            Admission::Decline
        } else {
            Admission::Admit
        }
    }

    fn set_write_price(&mut self, price: WritePrice) {
        self.below = self.below.take().map(|below| below.with_price(price));
    }

    fn admit_below(&mut self, access: &Access) -> Admission {
        self.judge_victim(access)
    }

    fn keep(&mut self, resident: Option<BlockIx>, access: &Access) -> Option<bool> {
        self.judge_kept(resident, access)
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        self.settle_unless_under_way();
        if !self.spares_tip {
            self.set_tip(None);
        }
        let mut search = Search::new(evictable);
        let mut found = None;
        while let Some(least) = self.groups.least().filter(|_| !search.is_over()) {
            self.leave_order(least.leaf);
            if search.accepts(least.leaf) {
                found = Some(least.leaf);
                break;
            }
        }
        // Those of one group come back in the order they had.
        for &leaf in search.refused().iter().rev() {
            self.enter_order(leaf);
        }
        let victim = found.or_else(|| self.chain.last_resort(self.tip, &mut search))?;
        self.full_len = self.len;
        let facts = self.facts[victim.0 as usize];
        self.take_out(victim);
        self.remember(KeyHash(self.ids[victim.0 as usize]), facts);
        Some(victim)
    }

    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        let tip = self.tip.filter(|tip| self.chain.is_leaf(*tip));
        let leaves = self.groups.leaves(&self.chain).chain(tip);
        let group = |block: BlockIx| self.facts[block.0 as usize].group;
        let order = self
            .chain
            .in_order(leaves, |block| self.groups.number(group(block)));
        for block in order {
            visit(block, TAG_FIRST + self.groups.category(group(block)) as u8);
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.on_request(&[]);
        self.now_ms = access.context.clock_ms.max(self.now_ms);
        let category = tag.checked_sub(TAG_FIRST).map(usize::from);
        let category = category
            .filter(|category| *category < CATEGORIES)
            .unwrap_or(category_of_turn(1, 1));
        let mut facts = Facts::of_category(category);
        facts.group = self.groups.create(self.now_ms, category);
        self.groups.join(facts.group);
        self.index.age(category, 0, 1);
        let ghost = self.ghosts.forget(access.id);
        self.forget_ghost(ghost);
        self.enter(block, access.id, None, facts);
        self.set_tip(None);
    }

    fn save_learned(&self) -> Vec<u8> {
        self.index.save()
    }

    fn restore_learned(&mut self, learned: &[u8]) {
        if let Some(index) = Index::of_saved(learned) {
            self.index = index;
            self.groups.weigh(&self.index);
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> PolicyBytes {
        let blocks = self.chain.bytes() + self.ids.bytes() + self.facts.bytes();
        let ghosts = self.ghosts.bytes() + self.ghost_facts.bytes();
        // Ghosts have a share of the groups, as many of these as there are of them.
        let groups = self.groups.bytes();
        let known = (self.len + self.ghosts.len()).max(1) as u64;
        let of_blocks = groups * self.len as u64 / known;
        PolicyBytes {
            resident: blocks + of_blocks,
            ghosts: ghosts + groups - of_blocks,
        }
    }

    fn check(&self) {
        self.ghosts.check();
        self.groups.check(&self.chain);
        let tip = self.tip.filter(|tip| self.chain.is_leaf(*tip));
        let known = self
            .chain
            .in_order(self.groups.leaves(&self.chain).chain(tip), |block| block);
        assert_eq!(
            known.len(),
            self.len,
            "blocks that are leaves or before one"
        );
        self.chain.check(&known);
        for leaf in self.groups.leaves(&self.chain) {
            assert!(self.chain.is_leaf(leaf), "{leaf:?} has children");
            assert_ne!(Some(leaf), self.tip, "the tip is in no list");
        }
        let waiting = self.current.places.iter().filter_map(|place| match place {
            Place::Waiting(facts) => Some(facts.group),
            _ => None,
        });
        let ghosts = self.ghosts.numbers().map(|ghost| &self.ghost_facts[ghost]);
        let resident = known.iter().map(|block| &self.facts[block.0 as usize]);
        let facts = resident.chain(ghosts).map(|facts| facts.group);
        self.groups.check_alive(facts.chain(waiting));
        for place in &self.current.places {
            if let Place::Resident(block) = place {
                assert!(known.contains(block), "{block:?} of a step is gone");
            }
        }
    }
}
