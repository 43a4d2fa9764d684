//! Aim: what was acknowledged as durable survives power loss, and what was removed does not come
//! back. Method: clients work on devices in memory until a random moment; then the devices keep
//! what was flushed and any subset of the other writes, whole or torn, and a new shard recovers
//! from them. Several generations of one set of devices for each seed, some closed cleanly, with
//! reclaim going on. In half of the seeds the devices are large enough that nothing has to be
//! given up, and reclaim is told to keep all: there nothing durable may be missing at all.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use terrace_nvme::mem::{MemImage, SeededFaults};
use terrace_nvme::tier::{Location, Phase};
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, Lookup, PutOutcome, Tier};

use super::sim_tests::seeds;
use super::sim_world::{Random, Spec, World, value, version_of};
use super::*;
use crate::config::WriteMode;

const CLIENTS: u64 = 4;
const KEYS: u64 = 12;
const GENERATIONS: u32 = 4;
const CALL_MAX: Duration = Duration::from_secs(20);

/// What is known of a key over all crashes.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Versions at and below this were acknowledged as removed or replaced, or found gone.
    floor: u64,
    /// The version that was acknowledged as durable.
    durable: Option<u64>,
    /// Where it lay then.
    location: Option<(Location, u64)>,
    /// The version that the shard serves, as far as it did not give it up.
    current: Option<u64>,
    /// A removal was begun and not acknowledged: an older version may come back.
    unsure: bool,
}

/// All that clients were told, across generations.
struct Model {
    known: RefCell<HashMap<(u64, u64), Known>>,
    version: Cell<u64>,
}

impl Model {
    fn next_version(&self) -> u64 {
        self.version.set(self.version.get() + 1);
        self.version.get()
    }

    fn with<T>(&self, client: u64, number: u64, f: impl FnOnce(&mut Known) -> T) -> T {
        f(self.known.borrow_mut().entry((client, number)).or_default())
    }
}

struct Client {
    world: Rc<World>,
    model: Rc<Model>,
    random: Random,
    id: u64,
    strict: bool,
    context: String,
}

fn len_max(world: &World) -> u64 {
    world.tier.block_len_max().min(120_000)
}

impl Client {
    fn key(&self, number: u64) -> BlockKey {
        key(&self.world, self.id, number)
    }

    fn told<T>(&self, number: u64, f: impl FnOnce(&mut Known) -> T) -> T {
        self.model.with(self.id, number, f)
    }

    async fn run(&self) {
        loop {
            let number = self.random.below(KEYS);
            let key = self.key(number);
            match self.random.below(20) {
                0..4 => self.read(number, &key).await,
                4..7 => self.put(number, &key, Durability::Volatile).await,
                7..12 => self.put(number, &key, Durability::Durable).await,
                12..15 => self.remove(number, &key).await,
                15 if self.random.one_in(5) => self.remove_all(&key).await,
                15 | 16 => self.drop_remove(number, &key).await,
                17 => {
                    self.remove(number, &key).await;
                    self.put(number, &key, Durability::Durable).await;
                }
                _ => {
                    let span = Duration::from_micros(self.random.below(1500));
                    self.world.sleep(span).await;
                }
            }
        }
    }

    async fn put(&self, number: u64, key: &BlockKey, durability: Durability) {
        let version = self.model.next_version();
        let bytes = value(self.id, number, version, len_max(&self.world));
        let options = PutOptions {
            durability,
            ..PutOptions::default()
        };
        let put = self.world.shard.put(key, &bytes, &options);
        let put = self
            .world
            .within(|| format!("{}: put", self.context), CALL_MAX, put);
        match put.await {
            PutOutcome::Stored { durable } => self.told(number, |known| {
                known.location = self.world.location_of(key);
                if durable || !known.unsure {
                    known.floor = version - 1;
                    known.durable = None;
                }
                known.current = Some(version);
                if durable {
                    known.durable = Some(version);
                    known.unsure = false;
                }
            }),
            PutOutcome::AlreadyExists { durable } => self.told(number, |known| {
                assert!(known.current.is_some(), "{}: it was removed", self.context);
                if durable {
                    known.location = self.world.location_of(key);
                    known.durable = known.current;
                    known.floor = known.current.unwrap_or(1) - 1;
                    known.unsure = false;
                }
            }),
            PutOutcome::Busy => {}
            PutOutcome::Rejected(reason) => panic!("{}: {reason:?}", self.context),
        }
    }

