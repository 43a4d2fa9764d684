//! Aim: what was acknowledged as durable survives power loss, and what was removed does not come
//! back. Method: clients work on devices in memory until a random moment; then the devices keep
//! what was flushed and any subset of the other writes, whole or torn, and a new shard recovers
//! from them. Several generations of one set of devices for each seed, some closed cleanly, with
//! reclaim going on. In half of the seeds the devices are large enough that nothing has to be
//! given up, and reclaim is told to keep all: there nothing durable may be missing at all.

use std::ops::Range;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use terrace_nvme::format::SEGMENTS_START;
use terrace_nvme::mem::{Behaviour, Kind, MemImage, SeededFaults};
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, Lookup, PutOutcome, Tier};

use super::crash_model::{
    CALL_MAX, CLIENTS, Client, KEYS, Model, audit, begin_removal, close_model, excuse, key,
};
use super::sim_tests::seeds;
use super::sim_world::{Random, Spec, World};
use super::*;
use crate::config::WriteMode;

const GENERATIONS: u32 = 4;

/// Calls at random until it is dropped.
async fn work(client: &Client, random: &Random) {
    loop {
        let number = random.below(KEYS);
        let key = client.key(number);
        match random.below(20) {
            0..4 => client.read(number, &key).await,
            4..7 => client.put(number, &key, Durability::Volatile).await,
            7..12 => client.put(number, &key, Durability::Durable).await,
            12..15 => client.remove(number, &key).await,
            15 if random.one_in(5) => client.remove_all(&key).await,
            15 | 16 => drop_remove(client, random, number, &key).await,
            17 => {
                client.remove(number, &key).await;
                client.put(number, &key, Durability::Durable).await;
            }
            _ => {
                let span = Duration::from_micros(random.below(1500));
                client.worlds[0].sleep(span).await;
            }
        }
    }
}

/// Begins a removal and gives it up.
async fn drop_remove(client: &Client, random: &Random, number: u64, key: &BlockKey) {
    client.told(number, begin_removal);
    let world = &client.worlds[0];
    let removal = async {
        let _ = world.shard.remove(key).await;
    };
    let span = Duration::from_micros(random.below(100));
    futures_lite::future::or(removal, world.sleep(span)).await;
}

fn images_after_crash(world: &World, random: &Random) -> Vec<MemImage> {
    let torn = random.below(3);
    let odds = 1 + random.below(4);
    world
        .devices
        .iter()
        .map(|device| {
            device.crash_torn(&mut |_, sectors| match (torn, random.below(odds)) {
                (0, 0) => sectors,
                (0, _) => 0,
                (_, 0) => random.below(u64::from(sectors) + 1) as u32,
                (1, _) => sectors,
                _ => 0,
            })
        })
        .collect()
}

fn spec(random: &Random, seed: u64, strict: bool) -> Spec {
    let devices = 1 + usize::from(random.one_in(3));
    let (least, range) = if strict { (14, 6) } else { (2, 8) };
    Spec {
        policy: policy::POLICY_NAMES[seed as usize % policy::POLICY_NAMES.len()],
        // Short ones have no room for all that is kept.
        segment_len: (256 << 10) << (random.below(2) + u64::from(strict)),
        segments: (0..devices)
            .map(|_| least + random.below(range) as u32)
            .collect(),
        dram_blocks: 16,
        dram_bytes: if strict {
            16 << 20
        } else {
            (2 << 20) << (4 * random.below(2))
        },
        keep_all: strict,
        write_mode: if random.one_in(4) {
            WriteMode::Through
        } else {
            WriteMode::Back
        },
        ..Spec::default()
    }
}

/// Blocks in DRAM by key.
fn residents(worlds: &[Rc<World>]) -> Vec<(u64, u64)> {
    let world = &worlds[0];
    let all = (0..CLIENTS).flat_map(|client| (0..KEYS).map(move |number| (client, number)));
    let in_dram = |(client, number): &(u64, u64)| {
        let found = world.shard.exists(&key(worlds, *client, *number));
        matches!(
            found,
            Lookup::Hit {
                tier: Tier::Dram,
                ..
            }
        )
    };
    all.filter(in_dram).collect()
}

/// What one generation leaves.
struct Left {
    images: Vec<MemImage>,
    /// The epoch of a clean close, and what was in DRAM then.
    clean: Option<(u32, Vec<(u64, u64)>)>,
    reclaimed: u64,
}

