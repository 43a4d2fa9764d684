//! A peer that was opened: its regions, and transfers to and from them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use super::clock::now;
use super::control::Control;
use super::error::{RailError, RequestError, Status, TransferError};
use super::flight::{CheckedRequest, Flight, PinnedPart};
use super::limits::{BATCH_COUNT_MAX, NOTIFICATION_LEN_MAX, PART_COUNT_MAX, REQUEST_LEN_MAX};
use super::link::{Link, RailReport};
use super::region::{RegionId, RemoteRegion};
use super::request::{BatchOptions, LocalPart, Priority, Request};
use super::shm::{Lease, SharedPeer, SharedWork};
use super::transport::{Operation, TransportKind, TransportSet};
use super::wire::{MessageKind, decode_regions};

/// A peer. Dropping it ends its transfers as [`Status::Cancelled`].
pub struct Peer {
    pub(super) name: String,
    pub(super) link: Arc<Link>,
    pub(super) control: Arc<Control>,
    /// None: it is on another host, or that way may not be taken.
    pub(super) shared: Option<Arc<SharedPeer>>,
    pub(super) regions: Mutex<Vec<Arc<RemoteRegion>>>,
    pub(super) threads: Vec<JoinHandle<()>>,
}

impl Peer {
    /// The regions that the peer told of when it was opened, or at the last [`Peer::refresh`].
    #[must_use]
    pub fn regions(&self) -> Vec<Arc<RemoteRegion>> {
        self.regions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The region of that name, if the peer told of it.
    #[must_use]
    pub fn region(&self, id: RegionId) -> Option<Arc<RemoteRegion>> {
        self.regions().into_iter().find(|region| region.id == id)
    }

    /// Asks the peer for its regions again.
    ///
    /// # Errors
    /// The peer cannot be reached, or says something else.
    pub fn refresh(&self) -> Result<(), TransferError> {
        let list = self.call(MessageKind::Regions, &[])?;
        let regions = decode_regions(&list).ok_or_else(|| TransferError::Protocol {
            peer: self.name.clone(),
            what: "its list of regions is none",
        })?;
        let regions = regions.into_iter().map(Arc::new).collect();
        *self.regions.lock().unwrap_or_else(PoisonError::into_inner) = regions;
        Ok(())
    }

    fn call(&self, kind: MessageKind, body: &[u8]) -> Result<Vec<u8>, TransferError> {
        self.control.call(kind, body).map_err(|error| match error {
            RailError::Refused(what) => TransferError::Refused {
                peer: self.name.clone(),
                what,
            },
            cause => TransferError::Unreachable {
                peer: self.name.clone(),
                kinds: "tcp".to_owned(),
                cause,
            },
        })
    }

    /// Sends a few bytes that the peer's program takes with
    /// [`super::TransferEngine::notification`]. When this returns it has them.
    ///
    /// # Errors
    /// They are too many, or the peer cannot be reached or has too many already. After an error
    /// it may have them.
    pub fn notify(&self, bytes: &[u8]) -> Result<(), TransferError> {
        let (len, max) = (bytes.len(), NOTIFICATION_LEN_MAX);
        if len > max {
            return Err(TransferError::NotificationLength { len, max });
        }
        self.call(MessageKind::Notify, bytes).map(drop)
    }

    /// What each rail to the peer is and has done.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        self.link.report()
    }

