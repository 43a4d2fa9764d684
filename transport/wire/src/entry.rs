//! The entries of requests.

use terrace_types::limits::{BLOCK_LEN_MAX, KEY_LEN_MAX};
use terrace_types::{Access, BlockKind, Checksum, Hint, KeyHash, RequestContext};

use crate::bytes::{Reader, Writer};
use crate::error::{Limit, WireError};
use crate::records::Codec;
use crate::verb::EntryKind;

const HAS_PARENT: u8 = 1;

/// A key, and what its caller knows of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEntry<'a> {
    /// The key, 1 to 512 bytes.
    pub key: &'a [u8],
    /// What is known of the block.
    pub hint: Hint,
}

/// A key, and what part of its block is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetEntry<'a> {
    /// The key, 1 to 512 bytes.
    pub key: &'a [u8],
    /// What is known of the block.
    pub hint: Hint,
    /// First byte wanted.
    pub offset: u32,
    /// Most bytes wanted; `u32::MAX` for all.
    pub len: u32,
}

/// A key, and the value that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutEntry<'a> {
    /// The key, 1 to 512 bytes.
    pub key: &'a [u8],
    /// What is known of the block.
    pub hint: Hint,
    /// Length of the value in bytes, 1 to 128 MiB.
    pub len: u32,
    /// The checksum of the value. Of no meaning in a `put_begin`.
    pub checksum: Checksum,
}

/// A key, and where in the client's memory the value that goes with it lies.
//= docs/wire-protocol.md#WP-29
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullEntry<'a> {
    /// What a put of it would say.
    pub put: PutEntry<'a>,
    /// The region's id in the client's transfer engine: its slot, and its epoch.
    pub slot: u32,
    /// See `slot`.
    pub epoch: u64,
    /// The value's first byte in the region.
    pub offset: u64,
}

/// One access that a request will make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessEntry {
    /// Hash of the key.
    pub id: KeyHash,
    /// What is known of the block.
    pub hint: Hint,
    /// Length of the value in bytes; 0 when it is not known.
    pub len: u32,
}

/// The number of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(pub u64);

impl<'a> KeyEntry<'a> {
    /// A key of whose block nothing is known.
    #[must_use]
    pub fn plain(key: &'a [u8]) -> Self {
        let hint = Hint::default();
        Self { key, hint }
    }
}

impl<'a> GetEntry<'a> {
    /// All of the block.
    #[must_use]
    pub const fn whole(key: &'a [u8], hint: Hint) -> Self {
        Self {
            key,
            hint,
            offset: 0,
            len: u32::MAX,
        }
    }

    /// What this asks of a block of `block_len` bytes, when its frame has room for `room` more.
    //= docs/wire-protocol.md#WP-19
    #[must_use]
    pub fn part(&self, block_len: u32, room: u32) -> std::ops::Range<u32> {
        let start = self.offset.min(block_len);
        let len = self.len.min(block_len - start).min(room);
        start..start + len
    }
}

impl<'a> PutEntry<'a> {
    /// All but the key, and how long that is.
    fn read_fixed(reader: &mut Reader<'a>) -> Result<(usize, Self), WireError> {
        let (key_len, hint) = read_hint(reader)?;
        let len = reader.u32()?;
        reader.check_range("value length", len.into(), 1, BLOCK_LEN_MAX)?;
        reader.reserved(4)?;
        let put = Self {
            key: &[],
            hint,
            len,
            checksum: Checksum(reader.u64()?),
        };
        Ok((key_len, put))
    }

    fn write_fixed(&self, name: &'static str, writer: &mut Writer<'_>) {
        write_hint(writer, name, self.key, &self.hint);
        let limit = (1, BLOCK_LEN_MAX);
        writer.check_range(name, "value length", self.len.into(), limit);
        writer.u32(self.len);
        writer.zeros(4);
        writer.u64(self.checksum.0);
    }
}

/// Where a value of `len` bytes may begin, so that its end is a number too.
fn last_offset(len: u32) -> Limit {
    Limit::AtMost(u64::MAX - u64::from(len))
}

impl AccessEntry {
    /// The access as a policy sees it.
    #[must_use]
    pub const fn access(&self, context: RequestContext) -> Access {
        Access {
            id: self.id,
            len: self.len,
            hint: self.hint,
            context,
        }
    }
}

/// The fixed part of a key entry: the key's length and the hint.
fn read_hint(reader: &mut Reader<'_>) -> Result<(usize, Hint), WireError> {
    let key_len = reader.u16()?;
    reader.check_range("key length", key_len.into(), 1, KEY_LEN_MAX as u64)?;
    let kind = read_kind(reader)?;
    let flags = read_flags(reader)?;
    let depth = reader.u32()?;
    let parent = KeyHash(reader.u64()?);
    let parent = (flags & HAS_PARENT != 0).then_some(parent);
    let hint = Hint {
        parent,
        depth,
        kind,
    };
    Ok((usize::from(key_len), hint))
}

