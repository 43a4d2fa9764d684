//! Settling a request by milestones, as the default policy does where there are several shards.
//!
//! What a request finds of its chain, how many turns its conversation had and what it teaches are
//! decided by [milestones](super::milestones) alone, which all shards remember alike; resident
//! blocks have a say only when no milestone of their chain is left. A block is of the category of
//! the milestone that stands for it.
//!
//! A shard that hears only of its own part of a chain takes this part for the whole.

use bytemuck::Zeroable;
use terrace_types::KeyHash;

use super::Gittins;
use super::facts::{END, Facts, SHARED, USES_MAX};
use super::history::History;
use super::milestones::{Milestone, is_anchor};
use super::settle::Place;

/// The chain of the request under way.
#[derive(Default)]
pub(super) struct Trail {
    /// Ids of its blocks: of all shards, or of this one's part.
    ids: Vec<KeyHash>,
    /// Whether they are those of all shards.
    is_whole: bool,
    ends_in_tail: bool,
    /// By step: where its block stands among the ids.
    places: Vec<usize>,
    /// Milestones that it found, by where they stand.
    found: Vec<(usize, Milestone)>,
}

impl Trail {
    /// No chain is told.
    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.is_whole = false;
        self.places.clear();
    }

    /// The chain as a whole is told.
    pub(super) fn tell(&mut self, ids: &[KeyHash], ends_in_tail: bool) {
        self.ids.extend_from_slice(ids);
        self.is_whole = true;
        self.ends_in_tail = ends_in_tail;
    }

    /// Whether a chain is told of which this shard may have no block.
    pub(super) const fn is_told(&self) -> bool {
        self.is_whole && !self.ids.is_empty()
    }

    /// Count of its blocks but for the last, if that is partial.
    fn full_len(&self) -> usize {
        self.ids.len() - usize::from(self.ends_in_tail && !self.ids.is_empty())
    }

    /// What stands for the block at a place, if it was found.
    fn milestone_for(&self, place: usize) -> Option<Facts> {
        let after = self.found.partition_point(|(at, _)| *at < place);
        self.found.get(after).map(|(_, milestone)| milestone.facts)
    }
}

impl Gittins {
    /// Learns from the request under way and uses its blocks.
    pub(super) fn settle_by_milestones(&mut self) {
        self.prefetch_steps();
        self.place_steps();
        self.find_milestones();
        self.judge_request();
        for step in 0..self.current.places.len() {
            self.release_step(step);
            self.take_over(step);
            self.use_step(step);
            self.link(step);
        }
        self.set_milestones();
        // Learned from the whole chain, and worked out as often wherever its blocks are.
        self.weigh(self.current.trail.ids.len());
    }

    /// Where each step is, here and in the chain; the deepest resident one is the tip.
    fn place_steps(&mut self) {
        let (trail, steps) = (&mut self.current.trail, self.current.request.steps());
        if !trail.is_whole {
            trail.ids.clear();
            trail.ids.extend(steps.iter().map(|step| step.id));
            trail.ends_in_tail = steps.last().is_some_and(|step| step.is_tail);
        }
        trail.places.clear();
        let mut place = 0;
        for step in steps {
            let mut rest = trail.ids.iter().skip(place);
            // Of an id that the chain does not name, the place is a guess.
            place += rest.position(|id| *id == step.id).unwrap_or(0);
            trail.places.push(place);
            place += 1;
            self.current
                .places
                .push(step.block.map_or(Place::Nowhere, Place::Resident));
        }
        let tip = steps.iter().rev().find_map(|step| step.block);
        self.set_tip(tip);
    }

    /// Takes the milestones of the chain out of the table, and learns that their blocks are used.
    fn find_milestones(&mut self) {
        let History::Milestones(milestones) = &mut self.history else {
            return;
        };
        let trail = &mut self.current.trail;
        trail.found.clear();
        let full_len = trail.full_len();
        let ids = &trail.ids[..full_len];
        // Lookups of many ids wait for memory at the same time.
        ids.iter().for_each(|id| milestones.prefetch(*id));
        for (at, id) in ids.iter().enumerate() {
            let Some(milestone) = milestones.take(*id) else {
                continue;
            };
            let (group, blocks) = (milestone.facts.group, milestone.blocks);
            let (category, bin) = (self.groups.category(group), self.groups.bin(group));
            self.groups.leave_milestone(group, blocks);
            if blocks > 0 {
                self.index.use_again(category, bin, blocks);
                trail.found.push((at, milestone));
            }
        }
    }

    /// How much of the chain is known, its turn, and what it shares with others.
    fn judge_request(&mut self) {
        let trail = &mut self.current.trail;
        let (known, turn) = match trail.found.last() {
            Some((at, last)) => (at + 1, last.facts.turn() + 1),
            None => self.known_by_blocks(),
        };
        let trail = &mut self.current.trail;
        let goes_on = known < trail.full_len();
        if let Some((_, last)) = trail.found.last()
            && goes_on
            && !last.facts.has(END)
        {
            // An earlier request went on from there in another way.
            let shared = trail.found.iter_mut().rev();
            for (_, milestone) in shared.take_while(|(_, it)| !it.facts.has(SHARED)) {
                milestone.facts.set(SHARED, true);
            }
        }
        self.current.turn = turn;
        self.current.new_blocks = if trail.is_whole {
            trail.ids.len() - known
        } else {
            self.count_new(known)
        };
    }

