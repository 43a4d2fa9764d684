//! One suite over every policy: the contract of `terrace_engine::policy`.
//!
//! Method: random operations run against a model that knows only which blocks are resident
//! under which id. After each, the policy must agree with the model about what is known and
//! pass its own `check()`. What order a policy keeps is not this suite's matter, except that
//! looking at refused blocks must not change it: every run has a twin that is searched in vain
//! after each operation and must go on exactly as the other.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use terrace_engine::policy::{self, POLICY_NAMES, Policy, PolicyConfig, VICTIM_SCAN_MAX};
use terrace_types::{Access, BlockIx, KeyHash};

const BLOCKS_MAX: u32 = 200;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Insert an id that is not resident under a block number that is free.
    Insert {
        number: usize,
        id: u64,
    },
    /// Hit, or remove, the resident block at this position, round and round.
    Hit(usize),
    Remove(usize),
    /// Ask for a victim while a pseudo-random set of `refused_of_8` eighths is refused.
    Victim {
        seed: u32,
        refused_of_8: u32,
    },
    SetCapacity(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (any::<usize>(), 0..400_u64).prop_map(|(number, id)| Op::Insert { number, id }),
        10 => any::<usize>().prop_map(Op::Hit),
        1 => any::<usize>().prop_map(Op::Remove),
        6 => (any::<u32>(), 0..=8_u32)
            .prop_map(|(seed, refused_of_8)| Op::Victim { seed, refused_of_8 }),
        1 => (0..250_usize).prop_map(Op::SetCapacity),
    ]
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
    known: BTreeMap<BlockIx, KeyHash>,
    free: BTreeSet<BlockIx>,
}

impl Run {
    fn new(name: &str, capacity_blocks: usize) -> Self {
        let config = PolicyConfig {
            capacity_blocks,
            blocks_max: BLOCKS_MAX,
        };
        let policy = policy::by_name(name, config).unwrap();
        assert_eq!(policy.name(), name);
        Self {
            policy,
            known: BTreeMap::new(),
            free: (0..BLOCKS_MAX).map(BlockIx).collect(),
        }
    }

    /// Applies `op` and compares; returns the blocks given up, in order.
    fn apply(&mut self, op: Op) -> Vec<BlockIx> {
        let mut given_up = Vec::new();
        match op {
            Op::Insert { number, id } => self.insert(number, id),
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
            Op::SetCapacity(blocks) => self.policy.set_capacity(blocks),
        }
        self.policy.check();
        assert_eq!(self.policy.len(), self.known.len());
        assert_eq!(self.policy.is_empty(), self.known.is_empty());
        given_up
    }

    fn known_at(&self, nth: usize) -> Option<(BlockIx, KeyHash)> {
        let nth = nth.checked_rem(self.known.len())?;
        self.known.iter().nth(nth).map(|(&block, &id)| (block, id))
    }

    fn insert(&mut self, number: usize, id: u64) {
        let Some(nth) = number.checked_rem(self.free.len()) else {
            return;
        };
        let block = *self.free.iter().nth(nth).unwrap();
        let id = (id..)
            .map(KeyHash)
            .find(|id| !self.known.values().any(|known| known == id));
        let access = Access::plain(id.unwrap());
        self.policy.on_insert(block, &access);
        self.free.remove(&block);
        assert_eq!(self.known.insert(block, access.id), None);
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
            assert!(refusals == VICTIM_SCAN_MAX || refused.len() == self.known.len());
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

    /// Gives up everything.
    fn drain(&mut self) -> Vec<BlockIx> {
        let mut given_up = Vec::new();
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
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn policy_agrees_with_the_model_and_with_its_twin((capacity, ops) in ops()) {
        for name in POLICY_NAMES {
            let (mut run, mut twin) = (Run::new(name, capacity), Run::new(name, capacity));
            for &op in &ops {
                prop_assert_eq!(run.apply(op), twin.apply(op), "{} {:?}", name, op);
                prop_assert_eq!(twin.apply(REFUSE_ALL), []);
            }
            prop_assert_eq!(run.drain(), twin.drain(), "{}", name);
        }
    }

    #[test]
    fn queue_order_is_that_of_a_plain_list((capacity, ops) in ops()) {
        for (name, hit_moves) in [("FIFO", false), ("LRU", true)] {
            let mut run = Run::new(name, capacity);
            let mut oldest_first: Vec<BlockIx> = Vec::new();
            for &op in &ops {
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
fn state_of_a_resident_block_is_at_most_nine_bytes() {
    for name in POLICY_NAMES {
        let run = run_with(name, BLOCKS_MAX);
        assert!(
            run.policy.bytes().resident <= 9 * u64::from(BLOCKS_MAX),
            "{name}"
        );
    }
}

#[test]
fn name_in_any_case_is_accepted_and_another_is_refused_with_the_names() {
    let config = PolicyConfig {
        capacity_blocks: 1,
        blocks_max: 1,
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
