//! Decoders of the protocol between engines, for [`crate::fuzzing`].

use super::limits::{REGION_COUNT_MAX, REGION_KEY_LEN_MAX, SLICE_LEN_MAX};
use super::wire::{
    ENTRY_LEN, GROUP_COUNT_MAX, GROUP_HEAD_LEN, HELLO_LEN, Hello, MAGIC, MESSAGE_HEAD_LEN,
    MessageHead, VERSION, Welcome, decode_answer, decode_entries, decode_group, decode_regions,
    encode_answer, encode_group, encode_regions, number,
};

/// The first bytes of a connection, either way, and the head of a message on it. They are filled
/// up with zeros, and taken once more with magic and version put right.
#[must_use]
pub fn transfer_hello(bytes: &[u8]) -> bool {
    let mut raw = [0; HELLO_LEN];
    let len = bytes.len().min(HELLO_LEN);
    raw[..len].copy_from_slice(&bytes[..len]);
    let mut sealed = raw;
    sealed[..8].copy_from_slice(&MAGIC);
    sealed[8..10].copy_from_slice(&VERSION.to_le_bytes());
    is_greeting(&raw) | is_greeting(&sealed) | is_message_head(&raw)
}

fn is_greeting(bytes: &[u8; HELLO_LEN]) -> bool {
    let hello = Hello::decode(bytes);
    if let Ok(hello) = hello {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }
    let welcome = Welcome::decode(bytes);
    if let Some(welcome) = welcome {
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
    }
    hello.is_ok() || welcome.is_some()
}

fn is_message_head(bytes: &[u8; HELLO_LEN]) -> bool {
    let mut head = [0; MESSAGE_HEAD_LEN];
    head.copy_from_slice(&bytes[..MESSAGE_HEAD_LEN]);
    let decoded = MessageHead::decode(&head);
    if let Some(decoded) = decoded {
        assert_eq!(MessageHead::decode(&decoded.encode()), Some(decoded));
    }
    decoded.is_some()
}

/// A group of slices on a lane, or an answer to one.
#[must_use]
pub fn transfer_lane(bytes: &[u8]) -> bool {
    is_group(bytes) | is_answer(bytes)
}

fn is_group(bytes: &[u8]) -> bool {
    let Some((head, rest)) = bytes.split_first_chunk::<GROUP_HEAD_LEN>() else {
        return false;
    };
    let Some((operation, sequence, count)) = decode_group(head) else {
        return false;
    };
    assert!((1..=GROUP_COUNT_MAX).contains(&count));
    let Some(entries) = rest.get(..count * ENTRY_LEN).and_then(decode_entries) else {
        return false;
    };
    assert_eq!(entries.len(), count);
    let is_short = |len: u32| len > 0 && u64::from(len) <= SLICE_LEN_MAX;
    assert!(entries.iter().all(|entry| is_short(entry.len)));
    let again = encode_group(operation, sequence, entries.iter().copied());
    let (head, rest) = again.split_at(GROUP_HEAD_LEN);
    let head = head.try_into().expect("just cut to this length");
    assert_eq!(decode_group(head), Some((operation, sequence, count)));
    assert_eq!(decode_entries(rest), Some(entries));
    true
}

fn is_answer(bytes: &[u8]) -> bool {
    let Some(sequence) = bytes.get(..4).map(|bytes| number(bytes, 0, 4) as u32) else {
        return false;
    };
    assert_eq!(decode_answer(bytes, !sequence), None);
    let statuses = decode_answer(bytes, sequence);
    if let Some(statuses) = &statuses {
        let again = encode_answer(sequence, statuses);
        assert_eq!(decode_answer(&again, sequence).as_ref(), Some(statuses));
    }
    statuses.is_some()
}

/// A peer's list of its regions.
#[must_use]
pub fn transfer_regions(bytes: &[u8]) -> bool {
    let Some(regions) = decode_regions(bytes) else {
        return false;
    };
    assert!(regions.len() <= REGION_COUNT_MAX);
    let mut keys = regions.iter().flat_map(|region| &region.keys);
    assert!(keys.all(|(_, key)| key.len() <= REGION_KEY_LEN_MAX));
    assert_eq!(decode_regions(&encode_regions(&regions)), Some(regions));
    true
}
