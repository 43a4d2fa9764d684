//! The NVMe tier: devices, the ring beside the executor, segments, and recovery.
//!
//! A [`BlockDevice`] moves whole units between itself and memory of the caller's. What lies on
//! it is described in `docs/on-disk-format.md`; [`format`] reads and writes it.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "memory at an alignment the allocator has to be asked for")]
mod buffer;
mod device;
pub mod format;
mod ops;

pub use buffer::{AlignedBuffer, IoBuffer};
pub use device::{BlockDevice, Completion, DeviceInfo, IoBackend};
pub use ops::{IoError, IoFuture, IoOutcome, OpId, OpTable};

/// Everything on a device lies at multiples of this many bytes.
pub const UNIT: u64 = terrace_types::limits::SLOT_ALIGN;
