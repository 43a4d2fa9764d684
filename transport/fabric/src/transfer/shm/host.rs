//! The owner's side: tells openers on this host where its regions' memory is.
//!
//! **Invariants**
//! - A place's epoch is in the table as long as its region may be accessed.
//! - What an opener counts is looked at until its connection has ended; who is gone accesses
//!   nothing.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};

use super::words::{FUTURE_WRITE, SharedWords, is_sealed, is_write_sealed};
use super::{LEASE_COUNT_MAX, LEASE_MILLIS_MAX, QUESTION_LEN, Question, send_answer};
use crate::transfer::clock::{now, random};
use crate::transfer::error::{Status, TransferError};
use crate::transfer::region::{Access, Region, RegionId};
use crate::transfer::table::RegionTable;
use crate::transfer::transport::Operation;

/// How often counts are looked at while a region is being unregistered: nobody tells of them.
const LOOK_EVERY: Duration = Duration::from_millis(1);

struct LeaseRecord {
    region: RegionId,
    offset: u64,
    len: u64,
    until: Instant,
}

struct Opener {
    /// Counts the opener's accesses under way.
    uses: SharedWords,
    leases: Mutex<HashMap<u64, LeaseRecord>>,
}

impl Opener {
    fn leases(&self) -> MutexGuard<'_, HashMap<u64, LeaseRecord>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What openers on this host are told.
pub(in crate::transfer) struct SharedHost {
    epochs: SharedWords,
    openers: Mutex<HashMap<u64, Arc<Opener>>>,
    gone: Condvar,
    next: AtomicU64,
    name: [u8; 16],
    pub(in crate::transfer) listener: UnixListener,
}

impl SharedHost {
    pub(in crate::transfer) fn new() -> Result<Self, TransferError> {
        let os = |op| move |source| TransferError::Os { op, source };
        let name = random()?;
        let epochs = SharedWords::make(true).map_err(io::Error::from);
        Ok(Self {
            epochs: epochs.map_err(os("make a table of epochs"))?,
            openers: Mutex::default(),
            gone: Condvar::new(),
            next: AtomicU64::new(0),
            name,
            listener: UnixListener::bind_addr(&address(&name).map_err(os("name a socket"))?)
                .map_err(os("listen for this host's peers"))?,
        })
    }

    /// Where openers find it: this boot's name and the socket's.
    pub(in crate::transfer) fn location(&self) -> Option<Vec<u8>> {
        let mut location = boot_id().ok()?;
        location.extend(self.name);
        Some(location)
    }

    /// Lets openers map a region, if its memory is fit for that.
    pub(in crate::transfer) fn offer(&self, region: &Region) -> bool {
        let Some(memfd) = region.memory().fd().filter(|_| region.memory().is_host()) else {
            return false;
        };
        let is_kept = is_sealed(memfd, region.len()).unwrap_or(false);
        let is_closed = match region.access() {
            Access::Local => false,
            Access::Read if region.memory().is_made_here() => {
                fcntl(memfd, FcntlArg::F_ADD_SEALS(FUTURE_WRITE)).is_ok()
            }
            Access::Read => is_write_sealed(memfd).unwrap_or(false),
            Access::ReadWrite => true,
        };
        if is_kept && is_closed {
            self.set_epoch(region.id().slot, region.id().epoch);
        }
        is_kept && is_closed
    }

    fn set_epoch(&self, slot: u32, epoch: u64) {
        if let Some(word) = self.epochs.word(slot) {
            word.store(epoch, Ordering::SeqCst);
        }
    }

