//! Reading the units of one segment, nearly all of them in order.
//!
//! **Invariants**
//! - The window holds what the device gave for the units it names, or is empty.

use std::io;

use terrace_nvme::format::{SEGMENTS_START, SegmentIdentity};
use terrace_nvme::set::SetMedium;
use terrace_nvme::{AlignedBuffer, UNIT};
use terrace_types::checksum::ChecksumStream;
use terrace_types::{Checksum, Namespace, NamespaceName};

/// Units of one read: 1 MiB. A device is near its full speed with a few of these at once.
const WINDOW_UNITS: u32 = 256;

/// A medium that several threads may read.
pub type Medium<'a> = &'a (dyn SetMedium + Sync);

/// Reads one segment.
pub struct UnitReader<'a> {
    medium: Medium<'a>,
    base: u64,
    /// Units of the segment.
    pub units: u32,
    /// Units of it that lie before the end of the device.
    pub given: u32,
    window: AlignedBuffer,
    first: u32,
    count: u32,
}

/// Why a payload does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsound {
    /// Its bytes are not those that were written; their checksum.
    Checksum(Checksum),
    /// The device does not give its bytes.
    Unreadable(String),
}

impl<'a> UnitReader<'a> {
    /// Reads segment `number` of those of `segment_len` bytes.
    #[must_use]
    pub fn new(medium: Medium<'a>, number: u32, segment_len: u64) -> Self {
        let base = SEGMENTS_START + u64::from(number) * segment_len;
        let units = u32::try_from(segment_len / UNIT).unwrap_or(u32::MAX);
        let given = medium.len().saturating_sub(base) / UNIT;
        Self {
            medium,
            base,
            units,
            given: given.min(u64::from(units)) as u32,
            window: AlignedBuffer::zeroed(0),
            first: 0,
            count: 0,
        }
    }

    /// `count` units from `unit` on, in memory of their own.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn fetch(&self, unit: u32, count: u32) -> io::Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(count as usize * UNIT as usize);
        let offset = self.base + u64::from(unit) * UNIT;
        self.medium.read(offset, &mut buffer)?;
        Ok(buffer)
    }

    /// The bytes from `unit` on: at least a unit, at most `limit` units.
    ///
    /// # Errors
    /// What the operating system said of this unit.
    pub fn piece(&mut self, unit: u32, limit: u32) -> io::Result<&[u8]> {
        let is_held = |it: &Self| unit >= it.first && unit - it.first < it.count;
        if !is_held(self) {
            self.fill(unit)?;
        }
        let start = (unit - self.first) as usize * UNIT as usize;
        let held = (self.first + self.count - unit).min(limit.max(1));
        let end = start + held as usize * UNIT as usize;
        let piece = self.window.bytes().get(start..end);
        piece.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn fill(&mut self, unit: u32) -> io::Result<()> {
        self.count = 0;
        let count = WINDOW_UNITS.min(self.given.saturating_sub(unit)).max(1);
        // A stretch that cannot be read has parts that can: they are asked for one by one.
        let (window, count) = match self.fetch(unit, count) {
            Ok(window) => (window, count),
            Err(_) => (self.fetch(unit, 1)?, 1),
        };
        (self.window, self.first, self.count) = (window, unit, count);
        Ok(())
    }

    /// Whether a unit begins like a structure of this life of the segment; the sequence and the
    /// salt lie at the same place in frame heads and footers.
    pub fn carries(&mut self, unit: u32, identity: &SegmentIdentity) -> bool {
        let sequence = identity.sequence.0.to_le_bytes();
        let salt = identity.salt.to_le_bytes();
        self.piece(unit, 1).is_ok_and(|bytes| {
            bytes.get(16..24) == Some(&sequence[..]) && bytes.get(24..32) == Some(&salt[..])
        })
    }

    /// Compares the payload of `len` bytes at `place` with its checksum.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_payload(
        &mut self,
        (namespace, key): (&str, &[u8]),
        (place, len): (u32, u32),
        expected: Checksum,
    ) -> Result<(), Unsound> {
        let name = NamespaceName::new(namespace).map_err(|e| Unsound::Unreadable(e.to_string()))?;
        let key = Namespace::new(0, 0, &name).key(key);
        let key = key.map_err(|e| Unsound::Unreadable(e.to_string()))?;
        let mut stream = ChecksumStream::new(&key, u64::from(len));
        let (mut at, mut left) = (place, len as usize);
        while left > 0 {
            let limit = u32::try_from(left.div_ceil(UNIT as usize)).unwrap_or(u32::MAX);
            let piece = self.piece(at, limit);
            let piece = piece.map_err(|e| Unsound::Unreadable(e.to_string()))?;
            let used = piece.len().min(left);
            stream.update(piece.get(..used).unwrap_or_default());
            at += (used as u64).div_ceil(UNIT) as u32;
            left -= used;
        }
        let actual = stream.finish();
        if actual == expected {
            Ok(())
        } else {
            Err(Unsound::Checksum(actual))
        }
    }
}
