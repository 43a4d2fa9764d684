//! What is worth a write to the tier below: one rule for blocks that leave DRAM and for blocks in
//! a segment that is about to be reclaimed.
//!
//! The tier below is a log. Whatever is written stays for about one turn of it and then has to be
//! written again or goes, and each write shortens the turn for all that is there. So a write is
//! worth the hits that are expected of the block within one turn, and has to win more than
//!
//! - the price of a write, in hits; dearer by `1 / (1 - kept)` when a share `kept` of each segment
//!   is written again, since that many writes make room for one block, and
//! - what the same room would hit otherwise: the mean worth of the blocks that were let go last.
//!
//! A policy tells what it expects; this file counts and compares.
//!
//! **Invariants**
//! - The threshold is finite, at least the price and at most [`THRESHOLD_MAX`].
//! - The turn only shortens by writes: while nothing is written it grows with the clock, and with
//!   it the worth of every block, so that the rule cannot lock itself out.

/// Hits that a written block has to win at least.
///
/// Not tuned on a trace: a drive of 100 a terabyte that takes one write of all of it a day for
/// five years costs 0.05 a terabyte written; a block of 512 tokens of a large model (160 MiB) costs
/// 0.9e-5 to write, and 48 ms of eight GPUs at 1.50 an hour each, 16e-5, to compute again. That
/// is a twentieth. Twice or half of it moves hits by a few percent (docs/tiering.md).
pub const WRITE_PRICE: f64 = 0.05;

/// Nothing has to be more worth than this: a load that hits most of what it wrote must not keep
/// all new blocks out.
const THRESHOLD_MAX: f64 = 0.6;

/// Parts of a turn between whose ends the clock is noted.
const MARKS: usize = 64;

/// For how long writes at the rate of the budget can be saved up, in milliseconds.
const BUDGET_SPAN_MS: u64 = 60_000;

/// A share of the tier's blocks: over how many of those that come up at reclaim means are taken.
const MEAN_DENOMINATOR: usize = 8;

/// The price of a write, in hits, and how it rises as a budget of writes is used up.
#[derive(Clone, Copy, Debug)]
pub struct WritePrice {
    base: f64,
    /// Writes a millisecond, and those that were not paid off by time yet.
    budget_per_ms: f64,
    debt: f64,
}

impl Default for WritePrice {
    fn default() -> Self {
        Self {
            base: WRITE_PRICE,
            budget_per_ms: 0.0,
            debt: 0.0,
        }
    }
}

impl WritePrice {
    /// The same with another price, in hits a write; one that is no number from 0 to 1 counts as
    /// the nearest that is.
    #[must_use]
    pub fn with_base(mut self, base: f64) -> Self {
        self.base = if base.is_nan() {
            WRITE_PRICE
        } else {
            base.clamp(0.0, 1.0)
        };
        self
    }

    /// The same with a budget of writes a second; 0 for none. The price rises as it is used up,
    /// to a whole hit, so that what is written is what is worth most.
    #[must_use]
    pub fn with_budget(mut self, writes_per_second: f64) -> Self {
        let sound = writes_per_second.is_finite() && writes_per_second > 0.0;
        self.budget_per_ms = if sound { writes_per_second / 1e3 } else { 0.0 };
        self
    }

    /// What a write costs now.
    #[must_use]
    pub fn now(&self) -> f64 {
        if self.budget_per_ms == 0.0 {
            return self.base;
        }
        let used = self.debt / (self.budget_per_ms * count(BUDGET_SPAN_MS));
        self.base + (1.0 - self.base) * used.min(1.0)
    }

    /// A block was written.
    pub fn pay(&mut self) {
        self.debt += 1.0;
    }

    /// Time passed.
    pub fn pass(&mut self, ms: u64) {
        self.debt = (self.debt - count(ms) * self.budget_per_ms).max(0.0);
    }
}

/// See the module's text. Times are the clock of requests, in milliseconds.
#[derive(Clone, Debug)]
pub struct BelowRule {
    price: WritePrice,
    blocks: u64,
    now_ms: u64,
    began_ms: Option<u64>,
    writes: u64,
    /// When the last writes ended each a part of a turn; a ring.
    marks_ms: [u64; MARKS],
    /// Share of the blocks at reclaim that were worth a second write.
    kept: f64,
    /// Mean worth of those that were not.
    idle: f64,
    gain: f64,
}

