//! Recovery: the index is made again from what lies on the devices.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use terrace_nvme::format::{EntryKind, EntryRef, Origin, Sequence};
use terrace_nvme::tier::{Contents, NvmeTier, SegmentIx};
use terrace_types::{BlockIx, BlockKey, KeyHash};

use super::persist;
use super::{Shard, State};

/// Segments read side by side.
const SEGMENTS_AT_ONCE: usize = 8;

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments read.
    pub segments: u64,
    /// Of these, segments without a footer: their payloads were read and verified.
    pub segments_walked: u64,
    /// Segments of which not all could be read.
    pub segments_lost: u64,
    /// Blocks that are served again.
    pub blocks: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Blocks whose payload did not match in segments without a footer: not acknowledged as
    /// durable before the crash.
    pub blocks_torn: u64,
    /// Blocks that did not fit the index or the names.
    pub blocks_dropped: u64,
    /// Entries of segments that were taken in: blocks, their older copies, and tombstones.
    pub entries: u64,
    /// Time it took.
    pub time: Duration,
    /// Of this, the time spent on entries that were read already.
    pub index_time: Duration,
}

impl RecoveryReport {
    /// Adds another shard's; the time is that of the slower.
    pub fn add(&mut self, other: &Self) {
        self.segments += other.segments;
        self.segments_walked += other.segments_walked;
        self.segments_lost += other.segments_lost;
        self.blocks += other.blocks;
        self.payload_bytes += other.payload_bytes;
        self.bytes_read += other.bytes_read;
        self.blocks_torn += other.blocks_torn;
        self.blocks_dropped += other.blocks_dropped;
        self.entries += other.entries;
        self.time = self.time.max(other.time);
        self.index_time = self.index_time.max(other.index_time);
    }
}

/// What is known while segments are read, and not after.
#[derive(Default)]
struct Recovery {
    /// Sequence of each record, by its number.
    sequences: Vec<Sequence>,
    tombstones: HashMap<KeyHash, Sequence>,
    /// By namespace number, those of each shard that wrote some.
    namespaces: HashMap<u16, HashMap<Origin, Sequence>>,
    found: persist::Found,
    report: RecoveryReport,
}

impl Shard {
    /// Reads all segments and fills the index. `warm` is the epoch that a clean close ended,
    /// whose checkpoints are read too.
    pub(crate) async fn recover(self: &Rc<Self>, warm: Option<u32>) {
        let Some(tier) = &self.tier else { return };
        let started = self.runtime.now();
        let mut recovery = Recovery::default();
        let segments = tier.used_segments();
        let mut reads = stream::iter(segments)
            .map(|segment| async move { (segment, tier.contents(segment).await) })
            .buffered(SEGMENTS_AT_ONCE);
        let mut walked = Vec::new();
        while let Some((segment, contents)) = reads.next().await {
            recovery.report.segments += 1;
            if contents.unreadable {
                recovery.report.segments_lost += 1;
                let number = segment.0;
                tracing::error!(
                    shard = self.number,
                    number,
                    "not all of a segment can be read"
                );
            }
            self.take_in(tier, &contents, &mut recovery);
            self.read_checkpoints(tier, &contents, warm, &mut recovery.found)
                .await;
            if contents.walked {
                walked.push(contents);
            }
        }
        drop(reads);
        let read = self.runtime.now();
        self.end_namespaces(&recovery);
        recovery.report.index_time += self.runtime.now().since(read);
        for contents in walked {
            if let Err(error) = tier.recovered(contents).await {
                tracing::warn!(shard = self.number, %error, "a recovered segment was not sealed");
            }
        }
        let mut report = recovery.report;
        let indexed = self.runtime.now();
        self.count_recovered(tier, &mut report);
        let ended = self.runtime.now();
        report.index_time += ended.since(indexed);
        report.time = ended.since(started);
        self.recovery.set(report);
        self.trim_recovered();
        self.start_reclaim();
        self.start_warming(recovery.found);
    }

    fn take_in(&self, tier: &NvmeTier, contents: &Contents, recovery: &mut Recovery) {
        let started = self.runtime.now();
        self.take_in_entries(tier, contents, recovery);
        recovery.report.index_time += self.runtime.now().since(started);
    }

