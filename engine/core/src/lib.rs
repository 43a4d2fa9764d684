//! A tiered storage engine for KV blocks, to be embedded.
//!
//! Blocks are immutable under a key, from one byte to 128 MiB, and lie in hugepage slabs, each
//! in one contiguous slot. A lookup hands out the slot itself. Start at [`Engine::open`]; code
//! that runs on a shard's own thread uses [`Shard`].
//!
//! ```
//! use terrace_engine::{Engine, EngineConfig, GetOptions, PutOptions, block_on};
//!
//! let engine = Engine::open(EngineConfig { dram_bytes: 4 << 20, ..Default::default() })?;
//! let namespace = engine.namespace("llama-8b/bf16/tp1/16")?;
//! let key = namespace.key(b"block 1")?;
//! block_on(async {
//!     assert!(engine.put(&key, b"keys and values", &PutOptions::default()).await.is_present());
//!     let block = engine.get(&key, &GetOptions::default()).await.hit().expect("just stored");
//!     assert_eq!(&block[..], b"keys and values");
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod config;
mod engine;
mod error;
mod events;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod namespaces;
pub mod policy;
mod shard;
mod stats;

pub use config::{EngineConfig, Missing, NamespaceOptions, NvmeConfig, Pinning, Use, WriteMode};
pub use engine::{CloseReport, Engine, EngineBuilder, Prefetch, PutItem, route};
pub use error::Error;
pub use events::{Event, EventFilter, EventKind, EventStream};
pub use index::IndexBytes;
pub use shard::{
    BlockFacts, Descriptor, Durability, Fence, GetOptions, Lease, LeaseId, ListedBlock, LocalPin,
    PersistReport, Placement, PolicyFactory, PrefetchReport, PutOptions, RecoveryReport,
    Reservation, Shard, TryGet, WholeChain,
};
pub use stats::{Counters, EngineStats, MissingDevice, NamespaceStats, ShardGauges, ShardStats};
pub use terrace_nvme::tier::{DeviceGauges, Health, TierCounters};
pub use terrace_nvme::uring::RingReport;
pub use terrace_runtime::block_on;
pub use terrace_slab::{
    ArenaShared, Backing, HugepageMode, PageRun, PageRuns, PinnedBlock, PoolStats, RegionError,
    RegisteredRegion, SlotWriter, hugepages,
};
pub use terrace_types::{
    Access, BlockKey, BlockKind, Checksum, Hint, KeyHash, Lookup, Namespace, PutOutcome,
    RejectReason, RequestContext, Tier, UnavailableReason,
};
