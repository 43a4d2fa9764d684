//! Every fixed limit, with the reason for its value; relations between limits are checked here.

/// Alignment and granule of slots and device extents, in bytes.
///
/// 4 KiB is the largest logical block of the NVMe devices in use and the smallest page, so a
/// slot can be read into with `O_DIRECT` whatever the device below.
pub const SLOT_ALIGN: u64 = 4096;

/// Length of the pages an arena is cut into, in bytes: the smaller x86-64 hugepage.
pub const HUGEPAGE_LEN: u64 = 2 << 20;

/// Largest block, in bytes (128 MiB). Llama-70B at 256 tokens a block is 80 MiB, and the same
/// model's 405B sibling 126 MiB (in TP1); one contiguous slot has to hold either.
pub const BLOCK_LEN_MAX: u64 = 128 << 20;

/// Longest key, in bytes. LMCache names blocks by strings that carry model, rank and hash.
pub const KEY_LEN_MAX: usize = 512;

/// Longest namespace name, in bytes.
pub const NAMESPACE_LEN_MAX: usize = 255;

/// Most namespaces that one engine keeps apart.
pub const NAMESPACES_MAX: usize = 4096;

/// Most size classes a shard cuts slabs into. Each class can hold one slab that is mostly
/// empty, so the count bounds what is lost to mixed sizes.
pub const SIZE_CLASSES_MAX: usize = 32;

/// Largest share of a slot that may be lost when a block goes to a larger class, as 1/N.
pub const CLASS_WASTE_MAX_INV: u64 = 8;

/// Largest share of a slab that may be lost behind its last slot, as 1/N.
pub const SLAB_TAIL_WASTE_MAX_INV: u64 = 32;

/// Most shards of one engine; the router multiplies by the count in 32 bits.
pub const SHARDS_MAX: usize = 1024;

/// Largest arena of one shard, in bytes: slots are addressed by a 32-bit count of granules.
pub const ARENA_LEN_MAX: u64 = (u32::MAX as u64) * SLOT_ALIGN;

const _: () = assert!(HUGEPAGE_LEN.is_multiple_of(SLOT_ALIGN));
const _: () = assert!(BLOCK_LEN_MAX.is_multiple_of(HUGEPAGE_LEN));
const _: () = assert!(BLOCK_LEN_MAX < u32::MAX as u64);
const _: () = assert!(KEY_LEN_MAX <= u16::MAX as usize);
const _: () = assert!(NAMESPACES_MAX < u16::MAX as usize);
