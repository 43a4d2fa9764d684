//! What a field would have to be, in errors about values that come from outside.

use std::fmt;

/// What a field would have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No more than this.
    AtMost(u64),
    /// No less than this.
    AtLeast(u64),
    /// Just this.
    Exactly(u64),
    /// A multiple of this.
    MultipleOf(u64),
    /// What the words say.
    Is(&'static str),
}

impl Limit {
    /// Whether a value keeps it. [`Limit::Is`] is kept by none.
    #[must_use]
    pub const fn allows(self, value: u64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Exactly(limit) => value == limit,
            Self::MultipleOf(limit) => value.is_multiple_of(limit),
            Self::Is(_) => false,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "at most {limit}"),
            Self::AtLeast(limit) => write!(f, "at least {limit}"),
            Self::Exactly(limit) => write!(f, "{limit}"),
            Self::MultipleOf(limit) => write!(f, "a multiple of {limit}"),
            Self::Is(words) => f.write_str(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_the_limit_that_the_words_tell() {
        for (limit, words, kept, broken) in [
            (Limit::AtMost(8), "at most 8", 8, 9),
            (Limit::AtLeast(8), "at least 8", 8, 7),
            (Limit::Exactly(8), "8", 8, 9),
            (Limit::MultipleOf(8), "a multiple of 8", 16, 12),
        ] {
            assert_eq!(limit.to_string(), words);
            assert!(limit.allows(kept));
            assert!(!limit.allows(broken));
        }
        let limit = Limit::Is("a whole frame");
        assert_eq!(limit.to_string(), "a whole frame");
        assert!(!limit.allows(0));
    }
}
