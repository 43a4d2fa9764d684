//! Byte lengths as people write them (`64KiB`, `1.5GiB`, `4096`) and as reports print them.

use std::fmt;
use std::str::FromStr;

/// A length in bytes that parses from and prints as text with a unit.
///
/// `k`, `m`, `g`, `t` and their `KiB` forms count in powers of 1024, `KB`, `MB`, `GB`, `TB`
/// in powers of 1000; no unit means bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteLen(pub u64);

/// Why a text is not a byte length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseByteLenError {
    /// The text has no digits before its unit.
    #[error("`{0}` has no number; write a length such as 4096, 64KiB or 1.5GiB")]
    NoNumber(String),
    /// What follows the number is not a unit.
    #[error("`{unit}` in `{text}` is not a unit; use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The part that is not a unit.
        unit: String,
    },
    /// The length does not fit in 64 bits.
    #[error("`{0}` is more than 16 EiB")]
    TooLarge(String),
}

impl ByteLen {
    /// `count` KiB.
    #[must_use]
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` MiB.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// `count` GiB.
    #[must_use]
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }
}

fn unit_factor(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

impl FromStr for ByteLen {
    type Err = ParseByteLenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let number_end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(number_end);
        let unit = unit.trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') {
            return Err(ParseByteLenError::NoNumber(text.to_owned()));
        }
        let factor = unit_factor(unit).ok_or_else(|| ParseByteLenError::UnknownUnit {
            text: text.to_owned(),
            unit: unit.to_owned(),
        })?;
        let too_large = || ParseByteLenError::TooLarge(text.to_owned());
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let mut bytes = whole.checked_mul(factor).ok_or_else(too_large)?;
        // Nine digits are enough for any unit's bytes that a person types; the rest rounds down.
        let digits: String = fraction.chars().take(9).collect();
        if !digits.is_empty() {
            let scale = 10_u128.pow(u32::try_from(digits.len()).unwrap_or(9));
            let parts: u128 = digits.parse().map_err(|_| too_large())?;
            let extra = u64::try_from(parts * u128::from(factor) / scale).unwrap_or(u64::MAX);
            bytes = bytes.checked_add(extra).ok_or_else(too_large)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for ByteLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [
            (1 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
        ];
        for (factor, unit) in UNITS {
            if self.0 >= factor {
                if self.0.is_multiple_of(factor) {
                    return write!(f, "{} {unit}", self.0 / factor);
                }
                #[expect(clippy::cast_precision_loss, reason = "printed with two digits only")]
                let scaled = self.0 as f64 / factor as f64;
                return write!(f, "{scaled:.2} {unit}");
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_len_with_unit_parses() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 65536),
            ("64 KiB", 65536),
            ("1.5GiB", 3 << 29),
            ("2MB", 2_000_000),
            (" 1TiB ", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(ByteLen(bytes)), "{text}");
        }
    }

    #[test]
    fn byte_len_without_sense_is_refused() {
        for text in [
            "",
            "k",
            ".5k",
            "1..5k",
            "-1",
            "1x",
            "99999999999999999999",
            "99999999999T",
        ] {
            assert!(text.parse::<ByteLen>().is_err(), "{text}");
        }
    }

    #[test]
    fn byte_len_prints_the_largest_unit() {
        assert_eq!(ByteLen(65536).to_string(), "64 KiB");
        assert_eq!(ByteLen(1_124_352).to_string(), "1.07 MiB");
        assert_eq!(ByteLen(7).to_string(), "7 B");
    }
}
