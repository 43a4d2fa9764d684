//! The DRAM tier: hugepage arenas, page runs, slabs, slots and pins.
//!
//! An [`Arena`] is one mapping per shard. A [`SlabPool`] cuts it into slabs of equal slots;
//! one thread owns it. A block's bytes are written once through a [`SlotWriter`] and read in
//! place through [`PinnedBlock`]s, both of which may live on any thread and come back through
//! the arena's return queue.

mod arena;
mod block;
mod classes;
pub mod hugepages;
mod hugevec;
mod numa;
mod pool;
mod region;
mod runs;

pub use arena::{Arena, ArenaConfig, ArenaError, Backing, HugepageMode};
pub use block::{ArenaShared, PinnedBlock, Returned, SlotWriter, published_bytes};
pub use classes::{ClassChoice, ClassIx, SizeClass, SizeClasses};
pub use hugevec::{HugeVec, HugeVecError};
pub use pool::{PoolStats, SlabPool, SlotIx};
pub use region::{RegionError, RegionKeeper, RegisteredRegion, gather, scatter};
pub use runs::{PageRun, PageRuns};
