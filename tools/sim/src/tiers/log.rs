//! The log that NVMe is in the engine: segments of a fixed count of blocks, the oldest of which is
//! emptied when a new one is opened.

use std::collections::VecDeque;

use terrace_nvme::format::{segment_count, segment_len_for};

/// Nowhere.
pub(super) const NONE: u32 = u32::MAX;

/// Bytes by which a device is divided.
const UNIT: u64 = 4096;
/// Payload bytes after which a frame ends; each has a head of one unit.
const FRAME_BYTES: u64 = 1 << 20;
/// Bytes of a footer for each block, with keys and namespaces of usual lengths.
const FOOTER_ENTRY_BYTES: u64 = 144;

/// How a device is divided for one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogShape {
    /// Count of segments.
    pub segments: usize,
    /// Blocks that a segment holds.
    pub blocks_per_segment: usize,
}

impl LogShape {
    /// As the engine divides a device of `device_bytes` for one shard and blocks of `block_len`
    /// bytes. None when there is no room for three segments: one open, one ready, one full.
    #[must_use]
    pub fn of_device(device_bytes: u64, block_len: u32) -> Option<Self> {
        let segment_len = segment_len_for(device_bytes, 1, u64::from(block_len));
        let segments = segment_count(device_bytes, segment_len) as usize;
        let block = u64::from(block_len.max(1)).next_multiple_of(UNIT);
        // A head, and for each block a share of a frame's head and of the footer.
        let frame_blocks = FRAME_BYTES.div_ceil(block);
        let per_frame = frame_blocks * (block + FOOTER_ENTRY_BYTES) + UNIT;
        let payload = segment_len - 3 * UNIT;
        let frames = payload / per_frame;
        let rest = (payload % per_frame).saturating_sub(UNIT) / (block + FOOTER_ENTRY_BYTES);
        let blocks = (frames * frame_blocks + rest) as usize;
        (segments >= 3 && blocks > 0).then_some(Self {
            segments,
            blocks_per_segment: blocks,
        })
    }

    /// Blocks that lie in the log once it is full: all but the segment that is ready.
    #[must_use]
    pub const fn blocks(self) -> usize {
        (self.segments - 1) * self.blocks_per_segment
    }
}

/// One segment and the blocks that were written to it.
struct Segment {
    number: u32,
    blocks: Vec<u32>,
}

/// Where blocks lie.
pub(super) struct Log {
    shape: LogShape,
    /// Oldest first; the last is open.
    segments: VecDeque<Segment>,
    next: u32,
    /// By block: the number of its segment.
    places: Vec<u32>,
}

impl Log {
    pub(super) fn new(shape: LogShape, unique_blocks: usize) -> Self {
        Self {
            shape,
            segments: VecDeque::new(),
            next: 0,
            places: vec![NONE; unique_blocks],
        }
    }

    /// Blocks that a segment holds.
    pub(super) const fn segment_blocks(&self) -> usize {
        self.shape.blocks_per_segment
    }

    pub(super) fn holds(&self, block: u32) -> bool {
        self.places[block as usize] != NONE
    }

    /// Writes a block. When that opened the last segment there is, the oldest is to be emptied by
    /// [`Log::oldest`] and [`Log::drop_oldest`] before anything else is written but what is kept
    /// of it.
    pub(super) fn append(&mut self, block: u32) -> bool {
        let full = self.shape.blocks_per_segment;
        let opens = self
            .segments
            .back()
            .is_none_or(|open| open.blocks.len() >= full);
        if opens {
            self.segments.push_back(Segment {
                number: self.next,
                blocks: Vec::with_capacity(full),
            });
            self.next += 1;
        }
        if let Some(open) = self.segments.back_mut() {
            open.blocks.push(block);
            self.places[block as usize] = open.number;
        }
        opens && self.segments.len() >= self.shape.segments
    }

    /// Blocks that still lie in the oldest segment.
    pub(super) fn oldest(&self) -> Vec<u32> {
        let oldest = self.segments.front();
        let is_there =
            |segment: &Segment, block: u32| self.places[block as usize] == segment.number;
        oldest.map_or_else(Vec::new, |oldest| {
            let blocks = oldest.blocks.iter().copied();
            blocks.filter(|block| is_there(oldest, *block)).collect()
        })
    }

    /// Empties the oldest segment: what still lies in it is gone.
    pub(super) fn drop_oldest(&mut self) -> Vec<u32> {
        let gone = self.oldest();
        for &block in &gone {
            self.places[block as usize] = NONE;
        }
        self.segments.pop_front();
        gone
    }
}
