//! The format as a whole: what is written is read back, and bytes that are wrong are refused.
//!
//! Method: every bit of one structure of each kind flipped, every length cut to; fields set to
//! what they cannot be under a checksum that is right; round trips and changes at random.

mod fields;
mod properties;

use proptest::collection::vec;
use proptest::prelude::*;
use terrace_types::{BlockKind, Checksum, Hint, KeyHash};

use super::bytes::{put, seal};
use super::*;

const IDENTITY: SegmentIdentity = SegmentIdentity {
    sequence: Sequence::new(3, 77),
    salt: 0x0123_4567_89ab_cdef,
};

/// Units of a segment of 8 MiB.
const SEGMENT_UNITS: u32 = 2048;

/// Where the tests' frames lie.
const PLACE: u32 = 9;

/// An entry that owns what it names.
#[derive(Clone, Debug)]
struct OwnEntry {
    kind: EntryKind,
    namespace: String,
    key: Vec<u8>,
    numbers: (u64, u64, u32),
    units: u32,
    hint: Hint,
}

impl OwnEntry {
    /// The entry with its payload at `place`.
    fn at(&self, place: u32) -> EntryRef<'_> {
        let has_payload = matches!(self.kind, EntryKind::Block | EntryKind::Checkpoint);
        let len = if has_payload { self.len() } else { 0 };
        EntryRef {
            kind: self.kind,
            namespace: &self.namespace,
            key: match self.kind {
                EntryKind::NamespaceTombstone => &[3, 0, 0, 0, 4, 0, 0, 0],
                _ => &self.key,
            },
            sequence: Sequence(self.numbers.0),
            checksum: Checksum(self.numbers.1),
            len,
            place: if len > 0 { place } else { 0 },
            hint: self.hint,
        }
    }

    fn len(&self) -> u32 {
        (self.units * 4096).saturating_sub(self.numbers.2 % 4096)
    }
}

fn hints() -> impl Strategy<Value = Hint> {
    let kinds = [BlockKind::Unknown, BlockKind::Full, BlockKind::Tail];
    let parent = proptest::option::of(any::<u64>().prop_map(KeyHash));
    (
        parent,
        any::<u32>(),
        proptest::sample::select(kinds.to_vec()),
    )
        .prop_map(|(parent, depth, kind)| Hint {
            parent,
            depth,
            kind,
        })
}

fn entries() -> impl Strategy<Value = Vec<OwnEntry>> {
    let kinds = [
        EntryKind::Block,
        EntryKind::Tombstone,
        EntryKind::NamespaceTombstone,
        EntryKind::Checkpoint,
    ];
    let entry = (
        proptest::sample::select(kinds.to_vec()),
        proptest::sample::select(&["a", "model/ü", "x"][..]),
        vec(any::<u8>(), 1..=512),
        any::<(u64, u64, u32)>(),
        1_u32..4,
        hints(),
    )
        .prop_map(|(kind, namespace, key, numbers, units, hint)| OwnEntry {
            kind,
            namespace: namespace.to_owned(),
            key,
            numbers,
            units,
            hint,
        });
    vec(entry, 0..40)
}

/// A frame head of `entries`, one behind the other, and the frame's length.
fn frame(entries: &[OwnEntry], number: u32) -> (Vec<u8>, u32) {
    let len = |entry: &OwnEntry| entry_len(&entry.key) + name_len(&entry.namespace);
    let head_len = FrameBuilder::head_len_for(entries.iter().map(len).sum());
    let mut builder = FrameBuilder::new(head_len, &IDENTITY, PLACE, number);
    let mut end = PLACE + units(head_len);
    for entry in entries {
        assert!(builder.fits(&entry.namespace, &entry.key));
        builder.push(&entry.at(end));
        end += units(entry.at(end).len);
    }
    let mut bytes = vec![0xee; head_len as usize];
    builder.finish(end - PLACE, &mut bytes);
    (bytes, end - PLACE)
}

