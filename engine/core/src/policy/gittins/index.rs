//! What is learned: at what ages blocks of a category are used again, and what a block is
//! worth by that.
//!
//! For each category two rows over bins of age: how many blocks came to be that old, and how many
//! were used again then (the counts of a Kaplan-Meier estimate). Their ratio is the chance of a
//! use within the bin; where a category has seen little, the chances of all categories together
//! stand in, scaled to it. A block's worth is its Gittins index (Gittins, "Bandit Processes and
//! Dynamic Allocation Indices", 1979): the most uses for the time held that can be had from its
//! age on, by holding it up to the best age to let it go.
//!
//! [`Prior`] says what is assumed before anything is seen: the reference takes all categories for
//! equal, the default policy begins with what is common to loads, and lets a category that has
//! seen little borrow from the categories like it before it borrows from all.
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

/// How many blocks of each bin are assumed to have been seen by the default, and the uses of a
/// thousand of these: few at once, most around two minutes, ever fewer then. Gaps of conversations
/// of people and of agents have this in common, at different scales.
const ASSUMED_SEEN: f64 = 200.0;
const ASSUMED_USED_OF_1000: Row = [
    5.0, 5.0, 5.0, 5.0, 10.0, 10.0, 10.0, 20.0, 20.0, 20.0, 30.0, 30.0, 30.0, 40.0, 40.0, 50.0,
    60.0, 70.0, 80.0, 90.0, 100.0, 100.0, 100.0, 100.0, 100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 50.0,
    40.0, 40.0, 30.0, 30.0, 30.0, 20.0, 20.0, 20.0,
];
/// How often the default expects blocks of each category to be used, beside all of its class: the
/// last block hardly ever; shared ones the more the more they were; conversations the more turns
/// they had and the less a turn brings.
const ASSUMED_SCALES: [f64; CATEGORIES] = [
    0.1, 1.3, 1.5, 2.0, 2.5, 3.0, 1.0, 1.0, 1.0, 0.8, 0.7, 0.6, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 1.3,
    1.3, 0.9, 0.7, 0.5, 0.5, 1.7, 1.5, 1.4, 1.0, 0.5, 0.4,
];
/// How many blocks of its own a bin of a class needs before its chance counts half.
const CLASS_WEIGHT: f64 = 300.0;
/// The share by which counts of a category grow before its worths are worked out again, where every
/// shard learns from all blocks.
const NEWS_SHARE: f64 = 1.0 / 64.0;
/// Classes of categories: last blocks, shared blocks, all others.
const CLASSES: usize = 3;

const fn class_of(category: usize) -> usize {
    match category {
        0 => 0,
        1..=5 => 1,
        _ => 2,
    }
}

/// The age by which this share of the uses seen have come is the horizon.
const HORIZON_SHARE: f64 = 0.95;

/// How the learned state begins when it is saved: a name and the number of its layout.
const MAGIC: &[u8; 8] = b"P-GIT \0\x01";
const MAGIC_DEFAULT: &[u8; 8] = b"default\x01";
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

/// What is assumed before anything is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prior {
    /// That of P-GIT.
    Reference,
    /// That of the default policy.
    Common,
}

/// See the module's text.
pub(super) struct Index {
    prior: Prior,
    counts: Box<[Counts; CATEGORIES]>,
    /// The sums of the categories of each class, and of all.
    classes: [Counts; CLASSES],
    pooled: Counts,
    chances: Box<[Row; CATEGORIES]>,
    worths: Box<[Row; CATEGORIES]>,
    /// Chances of each class, and whether a category has learned since its worths were worked out.
    class_chances: [Row; CLASSES],
    has_learned: [bool; CATEGORIES],
    /// By category: blocks told of since its worths were worked out, and before that.
    news: [f64; CATEGORIES],
    seen: [f64; CATEGORIES],
    /// The share of what was seen that news must be before worths are worked out again.
    news_share: f64,
    /// The category to look at next.
    next: usize,
    horizon_ms: u64,
}

