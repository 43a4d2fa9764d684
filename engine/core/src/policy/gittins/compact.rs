//! Ghosts of 8 bytes, two for each block of the capacity.
//!
//! A ghost keeps 20 bits of its id, so that one lookup in a hundred thousand finds another.
//!
//! History is worth most where requests end: the next turn of a conversation is known by the last
//! full block of this one, and blocks before it are known with it. So ends and shared blocks
//! outlive the others, of which one in four is passed over. While the oldest end of a bucket is
//! younger than the horizon, the age by which nearly all uses come, a block that is neither goes
//! unless the end is three times as old.
//!
//! **Invariants**
//! - A ghost names a group that is there.

use bytemuck::Zeroable;
use terrace_slab::HugeVecError;
use terrace_types::KeyHash;

use super::buckets::{Buckets, Fields, WAYS, packed};
use super::facts::{CHILD_IS_TAIL, END, Facts, SHARED, mixed};
use super::groups::{GroupIx, Groups};
use super::index::Index;

/// Ghosts for each block.
const GHOSTS_PER_BLOCK: usize = 2;
/// Of blocks within, those whose mixed ids have none of these bits are not remembered: one in
/// four. A gap is filled by the ghost behind it, and the others stay longer.
const PASSED_OVER: u64 = 3;
/// How many times as old an end becomes as a block within, short of the horizon.
const ENDS_OUTLIVE: u64 = 3;

/// Widths of the fields of a ghost, from the lowest: group, child, turn, uses, flags, tag.
const GROUP_BITS: u32 = 20;
const CHILD_BITS: u32 = 12;
const TURN_BITS: u32 = 3;
const USES_BITS: u32 = 6;
const FLAG_BITS: u32 = 3;
const TAG_BITS: u32 = 20;
const _: () =
    assert!(GROUP_BITS + CHILD_BITS + TURN_BITS + USES_BITS + FLAG_BITS + TAG_BITS == u64::BITS);

/// No group that a ghost names is beyond this.
pub(super) const GROUPS_MAX: usize = (1 << GROUP_BITS) - 1;
/// What a ghost keeps of a child.
pub(super) const CHILD_MASK: u16 = (1 << CHILD_BITS) - 1;

/// See the module's text.
pub(super) struct Compact {
    ghosts: Buckets<TAG_BITS>,
}

/// A ghost as it lies in the table. Zero is none: every ghost names a group.
#[derive(Clone, Copy)]
struct Packed(u64);

impl Packed {
    fn new(tag: u64, facts: Facts) -> Self {
        let flags = u64::from(facts.has(SHARED))
            | u64::from(facts.has(CHILD_IS_TAIL)) << 1
            | u64::from(facts.has(END)) << 2;
        let turn = facts.turn().min((1 << TURN_BITS) - 1);
        Self(packed([
            (u64::from(facts.group), GROUP_BITS),
            (u64::from(facts.child & CHILD_MASK), CHILD_BITS),
            (turn.into(), TURN_BITS),
            (facts.uses.into(), USES_BITS),
            (flags, FLAG_BITS),
            (tag, TAG_BITS),
        ]))
    }

    const fn group(self) -> GroupIx {
        (self.0 & ((1 << GROUP_BITS) - 1)) as GroupIx
    }

    fn facts(self) -> Facts {
        let mut fields = Fields(self.0);
        let mut facts = Facts::zeroed();
        facts.group = fields.take(GROUP_BITS) as GroupIx;
        facts.child = fields.take(CHILD_BITS) as u16;
        facts.set_turn(fields.take(TURN_BITS) as u8);
        facts.uses = fields.take(USES_BITS) as u8;
        let flags = fields.take(FLAG_BITS);
        facts.set(SHARED, flags & 1 != 0);
        facts.set(CHILD_IS_TAIL, flags & 2 != 0);
        facts.set(END, flags & 4 != 0);
        facts
    }
}

