//! Announcements: the policy hears of a whole request before its accesses come one by one.
//!
//! A batch whose hints tell a chain announces itself. Of one request the policy hears once: not
//! again by the put of what its lookup missed, nor by a lookup after the caller's own
//! announcement. A request is known by its clock and its deepest block.

use std::collections::VecDeque;

use terrace_types::{Access, BlockKey, Hint, KeyHash};

use super::get::GetOptions;
use super::{PutOptions, Shard};

/// Requests that are remembered: more than a shard has under way at once, as a rule. One that is
/// forgotten is announced again.
const REQUESTS_MAX: usize = 64;

/// By what a request was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// By its caller, apart from any call.
    Caller,
    /// By a batch of lookups.
    Lookup,
}

/// What tells one request from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    clock_ms: u64,
    deepest: KeyHash,
}

/// The requests that were announced last.
#[derive(Default)]
pub(super) struct Announced(VecDeque<(Request, By)>);

impl Announced {
    fn note(&mut self, request: Request, by: By) {
        if self.0.len() == REQUESTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((request, by));
    }

    fn place(&self, request: Request) -> Option<usize> {
        self.0.iter().position(|(known, _)| *known == request)
    }
}

/// Whether a hint tells of a chain.
const fn tells_chain(hint: &Hint) -> bool {
    hint.depth > 0 || hint.parent.is_some()
}

fn request_of<'a>(told: impl Iterator<Item = (KeyHash, &'a Hint, u64)>) -> Option<Request> {
    let (deepest, _, clock_ms) = told.max_by_key(|(_, hint, _)| hint.depth)?;
    Some(Request { clock_ms, deepest })
}

impl Shard {
    /// Tells the policy of a whole request before its accesses come one by one.
    pub fn announce(&self, accesses: &[Access]) {
        let told = accesses
            .iter()
            .map(|it| (it.id, &it.hint, it.context.clock_ms));
        let Some(request) = request_of(told).filter(|_| self.unavailable().is_none()) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        state.announced.note(request, By::Caller);
        if accesses.iter().all(|access| access.context.clock_ms > 0) {
            state.policy.on_request(accesses);
            return;
        }
        let timed = |access: &Access| self.timed(*access);
        let accesses: Vec<Access> = accesses.iter().map(timed).collect();
        state.policy.on_request(&accesses);
    }

    /// Announces a batch of lookups, when its options tell a chain.
    pub(crate) fn announce_lookup(&self, keys: &[BlockKey], options: &[GetOptions]) {
        if !options.iter().any(|options| tells_chain(&options.hint)) {
            return;
        }
        let pairs = || keys.iter().zip(options);
        let told = pairs().map(|(key, it)| (key.hash(), &it.hint, it.context.clock_ms));
        let Some(request) = request_of(told).filter(|_| self.unavailable().is_none()) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        match state.announced.place(request) {
            Some(at) => {
                let by = std::mem::replace(&mut state.announced.0[at].1, By::Lookup);
                if by == By::Caller {
                    return;
                }
            }
            None => state.announced.note(request, By::Lookup),
        }
        let accesses = pairs().map(|(key, options)| self.access(key.hash(), 0, options));
        let accesses: Vec<Access> = accesses.collect();
        state.policy.on_request(&accesses);
    }

    /// Announces a batch of puts, when their options tell a chain.
    pub(crate) fn announce_put(&self, blocks: &[(BlockKey, u64, PutOptions)]) {
        if !blocks.iter().any(|(_, _, told)| tells_chain(&told.hint)) {
            return;
        }
        let told = blocks
            .iter()
            .map(|(key, _, it)| (key.hash(), &it.hint, it.context.clock_ms));
        let Some(request) = request_of(told).filter(|_| self.unavailable().is_none()) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        if let Some(at) = state.announced.place(request) {
            state.announced.0.remove(at);
            return;
        }
        let accesses = blocks.iter().map(|(key, len, options)| {
            let len = u32::try_from(*len).unwrap_or(u32::MAX);
            self.access(key.hash(), len, &options.told())
        });
        let accesses: Vec<Access> = accesses.collect();
        state.policy.on_request(&accesses);
    }
}
