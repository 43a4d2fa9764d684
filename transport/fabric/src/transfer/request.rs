//! Requests as callers write them: parts at both ends, and how a batch is to be treated.

use std::sync::Arc;
use std::time::Duration;

use super::region::{Region, RemoteRegion};
use super::transport::Operation;

/// Bytes of a local region.
#[derive(Clone, Debug)]
pub struct LocalPart {
    /// The region.
    pub region: Arc<Region>,
    /// First byte.
    pub offset: u64,
    /// Count of bytes.
    pub len: u64,
}

/// Bytes of a peer's region.
#[derive(Clone, Debug)]
pub struct RemotePart {
    /// The region.
    pub region: Arc<RemoteRegion>,
    /// First byte.
    pub offset: u64,
    /// Count of bytes.
    pub len: u64,
}

/// A checksum that the bytes of a read must have: `xxh3_64` of all of them in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The seed.
    pub seed: u64,
    /// The checksum.
    pub checksum: u64,
}

/// Moves bytes between local parts and a peer's, in order; both have the same length together.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which way.
    pub operation: Operation,
    /// Where at this end.
    pub local: Vec<LocalPart>,
    /// Where at the peer.
    pub remote: Vec<RemotePart>,
    /// What the bytes of a read must be. Of a write it says nothing.
    pub expected: Option<Expected>,
}

impl Request {
    /// Reads `remote` into `local`.
    #[must_use]
    pub fn read(local: LocalPart, remote: RemotePart) -> Self {
        Self {
            operation: Operation::Read,
            local: vec![local],
            remote: vec![remote],
            expected: None,
        }
    }

    /// Writes `local` to `remote`.
    #[must_use]
    pub fn write(local: LocalPart, remote: RemotePart) -> Self {
        Self {
            operation: Operation::Write,
            ..Self::read(local, remote)
        }
    }

    /// The same, with a checksum that what is read must have.
    #[must_use]
    pub fn expecting(mut self, seed: u64, checksum: u64) -> Self {
        self.expected = Some(Expected { seed, checksum });
        self
    }
}

/// Which batches go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// In order of arrival.
    #[default]
    Bulk,
    /// Before everything that is not urgent.
    Urgent,
}

/// How a batch is to be treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Whether it overtakes.
    pub priority: Priority,
    /// When requests that are not done end as [`super::Status::DeadlineExceeded`], counted from
    /// the submission.
    pub timeout: Duration,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            priority: Priority::Bulk,
            timeout: Duration::from_secs(60),
        }
    }
}
