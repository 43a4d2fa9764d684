//! Reclaim: the oldest segment of a device is emptied, keeping what is worth a second write.
//!
//! Kept is what the policy says. Where it has no opinion, that is what is in DRAM now and what was
//! hit since it was last written: with a spare segment that reaches the hits of an exclusive LRU
//! to within a hundredth on chat traces, at a sixth more writes. The rest leaves the tier with
//! the segment.
//!
//! **Invariants**
//! - Between the check that a record still counts and its new place nothing else runs.
//! - Index entries point to the old copies until the segment's new head is durable.

use std::rc::Rc;

use futures_channel::oneshot;
use futures_util::StreamExt;
use futures_util::stream;
use terrace_nvme::format::{DeviceId, EntryKind, EntryRef, Sequence};
use terrace_nvme::tier::{
    Contents, Location, Next, NvmeTier, ReadClass, Record, SegmentIx, Ticket, TierError,
};
use terrace_nvme::{AlignedBuffer, IoBuffer};
use terrace_types::{Access, BlockIx, BlockKey, Checksum, Hint, RequestContext};

use super::{Job, Shard, State};
use crate::index::{DEMOTING, ERASED, PASSING, WARM};

/// Blocks that are read and written again side by side.
const REINSERTIONS_AT_ONCE: usize = 16;
/// Largest share of a segment that may be written again: reclaim has to gain something.
const KEEP_NUMERATOR: u64 = 9;
const KEEP_DENOMINATOR: u64 = 10;

/// For which shard a segment is emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The one that reclaims it.
    Owner,
    /// One that has blocks in it.
    Guest,
}

/// What is written again of a segment.
struct Kept {
    kind: EntryKind,
    block: Option<BlockIx>,
    location: Location,
    namespace: Box<str>,
    key: Box<[u8]>,
    sequence: Sequence,
    checksum: Checksum,
    len: u32,
    hint: Hint,
    /// Recently used ones are kept first when not all can be.
    rank: u32,
}

/// What became of something that was to be kept.
enum Reinserted<'a> {
    /// It was placed.
    At(&'a Kept, Location, Ticket),
    /// It does not count any more, cannot be read, or is a block that has no room.
    Gone,
    /// A tombstone that has no room.
    Homeless,
    /// The device does not take it.
    Failed,
}

impl Kept {
    /// A block goes with its segment; a tombstone may not.
    const fn without_room(&self) -> Reinserted<'static> {
        match self.kind {
            EntryKind::Tombstone | EntryKind::NamespaceTombstone => Reinserted::Homeless,
            EntryKind::Block | EntryKind::Checkpoint => Reinserted::Gone,
        }
    }
}

impl Shard {
    /// Starts the task that makes segments ready, when a device has none left.
    pub(super) fn start_reclaim(self: &Rc<Self>) {
        let Some(tier) = &self.tier else { return };
        if !tier.wants_reclaim() {
            return;
        }
        if std::mem::replace(&mut self.state.borrow_mut().reclaimer_runs, true) {
            return;
        }
        let (shard, tier) = (Rc::clone(self), Rc::clone(tier));
        self.spawn(Box::pin(async move {
            while tier.wants_reclaim() && shard.unavailable().is_none() {
                match tier.next_to_reclaim() {
                    Some(next) => {
                        let worker = Rc::clone(&shard);
                        shard.spawn(Box::pin(async move { worker.make_ready(next).await }));
                    }
                    None => tier.changed().await,
                }
            }
            shard.state.borrow_mut().reclaimer_runs = false;
        }));
    }

    async fn make_ready(self: &Rc<Self>, next: Next) {
        let Some(tier) = &self.tier else { return };
        let outcome = match next {
            Next::Blank(segment) => tier.renew(segment).await.map(|()| tier.release(segment)),
            Next::Oldest(segment) => self.reclaim(tier, segment).await,
        };
        match outcome {
            Ok(()) => self.start_reclaim(),
            // The next write that needs room tries again.
            Err(error) => {
                tracing::warn!(shard = self.number, %error, "a segment could not be reclaimed");
            }
        }
    }

