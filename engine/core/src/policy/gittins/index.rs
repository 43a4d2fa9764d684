//! What P-GIT has learned: at what ages blocks of a category are used again, and what a block is
//! worth by that.
//!
//! For each category two rows over bins of age: how many blocks came to be that old, and how many
//! were used again then (the counts of a Kaplan-Meier estimate). Their ratio is the chance of a
//! use within the bin; where a category has seen little, the chances of all categories together
//! stand in, scaled to it. A block's worth is its Gittins index (Gittins, "Bandit Processes and
//! Dynamic Allocation Indices", 1979): the most uses for the time held that can be had from its
//! age on, by holding it up to the best age to let it go.
//!
//! Plain arithmetic in the order written, so that the same counts give the same bits anywhere.

use super::super::expected_hits;

/// Count of categories.
pub(super) const CATEGORIES: usize = 30;
/// Count of bins of age.
pub(super) const BINS: usize = 39;

/// Where each bin begins, in milliseconds, and where the last one is taken to end: a second, and
/// a third of an octave more each.
pub(super) const EDGES_MS: [u64; BINS + 1] = [
    0, 1000, 1260, 1587, 2000, 2520, 3175, 4000, 5040, 6350, 8000, 10_079, 12_699, 16_000, 20_159,
    25_398, 32_000, 40_317, 50_797, 64_000, 80_635, 101_594, 128_000, 161_270, 203_187, 256_000,
    322_540, 406_375, 512_000, 645_080, 812_749, 1_024_000, 1_290_159, 1_625_499, 2_048_000,
    2_580_318, 3_250_997, 4_096_000, 5_160_637, 6_501_995,
];

/// Uses and blocks assumed of each bin before any is seen: a chance of one in twenty.
const ASSUMED: (f64, f64) = (0.1, 2.0);
/// How many uses of its own a category needs before its scale counts half.
const SCALE_WEIGHT: f64 = 15.0;
/// How many blocks of its own a bin needs before its chance counts half.
const SHAPE_WEIGHT: f64 = 100.0;
/// Largest chance taken over from all categories, and the largest at all.
const CHANCE_MAX: (f64, f64) = (0.95, 0.999);

/// How the learned state begins when it is saved: a name and the number of its layout.
const MAGIC: &[u8; 8] = b"P-GIT \0\x01";
/// No count comes near this.
const COUNT_MAX: f64 = 1e15;

/// A number for each bin.
type Row = [f64; BINS];

/// Counts of one category, or of all.
#[derive(Clone, Copy)]
struct Counts {
    /// Blocks used again at an age in the bin.
    used: Row,
    /// Blocks that came to be as old as the bin.
    at_risk: Row,
}

const EMPTY: Counts = Counts {
    used: [0.0; BINS],
    at_risk: [0.0; BINS],
};

/// See the module's text.
pub(super) struct Index {
    counts: Box<[Counts; CATEGORIES]>,
    pooled: Counts,
    chances: Box<[Row; CATEGORIES]>,
    worths: Box<[Row; CATEGORIES]>,
}

impl Index {
    /// Nothing learned yet.
    pub(super) fn new() -> Self {
        let mut index = Self {
            counts: Box::new([EMPTY; CATEGORIES]),
            pooled: EMPTY,
            chances: Box::new([[0.0; BINS]; CATEGORIES]),
            worths: Box::new([[0.0; BINS]; CATEGORIES]),
        };
        index.weigh();
        index
    }

    /// A block of `category` was used again at an age in `bin`.
    pub(super) fn use_again(&mut self, category: usize, bin: usize) {
        self.counts[category].used[bin] += 1.0;
        self.pooled.used[bin] += 1.0;
    }

    /// `blocks` of `category` came to be as old as `bin`.
    pub(super) fn age(&mut self, category: usize, bin: usize, blocks: u32) {
        self.counts[category].at_risk[bin] += f64::from(blocks);
        self.pooled.at_risk[bin] += f64::from(blocks);
    }

    /// What was learned so far counts half from here on.
    pub(super) fn halve(&mut self) {
        for counts in self.counts.iter_mut().chain([&mut self.pooled]) {
            let fields = counts.used.iter_mut().chain(&mut counts.at_risk);
            fields.for_each(|count| *count *= 0.5);
        }
    }

    /// What a block of `category` at an age in `bin` is worth, as of the last [`Index::weigh`].
    pub(super) fn worth(&self, category: usize, bin: usize) -> f64 {
        self.worths[category][bin]
    }

    /// Works out anew what blocks are worth.
    pub(super) fn weigh(&mut self) {
        let mut common = [0.0; BINS];
        for (bin, chance) in common.iter_mut().enumerate() {
            *chance = (self.pooled.used[bin] + ASSUMED.0) / (self.pooled.at_risk[bin] + ASSUMED.1);
        }
        let rows = self.chances.iter_mut().zip(self.worths.iter_mut());
        for (counts, (chances, worths)) in self.counts.iter().zip(rows) {
            *chances = counts.chances(&common);
            *worths = best_rates(chances);
        }
    }

    /// The chance that a block of `category` at an age in `bin` is used within `span_ms`, as of
    /// the last [`Index::weigh`].
    pub(super) fn chance_within(&self, category: usize, bin: usize, span_ms: u64) -> f64 {
        let bins = (bin..BINS).map(|bin| {
            let len_ms = milliseconds(EDGES_MS[bin + 1] - EDGES_MS[bin]);
            (self.chances[category][bin], len_ms)
        });
        expected_hits(bins, span_ms)
    }

