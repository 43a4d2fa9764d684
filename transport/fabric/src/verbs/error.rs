//! What can go wrong between this program and a NIC, each with what was asked for and the limit.

use std::io;

use super::completion::Status;

/// Why something cannot be done over RDMA.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs is not installed, or lacks a function.
    #[error("no RDMA: libibverbs cannot be used: {cause}")]
    NoLibrary {
        /// What the loader said.
        cause: String,
    },
    /// There is no RDMA device.
    #[error("no RDMA device")]
    NoDevice,
    /// There is no device of this name.
    #[error("no RDMA device `{name}`; there are: {known}")]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The device has no port of this number.
    #[error("{device} has no port {port}: its ports are 1 to {count}")]
    UnknownPort {
        /// The device.
        device: String,
        /// The port asked for.
        port: u8,
        /// How many ports the device has.
        count: u8,
    },
    /// The port carries nothing now.
    #[error("port {port} of {device} is {state}: is the link up?")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state.
        state: super::PortState,
    },
    /// The port has no GID as asked for.
    #[error("port {port} of {device} has no GID that is {wanted}; it has: {known}")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// A GID cannot be read.
    #[error("`{text}` is no GID: neither `auto` nor an IPv4 or IPv6 address")]
    GidText {
        /// What was given.
        text: String,
    },
    /// A file of the kernel about devices cannot be read or understood.
    #[error("{path}: {cause}")]
    Sysfs {
        /// The file.
        path: String,
        /// What is wrong.
        cause: String,
    },
    /// The library or the kernel refused a step.
    #[error("{op} on {device}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// What was tried.
        op: &'static str,
        /// The device.
        device: String,
        /// What it said.
        errno: i32,
    },
    /// A setting is out of its bounds.
    #[error("{field} is {value}: it must be {min} to {max}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// The process may not lock that much memory.
    #[error(
        "registering {len} bytes on {device}: more memory than the process may lock, {limit} bytes \
         in all: raise `ulimit -l` or LimitMEMLOCK"
    )]
    Memlock {
        /// The device.
        device: String,
        /// Length of the memory in bytes.
        len: u64,
        /// The limit of the process in bytes.
        limit: u64,
    },
    /// The device takes no more regions.
    #[error("registering {len} bytes on {device}: no room for another of its {limit} regions")]
    TooManyRegions {
        /// The device.
        device: String,
        /// Length of the memory in bytes.
        len: u64,
        /// How many regions the device takes.
        limit: u64,
    },
    /// A region has at least one byte.
    #[error("a region of 0 bytes cannot be registered")]
    RegionEmpty,
    /// A region is longer than what the device can reach in all its parts.
    #[error("a region of {len} bytes is longer than {limit} bytes")]
    RegionTooLong {
        /// Length of the region in bytes.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Bytes do not lie in a region.
    #[error("{len} bytes from {offset} on do not lie in a region of {region_len} bytes")]
    OutOfRange {
        /// Where the bytes begin.
        offset: u64,
        /// How many they are.
        len: u64,
        /// Length of the region.
        region_len: u64,
    },
    /// Bytes lie in two parts of a region that was cut at the device's limit.
    #[error("{len} bytes from {offset} on lie across a cut of their region: post two requests")]
    AcrossCut {
        /// Where the bytes begin.
        offset: u64,
        /// How many they are.
        len: u64,
    },
    /// A work request is not one that the queue pair takes.
    #[error("{kind} of {value} {field}: at most {max}")]
    Request {
        /// The kind of request.
        kind: &'static str,
        /// What is too much.
        field: &'static str,
        /// How much it is.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// Memory of another device was named in a work request.
    #[error("memory registered on another device than {device}")]
    ForeignMemory {
        /// The queue pair's device.
        device: String,
    },
    /// A queue has no room for a batch.
    #[error("{count} more work requests do not fit: {room} of {capacity} places are free")]
    QueueFull {
        /// How many were to be posted.
        count: usize,
        /// How many places are free.
        room: usize,
        /// How many places there are.
        capacity: usize,
    },
    /// The queue pair is not in the state that the step needs.
    #[error("{op} on a queue pair that is {state}")]
    WrongState {
        /// What was tried.
        op: &'static str,
        /// The state it is in.
        state: super::QueuePairState,
    },
    /// A peer's address is not one.
    #[error("a queue pair's address with {field} of {value}")]
    Address {
        /// The field that is wrong.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The ends are on networks of different kinds.
    #[error("the peer's port is {theirs}, {device}'s is {ours}")]
    LinkLayers {
        /// The device.
        device: String,
        /// The kind of this end.
        ours: super::LinkLayer,
        /// The kind of the peer's end.
        theirs: super::LinkLayer,
    },
    /// A work request failed.
    #[error("a work request ended with: {0}")]
    Failed(Status),
}

impl VerbsError {
    /// Whether the machine has no RDMA at all, so that another transport has to do.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::NoLibrary { .. } | Self::NoDevice)
    }

    /// What the library left in `errno` after `op` on `device`.
    pub(super) fn last_os(op: &'static str, device: &str) -> Self {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::os(op, device, errno)
    }

    /// The error number that `op` on `device` returned.
    pub(super) fn os(op: &'static str, device: &str, errno: i32) -> Self {
        let device = device.to_owned();
        Self::Os { op, device, errno }
    }
}