    //= docs/on-disk-format.md#OD-5
    async fn reclaim(
        self: &Rc<Self>,
        tier: &Rc<NvmeTier>,
        segment: SegmentIx,
    ) -> Result<(), TierError> {
        let contents = tier.contents(segment).await;
        let (device, number, shared) = tier.identify(segment);
        let mut moved = !shared || self.ask_peers(device, number).await;
        moved &= self.keep(tier, &contents, Part::Owner).await;
        if !moved {
            // Without its tombstones a segment may not go: what they hide could come back.
            tier.keep_segment(segment);
            return Err(TierError::NoRoom);
        }
        tier.renew(segment).await?;
        self.forget_segment(tier, &contents);
        tier.release(segment);
        if shared {
            self.tell_peers(device, number).await;
        }
        Ok(())
    }

    /// Tells the other shards that nothing of theirs is on the device any more in a segment that
    /// they left. Until then they write tombstones as if their blocks were still in it.
    async fn tell_peers(self: &Rc<Self>, device: DeviceId, number: u32) {
        for (peer, sender) in self.peers.iter().enumerate() {
            if peer == self.number {
                continue;
            }
            let job: Job = Box::new(move |shard| {
                if let Some(tier) = &shard.tier
                    && let Some(segment) = tier.find(device, number)
                {
                    tier.leave_guest(segment);
                }
                None
            });
            // A shard that is closed writes no tombstones.
            let _ = sender.send(job).await;
        }
    }

    /// Has the other shards take what is theirs out of a segment written under another count.
    /// False when one of them could not move a tombstone.
    async fn ask_peers(self: &Rc<Self>, device: DeviceId, number: u32) -> bool {
        let mut moved = true;
        for (peer, sender) in self.peers.iter().enumerate() {
            if peer == self.number {
                continue;
            }
            let (done, answer) = oneshot::channel();
            let job: Job = Box::new(move |shard| {
                let shard = Rc::clone(shard);
                Some(Box::pin(async move {
                    let _ = done.send(shard.leave_segment(device, number).await);
                }))
            });
            // A shard that is fenced or closed does not answer: its tombstones stay unmoved.
            moved &= sender.send(job).await.is_ok() && answer.await.unwrap_or(false);
        }
        moved
    }

    /// Another shard reclaims a segment: what is kept of this shard's blocks moves, the rest is
    /// forgotten. False when a tombstone could not be moved.
    async fn leave_segment(self: &Rc<Self>, device: DeviceId, number: u32) -> bool {
        let Some(tier) = &self.tier else { return true };
        let Some(segment) = tier.find(device, number) else {
            return true;
        };
        let contents = tier.contents(segment).await;
        if !self.keep(tier, &contents, Part::Guest).await {
            return false;
        }
        self.forget_segment(tier, &contents);
        while tier.readers(segment) > 0 {
            tier.changed().await;
        }
        true
    }

    /// Writes again what is worth it, and waits until that is durable. False when a tombstone
    /// is not.
    async fn keep(self: &Rc<Self>, tier: &Rc<NvmeTier>, contents: &Contents, part: Part) -> bool {
        let kept = self.choose(tier, contents, part);
        let writes = stream::iter(&kept).map(|kept| self.reinsert(tier, kept, part));
        let outcomes: Vec<Reinserted<'_>> = writes
            .buffer_unordered(REINSERTIONS_AT_ONCE)
            .collect()
            .await;
        let mut moved = true;
        for outcome in outcomes {
            match outcome {
                Reinserted::At(kept, location, ticket) => {
                    if tier.durable(ticket).await.is_ok() {
                        self.move_below(tier, kept, location);
                    } else {
                        // A device that is being emptied is sound: its block stays there.
                        moved &= kept.block.is_some() && !tier.is_draining(contents.segment());
                    }
                }
                Reinserted::Gone => {}
                Reinserted::Homeless | Reinserted::Failed => moved = false,
            }
        }
        moved
    }

