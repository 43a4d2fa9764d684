//! Lookups: the DRAM hit; a block below comes up through `promote`.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use terrace_slab::{ArenaShared, PinnedBlock, RegisteredRegion, SlotIx, published_bytes, scatter};
use terrace_types::{
    Access, BlockIx, BlockKey, Hint, KeyHash, Lookup, RequestContext, Tier, UnavailableReason,
};

use super::promote::Arrival;
use super::room::Need;
use super::{Shard, State};
use crate::index::{AHEAD, DEMOTING, PASSING, WARM};

/// What a caller tells with a lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// What is known about the block.
    pub hint: Hint,
    /// What is known about the request.
    pub context: RequestContext,
    /// Whether a block that is not in DRAM comes up into it.
    pub placement: Placement,
}

/// What a lookup does to DRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// A block below comes up into DRAM: it may be wanted again.
    #[default]
    Promote,
    /// `get_into` reads a block below straight into the caller's memory where that is one
    /// region at a multiple of 4096, as long as the block rounded up to 4096; DRAM stays as it
    /// is. Other lookups promote.
    Bypass,
}

/// What a lookup finds without waiting.
pub enum TryGet {
    /// The block is in DRAM.
    Hit(LocalPin),
    /// No tier holds it.
    Miss,
    /// A tier below holds it: [`Shard::get`] brings it up.
    Below,
    /// It cannot be told or handed out now.
    Unavailable(UnavailableReason),
}

/// A block's bytes in their slot, pinned on the shard's own thread: no atomics, no queue.
pub struct LocalPin {
    shard: Rc<Shard>,
    slot: SlotIx,
    len: u32,
    block: BlockIx,
}

impl LocalPin {
    /// Turns the pin into one that may travel to other threads.
    #[must_use]
    pub fn into_pinned(self) -> PinnedBlock {
        let pinned = PinnedBlock::new(&self.shard.shared, self.slot, self.len, self.block);
        // The pin goes on to live in `pinned`: count one for it before this one is dropped.
        self.shard
            .state
            .borrow_mut()
            .index
            .record_mut(self.block)
            .pins += 1;
        pinned
    }
}

impl Deref for LocalPin {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        published_bytes(&self.shard.shared, self.slot, self.len)
    }
}

impl Drop for LocalPin {
    #[inline]
    fn drop(&mut self) {
        if !self.shard.fenced.get() {
            self.shard.state.borrow_mut().unpin(self.block);
        }
    }
}

/// A found block, pinned once, not yet wrapped.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: SlotIx,
    pub(super) len: u32,
    pub(super) block: BlockIx,
}

/// What a look into the index comes to.
pub(super) enum Probe {
    Dram(Found),
    Below(BlockIx),
    Miss,
    PinLimit,
}

impl Shard {
    /// Looks a block up without waiting, as a request's access: the policy learns of it.
    #[inline]
    pub fn try_get(self: &Rc<Self>, key: &BlockKey, options: &GetOptions) -> TryGet {
        if let Some(reason) = self.refusal(key) {
            return TryGet::Unavailable(reason);
        }
        match self.probe(key, options) {
            Probe::Dram(found) => TryGet::Hit(self.local_pin(found)),
            Probe::Miss => TryGet::Miss,
            Probe::Below(_) => TryGet::Below,
            Probe::PinLimit => TryGet::Unavailable(UnavailableReason::PinLimit),
        }
    }

    pub(super) fn local_pin(self: &Rc<Self>, found: Found) -> LocalPin {
        let Found { slot, len, block } = found;
        LocalPin {
            shard: Rc::clone(self),
            slot,
            len,
            block,
        }
    }

    #[inline]
    pub(super) fn refusal(&self, key: &BlockKey) -> Option<UnavailableReason> {
        if key.namespace().engine() != self.engine {
            return Some(UnavailableReason::ForeignNamespace);
        }
        self.unavailable()
    }

    /// Looks a block up; brings it up from the tier below when it is there.
    pub async fn get(self: &Rc<Self>, key: &BlockKey, options: &GetOptions) -> Lookup<LocalPin> {
        self.get_as(key, options, Arrival::Wanted).await
    }

