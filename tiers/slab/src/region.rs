//! Memory of the caller's own that blocks are scattered into and gathered out of.
//!
//! **Invariants**
//! - A region keeps its memory mapped as long as it or a slice of it exists.
//! - Its bytes are never behind a reference: the caller's device or another process may write
//!   them at any time. They are copied through raw pointers only; what a concurrent writer
//!   does to them is caught by the block's checksum, as any other damage.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// Why caller memory could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A region has at least one byte.
    #[error("a region of 0 bytes cannot be registered")]
    Empty,
    /// The range does not lie in the region.
    #[error("bytes {start}..{end} do not lie in a region of {len} bytes")]
    OutOfRange {
        /// First byte of the range.
        start: usize,
        /// First byte behind the range.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// The operating system refused a step.
    #[error("{op} a region of {len} bytes: {cause}")]
    Os {
        /// What was tried.
        op: &'static str,
        /// Length of the region in bytes.
        len: usize,
        /// What the operating system said.
        cause: nix::Error,
    },
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// What keeps memory alive that was not mapped here.
    owner: Option<Box<dyn Send + Sync>>,
}

// SAFETY: bytes are only ever copied through raw pointers; see the module's invariants.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner.is_none() {
            // SAFETY: without an owner the mapping was made by `map` with this length.
            let unmapped = unsafe { munmap(self.base.cast(), self.len) };
            debug_assert!(unmapped.is_ok());
        }
    }
}

/// A range of caller memory, registered once and used many times. Cloning and slicing are
/// cheap and share the memory.
#[derive(Clone)]
pub struct RegisteredRegion {
    mapping: Arc<Mapping>,
    range: Range<usize>,
    /// Counts the region, its clones and its slices, and not its keepers.
    users: Arc<()>,
}

/// Keeps a region's memory mapped for who knows its address, such as a ring, and tells when nobody
/// else has the region any more.
pub struct RegionKeeper {
    mapping: Arc<Mapping>,
    range: Range<usize>,
    users: Weak<()>,
}

impl RegionKeeper {
    /// Whether the region, a clone or a slice of it exists.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.users.strong_count() > 0
    }

    /// The memory's first byte and length in bytes.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        // SAFETY: `range` lies in the mapping by construction.
        let address = unsafe { self.mapping.base.add(self.range.start) };
        (address, self.range.len())
    }
}

impl RegisteredRegion {
    /// New shared memory of `len` bytes, backed by a memfd.
    ///
    /// # Errors
    /// [`RegionError`] when `len` is 0 or the operating system refuses.
    pub fn allocate(len: usize) -> Result<Self, RegionError> {
        let os = |op| move |cause| RegionError::Os { op, len, cause };
        let memfd = memfd_create(c"terrace-region", MFdFlags::MFD_CLOEXEC).map_err(os("create"))?;
        nix::unistd::ftruncate(&memfd, i64::try_from(len).unwrap_or(i64::MAX))
            .map_err(os("set the length of"))?;
        Self::map(memfd, len)
    }

    /// The first `len` bytes of a memfd or shared-memory file, such as a serving engine's.
    ///
    /// # Errors
    /// [`RegionError`] when `len` is 0, longer than the file, or the mapping is refused.
    pub fn map(memory: OwnedFd, len: usize) -> Result<Self, RegionError> {
        let os = |op| move |cause| RegionError::Os { op, len, cause };
        let map_len = std::num::NonZeroUsize::new(len).ok_or(RegionError::Empty)?;
        let file_len = nix::sys::stat::fstat(&memory)
            .map_err(os("read the length of"))?
            .st_size;
        let file_len = usize::try_from(file_len).unwrap_or(0);
        if len > file_len {
            // Touching bytes behind the end of the file would be a SIGBUS.
            return Err(RegionError::OutOfRange {
                start: 0,
                end: len,
                len: file_len,
            });
        }
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe { mmap(None, map_len, protection, MapFlags::MAP_SHARED, &memory, 0) }
            .map_err(os("map"))?;
        Ok(Self {
            mapping: Arc::new(Mapping {
                base: base.cast(),
                len,
                owner: None,
            }),
            range: 0..len,
            users: Arc::default(),
        })
    }

