//! A request of a trace as a chain: what its blocks tell a policy, and what is done before the
//! first of them is read.

use std::time::Duration;

use clap::ValueEnum;
use terrace_engine::{
    Access, BlockKey, BlockKind, Engine, Hint, KeyHash, Namespace, Prefetch, RequestContext,
};

use terrace_sim::trace::TraceRequest;

/// How long a prefetch may go on: longer than any request takes.
pub(crate) const PREFETCH_DEADLINE: Duration = Duration::from_secs(60);

/// Whether requests are announced to the policies before their blocks are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Announce {
    /// Those of traces that hold chains.
    #[default]
    Auto,
    /// All.
    On,
    /// None.
    Off,
}

impl Announce {
    pub(crate) const fn is_for(self, request: &TraceRequest) -> bool {
        match self {
            Self::Auto => request.is_chain,
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// What a client does with a chain before it reads the first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainOptions {
    /// Whether it is announced.
    pub announce: Announce,
    /// Whether its blocks are matched, and then read ahead of need.
    pub prefetch: bool,
}

/// One block of a request.
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) key: BlockKey,
    pub(crate) hint: Hint,
    pub(crate) context: RequestContext,
}

/// The blocks of a request in order, with what the client knows about them.
pub(crate) fn links(namespace: Namespace, request: &TraceRequest) -> Vec<Link> {
    let count = request.blocks.len();
    let mut parent: Option<KeyHash> = None;
    let mut links = Vec::with_capacity(count);
    for (depth, id) in request.blocks.iter().enumerate() {
        let Ok(key) = namespace.key(&id.to_le_bytes()) else {
            continue;
        };
        let last = request.is_chain && depth + 1 == count;
        let hint = Hint {
            parent: parent.filter(|_| request.is_chain),
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
            kind: if last {
                BlockKind::Tail
            } else {
                BlockKind::Full
            },
        };
        parent = Some(key.hash());
        links.push(Link {
            id: *id,
            key,
            hint,
            context: context(request),
        });
    }
    links
}

/// What is known of a request. Zero as its clock would mean "take the engine's".
pub(crate) fn context(request: &TraceRequest) -> RequestContext {
    RequestContext {
        clock_ms: request.timestamp_ms + 1,
        ..RequestContext::default()
    }
}

impl ChainOptions {
    /// Announces a request and begins to read it ahead, as asked for. The prefetch goes on until
    /// it is dropped.
    pub(crate) async fn begin(
        self,
        engine: &Engine,
        request: &TraceRequest,
        links: &[Link],
    ) -> Option<Prefetch> {
        if self.announce.is_for(request) {
            let access = |link: &Link| Access {
                id: link.key.hash(),
                len: 0,
                hint: link.hint,
                context: link.context,
            };
            let accesses: Vec<Access> = links.iter().map(access).collect();
            // A shard that is gone answers the lookups, too.
            let _ = engine.announce(&accesses).await;
        }
        if !self.prefetch {
            return None;
        }
        let keys: Vec<BlockKey> = links.iter().map(|link| link.key.clone()).collect();
        let present = engine.match_prefix(&keys).await;
        let keys = keys.get(..present)?;
        let context = context(request);
        Some(engine.prefetch(keys, PREFETCH_DEADLINE, &context).await)
    }
}
