//! The bytes of a device in memory, by units; those never written are zeros and take no room.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::UNIT;

const UNIT_LEN: usize = UNIT as usize;

/// The bytes of one unit; copies of an image share those that neither wrote to since.
pub(super) type Unit = Arc<[u8; UNIT_LEN]>;

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemImage {
    len: u64,
    units: BTreeMap<u64, Unit>,
}

impl MemImage {
    /// `len` bytes of zeros.
    #[must_use]
    pub const fn empty(len: u64) -> Self {
        Self {
            len,
            units: BTreeMap::new(),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn unit(&self, at: u64) -> Unit {
        self.units
            .get(&at)
            .cloned()
            .unwrap_or_else(|| Arc::new([0; UNIT_LEN]))
    }

    /// The `len` bytes at `offset`, at any alignment.
    ///
    /// # Panics
    /// When they lie past the end.
    #[must_use]
    pub fn read(&self, offset: u64, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.each_part(offset, bytes.len(), |unit, at, range| {
            if let Some(unit) = self.units.get(&unit) {
                bytes[range.clone()].copy_from_slice(&unit[at..at + range.len()]);
            }
        });
        bytes
    }

    /// Puts bytes at `offset`, at any alignment.
    ///
    /// # Panics
    /// When they lie past the end.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut parts = Vec::new();
        self.each_part(offset, bytes.len(), |unit, at, range| {
            parts.push((unit, at, range));
        });
        for (unit, at, range) in parts {
            let unit = self
                .units
                .entry(unit)
                .or_insert_with(|| Arc::new([0; UNIT_LEN]));
            Arc::make_mut(unit)[at..at + range.len()].copy_from_slice(&bytes[range]);
        }
    }

    /// Cuts a range at units: which unit, where in it, and which of the range's bytes.
    fn each_part(
        &self,
        offset: u64,
        len: usize,
        mut part: impl FnMut(u64, usize, std::ops::Range<usize>),
    ) {
        let end = offset + len as u64;
        assert!(end <= self.len, "{offset}+{len} of {}", self.len);
        let mut at = offset;
        while at < end {
            let within = (at % UNIT) as usize;
            let count = (UNIT_LEN - within).min((end - at) as usize);
            let start = (at - offset) as usize;
            part(at / UNIT, within, start..start + count);
            at += count as u64;
        }
    }
}
