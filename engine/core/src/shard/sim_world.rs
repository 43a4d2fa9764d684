//! What simulations of a shard share: a shard over devices in memory on the deterministic
//! runtime, values that tell their key and version, and the events of its blocks.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use terrace_nvme::IoBackend;
use terrace_nvme::format::{DeviceId, SEGMENTS_START, SegmentHead, Sequence};
use terrace_nvme::mem::{MemDevice, MemImage};
use terrace_nvme::set::{SegmentState, ShardPlan, plan_segments};
use terrace_nvme::tier::{Location, Phase, TierConfig, TierDevice, TierSegment};
use terrace_runtime::mailbox::mailbox;
use terrace_runtime::sim::Sim;
use terrace_slab::{Arena, ArenaConfig, HugepageMode};
use terrace_types::{Access, BlockKey, Clock, KeyHash, Tasks};

use super::*;
use crate::config::{NamespaceOptions, NvmeConfig};
use crate::events::{EventFilter, EventStream, subscription};
use crate::policy::{Admission, PolicyBytes};

/// A splitmix64 sequence.
pub(super) struct Random(pub(super) Cell<u64>);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(super) fn one_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A policy over one that is built in: it admits every block, which a few decline to in a world
/// as small as these, and has reclaim keep every block if asked to.
struct TakeAll {
    inner: Box<dyn Policy>,
    keep_all: bool,
    choices: Arc<Choices>,
}

/// What a test has the policy answer, whatever the one that is built in would.
#[derive(Debug, Default)]
pub(super) struct Choices {
    /// No block is wanted in DRAM.
    pub(super) decline: AtomicBool,
    /// No block is wanted below.
    pub(super) decline_below: AtomicBool,
}

impl Policy for TakeAll {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn set_capacity(&mut self, blocks: usize) {
        self.inner.set_capacity(blocks);
    }
    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        self.inner.on_hit(block, access);
    }
    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        self.inner.on_insert(block, access);
    }
    fn on_remove(&mut self, block: BlockIx) {
        self.inner.on_remove(block);
    }
    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        self.inner.victim(evictable)
    }
    fn take_pending(&mut self) -> Option<BlockIx> {
        self.inner.take_pending()
    }
    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        self.inner.save(visit);
    }
    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.inner.restore(block, tag, access);
    }
    fn admit(&mut self, access: &Access) -> Admission {
        self.inner.admit(access);
        choice(&self.choices.decline)
    }
    fn admit_below(&mut self, access: &Access) -> Admission {
        self.inner.admit_below(access);
        choice(&self.choices.decline_below)
    }
    fn on_request(&mut self, accesses: &[Access]) {
        self.inner.on_request(accesses);
    }
    fn keep(&mut self, resident: Option<BlockIx>, access: &Access) -> Option<bool> {
        if self.keep_all {
            return Some(true);
        }
        self.inner.keep(resident, access)
    }
    fn len(&self) -> usize {
        self.inner.len()
    }
    fn bytes(&self) -> PolicyBytes {
        self.inner.bytes()
    }
    fn check(&self) {
        self.inner.check();
    }
}

fn choice(declines: &AtomicBool) -> Admission {
    if declines.load(Ordering::Relaxed) {
        Admission::Decline
    } else {
        Admission::Admit
    }
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) policy: &'static str,
    pub(super) segment_len: u64,
    /// Segments on each device.
    pub(super) segments: Vec<u32>,
    pub(super) dram_blocks: usize,
    /// With 2 MiB all size classes have to share one slab in turn.
    pub(super) dram_bytes: u64,
    pub(super) keep_all: bool,
    pub(super) choices: Arc<Choices>,
    pub(super) prefetch_ratio_max: f64,
    pub(super) fill_ratio_high: f64,
    pub(super) namespaces: Vec<(String, NamespaceOptions)>,
    pub(super) write_mode: crate::config::WriteMode,
    pub(super) io_deadline: Duration,
    /// The set lists devices that are not there.
    pub(super) absent: bool,
    /// Bytes a second; 0 for none.
    pub(super) scrub_rate: u64,
    /// Bytes a second; 0 for no bound.
    pub(super) write_budget: u64,
}

impl Default for Spec {
    /// One device of eight short segments, and DRAM enough for all that is put.
    fn default() -> Self {
        Self {
            policy: "LRU",
            segment_len: 256 << 10,
            segments: vec![8],
            dram_blocks: 24,
            dram_bytes: 32 << 20,
            keep_all: false,
            choices: Arc::default(),
            prefetch_ratio_max: 0.5,
            fill_ratio_high: 0.98,
            namespaces: Vec::new(),
            write_mode: crate::config::WriteMode::Back,
            io_deadline: Duration::from_millis(500),
            absent: false,
            scrub_rate: 0,
            write_budget: 0,
        }
    }
}

