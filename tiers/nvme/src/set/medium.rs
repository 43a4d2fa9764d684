//! A device as the set reads and writes it: unit by unit, waiting for each.

use std::fs::File;
use std::io::{self, Read};

use crate::buffer::AlignedBuffer;
use crate::file::OpenedDevice;

/// Why a medium did not do what it was asked to.
pub type MediumError = io::Error;

/// A device before any shard runs, or a copy of one.
pub trait SetMedium: Send {
    /// Its path, or another name; errors carry it.
    fn name(&self) -> &str;

    /// Its length in bytes.
    fn len(&self) -> u64;

    /// Its logical sector length in bytes.
    fn sector(&self) -> u32;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// What the operating system said.
    fn read(&self, offset: u64, buffer: &mut AlignedBuffer) -> Result<(), MediumError>;

    /// Writes all of `buffer` to `offset`.
    ///
    /// # Errors
    /// What the operating system said.
    fn write(&self, offset: u64, buffer: &AlignedBuffer) -> Result<(), MediumError>;

    /// Makes what was written survive power loss.
    ///
    /// # Errors
    /// What the operating system said.
    fn sync(&self) -> Result<(), MediumError>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl SetMedium for OpenedDevice {
    fn name(&self) -> &str {
        &self.info.name
    }

    fn len(&self) -> u64 {
        self.info.len
    }

    fn sector(&self) -> u32 {
        self.info.sector
    }

    fn read(&self, offset: u64, buffer: &mut AlignedBuffer) -> Result<(), MediumError> {
        self.read_unit_at(offset, buffer)
    }

    fn write(&self, offset: u64, buffer: &AlignedBuffer) -> Result<(), MediumError> {
        self.write_at(offset, buffer)
    }

    fn sync(&self) -> Result<(), MediumError> {
        Self::sync(self)
    }
}

/// Random bits from the operating system.
///
/// # Errors
/// What the operating system said.
pub fn os_random() -> io::Result<[u8; 16]> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(bits)
}