    async fn read(&self, number: u64, key: &BlockKey) {
        let options = GetOptions::default();
        let read = self.world.shard.get(key, &options);
        let read = self
            .world
            .within(|| format!("{}: get", self.context), CALL_MAX, read);
        let found = read.await;
        let current = self.told(number, |known| known.current);
        match found {
            Lookup::Hit { value: pin, .. } => {
                let right = current.is_some_and(|version| {
                    value(self.id, number, version, len_max(&self.world)) == pin[..]
                });
                assert!(
                    right,
                    "{}: wrong bytes, not version {current:?}",
                    self.context
                );
            }
            Lookup::Miss if current.is_some() => {
                assert!(self.world.was_evicted(key), "{}: it is gone", self.context);
                assert!(!self.strict, "{}: it was evicted", self.context);
                self.told(number, |known| {
                    (known.current, known.durable) = (None, None)
                });
            }
            Lookup::Miss => {}
            Lookup::Unavailable(reason) => panic!("{}: {reason:?}", self.context),
        }
    }

    async fn remove(&self, number: u64, key: &BlockKey) {
        self.told(number, begin_removal);
        let removal = self.world.shard.remove(key);
        let removal = self
            .world
            .within(|| format!("{}: remove", self.context), CALL_MAX, removal);
        let found = removal.await;
        assert!(
            !matches!(found, Lookup::Unavailable(_)),
            "{}: {found:?}",
            self.context
        );
        let version = self.model.version.get();
        self.told(number, |known| end_removal(known, version));
    }

    async fn remove_all(&self, key: &BlockKey) {
        (0..KEYS).for_each(|number| self.told(number, begin_removal));
        let removal = self.world.shard.remove_namespace(key.namespace());
        let removal = self.world.within(
            || format!("{}: remove all", self.context),
            CALL_MAX,
            removal,
        );
        let found = removal.await;
        assert!(found.is_ok(), "{}: {found:?}", self.context);
        let version = self.model.version.get();
        (0..KEYS).for_each(|number| self.told(number, |known| end_removal(known, version)));
    }

    /// Begins a removal and gives it up.
    async fn drop_remove(&self, number: u64, key: &BlockKey) {
        self.told(number, begin_removal);
        let removal = async {
            let _ = self.world.shard.remove(key).await;
        };
        let span = Duration::from_micros(self.random.below(100));
        futures_lite::future::or(removal, self.world.sleep(span)).await;
    }
}

fn begin_removal(known: &mut Known) {
    *known = Known {
        floor: known.floor,
        unsure: true,
        ..Known::default()
    };
}

fn end_removal(known: &mut Known, version: u64) {
    *known = Known {
        floor: version,
        ..Known::default()
    };
}

fn key(world: &World, client: u64, number: u64) -> BlockKey {
    world.key(&format!("n{client}"), number)
}

/// Looks every key up after recovery and takes note of what is there.
async fn audit(world: &World, model: &Model, strict: bool, context: &str) {
    let len_max = len_max(world);
    for client in 0..CLIENTS {
        for number in 0..KEYS {
            let key = key(world, client, number);
            let known = model.with(client, number, |known| known.clone());
            let options = GetOptions::default();
            let read = world.shard.get(&key, &options);
            let found = world
                .within(|| format!("{context}: audit"), CALL_MAX, read)
                .await;
            let context = format!("{context}, client {client}, key {number}, {known:?}");
            let version = match found {
                Lookup::Hit { value: pin, .. } => {
                    let version = version_of(&pin);
                    let legal = (known.floor + 1..=model.version.get()).contains(&version);
                    assert!(legal, "{context}: version {version} came back");
                    let right = value(client, number, version, len_max) == pin[..];
                    assert!(right, "{context}: wrong bytes");
                    Some(version)
                }
                Lookup::Miss => None,
                Lookup::Unavailable(reason) => panic!("{context}: {reason:?}"),
            };
            if let Some(durable) = known.durable {
                let excused = version.is_none() && !strict && world.was_evicted(&key);
                let kept = version.is_some_and(|version| version >= durable);
                assert!(kept || excused, "{context}: durable, found {version:?}");
            }
            // What lies on the device now is durable, and nothing else is left.
            let latest = model.version.get();
            model.with(client, number, |known| {
                *known = Known {
                    floor: version.map_or(latest, |version| version - 1),
                    durable: version,
                    location: world.location_of(&key),
                    current: version,
                    unsure: false,
                }
            });
        }
    }
}

