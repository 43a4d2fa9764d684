//! Losing power: which writes are at stake, and what is left of them.

use super::faults::Kind;
use super::image::MemImage;
use super::state::Unflushed;
use super::{MemDevice, SECTOR};

/// A device at a moment at which power may be lost: what survives for certain, and the writes of
/// which any part may.
#[derive(Clone, Debug)]
pub struct PowerCut {
    durable: MemImage,
    at_stake: Vec<Unflushed>,
}

impl PowerCut {
    /// The bytes of each write at stake, in the order of submission, and how many operations
    /// were submitted before it.
    pub fn writes(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.at_stake
            .iter()
            .map(|write| (write.number, &*write.bytes))
    }

    /// What is left when of the write at a place and of so many sectors of 512 bytes as many
    /// survive as `keep` says, counted from its first.
    #[must_use]
    pub fn image(&self, keep: &mut dyn FnMut(usize, u32) -> u32) -> MemImage {
        let mut image = self.durable.clone();
        for (at, write) in self.at_stake.iter().enumerate() {
            let sectors = write.bytes.len() as u32 / SECTOR;
            let kept = keep(at, sectors).min(sectors) * SECTOR;
            image.write(write.offset, &write.bytes[..kept as usize]);
        }
        image
    }
}

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

    /// [`MemDevice::crash`] with writes torn: see [`PowerCut::image`].
    #[must_use]
    pub fn crash_torn(&self, keep: &mut dyn FnMut(usize, u32) -> u32) -> MemImage {
        self.power_cut().image(keep)
    }

    /// What may be left should power be lost now.
    #[must_use]
    pub fn power_cut(&self) -> PowerCut {
        PowerCut {
            durable: self.state.borrow().durable.clone(),
            at_stake: self.at_stake(),
        }
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
                    bytes: flight.bytes.clone(),
                }),
        );
        writes.sort_by_key(|write| write.number);
        writes
    }
}
