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
mod buckets;
mod cells;
mod compact;
mod facts;
mod groups;
mod history;
mod index;
mod milestones;
mod settle;
mod trail;

use bytemuck::Zeroable;
use terrace_slab::HugeVec;
use terrace_types::{Access, BlockIx, KeyHash};

use self::facts::{CATEGORY_TURN, Facts, IN_REQUEST, category_of_turn};
use self::groups::Groups;
use self::history::History;
use self::index::{CATEGORIES, Index, Prior};
use self::settle::{Current, HALVE_FIRST, Place};
use super::chain::{Chain, MARK_MAX};
use super::list::Search;
use super::{
    Admission, BelowRule, Policy, PolicyBytes, PolicyConfig, PolicyError, RequestChain, WritePrice,
};

/// Tags of a block of the first category, of P-GIT and of the default; those of the others
/// follow. No other policy built in gives them. There are few left for the default: two categories
/// that differ by new blocks only have one tag.
const TAG_FIRST: u8 = 80;
const TAG_FIRST_DEFAULT: u8 = 110;
const _: () = assert!(TAG_FIRST as usize + CATEGORIES == TAG_FIRST_DEFAULT as usize);

/// For how many blocks the default policy has one group, and how many groups it has at least.
const BLOCKS_PER_GROUP: usize = 16;
const GROUPS_MIN: usize = 8192;

/// Which of the policies by Gittins index it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// P-GIT, exact to its definition.
    Reference,
    /// The default policy.
    Default,
}

/// Eviction by Gittins index, with a filter on admission. A hit costs the logarithm of the count
/// of requests that have a leaf.
pub struct Gittins {
    form: Form,
    chain: Chain,
    /// By block: the id under which it would be remembered.
    ids: HugeVec<u64>,
    /// By block; stale when the block is not known.
    facts: HugeVec<Facts>,
    len: usize,
    history: History,
    groups: Groups,
    index: Index,
    current: Current,
    tip: Option<BlockIx>,
    /// Whether the tip is not to go: the block asked about last comes after it.
    spares_tip: bool,
    /// The latest clock of any request settled.
    now_ms: u64,
    /// Counts requests settled, and uses of blocks since what was learned counted half last.
    requests: u64,
    uses: usize,
    /// When it next does.
    halve_at: u64,
    /// Uses of blocks for which worths are still to be worked out.
    uses_to_weigh: usize,
    capacity: usize,
    /// How many blocks there were when the last victim was given up, while no more have come.
    full_len: usize,
    /// What is worth a write to the tiers below, where there are any, and blocks that they hold.
    below: Option<BelowRule>,
    below_blocks: usize,
    /// The last victim, with its category and bin: not every block leaves a ghost.
    gone: Option<(KeyHash, usize, usize)>,
}