    /// As [`Shard::get`], for another reason than a caller who waits.
    pub(crate) async fn get_as(
        self: &Rc<Self>,
        key: &BlockKey,
        options: &GetOptions,
        arrival: Arrival,
    ) -> Lookup<LocalPin> {
        if let Some(reason) = self.refusal(key) {
            return self.count_unavailable(reason);
        }
        let mut deadline = None;
        let mut joined = false;
        loop {
            let probe = self.probe(key, options);
            match probe {
                Probe::Dram(found) => {
                    let tier = if joined { Tier::Nvme } else { Tier::Dram };
                    return Lookup::Hit {
                        tier,
                        value: self.local_pin(found),
                    };
                }
                Probe::Miss => return Lookup::Miss,
                Probe::PinLimit => {
                    let deadline = *deadline.get_or_insert_with(|| self.busy_deadline());
                    if !self.wait_for_room(deadline, Need::Read).await {
                        return self.count_unavailable(UnavailableReason::PinLimit);
                    }
                }
                Probe::Below(block) if self.is_promoting(block) => {
                    // Single flight: whoever came first reads, the others wait for it.
                    self.state.borrow_mut().counters.reads_joined += 1;
                    if arrival == Arrival::Wanted {
                        self.lift(block);
                    }
                    self.join_promotion(block).await;
                    joined = true;
                }
                Probe::Below(block) => match self.promote(key, block, options, arrival).await {
                    Ok(Some(value)) => {
                        return Lookup::Hit {
                            tier: Tier::Nvme,
                            value,
                        };
                    }
                    // It is gone, or came up and may not be pinned now: look again.
                    Ok(None) => {}
                    Err(reason) => return self.count_unavailable(reason),
                },
            }
            if let Some(reason) = self.unavailable() {
                return self.count_unavailable(reason);
            }
        }
    }

