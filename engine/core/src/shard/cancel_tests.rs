//! Aim: a call that is given up at any of its await points leaves the shard whole. Method: each
//! call is polled 0, 1, 2, ... times and dropped, at once or while its I/O is under way or just
//! ended; other calls want slots right afterwards. Then the shard must come to rest, no memory of
//! an operation may have been used by others, every key must be in its old or its new state, and
//! work as any other. What was acknowledged after that survives power loss.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join;
use terrace_nvme::mem::{Behaviour, MemImage};
use terrace_runtime::sim::Sim;
use terrace_slab::RegisteredRegion;
use terrace_types::{BlockKey, Checksum, Lookup, PutOutcome};

use super::sim_world::{Spec, World, value};
use super::*;

/// On the device only.
const COLD: u64 = 0;
/// Not stored.
const NEW: u64 = 1;
/// Stored, and more than fit in DRAM beside each other.
const OTHERS: std::ops::Range<u64> = 2..8;
/// Put while the call that was dropped may still have I/O under way.
const LATER: std::ops::Range<u64> = 20..24;
/// How long an operation of the device takes.
const LATENCY: Duration = Duration::from_micros(50);
/// How long after its last poll a call is dropped: at once, in the middle of an operation, and
/// when one or two of them ended that it was not told of.
const DELAYS: [u64; 4] = [0, 25, 60, 120];
const CALL_MAX: Duration = Duration::from_secs(20);

/// A call under test, and what it does to the keys.
struct Subject {
    name: &'static str,
    call: fn(Rc<World>) -> LocalFuture<'static, ()>,
    /// Stores `NEW`.
    puts: bool,
    /// Removes these.
    removes: &'static [u64],
    /// Another call waits for the same block when this one is dropped.
    joined: bool,
}

impl Subject {
    fn new(name: &'static str, call: fn(Rc<World>) -> LocalFuture<'static, ()>) -> Self {
        Self {
            name,
            call,
            puts: false,
            removes: &[],
            joined: false,
        }
    }
}

/// How far a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Unpolled,
    Dropped,
    Complete,
}

fn spec() -> Spec {
    Spec {
        dram_blocks: 4,
        dram_bytes: 2 << 20,
        keep_all: true,
        ..Spec::default()
    }
}

fn key(world: &World, number: u64) -> BlockKey {
    world.key("n", number)
}

fn bytes(number: u64, version: u64) -> Vec<u8> {
    value(0, number, version, 9000)
}

fn durable() -> PutOptions {
    PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    }
}

async fn put(world: &World, number: u64, version: u64, options: &PutOptions) -> PutOutcome {
    let (key, bytes) = (key(world, number), bytes(number, version));
    let put = world.shard.put(&key, &bytes, options);
    world.within(|| "put".to_owned(), CALL_MAX, put).await
}

/// Whether a block is found; its bytes must be those of `version`.
async fn finds(world: &World, number: u64, version: u64) -> bool {
    let (key, options) = (key(world, number), GetOptions::default());
    let get = world.shard.get(&key, &options);
    match world.within(|| "get".to_owned(), CALL_MAX, get).await {
        Lookup::Hit { value: pin, .. } => {
            assert!(pin[..] == bytes(number, version), "wrong bytes of {number}");
            true
        }
        Lookup::Miss => false,
        Lookup::Unavailable(reason) => panic!("key {number}: {reason:?}"),
    }
}

/// A shard whose key `COLD` lies on the device only, and whose DRAM is full of others.
fn world(sim: &Sim) -> Rc<World> {
    let world = World::new(sim, &spec(), spec().blank(), 1);
    sim.run(async {
        world.shard.recover(None).await;
        let stored = put(&world, COLD, 1, &durable()).await;
        assert_eq!(stored, PutOutcome::Stored { durable: true });
        for number in OTHERS {
            let stored = put(&world, number, 1, &PutOptions::default()).await;
            assert_eq!(stored, PutOutcome::Stored { durable: false });
        }
        world.sleep(Duration::from_millis(20)).await;
    });
    let cold = world.shard.exists(&key(&world, COLD));
    let below = terrace_types::Tier::Nvme;
    assert!(matches!(cold, Lookup::Hit { tier, .. } if tier == below));
    world.check_idle("before the call");
    world.devices[0].set_plan(|_| Behaviour {
        latency: LATENCY,
        ..Behaviour::default()
    });
    world
}

