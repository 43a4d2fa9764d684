//! What can go wrong with an operation of a device in memory, and a plan that draws it by seed.
//!
//! Faults that the device reports come out as errors; the others succeed and lie.

use std::time::Duration;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Makes earlier writes durable.
    Flush,
}

/// An operation as a fault plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub kind: Kind,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes to be moved.
    pub len: u32,
    /// Operations submitted before it.
    pub number: u64,
}

impl Operation {
    pub(super) const fn new(kind: Kind, offset: u64, len: u32) -> Self {
        Self {
            kind,
            offset,
            len,
            number: 0,
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing is moved: `EIO`, `ENOSPC`.
    Os {
        /// The error's number.
        errno: i32,
    },
    /// Only the first bytes are moved, and the device says so.
    Short {
        /// Bytes moved.
        done: u32,
    },
    /// Only the first sectors are written, and the device does not say so.
    Torn {
        /// Sectors of 512 bytes that are written.
        sectors: u32,
    },
    /// A read finds what was there before the last write.
    Stale,
    /// Another place is read or written.
    Misdirected {
        /// That place, a multiple of 4096 with as much room.
        offset: u64,
    },
    /// A bit is flipped on the way.
    BitFlip {
        /// Which, counted from the first and beyond the last from the first again.
        bit: u64,
    },
}

/// How an operation behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// How long it takes; only with a clock.
    pub latency: Duration,
    /// What goes wrong.
    pub fault: Option<Fault>,
    /// It does not complete until it is released.
    pub stuck: bool,
}

impl From<Fault> for Behaviour {
    fn from(fault: Fault) -> Self {
        Self {
            fault: Some(fault),
            ..Self::default()
        }
    }
}

pub(super) fn flip(bytes: &mut [u8], bit: u64) {
    if !bytes.is_empty() {
        let bit = bit % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// Draws latencies and faults from a seed; the same seed and operations give the same.
#[derive(Clone, Debug)]
pub struct SeededFaults {
    state: u64,
    latency_max: Duration,
    faults: Vec<(u32, Fault)>,
}

impl SeededFaults {
    /// Latencies up to `latency_max`, and each fault in so many of 1000 operations.
    #[must_use]
    pub const fn new(seed: u64, latency_max: Duration, faults: Vec<(u32, Fault)>) -> Self {
        Self {
            state: seed,
            latency_max,
            faults,
        }
    }

    /// The next operation's behaviour.
    pub fn draw(&mut self, _operation: &Operation) -> Behaviour {
        let latency_ns = self.random() % (self.latency_max.as_nanos() as u64 + 1);
        let mut drawn = self.random() % 1000;
        let mut fault = None;
        for (rate, candidate) in &self.faults {
            if drawn < u64::from(*rate) {
                fault = Some(*candidate);
                break;
            }
            drawn -= u64::from(*rate);
        }
        Behaviour {
            latency: Duration::from_nanos(latency_ns),
            fault,
            stuck: false,
        }
    }

    /// The next number of a splitmix64 sequence.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
