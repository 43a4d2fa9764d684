//! What is wrong with bytes that were read from a device.

use std::fmt;

pub use terrace_types::Limit;

use super::FORMAT_VERSION;

/// A structure of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// One copy of a device's superblock.
    Superblock,
    /// The head of a segment.
    SegmentHead,
    /// The head of a frame.
    FrameHead,
    /// The footer of a sealed segment.
    Footer,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::SegmentHead => "segment head",
            Self::FrameHead => "frame head",
            Self::Footer => "footer",
        })
    }
}

/// Why bytes are not the structure that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The magic is not there: whatever this is, the structure was not written here.
    #[error("there is no {structure}: its magic is missing")]
    NotOurs {
        /// What was looked for.
        structure: Structure,
    },
    /// A later build wrote it.
    #[error("{structure} of format version {found}; this build reads {FORMAT_VERSION}")]
    Version {
        /// What was looked for.
        structure: Structure,
        /// The version that it has.
        found: u32,
    },
    /// Its bytes are not those that were written.
    #[error("{structure}: checksum is {actual:#018x}, its bytes have {expected:#018x}")]
    Checksum {
        /// What was looked for.
        structure: Structure,
        /// The checksum of the bytes.
        expected: u64,
        /// The checksum that is written in it.
        actual: u64,
    },
    /// A field has a value that it cannot have.
    #[error("{structure}: {field} is {value}, it has to be {limit}")]
    Field {
        /// What was looked for.
        structure: Structure,
        /// The field, in the words of the format's document.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it would have to be.
        limit: Limit,
    },
}

impl FormatError {
    /// Whether the structure is absent, rather than damaged.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::NotOurs { .. })
    }
}
