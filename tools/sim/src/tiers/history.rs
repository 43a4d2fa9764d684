//! Which blocks are known, resident or not, and what category each is of.
//!
//! A block is known from its first request on, until it is a ghost and the oldest of too many.

use std::collections::VecDeque;

use super::forest::NONE;
use super::learner::{CATEGORIES, Group, Learner};

/// The learner reindexes at every so many requests.
const REINDEX_EVERY: u32 = 4;
/// Later turns than this count as the same.
const TURN_MAX: u8 = 250;

/// One block.
#[derive(Clone, Copy)]
struct Block {
    group: u32,
    uses: u32,
    /// The block after it in the last request through it, and whether that was its last one.
    child: u32,
    /// Stamp of its place among the ghosts; 0 when it is none.
    ghost: u64,
    child_was_last: bool,
    turn: u8,
    is_shared: bool,
    is_known: bool,
}

const UNKNOWN: Block = Block {
    group: 0,
    uses: 0,
    child: NONE,
    ghost: 0,
    child_was_last: false,
    turn: 0,
    is_shared: false,
    is_known: false,
};

/// See the module's text.
pub(super) struct History {
    pub(super) learner: Learner,
    blocks: Vec<Block>,
    /// Blocks and stamps, oldest first; a stamp that is not the block's own is void.
    ghosts: VecDeque<(u32, u64)>,
    ghosts_alive: usize,
    ghosts_max: usize,
    stamp: u64,
    requests: u32,
}

impl History {
    pub(super) fn new(unique_blocks: usize, ghosts_max: usize) -> Self {
        Self {
            learner: Learner::new(),
            blocks: vec![UNKNOWN; unique_blocks],
            ghosts: VecDeque::new(),
            ghosts_alive: 0,
            ghosts_max,
            stamp: 0,
            requests: 0,
        }
    }

    /// The number of a block's group.
    pub(super) fn group_of(&self, block: u32) -> u32 {
        self.blocks[block as usize].group
    }

    /// A block's group.
    pub(super) fn group(&self, block: u32) -> &Group {
        self.learner.group(self.group_of(block))
    }

    /// Category and span of age of a block.
    pub(super) fn place(&self, block: u32) -> (usize, usize) {
        let group = self.group(block);
        (usize::from(group.category), usize::from(group.bin))
    }

    /// A block's index.
    pub(super) fn index(&self, block: u32) -> f64 {
        let (category, bin) = self.place(block);
        self.learner.index(category, bin)
    }

    /// Learns from a request for the chain `blocks`. They are in no order meanwhile.
    pub(super) fn take_in(&mut self, blocks: &[u32], now_ms: u64) {
        let known = blocks
            .iter()
            .take_while(|&&block| self.blocks[block as usize].is_known);
        let known = known.count();
        let turn = known.checked_sub(1).map_or(1, |last| {
            let turn = self.blocks[blocks[last] as usize].turn;
            turn.saturating_add(1).min(TURN_MAX)
        });
        for &block in &blocks[..known] {
            self.learner.learn_use(self.group_of(block), now_ms);
        }
        self.see_branch(blocks, known);
        for (at, pair) in blocks.windows(2).enumerate() {
            let block = &mut self.blocks[pair[0] as usize];
            block.child = pair[1];
            block.child_was_last = at + 2 == blocks.len();
        }
        self.regroup(blocks, known, turn, now_ms);
        if self.requests.is_multiple_of(REINDEX_EVERY) {
            self.learner.reindex();
        }
        self.requests += 1;
    }

    /// Marks what is shared by requests that part where this one leaves what is known.
    fn see_branch(&mut self, blocks: &[u32], known: usize) {
        let Some(last) = known.checked_sub(1).filter(|_| known < blocks.len()) else {
            return;
        };
        let block = self.blocks[blocks[last] as usize];
        if block.child == NONE || block.child == blocks[known] || block.child_was_last {
            return;
        }
        for &block in blocks[..known].iter().rev() {
            let block = &mut self.blocks[block as usize];
            if std::mem::replace(&mut block.is_shared, true) {
                break;
            }
        }
    }

    fn regroup(&mut self, blocks: &[u32], known: usize, turn: u8, now_ms: u64) {
        let mut groups = [NONE; CATEGORIES];
        let fresh = blocks.len() - known;
        for (at, &number) in blocks.iter().enumerate() {
            let block = &mut self.blocks[number as usize];
            if at >= known {
                // Its child was told above and stays.
                (block.turn, block.uses) = (turn, 0);
                (block.is_shared, block.is_known) = (false, true);
            }
            block.uses += 1;
            if std::mem::take(&mut block.ghost) != 0 {
                self.ghosts_alive -= 1;
            }
            let category = if at + 1 == blocks.len() {
                0
            } else if at < known && block.is_shared {
                shared_category(block.uses)
            } else {
                fresh_category(turn, fresh)
            };
            if groups[category] == NONE {
                groups[category] = self.learner.begin_group(category, self.requests, now_ms);
            }
            block.group = groups[category];
            self.learner.join(block.group);
        }
    }

    /// A block is not resident in any tier any more.
    pub(super) fn become_ghost(&mut self, block: u32) {
        self.stamp += 1;
        self.blocks[block as usize].ghost = self.stamp;
        self.ghosts.push_back((block, self.stamp));
        self.ghosts_alive += 1;
    }

    /// Forgets the oldest ghosts above the bound.
    pub(super) fn trim(&mut self) {
        while self.ghosts_alive > self.ghosts_max {
            let Some((block, stamp)) = self.ghosts.pop_front() else {
                return;
            };
            let block = &mut self.blocks[block as usize];
            if block.ghost == stamp {
                self.learner.forget(block.group);
                *block = UNKNOWN;
                self.ghosts_alive -= 1;
            }
        }
    }
}

/// Blocks that several requests branch off, by how often they were used.
const fn shared_category(uses: u32) -> usize {
    let bits = (u32::BITS - uses.leading_zeros()) as usize;
    (if bits < 6 { bits } else { 6 }) - 1
}

/// The others, by the turn of the conversation and how many blocks it added.
const fn fresh_category(turn: u8, fresh: usize) -> usize {
    let turn = if turn < 4 { turn as usize } else { 4 };
    let added = match fresh {
        0..=1 => 0,
        2..=3 => 1,
        4..=7 => 2,
        8..=15 => 3,
        16..=31 => 4,
        _ => 5,
    };
    6 + (turn - 1) * 6 + added
}
