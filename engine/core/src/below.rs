//! The tier below DRAM as shards see it, and an in-memory one for tests and embedders.
//!
//! Control goes down only: a tier never calls its shard. What it gave up by itself it reports
//! with the next store.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use terrace_runtime::LocalFuture;
use terrace_slab::SlotWriter;
use terrace_types::{BlockIx, Checksum};

/// A block on its way down.
#[derive(Debug)]
pub struct Demoted<'a> {
    /// The shard's number for the block; the tier names it again when it gives it up.
    pub block: BlockIx,
    /// The key's bytes.
    pub key: &'a [u8],
    /// The payload's checksum.
    pub checksum: Checksum,
    /// The payload; it stays pinned until the store completes.
    pub payload: &'a [u8],
}

/// What a store came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBelow {
    /// Where the block lies; below `u32::MAX`.
    pub location: u32,
    /// Blocks that the tier gave up for it, by their numbers and locations.
    pub gone: Vec<(BlockIx, u32)>,
}

/// Why a tier did not do as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The block can never fit.
    #[error("the block is larger than the tier")]
    TooLarge,
    /// The medium failed, or did not answer in time.
    #[error("the medium failed")]
    Failed,
}

/// A tier below DRAM, owned by one shard and used on its thread only.
pub trait TierBelow {
    /// Stores a block. Whoever awaits it keeps the payload pinned until it completes.
    fn store<'a>(&'a self, block: Demoted<'a>) -> LocalFuture<'a, Result<StoredBelow, TierError>>;

    /// Reads the block at `location` into `writer`, which is as long as the block, and hands
    /// the writer back. Dropping the future must not end a read that a device still does.
    fn load(
        &self,
        location: u32,
        writer: SlotWriter,
    ) -> LocalFuture<'_, Result<SlotWriter, TierError>>;

    /// The block at `location` is not wanted any more.
    fn forget(&self, location: u32);

    /// Payload bytes held.
    fn bytes(&self) -> u64;
}

struct MemBlock {
    block: BlockIx,
    payload: Box<[u8]>,
}

#[derive(Default)]
struct MemState {
    blocks: HashMap<u32, MemBlock>,
    order: VecDeque<u32>,
    next: u32,
    bytes: u64,
}

/// A tier below that keeps blocks in ordinary memory and gives up the oldest when it is full.
/// It survives nothing; it stands where a device will.
pub struct MemTier {
    capacity_bytes: u64,
    state: RefCell<MemState>,
}

impl MemTier {
    /// An empty tier for `capacity_bytes` of payload.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            state: RefCell::default(),
        }
    }

    fn insert(&self, block: &Demoted<'_>) -> Result<StoredBelow, TierError> {
        let len = block.payload.len() as u64;
        if len > self.capacity_bytes {
            return Err(TierError::TooLarge);
        }
        let mut state = self.state.borrow_mut();
        let mut gone = Vec::new();
        while state.bytes + len > self.capacity_bytes {
            let Some(oldest) = state.order.pop_front() else {
                break;
            };
            if let Some(dropped) = state.blocks.remove(&oldest) {
                state.bytes -= dropped.payload.len() as u64;
                gone.push((dropped.block, oldest));
            }
        }
        let location = state.next;
        // Locations of blocks that are long gone come round again after four billion stores.
        state.next = if location == u32::MAX - 1 {
            0
        } else {
            location + 1
        };
        state.blocks.insert(
            location,
            MemBlock {
                block: block.block,
                payload: block.payload.into(),
            },
        );
        state.order.push_back(location);
        state.bytes += len;
        Ok(StoredBelow { location, gone })
    }
}

impl TierBelow for MemTier {
    fn store<'a>(&'a self, block: Demoted<'a>) -> LocalFuture<'a, Result<StoredBelow, TierError>> {
        Box::pin(async move { self.insert(&block) })
    }

    fn load(
        &self,
        location: u32,
        mut writer: SlotWriter,
    ) -> LocalFuture<'_, Result<SlotWriter, TierError>> {
        Box::pin(async move {
            let state = self.state.borrow();
            let held = state.blocks.get(&location).ok_or(TierError::Failed)?;
            if held.payload.len() != writer.bytes().len() {
                return Err(TierError::Failed);
            }
            writer.write_at(0, &held.payload);
            Ok(writer)
        })
    }

    fn forget(&self, location: u32) {
        let mut state = self.state.borrow_mut();
        if let Some(dropped) = state.blocks.remove(&location) {
            state.bytes -= dropped.payload.len() as u64;
        }
    }

    fn bytes(&self) -> u64 {
        self.state.borrow().bytes
    }
}
