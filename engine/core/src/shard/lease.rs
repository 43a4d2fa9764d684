//! Leases: a slot kept for a reader elsewhere, until a time that the shard enforces.

use std::rc::Rc;
use std::time::Duration;

use terrace_types::{BlockKey, Checksum, Lookup, Nanos, Tier, UnavailableReason};

use super::Shard;
use super::get::{GetOptions, LocalPin, Probe};
use crate::index::ERASED;

/// Longest lease.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(600);

/// The number of a lease, unique in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// Where a leased block lies, for a reader that has the arena mapped or registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The shard whose arena it is.
    pub shard: usize,
    /// Offset of the first byte in the arena.
    pub offset: u64,
    /// Payload length in bytes.
    pub len: u32,
    /// What the payload must hash to.
    pub checksum: Checksum,
    /// Tells this block from later ones under the same number.
    pub generation: u32,
}

/// A granted lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its number, for the release.
    pub id: LeaseId,
    /// Where the block lies.
    pub descriptor: Descriptor,
    /// When it ends, on the engine's clock.
    pub deadline: Nanos,
}

impl Shard {
    /// Leases a block in DRAM for `ttl`, at most ten minutes; one below is brought up first.
    pub async fn lease(
        self: &Rc<Self>,
        key: &BlockKey,
        ttl: Duration,
        options: &GetOptions,
    ) -> Lookup<Lease> {
        // Held until the lease is granted: a block that the policy declined goes with its pin.
        let (tier, _held) = match self.get(key, options).await {
            Lookup::Hit { tier, value } => (tier, value),
            Lookup::Miss => return Lookup::Miss,
            Lookup::Unavailable(reason) => return Lookup::Unavailable(reason),
        };
        self.grant(key, ttl.min(LEASE_MAX), options, tier)
    }

    fn grant(
        self: &Rc<Self>,
        key: &BlockKey,
        ttl: Duration,
        options: &GetOptions,
        tier: Tier,
    ) -> Lookup<Lease> {
        let found = match self.probe(key, options) {
            Probe::Dram(found) => found,
            Probe::PinLimit => return Lookup::Unavailable(UnavailableReason::PinLimit),
            Probe::Miss | Probe::Below(_) => return Lookup::Miss,
        };
        let deadline = self.runtime.now() + ttl;
        let mut state = self.state.borrow_mut();
        let id = LeaseId(state.lease_next);
        state.lease_next += 1;
        state.leases.insert(id, (found.block, deadline));
        state.counters.leases_granted += 1;
        let record = state.index.record(found.block);
        let descriptor = Descriptor {
            shard: self.number,
            offset: found.slot.offset(),
            len: found.len,
            checksum: record.checksum(),
            generation: record.generation,
        };
        drop(state);
        let shard = Rc::downgrade(self);
        let timer = self.runtime.sleep_until(deadline);
        self.runtime.spawn(Box::pin(async move {
            timer.await;
            if let Some(shard) = shard.upgrade() {
                shard.end_lease(id, true);
            }
        }));
        Lookup::Hit {
            tier,
            value: Lease {
                id,
                descriptor,
                deadline,
            },
        }
    }

    /// The block that a descriptor was made for, as long as its slot still holds it, under a
    /// lease or not. To the policy it is no use.
    pub fn resolve(self: &Rc<Self>, descriptor: &Descriptor) -> Option<LocalPin> {
        if self.unavailable().is_some() || descriptor.shard != self.number {
            return None;
        }
        let mut state = self.state.borrow_mut();
        let (_, block) = state.pool.block_at(descriptor.offset)?;
        let record = state.index.record(block);
        let same = record.generation == descriptor.generation
            && record.len == descriptor.len
            && record.checksum() == descriptor.checksum;
        if !same || record.is(ERASED) {
            return None;
        }
        let found = state.pin(block)?;
        drop(state);
        Some(self.local_pin(found))
    }

    /// Ends a lease early. False when it had ended already.
    pub fn release(&self, id: LeaseId) -> bool {
        self.end_lease(id, false)
    }

    fn end_lease(&self, id: LeaseId, expired: bool) -> bool {
        if self.fenced.get() {
            return false;
        }
        let mut state = self.state.borrow_mut();
        let Some((block, _)) = state.leases.remove(&id) else {
            return false;
        };
        state.counters.leases_expired += u64::from(expired);
        state.unpin(block);
        true
    }
}