fn write_hint(writer: &mut Writer<'_>, name: &'static str, key: &[u8], hint: &Hint) {
    let limit = (1, KEY_LEN_MAX as u64);
    writer.check_range(name, "key length", key.len() as u64, limit);
    writer.u16(key.len() as u16);
    writer.u8(hint.kind as u8);
    writer.u8(u8::from(hint.parent.is_some()));
    writer.u32(hint.depth);
    writer.u64(hint.parent.map_or(0, |parent| parent.0));
}

fn read_kind(reader: &mut Reader<'_>) -> Result<BlockKind, WireError> {
    //= docs/wire-protocol.md#WP-5
    match reader.u8()? {
        0 => Ok(BlockKind::Unknown),
        1 => Ok(BlockKind::Full),
        2 => Ok(BlockKind::Tail),
        other => Err(reader.wrong("block kind", other.into(), Limit::AtMost(2))),
    }
}

fn read_flags(reader: &mut Reader<'_>) -> Result<u8, WireError> {
    let flags = reader.u8()?;
    let unknown = flags & !HAS_PARENT;
    reader.check("unknown flags", unknown.into(), Limit::Exactly(0))?;
    Ok(flags)
}

impl<'a> Codec<'a> for KeyEntry<'a> {
    const NAME: &'static str = "key entry";
    const LEN_MIN: usize = 24;
    const ENTRY: EntryKind = EntryKind::Key;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let (key_len, hint) = read_hint(reader)?;
        let key = reader.padded(key_len)?;
        Ok(Self { key, hint })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        write_hint(writer, Self::NAME, self.key, &self.hint);
        writer.padded(self.key);
    }
}

impl<'a> Codec<'a> for GetEntry<'a> {
    const NAME: &'static str = "get entry";
    const LEN_MIN: usize = 32;
    const ENTRY: EntryKind = EntryKind::Get;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let (key_len, hint) = read_hint(reader)?;
        Ok(Self {
            offset: reader.u32()?,
            len: reader.u32()?,
            key: reader.padded(key_len)?,
            hint,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        write_hint(writer, Self::NAME, self.key, &self.hint);
        writer.u32(self.offset);
        writer.u32(self.len);
        writer.padded(self.key);
    }
}

impl<'a> Codec<'a> for PutEntry<'a> {
    const NAME: &'static str = "put entry";
    const LEN_MIN: usize = 40;
    const ENTRY: EntryKind = EntryKind::Put;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let (key_len, put) = Self::read_fixed(reader)?;
        let key = reader.padded(key_len)?;
        Ok(Self { key, ..put })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        self.write_fixed(Self::NAME, writer);
        writer.padded(self.key);
    }

    //= docs/wire-protocol.md#WP-3
    fn value_len(&self) -> u32 {
        self.len
    }
}

impl<'a> Codec<'a> for PullEntry<'a> {
    const NAME: &'static str = "pull entry";
    const LEN_MIN: usize = 64;
    const ENTRY: EntryKind = EntryKind::Pull;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let (key_len, put) = PutEntry::read_fixed(reader)?;
        let slot = reader.u32()?;
        reader.reserved(4)?;
        let epoch = reader.u64()?;
        let offset = reader.u64()?;
        reader.check("offset", offset, last_offset(put.len))?;
        let key = reader.padded(key_len)?;
        Ok(Self {
            put: PutEntry { key, ..put },
            slot,
            epoch,
            offset,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        self.put.write_fixed(Self::NAME, writer);
        let limit = last_offset(self.put.len);
        writer.check(Self::NAME, "offset", self.offset, limit);
        writer.u32(self.slot);
        writer.zeros(4);
        writer.u64(self.epoch);
        writer.u64(self.offset);
        writer.padded(self.put.key);
    }
}

impl Codec<'_> for AccessEntry {
    const NAME: &'static str = "access";
    const LEN_MIN: usize = 32;
    const ENTRY: EntryKind = EntryKind::Access;

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let id = KeyHash(reader.u64()?);
        let parent = KeyHash(reader.u64()?);
        let depth = reader.u32()?;
        let len = reader.u32()?;
        reader.check("value length", len.into(), Limit::AtMost(BLOCK_LEN_MAX))?;
        let kind = read_kind(reader)?;
        let flags = read_flags(reader)?;
        reader.reserved(6)?;
        let hint = Hint {
            parent: (flags & HAS_PARENT != 0).then_some(parent),
            depth,
            kind,
        };
        Ok(Self { id, hint, len })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let limit = Limit::AtMost(BLOCK_LEN_MAX);
        writer.check(Self::NAME, "value length", self.len.into(), limit);
        writer.u64(self.id.0);
        writer.u64(self.hint.parent.map_or(0, |parent| parent.0));
        writer.u32(self.hint.depth);
        writer.u32(self.len);
        writer.u8(self.hint.kind as u8);
        writer.u8(u8::from(self.hint.parent.is_some()));
        writer.zeros(6);
    }
}

impl Codec<'_> for LeaseId {
    const NAME: &'static str = "lease id";
    const LEN_MIN: usize = 8;
    const ENTRY: EntryKind = EntryKind::LeaseId;

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self(reader.u64()?))
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.u64(self.0);
    }
}