impl BelowRule {
    /// A rule for a tier that holds `blocks` blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        let over = (blocks / MEAN_DENOMINATOR).max(MARKS);
        Self {
            price: WritePrice::default(),
            blocks: (blocks as u64).max(1),
            now_ms: 0,
            began_ms: None,
            writes: 0,
            marks_ms: [0; MARKS],
            kept: 0.0,
            idle: 0.0,
            gain: 1.0 / count(over as u64),
        }
    }

    /// The same with another price of a write; second writes are paid as well.
    #[must_use]
    pub const fn with_price(mut self, price: WritePrice) -> Self {
        self.price = price;
        self
    }

    /// The clock of requests is at `now_ms`; a clock that goes back stands still.
    pub fn advance(&mut self, now_ms: u64) {
        self.began_ms.get_or_insert(now_ms);
        let passed = now_ms.saturating_sub(self.now_ms);
        self.now_ms = self.now_ms.max(now_ms);
        self.price.pass(passed);
    }

    /// How long a block written now is expected to stay, in milliseconds: the time of the last
    /// turn of the log, or what it would take at the rate so far.
    #[must_use]
    pub fn stay_ms(&self) -> u64 {
        let (part, began) = (self.part(), self.began_ms.unwrap_or(self.now_ms));
        let ended = self.writes / part;
        if ended == 0 {
            return u64::MAX;
        }
        if ended >= MARKS as u64 {
            // The oldest of the ring: that behind the newest.
            let oldest = self.marks_ms[(ended as usize + 1) % MARKS];
            return self.now_ms.saturating_sub(oldest).max(1);
        }
        let passed = self.now_ms.saturating_sub(began).max(1);
        let turn = u128::from(part) * MARKS as u128;
        u64::try_from(u128::from(passed) * turn / u128::from(self.writes)).unwrap_or(u64::MAX)
    }

    /// What a write has to win, in expected hits within [`BelowRule::stay_ms`].
    #[must_use]
    pub fn threshold(&self) -> f64 {
        // One that is kept has been read back and is written: nine of ten at most.
        let price = self.price.now();
        let dearer = price / (1.0 - self.kept.min(0.9));
        (dearer + self.idle).min(THRESHOLD_MAX).max(price)
    }

    /// Whether a block that leaves DRAM is to be written. `worth` is the hits that are expected of
    /// it within [`BelowRule::stay_ms`].
    pub fn admit(&mut self, worth: f64) -> bool {
        let admitted = worth >= self.threshold();
        if admitted {
            self.count_write();
        }
        admitted
    }

    /// Whether a block whose segment is reclaimed is to be written again. Every block that comes
    /// up there has to be shown: the rule learns what room is worth from those that are let go.
    pub fn keep(&mut self, worth: f64) -> bool {
        let kept = worth >= self.threshold();
        let share = if kept { 1.0 } else { 0.0 };
        self.kept += self.gain * (share - self.kept);
        if kept {
            self.count_write();
        } else {
            self.idle += self.gain * (worth.max(0.0) - self.idle);
        }
        kept
    }

    fn count_write(&mut self) {
        self.price.pay();
        self.writes += 1;
        let part = self.part();
        if self.writes.is_multiple_of(part) {
            let at = (self.writes / part) as usize % MARKS;
            self.marks_ms[at] = self.now_ms;
        }
    }

    /// Writes in a part of a turn.
    const fn part(&self) -> u64 {
        self.blocks.div_ceil(MARKS as u64)
    }
}

/// Probability that a block is used within the next `stay_ms`: the worth of a write, for
/// [`BelowRule::admit`] and [`BelowRule::keep`].
///
/// `bins` are the spans of age that lie before it, from the one it is in: the probability of a use
/// in that span when there was none before, and the span's length in milliseconds. Use is taken to
/// be even within a span, and the block to be at the start of its own.
#[must_use]
pub fn expected_hits(bins: impl IntoIterator<Item = (f64, f64)>, stay_ms: u64) -> f64 {
    let (mut unused, mut left_ms) = (1.0, count(stay_ms));
    for (probability, span_ms) in bins {
        if left_ms <= 0.0 {
            break;
        }
        let share = if span_ms > left_ms {
            left_ms / span_ms
        } else {
            1.0
        };
        unused *= 1.0 - probability * share;
        left_ms -= span_ms;
    }
    1.0 - unused
}

