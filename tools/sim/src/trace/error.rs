//! Owns the errors of reading a trace, with the evidence for each.
//!
//! A decoder of one line knows neither file nor line number: it returns a [`Fault`], and the
//! caller adds the place. Faults of the byte stream travel as [`StreamFault`] inside
//! [`std::io::Error`], because they pass through [`std::io::Read`].

#![deny(clippy::indexing_slicing)]

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::format::FORMATS;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The operating system refused.
    #[error("{op} {path}: {cause}")]
    Io {
        /// What was attempted.
        op: &'static str,
        /// The trace file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The compressed stream is damaged, cut short, or uses a feature the decoder lacks.
    #[error("{path}: {compression} stream damaged after {offset} decompressed bytes: {found}")]
    Damaged {
        /// The trace file.
        path: PathBuf,
        /// Kind of compression, by magic bytes.
        compression: &'static str,
        /// Decompressed bytes delivered before the damage.
        offset: u64,
        /// What the decoder found.
        found: String,
    },
    /// The file is compressed in a way this reader does not know.
    #[error("{path}: compressed with {found}; expected zstd, gzip, xz or no compression")]
    UnknownCompression {
        /// The trace file.
        path: PathBuf,
        /// Kind of compression, by magic bytes.
        found: &'static str,
    },
    /// The content starts like no known format.
    #[error("{path}: unknown trace format, starts with {found}; known formats: {FORMATS}")]
    UnknownFormat {
        /// The trace file.
        path: PathBuf,
        /// Start of the content, shortened.
        found: String,
    },
    /// A line or key breaks its format.
    #[error("{path}: {at}: expected {expected}, found {found}")]
    Malformed {
        /// The trace file.
        path: PathBuf,
        /// Where in the decompressed content.
        at: Position,
        /// What the format asks for.
        expected: &'static str,
        /// What is there, shortened.
        found: String,
    },
    /// A request lacks a field.
    #[error("{path}: {at}: missing field `{field}`")]
    MissingField {
        /// The trace file.
        path: PathBuf,
        /// Where in the decompressed content.
        at: Position,
        /// Name of the field.
        field: &'static str,
    },
    /// The trace is larger than the reader accepts.
    #[error("{path}: {at}: {what}: {found} or more, over the limit of {limit}")]
    OverLimit {
        /// The trace file.
        path: PathBuf,
        /// Where in the decompressed content.
        at: Position,
        /// What is limited, with its unit.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The count at which reading stopped.
        found: u64,
    },
}

/// A place in the decompressed content of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Line number, from 1.
    Line(u64),
    /// Byte offset, from 0.
    Offset(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(number) => write!(f, "line {number}"),
            Self::Offset(offset) => write!(f, "byte {offset}"),
        }
    }
}

impl TraceError {
    /// Turns a failed read of the decompressed stream into the error that says why.
    pub(super) fn from_read(path: &Path, cause: io::Error) -> Self {
        let path = path.to_owned();
        match cause.downcast::<StreamFault>() {
            Ok(StreamFault::Damaged {
                compression,
                offset,
                found,
            }) => Self::Damaged {
                path,
                compression,
                offset,
                found,
            },
            Ok(StreamFault::OverLimit {
                what,
                offset,
                limit,
                found,
            }) => Self::OverLimit {
                path,
                at: Position::Offset(offset),
                what,
                limit,
                found,
            },
            Err(cause) => Self::Io {
                op: "read",
                path,
                cause,
            },
        }
    }
}

/// What is wrong with one line or key; its reader adds the place.
#[derive(Debug)]
pub(super) enum Fault {
    /// See [`TraceError::Malformed`].
    Malformed {
        expected: &'static str,
        found: String,
    },
    /// See [`TraceError::MissingField`].
    MissingField { field: &'static str },
    /// See [`TraceError::OverLimit`].
    OverLimit {
        what: &'static str,
        limit: u64,
        found: u64,
    },
}

impl Fault {
    /// `found` stands where `expected` should.
    pub(super) fn malformed(expected: &'static str, found: &str) -> Self {
        Self::Malformed {
            expected,
            found: excerpt(found.as_bytes()),
        }
    }

    /// Refuses `found` above `limit`.
    pub(super) fn check_limit(what: &'static str, limit: u64, found: u64) -> Result<(), Self> {
        if found > limit {
            Err(Self::OverLimit { what, limit, found })
        } else {
            Ok(())
        }
    }

    /// Adds the place.
    pub(super) fn at(self, path: &Path, at: Position) -> TraceError {
        let path = path.to_owned();
        match self {
            Self::Malformed { expected, found } => TraceError::Malformed {
                path,
                at,
                expected,
                found,
            },
            Self::MissingField { field } => TraceError::MissingField { path, at, field },
            Self::OverLimit { what, limit, found } => TraceError::OverLimit {
                path,
                at,
                what,
                limit,
                found,
            },
        }
    }
}

/// Why the byte stream ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamFault {
    /// See [`TraceError::Damaged`].
    #[error("damaged {compression} stream at {offset}: {found}")]
    Damaged {
        compression: &'static str,
        offset: u64,
        found: String,
    },
    /// See [`TraceError::OverLimit`].
    #[error("{what}: {found}, limit {limit}")]
    OverLimit {
        what: &'static str,
        offset: u64,
        limit: u64,
        found: u64,
    },
}

impl From<StreamFault> for io::Error {
    fn from(fault: StreamFault) -> Self {
        Self::other(fault)
    }
}

/// Quotes the start of `bytes` for an error message, control characters escaped.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    /// Enough to recognise a line, short enough for one line of a terminal.
    const LEN_MAX: usize = 48;
    let head = bytes.get(..LEN_MAX).unwrap_or(bytes);
    let dots = if head.len() < bytes.len() { "..." } else { "" };
    format!("\"{}\"{dots}", head.escape_ascii())
}
