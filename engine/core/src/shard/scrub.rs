//! The scrub: reads what lies on the devices at a bounded rate and gives up what is damaged,
//! before somebody wants it.

use std::rc::{Rc, Weak};
use std::time::Duration;

use terrace_nvme::format::EntryKind;
use terrace_nvme::tier::{Location, NvmeTier, ReadClass, SegmentIx};
use terrace_nvme::{AlignedBuffer, IoBuffer};
use terrace_types::{BlockIx, BlockKey, Checksum};

use super::Shard;

/// Time between the end of one pass and the start of the next.
const PASS_INTERVAL: Duration = Duration::from_secs(3600);

impl Shard {
    /// Starts the scrub, when a rate is configured.
    pub(crate) fn start_scrub(self: &Rc<Self>) {
        let rate = self.config.nvme.scrub_rate / self.config.shards as u64;
        let (Some(tier), true) = (&self.tier, rate > 0) else {
            return;
        };
        let (shard, tier) = (Rc::downgrade(self), Rc::clone(tier));
        self.spawn(Box::pin(async move { passes(shard, tier, rate).await }));
    }

    /// Reads one segment's live blocks, at most `rate` bytes a second.
    async fn scrub_segment(self: &Rc<Self>, tier: &Rc<NvmeTier>, segment: SegmentIx, rate: u64) {
        let contents = tier.contents(segment).await;
        let mut blocks: Vec<(BlockKey, Location, u32, Checksum)> = Vec::new();
        contents.for_each(|entry| {
            if let (EntryKind::Block, Some(key)) = (entry.kind, self.key_of(entry)) {
                let location = tier.locate(segment, entry.place);
                blocks.push((key, location, entry.len, entry.checksum));
            }
        });
        for (key, location, len, checksum) in blocks {
            if self.unavailable().is_some() {
                return;
            }
            if self.block_at(&key, location).is_none() {
                continue;
            }
            let memory = IoBuffer::Owned(AlignedBuffer::zeroed(len as usize));
            let read = tier
                .read(location, len, memory, ReadClass::Background)
                .await;
            let memory = read.buffer.and_then(IoBuffer::owned);
            self.state.borrow_mut().counters.scrubbed_bytes += u64::from(len);
            // A read that failed says nothing of the bytes: the next pass looks again.
            let damaged = memory.is_some_and(|memory| {
                read.result.is_ok()
                    && Checksum::of(&key, &memory.bytes()[..len as usize]) != checksum
            });
            // Nor does what was read when reclaim has moved the block meanwhile.
            if let (true, Some(block)) = (damaged, self.block_at(&key, location)) {
                self.give_up_damaged(block);
            }
            let span = Duration::from_nanos(u64::from(len) * 1_000_000_000 / rate);
            self.runtime.sleep_until(self.runtime.now() + span).await;
        }
    }

    fn block_at(&self, key: &BlockKey, location: Location) -> Option<BlockIx> {
        let state = self.state.borrow();
        let epoch = state.epochs.of(key.namespace())?;
        let block = state.index.find(key, epoch)?;
        (state.index.record(block).below() == Some(location)).then_some(block)
    }
}

async fn passes(shard: Weak<Shard>, tier: Rc<NvmeTier>, rate: u64) {
    loop {
        for segment in tier.used_segments() {
            let Some(shard) = shard.upgrade() else { return };
            if shard.unavailable().is_some() {
                return;
            }
            shard.scrub_segment(&tier, segment, rate).await;
        }
        let wait = {
            let Some(shard) = shard.upgrade() else { return };
            shard.state.borrow_mut().counters.scrub_passes += 1;
            shard
                .runtime
                .sleep_until(shard.runtime.now() + PASS_INTERVAL)
        };
        wait.await;
    }
}