impl Spec {
    /// Devices as they come from the factory.
    pub(super) fn blank(&self) -> Vec<MemImage> {
        let len = |count: &u32| SEGMENTS_START + u64::from(*count) * self.segment_len;
        self.segments
            .iter()
            .map(|count| MemImage::empty(len(count)))
            .collect()
    }

    fn config(&self, shards: usize) -> EngineConfig {
        EngineConfig {
            shards,
            // Spinning, a task is always ready, and virtual time stands still.
            spin: Duration::ZERO,
            dram_bytes: self.dram_bytes,
            dram_blocks: Some(self.dram_blocks),
            policy: self.policy.to_owned(),
            busy_wait: Duration::from_millis(20),
            prefetch_ratio_max: self.prefetch_ratio_max,
            fill_ratio_high: self.fill_ratio_high,
            namespaces: self.namespaces.clone(),
            nvme: NvmeConfig {
                write_mode: self.write_mode,
                io_deadline: self.io_deadline,
                scrub_rate: self.scrub_rate,
                ..NvmeConfig::default()
            },
            ..EngineConfig::default()
        }
    }
}

/// Wakes the task that takes back what other threads return.
#[derive(Default)]
struct Nudge {
    up: AtomicBool,
    waker: AtomicWaker,
}

/// A shard over devices in memory.
pub(super) struct World {
    pub(super) shard: Rc<Shard>,
    pub(super) tier: Rc<NvmeTier>,
    pub(super) devices: Vec<Rc<MemDevice>>,
    pub(super) registry: Arc<NamespaceRegistry>,
    events: EventStream,
    /// Whether a block was given up since it was stored last.
    evicted: RefCell<HashMap<KeyHash, bool>>,
}

const ENGINE: u32 = 1;

/// A segment's head. [`SegmentHead::decode`] refuses segments as short as these; a head is whole
/// when its fields encode to the same bytes.
fn head_of(bytes: &[u8]) -> Option<SegmentHead> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let head = SegmentHead {
        device: DeviceId(bytes[16..32].try_into().unwrap()),
        number: word(12),
        shard: word(32),
        shards: word(36),
        sequence: Sequence(long(40)),
        salt: long(48),
        len: long(56),
    };
    if head.shard >= head.shards {
        return None;
    }
    let mut again = vec![0; bytes.len()];
    head.encode(&mut again);
    (again == bytes).then_some(head)
}

/// The devices of some shards, and how these begin.
struct Shared {
    devices: Vec<Rc<MemDevice>>,
    backends: Vec<Rc<dyn IoBackend>>,
    plans: Vec<ShardPlan>,
    registry: Arc<NamespaceRegistry>,
}

impl Shared {
    fn new(runtime: &Rc<dyn Runtime>, spec: &Spec, images: Vec<MemImage>, shards: usize) -> Self {
        let clock: Rc<dyn Clock> = Rc::<dyn Runtime>::clone(runtime);
        let (mut devices, mut backends, mut heads) = (Vec::new(), Vec::new(), Vec::new());
        for (at, image) in images.into_iter().enumerate() {
            heads.push(heads_of(at, &image, spec));
            let device = MemDevice::from_image(image, Some(Rc::clone(&clock)));
            let backend: Rc<dyn IoBackend> = Rc::<MemDevice>::clone(&device);
            backends.push(backend);
            devices.push(device);
        }
        Self {
            devices,
            backends,
            plans: plan_segments(&spec.segments, heads, shards as u32),
            registry: Arc::new(NamespaceRegistry::new(ENGINE)),
        }
    }

    /// The tier of one of the shards.
    fn tier(&self, spec: &Spec, tasks: Rc<dyn Tasks>, epoch: u32, shard: usize) -> Rc<NvmeTier> {
        let devices = self.devices.iter().enumerate();
        let devices = devices.map(|(at, device)| {
            let own = self.plans[shard].segments.iter();
            let own = own.filter(|segment| segment.device == at);
            let segments = own.map(|segment| TierSegment {
                number: segment.number,
                head: match segment.state {
                    SegmentState::Free => None,
                    SegmentState::Used(head) => Some(head),
                },
                owned: segment.owned,
                legacy: segment.legacy,
            });
            TierDevice {
                device: Rc::<MemDevice>::clone(device),
                id: device_id(at),
                segment_len: spec.segment_len,
                draining: false,
                segments: segments.collect(),
            }
        });
        let tier_config = TierConfig {
            shard: shard as u32,
            shards: self.plans.len() as u32,
            epoch,
            io_deadline: spec.io_deadline,
            write_budget: spec.write_budget,
            ..TierConfig::default()
        };
        let salt = u64::from(epoch) ^ 0x5a17 ^ (shard as u64) << 32;
        NvmeTier::new(tier_config, tasks, devices.collect(), salt, spec.absent).unwrap()
    }
}

