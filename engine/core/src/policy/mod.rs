//! What stays and what goes: the policy trait and the policies built in, one file each.
//!
//! A policy orders the blocks that one shard holds in DRAM. It sees ids and small metadata,
//! never bytes; it neither frees nor moves anything, it only answers questions.
//!
//! **Contract** (`engine/core/tests/policy_conformance.rs` runs it over every policy)
//! - A block is known from `on_insert` until `victim` or `take_pending` returns it or
//!   `on_remove` names it.
//! - `victim` returns a known block that the filter accepts, and forgets it; a block that the
//!   filter refuses stays where it is, as if it had not been looked at. A policy that follows
//!   chains may spare the block before the one it was asked to admit, and have none.
//! - `on_hit` of a known block allocates nothing.
//! - A fresh policy of the same capacity that `restore` gives what `save` told goes on as the
//!   first would have, but for what its file says is lost. Without some of the blocks it goes on
//!   as the first after `on_remove` of these.
//! - A policy is driven by one thread and keeps no clock of its own.
//!
//! Exact algorithms and the papers they come from are named in each file.

mod arc;
mod below;
mod chain;
mod clock;
mod fifo;
mod frequency;
mod gdsf;
mod ghost;
mod gittins;
mod hazard;
mod heap;
mod leaves;
mod lfu;
mod lirs;
mod list;
mod lru;
mod lru2;
mod opt;
mod prefix;
mod request;
mod s3fifo;
mod sieve;
mod twoq;
mod wtinylfu;

use terrace_slab::HugeVecError;
use terrace_types::{Access, KeyHash, RequestContext};

pub use terrace_types::BlockIx;

pub use arc::AdaptiveReplacement;
pub use below::{BelowRule, WRITE_PRICE, WritePrice, expected_hits};
pub use clock::Clock;
pub use fifo::Fifo;
pub use gdsf::Gdsf;
pub use gittins::Gittins;
pub use lfu::Lfu;
pub use lirs::{Lirs, LirsHistory};
pub use lru::Lru;
pub use lru2::{Lru2, Lru2History};
pub use opt::{OptBound, opt_hits, opt_hits_of_requests};
pub use prefix::{Prefix, PrefixOrder};
pub use s3fifo::{S3Fifo, S3FifoVariant};
pub use sieve::Sieve;
pub use twoq::TwoQ;
pub use wtinylfu::WTinyLfu;

/// How many refused blocks `victim` looks at before it gives up.
///
/// Blocks are refused when they are pinned or lie in another size class than the one that
/// needs a slot. When none of the coldest 64 is of the wanted class, the class is hotter than
/// the others and a slab should change classes instead.
pub const VICTIM_SCAN_MAX: usize = 64;

/// Most bytes that a policy's learned state may have, see [`Policy::save_learned`].
pub const LEARNED_LEN_MAX: usize = 1 << 20;

/// What a policy needs to know when a shard opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Blocks the shard is expected to hold; queue shares and ghost bounds derive from it.
    pub capacity_blocks: usize,
    /// No block number reaches this; arrays may be reserved for it.
    pub blocks_max: u32,
    /// Blocks that the tiers below are expected to hold for the shard; 0 without any. A policy
    /// that remembers blocks which are gone may want to remember these, too.
    pub below_blocks: usize,
    /// Count of the engine's shards. Where there are several, the policy is told of requests by
    /// [`Policy::on_chain`], or of this shard's part of them.
    pub shards: usize,
}

/// Memory a policy uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyBytes {
    /// State of resident blocks.
    pub resident: u64,
    /// Ghosts: what is remembered of blocks that are gone.
    pub ghosts: u64,
}

/// A request as a whole, with blocks of all shards.
#[derive(Clone, Copy, Debug)]
pub struct RequestChain<'a> {
    /// Ids of its blocks, from the first of the chain on.
    pub ids: &'a [KeyHash],
    /// Whether the last of them is normally partial, [`terrace_types::BlockKind::Tail`].
    pub ends_in_tail: bool,
    /// What is known of the request.
    pub context: RequestContext,
}

