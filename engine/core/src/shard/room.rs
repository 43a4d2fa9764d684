//! Making room: free slots, eviction, slabs that change classes, and the bounded wait.

use std::collections::HashSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use futures_lite::future::or;
use terrace_slab::{ClassChoice, ClassIx, SlabPool, SlotIx, SlotWriter};
use terrace_types::limits::SLOT_ALIGN;
use terrace_types::{BlockIx, BlockKey, KeyHash, Namespace, Nanos};

use super::{Filler, Filling, Shard, State};
use crate::events::EventKind;
use crate::index::{AHEAD, DEMOTING, PASSING, PROMOTING, Record};
use terrace_nvme::tier::NvmeTier;

/// What one attempt at making room came to.
pub(super) enum Room {
    /// There is a slot.
    Slot(SlotWriter),
    /// Everything is pinned, being written, or on its way down.
    None,
}

/// What room is for. Reads go first: somebody waits for their bytes, and a store can wait or be
/// told that the shard is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Read,
    Store,
}

/// Who needs room, and whose blocks do not go for it.
#[derive(Clone, Default)]
pub(super) struct Asker {
    /// The namespace of the block that needs room; `None` for room ahead of need.
    pub(super) namespace: Option<Namespace>,
    /// For a block that is read ahead: the other blocks of its chain.
    spare: Option<Rc<HashSet<KeyHash>>>,
}

impl Asker {
    /// For the block under `key`.
    pub(super) const fn of(key: &BlockKey) -> Self {
        Self {
            namespace: Some(key.namespace()),
            spare: None,
        }
    }

    /// For the block under `key`, which is read ahead of need.
    pub(super) fn ahead(key: &BlockKey, spare: Rc<HashSet<KeyHash>>) -> Self {
        Self {
            spare: Some(spare),
            ..Self::of(key)
        }
    }

    /// The same when somebody waits for the block.
    pub(super) const fn as_demand(&self) -> Self {
        Self {
            namespace: self.namespace,
            spare: None,
        }
    }

    /// Whether a block may go, whoever owns it; with `class`, when its slot is of that class.
    #[inline]
    pub(super) fn lets_go(&self, record: &Record, class: Option<ClassIx>, pool: &SlabPool) -> bool {
        let spare = self.spare.as_ref();
        let is_of = |class| {
            let slot = record.slot();
            slot.is_some_and(|slot| pool.class_of(slot) == class)
        };
        record.pins == 0
            && spare.is_none_or(|spare| !record.is(AHEAD) && !spare.contains(&record.hash()))
            && class.is_none_or(is_of)
    }
}

/// Counts a wait for room, for as long as somebody waits: its caller may give it up.
struct RoomWaiter<'a> {
    shard: &'a Shard,
    need: Need,
}

impl<'a> RoomWaiter<'a> {
    fn new(shard: &'a Shard, need: Need) -> Self {
        let mut state = shard.state.borrow_mut();
        state.room_waiters += 1;
        state.reads_waiting += usize::from(need == Need::Read);
        Self { shard, need }
    }
}

impl Drop for RoomWaiter<'_> {
    fn drop(&mut self) {
        if let Ok(mut state) = self.shard.state.try_borrow_mut() {
            state.room_waiters -= 1;
            if self.need == Need::Read {
                state.reads_waiting -= 1;
                if state.reads_waiting == 0 {
                    // Stores stood back for the last of them.
                    state.wake_waiting();
                }
            }
        }
    }
}

impl Shard {
    /// A slot for a block of `len` bytes, waiting for `busy_wait` at most.
    pub(super) async fn room_for(
        self: &Rc<Self>,
        len: u64,
        need: Need,
        asker: &Asker,
    ) -> Option<SlotWriter> {
        let (mut deadline, mut waits) = (None, None);
        loop {
            if self.unavailable().is_some() {
                return None;
            }
            if !self.stands_back(need, deadline)
                && let Some(writer) = self.try_room(len, asker)
            {
                return Some(writer);
            }
            let deadline = *deadline.get_or_insert_with(|| self.busy_deadline());
            waits.get_or_insert_with(|| RoomWaiter::new(self, need));
            if !self.wait_for_room(deadline, need).await {
                return None;
            }
        }
    }

