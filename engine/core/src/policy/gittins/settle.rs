//! Settling a request: once its hits are known, what it teaches is learned and its blocks are
//! used. See the parent module's text.

use bytemuck::Zeroable;
use terrace_types::{Access, BlockIx, KeyHash};

use super::facts::{CHILD_IS_TAIL, END, Facts, IN_REQUEST, SHARED, USES_MAX, child_of};
use super::groups::GroupIx;
use super::history::History;
use super::index::CATEGORIES;
use super::trail::Trail;
use super::{Form, Gittins};
use crate::policy::request::{Request, Step};

/// P-GIT works out worths anew after this many requests, or so many that were not announced and
/// may be single blocks: it takes as long as some thousand hits.
const WEIGH_AFTER: u64 = 4;
const WEIGH_AFTER_UNANNOUNCED: u64 = 64;
/// The default policy works them out category by category, one for so many uses of blocks.
const USES_PER_CATEGORY: usize = 8;

/// What was learned counts half after this many requests, and no sooner than this many uses.
const HALVE_AFTER: u64 = 4096;
const HALVE_AFTER_USES: usize = 1 << 16;

/// Where a step of the request is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Not known, or no longer.
    Nowhere,
    Resident(BlockIx),
    /// Known, and neither resident nor a ghost yet.
    Waiting(Facts),
}

/// The request under way.
pub(super) struct Current {
    pub(super) request: Request,
    pub(super) is_settled: bool,
    /// By step, once it is settled.
    pub(super) places: Vec<Place>,
    /// Its chain, where there are milestones.
    pub(super) trail: Trail,
    /// Its groups and their numbers, by category.
    groups: [(GroupIx, u64); CATEGORIES],
    /// The last step that is no tail.
    end: Option<usize>,
    /// The latest clock told.
    clock_ms: u64,
    /// Turns of the conversation, and blocks it brings.
    pub(super) turn: u8,
    pub(super) new_blocks: usize,
}

impl Current {
    pub(super) fn new() -> Self {
        Self {
            request: Request::default(),
            is_settled: true,
            places: Vec::new(),
            trail: Trail::default(),
            groups: [(0, 0); CATEGORIES],
            end: None,
            clock_ms: 0,
            turn: 1,
            new_blocks: 0,
        }
    }
}

