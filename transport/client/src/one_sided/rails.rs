//! The rails of a connection: asked for before its first use for one-sided access, and again when the
//! node took them back.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_lock::RwLockReadGuard;
use futures_lite::FutureExt;
use terrace_fabric::thread::{leave_to_thread, on_thread};
use terrace_fabric::transfer::{Peer, RegionId, RemoteRegion, Ticket};
use terrace_wire::{
    Endpoint, ErrorCode, Features, Reply, Transport, Verb, limits::RAILS_MAX, rails as codec,
};

use super::Reach;
use super::engine::Engine;
use crate::connection::{Connection, Frame, address_of, resolve};
use crate::error::{Cause, Failure};
use crate::fan_out::Plan;
use crate::pool::{Counters, Pools};
use crate::time::now;
use crate::wait::Sleep;

/// How long asking for rails may take: as long as the engine takes to find that nobody answers.
const ASK_MAX: Duration = Duration::from_secs(3);

/// Wait before a connection asks again when it got none; it doubles with each failure.
const REST_FIRST: Duration = Duration::from_secs(1);

/// Longest wait, after which a node that was told to grant them is found.
const REST_MAX: Duration = Duration::from_secs(60);

/// The node's engine, opened with a ticket of it.
pub(crate) struct Opened {
    ticket: Ticket,
    /// Taken when this is dropped.
    peer: Option<Peer>,
    /// Outlives the peer, whose threads use it.
    engine: Arc<Engine>,
}

impl Opened {
    pub(super) fn peer(&self) -> Result<&Peer, Failure> {
        let gone = || Failure::one_sided("the node's engine was closed");
        self.peer.as_ref().ok_or_else(gone)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (peer, engine) = (self.peer.take(), Arc::clone(&self.engine));
        // It waits for its threads.
        leave_to_thread("terrace-close", move || {
            drop(peer);
            drop(engine);
        });
    }
}

/// By which blocks that a shard leases are read.
pub(crate) struct Rails {
    pub(super) opened: Arc<Opened>,
    /// Where they lie.
    pub(super) region: Arc<RemoteRegion>,
    /// They were taken back, or are to be asked for again for another reason.
    are_lost: AtomicBool,
    /// Nothing could be read by them.
    are_down: AtomicBool,
    /// Something was read by them.
    have_read: AtomicBool,
    /// When the node may be asked to pull, if it could not.
    no_pulls_before: Mutex<Option<Instant>>,
}

impl Rails {
    fn new(opened: Arc<Opened>, region: Arc<RemoteRegion>) -> Self {
        Self {
            opened,
            region,
            are_lost: AtomicBool::new(false),
            are_down: AtomicBool::new(false),
            have_read: AtomicBool::new(false),
            no_pulls_before: Mutex::default(),
        }
    }

    /// Notes that others are to be asked for.
    pub(crate) fn lose(&self) {
        self.are_lost.store(true, Ordering::Relaxed);
    }

    /// Notes that nothing can be read by them.
    pub(super) fn fail(&self) {
        self.are_down.store(true, Ordering::Relaxed);
        self.lose();
    }

    /// Notes that something was read by them.
    pub(super) fn use_well(&self) {
        self.have_read.store(true, Ordering::Relaxed);
    }

    /// Notes that the node cannot pull, and is not to be asked for a while.
    pub(super) fn put_off_pulls(&self, rest: Duration) {
        let before = self.no_pulls_before.lock();
        *before.unwrap_or_else(PoisonError::into_inner) = Some(now() + rest);
    }

    /// Whether the node may be asked to pull.
    pub(super) fn take_pulls(&self) -> bool {
        let before = self.no_pulls_before.lock();
        let before = before.unwrap_or_else(PoisonError::into_inner);
        before.is_none_or(|before| now() >= before)
    }

    /// Whether these are the same way to the same memory as others by which nothing could be read.
    fn are_still_down(&self, lost: &Self) -> bool {
        lost.are_down.load(Ordering::Relaxed)
            && Arc::ptr_eq(&self.opened, &lost.opened)
            && self.region.id == lost.region.id
    }
}

