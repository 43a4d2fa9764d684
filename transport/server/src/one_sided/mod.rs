//! What clients read of the node's memory by themselves: rails to it, and how they are taken away
//! again.
//!
//! A client asks for rails and gets a ticket of a transfer engine, the same on all of its
//! connections. Leases that it takes on them are fenced: one that ends without a release makes the
//! node take the ticket back before the slot is used again. The shards' threads have no part in
//! reads. Puts go the other way: the node opens the client's engine and reads values into slots, so
//! that nobody ever has a key to write to the node's memory.
//!
//! **Invariants**
//! - A slot that a client may read by its ticket is leased to it, or the ticket was taken back.
//! - Copies for one client lie in memory that no other one's engine knows.

mod client;
#[expect(
    unsafe_code,
    reason = "an arena's address is given to a transfer engine"
)]
mod memory;
mod pull;
mod rails;
mod staging;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use terrace_engine::{ArenaShared, Backing};
use terrace_fabric::transfer::{
    Access, Admission, EngineConfig, Region, TransferEngine, TransferError, Transport,
};
use terrace_fabric::verbs::{RdmaConfig, RdmaTransport, VerbsError};

pub(crate) use self::client::{Client, Rails};
pub(crate) use self::pull::pull;
pub(crate) use self::rails::rails;
pub(crate) use self::staging::Copied;

/// How long a rail of the node's own may be without progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a client's engine may be out of reach before a put of it is given up.
const LOST_TIMEOUT: Duration = Duration::from_secs(1);

/// Memory of a client's copies: from one block of the shortest kind to what a table of it allows.
const STAGED_LEN: (u64, u64) = (1 << 20, 1 << 40);

/// What clients may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSidedReach {
    /// Copies of the blocks that they have leased, in memory for each client alone: the safe one,
    /// as a client reaches nothing that it has not asked for by key.
    Staged {
        /// Bytes of each client's memory, from 1 MiB to 1 TiB.
        client_len: u64,
        /// Most clients that have such memory at once.
        clients_max: usize,
    },
    /// The blocks themselves, without a copy: a client that has rails can read all blocks of all
    /// namespaces, as long as it has not been sent away.
    Arena,
}

/// How clients get rails.
#[derive(Clone, Debug)]
pub struct OneSidedConfig {
    /// What they may read.
    pub reach: OneSidedReach,
    /// Addresses at which transfer engines listen, 1 to 16, each at a free port: several for
    /// several rails over TCP. RDMA is agreed on over the first that works.
    pub hosts: Vec<IpAddr>,
    /// The RDMA devices; `None` for TCP alone.
    pub rdma: Option<RdmaConfig>,
    /// Slots are used again without a fence, for a test that shows what it is for.
    #[doc(hidden)]
    pub skip_fence: bool,
}

/// Why rails cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OneSidedError {
    /// A setting is outside its limits.
    #[error("{field} is {value}: from {min} to {max}")]
    Setting {
        /// Its name.
        field: &'static str,
        /// What was given.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// RDMA was asked for.
    #[error("RDMA: {0}")]
    Rdma(#[from] VerbsError),
    /// The transfer engine, or memory of it.
    #[error("transfer engine: {0}")]
    Transfer(#[from] TransferError),
    /// As many clients have memory for copies as may.
    #[error("{max} clients have memory for copies, which is the most; blocks are read by get")]
    TooManyClients {
        /// The most clients.
        max: usize,
    },
}

impl OneSidedConfig {
    fn check(&self) -> Result<(), OneSidedError> {
        let within = |field, value, (min, max)| {
            let error = OneSidedError::Setting {
                field,
                value,
                min,
                max,
            };
            (min..=max).contains(&value).then_some(()).ok_or(error)
        };
        within("addresses for rails", self.hosts.len() as u64, (1, 16))?;
        if let OneSidedReach::Staged {
            client_len,
            clients_max,
        } = self.reach
        {
            within("bytes for copies of a client", client_len, STAGED_LEN)?;
            within("clients with copies", clients_max as u64, (1, 65_536))?;
        }
        Ok(())
    }
}

/// See the module's text. All shards share it.
pub(crate) struct OneSided {
    config: OneSidedConfig,
    /// Reads values of puts into the arenas, and serves these where clients may read them.
    engine: TransferEngine,
    /// The arenas by shard.
    arenas: Vec<Arc<Region>>,
    clients: Mutex<HashMap<[u8; 16], Weak<Client>>>,
    /// Clients that have memory for copies.
    staged: AtomicUsize,
}

impl OneSided {
    pub(crate) fn start(
        config: OneSidedConfig,
        arenas: &[Arc<ArenaShared>],
    ) -> Result<Arc<Self>, OneSidedError> {
        config.check()?;
        let (access, listens) = match config.reach {
            OneSidedReach::Staged { .. } => (Access::Local, false),
            OneSidedReach::Arena => (Access::Read, true),
        };
        let engine = engine(&config, listens)?;
        let memory = arenas.iter().map(memory::of_arena);
        let register = |memory| engine.register(memory?, access);
        let arenas = memory.map(register).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            config,
            engine,
            arenas,
            clients: Mutex::default(),
            staged: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn config(&self) -> &OneSidedConfig {
        &self.config
    }

    /// The client of this id.
    pub(crate) fn client(self: &Arc<Self>, id: [u8; 16]) -> Arc<Client> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = clients.get(&id).and_then(Weak::upgrade) {
            return known;
        }
        clients.retain(|_, client| client.strong_count() > 0);
        let client = Arc::new(Client::new(Arc::clone(self)));
        clients.insert(id, Arc::downgrade(&client));
        client
    }

    /// A place among the clients with memory for copies.
    fn take_place(self: &Arc<Self>, max: usize) -> Result<Place, OneSidedError> {
        let more = |count: usize| (count < max).then_some(count + 1);
        let taken = self
            .staged
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        match taken {
            Ok(_) => Ok(Place(Arc::clone(self))),
            Err(_) => Err(OneSidedError::TooManyClients { max }),
        }
    }
}

/// See [`OneSided::take_place`]; given back with this.
struct Place(Arc<OneSided>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.staged.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A transfer engine for invited openers, or for nobody.
fn engine(config: &OneSidedConfig, listens: bool) -> Result<TransferEngine, OneSidedError> {
    let mut transports: Vec<Arc<dyn Transport>> = Vec::new();
    if let Some(rdma) = &config.rdma {
        transports.push(RdmaTransport::open(rdma)?);
    }
    let hosts = config.hosts.iter().filter(|_| listens);
    let listen = hosts.map(|host| SocketAddr::new(*host, 0));
    let config = EngineConfig {
        listen: listen.collect(),
        admission: Admission::Invited,
        lost_timeout: LOST_TIMEOUT,
        stall_timeout: STALL_TIMEOUT,
        ..EngineConfig::default()
    };
    Ok(TransferEngine::start_with(config, transports)?)
}

/// Bytes of a page that memory of an arena lies on.
const fn page_len(backing: Backing) -> Option<u64> {
    match backing {
        Backing::Huge1Gib => Some(1 << 30),
        Backing::Huge2Mib => Some(2 << 20),
        _ => None,
    }
}
