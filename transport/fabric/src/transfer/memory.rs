//! Memory that can be registered: where it is, what kind it is, and what keeps it.
//!
//! **Invariants**
//! - The memory stays mapped as long as the value.
//! - Its bytes are never behind a reference: a NIC, the kernel or another process may write them
//!   at any time. They are moved through raw pointers only; what a concurrent writer does to
//!   them is caught by the checksum of what was moved, as any other damage.

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use terrace_slab::RegisteredRegion;
use xxhash_rust::xxh3::Xxh3;

use super::error::TransferError;
use super::limits::REGION_LEN_MAX;

/// What a region's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of this process alone.
    Host,
    /// hugetlb pages, of this process or of a memfd.
    Hugepage {
        /// Length of a page in bytes; a NIC's regions begin and end at one.
        page_len: u64,
    },
    /// A memfd, which a peer on the same host can map.
    Shared,
    /// Memory of a device, known by a dma-buf. Only a NIC moves it.
    #[cfg(feature = "device-memory")]
    Device {
        /// Where the memory begins in its dma-buf, in bytes.
        dmabuf_offset: u64,
    },
}

enum Keeper {
    /// Mapped here, to be unmapped.
    Mapping,
    /// Mapped by the caller, who keeps it so until this is dropped.
    Owner(#[expect(dead_code, reason = "kept to be dropped")] Box<dyn Send + Sync>),
}

/// Memory of the caller's own or made here.
pub struct Memory {
    base: NonNull<u8>,
    len: u64,
    kind: MemoryKind,
    fd: Option<OwnedFd>,
    /// Whether the memfd was made here, and so can be sealed.
    is_made_here: bool,
    keeper: Keeper,
}

// SAFETY: bytes are only ever moved through raw pointers; see the module's invariants.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory of this process alone, zeroed.
    ///
    /// # Errors
    /// [`TransferError`] when `len` is outside the limits or there is no memory.
    pub fn host(len: u64) -> Result<Self, TransferError> {
        let map_len = checked_len(len)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(None, map_len, protection, MapFlags::MAP_PRIVATE) }
            .map_err(os("map memory"))?;
        advise_hugepages(base, map_len);
        Ok(Self {
            base: base.cast(),
            len,
            kind: MemoryKind::Host,
            fd: None,
            is_made_here: false,
            keeper: Keeper::Mapping,
        })
    }

    /// New memory that a peer on this host can map, zeroed.
    ///
    /// # Errors
    /// As for [`Memory::host`].
    pub fn shared(len: u64) -> Result<Self, TransferError> {
        Self::make(len, MFdFlags::empty(), MemoryKind::Shared)
    }

    /// New memory on hugetlb pages of 2 MiB that a peer on this host can map, zeroed.
    ///
    /// # Errors
    /// As for [`Memory::host`], and when `len` is not a multiple of 2 MiB or the kernel's pool
    /// does not hold it.
    pub fn hugepages(len: u64) -> Result<Self, TransferError> {
        let page_len = 2 << 20;
        if !len.is_multiple_of(page_len) {
            return Err(TransferError::RegionLength {
                len,
                max: REGION_LEN_MAX / page_len * page_len,
            });
        }
        let flags = MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
        Self::make(len, flags, MemoryKind::Hugepage { page_len })
    }

    fn make(len: u64, flags: MFdFlags, kind: MemoryKind) -> Result<Self, TransferError> {
        checked_len(len)?;
        let flags = flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memfd = memfd_create(c"terrace-region", flags).map_err(os("create a memfd"))?;
        nix::unistd::ftruncate(&memfd, i64::try_from(len).unwrap_or(i64::MAX))
            .map_err(os("set a memfd's length"))?;
        // A peer that maps it must never find it shorter: touching what is not there any more
        // is a SIGBUS.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).map_err(os("seal a memfd's length"))?;
        let mut memory = Self::map(memfd, len, kind)?;
        memory.is_made_here = true;
        Ok(memory)
    }

    /// The first `len` bytes of a memfd or a file of shared memory, such as a serving engine's.
    /// Peers on this host map it when its length is sealed (`F_SEAL_SHRINK`) and, where they may
    /// only read, new writable mappings are too (`F_SEAL_FUTURE_WRITE`); else they take another
    /// transport. It is never sealed here.
    ///
    /// # Errors
    /// [`TransferError`] when `len` is outside the limits or longer than the file, or the kernel
    /// refuses the mapping.
    pub fn from_fd(memory: OwnedFd, len: u64) -> Result<Self, TransferError> {
        Self::map(memory, len, MemoryKind::Shared)
    }

    fn map(fd: OwnedFd, len: u64, kind: MemoryKind) -> Result<Self, TransferError> {
        let map_len = checked_len(len)?;
        let file = nix::sys::stat::fstat(&fd).map_err(os("read a memfd's length"))?;
        let file_len = u64::try_from(file.st_size).unwrap_or(0);
        if len > file_len {
            return Err(TransferError::RegionLength { len, max: file_len });
        }
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, map_len, protection, MapFlags::MAP_SHARED, &fd, 0) }
            .map_err(os("map a memfd"))?;
        advise_hugepages(base, map_len);
        Ok(Self {
            base: base.cast(),
            len,
            kind,
            fd: Some(fd),
            is_made_here: false,
            keeper: Keeper::Mapping,
        })
    }

    /// The memory of a caller's region, which stays mapped as long as this. It does not count as
    /// a user of the region.
    ///
    /// # Errors
    /// [`TransferError::RegionLength`] when it is empty or too long.
    pub fn of_region(region: &RegisteredRegion) -> Result<Self, TransferError> {
        let (base, len) = (region.address(), region.len() as u64);
        // SAFETY: the keeper keeps these bytes mapped; like those of this module, a region's
        // bytes are never behind a reference.
        unsafe { Self::from_raw(base, len, MemoryKind::Host, Box::new(region.keeper())) }
    }

    /// Memory that `owner` keeps mapped.
    ///
    /// # Errors
    /// [`TransferError::RegionLength`] when `len` is outside the limits.
    ///
    /// # Safety
    /// `base` points to `len` bytes that may be read and written, and stays so until `owner` is
    /// dropped. No reference to these bytes is used while a transfer moves them.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: u64,
        kind: MemoryKind,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Self, TransferError> {
        checked_len(len)?;
        Ok(Self {
            base,
            len,
            kind,
            fd: None,
            is_made_here: false,
            keeper: Keeper::Owner(owner),
        })
    }

    /// Memory of a device, as `dmabuf` names it, for NICs that reach it directly. No other
    /// transport moves it. This was compiled and never run: it takes a GPU.
    ///
    /// # Errors
    /// [`TransferError::RegionLength`] when `len` is outside the limits.
    ///
    /// # Safety
    /// `address` is the device's address of the memory as its NIC driver wants it; `owner` keeps
    /// the memory allocated until it is dropped.
    #[cfg(feature = "device-memory")]
    pub unsafe fn device(
        dmabuf: OwnedFd,
        dmabuf_offset: u64,
        address: NonNull<u8>,
        len: u64,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Self, TransferError> {
        checked_len(len)?;
        Ok(Self {
            base: address,
            len,
            kind: MemoryKind::Device { dmabuf_offset },
            fd: Some(dmabuf),
            is_made_here: false,
            keeper: Keeper::Owner(owner),
        })
    }

    /// The first byte's address.
    #[must_use]
    pub const fn address(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes; at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "memory has at least one byte")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// What it is made of.
    #[must_use]
    pub const fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The memfd or dma-buf behind it.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Whether its memfd was made here.
    pub(crate) const fn is_made_here(&self) -> bool {
        self.is_made_here
    }

    /// Whether the processor can read and write it.
    #[must_use]
    pub const fn is_host(&self) -> bool {
        match self.kind {
            MemoryKind::Host | MemoryKind::Hugepage { .. } | MemoryKind::Shared => true,
            #[cfg(feature = "device-memory")]
            MemoryKind::Device { .. } => false,
        }
    }

    /// Whether `len` bytes at `offset` lie in it.
    #[must_use]
    pub const fn holds(&self, offset: u64, len: u64) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// The address of byte `offset`, from which `len` bytes are in the memory.
    ///
    /// # Panics
    /// When they are not. Callers have checked.
    #[must_use]
    pub(crate) fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        assert!(self.holds(offset, len), "{offset}+{len} of {}", self.len);
        // SAFETY: the assertion keeps the result inside the memory.
        unsafe { self.base.add(offset as usize) }
    }

    /// The NUMA node of the first byte, as the kernel tells; it makes the page if there is none.
    pub(crate) fn node(&self) -> Option<usize> {
        /// Of linux/mempolicy.h: the node of an address.
        const NODE_OF_ADDRESS: libc::c_ulong = 1 | 2;
        if !self.is_host() {
            return None;
        }
        let mut node: libc::c_int = -1;
        // SAFETY: the call writes one int, and looks at an address of this process.
        let code = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                std::ptr::null_mut::<libc::c_ulong>(),
                0_u64,
                self.base.as_ptr(),
                NODE_OF_ADDRESS,
            )
        };
        usize::try_from(node).ok().filter(|_| code == 0)
    }

    /// Feeds `len` bytes at `offset` to `hash`, in pieces that stay in the processor's cache.
    ///
    /// # Panics
    /// When they do not lie in the memory. Callers have checked.
    pub(crate) fn hash(&self, offset: u64, len: u64, hash: &mut Xxh3) {
        let mut piece = [0; 16 << 10];
        let mut done = 0;
        while done < len {
            let count = (len - done).min(piece.len() as u64);
            let source = self.at(offset + done, count);
            // SAFETY: both are that long, and the piece is not of the memory.
            unsafe {
                std::ptr::copy_nonoverlapping(source.as_ptr(), piece.as_mut_ptr(), count as usize);
            }
            hash.update(&piece[..count as usize]);
            done += count;
        }
    }

    /// Copies `source` to `offset`. Fails when it does not fit there.
    #[must_use]
    pub fn write_at(&self, offset: u64, source: &[u8]) -> bool {
        let fits = self.is_host() && self.holds(offset, source.len() as u64);
        if fits {
            let target = self.at(offset, source.len() as u64);
            // SAFETY: both are that long; the memory is never behind a reference, so `source`
            // does not overlap it.
            unsafe {
                std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), source.len());
            }
        }
        fits
    }

    /// Copies the bytes at `offset` to `target`. Fails when there are not so many.
    #[must_use]
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> bool {
        let fits = self.is_host() && self.holds(offset, target.len() as u64);
        if fits {
            let source = self.at(offset, target.len() as u64);
            // SAFETY: as for `write_at`.
            unsafe {
                std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr(), target.len());
            }
        }
        fits
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("len", &self.len)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if matches!(self.keeper, Keeper::Mapping) {
            // SAFETY: the mapping was made here with this length, and nothing uses its addresses
            // any more: who moves bytes keeps the value.
            let unmapped = unsafe { munmap(self.base.cast(), self.len as usize) };
            debug_assert!(unmapped.is_ok());
        }
    }
}

