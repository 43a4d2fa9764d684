//! Slots in other hands: writers that fill one, pinned blocks that read one, on any thread.
//!
//! **Invariants**
//! - A slot has one writer or any count of readers, never both: a writer exists from the
//!   slot's taking until its publishing, pinned blocks only after that.
//! - Both keep the arena mapped. Both come back through the arena's return queue, from
//!   whatever thread drops them; the owning shard frees the slot when it drains the queue.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::SegQueue;
use terrace_types::BlockIx;
use terrace_types::limits::SLOT_ALIGN;

use crate::arena::Arena;
use crate::pool::SlotIx;

/// What comes back to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// One pin of this block.
    Pin(BlockIx),
    /// A writer that was dropped without being published.
    Writer(SlotIx),
}

/// An arena, and the queue by which its slots come back from other threads.
pub struct ArenaShared {
    arena: Arena,
    returns: SegQueue<Returned>,
    /// Whether the shard waits for a return and wants to be woken by one.
    wanted: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl ArenaShared {
    /// Shares `arena`; `wake` is called, from any thread, when something came back that the
    /// shard waits for.
    #[must_use]
    pub fn new(arena: Arena, wake: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            arena,
            returns: SegQueue::new(),
            wanted: AtomicBool::new(false),
            wake,
        })
    }

    /// The arena.
    #[must_use]
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The next thing that came back, if any.
    pub fn take_return(&self) -> Option<Returned> {
        self.returns.pop()
    }

    /// Asks to be woken by the next return. Drain the queue again afterwards: something may
    /// have come back in between.
    pub fn want_return(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        // Pairs with the fence in `give_back`: either this shard sees the return when it
        // drains again, or the returning thread sees the wish.
        fence(Ordering::SeqCst);
    }

    fn give_back(&self, returned: Returned) {
        self.returns.push(returned);
        fence(Ordering::SeqCst);
        if self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::AcqRel) {
            (self.wake)();
        }
    }
}

/// The only access to a slot that is being filled. Dropping it gives the slot back.
pub struct SlotWriter {
    shared: Arc<ArenaShared>,
    address: NonNull<u8>,
    slot: SlotIx,
    len: u32,
    published: bool,
}

// SAFETY: the writer is the only user of the slot's bytes, whichever thread holds it.
unsafe impl Send for SlotWriter {}
// SAFETY: `&SlotWriter` reads the bytes only; writing takes `&mut`.
unsafe impl Sync for SlotWriter {}

impl SlotWriter {
    pub(crate) fn new(shared: Arc<ArenaShared>, slot: SlotIx, len: u32) -> Self {
        let address = shared.arena.address(slot.offset(), u64::from(len));
        Self {
            shared,
            address,
            slot,
            len,
            published: false,
        }
    }

    /// The slot being filled.
    #[must_use]
    pub const fn slot(&self) -> SlotIx {
        self.slot
    }

    /// Copies `bytes` to offset `at`.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn write_at(&mut self, at: usize, bytes: &[u8]) {
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The block's bytes, to be filled. They hold what the slot held before.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the first `len` bytes of the slot lie in the mapping, which `shared` keeps;
        // by the module's invariant nobody else uses them while this writer exists.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len as usize) }
    }

    /// The block's bytes as written so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as for `bytes_mut`, and `&self` excludes a concurrent writer.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len as usize) }
    }

    /// The slot's memory for a device to read from or write to: from the first byte, to the
    /// length rounded up to 4 KiB. Whoever uses it keeps the writer until the device is done.
    #[must_use]
    pub fn io_range(&self) -> (NonNull<u8>, usize) {
        let len = u64::from(self.len).next_multiple_of(SLOT_ALIGN);
        (
            self.shared.arena.address(self.slot.offset(), len),
            len as usize,
        )
    }

    /// Ends the writing without giving the slot back: the shard publishes it.
    #[must_use]
    pub fn finish(mut self) -> SlotIx {
        self.published = true;
        self.slot
    }

    /// Whether the slot lies in this arena.
    #[must_use]
    pub fn is_in(&self, shared: &Arc<ArenaShared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl Drop for SlotWriter {
    fn drop(&mut self) {
        if !self.published {
            self.shared.give_back(Returned::Writer(self.slot));
        }
    }
}

impl fmt::Debug for SlotWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotWriter")
            .field("slot", &self.slot)
            .field("len", &self.len)
            .finish()
    }
}

/// A block's bytes in their slot, without a copy. The slot is not reused while this exists;
/// dropping it, on any thread, gives the pin back.
pub struct PinnedBlock {
    shared: Arc<ArenaShared>,
    address: NonNull<u8>,
    len: u32,
    block: BlockIx,
}

// SAFETY: a published slot's bytes are not written while it is pinned, so they may be read
// from any thread.
unsafe impl Send for PinnedBlock {}
// SAFETY: as above.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    /// Hands out one pin of `block`, whose first `len` bytes of `slot` are published. The
    /// caller has counted the pin and takes it back as [`Returned::Pin`].
    #[must_use]
    pub fn new(shared: &Arc<ArenaShared>, slot: SlotIx, len: u32, block: BlockIx) -> Self {
        let address = shared.arena.address(slot.offset(), u64::from(len));
        Self {
            shared: Arc::clone(shared),
            address,
            len,
            block,
        }
    }

    /// The slot's memory for a device to read from: from the first byte, to the length rounded
    /// up to 4 KiB. Whoever uses it keeps the pin until the device is done.
    #[must_use]
    pub fn io_range(&self) -> (NonNull<u8>, usize) {
        (
            self.address,
            self.len.next_multiple_of(SLOT_ALIGN as u32) as usize,
        )
    }

    /// Copies the block into `target`, which must be as long.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_to(&self, target: &mut [u8]) {
        target.copy_from_slice(self);
    }
}

impl Deref for PinnedBlock {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the mapping, which `shared` keeps, were published before
        // the pin was handed out, and are not written while it exists.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for PinnedBlock {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.shared.give_back(Returned::Pin(self.block));
    }
}

impl fmt::Debug for PinnedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBlock")
            .field("block", &self.block)
            .field("len", &self.len)
            .finish()
    }
}

/// Reads published slots on the shard's own thread, without a pin of its own: the caller
/// counts one.
#[must_use]
#[inline]
pub fn published_bytes(shared: &ArenaShared, slot: SlotIx, len: u32) -> &[u8] {
    let address = shared.arena.address(slot.offset(), u64::from(len));
    // SAFETY: the range lies in the mapping, which outlives the borrow of `shared`. The
    // caller holds a pin, so by the module's invariant no writer exists for the slot.
    unsafe { std::slice::from_raw_parts(address.as_ptr(), len as usize) }
}
