//! Aim: what has no room on the devices is waited for, told, or made room for, and nothing of it
//! happens in silence. Method: a shard over short devices in memory whose flushes are slow, so
//! that segments come late, in virtual time.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use terrace_nvme::mem::{Behaviour, Kind};
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, PutOutcome};

use super::sim_world::{Spec, World};
use super::*;
use crate::config::WriteMode;
use crate::events::{EventFilter, subscription};

const CALL_MAX: Duration = Duration::from_secs(300);
const LEN: usize = 16 << 10;

fn spec(segments: u32, dram_blocks: usize) -> Spec {
    Spec {
        segments: vec![segments],
        dram_blocks,
        io_deadline: Duration::from_secs(60),
        ..Spec::default()
    }
}

fn slow_flushes(world: &World, flush: Duration) {
    world.devices[0].set_plan(move |operation| Behaviour {
        latency: match operation.kind {
            Kind::Flush => flush,
            Kind::Read | Kind::Write => Duration::from_millis(1),
        },
        ..Behaviour::default()
    });
}

async fn put(world: &World, number: u64, durability: Durability) -> PutOutcome {
    let (key, bytes) = (key(world, number), vec![number as u8; LEN]);
    let options = PutOptions {
        durability,
        ..PutOptions::default()
    };
    let put = world.shard.put(&key, &bytes, &options);
    world
        .within(|| format!("put {number}"), CALL_MAX, put)
        .await
}

fn key(world: &World, number: u64) -> BlockKey {
    world.key("n", number)
}

/// The blocks that a new shard serves when power is lost now and nothing but what was flushed
/// survives.
fn after_power_loss(sim: &Sim, world: &Rc<World>, spec: &Spec, count: u64) -> BTreeSet<u64> {
    let images = world.devices.iter();
    let images = images.map(|device| device.crash(&mut |_| false)).collect();
    let world = World::new(sim, spec, images, 2);
    sim.run(world.shard.recover(None));
    let there = |number: &u64| world.shard.exists(&key(&world, *number)).is_hit();
    (0..count).filter(there).collect()
}

#[test]
fn sync_waits_for_what_has_no_room_yet() {
    for write_mode in [WriteMode::Through, WriteMode::Back] {
        let sim = Sim::new(1);
        let through = write_mode == WriteMode::Through;
        let dram_blocks = if through { 100 } else { 50 };
        let spec = Spec {
            write_mode,
            ..spec(8, dram_blocks)
        };
        let world = World::new(&sim, &spec, spec.blank(), 1);
        sim.run(world.shard.recover(None));
        slow_flushes(&world, Duration::from_millis(500));
        let down: BTreeSet<u64> = sim.run(async {
            for number in 0..50 {
                put(&world, number, Durability::Volatile).await;
            }
            if !through {
                // These wait for room in DRAM, each for one that is written below.
                let more = (50..80).map(|number| put(&world, number, Durability::Volatile));
                drop(futures_lite::future::poll_once(join_all(more)).await);
            }
            world.shard.runtime().yield_now().await;
            let down = (0..50).filter(|number| {
                let state = world.shard.state.borrow();
                let epoch = state.epochs.of(key(&world, *number).namespace()).unwrap();
                let block = state.index.find(&key(&world, *number), epoch).unwrap();
                through || state.index.record(block).is(crate::index::DEMOTING)
            });
            let down = down.collect();
            assert_eq!(world.shard.sync().await, Ok(()));
            down
        });
        assert!(!down.is_empty(), "{write_mode:?}");
        let there = after_power_loss(&sim, &world, &spec, 50);
        assert!(down.is_subset(&there), "{write_mode:?}: {there:?}");
    }
}

#[test]
fn sync_over_a_device_that_fails_what_has_no_room_says_so() {
    let sim = Sim::new(2);
    let spec = Spec {
        write_mode: WriteMode::Through,
        ..spec(8, 100)
    };
    let world = World::new(&sim, &spec, spec.blank(), 1);
    sim.run(world.shard.recover(None));
    slow_flushes(&world, Duration::from_millis(500));
    sim.run(async {
        for number in 0..50 {
            put(&world, number, Durability::Volatile).await;
        }
        let fails = |_: &_| terrace_nvme::mem::Fault::Os { errno: 5 }.into();
        world.devices[0].set_plan(fails);
        let failed = Err(UnavailableReason::TierFailed);
        assert_eq!(world.shard.sync().await, failed);
        assert_eq!(
            world.shard.sync().await,
            failed,
            "what was placed is not durable"
        );
        world.sleep(Duration::from_secs(2)).await;
    });
    world.check_idle("failed");
}

