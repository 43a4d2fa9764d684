//! Groups of blocks that one request used last and that are of one category, and the leaves of
//! each; 56 bytes a group, 4 a block, and a few KiB.
//!
//! Where the count of groups is bounded, requests share them: a group takes in the blocks of
//! later requests for a span of time that doubles and halves with the count.
//!
//! A group grows older from bin to bin of age. The groups of one category and bin are a cell; it
//! knows those that have leaves by number, and a tournament over the cells the one of least worth.
//!
//! **Invariants**
//! - A group is there as long as a known block names it: `alive` counts these, and `gone` more
//!   that are forgotten but belong to the ends that are remembered, see [`Groups::lose`]. Where
//!   there are milestones, `gone` counts the blocks that they stand for, and these alone teach.
//! - Numbers, and the times of groups, never fall; each bin lists its groups by number.
//! - A group is in the list or the heap of its cell exactly when it has leaves. They are a list: the next
//!   leaf plus one is the leaf's mark, and the one before is in an array of its own.

use bytemuck::Zeroable;
use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::BlockIx;

use super::super::chain::Chain;
use super::cells::Cell;
use super::index::{BINS, CATEGORIES, EDGES_MS, Index};

/// Count of cells.
const CELLS: usize = CATEGORIES * BINS;
/// Places of the tournament: cells in order, and some that stay empty.
pub(super) const PLACES: usize = CELLS.next_power_of_two();

/// A group: its place in the array plus one. Zero is none.
pub(super) type GroupIx = u32;

#[derive(Clone, Copy, Zeroable)]
#[repr(C)]
pub(super) struct Group {
    pub(super) number: u64,
    time_ms: u64,
    alive: u32,
    /// Blocks that others stand for, and ends remembered that do.
    gone: u32,
    ends: u32,
    /// Neighbours in the list of its bin; `newer` links unused groups, too.
    older: GroupIx,
    newer: GroupIx,
    /// The first leaf plus one.
    pub(super) leaf: u32,
    /// In its cell: in the list those before and after it; in the heap the children, of which the
    /// left one has no less rank, and the parent.
    pub(super) left: GroupIx,
    pub(super) right: GroupIx,
    pub(super) parent: GroupIx,
    category: u8,
    bin: u8,
    /// In the heap one more than the right child's; zero in the list.
    pub(super) rank: u8,
}

/// See the module's text.
pub(super) struct Groups {
    groups: HugeVec<Group>,
    /// By leaf: the one before it in the list of its group plus one.
    leaf_before: HugeVec<u32>,
    /// How many groups there are.
    count: usize,
    sharing: Option<Sharing>,
    /// Whether blocks teach by the milestones that stand for them.
    by_milestones: bool,
    unused: GroupIx,
    /// The number of the next group.
    number: u64,
    /// The oldest and the newest group of each bin.
    bins: [[GroupIx; 2]; BINS],
    /// For each bin when its oldest group leaves it; the greatest time where it has none. Most looks at
    /// the time move no group, and touch none.
    due_ms: [u64; BINS],
    pub(super) cells: Box<[Cell; CELLS]>,
    /// The worth of each cell that is not empty, infinity for others.
    pub(super) worths: Box<[f64; PLACES]>,
    /// The cell of least worth below each inner place of the tournament; from 1 on.
    pub(super) winners: Box<[u16; PLACES]>,
}

/// A leaf and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    pub(super) worth: f64,
    pub(super) leaf: BlockIx,
}

/// How requests share groups, so that there are at most so many.
struct Sharing {
    count_max: usize,
    /// For how long a group takes in blocks.
    span_ms: u64,
    /// When that was changed.
    changed_ms: u64,
    /// The newest group of each category, if it is still there.
    newest: [GroupIx; CATEGORIES],
}

/// Longest and shortest span for which requests share a group. One of zero is of one instant.
const SPAN_MS: (u64, u64) = (16, 1 << 24);

