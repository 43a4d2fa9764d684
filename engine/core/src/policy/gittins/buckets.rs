//! What is remembered of ids, 8 bytes each, in buckets of a line of the processor's cache.
//!
//! An entry has the lowest bits of its mixed id as its tag, in its highest bits, so that a lookup
//! now and then finds another: that spoils a guess and nothing else. What the other bits say, and
//! which entry of a full bucket goes, is up to who keeps the table.
//!
//! **Invariants**
//! - The entries of a bucket are in its first places, the one that came last first; the others are
//!   zero. No entry is zero.

use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::KeyHash;

use super::facts::mixed;

/// Entries in a bucket.
pub(super) const WAYS: usize = 8;

/// See the module's text.
pub(super) struct Buckets<const TAG_BITS: u32> {
    entries: HugeVec<u64>,
    buckets: usize,
    count: usize,
}

impl<const TAG_BITS: u32> Buckets<TAG_BITS> {
    /// None yet, for up to `places_max` entries and `places` now, whose memory is taken at once.
    pub(super) fn new(places_max: usize, places: usize) -> Result<Self, HugeVecError> {
        let mut table = Self {
            entries: HugeVec::with_capacity(places_max.next_multiple_of(WAYS))?,
            buckets: 0,
            count: 0,
        };
        table.set_places(places);
        Ok(table)
    }

    fn set_places(&mut self, places: usize) {
        self.buckets = (places.min(self.entries.capacity()) / WAYS).max(1);
        self.entries.grow_to(self.buckets * WAYS);
        self.entries.populate();
    }

    /// Makes room for `places` entries. When that changes the table, what it held goes to
    /// `forget`: the bucket of an id depends on their count.
    pub(super) fn resize(&mut self, places: usize, mut forget: impl FnMut(u64)) {
        let before = self.buckets;
        self.set_places(places);
        if self.buckets == before {
            return;
        }
        self.count = 0;
        for place in 0..before * WAYS {
            let entry = std::mem::take(&mut self.entries[place]);
            if entry != 0 {
                forget(entry);
            }
        }
    }

    /// The first place of the bucket of an id, and the id's tag.
    fn place(&self, id: KeyHash) -> (usize, u64) {
        let bits = mixed(id);
        let bucket = (u128::from(bits) * self.buckets as u128) >> u64::BITS;
        (bucket as usize * WAYS, bits & ((1 << TAG_BITS) - 1))
    }

    /// Whether the first bucket is that of an id.
    #[cfg(test)]
    pub(super) fn is_first(&self, id: KeyHash) -> bool {
        self.place(id).0 == 0
    }

    fn find(&self, id: KeyHash) -> Option<usize> {
        let (bucket, tag) = self.place(id);
        let mut ways = self.entries[bucket..bucket + WAYS].iter();
        let way = ways.position(|entry| *entry != 0 && Self::tag_of(*entry) == tag)?;
        Some(bucket + way)
    }

    /// The tag of an entry.
    pub(super) const fn tag_of(entry: u64) -> u64 {
        entry >> (u64::BITS - TAG_BITS)
    }

    /// The entry of an id.
    pub(super) fn get(&self, id: KeyHash) -> Option<u64> {
        self.find(id).map(|at| self.entries[at])
    }

    /// Brings the bucket of an id near, for a lookup soon.
    pub(super) fn prefetch(&self, id: KeyHash) {
        self.entries.prefetch(self.place(id).0);
    }

    /// Takes the entry of an id out.
    pub(super) fn take(&mut self, id: KeyHash) -> Option<u64> {
        let at = self.find(id)?;
        Some(self.take_at(at))
    }

    fn take_at(&mut self, at: usize) -> u64 {
        let end = (at / WAYS + 1) * WAYS;
        let taken = self.entries[at];
        self.entries.copy_within(at + 1..end, at);
        self.entries[end - 1] = 0;
        self.count -= 1;
        taken
    }

    /// Takes one entry out of the bucket of an id when that is full: `choose` is given the bucket
    /// and says which.
    pub(super) fn make_room(
        &mut self,
        id: KeyHash,
        choose: impl FnOnce(&[u64]) -> usize,
    ) -> Option<u64> {
        let first = self.place(id).0;
        let bucket = &self.entries[first..first + WAYS];
        if bucket[WAYS - 1] == 0 {
            return None;
        }
        let way = choose(bucket);
        Some(self.take_at(first + way))
    }

    /// Remembers an id that is not remembered, in a bucket with room; `entry` makes the entry of
    /// its tag.
    pub(super) fn push(&mut self, id: KeyHash, entry: impl FnOnce(u64) -> u64) {
        let (bucket, tag) = self.place(id);
        self.entries
            .copy_within(bucket..bucket + WAYS - 1, bucket + 1);
        self.entries[bucket] = entry(tag);
        self.count += 1;
    }

    /// Count of entries.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Bytes in use.
    pub(super) const fn bytes(&self) -> u64 {
        self.entries.bytes()
    }

    /// All entries; panics when an invariant is broken. For tests.
    pub(super) fn check(&self) -> impl Iterator<Item = u64> {
        let mut count = 0;
        for bucket in self.entries[..self.buckets * WAYS].chunks(WAYS) {
            let entries = bucket.iter().take_while(|entry| **entry != 0).count();
            assert!(bucket[entries..].iter().all(|entry| *entry == 0), "a gap");
            count += entries;
        }
        assert_eq!(count, self.count, "entries");
        self.entries.iter().copied().filter(|entry| *entry != 0)
    }
}

/// Puts fields of these widths in bits beside each other, from the lowest.
pub(super) fn packed<const N: usize>(fields: [(u64, u32); N]) -> u64 {
    let mut at = 0;
    let mut bits = 0;
    for (field, width) in fields {
        bits |= field << at;
        at += width;
    }
    bits
}

/// Takes fields out of bits again, from the lowest.
pub(super) struct Fields(pub(super) u64);

impl Fields {
    pub(super) const fn take(&mut self, width: u32) -> u64 {
        let field = self.0 & ((1 << width) - 1);
        self.0 >>= width;
        field
    }
}
