//! Decoders of what two ends of the transport say to each other, for [`crate::fuzzing`].

use super::keys::RegionKey;
use super::questions::{NicAddress, Question, pairs};
use crate::transfer::limits::RAIL_COUNT_MAX;

/// A question, a list of ports, or the key of a region.
#[must_use]
pub fn transfer_rdma(bytes: &[u8]) -> bool {
    is_question(bytes) | is_list(bytes) | is_key(bytes)
}

fn is_question(bytes: &[u8]) -> bool {
    let question = Question::decode(bytes);
    if let Some(question) = question {
        assert_eq!(Question::decode(&question.encode()), Some(question));
    }
    question.is_some()
}

fn is_list(bytes: &[u8]) -> bool {
    let Some(nics) = NicAddress::decode_list(bytes) else {
        return false;
    };
    assert_eq!(NicAddress::encode_list(&nics), bytes);
    let (ours, theirs) = nics.split_at(nics.len() / 2);
    let pairs = pairs(ours, theirs);
    assert!(pairs.len() <= RAIL_COUNT_MAX);
    let is_there = |(i, j): &(usize, usize)| *i < ours.len() && *j < theirs.len();
    assert!(pairs.iter().all(is_there));
    true
}

fn is_key(bytes: &[u8]) -> bool {
    let Some(key) = RegionKey::decode(bytes) else {
        return false;
    };
    // Places as they may come from a peer's list of regions: near the ends of everything.
    for nic in [0, 1, usize::MAX] {
        for offset in [0, 1, u64::from(u32::MAX), u64::MAX / 2, u64::MAX] {
            if let Some((remote, left)) = key.remote(nic, offset) {
                assert!(remote.address >= offset && left > 0);
            }
        }
    }
    true
}