impl Sharing {
    /// Makes the span fit `count` groups. Groups become fewer as their blocks are used or
    /// forgotten, so a change is given time to show.
    fn adapt(&mut self, count: usize, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.changed_ms);
        if count > self.count_max / 4 * 3 && passed >= self.span_ms {
            self.span_ms = (self.span_ms * 2).clamp(SPAN_MS.0, SPAN_MS.1);
        } else if count < self.count_max / 4 && self.span_ms > 0 && passed >= 64 * self.span_ms {
            self.span_ms = Some(self.span_ms / 2)
                .filter(|span| *span >= SPAN_MS.0)
                .unwrap_or(0);
        } else {
            return;
        }
        self.changed_ms = now_ms;
    }
}

impl Groups {
    /// No groups, of at most `groups_max` at a time, for blocks numbered below `blocks_max`. Takes
    /// address space, not memory.
    pub(super) fn new(groups_max: usize, blocks_max: u32) -> Result<Self, HugeVecError> {
        let mut groups = Self {
            groups: HugeVec::with_capacity(groups_max)?,
            leaf_before: HugeVec::with_capacity(blocks_max as usize)?,
            count: 0,
            sharing: None,
            by_milestones: false,
            unused: 0,
            number: 0,
            bins: [[0; 2]; BINS],
            due_ms: [u64::MAX; BINS],
            cells: Box::new([Cell::default(); CELLS]),
            worths: Box::new([f64::INFINITY; PLACES]),
            winners: Box::new([0; PLACES]),
        };
        (1..PLACES).rev().for_each(|place| groups.play(place));
        Ok(groups)
    }

    /// No groups; requests share them so that there are at most `groups_max`, which is far more
    /// than there are categories.
    pub(super) fn shared(groups_max: usize, blocks_max: u32) -> Result<Self, HugeVecError> {
        let sharing = Sharing {
            count_max: groups_max - CATEGORIES,
            span_ms: 0,
            changed_ms: 0,
            newest: [0; CATEGORIES],
        };
        Ok(Self {
            sharing: Some(sharing),
            ..Self::new(groups_max, blocks_max)?
        })
    }

    /// The same for a policy with milestones.
    pub(super) fn with_milestones(
        groups_max: usize,
        blocks_max: u32,
    ) -> Result<Self, HugeVecError> {
        Ok(Self {
            by_milestones: true,
            ..Self::shared(groups_max, blocks_max)?
        })
    }

    pub(super) fn at(&self, group: GroupIx) -> &Group {
        &self.groups[group as usize - 1]
    }

    pub(super) fn at_mut(&mut self, group: GroupIx) -> &mut Group {
        &mut self.groups[group as usize - 1]
    }

    /// A group's number, which no other had; larger than any when the group is gone.
    pub(super) fn number(&self, group: GroupIx) -> u64 {
        self.at(group).number
    }

    /// A group's category.
    pub(super) fn category(&self, group: GroupIx) -> usize {
        self.at(group).category.into()
    }

    /// The bin of age that a group has come to.
    pub(super) fn bin(&self, group: GroupIx) -> usize {
        self.at(group).bin.into()
    }

    /// The group that blocks of `category` used at `time_ms` join, which is not less than that of
    /// the one before. A new one has no blocks yet.
    pub(super) fn open(&mut self, time_ms: u64, category: usize) -> GroupIx {
        let count = self.count;
        let Some(sharing) = &mut self.sharing else {
            return self.create(time_ms, category);
        };
        sharing.adapt(count, time_ms);
        let (newest, span_ms) = (sharing.newest[category], sharing.span_ms);
        let is_full = count >= sharing.count_max;
        if newest != 0 && (is_full || time_ms - self.at(newest).time_ms <= span_ms) {
            return newest;
        }
        let group = self.create(time_ms, category);
        self.sharing
            .iter_mut()
            .for_each(|sharing| sharing.newest[category] = group);
        group
    }

