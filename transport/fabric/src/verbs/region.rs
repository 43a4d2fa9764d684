//! Memory that NICs may read and write: registered once, named by keys afterwards.
//!
//! **Invariants**
//! - A region keeps what owns its memory until the NIC has forgotten it; a [`LocalSlice`] keeps
//!   its region, and a queue pair the slices of what it has under way. So no NIC reaches memory
//!   that was given back.
//! - Its bytes are never behind a reference here: a NIC may write them at any time.
//!
//! A region longer than what the device takes at once is cut into pieces of equal length, whose
//! cuts lie between hugepages. Each piece has keys of its own.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::abi;
use super::device::ProtectionDomain;
use super::error::VerbsError;

/// Who may reach a region's bytes, besides the process itself and its own NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nobody.
    Local,
    /// Peers that know its key may read.
    RemoteRead,
    /// Peers that know its key may read and write.
    RemoteReadWrite,
}

impl Access {
    pub(super) fn flags(self) -> i32 {
        abi::ACCESS_LOCAL_WRITE
            | match self {
                Self::Local => 0,
                Self::RemoteRead => abi::ACCESS_REMOTE_READ,
                Self::RemoteReadWrite => abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE,
            }
    }
}

/// How memory is registered.
#[derive(Clone, Copy, Debug)]
pub struct RegionOptions {
    /// Who may reach it.
    pub access: Access,
    /// Length of the memory's pages in bytes: a cut lies at a multiple of it.
    pub page_len: u64,
    /// Longest piece in bytes, at most the device's own limit. A piece is what one thread
    /// registers, so several let the work go on in parallel.
    pub piece_len_max: u64,
    /// Threads that register pieces.
    pub thread_count: usize,
}

/// A piece takes a thread some seconds with small pages, and an arena of some hundred GiB still
/// has few enough of them for a NIC's table of keys.
const PIECE_LEN_MAX: u64 = 16 << 30;

impl Default for RegionOptions {
    fn default() -> Self {
        Self {
            access: Access::Local,
            page_len: 4096,
            piece_len_max: PIECE_LEN_MAX,
            thread_count: 4,
        }
    }
}

/// Memory of the caller's that the NIC may reach, as long as this lives.
pub struct MemoryRegion {
    pieces: Vec<Piece>,
    piece_len: u64,
    base: NonNull<u8>,
    len: u64,
    access: Access,
    domain: ProtectionDomain,
    // Behind the pieces: the memory goes when no NIC reaches it any more.
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: the bytes are reached through raw pointers only; keys and lengths do not change.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `len` bytes from `base` on. `progress` is told after each piece how many bytes
    /// are registered by then, from whichever thread did it.
    ///
    /// # Errors
    /// [`VerbsError`] when the length is 0 or beyond the device's limits, a setting is out of
    /// bounds, the process may not lock so much memory, or the device has no room.
    ///
    /// # Safety
    /// `base` points to `len` bytes that may be read and written, and stays so until `owner` is
    /// dropped. Nobody relies on what they are while the NIC, or a peer with their key, may
    /// write them.
    pub unsafe fn register(
        domain: &ProtectionDomain,
        base: NonNull<u8>,
        len: u64,
        options: &RegionOptions,
        owner: Box<dyn Send + Sync>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Arc<Self>, VerbsError> {
        let limits = domain.device().limits();
        let piece_len = piece_len(len, options, limits.region_len_max)?;
        let work = Registration {
            domain,
            base,
            len,
            piece_len,
            access: options.access,
            progress,
            next: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            outcome: Mutex::new(Ok(Vec::new())),
        };
        let pieces = work.run(options.thread_count)?;
        Ok(Arc::new(Self {
            pieces,
            piece_len,
            base,
            len,
            access: options.access,
            domain: domain.clone(),
            _owner: owner,
        }))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; no region is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Who may reach it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// How far apart its cuts are, in bytes: slices do not cross them.
    #[must_use]
    pub fn piece_len(&self) -> u64 {
        self.piece_len
    }

    /// Bytes of it for a work request of this end. The slice keeps the region.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`], or [`VerbsError::AcrossCut`].
    pub fn slice(self: &Arc<Self>, offset: u64, len: u32) -> Result<LocalSlice, VerbsError> {
        let piece = self.piece(offset, u64::from(len))?;
        Ok(LocalSlice {
            address: self.address(offset),
            len,
            lkey: piece.lkey,
            region: Arc::clone(self),
        })
    }

    /// Bytes of it as a peer names them. What the peer may do with them, [`Access`] tells.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`], or [`VerbsError::AcrossCut`].
    pub fn remote(&self, offset: u64, len: u64) -> Result<RemoteSlice, VerbsError> {
        let piece = self.piece(offset, len)?;
        Ok(RemoteSlice {
            address: self.address(offset),
            rkey: piece.rkey,
        })
    }

    /// The keys of all pieces in order, for a peer that computes addresses by itself.
    pub fn rkeys(&self) -> impl Iterator<Item = u32> {
        self.pieces.iter().map(|piece| piece.rkey)
    }

    fn address(&self, offset: u64) -> u64 {
        self.base.addr().get() as u64 + offset
    }

    fn piece(&self, offset: u64, len: u64) -> Result<&Piece, VerbsError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        let Some(end) = end else {
            return Err(VerbsError::OutOfRange {
                offset,
                len,
                region_len: self.len,
            });
        };
        // No bytes at all may begin at the very end, and still belong to the last piece.
        let last = end.saturating_sub(1).max(offset.min(self.len - 1)) / self.piece_len;
        let first = offset.min(self.len - 1) / self.piece_len;
        match self.pieces.get(first as usize) {
            Some(piece) if first == last => Ok(piece),
            _ => Err(VerbsError::AcrossCut { offset, len }),
        }
    }
}

/// How long the pieces of a region are, the last one aside.
fn piece_len(len: u64, options: &RegionOptions, device_max: u64) -> Result<u64, VerbsError> {
    let page_len = options.page_len;
    if !page_len.is_power_of_two() {
        return Err(VerbsError::Setting {
            field: "page_len",
            value: page_len,
            min: 1,
            max: 1 << 63,
        });
    }
    if len == 0 {
        return Err(VerbsError::RegionEmpty);
    }
    let most = options.piece_len_max.min(device_max);
    if len <= most {
        return Ok(len);
    }
    // Between pages, so that no two pieces pin the same one.
    let piece_len = most & !(page_len - 1);
    if piece_len == 0 {
        return Err(VerbsError::RegionTooLong { len, limit: most });
    }
    if len.div_ceil(piece_len) > PIECES_MAX {
        let limit = piece_len.saturating_mul(PIECES_MAX);
        return Err(VerbsError::RegionTooLong { len, limit });
    }
    Ok(piece_len)
}

/// Pieces of a region. Each takes a place in the NIC's table of keys; with the shortest pieces
/// that make sense, 1 GiB, this is more memory than a host has.
const PIECES_MAX: u64 = 16 << 10;

/// A region while its pieces are registered.
struct Registration<'a> {
    domain: &'a ProtectionDomain,
    base: NonNull<u8>,
    len: u64,
    piece_len: u64,
    access: Access,
    progress: &'a (dyn Fn(u64) + Sync),
    /// The first piece that no thread has taken.
    next: AtomicUsize,
    done_bytes: AtomicU64,
    /// The pieces with their numbers as they get ready, or the first failure.
    outcome: Mutex<Result<Vec<(usize, Piece)>, VerbsError>>,
}

