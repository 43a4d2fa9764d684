//! How a device is divided: where the superblocks lie, and the segments behind them.

use super::UNIT_LEN;

/// Where the two copies lie, in bytes from the start of the device. Far enough apart that no
/// common erase block or stripe holds both.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 512 << 10];

/// Where segment 0 begins, in bytes from the start of the device.
pub const SEGMENTS_START: u64 = 1 << 20;

/// Segment lengths are multiples of this many bytes.
pub const SEGMENT_LEN_STEP: u64 = 1 << 20;

/// Shortest segment in bytes; shorter ones spend too much on heads and device flushes.
pub const SEGMENT_LEN_MIN: u64 = 8 << 20;

/// Longest segment in bytes, unless two blocks need more: reclaim frees space in these steps.
const SEGMENT_LEN_MAX: u64 = 256 << 20;

/// Segments that a shard gets of a device whose length permits it.
const SEGMENTS_PER_SHARD: u64 = 64;

/// Bytes of a segment kept for its head, frame heads and footer beside two largest blocks.
const SEGMENT_OVERHEAD: u64 = 64 << 10;

/// The length of the segments of a device that is formatted now.
#[must_use]
pub fn segment_len_for(device_len: u64, shards: u32, block_len_max: u64) -> u64 {
    let usable = device_len.saturating_sub(SEGMENTS_START);
    let share = usable / u64::from(shards.max(1)) / SEGMENTS_PER_SHARD;
    let share = share / SEGMENT_LEN_STEP * SEGMENT_LEN_STEP;
    let mut len = share.clamp(SEGMENT_LEN_MIN, SEGMENT_LEN_MAX);
    let block = block_len_max.div_ceil(UNIT_LEN as u64) * UNIT_LEN as u64;
    while len < 2 * block + SEGMENT_OVERHEAD {
        len *= 2;
    }
    len
}

/// Whole segments of `segment_len` bytes that a device has room for.
#[must_use]
pub fn segment_count(device_len: u64, segment_len: u64) -> u32 {
    let usable = device_len.saturating_sub(SEGMENTS_START);
    let count = usable.checked_div(segment_len).unwrap_or(0);
    count.min(u64::from(u32::MAX)) as u32
}

const _: () = assert!(SUPERBLOCK_OFFSETS[1] + UNIT_LEN as u64 <= SEGMENTS_START);
const _: () = assert!(SEGMENT_LEN_MIN.is_multiple_of(SEGMENT_LEN_STEP));
const _: () = assert!(SEGMENT_LEN_MAX.is_multiple_of(SEGMENT_LEN_STEP));
