//! Namespaces as tenants: what each holds in this shard, and the rules for it.
//!
//! What a namespace holds is counted for all of them where blocks come and go, which no hit does.
//! Rules cost a hit one branch until some namespace has options or some block a priority.
//!
//! **Invariants** ([`State::check_tenants`] walks them)
//! - A namespace's bytes in DRAM are those of its blocks there and of the slots being filled for
//!   it, in whole granules; its bytes below those of its blocks there.
//! - Neither exceeds its quota, once it has been below it.
//! - `leaving` counts the bytes in DRAM that are on their way down: they are not counted on to
//!   stay above a floor.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::limits::SLOT_ALIGN;
use terrace_types::{BlockIx, Namespace, Nanos};

use super::{Filling, Shard, State};
use crate::config::NamespaceOptions;
use crate::error::Error;
use crate::index::Record;
use crate::stats::NamespaceStats;

/// Lifetimes are counted in these, in 32 bits: for 13 years.
const TENTH: Duration = Duration::from_millis(100);

/// What one namespace may do here: its options, divided among the shards.
#[derive(Clone, Copy)]
struct Rules {
    dram_quota: u64,
    nvme_quota: u64,
    floor: u64,
    priority: u8,
    /// In tenths of a second; 0 for no end.
    ttl: u32,
    /// When the lifetime was set: older blocks count from here.
    since: u32,
}

impl Rules {
    const NONE: Self = Self {
        dram_quota: u64::MAX,
        nvme_quota: u64::MAX,
        floor: 0,
        priority: 0,
        ttl: 0,
        since: 0,
    };
}

/// What one namespace holds here.
#[derive(Clone, Copy, Default)]
struct Holding {
    dram: u64,
    /// Bytes of slots that are being filled.
    filling: u64,
    /// Of `dram`, bytes on their way down.
    leaving: u64,
    nvme: u64,
    evictions: u64,
}

/// See the module's text.
pub(super) struct Tenants {
    /// By namespace number.
    rules: Vec<Rules>,
    holdings: Vec<Holding>,
    /// Whether any namespace has rules, or any block a priority.
    active: bool,
    has_lifetimes: bool,
    opened: Nanos,
    /// Tenths of a second since the shard opened, as of the last look at the clock.
    now: Cell<u32>,
    /// When blocks of namespaces with a lifetime were stored, by block number.
    born: Option<HugeVec<u32>>,
    /// Where the next look for blocks of one namespace begins, in the index.
    pub(super) hand: u32,
    /// Where the next look for blocks whose time is over begins.
    pub(super) sweep: u32,
}

impl Tenants {
    pub(super) const fn new(opened: Nanos) -> Self {
        Self {
            rules: Vec::new(),
            holdings: Vec::new(),
            active: false,
            has_lifetimes: false,
            opened,
            now: Cell::new(0),
            born: None,
            hand: 0,
            sweep: 0,
        }
    }

    /// Whether rules have to be looked at.
    #[inline]
    pub(super) const fn is_active(&self) -> bool {
        self.active
    }

    #[inline]
    pub(super) const fn has_lifetimes(&self) -> bool {
        self.has_lifetimes
    }

    fn rules_of(&self, namespace: u16) -> &Rules {
        self.rules
            .get(usize::from(namespace))
            .unwrap_or(&Rules::NONE)
    }

    fn holding(&mut self, namespace: u16) -> &mut Holding {
        let at = usize::from(namespace);
        if self.holdings.len() <= at {
            self.holdings.resize(at + 1, Holding::default());
        }
        &mut self.holdings[at]
    }

    /// Takes note of the time, when lifetimes depend on it.
    #[inline]
    pub(super) fn look_at_clock(&self, now: Nanos) {
        if self.has_lifetimes {
            self.set_clock(now);
        }
    }

    fn set_clock(&self, now: Nanos) {
        let tenths = now.since(self.opened).as_nanos() / TENTH.as_nanos();
        self.now.set(u32::try_from(tenths).unwrap_or(u32::MAX));
    }

    /// Whether `bytes` more of a namespace fit its quota in DRAM.
    pub(super) fn fits_dram(&self, namespace: u16, bytes: u64) -> bool {
        let held = self.holdings.get(usize::from(namespace));
        let held = held.map_or(0, |held| held.dram + held.filling);
        held.saturating_add(bytes) <= self.rules_of(namespace).dram_quota
    }

    /// Whether a namespace is beyond its quota in DRAM, without what is on its way down.
    pub(super) fn is_over_dram(&self, namespace: u16) -> bool {
        let held = self.holdings.get(usize::from(namespace));
        let held = held.map_or(0, |held| held.dram + held.filling - held.leaving);
        held > self.rules_of(namespace).dram_quota
    }

