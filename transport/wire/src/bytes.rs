//! Integers, keys and padding in order: the one place where bytes are taken from a message and put
//! into one.
//!
//! **Invariants**
//! - A [`Reader`] never goes past the end of its bytes.
//! - A [`Writer`] that ran out of room counts on, so that its error tells how much is needed.

use crate::error::{Limit, WireError};

/// Bytes of a message, read from the front.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    message: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The bytes of what errors call `message`.
    pub(crate) const fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            message,
            bytes,
            at: 0,
        }
    }

    /// The same bytes, of what errors call `message` from here on.
    pub(crate) const fn within(&mut self, message: &'static str) -> &mut Self {
        self.message = message;
        self
    }

    /// Bytes not read yet.
    pub(crate) const fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// How much was read.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    /// What was read since `start`.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..self.at).unwrap_or_default()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.saturating_add(len);
        let Some(part) = self.bytes.get(self.at..end) else {
            let (value, limit) = (self.bytes.len() as u64, Limit::AtLeast(end as u64));
            return Err(self.wrong("count of bytes given", value, limit));
        };
        self.at = end;
        Ok(part)
    }

    /// `len` bytes, and those that fill them up to a multiple of 8.
    pub(crate) fn padded(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let part = self.take(len)?;
        //= docs/wire-protocol.md#WP-4
        self.take(len.next_multiple_of(8) - len)?;
        Ok(part)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Passes over reserved bytes.
    pub(crate) fn reserved(&mut self, len: usize) -> Result<(), WireError> {
        //= docs/wire-protocol.md#WP-4
        self.take(len).map(drop)
    }

    /// UTF-8 without control characters, filled up to a multiple of 8.
    pub(crate) fn text(&mut self, field: &'static str, len: usize) -> Result<&'a str, WireError> {
        let bytes = self.padded(len)?;
        let text = str::from_utf8(bytes).ok();
        text.filter(|text| !text.chars().any(char::is_control))
            .ok_or_else(|| {
                let limit = Limit::Is("UTF-8 without control characters");
                self.wrong(field, len as u64, limit)
            })
    }

    /// The error that `field` has a `value` outside its `limit`.
    pub(crate) const fn wrong(&self, field: &'static str, value: u64, limit: Limit) -> WireError {
        WireError::Field {
            message: self.message,
            field,
            value,
            limit,
        }
    }

    /// Refuses a value outside its limit.
    pub(crate) const fn check(
        &self,
        field: &'static str,
        value: u64,
        limit: Limit,
    ) -> Result<(), WireError> {
        if limit.allows(value) {
            Ok(())
        } else {
            Err(self.wrong(field, value, limit))
        }
    }

    /// Refuses a value outside `low..=high`.
    pub(crate) fn check_range(
        &self,
        field: &'static str,
        value: u64,
        low: u64,
        high: u64,
    ) -> Result<(), WireError> {
        self.check(field, value, Limit::AtLeast(low))?;
        self.check(field, value, Limit::AtMost(high))
    }
}

/// Memory that a frame is written into, from the front.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    error: Option<WireError>,
}

impl<'a> Writer<'a> {
    pub(crate) const fn new(out: &'a mut [u8]) -> Self {
        Self {
            out,
            at: 0,
            error: None,
        }
    }

    /// Bytes written, those that had no room included.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        if let Some(part) = self.out.get_mut(self.at..end) {
            part.copy_from_slice(bytes);
        }
        self.at = end;
    }

    /// `bytes`, filled up to a multiple of 8 with zeros.
    pub(crate) fn padded(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.zeros(bytes.len().next_multiple_of(8) - bytes.len());
    }

    pub(crate) fn zeros(&mut self, len: usize) {
        let end = self.at + len;
        if let Some(part) = self.out.get_mut(self.at..end) {
            part.fill(0);
        }
        self.at = end;
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Writes over what was written at `at`.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        if let Some(part) = self.out.get_mut(at..at + bytes.len()) {
            part.copy_from_slice(bytes);
        }
    }

    /// What was written from `at` on; empty when it had no room.
    pub(crate) fn written(&self, at: usize) -> &[u8] {
        self.out.get(at..self.at).unwrap_or_default()
    }

    /// Remembers the first value outside its limit; [`Writer::finish`] tells of it.
    pub(crate) fn check(
        &mut self,
        message: &'static str,
        field: &'static str,
        value: u64,
        limit: Limit,
    ) {
        if self.error.is_none() && !limit.allows(value) {
            self.error = Some(WireError::Field {
                message,
                field,
                value,
                limit,
            });
        }
    }

    /// As [`Writer::check`], for `low..=high`.
    pub(crate) fn check_range(
        &mut self,
        message: &'static str,
        field: &'static str,
        value: u64,
        (low, high): (u64, u64),
    ) {
        self.check(message, field, value, Limit::AtLeast(low));
        self.check(message, field, value, Limit::AtMost(high));
    }

    /// The count of bytes written.
    pub(crate) fn finish(self) -> Result<usize, WireError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.at > self.out.len() {
            let (needed, given) = (self.at, self.out.len());
            return Err(WireError::NoRoom { needed, given });
        }
        Ok(self.at)
    }
}
