//! Why a set of devices was not opened.

use std::io;

use super::SEGMENTS_PER_SHARD_MIN;
use crate::format::{DEVICES_MAX, DeviceId, FORMAT_VERSION, FormatError, OPEN_EPOCH_MAX};

/// Why a set was refused, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// No device was given.
    #[error("a set has at least one device, and none was given")]
    NoDevices,
    /// More than a set can list.
    #[error("the set would have {count} devices, absent ones included; {DEVICES_MAX} is the most")]
    TooManyDevices {
        /// Devices given, and absent ones.
        count: usize,
    },
    /// The medium failed.
    #[error("{device}: {doing} at byte {offset}: {cause}")]
    Medium {
        /// The device.
        device: String,
        /// What was asked of it.
        doing: &'static str,
        /// Where.
        offset: u64,
        /// What it said.
        cause: io::Error,
    },
    /// No random bits for ids.
    #[error("no random bits from the operating system: {0}")]
    Random(io::Error),
    /// Neither copy of the superblock can be read.
    #[error(
        "{device}: both copies of the superblock are damaged ({}; {}); it is not formatted over: \
         repair it, or erase it and have the set opened without it", .reasons[0], .reasons[1]
    )]
    SuperblocksDamaged {
        /// The device.
        device: String,
        /// What is wrong with each copy.
        reasons: Box<[FormatError; 2]>,
    },
    /// A later build wrote it.
    #[error(
        "{device}: its format is version {found}, and this build reads up to {FORMAT_VERSION}; \
         nothing was written: use the build that wrote it, or a later one"
    )]
    Version {
        /// The device.
        device: String,
        /// Its version.
        found: u32,
    },
    /// Two devices of different sets.
    #[error("{device} is of set {set}, and {other} is of set {other_set}: give those of one set")]
    Foreign {
        /// A device.
        device: String,
        /// Its set.
        set: DeviceId,
        /// The other device.
        other: String,
        /// The set of the other.
        other_set: DeviceId,
    },
    /// One device, or a copy of it, under two names.
    #[error("{device} and {other} are the same device {id}, or one is a copy of the other")]
    Twice {
        /// A name.
        device: String,
        /// Another name.
        other: String,
        /// Their id.
        id: DeviceId,
    },
    /// Shorter than it was.
    #[error("{device}: {len} bytes long, and {needed} when it was formatted: it was cut")]
    Truncated {
        /// The device.
        device: String,
        /// Its length.
        len: u64,
        /// The length that its superblock has.
        needed: u64,
    },
    /// A device of the set was not given.
    #[error(
        "device {id} of {len} bytes belongs to the set and was not given (last there in set \
         epoch {last_set_epoch}); give it, or have it accepted as missing or forgotten"
    )]
    Missing {
        /// Its id.
        id: DeviceId,
        /// Its length.
        len: u64,
        /// The set epoch when it was there last.
        last_set_epoch: u64,
    },
    /// The set went on without it and does not list it any more.
    #[error(
        "{device}: device {id} left the set (it knows set epoch {epoch}, the set is at \
         {set_epoch}); take it out of the configuration, or erase it to have it added as new"
    )]
    NotListed {
        /// The device.
        device: String,
        /// Its id.
        id: DeviceId,
        /// The set epoch that it knows.
        epoch: u64,
        /// The set epoch of the set.
        set_epoch: u64,
    },
    /// Two parts of the set were used without each other.
    #[error(
        "{device} (set epoch {epoch}) and {other} (set epoch {other_epoch}) were used without \
         each other and cannot be joined again: open the set with one of them, and erase the other"
    )]
    Diverged {
        /// A device.
        device: String,
        /// The set epoch that it knows.
        epoch: u64,
        /// The other.
        other: String,
        /// The set epoch that the other knows.
        other_epoch: u64,
    },
    /// Not enough segments for the shards.
    #[error(
        "{device}: {len} bytes hold {segments} segments of {segment_len} bytes, and {shards} \
         shards need {SEGMENTS_PER_SHARD_MIN} each: a device of {minimum} bytes or more, or \
         fewer shards"
    )]
    TooSmall {
        /// The device.
        device: String,
        /// Its length.
        len: u64,
        /// Segments that it has room for.
        segments: u32,
        /// Length of a segment.
        segment_len: u64,
        /// Count of shards.
        shards: u32,
        /// The shortest length that would do.
        minimum: u64,
    },
    /// Sectors that the format is not made for.
    #[error("{device}: sectors of {sector} bytes; the format needs 512 to 4096")]
    Sector {
        /// The device.
        device: String,
        /// Its sector length.
        sector: u32,
    },
    /// Nothing would be left to write to.
    #[error("all devices of the set are to be emptied: leave at least one to be used")]
    AllDraining,
    /// The set was opened as often as the format can count.
    #[error("the set was opened {OPEN_EPOCH_MAX} times, as often as can be; move to a new one")]
    OpenEpochsUsedUp,
    /// To be read only, and there is nothing to read.
    #[error("{device}: there is no superblock, and nothing may be written")]
    NotFormatted {
        /// The device.
        device: String,
    },
    /// The set was opened to be read only.
    #[error("the set was opened to be read only")]
    ReadOnly,
}
