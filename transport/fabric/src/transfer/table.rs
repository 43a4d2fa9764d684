//! The regions of one engine, and what peers may do with them.
//!
//! **Invariants**
//! - A place holds at most one region; what peers name is found only with its epoch.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::clock::random;
use super::error::{Status, TransferError};
use super::limits::REGION_COUNT_MAX;
use super::memory::Memory;
use super::region::{Access, Region, RegionId, RegionPin, RemoteRegion};
use super::transport::{Operation, TransportKind};

struct Registration {
    region: Arc<Region>,
    keys: Vec<(TransportKind, Vec<u8>)>,
}

#[derive(Default)]
struct Places {
    registrations: Vec<Option<Registration>>,
    /// Places below this were used once: an id in an empty one is stale, not unknown.
    used: usize,
}

/// All regions of an engine.
#[derive(Default)]
pub(super) struct RegionTable {
    places: RwLock<Places>,
}

impl RegionTable {
    fn read<T>(&self, look: impl FnOnce(&Places) -> T) -> T {
        look(&self.places.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Places) -> T) -> T {
        change(&mut self.places.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes memory in. Peers do not see it before [`RegionTable::offer`].
    pub(super) fn add(&self, memory: Memory, access: Access) -> Result<Arc<Region>, TransferError> {
        let epoch = u64::from_le_bytes(random()?).max(1);
        self.write(|places| {
            let free = places.registrations.iter().position(Option::is_none);
            let slot = free.unwrap_or(places.registrations.len());
            if slot >= REGION_COUNT_MAX {
                return Err(TransferError::RegionCount {
                    count: REGION_COUNT_MAX,
                });
            }
            if slot == places.registrations.len() {
                places.registrations.push(None);
                places.used = slot + 1;
            }
            let id = RegionId {
                slot: slot as u32,
                epoch,
            };
            let region = Arc::new(Region::new(id, memory, access));
            places.registrations[slot] = Some(Registration {
                region: Arc::clone(&region),
                keys: Vec::new(),
            });
            Ok(region)
        })
    }

    /// Sets what transports told of a region, for peers.
    pub(super) fn offer(&self, id: RegionId, keys: Vec<(TransportKind, Vec<u8>)>) {
        self.write(|places| {
            if let Some(Some(registration)) = places.registrations.get_mut(id.slot as usize)
                && registration.region.id() == id
            {
                registration.keys = keys;
            }
        });
    }

    /// The region of that name.
    pub(super) fn get(&self, id: RegionId) -> Option<Arc<Region>> {
        self.read(|places| {
            let registration = places.registrations.get(id.slot as usize)?.as_ref()?;
            let is_that = registration.region.id() == id;
            is_that.then(|| Arc::clone(&registration.region))
        })
    }

    /// Closes a region and waits until nothing uses it; whether that came within `timeout`.
    pub(super) fn close(&self, id: RegionId, timeout: Duration) -> Result<bool, TransferError> {
        let region = self.get(id).ok_or(TransferError::UnknownRegion { id })?;
        region.close();
        Ok(region.wait_quiet(timeout))
    }

    /// Forgets a region that is quiet.
    pub(super) fn remove(&self, id: RegionId) {
        self.write(|places| {
            if let Some(place) = places.registrations.get_mut(id.slot as usize)
                && place
                    .as_ref()
                    .is_some_and(|registration| registration.region.id() == id)
            {
                *place = None;
            }
        });
    }

    /// What peers may know of.
    pub(super) fn offers(&self) -> Vec<RemoteRegion> {
        self.read(|places| {
            let offer = |registration: &Registration| RemoteRegion {
                id: registration.region.id(),
                len: registration.region.len(),
                access: registration.region.access(),
                keys: registration.keys.clone(),
            };
            let all = places.registrations.iter().flatten();
            all.filter(|registration| registration.region.access() != Access::Local)
                .map(offer)
                .collect()
        })
    }

    /// All names.
    pub(super) fn ids(&self) -> Vec<RegionId> {
        self.read(|places| {
            let all = places.registrations.iter().flatten();
            all.map(|registration| registration.region.id()).collect()
        })
    }

    /// Keeps in use what a peer wants to read or write, if it may.
    pub(super) fn grant(
        &self,
        id: RegionId,
        operation: Operation,
        offset: u64,
        len: u64,
    ) -> Result<RegionPin, Status> {
        self.read(|places| {
            let slot = id.slot as usize;
            let Some(registration) = places.registrations.get(slot).and_then(Option::as_ref) else {
                let is_stale = slot < places.used;
                return Err(if is_stale {
                    Status::StaleRegion
                } else {
                    Status::UnknownRegion
                });
            };
            let region = &registration.region;
            if region.id() != id {
                return Err(Status::StaleRegion);
            }
            let may = match operation {
                Operation::Read => region.access().may_read(),
                Operation::Write => region.access().may_write(),
            };
            if !may || !region.memory().is_host() {
                return Err(Status::AccessDenied);
            }
            if !region.memory().holds(offset, len) {
                return Err(Status::OutOfBounds);
            }
            region.pin().ok_or(Status::StaleRegion)
        })
    }
}
