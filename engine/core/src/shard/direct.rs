//! Reads past DRAM: from a device straight into the caller's registered memory.
//!
//! **Invariants**
//! - The region belongs to the read until its completion: a task of the shard's own holds it.
//! - Bytes are verified before the caller is told that they are there.
//! - A reader that came meanwhile is served from the same device read: the block is copied into
//!   a slot for it.

use std::rc::Rc;

use terrace_nvme::tier::ReadClass;
use terrace_nvme::{IoBuffer, UNIT};
use terrace_slab::RegisteredRegion;
use terrace_types::checksum::ChecksumStream;
use terrace_types::{BlockIx, BlockKey, Checksum, Lookup, Tier, UnavailableReason};

use super::Shard;
use super::get::{GetOptions, LocalPin};
use super::room::Asker;
use crate::index::{ERASED, WARM};

/// Bytes that are copied out of a region and hashed at a time: they stay in the first cache.
const PIECE_LEN: usize = 16 << 10;

/// Where a block was found by [`Shard::get_direct`].
pub(crate) enum Direct {
    /// In DRAM: the caller copies it.
    Pinned(LocalPin),
    /// It was read into the region; this many bytes of it.
    Read(usize),
}

impl Shard {
    /// Takes note of memory that blocks are read into, and registers it with the rings until its
    /// last user is gone.
    pub(crate) fn register_region(&self, region: &RegisteredRegion) {
        self.forget_unused_regions();
        let io = self.io.borrow();
        for ring in io.iter().flat_map(crate::engine::ShardIo::rings) {
            if let Err(error) = ring.register_region(region.address(), region.len()) {
                tracing::warn!(%error, "caller memory is pinned anew for each operation");
            }
        }
        self.regions.borrow_mut().push(region.keeper());
    }

    /// Takes memory out of the rings that only they still know. An operation that is under way
    /// counts as a user.
    pub(super) fn forget_unused_regions(&self) {
        let io = self.io.borrow();
        let mut regions = self.regions.borrow_mut();
        for region in regions.extract_if(.., |region| !region.is_used()) {
            let (address, len) = region.memory();
            let rings = io.iter().flat_map(crate::engine::ShardIo::rings);
            rings.for_each(|ring| ring.forget_region(address, len));
        }
    }

    /// Looks a block up; one that is not in DRAM is read into `region`, which is a multiple of
    /// 4096 bytes at such an address and long enough, and DRAM stays as it is.
    pub(crate) async fn get_direct(
        self: &Rc<Self>,
        key: &BlockKey,
        region: &RegisteredRegion,
        options: &GetOptions,
    ) -> Lookup<Direct> {
        loop {
            if let Some(reason) = self.refusal(key) {
                return self.count_unavailable(reason);
            }
            let below = self.only_below(key);
            match below {
                Some(block) if self.is_promoting(block) => {
                    self.state.borrow_mut().counters.reads_joined += 1;
                    self.lift(block);
                    self.join_promotion(block).await;
                }
                Some(block) if self.fits(block, region) => {
                    return match self.read_direct(key, block, region).await {
                        Ok(Some(len)) => Lookup::Hit {
                            tier: Tier::Nvme,
                            value: Direct::Read(len),
                        },
                        Ok(None) => Lookup::Miss,
                        Err(reason) => self.count_unavailable(reason),
                    };
                }
                // In DRAM, nowhere, or in need of a slot: as any other lookup.
                _ => return self.get(key, options).await.map(Direct::Pinned),
            }
        }
    }

    /// A block that is below and not in DRAM; asking counts nothing.
    fn only_below(&self, key: &BlockKey) -> Option<BlockIx> {
        let state = self.state.borrow();
        let epoch = state.epochs.of(key.namespace())?;
        let block = state.index.find(key, epoch)?;
        state.tenants.look_at_clock(self.now.get());
        let expired = state.is_expired(block);
        let below = state.index.record(block).slot().is_none();
        (below && !expired).then_some(block)
    }

