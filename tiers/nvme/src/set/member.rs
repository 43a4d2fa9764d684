//! One device of a set: reading and writing its superblocks, formatting it.
//!
//! **Invariants**
//! - A write goes to the copy that does not hold the newest superblock.
//! - A device is formatted only when no copy of a superblock was ever written whole.

use super::medium::SetMedium;
use super::{SetDeviceState, SetError, SetOptions};
use crate::UNIT;
use crate::buffer::AlignedBuffer;
use crate::format::{
    DeviceState, FormatError, SEGMENTS_START, SUPERBLOCK_OFFSETS, SetDevice, Superblock,
    segment_count, segment_len_for,
};

/// What can be written without being cut: the smallest sector.
const SECTOR_MIN: usize = 512;

/// What the superblocks of a device tell.
pub(super) struct Survey {
    /// The newest valid copy; `None` for a device that has to be formatted.
    pub(super) superblock: Option<Superblock>,
    /// The copy to write next.
    pub(super) copy: usize,
    /// Damaged copies beside a valid one.
    pub(super) damaged_copies: usize,
}

/// Reads both copies of a device's superblock.
pub(super) fn survey(medium: &dyn SetMedium, options: &SetOptions) -> Result<Survey, SetError> {
    let sector = medium.sector();
    let device = || medium.name().to_owned();
    if !sector.is_power_of_two() || !(SECTOR_MIN as u32..=UNIT as u32).contains(&sector) {
        let device = device();
        return Err(SetError::Sector { device, sector });
    }
    let mut unit = AlignedBuffer::zeroed(UNIT as usize);
    let mut copies = Vec::with_capacity(2);
    for offset in SUPERBLOCK_OFFSETS {
        // A device too short for a copy has none there.
        unit.bytes_mut().fill(0);
        if offset + UNIT <= medium.len() {
            read(medium, offset, &mut unit)?;
        }
        copies.push(Superblock::decode(unit.bytes()));
    }
    let second_is_zero = is_zero(&unit);
    for copy in &copies {
        if let Err(FormatError::Version { found, .. }) = copy {
            let (device, found) = (device(), *found);
            return Err(SetError::Version { device, found });
        }
    }
    let second = copies.pop().expect("two copies were read");
    let first = copies.pop().expect("two copies were read");
    //= docs/on-disk-format.md#OD-2
    let (superblock, copy, damaged_copies) = match (first, second) {
        (Ok(first), Ok(second)) if first.write_count >= second.write_count => (Some(first), 1, 0),
        (Ok(_), Ok(second)) => (Some(second), 0, 0),
        (Ok(first), Err(error)) => (Some(first), 1, usize::from(!error.is_absent())),
        (Err(error), Ok(second)) => (Some(second), 0, usize::from(!error.is_absent())),
        (Err(first), Err(second)) => {
            let is_new = first.is_absent() && second.is_absent();
            let is_unfinished = !first.is_absent() && second_is_zero;
            let is_writable = is_new || (is_unfinished && heads_are_zero(medium, options)?);
            if !is_writable {
                let (device, reasons) = (device(), Box::new([first, second]));
                return Err(SetError::SuperblocksDamaged { device, reasons });
            }
            (None, 0, 0)
        }
    };
    Ok(Survey {
        superblock,
        copy,
        damaged_copies,
    })
}