    fn take_in_entries(&self, tier: &NvmeTier, contents: &Contents, recovery: &mut Recovery) {
        let segment = contents.segment();
        recovery.report.segments_walked += u64::from(contents.walked);
        recovery.report.blocks_torn += u64::from(contents.damaged);
        recovery.report.bytes_read += contents.bytes_read;
        let mut state = self.state.borrow_mut();
        contents.for_each(|entry| match entry.kind {
            EntryKind::Block => {
                recovery.report.entries += 1;
                if let Some(key) = self.key_of(entry) {
                    state.recover_block(tier, &key, entry, segment, recovery);
                }
            }
            EntryKind::Tombstone => {
                recovery.report.entries += 1;
                if let Some(key) = self.key_of(entry) {
                    state.recover_tombstone(&key, entry.sequence, recovery);
                }
            }
            EntryKind::NamespaceTombstone => {
                let origin = Origin::decode(entry.key);
                if let (Ok(namespace), Some(origin)) = (self.registry.get(entry.namespace), origin)
                {
                    let known = recovery.namespaces.entry(namespace.index()).or_default();
                    let known = known.entry(origin).or_insert(entry.sequence);
                    *known = (*known).max(entry.sequence);
                }
            }
            EntryKind::Checkpoint => {}
        });
    }

    /// Takes out what namespace tombstones hide.
    fn end_namespaces(&self, recovery: &Recovery) {
        if recovery.namespaces.is_empty() {
            return;
        }
        let mut state = self.state.borrow_mut();
        let hidden: Vec<BlockIx> = state
            .index
            .scan(0, u32::MAX)
            .filter(|(block, record)| {
                let namespace = state.epochs.namespace_of(record.namespace());
                let tombstones = recovery.namespaces.get(&namespace.index());
                let sequence = recovery.sequences[block.0 as usize];
                let hides = |(origin, tombstone): (&Origin, &Sequence)| {
                    origin.hides(*tombstone, sequence, record.hash())
                };
                tombstones.is_some_and(|tombstones| tombstones.iter().any(hides))
            })
            .map(|(block, _)| block)
            .collect();
        for block in hidden {
            state.erase_recovered(block);
        }
    }

    fn count_recovered(&self, tier: &NvmeTier, report: &mut RecoveryReport) {
        let state = self.state.borrow();
        for (_, record) in state.index.scan(0, u32::MAX) {
            if let Some(location) = record.below() {
                tier.retain(location, record.len);
                report.blocks += 1;
                report.payload_bytes += u64::from(record.len);
            }
        }
    }

    /// What recovery found when the shard opened.
    #[must_use]
    pub const fn recovery(&self) -> RecoveryReport {
        self.recovery.get()
    }
}

impl State {
    //= docs/on-disk-format.md#OD-9
    fn recover_block(
        &mut self,
        tier: &NvmeTier,
        key: &BlockKey,
        entry: &EntryRef<'_>,
        segment: SegmentIx,
        recovery: &mut Recovery,
    ) {
        let hidden = recovery.tombstones.get(&key.hash());
        if hidden.is_some_and(|tombstone| entry.sequence < *tombstone) {
            return;
        }
        let Some(epoch) = self.epochs.of_or_new(key.namespace()) else {
            recovery.report.blocks_dropped += 1;
            return;
        };
        if let Some(known) = self.index.find(key, epoch) {
            if recovery.sequences[known.0 as usize] > entry.sequence {
                return;
            }
            self.erase_recovered(known);
        }
        if !self.index.has_room() {
            recovery.report.blocks_dropped += 1;
            return;
        }
        let block = self.index.insert(key, epoch, entry.len);
        self.epochs.count_up(epoch);
        let record = self.index.record_mut(block);
        record.set_checksum(entry.checksum);
        record.set_below(Some(tier.locate(segment, entry.place)));
        self.count_below(block);
        let at = block.0 as usize;
        if recovery.sequences.len() <= at {
            recovery.sequences.resize(at + 1, Sequence(0));
        }
        recovery.sequences[at] = entry.sequence;
    }

    //= docs/on-disk-format.md#OD-10
    fn recover_tombstone(&mut self, key: &BlockKey, sequence: Sequence, recovery: &mut Recovery) {
        let known = recovery.tombstones.entry(key.hash()).or_insert(sequence);
        *known = (*known).max(sequence);
        let epoch = self.epochs.of(key.namespace());
        if let Some(block) = epoch.and_then(|epoch| self.index.find(key, epoch))
            && recovery.sequences[block.0 as usize] < sequence
        {
            self.erase_recovered(block);
        }
    }

    /// Takes a block out that only recovery knows: no tier counts it yet.
    fn erase_recovered(&mut self, block: BlockIx) {
        self.count_out_of_below(block);
        self.index.record_mut(block).set_below(None);
        self.erase(block, None);
    }
}
