//! The records of replies.

use terrace_types::limits::{BLOCK_LEN_MAX, KEY_LEN_MAX};
use terrace_types::{Checksum, KeyHash, Tier};

use crate::bytes::{Reader, Writer};
use crate::entry::LeaseId;
use crate::error::{Limit, WireError};
use crate::records::Codec;
use crate::request::NamespaceNumber;
use crate::status::{KeyStatus, tier_number, tier_of};

/// The answer to one entry of a get. Its part of the block is among the frame's values, and is not
/// handed out before it was compared with the checksum.
//= docs/wire-protocol.md#WP-18
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRecord {
    /// What became of it.
    pub status: KeyStatus,
    /// Length of the block in bytes; 0 unless it is a hit.
    pub block_len: u32,
    /// Bytes of it in this frame.
    pub len: u32,
    /// The checksum of the block if that is all of it, else of the part.
    pub checksum: Checksum,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether it is there.
    pub status: KeyStatus,
    /// Length of the block in bytes; 0 unless it is a hit.
    pub block_len: u32,
    /// [`Facts::DURABLE`] and others, together.
    pub bits: u32,
    /// The checksum of the block.
    pub checksum: Checksum,
}

impl Facts {
    /// The block survives kill -9 and power loss.
    pub const DURABLE: u32 = 1;
    /// It is in DRAM.
    pub const IN_DRAM: u32 = 1 << 1;
    /// It is on a device.
    pub const ON_NVME: u32 = 1 << 2;
    /// Somebody has it pinned.
    pub const PINNED: u32 = 1 << 3;
    /// Somebody has it leased.
    pub const LEASED: u32 = 1 << 4;
}

/// The answer to one entry of a lease or a renewal.
//= docs/wire-protocol.md#WP-21
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Whether it was granted.
    pub status: KeyStatus,
    /// The lease; 0 when there is none.
    pub id: LeaseId,
    /// Length of the block in bytes.
    pub block_len: u32,
    /// How long it holds, in ms from the arrival of the request.
    pub duration_ms: u32,
}

/// The answer to one entry of a locate: a lease, and where the bytes lie; or the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The lease. None when the bytes are in this frame.
    pub lease: LeaseRecord,
    /// The checksum of the block.
    pub checksum: Checksum,
    /// Address for RDMA, or offset in a shared region.
    pub address: u64,
    /// The key of the memory region, or the number of a shared region.
    pub rkey: u32,
    /// Tells this block from later ones in the same slot.
    pub generation: u32,
    /// Bytes of the block in this frame: none or all.
    pub inline_len: u32,
}

/// A block that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedBlock<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The fastest tier that holds it.
    pub tier: Tier,
    /// Whether it survives kill -9 and power loss.
    pub durable: bool,
    /// Its length in bytes.
    pub len: u32,
}

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Stored in DRAM by a put.
    Stored = 0,
    /// Given up; no tier holds it.
    Evicted = 1,
    /// Removed or replaced by a caller.
    Removed = 2,
    /// Copied to the tier below and dropped from DRAM.
    Demoted = 3,
    /// Copied from the tier below into DRAM.
    Promoted = 4,
    /// Given up by the tier below and still in DRAM.
    Undurable = 5,
}

impl EventKind {
    /// All kinds, by number.
    pub const ALL: [Self; 6] = [
        Self::Stored,
        Self::Evicted,
        Self::Removed,
        Self::Demoted,
        Self::Promoted,
        Self::Undurable,
    ];

    /// Its name in the protocol's document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Evicted => "evicted",
            Self::Removed => "removed",
            Self::Demoted => "demoted",
            Self::Promoted => "promoted",
            Self::Undurable => "undurable",
        }
    }

    /// Its bit in the kinds that a subscription wants.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Something that happened to a block.
//= docs/wire-protocol.md#WP-22
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord<'a> {
    /// Its number among the shard's events.
    pub sequence: u64,
    /// The hash of namespace and key.
    pub hash: KeyHash,
    /// The namespace, by its number on this connection.
    pub namespace: NamespaceNumber,
    /// What happened.
    pub kind: EventKind,
    /// The block's key.
    pub key: &'a [u8],
}

fn check_block_len(reader: &Reader<'_>, len: u32) -> Result<(), WireError> {
    reader.check("block length", len.into(), Limit::AtMost(BLOCK_LEN_MAX))
}

fn check_key(writer: &mut Writer<'_>, name: &'static str, key: &[u8]) {
    let limit = (1, KEY_LEN_MAX as u64);
    writer.check_range(name, "key length", key.len() as u64, limit);
}

fn read_key_len(reader: &mut Reader<'_>) -> Result<usize, WireError> {
    let len = reader.u16()?;
    reader.check_range("key length", len.into(), 1, KEY_LEN_MAX as u64)?;
    Ok(usize::from(len))
}

/// Only a hit has bytes, and a block has no more than its length.
fn check_value(
    reader: &Reader<'_>,
    status: KeyStatus,
    block_len: u32,
    len: u32,
) -> Result<(), WireError> {
    let is_hit = matches!(status, KeyStatus::Hit(_));
    let max = if is_hit { block_len } else { 0 };
    let limit = Limit::AtMost(max.into());
    reader.check("bytes in this frame", len.into(), limit)
}

