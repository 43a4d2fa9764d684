//! The NVMe tier of one shard: appends blocks to segments, reads them back, and hands whole
//! segments over to be reclaimed.
//!
//! The tier knows nothing of keys and policies. Its shard asks it to place a record, remembers
//! the [`Location`], and decides at reclaim what is kept. Control goes down only.
//!
//! **Invariants**
//! - A record gets its sequence when it is placed, in the same step in which its shard checks
//!   that it still counts: no older copy is placed after a tombstone.
//! - A write's memory is owned by its operation; a task of the tier's own awaits it.
//! - Nothing is appended to a segment whose head is not durable.

mod commit;
mod contents;
mod lane;
mod place;
mod read;
mod reclaim;
mod segments;
mod stats;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use terrace_types::{LocalFuture, Nanos, Tasks};

use crate::UNIT;
use crate::device::BlockDevice;
use crate::format::{DeviceId, SegmentHead, SegmentIdentity, Sequence};
use crate::ops::IoError;

pub use contents::{Contents, is_sound};
pub use lane::Health;
pub use place::{Placed, Record, Ticket};
pub use read::ReadClass;
pub use reclaim::Next;
pub use segments::{Location, Phase, SegmentIx};
pub use stats::{DeviceGauges, TierCounters};

use lane::Lane;
use segments::{Segment, Segments};

/// What a tier is opened with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierConfig {
    /// The shard's number.
    pub shard: u32,
    /// Count of shards.
    pub shards: u32,
    /// This open's epoch.
    pub epoch: u32,
    /// Payload bytes after which a frame closes.
    pub frame_bytes: u64,
    /// How long a frame waits for more before it closes.
    pub frame_wait: Duration,
    /// Bytes of writes that may be under way on a device. A read that comes waits for them.
    pub write_window: u64,
    /// The same for long payloads, while callers wait for writes to be durable.
    pub write_window_awaited: u64,
    /// Payloads that may be under way on a device, however short: a ring gives the kernel only so
    /// many operations, and reads wait behind them.
    pub payloads_max: u32,
    /// Bytes of writes while reads that callers wait for are under way: the least share of writes.
    pub write_window_min: u64,
    /// Reads ahead of need that may be under way on a device.
    pub prefetch_window: u32,
    /// How long an operation may take.
    pub io_deadline: Duration,
    /// Operations past their deadline at which a device goes offline.
    pub late_max: u32,
    /// Bytes a second that may be written to all devices of the shard; 0 for no budget.
    pub write_budget: u64,
}

impl Default for TierConfig {
    fn default() -> Self {
        Self {
            shard: 0,
            shards: 1,
            epoch: 1,
            frame_bytes: 1 << 20,
            frame_wait: Duration::from_millis(2),
            write_window: 8 << 20,
            write_window_awaited: 32 << 20,
            payloads_max: 128,
            write_window_min: 3 << 20,
            prefetch_window: 16,
            io_deadline: Duration::from_secs(10),
            late_max: 64,
            write_budget: 0,
        }
    }
}

/// A device as one shard gets it.
pub struct TierDevice {
    /// The device.
    pub device: Rc<dyn BlockDevice>,
    /// Its id in the set.
    pub id: DeviceId,
    /// Length of its segments in bytes.
    pub segment_len: u64,
    /// It is to be emptied.
    pub draining: bool,
    /// The shard's segments on it.
    pub segments: Vec<TierSegment>,
}

/// A segment as one shard gets it.
#[derive(Clone, Debug)]
pub struct TierSegment {
    /// Its number on the device.
    pub number: u32,
    /// Its head, when it holds something.
    pub head: Option<SegmentHead>,
    /// Whether the shard reclaims it.
    pub owned: bool,
    /// Written under another shard count.
    pub legacy: bool,
}

/// Why the tier did not do as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The block can never fit in a segment.
    #[error("the block is longer than a segment takes")]
    TooLarge,
    /// No device takes writes any more.
    #[error("no device takes writes")]
    ReadOnly,
    /// What was set aside for kept blocks is used up.
    #[error("no room is left for what is kept")]
    NoRoom,
    /// The tier's shard ends.
    #[error("the tier is being closed")]
    Closing,
    /// The operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The shard has more segments than it can number.
    #[error("the shard's share of the devices is beyond 16 TiB; open with more shards")]
    TooManySegments,
}

struct State {
    lanes: Vec<Lane>,
    segments: Segments,
    counter: u64,
    random: u64,
    /// The lane that the next record goes to, if it can.
    turn: usize,
    counters: Vec<TierCounters>,
    /// The set lists devices that are not there: they may hold records.
    absent: bool,
    budget: Budget,
}

/// A bucket of bytes that fills with time.
struct Budget {
    rate: u64,
    /// Below zero while a write that overdrew it is paid off.
    tokens: i64,
    filled: Nanos,
}

