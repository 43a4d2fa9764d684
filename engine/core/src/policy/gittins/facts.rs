//! What is remembered of a block, resident or gone, and its category by that.

use bytemuck::Zeroable;
use terrace_types::KeyHash;

use super::groups::GroupIx;

/// Turns are counted up to this: no category tells more apart.
pub(super) const TURNS_MAX: u8 = 15;
/// Uses are counted up to this.
pub(super) const USES_MAX: u8 = 63;

/// The first category of blocks that requests share, then that of all others.
const CATEGORY_SHARED: usize = 1;
pub(super) const CATEGORY_TURN: usize = 6;
/// Categories of shared blocks, by uses.
const SHARED_MAX: u32 = 6;
/// The fourth turn and later ones are one.
const TURNS_TOLD_APART: u8 = 4;
/// Most new blocks in a request of each category but the last.
const NEW_BLOCKS: [usize; 5] = [1, 3, 7, 15, 31];
/// Categories of one turn, by new blocks.
const BY_NEW: usize = NEW_BLOCKS.len() + 1;

/// What is remembered of a known block. 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Zeroable)]
#[repr(C)]
pub(super) struct Facts {
    /// That of its last use; zero while a use is being settled.
    pub(super) group: GroupIx,
    /// What is kept of the id of the block that came after it last; zero when there was none.
    pub(super) child: u16,
    pub(super) uses: u8,
    /// Turns of its conversation when it came, and flags above them.
    turn_and_flags: u8,
}

/// Requests went apart below the block.
pub(super) const SHARED: u8 = 1 << 4;
/// The child named was the last block of its request.
pub(super) const CHILD_IS_TAIL: u8 = 1 << 5;
/// The block was the last full one of its request.
pub(super) const END: u8 = 1 << 6;
/// The block is a step of the request under way.
pub(super) const IN_REQUEST: u8 = 1 << 7;

impl Facts {
    pub(super) const fn turn(self) -> u8 {
        self.turn_and_flags & TURNS_MAX
    }

    pub(super) const fn set_turn(&mut self, turn: u8) {
        let turn = if turn < TURNS_MAX { turn } else { TURNS_MAX };
        self.turn_and_flags = self.turn_and_flags & !TURNS_MAX | turn;
    }

    /// The category of a block that was just used, as the last of its request or not, in a
    /// conversation of `turn` turns and a request that brings `new_blocks`.
    pub(super) fn category(self, is_tail: bool, turn: u8, new_blocks: usize) -> usize {
        if is_tail {
            return 0;
        }
        if self.has(SHARED) {
            let bits = u8::BITS - self.uses.leading_zeros();
            return CATEGORY_SHARED + bits.clamp(2, SHARED_MAX) as usize - 2;
        }
        category_of_turn(turn, new_blocks)
    }

    /// What is known of a block whose category alone is known; the group is missing.
    pub(super) fn of_category(category: usize) -> Self {
        let is_shared = (CATEGORY_SHARED..CATEGORY_TURN).contains(&category);
        let turns = category.saturating_sub(CATEGORY_TURN) / BY_NEW;
        let mut facts = Self::zeroed();
        facts.set_turn(turns as u8 + 1);
        facts.uses = if is_shared { 1 << category } else { 1 };
        facts.set(SHARED, is_shared);
        facts
    }

    pub(super) const fn has(self, flag: u8) -> bool {
        self.turn_and_flags & flag != 0
    }

    pub(super) const fn set(&mut self, flag: u8, on: bool) {
        self.turn_and_flags &= !flag;
        if on {
            self.turn_and_flags |= flag;
        }
    }
}

/// The category of a block by the turns of its conversation and the blocks its request brings.
pub(super) fn category_of_turn(turn: u8, new_blocks: usize) -> usize {
    let by_new = NEW_BLOCKS.iter().filter(|most| new_blocks > **most).count();
    CATEGORY_TURN + usize::from(turn.clamp(1, TURNS_TOLD_APART) - 1) * BY_NEW + by_new
}

/// What is kept of a child's id.
pub(super) const fn child_of(id: KeyHash) -> u16 {
    let kept = (mixed(id) >> 48) as u16;
    if kept == 0 { 1 } else { kept }
}

/// The bits of an id, evenly spread whatever the caller's hash is.
pub(super) const fn mixed(id: KeyHash) -> u64 {
    // The last steps of splitmix64.
    let bits = (id.0 ^ (id.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::index::CATEGORIES;
    use super::*;

    #[test]
    fn categories_are_the_last_block_then_shared_ones_by_uses_then_turns_by_new_blocks() {
        let shared = |uses| {
            let mut facts = Facts::zeroed();
            facts.uses = uses;
            facts.set(SHARED, true);
            facts
        };
        assert_eq!(shared(40).category(true, 9, 9), 0);
        let by_uses =
            [1, 2, 3, 4, 8, 16, 31, 32, 63].map(|uses| shared(uses).category(false, 1, 1));
        assert_eq!(by_uses, [1, 1, 1, 2, 3, 4, 4, 5, 5]);
        let by_new = [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 9999];
        let by_new = by_new.map(|new_blocks| category_of_turn(1, new_blocks));
        assert_eq!(by_new, [6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11]);
        let by_turn = [1, 2, 3, 4, TURNS_MAX].map(|turn| category_of_turn(turn, 0));
        assert_eq!(by_turn, [6, 12, 18, 24, 24]);
        assert_eq!(category_of_turn(4, 32), CATEGORIES - 1);
    }

    #[test]
    fn turn_and_flags_do_not_touch_each_other() {
        let mut facts = Facts::zeroed();
        for flag in [SHARED, CHILD_IS_TAIL, END, IN_REQUEST] {
            facts.set_turn(200);
            facts.set(flag, true);
            assert!(facts.has(flag));
            assert_eq!(facts.turn(), TURNS_MAX);
            facts.set(flag, false);
            facts.set_turn(3);
            assert_eq!((facts.turn(), facts.has(flag)), (3, false));
        }
        assert_eq!(size_of::<Facts>(), 8);
    }

    #[test]
    fn facts_of_a_category_are_of_that_category() {
        for category in 1..CATEGORIES {
            let facts = Facts::of_category(category);
            let new_blocks = [0, 2, 4, 8, 16, 32];
            let mut categories = new_blocks
                .iter()
                .map(|&new_blocks| facts.category(false, facts.turn(), new_blocks));
            assert!(categories.any(|other| other == category), "{category}");
        }
    }
}
