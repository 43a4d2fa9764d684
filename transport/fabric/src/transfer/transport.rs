//! What a transport gives the engine: rails that move slices, each driven by one thread.
//!
//! A [`Transport`] lives as long as its engine. It hears of every region, and for each peer it
//! makes rails by asking its own kind at the other end, over a connection of the engine's. A
//! [`Rail`] belongs to one thread of the engine from then on: the thread posts slices, polls for
//! what ended, and sleeps on descriptors that the rail names. A rail that fails is quiesced, its
//! slices go to other rails, and it is asked to revive from time to time.
//!
//! The engine checks requests, cuts them into slices, chooses rails and counts outcomes; nothing
//! of that is a transport's work.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::error::{RailError, Status, TransferError};
use super::region::{Region, RegionId, RegionPin, RemoteRegion};

/// The ways bytes go between two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TransportKind {
    /// TCP connections.
    Tcp,
    /// Memory of one host, mapped by both.
    SharedMemory,
    /// RDMA verbs: RoCE v2 or InfiniBand.
    Rdma,
}

impl TransportKind {
    /// Its name in flags, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::SharedMemory => "shm",
            Self::Rdma => "rdma",
        }
    }
}

/// Some kinds of transports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransportSet(u8);

impl TransportSet {
    /// Every kind.
    pub const ALL: Self = Self(0b111);

    const fn bit(kind: TransportKind) -> u8 {
        match kind {
            TransportKind::Tcp => 1,
            TransportKind::SharedMemory => 2,
            TransportKind::Rdma => 4,
        }
    }

    /// Whether `kind` is among them.
    #[must_use]
    pub const fn contains(self, kind: TransportKind) -> bool {
        self.0 & Self::bit(kind) != 0
    }

    /// Those that are in both.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn to_bits(self) -> u8 {
        self.0
    }

    pub(super) const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

impl FromIterator<TransportKind> for TransportSet {
    fn from_iter<I: IntoIterator<Item = TransportKind>>(kinds: I) -> Self {
        Self(
            kinds
                .into_iter()
                .fold(0, |bits, kind| bits | Self::bit(kind)),
        )
    }
}

impl std::fmt::Display for TransportKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which way a slice goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// From the peer's region into the local one.
    Read,
    /// From the local region into the peer's.
    Write,
}

/// The name of a slice under way; never used twice in one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceId(pub u64);

/// A run of bytes that goes from one place to one other: one work request, one pair of
/// addresses. Both ends lie in their regions as far as this end knows; the peer checks again.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Its name.
    pub id: SliceId,
    /// Which way it goes.
    pub operation: Operation,
    /// Whether it goes before slices that are not urgent.
    pub is_urgent: bool,
    /// The local region, kept in use.
    pub local: RegionPin,
    /// First local byte.
    pub local_offset: u64,
    /// The peer's region.
    pub remote: Arc<RemoteRegion>,
    /// First remote byte.
    pub remote_offset: u64,
    /// Bytes to move: from 1 to [`super::limits::SLICE_LEN_MAX`].
    pub len: u64,
}

/// A slice that needs its rail no more. Nothing touches its local memory on its behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which one.
    pub id: SliceId,
    /// [`Status::Done`], [`Status::Cancelled`], or what the peer refused it with. What another
    /// rail may do better is a [`RailError`] of the whole rail instead.
    pub status: Status,
}

/// What is known of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailLink {
    /// Its name in tables and logs: both addresses, or device and port.
    pub name: String,
    /// How bytes go.
    pub kind: TransportKind,
    /// Network interface or RDMA device at this end, by which its place in the machine is found.
    pub device: Option<String>,
    /// What the link can do by its own word, in bytes a second; measured figures replace it.
    pub bandwidth: Option<u64>,
}

/// A descriptor that a sleeping rail waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// The descriptor; the rail keeps it open while it lives.
    pub fd: RawFd,
    /// Whether to wake when it can be read.
    pub read: bool,
    /// Whether to wake when it can be written.
    pub write: bool,
}

