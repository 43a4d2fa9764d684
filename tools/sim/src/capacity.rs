//! How many blocks there is room for, as users write it.

use std::fmt;
use std::str::FromStr;

use crate::contender::places;
use crate::error::SimError;

/// Room in blocks, or as a share of the different blocks of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// A count of blocks.
    Blocks(usize),
    /// A share above 0 and up to 1.
    Share(f64),
}

impl Capacity {
    /// The capacities of a list with commas between them.
    ///
    /// # Errors
    /// [`SimError::EmptyPlace`], [`SimError::GivenTwice`], or what is wrong with one of them.
    pub fn list(text: &str) -> Result<Vec<Self>, SimError> {
        let mut capacities: Vec<Self> = Vec::new();
        for item in places(text)? {
            let capacity = item.parse()?;
            if capacities.contains(&capacity) {
                return Err(SimError::GivenTwice {
                    value: item.to_owned(),
                });
            }
            capacities.push(capacity);
        }
        Ok(capacities)
    }

    /// Blocks of a trace with `unique_blocks` different blocks: a share is rounded down, and is
    /// at least one.
    ///
    /// # Errors
    /// [`SimError::CapacityOutOfRange`] for a count above that of the trace.
    pub fn blocks(self, unique_blocks: usize) -> Result<usize, SimError> {
        match self {
            Self::Blocks(blocks) if (1..=unique_blocks).contains(&blocks) => Ok(blocks),
            Self::Blocks(blocks) => Err(SimError::CapacityOutOfRange {
                capacity: blocks.to_string(),
                allowed: format!("the trace has {unique_blocks} different blocks"),
            }),
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counts of blocks are below 2^32, and a share is positive"
            )]
            Self::Share(share) => Ok(((share * unique_blocks as f64) as usize).max(1)),
        }
    }
}

impl FromStr for Capacity {
    type Err = SimError;

    fn from_str(text: &str) -> Result<Self, SimError> {
        let malformed = || SimError::NotACapacity {
            text: text.to_owned(),
        };
        let out_of_range = |allowed: &str| SimError::CapacityOutOfRange {
            capacity: text.to_owned(),
            allowed: allowed.to_owned(),
        };
        let Some(percent) = text.strip_suffix('%') else {
            let blocks: usize = text.parse().map_err(|_| malformed())?;
            if blocks == 0 {
                return Err(out_of_range("allowed is one block to those of the trace"));
            }
            return Ok(Self::Blocks(blocks));
        };
        let is_plain = percent
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        // As an exponent and not by a division: 0.1% is the same number as 0.001.
        let share = is_plain.then(|| format!("{percent}e-2").parse::<f64>().ok());
        let share = share.flatten().ok_or_else(malformed)?;
        if share <= 0.0 || share > 1.0 {
            return Err(out_of_range("allowed is above 0% and up to 100%"));
        }
        Ok(Self::Share(share))
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(blocks) => write!(f, "{blocks}"),
            Self::Share(share) => write!(f, "{}%", share * 100.0),
        }
    }
}
