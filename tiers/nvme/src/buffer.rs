//! Memory that a device reads from or writes to, owned by the operation that uses it.
//!
//! **Invariants**
//! - An operation owns its [`IoBuffer`] until its completion; only then is it handed back.
//! - The memory of a buffer stays mapped and at its address while the buffer exists.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use terrace_slab::{PinnedBlock, RegisteredRegion, SlotWriter};

use crate::UNIT;

/// Ordinary memory at a multiple of 4096, for heads and footers.
pub struct AlignedBuffer {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by the value alone.
unsafe impl Send for AlignedBuffer {}
// SAFETY: `&AlignedBuffer` only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `len` bytes of zeros, rounded up to 4096 and at least that.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(UNIT as usize);
        let layout = Self::layout(len);
        // SAFETY: the layout's size is at least 4096.
        let address = unsafe { alloc_zeroed(layout) };
        let Some(address) = NonNull::new(address) else {
            handle_alloc_error(layout)
        };
        Self { address, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, UNIT as usize).expect("a length of a buffer fits an isize")
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation is that long and initialised; a device writes to it only while
        // an operation owns the buffer, and then nobody holds a reference to it.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }

    /// The bytes, to be changed.
    pub const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with the same layout.
        unsafe { dealloc(self.address.as_ptr(), Self::layout(self.len)) };
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

/// The memory of one operation.
pub enum IoBuffer {
    /// A slot that is being filled.
    Writer(SlotWriter),
    /// A published block.
    Pinned(PinnedBlock),
    /// Memory of the caller's own, a multiple of 4096 long.
    Region(RegisteredRegion),
    /// Memory of the tier's own.
    Owned(AlignedBuffer),
    /// None: the operation moves no bytes.
    None,
}

impl std::fmt::Debug for IoBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (address, len) = self.range();
        write!(f, "IoBuffer({address:p}, {len} bytes)")
    }
}

impl IoBuffer {
    /// First byte and length of the memory.
    #[must_use]
    pub fn range(&self) -> (NonNull<u8>, usize) {
        match self {
            Self::Writer(writer) => writer.io_range(),
            Self::Pinned(block) => block.io_range(),
            Self::Region(region) => (region.address(), region.len()),
            Self::Owned(buffer) => (buffer.address, buffer.len),
            Self::None => (NonNull::dangling(), 0),
        }
    }

    /// The tier's own memory, when that is what the operation used.
    #[must_use]
    pub fn owned(self) -> Option<AlignedBuffer> {
        match self {
            Self::Owned(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The slot writer, when that is what the operation used.
    #[must_use]
    pub fn writer(self) -> Option<SlotWriter> {
        match self {
            Self::Writer(writer) => Some(writer),
            _ => None,
        }
    }
}
