//! What is remembered of a block, resident or gone.

use bytemuck::Zeroable;
use terrace_types::KeyHash;

use super::groups::GroupIx;

/// Turns are counted up to this: no category tells more apart.
pub(super) const TURNS_MAX: u8 = 15;
/// Uses are counted up to this.
pub(super) const USES_MAX: u8 = 63;

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
