//! What a key of a request came to: the closed lists of `terrace-types`, and what only a wire adds.

use terrace_types::{Lookup, PutOutcome, RejectReason, Tier, UnavailableReason};

use crate::bytes::{Reader, Writer};
use crate::error::{Limit, WireError};
use crate::records::Codec;

/// What one entry of a request came to. Every entry gets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyStatus {
    /// The block is stored and readable.
    Stored {
        /// Whether it survives kill -9 and power loss.
        durable: bool,
    },
    /// A block was stored under the key before, and was kept.
    AlreadyExists {
        /// Whether it survives kill -9 and power loss.
        durable: bool,
    },
    /// The block will not be stored.
    Rejected(Rejection),
    /// There was no room within the bounded wait.
    Busy,
    /// There is such a block, or lease.
    Hit(Tier),
    /// There is none.
    Miss,
    /// It cannot be told, or not be handed out now.
    Unavailable(UnavailableReason),
    /// A streamed put goes on.
    Granted,
    /// Another shard owns the key.
    WrongShard {
        /// Which one.
        shard: u32,
    },
    /// The deadline came first. The block was not stored by this request.
    TimedOut,
    /// The request was cancelled first. The block was not stored by this request.
    Cancelled,
}

/// Why a put was rejected. As [`RejectReason`], but for the length, which the client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// The value has no bytes.
    Empty,
    /// The value is longer than the longest block that this node can hold.
    TooLarge {
        /// Longest block in bytes.
        limit: u32,
    },
    /// The policy declined the block.
    NotAdmitted,
    /// A durable put, and no tier of this node is durable.
    NotDurable,
    /// The value does not match its checksum.
    Checksum,
    /// The namespace belongs to another engine.
    ForeignNamespace,
    /// The shard that owns the key stopped.
    ShardFenced,
    /// The node is closing.
    Closing,
}

const DURABLE: u8 = 1;

impl KeyStatus {
    /// The status of a lookup.
    #[must_use]
    pub const fn of_lookup<T>(lookup: &Lookup<T>) -> Self {
        match lookup {
            Lookup::Hit { tier, .. } => Self::Hit(*tier),
            Lookup::Miss => Self::Miss,
            Lookup::Unavailable(reason) => Self::Unavailable(*reason),
        }
    }

    /// The outcome of a lookup; `None` when the status says none.
    #[must_use]
    pub const fn lookup(self) -> Option<Lookup<()>> {
        match self {
            Self::Hit(tier) => Some(Lookup::Hit { tier, value: () }),
            Self::Miss => Some(Lookup::Miss),
            Self::Unavailable(reason) => Some(Lookup::Unavailable(reason)),
            _ => None,
        }
    }

    /// The outcome of a put of `len` bytes; `None` when the status says none.
    #[must_use]
    pub const fn put_outcome(self, len: u64) -> Option<PutOutcome> {
        match self {
            Self::Stored { durable } => Some(PutOutcome::Stored { durable }),
            Self::AlreadyExists { durable } => Some(PutOutcome::AlreadyExists { durable }),
            Self::Rejected(rejection) => Some(PutOutcome::Rejected(rejection.reason(len))),
            Self::Busy => Some(PutOutcome::Busy),
            _ => None,
        }
    }

    /// Whether the same entry may succeed when it is sent again, to the right shard.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Busy | Self::Unavailable(_) | Self::WrongShard { .. } | Self::TimedOut
        )
    }

    const fn parts(self) -> (u8, u8, u8, u32) {
        match self {
            Self::Stored { durable } => (1, 0, durable as u8, 0),
            Self::AlreadyExists { durable } => (2, 0, durable as u8, 0),
            Self::Rejected(Rejection::TooLarge { limit }) => (3, 2, 0, limit),
            Self::Rejected(rejection) => (3, rejection.number(), 0, 0),
            Self::Busy => (4, 0, 0, 0),
            Self::Hit(tier) => (5, tier_number(tier), 0, 0),
            Self::Miss => (6, 0, 0, 0),
            Self::Unavailable(reason) => (7, unavailable_number(reason), 0, 0),
            Self::Granted => (8, 0, 0, 0),
            Self::WrongShard { shard } => (16, 0, 0, shard),
            Self::TimedOut => (17, 0, 0, 0),
            Self::Cancelled => (18, 0, 0, 0),
        }
    }
}

impl From<PutOutcome> for KeyStatus {
    fn from(outcome: PutOutcome) -> Self {
        match outcome {
            PutOutcome::Stored { durable } => Self::Stored { durable },
            PutOutcome::AlreadyExists { durable } => Self::AlreadyExists { durable },
            PutOutcome::Rejected(reason) => Self::Rejected(reason.into()),
            PutOutcome::Busy => Self::Busy,
        }
    }
}