/// One way to one peer, driven by one thread. Nothing here blocks but [`Rail::revive`] and
/// [`Rail::quiesce`], which are bounded.
///
/// Dropping a rail quiesces it.
pub trait Rail: Send {
    /// What is known of it.
    fn link(&self) -> &RailLink;

    /// Takes slices from the front of `slices`, as many as there is room for now. Urgent ones
    /// are at the front. Each one taken is reported by [`Rail::poll`] once, unless the rail
    /// fails before.
    ///
    /// # Errors
    /// The rail failed. The engine quiesces it, and all slices it had go elsewhere.
    fn post(&mut self, slices: &mut VecDeque<Slice>) -> Result<(), RailError>;

    /// Moves what can be moved without waiting, and adds slices that ended to `ended`.
    ///
    /// # Errors
    /// As for [`Rail::post`].
    fn poll(&mut self, ended: &mut Vec<Ended>) -> Result<(), RailError>;

    /// Adds to `interests` what to sleep on until [`Rail::poll`] can do more. `false`: do not
    /// sleep, something is there already.
    ///
    /// # Errors
    /// As for [`Rail::post`].
    fn arm(&mut self, interests: &mut Vec<Interest>) -> Result<bool, RailError>;

    /// Asks for a slice to end soon. It is reported as any other: as [`Status::Cancelled`], or as
    /// done when it was too late. The engine fails the rail when that takes too long.
    fn cancel(&mut self, id: SliceId);

    /// Ends everything at once: when this returns, nothing of the rail touches any memory, and
    /// no slice is reported any more.
    fn quiesce(&mut self);

    /// What the peer's transport must answer before bytes that this rail, which is quiesced now,
    /// was to write are written over another one: that nothing of this rail touches its memory
    /// any more. `None`: that is so already.
    fn fence(&self) -> Option<Vec<u8>>;

    /// Tries to make a quiesced rail usable again, asking its own kind at the peer if need be.
    ///
    /// # Errors
    /// Why it is still down.
    fn revive(&mut self, peer: &mut dyn Ask) -> Result<(), RailError>;
}

/// The other end's transport of the same kind, for questions while rails are made.
pub trait Ask {
    /// Sends a question of at most 64 KiB and waits for its answer.
    ///
    /// # Errors
    /// The connection to the peer failed, or it has no transport of this kind.
    fn ask(&mut self, question: &[u8]) -> Result<Vec<u8>, RailError>;
}

/// What a transport does for one peer that opened this engine. Dropped when the peer left or
/// was sent away: from then on nothing of that peer touches any memory through it.
pub trait Session: Send {
    /// Answers a question of the peer's transport, with at most 64 KiB.
    ///
    /// # Errors
    /// Why it cannot; the peer hears that it was refused.
    fn answer(&mut self, question: &[u8]) -> Result<Vec<u8>, TransferError>;
}

/// One kind of transport, at one engine.
pub trait Transport: Send + Sync {
    /// Which one.
    fn kind(&self) -> TransportKind;

    /// Makes a region known to its devices. What it returns goes to peers that may use the
    /// region, as [`RemoteRegion::key`]: at most [`super::limits::REGION_KEY_LEN_MAX`] bytes,
    /// empty when this transport cannot move it.
    ///
    /// # Errors
    /// Why the region cannot be had by this transport where it should be.
    fn register(&self, region: &Arc<Region>) -> Result<Vec<u8>, TransferError>;

    /// Forgets a region. Nothing local uses it any more; when this returns no peer reaches it
    /// either.
    fn unregister(&self, id: RegionId);

    /// Makes rails to a peer. No rails: it has no device in common with the peer.
    ///
    /// # Errors
    /// Why rails cannot be had.
    fn connect(&self, peer: &mut dyn Ask) -> Result<Vec<Box<dyn Rail>>, TransferError>;

    /// Prepares for a peer that may ask for rails.
    ///
    /// # Errors
    /// Why that cannot be.
    fn accept(&self) -> Result<Box<dyn Session>, TransferError>;
}