const fn device_id(at: usize) -> DeviceId {
    DeviceId([at as u8 + 1; 16])
}

fn heads_of(at: usize, image: &MemImage, spec: &Spec) -> Vec<Option<SegmentHead>> {
    let heads = (0..spec.segments[at]).map(|number| {
        let offset = SEGMENTS_START + u64::from(number) * spec.segment_len;
        let head = head_of(&image.read(offset, terrace_nvme::UNIT as u32));
        if let Some(head) = &head {
            assert_eq!((head.device, head.number), (device_id(at), number));
        }
        head
    });
    heads.collect()
}

impl World {
    /// A shard over devices that hold `images`. Recovery is up to the caller.
    pub(super) fn new(sim: &Sim, spec: &Spec, images: Vec<MemImage>, epoch: u32) -> Rc<Self> {
        let mut all = Self::several(sim, spec, images, (epoch, 1));
        all.remove(0)
    }

    /// As many shards as the second of `opens` says, which share devices that hold `images`; the
    /// first is the epoch of this open. The devices are turned as long as the first shard lives.
    pub(super) fn several(
        sim: &Sim,
        spec: &Spec,
        images: Vec<MemImage>,
        (epoch, shards): (u32, usize),
    ) -> Vec<Rc<Self>> {
        let runtime = sim.runtime();
        let mut shared = Shared::new(&runtime, spec, images, shards);
        let (mut peers, mut boxes) = (Vec::new(), Vec::new());
        if shards > 1 {
            (peers, boxes) = (0..shards).map(|_| mailbox::<Job>(64).unwrap()).unzip();
        }
        let worlds: Vec<_> = (0..shards)
            .map(|number| {
                let place = Place {
                    number,
                    engine: ENGINE,
                    registry: Arc::clone(&shared.registry),
                    peers: peers.clone(),
                };
                Self::one(&runtime, spec, &mut shared, place, epoch)
            })
            .collect();
        for (world, mailbox) in worlds.iter().zip(boxes) {
            let shard = Rc::clone(&world.shard);
            runtime.spawn(Box::pin(async move { serve(shard, mailbox).await }));
        }
        worlds
    }

    fn one(
        runtime: &Rc<dyn Runtime>,
        spec: &Spec,
        shared: &mut Shared,
        place: Place,
        epoch: u32,
    ) -> Rc<Self> {
        let tasks: Rc<dyn Tasks> = Rc::<dyn Runtime>::clone(runtime);
        let tier = shared.tier(spec, tasks, epoch, place.number);
        let arena_config = ArenaConfig {
            hugepages: HugepageMode::Off,
            ..ArenaConfig::new(spec.dram_bytes)
        };
        let nudge: Arc<Nudge> = Arc::default();
        let nudged = Arc::clone(&nudge);
        let arena = ArenaShared::new(
            Arena::open(&arena_config).unwrap(),
            Box::new(move || {
                nudged.up.store(true, Ordering::Relaxed);
                nudged.waker.wake();
            }),
        );
        let (name, keep_all) = (spec.policy, spec.keep_all);
        let choices = Arc::clone(&spec.choices);
        let plugins = Plugins {
            policy: Some(Arc::new(move |config| {
                let inner = policy::by_name(name, config)?;
                let choices = Arc::clone(&choices);
                Ok(Box::new(TakeAll {
                    inner,
                    keep_all,
                    choices,
                }))
            })),
        };
        // The first shard turns the devices for all.
        let io = ShardIo::of_backends(runtime, std::mem::take(&mut shared.backends));
        let shard = Shard::new(
            place,
            spec.config(shared.plans.len()),
            arena,
            Rc::clone(runtime),
            &plugins,
            Some((Rc::clone(&tier), io)),
        );
        let shard = shard.unwrap();
        shard.set_configured_namespaces().unwrap();
        let (sink, events) = subscription(1 << 16, EventFilter::default());
        shard.subscribe(sink);
        runtime.spawn(Box::pin(take_returns(Rc::downgrade(&shard), nudge)));
        Rc::new(Self {
            shard,
            tier,
            devices: shared.devices.clone(),
            registry: Arc::clone(&shared.registry),
            events,
            evicted: RefCell::default(),
        })
    }

    pub(super) fn key(&self, namespace: &str, number: u64) -> BlockKey {
        let namespace = self.registry.get(namespace).unwrap();
        // Some keys are longer than an index record holds.
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(8 + (number % 3) as usize * 12, 7);
        namespace.key(&bytes).unwrap()
    }

