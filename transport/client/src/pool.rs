//! Which shards there are, and the connections to each.
//!
//! **Invariants**
//! - A connection is used for a shard only under the map of whose generation it is.
//! - Connects that are under way count towards the limit of their shard.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_lite::FutureExt;
use terrace_fabric::tls::ClientTls;
use terrace_wire::FrameLimits;

use crate::config::ClientConfig;
use crate::connection::{self, Connection, Hello, Wish};
use crate::error::Failure;
use crate::one_sided::Reach;
use crate::time::now;
use crate::wait::Sleep;

/// Wait before the second attempt; it doubles with each.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);

/// Longest wait between attempts, so that a node that is back is found within a second.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The wait after so many failures in a row.
pub(crate) fn backoff(failures: u32) -> Duration {
    let doubled = BACKOFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled.min(BACKOFF_MAX)
}

/// Declares the counters once: those that calls count up, what they come to, and the sum.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a client counted.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ClientStats { $($(#[$doc])* pub $name: u64,)* }

        impl ClientStats {
            /// Adds another client's.
            pub const fn add(&mut self, other: &Self) { $(self.$name += other.$name;)* }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            pub(crate) fn read(&self) -> ClientStats {
                ClientStats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Connections made.
    connects,
    /// Attempts to connect that failed.
    connect_failures,
    /// Entries that were sent again.
    retries,
    /// Entries that had no answer at their deadline.
    timeouts,
    /// Values that came with bytes other than those that were put.
    corrupt,
    /// Times that rails for one-sided access were had from the node.
    rails,
    /// Times that they were lost or taken back.
    rails_lost,
    /// Blocks that were read one-sided.
    one_sided_gets,
    /// Blocks that the node pulled out of registered memory.
    pulled_puts,
    /// Blocks that were to go one-sided and went over a connection.
    one_sided_fallbacks,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// How keys are split, and what a request may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) generation: u64,
    pub(crate) shards: u32,
    pub(crate) limits: FrameLimits,
    pub(crate) batch_max: usize,
}

/// What came of the last attempts to connect.
#[derive(Debug, Default)]
struct Attempts {
    failures: u32,
    not_before: Option<Instant>,
    last: Option<Failure>,
}

impl Attempts {
    /// The failure of a moment ago, while another attempt would be too early.
    fn too_early(&self) -> Option<Failure> {
        let not_before = self.not_before?;
        self.last.clone().filter(|_| now() < not_before)
    }

    fn note(&mut self, outcome: Result<(), &Failure>) {
        match outcome {
            Ok(()) => *self = Self::default(),
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                // Half of the wait that callers keep, so that theirs ends behind it.
                self.not_before = Some(now() + backoff(self.failures) / 2);
                self.last = Some(failure.clone());
            }
        }
    }
}

#[derive(Debug, Default)]
struct ShardPool {
    connections: Vec<Arc<Connection>>,
    opening: usize,
    attempts: Attempts,
}

#[derive(Debug)]
struct Map {
    layout: Layout,
    node_id: [u8; 16],
    epoch: u64,
    endpoints: Vec<(Option<u32>, Arc<str>)>,
    is_stale: bool,
    shards: Vec<ShardPool>,
}

#[derive(Debug, Default)]
struct Known {
    map: Option<Map>,
    generations: u64,
    /// Of connects to the address that the caller gave.
    attempts: Attempts,
}

/// The connections of a client.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) config: ClientConfig,
    /// The address that the caller gave.
    pub(crate) address: Arc<str>,
    pub(crate) counters: Counters,
    /// None when it is off.
    pub(crate) one_sided: Option<Reach>,
    tls: Option<ClientTls>,
    client_id: [u8; 16],
    known: Mutex<Known>,
    /// Held by whoever asks the node for its map.
    asking: async_lock::Mutex<()>,
}

/// What to do for a connection.
enum Step {
    Use(Arc<Connection>),
    Open(Arc<str>),
}

