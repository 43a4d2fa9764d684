//! Limits of the transfer engine, each with the reason for its value.

/// Regions that one engine holds at once. Their epochs lie in one shared table of 8 bytes each,
/// and a peer's list of regions fits one message of the handshake.
pub const REGION_COUNT_MAX: usize = 1024;

/// Length of a region in bytes: what one 47-bit address space can hold of a few of them.
pub const REGION_LEN_MAX: u64 = 1 << 44;

/// Bytes of what one transport tells a peer about a region, such as keys of its parts.
pub const REGION_KEY_LEN_MAX: usize = 4096;

/// Rails of one peer. A machine has at most 8 network ports for this, or 16 with two planes.
pub const RAIL_COUNT_MAX: usize = 16;

/// Bytes of one slice. Short enough that a small read does not wait long for the one before it,
/// long enough that its own cost is small: 1 MiB is about 0.2 ms at 5 GB/s.
pub const SLICE_LEN_MAX: u64 = 1 << 20;

/// Requests of one batch.
pub const BATCH_COUNT_MAX: usize = 65_536;

/// Local or remote parts of one request.
pub const PART_COUNT_MAX: usize = 4096;

/// Bytes of one request over all its parts.
pub const REQUEST_LEN_MAX: u64 = 1 << 40;

/// Bytes of one notification: a few names and numbers, not a payload.
pub const NOTIFICATION_LEN_MAX: usize = 4096;

/// Notifications that wait for the program to take them. More are refused to who sends them.
pub const NOTIFICATION_COUNT_MAX: usize = 4096;

/// Connections that one engine serves at once, over all peers and rails.
pub const CONNECTION_COUNT_MAX: usize = 1024;

/// Tickets that an engine has given out at once: one for each client of a node, and many more.
pub const TICKET_COUNT_MAX: usize = 65_536;

/// Bytes of one message between engines, beside payloads: the list of all regions with their keys.
pub const MESSAGE_LEN_MAX: usize = REGION_COUNT_MAX * (REGION_KEY_LEN_MAX + 64);
