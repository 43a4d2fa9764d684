//! Reference schemes of two tiers, DRAM over NVMe: LRU in both, ideal, without segments.
//!
//! They are what two-tier policies are measured against. Blocks count one and are accessed in
//! order. DRAM holds the blocks used last; what differs is what NVMe holds, and what is written
//! there. The forms by request order a chain's blocks as if its root was used last, so that a
//! chain goes from its end; their bound on hits is known, their writes are not defined.

use crate::contender::position_in;
use crate::error::SimError;
use crate::outcome::HitCounts;
use crate::recency::Recency;
use crate::workload::{Request, Workload};

/// How blocks move between the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwoTierScheme {
    /// Exclusive: whatever DRAM gives up is written to NVMe, whatever is read there moves up.
    Excl,
    /// Inclusive: a miss is written to both; what NVMe gives up leaves DRAM too. NVMe does not
    /// learn of hits in DRAM.
    InclBackinv,
    /// Inclusive, and NVMe learns of hits in DRAM.
    InclPropagate,
    /// Exclusive, but only blocks that were hit in DRAM, or come from NVMe, are written there.
    ExclReuse,
    /// Exclusive, by request.
    RequestExcl,
    /// Inclusive, by request.
    RequestIncl,
}

/// The schemes by name.
const SCHEMES: [(&str, TwoTierScheme); 6] = [
    ("excl", TwoTierScheme::Excl),
    ("incl-backinv", TwoTierScheme::InclBackinv),
    ("incl-propagate", TwoTierScheme::InclPropagate),
    ("excl-reuse", TwoTierScheme::ExclReuse),
    ("p-lru-excl", TwoTierScheme::RequestExcl),
    ("p-lru-incl", TwoTierScheme::RequestIncl),
];

impl TwoTierScheme {
    /// Names of the schemes.
    pub const NAMES: [&str; SCHEMES.len()] = {
        let mut names = [""; SCHEMES.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = SCHEMES[at].0;
            at += 1;
        }
        names
    };

    /// The scheme of this name, in any case.
    ///
    /// # Errors
    /// [`SimError::UnknownScheme`] with the names there are.
    pub fn by_name(name: &str) -> Result<Self, SimError> {
        match position_in(&Self::NAMES, name) {
            Some(at) => Ok(SCHEMES[at].1),
            None => Err(SimError::UnknownScheme {
                name: name.to_owned(),
            }),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = SCHEMES.iter().find(|(_, scheme)| *scheme == self);
        named.map_or("", |(name, _)| name)
    }
}

/// Where an access found its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nowhere.
    Miss,
    /// In DRAM.
    Dram,
    /// In NVMe only.
    Nvme,
}

/// How far a read of NVMe fetches ahead in its request, see [`TwoTierOutcome::demand_reads`]:
/// none of them stands for the rest of the chain.
pub const PREFETCH_DEPTHS: [Option<usize>; 4] = [Some(1), Some(4), Some(8), None];

/// What a scheme came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TwoTierOutcome {
    /// Hits of both tiers, and what follows from them.
    pub hits: HitCounts,
    /// Hits in DRAM.
    pub dram_hits: u64,
    /// Hits in NVMe.
    pub nvme_hits: u64,
    /// Blocks written to NVMe, where the scheme defines it.
    pub nvme_writes: Option<u64>,
    /// Requests with a hit in NVMe.
    pub nvme_requests: u64,
    /// Hits in NVMe that a request has to wait for, when each such read also fetches the blocks
    /// after it, as many as [`PREFETCH_DEPTHS`] says.
    pub demand_reads: [u64; PREFETCH_DEPTHS.len()],
}

/// Simulates `scheme` with room for `dram` and `nvme` blocks.
#[must_use]
pub fn two_tier(
    scheme: TwoTierScheme,
    workload: &Workload,
    dram: usize,
    nvme: usize,
) -> TwoTierOutcome {
    let mut tiers = Tiers::new(scheme, workload.unique_blocks(), dram, nvme);
    let found: Vec<Found> = match scheme {
        TwoTierScheme::RequestExcl => by_request(workload, dram, dram + nvme),
        TwoTierScheme::RequestIncl => by_request(workload, dram, nvme),
        _ => {
            let blocks = workload.blocks().iter();
            blocks.map(|&block| tiers.access(block)).collect()
        }
    };
    let is_by_request = matches!(
        scheme,
        TwoTierScheme::RequestExcl | TwoTierScheme::RequestIncl
    );
    let writes = (!is_by_request).then_some(tiers.nvme_writes);
    TwoTierOutcome::of(workload, &found, writes)
}

