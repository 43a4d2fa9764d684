//! Devices in memory for the set's tests: they lose power at a chosen operation.
//!
//! A write survives once a flush returned. Of the others each may survive in part, in sectors
//! of 512 bytes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use crate::buffer::AlignedBuffer;
use crate::set::SetMedium;

const UNIT: usize = 4096;

#[derive(Default)]
struct Medium {
    durable: BTreeMap<u64, Vec<u8>>,
    pending: Vec<(u64, Vec<u8>)>,
}

impl Medium {
    fn keep(durable: &mut BTreeMap<u64, Vec<u8>>, offset: u64, bytes: &[u8], sectors: u8) {
        let unit = durable.entry(offset).or_insert_with(|| vec![0; UNIT]);
        for sector in (0..8).filter(|sector| sectors & (1 << sector) != 0) {
            let at = sector * 512..(sector + 1) * 512;
            unit[at.clone()].copy_from_slice(&bytes[at]);
        }
    }
}

/// The operations left until power is lost, of all disks together, and those done.
#[derive(Clone, Default)]
pub(super) struct Power(Arc<Mutex<(Option<usize>, usize)>>);

impl Power {
    /// Lets `operations` writes and flushes succeed; everything fails from then on.
    pub(super) fn lose_after(&self, operations: Option<usize>) {
        *self.0.lock().unwrap() = (operations, 0);
    }

    /// Writes and flushes since [`Self::lose_after`].
    pub(super) fn operations(&self) -> usize {
        self.0.lock().unwrap().1
    }

    /// Whether this operation still happens; the one at which power is lost happens in part.
    fn spend(&self) -> io::Result<()> {
        let mut power = self.0.lock().unwrap();
        power.1 += 1;
        match &mut power.0 {
            Some(0) => Err(io::Error::other("power is lost")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A disk; clones are the same one.
#[derive(Clone)]
pub(super) struct Disk {
    name: String,
    len: u64,
    sector: u32,
    medium: Arc<Mutex<Medium>>,
    power: Power,
}

impl Disk {
    pub(super) fn new(name: &str, len: u64, power: &Power) -> Self {
        Self {
            name: name.to_owned(),
            len,
            sector: 512,
            medium: Arc::default(),
            power: power.clone(),
        }
    }

    /// What it holds, on a disk by itself.
    pub(super) fn copy(&self, name: &str) -> Self {
        let durable = self.medium.lock().unwrap().durable.clone();
        let medium = Medium {
            durable,
            pending: Vec::new(),
        };
        Self {
            name: name.to_owned(),
            medium: Arc::new(Mutex::new(medium)),
            ..self.clone()
        }
    }

    /// The same bytes on a device of another length.
    pub(super) fn resized(&self, len: u64) -> Self {
        Self {
            len,
            ..self.copy(&self.name)
        }
    }

    /// The same disk, telling sectors of another length.
    pub(super) fn with_sector(&self, sector: u32) -> Self {
        Self {
            sector,
            ..self.clone()
        }
    }

    /// Power comes back: of each write that was not flushed, these sectors survived.
    pub(super) fn restart(&self, sectors: u8) {
        let mut medium = self.medium.lock().unwrap();
        let medium = &mut *medium;
        for (offset, bytes) in medium.pending.drain(..) {
            Medium::keep(&mut medium.durable, offset, &bytes, sectors);
        }
    }

    pub(super) fn unit(&self, offset: u64) -> Vec<u8> {
        let medium = self.medium.lock().unwrap();
        assert!(medium.pending.is_empty(), "all was flushed");
        let unit = medium.durable.get(&offset).cloned();
        unit.unwrap_or_else(|| vec![0; UNIT])
    }

    pub(super) fn set_unit(&self, offset: u64, bytes: &[u8]) {
        let mut medium = self.medium.lock().unwrap();
        medium.durable.insert(offset, bytes.to_vec());
    }

    pub(super) fn change(&self, offset: u64, change: impl FnOnce(&mut [u8])) {
        let mut unit = self.unit(offset);
        change(&mut unit);
        self.set_unit(offset, &unit);
    }

    /// All that it holds.
    pub(super) fn contents(&self) -> BTreeMap<u64, Vec<u8>> {
        self.medium.lock().unwrap().durable.clone()
    }
}

impl SetMedium for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn sector(&self) -> u32 {
        self.sector
    }

    fn read(&self, offset: u64, buffer: &mut AlignedBuffer) -> io::Result<()> {
        assert!(offset + UNIT as u64 <= self.len, "read past the end");
        let medium = self.medium.lock().unwrap();
        let pending = medium.pending.iter().rev().find(|(at, _)| *at == offset);
        let unit = pending.map(|(_, bytes)| bytes);
        match unit.or_else(|| medium.durable.get(&offset)) {
            Some(bytes) => buffer.bytes_mut().copy_from_slice(bytes),
            None => buffer.bytes_mut().fill(0),
        }
        Ok(())
    }

    fn write(&self, offset: u64, buffer: &AlignedBuffer) -> io::Result<()> {
        assert!(offset + UNIT as u64 <= self.len, "write past the end");
        let outcome = self.power.spend();
        let mut medium = self.medium.lock().unwrap();
        if outcome.is_ok() {
            medium.pending.push((offset, buffer.bytes().to_vec()));
        }
        outcome
    }

    fn sync(&self) -> io::Result<()> {
        self.power.spend()?;
        self.restart(0xff);
        Ok(())
    }
}
