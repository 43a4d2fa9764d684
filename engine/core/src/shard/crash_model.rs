//! What clients were told over all crashes of their devices, and whether what is found after a
//! recovery agrees with it. Shared by the tests that lose power at random moments and by those
//! that lose it at every operation.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::future::join_all;
use terrace_nvme::tier::{Location, Phase};
use terrace_types::{BlockKey, Lookup, PutOutcome};

use super::sim_world::{World, value, version_of};
use super::*;

pub(super) const CLIENTS: u64 = 4;
pub(super) const KEYS: u64 = 12;
/// Longer than any call may take in virtual time.
pub(super) const CALL_MAX: Duration = Duration::from_secs(20);

/// What is known of a key over all crashes.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Versions at and below this were acknowledged as removed or replaced, or found gone.
    pub(super) floor: u64,
    /// The version that was acknowledged as durable.
    pub(super) durable: Option<u64>,
    /// Where it lay then.
    pub(super) location: Option<(Location, u64)>,
    /// The version that the shard serves, as far as it did not give it up.
    pub(super) current: Option<u64>,
    /// A removal was begun and not acknowledged: an older version may come back.
    pub(super) unsure: bool,
}

/// All that clients were told, across generations.
#[derive(Clone, Default)]
pub(super) struct Model {
    pub(super) known: RefCell<HashMap<(u64, u64), Known>>,
    pub(super) version: Cell<u64>,
}

impl Model {
    pub(super) fn next_version(&self) -> u64 {
        self.version.set(self.version.get() + 1);
        self.version.get()
    }

    pub(super) fn with<T>(&self, client: u64, number: u64, f: impl FnOnce(&mut Known) -> T) -> T {
        f(self.known.borrow_mut().entry((client, number)).or_default())
    }

    /// What has to hold of each key after a recovery: the floor, and what is durable.
    pub(super) fn promises(&self) -> BTreeMap<(u64, u64), (u64, Option<u64>)> {
        let known = self.known.borrow();
        let promise = |(key, known): (&(u64, u64), &Known)| (*key, (known.floor, known.durable));
        known.iter().map(promise).collect()
    }
}

/// Somebody who calls and takes note of what it is told; each has keys of its own.
pub(super) struct Client {
    /// One of each shard.
    pub(super) worlds: Vec<Rc<World>>,
    pub(super) model: Rc<Model>,
    pub(super) id: u64,
    /// Nothing may be given up.
    pub(super) strict: bool,
    pub(super) context: String,
}

pub(super) fn len_max(world: &World) -> u64 {
    world.tier.block_len_max().min(120_000)
}

/// The world of the shard that owns a key.
pub(super) fn world_of<'a>(worlds: &'a [Rc<World>], key: &BlockKey) -> &'a Rc<World> {
    &worlds[crate::engine::route(key.hash(), worlds.len())]
}

impl Client {
    pub(super) fn key(&self, number: u64) -> BlockKey {
        key(&self.worlds, self.id, number)
    }

    pub(super) fn told<T>(&self, number: u64, f: impl FnOnce(&mut Known) -> T) -> T {
        self.model.with(self.id, number, f)
    }

