//! A table of words that two processes share.
//!
//! **Invariants**
//! - Its length is sealed: no process can cut it short under another one's feet.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::transfer::limits::REGION_COUNT_MAX;

const LEN: usize = REGION_COUNT_MAX * size_of::<AtomicU64>();

/// A word for each place of a table of regions.
pub(super) struct SharedWords {
    base: NonNull<AtomicU64>,
    memfd: OwnedFd,
}

// SAFETY: the words are atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// A new table of zeros. `is_private`: others can only read it.
    pub(super) fn make(is_private: bool) -> Result<Self, nix::Error> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memfd = memfd_create(c"terrace-words", flags)?;
        nix::unistd::ftruncate(&memfd, LEN as i64)?;
        let words = Self::map(memfd, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        let mut seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        if is_private {
            // The mapping above stays; nobody makes another one.
            seals |= FUTURE_WRITE;
        }
        fcntl(&words.memfd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(words)
    }

    /// A table of another process.
    pub(super) fn open(memfd: OwnedFd, is_writable: bool) -> Result<Self, nix::Error> {
        if !is_sealed(memfd.as_fd(), LEN as u64)? {
            return Err(nix::Error::EPERM);
        }
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, is_writable);
        Self::map(memfd, protection)
    }

    fn map(memfd: OwnedFd, protection: ProtFlags) -> Result<Self, nix::Error> {
        let len = NonZeroUsize::new(LEN).ok_or(nix::Error::EINVAL)?;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &memfd, 0) }?;
        Ok(Self {
            base: base.cast(),
            memfd,
        })
    }

    /// The word of a place; there is none behind the last one.
    pub(super) fn word(&self, slot: u32) -> Option<&AtomicU64> {
        let slot = slot as usize;
        (slot < REGION_COUNT_MAX).then(|| {
            // SAFETY: the mapping holds so many words.
            let word = unsafe { self.base.add(slot) };
            // SAFETY: it is aligned as its page is, lives as long as self, and is only ever an
            // atomic here; other processes change it as one.
            unsafe { word.as_ref() }
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length; words are borrowed from self.
        let unmapped = unsafe { munmap(self.base.cast(), LEN) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Lets no one map a memfd for writing any more, its owner neither.
pub(super) const FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(libc::F_SEAL_FUTURE_WRITE);

/// Whether a memfd has `len` bytes, and keeps them.
pub(super) fn is_sealed(memfd: BorrowedFd<'_>, len: u64) -> Result<bool, nix::Error> {
    let seals = SealFlag::from_bits_retain(fcntl(memfd, FcntlArg::F_GET_SEALS)?);
    let file_len = nix::sys::stat::fstat(memfd)?.st_size;
    let is_long = u64::try_from(file_len).is_ok_and(|file_len| file_len >= len);
    Ok(is_long && seals.contains(SealFlag::F_SEAL_SHRINK))
}

/// Whether no process can map a memfd for writing any more.
pub(super) fn is_write_sealed(memfd: BorrowedFd<'_>) -> Result<bool, nix::Error> {
    let seals = SealFlag::from_bits_retain(fcntl(memfd, FcntlArg::F_GET_SEALS)?);
    Ok(seals.intersects(FUTURE_WRITE | SealFlag::F_SEAL_WRITE))
}
