//! Counters of a shard, plain on its thread, and their sums as callers see them.

use terrace_nvme::tier::{DeviceGauges, TierCounters};
use terrace_nvme::uring::RingReport;
use terrace_slab::{Backing, PoolStats};

use crate::index::IndexBytes;
use crate::policy::PolicyBytes;
use crate::shard::RecoveryReport;

/// Declares the counters once: the struct, its sum, and the names they are published under.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a shard did since it opened. Counts only grow.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Adds another shard's counts.
            pub const fn add(&mut self, other: &Self) { $(self.$name += other.$name;)* }

            /// All counts with the names of their metrics.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((concat!("terrace_", stringify!($name), "_total"), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Lookups that found their block in DRAM.
    dram_hits,
    /// Lookups that found their block in the tier below.
    below_hits,
    /// Lookups that found nothing.
    misses,
    /// Lookups answered `Unavailable`.
    unavailable,
    /// Puts answered `Stored`.
    puts_stored,
    /// Puts answered `AlreadyExists`.
    puts_exists,
    /// Puts answered `Rejected`.
    puts_rejected,
    /// Puts answered `Busy`.
    puts_busy,
    /// Puts whose writer was dropped before the block was complete.
    puts_abandoned,
    /// Blocks given up by the policy and held nowhere else.
    evictions,
    /// Blocks that went because their slab moved to another size class.
    slab_evictions,
    /// Blocks that left DRAM as their namespace was at its quota there.
    quota_evictions,
    /// Blocks that left the devices as their namespace was at its quota there.
    quota_below_evictions,
    /// Blocks that were not written below as their namespace was at its quota there.
    quota_declined,
    /// Blocks given up as their lifetime was over.
    expired,
    /// Blocks removed or replaced by callers.
    removals,
    /// Blocks written to the tier below.
    demotions,
    /// Bytes written to the tier below.
    demoted_bytes,
    /// Blocks that the tier below failed to take.
    demotions_failed,
    /// Blocks that left DRAM and that the policy did not want in the tier below.
    below_declined,
    /// Blocks read from the tier below into DRAM.
    promotions,
    /// Bytes read from the tier below.
    promoted_bytes,
    /// Blocks that came up for their readers only, as the policy did not want them in DRAM.
    promotions_declined,
    /// Reads of the tier below that failed.
    promotions_failed,
    /// Blocks whose bytes did not match their checksum; they became misses.
    checksum_mismatches,
    /// Lookups that waited for a read that was under way already.
    reads_joined,
    /// Blocks that came up ahead of need.
    prefetched,
    /// Of these, blocks that were used.
    prefetched_used,
    /// Of these, blocks that left DRAM before anybody used them.
    prefetched_unused,
    /// Blocks that were to be read ahead and were not begun: the caller went away, or its time
    /// was up.
    prefetch_cancelled,
    /// Blocks read straight into caller memory, past DRAM.
    direct_reads,
    /// Blocks the tier below gave up.
    below_evictions,
    /// Blocks in DRAM whose copy on a device went: what was durable is not any more.
    durability_lost,
    /// Bytes read by the scrub.
    scrubbed_bytes,
    /// Passes over all segments that the scrub finished.
    scrub_passes,
    /// Leases granted.
    leases_granted,
    /// Leases that ended without a release.
    leases_expired,
    /// Events that a subscriber was too slow for.
    events_lost,
}

/// What a shard holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardGauges {
    /// Blocks in DRAM.
    pub dram_blocks: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// Blocks in the index, in any tier.
    pub index_blocks: u64,
    /// Slots that are being written.
    pub writers: u64,
    /// Bytes of blocks that pins and leases hold, in whole granules of 4 KiB.
    pub pinned_bytes: u64,
    /// Leases that run.
    pub leases: u64,
    /// Arena, slabs and slots.
    pub pool: PoolStats,
    /// Bookkeeping of slabs, in bytes.
    pub pool_bytes: u64,
    /// Memory of the index.
    pub index: IndexBytes,
    /// Memory of the policy.
    pub policy: PolicyBytes,
    /// Bytes of DRAM, in whole granules of 4 KiB, for blocks that are read ahead of need and were
    /// not used yet.
    pub ahead_bytes: u64,
}

