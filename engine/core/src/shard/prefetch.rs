//! Prefetch: the rest of a chain comes up from the devices ahead of need.
//!
//! **Invariants**
//! - Bytes of blocks that are being read ahead, or lie in DRAM and were not used yet, are at most
//!   `prefetch_ratio_max` of DRAM, and so are their blocks when DRAM has a cap in blocks. One
//!   block is always granted.
//! - Reads begin in the order of the chain; what was begun ends, whoever goes away.
//! - No block of the same chain, and none that was read ahead and not used, goes for it; what the
//!   watermark asks the writer for follows the policy alone.
//!
//! A lookup that finds its block being read ahead joins that read, and has it go on as its own.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use futures_lite::future::or;
use terrace_nvme::tier::{Location, NvmeTier, ReadClass};
use terrace_slab::SlotWriter;
use terrace_types::{BlockIx, BlockKey, KeyHash, Lookup, Nanos, Tier};

use super::promote::Arrival;
use super::room::{Asker, Need};
use super::{GetOptions, Shard, State};
use crate::index::AHEAD;

/// Reads of one prefetch that are under way at once: as many as a device's own window for them.
const READS_MAX: usize = 16;

/// What a prefetch came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchReport {
    /// Blocks whose reads were begun.
    pub begun: u64,
    /// Blocks that were in DRAM already, or on their way there.
    pub resident: u64,
    /// Blocks below that were not begun: the caller went away, or the time was up.
    pub cancelled: u64,
}

impl PrefetchReport {
    /// Adds another shard's.
    pub const fn add(&mut self, other: &Self) {
        self.begun += other.begun;
        self.resident += other.resident;
        self.cancelled += other.cancelled;
    }
}

/// A read ahead of need that is under way.
#[derive(Default)]
struct Reading {
    /// Somebody waits for it.
    lifted: bool,
    waker: Option<Waker>,
}

/// What is read ahead of need.
#[derive(Default)]
pub(super) struct Ahead {
    /// Bytes and blocks under way or unused.
    bytes: u64,
    blocks: usize,
    bytes_max: u64,
    blocks_max: usize,
    reads: HashMap<BlockIx, Reading>,
    /// Prefetches that wait for room in the budget.
    waiting: Vec<Waker>,
}

impl Ahead {
    /// For an arena of `bytes` with a cap of `blocks`, of which the share `ratio` may be ahead.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share of memory needs no last bit; validated to lie in 0..=1"
    )]
    pub(super) fn new(bytes: u64, blocks: usize, ratio: f64) -> Self {
        Self {
            bytes_max: (bytes as f64 * ratio) as u64,
            blocks_max: (blocks as f64 * ratio) as usize,
            ..Self::default()
        }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn blocks(&self) -> usize {
        self.blocks
    }

    /// Reads that are under way.
    pub(super) fn under_way(&self) -> usize {
        self.reads.len()
    }

    const fn fits(&self, bytes: u64) -> bool {
        self.blocks == 0 || (self.bytes + bytes <= self.bytes_max && self.blocks < self.blocks_max)
    }

    const fn claim(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.blocks += 1;
    }

    fn release(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.blocks -= 1;
        self.wake();
    }

    fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    pub(super) fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// Whether nothing is read ahead and nobody waits to.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.waiting.is_empty()
    }
}

/// The part of a chain that belongs to one shard, in order.
pub(crate) struct Chain {
    pub(crate) blocks: Vec<(BlockKey, GetOptions)>,
    /// Set when its caller went away.
    pub(crate) cancelled: Arc<AtomicBool>,
}

#[cfg(test)]
impl Chain {
    /// A chain that nobody cancels.
    pub(super) fn of(keys: &[BlockKey]) -> Self {
        let block = |key: &BlockKey| (key.clone(), GetOptions::default());
        Self {
            blocks: keys.iter().map(block).collect(),
            cancelled: Arc::default(),
        }
    }
}

