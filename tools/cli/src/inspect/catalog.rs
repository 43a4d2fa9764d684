//! Which blocks count: of each key the one with the highest sequence that no tombstone hides.

use std::collections::HashMap;
use std::sync::Arc;

use terrace_nvme::format::{EntryKind, Origin, Sequence};
use terrace_types::KeyHash;

use super::segment::{Names, Segment};

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Count of blocks.
    pub blocks: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, len: u32) {
        self.blocks += 1;
        self.bytes += u64::from(len);
    }
}

/// What a namespace holds.
#[derive(Clone, Debug)]
pub struct NamespaceUsage {
    /// Its name.
    pub name: Arc<str>,
    /// Blocks that a get would be answered with.
    pub live: Tally,
    /// Blocks that were replaced or removed, and second copies.
    pub dead: Tally,
}

/// What all segments hold together.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Blocks that a get would be answered with.
    pub live: Tally,
    /// Blocks that were replaced or removed, and second copies.
    pub dead: Tally,
    /// Tombstones of keys.
    pub tombstones: u64,
    /// Tombstones of namespaces.
    pub namespace_tombstones: u64,
    /// Payloads that the engine keeps for itself.
    pub checkpoints: Tally,
    /// By name.
    pub namespaces: Vec<NamespaceUsage>,
}

/// Numbers the names of all segments together; returns the names by number.
pub fn unite_names(segments: &mut [Segment]) -> Vec<Arc<str>> {
    let mut names = Names::default();
    for segment in segments {
        let own = std::mem::take(&mut segment.names);
        let numbers: Vec<u32> = own.iter().map(|name| names.number(name)).collect();
        for entry in &mut segment.entries {
            entry.name = numbers.get(entry.name as usize).copied().unwrap_or(0);
        }
    }
    names.list
}

/// Marks the live blocks.
//= docs/on-disk-format.md#OD-9
pub fn mark_live(segments: &mut [Segment], names: &[Arc<str>]) {
    for (segment, at) in live_blocks(segments, names) {
        let segment = segments.get_mut(segment);
        if let Some(entry) = segment.and_then(|segment| segment.entries.get_mut(at)) {
            entry.live = true;
        }
    }
}

/// Segment and entry of each live block.
fn live_blocks(segments: &[Segment], names: &[Arc<str>]) -> Vec<(usize, usize)> {
    let mut newest: HashMap<(u32, &[u8]), (Sequence, usize, usize)> = HashMap::new();
    let mut tombstones: HashMap<(u32, &[u8]), Sequence> = HashMap::new();
    let mut ended: HashMap<u32, Vec<(Origin, Sequence)>> = HashMap::new();
    for (place, segment) in segments.iter().enumerate() {
        for (at, entry) in segment.entries.iter().enumerate() {
            let key = (entry.name, &*entry.key);
            match entry.kind {
                EntryKind::Block => {
                    let found = (entry.sequence, place, at);
                    let known = newest.entry(key).or_insert(found);
                    if known.0 < entry.sequence {
                        *known = found;
                    }
                }
                EntryKind::Tombstone => raise(tombstones.entry(key).or_default(), entry.sequence),
                EntryKind::NamespaceTombstone => {
                    let origin = Origin::decode(&entry.key);
                    let list = ended.entry(entry.name).or_default();
                    list.extend(origin.map(|origin| (origin, entry.sequence)));
                }
                EntryKind::Checkpoint => {}
            }
        }
    }
    //= docs/on-disk-format.md#OD-10
    let is_removed = |key: &(u32, &[u8]), sequence: Sequence| {
        let tombstone = tombstones.get(key);
        tombstone.is_some_and(|tombstone| sequence < *tombstone)
    };
    let is_ended = |(name, key): &(u32, &[u8]), sequence: Sequence| {
        let (Some(list), Some(name)) = (ended.get(name), names.get(*name as usize)) else {
            return false;
        };
        let hash = KeyHash::of_named(name, key);
        let mut list = list.iter();
        list.any(|(origin, tombstone)| origin.hides(*tombstone, sequence, hash))
    };
    let live = newest
        .iter()
        .filter(|(key, (sequence, _, _))| !is_removed(key, *sequence) && !is_ended(key, *sequence));
    live.map(|(_, (_, segment, at))| (*segment, *at)).collect()
}

fn raise(known: &mut Sequence, sequence: Sequence) {
    *known = (*known).max(sequence);
}

/// Adds up what the segments hold, live blocks marked before.
#[must_use]
pub fn usage(segments: &[Segment], names: &[Arc<str>]) -> Usage {
    let mut usage = Usage::default();
    let empty = |name: &Arc<str>| NamespaceUsage {
        name: Arc::clone(name),
        live: Tally::default(),
        dead: Tally::default(),
    };
    let mut namespaces: Vec<NamespaceUsage> = names.iter().map(empty).collect();
    for entry in segments.iter().flat_map(|segment| &segment.entries) {
        match entry.kind {
            EntryKind::Block => {
                let namespace = namespaces.get_mut(entry.name as usize);
                let (all, own) = match entry.live {
                    true => (&mut usage.live, namespace.map(|it| &mut it.live)),
                    false => (&mut usage.dead, namespace.map(|it| &mut it.dead)),
                };
                all.add(entry.len);
                if let Some(own) = own {
                    own.add(entry.len);
                }
            }
            EntryKind::Tombstone => usage.tombstones += 1,
            EntryKind::NamespaceTombstone => usage.namespace_tombstones += 1,
            EntryKind::Checkpoint => usage.checkpoints.add(entry.len),
        }
    }
    namespaces.retain(|it| it.live.blocks + it.dead.blocks > 0);
    namespaces.sort_by(|a, b| a.name.cmp(&b.name));
    usage.namespaces = namespaces;
    usage
}
