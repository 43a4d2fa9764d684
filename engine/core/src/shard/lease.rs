//! Leases: a slot kept for a reader elsewhere, until a time that the shard enforces.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use terrace_runtime::{LocalFuture, Runtime};
use terrace_types::{BlockIx, BlockKey, Checksum, Lookup, Nanos, UnavailableReason};

use super::get::{GetOptions, LocalPin, Probe};
use super::{Shard, State};
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

/// What has to be done before the slot of a lease that ended without a release is used again: its
/// holder may still be reading, and neither clocks nor the holder are trusted to prevent that.
pub trait Fence {
    /// Completes when the holder reads no more. Called once for each such lease, on the shard's
    /// thread.
    fn raise(self: Rc<Self>) -> LocalFuture<'static, ()>;
}

/// A lease that is out.
struct Leased {
    block: BlockIx,
    until: Nanos,
    fence: Option<Rc<dyn Fence>>,
    /// Its time is over, and its fence is being raised.
    is_over: bool,
}

/// The leases of a shard.
#[derive(Default)]
pub(super) struct Leases {
    all: BTreeMap<LeaseId, Leased>,
    /// When those end that are not over.
    ends: BTreeSet<(Nanos, LeaseId)>,
    last: u64,
    /// The watch over them, while there are any. It is woken for one that ends before the others.
    watch: Option<Waker>,
    is_watched: bool,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn holds(&self, block: BlockIx) -> bool {
        self.all.values().any(|leased| leased.block == block)
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.ends.clear();
        self.wake();
    }

    fn add(&mut self, block: BlockIx, until: Nanos, fence: Option<Rc<dyn Fence>>) -> LeaseId {
        self.last += 1;
        let id = LeaseId(self.last);
        let leased = Leased {
            block,
            until,
            fence,
            is_over: false,
        };
        self.all.insert(id, leased);
        self.ends.insert((until, id));
        if self.first_end() == Some(until) {
            self.wake();
        }
        id
    }

    fn renew(&mut self, id: LeaseId, until: Nanos) -> Option<Nanos> {
        let leased = self.all.get_mut(&id).filter(|leased| !leased.is_over)?;
        if until > leased.until {
            self.ends.remove(&(leased.until, id));
            self.ends.insert((until, id));
            leased.until = until;
        }
        Some(leased.until)
    }

    fn first_end(&self) -> Option<Nanos> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// The leases whose time is over at `now`, as far as that was not known.
    fn due(&mut self, now: Nanos) -> Vec<LeaseId> {
        let later = self
            .ends
            .split_off(&(now + Duration::from_nanos(1), LeaseId(0)));
        let due = std::mem::replace(&mut self.ends, later);
        due.into_iter().map(|(_, id)| id).collect()
    }

    fn wake(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.wake();
        }
    }
}

impl Shard {
    /// Leases a block in DRAM for `ttl`, at most ten minutes; one below is brought up first.
    pub async fn lease(
        self: &Rc<Self>,
        key: &BlockKey,
        ttl: Duration,
        options: &GetOptions,
    ) -> Lookup<Lease> {
        self.lease_fenced(key, ttl, options, None).await
    }

