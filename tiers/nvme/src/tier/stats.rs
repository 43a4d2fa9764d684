//! What a tier did, counted on its shard's thread.

use super::lane::Health;

macro_rules! tier_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one device in one shard, or sums of them. Counts only grow.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TierCounters { $($(#[$doc])* pub $name: u64,)* }

        impl TierCounters {
            /// Adds another device's or shard's.
            pub const fn add(&mut self, other: &Self) { $(self.$name += other.$name;)* }

            /// All counts with the names of their metrics.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((concat!("terrace_nvme_", stringify!($name), "_total"), self.$name),)*]
            }
        }
    };
}

tier_counters! {
    /// Bytes written, with heads, footers and rounding.
    bytes_written,
    /// Payload bytes written the first time.
    payload_bytes,
    /// Blocks written the first time.
    blocks_written,
    /// Blocks written again because their segment was reclaimed.
    reinsertions,
    /// Their payload bytes.
    reinserted_bytes,
    /// Tombstones written.
    tombstones,
    /// Frames written.
    frames,
    /// Device flushes.
    flushes,
    /// Segments sealed.
    segments_sealed,
    /// Segments reclaimed.
    segments_reclaimed,
    /// Reads that a caller waited for.
    demand_reads,
    /// Reads ahead of need.
    prefetch_reads,
    /// Reads of the tier's own: recovery, reclaim, scrub.
    background_reads,
    /// Bytes read.
    bytes_read,
    /// Reads that failed or passed their deadline.
    reads_failed,
    /// Writes and flushes that failed or passed their deadline.
    writes_failed,
    /// Blocks that the write budget kept out.
    budget_rejects,
    /// Waits of a write for room or for its turn.
    write_waits,
}

/// What a device holds for one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGauges {
    /// The device's name.
    pub name: String,
    /// Whether it takes part.
    pub health: Health,
    /// Whether it is being emptied.
    pub draining: bool,
    /// Bytes of the shard's segments on it.
    pub bytes: u64,
    /// Segments that hold nothing.
    pub segments_free: u32,
    /// Segments that hold blocks.
    pub segments_used: u32,
    /// Bytes the index points to.
    pub live_bytes: u64,
    /// Operations that passed their deadline, from the open on.
    pub late: u32,
    /// What it did.
    pub counters: TierCounters,
}

impl DeviceGauges {
    /// Adds another shard's share of the same device.
    pub fn add(&mut self, other: &Self) {
        self.health = self.health.max(other.health);
        self.draining |= other.draining;
        self.bytes += other.bytes;
        self.segments_free += other.segments_free;
        self.segments_used += other.segments_used;
        self.live_bytes += other.live_bytes;
        self.late += other.late;
        self.counters.add(&other.counters);
    }
}
