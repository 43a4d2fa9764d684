//! One suite over every policy: the contract of `terrace_engine::policy`.
//!
//! Method: random operations run against a model that knows only which blocks are resident
//! under which id. After each, the policy must agree with the model about what is known and
//! pass its own `check()`. What order a policy keeps is not this suite's matter, except that
//! looking at refused blocks must not change it: every run has a twin that is searched in vain
//! after each operation and must go on exactly as the other. Likewise a policy restored from
//! what another saved, under other block numbers, must go on exactly as that one, unless its
//! file says that a restart loses more than ghosts. Among the operations are whole requests that
//! are announced, played in order or in part, and broken off by others.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

#[path = "conformance/renumbered.rs"]
mod renumbered;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use renumbered::Renumbered;
use terrace_engine::policy::{
    self, Admission, POLICY_NAMES, Policy, PolicyConfig, RequestChain, VICTIM_SCAN_MAX,
};
use terrace_types::{Access, BlockIx, BlockKind, Hint, KeyHash, RequestContext};

const BLOCKS_MAX: u32 = 200;

/// Policies of whose state a restart keeps a part only; their files say which. They must go on
/// after it, but not as if nothing had happened.
const LOSES_BY_A_RESTART: [&str; 25] = [
    "S3FIFO-lcs",
    "S3FIFO-lcs-t1",
    "LRU2nohist",
    "LRU2hist",
    "LRU2-bounded",
    "ARC",
    "LIRS",
    "LIRS-bounded",
    "GDSF",
    "WTinyLFU",
    "WTinyLFUx",
    "P-LRU",
    "P-FIFO",
    "P-LFU",
    "P-LFUhist",
    "LengthAware",
    "P-LFUDA",
    "P-LFUDAhist",
    "P-LRU2hist",
    "P-HAZ",
    "P-HAZ-depth",
    "P-HAZ-hist",
    "P-HAZ-depth-hist",
    "P-GIT",
    "default",
];

/// Policies whose tags mean the same are of one family.
fn family(name: &str) -> &str {
    if name == "P-LRU2hist" {
        return "LRU2";
    }
    if ["P-LFU", "P-HAZ", "LengthAware"]
        .iter()
        .any(|of| name.starts_with(of))
    {
        return "LFU";
    }
    let families = ["CLOCK", "S3FIFO", "LRU2", "LIRS", "WTinyLFU"];
    let is_of = |family: &&str| name.starts_with(family);
    families.into_iter().find(is_of).unwrap_or(name)
}

/// Whether a policy knows of chains, and so may spare the block before the one to come.
fn is_prefix_aware(name: &str) -> bool {
    name.starts_with("P-") || ["LengthAware", "default"].contains(&name)
}

/// A request in the tests: a chain that shares its first blocks with chains of like number.
#[derive(Clone, Copy, Debug)]
struct Chain {
    number: u64,
    len: u32,
    clock_ms: u64,
    tells_kinds: bool,
    /// Whether the blocks name those before them, and their depths.
    tells_order: bool,
}

impl Chain {
    fn id(&self, depth: u32) -> KeyHash {
        let level = u64::from(depth / 4).min(2);
        let branch = self.number >> (2 * (2 - level));
        KeyHash(10_000 * (level + 1) + 100 * branch + u64::from(depth))
    }

