//! Losing power: which writes are at stake, and what is left of them.

use super::faults::Kind;
use super::image::MemImage;
use super::state::Unflushed;
use super::{MemDevice, SECTOR};

impl MemDevice {
    /// How many writes [`MemDevice::crash`] asks about.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.at_stake().len()
    }

    /// What power loss leaves: all that is durable, and of the other writes those that
    /// `survives` chooses by their place in the order of submission.
    #[must_use]
    pub fn crash(&self, survives: &mut dyn FnMut(usize) -> bool) -> MemImage {
        self.crash_torn(&mut |at, sectors| if survives(at) { sectors } else { 0 })
    }

    /// [`MemDevice::crash`] with writes torn: of the write at a place and of so many sectors
    /// of 512 bytes, as many survive as `keep` says, counted from its first.
    #[must_use]
    pub fn crash_torn(&self, keep: &mut dyn FnMut(usize, u32) -> u32) -> MemImage {
        let mut image = self.state.borrow().durable.clone();
        for (at, write) in self.at_stake().into_iter().enumerate() {
            let sectors = write.bytes.len() as u32 / SECTOR;
            let kept = keep(at, sectors).min(sectors) * SECTOR;
            image.write(write.offset, &write.bytes[..kept as usize]);
        }
        image
    }

    /// Writes that completed and are not durable, and those that the device has: it may have
    /// carried them out.
    fn at_stake(&self) -> Vec<Unflushed> {
        let state = self.state.borrow();
        let mut writes = state.unflushed.clone();
        let flying = state.flying.iter();
        writes.extend(
            flying
                .filter(|flight| flight.operation.kind == Kind::Write)
                .map(|flight| Unflushed {
                    number: flight.operation.number,
                    offset: flight.operation.offset,
                    bytes: self.bytes_of(flight),
                }),
        );
        writes.sort_by_key(|write| write.number);
        writes
    }
}
