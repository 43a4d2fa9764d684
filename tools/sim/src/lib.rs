//! Policies over traces without an engine: what would hit, exactly and fast.
//!
//! - [`trace`] reads recorded traces and makes synthetic ones.
//! - [`Workload`] is one or several traces made ready: small block numbers, and the hashes of the
//!   keys that a replay through the engine has.
//! - [`drive`] plays a workload to one policy of one shard, as the engine does.
//! - [`simulate`] does so for every shard, and counts: see [`Outcome`].
//! - [`two_tier`] holds the reference schemes of DRAM over NVMe; [`golden`] compares with the
//!   expected counts of independent simulators.
//! - [`tiers`] puts NVMe below DRAM, with a rule for what is worth a write.
//!
//! Nothing here moves bytes, waits, or asks a clock for more than how long a simulation took.

#![forbid(unsafe_code)]

mod capacity;
mod contender;
mod cost;
mod drive;
mod error;
pub mod golden;
mod outcome;
mod recency;
mod simulate;
pub mod tiers;
pub mod trace;
pub mod two_tier;
mod workload;

pub use capacity::Capacity;
pub use contender::{Bound, Contender};
pub use cost::{BLOCK_TOKENS, prefill_seconds};
pub use drive::{DriveCounts, Shard, drive};
pub use error::SimError;
pub use outcome::{HitCounts, Outcome};
pub use simulate::{SHARDS_MAX, blocks_of_shard, simulate};
pub use workload::{Request, Workload};
