//! Owns the requests read so far and refuses what exceeds the limits.

#![deny(clippy::indexing_slicing)]

use super::TraceRequest;
use super::error::Fault;
use super::limits::Limits;

/// Collects requests in order.
#[derive(Debug)]
pub(super) struct Requests {
    list: Vec<TraceRequest>,
    accesses: u64,
    wanted: Option<usize>,
    limits: Limits,
}

impl Requests {
    /// Collects the first `wanted` requests, or all.
    pub(super) const fn new(wanted: Option<usize>, limits: Limits) -> Self {
        Self {
            list: Vec::new(),
            accesses: 0,
            wanted,
            limits,
        }
    }

    /// The bounds in force.
    pub(super) const fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether the caller has as many requests as it wanted.
    pub(super) fn is_complete(&self) -> bool {
        self.wanted.is_some_and(|wanted| self.list.len() >= wanted)
    }

    /// Appends a request of `block_count` blocks. The request is only built once the count is
    /// known to be within the limits.
    pub(super) fn push(
        &mut self,
        block_count: u64,
        request: impl FnOnce() -> TraceRequest,
    ) -> Result<(), Fault> {
        let limits = self.limits;
        let accesses = self.accesses.saturating_add(block_count);
        let count = (self.list.len() as u64).saturating_add(1);
        Fault::check_limit(
            "blocks of a request",
            limits.request_blocks_max,
            block_count,
        )?;
        Fault::check_limit("block accesses of a trace", limits.accesses_max, accesses)?;
        Fault::check_limit("requests of a trace", limits.requests_max, count)?;

        let request = request();
        assert_eq!(
            request.blocks.len() as u64,
            block_count,
            "the announced count was checked"
        );
        self.list.push(request);
        self.accesses = accesses;
        Ok(())
    }

    /// The requests, in the order they came.
    pub(super) fn into_list(self) -> Vec<TraceRequest> {
        self.list
    }
}
