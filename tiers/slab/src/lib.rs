//! The DRAM tier: hugepage arenas, page runs, slabs, slots and pins.

pub mod hugevec;

pub use hugevec::{HugeVec, HugeVecError};