    pub(super) async fn put(&self, number: u64, key: &BlockKey, durability: Durability) {
        let world = world_of(&self.worlds, key);
        let version = self.model.next_version();
        let bytes = value(self.id, number, version, len_max(world));
        let options = PutOptions {
            durability,
            ..PutOptions::default()
        };
        let put = world.shard.put(key, &bytes, &options);
        let put = world.within(|| format!("{}: put", self.context), CALL_MAX, put);
        match put.await {
            PutOutcome::Stored { durable } => self.told(number, |known| {
                known.location = world.location_of(key);
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
                    known.location = world.location_of(key);
                    known.durable = known.current;
                    known.floor = known.current.unwrap_or(1) - 1;
                    known.unsure = false;
                }
            }),
            PutOutcome::Busy => {}
            PutOutcome::Rejected(reason) => panic!("{}: {reason:?}", self.context),
        }
    }

    pub(super) async fn read(&self, number: u64, key: &BlockKey) {
        let world = world_of(&self.worlds, key);
        let options = GetOptions::default();
        let read = world.shard.get(key, &options);
        let read = world.within(|| format!("{}: get", self.context), CALL_MAX, read);
        let found = read.await;
        let current = self.told(number, |known| known.current);
        match found {
            Lookup::Hit { value: pin, .. } => {
                let right = current.is_some_and(|version| {
                    value(self.id, number, version, len_max(world)) == pin[..]
                });
                assert!(
                    right,
                    "{}: wrong bytes, not version {current:?}",
                    self.context
                );
            }
            Lookup::Miss if current.is_some() => {
                assert!(world.was_evicted(key), "{}: it is gone", self.context);
                assert!(!self.strict, "{}: it was evicted", self.context);
                self.told(number, |known| {
                    (known.current, known.durable) = (None, None)
                });
            }
            Lookup::Miss => {}
            Lookup::Unavailable(reason) => panic!("{}: {reason:?}", self.context),
        }
    }

    pub(super) async fn remove(&self, number: u64, key: &BlockKey) {
        let world = world_of(&self.worlds, key);
        self.told(number, begin_removal);
        let removal = world.shard.remove(key);
        let removal = world.within(|| format!("{}: remove", self.context), CALL_MAX, removal);
        let found = removal.await;
        assert!(
            !matches!(found, Lookup::Unavailable(_)),
            "{}: {found:?}",
            self.context
        );
        let version = self.model.version.get();
        self.told(number, |known| end_removal(known, version));
    }

    pub(super) async fn remove_all(&self, key: &BlockKey) {
        (0..KEYS).for_each(|number| self.told(number, begin_removal));
        let removals = self.worlds.iter().map(|world| {
            let removal = world.shard.remove_namespace(key.namespace());
            world.within(
                || format!("{}: remove all", self.context),
                CALL_MAX,
                removal,
            )
        });
        let found: Result<Vec<u64>, _> = join_all(removals).await.into_iter().collect();
        assert!(found.is_ok(), "{}: {found:?}", self.context);
        let version = self.model.version.get();
        (0..KEYS).for_each(|number| self.told(number, |known| end_removal(known, version)));
    }
}

pub(super) fn begin_removal(known: &mut Known) {
    *known = Known {
        floor: known.floor,
        unsure: true,
        ..Known::default()
    };
}

pub(super) fn end_removal(known: &mut Known, version: u64) {
    *known = Known {
        floor: version,
        ..Known::default()
    };
}

pub(super) fn key(worlds: &[Rc<World>], client: u64, number: u64) -> BlockKey {
    worlds[0].key(&format!("n{client}"), number)
}

/// Looks every key up after recovery and takes note of what is there.
pub(super) async fn audit(worlds: &[Rc<World>], model: &Model, strict: bool, context: &str) {
    let len_max = len_max(&worlds[0]);
    for client in 0..CLIENTS {
        for number in 0..KEYS {
            let key = key(worlds, client, number);
            let world = world_of(worlds, &key);
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
                let evicted = version.is_none() && world.was_evicted(&key);
                let kept = version.is_some_and(|version| version >= durable);
                assert!(
                    kept || evicted && !strict,
                    "{context}: durable, found {version:?}, evicted: {evicted}"
                );
            }
            // What lies on the device now is durable, and nothing else is left; but what a shard
            // let go out of another one's segment lies there until that segment is renewed.
            let latest = match version {
                None if worlds.len() > 1 && world.was_evicted(&key) => known.floor,
                _ => model.version.get(),
            };
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
pub(super) fn excuse(worlds: &[Rc<World>], model: &Model, strict: bool, context: &str) {
    for client in 0..CLIENTS {
        for number in 0..KEYS {
            let key = key(worlds, client, number);
            let world = world_of(worlds, &key);
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

/// After a clean close everything that is served is durable.
pub(super) fn close_model(worlds: &[Rc<World>], model: &Model) {
    for client in 0..CLIENTS {
        for number in 0..KEYS {
            let key = key(worlds, client, number);
            let world = world_of(worlds, &key);
            let there = matches!(world.shard.exists(&key), Lookup::Hit { .. });
            model.with(client, number, |known| {
                if there && known.current.is_some() {
                    known.location = world.location_of(&key);
                    known.durable = known.current;
                }
            });
        }
    }
}
