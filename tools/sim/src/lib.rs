//! Policies over traces without an engine: what would hit, exactly and fast.
//!
//! - [`trace`] reads recorded traces and makes synthetic ones.
//! - [`Workload`] is one or several traces made ready: small block numbers, and the hashes of the
//!   keys that a replay through the engine has.
//! - [`drive`] plays a workload to one policy of one shard, as the engine does.
//! - [`simulate`] does so for every shard, and counts: see [`Outcome`].
//!
//! Nothing here moves bytes, waits, or asks a clock for more than how long a simulation took.

#![forbid(unsafe_code)]

mod capacity;
mod contender;
mod cost;
mod drive;
mod error;
mod outcome;
mod simulate;
pub mod trace;
mod workload;

pub use capacity::Capacity;
pub use contender::Contender;
pub use cost::{BLOCK_TOKENS, prefill_seconds};
pub use drive::{DriveCounts, Shard, drive};
pub use error::SimError;
pub use outcome::{HitCounts, Outcome};
pub use simulate::{blocks_of_shard, simulate};
pub use workload::{Request, Workload};