    /// A new group without blocks.
    fn create(&mut self, time_ms: u64, category: usize) -> GroupIx {
        self.count += 1;
        let group = if self.unused == 0 {
            let count = self.groups.len();
            self.groups.grow_to(count + 1);
            count as GroupIx + 1
        } else {
            let next = self.at(self.unused).newer;
            std::mem::replace(&mut self.unused, next)
        };
        *self.at_mut(group) = Group {
            number: self.number,
            time_ms,
            category: category as u8,
            ..Group::zeroed()
        };
        self.number += 1;
        self.push(0, group);
        group
    }

    /// One more block names the group: it has come to the ages that the group has. Where there are
    /// milestones it teaches nothing by itself.
    pub(super) fn join(&mut self, group: GroupIx, index: &mut Index) {
        let teaches = !self.by_milestones;
        let fields = self.at_mut(group);
        fields.alive += 1;
        if !teaches {
            return;
        }
        let (category, bin) = (fields.category.into(), fields.bin.into());
        (0..=bin).for_each(|bin| index.age(category, bin, 1));
    }

    /// A milestone names the group. The blocks it stands for have come to the ages that it has.
    pub(super) fn join_milestone(&mut self, group: GroupIx, blocks: u32, index: &mut Index) {
        self.stand_for(group, blocks);
        let (category, bin) = (self.category(group), self.bin(group));
        (0..=bin).for_each(|bin| index.age(category, bin, blocks));
    }

    /// A milestone names the group. The blocks it stands for were told of before.
    pub(super) fn stand_for(&mut self, group: GroupIx, blocks: u32) {
        let fields = self.at_mut(group);
        fields.alive += blocks;
        fields.gone += blocks;
    }

    /// A milestone that stands for these blocks names the group no longer.
    pub(super) fn leave_milestone(&mut self, group: GroupIx, blocks: u32) {
        let fields = self.at_mut(group);
        fields.gone -= blocks;
        fields.alive -= blocks.saturating_sub(1);
        self.leave(group);
    }

    /// The end of a chain that names the group is remembered.
    pub(super) fn remember_end(&mut self, group: GroupIx) {
        self.at_mut(group).ends += 1;
    }

    /// A block that names the group is forgotten. While an end of its chain is remembered that
    /// stands for it, and the block is as if known.
    pub(super) fn lose(&mut self, group: GroupIx) {
        let fields = self.at_mut(group);
        if fields.ends > 0 {
            fields.gone += 1;
        } else {
            self.leave(group);
        }
    }

    /// An end is remembered no longer, and names the group still: the blocks it stood for leave.
    /// Their count.
    pub(super) fn forget_end(&mut self, group: GroupIx) -> u32 {
        let fields = self.at_mut(group);
        let share = fields.gone / fields.ends;
        fields.gone -= share;
        fields.ends -= 1;
        fields.alive -= share;
        share
    }

    /// One block fewer names the group, which is gone with the last.
    pub(super) fn leave(&mut self, group: GroupIx) {
        let fields = self.at_mut(group);
        fields.alive -= 1;
        if fields.alive > 0 {
            return;
        }
        assert_eq!(fields.leaf, 0, "a group that nobody names has leaves");
        self.unlink(group);
        let category = self.category(group);
        if let Some(sharing) = &mut self.sharing {
            let newest = &mut sharing.newest[category];
            *newest = if *newest == group { 0 } else { *newest };
        }
        self.count -= 1;
        let unused = std::mem::replace(&mut self.unused, group);
        let fields = self.at_mut(group);
        (fields.number, fields.newer) = (u64::MAX, unused);
    }

