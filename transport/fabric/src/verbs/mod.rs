//! RDMA by verbs: one-sided reads and writes, and messages, between memory of two hosts.
//!
//! [`Device`], [`ProtectionDomain`], [`MemoryRegion`], [`CompletionQueue`] and [`QueuePair`] are
//! what the InfiniBand standard calls so. Two ends exchange [`QueuePairAddress`]es over a
//! connection they have already, and connect. Then each posts batches of [`WorkRequest`]s, polls
//! the completion queue, and lets the queue pair resolve what it found.
//!
//! libibverbs is loaded when it is first needed: see
//! `docs/decisions/0026-libibverbs-is-loaded-at-run-time.md`. Without it, or without a device,
//! the error [is absence](VerbsError::is_absent), and callers use another transport.
//!
//! What soft-RoCE shows and what it does not is in `docs/rdma.md`.

mod abi;
mod address;
mod completion;
mod connect;
mod device;
mod error;
mod gid;
mod in_flight;
mod library;
mod queue_pair;
mod region;
mod request;
mod settings;
pub(crate) mod transport;

pub use address::QueuePairAddress;
pub use completion::{CompletionQueue, Status, WorkCompletion};
pub use device::{
    Device, DeviceLimits, LinkLayer, Mtu, Port, PortState, ProtectionDomain, device_names,
};
pub use error::VerbsError;
pub use gid::{Gid, GidChoice, GidKind, GidRecord};
pub use in_flight::{Completion, RequestKind};
pub use queue_pair::{QueuePair, QueuePairCounters, QueuePairState};
pub use region::{Access, LocalSlice, MemoryRegion, RegionOptions, RemoteSlice, memlock_limit};
pub use request::{Operation, WorkRequest};
pub use settings::QueuePairSettings;
pub use transport::{RdmaConfig, RdmaTransport};
