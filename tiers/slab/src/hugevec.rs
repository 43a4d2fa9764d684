//! A growing array in its own reservation of address space: it never moves, grows without a
//! copy, and asks for transparent hugepages.
//!
//! **Invariants**
//! - `len <= capacity`; the first `len` elements are valid (zeroed memory is, by `Zeroable`).
//! - Memory is taken page by page as elements are first written, unless it is asked for before.
//!
//! Indexes and policies keep their per-block state in these: a table of a million records is
//! walked at random, and with 4 KiB pages most of the time would go to page walks.

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Zeroable;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use terrace_types::limits::HUGEPAGE_LEN;

/// Address space could not be reserved.
#[derive(Debug, thiserror::Error)]
#[error("reserve {len} bytes of address space: {cause}")]
pub struct HugeVecError {
    /// Bytes asked for.
    pub len: u64,
    /// What the operating system said.
    pub cause: nix::Error,
}

/// See the module's text.
pub struct HugeVec<T> {
    base: NonNull<T>,
    len: usize,
    capacity: usize,
    reserved_len: NonZeroUsize,
    element: PhantomData<T>,
}

// SAFETY: the reservation is owned by this value alone and `T` is moved or shared with it.
unsafe impl<T: Send> Send for HugeVec<T> {}
// SAFETY: `&HugeVec<T>` gives out `&[T]` only.
unsafe impl<T: Sync> Sync for HugeVec<T> {}

impl<T: Zeroable + Copy> HugeVec<T> {
    /// An empty array that can grow to `capacity` elements. Takes address space, not memory.
    ///
    /// # Errors
    /// [`HugeVecError`] when the address space is not to be had.
    pub fn with_capacity(capacity: usize) -> Result<Self, HugeVecError> {
        const { assert!(size_of::<T>() > 0) };
        const { assert!(align_of::<T>() <= 4096) };
        let page = HUGEPAGE_LEN as usize;
        let reserved = capacity
            .max(1)
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_next_multiple_of(page))
            .and_then(NonZeroUsize::new)
            .ok_or(HugeVecError {
                len: u64::MAX,
                cause: nix::Error::ENOMEM,
            })?;
        let failed = |cause| HugeVecError {
            len: reserved.get() as u64,
            cause,
        };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(None, reserved, protection, flags) }.map_err(failed)?;
        // SAFETY: the range is the mapping just made. Refusal costs speed only.
        let _ = unsafe { madvise(base, reserved.get(), MmapAdvise::MADV_HUGEPAGE) };
        Ok(Self {
            base: base.cast(),
            len: 0,
            capacity,
            reserved_len: reserved,
            element: PhantomData,
        })
    }

    /// Makes the array at least `len` elements long; new ones are zero.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub fn grow_to(&mut self, len: usize) {
        assert!(
            len <= self.capacity,
            "grow to {len} of at most {}",
            self.capacity
        );
        self.len = self.len.max(len);
    }

    /// Takes the memory of all elements now: one that is reached at random later would wait for a
    /// hugepage to be cleared, a quarter of a millisecond on some machines.
    pub fn populate(&mut self) {
        let len = self.bytes() as usize;
        if len > 0 {
            // SAFETY: populating a range of our own mapping changes no bytes. Refusal costs time later.
            unsafe { libc::madvise(self.base.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
        }
    }

    /// Most elements the array can hold.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the elements in use; the mapping itself takes at most one hugepage more.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Asks the processor to bring element `index` into its cache; out of range is ignored.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        if index < self.len {
            // SAFETY: `index < len <= capacity`, so the address lies in the reservation.
            let address = unsafe { self.base.as_ptr().add(index) };
            // SAFETY: a prefetch of a mapped address has no effect but on the cache.
            unsafe {
                core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
                    address.cast(),
                );
            }
        }
    }
}

impl<T> Deref for HugeVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements lie in the reservation and are valid.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for HugeVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl<T> Drop for HugeVec<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `with_capacity` with this length and `T` is `Copy`,
        // so nothing needs to be dropped in it.
        let unmapped = unsafe { munmap(self.base.cast(), self.reserved_len.get()) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_vec_grows_in_place_with_zeros() {
        let mut numbers = HugeVec::<u64>::with_capacity(1 << 20).unwrap();
        numbers.grow_to(3);
        numbers[2] = 7;
        let before = numbers.as_ptr();
        numbers.grow_to(1 << 20);
        assert_eq!(numbers.as_ptr(), before);
        assert_eq!((numbers[2], numbers[(1 << 20) - 1]), (7, 0));
        assert_eq!(numbers.bytes(), 8 << 20);
        numbers.prefetch(5);
        numbers.prefetch(usize::MAX);
    }

    #[test]
    #[should_panic(expected = "grow to 5 of at most 4")]
    fn huge_vec_past_its_capacity_panics() {
        HugeVec::<u64>::with_capacity(4).unwrap().grow_to(5);
    }

    #[test]
    fn huge_vec_beyond_the_address_space_is_an_error() {
        assert!(HugeVec::<u64>::with_capacity(usize::MAX / 16).is_err());
        assert!(HugeVec::<u64>::with_capacity(usize::MAX).is_err());
    }
}
