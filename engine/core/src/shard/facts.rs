//! What is known of a block without touching it.

use terrace_types::{BlockKey, Checksum, Lookup, Tier};

use super::Shard;

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// Its length in bytes.
    pub len: u32,
    /// The checksum of its bytes.
    pub checksum: Checksum,
    /// It survives kill -9 and power loss.
    pub durable: bool,
    /// It is in DRAM.
    pub in_dram: bool,
    /// It is on a device.
    pub on_nvme: bool,
    /// Somebody has it pinned or leased.
    pub pinned: bool,
    /// Somebody has it leased.
    pub leased: bool,
}

impl Shard {
    /// The length of a block, in any tier; `None` when it is not there or cannot be told.
    #[must_use]
    pub fn len_of(&self, key: &BlockKey) -> Option<u32> {
        if self.refusal(key).is_some() {
            return None;
        }
        let state = self.state.borrow();
        state.tenants.look_at_clock(self.now.get());
        let epoch = state.epochs.of(key.namespace())?;
        let block = state.index.find(key, epoch)?;
        (!state.is_expired(block)).then(|| state.index.record(block).len)
    }

    /// What is known of a block. As [`Shard::exists`] it moves, pins and renews nothing.
    #[must_use]
    pub fn stat(&self, key: &BlockKey) -> Lookup<BlockFacts> {
        if let Some(reason) = self.refusal(key) {
            return Lookup::Unavailable(reason);
        }
        let state = self.state.borrow();
        state.tenants.look_at_clock(self.now.get());
        let epoch = state.epochs.of(key.namespace());
        let block = epoch.and_then(|ns| state.index.find(key, ns));
        let Some(block) = block.filter(|block| !state.is_expired(*block)) else {
            return Lookup::Miss;
        };
        let record = state.index.record(block);
        let in_dram = record.slot().is_some();
        Lookup::Hit {
            tier: if in_dram { Tier::Dram } else { Tier::Nvme },
            value: BlockFacts {
                len: record.len,
                checksum: record.checksum(),
                durable: self.is_durable(record),
                in_dram,
                on_nvme: record.below().is_some(),
                pinned: record.pins > 0,
                leased: record.pins > 0 && state.leases.holds(block),
            },
        }
    }
}