#[test]
fn durable_block_in_dram_whose_segment_goes_is_told() {
    let sim = Sim::new(3);
    let spec = spec(3, 100);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    let (sink, events) = subscription(1 << 16, EventFilter::default());
    world.shard.subscribe(sink);
    sim.run(world.shard.recover(None));
    let told: BTreeSet<u64> = sim.run(async {
        let mut told = BTreeSet::new();
        for number in 0..60 {
            if put(&world, number, Durability::Durable).await
                == (PutOutcome::Stored { durable: true })
            {
                told.insert(number);
            }
        }
        world.sleep(Duration::from_secs(5)).await;
        told
    });
    assert!(told.len() > 50, "{told:?}");
    let mut lost = BTreeSet::new();
    while let Some(event) = events.try_next() {
        if event.kind == EventKind::Undurable {
            lost.extend((0..60).filter(|it| key(&world, *it).hash() == event.hash));
        }
        assert_ne!(event.kind, EventKind::Evicted, "DRAM holds all");
    }
    assert!(!lost.is_empty(), "there is no room for all");
    let counters = world.shard.stats().counters;
    assert_eq!(counters.durability_lost, lost.len() as u64);
    let there = after_power_loss(&sim, &world, &spec, 60);
    let silent: Vec<_> = told
        .iter()
        .filter(|it| !there.contains(it) && !lost.contains(it))
        .collect();
    assert!(silent.is_empty(), "gone and not told: {silent:?}");
    sim.run(async {
        for number in &lost {
            assert!(
                world.shard.exists(&key(&world, *number)).is_hit(),
                "{number}"
            );
            let again = put(&world, *number, Durability::Volatile).await;
            assert_eq!(again, PutOutcome::AlreadyExists { durable: false });
        }
    });
}

#[test]
fn demotion_that_completed_is_taken_in_while_the_writer_waits_for_room() {
    let sim = Sim::new(4);
    let spec = spec(8, 24);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    sim.run(async {
        world.shard.recover(None).await;
        world.sleep(Duration::from_secs(1)).await;
        slow_flushes(&world, Duration::from_secs(5));
        for number in 0..24 {
            put(&world, number, Durability::Volatile).await;
        }
        // All at once: each has one block sent down, more than the first segment takes.
        let puts = join_all((24..56).map(|number| put(&world, number, Durability::Volatile)));
        let outcomes = puts.await;
        world.sleep(Duration::from_millis(100)).await;
        let (counters, written) = (world.shard.stats().counters, world.tier.counters());
        assert!(world.shard.state.borrow().demoting > 0, "the writer waits");
        assert!(written.blocks_written > 4, "{written:?}");
        assert_eq!(counters.demotions, written.blocks_written, "{outcomes:?}");
        world.sleep(Duration::from_secs(30)).await;
    });
    world.check_idle("room came");
}

#[test]
fn write_budget_bounds_what_demotions_place() {
    const RATE: u64 = 200_000;
    const SECONDS: u64 = 5;
    let sim = Sim::new(5);
    let spec = Spec {
        write_budget: RATE,
        ..spec(40, 24)
    };
    let world = World::new(&sim, &spec, spec.blank(), 1);
    sim.run(async {
        world.shard.recover(None).await;
        let begun = world.now();
        for number in 0..SECONDS * 100 {
            put(&world, number, Durability::Volatile).await;
            world.sleep(Duration::from_millis(10)).await;
        }
        let written = world.tier.counters();
        let span = world.now().since(begun).as_millis() as u64;
        // A second's worth was saved up, and one block may overdraw it.
        let most = RATE + RATE * span / 1000 + LEN as u64;
        let placed = written.payload_bytes;
        assert!(placed <= most, "{placed} bytes in {span} ms");
        assert!(placed >= most - 8 * LEN as u64, "{placed} bytes of {most}");
        let evictions = world.shard.stats().counters.evictions;
        assert_eq!(evictions, written.budget_rejects);
        assert!(evictions > 0);
    });
}
