//! The footer of a sealed segment: the entries of all its frames.

use super::bytes::{Fields, put, seal};
use super::entries::{EntryList, EntryRef};
use super::error::{FormatError, Limit, Structure};
use super::segment::SegmentIdentity;
use super::sequence::Sequence;
use super::table::{Entries, EntryTable, ListPlace};
use super::{UNIT_LEN, units};

const MAGIC: [u8; 8] = *b"TERRFOOT";
const TAIL_MAGIC: [u8; 8] = *b"TERRTAIL";

/// Bytes at the end of a footer from which its start is found.
const TAIL_LEN: usize = 32;

mod at {
    pub(super) const LEN: usize = 8;
    pub(super) const END: usize = 12;
    pub(super) const IDENTITY: usize = 16;
    pub(super) const LOWEST: usize = 32;
    pub(super) const ENTRY_COUNT: usize = 40;
    pub(super) const NAME_COUNT: usize = 44;
    pub(super) const LIST_LEN: usize = 48;
    pub(super) const RESERVED: usize = 52;
    pub(super) const LIST: usize = 64;
    // From the start of the tail.
    pub(super) const TAIL_FOOTER_LEN: usize = 8;
    pub(super) const TAIL_SEQUENCE: usize = 16;
    pub(super) const TAIL_CHECKSUM: usize = 24;
}

/// Collects the entries of a segment over its life, then writes its footer.
#[derive(Default)]
pub struct FooterBuilder {
    list: EntryList,
}

impl FooterBuilder {
    /// A footer without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes an entry in.
    ///
    /// # Panics
    /// When it breaks the format's limits.
    pub fn push(&mut self, entry: &EntryRef<'_>) {
        self.list.push(entry);
    }

    /// Length of the footer in bytes, as it is now.
    #[must_use]
    pub const fn len_bytes(&self) -> u32 {
        footer_len(self.list.len_bytes())
    }

    /// Length of the footer in bytes after one more entry; `u32::MAX` when it can take no more
    /// names.
    #[must_use]
    pub fn len_with(&self, namespace: &str, key: &[u8]) -> u32 {
        let len = self.list.len_with(namespace, key);
        len.map_or(u32::MAX, footer_len)
    }

    /// Length of the footer in bytes after `list_len` more bytes of names and entries; see
    /// [`super::name_len`] and [`super::entry_len`].
    #[must_use]
    pub const fn len_after(&self, list_len: usize) -> u32 {
        footer_len(self.list.len_bytes() + list_len)
    }

    /// Entries taken in.
    #[must_use]
    pub const fn entry_count(&self) -> u32 {
        self.list.count()
    }

    /// Writes the footer of a segment whose last frame ends at `end_units`.
    ///
    /// # Panics
    /// When `out` is not [`Self::len_bytes`] long, or a payload lies behind `end_units`.
    pub fn finish(&self, end_units: u32, identity: &SegmentIdentity, out: &mut [u8]) {
        let len = self.len_bytes();
        assert_eq!(out.len(), len as usize);
        assert!(end_units >= 1, "the segment's head is before its frames");
        assert!(self.list.payload_end() <= end_units);
        out.fill(0);
        put(out, 0, &MAGIC);
        put(out, at::LEN, &len.to_le_bytes());
        put(out, at::END, &end_units.to_le_bytes());
        put(out, at::IDENTITY, &identity.sequence.0.to_le_bytes());
        put(out, at::IDENTITY + 8, &identity.salt.to_le_bytes());
        let lowest = self.list.lowest().unwrap_or(NO_ENTRY);
        put(out, at::LOWEST, &lowest.0.to_le_bytes());
        put(out, at::ENTRY_COUNT, &self.list.count().to_le_bytes());
        put(out, at::NAME_COUNT, &self.list.name_count().to_le_bytes());
        let list_len = self.list.len_bytes() as u32;
        put(out, at::LIST_LEN, &list_len.to_le_bytes());
        self.list.encode(&mut out[at::LIST..]);
        let tail = len as usize - TAIL_LEN;
        put(out, tail, &TAIL_MAGIC);
        put(out, tail + at::TAIL_FOOTER_LEN, &len.to_le_bytes());
        let sequence = identity.sequence.0.to_le_bytes();
        put(out, tail + at::TAIL_SEQUENCE, &sequence);
        seal(out);
    }
}

/// The lowest sequence of a footer without entries.
const NO_ENTRY: Sequence = Sequence(u64::MAX);

const fn footer_len(list_len: usize) -> u32 {
    let len = (at::LIST + list_len + TAIL_LEN).next_multiple_of(UNIT_LEN);
    if len > u32::MAX as usize {
        u32::MAX
    } else {
        len as u32
    }
}

