//! The groups of a cell that have leaves, in the order of their numbers, and the tournament over
//! the cells; see the parent module's text.
//!
//! Groups come to a cell in the order of their numbers as they grow older, and leave it in that order:
//! these are a list. One that has leaves again may come before others, and is in a leftist heap
//! (Crane 1972; Knuth, "The Art of Computer Programming", 5.2.3). No step takes longer than the
//! logarithm of the count of groups.

use super::groups::{Group, GroupIx, Groups, PLACES};
use super::index::{BINS, Index};

/// The groups of a cell: the ends of the list, and the first of the heap.
#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    pub(super) oldest: GroupIx,
    newest: GroupIx,
    pub(super) root: GroupIx,
}

impl Cell {
    pub(super) const fn is_empty(&self) -> bool {
        self.oldest == 0 && self.root == 0
    }
}

impl Groups {
    fn cell_of(&self, group: GroupIx) -> usize {
        self.category(group) * BINS + self.bin(group)
    }

    /// The group of least number in a cell, or none.
    pub(super) fn first_in(&self, cell: usize) -> GroupIx {
        let Cell { oldest, root, .. } = self.cells[cell];
        self.first_of(oldest, root)
    }

    /// The one of less number; of one and none the one.
    fn first_of(&self, one: GroupIx, other: GroupIx) -> GroupIx {
        if one == 0 || other == 0 {
            return one.max(other);
        }
        if self.number(one) < self.number(other) {
            one
        } else {
            other
        }
    }

    pub(super) fn enter_cell(&mut self, group: GroupIx, index: &Index) {
        let at = self.cell_of(group);
        let cell = self.cells[at];
        let newest = cell.newest;
        if newest == 0 || self.number(newest) < self.number(group) {
            self.at_mut(group).left = newest;
            if newest == 0 {
                self.cells[at].oldest = group;
            } else {
                self.at_mut(newest).right = group;
            }
            self.cells[at].newest = group;
        } else {
            self.at_mut(group).rank = 1;
            let root = self.meld(cell.root, group);
            self.at_mut(root).parent = 0;
            self.cells[at].root = root;
        }
        if cell.is_empty() {
            self.worths[at] = index.worth(at / BINS, at % BINS);
            self.replay(at);
        }
    }

    pub(super) fn leave_cell(&mut self, group: GroupIx) {
        let at = self.cell_of(group);
        if self.at(group).rank == 0 {
            self.leave_list(at, group);
        } else {
            self.leave_heap(at, group);
        }
        let fields = self.at_mut(group);
        (fields.left, fields.right, fields.parent, fields.rank) = (0, 0, 0, 0);
        if self.cells[at].is_empty() {
            self.worths[at] = f64::INFINITY;
            self.replay(at);
        }
    }

    fn leave_list(&mut self, at: usize, group: GroupIx) {
        let Group {
            left: before,
            right: after,
            ..
        } = *self.at(group);
        match before {
            0 => self.cells[at].oldest = after,
            before => self.at_mut(before).right = after,
        }
        match after {
            0 => self.cells[at].newest = before,
            after => self.at_mut(after).left = before,
        }
    }

    fn leave_heap(&mut self, at: usize, group: GroupIx) {
        let Group {
            left,
            right,
            parent,
            ..
        } = *self.at(group);
        let rest = self.meld(left, right);
        if rest != 0 {
            self.at_mut(rest).parent = parent;
        }
        if parent == 0 {
            self.cells[at].root = rest;
            return;
        }
        let fields = self.at_mut(parent);
        if fields.left == group {
            fields.left = rest;
        } else {
            fields.right = rest;
        }
        // A group of another rank may change the rank of the one above.
        let mut above = parent;
        while above != 0 && self.settle_rank(above) {
            above = self.at(above).parent;
        }
    }

    fn rank(&self, group: GroupIx) -> u8 {
        if group == 0 { 0 } else { self.at(group).rank }
    }

    /// Puts the children of a group in order; whether its rank is another one now.
    fn settle_rank(&mut self, group: GroupIx) -> bool {
        let Group {
            left, right, rank, ..
        } = *self.at(group);
        let (of_left, of_right) = (self.rank(left), self.rank(right));
        let fields = self.at_mut(group);
        if of_left < of_right {
            (fields.left, fields.right) = (right, left);
        }
        fields.rank = of_left.min(of_right) + 1;
        fields.rank != rank
    }

    /// One heap of two, each given by its first group; or none. The first group's parent is for
    /// the caller to set.
    fn meld(&mut self, one: GroupIx, other: GroupIx) -> GroupIx {
        let first = self.first_of(one, other);
        if one == 0 || other == 0 {
            return first;
        }
        let second = if first == one { other } else { one };
        // As deep as the ranks of both together, which are logarithms of counts.
        let below = self.meld(self.at(first).right, second);
        self.at_mut(below).parent = first;
        self.at_mut(first).right = below;
        self.settle_rank(first);
        first
    }

    /// Decides anew above a cell.
    pub(super) fn replay(&mut self, cell: usize) {
        let mut place = (PLACES + cell) / 2;
        while place > 0 {
            self.play(place);
            place /= 2;
        }
    }

    /// The cell of less worth of the two below a place; of equal ones the first.
    pub(super) fn play(&mut self, place: usize) {
        let below = |place: usize| match place.checked_sub(PLACES) {
            Some(cell) => cell,
            None => self.winners[place].into(),
        };
        let (left, right) = (below(2 * place), below(2 * place + 1));
        let is_right = self.worths[right] < self.worths[left];
        self.winners[place] = if is_right { right } else { left } as u16;
    }

    /// Panics when the order of a cell is broken; for tests. How many groups are in cells.
    pub(super) fn check_cells(&self) -> usize {
        let mut count = 0;
        for (at, cell) in self.cells.iter().enumerate() {
            let mut before = 0;
            let next = |group: &GroupIx| Some(self.at(*group).right).filter(|next| *next != 0);
            let first = Some(cell.oldest).filter(|oldest| *oldest != 0);
            for group in std::iter::successors(first, next) {
                let fields = self.at(group);
                assert_eq!((fields.left, fields.rank), (before, 0), "a list");
                assert!(before == 0 || self.number(before) < fields.number, "a list");
                self.check_in(at, group);
                (before, count) = (group, count + 1);
            }
            assert_eq!(cell.newest, before, "the newest of a list");
            let mut next = vec![(0, cell.root)];
            while let Some((parent, group)) = next.pop().filter(|(_, group)| *group != 0) {
                let fields = self.at(group);
                assert_eq!(fields.parent, parent, "what is above a group in the heap");
                let (left, right) = (self.rank(fields.left), self.rank(fields.right));
                assert!(left >= right && fields.rank == right + 1, "ranks in a heap");
                self.check_in(at, group);
                count += 1;
                for child in [fields.left, fields.right] {
                    if child != 0 {
                        assert!(self.number(child) > fields.number, "order in a heap");
                        next.push((group, child));
                    }
                }
            }
            let is_free = self.worths[at] == f64::INFINITY;
            assert_eq!(cell.is_empty(), is_free, "worth of a cell");
        }
        count
    }

    fn check_in(&self, cell: usize, group: GroupIx) {
        assert_eq!(self.cell_of(group), cell, "cell of a group");
        assert_ne!(self.at(group).leaf, 0, "a group in a cell has leaves");
    }
}
