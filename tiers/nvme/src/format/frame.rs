//! The head of a frame: one batch of payloads, and where each of them lies.

use super::bytes::{Fields, put, seal};
use super::entries::{EntryList, EntryRef};
use super::error::{FormatError, Limit, Structure};
use super::segment::SegmentIdentity;
use super::table::{Entries, EntryTable, ListPlace};
use super::{UNIT_LEN, units};

const MAGIC: [u8; 8] = *b"TERRFRAM";

/// Longest head of a frame in bytes. It bounds what recovery reads on the word of one unit.
pub const FRAME_HEAD_LEN_MAX: u32 = 1 << 20;

/// Bytes of a head that hold no names and entries: the fixed fields and the checksum.
const FIXED_LEN: usize = at::LIST + 8;

mod at {
    pub(super) const HEAD_LEN: usize = 8;
    pub(super) const FRAME_UNITS: usize = 12;
    pub(super) const IDENTITY: usize = 16;
    pub(super) const PLACE: usize = 32;
    pub(super) const NUMBER: usize = 36;
    pub(super) const ENTRY_COUNT: usize = 40;
    pub(super) const NAME_COUNT: usize = 44;
    pub(super) const LIST_LEN: usize = 48;
    pub(super) const RESERVED: usize = 52;
    pub(super) const LIST: usize = 64;
}

/// Collects the entries of a frame, then writes its head.
pub struct FrameBuilder {
    list: EntryList,
    head_len: u32,
    segment: SegmentIdentity,
    place_units: u32,
    number: u32,
}

impl FrameBuilder {
    /// A frame whose head of `head_len` bytes lies `place_units` from the start of its segment.
    ///
    /// # Panics
    /// When `head_len` is not a multiple of a unit, or longer than [`FRAME_HEAD_LEN_MAX`].
    #[must_use]
    pub fn new(head_len: u32, segment: &SegmentIdentity, place_units: u32, number: u32) -> Self {
        assert!(head_len.is_multiple_of(UNIT_LEN as u32));
        assert!((UNIT_LEN as u32..=FRAME_HEAD_LEN_MAX).contains(&head_len));
        Self {
            list: EntryList::default(),
            head_len,
            segment: *segment,
            place_units,
            number,
        }
    }

    /// Bytes of names and entries that a head of `head_len` bytes holds.
    #[must_use]
    pub const fn capacity(head_len: u32) -> usize {
        (head_len as usize).saturating_sub(FIXED_LEN)
    }

    /// Length of the shortest head that holds `list_len` bytes of names and entries.
    #[must_use]
    pub const fn head_len_for(list_len: usize) -> u32 {
        (list_len + FIXED_LEN).next_multiple_of(UNIT_LEN) as u32
    }

    /// Whether one more entry fits.
    #[must_use]
    pub fn fits(&self, namespace: &str, key: &[u8]) -> bool {
        let len = self.list.len_with(namespace, key);
        len.is_some_and(|len| len <= Self::capacity(self.head_len))
    }

    /// Takes an entry in.
    ///
    /// # Panics
    /// When it does not fit, or breaks the format's limits.
    pub fn push(&mut self, entry: &EntryRef<'_>) {
        assert!(self.fits(entry.namespace, entry.key), "the head is full");
        self.list.push(entry);
    }

    /// Entries taken in.
    #[must_use]
    pub const fn entry_count(&self) -> u32 {
        self.list.count()
    }

    /// Length of the head in bytes.
    #[must_use]
    pub const fn head_len(&self) -> u32 {
        self.head_len
    }

