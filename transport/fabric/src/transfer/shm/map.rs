//! A peer's region, mapped here.
//!
//! **Invariants**
//! - Bytes are copied through raw pointers only: the owner may write them at any time.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::words::is_sealed;
use crate::transfer::flight::Cut;
use crate::transfer::memory::{Memory, advise_hugepages};

/// A checksum that grows with what is read.
pub(super) enum Sum {
    /// All bytes come at once.
    AtOnce {
        /// The checksum's seed.
        seed: u64,
        /// The checksum, once they came.
        digest: u64,
    },
    /// They come in pieces.
    InPieces(Box<Xxh3>),
}

impl Sum {
    pub(super) fn new(seed: u64, is_at_once: bool) -> Self {
        if is_at_once {
            Self::AtOnce { seed, digest: 0 }
        } else {
            Self::InPieces(Box::new(Xxh3::with_seed(seed)))
        }
    }

    fn update(&mut self, piece: &[u8]) {
        match self {
            Self::AtOnce { seed, digest } => *digest = xxh3_64_with_seed(piece, *seed),
            Self::InPieces(hash) => hash.update(piece),
        }
    }

    pub(super) fn digest(&self) -> u64 {
        match self {
            Self::AtOnce { digest, .. } => *digest,
            Self::InPieces(hash) => hash.digest(),
        }
    }
}

/// The mapping of a region.
pub(super) struct RemoteMap {
    base: NonNull<u8>,
    len: u64,
    pub(super) is_writable: bool,
}

// SAFETY: bytes are only ever copied through raw pointers; see the module's invariants.
unsafe impl Send for RemoteMap {}
// SAFETY: as above.
unsafe impl Sync for RemoteMap {}

impl RemoteMap {
    /// Maps `len` bytes of a memfd.
    pub(super) fn new(memfd: &OwnedFd, len: u64, is_writable: bool) -> Result<Self, nix::Error> {
        if !is_sealed(memfd.as_fd(), len)? {
            return Err(nix::Error::EPERM);
        }
        let map_len = usize::try_from(len).ok().and_then(NonZeroUsize::new);
        let map_len = map_len.ok_or(nix::Error::EINVAL)?;
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, is_writable);
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, map_len, protection, MapFlags::MAP_SHARED, memfd, 0) }?;
        advise_hugepages(base, map_len);
        Ok(Self {
            base: base.cast(),
            len,
            is_writable,
        })
    }

    pub(super) const fn holds(&self, offset: u64, len: u64) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// The address of byte `offset`, from which `len` bytes are mapped.
    pub(super) fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        assert!(self.holds(offset, len), "{offset}+{len} of {}", self.len);
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.base.add(offset as usize) }
    }

    /// Copies to local memory, and hashes what arrived there.
    pub(super) fn read(&self, offset: u64, local: &Memory, cut: &Cut, sum: Option<&mut Sum>) {
        let len = cut.len;
        let source = self.at(offset, len);
        let target = local.at(cut.local_offset, len);
        // SAFETY: both are that long. They may be the same memory, mapped twice.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), len as usize) };
        if let Some(sum) = sum {
            // SAFETY: the bytes are initialised and any value of them is one; the caller lent
            // them to this transfer alone.
            // JUSTIFICATION: a copy to hash would cost as much as the hash; seen with
            // `terrace-bench transfer --verify`.
            sum.update(unsafe { std::slice::from_raw_parts(target.as_ptr(), len as usize) });
        }
    }

    /// Copies from local memory.
    pub(super) fn write(&self, offset: u64, local: &Memory, local_offset: u64, len: u64) {
        let target = self.at(offset, len);
        let source = local.at(local_offset, len);
        // SAFETY: as for `read`; callers have asked `is_writable`.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), len as usize) };
    }

    /// Copies to a slice.
    pub(super) fn copy_to(&self, offset: u64, target: &mut [u8]) {
        let source = self.at(offset, target.len() as u64);
        // SAFETY: both are that long, and a slice is not of the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr(), target.len());
        }
    }
}

impl Drop for RemoteMap {
    fn drop(&mut self) {
        // SAFETY: the mapping was made here with this length; who uses it keeps the value.
        let unmapped = unsafe { munmap(self.base.cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok());
    }
}