/// Polls a call at most `polls` times and drops it after `delay` more. `true` when it completed.
async fn give_up(
    world: &World,
    mut call: LocalFuture<'static, ()>,
    (polls, delay): (usize, u64),
    under_way: &mut usize,
) -> bool {
    let mut left = polls;
    let complete = poll_fn(|context| {
        while left > 0 {
            left -= 1;
            match call.as_mut().poll(context) {
                Poll::Ready(()) => return Poll::Ready(true),
                Poll::Pending if left > 0 => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        Poll::Ready(false)
    })
    .await;
    if !complete && delay > 0 {
        world.sleep(Duration::from_micros(delay)).await;
    }
    *under_way += usize::from(!complete && world.in_flight() > 0);
    drop(call);
    complete
}

/// Runs a call up to `at` and drops it; returns how far it got.
fn run(subject: &Subject, seed: u64, at: (usize, u64), under_way: &mut usize) -> Progress {
    let context = format!("{}, seed {seed}, {at:?}", subject.name);
    let sim = Sim::new(seed);
    let world = world(&sim);
    let call = (subject.call)(Rc::clone(&world));
    let complete = sim.run(async {
        if !subject.joined {
            return give_up(&world, call, at, under_way).await;
        }
        let joining = async {
            world.shard.runtime.yield_now().await;
            finds(&world, COLD, 1).await
        };
        let (complete, found) = join(give_up(&world, call, at, under_way), joining).await;
        assert!(found, "{context}: who joined it got nothing");
        complete
    });
    let progress = match (at.0, complete) {
        (_, true) => Progress::Complete,
        (0, false) => Progress::Unpolled,
        _ => Progress::Dropped,
    };
    sim.run(async {
        // Who wants slots now must not be given those of operations under way.
        let mut stored = Vec::new();
        for number in LATER {
            let outcome = put(&world, number, 1, &PutOptions::default()).await;
            stored.push((number, outcome.is_present()));
        }
        for (number, stored) in stored {
            assert_eq!(
                finds(&world, number, 1).await,
                stored,
                "{context}: {number}"
            );
        }
        world.sleep(Duration::from_secs(1)).await;
    });
    world.check_idle(&context);
    sim.run(check_keys(&world, subject, progress, &context));
    world.check_idle(&context);
    check_after_crash(world.devices[0].crash(&mut |_| false), &context);
    progress
}

/// Every key is in its old or new state, and works like any other.
async fn check_keys(world: &World, subject: &Subject, progress: Progress, context: &str) {
    for number in std::iter::once(COLD).chain(OTHERS) {
        let there = finds(world, number, 1).await;
        let removed = subject.removes.contains(&number);
        match (progress, removed) {
            (Progress::Complete, true) => assert!(!there, "{context}: {number} is still there"),
            (Progress::Dropped, true) => {}
            _ => assert!(there, "{context}: {number} is gone"),
        }
    }
    let there = finds(world, NEW, 1).await;
    match (progress, subject.puts) {
        (Progress::Complete, true) => assert!(there, "{context}: it is not stored"),
        (Progress::Dropped, true) => {}
        _ => assert!(!there, "{context}: it is stored"),
    }
    for number in [COLD, NEW] {
        let removed = world.shard.remove(&key(world, number)).await;
        assert!(!matches!(removed, Lookup::Unavailable(_)), "{context}");
        assert!(!finds(world, number, 1).await, "{context}: {number}");
        let stored = put(world, number, 2, &durable()).await;
        assert_eq!(stored, PutOutcome::Stored { durable: true }, "{context}");
        assert!(finds(world, number, 2).await, "{context}: {number}");
    }
    world.sleep(Duration::from_secs(1)).await;
}

fn check_after_crash(image: MemImage, context: &str) {
    let sim = Sim::new(1);
    let world = World::new(&sim, &spec(), vec![image], 2);
    sim.run(async {
        world.shard.recover(None).await;
        for number in [COLD, NEW] {
            assert!(
                finds(&world, number, 2).await,
                "{context}: {number} is lost"
            );
        }
        for number in OTHERS {
            // Nothing else was promised to be durable, or to be gone after a dropped removal.
            let _ = finds(&world, number, 1).await;
        }
    });
    world.shard.check();
}

/// Drops a call at each of its await points, at several moments, in several orders of tasks.
fn drop_everywhere(subject: &Subject, polls_min: usize) {
    let mut under_way = 0;
    for seed in 0..3 {
        for delay in DELAYS {
            let mut polls = 0;
            while run(subject, seed, (polls, delay), &mut under_way) != Progress::Complete {
                polls += 1;
                assert!(polls < 100, "{} does not end", subject.name);
            }
            let context = || format!("{}: {polls} polls", subject.name);
            assert!(polls >= polls_min, "{}", context());
        }
    }
    assert!(under_way > 0, "{}: dropped without I/O", subject.name);
}

fn get_cold(world: Rc<World>) -> LocalFuture<'static, ()> {
    Box::pin(async move { assert!(finds(&world, COLD, 1).await) })
}

#[test]
fn get_dropped_anywhere_leaves_its_block_below_or_brings_it_up() {
    drop_everywhere(&Subject::new("get", get_cold), 2);
}

#[test]
fn get_dropped_anywhere_serves_those_who_joined_its_promotion() {
    let subject = Subject {
        joined: true,
        ..Subject::new("joined get", get_cold)
    };
    drop_everywhere(&subject, 2);
}

#[test]
fn prefetch_dropped_anywhere_serves_those_who_joined_it() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let (key, options) = (key(&world, COLD), GetOptions::default());
            let chain = Chain::of(std::slice::from_ref(&key));
            let until = world.now() + Duration::from_secs(1);
            world.shard.prefetch(chain, until).await;
            assert!(world.shard.get(&key, &options).await.is_hit());
        })
    };
    for joined in [false, true] {
        let subject = Subject {
            joined,
            ..Subject::new("prefetch", call)
        };
        drop_everywhere(&subject, 2);
    }
}

