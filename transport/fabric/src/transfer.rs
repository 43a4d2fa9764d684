//! The transfer engine: reads and writes between registered memory of two programs, over all
//! rails between them.
//!
//! A program registers memory as regions and says what its peers may do with them. A peer opens
//! it, learns its regions, and submits batches of reads and writes between its own regions and
//! these. Requests are cut into slices; each slice takes the rail that is expected to finish it
//! first. It needs neither the store nor the node, and no executor: progress is made by threads
//! of its own, and a transfer can be polled, waited for or awaited.
//!
//! docs/transfer.md has the picture, the rules of cancelling, and the protocol byte by byte.

pub mod chooser;
mod clock;
mod control;
mod drive;
mod engine;
mod error;
mod flight;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod host;
pub mod limits;
mod link;
#[expect(unsafe_code, reason = "maps memory and moves bytes by address")]
mod memory;
mod peer;
mod region;
mod request;
mod retired;
#[expect(unsafe_code, reason = "maps memory of other processes")]
mod shm;
mod table;
mod tcp;
mod ticket;
mod topology;
mod transport;
#[expect(unsafe_code, reason = "gives the kernel addresses of regions")]
mod vectored;
mod wire;

pub use engine::{EngineConfig, TransferEngine, TransportChoice};
pub use error::{RailError, RequestError, Status, TransferError};
pub use host::Notification;
pub use link::RailReport;
pub use memory::{Memory, MemoryKind};
pub use peer::{Peer, Transfer};
pub use region::{Access, Region, RegionId, RegionPin, RemoteRegion};
pub use request::{BatchOptions, Expected, LocalPart, Priority, RemotePart, Request};
pub use shm::Lease;
pub use ticket::{Admission, Ticket};
pub use topology::Topology;
pub use transport::{
    Ask, Ended, Interest, Operation, Rail, RailLink, Session, Slice, SliceId, Transport,
    TransportKind, TransportSet,
};