    /// Takes a region back; whether no opener accesses it any more, or has it leased.
    pub(in crate::transfer) fn withdraw(&self, id: RegionId, timeout: Duration) -> bool {
        self.set_epoch(id.slot, 0);
        let begun = now();
        let mut openers = self.openers();
        loop {
            let is_used = openers.values().any(|opener| {
                let counted = opener
                    .uses
                    .word(id.slot)
                    .map(|word| word.load(Ordering::SeqCst));
                counted.is_some_and(|count| count != 0) || has_lease(opener, id, 0, u64::MAX)
            });
            if !is_used || begun.elapsed() >= timeout {
                return !is_used;
            }
            let waited = self.gone.wait_timeout(openers, LOOK_EVERY);
            openers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether an opener has a lease on any of these bytes.
    pub(in crate::transfer) fn is_leased(&self, id: RegionId, offset: u64, len: u64) -> bool {
        self.openers()
            .values()
            .any(|opener| has_lease(opener, id, offset, len))
    }

    fn openers(&self) -> MutexGuard<'_, HashMap<u64, Arc<Opener>>> {
        self.openers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one opener until it leaves.
    pub(in crate::transfer) fn serve(
        &self,
        mut stream: &UnixStream,
        regions: &RegionTable,
    ) -> io::Result<()> {
        let uses = SharedWords::make(false)?;
        let opener = Arc::new(Opener {
            uses,
            leases: Mutex::default(),
        });
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.openers().insert(id, Arc::clone(&opener));
        let _listed = Listed { host: self, id };
        let mut question = [0; QUESTION_LEN];
        loop {
            stream.read_exact(&mut question)?;
            let question = Question::decode(&question).ok_or(io::ErrorKind::InvalidData)?;
            match question {
                Question::Tables => {
                    let tables = [self.epochs.fd(), opener.uses.fd()];
                    send_answer(stream, Status::Done, 0, &tables)?;
                }
                Question::Map(id) => tell_memory(stream, regions, id)?,
                Question::Lease {
                    region,
                    offset,
                    len,
                    millis,
                } => {
                    let granted = regions.grant(region, Operation::Read, offset, len);
                    let record = LeaseRecord {
                        region,
                        offset,
                        len,
                        until: now() + Duration::from_millis(millis.min(LEASE_MILLIS_MAX)),
                    };
                    match granted.and_then(|_pin| lease(&opener, record)) {
                        Ok(lease) => send_answer(stream, Status::Done, lease, &[])?,
                        Err(status) => send_answer(stream, status, 0, &[])?,
                    }
                }
                Question::Release { lease } => {
                    opener.leases().remove(&lease);
                }
            }
        }
    }
}

/// An opener in the list; gone from it with this.
struct Listed<'a> {
    host: &'a SharedHost,
    id: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.host.openers().remove(&self.id);
        self.host.gone.notify_all();
    }
}

fn lease(opener: &Opener, record: LeaseRecord) -> Result<u64, Status> {
    let mut leases = opener.leases();
    let at = now();
    leases.retain(|_, record| record.until > at);
    if leases.len() >= LEASE_COUNT_MAX {
        return Err(Status::AccessDenied);
    }
    let free = (1..)
        .find(|id| !leases.contains_key(id))
        .unwrap_or_default();
    leases.insert(free, record);
    Ok(free)
}

fn has_lease(opener: &Opener, id: RegionId, offset: u64, len: u64) -> bool {
    let at = now();
    let end = offset.saturating_add(len);
    opener.leases().values().any(|record| {
        let overlaps = record.offset < end && offset < record.offset.saturating_add(record.len);
        record.region == id && record.until > at && overlaps
    })
}

fn tell_memory(stream: &UnixStream, regions: &RegionTable, id: RegionId) -> io::Result<()> {
    match regions.grant(id, Operation::Read, 0, 1) {
        Ok(pin) => match pin.memory().fd() {
            Some(memfd) => send_answer(stream, Status::Done, pin.len(), &[memfd.as_fd()]),
            None => send_answer(stream, Status::AccessDenied, 0, &[]),
        },
        Err(status) => send_answer(stream, status, 0, &[]),
    }
}

/// The socket's address from its name.
pub(super) fn address(name: &[u8]) -> io::Result<SocketAddr> {
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("terrace-transfer-{hex}"))
}

/// A name of this host that no other has, nor this one after it starts again.
pub(super) fn boot_id() -> io::Result<Vec<u8>> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: Vec<char> = text
        .trim()
        .chars()
        .filter(char::is_ascii_hexdigit)
        .collect();
    let digit = |digit: char| digit.to_digit(16).unwrap_or(0) as u8;
    Ok(digits
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[pair.len() - 1]))
        .collect())
}

impl AsRawFd for SharedHost {
    fn as_raw_fd(&self) -> i32 {
        self.listener.as_raw_fd()
    }
}
