//! Plays a workload to the policy of one shard, as the engine would.
//!
//! Each request is announced first: its accesses (`on_request`), or where there are several shards
//! the ids of its whole chain and the accesses that the shard owns (`on_chain`). Its accesses follow one by one: a resident block is a hit, any other is offered to
//! `admit` and, when it may come in, taken in after victims have made room. A block for which no
//! victim is found stays out.

use terrace_engine::policy::{Admission, Policy, RequestChain};
use terrace_types::{Access, BlockIx, BlockKind, Hint, KeyHash, RequestContext};

use crate::workload::{Request, Workload};

/// Which part of the blocks a policy looks after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The shard's number.
    pub index: u32,
    /// Count of shards.
    pub count: u32,
}

impl Shard {
    /// All blocks.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Whether the shard owns the key, by the rule of the engine.
    #[must_use]
    pub const fn owns(self, key: KeyHash) -> bool {
        key.shard(self.count) == self.index
    }
}

/// What happened beside hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveCounts {
    /// Blocks that were given up.
    pub evictions: u64,
    /// Misses that the policy did not admit.
    pub declined: u64,
    /// Misses that were admitted and for which there was no victim.
    pub without_room: u64,
}

impl std::ops::AddAssign for DriveCounts {
    fn add_assign(&mut self, other: Self) {
        self.evictions += other.evictions;
        self.declined += other.declined;
        self.without_room += other.without_room;
    }
}

/// Not resident.
const NOWHERE: u32 = u32::MAX;

/// Plays `workload` to `policy`, which holds `capacity` blocks and looks after `shard`.
///
/// `hits` has a place for each access of the workload; those of the shard that hit are set, and
/// no place is cleared.
///
/// # Panics
/// When `hits` is shorter than the workload, or the policy breaks its contract.
pub fn drive<P: Policy + ?Sized>(
    policy: &mut P,
    capacity: u32,
    workload: &Workload,
    shard: Shard,
    hits: &mut [bool],
) -> DriveCounts {
    let mut room = Room::new(capacity, workload.unique_blocks());
    let mut chain = Vec::new();
    let mut places = Vec::new();
    let mut ids = Vec::new();
    for request in workload.requests() {
        announce(workload, &request, shard, &mut chain, &mut places);
        if shard != Shard::WHOLE && request.is_chain {
            ids.clear();
            let keys = workload.keys();
            ids.extend(request.blocks.iter().map(|number| keys[*number as usize]));
            policy.on_chain(&whole(&request, &ids), &chain);
        } else if !chain.is_empty() {
            policy.on_request(&chain);
        }
        for (access, &(at, number)) in chain.iter().zip(&places) {
            hits[at] |= room.access(policy, number, access);
        }
    }
    debug_assert_eq!(policy.len(), capacity as usize - room.free.len());
    room.counts
}

/// A request as shards hear of it that own some of its blocks, or none.
const fn whole<'a>(request: &Request<'_>, ids: &'a [KeyHash]) -> RequestChain<'a> {
    RequestChain {
        ids,
        ends_in_tail: true,
        context: context(request),
    }
}

const fn context(request: &Request<'_>) -> RequestContext {
    RequestContext {
        clock_ms: request.clock_ms,
        tenant: 0,
        priority: 0,
    }
}

/// Fills `chain` with the accesses of `request` that `shard` owns, and `places` with where each
/// stands in the workload and the number of its block.
pub(crate) fn announce(
    workload: &Workload,
    request: &Request<'_>,
    shard: Shard,
    chain: &mut Vec<Access>,
    places: &mut Vec<(usize, u32)>,
) {
    chain.clear();
    places.clear();
    let context = context(request);
    let last = request.blocks.len().saturating_sub(1);
    let mut parent = None;
    for (depth, &number) in request.blocks.iter().enumerate() {
        let id = workload.keys()[number as usize];
        if shard.owns(id) {
            let kind = if depth == last {
                BlockKind::Tail
            } else {
                BlockKind::Full
            };
            let hint = Hint {
                parent,
                depth: depth as u32,
                kind,
            };
            chain.push(Access {
                id,
                len: workload.block_len(),
                hint: if request.is_chain {
                    hint
                } else {
                    Hint::default()
                },
                context,
            });
            places.push((request.begin + depth, number));
        }
        parent = Some(id);
    }
}

/// The blocks that are resident.
struct Room {
    /// Where each block of the workload is, or [`NOWHERE`].
    place_of: Vec<u32>,
    /// The block in each place.
    number_in: Vec<u32>,
    free: Vec<u32>,
    counts: DriveCounts,
}

impl Room {
    fn new(capacity: u32, unique_blocks: usize) -> Self {
        Self {
            place_of: vec![NOWHERE; unique_blocks],
            number_in: vec![0; capacity as usize],
            free: (0..capacity).rev().collect(),
            counts: DriveCounts::default(),
        }
    }

    /// Whether the block is a hit; one that is not comes in if it may.
    #[inline]
    fn access<P: Policy + ?Sized>(&mut self, policy: &mut P, number: u32, access: &Access) -> bool {
        let place = self.place_of[number as usize];
        if place != NOWHERE {
            policy.on_hit(BlockIx(place), access);
            return true;
        }
        if policy.admit(access) == Admission::Decline {
            self.counts.declined += 1;
            return false;
        }
        while self.free.is_empty() {
            let Some(victim) = policy.victim(&mut |_| true) else {
                self.counts.without_room += 1;
                return false;
            };
            self.evict(victim);
            while let Some(pending) = policy.take_pending() {
                self.evict(pending);
            }
        }
        if let Some(place) = self.free.pop() {
            policy.on_insert(BlockIx(place), access);
            self.place_of[number as usize] = place;
            self.number_in[place as usize] = number;
        }
        false
    }

    fn evict(&mut self, block: BlockIx) {
        let number = self.number_in[block.0 as usize];
        let place = std::mem::replace(&mut self.place_of[number as usize], NOWHERE);
        assert_eq!(place, block.0, "the policy gave up what is not resident");
        self.free.push(place);
        self.counts.evictions += 1;
    }
}
