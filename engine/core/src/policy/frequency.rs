//! How often ids were used of late, also ids of blocks that are not resident: counts up to 15,
//! all halved after every ten uses a block of the capacity.
//!
//! Two forms: exact, a table of every id ever used, and a count-min sketch of 8 to 16 bytes a
//! block of the capacity (after Cormode and Muthukrishnan, 2005), which may answer too much when
//! ids share counters, never too little.
//!
//! **Invariant**: an id that is counted in the exact form stays in its table, so that counting it
//! again takes no memory.

use std::collections::HashMap;

use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::KeyHash;

/// The largest count: four bits.
const COUNT_MAX: u8 = 15;
/// All counts are halved after this many uses for each block of the capacity.
const USES_PER_BLOCK: usize = 10;
/// The counters of a sketch that one use counts in; the smallest of them is the answer.
const ROWS: u32 = 4;
/// The lowest three bits of each counter in a word of sixteen.
const HALVES: u64 = 0x7777_7777_7777_7777;

/// Counts of uses. See the module's text.
pub(super) struct Frequency {
    counts: Counts,
    uses: usize,
    uses_max: usize,
}

enum Counts {
    Exact(HashMap<u64, u8>),
    /// Words of sixteen counters; a power of two of them.
    Sketch(HugeVec<u64>),
}

impl Frequency {
    /// Counts without loss, of every id ever.
    pub(super) fn exact(capacity_blocks: usize) -> Self {
        Self {
            counts: Counts::Exact(HashMap::new()),
            uses: 0,
            uses_max: uses_max(capacity_blocks),
        }
    }

    /// Counts by a sketch that may grow to `blocks_max` words.
    pub(super) fn sketch(blocks_max: u32, capacity_blocks: usize) -> Result<Self, HugeVecError> {
        let words_max = (blocks_max as usize).next_power_of_two();
        let mut frequency = Self {
            counts: Counts::Sketch(HugeVec::with_capacity(words_max)?),
            uses: 0,
            uses_max: 0,
        };
        frequency.set_capacity(capacity_blocks);
        Ok(frequency)
    }

    /// The number of blocks that the counts are for changed. A sketch never gets smaller.
    pub(super) fn set_capacity(&mut self, blocks: usize) {
        self.uses_max = uses_max(blocks);
        if let Counts::Sketch(words) = &mut self.counts {
            let before = words.len();
            let wanted = blocks.max(1).next_power_of_two().min(words.capacity());
            words.grow_to(wanted);
            // A longer table has more bits of the hash in an index: each old word is the one
            // that its ids are counted in for any of the new bits.
            if let Some(mask) = before.checked_sub(1) {
                for index in before..words.len() {
                    words[index] = words[index & mask];
                }
            }
        }
    }

    /// Counts a use of `id`.
    pub(super) fn count(&mut self, id: KeyHash) {
        match &mut self.counts {
            Counts::Exact(counts) => {
                let count = counts.entry(id.0).or_default();
                *count = (*count + 1).min(COUNT_MAX);
            }
            Counts::Sketch(words) => {
                for row in 0..ROWS {
                    let (index, shift) = counter_of(id, row, words.len());
                    if words[index] >> shift & u64::from(COUNT_MAX) < u64::from(COUNT_MAX) {
                        words[index] += 1 << shift;
                    }
                }
            }
        }
        self.uses += 1;
        if self.uses >= self.uses_max {
            self.halve();
        }
    }

    /// How often `id` was used of late.
    pub(super) fn of(&self, id: KeyHash) -> u8 {
        match &self.counts {
            Counts::Exact(counts) => counts.get(&id.0).copied().unwrap_or_default(),
            Counts::Sketch(words) => {
                let counter = |row| {
                    let (index, shift) = counter_of(id, row, words.len());
                    (words[index] >> shift) as u8 & COUNT_MAX
                };
                (0..ROWS).map(counter).min().unwrap_or_default()
            }
        }
    }

    fn halve(&mut self) {
        self.uses /= 2;
        match &mut self.counts {
            Counts::Exact(counts) => counts.values_mut().for_each(|count| *count /= 2),
            Counts::Sketch(words) => words
                .iter_mut()
                .for_each(|word| *word = *word >> 1 & HALVES),
        }
    }

    /// Whether counts are kept without loss.
    pub(super) const fn is_exact(&self) -> bool {
        matches!(self.counts, Counts::Exact(_))
    }

    /// Bytes in use; of the exact table those of its places, as far as they can be known.
    pub(super) fn bytes(&self) -> u64 {
        match &self.counts {
            Counts::Exact(counts) => (counts.capacity() * (size_of::<(u64, u8)>() + 1)) as u64,
            Counts::Sketch(words) => words.bytes(),
        }
    }
}

const fn uses_max(capacity_blocks: usize) -> usize {
    capacity_blocks.saturating_mul(USES_PER_BLOCK)
}

/// The word, and in it the first bit, of the counter of `id` in a row. Rows share words, not
/// counters.
fn counter_of(id: KeyHash, row: u32, words: usize) -> (usize, u32) {
    const SEEDS: [u64; ROWS as usize] = [
        0x9E37_79B9_7F4A_7C15,
        0xC2B2_AE3D_27D4_EB4F,
        0x1656_67B1_9E37_79F9,
        0xD6E8_FEB8_6659_FD93,
    ];
    let mixed = (id.0 ^ id.0 >> 32).wrapping_mul(SEEDS[row as usize]);
    let index = (mixed >> 32) as usize & (words - 1);
    let counter = row * 4 + (mixed >> 30 & 0b11) as u32;
    (index, counter * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(capacity: usize) -> [Frequency; 2] {
        let sketch = Frequency::sketch(1024, capacity).unwrap();
        [Frequency::exact(capacity), sketch]
    }

    fn count(frequency: &mut Frequency, id: u64, times: usize) {
        (0..times).for_each(|_| frequency.count(KeyHash(id)));
    }

    #[test]
    fn frequency_counts_up_to_15_and_halves_after_ten_uses_a_block() {
        for mut frequency in both(4) {
            count(&mut frequency, 1, 5);
            count(&mut frequency, 2, 34);
            assert_eq!(
                (frequency.of(KeyHash(1)), frequency.of(KeyHash(2))),
                (5, 15)
            );
            count(&mut frequency, 2, 1);
            assert_eq!((frequency.of(KeyHash(1)), frequency.of(KeyHash(2))), (2, 7));
            assert_eq!((frequency.uses, frequency.of(KeyHash(3))), (20, 0));
        }
    }

    #[test]
    fn frequency_by_a_sketch_is_never_too_small_and_mostly_exact() {
        let [mut exact, mut sketch] = both(1000);
        for use_number in 0..3000_u64 {
            let id = KeyHash(use_number * use_number % 997);
            exact.count(id);
            sketch.count(id);
        }
        let off = (0..2000).filter(|&id| {
            let (right, answer) = (exact.of(KeyHash(id)), sketch.of(KeyHash(id)));
            assert!(answer >= right, "{answer} of {right}");
            answer > right
        });
        assert!(off.count() < 100);
    }

    #[test]
    fn frequency_by_a_sketch_that_grows_keeps_what_it_counted() {
        let mut sketch = Frequency::sketch(1024, 100).unwrap();
        for id in 0..50 {
            count(&mut sketch, id, 1 + id as usize % 3);
        }
        let before: Vec<u8> = (0..200).map(|id| sketch.of(KeyHash(id))).collect();
        sketch.set_capacity(1000);
        assert!((0..200).all(|id| sketch.of(KeyHash(id)) == before[id as usize]));
    }
}