#[test]
fn get_into_dropped_anywhere_leaves_the_callers_memory_or_fills_it() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let region = RegisteredRegion::allocate(16 << 10).unwrap();
            let (key, options) = (key(&world, COLD), GetOptions::default());
            let targets = [region.clone()];
            let found = world.shard.get_into(&key, &targets, &options).await;
            let expected = bytes(COLD, 1);
            assert_eq!(found.hit(), Some(expected.len()));
            let mut copy = vec![0; expected.len()];
            region.copy_to(&mut copy);
            assert!(copy == expected);
        })
    };
    drop_everywhere(&Subject::new("get into", call), 2);
}

#[test]
fn direct_get_dropped_anywhere_serves_those_who_joined_its_read() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let region = RegisteredRegion::allocate(16 << 10).unwrap();
            let (key, options) = (key(&world, COLD), GetOptions::default());
            let found = world.shard.get_direct(&key, &region, &options).await;
            let expected = bytes(COLD, 1);
            match found.hit().unwrap() {
                Direct::Pinned(pin) => assert!(pin[..] == expected),
                Direct::Read(len) => {
                    let mut copy = vec![0; len];
                    region.copy_to(&mut copy);
                    assert!(copy == expected);
                }
            }
        })
    };
    for joined in [false, true] {
        let subject = Subject {
            joined,
            ..Subject::new("direct get", call)
        };
        drop_everywhere(&subject, 2);
    }
}

#[test]
fn put_dropped_while_it_waits_for_room_stores_nothing_or_all() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            // DRAM holds nothing that could go without a write.
            for number in LATER {
                put(&world, number, 1, &PutOptions::default()).await;
            }
            let stored = put(&world, NEW, 1, &PutOptions::default()).await;
            assert_eq!(stored, PutOutcome::Stored { durable: false });
        })
    };
    let subject = Subject {
        puts: true,
        ..Subject::new("put", call)
    };
    drop_everywhere(&subject, 3);
}

#[test]
fn durable_put_dropped_anywhere_stores_nothing_or_all() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let stored = put(&world, NEW, 1, &durable()).await;
            assert_eq!(stored, PutOutcome::Stored { durable: true });
        })
    };
    let subject = Subject {
        puts: true,
        ..Subject::new("durable put", call)
    };
    drop_everywhere(&subject, 2);
}

#[test]
fn reservation_and_commit_dropped_anywhere_give_their_slot_back() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let (key, bytes, options) = (key(&world, NEW), bytes(NEW, 1), durable());
            let reserve = world.shard.reserve(&key, bytes.len() as u64, &options);
            let Reservation::Granted(mut writer) = reserve.await else {
                panic!("there is no room");
            };
            // The caller fills the slot on its own thread.
            world.sleep(Duration::from_micros(10)).await;
            writer.bytes_mut().copy_from_slice(&bytes);
            let checksum = Checksum::of(&key, &bytes);
            let commit = world.shard.commit(&key, writer, checksum, &options);
            assert_eq!(commit.await, PutOutcome::Stored { durable: true });
        })
    };
    let subject = Subject {
        puts: true,
        ..Subject::new("reserve and commit", call)
    };
    drop_everywhere(&subject, 3);
}