/// Bytes to read from the end of a segment of `segment_units` before the footer that its last
/// unit ends can be decoded.
///
/// # Errors
/// When the unit ends none, or that of another life of the segment.
pub fn footer_len_from_tail(
    last_unit: &[u8],
    identity: &SegmentIdentity,
    segment_units: u32,
) -> Result<u32, FormatError> {
    let start = last_unit.len().saturating_sub(TAIL_LEN);
    let tail = last_unit.get(start..).unwrap_or_default();
    let fields = Fields::new(Structure::Footer, tail);
    fields.check_magic(0, TAIL_MAGIC)?;
    //= docs/on-disk-format.md#OD-4
    let sequence = fields.u64(at::TAIL_SEQUENCE)?;
    let expected = Limit::Exactly(identity.sequence.0);
    fields.check("segment sequence", sequence, expected)?;
    let len = fields.u32(at::TAIL_FOOTER_LEN)?;
    check_len(&fields, len, segment_units)?;
    Ok(len)
}

/// A footer is at least a unit, and leaves the segment's head alone.
fn check_len(fields: &Fields<'_>, len: u32, segment_units: u32) -> Result<(), FormatError> {
    let room = u64::from(segment_units.saturating_sub(1)) * UNIT_LEN as u64;
    let len = u64::from(len);
    fields.check("length", len, Limit::AtLeast(UNIT_LEN as u64))?;
    fields.check("length", len, Limit::MultipleOf(UNIT_LEN as u64))?;
    fields.check("length", len, Limit::AtMost(room))
}

/// A footer that was read and checked.
#[derive(Clone, Debug)]
pub struct FooterView<'a> {
    table: EntryTable<'a>,
    /// End of the last frame, in units from the start of the segment.
    pub end_units: u32,
    /// The lowest sequence of an entry; the highest there is when it has none.
    pub lowest: Sequence,
}

impl<'a> FooterView<'a> {
    /// Reads the footer that `bytes` are, all of them; they end where the segment of
    /// `segment_units` ends.
    ///
    /// # Errors
    /// When it is none, damaged, or of another life of the segment.
    pub fn decode(
        bytes: &'a [u8],
        identity: &SegmentIdentity,
        segment_units: u32,
    ) -> Result<Self, FormatError> {
        //= docs/on-disk-format.md#OD-1
        let fields = Fields::new(Structure::Footer, bytes);
        fields.check_magic(0, MAGIC)?;
        let len = fields.u32(at::LEN)?;
        check_len(&fields, len, segment_units)?;
        fields.check("length", u64::from(len), Limit::Exactly(bytes.len() as u64))?;
        //= docs/on-disk-format.md#OD-4
        fields.check_identity(at::IDENTITY, identity)?;
        let tail_len = footer_len_from_tail(bytes, identity, segment_units)?;
        let expected = Limit::Exactly(u64::from(len));
        fields.check("length in the tail", u64::from(tail_len), expected)?;
        let tail = bytes.len() - TAIL_LEN;
        fields.check_checksum(tail + at::TAIL_CHECKSUM)?;

        let end_units = fields.u32(at::END)?;
        let end = u64::from(end_units);
        fields.check("end of the last frame", end, Limit::AtLeast(1))?;
        let free_end = u64::from(segment_units - units(len));
        fields.check("end of the last frame", end, Limit::AtMost(free_end))?;
        let list = ListPlace {
            start: at::LIST,
            len: fields.u32(at::LIST_LEN)? as usize,
            count: fields.u32(at::ENTRY_COUNT)?,
            name_count: fields.u32(at::NAME_COUNT)?,
        };
        let capacity = Limit::AtMost((tail - at::LIST) as u64);
        fields.check("bytes of names and entries", list.len as u64, capacity)?;
        let table = EntryTable::decode(&fields, &list, &(1..end_units))?;
        let sequences = table.entries().map(|entry| entry.sequence);
        let lowest = sequences.min().unwrap_or(NO_ENTRY);
        let found = fields.u64(at::LOWEST)?;
        fields.check("lowest sequence", found, Limit::Exactly(lowest.0))?;
        Ok(Self {
            table,
            end_units,
            lowest,
        })
    }

    /// The entries, in the order they were written.
    #[must_use]
    pub fn entries(&self) -> Entries<'_, 'a> {
        self.table.entries()
    }

    /// Count of entries.
    #[must_use]
    pub const fn entry_count(&self) -> u32 {
        self.table.count()
    }
}

const _: () = assert!(at::RESERVED + 12 == at::LIST);
const _: () = assert!(at::TAIL_CHECKSUM + 8 == TAIL_LEN);