impl Gittins {
    /// The step of an access in the request under way, or the first of the next one.
    pub(super) fn step_of(&mut self, access: &Access) -> usize {
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
            self.extend(step);
        }
        step
    }

    fn extend(&mut self, step: usize) {
        if self.has_milestones() {
            self.extend_trail();
            return;
        }
        let place = self.place_of_missed(step);
        self.current.new_blocks += usize::from(matches!(place, Place::Nowhere));
        self.current.places.push(place);
        self.find_end();
        self.release_step(step);
        self.use_step(step);
    }

    /// A request begins, with the steps it has.
    pub(super) fn begin(&mut self, clock_ms: u64) {
        let current = &mut self.current;
        current.is_settled = false;
        current.places.clear();
        current.trail.clear();
        current.groups = [(0, 0); CATEGORIES];
        current.end = None;
        current.clock_ms = clock_ms;
    }

    /// Learns from the request under way and touches its blocks, once.
    pub(super) fn settle(&mut self) {
        if std::mem::replace(&mut self.current.is_settled, true) {
            return;
        }
        if self.current.request.steps().is_empty() && !self.current.trail.is_told() {
            return;
        }
        self.now_ms = self.current.clock_ms.max(self.now_ms);
        self.groups.age(self.now_ms, &mut self.index);
        if let Some(below) = &mut self.below {
            below.advance(self.now_ms);
        }
        if self.has_milestones() {
            self.settle_by_milestones();
        } else {
            self.settle_by_blocks();
        }
    }

    /// Learns from the request and uses its blocks, by what is known of each.
    fn settle_by_blocks(&mut self) {
        let (known, tip) = self.find_places();
        self.set_tip(tip);
        self.find_end();
        let count = self.current.places.len();
        let before = known.checked_sub(1).map(|step| self.facts_at(step).turn());
        self.current.turn = before.map_or(1, |turn| turn + 1);
        self.current.new_blocks = self.count_new(known);
        (0..count).for_each(|step| self.release_step(step));
        self.tell_apart(known);
        for step in 0..count {
            self.use_step(step);
            self.link(step);
        }
        self.weigh(count);
    }

    /// Works out worths anew, as far as it is time.
    pub(super) fn weigh(&mut self, uses: usize) {
        match self.form {
            Form::Reference => {
                let after = if self.current.request.was_announced() {
                    WEIGH_AFTER
                } else {
                    WEIGH_AFTER_UNANNOUNCED
                };
                if self.requests.is_multiple_of(after) {
                    self.index.weigh();
                    self.groups.weigh(&self.index);
                }
            }
            Form::Default => {
                self.uses_to_weigh =
                    (self.uses_to_weigh + uses).min(CATEGORIES * USES_PER_CATEGORY);
                while self.uses_to_weigh >= USES_PER_CATEGORY {
                    let Some(category) = self.index.weigh_next() else {
                        break;
                    };
                    self.uses_to_weigh -= USES_PER_CATEGORY;
                    self.groups.weigh_category(category, &self.index);
                }
            }
        }
        self.uses += uses;
    }

    /// Where each step is; how many of them are known, and the deepest that is resident.
    fn find_places(&mut self) -> (usize, Option<BlockIx>) {
        let count = self.current.request.steps().len();
        let stands_for_chain = self.history.stands_for_chain();
        let (mut known, mut tip) = (0, None);
        self.prefetch_steps();
        for at in 0..count {
            let Step { block, .. } = self.current.request.steps()[at];
            let place = match block {
                Some(block) => Place::Resident(block),
                None => self.place_of_missed(at),
            };
            tip = block.or(tip);
            match place {
                Place::Nowhere => {}
                _ if stands_for_chain || known == at => known = at + 1,
                // What is known behind an unknown block is of no use: it begins anew.
                Place::Waiting(facts) => {
                    self.groups.leave(facts.group);
                    self.current.places.push(Place::Nowhere);
                    continue;
                }
                Place::Resident(_) => {}
            }
            self.current.places.push(place);
        }
        self.fill_gaps();
        (known, tip)
    }

    /// Looks at many blocks wait for memory at the same time.
    pub(super) fn prefetch_steps(&self) {
        for step in self.current.request.steps() {
            match step.block {
                None => self.history.prefetch(step.id),
                Some(block) => {
                    self.facts.prefetch(block.0 as usize);
                    self.chain.prefetch(block);
                }
            }
        }
    }

    /// Blocks of which nothing is known begin anew; those before a known one are taken for like it.
    fn fill_gaps(&mut self) {
        let mut after = Facts::zeroed();
        for step in (0..self.current.places.len()).rev() {
            match self.current.places[step] {
                Place::Nowhere => self.current.places[step] = Place::Waiting(after),
                _ if self.history.stands_for_chain() => {
                    after = self.facts_at(step);
                    after.group = 0;
                    after.child = 0;
                    after.set(IN_REQUEST, false);
                }
                _ => {}
            }
        }
    }

    /// How many blocks the request brings, when this many of its steps are known. Of a chain in
    /// several shards only some blocks are steps here; between two of them it is a guess.
    pub(super) fn count_new(&self, known: usize) -> usize {
        let steps = self.current.request.steps();
        if self.form == Form::Reference {
            return steps.len() - known;
        }
        let least = known
            .checked_sub(1)
            .map_or(0, |step| steps[step].depth.saturating_add(1));
        let most = steps.get(known).map_or(least, |step| step.depth);
        let known_blocks = least + most.saturating_sub(least).div_ceil(2);
        let blocks = steps.last().map_or(0, |step| step.depth.saturating_add(1));
        blocks.saturating_sub(known_blocks) as usize
    }

    /// The last full block of the request is its end; one that was no longer is.
    fn find_end(&mut self) {
        let mut steps = self.current.request.steps()[..self.current.places.len()].iter();
        let end = steps.rposition(|step| !step.is_tail);
        let before = std::mem::replace(&mut self.current.end, end);
        let was_end = before.filter(|step| Some(*step) != end);
        let is_known = |step: &usize| !matches!(self.current.places[*step], Place::Nowhere);
        if let Some(step) = was_end.filter(is_known) {
            let mut facts = self.facts_at(step);
            facts.set(END, false);
            self.set_facts_at(step, facts);
        }
    }

    /// Where the block of a step is that is not resident; its ghost is forgotten.
    fn place_of_missed(&mut self, step: usize) -> Place {
        let id = self.current.request.steps()[step].id;
        let facts = self.history.take(id, &mut self.groups, &mut self.index);
        facts.map_or(Place::Nowhere, Place::Waiting)
    }

    pub(super) fn facts_at(&self, step: usize) -> Facts {
        match self.current.places[step] {
            Place::Resident(block) => self.facts[block.0 as usize],
            Place::Waiting(facts) => facts,
            Place::Nowhere => Facts::zeroed(),
        }
    }

    pub(super) fn set_facts_at(&mut self, step: usize, facts: Facts) {
        match &mut self.current.places[step] {
            Place::Resident(block) => self.facts[block.0 as usize] = facts,
            place => *place = Place::Waiting(facts),
        }
    }

    /// A known block of the request is about to be used: it leaves its group, which teaches at
    /// what age it came back.
    pub(super) fn release_step(&mut self, step: usize) {
        let mut facts = self.facts_at(step);
        if facts.group == 0 {
            return;
        }
        if let Place::Resident(block) = self.current.places[step] {
            self.leave_order(block);
        }
        let (category, bin) = (
            self.groups.category(facts.group),
            self.groups.bin(facts.group),
        );
        if !self.has_milestones() {
            self.index.use_again(category, bin, 1);
        }
        self.groups.leave(facts.group);
        facts.group = 0;
        self.set_facts_at(step, facts);
    }

    /// Blocks before one where this request leaves the way of an earlier one are shared; and
    /// every block is told which one comes after it now.
    fn tell_apart(&mut self, known: usize) {
        let count = self.current.places.len();
        let after = |request: &Request, step: usize| {
            let next = request.steps()[step + 1];
            (child_of(next.id), next.is_tail)
        };
        if let Some(last) = known.checked_sub(1).filter(|_| known < count) {
            let facts = self.facts_at(last);
            let (child, _) = after(&self.current.request, last);
            let differs = (facts.child ^ child) & self.history.child_mask() != 0;
            if facts.child != 0 && differs && !facts.has(CHILD_IS_TAIL) {
                for step in (0..known).rev() {
                    let mut facts = self.facts_at(step);
                    if facts.has(SHARED) {
                        break;
                    }
                    facts.set(SHARED, true);
                    self.set_facts_at(step, facts);
                }
            }
        }
        for step in 0..count.saturating_sub(1) {
            let mut facts = self.facts_at(step);
            let (child, is_tail) = after(&self.current.request, step);
            facts.child = child;
            facts.set(CHILD_IS_TAIL, is_tail);
            self.set_facts_at(step, facts);
        }
    }

    /// Uses the block of a step, which is in no group: it joins one of this request.
    pub(super) fn use_step(&mut self, step: usize) {
        let mut facts = self.facts_at(step);
        if facts.group != 0 {
            // The same block twice in one request.
            return;
        }
        if facts.uses == 0 {
            facts.set_turn(self.current.turn);
        }
        facts.uses = (facts.uses + 1).min(USES_MAX);
        let is_tail = self.current.request.steps()[step].is_tail;
        let category = facts.category(is_tail, self.current.turn, self.current.new_blocks);
        facts.group = self.group_of(category);
        facts.set(END, self.current.end == Some(step));
        facts.set(IN_REQUEST, true);
        self.groups.join(facts.group, &mut self.index);
        self.set_facts_at(step, facts);
        if let Place::Resident(block) = self.current.places[step] {
            self.enter_order(block);
        }
    }

    /// Puts a resident root below the block before it. One with children might come before that
    /// and stays a root.
    pub(super) fn link(&mut self, step: usize) {
        let Place::Resident(block) = self.current.places[step] else {
            return;
        };
        if !self.chain.is_leaf(block) || self.chain.parent(block).is_some() {
            return;
        }
        let parent = self.current.request.parent_of(step);
        if let Some(parent) = parent.filter(|parent| *parent != block) {
            self.leave_order(parent);
            self.chain.link(block, parent);
        }
    }

    /// The request's group of a category.
    pub(super) fn group_of(&mut self, category: usize) -> GroupIx {
        let (group, number) = self.current.groups[category];
        if group != 0 && self.groups.number(group) == number {
            return group;
        }
        let group = self.groups.open(self.now_ms, category);
        self.current.groups[category] = (group, self.groups.number(group));
        group
    }

    /// The request under way is over: what it left out is remembered.
    pub(super) fn finish(&mut self) {
        self.settle();
        self.spares_tip = false;
        self.set_tip(None);
        if self.current.places.is_empty() && !self.current.trail.is_told() {
            return;
        }
        for step in (0..self.current.places.len()).rev() {
            match self.current.places[step] {
                Place::Waiting(facts) => {
                    self.remember(self.current.request.steps()[step].id, facts)
                }
                Place::Resident(block) => self.facts[block.0 as usize].set(IN_REQUEST, false),
                Place::Nowhere => {}
            }
        }
        self.current.places.clear();
        self.current.trail.clear();
        self.requests += 1;
        let uses = match self.form {
            Form::Reference => 0,
            Form::Default => HALVE_AFTER_USES,
        };
        if self.requests >= self.halve_at && self.uses >= uses {
            self.index.halve();
            self.halve_at = self.requests + HALVE_AFTER;
            self.uses = 0;
        }
    }

    /// A block that is gone becomes a ghost.
    pub(super) fn remember(&mut self, id: KeyHash, facts: Facts) {
        let (groups, index) = (&mut self.groups, &mut self.index);
        // The last block of a request is normally partial and does not come back. Others are
        // remembered by milestones unless a tier below asks about them.
        let is_tail = groups.category(facts.group) == 0;
        let is_passed_over =
            is_tail || matches!(self.history, History::Milestones(_)) && self.below.is_none();
        if self.form == Form::Default && is_passed_over {
            groups.leave(facts.group);
            return;
        }
        self.history.remember(id, facts, self.now_ms, groups, index);
    }
}

/// After how many requests what was learned counts half for the first time.
pub(super) const HALVE_FIRST: u64 = HALVE_AFTER;
