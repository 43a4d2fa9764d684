//! The limits of the protocol itself, with the reason for each; a node or client may set lower ones.

use terrace_types::limits::{BLOCK_LEN_MAX, KEY_LEN_MAX, SHARDS_MAX};

/// The only version so far.
pub const VERSION: u16 = 1;

/// Longest body of a frame, in bytes. A prompt of 128k tokens in blocks of 16 is 8192 keys, that
/// is 448 KiB with keys of 36 bytes.
pub const BODY_LEN_MAX: u32 = 1 << 20;

/// Longest body that a node takes before the hello, in bytes: what somebody unknown may make it
/// keep.
pub const HELLO_LEN_MAX: u32 = 4096;

/// Lowest limit of bodies and of values that a side may set, in bytes: an error and any one entry
/// fit.
pub const LEN_MAX_MIN: u32 = 4096;

/// Most bytes of values in one frame. 16 blocks of 64 MiB; longer ones go in parts.
pub const VALUES_LEN_MAX: u32 = 1 << 30;

/// Most entries of one request: the blocks of a prompt of 128k tokens in blocks of 16.
pub const BATCH_MAX: u32 = 8192;

/// Most requests under way that a node may allow on a connection. Each is kept in a table.
pub const REQUESTS_MAX: u32 = 65536;

/// Namespaces that a connection may open: as many as an engine keeps apart.
pub const NAMESPACES_MAX: u16 = 4096;

/// Longest token of a hello, in bytes.
pub const TOKEN_LEN_MAX: usize = 1024;

/// Longest name of a client in its hello, in bytes; it goes to logs.
pub const CLIENT_NAME_LEN_MAX: usize = 64;

/// Longest host of an endpoint, in bytes: that of a DNS name.
pub const HOST_LEN_MAX: usize = 255;

/// Most endpoints of a transfer engine: as many as one peer of it may have rails.
pub const RAILS_MAX: u16 = 16;

/// Longest text of an error, in bytes: a receiver logs it.
pub const ERROR_TEXT_LEN_MAX: usize = 512;

const _: () = assert!(BLOCK_LEN_MAX <= VALUES_LEN_MAX as u64);
const _: () = assert!(BODY_LEN_MAX.is_multiple_of(8));
const _: () = assert!(LEN_MAX_MIN as usize > 32 + 32 + KEY_LEN_MAX);
const _: () = assert!(LEN_MAX_MIN as usize > 16 + ERROR_TEXT_LEN_MAX);
const _: () = assert!(HELLO_LEN_MAX as usize > 56 + TOKEN_LEN_MAX + CLIENT_NAME_LEN_MAX);
const _: () = assert!(SHARDS_MAX <= u16::MAX as usize);
const _: () = assert!(LEN_MAX_MIN as usize >= 24 + RAILS_MAX as usize * (8 + 16));
const _: () = assert!(BATCH_MAX as u64 * 56 <= BODY_LEN_MAX as u64);
