//! One shard: a core's arena, index and policy, and everything that is done to them.
//!
//! A [`Shard`] lives on its thread and is used there through `Rc<Shard>`: by the engine's
//! messages, by a server's tasks, by tests on the deterministic runtime. Its hit path takes no
//! lock, no atomic and no allocation.
//!
//! **Invariants** ([`Shard::check`] walks them)
//! - A block in DRAM has one slot; the slot's owner word is the block's number.
//! - The policy knows a block exactly when it is in DRAM, in the index, not on its way down,
//!   and not there for its readers only.
//! - A slot is freed when its block is out of the index and its last pin is gone, or when it
//!   leaves DRAM unpinned.
//! - A panic in a task or message fences the shard: every later call is told so.
//!
//! What it does not do: threads, sockets, files. Those are the runtime's, the server's and the
//! tiers'.

mod announce;
mod demote;
mod direct;
mod facts;
mod flight;
mod get;
mod learned;
mod lease;
mod list;
mod numbers;
mod persist;
mod prefetch;
mod promote;
mod put;
mod quota;
mod reclaim;
mod recover;
mod release;
mod remove;
mod room;
mod scrub;
mod serve;
mod tenants;
mod way_down;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use futures_util::FutureExt;
use terrace_nvme::tier::{Location, NvmeTier, Phase};
use terrace_runtime::{LocalFuture, MailboxSender, Runtime};
use terrace_slab::{ArenaShared, RegionKeeper, Returned, SlabPool, SlotIx};
use terrace_types::limits::SLOT_ALIGN;
use terrace_types::{BlockIx, Nanos, RejectReason, UnavailableReason};

use crate::config::EngineConfig;
use crate::engine::ShardIo;
use crate::error::Error;
use crate::events::{Event, EventFilter, EventKind, EventSink, EventStream, Sent, subscription};
use crate::index::{AHEAD, DEMOTING, ERASED, Index, PASSING, PROMOTING};
use crate::namespaces::{NamespaceEpochs, NamespaceRegistry};
use crate::policy::{self, Policy, PolicyConfig, WritePrice};
use crate::stats::{Counters, ShardGauges, ShardStats};

pub use announce::WholeChain;
pub(crate) use direct::Direct;
pub use facts::BlockFacts;
pub use get::{GetOptions, LocalPin, Placement, TryGet};
use lease::Leases;
pub use lease::{Descriptor, Fence, Lease, LeaseId};
pub use list::ListedBlock;
use numbers::ByNumber;
pub use persist::PersistReport;
#[cfg(any(test, fuzzing))]
pub(crate) use persist::checkpoint_again;
pub(crate) use prefetch::Chain;
pub use prefetch::PrefetchReport;
pub use put::{Durability, PutOptions, Reservation};
pub use recover::RecoveryReport;
pub(crate) use serve::{Job, serve};
use way_down::OnItsWay;

/// Makes the policy of a shard; for policies that are not built in.
pub type PolicyFactory = Arc<dyn Fn(PolicyConfig) -> Result<Box<dyn Policy>, Error> + Send + Sync>;

/// What a shard is made of beside the configuration.
#[derive(Clone, Default)]
pub(crate) struct Plugins {
    pub(crate) policy: Option<PolicyFactory>,
}

/// A shard's place in its engine.
pub(crate) struct Place {
    /// The shard's number.
    pub(crate) number: usize,
    /// The id that the namespaces of its keys carry.
    pub(crate) engine: u32,
    /// The engine's names.
    pub(crate) registry: Arc<NamespaceRegistry>,
    /// The mailboxes of all shards, by number.
    pub(crate) peers: Vec<MailboxSender<Job>>,
}