/// See the module's text.
pub struct NvmeTier {
    config: TierConfig,
    tasks: Rc<dyn Tasks>,
    ids: Vec<DeviceId>,
    state: RefCell<State>,
}

impl NvmeTier {
    /// A tier over `devices`. `salt` seeds the salts of its segments; `absent` tells that the
    /// set lists devices that are not there.
    ///
    /// # Errors
    /// [`TierError::TooManySegments`].
    pub fn new(
        config: TierConfig,
        tasks: Rc<dyn Tasks>,
        devices: Vec<TierDevice>,
        salt: u64,
        absent: bool,
    ) -> Result<Rc<Self>, TierError> {
        let units = |device: &TierDevice| (device.segment_len / UNIT) as u32;
        let stride = devices.iter().map(units).max().unwrap_or(1);
        let (mut list, mut lanes, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for (at, device) in devices.into_iter().enumerate() {
            ids.push(device.id);
            let mut lane = Lane::new(
                Rc::clone(&device.device),
                (device.segment_len / UNIT) as u32,
                device.draining,
            );
            for segment in &device.segments {
                let ix = SegmentIx(list.len() as u32);
                let phase = match (&segment.head, segment.owned) {
                    (_, false) => Phase::Guest,
                    (Some(_), true) => Phase::Sealed,
                    (None, true) => Phase::Free,
                };
                match phase {
                    Phase::Sealed => lane.sealed.push_back(ix),
                    Phase::Free => lane.free.push_back(ix),
                    _ => {}
                }
                lane.owned += u32::from(segment.owned);
                list.push(Segment {
                    proven: segment.head.is_some(),
                    opened: segment
                        .head
                        .as_ref()
                        .map_or(Sequence(0), |head| head.sequence),
                    lane: at,
                    number: segment.number,
                    base: crate::format::SEGMENTS_START
                        + u64::from(segment.number) * device.segment_len,
                    identity: segment.head.as_ref().map_or(NOTHING, SegmentHead::identity),
                    phase,
                    live_units: 0,
                    readers: 0,
                    legacy: segment.legacy,
                });
            }
            lanes.push(lane);
        }
        leave_out_single_segments(&mut lanes);
        for lane in &mut lanes {
            let sequence = |ix: &SegmentIx| list[ix.0 as usize].identity.sequence;
            lane.sealed.make_contiguous().sort_by_key(sequence);
        }
        let segments = Segments::new(list, stride).ok_or(TierError::TooManySegments)?;
        let now = tasks.now();
        Ok(Rc::new(Self {
            state: RefCell::new(State {
                counters: vec![TierCounters::default(); lanes.len()],
                lanes,
                segments,
                counter: 0,
                random: salt,
                turn: 0,
                absent,
                budget: Budget {
                    rate: config.write_budget,
                    tokens: signed(config.write_budget),
                    filled: now,
                },
            }),
            config,
            tasks,
            ids,
        }))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let task: LocalFuture<'static, ()> = Box::pin(task);
        self.tasks.spawn(task);
    }

    fn deadline(&self) -> Nanos {
        self.tasks.now() + self.config.io_deadline
    }

    /// Bytes of the shard's segments on all devices.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let state = self.state.borrow();
        let list = state.segments.list.iter();
        let units: u64 = list
            .map(|segment| u64::from(state.lanes[segment.lane].units))
            .sum();
        units * UNIT
    }

    /// Whether a device takes writes.
    #[must_use]
    pub fn takes_blocks(&self) -> bool {
        self.state.borrow().lanes.iter().any(Lane::takes_blocks)
    }

    /// Longest block that fits in a segment of the device with the longest ones.
    #[must_use]
    pub fn block_len_max(&self) -> u64 {
        let state = self.state.borrow();
        let longest = |lane: &Lane| u64::from(lane.block_units_max());
        let takes = state.lanes.iter();
        let takes = takes.filter(|lane| !lane.draining && lane.owned > 0);
        takes.map(longest).max().unwrap_or(0) * UNIT
    }

    /// Whether a removal must leave a tombstone though no record of the key is known: devices
    /// are away, or segments of another shard count hold what was not looked through.
    #[must_use]
    pub fn always_tombstone(&self) -> bool {
        let state = self.state.borrow();
        state.absent || state.segments.list.iter().any(|segment| segment.legacy)
    }