    /// Memory that `owner` keeps mapped.
    ///
    /// # Errors
    /// [`RegionError::Empty`] when `len` is 0.
    ///
    /// # Safety
    /// `base` points to `len` bytes that may be read and written, and stays so until `owner`
    /// is dropped. No reference to these bytes is used while a call copies into or out of them.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Self, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let mapping = Arc::new(Mapping {
            base,
            len,
            owner: Some(owner),
        });
        Ok(Self {
            mapping,
            range: 0..len,
            users: Arc::default(),
        })
    }

    /// The bytes `range` of this region.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] when they do not lie in it.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, RegionError> {
        if range.start > range.end || range.end > self.len() {
            let (start, end) = (range.start, range.end);
            return Err(RegionError::OutOfRange {
                start,
                end,
                len: self.len(),
            });
        }
        let start = self.range.start + range.start;
        Ok(Self {
            mapping: Arc::clone(&self.mapping),
            range: start..start + range.len(),
            users: Arc::clone(&self.users),
        })
    }

    /// What keeps the memory mapped without counting as a user of it.
    #[must_use]
    pub fn keeper(&self) -> RegionKeeper {
        RegionKeeper {
            mapping: Arc::clone(&self.mapping),
            range: self.range.clone(),
            users: Arc::downgrade(&self.users),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether the range has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The memory's first byte, for a device. Whoever uses it keeps the region.
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        // SAFETY: `range` lies in the mapping by construction.
        unsafe { self.mapping.base.add(self.range.start) }
    }

    /// Copies `source` to the start of the region.
    ///
    /// # Panics
    /// When `source` is longer than the region.
    pub fn copy_from(&self, source: &[u8]) {
        assert!(
            source.len() <= self.len(),
            "{} bytes into {}",
            source.len(),
            self.len()
        );
        // SAFETY: both ranges are that long; a region's memory is never behind a reference,
        // so `source` does not overlap it.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), self.address().as_ptr(), source.len());
        }
    }

    /// Copies the start of the region to `target`.
    ///
    /// # Panics
    /// When `target` is longer than the region.
    pub fn copy_to(&self, target: &mut [u8]) {
        assert!(
            target.len() <= self.len(),
            "{} bytes out of {}",
            target.len(),
            self.len()
        );
        // SAFETY: as for `copy_from`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.address().as_ptr(),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }
}

/// Scatters `source` over `targets` in order; returns the bytes copied, which are fewer than
/// `source` has when the targets are too short.
pub fn scatter(source: &[u8], targets: &[RegisteredRegion]) -> usize {
    let mut copied = 0;
    for target in targets {
        let count = target.len().min(source.len() - copied);
        target.copy_from(&source[copied..copied + count]);
        copied += count;
    }
    copied
}

/// Gathers `sources` in order into `target`; returns the bytes copied.
pub fn gather(sources: &[RegisteredRegion], target: &mut [u8]) -> usize {
    let mut copied = 0;
    for source in sources {
        let count = source.len().min(target.len() - copied);
        source.copy_to(&mut target[copied..copied + count]);
        copied += count;
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_scatters_and_gathers() {
        let region = RegisteredRegion::allocate(10_000).unwrap();
        let parts = [
            region.slice(9000..9003).unwrap(),
            region.slice(0..5).unwrap(),
        ];
        assert_eq!(scatter(b"abcdefgh", &parts), 8);
        let mut back = [0; 8];
        assert_eq!(gather(&parts, &mut back), 8);
        assert_eq!(&back, b"abcdefgh");
        let mut whole = [0; 2];
        region.slice(1..3).unwrap().copy_to(&mut whole);
        assert_eq!(&whole, b"ef");
    }

    #[test]
    fn region_outside_its_memory_is_refused() {
        let region = RegisteredRegion::allocate(10).unwrap();
        assert!(matches!(
            region.slice(5..11),
            Err(RegionError::OutOfRange { len: 10, .. })
        ));
        assert!(matches!(
            RegisteredRegion::allocate(0),
            Err(RegionError::Empty)
        ));
        let memfd = memfd_create(c"short", MFdFlags::MFD_CLOEXEC).unwrap();
        assert!(matches!(
            RegisteredRegion::map(memfd, 1),
            Err(RegionError::OutOfRange { .. })
        ));
    }

    #[test]
    fn region_of_raw_memory_drops_its_owner() {
        let owner: Arc<Vec<u8>> = Arc::new(vec![0; 8]);
        let base = NonNull::new(owner.as_ptr().cast_mut()).unwrap();
        // SAFETY: the vector keeps 8 bytes; nothing is copied through the region here.
        let region =
            unsafe { RegisteredRegion::from_raw(base, 8, Box::new(Arc::clone(&owner))) }.unwrap();
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(region);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