/// What was durable and was given up since is no longer asked for.
fn excuse(world: &World, model: &Model, strict: bool, context: &str) {
    for client in 0..CLIENTS {
        for number in 0..KEYS {
            let key = key(world, client, number);
            model.with(client, number, |known| {
                let gone = match world.location_of(&key) {
                    None => true,
                    Some(_) if strict => false,
                    Some(location) => match world.phase_of(location.0) {
                        // What goes with a segment that is being reclaimed may be gone already.
                        Phase::Reclaiming => true,
                        // It stayed in DRAM when its segment went, and was written anew since.
                        Phase::Open | Phase::Sealing => known.location != Some(location),
                        _ => false,
                    },
                };
                if known.durable.is_some() && (world.was_evicted(&key) || gone) {
                    assert!(
                        !strict,
                        "{context}, client {client}, key {number}: {known:?}"
                    );
                    known.durable = None;
                }
            });
        }
    }
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
        io_deadline: Duration::from_millis(500),
        absent: false,
        scrub_rate: 0,
        write_budget: 0,
    }
}

/// Blocks in DRAM by key.
fn residents(world: &World) -> Vec<(u64, u64)> {
    let all = (0..CLIENTS).flat_map(|client| (0..KEYS).map(move |number| (client, number)));
    let in_dram = |(client, number): &(u64, u64)| {
        let found = world.shard.exists(&key(world, *client, *number));
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
    let world = World::new(&sim, spec, before.images, epoch);
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
        let back = residents(&world);
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
    sim.run(audit(&world, model, strict, &context));
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|id| Client {
            world: Rc::clone(&world),
            model: Rc::clone(model),
            random: Random::new(random.below(u64::MAX)),
            id,
            strict,
            context: format!("{context}, client {id}"),
        })
        .collect();
    let span = Duration::from_micros(random.below(40_000) + random.below(2) * 40_000);
    let end = world.sleep(span);
    let working = async {
        let mut clients: FuturesUnordered<_> = clients.iter().map(Client::run).collect();
        clients.next().await;
    };
    sim.run(futures_lite::future::or(end, working));
    assert!(!world.shard.is_fenced(), "{context}");
    world.shard.check();
    let clean = random.one_in(4).then(|| {
        let deadline = world.now() + Duration::from_secs(5);
        let report = sim.run(world.shard.persist(deadline));
        let residents = residents(&world);
        assert!(
            report.clean && (report.blocks_lost == 0 || !strict),
            "{context}: {report:?}"
        );
        close_model(&world, model);
        (epoch, residents)
    });
    excuse(&world, model, strict, &context);
    Left {
        images: images_after_crash(&world, random),
        clean,
        reclaimed: world.tier.counters().segments_reclaimed,
    }
}

/// After a clean close everything that is served is durable.
fn close_model(world: &World, model: &Model) {
    for client in 0..CLIENTS {
        for number in 0..KEYS {
            let there = matches!(
                world.shard.exists(&key(world, client, number)),
                Lookup::Hit { .. }
            );
            model.with(client, number, |known| {
                if there && known.current.is_some() {
                    known.location = world.location_of(&key(world, client, number));
                    known.durable = known.current;
                }
            });
        }
    }
}

/// Runs one seed; returns the segments reclaimed.
fn run(seed: u64) -> u64 {
    let random = Random::new(seed ^ 0xc4a5);
    let spec = spec(&random, seed, seed.is_multiple_of(2));
    let model = Rc::new(Model {
        known: RefCell::default(),
        version: Cell::new(0),
    });
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