impl Codec<'_> for ValueRecord {
    const NAME: &'static str = "value";
    const LEN_MIN: usize = 24;

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let status = KeyStatus::read(reader)?;
        let block_len = reader.u32()?;
        check_block_len(reader, block_len)?;
        let len = reader.u32()?;
        check_value(reader, status, block_len, len)?;
        Ok(Self {
            status,
            block_len,
            len,
            checksum: Checksum(reader.u64()?),
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let limit = Limit::AtMost(self.block_len.into());
        writer.check(Self::NAME, "bytes in this frame", self.len.into(), limit);
        self.status.write(writer);
        writer.u32(self.block_len);
        writer.u32(self.len);
        writer.u64(self.checksum.0);
    }

    //= docs/wire-protocol.md#WP-3
    fn value_len(&self) -> u32 {
        self.len
    }
}

impl Codec<'_> for Facts {
    const NAME: &'static str = "facts";
    const LEN_MIN: usize = 24;

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let status = KeyStatus::read(reader)?;
        let block_len = reader.u32()?;
        check_block_len(reader, block_len)?;
        Ok(Self {
            status,
            block_len,
            bits: reader.u32()?,
            checksum: Checksum(reader.u64()?),
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        self.status.write(writer);
        writer.u32(self.block_len);
        writer.u32(self.bits);
        writer.u64(self.checksum.0);
    }
}

impl Codec<'_> for LeaseRecord {
    const NAME: &'static str = "lease";
    const LEN_MIN: usize = 24;

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let status = KeyStatus::read(reader)?;
        let id = LeaseId(reader.u64()?);
        let block_len = reader.u32()?;
        check_block_len(reader, block_len)?;
        Ok(Self {
            status,
            id,
            block_len,
            duration_ms: reader.u32()?,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        self.status.write(writer);
        writer.u64(self.id.0);
        writer.u32(self.block_len);
        writer.u32(self.duration_ms);
    }
}

impl Codec<'_> for Descriptor {
    const NAME: &'static str = "descriptor";
    const LEN_MIN: usize = 56;

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let descriptor = Self {
            lease: LeaseRecord::read(reader)?,
            checksum: Checksum(reader.u64()?),
            address: reader.u64()?,
            rkey: reader.u32()?,
            generation: reader.u32()?,
            inline_len: reader.u32()?,
        };
        reader.reserved(4)?;
        let (lease, len) = (&descriptor.lease, descriptor.inline_len);
        check_value(reader, lease.status, lease.block_len, len)?;
        if len > 0 {
            let limit = Limit::Exactly(lease.block_len.into());
            reader.check("bytes in this frame", len.into(), limit)?;
        }
        Ok(descriptor)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        self.lease.write(writer);
        writer.u64(self.checksum.0);
        writer.u64(self.address);
        writer.u32(self.rkey);
        writer.u32(self.generation);
        writer.u32(self.inline_len);
        writer.zeros(4);
    }

    //= docs/wire-protocol.md#WP-3
    fn value_len(&self) -> u32 {
        self.inline_len
    }
}

impl<'a> Codec<'a> for ListedBlock<'a> {
    const NAME: &'static str = "listed block";
    const LEN_MIN: usize = 16;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let key_len = read_key_len(reader)?;
        let tier = reader.u8()?;
        let tier = tier_of(tier)
            .ok_or_else(|| reader.wrong("tier", tier.into(), Limit::Is("one of version 1")))?;
        let durable = reader.u8()? & 1 != 0;
        let len = reader.u32()?;
        check_block_len(reader, len)?;
        Ok(Self {
            key: reader.padded(key_len)?,
            tier,
            durable,
            len,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        check_key(writer, Self::NAME, self.key);
        writer.u16(self.key.len() as u16);
        writer.u8(tier_number(self.tier));
        writer.u8(u8::from(self.durable));
        writer.u32(self.len);
        writer.padded(self.key);
    }
}

impl<'a> Codec<'a> for EventRecord<'a> {
    const NAME: &'static str = "event";
    const LEN_MIN: usize = 32;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let sequence = reader.u64()?;
        let hash = KeyHash(reader.u64()?);
        let namespace = NamespaceNumber(reader.u16()?);
        let key_len = read_key_len(reader)?;
        let kind = reader.u8()?;
        let known = EventKind::ALL.get(usize::from(kind)).copied();
        let limit = Limit::Is("one of version 1");
        let kind = known.ok_or_else(|| reader.wrong("kind", kind.into(), limit))?;
        reader.reserved(3)?;
        Ok(Self {
            sequence,
            hash,
            namespace,
            kind,
            key: reader.padded(key_len)?,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        check_key(writer, Self::NAME, self.key);
        writer.u64(self.sequence);
        writer.u64(self.hash.0);
        writer.u16(self.namespace.0);
        writer.u16(self.key.len() as u16);
        writer.u8(self.kind as u8);
        writer.zeros(3);
        writer.padded(self.key);
    }
}