    fn fits(&self, block: BlockIx, region: &RegisteredRegion) -> bool {
        let len = u64::from(self.state.borrow().index.record(block).len);
        let aligned = region
            .address()
            .as_ptr()
            .addr()
            .is_multiple_of(UNIT as usize);
        aligned && region.len() as u64 >= len.next_multiple_of(UNIT)
    }

    async fn read_direct(
        self: &Rc<Self>,
        key: &BlockKey,
        block: BlockIx,
        region: &RegisteredRegion,
    ) -> Result<Option<usize>, UnavailableReason> {
        let (shard, key, region) = (Rc::clone(self), key.clone(), region.clone());
        let read = Box::pin(async move {
            // A caller that went away has its region back all the same.
            let outcome = shard.read_into_region(&key, block, region).await;
            shard.end_promotion(block);
            outcome
        });
        self.begin_promotion(block, read).await
    }

    async fn read_into_region(
        self: &Rc<Self>,
        key: &BlockKey,
        block: BlockIx,
        region: RegisteredRegion,
    ) -> Result<Option<usize>, UnavailableReason> {
        let (len, location, expected) = {
            let state = self.state.borrow();
            let record = state.index.record(block);
            (record.len, record.below(), record.checksum())
        };
        let (Some(tier), Some(location)) = (&self.tier, location) else {
            return Ok(None);
        };
        let read = tier.read(
            location,
            len,
            IoBuffer::Region(region.clone()),
            ReadClass::Demand,
        );
        if read.await.result.is_err() {
            self.state.borrow_mut().counters.promotions_failed += 1;
            return Err(UnavailableReason::TierFailed);
        }
        let sound = checksum_of(key, &region, len as usize) == expected;
        let joined = {
            let mut state = self.state.borrow_mut();
            if state.index.record(block).is(ERASED) {
                return Ok(None);
            }
            if sound {
                state.counters.below_hits += 1;
                state.counters.direct_reads += 1;
                state.index.record_mut(block).flags |= WARM;
            }
            state.is_joined(block)
        };
        if !sound {
            self.give_up_damaged(block);
            return Ok(None);
        }
        if joined {
            self.copy_up(key, block, &region);
        }
        Ok(Some(len as usize))
    }

    /// Copies a block out of the region it was read into, for readers that wait for a slot.
    fn copy_up(self: &Rc<Self>, key: &BlockKey, block: BlockIx, region: &RegisteredRegion) {
        let (len, expected) = {
            let state = self.state.borrow();
            let record = state.index.record(block);
            (record.len, record.checksum())
        };
        let Some(mut writer) = self.try_room(u64::from(len), &Asker::of(key)) else {
            return;
        };
        self.fill_by_read(&writer);
        let Ok(source) = region.slice(0..len as usize) else {
            return;
        };
        source.copy_to(writer.bytes_mut());
        let mut state = self.state.borrow_mut();
        // The region is the caller's: it may have been written to by now.
        if Checksum::of(key, writer.bytes()) != expected || state.index.record(block).is(ERASED) {
            return;
        }
        state.settle(writer.finish(), block);
        let access = self.access(key.hash(), len, &GetOptions::default());
        state.policy.on_insert(block, &access);
    }
}

/// The checksum of the first `len` bytes of a region, copied out in pieces: a region's bytes are
/// never behind a reference.
fn checksum_of(key: &BlockKey, region: &RegisteredRegion, len: usize) -> Checksum {
    let mut stream = ChecksumStream::new(key, len as u64);
    let mut piece = [0; PIECE_LEN];
    for start in (0..len).step_by(PIECE_LEN) {
        let count = PIECE_LEN.min(len - start);
        if let Ok(source) = region.slice(start..start + count) {
            source.copy_to(&mut piece[..count]);
        }
        stream.update(&piece[..count]);
    }
    stream.finish()
}