impl ShardGauges {
    /// Adds another shard's.
    pub const fn add(&mut self, other: &Self) {
        self.dram_blocks += other.dram_blocks;
        self.payload_bytes += other.payload_bytes;
        self.index_blocks += other.index_blocks;
        self.writers += other.writers;
        self.pinned_bytes += other.pinned_bytes;
        self.leases += other.leases;
        self.pool.arena_bytes += other.pool.arena_bytes;
        self.pool.free_page_bytes += other.pool.free_page_bytes;
        self.pool.slot_bytes += other.pool.slot_bytes;
        self.pool.slabs += other.pool.slabs;
        self.pool.slab_moves += other.pool.slab_moves;
        self.pool_bytes += other.pool_bytes;
        self.index.records += other.index.records;
        self.index.keys += other.index.keys;
        self.policy.resident += other.policy.resident;
        self.policy.ghosts += other.policy.ghosts;
        self.ahead_bytes += other.ahead_bytes;
    }

    /// Bytes of everything beside the arena: what `memory` costs on top of `dram_bytes`.
    #[must_use]
    pub const fn overhead_bytes(&self) -> u64 {
        self.pool_bytes
            + self.index.records
            + self.index.keys
            + self.policy.resident
            + self.policy.ghosts
    }
}

/// What a namespace holds in one shard, or in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceStats {
    /// Its name.
    pub name: String,
    /// Bytes in DRAM in whole granules of 4 KiB, slots that are being filled included.
    pub dram_bytes: u64,
    /// Bytes on the devices in whole granules of 4 KiB.
    pub nvme_bytes: u64,
    /// Blocks in any tier.
    pub blocks: u64,
    /// Blocks given up and held nowhere else.
    pub evictions: u64,
}

impl NamespaceStats {
    const fn add(&mut self, other: &Self) {
        self.dram_bytes += other.dram_bytes;
        self.nvme_bytes += other.nvme_bytes;
        self.blocks += other.blocks;
        self.evictions += other.evictions;
    }
}

/// One shard's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStats {
    /// What it did.
    pub counters: Counters,
    /// What it holds.
    pub gauges: ShardGauges,
    /// The pages its arena lies on.
    pub backing: Backing,
    /// Whether it stopped after a panic.
    pub fenced: bool,
    /// Its share of each device.
    pub nvme: Vec<DeviceGauges>,
    /// What is in force on its rings.
    pub rings: Vec<RingReport>,
    /// What it found on the devices when it opened.
    pub recovery: RecoveryReport,
    /// What the namespaces hold that were used here.
    pub namespaces: Vec<NamespaceStats>,
}

/// A device that the set lists and that is not there: what it holds is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingDevice {
    /// Its id in the set.
    pub id: String,
    /// Its length in bytes.
    pub len: u64,
    /// The set epoch when it was there last.
    pub last_set_epoch: u64,
}

/// All shards' reports. A shard that does not answer any more is reported by `fenced`.
#[derive(Clone, Debug, Default)]
pub struct EngineStats {
    /// Sums over the shards that answered.
    pub counters: Counters,
    /// Sums over the shards that answered.
    pub gauges: ShardGauges,
    /// Each device, summed over the shards that answered.
    pub nvme: Vec<DeviceGauges>,
    /// Devices that the set lists and that are not there.
    pub missing: Vec<MissingDevice>,
    /// What was found on the devices, summed over the shards that answered.
    pub recovery: RecoveryReport,
    /// Each namespace, summed over the shards that answered.
    pub namespaces: Vec<NamespaceStats>,
    /// Each shard's own report; `None` where it did not answer.
    pub shards: Vec<Option<ShardStats>>,
}

impl EngineStats {
    /// What was done on all devices.
    #[must_use]
    pub fn nvme_counters(&self) -> TierCounters {
        let mut sum = TierCounters::default();
        self.nvme
            .iter()
            .for_each(|device| sum.add(&device.counters));
        sum
    }

    pub(crate) fn push(&mut self, shard: Option<ShardStats>) {
        if let Some(stats) = &shard {
            self.counters.add(&stats.counters);
            self.gauges.add(&stats.gauges);
            self.recovery.add(&stats.recovery);
            for namespace in &stats.namespaces {
                let same = |known: &&mut NamespaceStats| known.name == namespace.name;
                match self.namespaces.iter_mut().find(same) {
                    Some(known) => known.add(namespace),
                    None => self.namespaces.push(namespace.clone()),
                }
            }
            for device in &stats.nvme {
                match self.nvme.iter_mut().find(|known| known.name == device.name) {
                    Some(known) => known.add(device),
                    None => self.nvme.push(device.clone()),
                }
            }
        }
        self.shards.push(shard);
    }
}
