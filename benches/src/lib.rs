//! The measured loops, with their sizes as arguments: large from `cargo bench`, small from the
//! tests below, so that a benchmark cannot rot.
//!
//! Each returns nanoseconds an operation and a hash of what it saw; the hash keeps the loop
//! from being optimised away and must be the same for the same sizes.

#![forbid(unsafe_code)]

pub mod wire;

use std::hint::black_box;
use std::time::Instant;

use terrace_engine::policy::{Admission, BlockIx, PolicyConfig, by_name};
use terrace_engine::{
    Access, Engine, EngineConfig, GetOptions, KeyHash, PutOptions, TryGet, block_on,
};
use terrace_slab::{Arena, ArenaConfig, ArenaShared, ClassChoice, SlabPool};

/// What a loop came to.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Nanoseconds an operation.
    pub ns: f64,
    /// Hash of what the loop saw.
    pub hash: u64,
}

/// A splitmix64 sequence.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures from outside"
)]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a benchmark are far below 2^53"
)]
fn per_op(begun: Instant, count: u64) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// Median of several runs of `f`.
pub fn median(runs: usize, mut f: impl FnMut() -> Measured) -> Measured {
    let mut all: Vec<Measured> = (0..runs).map(|_| f()).collect();
    all.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    all[all.len() / 2]
}

/// An engine of one shard holding `blocks` blocks of `len` bytes.
#[must_use]
pub fn filled_engine(policy: &str, blocks: u64, len: u64) -> Option<Engine> {
    let config = EngineConfig {
        dram_bytes: (blocks * len.next_multiple_of(4096) * 33 / 32).next_multiple_of(2 << 20)
            + (8 << 20),
        policy: policy.to_owned(),
        block_lens: vec![len],
        ..EngineConfig::default()
    };
    let engine = Engine::open(config).ok()?;
    let ns = engine.namespace("bench").ok()?;
    let filled = block_on(engine.run_on(0, move |shard| async move {
        let value = vec![7; len as usize];
        for number in 0..blocks {
            let Ok(key) = ns.key(&number.to_le_bytes()) else {
                return false;
            };
            if !shard
                .put(&key, &value, &PutOptions::default())
                .await
                .is_present()
            {
                return false;
            }
        }
        true
    }));
    (filled == Ok(true)).then_some(engine)
}

/// Lookups by reference on the shard's own thread: hash, find, tell the policy, pin, unpin.
#[must_use]
pub fn local_hits(engine: &Engine, blocks: u64, count: u64) -> Option<Measured> {
    let ns = engine.namespace("bench").ok()?;
    block_on(engine.run_on(0, move |shard| async move {
        let mut random = Random(1);
        let (begun, mut hash) = (now(), 0_u64);
        for _ in 0..count {
            let Ok(key) = ns.key(&random.below(blocks).to_le_bytes()) else {
                return None;
            };
            if let TryGet::Hit(pin) = shard.try_get(&key, &GetOptions::default()) {
                hash = hash.wrapping_mul(31).wrapping_add(pin.len() as u64);
                black_box(&pin);
            }
        }
        Some(Measured {
            ns: per_op(begun, count),
            hash,
        })
    }))
    .ok()?
}

/// Hits on a policy alone.
#[must_use]
pub fn policy_hits(policy: &str, blocks: u32, count: u64) -> Option<Measured> {
    let config = PolicyConfig {
        capacity_blocks: blocks as usize,
        blocks_max: blocks + 1,
        below_blocks: 0,
        shards: 1,
    };
    let mut policy = by_name(policy, config).ok()?;
    for ix in 0..blocks {
        policy.on_insert(BlockIx(ix), &Access::plain(KeyHash(u64::from(ix))));
    }
    let mut random = Random(2);
    let begun = now();
    for _ in 0..count {
        let ix = random.below(u64::from(blocks));
        policy.on_hit(BlockIx(ix as u32), &Access::plain(KeyHash(ix)));
    }
    Some(Measured {
        ns: per_op(begun, count),
        hash: policy.len() as u64,
    })
}

/// Evictions with the insert that needs them, on a policy alone.
#[must_use]
pub fn policy_churn(policy: &str, blocks: u32, count: u64) -> Option<Measured> {
    let config = PolicyConfig {
        capacity_blocks: blocks as usize,
        blocks_max: blocks + 1,
        below_blocks: 0,
        shards: 1,
    };
    let mut policy = by_name(policy, config).ok()?;
    for ix in 0..blocks {
        policy.on_insert(BlockIx(ix), &Access::plain(KeyHash(u64::from(ix))));
    }
    let (begun, mut hash) = (now(), 0_u64);
    let mut vacant = Vec::new();
    for id in 0..count {
        if let Some(block) = policy.victim(&mut |_| true) {
            vacant.push(block);
        }
        while let Some(block) = policy.take_pending() {
            vacant.push(block);
        }
        let block = vacant.pop()?;
        hash = hash.wrapping_mul(31).wrapping_add(u64::from(block.0));
        policy.on_insert(block, &Access::plain(KeyHash((1 << 40) + id)));
    }
    Some(Measured {
        ns: per_op(begun, count),
        hash,
    })
}