    /// It is `now_ms`: groups move on to the bins of their ages, and the index learns of it.
    pub(super) fn age(&mut self, now_ms: u64, index: &mut Index) {
        for bin in 1..BINS {
            while self.due_ms[bin - 1] <= now_ms {
                let oldest = self.bins[bin - 1][0];
                if oldest == 0 {
                    break;
                }
                let Group {
                    alive,
                    gone,
                    category,
                    leaf,
                    ..
                } = *self.at(oldest);
                let blocks = if self.by_milestones { gone } else { alive };
                index.age(category.into(), bin, blocks);
                if leaf != 0 {
                    self.leave_cell(oldest);
                }
                self.unlink(oldest);
                self.push(bin, oldest);
                if leaf != 0 {
                    self.enter_cell(oldest, index);
                }
            }
        }
    }

    /// Appends a group to the list of a bin.
    fn push(&mut self, bin: usize, group: GroupIx) {
        let [oldest, newest] = self.bins[bin];
        let fields = self.at_mut(group);
        (fields.bin, fields.older, fields.newer) = (bin as u8, newest, 0);
        self.bins[bin] = [if oldest == 0 { group } else { oldest }, group];
        match newest {
            0 => self.set_due(bin),
            newest => self.at_mut(newest).newer = group,
        }
    }

    /// Notes when the oldest group of a bin leaves it.
    fn set_due(&mut self, bin: usize) {
        self.due_ms[bin] = match self.bins[bin][0] {
            0 => u64::MAX,
            oldest => self.at(oldest).time_ms.saturating_add(EDGES_MS[bin + 1]),
        };
    }

    /// Takes a group out of the list of its bin.
    fn unlink(&mut self, group: GroupIx) {
        let Group {
            older, newer, bin, ..
        } = *self.at(group);
        match older {
            0 => {
                self.bins[usize::from(bin)][0] = newer;
                self.set_due(usize::from(bin));
            }
            older => self.at_mut(older).newer = newer,
        }
        match newer {
            0 => self.bins[usize::from(bin)][1] = older,
            newer => self.at_mut(newer).older = older,
        }
    }

    /// A block that names the group is a leaf that may go.
    pub(super) fn enter_leaf(
        &mut self,
        group: GroupIx,
        leaf: BlockIx,
        chain: &mut Chain,
        index: &Index,
    ) {
        let first = std::mem::replace(&mut self.at_mut(group).leaf, leaf.0 + 1);
        chain.set_mark(leaf, first);
        self.leaf_before.grow_to(leaf.0 as usize + 1);
        self.leaf_before[leaf.0 as usize] = 0;
        match first.checked_sub(1) {
            Some(next) => self.leaf_before[next as usize] = leaf.0 + 1,
            None => self.enter_cell(group, index),
        }
    }

    /// The block is no leaf any more, or may not go.
    pub(super) fn leave_leaf(&mut self, group: GroupIx, leaf: BlockIx, chain: &mut Chain) {
        let next = chain.mark(leaf);
        chain.set_mark(leaf, 0);
        let before = self.leaf_before[leaf.0 as usize];
        if let Some(next) = next.checked_sub(1) {
            self.leaf_before[next as usize] = before;
        }
        match before.checked_sub(1) {
            Some(before) => chain.set_mark(BlockIx(before), next),
            None => self.at_mut(group).leaf = next,
        }
        if before == 0 && next == 0 {
            self.leave_cell(group);
        }
    }

    /// The leaf of least worth: the first of the oldest group in the cell of least worth.
    pub(super) fn least(&self) -> Option<Least> {
        let cell = usize::from(self.winners[1]);
        let first = self.first_in(cell);
        (first != 0).then(|| Least {
            worth: self.worths[cell],
            leaf: BlockIx(self.at(first).leaf - 1),
        })
    }

    /// The index was worked out anew.
    pub(super) fn weigh(&mut self, index: &Index) {
        for (at, cell) in self.cells.iter().enumerate() {
            if !cell.is_empty() {
                self.worths[at] = index.worth(at / BINS, at % BINS);
            }
        }
        (1..PLACES).rev().for_each(|place| self.play(place));
    }