    /// Whether `bytes` more of a namespace fit its quota on the devices.
    pub(super) fn fits_nvme(&self, namespace: u16, bytes: u64) -> bool {
        let held = self.holdings.get(usize::from(namespace));
        let held = held.map_or(0, |held| held.nvme);
        held.saturating_add(bytes) <= self.rules_of(namespace).nvme_quota
    }

    /// Whether its quota on the devices has room for so many bytes of a namespace at all.
    pub(super) fn may_hold_nvme(&self, namespace: u16, bytes: u64) -> bool {
        bytes <= self.rules_of(namespace).nvme_quota
    }

    /// The longest block of a namespace that its quota has room for, in bytes.
    pub(super) fn block_len_max(&self, namespace: u16) -> u64 {
        self.rules_of(namespace).dram_quota / SLOT_ALIGN * SLOT_ALIGN
    }

    /// Whether a namespace would fall below its floor without a block of `bytes`.
    pub(super) fn is_at_floor(&self, namespace: u16, bytes: u64) -> bool {
        let floor = self.rules_of(namespace).floor;
        let held = self.holdings.get(usize::from(namespace));
        floor > 0 && held.is_some_and(|held| held.dram - held.leaving < floor + bytes)
    }

    /// Whether the lifetime of a block is over.
    pub(super) fn is_expired(&self, namespace: u16, block: BlockIx) -> bool {
        let rules = self.rules_of(namespace);
        if rules.ttl == 0 {
            return false;
        }
        let born = self.born.as_ref();
        let born = born.filter(|born| (block.0 as usize) < born.len());
        let born = born.map_or(0, |born| born[block.0 as usize]);
        self.now.get().saturating_sub(born.max(rules.since)) >= rules.ttl
    }

    /// Which blocks go first: the lower the sooner.
    pub(super) fn rank(&self, namespace: u16, block: BlockIx, record: &Record) -> u8 {
        if self.is_expired(namespace, block) {
            return 0;
        }
        self.rules_of(namespace).priority.max(record.priority)
    }

    /// A block was stored; its lifetime begins.
    fn note_birth(&mut self, namespace: u16, block: BlockIx) {
        let now = self.now.get();
        let has_end = self.rules_of(namespace).ttl > 0;
        if let Some(born) = self.born.as_mut().filter(|_| has_end) {
            born.grow_to((block.0 as usize + 1).max(born.len()));
            born[block.0 as usize] = now;
        }
    }

    pub(super) fn begin_filling(&mut self, filling: &Filling) {
        self.holding(filling.namespace).filling += filling.bytes;
    }

    pub(super) fn end_filling(&mut self, filling: &Filling) {
        self.holding(filling.namespace).filling -= filling.bytes;
    }
}

impl State {
    /// The number of the namespace a record belongs to.
    #[inline]
    pub(super) fn owner(&self, record: &Record) -> u16 {
        self.epochs.namespace_of(record.namespace()).index()
    }

    /// Rules of a namespace in this shard.
    fn set_rules(
        &mut self,
        namespace: Namespace,
        options: &NamespaceOptions,
        shards: u64,
    ) -> Result<(), HugeVecError> {
        if options.ttl.is_some() && self.tenants.born.is_none() {
            let numbers = self.index.numbers_max();
            self.tenants.born = Some(HugeVec::with_capacity(numbers)?);
        }
        let share = |quota: Option<u64>| quota.map_or(u64::MAX, |quota| quota / shards);
        let tenths = options
            .ttl
            .map_or(0, |ttl| ttl.as_nanos() / TENTH.as_nanos());
        let tenants = &mut self.tenants;
        let at = usize::from(namespace.index());
        if tenants.rules.len() <= at {
            tenants.rules.resize(at + 1, Rules::NONE);
        }
        let before = tenants.rules[at];
        let ttl = u32::try_from(tenths).unwrap_or(u32::MAX);
        tenants.rules[at] = Rules {
            dram_quota: share(options.dram_quota_bytes),
            nvme_quota: share(options.nvme_quota_bytes),
            floor: options.dram_floor_bytes / shards,
            priority: options.priority,
            ttl,
            since: if before.ttl == ttl {
                before.since
            } else {
                tenants.now.get()
            },
        };
        tenants.active = true;
        tenants.has_lifetimes = tenants.rules.iter().any(|rules| rules.ttl > 0);
        Ok(())
    }

    /// A block was stored by a put: its lifetime begins, and its priority may be raised.
    pub(super) fn note_stored(&mut self, block: BlockIx, priority: u8) {
        self.raise(block, priority);
        if self.tenants.has_lifetimes {
            let owner = self.owner(self.index.record(block));
            self.tenants.note_birth(owner, block);
        }
    }

    /// Raises the priority of a block to that of a request.
    pub(super) fn raise(&mut self, block: BlockIx, priority: u8) {
        if priority > 0 {
            self.tenants.active = true;
            let record = self.index.record_mut(block);
            record.priority = record.priority.max(priority);
        }
    }