fn footer(entries: &[OwnEntry], end: u32) -> Vec<u8> {
    let mut builder = FooterBuilder::new();
    for entry in entries {
        let entry = entry.at(2);
        let with = builder.len_with(entry.namespace, entry.key);
        builder.push(&entry);
        assert_eq!(builder.len_bytes(), with);
    }
    let mut bytes = vec![0xee; builder.len_bytes() as usize];
    builder.finish(end, &IDENTITY, &mut bytes);
    bytes
}

fn some_entries() -> Vec<OwnEntry> {
    let entry = |at: u8| OwnEntry {
        kind: EntryKind::Block,
        namespace: "model".to_owned(),
        key: vec![at; 32],
        numbers: (1000 - u64::from(at), 7, 5),
        units: 2,
        hint: Hint::default(),
    };
    (0..9).map(entry).collect()
}

fn superblock() -> Superblock {
    let device = |at: u8, state| SetDevice {
        id: DeviceId([at; 16]),
        len: 1 << 30,
        state,
        last_set_epoch: 4,
    };
    Superblock {
        write_count: 12,
        device_id: DeviceId([2; 16]),
        set_id: DeviceId([8; 16]),
        node_id: DeviceId([9; 16]),
        set_epoch: 4,
        open_epoch: 6,
        closed_cleanly: true,
        shards: 4,
        place: 1,
        device_len: 1 << 30,
        segment_len: 8 << 20,
        segment_count: 127,
        sector: 512,
        devices: vec![
            device(1, DeviceState::Absent),
            device(2, DeviceState::InUse),
            device(3, DeviceState::Draining),
        ],
    }
}

fn segment_head() -> SegmentHead {
    SegmentHead {
        device: DeviceId([2; 16]),
        number: 5,
        shard: 3,
        shards: 4,
        sequence: IDENTITY.sequence,
        salt: IDENTITY.salt,
        len: 8 << 20,
    }
}

fn superblock_bytes() -> Vec<u8> {
    let mut bytes = vec![0xee; 4096];
    superblock().encode(&mut bytes);
    bytes
}

fn segment_bytes() -> Vec<u8> {
    let mut bytes = vec![0xee; 4096];
    segment_head().encode(&mut bytes);
    bytes
}

/// Decodes `bytes` as each structure and walks what is accepted; the count of those accepted.
fn accepted(bytes: &[u8]) -> usize {
    let frame = FrameView::decode(bytes, &IDENTITY, PLACE, SEGMENT_UNITS);
    let footer = FooterView::decode(bytes, &IDENTITY, SEGMENT_UNITS);
    let tail = footer_len_from_tail(bytes, &IDENTITY, SEGMENT_UNITS);
    if let Ok(frame) = &frame {
        let end = PLACE + frame.frame_units;
        assert!(end <= SEGMENT_UNITS);
        assert_eq!(frame.entries().count(), frame.entry_count() as usize);
        for entry in frame.entries().filter(|entry| entry.place != 0) {
            assert!(entry.place >= PLACE + units(frame.head_len));
            assert!(u64::from(entry.place) + u64::from(units(entry.len)) <= u64::from(end));
        }
    }
    if let Ok(footer) = &footer {
        assert!(tail.is_ok());
        assert_eq!(footer.entries().count(), footer.entry_count() as usize);
        for entry in footer.entries().filter(|entry| entry.place != 0) {
            let end = u64::from(entry.place) + u64::from(units(entry.len));
            assert!(end <= u64::from(footer.end_units));
        }
    }
    let superblock = Superblock::decode(bytes);
    if let Ok(superblock) = &superblock {
        superblock.encode(&mut vec![0; 4096]);
    }
    let results = [
        superblock.is_ok(),
        SegmentHead::decode(bytes).is_ok(),
        frame.is_ok(),
        footer.is_ok(),
    ];
    results.iter().filter(|accepted| **accepted).count()
}

/// One structure of each kind.
fn structures() -> [Vec<u8>; 4] {
    let (frame, _) = frame(&some_entries(), 0);
    let footer = footer(&some_entries(), 100);
    [superblock_bytes(), segment_bytes(), frame, footer]
}