    pub(super) fn count_unavailable<T>(&self, reason: UnavailableReason) -> Lookup<T> {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.counters.unavailable += 1;
        }
        Lookup::Unavailable(reason)
    }

    /// Finds a block, and for one in DRAM counts a pin and tells the policy.
    #[inline]
    pub(super) fn probe(self: &Rc<Self>, key: &BlockKey, options: &GetOptions) -> Probe {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.ticks += 1;
        let found = state
            .epochs
            .of(key.namespace())
            .and_then(|ns| state.index.find(key, ns));
        let Some(block) = found else {
            state.counters.misses += 1;
            return Probe::Miss;
        };
        if state.tenants.is_active() || options.context.priority > 0 {
            state.tenants.look_at_clock(self.now.get());
            state.raise(block, options.context.priority);
            if state.is_expired(block) {
                state.counters.misses += 1;
                self.expire(state, block);
                return Probe::Miss;
            }
        }
        if state.index.record(block).slot().is_none() {
            return Probe::Below(block);
        }
        let Some(found) = state.pin(block) else {
            return Probe::PinLimit;
        };
        state.counters.dram_hits += 1;
        let access = self.access(key.hash(), found.len, options);
        let record = state.index.record(block);
        if record.is(DEMOTING | PASSING | AHEAD) {
            let known = !record.is(DEMOTING | PASSING);
            if record.is(AHEAD) {
                state.end_ahead(block, true);
            }
            if !known {
                // The policy does not know it; its pin keeps it up.
                return Probe::Dram(found);
            }
        }
        state.policy.on_hit(block, &access);
        Probe::Dram(found)
    }

    #[inline]
    pub(super) fn access(&self, id: KeyHash, len: u32, options: &GetOptions) -> Access {
        self.timed(Access {
            id,
            len,
            hint: options.hint,
            context: options.context,
        })
    }

    /// An access with the engine's own clock, unless its caller keeps one.
    #[inline]
    pub(super) fn timed(&self, mut access: Access) -> Access {
        if access.context.clock_ms == 0 {
            access.context.clock_ms = self.now.get().as_millis();
        }
        access
    }

    /// Whether a block is stored, in any tier. Moves, pins and renews nothing.
    #[must_use]
    pub fn exists(&self, key: &BlockKey) -> Lookup<()> {
        if let Some(reason) = self.refusal(key) {
            return Lookup::Unavailable(reason);
        }
        let state = self.state.borrow();
        let found = state
            .epochs
            .of(key.namespace())
            .and_then(|ns| state.index.find(key, ns));
        state.tenants.look_at_clock(self.now.get());
        let found = found.filter(|block| !state.is_expired(*block));
        found.map_or(Lookup::Miss, |block| {
            let in_dram = state.index.record(block).slot().is_some();
            Lookup::Hit {
                tier: if in_dram { Tier::Dram } else { Tier::Nvme },
                value: (),
            }
        })
    }

    /// Tells the policy that a block was used, without reading it.
    pub fn touch(&self, key: &BlockKey, options: &GetOptions) -> Lookup<()> {
        let there = self.exists(key);
        if let Lookup::Hit {
            tier: Tier::Dram, ..
        } = there
        {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            let heat = state.heat_now();
            let found = state
                .epochs
                .of(key.namespace())
                .and_then(|ns| state.index.find(key, ns));
            if let Some(block) = found {
                let record = state.index.record_mut(block);
                record.heat = heat;
                let (len, known) = (record.len, !record.is(DEMOTING | PASSING));
                if known {
                    state
                        .policy
                        .on_hit(block, &self.access(key.hash(), len, options));
                }
            }
        }
        there
    }

    /// Looks a batch up as far as it goes without waiting; `Below` entries are left to
    /// [`Shard::get`]. Lines of the index are asked for ahead of their use.
    pub(crate) fn try_get_batch(
        self: &Rc<Self>,
        keys: &[BlockKey],
        options: &[GetOptions],
    ) -> Vec<TryGet> {
        {
            let state = self.state.borrow();
            keys.iter()
                .for_each(|key| state.index.prefetch_head(key.hash()));
            keys.iter()
                .for_each(|key| state.index.prefetch_record(key.hash()));
        }
        let plain = GetOptions::default();
        keys.iter()
            .enumerate()
            .map(|(i, key)| self.try_get(key, options.get(i).unwrap_or(&plain)))
            .collect()
    }

    /// Scatters a block over `targets` on the shard's thread; the value is the bytes copied.
    pub async fn get_into(
        self: &Rc<Self>,
        key: &BlockKey,
        targets: &[RegisteredRegion],
        options: &GetOptions,
    ) -> Lookup<usize> {
        self.get(key, options)
            .await
            .map(|pin| scatter(&pin, targets))
    }

    /// The arena, to be kept alive by whoever holds pins of it.
    #[must_use]
    pub const fn arena(&self) -> &Arc<ArenaShared> {
        &self.shared
    }
}

impl State {
    /// Counts a pin on a block in DRAM; `None` at the bound on pinned bytes.
    #[inline]
    pub(super) fn pin(&mut self, block: BlockIx) -> Option<Found> {
        let heat = self.heat_now();
        let record = self.index.record_mut(block);
        let slot = record.slot()?;
        if record.pins == 0 {
            let pinned_len = record.pinned_len();
            // The first pin is always granted: a block may be larger than the bound.
            if self.pinned_bytes > 0 && self.pinned_bytes + pinned_len > self.pinned_bytes_max {
                return None;
            }
            self.pinned_bytes += pinned_len;
        } else if record.pins == u16::MAX {
            return None;
        }
        record.pins += 1;
        record.heat = heat;
        record.flags |= WARM;
        Some(Found {
            slot,
            len: record.len,
            block,
        })
    }

    /// A filled slot now holds `block`.
    pub(super) fn settle(&mut self, slot: SlotIx, block: BlockIx) {
        self.end_filling(slot);
        self.pool.publish(slot, block);
        let heat = self.heat_now();
        let record = self.index.record_mut(block);
        record.set_slot(Some(slot));
        record.heat = heat;
        let len = u64::from(record.len);
        self.count_in_dram(block);
        self.dram_blocks += 1;
        self.payload_bytes += len;
    }
}