    fn accesses(&self) -> Vec<Access> {
        let access = |depth| {
            let parent = u32::checked_sub(depth, 1).map(|before| self.id(before));
            let kind = match (self.tells_kinds, depth + 1 == self.len) {
                (false, _) => BlockKind::Unknown,
                (true, false) => BlockKind::Full,
                (true, true) => BlockKind::Tail,
            };
            Access {
                hint: Hint {
                    parent: parent.filter(|_| self.tells_order),
                    depth: if self.tells_order { depth } else { 0 },
                    kind,
                },
                context: RequestContext {
                    clock_ms: self.clock_ms,
                    ..RequestContext::default()
                },
                ..Access::plain(self.id(depth))
            }
        };
        (0..self.len).map(access).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Insert an id that is not resident under a block number that is free.
    Insert {
        number: usize,
        id: u64,
    },
    /// The same, as a block of an earlier run.
    Restore {
        number: usize,
        id: u64,
        tag: u8,
    },
    /// Announce the next block: an id that is not resident, which may or may not come.
    Admit(u64),
    /// Hit, or remove, the resident block at this position, round and round.
    Hit(usize),
    Remove(usize),
    /// Ask for a victim while a pseudo-random set of `refused_of_8` eighths is refused.
    Victim {
        seed: u32,
        refused_of_8: u32,
    },
    SetCapacity(usize),
    /// A request begins; it is announced, or goes on by what its accesses tell.
    Request {
        chain: Chain,
        is_announced: bool,
    },
    /// The next accesses of the request, some left out: known blocks are hit, others inserted
    /// as the engine would. While room is made for them blocks are refused as by `Victim`.
    Play {
        skip: usize,
        count: usize,
        seed: u32,
        refused_of_8: u32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (any::<usize>(), 0..400_u64).prop_map(|(number, id)| Op::Insert { number, id }),
        1 => (any::<usize>(), 0..400_u64, any::<u8>())
            .prop_map(|(number, id, tag)| Op::Restore { number, id, tag }),
        4 => (0..400_u64).prop_map(Op::Admit),
        10 => any::<usize>().prop_map(Op::Hit),
        1 => any::<usize>().prop_map(Op::Remove),
        6 => (any::<u32>(), 0..=8_u32)
            .prop_map(|(seed, refused_of_8)| Op::Victim { seed, refused_of_8 }),
        1 => (0..250_usize).prop_map(Op::SetCapacity),
        6 => (chain(), any::<bool>())
            .prop_map(|(chain, is_announced)| Op::Request { chain, is_announced }),
        12 => (prop_oneof![9 => Just(0), 1 => 0..3_usize], 1..20_usize, any::<u32>(), 0..=8_u32)
            .prop_map(|(skip, count, seed, refused_of_8)| {
                let refused_of_8 = if seed % 2 == 0 { 0 } else { refused_of_8 };
                Op::Play { skip, count, seed, refused_of_8 }
            }),
    ]
}

fn chain() -> impl Strategy<Value = Chain> {
    let told = (
        any::<bool>(),
        prop_oneof![4 => Just(true), 1 => Just(false)],
    );
    (0..64_u64, 1..20_u32, 0..200_000_u64, told).prop_map(
        |(number, len, clock_ms, (tells_kinds, tells_order))| Chain {
            number,
            len,
            clock_ms,
            tells_kinds,
            tells_order,
        },
    )
}

fn ops() -> impl Strategy<Value = (usize, Vec<Op>)> {
    (0..200_usize, proptest::collection::vec(op(), 0..500))
}

/// Whether the filter of `Op::Victim` accepts a block; the same answer each time.
fn accepts(block: BlockIx, seed: u32, refused_of_8: u32) -> bool {
    let mixed = (block.0 ^ seed).wrapping_mul(0x9E37_79B1);
    mixed >> 29 >= refused_of_8
}

struct Run {
    policy: Box<dyn Policy>,
    /// Count of shards that it is one of.
    shards: usize,
    capacity: usize,
    known: BTreeMap<BlockIx, KeyHash>,
    free: BTreeSet<BlockIx>,
    /// Ids that were known at some time.
    seen: BTreeSet<KeyHash>,
    /// Ids that are not inserted.
    avoided: BTreeSet<KeyHash>,
    /// What is left of the request under way.
    to_play: Vec<Access>,
    /// Whether a request of several blocks may be under way.
    is_under_way: bool,
    /// Whether a block was asked about and did not come: the one before it may be spared.
    may_spare: bool,
}

impl Run {
    fn new(name: &str, capacity_blocks: usize) -> Self {
        Self::among(1, name, capacity_blocks)
    }

    /// A run of a policy that is one of so many shards.
    fn among(shards: usize, name: &str, capacity_blocks: usize) -> Self {
        let config = PolicyConfig {
            capacity_blocks,
            blocks_max: BLOCKS_MAX,
            below_blocks: 0,
            shards,
        };
        let policy = policy::by_name(name, config).unwrap();
        assert_eq!(policy.name(), name);
        Self {
            policy,
            shards,
            capacity: capacity_blocks,
            known: BTreeMap::new(),
            free: (0..BLOCKS_MAX).map(BlockIx).collect(),
            seen: BTreeSet::new(),
            avoided: BTreeSet::new(),
            to_play: Vec::new(),
            is_under_way: false,
            may_spare: false,
        }
    }

