//! Announcements: the policy hears of a whole request before its accesses come one by one.
//!
//! A batch whose hints tell a chain announces itself. Of one request the policy hears once: not
//! again by the put of what its lookup missed, nor by a lookup after the caller's own
//! announcement. A request is known by its clock and its deepest block.
//!
//! Where there are several shards, each is told the ids of the whole chain, from its first block
//! on, so that all judge it alike. A batch that is only a part of its chain tells each shard of
//! the shard's own blocks.

use std::collections::VecDeque;

use terrace_types::{Access, BlockKey, BlockKind, Hint, KeyHash, RequestContext};

use super::get::GetOptions;
use super::{PutOptions, Shard, State};
use crate::policy::RequestChain;

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

/// A chain as every shard is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeChain {
    ids: Vec<KeyHash>,
    ends_in_tail: bool,
    context: RequestContext,
}

impl WholeChain {
    /// The chain that these blocks are, or none when they are not one from its first block on.
    #[must_use]
    pub fn of(told: impl Iterator<Item = (KeyHash, Hint, RequestContext)>) -> Option<Self> {
        let mut chain = Self {
            ids: Vec::new(),
            ends_in_tail: false,
            context: RequestContext::default(),
        };
        for (id, hint, context) in told {
            if hint.depth as usize != chain.ids.len() {
                return None;
            }
            if chain.ids.is_empty() {
                chain.context = context;
            }
            chain.ends_in_tail = hint.kind == BlockKind::Tail;
            chain.ids.push(id);
        }
        (chain.ids.len() > 1).then_some(chain)
    }

    fn request(&self) -> Option<Request> {
        let deepest = *self.ids.last()?;
        Some(Request {
            clock_ms: self.context.clock_ms,
            deepest,
        })
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

impl Announced {
    /// Whether a batch of lookups is to announce its request.
    fn notes_lookup(&mut self, request: Request) -> bool {
        let Some(at) = self.place(request) else {
            self.note(request, By::Lookup);
            return true;
        };
        std::mem::replace(&mut self.0[at].1, By::Lookup) != By::Caller
    }

    /// Whether a batch of puts is to announce its request.
    fn notes_put(&mut self, request: Request) -> bool {
        let at = self.place(request);
        at.is_none_or(|at| {
            self.0.remove(at);
            false
        })
    }
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

    /// The same of a chain with blocks in several shards; `own` are the accesses that are this
    /// shard's, in order, and none perhaps.
    pub fn announce_chain(&self, chain: &WholeChain, own: &[Access]) {
        let Some(request) = chain.request().filter(|_| self.unavailable().is_none()) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        state.announced.note(request, By::Caller);
        let own: Vec<Access> = own.iter().map(|access| self.timed(*access)).collect();
        self.tell_chain(&mut state, chain, &own);
    }

    /// Announces a batch of lookups, when its options tell a chain; `chain` is the whole, where
    /// there are several shards.
    pub(crate) fn announce_lookup(
        &self,
        keys: &[BlockKey],
        options: &[GetOptions],
        chain: Option<&WholeChain>,
    ) {
        let pairs = || keys.iter().zip(options);
        let own = || {
            let accesses = pairs().map(|(key, options)| self.access(key.hash(), 0, options));
            accesses.collect::<Vec<Access>>()
        };
        let told = pairs().map(|(key, it)| (key.hash(), &it.hint, it.context.clock_ms));
        self.announce_batch(told, chain, Announced::notes_lookup, own);
    }

    /// Announces a batch of puts, when their options tell a chain; `chain` is as for lookups.
    pub(crate) fn announce_put(
        &self,
        blocks: &[(BlockKey, u64, PutOptions)],
        chain: Option<&WholeChain>,
    ) {
        let own = || {
            let accesses = blocks.iter().map(|(key, len, options)| {
                let len = u32::try_from(*len).unwrap_or(u32::MAX);
                self.access(key.hash(), len, &options.told())
            });
            accesses.collect::<Vec<Access>>()
        };
        let told = blocks
            .iter()
            .map(|(key, _, it)| (key.hash(), &it.hint, it.context.clock_ms));
        self.announce_batch(told, chain, Announced::notes_put, own);
    }

    fn announce_batch<'a>(
        &self,
        told: impl Iterator<Item = (KeyHash, &'a Hint, u64)> + Clone,
        chain: Option<&WholeChain>,
        notes: impl Fn(&mut Announced, Request) -> bool,
        own: impl Fn() -> Vec<Access>,
    ) {
        let request = match chain {
            Some(chain) => chain.request(),
            None if told.clone().any(|(_, hint, _)| tells_chain(hint)) => request_of(told),
            None => None,
        };
        let Some(request) = request.filter(|_| self.unavailable().is_none()) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        if !notes(&mut state.announced, request) {
            return;
        }
        let own = own();
        match chain {
            Some(chain) => self.tell_chain(&mut state, chain, &own),
            None => state.policy.on_request(&own),
        }
    }

    fn tell_chain(&self, state: &mut State, chain: &WholeChain, own: &[Access]) {
        let mut context = chain.context;
        if context.clock_ms == 0 {
            context.clock_ms = self.now.get().as_millis();
        }
        let chain = RequestChain {
            ids: &chain.ids,
            ends_in_tail: chain.ends_in_tail,
            context,
        };
        state.policy.on_chain(&chain, own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(depth: u32, kind: BlockKind) -> (KeyHash, Hint, RequestContext) {
        let hint = Hint {
            depth,
            kind,
            ..Hint::default()
        };
        (KeyHash(depth.into()), hint, RequestContext::default())
    }

    #[test]
    fn chain_is_whole_from_its_first_block_on_and_without_gaps() {
        let full = |depth| told(depth, BlockKind::Full);
        let whole = WholeChain::of([full(0), full(1), told(2, BlockKind::Tail)].into_iter());
        let whole = whole.unwrap();
        assert_eq!(whole.ids, [0, 1, 2].map(KeyHash));
        assert!(whole.ends_in_tail);
        for part in [vec![], vec![0], vec![1, 2], vec![0, 2], vec![0, 1, 1]] {
            let chain = WholeChain::of(part.iter().map(|depth| full(*depth)));
            assert_eq!(chain, None, "{part:?}");
        }
    }
}