impl Shard {
    /// Brings the blocks of a chain up, in order, until one is in no tier, `deadline` is over or
    /// its caller went away. Ends when what was begun is read, or at `deadline`.
    pub(crate) async fn prefetch(self: &Rc<Self>, chain: Chain, deadline: Nanos) -> PrefetchReport {
        let report = Cell::new(PrefetchReport::default());
        let spare = chain.blocks.iter().map(|(key, _)| key.hash());
        let spare: Rc<HashSet<KeyHash>> = Rc::new(spare.collect());
        let at = Cell::new(0);
        let whole = async {
            let under_way = Rc::new(Cell::new(0));
            while let Some((key, options)) = chain.blocks.get(at.get()) {
                if chain.cancelled.load(Ordering::Relaxed) || self.unavailable().is_some() {
                    return;
                }
                let mut sum = report.get();
                match self.below_len(key) {
                    Lookup::Hit { value: None, .. } => sum.resident += 1,
                    Lookup::Hit {
                        value: Some(len), ..
                    } => {
                        if !self.ahead_turn(len, &under_way, &chain.cancelled).await {
                            return;
                        }
                        let spare = Rc::clone(&spare);
                        let begun = self.read_ahead(key, len, *options, (&under_way, spare));
                        sum.begun += u64::from(begun);
                        sum.resident += u64::from(!begun);
                    }
                    Lookup::Miss | Lookup::Unavailable(_) => {
                        at.set(chain.blocks.len());
                        break;
                    }
                }
                report.set(sum);
                at.set(at.get() + 1);
            }
            self.all_read(&under_way).await;
        };
        or(whole, self.runtime.sleep_until(deadline)).await;
        let mut report = report.get();
        for (key, _) in chain.blocks.get(at.get()..).unwrap_or_default() {
            match self.below_len(key) {
                Lookup::Hit { value: Some(_), .. } => report.cancelled += 1,
                Lookup::Hit { .. } => {}
                Lookup::Miss | Lookup::Unavailable(_) => break,
            }
        }
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.counters.prefetch_cancelled += report.cancelled;
            // One whose time was up left its waker behind.
            state.ahead.wake();
        }
        report
    }

    /// Has prefetches look again whether their callers are still there.
    pub(crate) fn wake_prefetches(&self) {
        self.state.borrow_mut().ahead.wake();
    }

    /// The length of a block that only a device holds; `None` for one in DRAM or on its way up.
    fn below_len(&self, key: &BlockKey) -> Lookup<Option<u32>> {
        let there = self.exists(key);
        if let Lookup::Hit {
            tier: Tier::Nvme, ..
        } = there
        {
            let state = self.state.borrow();
            let epoch = state.epochs.of(key.namespace());
            let block = epoch.and_then(|epoch| state.index.find(key, epoch));
            let record = block.map(|block| state.index.record(block));
            let record = record.filter(|record| !record.is(crate::index::PROMOTING));
            let len = record.map(|record| record.len);
            return there.map(|()| len);
        }
        there.map(|()| None)
    }

    /// Waits until a block of `len` bytes may be read ahead, and takes its share of the budget.
    /// False when the caller went away.
    async fn ahead_turn(&self, len: u32, under_way: &Cell<usize>, cancelled: &AtomicBool) -> bool {
        let bytes = whole_granules(len);
        poll_fn(|context| {
            if cancelled.load(Ordering::Relaxed) || self.unavailable().is_some() {
                return Poll::Ready(false);
            }
            let ahead = &mut self.state.borrow_mut().ahead;
            if under_way.get() < READS_MAX && ahead.fits(bytes) {
                ahead.claim(bytes);
                return Poll::Ready(true);
            }
            ahead.wait(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits until the reads that were begun have ended.
    async fn all_read(&self, under_way: &Cell<usize>) {
        poll_fn(|context| {
            if under_way.get() == 0 || self.unavailable().is_some() {
                return Poll::Ready(());
            }
            self.state.borrow_mut().ahead.wait(context.waker());
            Poll::Pending
        })
        .await;
    }

    /// Begins to read a block whose share of the budget is taken. False when it came up or went
    /// meanwhile.
    fn read_ahead(
        self: &Rc<Self>,
        key: &BlockKey,
        len: u32,
        options: GetOptions,
        (under_way, spare): (&Rc<Cell<usize>>, Rc<HashSet<KeyHash>>),
    ) -> bool {
        let bytes = whole_granules(len);
        let block = {
            let mut state = self.state.borrow_mut();
            let epoch = state.epochs.of(key.namespace());
            let block = epoch.and_then(|epoch| state.index.find(key, epoch));
            let below = block.filter(|block| {
                let record = state.index.record(*block);
                let moves = record.is(crate::index::PROMOTING);
                record.slot().is_none() && !moves && record.len == len
            });
            let Some(block) = below else {
                state.ahead.release(bytes);
                return false;
            };
            state.index.record_mut(block).flags |= crate::index::PROMOTING;
            state.ahead.reads.insert(block, Reading::default());
            block
        };
        under_way.set(under_way.get() + 1);
        let asker = Asker::ahead(key, spare);
        let (shard, key, under_way) = (Rc::clone(self), key.clone(), Rc::clone(under_way));
        self.spawn(Box::pin(async move {
            // What it came to shows in the record; nobody waits for the answer.
            let _ = shard
                .read_up(&key, block, &options, Arrival::Ahead, &asker)
                .await;
            under_way.set(under_way.get() - 1);
            {
                let mut state = shard.state.borrow_mut();
                state.ahead.reads.remove(&block);
                let unused = state.index.record(block).is(AHEAD);
                if !unused {
                    state.ahead.release(bytes);
                }
                state.ahead.wake();
            }
            shard.end_promotion(block);
        }));
        true
    }

    /// Somebody waits for a block: a read of it ahead of need goes on as a demand.
    pub(super) fn lift(&self, block: BlockIx) {
        let mut state = self.state.borrow_mut();
        if let Some(reading) = state.ahead.reads.get_mut(&block) {
            reading.lifted = true;
            if let Some(waker) = reading.waker.take() {
                waker.wake();
            }
        }
    }

    fn is_lifted(&self, block: BlockIx) -> bool {
        let state = self.state.borrow();
        let reading = state.ahead.reads.get(&block);
        reading.is_some_and(|reading| reading.lifted)
    }

    async fn lifted(&self, block: BlockIx) {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            // What a warm start reads is not on the list: it is not lifted.
            if let Some(reading) = state.ahead.reads.get_mut(&block) {
                if reading.lifted {
                    return Poll::Ready(());
                }
                reading.waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// A slot for a block that is read ahead: as a store, until somebody waits for the block.
    pub(super) async fn room_ahead(
        self: &Rc<Self>,
        block: BlockIx,
        asker: &Asker,
    ) -> Option<SlotWriter> {
        let len = u64::from(self.state.borrow().index.record(block).len);
        let early = async { Some(self.room_for(len, Need::Store, asker).await) };
        let lifted = async {
            self.lifted(block).await;
            None
        };
        match or(early, lifted).await {
            Some(None) if !self.is_lifted(block) => None,
            Some(Some(writer)) => Some(writer),
            _ => {
                let asker = asker.as_demand();
                self.room_for(len, Need::Read, &asker).await
            }
        }
    }

    /// Waits for the turn of a read ahead of need, until somebody waits for the block; tells as
    /// what it then reads.
    pub(super) async fn class_ahead(
        &self,
        block: BlockIx,
        tier: &Rc<NvmeTier>,
        location: Location,
    ) -> ReadClass {
        or(tier.prefetch_turn(location), self.lifted(block)).await;
        if self.is_lifted(block) {
            ReadClass::Demand
        } else {
            ReadClass::Prefetch
        }
    }
}

impl State {
    /// A block that was read ahead lies in DRAM now.
    pub(super) fn arrive_ahead(&mut self, block: BlockIx, class: ReadClass) {
        if class != ReadClass::Prefetch {
            return;
        }
        self.counters.prefetched += 1;
        let reading = self.ahead.reads.get(&block);
        if reading.is_some_and(|reading| reading.lifted) {
            self.counters.prefetched_used += 1;
        } else {
            self.index.record_mut(block).flags |= AHEAD;
        }
    }

    /// A block that was read ahead is used for the first time, or leaves DRAM unused.
    #[cold]
    pub(super) fn end_ahead(&mut self, block: BlockIx, used: bool) {
        let record = self.index.record_mut(block);
        record.flags &= !AHEAD;
        let bytes = whole_granules(record.len);
        // While its task runs the task itself gives the share back.
        if !self.ahead.reads.contains_key(&block) {
            self.ahead.release(bytes);
        }
        if used {
            self.counters.prefetched_used += 1;
        } else {
            self.counters.prefetched_unused += 1;
        }
    }
}

fn whole_granules(len: u32) -> u64 {
    u64::from(len).next_multiple_of(terrace_types::limits::SLOT_ALIGN)
}
