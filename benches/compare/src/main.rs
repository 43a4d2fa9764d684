//! Terrace beside foyer and beside memcpy, interleaved in one run.
//!
//! DRAM hits by reference, batches from a foreign thread, and blocks copied out. Medians of five
//! rounds with their range. The largest engine wants 2,200 hugepages of 2 MiB.

#![forbid(unsafe_code)]

use std::alloc::System;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use foyer::{Cache, CacheBuilder, LruConfig};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use terrace_benches::{Random, filled_engine, local_hits};
use terrace_engine::{BlockKey, Engine, GetOptions, Lookup, PinnedBlock, TryGet, block_on};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: usize = 5;
const HITS: u64 = 1_000_000;

/// Median, least and most.
fn summary(mut all: Vec<f64>) -> (f64, f64, f64) {
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[0], all[all.len() - 1])
}

fn row(what: &str, unit: &str, rates: Vec<f64>) -> f64 {
    let (median, least, most) = summary(rates);
    println!("  {what:<44}{median:>8.2} {unit} ({least:.2}-{most:.2})");
    median
}

fn foyer_filled(blocks: u64, len: usize) -> Cache<u64, Arc<[u8]>> {
    let cache = CacheBuilder::new(usize::try_from(blocks).expect("64-bit") * len * 2)
        .with_shards(8)
        .with_eviction_config(LruConfig::default())
        .with_weighter(|_: &u64, value: &Arc<[u8]>| value.len())
        .build();
    for number in 0..blocks {
        cache.insert(number, Arc::from(vec![7; len]));
    }
    cache
}

fn foyer_hits(cache: &Cache<u64, Arc<[u8]>>, blocks: u64) -> f64 {
    let mut random = Random(1);
    let begun = Instant::now();
    let mut found = 0_u64;
    for _ in 0..HITS {
        if let Some(entry) = cache.get(&random.below(blocks)) {
            found += 1;
            black_box(&entry);
        }
    }
    assert_eq!(found, HITS, "all blocks are resident");
    HITS as f64 / begun.elapsed().as_secs_f64() / 1e6
}

fn terrace_hits(engine: &Engine, blocks: u64) -> (f64, usize) {
    let region = Region::new(COUNTING);
    let measured = local_hits(engine, blocks, HITS).expect("the shard answers");
    (1e3 / measured.ns, region.change().allocations)
}

fn hits_of(results: &[Lookup<PinnedBlock>]) -> u64 {
    results.iter().filter(|outcome| outcome.is_hit()).count() as u64
}

fn foreign(engine: &Engine, blocks: u64) -> f64 {
    let ns = engine.namespace("bench").expect("a name");
    let mut random = Random(3);
    let mut key = || {
        ns.key(&random.below(blocks).to_le_bytes())
            .expect("8 bytes")
    };
    let batches: Vec<Vec<BlockKey>> = (0..1000)
        .map(|_| (0..32).map(|_| key()).collect())
        .collect();
    let begun = Instant::now();
    let mut found = 0_u64;
    block_on(async {
        let mut in_flight = FuturesUnordered::new();
        for batch in batches.iter().cycle().take(20_000) {
            if in_flight.len() >= 8 {
                let results: Vec<_> = in_flight.next().await.unwrap_or_default();
                found += hits_of(&results);
            }
            in_flight.push(engine.get_batch(batch, &[]));
        }
        while let Some(results) = in_flight.next().await {
            found += hits_of(&results);
        }
    });
    assert_eq!(found, 20_000 * 32);
    found as f64 / begun.elapsed().as_secs_f64() / 1e6
}