impl Plugins {
    fn make_policy(
        &self,
        config: &EngineConfig,
        policy_config: PolicyConfig,
    ) -> Result<Box<dyn Policy>, Error> {
        let mut policy = match &self.policy {
            Some(factory) => factory(policy_config)?,
            None => policy::by_name(&config.policy, policy_config)?,
        };
        if config.nvme.write_budget > 0 {
            policy.set_write_price(write_price(config));
        }
        Ok(policy)
    }
}

/// The price of writes under the shard's share of the budget: it rises before the budget is used
/// up, so that what goes down for it is what is worth most.
#[expect(clippy::cast_precision_loss, reason = "a price needs no last bit")]
fn write_price(config: &EngineConfig) -> WritePrice {
    let bytes = config.nvme.write_budget as f64 / config.shards.max(1) as f64;
    WritePrice::default().with_budget(bytes / expected_slot_len(config) as f64)
}

/// Length of the slots of blocks that are expected, in bytes.
fn expected_slot_len(config: &EngineConfig) -> u64 {
    let len = config.block_lens.first().copied().unwrap_or(64 << 10);
    len.max(1).next_multiple_of(SLOT_ALIGN)
}

/// Who fills a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filler {
    Put,
    /// A read of a device, or a copy of what one read.
    Read,
}

/// A slot that is being filled.
#[derive(Clone, Copy, Debug)]
struct Filling {
    filler: Filler,
    /// The policy declined the block: it does not stay in DRAM.
    passes: bool,
    /// The number of the namespace it is for.
    namespace: u16,
    /// What it counts for there.
    bytes: u64,
}

struct State {
    index: Index,
    pool: SlabPool,
    policy: Box<dyn Policy>,
    epochs: NamespaceEpochs,
    counters: Counters,
    blocks_cap: usize,
    dram_blocks: usize,
    payload_bytes: u64,
    writers: HashMap<SlotIx, Filling, ByNumber>,
    pinned_bytes: u64,
    pinned_bytes_max: u64,
    ticks: u64,
    heat_shift: u32,
    leases: Leases,
    sinks: Vec<EventSink>,
    event_sequence: u64,
    promotions: HashMap<BlockIx, promote::Promotion, ByNumber>,
    /// Tasks that wait for room or for pins to come back: reads, which go first, and stores.
    waiting_reads: Vec<Waker>,
    waiting: Vec<Waker>,
    /// Puts and reads that wait for room.
    room_waiters: usize,
    /// The reads among them.
    reads_waiting: usize,
    /// Blocks that wait to be written below, marked as on their way.
    leaving: VecDeque<(BlockIx, OnItsWay)>,
    /// Blocks on their way down, those in `leaving` included.
    demoting: usize,
    writer_runs: bool,
    reclaimer_runs: bool,
    sweeper_runs: bool,
    strays: remove::Strays,
    way_down: way_down::WayDown,
    announced: announce::Announced,
    ahead: prefetch::Ahead,
    tenants: tenants::Tenants,
}

/// See the module's text.
pub struct Shard {
    number: usize,
    engine: u32,
    registry: Arc<NamespaceRegistry>,
    peers: Vec<MailboxSender<Job>>,
    config: EngineConfig,
    runtime: Rc<dyn Runtime>,
    shared: Arc<ArenaShared>,
    tier: Option<Rc<NvmeTier>>,
    io: RefCell<Option<ShardIo>>,
    /// Caller memory that the rings know.
    /// What the rings know of callers' memory.
    regions: RefCell<Vec<RegionKeeper>>,
    recovery: Cell<RecoveryReport>,
    state: RefCell<State>,
    now: Cell<Nanos>,
    fenced: Cell<bool>,
    closing: Cell<bool>,
    /// A clean close is under way: no put is taken any more.
    persisting: Cell<bool>,
}

