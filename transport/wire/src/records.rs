//! Records that follow each other in a body: checked once when the body is decoded, then read
//! again by an iterator that cannot fail.

use std::fmt;
use std::marker::PhantomData;

use crate::bytes::{Reader, Writer};
use crate::error::{Limit, WireError};
use crate::verb::EntryKind;

/// What entries of requests and records of replies can do.
pub(crate) trait Codec<'a>: Copy {
    /// Its name in the protocol's document.
    const NAME: &'static str;
    /// Bytes of the shortest one.
    const LEN_MIN: usize;
    /// Of which verbs' requests it is an entry.
    const ENTRY: EntryKind = EntryKind::None;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError>;

    fn write(&self, writer: &mut Writer<'_>);

    /// Bytes that it has among the frame's values.
    fn value_len(&self) -> u32 {
        0
    }
}

/// Something that a body holds many of. Implemented here only.
#[expect(
    private_bounds,
    reason = "how a record is read and written is nobody else's business"
)]
pub trait Record<'a>: Codec<'a> {}

impl<'a, R: Codec<'a>> Record<'a> for R {}

/// The records of a body.
#[derive(Clone, Copy)]
pub struct Records<'a, R> {
    bytes: &'a [u8],
    count: u32,
    values_len: u64,
    kind: PhantomData<R>,
}

impl<'a, R: Record<'a>> Records<'a, R> {
    /// Checks `count` records.
    pub(crate) fn read(reader: &mut Reader<'a>, count: u32) -> Result<Self, WireError> {
        // Whoever lies about the count is told before anything is walked.
        let max = (reader.left() / R::LEN_MIN) as u64;
        reader.check("count of entries", count.into(), Limit::AtMost(max))?;
        let start = reader.at();
        let mut values_len = 0;
        reader.within(R::NAME);
        for _ in 0..count {
            values_len += u64::from(R::read(reader)?.value_len());
        }
        Ok(Self {
            bytes: reader.since(start),
            count,
            values_len,
            kind: PhantomData,
        })
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that they have among the frame's values.
    #[must_use]
    pub const fn values_len(&self) -> u64 {
        self.values_len
    }

    /// The records, in order.
    #[must_use]
    pub const fn iter(&self) -> Iter<'a, R> {
        Iter {
            reader: Reader::new("record", self.bytes),
            left: self.count as usize,
            kind: PhantomData,
        }
    }
}

impl<'a, R: Record<'a>> IntoIterator for Records<'a, R> {
    type Item = R;
    type IntoIter = Iter<'a, R>;

    fn into_iter(self) -> Iter<'a, R> {
        self.iter()
    }
}

impl<'a, R: Record<'a> + fmt::Debug> fmt::Debug for Records<'a, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, R: Record<'a> + PartialEq> PartialEq for Records<'a, R> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Iterates over [`Records`].
#[derive(Clone, Debug)]
pub struct Iter<'a, R> {
    reader: Reader<'a>,
    left: usize,
    kind: PhantomData<R>,
}

impl<'a, R: Record<'a>> Iterator for Iter<'a, R> {
    type Item = R;

    fn next(&mut self) -> Option<R> {
        self.left = self.left.checked_sub(1)?;
        // They were read once before.
        R::read(&mut self.reader).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<'a, R: Record<'a>> ExactSizeIterator for Iter<'a, R> {}

/// Writes records; their count and the bytes of their values.
pub(crate) fn write<'r, R: Record<'r>>(
    records: impl IntoIterator<Item = R>,
    writer: &mut Writer<'_>,
) -> (u32, u64) {
    let (mut count, mut values_len) = (0_u32, 0);
    for record in records {
        record.write(writer);
        count = count.saturating_add(1);
        values_len += u64::from(record.value_len());
    }
    (count, values_len)
}
