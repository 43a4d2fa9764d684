//! The optima: what a policy that knows the future would hit. For simulation only, as a bound
//! beside the policies; it is no [`super::Policy`].
//!
//! After Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer" (1966), and
//! Mattson, Gecsei, Slutz and Traiger, "Evaluation Techniques for Storage Hierarchies" (1970):
//! the block whose next use is farthest away goes. Blocks that are never used again are all
//! equally far; which of them goes changes no count of hits.

use std::collections::{BTreeSet, BinaryHeap};

/// The use after the last one.
const NEVER: usize = usize::MAX;

/// Which optimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptBound {
    /// Every block that is missed is taken in, as the policies do.
    MustInsert,
    /// A block may be left out: the true upper bound.
    MayBypass,
}

impl OptBound {
    /// The bound of this name, in any case: `OPT` or `OPTbypass`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name.to_ascii_uppercase().as_str() {
            "OPT" => Some(Self::MustInsert),
            "OPTBYPASS" => Some(Self::MayBypass),
            _ => None,
        }
    }
}

/// Which of `accesses` hit with room for `capacity` blocks. Ids are small numbers: memory is
/// taken for the largest of them.
#[must_use]
pub fn opt_hits(accesses: &[u32], capacity: usize, bound: OptBound) -> Vec<bool> {
    let ids = accesses.iter().max().map_or(0, |&id| id as usize + 1);
    let mut is_resident = vec![false; ids];
    let mut count = 0;
    // Resident blocks by their next use, and blocks that were used since or are gone: those
    // have a next use that has passed, and so never come out before one that has not.
    let mut farthest: BinaryHeap<(usize, u32)> = BinaryHeap::new();
    let mut hits = vec![false; accesses.len()];
    for (at, next) in next_uses(accesses, ids).into_iter().enumerate() {
        let id = accesses[at] as usize;
        hits[at] = is_resident[id];
        if !is_resident[id] {
            if count == capacity {
                let far = farthest.peek().copied();
                let Some((far, victim)) = far.filter(|_| capacity > 0) else {
                    continue;
                };
                if bound == OptBound::MayBypass && next >= far {
                    continue;
                }
                assert!(far > at, "a resident block is used later");
                farthest.pop();
                is_resident[victim as usize] = false;
                count -= 1;
            }
            is_resident[id] = true;
            count += 1;
        }
        farthest.push((next, accesses[at]));
    }
    hits
}

/// Which of `accesses` hit with room for `capacity` blocks when whole requests are looked at:
/// after each, the blocks used by the nearest request are kept, of one request the shallowest,
/// and such as are never used again are not. Request `n` goes from `begins[n]` to `begins[n + 1]`.
///
/// This bounds the policies that may leave blocks out. The block before another in its chain is
/// used whenever that is, so what is kept of a chain is whole from its first block on.
#[must_use]
pub fn opt_hits_of_requests(accesses: &[u32], begins: &[usize], capacity: usize) -> Vec<bool> {
    let ids = accesses.iter().max().map_or(0, |&id| id as usize + 1);
    let nexts = next_uses(accesses, ids);
    // The request of the next use and the depth there, of each resident block.
    let mut kept_as: Vec<Option<(usize, usize)>> = vec![None; ids];
    let mut kept = BTreeSet::new();
    let mut hits = vec![false; accesses.len()];
    for bounds in begins.windows(2) {
        for at in bounds[0]..bounds[1] {
            let id = accesses[at];
            let now = kept_as[id as usize].take();
            hits[at] = now.is_some_and(|(next, depth)| kept.remove(&(next, depth, id)));
            if nexts[at] == NEVER {
                continue;
            }
            let request = begins.partition_point(|&begin| begin <= nexts[at]);
            let next = (request, at - bounds[0]);
            kept_as[id as usize] = Some(next);
            kept.insert((next.0, next.1, id));
        }
        while kept.len() > capacity {
            let farthest = kept.pop_last();
            farthest
                .into_iter()
                .for_each(|(.., id)| kept_as[id as usize] = None);
        }
    }
    hits
}

/// For each access where its id is used next.
fn next_uses(accesses: &[u32], ids: usize) -> Vec<usize> {
    let mut next_of = vec![NEVER; ids];
    let mut nexts: Vec<usize> = accesses
        .iter()
        .enumerate()
        .rev()
        .map(|(at, &id)| std::mem::replace(&mut next_of[id as usize], at))
        .collect();
    nexts.reverse();
    nexts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(accesses: &[u32], capacity: usize, bound: OptBound) -> usize {
        let hits = opt_hits(accesses, capacity, bound);
        hits.into_iter().filter(|&hit| hit).count()
    }

    /// The most hits that any choice of victims gives, by trying all.
    fn best(accesses: &[u32], resident: &[u32], capacity: usize, may_bypass: bool) -> usize {
        let Some((&id, rest)) = accesses.split_first() else {
            return 0;
        };
        if resident.contains(&id) {
            return 1 + best(rest, resident, capacity, may_bypass);
        }
        let with = |without: Option<u32>| {
            let kept = resident.iter().copied().filter(|&id| Some(id) != without);
            kept.chain([id]).collect::<Vec<_>>()
        };
        let mut choices: Vec<Vec<u32>> = if resident.len() < capacity {
            vec![with(None)]
        } else {
            resident.iter().map(|&victim| with(Some(victim))).collect()
        };
        if may_bypass {
            choices.push(resident.to_vec());
        }
        let hits = choices
            .iter()
            .map(|resident| best(rest, resident, capacity, may_bypass));
        hits.max().unwrap_or(0)
    }

    #[test]
    fn opt_equals_the_best_of_all_choices() {
        for seed in 0..60_u32 {
            let id = |at: u32| (at * 7 + seed).wrapping_mul(0x9E37_79B1) >> 13;
            let accesses: Vec<u32> = (0..11).map(|at| id(at) % 5).collect();
            for capacity in 1..4 {
                let must = count(&accesses, capacity, OptBound::MustInsert);
                assert_eq!(must, best(&accesses, &[], capacity, false), "{accesses:?}");
                let may = count(&accesses, capacity, OptBound::MayBypass);
                assert_eq!(may, best(&accesses, &[], capacity, true), "{accesses:?}");
            }
        }
    }

    #[test]
    fn opt_of_requests_keeps_what_the_nearest_request_uses_from_its_first_block_on() {
        let requests: [&[u32]; 5] = [&[0, 1, 2], &[3, 4, 5], &[0, 1, 6], &[3, 4, 5], &[0, 1, 2]];
        let accesses = requests.concat();
        let begins = [0, 3, 6, 9, 12, 15];
        let hits = |capacity| {
            let hits = opt_hits_of_requests(&accesses, &begins, capacity);
            Vec::from_iter((0..hits.len()).filter(|&at| hits[at]))
        };
        assert_eq!(hits(0), []);
        assert_eq!(hits(1), [6, 12]);
        assert_eq!(hits(3), [6, 7, 9, 12, 13]);
        assert_eq!(hits(100), [6, 7, 9, 10, 11, 12, 13, 14]);
    }

    #[test]
    fn opt_without_room_hits_nothing() {
        assert_eq!(count(&[1, 1, 1], 0, OptBound::MustInsert), 0);
        assert_eq!(count(&[1, 1, 1], 0, OptBound::MayBypass), 0);
        assert_eq!(count(&[], 3, OptBound::MustInsert), 0);
    }
}