impl Index {
    /// Nothing learned yet.
    pub(super) fn new(prior: Prior) -> Self {
        let mut index = Self {
            prior,
            counts: Box::new([EMPTY; CATEGORIES]),
            classes: [EMPTY; CLASSES],
            pooled: EMPTY,
            chances: Box::new([[0.0; BINS]; CATEGORIES]),
            worths: Box::new([[0.0; BINS]; CATEGORIES]),
            class_chances: [[0.0; BINS]; CLASSES],
            has_learned: [false; CATEGORIES],
            news: [0.0; CATEGORIES],
            seen: [0.0; CATEGORIES],
            news_share: 0.0,
            next: 0,
            horizon_ms: EDGES_MS[1],
        };
        index.weigh();
        index
    }

    /// The same for a shard among several that all learn from whole chains, each for itself: worths
    /// are worked out again when a category has learned enough, early often and later seldom.
    pub(super) fn of_chains(prior: Prior) -> Self {
        Self {
            news_share: NEWS_SHARE,
            ..Self::new(prior)
        }
    }

    /// The same, working worths out as often as `other` does.
    pub(super) fn learning_as(self, other: &Self) -> Self {
        Self {
            news_share: other.news_share,
            ..self
        }
    }

    /// `blocks` of `category` were used again at an age in `bin`.
    pub(super) fn use_again(&mut self, category: usize, bin: usize, blocks: u32) {
        self.counts[category].used[bin] += f64::from(blocks);
        self.classes[class_of(category)].used[bin] += f64::from(blocks);
        self.pooled.used[bin] += f64::from(blocks);
        self.learn(category, blocks);
    }

    /// `blocks` of `category` came to be as old as `bin`.
    pub(super) fn age(&mut self, category: usize, bin: usize, blocks: u32) {
        self.counts[category].at_risk[bin] += f64::from(blocks);
        self.classes[class_of(category)].at_risk[bin] += f64::from(blocks);
        self.pooled.at_risk[bin] += f64::from(blocks);
        self.learn(category, blocks);
    }

    fn learn(&mut self, category: usize, blocks: u32) {
        self.news[category] += f64::from(blocks);
        self.has_learned[category] = self.news[category] >= self.news_share * self.seen[category];
    }

    /// What was learned so far counts half from here on.
    pub(super) fn halve(&mut self) {
        self.seen.iter_mut().for_each(|seen| *seen *= 0.5);
        let sums = self.classes.iter_mut().chain([&mut self.pooled]);
        for counts in self.counts.iter_mut().chain(sums) {
            let fields = counts.used.iter_mut().chain(&mut counts.at_risk);
            fields.for_each(|count| *count *= 0.5);
        }
    }

    /// What a block of `category` at an age in `bin` is worth, as of the last [`Index::weigh`].
    pub(super) fn worth(&self, category: usize, bin: usize) -> f64 {
        self.worths[category][bin]
    }

    /// The chance of a use within each bin of age from `bin` on, and the bin's length in
    /// milliseconds, for blocks of `category`.
    pub(super) fn prospect(&self, category: usize, bin: usize) -> impl Iterator<Item = (f64, f64)> {
        let chances = self.chances[category].into_iter();
        let lens_ms = EDGES_MS
            .windows(2)
            .map(|ends| milliseconds(ends[1] - ends[0]));
        chances.zip(lens_ms).skip(bin)
    }

    /// The age by which nearly all uses come that come at all, in milliseconds.
    pub(super) const fn horizon_ms(&self) -> u64 {
        self.horizon_ms
    }

    /// Works out anew what all blocks are worth.
    pub(super) fn weigh(&mut self) {
        self.weigh_classes();
        (0..CATEGORIES).for_each(|category| self.weigh_category(category));
    }

    /// Works out anew what all blocks of one category are worth: the next that has learned
    /// something. It, if there is one.
    pub(super) fn weigh_next(&mut self) -> Option<usize> {
        let in_turn = (0..CATEGORIES).map(|step| (self.next + step) % CATEGORIES);
        let category = in_turn.into_iter().find(|at| self.has_learned[*at])?;
        if category < self.next {
            self.weigh_classes();
        }
        self.next = category + 1;
        self.weigh_category(category);
        Some(category)
    }

    fn weigh_category(&mut self, category: usize) {
        let counts = &self.counts[category];
        let class = class_of(category);
        self.has_learned[category] = false;
        self.seen[category] += std::mem::take(&mut self.news[category]);
        let (chances, rates) = match self.prior {
            Prior::Reference => {
                let chances = counts.chances(&self.class_chances[class], 1.0);
                (chances, best_rates(&chances))
            }
            Prior::Common => {
                let scale = ASSUMED_SCALES[category];
                let chances = counts.chances(&self.class_chances[class], scale);
                (chances, pooled_rates(&chances))
            }
        };
        self.chances[category] = chances;
        self.worths[category] = rates;
    }