    /// Whether a store leaves what comes free to the reads that wait: for half of its time, or
    /// enough reads would keep it out for good.
    pub(super) fn stands_back(&self, need: Need, deadline: Option<Nanos>) -> bool {
        if need == Need::Read || self.state.borrow().reads_waiting == 0 {
            return false;
        }
        let half = self.config.busy_wait / 2;
        deadline.is_none_or(|deadline| self.runtime.now() + half < deadline)
    }

    /// A slot for a block of `len` bytes, if there is one without waiting. What has to go down
    /// for it is on its way afterwards.
    pub(super) fn try_room(self: &Rc<Self>, len: u64, asker: &Asker) -> Option<SlotWriter> {
        let room = {
            let mut state = self.state.borrow_mut();
            state.tenants.look_at_clock(self.now.get());
            state.make_room(len, self.number, self.tier.as_deref(), asker)
        };
        self.start_writer();
        match room {
            Room::Slot(writer) => Some(writer),
            Room::None => None,
        }
    }

    /// Until when a call that begins to wait for room does so.
    pub(super) fn busy_deadline(&self) -> Nanos {
        self.runtime.now() + self.config.busy_wait
    }

    /// Waits until something was freed; false when `deadline` passed first.
    pub(super) async fn wait_for_room(&self, deadline: Nanos, need: Need) -> bool {
        self.shared.want_return();
        if self.drain_returns() {
            return true;
        }
        let mut registered = false;
        let freed = poll_fn(|context| {
            if registered {
                return Poll::Ready(true);
            }
            registered = true;
            let mut state = self.state.borrow_mut();
            let waiting = match need {
                Need::Read => &mut state.waiting_reads,
                Need::Store => &mut state.waiting,
            };
            waiting.push(context.waker().clone());
            Poll::Pending
        });
        let late = async {
            self.clock().sleep_until(deadline).await;
            false
        };
        or(freed, late).await && self.clock().now() < deadline
    }
}

impl State {
    /// Finds, frees or takes over a slot for `len` bytes, evicting what the policy gives up.
    pub(super) fn make_room(
        &mut self,
        len: u64,
        shard: usize,
        tier: Option<&NvmeTier>,
        asker: &Asker,
    ) -> Room {
        if self.tenants.is_active() && !self.make_room_in_quota(len, shard, tier, asker) {
            return Room::None;
        }
        while self.dram_blocks + self.writers.len() >= self.blocks_cap {
            if !self.may_begin_demotion() {
                return Room::None;
            }
            let Some(victim) = self.victim_of(None, asker) else {
                return Room::None;
            };
            if !self.let_go(victim, shard, tier) {
                return Room::None;
            }
        }
        let class = match self.pool.choose_class(len) {
            ClassChoice::Fits(class) => class,
            ClassChoice::Retire(class) => {
                if asker.spare.is_some() || !self.retire(class, shard, tier) {
                    return Room::None;
                }
                match self.pool.choose_class(len) {
                    ClassChoice::Fits(class) => class,
                    ClassChoice::Retire(_) => return Room::None,
                }
            }
        };
        self.room_in(class, len as u32, (shard, tier), asker)
    }

    fn room_in(
        &mut self,
        class: ClassIx,
        len: u32,
        (shard, tier): (usize, Option<&NvmeTier>),
        asker: &Asker,
    ) -> Room {
        loop {
            if let Some(slot) = self.pool.take(class) {
                self.begin_filling(slot, len, asker);
                return Room::Slot(self.pool.writer(slot, len));
            }
            if !self.may_begin_demotion() {
                return Room::None;
            }
            let victim = match self.victim_of(Some(class), asker) {
                Some(victim) => victim,
                // What is read ahead is not worth a slab of what is there.
                None if asker.spare.is_some() => return Room::None,
                None if self.move_slab(class, shard, tier) => continue,
                // No slab can move: the coldest blocks of other classes go one by one, until
                // one of this class is among the coldest or a run of pages is free.
                None => match self.victim_of(None, asker) {
                    Some(victim) => victim,
                    None => return Room::None,
                },
            };
            if !self.let_go(victim, shard, tier) {
                return Room::None;
            }
        }
    }