fn generation(
    seed: u64,
    epoch: u32,
    spec: &Spec,
    model: &Rc<Model>,
    random: &Random,
    before: Left,
) -> Left {
    let strict = spec.keep_all;
    let context = format!("seed {seed}, epoch {epoch}, {spec:?}");
    let sim = Sim::new(random.below(u64::MAX));
    let worlds = vec![World::new(&sim, spec, before.images, epoch)];
    let world = &worlds[0];
    for device in &world.devices {
        let latency = Duration::from_micros(10 + random.below(300));
        let mut plan = SeededFaults::new(random.below(u64::MAX), latency, Vec::new());
        device.set_plan(move |operation| plan.draw(operation));
    }
    let warm = before.clean.as_ref().map(|(epoch, _)| *epoch);
    sim.run(world.within(
        || format!("{context}: recover"),
        CALL_MAX,
        world.shard.recover(warm),
    ));
    world.shard.check();
    if let Some((_, residents_before)) = before.clean {
        sim.run(world.sleep(Duration::from_millis(200)));
        let back = residents(&worlds);
        let kept = residents_before
            .iter()
            .filter(|key| back.contains(key))
            .count();
        let least = residents_before.len() * 3 / 4;
        assert!(
            !strict || kept >= least,
            "{context}: {kept} of {residents_before:?}"
        );
    }
    sim.run(audit(&worlds, model, strict, &context));
    let clients: Vec<(Client, Random)> = (0..CLIENTS)
        .map(|id| {
            let client = Client {
                worlds: worlds.clone(),
                model: Rc::clone(model),
                id,
                strict,
                context: format!("{context}, client {id}"),
            };
            (client, Random::new(random.below(u64::MAX)))
        })
        .collect();
    let span = Duration::from_micros(random.below(40_000) + random.below(2) * 40_000);
    let end = world.sleep(span);
    let working = async {
        let clients = clients.iter().map(|(client, random)| work(client, random));
        let mut clients: FuturesUnordered<_> = clients.collect();
        clients.next().await;
    };
    sim.run(futures_lite::future::or(end, working));
    assert!(!world.shard.is_fenced(), "{context}");
    world.shard.check();
    let clean = random.one_in(4).then(|| {
        let deadline = world.now() + Duration::from_secs(5);
        let report = sim.run(world.shard.persist(deadline));
        let residents = residents(&worlds);
        assert!(
            report.clean && (report.blocks_lost == 0 || !strict),
            "{context}: {report:?}"
        );
        close_model(&worlds, model);
        (epoch, residents)
    });
    excuse(&worlds, model, strict, &context);
    Left {
        images: images_after_crash(world, random),
        clean,
        reclaimed: world.tier.counters().segments_reclaimed,
    }
}

/// Runs one seed; returns the segments reclaimed.
fn run(seed: u64) -> u64 {
    let random = Random::new(seed ^ 0xc4a5);
    let spec = spec(&random, seed, seed.is_multiple_of(2));
    let model: Rc<Model> = Rc::default();
    let mut left = Left {
        images: spec.blank(),
        clean: None,
        reclaimed: 0,
    };
    let mut reclaimed = 0;
    let epochs: Range<u32> = 1..GENERATIONS + 2;
    for epoch in epochs {
        left = generation(seed, epoch, &spec, &model, &random, left);
        reclaimed += left.reclaimed;
    }
    reclaimed
}

#[test]
fn shard_after_power_loss_serves_what_is_durable_and_nothing_removed() {
    // More seeds by command: TERRACE_SIM_SEEDS=10000 cargo test -p terrace-engine crash_tests
    let mut reclaimed = 0;
    let seeds = seeds(60);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| run(seed));
        reclaimed += match std::panic::catch_unwind(run) {
            Ok(segments) => segments,
            Err(panic) => panic!(
                "seed {seed}: {}",
                terrace_runtime::executor::panic_message(&*panic)
            ),
        };
    }
    assert!(
        count == 1 || reclaimed > count * 5,
        "reclaim must happen: {reclaimed}"
    );
}

/// A shard lets a block go out of a segment that another one is about to empty. Until that one
/// has a new head the device holds the block: its removal has to survive all the same.
#[test]
fn block_removed_after_another_shard_emptied_its_segment_stays_away() {
    let spec = Spec {
        segment_len: 256 << 10,
        segments: vec![6],
        ..spec(&Random::new(1), 0, false)
    };
    let sim = Sim::new(1);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    sim.run(world.shard.recover(None));
    let number_of = |shard| {
        (0..).find(|number| crate::engine::route(world.key("n", *number).hash(), 2) == shard)
    };
    let (mine, others) = (number_of(0).unwrap(), number_of(1).unwrap());
    let durable = PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    };
    let other = world.key("n", others);
    let put = sim.run(world.shard.put(&other, &[7; 5000], &durable));
    assert_eq!(put, PutOutcome::Stored { durable: true });
    let images = vec![world.devices[0].image()];
    let worlds = World::several(&sim, &spec, images, (2, 2));
    sim.run(join_all(
        worlds.iter().map(|world| world.shard.recover(None)),
    ));
    worlds[0].devices[0].set_plan(|operation| Behaviour {
        // The new head of the first segment.
        stuck: operation.kind == Kind::Write && operation.offset == SEGMENTS_START,
        ..Behaviour::default()
    });
    let (own, other) = (worlds[0].key("n", mine), worlds[0].key("n", others));
    let found = sim.run(async {
        while worlds[1].location_of(&other).is_some() {
            worlds[0].shard.put(&own, &[7; 120_000], &durable).await;
            worlds[0].shard.remove(&own).await;
        }
        worlds[1].shard.remove(&other).await
    });
    assert_eq!(found, Lookup::Miss);
    let images = vec![worlds[0].devices[0].crash(&mut |_| false)];
    let world = World::new(&sim, &spec, images, 3);
    sim.run(world.shard.recover(None));
    assert_eq!(world.shard.exists(&other), Lookup::Miss);
}