    fn choose(&self, tier: &NvmeTier, contents: &Contents, part: Part) -> Vec<Kept> {
        let segment = contents.segment();
        let mut state = self.state.borrow_mut();
        let mut kept = Vec::new();
        contents.for_each(|entry| {
            kept.extend(state.worth_keeping(self, tier, entry, segment));
        });
        drop(state);
        if part == Part::Guest {
            return kept;
        }
        kept.sort_by_key(|kept| kept.rank);
        let most = tier.segment_len(segment) / KEEP_DENOMINATOR * KEEP_NUMERATOR;
        let mut left = match tier.keep_room(segment) {
            u64::MAX => u64::MAX,
            room => room.min(most),
        };
        kept.retain(|kept| {
            let len = u64::from(kept.len).next_multiple_of(terrace_nvme::UNIT);
            let fits = len <= left;
            left = if fits { left - len } else { left };
            fits
        });
        let units = kept
            .iter()
            .map(|kept| kept.len.div_ceil(terrace_nvme::UNIT as u32));
        tier.set_aside(segment, units.sum(), kept.len() as u32);
        kept
    }

    /// Reads a record and appends it again with the sequence it has.
    async fn reinsert<'a>(
        self: &Rc<Self>,
        tier: &Rc<NvmeTier>,
        kept: &'a Kept,
        part: Part,
    ) -> Reinserted<'a> {
        let segment = tier.split(kept.location).0;
        let mut buffer = IoBuffer::None;
        if kept.len > 0 {
            let memory = IoBuffer::Owned(AlignedBuffer::zeroed(kept.len as usize));
            let read = tier.read(kept.location, kept.len, memory, ReadClass::Background);
            let outcome = read.await;
            let memory = outcome.buffer.and_then(IoBuffer::owned);
            let (Ok(()), Some(memory)) = (outcome.result, memory) else {
                // It cannot be read: it goes with the segment.
                return Reinserted::Gone;
            };
            let payload = &memory.bytes()[..kept.len as usize];
            if Checksum::of_named(&kept.namespace, &kept.key, payload) != kept.checksum {
                if let Some(block) = kept.block.filter(|_| self.still_at(kept)) {
                    self.give_up_damaged(block);
                }
                return Reinserted::Gone;
            }
            buffer = IoBuffer::Owned(memory);
        }
        let record = Record {
            kind: kept.kind,
            namespace: &kept.namespace,
            key: &kept.key,
            checksum: kept.checksum,
            len: kept.len,
            hint: kept.hint,
            sequence: Some(kept.sequence),
            // Room was set aside by the owner for what is its own, and for all tombstones.
            from: (part == Part::Owner || kept.block.is_none()).then_some(segment),
        };
        loop {
            if !self.still_at(kept) {
                return Reinserted::Gone;
            }
            match tier.try_place(&record, buffer) {
                Ok(placed) => return Reinserted::At(kept, placed.location, placed.ticket),
                Err(back) => buffer = back,
            }
            // A guest waits for its turn, not for a segment: two shards could wait for each
            // other. A device that is being emptied waits for no other shard.
            if record.from.is_none() && !tier.is_draining(segment) && !tier.has_space(kept.len) {
                return kept.without_room();
            }
            let deadline = self.runtime.now() + self.config.nvme.io_deadline;
            match tier.room(kept.len, record.from, deadline).await {
                Ok(_) => {}
                Err(TierError::NoRoom) => return kept.without_room(),
                Err(_) => return Reinserted::Failed,
            }
        }
    }

    /// Whether the index still points to what is kept; tombstones always count.
    fn still_at(&self, kept: &Kept) -> bool {
        let state = self.state.borrow();
        kept.block.is_none_or(|block| {
            let record = state.index.record(block);
            let ended = state.epochs.is_ended(record.namespace());
            !ended && !record.is(ERASED) && record.below() == Some(kept.location)
        })
    }

    fn move_below(&self, tier: &NvmeTier, kept: &Kept, location: Location) {
        let Some(block) = kept.block.filter(|_| self.still_at(kept)) else {
            return;
        };
        tier.forget(kept.location, kept.len);
        tier.retain(location, kept.len);
        let mut state = self.state.borrow_mut();
        let record = state.index.record_mut(block);
        record.set_below(Some(location));
        record.flags &= !WARM;
    }

    /// The index forgets all that it still finds in a segment.
    fn forget_segment(&self, tier: &NvmeTier, contents: &Contents) {
        let segment = contents.segment();
        let mut state = self.state.borrow_mut();
        if contents.walked {
            // Not all of what the segment held may have been read: look through the index.
            let lost: Vec<BlockIx> = state
                .index
                .scan(0, u32::MAX)
                .filter(|(_, record)| {
                    let below = record.below();
                    below.is_some_and(|location| tier.split(location).0 == segment)
                })
                .map(|(block, _)| block)
                .collect();
            for block in lost {
                state.forget_below(block, self.number, tier);
            }
            return;
        }
        contents.for_each(|entry| {
            if entry.kind != EntryKind::Block {
                return;
            }
            let location = tier.locate(segment, entry.place);
            if let Some(block) = state.find_at(self, entry, location) {
                state.forget_below(block, self.number, tier);
            }
        });
    }

    /// The key that an entry names, when it belongs to this shard.
    pub(super) fn key_of(&self, entry: &EntryRef<'_>) -> Option<BlockKey> {
        let namespace = self.registry.get(entry.namespace).ok()?;
        let key = namespace.key(entry.key).ok()?;
        (crate::engine::route(key.hash(), self.config.shards) == self.number).then_some(key)
    }
}

