//! Aim: a shard keeps its words in every order of its tasks. Method: clients on the deterministic
//! runtime do random calls, each on keys of its own, over devices in memory that are slow, fail,
//! and damage bytes; a seed decides the order and the faults. A hit must be the client's last
//! put; without faults nothing may be missing that was not told to be evicted. A failing seed is
//! named.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use terrace_nvme::format::SEGMENTS_START;
use terrace_nvme::mem::{Fault, Kind, SeededFaults};
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, Lookup, PutOutcome};

use super::sim_world::{Random, Spec, World, value};
use super::*;
use crate::config::WriteMode;

const CLIENTS: u64 = 6;
const STEPS: u64 = 250;
const KEYS: u64 = 15;
/// Longer than any call may take in virtual time.
const CALL_MAX: Duration = Duration::from_secs(20);

/// What goes wrong on the devices of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Operations take time, nothing else.
    Fair,
    /// Reads fail or return wrong bytes.
    Reads,
    /// Writes go astray, too, and nobody says so.
    Silent,
    /// Writes and flushes fail, too.
    Failing,
    /// All writes fail from some time on.
    ReadOnly,
}

impl Weather {
    fn of(seed: u64) -> Self {
        match Random::new(seed ^ 0x3ea7).below(8) {
            0..3 => Self::Fair,
            3 | 4 => Self::Reads,
            5 => Self::Silent,
            6 => Self::Failing,
            _ => Self::ReadOnly,
        }
    }

    fn set(self, world: &World, seed: u64) {
        let elsewhere = SEGMENTS_START + (64 << 10);
        for (at, device) in world.devices.iter().enumerate() {
            let seed = seed ^ (at as u64) << 32;
            let latency = Duration::from_micros(20 + seed * 37 % 400);
            let calm = SeededFaults::new(seed, latency, Vec::new());
            let eio = Fault::Os { errno: 5 };
            let rates = vec![
                (20, eio),
                (20, Fault::BitFlip { bit: seed * 7919 }),
                (10, Fault::Short { done: 512 }),
                (10, Fault::Stale),
                (10, Fault::Misdirected { offset: elsewhere }),
            ];
            let mut reads = SeededFaults::new(seed ^ 1, latency, rates);
            let rates = vec![
                (10, Fault::BitFlip { bit: seed * 31 }),
                (5, Fault::Torn { sectors: 1 }),
                (5, Fault::Misdirected { offset: elsewhere }),
            ];
            let mut silent = SeededFaults::new(seed ^ 2, latency, rates);
            let mut failing = SeededFaults::new(
                seed ^ 3,
                latency,
                vec![(2, eio), (1, Fault::Short { done: 0 })],
            );
            let mut calm = calm;
            let mut count = 0_u64;
            let last = 50 + seed * 13 % 400;
            device.set_plan(move |operation| {
                count += 1;
                let drawn = match operation.kind {
                    Kind::Read if self != Self::Fair => reads.draw(operation),
                    Kind::Write | Kind::Flush if self == Self::ReadOnly && count > last => {
                        Fault::Os { errno: 5 }.into()
                    }
                    Kind::Write | Kind::Flush if self == Self::Failing => failing.draw(operation),
                    Kind::Write if matches!(self, Self::Silent) => silent.draw(operation),
                    _ => calm.draw(operation),
                };
                let mut drawn = drawn;
                // A misdirected operation has to end on the device as well.
                if matches!(drawn.fault, Some(Fault::Misdirected { .. }))
                    && operation.len > 128 << 10
                {
                    drawn.fault = None;
                }
                drawn
            });
        }
    }
}

fn spec(seed: u64, policy: &'static str) -> Spec {
    let random = Random::new(seed ^ 0x7e57);
    let devices = 1 + usize::from(random.one_in(3));
    Spec {
        policy,
        segment_len: (256 << 10) << random.below(2),
        segments: (0..devices).map(|_| 2 + random.below(8) as u32).collect(),
        dram_bytes: (2 << 20) << (4 * random.below(2)),
        keep_all: random.one_in(4),
        write_mode: if random.one_in(4) {
            WriteMode::Through
        } else {
            WriteMode::Back
        },
        io_deadline: Duration::from_millis(100),
        ..Spec::default()
    }
}

struct Client {
    world: Rc<World>,
    random: Random,
    id: u64,
    seed: u64,
    weather: Weather,
    last: HashMap<u64, u64>,
    version: u64,
    hits: u64,
}