    /// Begins a batch of reads and writes. Its requests may end in any order.
    ///
    /// # Errors
    /// The first request that cannot be, by its place; nothing was begun then. What only the
    /// peer knows is a request's [`Status`] instead.
    pub fn submit(
        &self,
        requests: &[Request],
        options: BatchOptions,
    ) -> Result<Transfer, TransferError> {
        let (count, max) = (requests.len(), BATCH_COUNT_MAX);
        if count == 0 || count > max {
            return Err(TransferError::BatchCount { count, max });
        }
        let checked = requests
            .iter()
            .enumerate()
            .map(|(index, request)| {
                check(request).map_err(|cause| TransferError::Request { index, cause })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let is_urgent = options.priority == Priority::Urgent;
        let deadline = now().checked_add(options.timeout);
        let flight = Flight::new(checked, is_urgent, deadline);
        // What the peer's own list refuses needs no rail.
        for (index, request) in flight.requests.iter().enumerate() {
            if let Some(status) = refusal(request) {
                flight.finish(index, status);
            }
        }
        let link = Arc::clone(&self.link);
        let may_share = may_share(&flight);
        let has_rails = !self.threads.is_empty();
        // Rails find a peer that has started again; a mapping of what it was before does not.
        let is_usable = |shared: &&Arc<SharedPeer>| may_share && !(has_rails && shared.is_gone());
        if let Some(shared) = self.shared.as_ref().filter(is_usable) {
            let work = SharedWork::new(Arc::clone(shared));
            return Ok(Transfer {
                flight,
                link,
                work: Some(work),
                is_verified: true,
            });
        }
        if has_rails {
            self.link.submit(&flight);
        } else {
            flight.fail_all(Status::AccessDenied);
        }
        Ok(Transfer {
            flight,
            link,
            work: None,
            is_verified: false,
        })
    }

    /// Takes a lease on bytes of a region of a peer on this host: they are read where they are.
    ///
    /// # Errors
    /// The duration is outside its limits, or the peer is not reached over shared memory. What
    /// the peer refuses, or does not have, is a [`Status`].
    pub fn lease(
        &self,
        region: &RemoteRegion,
        offset: u64,
        len: u64,
        duration: Duration,
    ) -> Result<Result<Lease, Status>, TransferError> {
        let shared = self
            .shared
            .as_ref()
            .ok_or_else(|| TransferError::Transport {
                kind: TransportKind::SharedMemory,
                what: format!("{} is not reached over it", self.name),
            })?;
        shared.lease(region, offset, len, duration)
    }

    /// Whether transfers of this peer's shared regions go over memory of this host.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.shared.is_some()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.link.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended.
            let _ = thread.join();
        }
    }
}

/// Checks a request's local side and lengths, and keeps its regions in use.
fn check(request: &Request) -> Result<CheckedRequest, RequestError> {
    for count in [request.local.len(), request.remote.len()] {
        if count == 0 || count > PART_COUNT_MAX {
            return Err(RequestError::PartCount {
                count,
                max: PART_COUNT_MAX,
            });
        }
    }
    let (local, remote) = (request.local.iter(), request.remote.iter());
    let local = total(local.map(|part| part.len))?;
    let remote = total(remote.map(|part| part.len))?;
    if local != remote {
        return Err(RequestError::LengthsDiffer { local, remote });
    }
    let locals = request.local.iter().map(|part| part.region.kinds());
    let remotes = request.remote.iter().map(|part| part.region.kinds());
    Ok(CheckedRequest {
        kinds: locals
            .chain(remotes)
            .fold(TransportSet::ALL, TransportSet::common),
        operation: request.operation,
        local: request.local.iter().map(pinned).collect::<Result<_, _>>()?,
        remote: request.remote.clone(),
        expected: request
            .expected
            .filter(|_| request.operation == Operation::Read),
    })
}

fn total(lens: impl Iterator<Item = u64>) -> Result<u64, RequestError> {
    let mut sum: u64 = 0;
    for (part, len) in lens.enumerate() {
        if len == 0 {
            return Err(RequestError::EmptyPart { part });
        }
        sum = sum.saturating_add(len);
    }
    let max = REQUEST_LEN_MAX;
    (sum <= max)
        .then_some(sum)
        .ok_or(RequestError::Length { len: sum, max })
}

fn pinned(part: &LocalPart) -> Result<PinnedPart, RequestError> {
    let LocalPart {
        region,
        offset,
        len,
    } = part;
    let (offset, len) = (*offset, *len);
    if !region.memory().holds(offset, len) {
        let region_len = region.len();
        return Err(RequestError::OutOfBounds {
            offset,
            len,
            region_len,
        });
    }
    let region = region
        .pin()
        .ok_or(RequestError::Unregistered { id: region.id() })?;
    Ok(PinnedPart {
        region,
        offset,
        len,
    })
}