/// Whether a block may enter a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The block may enter.
    Admit,
    /// The block stays out. A volatile put answers `Rejected(NotAdmitted)`; the block of a durable
    /// one, or of a lookup that found it below, is in DRAM only as long as it is used.
    Decline,
}

/// An order over the blocks of one shard. See the module's contract.
pub trait Policy {
    /// The policy's name, as users write it.
    fn name(&self) -> &'static str;

    /// The number of blocks the shard is expected to hold changed.
    fn set_capacity(&mut self, blocks: usize);

    /// A request arrived; its accesses follow one by one. The whole chain is known here, before
    /// the first of its blocks is looked up. Without accesses: no request is under way any more.
    ///
    /// The accesses are in the order of their chain. A shard is told of its own only, so one may
    /// not be the parent of the next: the hint tells parent and depth, and in the policy's order
    /// the parent is the nearest access before that is resident. Then, for each access in order:
    /// - one that is resident is told by [`Policy::on_hit`];
    /// - for any other [`Policy::admit`] is asked. The block stays out if it is declined; else
    ///   [`Policy::victim`] is asked until there is room, and the block stays out when there is
    ///   no victim; else it is told by [`Policy::on_insert`].
    ///
    /// What a request changes as a whole, a policy may settle when the first block is asked about
    /// or inserted, a victim is wanted, or the next request begins. The block before the one that
    /// was admitted is not given up for it. Accesses that nobody announced make a request, too:
    /// one of the same clock and tenant whose parent is the access before goes on with it, any
    /// other begins the next. All of this is what helps; any other order of calls is allowed.
    fn on_request(&mut self, accesses: &[Access]) {
        let _ = accesses;
    }

    /// As [`Policy::on_request`], of a request that has blocks in several shards: `own` are the
    /// accesses of this shard, in order, and none perhaps. Shards that are told of the same
    /// chains in the same order can judge them alike. The default tells of the shard's own.
    fn on_chain(&mut self, chain: &RequestChain<'_>, own: &[Access]) {
        let _ = chain;
        if !own.is_empty() {
            self.on_request(own);
        }
    }

    /// A known block was read.
    fn on_hit(&mut self, block: BlockIx, access: &Access);

    /// `block` became resident.
    fn on_insert(&mut self, block: BlockIx, access: &Access);

    /// `block` is gone for another reason than eviction: removed, replaced, or emptied out
    /// with its slab. It leaves no ghost.
    fn on_remove(&mut self, block: BlockIx);

    /// The block to give up next among those that `evictable` accepts, or `None` when there is
    /// none within [`VICTIM_SCAN_MAX`] refusals. The policy forgets what it returns.
    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx>;

    /// A block the policy already gave up while choosing the last victim; the engine evicts it
    /// right after `victim`, and asks again until there is none. The filter of that `victim`
    /// accepted the block.
    fn take_pending(&mut self) -> Option<BlockIx> {
        None
    }

