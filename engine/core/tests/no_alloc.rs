//! Aim: a DRAM hit on the shard's thread allocates nothing, with every policy. Method: an
//! allocator that counts, around ten thousand hits; the put before shows that it does count. It
//! counts all threads, so a round in which another one allocates is repeated: a hit that
//! allocates would show in every round.

#![forbid(unsafe_code)]

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use terrace_engine::policy::POLICY_NAMES;
use terrace_engine::{
    Engine, EngineConfig, GetOptions, HugepageMode, PutOptions, TryGet, block_on,
};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn hit_on_the_shards_thread_allocates_nothing() {
    for policy in POLICY_NAMES {
        let config = EngineConfig {
            dram_bytes: 16 << 20,
            policy: policy.to_owned(),
            hugepages: HugepageMode::Off,
            ..EngineConfig::default()
        };
        let engine = Engine::open(config).unwrap();
        let ns = engine.namespace("m").unwrap();
        let (put, hits) = block_on(engine.run_on(0, move |shard| async move {
            let key = |number: u64| ns.key(&number.to_le_bytes()).unwrap();
            let region = Region::new(COUNTING);
            for number in 0..1000 {
                shard
                    .put(&key(number), &[7; 5000], &PutOptions::default())
                    .await;
            }
            let put = region.change().allocations;
            let hits = (0..20).map(|_| {
                let region = Region::new(COUNTING);
                for at in 0..10_000 {
                    let TryGet::Hit(pin) = shard.try_get(&key(at % 1000), &GetOptions::default())
                    else {
                        panic!("resident")
                    };
                    assert_eq!(pin[0], 7);
                }
                region.change().allocations
            });
            (put, hits.min())
        }))
        .unwrap();
        assert!(put > 0, "the allocator must count");
        assert_eq!(hits, Some(0), "{policy}");
    }
}