impl State {
    /// The block that the index finds at `location` under the entry's key.
    fn find_at(&self, shard: &Shard, entry: &EntryRef<'_>, location: Location) -> Option<BlockIx> {
        let key = shard.key_of(entry)?;
        let epoch = self.epochs.of(key.namespace())?;
        let block = self.index.find(&key, epoch)?;
        (self.index.record(block).below() == Some(location)).then_some(block)
    }

    fn worth_keeping(
        &mut self,
        shard: &Shard,
        tier: &NvmeTier,
        entry: &EntryRef<'_>,
        segment: SegmentIx,
    ) -> Option<Kept> {
        let location = tier.locate(segment, entry.place);
        let (block, rank) = match entry.kind {
            EntryKind::Block => {
                let block = self.find_at(shard, entry, location)?;
                let record = self.index.record(block);
                if self.tenants.has_lifetimes() && self.is_expired(block) {
                    return None;
                }
                let in_dram = record.slot().is_some();
                let by_use = in_dram || record.is(WARM);
                let access = Access {
                    id: record.hash(),
                    len: record.len,
                    hint: entry.hint,
                    context: RequestContext::default(),
                };
                // One that is on its way down, or only passes through DRAM, the policy does not know.
                let is_known = in_dram && !record.is(DEMOTING | PASSING);
                let resident = is_known.then_some(block);
                let keep = tier.is_draining(segment)
                    || self.policy.keep(resident, &access).unwrap_or(by_use);
                if !keep {
                    return None;
                }
                let age = self.heat_now().wrapping_sub(record.heat);
                // What is in DRAM may have been promised to be durable: it comes first.
                (Some(block), if in_dram { 1 } else { 2 + u32::from(age) })
            }
            EntryKind::Tombstone | EntryKind::NamespaceTombstone => {
                // Each shard moves those of its own keys; a namespace has keys in all of them.
                if entry.kind == EntryKind::Tombstone {
                    shard.key_of(entry)?;
                }
                if !tier.tombstone_counts(entry.sequence, segment) {
                    return None;
                }
                (None, 0)
            }
            EntryKind::Checkpoint => return None,
        };
        Some(Kept {
            kind: entry.kind,
            block,
            location,
            namespace: entry.namespace.into(),
            key: entry.key.into(),
            sequence: entry.sequence,
            checksum: entry.checksum,
            len: entry.len,
            hint: entry.hint,
            rank,
        })
    }
}
