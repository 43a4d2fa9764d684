//! The stamp that orders records, tombstones and segments.

/// Bits of the counter within a sequence.
const COUNTER_BITS: u32 = 40;

/// Highest open epoch; an open that would need a higher one is refused.
pub const OPEN_EPOCH_MAX: u32 = (1 << (64 - COUNTER_BITS)) - 1;

/// Highest counter of a shard within one open: a million records a second for 12 days.
pub const SEQUENCE_COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;

/// The open epoch in the upper 24 bits and a counter of the shard in the lower 40.
///
//= docs/on-disk-format.md#OD-3
/// Sequences of a later open are higher, whatever the shard was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The sequence with this epoch and counter.
    ///
    /// # Panics
    /// When one of them is above its maximum.
    #[must_use]
    pub const fn new(open_epoch: u32, counter: u64) -> Self {
        assert!(open_epoch <= OPEN_EPOCH_MAX, "open epochs are used up");
        assert!(counter <= SEQUENCE_COUNTER_MAX, "the counter is used up");
        Self((open_epoch as u64) << COUNTER_BITS | counter)
    }

    /// The open that drew it.
    #[must_use]
    pub const fn open_epoch(self) -> u32 {
        (self.0 >> COUNTER_BITS) as u32
    }

    /// Its place among those that the shard drew in this open.
    #[must_use]
    pub const fn counter(self) -> u64 {
        self.0 & SEQUENCE_COUNTER_MAX
    }
}

const _: () = assert!(OPEN_EPOCH_MAX == 0x00ff_ffff);
const _: () = assert!(Sequence::new(OPEN_EPOCH_MAX, SEQUENCE_COUNTER_MAX).0 == u64::MAX);
