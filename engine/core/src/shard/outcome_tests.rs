//! Aim: every counter of a shard and its devices counts something, and every error of the tier
//! can happen. Method: small scenarios over devices in memory; what they count is put together,
//! and a counter that stays at zero is named.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{join, join_all};
use terrace_nvme::format::DeviceId;
use terrace_nvme::mem::{Behaviour, Fault, Kind, MemDevice};
use terrace_nvme::tier::{TierConfig, TierDevice, TierError, TierSegment};
use terrace_runtime::sim::Sim;
use terrace_slab::RegisteredRegion;
use terrace_types::{BlockKey, Checksum, Lookup, PutOutcome};

use super::log_lines::LogLines;
use super::prefetch::Chain;
use super::sim_world::{Choices, Spec, World};
use super::*;
use crate::config::NamespaceOptions;
use crate::events::{EventFilter, subscription};

const LEN: usize = 16 << 10;
const GET: fn() -> GetOptions = GetOptions::default;

fn spec(segments: u32, dram_blocks: usize) -> Spec {
    Spec {
        segments: vec![segments],
        dram_blocks,
        io_deadline: Duration::from_millis(100),
        ..Spec::default()
    }
}

fn key(world: &World, number: u64) -> BlockKey {
    world.key("n", number)
}

async fn put_len(world: &World, number: u64, len: usize, durability: Durability) -> PutOutcome {
    let (key, bytes) = (key(world, number), vec![number as u8; len]);
    let options = PutOptions {
        durability,
        ..PutOptions::default()
    };
    let put = world.shard.put(&key, &bytes, &options);
    let span = Duration::from_secs(300);
    world.within(|| format!("put {number}"), span, put).await
}

async fn put(world: &World, number: u64) -> PutOutcome {
    put_len(world, number, LEN, Durability::Volatile).await
}

async fn is_hit(world: &World, number: u64) -> bool {
    world.shard.get(&key(world, number), &GET()).await.is_hit()
}

/// The first of the numbers that lies on a device and not in DRAM.
fn below(world: &World, numbers: std::ops::Range<u64>) -> u64 {
    let nvme = |number: &u64| {
        let found = world.shard.exists(&key(world, *number));
        matches!(
            found,
            Lookup::Hit {
                tier: terrace_types::Tier::Nvme,
                ..
            }
        )
    };
    numbers.into_iter().find(nvme).unwrap()
}

/// Calls that find, miss, refuse, remove and lease, in DRAM that is full.
async fn calls(world: &World) {
    let shard = &world.shard;
    for number in 0..40 {
        put(world, number).await;
    }
    put(world, 39).await;
    put_len(world, 99, 0, Durability::Volatile).await;
    assert!(is_hit(world, 39).await && !is_hit(world, 1000).await);
    let lost = below(world, 0..40);
    // Two readers of one cold block, and one who wants the next ahead.
    let (first, second) = join(is_hit(world, lost), is_hit(world, lost)).await;
    assert!(first && second);
    let cold = key(world, below(world, 0..40));
    let second = Duration::from_secs(1);
    let ahead = |key: &BlockKey| Chain::of(std::slice::from_ref(key));
    let until = world.now() + second;
    assert_eq!(shard.prefetch(ahead(&cold), until).await.begun, 1);
    assert!(shard.get(&cold, &GET()).await.is_hit());
    let region = RegisteredRegion::allocate(LEN).unwrap();
    let cold = key(world, below(world, 0..40));
    assert!(shard.get_direct(&cold, &region, &GET()).await.is_hit());
    let held = key(world, 39);
    let lease = shard.lease(&held, Duration::from_millis(1), &GET()).await;
    assert!(lease.is_hit());
    world.sleep(Duration::from_millis(2)).await;
    for number in [lost, 39] {
        assert!(shard.remove(&key(world, number)).await.is_hit());
    }
    let options = PutOptions::default();
    let granted = shard.reserve(&key(world, 98), 9, &options).await;
    drop(granted);
    // All of DRAM is being filled: nobody else has room.
    let mut writers = Vec::new();
    while let Some(Reservation::Granted(writer)) =
        shard.try_reserve(&key(world, 500 + writers.len() as u64), 9, &options)
    {
        writers.push(writer);
        world.sleep(Duration::from_millis(5)).await;
    }
    let busy = put(world, 97).await;
    assert_eq!(busy, PutOutcome::Busy);
    let cold = key(world, below(world, 0..40));
    let no_room = shard.get(&cold, &GET()).await.map(|_| ());
    assert_eq!(no_room, Lookup::Unavailable(UnavailableReason::NoRoom));
}

/// More than the devices hold; some of it is read, and so kept.
async fn overflow(world: &World) {
    for number in 0..200 {
        put_len(world, number, LEN, Durability::Durable).await;
        is_hit(world, number / 2).await;
    }
    world.sleep(Duration::from_secs(1)).await;
}

