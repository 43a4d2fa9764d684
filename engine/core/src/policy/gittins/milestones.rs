//! Milestones: what the default policy remembers of chains, 8 bytes each, two for each block.
//!
//! A milestone is a block that stands for itself and those before it back to the milestone
//! before: the last full block of a request, which its next turn goes on from, and the blocks at
//! some counts from the start of the chain, where requests go apart. It is remembered whether the
//! block is resident or not, and in every shard, whoever owns it: shards that hear of the same
//! requests remember the same and judge a chain alike.
//!
//! A milestone keeps 25 bits of its id, so that one lookup in four million finds another. When a
//! bucket is full, the oldest goes; but ends and what requests share count as a sixteenth of their
//! age, and others that stand for many blocks as a quarter.
//!
//! Where tiers below may hold blocks, single blocks that are gone are remembered, too. They stand
//! for none, not even for themselves.
//!
//! **Invariant**
//! - A milestone names a group that is there.

use bytemuck::Zeroable;
use terrace_slab::HugeVecError;
use terrace_types::KeyHash;

use super::buckets::{Buckets, Fields, WAYS, packed};
use super::compact::GROUPS_MAX;
use super::facts::{END, Facts, SHARED};
use super::groups::{GroupIx, Groups};

/// Milestones for each block.
const PER_BLOCK: usize = 2;
/// How many there may be at least, in 32 KiB: requests are as long in a small shard as in a
/// large one, and of each some milestones are needed.
const COUNT_MIN: usize = 4096;

/// After every so many blocks of a chain there is a milestone, and at powers of two before: many
/// requests go apart early.
const SPACING: usize = 16;
/// How many times as old as the first kind each kind becomes: milestones near the one before;
/// those that stand for `SPACING` blocks; ends, and what requests share.
const OUTLIVE: [u64; 3] = [1, 4, 16];

/// Widths of the fields of a milestone, from the lowest: group, blocks, turn, uses, flags, tag.
const GROUP_BITS: u32 = 20;
const BLOCKS_BITS: u32 = 8;
const TURN_BITS: u32 = 3;
const USES_BITS: u32 = 6;
const FLAG_BITS: u32 = 2;
const TAG_BITS: u32 = 25;
const _: () =
    assert!(GROUP_BITS + BLOCKS_BITS + TURN_BITS + USES_BITS + FLAG_BITS + TAG_BITS == u64::BITS);
const _: () = assert!(SPACING < 1 << BLOCKS_BITS);

const _: () = assert!(GROUPS_MAX < 1 << GROUP_BITS);

/// Whether the block at this place of a chain is a milestone wherever requests end.
pub(super) const fn is_anchor(at: usize) -> bool {
    let count = at + 1;
    count.is_multiple_of(SPACING) || count < SPACING && count.is_power_of_two()
}

/// What is remembered of a milestone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Milestone {
    /// What is known of the block. Its child is not kept.
    pub(super) facts: Facts,
    /// How many blocks it stands for; zero for a block by itself that is gone.
    pub(super) blocks: u32,
}

impl Milestone {
    /// Which of the kinds that outlive each other it is.
    const fn kind(self) -> usize {
        if self.facts.has(END) || self.facts.has(SHARED) {
            2
        } else {
            (self.blocks as usize >= SPACING) as usize
        }
    }
}

/// See the module's text.
pub(super) struct Milestones {
    table: Buckets<TAG_BITS>,
}

/// A milestone as it lies in the table. Zero is none: every milestone names a group.
#[derive(Clone, Copy)]
struct Packed(u64);

impl Packed {
    fn new(tag: u64, milestone: Milestone) -> Self {
        let facts = milestone.facts;
        let flags = u64::from(facts.has(SHARED)) | u64::from(facts.has(END)) << 1;
        let turn = facts.turn().min((1 << TURN_BITS) - 1);
        let blocks = milestone.blocks.min((1 << BLOCKS_BITS) - 1);
        Self(packed([
            (u64::from(facts.group), GROUP_BITS),
            (blocks.into(), BLOCKS_BITS),
            (turn.into(), TURN_BITS),
            (facts.uses.into(), USES_BITS),
            (flags, FLAG_BITS),
            (tag, TAG_BITS),
        ]))
    }

