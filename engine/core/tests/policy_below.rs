//! Aim: P-GIT says what is worth a write below by what it has learned, and room that is made
//! between two accesses of a request teaches it nothing wrong.
//!
//! Method: conversations by hand, each of four blocks a turn, driven as the engine drives a
//! policy.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

use std::collections::HashMap;

use terrace_engine::policy::{self, Admission, BlockIx, Policy, PolicyConfig};
use terrace_types::{Access, BlockKind, Hint, KeyHash, RequestContext};

const CAPACITY: usize = 64;
const CONFIG: PolicyConfig = PolicyConfig {
    capacity_blocks: CAPACITY,
    blocks_max: 4096,
    below_blocks: 640,
    shards: 1,
};

/// Blocks `begin..end` of a conversation, as one request.
fn request(conversation: u64, end: u64, clock_ms: u64) -> Vec<Access> {
    let id = |depth: u64| KeyHash(conversation * 1000 + depth + 1);
    let access = |depth: u64| Access {
        id: id(depth),
        len: 4096,
        hint: Hint {
            parent: depth.checked_sub(1).map(id),
            depth: depth as u32,
            kind: if depth + 1 == end {
                BlockKind::Tail
            } else {
                BlockKind::Full
            },
        },
        context: RequestContext {
            clock_ms,
            ..RequestContext::default()
        },
    };
    (0..end).map(access).collect()
}

/// DRAM under a policy, and what the policy said of the blocks that left it.
struct Dram {
    policy: Box<dyn Policy>,
    resident: HashMap<KeyHash, BlockIx>,
    ids: HashMap<BlockIx, KeyHash>,
    free: Vec<u32>,
    /// Whether room is looked for in vain before each access.
    meddles: bool,
    declined: Vec<KeyHash>,
    admitted: Vec<KeyHash>,
}

impl Dram {
    fn new(meddles: bool) -> Self {
        Self {
            policy: policy::by_name("P-GIT", CONFIG).unwrap(),
            resident: HashMap::new(),
            ids: HashMap::new(),
            free: (0..CAPACITY as u32).collect(),
            meddles,
            declined: Vec::new(),
            admitted: Vec::new(),
        }
    }

    fn play(&mut self, accesses: &[Access]) {
        self.policy.on_request(accesses);
        for access in accesses {
            if self.meddles {
                assert_eq!(self.policy.victim(&mut |_| false), None);
            }
            if let Some(block) = self.resident.get(&access.id) {
                self.policy.on_hit(*block, access);
                continue;
            }
            assert_eq!(self.policy.admit(access), Admission::Admit);
            if self.free.is_empty() {
                self.give_up();
            }
            let block = BlockIx(self.free.pop().unwrap());
            self.policy.on_insert(block, access);
            self.resident.insert(access.id, block);
            self.ids.insert(block, access.id);
        }
    }

    fn give_up(&mut self) {
        let victim = self.policy.victim(&mut |_| true).unwrap();
        let id = self.ids.remove(&victim).unwrap();
        self.resident.remove(&id);
        self.free.push(victim.0);
        match self.policy.admit_below(&Access::plain(id)) {
            Admission::Admit => self.admitted.push(id),
            Admission::Decline => self.declined.push(id),
        }
    }
}

/// Conversations of one turn that nobody goes on with, and some of two.
fn load(dram: &mut Dram) {
    for second in 0..3000_u64 {
        dram.play(&request(second, 4, second * 1000));
        if second % 4 == 0 && second >= 40 {
            // One of half a minute ago.
            dram.play(&request(second - 40, 8, second * 1000 + 500));
        }
        if second % 100 == 0 {
            dram.policy.check();
        }
    }
}

#[test]
fn room_made_between_hits_teaches_nothing() {
    let (mut alone, mut meddled) = (Dram::new(false), Dram::new(true));
    load(&mut alone);
    load(&mut meddled);
    assert_eq!(alone.policy.save_learned(), meddled.policy.save_learned());
    assert_eq!(alone.admitted, meddled.admitted);
}

#[test]
fn victim_of_a_request_under_way_leaves_no_trace() {
    let mut dram = Dram::new(false);
    load(&mut dram);
    let accesses = request(9000, 12, 4_000_000);
    dram.play(&accesses);
    let again = request(9000, 16, 4_010_000);
    dram.policy.on_request(&again);
    for access in &again[..4] {
        if let Some(block) = dram.resident.get(&access.id) {
            dram.policy.on_hit(*block, access);
        }
    }
    // Half of all that is there goes, blocks among it that the request has come to.
    for _ in 0..CAPACITY / 2 {
        dram.give_up();
    }
    dram.policy.check();
    dram.play(&request(9000, 20, 4_020_000));
}

#[test]
fn admit_below_writes_what_comes_back_and_not_what_ended() {
    let mut dram = Dram::new(false);
    load(&mut dram);
    // Blocks of second turns never come back, those of first turns do in one of four.
    let late = |ids: &[KeyHash]| ids.iter().filter(|id| id.0 > 1_500_000).count();
    let second_turns = |ids: &[KeyHash]| {
        let late = ids.iter().filter(|id| id.0 > 1_500_000);
        late.filter(|id| (id.0 - 1) % 1000 >= 4).count()
    };
    assert!(late(&dram.admitted) > 1000, "{}", late(&dram.admitted));
    assert!(late(&dram.declined) > 300, "{}", late(&dram.declined));
    let (written, left_out) = (second_turns(&dram.admitted), second_turns(&dram.declined));
    assert!(left_out > 2 * written, "{written} written, {left_out} not");
}

#[test]
fn keep_has_no_opinion_of_what_is_not_known() {
    let mut dram = Dram::new(false);
    load(&mut dram);
    let unknown = Access::plain(KeyHash(u64::MAX));
    assert_eq!(dram.policy.keep(None, &unknown), None);
    let known = *dram.declined.last().unwrap();
    assert_eq!(dram.policy.keep(None, &Access::plain(known)), Some(false));
    let (id, block) = dram.resident.iter().next().unwrap();
    let (id, block) = (*id, *block);
    assert!(dram.policy.keep(Some(block), &Access::plain(id)).is_some());
}

#[test]
fn without_a_tier_below_the_policy_has_no_opinion() {
    let config = PolicyConfig {
        below_blocks: 0,
        shards: 1,
        ..CONFIG
    };
    for name in policy::POLICY_NAMES {
        let mut policy = policy::by_name(name, config).unwrap();
        let access = Access::plain(KeyHash(1));
        assert_eq!(policy.admit_below(&access), Admission::Admit, "{name}");
        assert_eq!(policy.keep(None, &access), None, "{name}");
    }
}
