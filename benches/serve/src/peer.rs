//! What every peer can do.

use std::time::Duration;

use anyhow::Result;

use crate::measure::{Buffers, Sample};
use crate::shape::Shape;

/// Something that keeps blocks, and a client of it.
pub(crate) trait Peer {
    /// What the table calls it.
    fn name(&self) -> &'static str;

    /// Whether a shape can be run.
    fn takes(&self, shape: &Shape) -> bool;

    /// Forgets all blocks and stores `count` of `len` bytes under the keys 0, 1, ...
    fn fill(&mut self, len: usize, count: u64) -> Result<()>;

    /// Runs a shape for about `turn`.
    fn sample(&mut self, shape: &Shape, turn: Duration, buffers: &mut Buffers) -> Result<Sample>;
}

/// One thread of a client.
pub(crate) trait Worker: Send {
    /// Reads the blocks of `keys` into `memory`, one behind the other.
    fn get(&mut self, keys: &[u64], len: usize, memory: &mut [u8]) -> Result<()>;

    /// Stores `memory` as blocks under `keys`.
    fn put(&mut self, keys: &[u64], len: usize, memory: &[u8]) -> Result<()>;
}