/// What a connection has of rails.
#[derive(Default)]
pub(crate) struct RailsSlot {
    rails: Option<Arc<Rails>>,
    /// In a row, with nothing read in between.
    failures: u32,
    /// The last failure, and when another attempt may follow.
    failed: Option<(Failure, Instant)>,
}

impl std::fmt::Debug for RailsSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RailsSlot")
            .field("has_rails", &self.rails.is_some())
            .field("failures", &self.failures)
            .finish()
    }
}

impl RailsSlot {
    /// What there is, unless it was lost; the failure of a moment ago.
    fn ready(&self) -> Option<Result<Arc<Rails>, Failure>> {
        let are_lost = |rails: &Arc<Rails>| rails.are_lost.load(Ordering::Relaxed);
        if let Some(rails) = self.rails.as_ref().filter(|rails| !are_lost(rails)) {
            return Some(Ok(Arc::clone(rails)));
        }
        let (failure, not_before) = self.failed.as_ref()?;
        (now() < *not_before).then(|| Err(failure.clone()))
    }

    fn note(&mut self, asked: Result<Rails, Failure>) {
        match asked {
            Ok(rails) => {
                self.rails = Some(Arc::new(rails));
                self.failed = None;
            }
            Err(failure) => {
                let rest = REST_FIRST.saturating_mul(1 << self.failures.min(10));
                self.failures = self.failures.saturating_add(1);
                self.failed = Some((failure, now() + rest.min(REST_MAX)));
                self.rails = None;
            }
        }
    }
}

/// Rails that are in force on a connection as long as this is held.
pub(crate) struct InForce<'a> {
    pub(crate) rails: Arc<Rails>,
    _slot: RwLockReadGuard<'a, RailsSlot>,
}

impl Pools {
    /// The rails of a connection. Asks the node when there are none, or they were lost.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) async fn rails<'c>(
        &self,
        reach: &Reach,
        connection: &'c Arc<Connection>,
        plan: Plan,
    ) -> Result<InForce<'c>, Failure> {
        if !connection.terms().features.has(Features::ONE_SIDED) {
            return Err(Failure::one_sided("the node grants none"));
        }
        loop {
            let slot = connection.rails().read().await;
            if let Some(ready) = slot.ready() {
                let rails = ready?;
                return Ok(InForce { rails, _slot: slot });
            }
            drop(slot);
            let mut slot = connection.rails().write().await;
            if slot.ready().is_some() {
                continue;
            }
            let lost = slot.rails.take();
            if let Some(lost) = &lost {
                Counters::add(&self.counters.rails_lost, 1);
                if lost.have_read.load(Ordering::Relaxed) {
                    slot.failures = 0;
                }
            }
            // The other half is for going without.
            let left = plan.deadline.saturating_duration_since(now());
            let span = ASK_MAX.min(left / 2);
            let late = async {
                Sleep::lasting(span).await;
                Err(Failure::one_sided(format_args!("no rails within {span:?}")))
            };
            let asked = reach.ask(connection).or(late).await;
            // The engine goes on trying them.
            let asked = asked.and_then(|rails| match lost {
                Some(lost) if rails.are_still_down(&lost) => {
                    Err(Failure::one_sided("the rails are down"))
                }
                _ => Ok(rails),
            });
            if asked.is_ok() {
                Counters::add(&self.counters.rails, 1);
            }
            slot.note(asked);
        }
    }
}

/// What a node said of its engine.
struct Told {
    ticket: Ticket,
    region: RegionId,
    places: Vec<Arc<str>>,
}

impl Reach {
    //= docs/wire-protocol.md#WP-28
    async fn ask(&self, connection: &Arc<Connection>) -> Result<Rails, Failure> {
        let engine = self.engine().await?;
        let told = wanted(&engine, connection).await?;
        let mut addresses = Vec::with_capacity(told.places.len());
        for place in &told.places {
            addresses.extend(resolve(place).await?.first().copied());
        }
        let opened = self.open(engine, told.ticket, addresses).await?;
        let region = opened.region(told.region).await?;
        Ok(Rails::new(opened, region))
    }