    /// The worths of one category were worked out anew.
    pub(super) fn weigh_category(&mut self, category: usize, index: &Index) {
        for bin in 0..BINS {
            let cell = category * BINS + bin;
            if !self.cells[cell].is_empty() {
                self.worths[cell] = index.worth(category, bin);
                self.replay(cell);
            }
        }
    }

    /// All leaves that may go. Allocates nothing.
    pub(super) fn leaves(&self, chain: &Chain) -> impl Iterator<Item = BlockIx> {
        let groups = self
            .bins
            .iter()
            .flat_map(|[oldest, _]| self.newer_from(*oldest));
        groups.flat_map(|group| {
            let first = self.at(group).leaf.checked_sub(1).map(BlockIx);
            std::iter::successors(first, |leaf| chain.mark(*leaf).checked_sub(1).map(BlockIx))
        })
    }

    /// Bytes of the groups in use, without the tables of cells.
    pub(super) const fn bytes(&self) -> u64 {
        self.groups.bytes()
    }

    /// Bytes of the links of leaves.
    pub(super) const fn leaf_bytes(&self) -> u64 {
        self.leaf_before.bytes()
    }

    /// How old a group is at `now_ms`.
    pub(super) fn age_ms(&self, group: GroupIx, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.at(group).time_ms)
    }

    /// Panics unless each group is named as often as it says; for tests.
    pub(super) fn check_alive(&self, named: impl Iterator<Item = GroupIx>) {
        let mut counts = std::collections::HashMap::new();
        named.for_each(|group| *counts.entry(group).or_insert(0) += 1);
        let groups = self
            .bins
            .iter()
            .flat_map(|[oldest, _]| self.newer_from(*oldest));
        for group in groups {
            let Group {
                alive, gone, ends, ..
            } = *self.at(group);
            let named = counts.remove(&group).unwrap_or(0);
            assert_eq!(named + gone, alive, "blocks of a group");
            let is_stood_for = gone == 0 || ends > 0 || self.by_milestones;
            assert!(is_stood_for, "blocks of no end");
        }
        assert!(
            counts.is_empty(),
            "groups that are named and gone: {counts:?}"
        );
    }

    /// Panics when an invariant is broken; for tests.
    pub(super) fn check(&self, chain: &Chain) {
        let in_cells = self.check_cells();
        let mut with_leaves = 0;
        for (bin, [oldest, newest]) in self.bins.iter().enumerate() {
            let groups = Vec::from_iter(self.newer_from(*oldest));
            assert_eq!(
                groups.last().copied().unwrap_or(0),
                *newest,
                "newest of a bin"
            );
            assert!(
                groups.is_sorted_by_key(|group| self.number(*group)),
                "a bin"
            );
            assert!(groups.iter().all(|group| self.bin(*group) == bin), "a bin");
            let first = groups.first().map(|group| self.at(*group).time_ms);
            let due_ms = first.map_or(u64::MAX, |first| first.saturating_add(EDGES_MS[bin + 1]));
            assert_eq!(self.due_ms[bin], due_ms, "when a bin is due");
            with_leaves += groups
                .iter()
                .filter(|group| self.at(**group).leaf != 0)
                .count();
        }
        assert_eq!(in_cells, with_leaves, "groups in heaps");
        let least = self.worths.iter().copied().fold(f64::INFINITY, f64::min);
        let first = self.worths.iter().position(|worth| *worth == least);
        assert_eq!(first, Some(self.winners[1].into()), "cell of least worth");
        assert!(self.leaves(chain).all(|leaf| chain.is_leaf(leaf)), "leaves");
    }

    /// A group and those after it in its bin.
    fn newer_from(&self, group: GroupIx) -> impl Iterator<Item = GroupIx> {
        let is_group = |group: &GroupIx| *group != 0;
        std::iter::successors(Some(group).filter(is_group), move |group| {
            Some(self.at(*group).newer).filter(is_group)
        })
    }
}