    /// The lengths and states of the shard's share of each device.
    #[must_use]
    pub fn gauges(&self) -> Vec<DeviceGauges> {
        let state = self.state.borrow();
        let lanes = state.lanes.iter().enumerate();
        lanes
            .map(|(at, lane)| {
                let own = || {
                    let of_lane = move |segment: &&Segment| segment.lane == at;
                    state.segments.list.iter().filter(of_lane)
                };
                let owned = || own().filter(|segment| segment.phase != Phase::Guest);
                let empty = |s: &&Segment| matches!(s.phase, Phase::Free | Phase::Ready);
                let live: u64 = own().map(|segment| u64::from(segment.live_units)).sum();
                let free = owned().filter(empty).count() as u32;
                DeviceGauges {
                    name: lane.device.info().name.clone(),
                    health: lane.health,
                    draining: lane.draining,
                    bytes: owned().count() as u64 * u64::from(lane.units) * UNIT,
                    segments_free: free,
                    segments_used: owned().count() as u32 - free,
                    live_bytes: live * UNIT,
                    late: lane.late,
                    counters: state.counters[at],
                }
            })
            .collect()
    }

    /// The sum of what was done on all devices.
    #[must_use]
    pub fn counters(&self) -> TierCounters {
        let mut sum = TierCounters::default();
        let state = self.state.borrow();
        state.counters.iter().for_each(|counters| sum.add(counters));
        sum
    }

    /// Whether the write budget allows for `len` bytes; when it does they are taken off it.
    #[must_use]
    pub fn admit(&self, len: u32) -> bool {
        let mut state = self.state.borrow_mut();
        let admitted = state.budget.take(u64::from(len), self.tasks.now());
        state.counters[0].budget_rejects += u64::from(!admitted);
        admitted
    }

    /// Draws a sequence for a tombstone that is placed later: it hides what came before now.
    #[must_use]
    pub fn draw_sequence(&self) -> Sequence {
        self.state.borrow_mut().sequence(self.config.epoch)
    }

    /// The index points to `len` bytes more, or not any more, at `location`.
    fn count_live(&self, location: Location, len: u32, live: bool) {
        let mut state = self.state.borrow_mut();
        let (ix, _) = state.segments.split(location);
        let segment = state.segments.get_mut(ix);
        let units = units_of(u64::from(len));
        segment.live_units = if live {
            segment.live_units + units
        } else {
            segment.live_units.saturating_sub(units)
        };
    }

    /// The index points to the block at `location`.
    pub fn retain(&self, location: Location, len: u32) {
        self.count_live(location, len, true);
    }

    /// The index does not point to the block at `location` any more.
    pub fn forget(&self, location: Location, len: u32) {
        self.count_live(location, len, false);
    }

    /// What a segment is used for now.
    #[must_use]
    pub fn phase(&self, segment: SegmentIx) -> Phase {
        self.state.borrow().segments.get(segment).phase
    }

    /// The segment of a location, and the unit in it.
    #[must_use]
    pub fn split(&self, location: Location) -> (SegmentIx, u32) {
        self.state.borrow().segments.split(location)
    }

    /// The location of a unit of a segment.
    #[must_use]
    pub fn locate(&self, segment: SegmentIx, unit: u32) -> Location {
        self.state.borrow().segments.locate(segment, unit)
    }
}

impl Budget {
    /// Takes `len` bytes when they are there. A second's worth can be saved up, and one write
    /// may overdraw it, for a block may be longer than that: the next waits until that is paid.
    fn take(&mut self, len: u64, now: Nanos) -> bool {
        if self.rate == 0 {
            return true;
        }
        let span = now.since(self.filled).as_micros() as u64;
        let earned = self.rate.saturating_mul(span) / 1_000_000;
        if earned > 0 {
            let tokens = self.tokens.saturating_add(signed(earned));
            self.tokens = tokens.min(signed(self.rate));
            self.filled = now;
        }
        if self.tokens <= 0 {
            return false;
        }
        self.tokens = self.tokens.saturating_sub(signed(len));
        true
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl State {
    /// Draws the next sequence.
    fn sequence(&mut self, epoch: u32) -> Sequence {
        self.counter += 1;
        Sequence::new(epoch, self.counter)
    }

    /// Draws a salt nobody can guess from what was written before: splitmix64 over a seed that
    /// never leaves the process.
    fn salt(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Reclaim needs a second segment for what it keeps: a device with one is only read.
fn leave_out_single_segments(lanes: &mut [Lane]) {
    for lane in lanes.iter_mut().filter(|lane| lane.owned == 1) {
        let device = lane.device.info().name.as_str();
        tracing::warn!(
            device,
            "one segment for a shard is too few: it is not written to"
        );
        lane.owned = 0;
    }
}

/// The identity of a segment that holds nothing.
const NOTHING: SegmentIdentity = SegmentIdentity {
    sequence: Sequence(0),
    salt: 0,
};

/// Units of a segment that one block alone cannot have: head, frame head, and a footer.
const SEGMENT_OVERHEAD_UNITS: u32 = 3;

/// Units that `len` bytes take.
pub(crate) const fn units_of(len: u64) -> u32 {
    len.div_ceil(UNIT) as u32
}