/// Whether a ghost stands for others of its group that are forgotten.
pub(super) const fn is_end(facts: Facts) -> bool {
    facts.has(END) || facts.has(SHARED)
}

impl Compact {
    /// No ghosts yet, for up to `blocks_max` blocks and `blocks` now. Takes address space.
    pub(super) fn new(blocks_max: u32, blocks: usize) -> Result<Self, HugeVecError> {
        let places_max = GHOSTS_PER_BLOCK * (blocks_max as usize).max(WAYS);
        let places = blocks.saturating_mul(GHOSTS_PER_BLOCK);
        let ghosts = Buckets::new(places_max, places)?;
        Ok(Self { ghosts })
    }

    /// The shard holds `blocks` blocks now. Forgets all when that changes the table.
    pub(super) fn set_blocks(&mut self, blocks: usize, groups: &mut Groups) {
        let places = blocks.saturating_mul(GHOSTS_PER_BLOCK);
        let forget = |ghost| forget(Packed(ghost).facts(), groups);
        self.ghosts.resize(places, forget);
    }

    /// What is remembered of `id`.
    pub(super) fn get(&self, id: KeyHash) -> Option<Facts> {
        self.ghosts.get(id).map(|ghost| Packed(ghost).facts())
    }

    /// Brings the place of `id` near, for a lookup soon.
    pub(super) fn prefetch(&self, id: KeyHash) {
        self.ghosts.prefetch(id);
    }

    /// Forgets `id`; what was remembered, which still counts in its group.
    pub(super) fn take(&mut self, id: KeyHash) -> Option<Facts> {
        self.ghosts.take(id).map(|ghost| Packed(ghost).facts())
    }

    /// Remembers `id`, which is not remembered; for it another may be forgotten.
    pub(super) fn remember(
        &mut self,
        id: KeyHash,
        facts: Facts,
        now_ms: u64,
        groups: &mut Groups,
        index: &Index,
    ) {
        if !is_end(facts) && mixed(id) >> TAG_BITS & PASSED_OVER == 0 {
            groups.lose(facts.group);
            return;
        }
        let least = |bucket: &[u64]| least_of_use(bucket, now_ms, groups, index);
        if let Some(ghost) = self.ghosts.make_room(id, least) {
            forget(Packed(ghost).facts(), groups);
        }
        self.ghosts.push(id, |tag| Packed::new(tag, facts).0);
        if is_end(facts) {
            groups.remember_end(facts.group);
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.ghosts.len()
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.ghosts.bytes()
    }

    /// The groups that ghosts name, and how many of each are ends; panics when an invariant is
    /// broken. For tests.
    pub(super) fn check(&self) -> impl Iterator<Item = GroupIx> {
        self.ghosts.check().map(|ghost| Packed(ghost).group())
    }
}

/// Which ghost of a full bucket is to go.
fn least_of_use(bucket: &[u64], now_ms: u64, groups: &Groups, index: &Index) -> usize {
    let oldest = |ends: bool| {
        let mut ways = (0..WAYS).rev();
        ways.find(|way| is_end(Packed(bucket[*way]).facts()) == ends)
    };
    let (Some(end), Some(within)) = (oldest(true), oldest(false)) else {
        return WAYS - 1;
    };
    let age_ms = |way: usize| groups.age_ms(Packed(bucket[way]).group(), now_ms);
    let end_ms = age_ms(end);
    let keeps_end =
        end_ms < index.horizon_ms() && end_ms <= age_ms(within).saturating_mul(ENDS_OUTLIVE);
    if keeps_end { within } else { end.max(within) }
}

/// What a ghost that is forgotten leaves behind.
fn forget(facts: Facts, groups: &mut Groups) {
    if is_end(facts) {
        groups.forget_end(facts.group);
        groups.leave(facts.group);
    } else {
        groups.lose(facts.group);
    }
}

#[cfg(test)]
mod tests {
    //! Aim: what is packed comes back, and a full bucket forgets in the order promised. Method: a
    //! table of one bucket, with groups of known ages.