    /// As [`Shard::lease`], for a holder that reads the slot by itself: when the lease ends without a
    /// release, `fence` is raised before the slot is used again.
    pub async fn lease_fenced(
        self: &Rc<Self>,
        key: &BlockKey,
        ttl: Duration,
        options: &GetOptions,
        fence: Option<Rc<dyn Fence>>,
    ) -> Lookup<Lease> {
        // Held until the lease is granted: a block that the policy declined goes with its pin.
        let (tier, _held) = match self.get(key, options).await {
            Lookup::Hit { tier, value } => (tier, value),
            Lookup::Miss => return Lookup::Miss,
            Lookup::Unavailable(reason) => return Lookup::Unavailable(reason),
        };
        let found = match self.probe(key, options) {
            Probe::Dram(found) => found,
            Probe::PinLimit => return Lookup::Unavailable(UnavailableReason::PinLimit),
            Probe::Miss | Probe::Below(_) => return Lookup::Miss,
        };
        let deadline = self.runtime.now() + ttl.min(LEASE_MAX);
        let mut state = self.state.borrow_mut();
        let id = state.leases.add(found.block, deadline, fence);
        state.counters.leases_granted += 1;
        let record = state.index.record(found.block);
        let descriptor = Descriptor {
            shard: self.number,
            offset: found.slot.offset(),
            len: found.len,
            checksum: record.checksum(),
            generation: record.generation,
        };
        let is_watched = std::mem::replace(&mut state.leases.is_watched, true);
        drop(state);
        if !is_watched {
            let runtime = Rc::clone(&self.runtime);
            self.runtime
                .spawn(Box::pin(watch(Rc::downgrade(self), runtime)));
        }
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

    /// Has a lease last for `ttl` from now, at most ten minutes, if it would end before. When it
    /// ends, or `None` when it has.
    pub fn renew(&self, id: LeaseId, ttl: Duration) -> Option<Nanos> {
        if self.unavailable().is_some() {
            return None;
        }
        let deadline = self.runtime.now() + ttl.min(LEASE_MAX);
        self.state.borrow_mut().leases.renew(id, deadline)
    }

    /// Ends a lease early: its holder has said that it reads no more. False when it had ended
    /// already.
    pub fn release(&self, id: LeaseId) -> bool {
        if self.fenced.get() {
            return false;
        }
        let mut state = self.state.borrow_mut();
        let known = state.leases.all.get(&id);
        let Some(until) = known.filter(|of| !of.is_over).map(|of| of.until) else {
            return false;
        };
        state.leases.ends.remove(&(until, id));
        state.end_lease(id);
        true
    }

    /// Ends a lease whose holder is gone without a word, as if its time were over.
    pub fn abandon(self: &Rc<Self>, id: LeaseId) {
        if self.fenced.get() {
            return;
        }
        let mut state = self.state.borrow_mut();
        let leases = &mut state.leases;
        if let Some(leased) = leases.all.get(&id).filter(|leased| !leased.is_over) {
            leases.ends.remove(&(leased.until, id));
            drop(state);
            self.end_unreleased(id);
        }
    }

    /// Ends a lease without a release.
    fn end_unreleased(self: &Rc<Self>, id: LeaseId) {
        let mut state = self.state.borrow_mut();
        let Some(leased) = state.leases.all.get_mut(&id) else {
            return;
        };
        leased.is_over = true;
        let fence = leased.fence.take();
        state.counters.leases_expired += 1;
        let Some(fence) = fence else {
            return state.end_lease(id);
        };
        drop(state);
        let shard = Rc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            fence.raise().await;
            if !shard.fenced.get() {
                shard.state.borrow_mut().end_lease(id);
            }
        }));
    }
}

impl State {
    fn end_lease(&mut self, id: LeaseId) {
        if let Some(leased) = self.leases.all.remove(&id) {
            self.unpin(leased.block);
        }
    }
}

/// Ends leases when their time is over, as long as there are any.
async fn watch(shard: Weak<Shard>, runtime: Rc<dyn Runtime>) {
    loop {
        let next = {
            let Some(shard) = shard.upgrade().filter(|shard| !shard.fenced.get()) else {
                return;
            };
            let due = shard.state.borrow_mut().leases.due(runtime.now());
            for id in due {
                shard.end_unreleased(id);
            }
            let mut state = shard.state.borrow_mut();
            let next = state.leases.first_end();
            state.leases.is_watched = next.is_some();
            next
        };
        let Some(next) = next else { return };
        let mut timer = runtime.sleep_until(next);
        let mut is_first = true;
        poll_fn(|context| {
            if timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            let Some(shard) = shard.upgrade() else {
                return Poll::Ready(());
            };
            let Ok(mut state) = shard.state.try_borrow_mut() else {
                return Poll::Ready(());
            };
            // Whoever wakes takes the waker away.
            if !std::mem::take(&mut is_first) && state.leases.watch.is_none() {
                return Poll::Ready(());
            }
            state.leases.watch = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
