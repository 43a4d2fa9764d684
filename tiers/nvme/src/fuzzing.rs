//! What the fuzz targets of this crate call: every decoder of bytes that come from a device.
//!
//! Aim: no bytes make a decoder panic, and what it accepts keeps the format's limits and is read
//! back the same after it was written again. Method: each function takes the bytes as they are,
//! and once more with what no mutation finds by itself put right: lengths and checksums.
//!
//! Each tells whether it accepted anything; a test replays `fuzz/corpus` through the same functions.

use std::ops::Range;

use terrace_types::limits::{BLOCK_LEN_MAX, KEY_LEN_MAX, NAMESPACE_LEN_MAX, SHARDS_MAX};
use xxhash_rust::xxh3::xxh3_64;

use crate::file::Content;
use crate::format::{
    DEVICES_MAX, EntryKind, EntryRef, FRAME_HEAD_LEN_MAX, FooterBuilder, FooterView, FormatError,
    FrameBuilder, FrameView, Limit, OPEN_EPOCH_MAX, SEGMENT_LEN_MIN, SEGMENTS_START, SegmentHead,
    SegmentIdentity, Sequence, Superblock, footer_len_from_tail, units,
};

const UNIT_LEN: usize = crate::UNIT as usize;

/// Units of the segment that frames and footers are read from: 8 MiB, as in the fixtures.
const SEGMENT_UNITS: u32 = 2048;

/// Shortest entry with its key.
const ENTRY_LEN_MIN: usize = 49;

/// Longest input that is looked at whole: the longest head of a frame.
const LEN_MAX: usize = FRAME_HEAD_LEN_MAX as usize;

