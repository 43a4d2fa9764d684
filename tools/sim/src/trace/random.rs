//! Owns the random draws of the synthetic trace, and of what else must be the same in each run.
//!
//! **Invariants**
//! - The same seed gives the same draws on every machine and toolchain: only additions,
//!   multiplications, divisions and bit operations are used, which IEEE 754 fixes to the last bit.
//!   The logarithm and exponential of the standard library may differ between platforms.

/// The splitmix64 generator and the distributions drawn from it.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform above 0 and up to 1.
    pub(super) fn unit(&mut self) -> f64 {
        /// 2^53: the steps of a float below 1.
        const STEPS: f64 = 9_007_199_254_740_992.0;
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit a float exactly")]
        let step = (self.bits() >> 11) as f64;
        (step + 1.0) / STEPS
    }

    /// Exponential: the gaps of a Poisson process.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * ln(self.unit())
    }

    /// Log-normal with the given median; `sigma` is the deviation of its logarithm.
    pub(super) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        median * exp(sigma * self.normal())
    }

    /// True with probability `probability`.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() <= probability
    }

    /// Close to standard normal, never beyond 6: twelve uniform draws have a variance of 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// Natural logarithm of a positive normal number, to about 1e-13.
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    const ONE: u64 = 1023 << 52;
    let bits = x.to_bits();
    #[expect(clippy::cast_precision_loss, reason = "an exponent has 11 bits")]
    let exponent = (bits >> 52) as f64 - 1023.0;
    let mantissa = f64::from_bits((bits & MANTISSA) | ONE);
    // ln m = 2 artanh((m - 1) / (m + 1)); the argument is below 1/3, so 14 terms reach 1e-14.
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series = (0..14)
        .rev()
        .fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    exponent * std::f64::consts::LN_2 + 2.0 * ratio * series
}

/// Exponential function, to about 1e-12 for arguments of -30 to 30.
fn exp(x: f64) -> f64 {
    // exp(x) = exp(x / 1024)^1024: ten squarings of a series that needs few terms.
    let small = x / 1024.0;
    let series = (1..=8)
        .rev()
        .fold(1.0, |sum, k| 1.0 + sum * small / f64::from(k));
    (0..10).fold(series, |power, _| power * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_known_seed_match_published_sequence() {
        // First outputs of splitmix64 for seed 1234567, from the reference implementation.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
        assert_eq!(random.bits(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn ln_and_exp_agree_with_the_standard_library() {
        for i in 1..4000 {
            let x = f64::from(i) / 1000.0;
            assert!((ln(x) - x.ln()).abs() < 1e-12, "ln {x}");
            let y = f64::from(i) / 100.0 - 20.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-11, "exp {y}");
        }
        assert!(ln(f64::MIN_POSITIVE).is_finite());
    }

    #[test]
    fn draws_of_each_distribution_have_its_mean_and_median() {
        let mut random = Random::new(1);
        let count = 20_000;
        let mean = (0..count).map(|_| random.exponential(10.0)).sum::<f64>() / f64::from(count);
        assert!((9.7..10.3).contains(&mean), "mean {mean}");
        let below = (0..count)
            .filter(|_| random.log_normal(100.0, 1.0) < 100.0)
            .count();
        assert!(
            (9_700..10_300).contains(&below),
            "below the median: {below}"
        );
        let hits = (0..count).filter(|_| random.chance(0.25)).count();
        assert!((4_800..5_200).contains(&hits), "hits {hits}");
    }
}