/// What the peer would refuse a request with, as far as its list of regions tells.
fn refusal(request: &CheckedRequest) -> Option<Status> {
    request.remote.iter().find_map(|part| {
        let may = match request.operation {
            Operation::Read => part.region.access.may_read(),
            Operation::Write => part.region.access.may_write(),
        };
        let is_inside = part.offset <= part.region.len && part.len <= part.region.len - part.offset;
        match (may, is_inside) {
            (false, _) => Some(Status::AccessDenied),
            (_, false) => Some(Status::OutOfBounds),
            _ => None,
        }
    })
}

/// Whether all of a batch can go over shared memory.
fn may_share(flight: &Flight) -> bool {
    flight.requests.iter().all(|request| {
        let mut remote = request.remote.iter();
        let mut local = request.local.iter();
        remote.all(|part| part.region.key(TransportKind::SharedMemory).is_some())
            && local.all(|part| part.region.memory().is_host())
    })
}

/// Bytes that a transfer over shared memory moves before it looks at the time again, or lets an
/// executor's other tasks run: less than 0.2 ms.
const SHARED_STEP_LEN: u64 = 1 << 20;

/// A batch under way. It can be polled, waited for, awaited and cancelled. Dropping it cancels
/// what is left without waiting: the memory stays registered until that is over.
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer {
    flight: Arc<Flight>,
    link: Arc<Link>,
    /// Over shared memory it is moved by who waits for it.
    work: Option<SharedWork>,
    is_verified: bool,
}

impl Transfer {
    /// The status of each request as it is now. Over shared memory this moves some of it.
    /// Checksums are verified when all are over, by who
    /// asks first.
    pub fn statuses(&mut self) -> Vec<Status> {
        self.advance(SHARED_STEP_LEN);
        if self.flight.is_over() {
            self.verify();
        }
        self.flight.statuses()
    }

    /// Whether every request is final.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.flight.is_over()
    }

    /// Waits until every request is final; their statuses. `None`: that did not come within
    /// `timeout`, and the transfer goes on.
    pub fn wait(&mut self, timeout: Duration) -> Option<Vec<Status>> {
        if self.work.is_some() {
            let begun = now();
            while !self.flight.is_over() {
                self.advance(SHARED_STEP_LEN);
                if begun.elapsed() >= timeout {
                    break;
                }
            }
        }
        self.flight.wait(timeout).then(|| self.statuses())
    }

    /// Moves what goes over shared memory, about `budget` bytes of it.
    fn advance(&mut self, budget: u64) {
        if let Some(work) = self.work.as_mut().filter(|_| !self.flight.is_over()) {
            work.advance(&self.flight, budget);
        }
    }

    /// Ends what is not done. When this returns, nothing touches the local memory, and nothing
    /// more is written at a peer that can be reached; the statuses say how each request ended.
    #[must_use]
    pub fn cancel(mut self) -> Vec<Status> {
        self.link.end(&self.flight, Status::Cancelled);
        // Over shared memory nothing moves but while it is waited for.
        if self.work.is_none() {
            self.link.wait_quiet(&self.flight);
        }
        self.statuses()
    }

    fn verify(&mut self) {
        if std::mem::replace(&mut self.is_verified, true) {
            return;
        }
        let statuses = self.flight.statuses();
        for (index, request) in self.flight.requests.iter().enumerate() {
            let Some(expected) = request.expected.filter(|_| statuses[index] == Status::Done)
            else {
                continue;
            };
            let mut hash = Xxh3::with_seed(expected.seed);
            for part in &request.local {
                part.region.memory().hash(part.offset, part.len, &mut hash);
            }
            if hash.digest() != expected.checksum {
                self.flight.set_mismatch(index);
            }
        }
    }
}

impl Future for Transfer {
    type Output = Vec<Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Status>> {
        self.advance(SHARED_STEP_LEN);
        if self.flight.is_over_or_wake(context.waker()) {
            return Poll::Ready(self.statuses());
        }
        if self.work.is_some() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.flight.is_over() {
            self.link.end(&self.flight, Status::Cancelled);
        }
    }
}
