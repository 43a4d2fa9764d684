//! One simulation: a policy of its own for each shard, and what they came to together.

use std::time::Instant;

use terrace_engine::policy::{self, PolicyConfig, opt_hits, opt_hits_of_requests};

use crate::contender::{Bound, Contender};
use crate::drive::{Shard, drive};
use crate::error::SimError;
use crate::outcome::{HitCounts, Outcome};
use crate::workload::Workload;

/// The most shards, as in the engine.
pub const SHARDS_MAX: usize = 1024;

/// Simulates `contender` over `workload` with room for `capacity` blocks, divided among `shards`
/// shards as the engine divides it. The shards are simulated one after the other, on this thread.
///
/// # Errors
/// [`SimError::CapacityOutOfRange`] or [`SimError::ShardsOutOfRange`] with what is allowed, and
/// [`SimError::Policy`] when the policy cannot be made.
pub fn simulate(
    contender: Contender,
    workload: &Workload,
    capacity: usize,
    shards: usize,
) -> Result<Outcome, SimError> {
    check(workload, capacity, shards)?;
    let mut hits = vec![false; workload.accesses()];
    let mut outcome = Outcome::default();
    let started = now();
    for index in 0..shards {
        let share = blocks_of_shard(capacity, shards, index);
        let shard = Shard {
            index: index as u32,
            count: shards as u32,
        };
        match contender {
            Contender::Policy(name) => {
                play(name, workload, share, shard, (&mut hits, &mut outcome))?;
            }
            Contender::Bound(_, bound) => bound_hits(bound, workload, share, shard, &mut hits),
        }
    }
    outcome.elapsed = started.elapsed();
    outcome.hits = HitCounts::of(workload, &hits);
    Ok(outcome)
}

fn check(workload: &Workload, capacity: usize, shards: usize) -> Result<(), SimError> {
    let unique = workload.unique_blocks();
    if !(1..=unique).contains(&capacity) {
        return Err(SimError::CapacityOutOfRange {
            capacity: capacity.to_string(),
            allowed: format!("the trace has {unique} different blocks"),
        });
    }
    let max = capacity.min(SHARDS_MAX);
    if !(1..=max).contains(&shards) {
        return Err(SimError::ShardsOutOfRange { shards, max });
    }
    Ok(())
}

/// Blocks of shard `index`: the first ones take what does not divide.
#[must_use]
pub const fn blocks_of_shard(capacity: usize, shards: usize, index: usize) -> usize {
    capacity / shards + (index < capacity % shards) as usize
}

fn play(
    name: &str,
    workload: &Workload,
    capacity: usize,
    shard: Shard,
    (hits, outcome): (&mut [bool], &mut Outcome),
) -> Result<(), SimError> {
    let blocks_max = capacity as u32;
    let config = PolicyConfig {
        capacity_blocks: capacity,
        blocks_max,
        below_blocks: 0,
        shards: shard.count as usize,
    };
    let mut policy = policy::by_name(name, config)?;
    outcome.counts += drive(&mut *policy, blocks_max, workload, shard, hits);
    let bytes = policy.bytes();
    outcome.policy_bytes.resident += bytes.resident;
    outcome.policy_bytes.ghosts += bytes.ghosts;
    Ok(())
}

fn bound_hits(bound: Bound, workload: &Workload, capacity: usize, shard: Shard, hits: &mut [bool]) {
    // What the shard owns: where it stands in the workload, its number, where requests begin.
    let (mut places, mut numbers) = (Vec::new(), Vec::new());
    let mut begins = vec![0];
    for request in workload.requests() {
        for (depth, &number) in request.blocks.iter().enumerate() {
            if shard.owns(workload.keys()[number as usize]) {
                places.push(request.begin + depth);
                numbers.push(number);
            }
        }
        begins.push(numbers.len());
    }
    let own = match bound {
        Bound::ByBlock(bound) => opt_hits(&numbers, capacity, bound),
        Bound::ByRequest => opt_hits_of_requests(&numbers, &begins, capacity),
    };
    for (at, hit) in places.into_iter().zip(own) {
        hits[at] = hit;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a simulation took is no part of it"
)]
fn now() -> Instant {
    Instant::now()
}