fn hits_by_reference(blocks: u64, len: u64) {
    println!("{blocks} blocks of {len} B, by reference, on the shard's thread");
    let lru = filled_engine("LRU", blocks, len).expect("memory");
    let backing = block_on(lru.stats()).shards[0].map(|shard| shard.backing.to_string());
    println!("  pages in force: {}", backing.unwrap_or_default());
    let foyer = foyer_filled(blocks, usize::try_from(len).expect("64-bit"));
    let (mut ours, mut theirs, mut allocations) = (Vec::new(), Vec::new(), usize::MAX);
    for _ in 0..ROUNDS {
        let (rate, count) = terrace_hits(&lru, blocks);
        ours.push(rate);
        // Other threads are counted too: the least of the rounds is what the hits did.
        allocations = allocations.min(count);
        theirs.push(foyer_hits(&foyer, blocks));
    }
    let terrace = row("Terrace, LRU", "M/s", ours);
    let peer = row("foyer, LRU, 8 shards", "M/s", theirs);
    println!(
        "  ratio {:.2}; allocations in {HITS} hits, spawning included: {allocations}",
        terrace / peer
    );
    drop(foyer);
    let rates = (0..ROUNDS).map(|_| foreign(&lru, blocks)).collect();
    row("Terrace from a foreign thread, 8 x 32", "M/s", rates);
    drop(lru);
    settle();
    let sieve = filled_engine("SIEVE", blocks, len).expect("memory");
    row(
        "Terrace, SIEVE",
        "M/s",
        (0..ROUNDS)
            .map(|_| terrace_hits(&sieve, blocks).0)
            .collect(),
    );
    drop(sieve);
    settle();
}

/// Engines close behind their last handle; the next one wants the pages of the last.
fn settle() {
    let pool = terrace_engine::hugepages::pool;
    for _ in 0..200_000 {
        if pool(2 << 20).free == pool(2 << 20).total {
            return;
        }
        std::thread::yield_now();
    }
}

/// GB/s of copying out random blocks on the shard's thread: through lookups, and from slots
/// that were looked up before.
fn copies(engine: &Engine, blocks: u64, len: usize, count: u64) -> (f64, f64) {
    let ns = engine.namespace("bench").expect("a name");
    block_on(engine.run_on(0, move |shard| async move {
        let key = |number: u64| ns.key(&number.to_le_bytes()).expect("8 bytes");
        let get = |number| match shard.try_get(&key(number), &GetOptions::default()) {
            TryGet::Hit(pin) => pin,
            _ => panic!("resident"),
        };
        let mut target = vec![0; len];
        let mut random = Random(5);
        let begun = Instant::now();
        for _ in 0..count {
            target.copy_from_slice(&get(random.below(blocks)));
            black_box(&target);
        }
        let through = begun.elapsed().as_secs_f64();
        let held = blocks * 45 / 100;
        let pins: Vec<PinnedBlock> = (0..held).map(|number| get(number).into_pinned()).collect();
        let begun = Instant::now();
        for _ in 0..count {
            let at = usize::try_from(random.below(held)).expect("64-bit");
            target.copy_from_slice(&pins[at]);
            black_box(&target);
        }
        let plain = begun.elapsed().as_secs_f64();
        let bytes = (count * len as u64) as f64 / 1e9;
        (bytes / through, bytes / plain)
    }))
    .expect("the shard answers")
}

fn copied_out(blocks: u64, len: usize, count: u64) {
    println!("{blocks} blocks of {len} B, copied out to one hot buffer");
    let engine = filled_engine("LRU", blocks, len as u64).expect("memory");
    let (through, plain): (Vec<f64>, Vec<f64>) = (0..ROUNDS)
        .map(|_| copies(&engine, blocks, len, count))
        .unzip();
    let ours = row("Terrace: look up, copy, unpin", "GB/s", through);
    let limit = row("memcpy of slots held before", "GB/s", plain);
    println!("  ratio {:.2}", ours / limit);
    drop(engine);
    settle();
}

fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load at start: {}", load.trim());
    hits_by_reference(30_000, 65_536);
    copied_out(24_000, 65_536, 100_000);
    copied_out(1500, 1 << 20, 6000);
    hits_by_reference(1_000_000, 4096);
}
