//! Aim: a prefetch keeps to its chain, its budget and its caller. Method: chains on devices in
//! memory, with DRAM for a part of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use terrace_nvme::mem::{Behaviour, Kind};
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, Lookup, Tier};

use super::prefetch::Chain;
use super::sim_world::{Spec, World};
use super::*;

const LEN: usize = 8192;
const SECOND: Duration = Duration::from_secs(1);

/// A world with chains of 30 blocks below, and room for `dram_blocks` of which `share` may be
/// ahead.
fn world(sim: &Sim, dram_blocks: usize, share: f64) -> (Rc<World>, Vec<BlockKey>) {
    let spec = Spec {
        dram_blocks,
        prefetch_ratio_max: share,
        // Nothing goes but what a test or its prefetch pushes out.
        fill_ratio_high: 1.0,
        ..Spec::default()
    };
    let world = World::new(sim, &spec, spec.blank(), 1);
    sim.run(world.shard.recover(None));
    let keys: Vec<BlockKey> = (0..30).map(|number| world.key("n", number)).collect();
    let durable = PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    };
    sim.run(async {
        let others = (100..160).map(|number| world.key("n", number));
        for key in keys.iter().cloned().chain(others) {
            assert!(
                world
                    .shard
                    .put(&key, &[7; LEN], &durable)
                    .await
                    .is_present()
            );
            world.shard.tick();
        }
        world.sleep(SECOND).await;
    });
    (world, keys)
}

fn in_dram(world: &World, key: &BlockKey) -> bool {
    let dram = Tier::Dram;
    matches!(world.shard.exists(key), Lookup::Hit { tier, .. } if tier == dram)
}

fn ahead_of<'a>(world: &World, keys: &'a [BlockKey]) -> Vec<&'a BlockKey> {
    keys.iter().filter(|key| in_dram(world, key)).collect()
}

async fn read(world: &World, key: &BlockKey) -> bool {
    let found = world.shard.get(key, &GetOptions::default()).await;
    world.shard.tick();
    found.is_hit()
}

#[test]
fn prefetch_reads_the_chain_in_order_up_to_its_first_gap() {
    let sim = Sim::new(1);
    let (world, keys) = world(&sim, 40, 1.0);
    sim.run(async {
        let _ = world.shard.remove(&keys[12]).await;
        let report = world
            .shard
            .prefetch(Chain::of(&keys), world.now() + SECOND)
            .await;
        assert_eq!(
            (report.begun, report.resident, report.cancelled),
            (12, 0, 0)
        );
        assert_eq!(
            ahead_of(&world, &keys),
            keys[..12].iter().collect::<Vec<_>>()
        );
        let again = world
            .shard
            .prefetch(Chain::of(&keys), world.now() + SECOND)
            .await;
        assert_eq!((again.begun, again.resident), (0, 12));
        for key in &keys[..12] {
            assert!(read(&world, key).await);
        }
    });
    let stats = world.shard.stats();
    assert_eq!(
        (stats.counters.prefetched, stats.counters.prefetched_used),
        (12, 12)
    );
    assert_eq!(stats.gauges.ahead_bytes, 0);
    assert_eq!(
        world.tier.counters().demand_reads,
        0,
        "no lookup had to wait for a read"
    );
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("a chain");
}

#[test]
fn prefetch_stays_within_its_budget_and_goes_on_as_blocks_are_used() {
    let sim = Sim::new(2);
    let (world, keys) = world(&sim, 40, 0.25);
    sim.run(async {
        let shard = Rc::clone(&world.shard);
        let until = world.now() + SECOND * 60;
        let chain = Chain::of(&keys);
        shard.spawn(Box::pin({
            let shard = Rc::clone(&shard);
            async move {
                let _ = shard.prefetch(chain, until).await;
            }
        }));
        for key in &keys {
            world.sleep(SECOND / 10).await;
            let ahead = world.shard.stats().gauges.ahead_bytes;
            assert!(ahead <= 10 * LEN as u64, "{ahead}");
            assert!(in_dram(&world, key), "it is ahead of the reader");
            assert!(read(&world, key).await);
        }
    });
    let counters = world.shard.stats().counters;
    assert_eq!((counters.prefetched, counters.prefetched_used), (30, 30));
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("a budget");
}

#[test]
fn prefetch_whose_caller_went_away_begins_nothing_more() {
    let sim = Sim::new(3);
    let (world, keys) = world(&sim, 40, 0.25);
    sim.run(async {
        let cancelled: Arc<AtomicBool> = Arc::default();
        let chain = Chain {
            cancelled: Arc::clone(&cancelled),
            ..Chain::of(&keys)
        };
        let until = world.now() + SECOND * 60;
        let stop = async {
            world.sleep(SECOND).await;
            cancelled.store(true, Ordering::Relaxed);
            world.shard.wake_prefetches();
            std::future::pending().await
        };
        let report = futures_lite::future::or(world.shard.prefetch(chain, until), stop).await;
        assert_eq!((report.begun, report.cancelled), (10, 20));
        // At its deadline one ends the same way.
        let brief = world
            .shard
            .prefetch(Chain::of(&keys), world.now() + SECOND)
            .await;
        assert_eq!((brief.begun, brief.resident, brief.cancelled), (0, 10, 20));
        // What nobody used leaves unused, and is counted.
        for number in 200..260 {
            let (key, options) = (world.key("n", number), PutOptions::default());
            world.shard.put(&key, &[7; LEN], &options).await;
            world.shard.tick();
        }
    });
    let stats = world.shard.stats();
    assert_eq!(stats.counters.prefetch_cancelled, 40);
    assert_eq!(stats.counters.prefetched_unused, 10);
    assert_eq!(stats.gauges.ahead_bytes, 0);
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("a caller that went away");
}

#[test]
fn prefetch_gives_up_no_block_of_its_own_chain() {
    let sim = Sim::new(4);
    let (world, keys) = world(&sim, 8, 1.0);
    sim.run(async {
        for key in &keys[..6] {
            assert!(read(&world, key).await);
        }
        // They are the oldest in DRAM now.
        for number in 100..102 {
            assert!(read(&world, &world.key("n", number)).await);
        }
        world
            .shard
            .prefetch(Chain::of(&keys), world.now() + SECOND)
            .await;
        for key in &keys[..6] {
            assert!(in_dram(&world, key));
        }
        assert!(ahead_of(&world, &keys).len() <= 8);
    });
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("its own chain");
}

#[test]
fn lookup_joins_a_read_ahead_and_lifts_it() {
    let sim = Sim::new(5);
    let (world, keys) = world(&sim, 40, 1.0);
    world.devices[0].set_plan(|operation| Behaviour {
        latency: match operation.kind {
            Kind::Read => Duration::from_millis(10),
            Kind::Write | Kind::Flush => Duration::ZERO,
        },
        ..Behaviour::default()
    });
    sim.run(async {
        let shard = Rc::clone(&world.shard);
        let (chain, until) = (Chain::of(&keys), world.now() + SECOND * 60);
        world.shard.spawn(Box::pin(async move {
            let _ = shard.prefetch(chain, until).await;
        }));
        world.sleep(Duration::from_millis(1)).await;
        assert!(read(&world, &keys[3]).await);
        world.sleep(SECOND).await;
        for key in &keys {
            assert!(read(&world, key).await);
        }
    });
    let counters = world.shard.stats().counters;
    assert_eq!(counters.promotions, 30, "each block was read once");
    assert_eq!(counters.reads_joined, 1);
    assert_eq!(counters.prefetched, counters.prefetched_used);
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("a lookup that joined");
}