/// Requests of chains on a policy alone, announced: conversations of which each turn repeats all
/// before and adds four blocks. Nanoseconds a block access, and of each request in the second half:
/// the first finds memory that was never touched.
#[must_use]
pub fn policy_chains(policy: &str, blocks: u32, requests: u64) -> Option<(Measured, Vec<f64>)> {
    const ADDED: u64 = 4;
    let config = PolicyConfig {
        capacity_blocks: blocks as usize,
        blocks_max: blocks + 1,
        below_blocks: 0,
        shards: 1,
    };
    let mut policy = by_name(policy, config).ok()?;
    let (mut random, mut vacant) = (Random(4), (0..blocks).map(BlockIx).collect::<Vec<_>>());
    let sessions = u64::from(blocks) / 16;
    let mut turns = vec![0_u64; sessions as usize];
    // What is resident, by place in its session: a table that grows or moves would be measured too.
    let place = |id: KeyHash| (id.0 & 0xff_ffff_ffff) as usize;
    let mut resident = vec![BlockIx(blocks); (sessions as usize) << 8];
    let mut id_of = vec![KeyHash(u64::MAX); blocks as usize + 1];
    let (mut times, mut accesses, mut hash) = (Vec::with_capacity(requests as usize), 0, 0_u64);
    for request in 0..requests {
        let session = random.below(sessions);
        let turn = &mut turns[session as usize];
        *turn = if *turn == 8 { 1 } else { *turn + 1 };
        let life = (request / (8 * sessions)) << 40;
        let chain: Vec<_> = (0..*turn * ADDED)
            .map(|depth| {
                let mut access = Access::plain(KeyHash(life | session << 8 | depth));
                access.hint.depth = depth as u32;
                access.context.clock_ms = request * 20;
                access
            })
            .collect();
        let begun = now();
        policy.on_request(&chain);
        for access in &chain {
            let block = resident[place(access.id)];
            if id_of[block.0 as usize] == access.id {
                policy.on_hit(block, access);
                continue;
            }
            if policy.admit(access) == Admission::Decline {
                continue;
            }
            if vacant.is_empty() {
                let gone = policy.victim(&mut |_| true);
                vacant.extend(gone);
                for gone in gone.iter().chain(&policy.take_pending()) {
                    id_of[gone.0 as usize] = KeyHash(u64::MAX);
                    hash = hash.wrapping_mul(31).wrapping_add(u64::from(gone.0));
                }
            }
            let Some(block) = vacant.pop() else { continue };
            policy.on_insert(block, access);
            resident[place(access.id)] = block;
            id_of[block.0 as usize] = access.id;
        }
        let request_ns = per_op(begun, 1);
        if request > requests / 2 {
            times.push(request_ns);
            accesses += chain.len();
        }
    }
    let ns = times.iter().sum::<f64>() / accesses.max(1) as f64;
    Some((Measured { ns, hash }, times))
}

/// Takes and gives of slots in a nearly full pool.
#[must_use]
pub fn slab_churn(arena_mib: u64, len: u64, count: u64) -> Option<Measured> {
    let arena = Arena::open(&ArenaConfig::new(arena_mib << 20)).ok()?;
    let mut pool = SlabPool::new(ArenaShared::new(arena, Box::new(|| ())));
    let ClassChoice::Fits(class) = pool.choose_class(len) else {
        return None;
    };
    let mut out: Vec<_> = std::iter::from_fn(|| pool.take(class)).collect();
    let mut random = Random(3);
    let (begun, mut hash) = (now(), 0_u64);
    for _ in 0..count {
        let at = random.below(out.len() as u64) as usize;
        pool.give(out.swap_remove(at));
        let slot = pool.take(class)?;
        hash = hash.wrapping_mul(31).wrapping_add(u64::from(slot.0));
        out.push(slot);
    }
    Some(Measured {
        ns: per_op(begun, count),
        hash,
    })
}

#[cfg(test)]
mod tests {
    use terrace_engine::policy::POLICY_NAMES;

    use super::*;

    #[test]
    fn loops_repeat_with_equal_hashes() {
        let engine = filled_engine("LRU", 500, 4096).expect("filled");
        let hits = || local_hits(&engine, 500, 2000).expect("measured").hash;
        assert_eq!(hits(), hits());
        for policy in POLICY_NAMES {
            let churn = || policy_churn(policy, 1000, 5000).expect("measured").hash;
            assert_eq!(churn(), churn(), "{policy}");
            let chains = || policy_chains(policy, 1000, 500).expect("measured").0.hash;
            assert_eq!(chains(), chains(), "{policy}");
            assert_eq!(
                policy_hits(policy, 1000, 5000).expect("measured").hash,
                1000
            );
        }
        let slab = || slab_churn(8, 70_000, 5000).expect("measured").hash;
        assert_eq!(slab(), slab());
    }
}