impl Shard {
    /// A shard over `shared`'s arena and `tier`.
    pub(crate) fn new(
        place: Place,
        config: EngineConfig,
        shared: Arc<ArenaShared>,
        runtime: Rc<dyn Runtime>,
        plugins: &Plugins,
        below: Option<(Rc<NvmeTier>, ShardIo)>,
    ) -> Result<Rc<Self>, Error> {
        let number = place.number;
        let (tier, io) = below.unzip();
        let below = tier.as_ref().map_or(0, |tier| tier.bytes());
        let now = runtime.now();
        let state = State::new(number, &config, &shared, plugins, (below, now))?;
        let now = Cell::new(now);
        Ok(Rc::new(Self {
            number,
            engine: place.engine,
            registry: place.registry,
            peers: place.peers,
            config,
            runtime,
            shared,
            tier,
            io: RefCell::new(io),
            regions: RefCell::default(),
            recovery: Cell::default(),
            state: RefCell::new(state),
            now,
            fenced: Cell::new(false),
            closing: Cell::new(false),
            persisting: Cell::new(false),
        }))
    }

    /// The shard's number.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// The runtime the shard's tasks run on.
    #[must_use]
    pub fn runtime(&self) -> &Rc<dyn Runtime> {
        &self.runtime
    }

    /// Starts a task on the shard's thread. A panic in it fences the shard.
    pub fn spawn(self: &Rc<Self>, task: LocalFuture<'static, ()>) {
        let shard = Rc::downgrade(self);
        self.runtime.spawn(Box::pin(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await
                && let Some(shard) = shard.upgrade()
            {
                shard.fence(&*panic);
            }
        }));
    }

    /// Ends the shard's service after a panic: its state may be half changed.
    fn fence(&self, panic: &(dyn std::any::Any + Send)) {
        let message = terrace_runtime::executor::panic_message(panic);
        tracing::error!(
            shard = self.number,
            message,
            "a task panicked; the shard is fenced"
        );
        self.fenced.set(true);
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.wake_waiting();
            let joined = std::mem::take(&mut state.promotions);
            let joined = joined.into_values().flat_map(|promotion| promotion.joined);
            joined.for_each(Waker::wake);
            state.ahead.wake();
        }
    }

    /// A stream of what happens to blocks of this shard from now on, holding at most `capacity`
    /// events that wait.
    pub fn events(&self, capacity: usize, filter: EventFilter) -> EventStream {
        let (sink, stream) = subscription(capacity, filter);
        self.subscribe(sink);
        stream
    }

    /// Sends events to `sink` from now on; sinks without a stream are let go.
    pub(crate) fn subscribe(&self, sink: EventSink) {
        let mut state = self.state.borrow_mut();
        state.sinks.retain(|sink| !sink.is_orphan());
        state.sinks.push(sink);
    }

    /// Whether the shard stopped after a panic.
    #[must_use]
    pub const fn is_fenced(&self) -> bool {
        self.fenced.get()
    }

    #[inline]
    fn unavailable(&self) -> Option<UnavailableReason> {
        if self.fenced.get() {
            return Some(UnavailableReason::ShardFenced);
        }
        self.closing.get().then_some(UnavailableReason::Closing)
    }

    fn rejecting(&self) -> Option<RejectReason> {
        if self.persisting.get() {
            return Some(RejectReason::Closing);
        }
        self.unavailable().map(|reason| match reason {
            UnavailableReason::Closing => RejectReason::Closing,
            _ => RejectReason::ShardFenced,
        })
    }

    /// Takes note of the time and of what came back from other threads.
    pub(crate) fn tick(&self) {
        self.now.set(self.runtime.now());
        self.drain_returns();
    }

    /// Takes back what other threads returned; false when there was nothing.
    fn drain_returns(&self) -> bool {
        let mut any = false;
        if self.fenced.get() {
            // The slots are not used again; the queue only keeps its count.
            while self.shared.take_return().is_some() {}
            return any;
        }
        while let Some(returned) = self.shared.take_return() {
            any = true;
            let mut state = self.state.borrow_mut();
            match returned {
                Returned::Pin(block) => state.unpin(block),
                Returned::Writer(slot) => state.abandon(slot),
            }
        }
        any
    }

    /// What the shard did and holds.
    #[must_use]
    pub fn stats(&self) -> ShardStats {
        self.drain_returns();
        let state = self.state.borrow();
        ShardStats {
            counters: state.counters,
            gauges: state.gauges(),
            backing: self.shared.arena().backing(),
            fenced: self.fenced.get(),
            nvme: self
                .tier
                .as_ref()
                .map_or_else(Vec::new, |tier| tier.gauges()),
            rings: self
                .io
                .borrow()
                .as_ref()
                .map_or_else(Vec::new, ShardIo::reports),
            recovery: self.recovery.get(),
            namespaces: self.namespace_stats(&state),
        }
    }

    /// Walks all state and panics when an invariant is broken; for tests.
    pub fn check(&self) {
        self.drain_returns();
        let state = self.state.borrow();
        state.index.check();
        state.pool.check();
        state.policy.check();
        let (mut resident, mut payload, mut known, mut unused) = (0, 0, 0, 0);
        state.pool.for_each_block(|slot, block| {
            let record = state.index.record(block);
            assert_eq!(record.slot(), Some(slot), "{block:?}");
            if !record.is(ERASED) {
                resident += 1;
                payload += u64::from(record.len);
                known += usize::from(!record.is(DEMOTING | PASSING));
                unused += usize::from(record.is(AHEAD));
            } else {
                let moves = record.is(DEMOTING | PROMOTING);
                assert!(
                    record.pins > 0 || moves,
                    "{block:?} was erased and is held by nothing"
                );
            }
        });
        assert_eq!(resident, state.dram_blocks);
        assert_eq!(payload, state.payload_bytes);
        assert_eq!(known, state.policy.len());
        assert_eq!(unused + state.ahead.under_way(), state.ahead.blocks());
        assert!(state.dram_blocks + state.writers.len() <= state.blocks_cap);
        state.check_tenants();
        if let Some(tier) = &self.tier {
            state.check_below(tier);
        }
    }
}

