//! What a request changes as a whole, once its hits are known: what its blocks teach, which of
//! them are shared, and the category of each by this use.

use bytemuck::Zeroable;
use terrace_types::BlockIx;

use super::super::request::{Request, Step};
use super::facts::{Facts, TURNS_MAX, USES_MAX};
use super::groups::GroupIx;
use super::{Gittins, Place};

/// Worths are worked out anew after this many requests, or so many that were not announced and
/// may be single blocks: it takes as long as some thousand hits.
const WEIGH_AFTER: u64 = 4;
const WEIGH_AFTER_UNANNOUNCED: u64 = 64;

impl Gittins {
    /// Learns from the request under way and touches its blocks, once.
    pub(super) fn settle(&mut self) {
        if std::mem::replace(&mut self.current.is_settled, true) {
            return;
        }
        if self.current.request.steps().is_empty() {
            return;
        }
        self.now_ms = self.current.clock_ms.max(self.now_ms);
        self.groups.age(self.now_ms, &mut self.index);
        if let Some(below) = &mut self.below {
            below.advance(self.now_ms);
        }
        let (known, tip) = self.find_places();
        self.set_tip(tip);
        let count = self.current.places.len();
        let before = known.checked_sub(1).map(|step| self.facts_at(step).turn);
        let turn = before.map_or(1, |turn| (turn + 1).min(TURNS_MAX));
        (self.current.turn, self.current.new_blocks) = (turn, count - known);
        (0..count).for_each(|step| self.release_step(step));
        self.tell_apart(known);
        for step in 0..count {
            self.use_step(step);
            self.link(step);
        }
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

    /// Where each step is; how many of them are known before the first that is not, and the
    /// deepest that is resident.
    fn find_places(&mut self) -> (usize, Option<BlockIx>) {
        let count = self.current.request.steps().len();
        let (mut known, mut tip) = (0, None);
        for at in 0..count {
            let Step { block, .. } = self.current.request.steps()[at];
            let place = match block {
                Some(block) => Place::Resident(block),
                None => self.place_of_missed(at),
            };
            tip = block.or(tip);
            match place {
                Place::Nowhere => {}
                // What is known behind an unknown block is of no use: it begins anew.
                Place::Waiting(facts) if known < at => {
                    self.leave_group(facts.group);
                    self.current.places.push(Place::Nowhere);
                    continue;
                }
                _ if known == at => known += 1,
                _ => {}
            }
            self.current.places.push(place);
        }
        for place in &mut self.current.places {
            if matches!(place, Place::Nowhere) {
                *place = Place::Waiting(Facts::zeroed());
            }
        }
        (known, tip)
    }

    /// Where the block of a step is that is not resident; its ghost is forgotten.
    pub(super) fn place_of_missed(&mut self, step: usize) -> Place {
        let id = self.current.request.steps()[step].id;
        let ghost = self.ghosts.forget(id);
        ghost.map_or(Place::Nowhere, |ghost| {
            Place::Waiting(self.ghost_facts[ghost.0 as usize])
        })
    }

    pub(super) fn facts_at(&self, step: usize) -> Facts {
        match self.current.places[step] {
            Place::Resident(block) => self.facts[block.0 as usize],
            Place::Waiting(facts) => facts,
            Place::Nowhere => Facts::zeroed(),
        }
    }

    fn set_facts_at(&mut self, step: usize, facts: Facts) {
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
        self.index.use_again(category, bin);
        self.leave_group(facts.group);
        facts.group = 0;
        self.set_facts_at(step, facts);
    }

    /// Blocks before one where this request leaves the way of an earlier one are shared; and
    /// every block is told which one comes after it now.
    fn tell_apart(&mut self, known: usize) {
        let count = self.current.places.len();
        let child_of = |request: &Request, step: usize| {
            let next = request.steps()[step + 1];
            (next.id.0 as u32, next.is_tail)
        };
        if let Some(last) = known.checked_sub(1).filter(|_| known < count) {
            let facts = self.facts_at(last);
            let (child, _) = child_of(&self.current.request, last);
            if facts.child != 0 && facts.child != child && !facts.child_is_tail {
                for step in (0..known).rev() {
                    let mut facts = self.facts_at(step);
                    if facts.is_shared {
                        break;
                    }
                    facts.is_shared = true;
                    self.set_facts_at(step, facts);
                }
            }
        }
        for step in 0..count.saturating_sub(1) {
            let mut facts = self.facts_at(step);
            (facts.child, facts.child_is_tail) = child_of(&self.current.request, step);
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
            facts.turn = self.current.turn;
        }
        facts.uses = (facts.uses + 1).min(USES_MAX);
        let is_tail = self.current.request.steps()[step].is_tail;
        let category = facts.category(is_tail, self.current.turn, self.current.new_blocks);
        facts.group = self.group_of(category);
        self.groups.join(facts.group);
        self.index.age(category, 0, 1);
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
    fn group_of(&mut self, category: usize) -> GroupIx {
        if self.current.groups[category] == 0 {
            self.current.groups[category] = self.groups.create(self.now_ms, category);
        }
        self.current.groups[category]
    }
}