#[expect(clippy::cast_precision_loss, reason = "a mean needs no last bit")]
const fn count(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes `count` blocks of full worth, one a millisecond.
    fn write(rule: &mut BelowRule, count: u64) {
        for _ in 0..count {
            rule.advance(rule.now_ms + 1);
            assert!(rule.admit(1.0));
        }
    }

    #[test]
    fn threshold_of_a_new_rule_is_the_price() {
        let rule = BelowRule::new(1000);
        assert!((rule.threshold() - WRITE_PRICE).abs() < 1e-12);
        assert_eq!(rule.stay_ms(), u64::MAX);
    }

    #[test]
    fn stay_is_the_time_of_a_turn() {
        let mut rule = BelowRule::new(6400);
        rule.advance(1_000_000);
        write(&mut rule, 3200);
        assert_eq!(rule.stay_ms(), 6400, "half a turn at the rate so far");
        write(&mut rule, 64_000);
        let stay = rule.stay_ms();
        assert!((6200..=6400).contains(&stay), "{stay} by the marks");
        rule.advance(rule.now_ms + 100_000);
        assert!(
            rule.stay_ms() > 100_000,
            "it grows while nothing is written"
        );
    }

    #[test]
    fn keep_of_much_makes_writes_dearer() {
        let mut rule = BelowRule::new(800);
        for at in 0..10_000 {
            // Two of three are worth it, and those let go are worth nothing.
            rule.keep(if at % 3 == 0 { 0.0 } else { 1.0 });
        }
        let threshold = rule.threshold();
        assert!((threshold - 3.0 * WRITE_PRICE).abs() < 0.01, "{threshold}");
    }

    #[test]
    fn keep_takes_what_was_let_go_for_the_worth_of_room() {
        let mut rule = BelowRule::new(800);
        for _ in 0..10_000 {
            rule.keep(0.04);
        }
        let threshold = rule.threshold();
        assert!((threshold - 0.04 - WRITE_PRICE).abs() < 1e-6, "{threshold}");
        assert!(!rule.admit(0.08));
        assert!(rule.admit(0.1));
    }

    #[test]
    fn budget_bounds_writes_and_takes_the_best() {
        let mut rule =
            BelowRule::new(1_000_000).with_price(WritePrice::default().with_budget(10.0));
        let (mut good, mut poor) = (0, 0);
        for second in 0..3600_u64 {
            rule.advance(second * 1000);
            for _ in 0..8 {
                good += u64::from(rule.admit(0.9));
                poor += u64::from(rule.admit(0.2));
            }
        }
        assert!(good > 28_000, "{good} of 28,800");
        // What was saved up is used once.
        assert!(good + poor <= 36_000 + 600, "{good} and {poor}");
    }

    #[test]
    fn expected_hits_of_half_a_span_is_half_its_probability() {
        let bins = [(0.5, 1000.0), (0.5, 1000.0)];
        assert!((expected_hits(bins, 500) - 0.25).abs() < 1e-12);
        assert!((expected_hits(bins, 2000) - 0.75).abs() < 1e-12);
        assert!((expected_hits(bins, u64::MAX) - 0.75).abs() < 1e-12);
        assert!(expected_hits(bins, 0).abs() < 1e-12);
    }

    proptest! {
        /// Whatever it is told, the threshold stays in its bounds, what is worth more is never
        /// refused where what is worth less is taken, and nothing panics.
        #[test]
        fn rule_stays_in_its_bounds(
            blocks in 0_usize..5000,
            price in prop_oneof![Just(f64::NAN), -1.0..2.0],
            budget in prop_oneof![Just(f64::INFINITY), Just(0.0), 0.0..1e6],
            calls in prop::collection::vec((any::<bool>(), -0.5..1.5, 0_u64..100_000), 0..400),
        ) {
            let mut rule = BelowRule::new(blocks)
                .with_price(WritePrice::default().with_base(price).with_budget(budget));
            let mut clock = 0_u64;
            for (reclaimed, worth, step) in calls {
                // Now and then the clock goes back.
                clock = if step % 7 == 0 { clock / 2 } else { clock + step };
                rule.advance(clock);
                let threshold = rule.threshold();
                prop_assert!((0.0..=1.0).contains(&threshold), "{threshold}");
                prop_assert!(rule.stay_ms() > 0);
                let taken = if reclaimed { rule.keep(worth) } else { rule.admit(worth) };
                prop_assert_eq!(taken, worth >= threshold);
            }
        }
    }
}
