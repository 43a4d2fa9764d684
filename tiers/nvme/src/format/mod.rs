//! The on-disk format of `docs/on-disk-format.md`: encoding and decoding, no I/O.
//!
//! Decoders take any bytes without panicking and say in a [`FormatError`] what is wrong with
//! them. Encoders take what the engine built and assert that it keeps the format's limits.

mod bytes;
mod entries;
mod error;
mod footer;
mod frame;
mod geometry;
mod segment;
mod sequence;
mod superblock;
mod table;
#[cfg(test)]
mod tests;

pub use entries::{EntryKind, EntryRef, Origin, entry_len, name_len};
pub use error::{FormatError, Limit, Structure};
pub use footer::{FooterBuilder, FooterView, footer_len_from_tail};
pub use frame::{FRAME_HEAD_LEN_MAX, FrameBuilder, FrameView};
pub use geometry::{
    SEGMENT_LEN_MIN, SEGMENT_LEN_STEP, SEGMENTS_START, SUPERBLOCK_OFFSETS, segment_count,
    segment_len_for,
};
pub use segment::{SegmentHead, SegmentIdentity};
pub use sequence::{OPEN_EPOCH_MAX, SEQUENCE_COUNTER_MAX, Sequence};
pub use superblock::{DEVICES_MAX, DeviceId, DeviceState, SetDevice, Superblock};
pub use table::Entries;

/// The version that this build writes, and the latest that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Length of a unit in bytes, as an index into memory.
pub(crate) const UNIT_LEN: usize = crate::UNIT as usize;

/// Units that `len` bytes take up.
#[must_use]
pub const fn units(len: u32) -> u32 {
    len.div_ceil(UNIT_LEN as u32)
}

const _: () = assert!(UNIT_LEN == 4096, "the format's unit");