    /// The learned state as bytes.
    pub(super) fn save(&self) -> Vec<u8> {
        let all = self.counts.iter().chain([&self.pooled]);
        let numbers = all.flat_map(|counts| counts.used.into_iter().chain(counts.at_risk));
        let bytes = numbers.flat_map(f64::to_le_bytes);
        MAGIC.iter().copied().chain(bytes).collect()
    }

    /// The state that [`Index::save`] gave these bytes for; none for any other bytes.
    pub(super) fn of_saved(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.strip_prefix(MAGIC)?.as_chunks::<8>();
        if numbers.len() != (CATEGORIES + 1) * 2 * BINS || !rest.is_empty() {
            return None;
        }
        let mut index = Self::new();
        let mut numbers = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes));
        for counts in index.counts.iter_mut().chain([&mut index.pooled]) {
            for count in counts.used.iter_mut().chain(&mut counts.at_risk) {
                *count = numbers
                    .next()
                    .filter(|count| (0.0..=COUNT_MAX).contains(count))?;
            }
        }
        index.weigh();
        Some(index)
    }
}

impl Counts {
    /// The chance of a use within each bin; `common` is that of all categories.
    fn chances(&self, common: &Row) -> Row {
        let (mut used, mut expected) = (0.0, 0.0);
        for (bin, chance) in common.iter().enumerate() {
            used += self.used[bin];
            expected += self.at_risk[bin] * chance;
        }
        let scale = (used + SCALE_WEIGHT) / (expected + SCALE_WEIGHT);
        let mut chances = [0.0; BINS];
        for (bin, chance) in chances.iter_mut().enumerate() {
            let assumed = SHAPE_WEIGHT * CHANCE_MAX.0.min(scale * common[bin]);
            let at_risk = smoothed(&self.at_risk, bin) + SHAPE_WEIGHT;
            *chance = CHANCE_MAX
                .1
                .min((smoothed(&self.used, bin) + assumed) / at_risk);
        }
        chances
    }
}

/// A number with half of each of its neighbours.
fn smoothed(row: &Row, bin: usize) -> f64 {
    let mut sum = row[bin];
    if bin > 0 {
        sum += 0.5 * row[bin - 1];
    }
    if bin + 1 < BINS {
        sum += 0.5 * row[bin + 1];
    }
    sum
}

/// For each bin the most uses for the milliseconds held, over all bins to hold a block up to.
fn best_rates(chances: &Row) -> Row {
    let mut lens_ms = [0.0; BINS];
    for (bin, len_ms) in lens_ms.iter_mut().enumerate() {
        *len_ms = milliseconds(EDGES_MS[bin + 1] - EDGES_MS[bin]);
    }
    let mut rates = [0.0; BINS];
    for (begin, rate) in rates.iter_mut().enumerate() {
        let (mut uses, mut held_ms, mut left) = (0.0, 0.0, 1.0);
        for bin in begin..BINS {
            let chance = chances[bin];
            uses += left * chance;
            held_ms += left * lens_ms[bin] * (1.0 - 0.5 * chance);
            left *= 1.0 - chance;
            *rate = f64::max(*rate, uses / held_ms);
        }
    }
    rates
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the bins are shorter than 2^53 milliseconds"
)]
const fn milliseconds(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_thirds_of_octaves_from_a_second_on() {
        for (bin, &edge) in EDGES_MS.iter().enumerate().skip(1) {
            let expected = 1000.0 * f64::powf(2.0, (bin as f64 - 1.0) / 3.0);
            assert!((edge as f64 - expected).abs() <= 0.5, "edge {bin}");
        }
    }

    /// A hundred blocks a category: those of 3 are used at an age in bin 10, those of 4 never.
    fn learned() -> Index {
        let mut index = Index::new();
        for bin in 0..=10 {
            index.age(3, bin, 100);
        }
        (0..BINS).for_each(|bin| index.age(4, bin, 100));
        (0..100).for_each(|_| index.use_again(3, 10));
        index.weigh();
        index
    }

    #[test]
    fn block_is_worth_more_the_nearer_its_use_is() {
        let index = learned();
        let worths: Vec<f64> = (0..10).map(|bin| index.worth(3, bin)).collect();
        assert!(worths.is_sorted_by(|a, b| a < b), "{worths:?}");
        assert!((0..BINS).all(|bin| index.worth(4, bin) < index.worth(3, 0)));
    }

    #[test]
    fn first_worths_fall_with_age_and_are_equal_in_all_categories() {
        let index = Index::new();
        for category in 0..CATEGORIES {
            assert_eq!(index.worths[category], index.worths[0]);
        }
        assert!(index.worth(0, 0) > index.worth(0, BINS - 1));
        assert!(index.worth(0, BINS - 1) > 0.0);
    }

    #[test]
    fn saved_state_is_read_again_and_foreign_bytes_are_not() {
        let index = learned();
        let saved = index.save();
        let read = Index::of_saved(&saved).unwrap();
        assert_eq!(read.save(), saved);
        assert_eq!(read.worths, index.worths);
        assert!(Index::of_saved(&[]).is_none());
        assert!(Index::of_saved(&saved[1..]).is_none());
        assert!(Index::of_saved(&saved[..saved.len() - 1]).is_none());
        assert!(Index::of_saved(&[&saved[..], &[0]].concat()).is_none());
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let mut bytes = saved.clone();
            bytes[8..16].copy_from_slice(&wrong.to_le_bytes());
            assert!(Index::of_saved(&bytes).is_none(), "{wrong}");
        }
    }
}
