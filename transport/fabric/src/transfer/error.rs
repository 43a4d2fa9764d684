//! What can go wrong with an engine, a peer or a rail, and what became of one request.

use std::io;
use std::time::Duration;

use super::region::RegionId;
use super::transport::TransportKind;

/// Why an engine could not do what its caller asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A region's length is outside the limits.
    #[error("a region of {len} bytes: from 1 to {max} can be registered")]
    RegionLength {
        /// The length asked for.
        len: u64,
        /// The longest region.
        max: u64,
    },
    /// The engine holds as many regions as it can.
    #[error("{count} regions are registered, and no more than {count} can be")]
    RegionCount {
        /// The most regions.
        count: usize,
    },
    /// The region is not registered with this engine, or not any more.
    #[error("region {id} is not registered here")]
    UnknownRegion {
        /// The region named.
        id: RegionId,
    },
    /// Something still used a region when the time to wait for it was over.
    #[error("region {id} was still used after {waited:?}: it stays closed, unregister it again")]
    RegionBusy {
        /// The region named.
        id: RegionId,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A setting is outside its limits.
    #[error("{field} is {value}: from {min} to {max} can be had")]
    Setting {
        /// The setting's name.
        field: &'static str,
        /// The value given.
        value: u64,
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// A batch cannot be what was asked for.
    #[error("request {index}: {cause}")]
    Request {
        /// The request's place in its batch.
        index: usize,
        /// What is wrong with it.
        cause: RequestError,
    },
    /// A batch is empty or has too many requests.
    #[error("a batch of {count} requests: from 1 to {max} can be submitted")]
    BatchCount {
        /// The requests in it.
        count: usize,
        /// The most requests.
        max: usize,
    },
    /// A notification is too long.
    #[error("a notification of {len} bytes: at most {max} can be sent")]
    NotificationLength {
        /// Its length.
        len: usize,
        /// The longest one.
        max: usize,
    },
    /// No transport that may be used reaches the peer.
    #[error("{peer} cannot be reached over {kinds}: {cause}")]
    Unreachable {
        /// The peer's addresses.
        peer: String,
        /// The transports that were tried.
        kinds: String,
        /// What the last one said.
        cause: RailError,
    },
    /// The other end said something that is not of this protocol.
    #[error("{peer}: {what}")]
    Protocol {
        /// The peer's address.
        peer: String,
        /// What was wrong.
        what: &'static str,
    },
    /// The other end refused.
    #[error("{peer} refused: {what}")]
    Refused {
        /// The peer's address.
        peer: String,
        /// What it said.
        what: &'static str,
    },
    /// A device or transport cannot do what is needed.
    #[error("{kind}: {what}")]
    Transport {
        /// The transport.
        kind: TransportKind,
        /// What it cannot, with names and limits.
        what: String,
    },
    /// Too many openers are invited.
    #[error("{max} tickets are given out, which is the most; take some back")]
    TooManyTickets {
        /// The most tickets.
        max: usize,
    },
    /// Connections of an opener that was sent away did not end in time.
    #[error(
        "an opener that was sent away is still served after {waited:?}: {connections}; expel it again"
    )]
    StillServed {
        /// What is still there, and where it comes from.
        connections: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The operating system refused a step.
    #[error("{op}: {source}")]
    Os {
        /// What was tried.
        op: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

/// What is wrong with one request of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It moves nothing, or more than one request may.
    #[error("{len} bytes: from 1 to {max} can be moved")]
    Length {
        /// The bytes it would move.
        len: u64,
        /// The most bytes.
        max: u64,
    },
    /// It has no parts at one end, or too many.
    #[error("{count} parts at one end: from 1 to {max} can be given")]
    PartCount {
        /// The parts given.
        count: usize,
        /// The most parts.
        max: usize,
    },
    /// A part is empty.
    #[error("part {part} is empty")]
    EmptyPart {
        /// The part's place in its list.
        part: usize,
    },
    /// The two ends differ in length.
    #[error("{local} local bytes and {remote} remote ones")]
    LengthsDiffer {
        /// Bytes of all local parts.
        local: u64,
        /// Bytes of all remote parts.
        remote: u64,
    },
    /// A local part does not lie in its region.
    #[error("local bytes at {offset}, {len} of them, in a region of {region_len}")]
    OutOfBounds {
        /// First byte of the part.
        offset: u64,
        /// Length of the part.
        len: u64,
        /// Length of the region.
        region_len: u64,
    },
    /// A local region is being unregistered.
    #[error("local region {id} is not registered any more")]
    Unregistered {
        /// The region.
        id: RegionId,
    },
}

/// What became of a rail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RailError {
    /// The other end closed it, or is gone.
    #[error("the connection has ended")]
    Closed,
    /// Nothing moved for too long.
    #[error("nothing moved for {waited:?}")]
    TimedOut {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The other end said something that is not of this protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// The other end refused the rail.
    #[error("the peer refused: {0}")]
    Refused(&'static str),
    /// The device or its driver reports an error by name.
    #[error("{op}: {what}")]
    Device {
        /// What was tried.
        op: &'static str,
        /// The error's name.
        what: String,
    },
    /// The operating system reports an error.
    #[error("{op}: {source}")]
    Os {
        /// What was tried.
        op: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl RailError {
    /// An error of the operating system at `op`.
    pub(crate) fn os(op: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Os { op, source },
        }
    }
}

/// What became of one request. Everything but [`Status::Pending`] is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// It is under way.
    Pending,
    /// All its bytes were moved, and what was asked to be verified was right.
    Done,
    /// It was cancelled. Bytes of a target may have been written before.
    Cancelled,
    /// The peer has no region in that place of its table.
    UnknownRegion,
    /// The peer's region was unregistered; another one may be in its place.
    StaleRegion,
    /// The bytes do not lie in the peer's region.
    OutOfBounds,
    /// The peer does not allow this of the region, or no rail there is can move it.
    AccessDenied,
    /// The bytes that arrived do not have the checksum given.
    ChecksumMismatch,
    /// The time given for the batch was over.
    DeadlineExceeded,
    /// Every rail that can move it is down. Of a write it is not known how much the peer has.
    PeerLost,
}

impl Status {
    /// Whether nothing more will happen to the request.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Pending)
    }

    /// Whether the same request may succeed when it is submitted again.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Cancelled | Self::DeadlineExceeded | Self::PeerLost
        )
    }

    /// Its name in snake case, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::UnknownRegion => "unknown_region",
            Self::StaleRegion => "stale_region",
            Self::OutOfBounds => "out_of_bounds",
            Self::AccessDenied => "access_denied",
            Self::ChecksumMismatch => "checksum_mismatch",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::PeerLost => "peer_lost",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