impl Gittins {
    /// P-GIT, knowing no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn reference(config: PolicyConfig) -> Result<Self, PolicyError> {
        let blocks_max = config.blocks_max.min(MARK_MAX);
        let history = History::exact(blocks_max, remembered(&config))?;
        // Each group is named by a block, a ghost or the request under way.
        let groups_max = blocks_max as usize + History::exact_max(blocks_max) + CATEGORIES;
        let groups = Groups::new(groups_max, blocks_max)?;
        Self::with(Form::Reference, config, history, groups)
    }

    /// The default policy, knowing no block.
    ///
    /// # Errors
    /// [`PolicyError::Memory`] when address space for its arrays is not to be had.
    pub fn new(config: PolicyConfig) -> Result<Self, PolicyError> {
        let blocks_max = config.blocks_max.min(MARK_MAX);
        let groups_max =
            (blocks_max as usize / BLOCKS_PER_GROUP).clamp(GROUPS_MIN, compact::GROUPS_MAX);
        if config.shards > 1 {
            let history = History::milestones(blocks_max, remembered(&config))?;
            let groups = Groups::with_milestones(groups_max, blocks_max)?;
            let mut policy = Self::with(Form::Default, config, history, groups)?;
            policy.index = Index::of_chains(Form::Default.prior());
            return Ok(policy);
        }
        let history = History::compact(blocks_max, remembered(&config))?;
        let groups = Groups::shared(groups_max, blocks_max)?;
        Self::with(Form::Default, config, history, groups)
    }

    fn with(
        form: Form,
        config: PolicyConfig,
        history: History,
        groups: Groups,
    ) -> Result<Self, PolicyError> {
        let blocks_max = config.blocks_max.min(MARK_MAX);
        Ok(Self {
            form,
            chain: Chain::new(blocks_max)?,
            ids: HugeVec::with_capacity(blocks_max as usize)?,
            facts: HugeVec::with_capacity(blocks_max as usize)?,
            len: 0,
            history,
            groups,
            index: Index::new(form.prior()),
            current: Current::new(),
            tip: None,
            spares_tip: false,
            now_ms: 0,
            requests: 0,
            uses: 0,
            halve_at: HALVE_FIRST,
            uses_to_weigh: 0,
            capacity: config.capacity_blocks,
            full_len: usize::MAX,
            below: (config.below_blocks > 0).then(|| BelowRule::new(config.below_blocks)),
            below_blocks: config.below_blocks,
            gone: None,
        })
    }

    /// What a block that is gone is worth now: the most uses a millisecond that can be had by
    /// holding it from its age on. `None` when nothing is remembered of it.
    #[must_use]
    pub fn index_of(&self, access: &Access) -> Option<f64> {
        let group = self.history.get(access.id)?.group;
        Some(
            self.index
                .worth(self.groups.category(group), self.groups.bin(group)),
        )
    }

    /// What a block that is gone has before it: for each span of age from the one it is in, the
    /// chance of a use in that span when there was none before, and the span's length in
    /// milliseconds. `None` when nothing is remembered of it.
    pub fn prospect_of(&self, access: &Access) -> Option<impl Iterator<Item = (f64, f64)>> {
        let group = self.history.get(access.id)?.group;
        let (category, bin) = (self.groups.category(group), self.groups.bin(group));
        Some(self.index.prospect(category, bin))
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
        // Of a request that is not settled no block is marked yet.
        let is_in_request = self.facts[block.0 as usize].has(IN_REQUEST);
        if is_in_request || !self.current.is_settled {
            self.facts[block.0 as usize].set(IN_REQUEST, false);
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

    /// Whether chains are remembered by milestones.
    const fn has_milestones(&self) -> bool {
        matches!(self.history, History::Milestones(_))
    }

    fn is_full(&self) -> bool {
        self.len >= self.capacity.min(self.full_len)
    }
}

/// How many blocks are held here and below: ghosts are kept by that count.
const fn remembered(config: &PolicyConfig) -> usize {
    config.capacity_blocks.saturating_add(config.below_blocks)
}

impl Form {
    const fn prior(self) -> Prior {
        match self {
            Self::Reference => Prior::Reference,
            Self::Default => Prior::Common,
        }
    }

    /// The tag of a block of this category.
    fn tag_of(self, category: usize) -> u8 {
        match self {
            Self::Reference => TAG_FIRST + category as u8,
            Self::Default if category < CATEGORY_TURN => TAG_FIRST_DEFAULT + category as u8,
            Self::Default => TAG_FIRST_DEFAULT + ((category + CATEGORY_TURN) / 2) as u8,
        }
    }

    /// The category, or one of the two, that a tag is of.
    fn category_of(self, tag: u8) -> Option<usize> {
        let category = match self {
            Self::Reference => usize::from(tag.checked_sub(TAG_FIRST)?),
            Self::Default => {
                let number = usize::from(tag.checked_sub(TAG_FIRST_DEFAULT)?);
                if number < CATEGORY_TURN {
                    number
                } else {
                    2 * number - CATEGORY_TURN
                }
            }
        };
        (category < CATEGORIES).then_some(category)
    }
}

impl Policy for Gittins {
    fn name(&self) -> &'static str {
        match self.form {
            Form::Reference => "P-GIT",
            Form::Default => "default",
        }
    }

    fn set_capacity(&mut self, blocks: usize) {
        // Hits before this are learned from with the ghosts there were.
        self.settle_unless_under_way();
        self.capacity = blocks;
        self.full_len = usize::MAX;
        let remembered = blocks.saturating_add(self.below_blocks);
        self.history.set_blocks(remembered, &mut self.groups);
    }

    fn on_request(&mut self, accesses: &[Access]) {
        self.finish();
        self.current.request.begin(accesses);
        let clock_ms = self.current.request.clock_ms();
        self.begin(clock_ms);
    }

    fn on_chain(&mut self, chain: &RequestChain<'_>, own: &[Access]) {
        if !self.has_milestones() {
            if !own.is_empty() {
                self.on_request(own);
            }
            return;
        }
        self.finish();
        self.current.request.begin(own);
        self.begin(chain.context.clock_ms);
        self.current.trail.tell(chain.ids, chain.ends_in_tail);
        if own.is_empty() {
            self.settle();
        }
    }

    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        let step = self.step_of(access);
        self.current.request.enter(step, block);
        if !self.current.is_settled {
            return;
        }
        // It was not expected to be resident.
        if let Place::Waiting(facts) = self.current.places[step] {
            self.groups.leave(facts.group);
        }
        self.current.places[step] = Place::Resident(block);
        if !self.facts[block.0 as usize].has(IN_REQUEST) {
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
        self.groups.leave(self.facts[block.0 as usize].group);
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
        let tip = self.tip;
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
        let found = found.or_else(|| self.chain.last_resort(self.tip, &mut search));
        let Some(victim) = found else {
            self.set_tip(tip);
            return None;
        };
        self.full_len = self.len;
        let facts = self.facts[victim.0 as usize];
        let id = KeyHash(self.ids[victim.0 as usize]);
        let group = facts.group;
        self.gone = Some((id, self.groups.category(group), self.groups.bin(group)));
        self.take_out(victim);
        self.remember(id, facts);
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
            visit(block, self.form.tag_of(self.groups.category(group(block))));
        }
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.on_request(&[]);
        self.now_ms = access.context.clock_ms.max(self.now_ms);
        let category = self.form.category_of(tag).unwrap_or(category_of_turn(1, 1));
        let mut facts = Facts::of_category(category);
        facts.group = self.groups.open(self.now_ms, category);
        self.groups.join(facts.group, &mut self.index);
        let ghost = self
            .history
            .take(access.id, &mut self.groups, &mut self.index);
        ghost
            .into_iter()
            .for_each(|ghost| self.groups.leave(ghost.group));
        self.enter(block, access.id, None, facts);
        self.set_tip(None);
    }

    fn save_learned(&self) -> Vec<u8> {
        self.index.save()
    }

    fn restore_learned(&mut self, learned: &[u8]) {
        if let Some(index) = Index::of_saved(self.form.prior(), learned) {
            self.index = index.learning_as(&self.index);
            self.groups.weigh(&self.index);
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> PolicyBytes {
        let blocks = self.chain.bytes() + self.ids.bytes() + self.facts.bytes();
        let blocks = blocks + self.groups.leaf_bytes();
        let ghosts = self.history.bytes();
        let groups = self.groups.bytes();
        let of_blocks = match self.form {
            // Ghosts have a share of the groups, as many of these as there are of them.
            Form::Reference => {
                let known = (self.len + self.history.len()).max(1) as u64;
                groups * self.len as u64 / known
            }
            // There are as many as the count of blocks allows.
            Form::Default => groups,
        };
        PolicyBytes {
            resident: blocks + of_blocks,
            ghosts: ghosts + groups - of_blocks,
        }
    }

    fn check(&self) {
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
        let resident = known.iter().map(|block| self.facts[block.0 as usize].group);
        let ghosts = self.history.check();
        self.groups
            .check_alive(resident.chain(ghosts).chain(waiting));
        for place in &self.current.places {
            if let Place::Resident(block) = place {
                assert!(known.contains(block), "{block:?} of a step is gone");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_keeps_to_32_bytes_a_block_and_16_of_ghosts_whatever_the_clock_says() {
        const BLOCKS: u32 = 1_000_000;
        for millis_per_block in [0, 1, 100] {
            let config = PolicyConfig {
                capacity_blocks: BLOCKS as usize,
                blocks_max: BLOCKS,
                below_blocks: 0,
                shards: 1,
            };
            let mut policy = Gittins::new(config).unwrap();
            let mut free: Vec<BlockIx> = (0..BLOCKS).map(BlockIx).collect();
            for id in 0..u64::from(BLOCKS) * 2 {
                let mut access = Access::plain(KeyHash(id));
                access.context.clock_ms = 1 + id * millis_per_block;
                let victim = free.is_empty().then(|| policy.victim(&mut |_| true));
                free.extend(victim.flatten());
                policy.on_insert(free.pop().unwrap(), &access);
            }
            let PolicyBytes { resident, ghosts } = policy.bytes();
            assert!(resident <= 32 * u64::from(BLOCKS), "{resident}");
            assert!(ghosts <= 16 * u64::from(BLOCKS), "{ghosts}");
        }
    }

    #[test]
    fn block_that_is_gone_has_a_worth_and_a_prospect() {
        let config = PolicyConfig {
            capacity_blocks: 8,
            blocks_max: 8,
            below_blocks: 0,
            shards: 1,
        };
        for mut policy in [Gittins::new(config), Gittins::reference(config)].map(Result::unwrap) {
            let access = Access::plain(KeyHash(7));
            policy.on_insert(BlockIx(0), &access);
            assert_eq!(policy.index_of(&access), None);
            policy.victim(&mut |_| true).unwrap();
            assert!(policy.index_of(&access).unwrap() > 0.0);
            let spans: Vec<_> = policy.prospect_of(&access).unwrap().collect();
            assert!(
                spans
                    .iter()
                    .all(|(chance, len_ms)| { (0.0..1.0).contains(chance) && *len_ms > 0.0 })
            );
        }
    }
}
