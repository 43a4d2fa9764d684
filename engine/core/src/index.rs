//! The index of one shard: one 64-byte record for each block, found by its key's hash.
//!
//! A record lies in one cache line and holds keys of up to 20 bytes itself, so a hit touches
//! two lines before the policy: the head of its chain and the record.
//!
//! **Invariants**
//! - A live record is in exactly one chain, that of `bucket(hash)`; a vacant one in none.
//! - Heads grow one at a time (linear hashing): no insert moves more than one chain.
//! - A record keeps its number from `insert` to `erase`; its generation grows with each reuse.

use bytemuck::Zeroable;
use terrace_nvme::tier::Location;
use terrace_slab::{HugeVec, HugeVecError, SlotIx};
use terrace_types::limits::SLOT_ALIGN;
use terrace_types::{BlockIx, BlockKey, Checksum, KeyHash};

/// Keys up to this length lie in the record.
const KEY_INLINE_MAX: usize = 20;
/// In place of the length: the key lies beside the record.
const LONG_KEY: u8 = u8::MAX;
/// Heads an index begins with.
const HEADS_MIN: usize = 1024;
/// "No slot", "no location", "no record".
const NONE: u32 = u32::MAX;

/// Set while the block is being written to the tier below.
pub(crate) const DEMOTING: u8 = 1;
/// Set while the block is being read from the tier below.
pub(crate) const PROMOTING: u8 = 2;
/// Set when the key is gone and the record waits for its last pin.
pub(crate) const ERASED: u8 = 4;

/// Set when the block was hit since it was last written below; reclaim keeps such blocks.
pub(crate) const WARM: u8 = 8;

/// Set when the block was read ahead of need and nobody used it yet.
pub(crate) const AHEAD: u8 = 16;

/// Set while the block is in DRAM for those who hold it only: the policy does not know it, and
/// its slot is given up with the last pin.
pub(crate) const PASSING: u8 = 32;

/// Set when a durable put asked for the block: it is not for the policy to keep it from the
/// devices.
pub(crate) const PROMISED: u8 = 64;

/// What the index keeps of a block.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Record {
    hash: u64,
    checksum: u64,
    next: u32,
    /// Payload length in bytes.
    pub(crate) len: u32,
    slot: u32,
    below: u32,
    /// Bumped when the record's number is reused.
    pub(crate) generation: u32,
    /// Pins and leases held on the slot.
    pub(crate) pins: u16,
    /// When the block was last used, in sixteenths of the shard's capacity, modulo 256.
    pub(crate) heat: u8,
    pub(crate) flags: u8,
    namespace: u16,
    /// As raised by a request; that of its namespace may be higher.
    pub(crate) priority: u8,
    /// Of a key in the record, else [`LONG_KEY`].
    key_len: u8,
    key: [u8; KEY_INLINE_MAX],
}

const _: () = assert!(size_of::<Record>() == 64);

impl Record {
    /// The slot that holds the block, when it is in DRAM.
    #[inline]
    pub(crate) const fn slot(&self) -> Option<SlotIx> {
        if self.slot == NONE {
            None
        } else {
            Some(SlotIx(self.slot))
        }
    }

    pub(crate) const fn set_slot(&mut self, slot: Option<SlotIx>) {
        self.slot = match slot {
            Some(slot) => slot.0,
            None => NONE,
        };
    }

    /// Where the tier below holds the block, when it does.
    pub(crate) const fn below(&self) -> Option<Location> {
        if self.below == NONE {
            None
        } else {
            Some(Location(self.below))
        }
    }

    pub(crate) fn set_below(&mut self, location: Option<Location>) {
        let below = location.map_or(NONE, |location| location.0);
        assert!(
            location.is_none() || below != NONE,
            "a location is below u32::MAX"
        );
        self.below = below;
    }

    /// What a pin on the block counts for: its length in whole granules. The slot's own length
    /// would cost a lookup in its slab on every hit.
    #[inline]
    pub(crate) const fn pinned_len(&self) -> u64 {
        (self.len as u64).next_multiple_of(SLOT_ALIGN)
    }