    /// A slot is being filled from now on.
    fn begin_filling(&mut self, slot: SlotIx, len: u32, asker: &Asker) {
        let filling = Filling {
            filler: Filler::Put,
            passes: false,
            namespace: asker.namespace.map_or(0, |namespace| namespace.index()),
            bytes: u64::from(len).next_multiple_of(SLOT_ALIGN),
        };
        self.tenants.begin_filling(&filling);
        self.writers.insert(slot, filling);
    }

    /// Whether one more block may be sent down: one for each that waits for room is enough.
    pub(super) const fn may_begin_demotion(&self) -> bool {
        self.demoting <= self.room_waiters
    }

    /// The policy's next victim that is not pinned; with `class`, among its slots only.
    pub(super) fn victim_of(&mut self, class: Option<ClassIx>, asker: &Asker) -> Option<BlockIx> {
        if self.tenants.is_active() {
            return self.victim_by_rules(class, asker);
        }
        let (index, pool) = (&self.index, &self.pool);
        let mut evictable = |block: BlockIx| asker.lets_go(index.record(block), class, pool);
        self.policy.victim(&mut evictable)
    }

    /// Drops a block's DRAM copy, and the block with it when no other tier holds one. The
    /// policy has forgotten it already.
    pub(super) fn give_up(&mut self, block: BlockIx, shard: usize, tier: Option<&NvmeTier>) {
        if self.index.record(block).below().is_some() {
            self.emit(shard, EventKind::Demoted, block);
            self.drop_slot(block);
            return;
        }
        self.count_eviction(block);
        self.emit(shard, EventKind::Evicted, block);
        self.erase(block, tier);
    }

    /// Empties the slabs of least value so that `class` gets their pages. False when nothing
    /// can be emptied.
    fn move_slab(&mut self, class: ClassIx, shard: usize, tier: Option<&NvmeTier>) -> bool {
        let heat = self.heat_now();
        let index = &self.index;
        let plan = self
            .pool
            .plan_move(class, &mut |block| worth(index.record(block), heat));
        let Some(blocks) = plan else { return false };
        if self.tenants.is_active() && self.hits_a_floor(&blocks) {
            return false;
        }
        self.pool.count_move();
        self.clear_out(&blocks, shard, tier)
    }

    fn retire(&mut self, class: ClassIx, shard: usize, tier: Option<&NvmeTier>) -> bool {
        let index = &self.index;
        let plan = self
            .pool
            .plan_retire(class, &mut |block| worth(index.record(block), 0));
        let Some(blocks) = plan else { return false };
        if self.tenants.is_active() && self.hits_a_floor(&blocks) {
            return false;
        }
        self.pool.count_move();
        self.clear_out(&blocks, shard, tier)
    }

    /// Empties slabs. False when some of their blocks have to be written below first: the
    /// slabs come free with them.
    fn clear_out(&mut self, blocks: &[BlockIx], shard: usize, tier: Option<&NvmeTier>) -> bool {
        let mut freed = true;
        for block in blocks {
            self.policy.on_remove(*block);
            let dirty = self.index.record(*block).below().is_none();
            if dirty && tier.is_some_and(NvmeTier::takes_blocks) {
                self.begin_demotion(*block);
                freed = false;
                continue;
            }
            self.counters.slab_evictions += u64::from(dirty);
            self.give_up(*block, shard, tier);
        }
        freed
    }
}

/// What a block is worth when its slab may have to move: more the more recently it was used.
/// `None` when it cannot go now.
fn worth(record: &Record, heat_now: u8) -> Option<u64> {
    if record.pins > 0 || record.is(DEMOTING | PROMOTING | PASSING) {
        return None;
    }
    Some(256 - u64::from(heat_now.wrapping_sub(record.heat)))
}
