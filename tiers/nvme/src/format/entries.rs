//! Names and entries on their way into frame heads and footers.
//!
//! **Invariants**
//! - A namespace is named once in a structure; entries refer to it by its place.
//! - Tombstones have no payload and lie nowhere; all else has 1 byte to 128 MiB.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use terrace_types::limits::{BLOCK_LEN_MAX, KEY_LEN_MAX, NAMESPACE_LEN_MAX};
use terrace_types::{Checksum, Hint, KeyHash};

use super::bytes::put;
use super::sequence::Sequence;
use super::units;

/// Bytes of an entry before its key.
pub(super) const ENTRY_FIXED_LEN: usize = 48;

/// Most names of one structure: an entry refers to them by 16 bits.
pub(super) const NAMES_MAX: usize = 1 << 16;

pub(super) const FLAG_PARENT: u16 = 1;

pub(super) mod at {
    pub(in crate::format) const HINT_KIND: usize = 1;
    pub(in crate::format) const NAMESPACE: usize = 2;
    pub(in crate::format) const KEY_LEN: usize = 4;
    pub(in crate::format) const FLAGS: usize = 6;
    pub(in crate::format) const SEQUENCE: usize = 8;
    pub(in crate::format) const CHECKSUM: usize = 16;
    pub(in crate::format) const LEN: usize = 24;
    pub(in crate::format) const PLACE: usize = 28;
    pub(in crate::format) const PARENT: usize = 32;
    pub(in crate::format) const DEPTH: usize = 40;
    pub(in crate::format) const RESERVED: usize = 44;
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// A block.
    Block = 1,
    /// A key was removed.
    Tombstone = 2,
    /// All keys of a namespace were removed.
    NamespaceTombstone = 3,
    /// A payload that the engine keeps for itself.
    Checkpoint = 4,
}

impl EntryKind {
    pub(super) const fn has_payload(self) -> bool {
        matches!(self, Self::Block | Self::Checkpoint)
    }
}

/// An entry, its names borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// What it is.
    pub kind: EntryKind,
    /// The namespace's name: 1 to 255 bytes, none of them a control character.
    pub namespace: &'a str,
    /// 1 to 512 bytes; the [`Origin`] for a tombstone of a namespace.
    pub key: &'a [u8],
    /// Orders it among those of the same key.
    pub sequence: Sequence,
    /// Checksum of the payload.
    pub checksum: Checksum,
    /// Length of the payload in bytes; 0 for tombstones.
    pub len: u32,
    /// Where the payload is, in units from the start of the segment; 0 when there is none.
    pub place: u32,
    /// What the caller told about the block.
    pub hint: Hint,
}

/// Bytes that a name takes up, once per structure.
#[must_use]
pub const fn name_len(namespace: &str) -> usize {
    1 + namespace.len()
}

/// Bytes that an entry takes up, its name not counted.
#[must_use]
pub const fn entry_len(key: &[u8]) -> usize {
    ENTRY_FIXED_LEN + key.len()
}

/// Names and entries on their way into a structure.
#[derive(Default)]
pub(super) struct EntryList {
    places: HashMap<Box<str>, u16>,
    names: Vec<u8>,
    entries: Vec<u8>,
    count: u32,
    /// End of the last payload, in units from the start of the segment.
    payload_end: u32,
    lowest: Option<Sequence>,
}

impl EntryList {
    /// Bytes of all names and entries.
    pub(super) const fn len_bytes(&self) -> usize {
        self.names.len() + self.entries.len()
    }