#[test]
fn removal_dropped_anywhere_leaves_a_key_that_works() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let found = world.shard.remove(&key(&world, COLD)).await;
            assert!(found.hit().is_some());
        })
    };
    let subject = Subject {
        removes: &[COLD],
        ..Subject::new("remove", call)
    };
    drop_everywhere(&subject, 2);
}

#[test]
fn namespace_removal_dropped_anywhere_leaves_keys_that_work() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let namespace = key(&world, COLD).namespace();
            let removed = world.shard.remove_namespace(namespace).await;
            assert!(removed.unwrap() >= 7);
        })
    };
    let subject = Subject {
        removes: &[COLD, 2, 3, 4, 5, 6, 7],
        ..Subject::new("remove namespace", call)
    };
    drop_everywhere(&subject, 2);
}

/// Drops a call that is the last or first of a shard; `ends` says whether the shard goes on
/// being used. What was durable is there at the next open.
fn drop_one_of_the_ends(call: fn(Rc<World>) -> LocalFuture<'static, ()>, starts: bool) {
    let mut under_way = 0;
    for (seed, delay) in (0..3).flat_map(|seed| DELAYS.map(|delay| (seed, delay))) {
        let (mut polls, mut complete) = (0, false);
        while !complete {
            let context = format!("seed {seed}, {polls} polls, {delay}");
            let sim = Sim::new(seed);
            let mut world = world(&sim);
            if starts {
                let images = vec![world.devices[0].image()];
                world = World::new(&sim, &spec(), images, 2);
                world.devices[0].set_plan(|_| Behaviour {
                    latency: LATENCY,
                    ..Behaviour::default()
                });
            }
            let dropped = give_up(
                &world,
                call(Rc::clone(&world)),
                (polls, delay),
                &mut under_way,
            );
            complete = sim.run(dropped);
            sim.run(world.sleep(Duration::from_secs(1)));
            world.check_memory(&context);
            assert_eq!(world.in_flight(), 0, "{context}");
            assert!(!world.shard.is_fenced(), "{context}");
            world.shard.check();
            if !starts {
                world.check_idle(&context);
                assert!(sim.run(finds(&world, COLD, 1)), "{context}: it is gone");
                let report = sim.run(world.shard.persist(world.now() + CALL_MAX));
                assert!(report.clean && report.blocks_lost == 0, "{context}");
            }
            let image = world.devices[0].crash(&mut |_| false);
            let again = World::new(&sim, &spec(), vec![image], 3);
            sim.run(again.shard.recover(None));
            for number in std::iter::once(COLD).chain(if starts { 0..0 } else { OTHERS }) {
                let found = sim.run(finds(&again, number, 1));
                assert!(found, "{context}: {number} is lost");
            }
            polls += 1;
            assert!(polls < 100, "{context}");
        }
        assert!(polls > 3, "{polls} polls");
    }
    assert!(under_way > 0, "dropped without I/O");
}

#[test]
fn clean_close_dropped_anywhere_can_be_done_again() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let report = world.shard.persist(world.now() + CALL_MAX).await;
            assert!(report.clean);
        })
    };
    drop_one_of_the_ends(call, false);
}

#[test]
fn recovery_dropped_anywhere_leaves_devices_that_recover() {
    let call = |world: Rc<World>| -> LocalFuture<'static, ()> {
        Box::pin(async move { world.shard.recover(None).await })
    };
    drop_one_of_the_ends(call, true);
}

/// Aim: who reads a block and does not go on polling keeps nobody else from it, and has it itself
/// when it polls again, whether it was polled by another task meanwhile or not.
#[test]
fn reader_that_is_not_polled_keeps_nobody_from_its_block() {
    let sim = Sim::new(7);
    let world = world(&sim);
    sim.run(async {
        let (key, options) = (key(&world, COLD), GetOptions::default());
        let mut first = Box::pin(world.shard.get(&key, &options));
        poll_fn(|context| {
            assert!(first.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        let (second, third) = join(finds(&world, COLD, 1), finds(&world, COLD, 1)).await;
        assert!(second && third);
        let found = world.within(|| "get".to_owned(), CALL_MAX, first).await;
        assert!(matches!(found, Lookup::Hit { value, .. } if value[..] == bytes(COLD, 1)));
    });
    let counters = world.shard.stats().counters;
    assert_eq!((counters.promotions, counters.reads_joined), (1, 2));
    world.check_idle("one read for all");
}