impl TwoTierOutcome {
    /// Counts over `workload`, each access of which found its block where `found` says.
    #[must_use]
    pub fn of(workload: &Workload, found: &[Found], nvme_writes: Option<u64>) -> Self {
        let hits: Vec<bool> = found.iter().map(|&it| it != Found::Miss).collect();
        let count = |tier| found.iter().filter(|&&it| it == tier).count() as u64;
        let mut outcome = Self {
            hits: HitCounts::of(workload, &hits),
            dram_hits: count(Found::Dram),
            nvme_hits: count(Found::Nvme),
            nvme_writes,
            ..Self::default()
        };
        for request in workload.requests() {
            outcome.add_reads(&found[request.begin..request.begin + request.blocks.len()]);
        }
        outcome
    }

    fn add_reads(&mut self, found: &[Found]) {
        self.nvme_requests += u64::from(found.contains(&Found::Nvme));
        for (reads, depth) in self.demand_reads.iter_mut().zip(PREFETCH_DEPTHS) {
            let mut fetched_to = 0;
            for at in (0..found.len()).filter(|&at| found[at] == Found::Nvme) {
                if at >= fetched_to {
                    *reads += 1;
                    fetched_to = depth.map_or(found.len(), |depth| at + 1 + depth);
                }
            }
        }
    }
}

/// Both tiers of the schemes that go block by block.
struct Tiers {
    scheme: TwoTierScheme,
    dram: Recency,
    dram_blocks: usize,
    nvme: Recency,
    nvme_blocks: usize,
    nvme_writes: u64,
    /// Blocks that were hit in DRAM since they came there, or came from NVMe.
    is_reused: Vec<bool>,
}

impl Tiers {
    fn new(scheme: TwoTierScheme, unique: usize, dram_blocks: usize, nvme_blocks: usize) -> Self {
        Self {
            scheme,
            dram: Recency::new(unique),
            dram_blocks,
            nvme: Recency::new(unique),
            nvme_blocks,
            nvme_writes: 0,
            is_reused: vec![false; unique],
        }
    }

    fn access(&mut self, block: u32) -> Found {
        let found = if self.dram.contains(block) {
            Found::Dram
        } else if self.nvme.contains(block) {
            Found::Nvme
        } else {
            Found::Miss
        };
        self.is_reused[block as usize] = found != Found::Miss;
        let is_inclusive = matches!(
            self.scheme,
            TwoTierScheme::InclBackinv | TwoTierScheme::InclPropagate
        );
        if is_inclusive {
            self.access_inclusive(block, found);
        } else {
            self.access_exclusive(block);
        }
        found
    }

    fn access_exclusive(&mut self, block: u32) {
        self.nvme.remove(block);
        self.dram.touch(block);
        let Some(victim) = self.dram.pop_over(self.dram_blocks) else {
            return;
        };
        if self.scheme == TwoTierScheme::ExclReuse && !self.is_reused[victim as usize] {
            return;
        }
        self.nvme_writes += 1;
        self.nvme.touch(victim);
        self.nvme.pop_over(self.nvme_blocks);
    }

    fn access_inclusive(&mut self, block: u32, found: Found) {
        if found == Found::Miss {
            self.nvme_writes += 1;
        }
        if found != Found::Dram || self.scheme == TwoTierScheme::InclPropagate {
            self.nvme.touch(block);
        }
        if let Some(victim) = self.nvme.pop_over(self.nvme_blocks) {
            self.dram.remove(victim);
        }
        self.dram.touch(block);
        self.dram.pop_over(self.dram_blocks);
    }
}

/// Where accesses find their blocks when DRAM holds the first `dram` blocks, and both tiers the
/// first `both`, in the order of the last request, and within a request from the root.
fn by_request(workload: &Workload, dram: usize, both: usize) -> Vec<Found> {
    let mut upper = Recency::new(workload.unique_blocks());
    let mut whole = Recency::new(workload.unique_blocks());
    let mut found = Vec::with_capacity(workload.accesses());
    for request in workload.requests() {
        found.extend(request.blocks.iter().map(|&block| {
            if upper.contains(block) {
                Found::Dram
            } else if whole.contains(block) {
                Found::Nvme
            } else {
                Found::Miss
            }
        }));
        touch_from_leaf(&mut upper, &request, dram);
        touch_from_leaf(&mut whole, &request, both);
    }
    found
}

fn touch_from_leaf(list: &mut Recency, request: &Request<'_>, capacity: usize) {
    for &block in request.blocks.iter().rev() {
        list.touch(block);
    }
    while list.pop_over(capacity).is_some() {}
}
