//! Regions: memory under an id, for as long as it is registered.
//!
//! **Invariants**
//! - Who moves bytes of a region holds a [`RegionPin`] of it while it does.
//! - After [`Region::close`] no pin can be had; when the last one is gone, nothing touches the
//!   memory any more.
//! - An epoch is never used twice: an id names one registration and no other.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::memory::Memory;
use super::transport::{TransportKind, TransportSet};

/// The name of one registration. A peer needs both halves: a place alone may have been taken
/// again, and an epoch cannot be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId {
    /// Its place in the owner's table.
    pub slot: u32,
    /// A random number, not 0, that belongs to this registration alone.
    pub epoch: u64,
}

impl std::fmt::Display for RegionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{:016x}", self.slot, self.epoch)
    }
}

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Nothing: peers do not learn of it.
    #[default]
    Local,
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

impl Access {
    /// Whether peers may read.
    #[must_use]
    pub const fn may_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether peers may write.
    #[must_use]
    pub const fn may_write(self) -> bool {
        matches!(self, Self::ReadWrite)
    }
}

/// Set in [`Region::state`] when the region is closed; the other bits count pins.
const CLOSED: u64 = 1 << 63;

/// Memory that is registered.
#[derive(Debug)]
pub struct Region {
    id: RegionId,
    access: Access,
    memory: Memory,
    node: Option<usize>,
    /// A [`TransportSet`]: which ones can move it from this end.
    kinds: AtomicU8,
    state: AtomicU64,
    /// Waited on with `quiet` until a closed region has no pins.
    waiters: Mutex<()>,
    quiet: Condvar,
}

impl Region {
    /// A region under `id`.
    pub(crate) fn new(id: RegionId, memory: Memory, access: Access) -> Self {
        Self {
            id,
            access,
            node: memory.node(),
            memory,
            kinds: AtomicU8::new(0),
            state: AtomicU64::new(0),
            waiters: Mutex::new(()),
            quiet: Condvar::new(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn id(&self) -> RegionId {
        self.id
    }

    /// What peers may do with it.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Its memory.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The NUMA node of its first byte when it was registered, if the kernel tells.
    #[must_use]
    pub const fn node(&self) -> Option<usize> {
        self.node
    }

    /// Length in bytes; at least 1.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a region has at least one byte"
    )]
    pub const fn len(&self) -> u64 {
        self.memory.len()
    }

    /// The transports that can move it from this end.
    #[must_use]
    pub fn kinds(&self) -> TransportSet {
        TransportSet::from_bits(self.kinds.load(Ordering::Relaxed))
    }

    /// Says which transports can move it, before anybody has it to move.
    pub(crate) fn set_kinds(&self, kinds: TransportSet) {
        self.kinds.store(kinds.to_bits(), Ordering::Relaxed);
    }

    /// Keeps the region in use; `None` once it is closed.
    #[must_use]
    pub fn pin(self: &Arc<Self>) -> Option<RegionPin> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let pin = RegionPin(Arc::clone(self));
        (before & CLOSED == 0).then_some(pin)
    }

    /// Lets no one pin the region from now on.
    pub(crate) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Waits until a closed region has no pins; whether that came within `timeout`.
    pub(crate) fn wait_quiet(&self, timeout: Duration) -> bool {
        let waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        let is_busy = |(): &mut ()| self.state.load(Ordering::Acquire) & !CLOSED != 0;
        let waited = self.quiet.wait_timeout_while(waiters, timeout, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Keeps a region in use: it is not unregistered while there is one.
#[derive(Debug)]
pub struct RegionPin(Arc<Region>);

impl std::ops::Deref for RegionPin {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.0
    }
}

impl Clone for RegionPin {
    fn clone(&self) -> Self {
        // Also of a closed region: what this pin keeps open is not over yet.
        self.0.state.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for RegionPin {
    fn drop(&mut self) {
        if self.0.state.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1 {
            // Taken so that a waiter is either before its look at the state or asleep.
            let waiters = self
                .0
                .waiters
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            drop(waiters);
            self.0.quiet.notify_all();
        }
    }
}

/// A region of a peer, as it told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Its name at the peer.
    pub id: RegionId,
    /// Length in bytes.
    pub len: u64,
    /// What may be done with it.
    pub access: Access,
    /// What each transport of the peer told of it, such as its address and remote keys.
    pub keys: Vec<(TransportKind, Vec<u8>)>,
}

impl RemoteRegion {
    /// What the peer's transport of this kind told of the region.
    #[must_use]
    pub fn key(&self, kind: TransportKind) -> Option<&[u8]> {
        let (_, key) = self.keys.iter().find(|(of, _)| *of == kind)?;
        Some(key)
    }

    /// The transports of the peer that can move it.
    #[must_use]
    pub fn kinds(&self) -> TransportSet {
        let kinds = self.keys.iter().map(|(kind, _)| *kind);
        kinds.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Arc<Region> {
        let id = RegionId { slot: 0, epoch: 1 };
        let memory = Memory::host(4096).unwrap();
        Arc::new(Region::new(id, memory, Access::Read))
    }

    #[test]
    fn closed_region_is_quiet_when_the_last_pin_is_gone() {
        let region = region();
        let pin = region.pin().unwrap();
        let second = pin.clone();
        region.close();
        assert!(region.pin().is_none());
        drop(pin);
        assert!(!region.wait_quiet(Duration::ZERO));
        let waiter = std::thread::spawn({
            let region = Arc::clone(&region);
            move || region.wait_quiet(Duration::from_secs(60))
        });
        drop(second);
        assert!(waiter.join().unwrap());
    }
}