/// Size classes that give way to each other, without a device to take what goes.
async fn classes(world: &World) {
    for (round, len) in [4096, 900_000, 100, 300_000].into_iter().enumerate() {
        for number in 0..600 {
            put_len(
                world,
                round as u64 * 1000 + number,
                len,
                Durability::Volatile,
            )
            .await;
        }
    }
}

/// Bytes that come back wrong, fail to come, or fail to go.
async fn faults(world: &World) {
    for number in 0..60 {
        put(world, number).await;
    }
    let read = |fault: Fault| {
        world.devices[0].set_plan(move |operation| match operation.kind {
            Kind::Read => fault.into(),
            Kind::Write | Kind::Flush => Behaviour::default(),
        });
    };
    read(Fault::Os { errno: 5 });
    assert!(!is_hit(world, below(world, 0..60)).await);
    read(Fault::BitFlip { bit: 9 });
    assert!(!is_hit(world, below(world, 0..60)).await);
    let fails = |_: &_| Fault::Os { errno: 5 }.into();
    world.devices[0].set_plan(fails);
    for number in 100..120 {
        put(world, number).await;
    }
    world.sleep(Duration::from_secs(1)).await;
}

/// More than a budget of writes allows for.
async fn over_budget(world: &World) {
    for number in 0..60 {
        put(world, number).await;
        world.sleep(Duration::from_millis(10)).await;
    }
}

/// A subscriber that does not listen, and a scrub.
async fn background(world: &World) {
    let (sink, events) = subscription(1, EventFilter::default());
    world.shard.subscribe(sink);
    for number in 0..60 {
        put(world, number).await;
        world.sleep(Duration::from_millis(10)).await;
    }
    world.sleep(Duration::from_secs(1)).await;
    let scrubbed: u64 = world.shard.stats().counters.scrub_passes;
    world.shard.start_scrub();
    world.sleep(Duration::from_secs(100)).await;
    assert!(world.shard.stats().counters.scrub_passes > scrubbed);
    assert!(events.lost() > 0);
}

/// Runs a scenario and adds what was counted.
fn count<F: AsyncFnOnce(&World)>(sums: &mut BTreeMap<&'static str, u64>, spec: &Spec, run: F) {
    let sim = Sim::new(1);
    let world = World::new(&sim, spec, spec.blank(), 1);
    sim.run(world.shard.recover(None));
    sim.run(run(&world));
    let mut named = world.shard.stats().counters.named();
    named.extend(world.tier.counters().named());
    for (name, count) in named {
        *sums.entry(name).or_default() += count;
    }
}

/// A policy that declines, reads ahead of need, and namespaces at their bounds.
async fn choices(world: &World, choices: &Choices) {
    for number in 0..60 {
        put_len(world, number, LEN, Durability::Durable).await;
    }
    let keys: Vec<_> = (0..20).map(|number| key(world, number)).collect();
    let until = world.now() + Duration::from_secs(1);
    let ahead = world.shard.prefetch(Chain::of(&keys), until).await;
    assert!(ahead.begun > 0);
    let mut chain = Chain::of(&keys);
    chain.cancelled = Arc::new(true.into());
    world.shard.prefetch(chain, until).await;
    for number in 100..160 {
        put(world, number).await;
    }
    choices.decline.store(true, Ordering::Relaxed);
    let cold = below(world, 0..60);
    assert!(is_hit(world, cold).await);
    choices.decline.store(false, Ordering::Relaxed);
    choices.decline_below.store(true, Ordering::Relaxed);
    for number in 200..260 {
        put(world, number).await;
    }
    choices.decline_below.store(false, Ordering::Relaxed);
}

/// A namespace at its quotas, and past its lifetime.
async fn bounds(world: &World) {
    for number in 0..60 {
        put_len(world, number, LEN, Durability::Durable).await;
        put(world, 1000 + number).await;
    }
    // What is below is in use: nothing there can give way.
    let number = below(world, 0..60);
    let cold = key(world, number);
    let options = NamespaceOptions {
        nvme_quota_bytes: Some(4096),
        ttl: Some(Duration::from_secs(1)),
        ..NamespaceOptions::default()
    };
    world
        .shard
        .set_namespace(cold.namespace(), &options)
        .unwrap();
    for number in 2000..2060 {
        put(world, number).await;
    }
    world.sleep(Duration::from_secs(2)).await;
    world.shard.tick();
    for number in 0..2060 {
        assert!(!is_hit(world, number).await);
    }
}

