//! A clean close: dirty blocks are written down, and the policy's state with them; and the warm
//! start that reads it back.
//!
//! A checkpoint is a payload the tier keeps like a block: `TERRCKPT`, version, count, then for
//! each block the hash of its key, its flags and its tag; see `docs/on-disk-format.md`. What the
//! policy has learned is a payload of its own, see `learned`.

use std::rc::Rc;

use futures_lite::future::or;
use terrace_nvme::format::{EntryKind, Sequence};
use terrace_nvme::tier::{Contents, NvmeTier, Placed, ReadClass, Record, TierError};
use terrace_nvme::{AlignedBuffer, IoBuffer};
use terrace_types::{BlockIx, Checksum, Hint, KeyHash, Nanos, UnavailableReason};

use super::learned::{self, Learned};
use super::promote::Arrival;
use super::{GetOptions, Shard};
use crate::index::{DEMOTING, WARM};

const MAGIC: &[u8; 8] = b"TERRCKPT";
const VERSION: u32 = 1;
/// Bytes before the first block.
const HEAD_LEN: usize = 16;
/// Bytes a block takes up.
const ITEM_LEN: usize = 10;
/// Blocks in one payload: below 1 MiB.
const ITEMS_MAX: usize = 100_000;
/// The namespace checkpoints are kept under; their kind keeps them apart from blocks.
const NAMESPACE: &str = "terrace";
/// The block was in DRAM.
const IN_DRAM: u8 = 1;
/// The block was hit since it was written.
const WAS_HIT: u8 = 2;

/// How often a close looks for blocks that reclaim put out of the tier meanwhile.
const WRITE_ROUNDS: usize = 4;

/// What a clean close came to in one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PersistReport {
    /// Dirty blocks that were written below and survive power loss.
    pub blocks_written: u64,
    /// Blocks that are in DRAM only, and go with it.
    pub blocks_lost: u64,
    /// Everything else is on the devices, sealed.
    pub clean: bool,
    /// Devices that are to be emptied hold nothing of the shard any more.
    pub drained: bool,
}

/// A block as a checkpoint names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    hash: KeyHash,
    flags: u8,
    tag: u8,
}

/// A checkpoint that was read.
struct Checkpoint {
    sequence: Sequence,
    items: Vec<Item>,
}

/// What was read of a clean close.
#[derive(Default)]
pub(super) struct Found {
    checkpoints: Vec<Checkpoint>,
    learned: Vec<Learned>,
}

impl Shard {
    /// Writes down what is in DRAM only, the most valuable first, until `deadline`, then the
    /// policy's state. No put is taken any more.
    pub(crate) async fn persist(self: &Rc<Self>, deadline: Nanos) -> PersistReport {
        self.persisting.set(true);
        let mut report = PersistReport::default();
        let Some(tier) = &self.tier else {
            report.blocks_lost = self.state.borrow().dram_blocks as u64;
            return report;
        };
        let late = self.runtime.sleep_until(deadline);
        let mut begun = Vec::new();
        let written = or(async { self.write_dirty(tier, &mut begun).await }, async {
            late.await;
            Err(TierError::ReadOnly)
        });
        report.clean = written.await.is_ok();
        report.drained = tier.is_drained();
        // A device that hangs or fails may not have what it was given.
        let (safe, unsure): (Vec<_>, Vec<_>) = begun
            .into_iter()
            .partition(|(_, placed)| tier.has_made_durable(placed.ticket));
        report.blocks_written = safe.len() as u64;
        let state = self.state.borrow();
        let below = |block: BlockIx| state.index.record(block).below();
        let stay = |(block, placed): &&(BlockIx, Placed)| below(*block) == Some(placed.location);
        let lost = state.index.scan(0, u32::MAX);
        let lost = lost.filter(|(_, record)| record.slot().is_some() && record.below().is_none());
        report.blocks_lost = (lost.count() + unsure.iter().filter(stay).count()) as u64;
        report
    }

    /// Waits until what is on its way to the devices survives power loss, and what has no place
    /// there yet.
    pub(crate) async fn sync(&self) -> Result<(), UnavailableReason> {
        let Some(tier) = &self.tier else {
            return Ok(());
        };
        let failed = UnavailableReason::TierFailed;
        let all_placed = self.all_placed().await;
        tier.sync().await.map_err(|_| failed)?;
        if all_placed { Ok(()) } else { Err(failed) }
    }