    const fn group(self) -> GroupIx {
        (self.0 & ((1 << GROUP_BITS) - 1)) as GroupIx
    }

    fn milestone(self) -> Milestone {
        let mut fields = Fields(self.0);
        let mut facts = Facts::zeroed();
        facts.group = fields.take(GROUP_BITS) as GroupIx;
        let blocks = fields.take(BLOCKS_BITS) as u32;
        facts.set_turn(fields.take(TURN_BITS) as u8);
        facts.uses = fields.take(USES_BITS) as u8;
        let flags = fields.take(FLAG_BITS);
        facts.set(SHARED, flags & 1 != 0);
        facts.set(END, flags & 2 != 0);
        Milestone { facts, blocks }
    }
}

impl Milestones {
    /// None yet, for up to `blocks_max` blocks and `blocks` now. Takes address space.
    pub(super) fn new(blocks_max: u32, blocks: usize) -> Result<Self, HugeVecError> {
        let table = Buckets::new(places_for(blocks_max as usize), places_for(blocks))?;
        Ok(Self { table })
    }

    /// The shard holds `blocks` blocks now. Forgets all when that changes the table.
    pub(super) fn set_blocks(&mut self, blocks: usize, groups: &mut Groups) {
        self.table.resize(places_for(blocks), |forgotten| {
            leave(Packed(forgotten).milestone(), groups);
        });
    }

    /// What is remembered of `id`, as a milestone or by itself.
    pub(super) fn get(&self, id: KeyHash) -> Option<Milestone> {
        self.table.get(id).map(|it| Packed(it).milestone())
    }

    /// Brings the place of `id` near, for a lookup soon.
    pub(super) fn prefetch(&self, id: KeyHash) {
        self.table.prefetch(id);
    }

    /// Forgets `id`; what was remembered, which still counts in its group.
    pub(super) fn take(&mut self, id: KeyHash) -> Option<Milestone> {
        self.table.take(id).map(|it| Packed(it).milestone())
    }

    /// Remembers `id`, which is not remembered and counts in its group; for it another may be
    /// forgotten.
    pub(super) fn remember(
        &mut self,
        id: KeyHash,
        milestone: Milestone,
        now_ms: u64,
        groups: &mut Groups,
    ) {
        let least = |bucket: &[u64]| least_of_use(bucket, now_ms, groups);
        if let Some(forgotten) = self.table.make_room(id, least) {
            leave(Packed(forgotten).milestone(), groups);
        }
        self.table.push(id, |tag| Packed::new(tag, milestone).0);
    }

    /// Count of milestones.
    pub(super) const fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes in use.
    pub(super) const fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Remembers a block that is gone, which names its group still, unless it is a milestone.
    pub(super) fn remember_by_itself(
        &mut self,
        id: KeyHash,
        facts: Facts,
        now_ms: u64,
        groups: &mut Groups,
    ) {
        if self.get(id).is_some_and(|it| it.blocks > 0) {
            groups.leave(facts.group);
            return;
        }
        if let Some(earlier) = self.take(id) {
            groups.leave(earlier.facts.group);
        }
        self.remember(id, Milestone { facts, blocks: 0 }, now_ms, groups);
    }

    /// The groups that blocks by themselves name; panics when an invariant is broken. For tests.
    pub(super) fn check(&self) -> Vec<GroupIx> {
        let all = self.table.check().map(|it| Packed(it).milestone());
        let by_itself = all.filter(|it| it.blocks == 0);
        by_itself.map(|it| it.facts.group).collect()
    }
}

/// Places of a table for so many blocks.
fn places_for(blocks: usize) -> usize {
    blocks.saturating_mul(PER_BLOCK).max(COUNT_MIN)
}

/// A milestone that is forgotten names its group no longer.
fn leave(forgotten: Milestone, groups: &mut Groups) {
    groups.leave_milestone(forgotten.facts.group, forgotten.blocks);
}