    /// Tells of a request: where there are several shards, also of blocks that others own.
    fn announce(&mut self, own: &[Access]) {
        if self.shards == 1 || own.len().is_multiple_of(2) {
            self.policy.on_request(own);
            return;
        }
        let mixed = |access: &Access| [access.id, KeyHash(!access.id.0)];
        let ids: Vec<KeyHash> = own.iter().flat_map(mixed).collect();
        let chain = RequestChain {
            ids: &ids,
            ends_in_tail: own.len().is_multiple_of(3),
            context: own.first().map(|access| access.context).unwrap_or_default(),
        };
        self.policy.on_chain(&chain, own);
    }

    /// Applies `op` and compares; returns the blocks given up, in order.
    fn apply(&mut self, op: Op) -> Vec<BlockIx> {
        let mut given_up = Vec::new();
        match op {
            Op::Insert { number, id } => self.insert(number, id, None),
            Op::Restore { number, id, tag } => self.insert(number, id, Some(tag)),
            Op::Admit(id) => {
                let id = KeyHash(id);
                if !self.known.values().any(|known| *known == id) {
                    self.policy.admit(&Access::plain(id));
                }
            }
            Op::Hit(nth) => {
                if let Some((block, id)) = self.known_at(nth) {
                    self.policy.on_hit(block, &Access::plain(id));
                }
            }
            Op::Remove(nth) => {
                if let Some((block, _)) = self.known_at(nth) {
                    self.policy.on_remove(block);
                    self.forget(block);
                }
            }
            Op::Victim { seed, refused_of_8 } => given_up = self.victim(seed, refused_of_8),
            Op::SetCapacity(blocks) => {
                self.policy.set_capacity(blocks);
                self.capacity = blocks;
            }
            Op::Request {
                chain,
                is_announced,
            } => {
                self.to_play = chain.accesses();
                self.to_play.reverse();
                self.is_under_way = true;
                if is_announced {
                    self.announce(&chain.accesses());
                }
            }
            Op::Play {
                skip,
                count,
                seed,
                refused_of_8,
            } => {
                self.is_under_way = true;
                for _ in 0..skip {
                    self.to_play.pop();
                }
                for _ in 0..count {
                    if let Some(access) = self.to_play.pop() {
                        self.play(&access, seed, refused_of_8, &mut given_up);
                    }
                }
            }
        }
        self.policy.check();
        assert_eq!(self.policy.len(), self.known.len());
        assert_eq!(self.policy.is_empty(), self.known.is_empty());
        given_up
    }

    /// One access as the engine would: a hit, or an insert for which room is made.
    fn play(&mut self, access: &Access, seed: u32, refused_of_8: u32, given_up: &mut Vec<BlockIx>) {
        let known = self.known.iter().find(|(_, id)| **id == access.id);
        if let Some((&block, _)) = known {
            self.may_spare = false;
            self.policy.on_hit(block, access);
            return;
        }
        if self.avoided.contains(&access.id) {
            return;
        }
        self.may_spare = true;
        if self.policy.admit(access) == Admission::Decline {
            return;
        }
        while self.known.len() >= self.capacity.min(BLOCKS_MAX as usize) {
            let more = self.victim(seed, refused_of_8);
            if more.is_empty() {
                return;
            }
            given_up.extend(more);
        }
        let block = *self.free.first().unwrap();
        self.take_in_as(block, access, None);
    }

    fn known_at(&self, nth: usize) -> Option<(BlockIx, KeyHash)> {
        let nth = nth.checked_rem(self.known.len())?;
        self.known.iter().nth(nth).map(|(&block, &id)| (block, id))
    }

    fn insert(&mut self, number: usize, id: u64, tag: Option<u8>) {
        let Some(nth) = number.checked_rem(self.free.len()) else {
            return;
        };
        let block = *self.free.iter().nth(nth).unwrap();
        let id = (id..)
            .map(KeyHash)
            .filter(|id| !self.avoided.contains(id))
            .find(|id| !self.known.values().any(|known| known == id));
        self.take_in(block, id.unwrap(), tag);
    }

    /// Inserts, or with a tag restores, under a number that is free.
    fn take_in(&mut self, block: BlockIx, id: KeyHash, tag: Option<u8>) {
        self.is_under_way = false;
        self.take_in_as(block, &Access::plain(id), tag);
    }

