//! The opener's side: maps a peer's regions, and reads and writes them itself.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};

use super::host::{address, boot_id};
use super::map::{RemoteMap, Sum};
use super::words::SharedWords;
use super::{Answer, LEASE_MILLIS_MAX, Question, receive_answer};
use crate::transfer::clock::now;
use crate::transfer::error::{RailError, Status, TransferError};
use crate::transfer::flight::{CheckedRequest, Cursor, Cut, Flight};
use crate::transfer::region::{RegionId, RemoteRegion};
use crate::transfer::request::Expected;
use crate::transfer::tcp::{greet, question, timed_out};
use crate::transfer::transport::{Ask, Operation};
use crate::transfer::wire::{Purpose, Token};

/// Bytes copied and then hashed at once: they stay in the processor's second-level cache.
const PIECE_LEN: u64 = 128 << 10;

/// Bytes of a request that are copied and hashed at once when they are contiguous: hashing all of
/// them by one call makes up for the cache they do not fit.
const AT_ONCE_LEN: u64 = 1 << 20;

/// A peer on this host.
pub(in crate::transfer) struct SharedPeer {
    stream: Mutex<UnixStream>,
    epochs: SharedWords,
    uses: SharedWords,
    maps: Mutex<HashMap<RegionId, Arc<RemoteMap>>>,
}

impl SharedPeer {
    /// Reaches a peer over shared memory; `shared` and `tcp` ask its transports.
    pub(in crate::transfer) fn connect(
        shared: &mut dyn Ask,
        tcp: &mut dyn Ask,
        timeout: Duration,
    ) -> Result<Self, RailError> {
        let location = shared.ask(&[])?;
        let boot = boot_id().map_err(RailError::os("read the name of this boot"))?;
        let name = location
            .strip_prefix(&boot[..])
            .ok_or(RailError::Refused("it is on another host"))?;
        let token = tcp.ask(&[question::TOKEN])?;
        let token: Token = token
            .try_into()
            .map_err(|_| RailError::Protocol("its token has a wrong length"))?;
        let address = address(name).map_err(RailError::os("name a socket"))?;
        let mut stream = UnixStream::connect_addr(&address)
            .map_err(RailError::os("connect to a peer on this host"))?;
        stream
            .set_read_timeout(Some(timeout))
            .and_then(|()| stream.set_write_timeout(Some(timeout)))
            .map_err(RailError::os("prepare a socket"))?;
        greet(&mut stream, Purpose::SharedMemory, token, timeout)?;
        let Answer { fds, .. } = exchange(&stream, Question::Tables)?;
        let [epochs, uses] =
            <[_; 2]>::try_from(fds).map_err(|_| RailError::Protocol("it sent no tables"))?;
        let failed = |cause| RailError::Os {
            op: "map a table of the peer's",
            source: std::io::Error::from(cause),
        };
        Ok(Self {
            stream: Mutex::new(stream),
            epochs: SharedWords::open(epochs, false).map_err(failed)?,
            uses: SharedWords::open(uses, true).map_err(failed)?,
            maps: Mutex::default(),
        })
    }

    fn ask(&self, question: Question) -> Result<Answer, Status> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        exchange(&stream, question).map_err(|_| Status::PeerLost)
    }

    /// Whether the peer has left. Its memory is still mapped, and means nothing.
    pub(in crate::transfer) fn is_gone(&self) -> bool {
        use std::os::fd::AsRawFd;
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        !matches!(
            recv(stream.as_raw_fd(), &mut [0], flags),
            Err(nix::Error::EAGAIN)
        )
    }

    /// The mapping of a region, made when it is first asked for.
    fn map(&self, region: &RemoteRegion) -> Result<Arc<RemoteMap>, Status> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = maps.get(&region.id) {
            return Ok(Arc::clone(map));
        }
        let Answer { status, value, fds } = self.ask(Question::Map(region.id))?;
        if status != Status::Done {
            return Err(status);
        }
        let memfd = fds.first().ok_or(Status::PeerLost)?;
        let map = RemoteMap::new(memfd, value, region.access.may_write())
            .or_else(|_| RemoteMap::new(memfd, value, false))
            .map_err(|_| Status::AccessDenied)?;
        let map = Arc::new(map);
        // Regions that were unregistered meanwhile are not kept mapped for ever.
        maps.retain(|id, _| self.is_current(*id));
        maps.insert(region.id, Arc::clone(&map));
        Ok(map)
    }

    fn is_current(&self, id: RegionId) -> bool {
        let epoch = self
            .epochs
            .word(id.slot)
            .map(|word| word.load(Ordering::SeqCst));
        epoch == Some(id.epoch)
    }

    /// Counts an access, if the region is still the one that is named.
    fn access(&self, id: RegionId) -> Result<Accessing<'_>, Status> {
        let word = self.uses.word(id.slot).ok_or(Status::UnknownRegion)?;
        word.fetch_add(1, Ordering::SeqCst);
        let accessing = Accessing(word);
        // In this order: an owner that clears the epoch afterwards sees the count.
        if self.is_current(id) {
            Ok(accessing)
        } else {
            Err(Status::StaleRegion)
        }
    }

    fn move_piece(
        &self,
        request: &CheckedRequest,
        cut: &Cut,
        sum: Option<&mut Sum>,
    ) -> Result<(), Status> {
        let region = &request.remote[cut.remote].region;
        let map = self.map(region)?;
        if !map.holds(cut.remote_offset, cut.len) {
            return Err(Status::OutOfBounds);
        }
        let _accessing = self.access(region.id)?;
        let local = request.local[cut.local].region.memory();
        match request.operation {
            Operation::Read => {
                map.read(cut.remote_offset, local, cut, sum);
            }
            Operation::Write if map.is_writable => {
                map.write(cut.remote_offset, local, cut.local_offset, cut.len);
            }
            Operation::Write => return Err(Status::AccessDenied),
        }
        Ok(())
    }

    /// Takes a lease on bytes of a region, and maps them.
    pub(in crate::transfer) fn lease(
        self: &Arc<Self>,
        region: &RemoteRegion,
        offset: u64,
        len: u64,
        duration: Duration,
    ) -> Result<Result<Lease, Status>, TransferError> {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        if !(1..=LEASE_MILLIS_MAX).contains(&millis) {
            return Err(TransferError::Setting {
                field: "lease in ms",
                value: millis,
                min: 1,
                max: LEASE_MILLIS_MAX,
            });
        }
        // Counted from before the question: the owner's end of it is never earlier.
        let until = now() + Duration::from_millis(millis);
        let leased = || {
            let map = self.map(region)?;
            if !map.holds(offset, len) {
                return Err(Status::OutOfBounds);
            }
            let question = Question::Lease {
                region: region.id,
                offset,
                len,
                millis,
            };
            let Answer {
                status, value: id, ..
            } = self.ask(question)?;
            if status != Status::Done {
                return Err(status);
            }
            Ok(Lease {
                peer: Arc::clone(self),
                map,
                offset,
                len,
                until,
                id,
            })
        };
        Ok(leased())
    }
}