impl Client {
    fn key(&self, number: u64) -> BlockKey {
        self.world.key(&format!("n{}", self.id), number)
    }

    fn value(&self, number: u64, version: u64) -> Vec<u8> {
        value(
            self.id,
            number,
            version,
            self.world.tier.block_len_max().min(260_000),
        )
    }

    fn context(&self, what: &str) -> String {
        format!(
            "seed {}, {:?}, client {}: {what}",
            self.seed, self.weather, self.id
        )
    }

    async fn step(&mut self) {
        let number = self.random.below(KEYS);
        let key = self.key(number);
        let world = Rc::clone(&self.world);
        let shard = &world.shard;
        match self.random.below(24) {
            0..8 => self.read(number, &key).await,
            8..12 => self.put(number, &key, Durability::Volatile).await,
            12..15 => self.put(number, &key, Durability::Durable).await,
            15 | 16 => self.remove(number, &key).await,
            17 => {
                let ttl = Duration::from_micros(self.random.below(500));
                let options = GetOptions::default();
                let lease = shard.lease(&key, ttl, &options);
                let leased = world
                    .within(|| self.context("lease"), CALL_MAX, lease)
                    .await;
                if let (Lookup::Hit { value, .. }, 0) = (leased, self.random.below(2)) {
                    shard.release(value.id);
                }
            }
            18 if self.random.one_in(4) => {
                let namespace = key.namespace();
                let removal = shard.remove_namespace(namespace);
                let removed = world
                    .within(|| self.context("remove a namespace"), CALL_MAX, removal)
                    .await;
                assert!(removed.is_ok() || self.weather >= Weather::Failing);
                self.last.clear();
            }
            18 | 19 => self.drop_one(number, &key).await,
            20 => {
                let keys: Vec<BlockKey> = (number..KEYS).map(|number| self.key(number)).collect();
                let span = Duration::from_micros(self.random.below(5000));
                let ahead = shard.prefetch(prefetch::Chain::of(&keys), world.now() + span);
                world
                    .within(|| self.context("prefetch"), CALL_MAX, ahead)
                    .await;
            }
            21 => {
                let options = PutOptions::default();
                let reserve = shard.reserve(&key, 5000, &options);
                drop(
                    world
                        .within(|| self.context("reserve"), CALL_MAX, reserve)
                        .await,
                );
            }
            22 => {
                shard.touch(&key, &GetOptions::default());
            }
            _ => {
                world
                    .sleep(Duration::from_micros(self.random.below(2000)))
                    .await
            }
        }
    }

    async fn put(&mut self, number: u64, key: &BlockKey, durability: Durability) {
        let bytes = self.value(number, self.version);
        let options = PutOptions {
            durability,
            ..PutOptions::default()
        };
        let put = self.world.shard.put(key, &bytes, &options);
        let put = self
            .world
            .within(|| self.context("put"), CALL_MAX, put)
            .await;
        if matches!(put, PutOutcome::Stored { .. }) {
            self.last.insert(number, self.version);
        }
        if durability == Durability::Durable && self.weather == Weather::Fair {
            let durable = match put {
                PutOutcome::Stored { durable } | PutOutcome::AlreadyExists { durable } => durable,
                _ => true,
            };
            let evicted = self.world.was_evicted(key);
            assert!(
                durable || evicted,
                "{}",
                self.context("a put is not durable")
            );
        }
        if let PutOutcome::Rejected(reason) = put {
            let legal =
                matches!(reason, RejectReason::NotDurable) && self.weather >= Weather::Silent;
            assert!(legal, "{}: {reason:?}", self.context("put"));
        }
        self.version += 1;
    }

    async fn remove(&mut self, number: u64, key: &BlockKey) {
        let removal = self.world.shard.remove(key);
        let found = self
            .world
            .within(|| self.context("remove"), CALL_MAX, removal)
            .await;
        let fails = matches!(found, Lookup::Unavailable(_));
        assert!(
            !fails || self.weather >= Weather::Silent,
            "{}",
            self.context("remove")
        );
        self.last.remove(&number);
    }