// SAFETY: the address is only passed on to the library; the rest may be shared.
unsafe impl Sync for Registration<'_> {}

impl Registration<'_> {
    fn run(self, thread_count: usize) -> Result<Vec<Piece>, VerbsError> {
        let helpers = thread_count.min(self.count()).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|| self.register_pieces());
            }
            self.register_pieces();
        });
        let outcome = self.outcome.into_inner();
        let mut pieces = outcome.unwrap_or_else(PoisonError::into_inner)?;
        pieces.sort_by_key(|(index, _)| *index);
        Ok(pieces.into_iter().map(|(_, piece)| piece).collect())
    }

    fn count(&self) -> usize {
        self.len.div_ceil(self.piece_len) as usize
    }

    fn register_pieces(&self) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count() {
                return;
            }
            let start = index as u64 * self.piece_len;
            let len = self.piece_len.min(self.len - start);
            let registered = Piece::register(self.domain, self.at(start), len, self.access);
            let is_registered = registered.is_ok();
            let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
            match (outcome.as_mut(), registered) {
                (Ok(pieces), Ok(piece)) => pieces.push((index, piece)),
                (Ok(_), Err(error)) => *outcome = Err(error),
                (Err(_), _) => {}
            }
            drop(outcome);
            if !is_registered {
                // The others stop at their next piece.
                self.next.store(self.count(), Ordering::Relaxed);
                return;
            }
            (self.progress)(self.done_bytes.fetch_add(len, Ordering::Relaxed) + len);
        }
    }

    fn at(&self, offset: u64) -> NonNull<u8> {
        // SAFETY: a piece begins inside the region.
        unsafe { self.base.add(offset as usize) }
    }
}

/// One registration with the NIC.
struct Piece {
    handle: NonNull<abi::Mr>,
    lkey: u32,
    rkey: u32,
    domain: ProtectionDomain,
}

// SAFETY: the library's calls on a registration may come from any thread.
unsafe impl Send for Piece {}
// SAFETY: nothing of it changes.
unsafe impl Sync for Piece {}