    /// Writes the head of a frame of `frame_units`, head included.
    ///
    /// # Panics
    /// When `out` is not as long as the head, or a payload lies outside the frame.
    pub fn finish(self, frame_units: u32, out: &mut [u8]) {
        assert_eq!(out.len(), self.head_len as usize);
        assert!(frame_units >= units(self.head_len));
        assert!(self.list.payload_end() <= self.place_units + frame_units);
        out.fill(0);
        put(out, 0, &MAGIC);
        put(out, at::HEAD_LEN, &self.head_len.to_le_bytes());
        put(out, at::FRAME_UNITS, &frame_units.to_le_bytes());
        put(out, at::IDENTITY, &self.segment.sequence.0.to_le_bytes());
        put(out, at::IDENTITY + 8, &self.segment.salt.to_le_bytes());
        put(out, at::PLACE, &self.place_units.to_le_bytes());
        put(out, at::NUMBER, &self.number.to_le_bytes());
        put(out, at::ENTRY_COUNT, &self.list.count().to_le_bytes());
        put(out, at::NAME_COUNT, &self.list.name_count().to_le_bytes());
        let list_len = self.list.len_bytes() as u32;
        put(out, at::LIST_LEN, &list_len.to_le_bytes());
        self.list.encode(&mut out[at::LIST..]);
        seal(out);
    }
}

/// A frame's head that was read and checked.
#[derive(Clone, Debug)]
pub struct FrameView<'a> {
    table: EntryTable<'a>,
    /// Length of the head in bytes.
    pub head_len: u32,
    /// Length of the frame with its head, in units.
    pub frame_units: u32,
    /// Its number within the segment, from 0.
    pub number: u32,
}

impl<'a> FrameView<'a> {
    /// Bytes to read before the head that `first_unit` begins can be decoded.
    ///
    /// # Errors
    /// When it begins none.
    pub fn head_len_hint(first_unit: &[u8]) -> Result<u32, FormatError> {
        let fields = Fields::new(Structure::FrameHead, first_unit);
        fields.check_magic(0, MAGIC)?;
        let head_len = fields.u32(at::HEAD_LEN)?;
        let len = u64::from(head_len);
        fields.check("length", len, Limit::AtLeast(UNIT_LEN as u64))?;
        fields.check("length", len, Limit::AtMost(u64::from(FRAME_HEAD_LEN_MAX)))?;
        fields.check("length", len, Limit::MultipleOf(UNIT_LEN as u64))?;
        Ok(head_len)
    }

    /// Reads the head that `bytes` begin with, `place_units` from the start of a segment of
    /// `segment_units`.
    ///
    /// # Errors
    /// When it is none, damaged, of another segment or of another place.
    pub fn decode(
        bytes: &'a [u8],
        expected: &SegmentIdentity,
        place_units: u32,
        segment_units: u32,
    ) -> Result<Self, FormatError> {
        //= docs/on-disk-format.md#OD-1
        let head_len = Self::head_len_hint(bytes)?;
        let fields = Fields::new(Structure::FrameHead, bytes);
        let head = fields.slice(0, head_len as usize)?;
        let fields = Fields::new(Structure::FrameHead, head);
        //= docs/on-disk-format.md#OD-4
        fields.check_identity(at::IDENTITY, expected)?;
        let place = u64::from(fields.u32(at::PLACE)?);
        fields.check("place", place, Limit::Exactly(u64::from(place_units)))?;
        let checksum_at = head.len() - 8;
        fields.check_checksum(checksum_at)?;

        let frame_units = fields.u32(at::FRAME_UNITS)?;
        let first_payload = u64::from(units(head_len));
        let frame_len = u64::from(frame_units);
        let own = Limit::AtLeast(first_payload);
        fields.check("length of the frame", frame_len, own)?;
        let room = u64::from(segment_units.saturating_sub(place_units));
        fields.check("length of the frame", frame_len, Limit::AtMost(room))?;
        let list = ListPlace {
            start: at::LIST,
            len: fields.u32(at::LIST_LEN)? as usize,
            count: fields.u32(at::ENTRY_COUNT)?,
            name_count: fields.u32(at::NAME_COUNT)?,
        };
        let capacity = Limit::AtMost((checksum_at - at::LIST) as u64);
        fields.check("bytes of names and entries", list.len as u64, capacity)?;
        let payloads = place_units + units(head_len)..place_units + frame_units;
        Ok(Self {
            table: EntryTable::decode(&fields, &list, &payloads)?,
            head_len,
            frame_units,
            number: fields.u32(at::NUMBER)?,
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
const _: () = assert!(FRAME_HEAD_LEN_MAX.is_multiple_of(UNIT_LEN as u32));