/// Whether no segment was ever written, so that a first superblock that is cut loses nothing.
fn heads_are_zero(medium: &dyn SetMedium, options: &SetOptions) -> Result<bool, SetError> {
    let segment_len = segment_len_for(medium.len(), options.shards, options.block_len_max);
    let mut unit = AlignedBuffer::zeroed(UNIT as usize);
    for number in 0..segment_count(medium.len(), segment_len) {
        let offset = SEGMENTS_START + u64::from(number) * segment_len;
        read(medium, offset, &mut unit)?;
        if !is_zero(&unit) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn is_zero(buffer: &AlignedBuffer) -> bool {
    buffer.bytes().iter().all(|byte| *byte == 0)
}

pub(super) fn read(
    medium: &dyn SetMedium,
    offset: u64,
    buffer: &mut AlignedBuffer,
) -> Result<(), SetError> {
    let outcome = medium.read(offset, buffer);
    outcome.map_err(|cause| failure(medium, "read", offset, cause))
}

fn write(medium: &dyn SetMedium, offset: u64, buffer: &AlignedBuffer) -> Result<(), SetError> {
    let outcome = medium.write(offset, buffer);
    outcome.map_err(|cause| failure(medium, "write", offset, cause))
}

fn sync(medium: &dyn SetMedium) -> Result<(), SetError> {
    let outcome = medium.sync();
    outcome.map_err(|cause| failure(medium, "flush", 0, cause))
}

fn failure(
    medium: &dyn SetMedium,
    doing: &'static str,
    offset: u64,
    cause: std::io::Error,
) -> SetError {
    SetError::Medium {
        device: medium.name().to_owned(),
        doing,
        offset,
        cause,
    }
}

/// A device of an open set.
pub(super) struct Member {
    medium: Box<dyn SetMedium>,
    /// The superblock as it was written last, or is to be written next.
    pub(super) superblock: Superblock,
    copy: usize,
}

impl Member {
    pub(super) fn new(medium: Box<dyn SetMedium>, superblock: Superblock, copy: usize) -> Self {
        Self {
            medium,
            superblock,
            copy,
        }
    }

    pub(super) fn state(&self) -> SetDeviceState {
        let superblock = &self.superblock;
        let state = superblock.devices[superblock.place as usize].state;
        SetDeviceState {
            id: superblock.device_id,
            name: self.medium.name().to_owned(),
            len: superblock.device_len,
            segment_len: superblock.segment_len,
            segment_count: superblock.segment_count,
            draining: matches!(state, DeviceState::Draining | DeviceState::Drained),
            drained: state == DeviceState::Drained,
        }
    }

    /// Writes the superblock and has it flushed.
    pub(super) fn write(&mut self) -> Result<(), SetError> {
        //= docs/on-disk-format.md#OD-2
        let superblock = Superblock {
            write_count: self.superblock.write_count + 1,
            ..self.superblock.clone()
        };
        let mut unit = AlignedBuffer::zeroed(UNIT as usize);
        superblock.encode(unit.bytes_mut());
        write(&*self.medium, SUPERBLOCK_OFFSETS[self.copy], &unit)?;
        sync(&*self.medium)?;
        self.superblock.write_count = superblock.write_count;
        self.copy = 1 - self.copy;
        Ok(())
    }

    /// Writes the first superblock: that of a device that its set did not take in yet.
    ///
    /// The first sector is written first, so that a format that is cut leaves a device that is
    /// known to be ours, or one that was not touched.
    pub(super) fn format(&mut self) -> Result<(), SetError> {
        let [first, second] = SUPERBLOCK_OFFSETS;
        self.erase(first)?;
        self.erase(second)?;
        self.erase_heads()?;
        let wanted = self.superblock.clone();
        let own = SetDevice {
            state: DeviceState::InUse,
            last_set_epoch: 0,
            ..wanted.devices[wanted.place as usize]
        };
        let alone = Superblock {
            write_count: 1,
            set_epoch: 0,
            open_epoch: 0,
            closed_cleanly: true,
            place: 0,
            devices: vec![own],
            ..wanted
        };
        let mut unit = AlignedBuffer::zeroed(UNIT as usize);
        alone.encode(unit.bytes_mut());
        let mut sector = AlignedBuffer::zeroed(UNIT as usize);
        sector.bytes_mut()[..SECTOR_MIN].copy_from_slice(&unit.bytes()[..SECTOR_MIN]);
        for step in [&sector, &unit] {
            write(&*self.medium, first, step)?;
            sync(&*self.medium)?;
        }
        self.superblock.write_count = alone.write_count;
        self.copy = 1;
        Ok(())
    }

    /// Writes zeros to the head of every segment that has any, and has them flushed.
    pub(super) fn erase_heads(&self) -> Result<(), SetError> {
        for number in 0..self.superblock.segment_count {
            self.erase(SEGMENTS_START + u64::from(number) * self.superblock.segment_len)?;
        }
        sync(&*self.medium)
    }

    fn erase(&self, offset: u64) -> Result<(), SetError> {
        let mut unit = AlignedBuffer::zeroed(UNIT as usize);
        read(&*self.medium, offset, &mut unit)?;
        if is_zero(&unit) {
            return Ok(());
        }
        write(&*self.medium, offset, &AlignedBuffer::zeroed(UNIT as usize))
    }
}
