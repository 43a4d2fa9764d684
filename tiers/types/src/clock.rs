//! Time as the engine sees it: nanoseconds of a monotonic clock, or of a simulated one.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time, in nanoseconds since an origin that the [`Clock`] chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);
    /// Later than any time a clock returns; stands for "no deadline".
    pub const MAX: Self = Self(u64::MAX);

    /// Whole milliseconds since the origin.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time from `earlier` to `self`; zero when `earlier` lies later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(span_ns))
    }
}

impl Sub for Nanos {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09} s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// Where a component takes its time from. Engine code never asks the operating system itself,
/// so that it runs on virtual time under test.
pub trait Clock {
    /// The time now. Never goes back.
    fn now(&self) -> Nanos;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanos_add_past_the_end_saturates() {
        assert_eq!(Nanos::MAX + Duration::from_secs(1), Nanos::MAX);
        assert_eq!(Nanos(5).since(Nanos(9)), Duration::ZERO);
        assert_eq!(Nanos(9) - Nanos(5), Duration::from_nanos(4));
    }
}