impl State {
    /// Panics when the index points to where no block can be, or twice to one place.
    fn check_below(&self, tier: &NvmeTier) {
        let mut taken: HashMap<Location, BlockIx> = HashMap::new();
        // What is left of a namespace that was removed is swept later.
        let live = self.index.scan(0, u32::MAX);
        let live = live.filter(|(_, record)| !self.epochs.is_ended(record.namespace()));
        for (block, record) in live {
            let Some(location) = record.below() else {
                let moves = record.is(PROMOTING);
                assert!(record.slot().is_some() || moves, "{block:?} is nowhere");
                continue;
            };
            let phase = tier.phase(tier.split(location).0);
            let empty = matches!(phase, Phase::Free | Phase::Ready);
            assert!(!empty, "{block:?} lies in a segment that is {phase:?}");
            let other = taken.insert(location, block);
            assert_eq!(other, None, "{block:?} lies where another does");
        }
    }

    /// The state of a shard that holds nothing, over an arena and `below` bytes of devices.
    fn new(
        number: usize,
        config: &EngineConfig,
        shared: &Arc<ArenaShared>,
        plugins: &Plugins,
        (below, now): (u64, Nanos),
    ) -> Result<Self, Error> {
        let granules = shared.arena().len() / SLOT_ALIGN;
        let below_granules = below / SLOT_ALIGN;
        let blocks_max = (granules + below_granules).min(1 << 30) as u32;
        let mut pool = SlabPool::new(Arc::clone(shared));
        for len in &config.block_lens {
            pool.declare(*len);
        }
        let cap = config.blocks_of_shard(number);
        let slot_len = expected_slot_len(config);
        let expected = cap.unwrap_or((shared.arena().len() / slot_len).max(1) as usize);
        let policy_config = PolicyConfig {
            capacity_blocks: expected,
            blocks_max,
            below_blocks: (below / slot_len) as usize,
            shards: config.shards.max(1),
        };
        let policy = plugins.make_policy(config, policy_config)?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "a share of memory needs no last bit"
        )]
        #[expect(clippy::cast_sign_loss, reason = "validated to lie in 0..=1")]
        let pinned_bytes_max = (shared.arena().len() as f64 * config.pinned_ratio_max) as u64;
        Ok(Self {
            index: Index::new(blocks_max)?,
            pool,
            policy,
            epochs: NamespaceEpochs::default(),
            counters: Counters::default(),
            blocks_cap: cap.unwrap_or(usize::MAX),
            dram_blocks: 0,
            payload_bytes: 0,
            writers: HashMap::default(),
            pinned_bytes: 0,
            pinned_bytes_max,
            ticks: 0,
            heat_shift: (expected / 16).max(1).ilog2(),
            leases: Leases::default(),
            sinks: Vec::new(),
            event_sequence: 0,
            promotions: HashMap::default(),
            waiting_reads: Vec::new(),
            waiting: Vec::new(),
            room_waiters: 0,
            reads_waiting: 0,
            leaving: VecDeque::new(),
            demoting: 0,
            writer_runs: false,
            reclaimer_runs: false,
            sweeper_runs: false,
            strays: remove::Strays::default(),
            way_down: way_down::WayDown::default(),
            announced: announce::Announced::default(),
            ahead: prefetch::Ahead::new(
                shared.arena().len(),
                cap.unwrap_or(usize::MAX),
                config.prefetch_ratio_max,
            ),
            tenants: tenants::Tenants::new(now),
        })
    }

    fn gauges(&self) -> ShardGauges {
        ShardGauges {
            dram_blocks: self.dram_blocks as u64,
            payload_bytes: self.payload_bytes,
            index_blocks: self.index.len() as u64,
            writers: self.writers.len() as u64,
            pinned_bytes: self.pinned_bytes,
            leases: self.leases.len() as u64,
            pool: self.pool.stats(),
            pool_bytes: self.pool.bookkeeping_bytes(),
            index: self.index.bytes(),
            policy: self.policy.bytes(),
            ahead_bytes: self.ahead.bytes(),
        }
    }

    /// The heat that a use at this moment leaves on a block.
    #[inline]
    const fn heat_now(&self) -> u8 {
        (self.ticks >> self.heat_shift) as u8
    }

    /// Wakes all that wait for room, reads first.
    fn wake_waiting(&mut self) {
        self.waiting_reads.drain(..).for_each(Waker::wake);
        self.waiting.drain(..).for_each(Waker::wake);
        self.way_down.wake();
    }

    fn emit(&mut self, shard: usize, kind: EventKind, block: BlockIx) {
        if self.sinks.is_empty() {
            return;
        }
        self.event_sequence += 1;
        let record = self.index.record(block);
        let event = Event {
            shard,
            sequence: self.event_sequence,
            kind,
            namespace: self.epochs.namespace_of(record.namespace()),
            key: Box::from(self.index.key_of(record)),
            hash: record.hash(),
        };
        let lost = &mut self.counters.events_lost;
        self.sinks.retain(|sink| {
            let sent = sink.send(&event);
            *lost += u64::from(sent == Sent::Lost);
            sent != Sent::Gone
        });
    }
}

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod cancel_tests;
#[cfg(test)]
mod crash_model;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod cut_tests;
#[cfg(test)]
mod cut_world;
#[cfg(test)]
mod degrade_tests;
#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod lease_tests;
#[cfg(test)]
mod log_lines;
#[cfg(test)]
mod outcome_tests;
#[cfg(test)]
mod prefetch_tests;
#[cfg(test)]
mod shortage_tests;
#[cfg(test)]
mod sim_tests;
#[cfg(test)]
mod sim_world;
#[cfg(test)]
mod tenants_tests;