    /// Works out the chances that categories borrow from.
    fn weigh_classes(&mut self) {
        let mut common = [0.0; BINS];
        for (bin, chance) in common.iter_mut().enumerate() {
            let (used, seen) = match self.prior {
                Prior::Reference => ASSUMED,
                Prior::Common => (
                    ASSUMED_SEEN * 1e-3 * ASSUMED_USED_OF_1000[bin],
                    ASSUMED_SEEN,
                ),
            };
            *chance = (self.pooled.used[bin] + used) / (self.pooled.at_risk[bin] + seen);
        }
        if self.prior == Prior::Reference {
            self.class_chances = [common; CLASSES];
            return;
        }
        for (class, chances) in self.class_chances.iter_mut().enumerate() {
            let sum = &self.classes[class];
            let scale = sum.scale(&common, 1.0);
            for (bin, chance) in chances.iter_mut().enumerate() {
                let assumed = CLASS_WEIGHT * CHANCE_MAX.0.min(scale * common[bin]);
                *chance = (sum.used[bin] + assumed) / (sum.at_risk[bin] + CLASS_WEIGHT);
            }
        }
        self.horizon_ms = self.pooled.age_of_uses(HORIZON_SHARE);
    }

    const fn magic(prior: Prior) -> &'static [u8; 8] {
        match prior {
            Prior::Reference => MAGIC,
            Prior::Common => MAGIC_DEFAULT,
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
        let magic = Self::magic(self.prior).iter();
        magic.copied().chain(bytes).collect()
    }