    use super::super::index::{Index, Prior};
    use super::*;

    const TURN_CATEGORY: usize = 6;

    fn facts(groups: &mut Groups, index: &mut Index, time_ms: u64, flag: u8) -> Facts {
        let mut facts = Facts::zeroed();
        facts.group = groups.open(time_ms, TURN_CATEGORY);
        facts.uses = 1;
        facts.set(flag, true);
        groups.join(facts.group, index);
        facts
    }

    /// Ids of blocks within that are not passed over.
    fn ids() -> impl Iterator<Item = KeyHash> {
        (0..)
            .map(KeyHash)
            .filter(|id| mixed(*id) >> TAG_BITS & PASSED_OVER != 0)
    }

    fn table() -> (Compact, Groups, Index) {
        (
            Compact::new(WAYS as u32, 1).unwrap(),
            Groups::shared(1000, 1).unwrap(),
            Index::new(Prior::Common),
        )
    }

    #[test]
    fn packed_facts_come_back() {
        for flags in [0, SHARED, CHILD_IS_TAIL, END, SHARED | END] {
            let mut facts = Facts::zeroed();
            (facts.group, facts.child, facts.uses) = (GROUPS_MAX as GroupIx, CHILD_MASK, 63);
            facts.set_turn(5);
            facts.set(flags, true);
            let packed = Packed::new((1 << TAG_BITS) - 1, facts);
            assert_eq!(packed.facts(), facts);
            assert_eq!(Buckets::<TAG_BITS>::tag_of(packed.0), (1 << TAG_BITS) - 1);
        }
    }

    #[test]
    fn ends_outlive_blocks_within_until_they_are_old() {
        for (age_ms, outlives) in [(3000, true), (1_000_000, false)] {
            let (mut ghosts, mut groups, mut index) = table();
            for bin in 0..30 {
                index.use_again(TURN_CATEGORY, bin, 1);
            }
            index.weigh();
            let mut ids = ids();
            let end = ids.next().unwrap();
            let of_end = facts(&mut groups, &mut index, 0, END);
            ghosts.remember(end, of_end, 0, &mut groups, &index);
            for id in ids.take(2 * WAYS) {
                let within = facts(&mut groups, &mut index, age_ms / 3, 0);
                ghosts.remember(id, within, age_ms, &mut groups, &index);
            }
            assert_eq!(ghosts.get(end).is_some(), outlives, "{age_ms}");
            assert_eq!(ghosts.len(), WAYS);
            groups.check_alive(ghosts.check());
        }
    }

    #[test]
    fn end_stands_for_blocks_that_are_forgotten() {
        let (mut ghosts, mut groups, mut index) = table();
        let mut ids = ids();
        let end = ids.next().unwrap();
        let of_end = facts(&mut groups, &mut index, 0, END);
        ghosts.remember(end, of_end, 0, &mut groups, &index);
        for id in ids.take(WAYS + 4) {
            let within = facts(&mut groups, &mut index, 0, 0);
            ghosts.remember(id, within, 0, &mut groups, &index);
        }
        groups.check_alive(ghosts.check());
        let taken = ghosts.take(end).unwrap();
        assert_eq!(groups.forget_end(taken.group), 5);
    }

    #[test]
    fn table_of_another_size_is_empty_and_leaves_no_group_behind() {
        let (mut ghosts, mut groups, mut index) = table();
        let end = ids().next().unwrap();
        let of_end = facts(&mut groups, &mut index, 0, END);
        ghosts.remember(end, of_end, 0, &mut groups, &index);
        ghosts.set_blocks(1, &mut groups);
        assert!(ghosts.get(end).is_some());
        ghosts.set_blocks(WAYS, &mut groups);
        assert_eq!((ghosts.len(), ghosts.check().count()), (0, 0));
        groups.check_alive(std::iter::empty());
    }
}
