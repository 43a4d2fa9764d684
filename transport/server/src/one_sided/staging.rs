//! Copies of leased blocks, for one client alone.

use std::sync::{Arc, Mutex, PoisonError};

use terrace_engine::{LocalPin, PageRun, PageRuns};
use terrace_fabric::transfer::{Access, Memory, Region, TransferEngine, TransferError};

use super::client::Grant;
use super::{OneSided, OneSidedError, Place, engine};

/// Copies begin at multiples of this.
const GRANULE: u64 = 4096;

/// Bytes that are copied before other tasks of the thread run.
const COPY_LEN: usize = 1 << 20;

/// The memory, and the engine that serves it to its client.
pub(super) struct Staging {
    pub(super) engine: TransferEngine,
    pub(super) region: Arc<Region>,
    free: Mutex<PageRuns>,
    // Given back when the memory is gone.
    _place: Place,
}

impl Staging {
    /// New memory, registered. Takes milliseconds.
    pub(super) fn new(
        owner: &Arc<OneSided>,
        len: u64,
        clients_max: usize,
    ) -> Result<Self, OneSidedError> {
        let place = owner.take_place(clients_max)?;
        let engine = engine(owner.config())?;
        let len = len / GRANULE * GRANULE;
        let region = engine.register(memory(len)?, Access::Read)?;
        // Of a terabyte at most, so it fits.
        let granules = (len / GRANULE) as u32;
        Ok(Self {
            engine,
            region,
            free: Mutex::new(PageRuns::new(granules)),
            _place: place,
        })
    }

    fn take(&self, len: usize) -> Option<PageRun> {
        let count = u32::try_from((len as u64).div_ceil(GRANULE)).ok()?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.take(count)
    }

    fn give(&self, run: PageRun) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.give(run);
    }
}

/// On hugepages if there are any left.
fn memory(len: u64) -> Result<Memory, TransferError> {
    Memory::hugepages(len).or_else(|_| Memory::host(len))
}

/// A copy of a block. Its room is free again when the client has said that it is done, and else
/// with all of the client's memory.
pub(crate) struct Copied {
    grant: Arc<Grant>,
    run: PageRun,
}

impl Copied {
    /// Offset of the first byte in the client's region.
    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.run.first) * GRANULE
    }

    /// Copies a block to where the client of `grant` reads it; `None` without room.
    pub(crate) async fn of(
        grant: &Arc<Grant>,
        pin: &LocalPin,
        yield_now: impl AsyncFn(),
    ) -> Option<Self> {
        let staging = grant.staging()?;
        let copied = Self {
            grant: Arc::clone(grant),
            run: staging.take(pin.len())?,
        };
        let (mut at, mut pieces) = (copied.offset(), pin.chunks(COPY_LEN).peekable());
        while let Some(piece) = pieces.next() {
            if !staging.region.memory().write_at(at, piece) {
                copied.give_back();
                return None;
            }
            at += piece.len() as u64;
            if pieces.peek().is_some() {
                yield_now().await;
            }
        }
        Some(copied)
    }

    /// The client reads it no more.
    pub(crate) fn give_back(self) {
        if let Some(staging) = self.grant.staging() {
            staging.give(self.run);
        }
    }
}
