//! Learned state that policies keep over a restart: bytes from a device, which may be anybody's.
//!
//! Method: what a policy saved after requests of random chains is cut, altered, and put before
//! random bytes; each is offered to a fresh policy, which must go on in any case. What was saved
//! as it is must come back as it is.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

use proptest::prelude::*;
use terrace_engine::policy::{
    self, Admission, LEARNED_LEN_MAX, POLICY_NAMES, Policy, PolicyConfig,
};
use terrace_types::{Access, BlockIx, Hint, KeyHash, RequestContext};

const BLOCKS: u32 = 40;

fn fresh(name: &str) -> Box<dyn Policy> {
    let config = PolicyConfig {
        capacity_blocks: BLOCKS as usize,
        blocks_max: BLOCKS,
        below_blocks: 0,
        shards: 1,
    };
    policy::by_name(name, config).unwrap()
}

/// A request: the number of its chain, its length, and how long after the one before it comes.
type Request = (u64, u32, u64);

/// Plays requests against a policy that knows no block.
fn play(policy: &mut dyn Policy, requests: &[Request]) {
    let mut resident: Vec<(KeyHash, BlockIx)> = Vec::new();
    let mut free: Vec<BlockIx> = (0..BLOCKS).map(BlockIx).collect();
    let mut clock_ms = 0;
    for &(number, len, gap_ms) in requests {
        clock_ms += gap_ms;
        let id = |depth| KeyHash(100 * number + u64::from(depth));
        let accesses = (0..len).map(|depth| Access {
            hint: Hint {
                parent: u32::checked_sub(depth, 1).map(id),
                depth,
                ..Hint::default()
            },
            context: RequestContext {
                clock_ms,
                ..RequestContext::default()
            },
            ..Access::plain(id(depth))
        });
        let accesses: Vec<Access> = accesses.collect();
        policy.on_request(&accesses);
        for access in &accesses {
            if let Some((_, block)) = resident.iter().find(|(id, _)| *id == access.id) {
                policy.on_hit(*block, access);
                continue;
            }
            if policy.admit(access) == Admission::Decline {
                continue;
            }
            if free.is_empty() {
                let Some(victim) = policy.victim(&mut |_| true) else {
                    continue;
                };
                let pending = std::iter::from_fn(|| policy.take_pending());
                free.extend(std::iter::once(victim).chain(pending));
                resident.retain(|(_, block)| !free.contains(block));
            }
            let block = free.pop().unwrap();
            policy.on_insert(block, access);
            resident.push((access.id, block));
        }
    }
    policy.check();
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    proptest::collection::vec((0..12_u64, 1..20_u32, 0..100_000_u64), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn learned_state_comes_back_and_foreign_bytes_do_no_harm(
        requests in requests(),
        foreign in proptest::collection::vec(any::<u8>(), 0..400),
        cut in any::<usize>(),
        (at, flip) in any::<(usize, u8)>(),
    ) {
        for name in POLICY_NAMES {
            let mut earlier = fresh(name);
            play(&mut *earlier, &requests);
            let saved = earlier.save_learned();
            prop_assert!(saved.len() <= LEARNED_LEN_MAX);
            let mut policy = fresh(name);
            policy.restore_learned(&saved);
            prop_assert_eq!(&policy.save_learned(), &saved, "{}", name);

            let mut altered = saved.clone();
            if let Some(at) = at.checked_rem(altered.len()) {
                altered[at] ^= flip;
            }
            let head = &saved[..saved.len().min(8)];
            let numbers = foreign.iter().copied().cycle().take(saved.len() - head.len());
            for bytes in [
                foreign.clone(),
                saved[..cut % (saved.len() + 1)].to_vec(),
                altered,
                head.iter().copied().chain(numbers).collect(),
                [&saved[..], &foreign].concat(),
            ] {
                policy.restore_learned(&bytes);
            }
            play(&mut *policy, &requests);
        }
    }
}
