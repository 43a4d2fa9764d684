//! Traces made ready for simulation: blocks by small numbers, with the hashes of their keys.
//!
//! **Invariants**
//! - Block numbers count from 0 in order of first use, so that arrays can be kept by them.
//! - A block's hash is that of the key that a replay through the engine gives its id, so that the
//!   shards of a simulation have the blocks that the shards of an engine have.
//! - Requests keep the order of the trace.

use std::collections::HashMap;

use terrace_types::KeyHash;

use crate::error::SimError;
use crate::trace::Trace;

/// Time between the last request of a trace and the start of the one that is joined to it.
const JOIN_GAP_MS: u64 = 1000;

/// The sequence of requests of one trace, or of several after each other.
pub struct Workload {
    name: String,
    block_len: u32,
    spans: Vec<Span>,
    blocks: Vec<u32>,
    keys: Vec<KeyHash>,
}

/// Where a request's blocks end, and what else is known of it.
struct Span {
    end: usize,
    clock_ms: u64,
    input_tokens: u32,
    is_chain: bool,
}

/// One request of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Count of accesses before this request's first.
    pub begin: usize,
    /// Arrival since the start of the workload; 0 in traces that record no time.
    pub clock_ms: u64,
    /// Tokens of the prompt; 0 in traces that are not about language models.
    pub input_tokens: u32,
    /// Whether each block is the parent of the one after it.
    pub is_chain: bool,
    /// Its blocks, in chain order. May be empty.
    pub blocks: &'a [u32],
}

impl Workload {
    /// Makes `trace` ready; every block counts as `block_len` bytes.
    ///
    /// # Errors
    /// [`SimError::NoAccesses`] when the trace asks for no block.
    pub fn new(trace: &Trace, block_len: u32) -> Result<Self, SimError> {
        Self::joined(std::slice::from_ref(trace), block_len)
    }

    /// Makes `traces` ready as one, each after the one before it: a change of traffic. Blocks of
    /// two traces are never the same, and a trace starts a second after the last request before.
    ///
    /// # Errors
    /// [`SimError::NoAccesses`] when a trace asks for no block, or none is given;
    /// [`SimError::TooManyBlocks`] when 32 bits do not number the blocks.
    pub fn joined(traces: &[Trace], block_len: u32) -> Result<Self, SimError> {
        let names: Vec<&str> = traces.iter().map(|trace| trace.name.as_str()).collect();
        let mut workload = Self {
            name: names.join("+"),
            block_len,
            spans: Vec::new(),
            blocks: Vec::new(),
            keys: Vec::new(),
        };
        for (index, trace) in traces.iter().enumerate() {
            if trace.accesses() == 0 {
                return Err(SimError::NoAccesses {
                    name: trace.name.clone(),
                });
            }
            workload.append(trace, &namespace(block_len, index))?;
        }
        if workload.blocks.is_empty() {
            return Err(SimError::NoAccesses {
                name: workload.name,
            });
        }
        Ok(workload)
    }

    /// The same with each block's number in place of its key's hash, which spreads evenly: for
    /// counts of policies that keep few bits of a hash, apart from what these happen to be.
    #[must_use]
    pub fn numbered(mut self) -> Self {
        self.keys = (0..self.keys.len() as u64).map(KeyHash).collect();
        self
    }

    fn append(&mut self, trace: &Trace, namespace: &str) -> Result<(), SimError> {
        let last_ms = self.spans.last().map(|last| last.clock_ms);
        let shift_ms = last_ms.map_or(0, |last| last.saturating_add(JOIN_GAP_MS));
        let mut number_of: HashMap<u64, u32> = HashMap::new();
        for request in &trace.requests {
            for &id in &request.blocks {
                let next = u32::try_from(self.keys.len()).ok();
                let Some(next) = next.filter(|&next| next < u32::MAX) else {
                    return Err(SimError::TooManyBlocks {
                        name: self.name.clone(),
                        max: u32::MAX,
                    });
                };
                let number = *number_of.entry(id).or_insert(next);
                if number == next {
                    self.keys
                        .push(KeyHash::of_named(namespace, &id.to_le_bytes()));
                }
                self.blocks.push(number);
            }
            self.spans.push(Span {
                end: self.blocks.len(),
                clock_ms: shift_ms.saturating_add(request.timestamp_ms),
                input_tokens: request.input_tokens,
                is_chain: request.is_chain,
            });
        }
        Ok(())
    }

    /// Name of the trace, or names with `+` between them.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that every block counts as.
    #[must_use]
    pub const fn block_len(&self) -> u32 {
        self.block_len
    }

    /// Count of block accesses.
    #[must_use]
    pub const fn accesses(&self) -> usize {
        self.blocks.len()
    }

    /// Count of different blocks: no block's number reaches it.
    #[must_use]
    pub const fn unique_blocks(&self) -> usize {
        self.keys.len()
    }

    /// The accessed blocks in order, whatever request they belong to.
    #[must_use]
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Hash of the key of each block.
    #[must_use]
    pub fn keys(&self) -> &[KeyHash] {
        &self.keys
    }

    /// The requests in order.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request<'_>> {
        let mut begin = 0;
        self.spans.iter().map(move |span| {
            let request = Request {
                begin,
                clock_ms: span.clock_ms,
                input_tokens: span.input_tokens,
                is_chain: span.is_chain,
                blocks: &self.blocks[begin..span.end],
            };
            begin = span.end;
            request
        })
    }
}

/// The first trace has the namespace that a replay has; no other shares its keys.
fn namespace(block_len: u32, index: usize) -> String {
    match index {
        0 => format!("replay/{block_len}"),
        _ => format!("replay/{block_len}/{index}"),
    }
}