    /// Bytes of all names and entries after one more; `None` when it can take no more names.
    pub(super) fn len_with(&self, namespace: &str, key: &[u8]) -> Option<usize> {
        let name = if self.places.contains_key(namespace) {
            0
        } else if self.places.len() < NAMES_MAX {
            name_len(namespace)
        } else {
            return None;
        };
        Some(self.len_bytes() + name + entry_len(key))
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn name_count(&self) -> u32 {
        self.places.len() as u32
    }

    pub(super) const fn payload_end(&self) -> u32 {
        self.payload_end
    }

    pub(super) const fn lowest(&self) -> Option<Sequence> {
        self.lowest
    }

    fn place_of(&mut self, namespace: &str) -> u16 {
        if let Some(place) = self.places.get(namespace) {
            return *place;
        }
        assert!(is_name(namespace), "a namespace's name was checked");
        let place = u16::try_from(self.places.len()).expect("the caller asked whether it fits");
        self.places.insert(namespace.into(), place);
        self.names.push(namespace.len() as u8);
        self.names.extend_from_slice(namespace.as_bytes());
        place
    }

    /// Takes an entry in.
    ///
    /// # Panics
    /// When it breaks the format's limits.
    pub(super) fn push(&mut self, entry: &EntryRef<'_>) {
        assert!(key_len_allowed(entry.kind).contains(&entry.key.len()));
        assert_eq!(
            entry.kind.has_payload(),
            entry.len > 0,
            "a tombstone is empty, and nothing else is"
        );
        assert!(u64::from(entry.len) <= BLOCK_LEN_MAX);
        assert!(
            entry.len > 0 || entry.place == 0,
            "what is empty has no place"
        );
        let namespace = self.place_of(entry.namespace);
        let mut fixed = [0; ENTRY_FIXED_LEN];
        let mut set = |at: usize, bytes: &[u8]| put(&mut fixed, at, bytes);
        set(0, &[entry.kind as u8, entry.hint.kind as u8]);
        set(at::NAMESPACE, &namespace.to_le_bytes());
        set(at::KEY_LEN, &(entry.key.len() as u16).to_le_bytes());
        let flags = u16::from(entry.hint.parent.is_some()) * FLAG_PARENT;
        set(at::FLAGS, &flags.to_le_bytes());
        set(at::SEQUENCE, &entry.sequence.0.to_le_bytes());
        set(at::CHECKSUM, &entry.checksum.0.to_le_bytes());
        set(at::LEN, &entry.len.to_le_bytes());
        set(at::PLACE, &entry.place.to_le_bytes());
        let parent = entry.hint.parent.unwrap_or_default().0;
        set(at::PARENT, &parent.to_le_bytes());
        set(at::DEPTH, &entry.hint.depth.to_le_bytes());
        self.entries.extend_from_slice(&fixed);
        self.entries.extend_from_slice(entry.key);
        self.count += 1;
        self.payload_end = self.payload_end.max(entry.place + units(entry.len));
        let lowest = self.lowest.unwrap_or(entry.sequence);
        self.lowest = Some(lowest.min(entry.sequence));
    }

    /// Writes the names, then the entries, to the start of `out`.
    pub(super) fn encode(&self, out: &mut [u8]) {
        put(out, 0, &self.names);
        put(out, self.names.len(), &self.entries);
    }
}

/// The shard that removed a namespace, and the count of shards then: a tombstone of a namespace
/// has it in place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The shard.
    pub shard: u32,
    /// Shards there were.
    pub shards: u32,
}

impl Origin {
    /// Bytes it takes up.
    pub const LEN: usize = 8;

    /// The bytes that stand in place of a key.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, &self.shard.to_le_bytes());
        put(&mut bytes, 4, &self.shards.to_le_bytes());
        bytes
    }

    /// Reads what stands in place of a key; `None` when that is not an origin.
    #[must_use]
    pub fn decode(key: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = key.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        (key.len() == Self::LEN).then_some(())?;
        Some(Self {
            shard: word(0)?,
            shards: word(4)?,
        })
    }

    /// Whether a namespace tombstone of this origin and `sequence` hides the record of a key.
    ///
    /// Two shards of one open draw their sequences apart: of records of its own open a
    /// tombstone hides only those that its shard wrote.
    //= docs/on-disk-format.md#OD-10
    #[must_use]
    pub const fn hides(self, sequence: Sequence, record: Sequence, hash: KeyHash) -> bool {
        if record.open_epoch() != sequence.open_epoch() {
            return record.open_epoch() < sequence.open_epoch();
        }
        record.0 < sequence.0 && hash.shard(self.shards) == self.shard
    }
}

pub(super) const fn key_len_allowed(kind: EntryKind) -> RangeInclusive<usize> {
    match kind {
        EntryKind::NamespaceTombstone => Origin::LEN..=Origin::LEN,
        _ => 1..=KEY_LEN_MAX,
    }
}

pub(super) fn is_name(name: &str) -> bool {
    (1..=NAMESPACE_LEN_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

const _: () = assert!(at::RESERVED + 4 == ENTRY_FIXED_LEN);
const _: () = assert!(NAMESPACE_LEN_MAX <= u8::MAX as usize);
const _: () = assert!(KEY_LEN_MAX <= u16::MAX as usize);