    pub(crate) const fn hash(&self) -> KeyHash {
        KeyHash(self.hash)
    }

    pub(crate) const fn checksum(&self) -> Checksum {
        Checksum(self.checksum)
    }

    pub(crate) const fn set_checksum(&mut self, checksum: Checksum) {
        self.checksum = checksum.0;
    }

    pub(crate) const fn namespace(&self) -> u16 {
        self.namespace
    }

    pub(crate) const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Memory of an index, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexBytes {
    /// Heads, and records without the room for keys.
    pub records: u64,
    /// Room for keys, in records and beside them.
    pub keys: u64,
}

/// See the module's text.
pub(crate) struct Index {
    heads: HugeVec<u32>,
    records: HugeVec<Record>,
    vacant: u32,
    len: usize,
    long_keys: Vec<Option<Box<[u8]>>>,
    long_vacant: Vec<u32>,
    long_bytes: u64,
}

impl Index {
    /// An empty index for at most `blocks_max` blocks.
    pub(crate) fn new(blocks_max: u32) -> Result<Self, HugeVecError> {
        let capacity = blocks_max as usize;
        let mut heads = HugeVec::with_capacity(capacity.max(HEADS_MIN) * 2)?;
        heads.grow_to(HEADS_MIN);
        Ok(Self {
            heads,
            records: HugeVec::with_capacity(capacity)?,
            vacant: NONE,
            len: 0,
            long_keys: Vec::new(),
            long_vacant: Vec::new(),
            long_bytes: 0,
        })
    }

    /// Count of blocks.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether another record fits.
    pub(crate) fn has_room(&self) -> bool {
        self.vacant != NONE || self.records.len() < self.records.capacity()
    }

    #[inline]
    pub(crate) fn record(&self, block: BlockIx) -> &Record {
        &self.records[block.0 as usize]
    }

    #[inline]
    pub(crate) fn record_mut(&mut self, block: BlockIx) -> &mut Record {
        &mut self.records[block.0 as usize]
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        let count = self.heads.len();
        let mask = count.next_power_of_two() - 1;
        let low = hash as usize & mask;
        if low < count { low } else { low & (mask >> 1) }
    }

    /// Asks for the head that `hash` begins at; for batches.
    pub(crate) fn prefetch_head(&self, hash: KeyHash) {
        self.heads.prefetch(self.bucket(hash.0));
    }

    /// Asks for the first record of the chain of `hash`; for batches.
    pub(crate) fn prefetch_record(&self, hash: KeyHash) {
        let head = self.heads[self.bucket(hash.0)];
        self.records.prefetch(head.wrapping_sub(1) as usize);
    }

    /// The block under `key` of the shard's namespace number `namespace`.
    #[inline]
    pub(crate) fn find(&self, key: &BlockKey, namespace: u16) -> Option<BlockIx> {
        let hash = key.hash().0;
        let mut at = self.heads[self.bucket(hash)];
        while at != 0 {
            let record = &self.records[(at - 1) as usize];
            if record.hash == hash
                && record.namespace == namespace
                && self.key_of(record) == key.bytes()
            {
                return Some(BlockIx(at - 1));
            }
            at = record.next;
        }
        None
    }

    /// A block whose key has this hash; for what is known by hash only.
    pub(crate) fn find_hash(&self, hash: KeyHash) -> Option<BlockIx> {
        let mut at = self.heads[self.bucket(hash.0)];
        while at != 0 {
            let record = &self.records[(at - 1) as usize];
            if record.hash == hash.0 {
                return Some(BlockIx(at - 1));
            }
            at = record.next;
        }
        None
    }

    /// The bytes of a record's key.
    pub(crate) fn key_of<'a>(&'a self, record: &'a Record) -> &'a [u8] {
        if record.key_len != LONG_KEY {
            return &record.key[..usize::from(record.key_len)];
        }
        let [a, b, c, d, ..] = record.key;
        let at = u32::from_le_bytes([a, b, c, d]);
        self.long_keys[at as usize].as_deref().unwrap_or_default()
    }