/// The bytes, cut to `max` and filled up with zeros to whole units.
fn whole_units(bytes: &[u8], max: usize) -> Vec<u8> {
    let mut whole = bytes[..bytes.len().min(max)].to_vec();
    whole.resize(whole.len().max(1).next_multiple_of(UNIT_LEN), 0);
    whole
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

/// Puts the checksum right that ends every structure.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 8;
    let checksum = xxh3_64(&bytes[..at]);
    put(bytes, at, &checksum.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
    u32::from_le_bytes(part.unwrap_or_default())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
    u64::from_le_bytes(part.unwrap_or_default())
}

/// The identity that a frame head or footer says it has.
fn identity_in(bytes: &[u8]) -> SegmentIdentity {
    SegmentIdentity {
        sequence: Sequence(long(bytes, 16)),
        salt: long(bytes, 24),
    }
}

/// A copy of the superblock.
#[must_use]
pub fn superblock(bytes: &[u8]) -> bool {
    let mut unit = whole_units(bytes, UNIT_LEN);
    seal(&mut unit);
    is_superblock(bytes) | is_superblock(&unit)
}

fn is_superblock(bytes: &[u8]) -> bool {
    let Ok(found) = Superblock::decode(bytes) else {
        return false;
    };
    assert!((1..=DEVICES_MAX).contains(&found.devices.len()));
    assert!(found.open_epoch <= OPEN_EPOCH_MAX);
    assert!((1..=SHARDS_MAX as u32).contains(&found.shards));
    let segments = u64::from(found.segment_count).checked_mul(found.segment_len);
    let end = segments.and_then(|len| len.checked_add(SEGMENTS_START));
    assert!(found.segment_count == 0 || end.is_some_and(|end| end <= found.device_len));
    let mut again = vec![0xee; UNIT_LEN];
    found.encode(&mut again);
    assert_eq!(Superblock::decode(&again), Ok(found));
    true
}

/// The head of a segment.
#[must_use]
pub fn segment_head(bytes: &[u8]) -> bool {
    let mut unit = whole_units(bytes, UNIT_LEN);
    seal(&mut unit);
    is_segment_head(bytes) | is_segment_head(&unit)
}

fn is_segment_head(bytes: &[u8]) -> bool {
    let Ok(found) = SegmentHead::decode(bytes) else {
        return false;
    };
    assert!(found.shard < found.shards && found.shards <= SHARDS_MAX as u32);
    assert!(found.len >= SEGMENT_LEN_MIN && found.len.is_multiple_of(1 << 20));
    let mut again = vec![0xee; UNIT_LEN];
    found.encode(&mut again);
    assert_eq!(SegmentHead::decode(&again), Ok(found));
    true
}

/// The head of a frame, in the segment and at the place that it names.
#[must_use]
pub fn frame_head(bytes: &[u8]) -> bool {
    let mut whole = whole_units(bytes, LEN_MAX);
    let len = FrameView::head_len_hint(&whole).map_or(whole.len(), |len| len as usize);
    let len = len.min(whole.len());
    seal(&mut whole[..len]);
    is_frame_head(bytes) | is_frame_head(&whole)
}

fn is_frame_head(bytes: &[u8]) -> bool {
    let (identity, place) = (identity_in(bytes), word(bytes, 32));
    let read = |bytes, identity: &SegmentIdentity, place| {
        FrameView::decode(bytes, identity, place, SEGMENT_UNITS).is_ok()
    };
    let Ok(view) = FrameView::decode(bytes, &identity, place, SEGMENT_UNITS) else {
        return false;
    };
    let other = SegmentIdentity {
        salt: !identity.salt,
        ..identity
    };
    assert!(!read(bytes, &other, place), "of another life");
    assert!(!read(bytes, &identity, place + 1), "of another place");
    let (start, end) = (place + units(view.head_len), place + view.frame_units);
    assert!(view.head_len as usize <= bytes.len() && end <= SEGMENT_UNITS);
    let entries: Vec<EntryRef<'_>> = view.entries().collect();
    check_entries(&entries, view.entry_count(), &(start..end), bytes.len());

    let mut builder = FrameBuilder::new(view.head_len, &identity, place, view.number);
    entries.iter().for_each(|entry| builder.push(entry));
    let mut again = vec![0xee; view.head_len as usize];
    builder.finish(view.frame_units, &mut again);
    let again = FrameView::decode(&again, &identity, place, SEGMENT_UNITS).expect("just written");
    assert!(again.entries().eq(entries));
    assert_eq!(
        (again.head_len, again.frame_units, again.number),
        (view.head_len, view.frame_units, view.number)
    );
    true
}

/// The footer of a segment, in the segment that it names.
#[must_use]
pub fn footer(bytes: &[u8]) -> bool {
    let mut whole = whole_units(bytes, LEN_MAX);
    let len = (whole.len() as u32).to_le_bytes();
    let sequence = long(&whole, 16).to_le_bytes();
    put(&mut whole, 8, &len);
    let tail = whole.len() - 32;
    put(&mut whole, tail, b"TERRTAIL");
    put(&mut whole, tail + 8, &len);
    put(&mut whole, tail + 16, &sequence);
    seal(&mut whole);
    let identity = identity_in(&whole);
    let lowest = match FooterView::decode(&whole, &identity, SEGMENT_UNITS) {
        Err(FormatError::Field {
            field: "lowest sequence",
            limit: Limit::Exactly(lowest),
            ..
        }) => Some(lowest),
        _ => None,
    };
    if let Some(lowest) = lowest {
        put(&mut whole, 32, &lowest.to_le_bytes());
        seal(&mut whole);
        assert!(is_footer(&whole), "nothing else was wrong with it");
    }
    is_footer(bytes) | is_footer(&whole)
}

fn is_footer(bytes: &[u8]) -> bool {
    let identity = identity_in(bytes);
    let last_unit = &bytes[bytes.len().saturating_sub(UNIT_LEN)..];
    let tail_len = footer_len_from_tail(last_unit, &identity, SEGMENT_UNITS);
    let Ok(view) = FooterView::decode(bytes, &identity, SEGMENT_UNITS) else {
        return false;
    };
    assert_eq!(tail_len, Ok(bytes.len() as u32));
    let other = SegmentIdentity {
        salt: !identity.salt,
        ..identity
    };
    assert!(FooterView::decode(bytes, &other, SEGMENT_UNITS).is_err());
    assert!(view.end_units + units(bytes.len() as u32) <= SEGMENT_UNITS);
    let entries: Vec<EntryRef<'_>> = view.entries().collect();
    let payloads = 1..view.end_units;
    check_entries(&entries, view.entry_count(), &payloads, bytes.len());
    assert!(entries.iter().all(|entry| entry.sequence >= view.lowest));

    let mut builder = FooterBuilder::new();
    entries.iter().for_each(|entry| builder.push(entry));
    let mut again = vec![0xee; builder.len_bytes() as usize];
    assert!(again.len() <= bytes.len(), "names that no entry has go");
    builder.finish(view.end_units, &identity, &mut again);
    let again = FooterView::decode(&again, &identity, SEGMENT_UNITS).expect("just written");
    assert!(again.entries().eq(entries));
    assert_eq!(
        (again.end_units, again.lowest),
        (view.end_units, view.lowest)
    );
    true
}

/// Entries are as many as were told, no more than their bytes allow, and keep their limits.
fn check_entries(entries: &[EntryRef<'_>], count: u32, payloads: &Range<u32>, len: usize) {
    assert_eq!(entries.len(), count as usize);
    assert!(entries.len() <= len / ENTRY_LEN_MIN);
    for entry in entries {
        assert!((1..=NAMESPACE_LEN_MAX).contains(&entry.namespace.len()));
        assert!(!entry.namespace.chars().any(char::is_control));
        assert!((1..=KEY_LEN_MAX).contains(&entry.key.len()));
        if matches!(entry.kind, EntryKind::Block | EntryKind::Checkpoint) {
            assert!((1..=BLOCK_LEN_MAX).contains(&u64::from(entry.len)));
            let end = u64::from(entry.place) + u64::from(units(entry.len));
            assert!(entry.place >= payloads.start && end <= u64::from(payloads.end));
        } else {
            assert_eq!((entry.len, entry.place), (0, 0));
        }
    }
}

/// The look at what a device holds. The bytes are changes of an empty device: three for the place,
/// one for the count, then as many to put there; the first tells how long a head it has.
#[must_use]
pub fn device_content(bytes: &[u8]) -> bool {
    let (first, mut rest) = bytes.split_first().unwrap_or((&0, &[]));
    // Mostly short, for speed; the longest holds the second superblock.
    let units = [4, 8, 12, 16, 20, 24, 28, 132][usize::from(*first) % 8];
    let mut head = vec![0; units * UNIT_LEN];
    let mut tail = vec![0; UNIT_LEN];
    while let [low, middle, high, count, more @ ..] = rest {
        let at = u32::from_le_bytes([*low, *middle, *high, 0]) as usize;
        let (part, more) = more.split_at(usize::from(*count).min(more.len()));
        rest = more;
        // What lies behind the head is in the tail.
        let (memory, at) = match at.checked_sub(head.len()) {
            None => (&mut head, at),
            Some(at) => (&mut tail, at % UNIT_LEN),
        };
        let room = memory.len() - at;
        put(memory, at, &part[..part.len().min(room)]);
    }
    let is_ours = |head: &[u8]| {
        let at = |offset: usize| head.get(offset..).unwrap_or_default();
        at(0).starts_with(b"TERRACES") || at(512 << 10).starts_with(b"TERRACES")
    };
    let found = Content::of(&head, &tail);
    let is_zero = head.iter().chain(&tail).all(|byte| *byte == 0);
    assert_eq!(found == Content::Ours, is_ours(&head));
    assert_eq!(found == Content::Empty, is_zero, "{found:?}");
    // Ours stays ours, whatever else somebody left there.
    put(&mut head, 0, b"TERRACES");
    assert_eq!(Content::of(&head, &tail), Content::Ours);
    matches!(found, Content::Foreign { what } if what != "bytes that are not Terrace's")
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora_replayed_are_accepted_and_refused() {
        replay::all(&[
            ("superblock", superblock),
            ("segment_head", segment_head),
            ("frame_head", frame_head),
            ("footer", footer),
            ("device_content", device_content),
        ]);
    }
}
