//! Two tiers without segments: NVMe gives up any one block, the leaf that is least in its order.
//!
//! A miss goes to DRAM only. A block that leaves DRAM is dropped when NVMe has a copy. Otherwise it
//! is written when the rule says so, or when a block behind it lies in NVMe, and else it is gone.
//! A hit in NVMe brings the block up, and its copy stays where it is or moves. What the tiers hold
//! together is closed: no block without the one before it.

use terrace_engine::policy::WritePrice;

use super::forest::Forest;
use super::history::History;
use super::leaves::{Leaves, Order};
use super::{Found, TierBlocks, TierCounts, reach};
use crate::error::SimError;
use crate::workload::Workload;

/// Ghosts for each block of both tiers.
const GHOSTS_PER_BLOCK: usize = 4;
const DRAM: usize = 0;
const NVME: usize = 1;

/// What is written of the blocks that leave DRAM.
#[derive(Clone, Copy, Debug)]
pub enum WriteRule {
    /// All.
    All,
    /// Those whose index is at least this many times that of the block which goes for it.
    Index(f64),
    /// Those that win at least the price of a write over what their room is worth: the index of
    /// the block which goes for it, for as long as the block is held.
    Price(WritePrice),
}

/// How the tiers work together.
#[derive(Clone, Copy, Debug)]
pub struct IdealOptions {
    /// Blocks of both tiers.
    pub blocks: TierBlocks,
    /// What leaves DRAM first.
    pub dram: Order,
    /// What leaves NVMe first.
    pub nvme: Order,
    /// Whether a block that comes up leaves NVMe.
    pub exclusive: bool,
    /// Whether the last, normally partial blocks of requests may be written.
    pub writes_tails: bool,
    /// What is written.
    pub rule: WriteRule,
}

struct Ideal<'a> {
    options: &'a IdealOptions,
    forest: Forest,
    history: History,
    tiers: [Leaves; 2],
    price: WritePrice,
    counts: TierCounts,
}

/// Plays `workload` to two ideal tiers.
///
/// # Errors
/// [`SimError::NotChains`] when the workload is none of chains.
pub fn ideal(workload: &Workload, options: &IdealOptions) -> Result<TierCounts, SimError> {
    let unique = workload.unique_blocks();
    let TierBlocks { dram, nvme } = options.blocks;
    let mut ideal = Ideal {
        options,
        forest: Forest::of(workload)?,
        history: History::new(unique, GHOSTS_PER_BLOCK * (dram + nvme)),
        tiers: [
            Leaves::new(dram, options.dram, unique),
            Leaves::new(nvme, options.nvme, unique),
        ],
        price: match options.rule {
            WriteRule::Price(price) => price,
            WriteRule::All | WriteRule::Index(_) => WritePrice::default(),
        },
        counts: TierCounts::default(),
    };
    let mut before_ms = 0;
    for request in workload.requests() {
        ideal.price.pass(request.clock_ms.saturating_sub(before_ms));
        before_ms = request.clock_ms.max(before_ms);
        ideal.request(request.blocks, before_ms);
    }
    Ok(ideal.counts)
}

impl Ideal<'_> {
    fn request(&mut self, blocks: &[u32], now_ms: u64) {
        let tiers = &mut self.tiers;
        let learner = &mut self.history.learner;
        learner.advance(now_ms, |number, group| {
            tiers.iter_mut().for_each(|tier| tier.age(number, group));
        });
        self.count(blocks);
        for tier in &mut self.tiers {
            for &block in blocks {
                tier.leave(block, &self.history, &self.forest);
            }
        }
        self.history.take_in(blocks, now_ms);
        let end = self.bring_in(blocks);
        for tier in &mut self.tiers {
            for &block in blocks {
                if tier.is_leaf(block) {
                    tier.enter(block, &self.history, &self.forest);
                }
            }
        }
        // Deepest first, so that what is known stays closed.
        for &block in blocks[end..].iter().rev() {
            if !self.tiers.iter().any(|tier| tier.holds(block)) {
                self.history.become_ghost(block);
            }
        }
        self.history.trim();
    }

    /// Hits end where the first block is in no tier.
    fn count(&mut self, blocks: &[u32]) {
        let [dram, nvme] = &self.tiers;
        let find = |block: &u32| match (dram.holds(*block), nvme.holds(*block)) {
            (true, _) => Found::Dram,
            (false, true) => Found::Nvme,
            (false, false) => Found::Nowhere,
        };
        let mut found: Vec<Found> = blocks.iter().map(find).collect();
        let hits = found.iter().take_while(|found| **found != Found::Nowhere);
        let hits = hits.count();
        found[hits..].fill(Found::Nowhere);
        self.counts.add(&found, reach(self.options.blocks.dram));
    }

    /// Brings the request's blocks into DRAM; how many of them there was room for.
    fn bring_in(&mut self, blocks: &[u32]) -> usize {
        for (at, &block) in blocks.iter().enumerate() {
            if self.tiers[DRAM].holds(block) {
                continue;
            }
            if self.tiers[DRAM].is_full() {
                let Some(victim) = self.tiers[DRAM].least(&self.history) else {
                    return at;
                };
                let before = at.checked_sub(1).map(|before| blocks[before]);
                self.tiers[DRAM].remove(victim, before, &self.history, &self.forest);
                self.let_go(victim);
            }
            if self.options.exclusive && self.tiers[NVME].holds(block) {
                self.tiers[NVME].remove(block, None, &self.history, &self.forest);
            }
            self.tiers[DRAM].insert(block, &self.history, &self.forest);
        }
        blocks.len()
    }

    /// A block left DRAM.
    fn let_go(&mut self, block: u32) {
        if self.tiers[NVME].holds(block) {
            return;
        }
        let is_forced = self.tiers[NVME].has_child(block);
        let written = (is_forced || self.is_worth_it(block)) && self.make_room();
        if !written {
            self.history.become_ghost(block);
            return;
        }
        self.price.pay();
        self.counts.writes += 1;
        let nvme = &mut self.tiers[NVME];
        nvme.insert(block, &self.history, &self.forest);
        if nvme.is_leaf(block) {
            nvme.enter(block, &self.history, &self.forest);
        }
    }

    fn is_worth_it(&self, block: u32) -> bool {
        let (category, bin) = self.history.place(block);
        if category == 0 && !self.options.writes_tails {
            return false;
        }
        let nvme = &self.tiers[NVME];
        let least = || nvme.least(&self.history).filter(|_| nvme.is_full());
        let room_worth = || least().map_or(0.0, |least| self.history.index(least));
        let learner = &self.history.learner;
        match self.options.rule {
            WriteRule::All => true,
            WriteRule::Index(times) => learner.index(category, bin) >= times * room_worth(),
            WriteRule::Price(_) => learner.surplus(category, bin, room_worth()) >= self.price.now(),
        }
    }

    fn make_room(&mut self) -> bool {
        if !self.tiers[NVME].is_full() {
            return true;
        }
        let Some(victim) = self.tiers[NVME].least(&self.history) else {
            return false;
        };
        self.tiers[NVME].remove(victim, None, &self.history, &self.forest);
        if !self.tiers[DRAM].holds(victim) {
            self.history.become_ghost(victim);
        }
        true
    }
}