    /// Whether the engine told that it gave the block up, since it was stored last.
    pub(super) fn was_evicted(&self, key: &BlockKey) -> bool {
        let mut evicted = self.evicted.borrow_mut();
        while let Some(event) = self.events.try_next() {
            match event.kind {
                EventKind::Stored => evicted.insert(event.hash, false),
                EventKind::Evicted => evicted.insert(event.hash, true),
                _ => None,
            };
        }
        assert_eq!(self.events.lost(), 0);
        evicted.get(&key.hash()).copied().unwrap_or(false)
    }

    /// Where below the index finds the block, and how often a segment was reclaimed so far:
    /// before the next time nothing else lies there.
    pub(super) fn location_of(&self, key: &BlockKey) -> Option<(Location, u64)> {
        let state = self.shard.state.borrow();
        let epoch = state.epochs.of(key.namespace());
        let block = epoch.and_then(|epoch| state.index.find(key, epoch));
        let location = state.index.record(block?).below()?;
        Some((location, self.tier.counters().segments_reclaimed))
    }

    /// What the segment of a location is used for.
    pub(super) fn phase_of(&self, location: Location) -> Phase {
        self.tier.phase(self.tier.split(location).0)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.devices.iter().map(|device| device.in_flight()).sum()
    }

    pub(super) fn now(&self) -> Nanos {
        self.shard.runtime.now()
    }

    pub(super) async fn sleep(&self, span: Duration) {
        self.shard.runtime.sleep_until(self.now() + span).await;
    }

    /// The output of `call`, which has to end within `span`.
    pub(super) async fn within<T>(
        &self,
        what: impl Fn() -> String,
        span: Duration,
        call: impl Future<Output = T>,
    ) -> T {
        let late = async {
            self.sleep(span).await;
            panic!("a call does not end: {}", what());
        };
        futures_lite::future::or(call, late).await
    }

    /// Checks that nobody else used memory that an operation had.
    pub(super) fn check_memory(&self, context: &str) {
        for device in &self.devices {
            let misuses = device.misuses();
            assert!(misuses.is_empty(), "{context}: {misuses:?}");
        }
    }

    /// Checks all that must hold when nobody calls any more.
    pub(super) fn check_idle(&self, context: &str) {
        assert!(!self.shard.is_fenced(), "{context}: a task panicked");
        self.shard.check();
        let gauges = self.shard.stats().gauges;
        assert_eq!(
            (gauges.pinned_bytes, gauges.writers, gauges.leases),
            (0, 0, 0),
            "{context}"
        );
        assert_eq!(self.in_flight(), 0, "{context}");
        self.check_memory(context);
        let state = self.shard.state.borrow();
        assert_eq!((state.demoting, state.room_waiters), (0, 0), "{context}");
        assert!(state.leaving.is_empty() && state.promotions.is_empty());
        assert!(state.ahead.is_idle(), "{context}");
        assert!(!state.writer_runs && !state.sweeper_runs, "{context}");
    }
}

async fn take_returns(shard: std::rc::Weak<Shard>, nudge: Arc<Nudge>) {
    loop {
        poll_fn(|context| {
            nudge.waker.register(context.waker());
            if nudge.up.swap(false, Ordering::Relaxed) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let Some(shard) = shard.upgrade() else { return };
        shard.tick();
    }
}

/// The bytes of a version of a block: they tell key and version.
pub(super) fn value(client: u64, number: u64, version: u64, len_max: u64) -> Vec<u8> {
    let mix = number * 911 + version * 77;
    let len = match mix % 16 {
        _ if is_longest(number, version) => len_max,
        1 | 2 => 20_000 + mix * 13 % 40_000,
        3 => 4096,
        _ => 1 + mix * 7 % 9000,
    };
    let len = len.max(VERSION_LEN).min(len_max) as usize;
    let seed = (client << 48 | number << 32 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(len + 8);
    bytes.extend_from_slice(&version.to_le_bytes());
    while bytes.len() < len {
        let word = seed.wrapping_mul(bytes.len() as u64 | 1);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Whether a version of a block is as long as values get.
pub(super) const fn is_longest(number: u64, version: u64) -> bool {
    (number * 911 + version * 77).is_multiple_of(16)
}

/// Values begin with their version.
const VERSION_LEN: u64 = 8;

/// The version that a value says it is.
pub(super) fn version_of(bytes: &[u8]) -> u64 {
    let version = bytes.get(..VERSION_LEN as usize).unwrap_or(&[0; 8]);
    u64::from_le_bytes(version.try_into().unwrap())
}
