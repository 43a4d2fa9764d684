//! Maps whose keys are numbers of blocks and slots.

use std::hash::{BuildHasherDefault, Hasher};

/// Hashes the numbers of blocks and slots: they are dense, and nobody outside chooses them.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

/// For maps whose keys are numbers of blocks and slots.
pub(super) type ByNumber = BuildHasherDefault<NumberHasher>;

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        // The golden ratio spreads neighbours; both ends of a hash are used.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
