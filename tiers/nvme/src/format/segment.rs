//! The head of a segment: whose it is, and what tells its structures from older ones.

use terrace_types::limits::SHARDS_MAX;

use super::bytes::{Fields, put, seal};
use super::error::{FormatError, Limit, Structure};
use super::geometry::{SEGMENT_LEN_MIN, SEGMENT_LEN_STEP};
use super::sequence::Sequence;
use super::superblock::DeviceId;
use super::{FORMAT_VERSION, UNIT_LEN};

const MAGIC: [u8; 8] = *b"TERRSEGM";

mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const NUMBER: usize = 12;
    pub(super) const DEVICE: usize = 16;
    pub(super) const SHARD: usize = 32;
    pub(super) const SHARDS: usize = 36;
    pub(super) const SEQUENCE: usize = 40;
    pub(super) const SALT: usize = 48;
    pub(super) const LEN: usize = 56;
    pub(super) const RESERVED: usize = 64;
    pub(super) const CHECKSUM: usize = 4088;
}

/// What every structure of a segment carries, and an earlier life of the space does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIdentity {
    /// Drawn when the segment was opened.
    pub sequence: Sequence,
    /// Random; a payload cannot guess it.
    pub salt: u64,
}

/// The first unit of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHead {
    /// The device that it was written to.
    pub device: DeviceId,
    /// Its number among the segments of the device.
    pub number: u32,
    /// The shard that wrote it.
    pub shard: u32,
    /// The count of shards then.
    pub shards: u32,
    /// Drawn when the segment was opened.
    pub sequence: Sequence,
    /// Drawn at random when the segment was opened.
    pub salt: u64,
    /// Length of the segment in bytes.
    pub len: u64,
}

impl SegmentHead {
    /// What the segment's structures carry.
    #[must_use]
    pub const fn identity(&self) -> SegmentIdentity {
        SegmentIdentity {
            sequence: self.sequence,
            salt: self.salt,
        }
    }

    /// Writes the head.
    ///
    /// # Panics
    /// When `out` is not one unit, or the shard is not below the count of shards.
    pub fn encode(&self, out: &mut [u8]) {
        assert_eq!(out.len(), UNIT_LEN, "a segment head is one unit");
        assert!(self.shard < self.shards, "no such shard");
        out.fill(0);
        put(out, 0, &MAGIC);
        put(out, at::VERSION, &FORMAT_VERSION.to_le_bytes());
        put(out, at::NUMBER, &self.number.to_le_bytes());
        put(out, at::DEVICE, &self.device.0);
        put(out, at::SHARD, &self.shard.to_le_bytes());
        put(out, at::SHARDS, &self.shards.to_le_bytes());
        put(out, at::SEQUENCE, &self.sequence.0.to_le_bytes());
        put(out, at::SALT, &self.salt.to_le_bytes());
        put(out, at::LEN, &self.len.to_le_bytes());
        seal(out);
    }

    /// Reads a head from the first unit of `bytes`.
    ///
    /// # Errors
    /// When it is none, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        //= docs/on-disk-format.md#OD-1
        let fields = Fields::new(Structure::SegmentHead, bytes);
        fields.check_magic(0, MAGIC)?;
        fields.check_checksum(at::CHECKSUM)?;
        let found = fields.u32(at::VERSION)?;
        if found != FORMAT_VERSION {
            let structure = Structure::SegmentHead;
            return Err(FormatError::Version { structure, found });
        }
        let head = Self {
            device: DeviceId(fields.id(at::DEVICE)?),
            number: fields.u32(at::NUMBER)?,
            shard: fields.u32(at::SHARD)?,
            shards: fields.u32(at::SHARDS)?,
            sequence: Sequence(fields.u64(at::SEQUENCE)?),
            salt: fields.u64(at::SALT)?,
            len: fields.u64(at::LEN)?,
        };
        let shards = u64::from(head.shards);
        fields.check("shard count", shards, Limit::AtLeast(1))?;
        fields.check("shard count", shards, Limit::AtMost(SHARDS_MAX as u64))?;
        fields.check("shard", u64::from(head.shard), Limit::AtMost(shards - 1))?;
        let len_min = Limit::AtLeast(SEGMENT_LEN_MIN);
        fields.check("segment length", head.len, len_min)?;
        let step = Limit::MultipleOf(SEGMENT_LEN_STEP);
        fields.check("segment length", head.len, step)?;
        Ok(head)
    }
}

const _: () = assert!(at::RESERVED == at::LEN + 8 && at::CHECKSUM == UNIT_LEN - 8);
const _: () = assert!(at::CHECKSUM - at::RESERVED == 4024);
