//! Integers at fixed places of a structure, and the checks that all structures share.

use xxhash_rust::xxh3::xxh3_64;

use super::error::{FormatError, Limit, Structure};
use super::segment::SegmentIdentity;

/// The bytes of a structure that is being decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    pub(super) structure: Structure,
    pub(super) bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) const fn new(structure: Structure, bytes: &'a [u8]) -> Self {
        Self { structure, bytes }
    }

    /// `len` bytes at `at`.
    pub(super) fn slice(&self, at: usize, len: usize) -> Result<&'a [u8], FormatError> {
        let end = at.checked_add(len);
        end.and_then(|end| self.bytes.get(at..end)).ok_or_else(|| {
            let needed = at.saturating_add(len) as u64;
            let given = self.bytes.len() as u64;
            self.wrong("count of bytes given", given, Limit::AtLeast(needed))
        })
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(at, N)?);
        Ok(array)
    }

    pub(super) fn u16(&self, at: usize) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u32(&self, at: usize) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u64(&self, at: usize) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array(at)?))
    }

    pub(super) fn id(&self, at: usize) -> Result<[u8; 16], FormatError> {
        self.array(at)
    }

    /// The error that `field` has a `value` outside its `limit`.
    pub(super) const fn wrong(&self, field: &'static str, value: u64, limit: Limit) -> FormatError {
        FormatError::Field {
            structure: self.structure,
            field,
            value,
            limit,
        }
    }

    /// Refuses a value outside its limit. [`Limit::Is`] refuses every value.
    pub(super) fn check(
        &self,
        field: &'static str,
        value: u64,
        limit: Limit,
    ) -> Result<(), FormatError> {
        let is_kept = match limit {
            Limit::AtMost(limit) => value <= limit,
            Limit::AtLeast(limit) => value >= limit,
            Limit::Exactly(limit) => value == limit,
            Limit::MultipleOf(limit) => value.is_multiple_of(limit),
            Limit::Is(_) => false,
        };
        if is_kept {
            Ok(())
        } else {
            Err(self.wrong(field, value, limit))
        }
    }

    /// Refuses bytes that do not have `magic` at `at`.
    pub(super) fn check_magic(&self, at: usize, magic: [u8; 8]) -> Result<(), FormatError> {
        if self.slice(at, 8)? == magic {
            Ok(())
        } else {
            let structure = self.structure;
            Err(FormatError::NotOurs { structure })
        }
    }

    /// Compares the checksum at `at` with that of all bytes before it.
    pub(super) fn check_checksum(&self, at: usize) -> Result<(), FormatError> {
        let expected = xxh3_64(self.slice(0, at)?);
        let actual = self.u64(at)?;
        if actual == expected {
            return Ok(());
        }
        Err(FormatError::Checksum {
            structure: self.structure,
            expected,
            actual,
        })
    }

    /// Compares the sequence and the salt at `at` with those of the segment.
    pub(super) fn check_identity(
        &self,
        at: usize,
        identity: &SegmentIdentity,
    ) -> Result<(), FormatError> {
        //= docs/on-disk-format.md#OD-4
        let sequence = identity.sequence.0;
        self.check("segment sequence", self.u64(at)?, Limit::Exactly(sequence))?;
        self.check("salt", self.u64(at + 8)?, Limit::Exactly(identity.salt))
    }
}

/// Writes `bytes` at `at`.
///
/// # Panics
/// When they do not fit.
pub(super) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes the checksum of all bytes before the last eight to the last eight.
pub(super) fn seal(out: &mut [u8]) {
    let at = out.len() - 8;
    let checksum = xxh3_64(&out[..at]);
    put(out, at, &checksum.to_le_bytes());
}