    /// Gives a call up in the middle.
    async fn drop_one(&mut self, number: u64, key: &BlockKey) {
        let shard = &self.world.shard;
        let span = Duration::from_micros(self.random.below(300));
        let late = self.world.sleep(span);
        match self.random.below(4) {
            0 => {
                let options = GetOptions::default();
                let read = async { drop(shard.get(key, &options).await) };
                futures_lite::future::or(read, late).await;
            }
            1 => {
                let removal = async {
                    let _ = shard.remove(key).await;
                };
                futures_lite::future::or(removal, late).await;
                self.last.remove(&number);
            }
            2 => {
                let options = PutOptions::default();
                let reserve = async { drop(shard.reserve(key, 9000, &options).await) };
                futures_lite::future::or(reserve, late).await;
            }
            _ => {
                let was_there = matches!(shard.exists(key), Lookup::Hit { .. });
                let bytes = self.value(number, self.version);
                let options = PutOptions {
                    durability: Durability::Durable,
                    ..PutOptions::default()
                };
                let put = async {
                    let _ = shard.put(key, &bytes, &options).await;
                };
                futures_lite::future::or(put, late).await;
                if !was_there && matches!(shard.exists(key), Lookup::Hit { .. }) {
                    self.last.insert(number, self.version);
                } else if !was_there {
                    // Perhaps it was stored and evicted again.
                    self.last.remove(&number);
                }
                self.version += 1;
            }
        }
    }

    async fn read(&mut self, number: u64, key: &BlockKey) {
        let options = GetOptions::default();
        let read = self.world.shard.get(key, &options);
        let found = self
            .world
            .within(|| self.context("get"), CALL_MAX, read)
            .await;
        let expected = self.last.get(&number).copied();
        match found {
            Lookup::Hit { value: pin, .. } => {
                self.hits += 1;
                let held = Duration::from_micros(self.random.below(100));
                self.world.sleep(held).await;
                let expected = expected.map(|version| self.value(number, version));
                assert!(
                    expected.as_deref() == Some(&pin[..]),
                    "{}",
                    self.context("wrong bytes")
                );
            }
            Lookup::Miss if expected.is_some() => {
                let told = self.weather != Weather::Fair || self.world.was_evicted(key);
                assert!(told, "{}", self.context("a block is missing"));
                self.last.remove(&number);
            }
            Lookup::Miss => {}
            Lookup::Unavailable(reason) => {
                let failed = reason == UnavailableReason::TierFailed;
                let legal = !failed || self.weather != Weather::Fair;
                assert!(legal, "{}", self.context("a read fails"));
            }
        }
    }
}

impl PartialOrd for Weather {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (*self as u8).partial_cmp(&(*other as u8))
    }
}

/// Runs one seed; returns hits, segments reclaimed, and polls.
fn run(seed: u64) -> (u64, u64, u64) {
    let policy = policy::POLICY_NAMES[seed as usize % policy::POLICY_NAMES.len()];
    let spec = spec(seed, policy);
    let sim = Sim::new(seed);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    let weather = Weather::of(seed);
    weather.set(&world, seed);
    sim.run(world.shard.recover(None));
    let clients = (0..CLIENTS).map(|id| {
        let mut client = Client {
            world: Rc::clone(&world),
            random: Random::new(seed.wrapping_mul(31) + id),
            id,
            seed,
            weather,
            last: HashMap::new(),
            version: 1,
            hits: 0,
        };
        async move {
            for step in 0..STEPS {
                if step % 16 == 0 {
                    client.world.shard.check();
                }
                client.step().await;
                client.world.shard.tick();
            }
            client.hits
        }
    });
    let clients: FuturesUnordered<_> = clients.collect();
    let hits: u64 = sim.run(clients.fold(0, |sum, hits| async move { sum + hits }));
    // Leases and tasks under way end by themselves.
    sim.run(world.sleep(Duration::from_secs(2)));
    world.check_idle(&format!("seed {seed}, {spec:?}, {weather:?}"));
    let reclaimed = world.tier.counters().segments_reclaimed;
    (hits, reclaimed, sim.steps())
}

pub(super) fn seeds(least: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    if let Some(seed) = number("TERRACE_SIM_SEED") {
        return seed..seed + 1;
    }
    0..number("TERRACE_SIM_SEEDS").unwrap_or(least)
}

#[test]
fn shard_under_faults_and_any_order_returns_no_wrong_bytes() {
    // More seeds by command: TERRACE_SIM_SEEDS=10000 cargo test -p terrace-engine sim_tests
    let (mut hits, mut reclaimed) = (0, 0);
    let seeds = seeds(100);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| run(seed));
        let (found, segments, _) = match std::panic::catch_unwind(run) {
            Ok(done) => done,
            Err(panic) => panic!(
                "seed {seed}: {}",
                terrace_runtime::executor::panic_message(&*panic)
            ),
        };
        hits += found;
        reclaimed += segments;
    }
    if count == 1 {
        return;
    }
    assert!(hits > count * 20, "the test must exercise hits: {hits}");
    assert!(
        reclaimed > count,
        "the test must exercise reclaim: {reclaimed}"
    );
}