    fn take_in_as(&mut self, block: BlockIx, access: &Access, tag: Option<u8>) {
        let id = access.id;
        self.may_spare = false;
        match tag {
            None => self.policy.on_insert(block, access),
            Some(tag) => self.policy.restore(block, tag, access),
        }
        assert!(self.free.remove(&block), "{block:?} is free");
        assert_eq!(self.known.insert(block, id), None);
        self.seen.insert(id);
        self.policy.check();
    }

    /// What the policy saves, which must be every known block once.
    fn saved(&self) -> Vec<(BlockIx, u8)> {
        let mut saved = Vec::new();
        self.policy.save(&mut |block, tag| saved.push((block, tag)));
        let blocks: BTreeSet<_> = saved.iter().map(|&(block, _)| block).collect();
        assert_eq!(saved.len(), blocks.len(), "a block is saved twice");
        assert!(blocks.iter().eq(self.known.keys()), "blocks saved");
        saved
    }

    /// A run that goes on where this one is after a restart: with block numbers of its own, and
    /// without the blocks that are not `found` again, of which this one is told.
    ///
    /// Ids that are gone are inserted by neither from here on: one may have a ghost here and
    /// none there.
    fn restarted(&mut self, numbers: Vec<u32>, found: impl Fn(BlockIx) -> bool) -> Self {
        let saved = self.saved();
        let mut restarted = Self::new(self.policy.name(), self.capacity);
        let policy = restarted.policy;
        restarted.policy = Box::new(Renumbered { policy, numbers });
        for (block, tag) in saved {
            if found(block) {
                restarted.take_in(block, self.known[&block], Some(tag));
            } else {
                self.policy.on_remove(block);
                self.forget(block);
            }
        }
        let is_known = |id: &KeyHash| self.known.values().any(|known| known == id);
        self.avoided = self
            .seen
            .iter()
            .copied()
            .filter(|id| !is_known(id))
            .collect();
        restarted.avoided.clone_from(&self.avoided);
        restarted.to_play.clone_from(&self.to_play);
        restarted
    }

    fn forget(&mut self, block: BlockIx) {
        assert!(
            self.known.remove(&block).is_some(),
            "{block:?} was given up but not known"
        );
        self.free.insert(block);
    }

    fn victim(&mut self, seed: u32, refused_of_8: u32) -> Vec<BlockIx> {
        let (mut accepted_count, mut refusals, mut refused) = (0, 0, BTreeSet::new());
        let known = &self.known;
        let mut given_up: Vec<_> = self
            .policy
            .victim(&mut |block| {
                assert!(
                    known.contains_key(&block),
                    "the filter was asked about {block:?}"
                );
                if accepts(block, seed, refused_of_8) {
                    accepted_count += 1;
                    return true;
                }
                refusals += 1;
                refused.insert(block);
                false
            })
            .into_iter()
            .collect();
        assert!(refusals <= VICTIM_SCAN_MAX, "{refusals} refusals");
        if given_up.is_empty() {
            assert_eq!(accepted_count, 0, "a block was accepted but none given up");
            let spares = self.may_spare && is_prefix_aware(self.policy.name());
            let all_refused = refused.len() == self.known.len();
            assert!(refusals == VICTIM_SCAN_MAX || all_refused || spares);
        }
        given_up.extend(std::iter::from_fn(|| self.policy.take_pending()));
        for &block in &given_up {
            assert!(
                accepts(block, seed, refused_of_8),
                "{block:?} was refused but given up"
            );
            self.forget(block);
        }
        given_up
    }