fn exchange(mut stream: &UnixStream, question: Question) -> Result<Answer, RailError> {
    let timeout = stream.read_timeout().ok().flatten().unwrap_or_default();
    stream
        .write_all(&question.encode())
        .and_then(|()| receive_answer(stream))
        .map_err(timed_out("ask a peer on this host", timeout))
}

/// An access under way.
struct Accessing<'a>(&'a std::sync::atomic::AtomicU64);

impl Drop for Accessing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes of a peer's region, by reference, for the life of a lease: the owner keeps the region
/// registered until then, and is told which bytes are leased. It can still write them; a checksum
/// tells. Dropping the lease releases it.
pub struct Lease {
    peer: Arc<SharedPeer>,
    map: Arc<RemoteMap>,
    offset: u64,
    len: u64,
    until: Instant,
    id: u64,
}

impl Lease {
    /// Count of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a lease has at least one byte")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether the lease lives. Afterwards the bytes may be anything.
    #[must_use]
    pub fn is_live(&self) -> bool {
        now() < self.until
    }

    /// The first byte's address while the lease lives. It stays mapped as long as this value;
    /// its bytes may change under a reader, so it is no reference.
    #[must_use]
    pub fn address(&self) -> Option<NonNull<u8>> {
        self.is_live().then(|| self.map.at(self.offset, self.len))
    }

    /// Copies the first `target.len()` bytes; whether the lease lived until that was done and
    /// there were so many.
    #[must_use]
    pub fn copy_to(&self, target: &mut [u8]) -> bool {
        let fits = target.len() as u64 <= self.len;
        if fits && self.is_live() {
            self.map.copy_to(self.offset, target);
        }
        fits && self.is_live()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let stream = self
            .peer
            .stream
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A peer that cannot be told lets the lease run out.
        let _ = (&*stream).write_all(&Question::Release { lease: self.id }.encode());
    }
}

/// A batch over shared memory: it moves when who waits for it lets it.
pub(in crate::transfer) struct SharedWork {
    peer: Arc<SharedPeer>,
    request: usize,
    cursor: Cursor,
    sum: Option<Sum>,
}

impl SharedWork {
    pub(in crate::transfer) const fn new(peer: Arc<SharedPeer>) -> Self {
        Self {
            peer,
            request: 0,
            cursor: Cursor::START,
            sum: None,
        }
    }

    /// Moves about `budget` bytes.
    pub(in crate::transfer) fn advance(&mut self, flight: &Flight, mut budget: u64) {
        let is_late = flight.deadline.is_some_and(|deadline| deadline <= now());
        if is_late || self.peer.is_gone() {
            let status = if is_late {
                Status::DeadlineExceeded
            } else {
                Status::PeerLost
            };
            flight.fail_all(status);
            self.request = flight.requests.len();
        }
        while budget > 0 && self.request < flight.requests.len() {
            let moved = self.advance_request(flight, budget);
            budget = budget.saturating_sub(moved.max(1));
        }
    }

    /// Moves up to `budget` bytes of the current request, and goes on to the next when it ends.
    fn advance_request(&mut self, flight: &Flight, budget: u64) -> u64 {
        let request = &flight.requests[self.request];
        let whole = request.next_cut(Cursor::START, AT_ONCE_LEN);
        let is_at_once = whole.is_some_and(|cut| cut.len == request.len());
        let piece_len = if is_at_once { AT_ONCE_LEN } else { PIECE_LEN };
        if self.sum.is_none() {
            let sum = |expected: Expected| Sum::new(expected.seed, is_at_once);
            self.sum = request.expected.map(sum);
        }
        let mut moved = 0;
        let mut status = flight.failure(self.request);
        while status.is_none() && moved < budget {
            let Some(cut) = request.next_cut(self.cursor, piece_len) else {
                let digest = self.sum.as_ref().map(Sum::digest);
                let is_right = request.expected.map(|expected| expected.checksum) == digest;
                status = Some(if is_right {
                    Status::Done
                } else {
                    Status::ChecksumMismatch
                });
                break;
            };
            let outcome = self.peer.move_piece(request, &cut, self.sum.as_mut());
            self.cursor = request.behind(self.cursor, &cut);
            moved += cut.len;
            status = outcome.err();
        }
        if let Some(status) = status {
            flight.finish(self.request, status);
            (self.request, self.cursor, self.sum) = (self.request + 1, Cursor::START, None);
        }
        moved
    }
}