#[test]
fn counters_all_count_something() {
    let mut sums = BTreeMap::new();
    count(&mut sums, &spec(40, 16), calls);
    count(&mut sums, &spec(4, 40), overflow);
    let small = Spec {
        dram_bytes: 2 << 20,
        ..spec(0, 4000)
    };
    count(&mut sums, &small, classes);
    count(&mut sums, &spec(40, 16), faults);
    let budget = Spec {
        write_budget: 100_000,
        ..spec(40, 16)
    };
    count(&mut sums, &budget, over_budget);
    let scrub = Spec {
        scrub_rate: 1 << 20,
        ..spec(40, 16)
    };
    count(&mut sums, &scrub, background);
    let told = spec(40, 16);
    count(&mut sums, &told, async |world| {
        choices(world, &told.choices).await
    });
    let bounded = Spec {
        namespaces: vec![(
            "n".to_owned(),
            NamespaceOptions {
                dram_quota_bytes: Some(10 * LEN as u64),
                nvme_quota_bytes: Some(20 * LEN as u64),
                ..NamespaceOptions::default()
            },
        )],
        ..spec(40, 16)
    };
    count(&mut sums, &bounded, bounds);
    let never: Vec<_> = sums.iter().filter(|(_, sum)| **sum == 0).collect();
    assert!(never.is_empty(), "nothing counts {never:?}");
}

/// A world whose next segment takes long to come, with more on its way than there is room for.
async fn short_of_room(world: &World) {
    world.sleep(Duration::from_secs(1)).await;
    world.devices[0].set_plan(|operation| Behaviour {
        latency: match operation.kind {
            Kind::Flush => Duration::from_secs(5),
            Kind::Read | Kind::Write => Duration::from_millis(1),
        },
        ..Behaviour::default()
    });
    let puts = join_all((0..60).map(|number| put(world, number)));
    puts.await;
}

#[test]
fn errors_of_a_tier_without_room_are_told_apart() {
    let lines = LogLines::default();
    let sim = Sim::new(2);
    let spec = Spec {
        io_deadline: Duration::from_secs(60),
        ..spec(8, 24)
    };
    let world = World::new(&sim, &spec, spec.blank(), 1);
    sim.run(world.shard.recover(None));
    lines.during(|| {
        sim.run(async {
            let tier = &world.tier;
            let longest = tier.block_len_max() as u32;
            let soon = || world.now() + Duration::from_millis(1);
            let room = tier.room(longest + 1, None, soon()).await;
            assert_eq!(room, Err(TierError::TooLarge));
            short_of_room(&world).await;
            assert_eq!(tier.room(LEN as u32, None, soon()).await, Ok(false));
            let (location, _) = world.location_of(&key(&world, 0)).unwrap();
            let from = Some(tier.split(location).0);
            let room = tier.room(longest, from, soon()).await;
            assert_eq!(room, Err(TierError::NoRoom), "reclaim does not wait");
            // Who waits for room when the shard ends is told so.
            world.shard.begin_close();
            tier.wake();
            world.sleep(Duration::from_secs(20)).await;
            assert_eq!(lines.count("error=the tier is being closed"), 1);
            let fails = |_: &_| Fault::Os { errno: 5 }.into();
            world.devices[0].set_plan(fails);
            let io = terrace_nvme::IoError::Os { errno: 5 };
            let segment = tier.used_segments()[0];
            let renewed = tier.contents(segment).await;
            assert!(renewed.unreadable, "{io}");
            assert_eq!(tier.sync().await, Err(TierError::ReadOnly));
            let room = tier.room(LEN as u32, None, soon()).await;
            assert_eq!(room, Err(TierError::ReadOnly));
        });
    });
}

#[test]
fn tier_beyond_what_it_can_number_is_refused() {
    let len = 256 << 20;
    for (count, fits) in [(65_535, true), (65_537, false)] {
        let sim = Sim::new(3);
        let segments = (0..count).map(|number| TierSegment {
            number,
            head: None,
            owned: true,
            legacy: false,
        });
        let device = TierDevice {
            device: MemDevice::new(len * 65_540),
            id: DeviceId([1; 16]),
            segment_len: len,
            draining: false,
            segments: segments.collect(),
        };
        let tasks: Rc<dyn terrace_types::Tasks> = sim.runtime();
        let tier = NvmeTier::new(TierConfig::default(), tasks, vec![device], 1, false);
        match tier {
            Ok(_) => assert!(fits, "{count}"),
            Err(error) => {
                assert!(!fits, "{count}");
                assert_eq!(error, TierError::TooManySegments);
                let shown = Error::Tier {
                    shard: 7,
                    cause: error,
                }
                .to_string();
                assert!(
                    shown.contains("shard 7") && shown.contains("16 TiB"),
                    "{shown}"
                );
            }
        }
    }
}

#[test]
fn put_with_the_wrong_checksum_or_past_a_closing_shard_is_refused() {
    let sim = Sim::new(4);
    let spec = spec(8, 16);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    sim.run(async {
        let options = PutOptions {
            checksum: Some(Checksum(1)),
            ..PutOptions::default()
        };
        let wrong = world.shard.put(&key(&world, 1), &[1], &options).await;
        assert_eq!(wrong, PutOutcome::Rejected(RejectReason::ChecksumMismatch));
        world.shard.begin_close();
        let closing = PutOutcome::Rejected(RejectReason::Closing);
        assert_eq!(put(&world, 1).await, closing);
    });
}