    /// Gives up everything; what request was under way is over.
    fn drain(&mut self) -> Vec<BlockIx> {
        let mut given_up = Vec::new();
        self.policy.on_request(&[]);
        self.may_spare = false;
        while !self.known.is_empty() {
            let more = self.apply(Op::Victim {
                seed: 0,
                refused_of_8: 0,
            });
            assert!(
                !more.is_empty(),
                "{} blocks are never given up",
                self.known.len()
            );
            given_up.extend(more);
        }
        given_up
    }
}

const REFUSE_ALL: Op = Op::Victim {
    seed: 0,
    refused_of_8: 8,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn policy_agrees_with_the_model_and_with_its_twin((capacity, ops) in ops()) {
        for name in POLICY_NAMES {
            let (mut run, mut twin) = (Run::new(name, capacity), Run::new(name, capacity));
            for &op in &ops {
                prop_assert_eq!(run.apply(op), twin.apply(op), "{} {:?}", name, op);
                // To ask P-GIT or the default for a victim tells it that the hits of the request are over.
                if !matches!(name, "P-GIT" | "default") || !twin.is_under_way {
                    prop_assert_eq!(twin.apply(REFUSE_ALL), []);
                }
            }
            prop_assert_eq!(run.drain(), twin.drain(), "{}", name);
        }
    }

    /// With milestones in place of ghosts, and requests told as whole chains or in part.
    #[test]
    fn default_among_several_shards_agrees_with_the_model_and_with_its_twin((capacity, ops) in ops()) {
        let [mut run, mut twin] = [(); 2].map(|()| Run::among(4, "default", capacity));
        for &op in &ops {
            prop_assert_eq!(run.apply(op), twin.apply(op), "{:?}", op);
        }
        prop_assert_eq!(run.drain(), twin.drain());
    }

    #[test]
    fn policy_restored_goes_on_as_the_one_that_saved(
        (capacity, before) in ops(),
        (_, after) in ops(),
        numbers in Just(Vec::from_iter(0..BLOCKS_MAX)).prop_shuffle(),
        seed in any::<u32>(),
        lost_of_8 in prop_oneof![Just(0), 0..=8_u32],
    ) {
        for name in POLICY_NAMES {
            let mut run = Run::new(name, capacity);
            before.iter().for_each(|&op| drop(run.apply(op)));
            let found = |block| accepts(block, seed, lost_of_8);
            let mut restarted = run.restarted(numbers.clone(), found);
            prop_assert_eq!(restarted.policy.len(), run.policy.len());
            if LOSES_BY_A_RESTART.contains(&name) {
                after.iter().for_each(|&op| drop(restarted.apply(op)));
                restarted.drain();
                continue;
            }
            for &op in &after {
                prop_assert_eq!(run.apply(op), restarted.apply(op), "{} {:?}", name, op);
            }
            prop_assert_eq!(run.drain(), restarted.drain(), "{}", name);
        }
    }

    #[test]
    fn policy_restored_from_the_tags_of_another_takes_in_the_order_alone(
        (capacity, ops) in ops(),
        other in 0..POLICY_NAMES.len(),
    ) {
        let other = POLICY_NAMES[other];
        let mut earlier = Run::new(other, capacity);
        ops.iter().for_each(|&op| drop(earlier.apply(op)));
        for name in POLICY_NAMES.into_iter().filter(|name| family(name) != family(other)) {
            let mut restored = Run::new(name, earlier.capacity);
            let mut inserted = Run::new(name, earlier.capacity);
            for (block, tag) in earlier.saved() {
                restored.take_in(block, earlier.known[&block], Some(tag));
                inserted.take_in(block, earlier.known[&block], None);
            }
            prop_assert_eq!(restored.drain(), inserted.drain(), "{} of {}", name, other);
        }
    }

    #[test]
    fn queue_order_is_that_of_a_plain_list((capacity, ops) in ops()) {
        for (name, hit_moves) in [("FIFO", false), ("LRU", true)] {
            let mut run = Run::new(name, capacity);
            let mut oldest_first: Vec<BlockIx> = Vec::new();
            let is_plain = |op: &&Op| !matches!(op, Op::Request { .. } | Op::Play { .. });
            for &op in ops.iter().filter(is_plain) {
                let hit = run.known_at(if let Op::Hit(nth) = op { nth } else { 0 });
                let given_up = run.apply(op);
                match op {
                    Op::Hit(_) if hit_moves => {
                        if let Some((block, _)) = hit {
                            oldest_first.retain(|&other| other != block);
                            oldest_first.push(block);
                        }
                    }
                    Op::Victim { seed, refused_of_8 } => {
                        let mut refusals = 0;
                        let expected = oldest_first.iter().copied().find(|&block| {
                            let accepted = accepts(block, seed, refused_of_8);
                            refusals += usize::from(!accepted);
                            accepted
                        });
                        let expected = expected.filter(|_| refusals < VICTIM_SCAN_MAX);
                        prop_assert_eq!(given_up, Vec::from_iter(expected), "{}", name);
                    }
                    _ => {}
                }
                oldest_first.retain(|block| run.known.contains_key(block));
                let inserted = run.known.keys().find(|block| !oldest_first.contains(block));
                oldest_first.extend(inserted);
            }
        }
    }
}

fn run_with(name: &str, count: u32) -> Run {
    let mut run = Run::new(name, count as usize);
    (0..count).for_each(|id| {
        drop(run.apply(Op::Insert {
            number: 0,
            id: id.into(),
        }))
    });
    run
}

#[test]
fn search_ends_after_the_refusals_it_may_make() {
    for name in POLICY_NAMES {
        let mut run = run_with(name, BLOCKS_MAX);
        let mut refusals = 0;
        let victim = run.policy.victim(&mut |_| {
            refusals += 1;
            false
        });
        assert_eq!((victim, refusals), (None, VICTIM_SCAN_MAX), "{name}");
    }
}

#[test]
fn block_number_used_again_starts_afresh() {
    for name in POLICY_NAMES {
        let (mut reused, mut fresh) = (run_with(name, 20), run_with(name, 20));
        for run in [&mut reused, &mut fresh] {
            (0..60).for_each(|nth| drop(run.apply(Op::Hit(nth))));
            run.apply(Op::Remove(7));
        }
        // The lowest free number is the one just removed, the highest was never used.
        reused.apply(Op::Insert {
            number: 0,
            id: 1000,
        });
        fresh.apply(Op::Insert {
            number: fresh.free.len() - 1,
            id: 1000,
        });
        let reused_order = reused.drain().into_iter().map(|block| match block {
            BlockIx(7) => BlockIx(BLOCKS_MAX - 1),
            other => other,
        });
        assert_eq!(reused_order.collect::<Vec<_>>(), fresh.drain(), "{name}");
    }
}

#[test]
fn every_tag_is_taken_and_its_block_is_given_up_in_the_end() {
    for name in POLICY_NAMES {
        // Eight tags a run, five blocks a tag: policies take memory by the hugepage, and a run
        // for each tag would spend its time on zeroing them.
        for first in (0..=u8::MAX).step_by(8) {
            let mut run = run_with(name, 5);
            for id in 10..50 {
                let tag = first + id as u8 % 8;
                run.apply(Op::Restore { number: 0, id, tag });
                run.apply(Op::Hit(id as usize));
            }
            assert_eq!(run.drain().len(), 45, "{name} {first}");
        }
    }
}

/// A run with `BLOCKS_MAX` blocks that came in requests of 25.
fn run_with_chains(name: &str) -> Run {
    let mut run = Run::new(name, BLOCKS_MAX as usize);
    for number in 0..8 {
        let chain = Chain {
            number: number << 4,
            len: 25,
            clock_ms: 0,
            tells_kinds: true,
            tells_order: true,
        };
        run.apply(Op::Request {
            chain,
            is_announced: true,
        });
        run.apply(Op::Play {
            skip: 0,
            count: 25,
            seed: 0,
            refused_of_8: 0,
        });
    }
    assert_eq!(run.known.len(), BLOCKS_MAX as usize, "{name}");
    run
}

#[test]
fn state_of_a_resident_block_is_at_most_32_bytes_and_nine_in_plain_queues() {
    let plain = ["FIFO", "LRU", "CLOCK", "SIEVE", "S3FIFO", "2Q", "ARC"];
    for name in POLICY_NAMES {
        let (run, bytes_max) = if is_prefix_aware(name) {
            // The forms to compare with keep an id beside the order of leaves.
            (
                run_with_chains(name),
                if name.ends_with("hist") { 36 } else { 32 },
            )
        } else {
            let is_plain = plain.iter().any(|plain| family(name) == *plain);
            (run_with(name, BLOCKS_MAX), if is_plain { 9 } else { 32 })
        };
        assert!(
            run.policy.bytes().resident <= bytes_max * u64::from(BLOCKS_MAX),
            "{name}"
        );
    }
}

#[test]
fn name_in_any_case_is_accepted_and_another_is_refused_with_the_names() {
    let config = PolicyConfig {
        capacity_blocks: 1,
        blocks_max: 1,
        below_blocks: 0,
        shards: 1,
    };
    for name in POLICY_NAMES {
        assert_eq!(
            policy::by_name(&name.to_ascii_lowercase(), config)
                .unwrap()
                .name(),
            name
        );
    }
    let refused = policy::by_name("belady", config).err().unwrap().to_string();
    assert!(refused.contains("belady"), "{refused}");
    assert!(
        POLICY_NAMES.iter().all(|name| refused.contains(name)),
        "{refused}"
    );
}