    /// What resident blocks know of the chain, where no milestone is left.
    fn known_by_blocks(&self) -> (usize, u8) {
        let steps = self.current.request.steps().iter().enumerate().rev();
        let mut full = steps.filter(|(_, step)| !step.is_tail);
        let deepest = full.find_map(|(at, step)| step.block.map(|_| at));
        deepest.map_or((0, 1), |step| {
            let known = self.current.trail.places[step] + 1;
            (known, self.facts_at(step).turn() + 1)
        })
    }

    /// A block is taken for like the milestone that stands for it; one that nothing is known of
    /// begins anew.
    fn take_over(&mut self, step: usize) {
        let mut facts = self.facts_at(step);
        let trail = &self.current.trail;
        if let Some(milestone) = trail.milestone_for(trail.places[step]) {
            facts = milestone;
            facts.group = 0;
            facts.set(END, false);
        }
        self.set_facts_at(step, facts);
    }

    /// Sets the milestones of the chain as the request leaves it.
    fn set_milestones(&mut self) {
        let full_len = self.current.trail.full_len();
        let mut before = 0;
        for at in 0..full_len {
            let is_end = at + 1 == full_len;
            if !is_end && !is_anchor(at) {
                continue;
            }
            let known = self.current.trail.milestone_for(at);
            let blocks = (at + 1 - std::mem::replace(&mut before, at + 1)) as u32;
            let facts = self.used(known.unwrap_or(Facts::zeroed()), is_end);
            self.groups
                .join_milestone(facts.group, blocks, &mut self.index);
            self.remember_milestone(self.current.trail.ids[at], Milestone { facts, blocks });
        }
    }

    /// What is known of a milestone after its use by this request.
    fn used(&mut self, mut facts: Facts, is_end: bool) -> Facts {
        if facts.uses == 0 {
            facts.set_turn(self.current.turn);
        }
        facts.uses = (facts.uses + 1).min(USES_MAX);
        facts.set(END, is_end);
        let (turn, new_blocks) = (self.current.turn, self.current.new_blocks);
        facts.group = self.group_of(facts.category(false, turn, new_blocks));
        facts
    }

    fn remember_milestone(&mut self, id: KeyHash, milestone: Milestone) {
        let History::Milestones(milestones) = &mut self.history else {
            return;
        };
        // A chain may name a block twice.
        if let Some(same) = milestones.take(id) {
            self.groups.leave_milestone(same.facts.group, same.blocks);
        }
        milestones.remember(id, milestone, self.now_ms, &mut self.groups);
    }

    /// A request that was settled goes on with one step more, which becomes its end.
    pub(super) fn extend_trail(&mut self) {
        let Some(step) = self.current.request.steps().get(self.current.places.len()) else {
            return;
        };
        let (id, is_tail) = (step.id, step.is_tail);
        let History::Milestones(milestones) = &mut self.history else {
            return;
        };
        let trail = &mut self.current.trail;
        let at = trail.ids.len();
        let known = (!is_tail).then(|| milestones.take(id)).flatten();
        let end = at.checked_sub(1).map(|before| trail.ids[before]);
        let end = end.filter(|_| !is_tail && !trail.ends_in_tail);
        let before = end.and_then(|end| Some((end, milestones.take(end)?)));
        trail.ids.push(id);
        trail.ends_in_tail = is_tail;
        trail.places.push(at);
        self.current.places.push(Place::Nowhere);
        if let Some(milestone) = known {
            let (group, blocks) = (milestone.facts.group, milestone.blocks);
            let (category, bin) = (self.groups.category(group), self.groups.bin(group));
            self.index.use_again(category, bin, blocks);
            self.groups.leave_milestone(group, blocks);
        } else {
            self.current.new_blocks += 1;
        }
        let known = known.map_or(Facts::zeroed(), |milestone| milestone.facts);
        let step = self.current.places.len() - 1;
        let mut facts = known;
        facts.group = 0;
        self.set_facts_at(step, facts);
        self.use_step(step);
        if is_tail {
            return;
        }
        let facts = self.used(known, true);
        self.groups.join_milestone(facts.group, 1, &mut self.index);
        let mut blocks = 1;
        if let Some((end, mut milestone)) = before {
            if is_anchor(at - 1) {
                milestone.facts.set(END, false);
                self.remember_milestone(end, milestone);
            } else {
                // Its blocks came to their ages already.
                self.groups.stand_for(facts.group, milestone.blocks);
                self.groups
                    .leave_milestone(milestone.facts.group, milestone.blocks);
                blocks += milestone.blocks;
            }
        }
        self.remember_milestone(id, Milestone { facts, blocks });
    }
}