    async fn write_dirty(
        self: &Rc<Self>,
        tier: &Rc<NvmeTier>,
        begun: &mut Vec<(BlockIx, Placed)>,
    ) -> Result<(), TierError> {
        for _ in 0..WRITE_ROUNDS {
            let order = self.dirty();
            if order.is_empty() {
                break;
            }
            for block in order {
                let placed = self.write_block(block, &Hint::default()).await?;
                begun.extend(placed.map(|placed| (block, placed)));
            }
            self.end_reclaim(tier).await;
        }
        for payload in self.checkpoint().into_iter().chain(self.learned(tier)) {
            self.write_checkpoint(tier, payload).await?;
        }
        self.end_reclaim(tier).await;
        tier.sync().await?;
        tier.close().await
    }

    /// Waits for the reclaim that is under way: it needs the open segment for what it keeps.
    async fn end_reclaim(self: &Rc<Self>, tier: &Rc<NvmeTier>) {
        while tier.is_reclaiming() {
            self.start_reclaim();
            tier.changed().await;
        }
    }

    /// Blocks that are in DRAM only, the most valuable first, those that are on their way down
    /// last.
    fn dirty(&self) -> Vec<BlockIx> {
        let state = self.state.borrow();
        let mut order: Vec<BlockIx> = Vec::new();
        state.policy.save(&mut |block, _| order.push(block));
        // A policy saves what goes first first.
        order.reverse();
        let all = state.index.scan(0, u32::MAX);
        let known = order.len();
        order.extend(
            all.filter(|(_, record)| record.is(DEMOTING))
                .map(|(block, _)| block),
        );
        if known == 0 {
            let all = state.index.scan(0, u32::MAX);
            order.extend(all.map(|(block, _)| block));
        }
        let dirty = |block: &BlockIx| {
            let record = state.index.record(*block);
            record.slot().is_some() && record.below().is_none()
        };
        order.retain(dirty);
        order
    }

    /// The policy's state, in payloads of bounded length.
    fn checkpoint(&self) -> Vec<Vec<u8>> {
        let state = self.state.borrow();
        let mut items: Vec<Item> = Vec::new();
        state.policy.save(&mut |block, tag| {
            let record = state.index.record(block);
            let flags = IN_DRAM | if record.is(WARM) { WAS_HIT } else { 0 };
            items.push(Item {
                hash: record.hash(),
                flags,
                tag,
            });
        });
        let warm = state
            .index
            .scan(0, u32::MAX)
            .filter(|(_, record)| record.slot().is_none() && record.is(WARM));
        items.extend(warm.map(|(_, record)| Item {
            hash: record.hash(),
            flags: WAS_HIT,
            tag: 0,
        }));
        items.chunks(ITEMS_MAX).map(encode).collect()
    }

    async fn write_checkpoint(
        self: &Rc<Self>,
        tier: &Rc<NvmeTier>,
        payload: Vec<u8>,
    ) -> Result<(), TierError> {
        let key = (self.number as u32).to_le_bytes();
        let len = payload.len() as u32;
        let mut memory = AlignedBuffer::zeroed(payload.len());
        memory.bytes_mut()[..payload.len()].copy_from_slice(&payload);
        let record = Record {
            kind: EntryKind::Checkpoint,
            namespace: NAMESPACE,
            key: &key,
            checksum: Checksum::of_named(NAMESPACE, &key, &payload),
            len,
            hint: Hint::default(),
            sequence: None,
            from: None,
        };
        let mut buffer = IoBuffer::Owned(memory);
        loop {
            match tier.try_place(&record, buffer) {
                Ok(_) => return Ok(()),
                Err(back) => buffer = back,
            }
            self.start_reclaim();
            let deadline = self.runtime.now() + self.config.nvme.io_deadline;
            tier.room(len, None, deadline).await?;
        }
    }

    /// Reads the checkpoints of a segment that the close of epoch `warm` left.
    pub(super) async fn read_checkpoints(
        &self,
        tier: &Rc<NvmeTier>,
        contents: &Contents,
        warm: Option<u32>,
        found: &mut Found,
    ) {
        let Some(warm) = warm else { return };
        let mut places = Vec::new();
        contents.for_each(|entry| {
            if entry.kind == EntryKind::Checkpoint && entry.sequence.open_epoch() == warm {
                let location = tier.locate(contents.segment(), entry.place);
                let key: Box<[u8]> = entry.key.into();
                places.push((entry.sequence, location, entry.len, key, entry.checksum));
            }
        });
        for (sequence, location, len, key, checksum) in places {
            let memory = IoBuffer::Owned(AlignedBuffer::zeroed(len as usize));
            let read = tier.read(location, len, memory, ReadClass::Background);
            let Some(memory) = read.await.buffer.and_then(IoBuffer::owned) else {
                continue;
            };
            let payload = memory.bytes().get(..len as usize).unwrap_or_default();
            if Checksum::of_named(NAMESPACE, &key, payload) != checksum {
                continue;
            }
            if let Some(items) = decode(payload) {
                found.checkpoints.push(Checkpoint { sequence, items });
            } else if let Some(learned) = learned::decode(payload) {
                found.learned.extend(Learned::of(&key, sequence, learned));
            }
        }
    }