impl Pools {
    pub(crate) fn new(config: ClientConfig, tls: Option<ClientTls>) -> Self {
        // The keys of a hasher are the operating system's random bytes.
        let mut client_id = [0; 16];
        for half in client_id.chunks_exact_mut(8) {
            half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
        }
        Self {
            address: Arc::from(config.address.as_str()),
            one_sided: Reach::new(&config.one_sided),
            config,
            counters: Counters::default(),
            tls,
            client_id,
            known: Mutex::default(),
            asking: async_lock::Mutex::new(()),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Each step under the lock is complete.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh_layout(&self) -> Option<Layout> {
        let known = self.known();
        let map = known.map.as_ref().filter(|map| !map.is_stale)?;
        Some(map.layout)
    }

    /// How keys are split now. Asks the node when that is not known, or not true any more.
    pub(crate) async fn layout(&self) -> Result<Layout, Failure> {
        if let Some(layout) = self.fresh_layout() {
            return Ok(layout);
        }
        let _asking = self.asking.lock().await;
        if let Some(layout) = self.fresh_layout() {
            return Ok(layout);
        }
        if let Some(failure) = self.known().attempts.too_early() {
            return Err(failure);
        }
        let opened = self.open(&self.address, None).await;
        let mut known = self.known();
        known.attempts.note(opened.as_ref().map(drop));
        let (connection, hello) = opened?;
        let layout = known.install(&hello);
        known.add(layout, connection);
        Ok(layout)
    }

    /// Notes that the map of a generation is not true any more.
    pub(crate) fn mark_stale(&self, generation: u64) {
        let mut known = self.known();
        if let Some(map) = &mut known.map
            && map.layout.generation == generation
        {
            map.is_stale = true;
        }
    }

    /// A connection to a shard: one that is idle, else a new one, else the one with the fewest calls.
    /// `is_home` asks for the oldest, which pins and leases stay with.
    pub(crate) async fn acquire(
        &self,
        layout: Layout,
        shard: u32,
        is_home: bool,
    ) -> Result<Arc<Connection>, Failure> {
        loop {
            let address = match self.next_step(layout, shard, is_home)? {
                Step::Use(connection) => {
                    if connection.load() == 0 {
                        connection.look();
                    }
                    if connection.is_usable() {
                        return Ok(connection);
                    }
                    continue;
                }
                Step::Open(address) => address,
            };
            let opening = Opening {
                pools: self,
                generation: layout.generation,
                shard,
            };
            let opened = self.open(&address, Some(shard)).await;
            let mut known = self.known();
            if let Some(pool) = known.pool(layout.generation, shard) {
                pool.attempts.note(opened.as_ref().map(drop));
            }
            let (connection, hello) = opened?;
            if known.install(&hello).generation != layout.generation {
                return Err(Failure::moved());
            }
            known.add(layout, Arc::clone(&connection));
            drop(known);
            // It counts as opening until it is in the pool.
            drop(opening);
            // Calls that opened one at the same time all go to the one that was there first.
            if !is_home {
                return Ok(connection);
            }
        }
    }

    fn next_step(&self, layout: Layout, shard: u32, is_home: bool) -> Result<Step, Failure> {
        let most = self.config.connections_per_shard;
        let mut known = self.known();
        let Some(map) = known.map.as_mut() else {
            return Err(Failure::moved());
        };
        if map.layout.generation != layout.generation {
            return Err(Failure::moved());
        }
        let address = map.address_of(shard, &self.address);
        let Some(pool) = map.shards.get_mut(shard as usize) else {
            return Err(Failure::moved());
        };
        pool.connections.retain(|connection| connection.is_usable());
        let oldest = pool.connections.first().filter(|_| is_home);
        let least = pool
            .connections
            .iter()
            .min_by_key(|connection| connection.load());
        let room = pool.connections.len() + pool.opening < most;
        match (oldest, least) {
            (Some(oldest), _) => return Ok(Step::Use(Arc::clone(oldest))),
            (None, Some(least)) if least.load() == 0 || !room => {
                return Ok(Step::Use(Arc::clone(least)));
            }
            _ => {}
        }
        if let Some(failure) = pool.attempts.too_early() {
            return match least {
                Some(least) => Ok(Step::Use(Arc::clone(least))),
                None => Err(failure),
            };
        }
        pool.opening += 1;
        Ok(Step::Open(address))
    }

    /// Where a shard is reached.
    pub(crate) fn address_of(&self, layout: Layout, shard: u32) -> Result<Arc<str>, Failure> {
        let known = self.known();
        let map = known.map.as_ref();
        let map = map.filter(|map| map.layout.generation == layout.generation);
        let map = map.ok_or_else(Failure::moved)?;
        Ok(map.address_of(shard, &self.address))
    }

    /// The name that nodes' certificates have to be for, where it is not their host.
    fn server_name(&self) -> Option<&str> {
        self.config.tls.as_ref()?.server_name.as_deref()
    }

    /// Connects to `address` within the time for that.
    pub(crate) async fn open(
        &self,
        address: &Arc<str>,
        shard: Option<u32>,
    ) -> Result<(Arc<Connection>, Hello), Failure> {
        let wish = Wish {
            address,
            shard,
            client_id: self.client_id,
            is_one_sided: self.one_sided.is_some(),
            token: &self.config.token,
            name: &self.config.name,
            tls: self.tls.as_ref().map(|tls| (tls, self.server_name())),
        };
        let span = self.config.connect_timeout;
        let late = async {
            Sleep::lasting(span).await;
            Err(Failure::unavailable(format_args!(
                "no handshake within {span:?}"
            )))
        };
        let opened = connection::open(wish).or(late).await;
        let counter = match opened {
            Ok(_) => &self.counters.connects,
            Err(_) => &self.counters.connect_failures,
        };
        Counters::add(counter, 1);
        opened
    }
}

impl Map {
    fn address_of(&self, shard: u32, given: &Arc<str>) -> Arc<str> {
        let of = |wanted: Option<u32>| {
            let mut endpoints = self.endpoints.iter();
            endpoints.find_map(|(shard, address)| (*shard == wanted).then_some(address))
        };
        let found = of(Some(shard)).or_else(|| of(None));
        Arc::clone(found.unwrap_or(given))
    }
}

impl Known {
    fn pool(&mut self, generation: u64, shard: u32) -> Option<&mut ShardPool> {
        let map = self.map.as_mut()?;
        let is_same = map.layout.generation == generation;
        map.shards.get_mut(shard as usize).filter(|_| is_same)
    }

    fn add(&mut self, layout: Layout, connection: Arc<Connection>) {
        let shard = connection.terms().shard;
        if let Some(pool) = self.pool(layout.generation, shard) {
            pool.connections.push(connection);
        }
    }

    /// Takes the map of a hello; the same as before when nothing changed.
    fn install(&mut self, hello: &Hello) -> Layout {
        let terms = &hello.terms;
        if let Some(map) = &mut self.map
            && map.node_id == terms.node_id
            && map.epoch == terms.map_epoch
            && map.layout.shards == terms.shards
        {
            map.is_stale = false;
            return map.layout;
        }
        self.generations += 1;
        let layout = Layout {
            generation: self.generations,
            shards: terms.shards,
            limits: terms.limits,
            batch_max: terms.batch_max as usize,
        };
        // Connections of the old map end when the calls on them do.
        self.map = Some(Map {
            layout,
            node_id: terms.node_id,
            epoch: terms.map_epoch,
            endpoints: hello.endpoints.clone(),
            is_stale: false,
            shards: (0..terms.shards).map(|_| ShardPool::default()).collect(),
        });
        layout
    }
}

/// A connect under way, which counts until it is dropped.
struct Opening<'a> {
    pools: &'a Pools,
    generation: u64,
    shard: u32,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut known = self.pools.known();
        if let Some(pool) = known.pool(self.generation, self.shard) {
            pool.opening -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_and_is_bounded() {
        let waits: Vec<_> = (1..40).map(backoff).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[0], BACKOFF_FIRST);
        assert_eq!(waits[38], BACKOFF_MAX);
    }
}