#[test]
fn bit_flipped_anywhere_is_refused() {
    for mut bytes in structures() {
        assert_eq!((bytes.len(), accepted(&bytes)), (4096, 1));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                assert_eq!(accepted(&bytes), 0, "bit {bit} of byte {at}");
                bytes[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn structure_cut_anywhere_is_refused() {
    for bytes in structures() {
        for len in 0..bytes.len() {
            assert_eq!(accepted(&bytes[..len]), 0, "{len} bytes");
        }
    }
}

#[test]
fn error_tells_absent_later_and_damaged_apart() {
    for (mut bytes, at) in [(superblock_bytes(), 8), (segment_bytes(), 8)] {
        let decode = |bytes: &[u8]| match bytes[..8] == *b"TERRACES" {
            true => Superblock::decode(bytes).map(drop),
            false => SegmentHead::decode(bytes).map(drop),
        };
        bytes[at] = 2;
        let rot = decode(&bytes).unwrap_err();
        assert!(matches!(rot, FormatError::Checksum { .. }), "{rot}");
        seal(&mut bytes);
        let later = decode(&bytes).unwrap_err();
        assert!(matches!(later, FormatError::Version { found: 2, .. }));
        let text = later.to_string();
        assert!(text.contains("version 2; this build reads 1"), "{text}");
        bytes[0] = 0;
        assert!(decode(&bytes).unwrap_err().is_absent());
    }
}

#[test]
fn reserved_bytes_are_zero_when_written_and_ignored_when_read() {
    let cases: [(Vec<u8>, std::ops::Range<usize>); 4] = [
        (superblock_bytes(), 124..256),
        (segment_bytes(), 64..4088),
        (frame(&some_entries(), 0).0, 52..64),
        (footer(&some_entries(), 100), 52..64),
    ];
    for (mut bytes, reserved) in cases {
        assert!(bytes[reserved.clone()].iter().all(|byte| *byte == 0));
        bytes[reserved].fill(0xff);
        seal(&mut bytes);
        assert_eq!(accepted(&bytes), 1);
    }
}

#[test]
fn frame_head_is_full_when_the_next_entry_passes_its_capacity() {
    let mut builder = FrameBuilder::new(4096, &IDENTITY, PLACE, 0);
    let mut entry = some_entries().remove(0);
    entry.key = vec![1; 464];
    // 4024 bytes: 7 entries of 512, and 440 more, 17 of them for a name: 375 of a key.
    for _ in 0..7 {
        builder.push(
            &OwnEntry {
                namespace: "n".repeat(16),
                ..entry.clone()
            }
            .at(PLACE + 1),
        );
    }
    assert_eq!(FrameBuilder::capacity(4096), 4024);
    assert!(builder.fits(&"n".repeat(16), &[1; 375]));
    assert!(!builder.fits(&"n".repeat(16), &[1; 376]));
    assert!(builder.fits(&"m".repeat(16), &[1; 358]));
    assert!(!builder.fits(&"m".repeat(16), &[1; 359]));
    assert_eq!(FrameBuilder::head_len_for(4024), 4096);
    assert_eq!(FrameBuilder::head_len_for(4025), 8192);
}

#[test]
fn geometry_follows_length_shards_and_largest_block() {
    const MIB: u64 = 1 << 20;
    let cases: [(u64, u32, u64, u64); 6] = [
        (1 << 30, 1, 1 << 20, 15 * MIB),
        (1 << 30, 8, 1 << 20, 8 * MIB),
        (1 << 40, 8, 1 << 20, 256 * MIB),
        (1 << 40, 8, 128 << 20, 512 * MIB),
        (0, 0, 4 << 20, 16 * MIB),
        (u64::MAX, 1024, 0, 256 * MIB),
    ];
    for (len, shards, block, expected) in cases {
        assert_eq!(segment_len_for(len, shards, block), expected, "{len}");
    }
    assert_eq!(segment_count((1 << 20) + (24 << 20), 8 << 20), 3);
    assert_eq!(segment_count((1 << 20) + (24 << 20) - 1, 8 << 20), 2);
    assert_eq!(segment_count(100, 8 << 20), 0);
    assert_eq!(segment_count(1 << 30, 0), 0);
}