    /// The node's engine, opened with `ticket`, unless it is already.
    async fn open(
        &self,
        engine: Arc<Engine>,
        ticket: Ticket,
        addresses: Vec<SocketAddr>,
    ) -> Result<Arc<Opened>, Failure> {
        let mut current = self.opened.lock().await;
        if let Some(opened) = current.as_ref().filter(|opened| opened.ticket == ticket) {
            return Ok(Arc::clone(opened));
        }
        let open = move || {
            let peer = engine.transfer.open_as(&addresses, &ticket)?;
            let peer = Some(peer);
            Ok(Opened {
                ticket,
                peer,
                engine,
            })
        };
        let opened = on_thread("terrace-open", open).await;
        let opened: Result<_, terrace_fabric::transfer::TransferError> =
            opened.map_err(Failure::one_sided)?;
        let opened = Arc::new(opened.map_err(Failure::one_sided)?);
        *current = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

impl Opened {
    /// A region of the node; it is asked for its list when that is not in the one it told of.
    async fn region(self: &Arc<Self>, id: RegionId) -> Result<Arc<RemoteRegion>, Failure> {
        if let Some(region) = self.peer()?.region(id) {
            return Ok(region);
        }
        let opened = Arc::clone(self);
        let refreshed = on_thread("terrace-regions", move || {
            let refreshed = opened.peer.as_ref().map(Peer::refresh);
            refreshed.transpose()
        });
        let refreshed = refreshed.await.map_err(Failure::one_sided)?;
        refreshed.map_err(Failure::one_sided)?;
        let missing = || Failure::one_sided("the region that the node named is not there");
        self.peer()?.region(id).ok_or_else(missing)
    }
}

/// Asks for rails: shows where this program's engine listens, and takes what the node tells.
async fn wanted(engine: &Engine, connection: &Arc<Connection>) -> Result<Told, Failure> {
    let hosts: Vec<(String, u16)> = engine
        .transfer
        .addresses()
        .iter()
        .map(|address| (address.ip().to_string(), address.port()))
        .take(RAILS_MAX.into())
        .collect();
    let ticket = engine.invited.map_or([0; 16], |ticket| ticket.bytes());
    let encode = |id, out: &mut [u8]| {
        let endpoints = (0..).zip(&hosts).map(|(rail, (host, port))| Endpoint {
            shard: None,
            port: *port,
            rail,
            transport: Transport::Tcp,
            host,
        });
        codec::encode_wanted(id, &ticket, endpoints, out)
    };
    let frame = Frame {
        verb: Verb::Rails,
        entries: 0,
        values: &[],
        namespace: None,
    };
    let mut call = connection.send(frame, &encode).await?;
    let arrived = call.receive().await?;
    let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
    let found = match reply {
        Reply::Rails(found) => found,
        Reply::Error(error) => return Err(call.refusal(&error, 0)),
        _ => return Err(Failure::protocol("rails were not answered by rails")),
    };
    let here = connection.address();
    let here = here.rsplit_once(':').map_or("", |(host, _)| host);
    let endpoints = found.endpoints.iter();
    let endpoints = endpoints.filter(|endpoint| endpoint.transport == Transport::Tcp);
    let places = endpoints.map(|endpoint| Arc::from(address_of(endpoint, here)));
    Ok(Told {
        ticket: Ticket::from_bytes(found.terms.ticket),
        region: RegionId {
            slot: found.terms.slot,
            epoch: found.terms.epoch,
        },
        places: places.collect(),
    })
}

/// Whether a node answered that the rails were taken back.
pub(crate) fn are_taken_back(failure: &Failure) -> bool {
    let code = ErrorCode::NoRails;
    matches!(&failure.cause, Cause::Rejected { code: found, .. } if *found == code)
}