impl Rejection {
    /// The reason, for a value of `len` bytes.
    #[must_use]
    pub const fn reason(self, len: u64) -> RejectReason {
        match self {
            Self::Empty => RejectReason::BlockEmpty,
            Self::TooLarge { limit } => RejectReason::BlockTooLarge {
                len,
                limit: limit as u64,
            },
            Self::NotAdmitted => RejectReason::NotAdmitted,
            Self::NotDurable => RejectReason::NotDurable,
            Self::Checksum => RejectReason::ChecksumMismatch,
            Self::ForeignNamespace => RejectReason::ForeignNamespace,
            Self::ShardFenced => RejectReason::ShardFenced,
            Self::Closing => RejectReason::Closing,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Empty => 1,
            Self::TooLarge { .. } => 2,
            Self::NotAdmitted => 3,
            Self::NotDurable => 4,
            Self::Checksum => 5,
            Self::ForeignNamespace => 6,
            Self::ShardFenced => 7,
            Self::Closing => 8,
        }
    }

    const fn of(number: u8, limit: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Empty,
            2 => Self::TooLarge { limit },
            3 => Self::NotAdmitted,
            4 => Self::NotDurable,
            5 => Self::Checksum,
            6 => Self::ForeignNamespace,
            7 => Self::ShardFenced,
            8 => Self::Closing,
            _ => return None,
        })
    }
}

impl From<RejectReason> for Rejection {
    fn from(reason: RejectReason) -> Self {
        match reason {
            RejectReason::BlockEmpty => Self::Empty,
            RejectReason::BlockTooLarge { limit, .. } => Self::TooLarge {
                limit: u32::try_from(limit).unwrap_or(u32::MAX),
            },
            RejectReason::NotAdmitted => Self::NotAdmitted,
            RejectReason::NotDurable => Self::NotDurable,
            RejectReason::ChecksumMismatch => Self::Checksum,
            RejectReason::ForeignNamespace => Self::ForeignNamespace,
            RejectReason::ShardFenced => Self::ShardFenced,
            RejectReason::Closing => Self::Closing,
        }
    }
}

/// The number of a tier on the wire.
pub(crate) const fn tier_number(tier: Tier) -> u8 {
    match tier {
        Tier::Dram => 1,
        Tier::Nvme => 2,
    }
}

/// The tier of a number.
pub(crate) const fn tier_of(number: u8) -> Option<Tier> {
    match number {
        1 => Some(Tier::Dram),
        2 => Some(Tier::Nvme),
        _ => None,
    }
}

const fn unavailable_number(reason: UnavailableReason) -> u8 {
    match reason {
        UnavailableReason::ShardFenced => 1,
        UnavailableReason::Closing => 2,
        UnavailableReason::PinLimit => 3,
        UnavailableReason::NoRoom => 4,
        UnavailableReason::TierFailed => 5,
        UnavailableReason::ForeignNamespace => 6,
    }
}

const fn unavailable_of(number: u8) -> Option<UnavailableReason> {
    Some(match number {
        1 => UnavailableReason::ShardFenced,
        2 => UnavailableReason::Closing,
        3 => UnavailableReason::PinLimit,
        4 => UnavailableReason::NoRoom,
        5 => UnavailableReason::TierFailed,
        6 => UnavailableReason::ForeignNamespace,
        _ => return None,
    })
}

impl Codec<'_> for KeyStatus {
    const NAME: &'static str = "status";
    const LEN_MIN: usize = 8;

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let (code, detail, flags) = (reader.u8()?, reader.u8()?, reader.u8()?);
        reader.reserved(1)?;
        let argument = reader.u32()?;
        let durable = flags & DURABLE != 0;
        let status = match code {
            1 => Some(Self::Stored { durable }),
            2 => Some(Self::AlreadyExists { durable }),
            3 => Rejection::of(detail, argument).map(Self::Rejected),
            4 => Some(Self::Busy),
            5 => tier_of(detail).map(Self::Hit),
            6 => Some(Self::Miss),
            7 => unavailable_of(detail).map(Self::Unavailable),
            8 => Some(Self::Granted),
            16 => Some(Self::WrongShard { shard: argument }),
            17 => Some(Self::TimedOut),
            18 => Some(Self::Cancelled),
            //= docs/wire-protocol.md#WP-5
            _ => {
                let limit = Limit::Is("one of version 1");
                return Err(reader.wrong("status code", code.into(), limit));
            }
        };
        let limit = Limit::Is("one of its status");
        status.ok_or_else(|| reader.wrong("status detail", detail.into(), limit))
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let (code, detail, flags, argument) = self.parts();
        writer.put(&[code, detail, flags, 0]);
        writer.u32(argument);
    }
}