    /// Brings back into DRAM what was there at the clean close, as far as it fits.
    pub(super) fn start_warming(self: &Rc<Self>, found: Found) {
        let mut checkpoints = found.checkpoints;
        // The policy knows what it has learned before it is given its first block.
        if let Some(learned) = learned::choose(&found.learned, self.number) {
            self.state.borrow_mut().policy.restore_learned(learned);
        }
        checkpoints.sort_by_key(|checkpoint| checkpoint.sequence);
        let items: Vec<Item> = checkpoints.into_iter().flat_map(|c| c.items).collect();
        if items.is_empty() {
            return;
        }
        {
            let mut state = self.state.borrow_mut();
            for item in items.iter().filter(|item| item.flags & WAS_HIT != 0) {
                if let Some(block) = state.index.find_hash(item.hash) {
                    state.index.record_mut(block).flags |= WARM;
                }
            }
        }
        let shard = Rc::clone(self);
        self.spawn(Box::pin(async move {
            for item in shard.fitting(&items) {
                shard.warm(item).await;
            }
        }));
    }

    /// The blocks that fit into DRAM below the low watermark, the most valuable ones, in the
    /// order in which the policy saved them.
    fn fitting(&self, items: &[Item]) -> Vec<Item> {
        let state = self.state.borrow();
        let resident = items.iter().filter(|item| item.flags & IN_DRAM != 0);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "a share of memory needs no last bit"
        )]
        let share = |all: u64| (all as f64 * self.config.fill_ratio_low) as u64;
        let mut bytes = share(self.shared.arena().len());
        let mut blocks = share(state.blocks_cap.min(u32::MAX as usize) as u64);
        let mut list: Vec<Item> = resident
            .rev()
            .take_while(|item| {
                let block = state.index.find_hash(item.hash);
                let len = block.map_or(0, |block| state.index.record(block).pinned_len());
                let fits = len <= bytes && blocks > 0;
                bytes = bytes.saturating_sub(len);
                blocks = blocks.saturating_sub(1);
                fits
            })
            .copied()
            .collect();
        list.reverse();
        list
    }

    /// Reads one block back up, unless it is there already or there is no room.
    async fn warm(self: &Rc<Self>, item: Item) {
        let key = {
            let state = self.state.borrow();
            // Warming fills what is free; it gives nothing up for it.
            if self.unavailable().is_some() || state.fill_ratio() > self.config.fill_ratio_low {
                return;
            }
            let Some(block) = state.index.find_hash(item.hash) else {
                return;
            };
            let record = state.index.record(block);
            if record.slot().is_some() {
                return;
            }
            let namespace = state.epochs.namespace_of(record.namespace());
            namespace.key(state.index.key_of(record))
        };
        if let Ok(key) = key {
            let arrival = Arrival::Restored { tag: item.tag };
            drop(self.get_as(&key, &GetOptions::default(), arrival).await);
        }
    }
}

fn encode(items: &[Item]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_LEN + items.len() * ITEM_LEN);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(items.len() as u32).to_le_bytes());
    for item in items {
        bytes.extend_from_slice(&item.hash.0.to_le_bytes());
        bytes.extend_from_slice(&[item.flags, item.tag]);
    }
    bytes
}

/// The items of a payload; `None` when it is not one that this build reads.
fn decode(payload: &[u8]) -> Option<Vec<Item>> {
    let word = |at: usize| {
        let bytes = payload.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if payload.get(..8)? != MAGIC || word(8)? != VERSION {
        return None;
    }
    let list = payload.get(HEAD_LEN..)?;
    if list.len() != word(12)? as usize * ITEM_LEN {
        return None;
    }
    let item = |bytes: &[u8]| {
        Some(Item {
            hash: KeyHash(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?)),
            flags: *bytes.get(8)?,
            tag: *bytes.get(9)?,
        })
    };
    list.chunks(ITEM_LEN).map(item).collect()
}

/// The count of blocks of a payload, and the payload that they make; `None` as for [`decode`].
#[cfg(any(test, fuzzing))]
pub(crate) fn checkpoint_again(payload: &[u8]) -> Option<(usize, Vec<u8>)> {
    decode(payload).map(|items| (items.len(), encode(&items)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_survives_its_encoding_and_nothing_else_is_taken() {
        let items: Vec<Item> = (0..5)
            .map(|i| Item {
                hash: KeyHash(i * 77),
                flags: i as u8 % 4,
                tag: 9,
            })
            .collect();
        let bytes = encode(&items);
        assert_eq!(decode(&bytes).as_deref(), Some(&items[..]));
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode(b""), None);
        let mut later = bytes;
        later[8] = 2;
        assert_eq!(decode(&later), None);
    }
}
