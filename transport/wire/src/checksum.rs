//! The checksum of a part of a block, which is bound to its place as a block's is to its name.

use terrace_types::{Checksum, KeyHash};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of the checksum of `len` bytes from `offset` of the block of `block_len` bytes whose
/// key has `hash`, for receivers that hash in pieces.
//= docs/wire-protocol.md#WP-19
#[must_use]
pub fn part_seed(hash: KeyHash, block_len: u32, offset: u32, len: u32) -> u64 {
    let bind = |number: u32, seed| xxh3_64_with_seed(&u64::from(number).to_le_bytes(), seed);
    // The first of the three gives the seed of the whole block's checksum, as in `terrace-types`.
    bind(offset, bind(len, bind(block_len, hash.0)))
}

/// The checksum of `part`, which begins at `offset` of the block of `block_len` bytes whose key
/// has `hash`. Of the whole block it is not the block's own checksum.
#[must_use]
pub fn part_checksum(hash: KeyHash, block_len: u32, offset: u32, part: &[u8]) -> Checksum {
    let seed = part_seed(hash, block_len, offset, part.len() as u32);
    Checksum(xxh3_64_with_seed(part, seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_checksum_is_bound_to_key_place_and_lengths() {
        let hash = KeyHash::of_named("m", b"k");
        let base = part_checksum(hash, 100, 8, b"part");
        assert_eq!(base, part_checksum(hash, 100, 8, b"part"));
        for other in [
            part_checksum(KeyHash::of_named("m", b"j"), 100, 8, b"part"),
            part_checksum(hash, 101, 8, b"part"),
            part_checksum(hash, 100, 9, b"part"),
            part_checksum(hash, 100, 8, b"pars"),
            part_checksum(hash, 100, 8, b"part\0"),
        ] {
            assert_ne!(base, other);
        }
    }

    /// Aim: the seed of the block's checksum is the one of `terrace-types`. Method: the checksum of a
    /// whole block is made with it.
    #[test]
    fn part_seed_starts_from_the_seed_of_the_block() {
        let hash = KeyHash::of_named("m", b"k");
        let seed = xxh3_64_with_seed(&5_u64.to_le_bytes(), hash.0);
        let block = Checksum(xxh3_64_with_seed(b"bytes", seed));
        assert_eq!(block, Checksum::of_named("m", b"k", b"bytes"));
    }
}
