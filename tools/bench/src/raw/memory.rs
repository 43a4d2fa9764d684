//! The memory that operations read into and write from: one arena, whose slots are used in
//! turn, so that a ring has no warmer memory than an engine.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{Context, ensure};
use terrace_engine::{Namespace, SlotWriter};
use terrace_slab::{Arena, ArenaConfig, ArenaShared, ClassChoice, SlabPool};
use terrace_types::{Checksum, NamespaceName};

use super::meter;
use super::options::{RawOptions, Rw};
use crate::payload;

/// See the module's text.
#[derive(Clone)]
pub(super) struct BlockMemory {
    shared: Arc<ArenaShared>,
    block_len: u64,
}

impl BlockMemory {
    /// Memory of `memory_len` bytes for blocks of `block_len`.
    pub(super) fn open(
        block_len: u64,
        memory_len: u64,
        options: &RawOptions,
    ) -> anyhow::Result<Self> {
        let config = ArenaConfig {
            hugepages: options.hugepages,
            ..ArenaConfig::new(memory_len)
        };
        let arena = Arena::open(&config).context("take the memory of operations")?;
        let memory = Self {
            shared: ArenaShared::new(arena, Box::new(|| {})),
            block_len,
        };
        if options.rw != Rw::Randread {
            let slots = memory.slots();
            slots.for_each(|number, block| payload::fill(number, block.bytes_mut()));
        }
        let depth = options.tasks_of(options.depths.iter().copied().max().unwrap_or(1));
        let count = memory.slots().len();
        ensure!(
            count >= depth,
            "--dram {memory_len} holds {count} blocks of --bs {block_len}; --iodepth is {depth}"
        );
        Ok(memory)
    }

    /// Bytes of a block.
    pub(super) const fn block_len(&self) -> u64 {
        self.block_len
    }

    /// Bytes of all memory.
    pub(super) fn len(&self) -> u64 {
        self.shared.arena().len()
    }

    /// The pages it lies on.
    pub(super) fn backing(&self) -> String {
        self.shared.arena().backing().to_string()
    }

    /// The memory as a ring registers it.
    pub(super) fn range(&self) -> (NonNull<u8>, usize) {
        let len = self.len();
        (self.shared.arena().address(0, len), len as usize)
    }

    /// All slots. One user at a time: whoever asks next gets the same ones.
    pub(super) fn slots(&self) -> Slots {
        let mut pool = SlabPool::new(Arc::clone(&self.shared));
        pool.declare(self.block_len);
        let mut free = VecDeque::new();
        if let ClassChoice::Fits(class) = pool.choose_class(self.block_len) {
            while let Some(slot) = pool.take(class) {
                free.push_back(pool.writer(slot, self.block_len as u32));
            }
        }
        Slots {
            free: RefCell::new(free),
        }
    }

    /// CPU time of hashing a block as an engine does after reading it, in microseconds: over
    /// all slots in the order in which they were last used.
    pub(super) fn hash_us(&self) -> f64 {
        let slots = self.slots();
        let name = NamespaceName::new("raw").expect("a short name");
        let key = Namespace::new(0, 0, &name).key(b"block").expect("a key");
        let before = meter::cpu_time();
        slots.for_each(|_, block| {
            std::hint::black_box(Checksum::of(&key, block.bytes()));
        });
        let took = meter::cpu_time().saturating_sub(before);
        #[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
        let count = slots.len().max(1) as f64;
        took.as_secs_f64() * 1e6 / count
    }
}

/// Slots, used in turn.
pub(super) struct Slots {
    free: RefCell<VecDeque<SlotWriter>>,
}

impl Slots {
    /// Count of slots that nobody uses.
    pub(super) fn len(&self) -> usize {
        self.free.borrow().len()
    }

    /// The slot that was used longest ago; `None` when all are in use.
    pub(super) fn take(&self) -> Option<SlotWriter> {
        self.free.borrow_mut().pop_front()
    }

    /// Takes a slot back.
    pub(super) fn give(&self, slot: SlotWriter) {
        self.free.borrow_mut().push_back(slot);
    }

    fn for_each(&self, mut f: impl FnMut(u64, &mut SlotWriter)) {
        let mut free = self.free.borrow_mut();
        (0..)
            .zip(free.iter_mut())
            .for_each(|(number, slot)| f(number, slot));
    }
}

impl Drop for Slots {
    /// Slots that are given up by name do not go to the arena's queue, which nobody empties.
    fn drop(&mut self) {
        for slot in self.free.get_mut().drain(..) {
            let _ = slot.finish();
        }
    }
}