#[test]
fn simulation_of_one_seed_repeats_step_by_step() {
    assert_eq!(run(7), run(7));
}

fn calm_spec(segments: Vec<u32>) -> Spec {
    Spec {
        segments,
        ..spec(0, "LRU")
    }
}

fn durable() -> PutOptions {
    PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    }
}

#[test]
fn shard_whose_devices_fail_all_writes_goes_on_in_dram() {
    let sim = Sim::new(1);
    let spec = calm_spec(vec![4, 4]);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    let bytes = |number| value(0, number, 1, 9000);
    sim.run(async {
        let shard = &world.shard;
        let key = |number| world.key("n", number);
        let put = shard.put(&key(0), &bytes(0), &durable()).await;
        assert_eq!(put, PutOutcome::Stored { durable: true });
        for device in &world.devices {
            device.set_plan(|operation| match operation.kind {
                Kind::Read => terrace_nvme::mem::Behaviour::default(),
                Kind::Write | Kind::Flush => Fault::Os { errno: 5 }.into(),
            });
        }
        for number in 1..200 {
            let volatile = PutOptions::default();
            let options = if number % 5 == 0 { durable() } else { volatile };
            let (key, bytes) = (key(number), bytes(number));
            let put = shard.put(&key, &bytes, &options);
            let put = world
                .within(|| format!("put {number}"), CALL_MAX, put)
                .await;
            let legal = [
                PutOutcome::Stored { durable: false },
                PutOutcome::Rejected(RejectReason::NotDurable),
            ];
            assert!(legal.contains(&put), "{put:?}");
            shard.check();
        }
        let found = shard.get(&key(0), &GetOptions::default()).await;
        let found = found.hit();
        assert_eq!(found.as_deref(), Some(&bytes(0)[..]), "it is still served");
        drop(found);
        for _ in 0..2 {
            let removed = shard.remove(&key(0)).await;
            let failed = UnavailableReason::TierFailed;
            assert!(matches!(removed, Lookup::Unavailable(reason) if reason == failed));
        }
        let removed = shard.remove_namespace(key(0).namespace()).await;
        assert_eq!(removed, Err(UnavailableReason::TierFailed));
        world.sleep(Duration::from_secs(1)).await;
    });
    world.check_idle("all writes fail");
}

#[test]
fn shard_that_removes_more_than_it_keeps_goes_on() {
    for segments in [vec![2], vec![5], vec![3, 2], vec![1, 3]] {
        let sim = Sim::new(2);
        let spec = calm_spec(segments);
        let world = World::new(&sim, &spec, spec.blank(), 1);
        let clients = (0..16).map(|client| {
            let world = Rc::clone(&world);
            async move {
                for round in 0..400 {
                    let key = world.key("n", client * 1000 + round);
                    let put = world.shard.put(&key, &[7], &durable()).await;
                    assert!(put.is_present(), "{put:?}");
                    let removed = world.shard.remove(&key).await;
                    assert!(!matches!(removed, Lookup::Unavailable(_)), "{removed:?}");
                }
            }
        });
        let clients: FuturesUnordered<_> = clients.collect();
        let all = clients.for_each(|()| async {});
        sim.run(world.within(|| "removals".to_owned(), CALL_MAX * 10, all));
        assert!(world.tier.counters().segments_reclaimed > 5);
        sim.run(world.sleep(Duration::from_secs(1)));
        world.check_idle("removals");
    }
}

#[test]
fn shard_with_one_segment_of_a_device_does_not_write_to_it() {
    let sim = Sim::new(3);
    let spec = calm_spec(vec![0, 1]);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    sim.run(async {
        for number in 0..100 {
            let key = world.key("n", number);
            let options = PutOptions::default();
            let put = world.shard.put(&key, &[7], &options);
            let put = world.within(|| "put".to_owned(), CALL_MAX, put).await;
            assert_eq!(put, PutOutcome::Stored { durable: false });
        }
        let key = world.key("n", 1000);
        let put = world.shard.put(&key, &[7], &durable()).await;
        assert_eq!(put, PutOutcome::Rejected(RejectReason::NotDurable));
        world.sleep(Duration::from_secs(1)).await;
    });
    world.check_idle("one segment");
}