    pub(super) fn count_in_dram(&mut self, block: BlockIx) {
        let record = self.index.record(block);
        let (owner, bytes) = (self.owner(record), record.pinned_len());
        self.tenants.holding(owner).dram += bytes;
    }

    pub(super) fn count_out_of_dram(&mut self, block: BlockIx) {
        let record = self.index.record(block);
        let (owner, bytes) = (self.owner(record), record.pinned_len());
        self.tenants.holding(owner).dram -= bytes;
    }

    pub(super) fn count_below(&mut self, block: BlockIx) {
        let record = self.index.record(block);
        let (owner, bytes) = (self.owner(record), record.pinned_len());
        self.tenants.holding(owner).nvme += bytes;
    }

    pub(super) fn count_out_of_below(&mut self, block: BlockIx) {
        let record = self.index.record(block);
        let (owner, bytes) = (self.owner(record), record.pinned_len());
        self.tenants.holding(owner).nvme -= bytes;
    }

    pub(super) fn begin_leaving(&mut self, block: BlockIx) {
        let record = self.index.record(block);
        let (owner, bytes) = (self.owner(record), record.pinned_len());
        self.tenants.holding(owner).leaving += bytes;
    }

    pub(super) fn end_leaving(&mut self, block: BlockIx) {
        let record = self.index.record(block);
        let (owner, bytes) = (self.owner(record), record.pinned_len());
        self.tenants.holding(owner).leaving -= bytes;
    }

    /// A block goes that no other tier holds.
    pub(super) fn count_eviction(&mut self, block: BlockIx) {
        self.counters.evictions += 1;
        let owner = self.owner(self.index.record(block));
        self.tenants.holding(owner).evictions += 1;
    }

    /// Panics when what is counted is not what is there; for tests.
    pub(super) fn check_tenants(&self) {
        let mut there: HashMap<u16, Holding> = HashMap::new();
        for (_, record) in self.index.scan(0, u32::MAX) {
            let held = there.entry(self.owner(record)).or_default();
            let bytes = record.pinned_len();
            held.dram += if record.slot().is_some() { bytes } else { 0 };
            held.nvme += if record.below().is_some() { bytes } else { 0 };
            let leaves = record.is(crate::index::DEMOTING);
            held.leaving += if leaves { bytes } else { 0 };
        }
        for filling in self.writers.values() {
            there.entry(filling.namespace).or_default().filling += filling.bytes;
        }
        for (at, counted) in self.tenants.holdings.iter().enumerate() {
            let there = there.remove(&(at as u16)).unwrap_or_default();
            assert_eq!(counted.dram, there.dram, "DRAM of namespace {at}");
            assert_eq!(counted.nvme, there.nvme, "below of namespace {at}");
            assert_eq!(counted.leaving, there.leaving, "leaving of namespace {at}");
            assert_eq!(counted.filling, there.filling, "filling of namespace {at}");
        }
        let other = there
            .values()
            .any(|held| held.dram + held.nvme + held.filling > 0);
        assert!(!other, "a namespace that holds something is not counted");
    }
}

impl Shard {
    /// Sets the rules of a namespace; what it holds beyond its quotas goes as far as it can now.
    pub(crate) fn set_namespace(
        self: &Rc<Self>,
        namespace: Namespace,
        options: &NamespaceOptions,
    ) -> Result<(), Error> {
        let mut state = self.state.borrow_mut();
        state.tenants.set_clock(self.runtime.now());
        state.set_rules(namespace, options, self.config.shards as u64)?;
        state.trim(namespace.index(), self.number, self.tier.as_deref());
        drop(state);
        self.start_writer();
        Ok(())
    }

    /// Sets the rules of the configuration; before any block is there.
    pub(crate) fn set_configured_namespaces(self: &Rc<Self>) -> Result<(), Error> {
        for (name, options) in &self.config.namespaces {
            self.set_namespace(self.registry.get(name)?, options)?;
        }
        Ok(())
    }

    /// Has all namespaces with rules give up what is beyond their quotas on the devices.
    pub(super) fn trim_recovered(&self) {
        let mut state = self.state.borrow_mut();
        for namespace in 0..state.tenants.rules.len() {
            state.trim(namespace as u16, self.number, self.tier.as_deref());
        }
    }

    /// What each namespace holds that was ever used here.
    pub(super) fn namespace_stats(&self, state: &State) -> Vec<NamespaceStats> {
        let holdings = state.tenants.holdings.iter().enumerate();
        let stats = holdings.filter_map(|(at, held)| {
            let namespace = self.registry.at(at as u16)?;
            let epoch = state.epochs.of(namespace);
            Some(NamespaceStats {
                name: self.registry.name_of(namespace)?.as_str().to_owned(),
                dram_bytes: held.dram + held.filling,
                nvme_bytes: held.nvme,
                blocks: epoch.map_or(0, |epoch| u64::from(state.epochs.count(epoch))),
                evictions: held.evictions,
            })
        });
        stats.collect()
    }
}