    /// Adds a block under `key`, which must not be there. The record has neither slot nor
    /// location yet.
    ///
    /// # Panics
    /// When there is no room: ask [`Index::has_room`] first.
    pub(crate) fn insert(&mut self, key: &BlockKey, namespace: u16, len: u32) -> BlockIx {
        let number = self.take_vacant();
        let (key_len, inline) = self.store_key(key.bytes());
        let hash = key.hash().0;
        let bucket = self.bucket(hash);
        let next = self.heads[bucket];
        let record = &mut self.records[number as usize];
        *record = Record {
            hash,
            checksum: 0,
            next,
            len,
            slot: NONE,
            below: NONE,
            generation: record.generation.wrapping_add(1),
            pins: 0,
            heat: 0,
            flags: 0,
            namespace,
            priority: 0,
            key_len,
            key: inline,
        };
        self.heads[bucket] = number + 1;
        self.len += 1;
        self.grow();
        BlockIx(number)
    }

    /// Takes the key out of the index; the record stays until [`Index::vacate`].
    pub(crate) fn erase(&mut self, block: BlockIx) {
        let bucket = self.bucket(self.records[block.0 as usize].hash);
        let next = self.records[block.0 as usize].next;
        let mut at = self.heads[bucket];
        if at == block.0 + 1 {
            self.heads[bucket] = next;
        } else {
            while self.records[(at - 1) as usize].next != block.0 + 1 {
                at = self.records[(at - 1) as usize].next;
            }
            self.records[(at - 1) as usize].next = next;
        }
        self.records[block.0 as usize].flags |= ERASED;
        self.len -= 1;
    }

    /// Frees an erased record's number for reuse.
    pub(crate) fn vacate(&mut self, block: BlockIx) {
        let record = &mut self.records[block.0 as usize];
        assert!(record.is(ERASED), "{block:?} is still in the index");
        if record.key_len == LONG_KEY {
            let [a, b, c, d, ..] = record.key;
            let at = u32::from_le_bytes([a, b, c, d]);
            let key = self.long_keys[at as usize].take();
            self.long_bytes -= key.map_or(0, |key| key.len() as u64);
            self.long_vacant.push(at);
        }
        record.next = std::mem::replace(&mut self.vacant, block.0);
    }

    /// Blocks of all live records from number `from` on, at most `count` numbers looked at.
    pub(crate) fn scan(&self, from: u32, count: u32) -> impl Iterator<Item = (BlockIx, &Record)> {
        let end = (from.saturating_add(count) as usize).min(self.records.len());
        (from..end as u32)
            .map(|at| (BlockIx(at), &self.records[at as usize]))
            .filter(|(_, record)| record.generation != 0 && !record.is(ERASED))
    }

    /// Most records there can be.
    pub(crate) const fn numbers_max(&self) -> usize {
        self.records.capacity()
    }

    /// One more than the highest record number in use so far.
    pub(crate) fn numbers(&self) -> u32 {
        self.records.len() as u32
    }

    pub(crate) fn bytes(&self) -> IndexBytes {
        let inline = (self.records.len() * KEY_INLINE_MAX) as u64;
        let slots = (self.long_keys.len() * size_of::<Option<Box<[u8]>>>()) as u64;
        IndexBytes {
            records: self.heads.bytes() + self.records.bytes() - inline,
            keys: inline + slots + self.long_bytes,
        }
    }

    fn take_vacant(&mut self) -> u32 {
        if self.vacant != NONE {
            let number = self.vacant;
            self.vacant = self.records[number as usize].next;
            return number;
        }
        let number = self.records.len();
        self.records.grow_to(number + 1);
        number as u32
    }

    fn store_key(&mut self, key: &[u8]) -> (u8, [u8; KEY_INLINE_MAX]) {
        let mut inline = [0; KEY_INLINE_MAX];
        if key.len() <= KEY_INLINE_MAX {
            inline[..key.len()].copy_from_slice(key);
            (key.len() as u8, inline)
        } else {
            let at = self.long_vacant.pop().unwrap_or_else(|| {
                self.long_keys.push(None);
                (self.long_keys.len() - 1) as u32
            });
            self.long_keys[at as usize] = Some(Box::from(key));
            self.long_bytes += key.len() as u64;
            inline[..4].copy_from_slice(&at.to_le_bytes());
            (LONG_KEY, inline)
        }
    }

