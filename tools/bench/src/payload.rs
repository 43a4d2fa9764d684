//! Owns the bytes the bench stores: derived from the block id, so that a reader can check them.
//!
//! Word `i` (8 bytes, little-endian) of block `id` is `scramble(start(id) + i * STEP)`. Both
//! functions are bijective and `STEP` is odd, hence:
//!
//! **Invariants**
//! - within a block no two words are equal, so a swap of two words is seen;
//! - at one position the words of two different blocks differ, so a swap of two blocks is seen;
//! - a shift by any number of bytes changes the contents.
//!
//! The bytes do not depend on the length: a prefix of a block verifies. Whoever checks a value
//! compares its length first. This is no checksum and keeps nothing secret.

/// Distance between the unscrambled words of a block: 2^64 / golden ratio, odd, so that `i * STEP`
/// takes every 64-bit value before it repeats.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Words compared between two tests for a difference: long enough that the inner loop stays
/// branch-free, short enough that a wrong block is refused after 1 KiB.
const WORDS_PER_TEST: usize = 128;

/// Bytes of one word.
const WORD_LEN: usize = size_of::<u64>();

/// Fills `buf`, of any length, with the bytes of block `block_id`.
///
/// ```
/// use terrace_bench::payload::{fill, verify};
///
/// let mut block = [0; 100];
/// fill(7, &mut block);
/// assert!(verify(7, &block));
/// assert!(!verify(8, &block));
/// ```
pub fn fill(block_id: u64, buf: &mut [u8]) {
    let mut raw = start(block_id);
    let (words, tail) = buf.as_chunks_mut::<WORD_LEN>();
    for word in words {
        *word = scramble(raw).to_le_bytes();
        raw = raw.wrapping_add(STEP);
    }
    for (byte, expected) in tail.iter_mut().zip(scramble(raw).to_le_bytes()) {
        *byte = expected;
    }
}

/// Whether `buf` holds exactly the bytes that [`fill`] writes for `block_id` and this length.
///
/// An empty buffer verifies for every block.
#[must_use]
pub fn verify(block_id: u64, buf: &[u8]) -> bool {
    let mut raw = start(block_id);
    let (words, tail) = buf.as_chunks::<WORD_LEN>();
    for group in words.chunks(WORDS_PER_TEST) {
        let mut difference = 0;
        for word in group {
            difference |= u64::from_le_bytes(*word) ^ scramble(raw);
            raw = raw.wrapping_add(STEP);
        }
        if difference != 0 {
            return false;
        }
    }
    tail.iter()
        .zip(scramble(raw).to_le_bytes())
        .all(|(&byte, expected)| byte == expected)
}

/// Unscrambled first word of a block: the `MurmurHash3` finaliser, a bijection that keeps the word
/// sequences of neighbouring ids far apart.
const fn start(block_id: u64) -> u64 {
    let mut x = block_id ^ STEP;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// A bijection of shifts and xors only: those exist as vector instructions on every x86-64, a
/// 64-bit multiplication does not.
const fn scramble(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

#[cfg(test)]
mod tests {
    //! Aim: every way a store can mix up bytes is seen by `verify`. Method: fill, damage, verify.

    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn filled(block_id: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        fill(block_id, &mut buf);
        buf
    }

    #[test]
    fn fill_any_length_verifies_and_is_a_prefix_of_longer() {
        let long = filled(42, 3000);
        for len in (0..300).chain([1023, 1024, 1025, 2047, 2048, 2049]) {
            let buf = filled(42, len);
            assert!(verify(42, &buf), "length {len}");
            assert_eq!(buf, long[..len], "length {len}");
        }
    }

    #[test]
    fn fill_known_ids_keep_their_bytes() {
        // Stored blocks outlive a build of the bench, so the bytes of an id must not change.
        // Expected bytes: computed from the formula in the file head by a separate script.
        assert_eq!(filled(0, 16), hex("37829a0c29bfdecc6a1e5301d27af7c4"));
        assert_eq!(filled(1, 10), hex("caec7cf4ee63e0ba977a"));
        assert_eq!(filled(u64::MAX, 1), hex("6c"));
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn verify_single_byte_flip_is_refused() {
        for len in [1, 7, 8, 9, 1024, 1029] {
            let mut buf = filled(9, len);
            for at in 0..len {
                for bit in 0..8 {
                    buf[at] ^= 1 << bit;
                    assert!(!verify(9, &buf), "length {len}, byte {at}, bit {bit}");
                    buf[at] ^= 1 << bit;
                }
            }
            assert!(verify(9, &buf));
        }
    }

    #[test]
    fn verify_shifted_bytes_are_refused() {
        let long = filled(5, 4096 + 600);
        for shift in 1..600 {
            assert!(!verify(5, &long[shift..shift + 4096]), "shift {shift}");
        }
        let mut rotated = filled(5, 4096);
        for turn in 1..4096 {
            rotated.rotate_left(1);
            assert!(!verify(5, &rotated), "rotation {turn}");
        }
    }

    #[test]
    fn verify_zeros_and_ones_are_refused() {
        for id in 0..1000 {
            assert!(!verify(id, &[0; 16]), "id {id}");
            assert!(!verify(id, &[0xff; 16]), "id {id}");
        }
    }

    #[test]
    fn words_of_neighbouring_blocks_are_all_distinct() {
        let mut seen = HashSet::new();
        for id in 0..64 {
            for word in filled(id, 8 * 1024).as_chunks::<8>().0 {
                assert!(seen.insert(*word), "a word of block {id} repeats");
            }
        }
    }

    proptest! {
        #[test]
        fn verify_swapped_words_are_refused(
            id: u64,
            words in 2_usize..400,
            first: prop::sample::Index,
            second: prop::sample::Index,
        ) {
            let (first, second) = (first.index(words), second.index(words));
            prop_assume!(first != second);
            let mut buf = filled(id, words * 8);
            for i in 0..8 {
                buf.swap(first * 8 + i, second * 8 + i);
            }
            prop_assert!(!verify(id, &buf));
        }

        #[test]
        fn verify_other_block_is_refused(id: u64, other: u64, len in 8_usize..2000) {
            prop_assume!(id != other);
            prop_assert!(!verify(other, &filled(id, len)));
        }

        #[test]
        fn verify_torn_block_is_refused(id: u64, other: u64, cut in 8_usize..1000) {
            prop_assume!(id != other);
            let mut buf = filled(id, 1016);
            buf[cut..].copy_from_slice(&filled(other, 1016)[cut..]);
            prop_assert!(!verify(id, &buf));
            prop_assert!(!verify(other, &buf));
        }
    }
}