/// Asks for transparent hugepages: copies of megabytes miss the TLB less. Refusal costs speed only.
pub(super) fn advise_hugepages(base: NonNull<c_void>, len: NonZeroUsize) {
    // SAFETY: the range is a mapping that the caller has just made.
    let _ = unsafe { madvise(base, len.get(), MmapAdvise::MADV_HUGEPAGE) };
}

fn checked_len(len: u64) -> Result<NonZeroUsize, TransferError> {
    let max = REGION_LEN_MAX;
    usize::try_from(len)
        .ok()
        .and_then(NonZeroUsize::new)
        .filter(|_| len <= max)
        .ok_or(TransferError::RegionLength { len, max })
}

fn os(op: &'static str) -> impl Fn(nix::Error) -> TransferError {
    move |cause| TransferError::Os {
        op,
        source: io::Error::from(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_wrong_length_is_refused() {
        for len in [0, REGION_LEN_MAX + 1, u64::MAX] {
            let error = Memory::shared(len).unwrap_err().to_string();
            assert!(error.contains(&len.to_string()), "{error}");
        }
        let short = memfd_create(c"short", MFdFlags::MFD_CLOEXEC).unwrap();
        let error = Memory::from_fd(short, 1).unwrap_err().to_string();
        assert!(error.contains("from 1 to 0"), "{error}");
        assert!(matches!(
            Memory::hugepages(4096),
            Err(TransferError::RegionLength { len: 4096, .. })
        ));
    }

    #[test]
    fn memory_of_a_region_is_its_bytes_and_outlives_it() {
        let whole = RegisteredRegion::allocate(100).unwrap();
        let part = whole.slice(10..20).unwrap();
        let memory = Memory::of_region(&part).unwrap();
        assert!(memory.write_at(0, b"0123456789") && !memory.write_at(1, b"0123456789"));
        let mut back = [0; 12];
        whole.slice(9..21).unwrap().copy_to(&mut back);
        assert_eq!(&back, b"\x000123456789\x00");
        drop((whole, part));
        assert!(memory.read_at(0, &mut back[..10]));
        assert_eq!(&back[..10], b"0123456789");
        let whole = RegisteredRegion::allocate(1).unwrap();
        assert!(Memory::of_region(&whole.slice(1..1).unwrap()).is_err());
    }

    #[test]
    fn bytes_outside_the_memory_are_not_moved() {
        let memory = Memory::host(10_000).unwrap();
        assert!(memory.write_at(9990, &[7; 10]));
        let mut back = [0; 10];
        assert!(memory.read_at(9990, &mut back));
        assert_eq!(back, [7; 10]);
        assert!(!memory.write_at(9991, &[7; 10]));
        assert!(!memory.read_at(u64::MAX, &mut back));
    }
}
