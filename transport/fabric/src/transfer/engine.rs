//! The engine: what a program registers, serves and opens.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::chooser::RailTraits;
use super::control::{AskTransport, Control};
use super::drive::Driver;
use super::error::{RailError, TransferError};
use super::host::{Host, Notification, shut_down};
use super::limits::{RAIL_COUNT_MAX, SLICE_LEN_MAX};
use super::link::{Link, LinkTimes};
use super::memory::Memory;
use super::peer::Peer;
use super::region::{Access, Region, RegionId};
use super::shm::SharedPeer;
use super::shm::host::SharedHost;
use super::tcp::TcpRail;
use super::ticket::{Admission, Ticket};
use super::topology::Topology;
use super::transport::{Rail, Transport, TransportKind};

/// How long a region may stay in use before connections that use it are ended.
const UNREGISTER_GRACE: Duration = Duration::from_millis(500);

/// Which transports may be used to reach peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// The best that works: shared memory, then RDMA, then TCP. A peer that cannot be reached
    /// one way is reached another.
    #[default]
    Auto,
    /// This one and no other.
    Only(TransportKind),
}

impl TransportChoice {
    /// Whether `kind` may be used.
    #[must_use]
    pub fn allows(self, kind: TransportKind) -> bool {
        self == Self::Auto || self == Self::Only(kind)
    }
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Addresses to listen at; several for several rails. Empty: nobody can open this engine.
    pub listen: Vec<SocketAddr>,
    /// Who may open it.
    pub admission: Admission,
    /// How peers are reached.
    pub transports: TransportChoice,
    /// Bytes of a slice at most: from 4 KiB to [`SLICE_LEN_MAX`].
    pub slice_len: u64,
    /// How long a rail with work may show no progress before it has failed, and how long
    /// connecting and asking may take: from 10 ms to 60 s.
    pub stall_timeout: Duration,
    /// How long all rails of a peer may be down before its requests end as
    /// [`super::Status::PeerLost`].
    pub lost_timeout: Duration,
    /// The longest time between two probes of a rail that failed.
    pub rest_max: Duration,
    /// How far devices are from memory.
    pub topology: Topology,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            admission: Admission::Anyone,
            transports: TransportChoice::Auto,
            slice_len: 256 << 10,
            stall_timeout: Duration::from_secs(2),
            lost_timeout: Duration::from_secs(5),
            rest_max: Duration::from_secs(1),
            topology: Topology::of_machine(),
        }
    }
}

impl EngineConfig {
    fn check(&self) -> Result<(), TransferError> {
        let check = |field, value, min, max| {
            let is_inside = (min..=max).contains(&value);
            is_inside.then_some(()).ok_or(TransferError::Setting {
                field,
                value,
                min,
                max,
            })
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        check("slice_len", self.slice_len, 4096, SLICE_LEN_MAX)?;
        check(
            "stall_timeout in ms",
            millis(self.stall_timeout),
            10,
            60_000,
        )?;
        check(
            "lost_timeout in ms",
            millis(self.lost_timeout),
            1,
            3_600_000,
        )?;
        check("rest_max in ms", millis(self.rest_max), 1, 3_600_000)?;
        let rails = self.listen.len() as u64;
        check("addresses to listen at", rails, 0, RAIL_COUNT_MAX as u64)
    }
}

struct Listening {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

/// Registered memory, and the ways to and from it.
pub struct TransferEngine {
    config: EngineConfig,
    host: Arc<Host>,
    listening: Vec<Listening>,
    shared_thread: Option<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
}

impl TransferEngine {
    /// Starts an engine that moves bytes over TCP and shared memory.
    ///
    /// # Errors
    /// A setting is outside its limits, or an address cannot be listened at.
    pub fn start(config: EngineConfig) -> Result<Self, TransferError> {
        Self::start_with(config, Vec::new())
    }

