//! Names and entries as they are read from frame heads and footers.
//!
//! **Invariants**
//! - A decoded table was checked whole: walking it cannot fail.

use std::ops::Range;

use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_types::{BlockKind, Checksum, Hint, KeyHash};

use super::bytes::Fields;
use super::entries::{
    ENTRY_FIXED_LEN, EntryKind, EntryRef, FLAG_PARENT, NAMES_MAX, at, entry_len, is_name,
    key_len_allowed,
};
use super::error::{FormatError, Limit};
use super::sequence::Sequence;
use super::units;

/// Names and entries that were read and checked.
#[derive(Clone, Debug)]
pub(super) struct EntryTable<'a> {
    names: Vec<&'a str>,
    body: Fields<'a>,
    count: u32,
}

/// Where a list lies in its structure and how long it says it is.
pub(super) struct ListPlace {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) count: u32,
    pub(super) name_count: u32,
}

impl<'a> EntryTable<'a> {
    /// Reads a list and checks all of it; payloads have to lie within `payloads`.
    pub(super) fn decode(
        fields: &Fields<'a>,
        list: &ListPlace,
        payloads: &Range<u32>,
    ) -> Result<Self, FormatError> {
        let body = Fields::new(fields.structure, fields.slice(list.start, list.len)?);
        let name_count = u64::from(list.name_count);
        let names_max = Limit::AtMost(NAMES_MAX as u64);
        body.check("count of names", name_count, names_max)?;
        let mut names = Vec::new();
        let mut at = 0;
        for place in 0..list.name_count {
            let len = usize::from(*body.slice(at, 1)?.first().unwrap_or(&0));
            let name = std::str::from_utf8(body.slice(at + 1, len)?);
            let Some(name) = name.ok().filter(|name| is_name(name)) else {
                let limit = Limit::Is("that of 1 to 255 printable bytes");
                return Err(body.wrong("place of a name", u64::from(place), limit));
            };
            names.push(name);
            at += 1 + len;
        }
        let rest = body.slice(at, list.len - at)?;
        let body = Fields::new(fields.structure, rest);
        let mut at = 0;
        for _ in 0..list.count {
            let entry = decode_entry(&body, at, &names)?;
            check_entry(&body, &entry, payloads)?;
            at += entry_len(entry.key);
        }
        let left = (rest.len() - at) as u64;
        body.check("bytes behind the last entry", left, Limit::Exactly(0))?;
        Ok(Self {
            names,
            body,
            count: list.count,
        })
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn entries(&self) -> Entries<'_, 'a> {
        Entries {
            names: &self.names,
            body: self.body,
            at: 0,
            left: self.count,
        }
    }
}

/// Walks the entries of a structure in the order they were written.
pub struct Entries<'v, 'a> {
    names: &'v [&'a str],
    body: Fields<'a>,
    at: usize,
    left: u32,
}

impl<'a> Iterator for Entries<'_, 'a> {
    type Item = EntryRef<'a>;

    fn next(&mut self) -> Option<EntryRef<'a>> {
        self.left = self.left.checked_sub(1)?;
        let entry = decode_entry(&self.body, self.at, self.names).ok()?;
        self.at += entry_len(entry.key);
        Some(entry)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

fn decode_entry<'a>(
    body: &Fields<'a>,
    start: usize,
    names: &[&'a str],
) -> Result<EntryRef<'a>, FormatError> {
    let fixed = body.slice(start, ENTRY_FIXED_LEN)?;
    let entry = Fields::new(body.structure, fixed);
    let byte = |at: usize| fixed.get(at).copied().unwrap_or_default();
    let kind = match byte(0) {
        1 => EntryKind::Block,
        2 => EntryKind::Tombstone,
        3 => EntryKind::NamespaceTombstone,
        4 => EntryKind::Checkpoint,
        other => return Err(entry.wrong("kind", u64::from(other), Limit::Is("1 to 4"))),
    };
    let hint_kind = match byte(at::HINT_KIND) {
        0 => BlockKind::Unknown,
        1 => BlockKind::Full,
        2 => BlockKind::Tail,
        other => return Err(entry.wrong("block kind", u64::from(other), Limit::AtMost(2))),
    };
    let namespace = entry.u16(at::NAMESPACE)?;
    let Some(name) = names.get(usize::from(namespace)) else {
        let limit = Limit::Is("the place of a name");
        return Err(entry.wrong("namespace", u64::from(namespace), limit));
    };
    let key_len = usize::from(entry.u16(at::KEY_LEN)?);
    if !key_len_allowed(kind).contains(&key_len) {
        let limit = Limit::Is("1 to 512, or 0 for a tombstone of a namespace");
        return Err(entry.wrong("key length", key_len as u64, limit));
    }
    let has_parent = entry.u16(at::FLAGS)? & FLAG_PARENT != 0;
    let parent = entry.u64(at::PARENT)?;
    Ok(EntryRef {
        kind,
        namespace: name,
        key: body.slice(start + ENTRY_FIXED_LEN, key_len)?,
        sequence: Sequence(entry.u64(at::SEQUENCE)?),
        checksum: Checksum(entry.u64(at::CHECKSUM)?),
        len: entry.u32(at::LEN)?,
        place: entry.u32(at::PLACE)?,
        hint: Hint {
            parent: has_parent.then_some(KeyHash(parent)),
            depth: entry.u32(at::DEPTH)?,
            kind: hint_kind,
        },
    })
}

fn check_entry(
    body: &Fields<'_>,
    entry: &EntryRef<'_>,
    payloads: &Range<u32>,
) -> Result<(), FormatError> {
    let place = u64::from(entry.place);
    let len = u64::from(entry.len);
    if !entry.kind.has_payload() {
        body.check("payload length of a tombstone", len, Limit::Exactly(0))?;
        return body.check("place of no payload", place, Limit::Exactly(0));
    }
    // Nothing is read at the word of an entry that no shard could have written.
    body.check("payload length", len, Limit::AtLeast(1))?;
    body.check("payload length", len, Limit::AtMost(BLOCK_LEN_MAX))?;
    //= docs/on-disk-format.md#OD-12
    let start = Limit::AtLeast(u64::from(payloads.start));
    body.check("place of the payload", place, start)?;
    let end = place + u64::from(units(entry.len));
    let limit = Limit::AtMost(u64::from(payloads.end));
    body.check("end of the payload", end, limit)
}