    /// Tells `visit` every known block, by and large the next to go first, with a tag: whatever
    /// the policy has to know of the block besides its place in this order. Order and tags are
    /// kept over a clean restart for [`Policy::restore`].
    ///
    /// The default tells of none: such a policy starts anew after a restart.
    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        let _ = visit;
    }

    /// `block` is resident again after a restart; an earlier run saved it with `tag`.
    ///
    /// Calls come in the order of [`Policy::save`]. Numbers differ from those of the earlier
    /// run, and blocks that are no longer to be had are left out. A tag comes from a device, of
    /// another policy perhaps: one that this policy does not give counts as no tag, and never
    /// panics. The default ignores the tag and takes the block in as a new one.
    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        let _ = tag;
        self.on_insert(block, access);
    }

    /// What the policy has learned of the load, apart from any block: at most
    /// [`LEARNED_LEN_MAX`] bytes that begin with a format of the policy's own. They are kept over
    /// a clean restart for [`Policy::restore_learned`]. The default has learned nothing.
    fn save_learned(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Goes on with what an earlier run has learned; called before the first block is restored.
    /// The bytes come from a device, of another policy or another version perhaps: what this
    /// policy cannot read it leaves out, and never panics.
    fn restore_learned(&mut self, learned: &[u8]) {
        let _ = learned;
    }

    /// Whether a block that is about to be stored is worth a slot. A policy whose choice of a
    /// victim depends on the block that needs the room learns of that block here; it may come
    /// without having been announced, and one that was announced may not come.
    fn admit(&mut self, access: &Access) -> Admission {
        let _ = access;
        Admission::Admit
    }

    /// What a write to the tier below costs, told before anything else where it is not the
    /// default. A policy that writes by worth goes by it.
    fn set_write_price(&mut self, price: WritePrice) {
        let _ = price;
    }

    /// Whether a block that the policy has just given up is worth a write to the tier below.
    /// Asked once for each block that no tier below holds, before anything else is asked.
    fn admit_below(&mut self, access: &Access) -> Admission {
        let _ = access;
        Admission::Admit
    }

    /// Whether a block in a segment that is about to be reclaimed is worth writing again. Asked
    /// once for each block that is still in such a segment; `resident` is its number when it is a
    /// known block, too.
    ///
    /// `None` leaves it to the engine, which keeps what is in DRAM or was hit since it was written.
    fn keep(&mut self, resident: Option<BlockIx>, access: &Access) -> Option<bool> {
        let _ = (resident, access);
        None
    }

    /// Count of known blocks.
    fn len(&self) -> usize;

    /// Whether no block is known.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory in use.
    fn bytes(&self) -> PolicyBytes;

    /// Walks all state and panics when an invariant is broken; for tests.
    fn check(&self) {}
}

/// Why no policy could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name is not that of a policy.
    #[error("`{name}` is not a policy; there are {}", POLICY_NAMES.join(", "))]
    UnknownName {
        /// The name as given.
        name: String,
    },
    /// Address space for the policy's arrays could not be reserved.
    #[error("reserve the policy's state: {0}")]
    Memory(HugeVecError),
}

// By hand: `#[from]` would make the cause a source as well, and it would be said twice.
impl From<HugeVecError> for PolicyError {
    fn from(cause: HugeVecError) -> Self {
        Self::Memory(cause)
    }
}

/// Makes a policy.
type Make = fn(PolicyConfig) -> Result<Box<dyn Policy>, PolicyError>;

