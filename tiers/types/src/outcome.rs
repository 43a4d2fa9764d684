//! The closed lists of what a call can come to. Every key of every call gets exactly one.

use std::fmt;

/// A medium that holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Hugepage DRAM slabs.
    Dram,
    /// NVMe segments.
    Nvme,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dram => "dram",
            Self::Nvme => "nvme",
        })
    }
}

/// What became of one put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PutOutcome {
    /// The block is stored and readable.
    Stored {
        /// Whether it survives kill -9 and power loss.
        durable: bool,
    },
    /// A block is already stored under the key; blocks are immutable, so it was kept.
    AlreadyExists {
        /// Whether the stored block survives kill -9 and power loss.
        durable: bool,
    },
    /// The block will not be stored; trying the same again will not help.
    Rejected(RejectReason),
    /// There was no room within the bounded wait; a later try may succeed.
    Busy,
}

impl PutOutcome {
    /// Whether the block is readable after this outcome.
    #[must_use]
    pub const fn is_present(self) -> bool {
        matches!(self, Self::Stored { .. } | Self::AlreadyExists { .. })
    }
}

/// Why a put was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The value has no bytes; the shortest block is one byte.
    BlockEmpty,
    /// The value is longer than the longest block this engine can hold.
    BlockTooLarge {
        /// Length of the value in bytes.
        len: u64,
        /// Longest block in bytes: the smaller of 128 MiB and a shard's arena.
        limit: u64,
    },
    /// The policy declined the block.
    NotAdmitted,
    /// A durable put, and no tier of this engine is durable.
    NotDurable,
    /// The checksum given with the value does not match its bytes.
    ChecksumMismatch,
    /// The key's namespace belongs to another engine.
    ForeignNamespace,
    /// The shard that owns the key stopped after a panic.
    ShardFenced,
    /// The engine is closing.
    Closing,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockEmpty => f.write_str("the block is empty; the shortest is 1 byte"),
            Self::BlockTooLarge { len, limit } => {
                write!(f, "the block has {len} bytes, the limit is {limit}")
            }
            Self::NotAdmitted => f.write_str("the policy did not admit the block"),
            Self::NotDurable => f.write_str("no tier of this engine is durable"),
            Self::ChecksumMismatch => f.write_str("the checksum does not match the bytes"),
            Self::ForeignNamespace => f.write_str("the namespace belongs to another engine"),
            Self::ShardFenced => f.write_str("the shard that owns the key stopped after a panic"),
            Self::Closing => f.write_str("the engine is closing"),
        }
    }
}

/// What became of one lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lookup<T> {
    /// The block was found.
    Hit {
        /// The tier that held it when the lookup arrived.
        tier: Tier,
        /// The block, or what the call returns of it.
        value: T,
    },
    /// No block is stored under the key.
    Miss,
    /// Whether a block is stored cannot be told, or it cannot be handed out now.
    Unavailable(UnavailableReason),
}

impl<T> Lookup<T> {
    /// The value of a hit.
    pub fn hit(self) -> Option<T> {
        match self {
            Self::Hit { value, .. } => Some(value),
            Self::Miss | Self::Unavailable(_) => None,
        }
    }

    /// Whether the block was found.
    pub const fn is_hit(&self) -> bool {
        matches!(self, Self::Hit { .. })
    }

    /// The same outcome with the value of a hit replaced.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Self::Hit { tier, value } => Lookup::Hit {
                tier,
                value: f(value),
            },
            Self::Miss => Lookup::Miss,
            Self::Unavailable(reason) => Lookup::Unavailable(reason),
        }
    }
}

/// Why a lookup could not be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnavailableReason {
    /// The shard that owns the key stopped after a panic.
    ShardFenced,
    /// The engine is closing.
    Closing,
    /// The bound on pinned and leased bytes was reached and none came back within the wait.
    PinLimit,
    /// There was no room to bring the block into DRAM within the bounded wait.
    NoRoom,
    /// The tier that holds the block failed or did not answer within its deadline.
    TierFailed,
    /// The key's namespace belongs to another engine.
    ForeignNamespace,
}

impl fmt::Display for UnavailableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ShardFenced => "the shard that owns the key stopped after a panic",
            Self::Closing => "the engine is closing",
            Self::PinLimit => "the bound on pinned bytes is reached",
            Self::NoRoom => "no room in DRAM within the bounded wait",
            Self::TierFailed => "the tier that holds the block failed",
            Self::ForeignNamespace => "the namespace belongs to another engine",
        })
    }
}
