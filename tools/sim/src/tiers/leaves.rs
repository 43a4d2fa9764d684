//! The blocks that one tier holds, and the order in which its leaves go.
//!
//! **Invariants**
//! - A leaf is a block without a child in the same tier. Only leaves are in the order, and of
//!   those only such as do not belong to the request under way.
//! - A block's place follows from its group. So it is out of the order while its group changes.

use std::collections::BTreeSet;

use super::forest::Forest;
use super::history::History;
use super::learner::{BINS, CATEGORIES, Group};

/// What goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The leaf not used for longest, of one request the deepest.
    Lru,
    /// The leaf with the lowest Gittins index.
    Index,
}

/// See the module's text.
pub(super) struct Leaves {
    capacity: usize,
    len: usize,
    order: Order,
    is_held: Vec<bool>,
    is_ordered: Vec<bool>,
    children: Vec<u32>,
    by_use: BTreeSet<(u32, u32, u32)>,
    /// By category and span of age: group and block.
    cells: Vec<BTreeSet<(u32, u32)>>,
}

impl Leaves {
    pub(super) fn new(capacity: usize, order: Order, unique_blocks: usize) -> Self {
        Self {
            capacity,
            len: 0,
            order,
            is_held: vec![false; unique_blocks],
            is_ordered: vec![false; unique_blocks],
            children: vec![0; unique_blocks],
            by_use: BTreeSet::new(),
            cells: vec![BTreeSet::new(); CATEGORIES * BINS],
        }
    }

    pub(super) fn holds(&self, block: u32) -> bool {
        self.is_held[block as usize]
    }

    pub(super) fn is_leaf(&self, block: u32) -> bool {
        self.is_held[block as usize] && self.children[block as usize] == 0
    }

    /// Whether a child of the block is held.
    pub(super) fn has_child(&self, block: u32) -> bool {
        self.children[block as usize] > 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.len >= self.capacity
    }

    /// Puts a leaf in its place.
    pub(super) fn enter(&mut self, block: u32, history: &History, forest: &Forest) {
        if std::mem::replace(&mut self.is_ordered[block as usize], true) {
            return;
        }
        let number = history.group_of(block);
        match self.order {
            Order::Lru => {
                let key = by_use(block, history, forest);
                self.by_use.insert(key);
            }
            Order::Index => {
                let cell = cell(history.group(block));
                self.cells[cell].insert((number, block));
            }
        }
    }

    /// Takes a leaf out of its place.
    pub(super) fn leave(&mut self, block: u32, history: &History, forest: &Forest) {
        if !std::mem::replace(&mut self.is_ordered[block as usize], false) {
            return;
        }
        let number = history.group_of(block);
        match self.order {
            Order::Lru => self.by_use.remove(&by_use(block, history, forest)),
            Order::Index => self.cells[cell(history.group(block))].remove(&(number, block)),
        };
    }

    /// The leaves of a group that came of age move on.
    pub(super) fn age(&mut self, number: u32, group: &Group) {
        let (to, group) = (cell(group), (number, 0)..(number + 1, 0));
        // The same category, one span younger.
        let moved: Vec<(u32, u32)> = self.cells[to - 1].range(group).copied().collect();
        for leaf in moved {
            self.cells[to - 1].remove(&leaf);
            self.cells[to].insert(leaf);
        }
    }

    /// The leaf that goes next.
    pub(super) fn least(&self, history: &History) -> Option<u32> {
        match self.order {
            Order::Lru => self.by_use.first().map(|(_, _, block)| *block),
            Order::Index => {
                let mut least: Option<(f64, u32)> = None;
                for (cell, leaves) in self.cells.iter().enumerate() {
                    let Some((_, block)) = leaves.first() else {
                        continue;
                    };
                    let index = history.learner.index(cell / BINS, cell % BINS);
                    if least.is_none_or(|(least, _)| index < least) {
                        least = Some((index, *block));
                    }
                }
                least.map(|(_, block)| block)
            }
        }
    }

    /// Takes a block in; its parent is no leaf any more. It enters the order by
    /// [`Leaves::enter`].
    pub(super) fn insert(&mut self, block: u32, history: &History, forest: &Forest) {
        self.is_held[block as usize] = true;
        self.len += 1;
        if let Some(parent) = forest.parent(block) {
            self.children[parent as usize] += 1;
            self.leave(parent, history, forest);
        }
    }

    /// Gives a block up. Its parent may be a leaf now and enters the order, unless it is `spared`.
    pub(super) fn remove(
        &mut self,
        block: u32,
        spared: Option<u32>,
        history: &History,
        forest: &Forest,
    ) {
        self.leave(block, history, forest);
        self.is_held[block as usize] = false;
        self.len -= 1;
        let Some(parent) = forest.parent(block) else {
            return;
        };
        self.children[parent as usize] -= 1;
        if self.is_leaf(parent) && spared != Some(parent) {
            self.enter(parent, history, forest);
        }
    }
}

fn by_use(block: u32, history: &History, forest: &Forest) -> (u32, u32, u32) {
    let deepest_first = u32::MAX - forest.depth(block);
    (history.group(block).request, deepest_first, block)
}

fn cell(group: &Group) -> usize {
    usize::from(group.category) * BINS + usize::from(group.bin)
}