/// Which milestone of a full bucket is to go: of the oldest of each kind, the one that is the
/// oldest for its kind.
fn least_of_use(bucket: &[u64], now_ms: u64, groups: &Groups) -> usize {
    let mut oldest = [None; OUTLIVE.len()];
    for (way, entry) in bucket.iter().enumerate() {
        let packed = Packed(*entry);
        oldest[packed.milestone().kind()] = Some((way, packed.group()));
    }
    let longest = OUTLIVE[OUTLIVE.len() - 1];
    let ages = oldest.iter().zip(OUTLIVE).filter_map(|(oldest, outlive)| {
        let (way, group) = (*oldest)?;
        let age_ms = groups.age_ms(group, now_ms).saturating_add(1);
        Some((age_ms.saturating_mul(longest / outlive), way))
    });
    ages.max().map_or(WAYS - 1, |(_, way)| way)
}

#[cfg(test)]
mod tests {
    //! Aim: what is packed comes back, and a full bucket forgets in the order promised. Method: a
    //! table of the least size, ids of one bucket, and groups of known ages.

    use super::super::index::{Index, Prior};
    use super::*;

    const TURN_CATEGORY: usize = 6;

    fn table() -> (Milestones, Groups, Index) {
        (
            Milestones::new(WAYS as u32, 1).unwrap(),
            Groups::with_milestones(1000, 1).unwrap(),
            Index::new(Prior::Common),
        )
    }

    /// Ids of the first bucket.
    fn ids(table: &Milestones) -> std::vec::IntoIter<KeyHash> {
        let ids = (0..).map(KeyHash).filter(|id| table.table.is_first(*id));
        Vec::from_iter(ids.take(WAYS + 4)).into_iter()
    }

    fn milestone(groups: &mut Groups, index: &mut Index, time_ms: u64, flag: u8) -> Milestone {
        let mut facts = Facts::zeroed();
        facts.group = groups.open(time_ms, TURN_CATEGORY);
        facts.set(flag, true);
        groups.join_milestone(facts.group, 1, index);
        Milestone { facts, blocks: 1 }
    }

    #[test]
    fn packed_milestone_comes_back() {
        for flags in [0, SHARED, END, SHARED | END] {
            let mut facts = Facts::zeroed();
            (facts.group, facts.uses) = (GROUPS_MAX as GroupIx, 63);
            facts.set_turn(5);
            facts.set(flags, true);
            let blocks = 16;
            let packed = Packed::new((1 << TAG_BITS) - 1, Milestone { facts, blocks });
            assert_eq!(packed.milestone(), Milestone { facts, blocks });
            assert_eq!(Buckets::<TAG_BITS>::tag_of(packed.0), (1 << TAG_BITS) - 1);
        }
    }

    #[test]
    fn anchors_are_at_powers_of_two_and_then_evenly_spaced() {
        let anchors = Vec::from_iter((0..64).filter(|at| is_anchor(*at)));
        assert_eq!(anchors, [0, 1, 3, 7, 15, 31, 47, 63]);
    }

    #[test]
    fn end_outlives_others_until_it_is_sixteen_times_as_old() {
        for (end_ms, outlives) in [(30_000, true), (0, false)] {
            let (mut table, mut groups, mut index) = table();
            let mut ids = ids(&table);
            let end = ids.next().unwrap();
            let of_end = milestone(&mut groups, &mut index, end_ms, END);
            table.remember(end, of_end, end_ms, &mut groups);
            for id in ids {
                // At 5000 they count as 80 000 does of an end.
                let within = milestone(&mut groups, &mut index, 95_000, 0);
                table.remember(id, within, 100_000, &mut groups);
            }
            assert_eq!(table.get(end).is_some(), outlives, "{end_ms}");
            groups.check_alive(table.check().into_iter());
        }
    }

    #[test]
    fn table_of_another_size_is_empty_and_leaves_no_group_behind() {
        let mut table = Milestones::new(10_000, 1).unwrap();
        let (_, mut groups, mut index) = self::table();
        let of_end = milestone(&mut groups, &mut index, 0, END);
        table.remember(KeyHash(7), of_end, 0, &mut groups);
        table.set_blocks(COUNT_MIN / PER_BLOCK, &mut groups);
        assert!(table.get(KeyHash(7)).is_some());
        table.set_blocks(10_000, &mut groups);
        assert_eq!((table.len(), table.check()), (0, vec![]));
        groups.check_alive(std::iter::empty());
    }
}