impl Piece {
    fn register(
        domain: &ProtectionDomain,
        base: NonNull<u8>,
        len: u64,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let device = domain.device();
        let limit = device.limits().region_count_max;
        if device.region_count().load(Ordering::Relaxed) >= limit {
            return Err(VerbsError::TooManyRegions {
                device: device.name().to_owned(),
                len,
                limit,
            });
        }
        // SAFETY: the domain is there, and the caller of `MemoryRegion::register` has promised
        // the memory until the region is dropped, which forgets this piece first.
        let handle = unsafe {
            (device.library().reg_mr)(
                domain.raw(),
                base.as_ptr().cast(),
                len as usize,
                access.flags(),
            )
        };
        let handle = NonNull::new(handle).ok_or_else(|| refused(domain, len))?;
        device.region_count().fetch_add(1, Ordering::Relaxed);
        // SAFETY: just made, so a record of the library's.
        let lkey = unsafe { (*handle.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*handle.as_ptr()).rkey };
        Ok(Self {
            handle,
            lkey,
            rkey,
            domain: domain.clone(),
        })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let device = self.domain.device();
        // SAFETY: made by `register`, forgotten once. Work requests under way hold the region.
        let code = unsafe { (device.library().dereg_mr)(self.handle.as_ptr()) };
        debug_assert_eq!(code, 0, "forgetting a region of {}", device.name());
        device.region_count().fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why the library has just refused memory of this length.
fn refused(domain: &ProtectionDomain, len: u64) -> VerbsError {
    let device = domain.device().name();
    let error = VerbsError::last_os("registering memory", device);
    let is_short = matches!(error, VerbsError::Os { errno, .. } if errno == libc::ENOMEM);
    // The kernel says the same for a limit of the process and for memory that is not there.
    match memlock_limit() {
        Some(limit) if is_short && pinned_bytes().saturating_add(len) > limit => {
            VerbsError::Memlock {
                device: device.to_owned(),
                len,
                limit,
            }
        }
        _ => error,
    }
}

/// How many bytes the process may lock; `None`: as many as it likes.
#[must_use]
pub fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the record is the kernel's to fill.
    let code = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (code == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// How many bytes of the process NICs have pinned.
fn pinned_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|text| text.parse().ok()).unwrap_or(0) * 1024
}

/// Bytes of a region of this end, named in a work request. Keeps the region registered.
#[derive(Clone)]
pub struct LocalSlice {
    address: u64,
    len: u32,
    lkey: u32,
    region: Arc<MemoryRegion>,
}

impl LocalSlice {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The region it lies in.
    #[must_use]
    pub fn region(&self) -> &Arc<MemoryRegion> {
        &self.region
    }

    pub(super) fn raw(&self) -> abi::Sge {
        abi::Sge {
            addr: self.address,
            length: self.len,
            lkey: self.lkey,
        }
    }
}

/// Bytes of a peer, from an address on. The peer's NIC checks address, length and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// The address in the peer's process.
    pub address: u64,
    /// The key of the peer's region.
    pub rkey: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = 2 << 20;

    fn cut(len: u64, piece_len_max: u64, device_max: u64) -> Result<u64, VerbsError> {
        let options = RegionOptions {
            page_len: HUGE,
            piece_len_max,
            ..RegionOptions::default()
        };
        piece_len(len, &options, device_max)
    }

    #[test]
    fn piece_len_is_the_smaller_limit_between_hugepages() {
        assert_eq!(cut(5 * HUGE, u64::MAX, u64::MAX).unwrap(), 5 * HUGE);
        assert_eq!(cut(5 * HUGE, 2 * HUGE, u64::MAX).unwrap(), 2 * HUGE);
        assert_eq!(cut(5 * HUGE, 4 * HUGE, 3 * HUGE + 5).unwrap(), 3 * HUGE);
        // What fits as a whole is not cut, however its length is.
        assert_eq!(cut(HUGE / 2, HUGE, HUGE / 2).unwrap(), HUGE / 2);
    }

    #[test]
    fn piece_len_impossible_lengths_are_named() {
        assert!(matches!(cut(0, HUGE, HUGE), Err(VerbsError::RegionEmpty)));
        let error = cut(HUGE, HUGE - 1, u64::MAX).unwrap_err();
        assert!(matches!(error, VerbsError::RegionTooLong { limit, .. } if limit == HUGE - 1));
        let error = cut(u64::MAX, HUGE, u64::MAX).unwrap_err();
        let limit_is = PIECES_MAX * HUGE;
        assert!(matches!(error, VerbsError::RegionTooLong { limit, .. } if limit == limit_is));
        let options = RegionOptions {
            page_len: 3,
            ..RegionOptions::default()
        };
        let error = piece_len(9, &options, 9).unwrap_err();
        assert!(matches!(
            error,
            VerbsError::Setting {
                field: "page_len",
                ..
            }
        ));
    }

    #[test]
    fn access_of_peers_is_read_or_read_and_write() {
        assert_eq!(Access::Local.flags(), 1);
        assert_eq!(Access::RemoteRead.flags(), 5);
        assert_eq!(Access::RemoteReadWrite.flags(), 7);
    }
}
