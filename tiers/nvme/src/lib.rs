//! The NVMe tier: devices, the ring beside the executor, segments, and recovery.
//!
//! A [`BlockDevice`] moves whole units between itself and memory of the caller's. What lies on
//! it is described in `docs/on-disk-format.md`; [`mod@format`] reads and writes it.

#![deny(unsafe_code)]

#[expect(
    unsafe_code,
    reason = "memory at an alignment the allocator has to be asked for"
)]
mod buffer;
mod device;
#[expect(unsafe_code, reason = "questions to the kernel that no safe call asks")]
pub mod file;
pub mod format;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
#[expect(
    unsafe_code,
    reason = "the memory of an operation is known by its address"
)]
pub mod mem;
mod ops;
pub mod set;
pub mod tier;
#[expect(unsafe_code, reason = "the kernel is handed memory by address")]
pub mod uring;

pub use buffer::{AlignedBuffer, IoBuffer};
pub use device::{BlockDevice, Completion, DeviceInfo, IoBackend};
pub use ops::{IoError, IoFuture, IoOutcome, OpId, OpTable};

/// Everything on a device lies at multiples of this many bytes.
pub const UNIT: u64 = terrace_types::limits::SLOT_ALIGN;
