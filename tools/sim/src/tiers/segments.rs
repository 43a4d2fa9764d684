//! Two tiers as the engine has them: one of its policies over DRAM, and below it the log of
//! segments, of which the policy says what is written to it and what is kept at reclaim.
//!
//! It goes by blocks as one caller of the engine does that reads a chain block by block and puts
//! what is missing: each request is announced, a hit in DRAM is told, a block below comes up and
//! leaves its copy there, and a miss is put. Space in DRAM is made ahead of need, between the
//! engine's watermarks. What takes time in the engine happens at once here: writes are done when
//! they are begun, and a segment is reclaimed when the one before it is opened.

use terrace_engine::EngineConfig;
use terrace_engine::policy::{self, Admission, Policy, PolicyConfig, WritePrice};
use terrace_types::{Access, BlockIx, KeyHash};

use super::log::{Log, LogShape, NONE};
use super::{Found, TierCounts, reach};
use crate::drive::{Shard, announce};
use crate::error::SimError;
use crate::workload::Workload;

/// Share of a segment that may be written again, as in the engine's reclaim.
const KEEP_NUMERATOR: usize = 9;
const KEEP_DENOMINATOR: usize = 10;

/// What to simulate.
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// Name of the policy.
    pub policy: String,
    /// Blocks of DRAM.
    pub dram: usize,
    /// The log below.
    pub log: LogShape,
    /// Whether requests are announced to the policy before their first block is read.
    pub announced: bool,
    /// What a write costs, for policies that go by it.
    pub price: WritePrice,
}

struct Tiers<'a> {
    keys: &'a [KeyHash],
    block_len: u32,
    policy: Box<dyn Policy>,
    log: Log,
    /// By block: its number in DRAM.
    places: Vec<u32>,
    /// By number in DRAM: the block.
    residents: Vec<u32>,
    free: Vec<u32>,
    /// By block: used since it was last written.
    is_warm: Vec<bool>,
    /// By block: the access of its last use.
    used: Vec<u32>,
    clock: u32,
    /// Watermarks, in blocks.
    high: usize,
    low: usize,
    counts: TierCounts,
}

/// Plays `workload` to a policy of the engine over a log of segments.
///
/// # Errors
/// [`SimError::Policy`] when there is no such policy.
pub fn segments(workload: &Workload, options: &SegmentOptions) -> Result<TierCounts, SimError> {
    let unique = workload.unique_blocks();
    let mut policy = policy::by_name(
        &options.policy,
        PolicyConfig {
            capacity_blocks: options.dram,
            blocks_max: u32::try_from(options.dram + options.log.blocks()).unwrap_or(u32::MAX),
            below_blocks: options.log.blocks(),
            shards: 1,
        },
    )?;
    policy.set_write_price(options.price);
    let engine = EngineConfig::default();
    let mut tiers = Tiers {
        keys: workload.keys(),
        block_len: workload.block_len(),
        policy,
        log: Log::new(options.log, unique),
        places: vec![NONE; unique],
        residents: vec![NONE; options.dram],
        free: (0..options.dram as u32).rev().collect(),
        is_warm: vec![false; unique],
        used: vec![0; unique],
        clock: 0,
        high: share(options.dram, engine.fill_ratio_high),
        low: share(options.dram, engine.fill_ratio_low).min(options.dram.saturating_sub(1)),
        counts: TierCounts::default(),
    };
    let (mut chain, mut places, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for request in workload.requests() {
        announce(workload, &request, Shard::WHOLE, &mut chain, &mut places);
        if options.announced {
            tiers.policy.on_request(&chain);
        }
        found.clear();
        for (access, (_, block)) in chain.iter().zip(&places) {
            found.push(tiers.access(*block, access));
        }
        tiers.counts.add(&found, reach(options.dram));
    }
    Ok(tiers.counts)
}

impl Tiers<'_> {
    fn access(&mut self, block: u32, access: &Access) -> Found {
        self.clock += 1;
        let at = block as usize;
        let number = self.places[at];
        if number != NONE {
            self.use_now(block);
            self.policy.on_hit(BlockIx(number), access);
            return Found::Dram;
        }
        let found = if self.log.holds(block) {
            Found::Nvme
        } else {
            Found::Nowhere
        };
        if found == Found::Nvme {
            self.use_now(block);
        }
        if self.policy.admit(access) == Admission::Admit {
            self.make_room();
            self.take_in(block, access);
        }
        found
    }

    fn use_now(&mut self, block: u32) {
        self.is_warm[block as usize] = true;
        self.used[block as usize] = self.clock;
    }

    /// Above the high watermark blocks leave until the low one is reached.
    fn make_room(&mut self) {
        if self.len() < self.high {
            return;
        }
        while self.len() > self.low {
            let Some(victim) = self.policy.victim(&mut |_| true) else {
                return;
            };
            self.let_go(victim);
            while let Some(pending) = self.policy.take_pending() {
                self.let_go(pending);
            }
        }
    }

    /// Blocks in DRAM.
    fn len(&self) -> usize {
        self.residents.len() - self.free.len()
    }

    fn take_in(&mut self, block: u32, access: &Access) {
        let Some(number) = self.free.pop() else {
            return;
        };
        self.places[block as usize] = number;
        self.residents[number as usize] = block;
        self.policy.on_insert(BlockIx(number), access);
    }

    /// A block that the policy gave up leaves DRAM.
    fn let_go(&mut self, victim: BlockIx) {
        let block = self.residents[victim.0 as usize];
        self.places[block as usize] = NONE;
        self.free.push(victim.0);
        if self.log.holds(block) {
            return;
        }
        let access = self.access_of(block);
        if self.policy.admit_below(&access) == Admission::Admit {
            self.write(block);
        }
    }

    /// What the engine tells of a block when nobody accesses it.
    fn access_of(&self, block: u32) -> Access {
        Access {
            len: self.block_len,
            ..Access::plain(self.keys[block as usize])
        }
    }

    fn write(&mut self, block: u32) {
        self.counts.writes += 1;
        self.is_warm[block as usize] = false;
        if self.log.append(block) {
            self.reclaim();
        }
    }

    /// Empties the oldest segment and writes again what is worth it, what is in DRAM and what was
    /// used last before the rest.
    fn reclaim(&mut self) {
        let mut kept = Vec::new();
        for block in self.log.oldest() {
            let number = self.places[block as usize];
            let in_dram = number != NONE;
            let by_use = in_dram || self.is_warm[block as usize];
            let access = self.access_of(block);
            let resident = in_dram.then_some(BlockIx(number));
            if self.policy.keep(resident, &access).unwrap_or(by_use) {
                kept.push((!in_dram, self.clock - self.used[block as usize], block));
            }
        }
        kept.sort_unstable();
        kept.truncate(self.log.segment_blocks() * KEEP_NUMERATOR / KEEP_DENOMINATOR);
        self.counts.reinsertions += kept.len() as u64;
        for (_, _, block) in kept {
            // There is room: the segment that is open has just begun, and less than it is kept.
            self.counts.writes += 1;
            self.is_warm[block as usize] = false;
            self.log.append(block);
        }
        self.log.drop_oldest();
    }
}

/// A share of a count of blocks, at least one.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "counts are below 2^32, and a watermark lies in 0..=1"
)]
fn share(blocks: usize, ratio: f64) -> usize {
    ((blocks as f64 * ratio) as usize).max(1)
}