    /// Splits one chain when there are more than three blocks for four heads.
    fn grow(&mut self) {
        let count = self.heads.len();
        if self.len * 4 <= count * 3 || count >= self.heads.capacity() {
            return;
        }
        let half = if count.is_power_of_two() {
            count
        } else {
            count.next_power_of_two() / 2
        };
        let old = count - half;
        self.heads.grow_to(count + 1);
        let (mut stay, mut move_on) = (0, 0);
        let mut at = self.heads[old];
        while at != 0 {
            let record = &mut self.records[(at - 1) as usize];
            let next = record.next;
            let chain = if record.hash as usize & half == 0 {
                &mut stay
            } else {
                &mut move_on
            };
            record.next = std::mem::replace(chain, at);
            at = next;
        }
        self.heads[old] = stay;
        self.heads[count] = move_on;
    }

    /// Panics when an invariant of the module is broken; for tests.
    pub(crate) fn check(&self) {
        let mut seen = 0;
        for (bucket, head) in self.heads.iter().enumerate() {
            let mut at = *head;
            while at != 0 {
                let record = &self.records[(at - 1) as usize];
                assert_eq!(self.bucket(record.hash), bucket);
                assert!(!record.is(ERASED));
                seen += 1;
                at = record.next;
            }
        }
        assert_eq!(seen, self.len);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use terrace_types::{Namespace, NamespaceName};

    use super::*;

    fn key(number: u16) -> BlockKey {
        let ns = Namespace::new(0, 0, &NamespaceName::new("m").unwrap());
        // Lengths around the inline bound, and long ones.
        let mut bytes = vec![b'k'; [2, 19, 20, 21, 22, 300][usize::from(number % 6)]];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        ns.key(&bytes).unwrap()
    }

    #[test]
    fn index_tells_namespaces_and_generations_apart() {
        let mut index = Index::new(10).unwrap();
        let block = index.insert(&key(1), 4, 100);
        assert_eq!(index.find(&key(1), 4), Some(block));
        assert_eq!(index.find(&key(1), 5), None);
        let generation = index.record(block).generation;
        index.erase(block);
        index.vacate(block);
        assert_eq!(index.find(&key(1), 4), None);
        let again = index.insert(&key(1), 4, 100);
        assert_eq!(again, block);
        assert_ne!(index.record(again).generation, generation);
    }

    #[test]
    fn index_grows_without_a_step_and_stays_small() {
        let mut index = Index::new(200_000).unwrap();
        let ns = Namespace::new(0, 0, &NamespaceName::new("m").unwrap());
        for i in 0..200_000_u64 {
            index.insert(&ns.key(&i.to_le_bytes()).unwrap(), 0, 1);
        }
        index.check();
        let bytes = index.bytes();
        assert!(
            bytes.records <= 50 * 200_000,
            "{} bytes a block",
            bytes.records / 200_000
        );
        for i in 0..200_000_u64 {
            assert!(index.find(&ns.key(&i.to_le_bytes()).unwrap(), 0).is_some());
        }
        assert!(!index.has_room());
    }

    proptest! {
        /// Random inserts and erases against a map.
        #[test]
        fn index_agrees_with_a_map(ops in proptest::collection::vec((any::<bool>(), 0_u16..3000), 1..4000)) {
            let mut index = Index::new(3000).unwrap();
            let mut model: HashMap<u16, BlockIx> = HashMap::new();
            for (add, number) in ops {
                let found = index.find(&key(number), 0);
                prop_assert_eq!(found, model.get(&number).copied());
                match found {
                    None if add => {
                        model.insert(number, index.insert(&key(number), 0, 1));
                    }
                    Some(block) if !add => {
                        index.erase(block);
                        index.vacate(block);
                        model.remove(&number);
                    }
                    _ => {}
                }
            }
            index.check();
            prop_assert_eq!(index.len(), model.len());
            prop_assert_eq!(index.scan(0, u32::MAX).count(), model.len());
        }
    }
}
