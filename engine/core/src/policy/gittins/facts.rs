//! What P-GIT remembers of a block, and its category by that.

use bytemuck::Zeroable;

use super::groups::GroupIx;

/// Turns are counted up to this, uses up to the other.
pub(super) const TURNS_MAX: u8 = 250;
pub(super) const USES_MAX: u8 = 63;

/// The first category of blocks that requests share, then that of all others.
const CATEGORY_SHARED: usize = 1;
const CATEGORY_TURN: usize = 6;
/// Categories of shared blocks, by uses.
const SHARED_MAX: u32 = 6;
/// The fourth turn and later ones are one.
const TURNS_TOLD_APART: u8 = 4;
/// Most new blocks in a request of each category but the last.
const NEW_BLOCKS: [usize; 5] = [1, 3, 7, 15, 31];
/// Categories of one turn, by new blocks.
const BY_NEW: usize = NEW_BLOCKS.len() + 1;

/// What is remembered of a known block. 12 bytes.
#[derive(Clone, Copy, Zeroable)]
#[repr(C)]
pub(super) struct Facts {
    /// That of its last use; zero while a use is being settled.
    pub(super) group: GroupIx,
    /// What is kept of the id of the block that came after it last; zero when there was none.
    pub(super) child: u32,
    /// Turns of its conversation when it came.
    pub(super) turn: u8,
    pub(super) uses: u8,
    /// Whether requests went apart below it.
    pub(super) is_shared: bool,
    /// Whether that child was the last block of its request.
    pub(super) child_is_tail: bool,
}

impl Facts {
    /// The category of a block that was just used, as the last of its request or not, in a
    /// conversation of `turn` turns and a request that brings `new_blocks`.
    pub(super) fn category(&self, is_tail: bool, turn: u8, new_blocks: usize) -> usize {
        if is_tail {
            return 0;
        }
        if self.is_shared {
            let bits = u8::BITS - self.uses.leading_zeros();
            return CATEGORY_SHARED + bits.clamp(2, SHARED_MAX) as usize - 2;
        }
        category_of_turn(turn, new_blocks)
    }

    /// What is known of a block whose category alone is known; the group is missing.
    pub(super) fn of_category(category: usize) -> Self {
        let is_shared = (CATEGORY_SHARED..CATEGORY_TURN).contains(&category);
        let turns = category.saturating_sub(CATEGORY_TURN) / BY_NEW;
        Self {
            turn: turns as u8 + 1,
            uses: if is_shared { 1 << category } else { 1 },
            is_shared,
            ..Self::zeroed()
        }
    }
}

/// The category of a block by the turns of its conversation and the blocks its request brings.
pub(super) fn category_of_turn(turn: u8, new_blocks: usize) -> usize {
    let by_new = NEW_BLOCKS.iter().filter(|most| new_blocks > **most).count();
    CATEGORY_TURN + usize::from(turn.clamp(1, TURNS_TOLD_APART) - 1) * BY_NEW + by_new
}

#[cfg(test)]
mod tests {
    use super::super::index::CATEGORIES;
    use super::*;

    #[test]
    fn categories_are_the_last_block_then_shared_ones_by_uses_then_turns_by_new_blocks() {
        let shared = |uses| Facts {
            uses,
            is_shared: true,
            ..Facts::zeroed()
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
    fn facts_of_a_category_are_of_that_category() {
        for category in 1..CATEGORIES {
            let facts = Facts::of_category(category);
            let new_blocks = [0, 2, 4, 8, 16, 32];
            let mut categories = new_blocks
                .iter()
                .map(|&new_blocks| facts.category(false, facts.turn, new_blocks));
            assert!(categories.any(|other| other == category), "{category}");
        }
    }
}