/// The policies built in, by name.
const BUILT_IN: [(&str, Make); 35] = [
    ("FIFO", |config| Ok(Box::new(Fifo::new(config)?))),
    ("CLOCK", |config| Ok(Box::new(Clock::new(config)?))),
    ("CLOCK2b", |config| Ok(Box::new(Clock::two_bits(config)?))),
    ("LRU", |config| Ok(Box::new(Lru::new(config)?))),
    ("LFU", |config| Ok(Box::new(Lfu::new(config)?))),
    ("LRU2nohist", |config| lru2(Lru2History::None, config)),
    ("LRU2hist", |config| lru2(Lru2History::Unbounded, config)),
    ("LRU2-bounded", |config| lru2(Lru2History::Bounded, config)),
    ("2Q", |config| Ok(Box::new(TwoQ::new(config)?))),
    ("ARC", |config| {
        Ok(Box::new(AdaptiveReplacement::new(config)?))
    }),
    ("LIRS", |config| lirs(LirsHistory::Unbounded, config)),
    ("LIRS-bounded", |config| lirs(LirsHistory::Bounded, config)),
    ("WTinyLFU", |config| Ok(Box::new(WTinyLfu::new(config)?))),
    ("WTinyLFUx", |config| Ok(Box::new(WTinyLfu::exact(config)?))),
    ("GDSF", |config| Ok(Box::new(Gdsf::new(config)?))),
    ("SIEVE", |config| Ok(Box::new(Sieve::new(config)?))),
    ("S3FIFO", |config| s3fifo(S3FifoVariant::PAPER, config)),
    ("S3FIFO-t1", |config| {
        s3fifo(S3FifoVariant::PAPER_ONE_HIT, config)
    }),
    ("S3FIFO-lcs", |config| {
        s3fifo(S3FifoVariant::LIBRARY, config)
    }),
    ("S3FIFO-lcs-t1", |config| {
        s3fifo(S3FifoVariant::LIBRARY_ONE_HIT, config)
    }),
    ("S3FIFO-lcs24", |config| {
        s3fifo(S3FifoVariant::LIBRARY_2024, config)
    }),
    ("P-LRU", |config| {
        prefix(PrefixOrder::Recency, false, config)
    }),
    ("P-FIFO", |config| {
        prefix(PrefixOrder::Arrival, false, config)
    }),
    ("P-LFU", |config| prefix(PrefixOrder::Uses, false, config)),
    ("P-LFUhist", |config| {
        prefix(PrefixOrder::Uses, true, config)
    }),
    ("LengthAware", |config| {
        prefix(PrefixOrder::UsesAndDepth, false, config)
    }),
    ("P-LFUDA", |config| {
        prefix(PrefixOrder::AgedUses, false, config)
    }),
    ("P-LFUDAhist", |config| {
        prefix(PrefixOrder::AgedUses, true, config)
    }),
    ("P-LRU2hist", |config| {
        prefix(PrefixOrder::LastUseButOne, true, config)
    }),
    ("P-HAZ", |config| prefix(PrefixOrder::Hazard, false, config)),
    ("P-HAZ-depth", |config| {
        prefix(PrefixOrder::HazardByDepth, false, config)
    }),
    ("P-HAZ-hist", |config| {
        prefix(PrefixOrder::Hazard, true, config)
    }),
    ("P-HAZ-depth-hist", |config| {
        prefix(PrefixOrder::HazardByDepth, true, config)
    }),
    ("default", |config| Ok(Box::new(Gittins::new(config)?))),
    ("P-GIT", |config| Ok(Box::new(Gittins::reference(config)?))),
];

fn s3fifo(variant: S3FifoVariant, config: PolicyConfig) -> Result<Box<dyn Policy>, PolicyError> {
    Ok(Box::new(S3Fifo::with(variant, config)?))
}

fn lru2(history: Lru2History, config: PolicyConfig) -> Result<Box<dyn Policy>, PolicyError> {
    Ok(Box::new(Lru2::new(history, config)?))
}

fn prefix(
    order: PrefixOrder,
    with_history: bool,
    config: PolicyConfig,
) -> Result<Box<dyn Policy>, PolicyError> {
    Ok(Box::new(Prefix::new(order, with_history, config)?))
}

fn lirs(history: LirsHistory, config: PolicyConfig) -> Result<Box<dyn Policy>, PolicyError> {
    Ok(Box::new(Lirs::new(history, config)?))
}

/// The names of the policies built in; any case is accepted.
pub const POLICY_NAMES: [&str; BUILT_IN.len()] = {
    let mut names = [""; BUILT_IN.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = BUILT_IN[at].0;
        at += 1;
    }
    names
};

/// The policy built in under `name`, in any case.
///
/// # Errors
/// [`PolicyError::UnknownName`] with the names there are, or [`PolicyError::Memory`].
pub fn by_name(name: &str, config: PolicyConfig) -> Result<Box<dyn Policy>, PolicyError> {
    let built_in = BUILT_IN
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name));
    match built_in {
        Some((_, make)) => make(config),
        None => Err(PolicyError::UnknownName {
            name: name.to_owned(),
        }),
    }
}