    /// As [`TransferEngine::start`], with further transports.
    ///
    /// # Errors
    /// As for [`TransferEngine::start`].
    pub fn start_with(
        config: EngineConfig,
        transports: Vec<Arc<dyn Transport>>,
    ) -> Result<Self, TransferError> {
        config.check()?;
        let allowed = |of: &Arc<dyn Transport>| config.transports.allows(of.kind());
        let transports = transports.into_iter().filter(allowed).collect();
        let is_shared = config.transports.allows(TransportKind::SharedMemory);
        // What an opener has mapped cannot be taken from it again.
        let is_served =
            is_shared && !config.listen.is_empty() && config.admission == Admission::Anyone;
        let shared = is_served.then(SharedHost::new).transpose()?;
        let mut engine = Self {
            host: Arc::new(Host::new(transports, shared, config.admission)),
            listening: Vec::new(),
            shared_thread: None,
            addresses: Vec::new(),
            config,
        };
        for address in engine.config.listen.clone() {
            engine.listen(address)?;
        }
        if is_served {
            let host = Arc::clone(&engine.host);
            engine.shared_thread = Some(thread("transfer-listen", move || host.listen_shared())?);
        }
        Ok(engine)
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(), TransferError> {
        let os = |op| move |source| TransferError::Os { op, source };
        let listener = TcpListener::bind(address).map_err(os("listen"))?;
        self.addresses
            .push(listener.local_addr().map_err(os("read the own address"))?);
        let listener = Arc::new(listener);
        let (host, accepting) = (Arc::clone(&self.host), Arc::clone(&listener));
        let thread = thread("transfer-listen", move || host.listen(&accepting))?;
        self.listening.push(Listening {
            listener,
            thread: Some(thread),
        });
        Ok(())
    }

    /// The addresses listened at, with the ports the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Takes memory in, for transfers of its own and, as `access` says, of peers.
    ///
    /// # Errors
    /// There are too many regions, or the one transport that may be used cannot take it.
    pub fn register(&self, memory: Memory, access: Access) -> Result<Arc<Region>, TransferError> {
        let is_host = memory.is_host();
        let region = self.host.regions.add(memory, access)?;
        let mut keys = Vec::new();
        if is_host {
            keys.push((TransportKind::Tcp, Vec::new()));
        }
        if self
            .host
            .shared
            .as_ref()
            .is_some_and(|shared| shared.offer(&region))
        {
            keys.push((TransportKind::SharedMemory, Vec::new()));
        }
        for (at, transport) in self.host.transports.iter().enumerate() {
            match transport.register(&region) {
                // Without a key it has nothing to move the region by.
                Ok(key) if key.is_empty() => {}
                Ok(key) => keys.push((transport.kind(), key)),
                Err(error) if self.config.transports == TransportChoice::Auto => {
                    let (id, kind) = (region.id(), transport.kind());
                    tracing::warn!(%id, %kind, %error, "a region goes without this transport");
                }
                Err(error) => {
                    for taken in &self.host.transports[..at] {
                        taken.unregister(region.id());
                    }
                    self.host.regions.remove(region.id());
                    return Err(error);
                }
            }
        }
        region.set_kinds(keys.iter().map(|(kind, _)| *kind).collect());
        self.host.regions.offer(region.id(), keys);
        Ok(region)
    }

    /// Gives memory back. When this returns, nothing touches it: neither transfers of this
    /// engine, which are to be over or cancelled and dropped, nor those of peers, whose
    /// connections are ended when they do not finish.
    ///
    /// # Errors
    /// The region is not registered, or still used after `timeout`.
    pub fn unregister(&self, id: RegionId, timeout: Duration) -> Result<(), TransferError> {
        let regions = &self.host.regions;
        if !regions.close(id, timeout.min(UNREGISTER_GRACE))? {
            self.host.end_busy();
            if !regions.close(id, timeout.saturating_sub(UNREGISTER_GRACE))? {
                return Err(TransferError::RegionBusy {
                    id,
                    waited: timeout,
                });
            }
        }
        let shared = self.host.shared.as_ref();
        if shared.is_some_and(|shared| !shared.withdraw(id, timeout)) {
            return Err(TransferError::RegionBusy {
                id,
                waited: timeout,
            });
        }
        for transport in &self.host.transports {
            transport.unregister(id);
        }
        regions.remove(id);
        Ok(())
    }

    /// Whether a peer on this host has a lease on any of these bytes.
    #[must_use]
    pub fn is_leased(&self, id: RegionId, offset: u64, len: u64) -> bool {
        let shared = self.host.shared.as_ref();
        shared.is_some_and(|shared| shared.is_leased(id, offset, len))
    }

    /// The next notification of a peer, if one comes within `timeout`.
    #[must_use]
    pub fn notification(&self, timeout: Duration) -> Option<Notification> {
        self.host.notification(timeout)
    }

    /// A ticket for one opener, where they have to be invited. It may open this engine again after
    /// it has left, until the ticket is taken back by [`TransferEngine::expel`].
    ///
    /// # Errors
    /// There are too many.
    pub fn invite(&self) -> Result<Ticket, TransferError> {
        self.host.invite()
    }

    /// Takes a ticket back and sends its opener away: its connections and queue pairs are ended.
    /// When this returns `Ok`, nothing of that opener touches memory of this engine, and it
    /// cannot come back. Of a ticket that is not known there is nothing to end.
    ///
    /// # Errors
    /// [`TransferError::StillServed`] when connections are still in use after `timeout`; nobody
    /// can come back all the same, and this can be tried again.
    pub fn expel(&self, ticket: &Ticket, timeout: Duration) -> Result<(), TransferError> {
        self.host.expel(ticket, timeout)
    }

    /// Opens the engine that listens at `addresses`: each of them is a rail.
    ///
    /// # Errors
    /// It cannot be reached over any transport that may be used, or is no transfer engine.
    pub fn open(&self, addresses: &[SocketAddr]) -> Result<Peer, TransferError> {
        self.open_with(addresses, None)
    }

    /// As [`TransferEngine::open`], with a ticket that the other engine gave out.
    ///
    /// # Errors
    /// As for [`TransferEngine::open`]; also when the ticket was taken back.
    pub fn open_as(
        &self,
        addresses: &[SocketAddr],
        ticket: &Ticket,
    ) -> Result<Peer, TransferError> {
        self.open_with(addresses, Some(ticket))
    }

    fn open_with(
        &self,
        addresses: &[SocketAddr],
        ticket: Option<&Ticket>,
    ) -> Result<Peer, TransferError> {
        let name = names(addresses);
        let count = addresses.len() as u64;
        if !(1..=RAIL_COUNT_MAX as u64).contains(&count) {
            let max = RAIL_COUNT_MAX as u64;
            return Err(TransferError::Setting {
                field: "addresses",
                value: count,
                min: 1,
                max,
            });
        }
        let timeout = self.config.stall_timeout;
        let control = Arc::new(Control::new(addresses.to_vec(), timeout, ticket));
        let (shared, is_alone) = self.shared(&name, &control)?;
        let rails = if is_alone {
            Vec::new()
        } else {
            self.rails(&name, addresses, &control)?
        };
        let traits = |rail: &dyn Rail| RailTraits {
            kind: rail.link().kind,
            rank: u8::from(rail.link().kind != TransportKind::Tcp),
            bandwidth: rail.link().bandwidth,
            distances: self
                .config
                .topology
                .distances(rail.link().device.as_deref()),
        };
        let links = rails
            .iter()
            .map(|rail| (rail.link().clone(), traits(rail.as_ref())));
        let times = LinkTimes {
            stall: self.config.stall_timeout,
            lost: self.config.lost_timeout,
            rest_max: self.config.rest_max,
        };
        let link = Arc::new(Link::new(links.collect(), self.config.slice_len, times)?);
        let mut peer = Peer {
            name,
            link: Arc::clone(&link),
            control: Arc::clone(&control),
            shared,
            regions: Mutex::new(Vec::new()),
            threads: Vec::new(),
        };
        for (ix, rail) in rails.into_iter().enumerate() {
            let driver = Driver::new(Arc::clone(&link), Arc::clone(&control), rail, ix);
            peer.threads
                .push(thread(&format!("transfer-rail-{ix}"), move || {
                    driver.run()
                })?);
        }
        peer.refresh()?;
        Ok(peer)
    }

    /// Reaches a peer on this host, if it is one and that may be; whether no other way may be.
    fn shared(
        &self,
        name: &str,
        control: &Control,
    ) -> Result<(Option<Arc<SharedPeer>>, bool), TransferError> {
        let kind = TransportKind::SharedMemory;
        if !self.config.transports.allows(kind) {
            return Ok((None, false));
        }
        let is_alone = self.config.transports == TransportChoice::Only(kind);
        let mut shared = AskTransport { control, kind };
        let mut tcp = AskTransport {
            control,
            kind: TransportKind::Tcp,
        };
        let timeout = self.config.stall_timeout;
        match SharedPeer::connect(&mut shared, &mut tcp, timeout) {
            Ok(peer) => Ok((Some(Arc::new(peer)), is_alone)),
            Err(cause) if is_alone => Err(TransferError::Unreachable {
                peer: name.to_owned(),
                kinds: kind.to_string(),
                cause,
            }),
            Err(cause) => {
                tracing::debug!(peer = name, %cause, "a peer is not reached over shared memory");
                Ok((None, false))
            }
        }
    }

    /// Makes rails of all transports that may be used. Of each kind at least one works.
    fn rails(
        &self,
        name: &str,
        addresses: &[SocketAddr],
        control: &Control,
    ) -> Result<Vec<Box<dyn Rail>>, TransferError> {
        let mut rails: Vec<Box<dyn Rail>> = Vec::new();
        let mut last = RailError::Refused("no transport may be used");
        for transport in &self.host.transports {
            let mut peer = AskTransport {
                control,
                kind: transport.kind(),
            };
            match transport.connect(&mut peer) {
                Ok(made) => rails.extend(made),
                Err(error) => {
                    let kind = transport.kind();
                    tracing::warn!(peer = name, %kind, %error, "a peer goes without this transport");
                    last = RailError::Device {
                        op: "connect",
                        what: error.to_string(),
                    };
                }
            }
        }
        if self.config.transports.allows(TransportKind::Tcp) {
            let mut peer = AskTransport {
                control,
                kind: TransportKind::Tcp,
            };
            let mut is_any = false;
            for (number, &address) in addresses.iter().enumerate() {
                let timeout = self.config.stall_timeout;
                let mut rail = TcpRail::new(address, number as u32, timeout);
                match rail.revive(&mut peer) {
                    Ok(()) => is_any = true,
                    Err(error) => {
                        tracing::warn!(peer = name, %address, %error, "a rail is down");
                        last = error;
                    }
                }
                rails.push(Box::new(rail));
            }
            if !is_any {
                rails.retain(|rail| rail.link().kind != TransportKind::Tcp);
            }
        }
        if rails.is_empty() {
            return Err(TransferError::Unreachable {
                peer: name.to_owned(),
                kinds: format!("{:?}", self.config.transports).to_lowercase(),
                cause: last,
            });
        }
        Ok(rails)
    }
}

fn names(addresses: &[SocketAddr]) -> String {
    let names: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    names.join(",")
}

fn thread(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, TransferError> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map_err(|source| TransferError::Os {
        op: "start a thread",
        source,
    })
}

impl Drop for TransferEngine {
    fn drop(&mut self) {
        self.host.close();
        if let Some(shared) = &self.host.shared {
            shut_down(shared.as_raw_fd());
        }
        if let Some(thread) = self.shared_thread.take() {
            // A thread that panicked has ended.
            let _ = thread.join();
        }
        for listening in &mut self.listening {
            shut_down(listening.listener.as_raw_fd());
            if let Some(thread) = listening.thread.take() {
                // A thread that panicked has ended.
                let _ = thread.join();
            }
        }
        for id in self.host.regions.ids() {
            for transport in &self.host.transports {
                transport.unregister(id);
            }
        }
    }
}
