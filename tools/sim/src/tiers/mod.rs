//! DRAM over NVMe, with a rule for what is worth a write.
//!
//! - [`ideal`](ideal()): each tier gives up any one block. It shows what a rule can reach.
//! - [`segments`](segments()): the engine's log of segments under one of the engine's policies. It
//!   shows what the engine reaches, and comes to the engine's own counts.
//!
//! The flat reference schemes, which follow no chains, are not here.

mod forest;
mod history;
mod ideal;
mod learner;
mod leaves;
mod log;
mod segments;
#[cfg(test)]
mod tests;

pub use ideal::{IdealOptions, WriteRule, ideal};
pub use leaves::Order;
pub use log::LogShape;
pub use segments::{SegmentOptions, segments};

/// Blocks that the tiers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierBlocks {
    /// Of DRAM.
    pub dram: usize,
    /// Of NVMe.
    pub nvme: usize,
}

/// What two tiers came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Blocks asked for.
    pub accesses: u64,
    /// Hits in DRAM.
    pub dram_hits: u64,
    /// Hits in NVMe.
    pub nvme_hits: u64,
    /// Hits of which every earlier block of the request hit, too.
    pub prefix_valid_hits: u64,
    /// Blocks written to NVMe, reinsertions included.
    pub writes: u64,
    /// Blocks of reclaimed segments that were written again.
    pub reinsertions: u64,
    /// Hits in NVMe that a request has to wait for, when each also fetches what follows of its
    /// chain, a tenth of DRAM at most ahead.
    pub demand_reads: u64,
}

impl TierCounts {
    /// Hits in any tier.
    #[must_use]
    pub const fn hits(&self) -> u64 {
        self.dram_hits + self.nvme_hits
    }

    /// Adds a request, of whose blocks each was found as told.
    fn add(&mut self, found: &[Found], ahead_max: usize) {
        self.accesses += found.len() as u64;
        let valid = found.iter().take_while(|found| **found != Found::Nowhere);
        self.prefix_valid_hits += valid.count() as u64;
        let mut fetched = 0;
        for (at, found) in found.iter().enumerate() {
            self.dram_hits += u64::from(*found == Found::Dram);
            self.nvme_hits += u64::from(*found == Found::Nvme);
            if *found == Found::Nvme && at >= fetched {
                self.demand_reads += 1;
                fetched = at + 1 + ahead_max;
            }
        }
    }
}

/// Where a block was when it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Dram,
    Nvme,
    Nowhere,
}

/// Blocks of a chain that are fetched ahead at most.
const fn reach(dram: usize) -> usize {
    dram / 10
}