    /// The state that [`Index::save`] gave these bytes for; none for any other bytes.
    pub(super) fn of_saved(prior: Prior, bytes: &[u8]) -> Option<Self> {
        let numbers = bytes.strip_prefix(Self::magic(prior))?;
        let (numbers, rest) = numbers.as_chunks::<8>();
        if numbers.len() != (CATEGORIES + 1) * 2 * BINS || !rest.is_empty() {
            return None;
        }
        let mut index = Self::new(prior);
        let mut numbers = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes));
        for counts in index.counts.iter_mut().chain([&mut index.pooled]) {
            for count in counts.used.iter_mut().chain(&mut counts.at_risk) {
                *count = numbers
                    .next()
                    .filter(|count| (0.0..=COUNT_MAX).contains(count))?;
            }
        }
        for (category, counts) in index.counts.iter().enumerate() {
            index.classes[class_of(category)].add(counts);
        }
        index.weigh();
        Some(index)
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        for bin in 0..BINS {
            self.used[bin] += other.used[bin];
            self.at_risk[bin] += other.at_risk[bin];
        }
    }

    /// How many times as often blocks were used as `common` has it; `assumed` at first.
    fn scale(&self, common: &Row, assumed: f64) -> f64 {
        let (mut used, mut expected) = (0.0, 0.0);
        for (bin, chance) in common.iter().enumerate() {
            used += self.used[bin];
            expected += self.at_risk[bin] * chance;
        }
        (used + SCALE_WEIGHT * assumed) / (expected + SCALE_WEIGHT)
    }

    /// The age by which `share` of the uses came: where the bin ends in which they did.
    fn age_of_uses(&self, share: f64) -> u64 {
        let all: f64 = self.used.iter().sum();
        let mut sum = 0.0;
        let mut bins = self.used.iter();
        let bin = bins.position(|used| {
            sum += used;
            sum >= share * all
        });
        EDGES_MS[bin.unwrap_or(0) + 1]
    }

    /// The chance of a use within each bin. `common` is that of a class, or of all, and
    /// `assumed` how many times that is to be expected.
    fn chances(&self, common: &Row, assumed: f64) -> Row {
        let scale = self.scale(common, assumed);
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

/// A span of ages over which a block is best held to the end or not at all: the uses won and the
/// milliseconds held by one that enters it, and the chance that it leaves it unused.
#[derive(Clone, Copy)]
struct Span {
    uses: f64,
    held_ms: f64,
    left: f64,
}

/// As [`best_rates`], but for rounding, in one pass from the last age on: a span takes in the one
/// after it while that has the better rate.
fn pooled_rates(chances: &Row) -> Row {
    let mut rates = [0.0; BINS];
    let mut later: [Span; BINS] = [Span {
        uses: 0.0,
        held_ms: 0.0,
        left: 1.0,
    }; BINS];
    let mut count = 0;
    for (bin, &chance) in chances.iter().enumerate().rev() {
        let len_ms = milliseconds(EDGES_MS[bin + 1] - EDGES_MS[bin]);
        let mut span = Span {
            uses: chance,
            held_ms: len_ms * (1.0 - 0.5 * chance),
            left: 1.0 - chance,
        };
        while count > 0
            && later[count - 1].uses * span.held_ms > span.uses * later[count - 1].held_ms
        {
            count -= 1;
            let next = later[count];
            span.uses += span.left * next.uses;
            span.held_ms += span.left * next.held_ms;
            span.left *= next.left;
        }
        rates[bin] = span.uses / span.held_ms;
        later[count] = span;
        count += 1;
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
    fn learned(prior: Prior) -> Index {
        let mut index = Index::new(prior);
        for bin in 0..=10 {
            index.age(3, bin, 100);
        }
        (0..BINS).for_each(|bin| index.age(4, bin, 100));
        index.use_again(3, 10, 100);
        index.weigh();
        index
    }

    #[test]
    fn block_is_worth_more_the_nearer_its_use_is() {
        for prior in [Prior::Reference, Prior::Common] {
            block_is_worth_more(&learned(prior));
        }
    }

    fn block_is_worth_more(index: &Index) {
        let worths: Vec<f64> = (0..10).map(|bin| index.worth(3, bin)).collect();
        assert!(worths.is_sorted_by(|a, b| a < b), "{worths:?}");
        assert!((0..BINS).all(|bin| index.worth(4, bin) < index.worth(3, 0)));
    }

    #[test]
    fn first_worths_fall_with_age_and_are_equal_in_all_categories() {
        let index = Index::new(Prior::Reference);
        for category in 0..CATEGORIES {
            assert_eq!(index.worths[category], index.worths[0]);
        }
        assert!(index.worth(0, 0) > index.worth(0, BINS - 1));
        assert!(index.worth(0, BINS - 1) > 0.0);
    }

    #[test]
    fn rates_in_one_pass_are_the_best_of_all_ages() {
        let mut random = 1_u64;
        for _ in 0..200 {
            let chances: Row = std::array::from_fn(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let share = (random >> 40) as f64 / f64::from(1 << 24);
                0.999 * share * share * share
            });
            for (rate, best) in pooled_rates(&chances).into_iter().zip(best_rates(&chances)) {
                assert!((rate - best).abs() <= 1e-12 * best, "{rate} {best}");
            }
        }
    }

    #[test]
    fn categories_that_have_learned_are_weighed_in_turn_and_as_all_at_once() {
        let mut index = Index::new(Prior::Common);
        for category in [4, 3, 20] {
            index.age(category, 0, 50);
            index.use_again(category, 0, 20);
        }
        let weighed: Vec<_> = std::iter::from_fn(|| index.weigh_next()).collect();
        assert_eq!(weighed, [3, 4, 20]);
        index.use_again(3, 1, 1);
        assert_eq!(index.weigh_next(), Some(3));
        let in_turn = index.worths[3];
        index.weigh();
        assert_eq!(in_turn, index.worths[3]);
    }

    #[test]
    fn saved_state_is_read_again_and_foreign_bytes_are_not() {
        saved_state_is_read(Prior::Reference);
        saved_state_is_read(Prior::Common);
    }

    fn saved_state_is_read(prior: Prior) {
        let index = learned(prior);
        let saved = index.save();
        let read = Index::of_saved(prior, &saved).unwrap();
        assert_eq!(read.save(), saved);
        assert_eq!(read.worths, index.worths);
        assert!(Index::of_saved(prior, &[]).is_none());
        assert!(Index::of_saved(prior, &saved[1..]).is_none());
        assert!(Index::of_saved(prior, &saved[..saved.len() - 1]).is_none());
        assert!(Index::of_saved(prior, &[&saved[..], &[0]].concat()).is_none());
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let mut bytes = saved.clone();
            bytes[8..16].copy_from_slice(&wrong.to_le_bytes());
            assert!(Index::of_saved(prior, &bytes).is_none(), "{wrong}");
        }
    }
}
