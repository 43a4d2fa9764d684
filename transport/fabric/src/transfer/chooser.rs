//! Which rail a slice takes: the one that is expected to finish it first.
//!
//! Pure: time is given, nothing is sent. Slices wait in one backlog and are given to rails late,
//! a short window ahead, so that a rail that slows down or fails holds few of them.
//!
//! A rail's expected finish of a slice is the bytes it has outstanding and the slice's own, over
//! its measured bandwidth, times its distance. A rail that is not the first to finish a slice may
//! still take it when it finishes before the whole backlog would, over all rails.
//!
//! **Invariants**
//! - `outstanding_len` of a rail is the sum of the slices it was given and that have not ended.
//! - A rail that is down is given nothing; it is probed when its rest is over.

use std::time::Duration;

use super::transport::{TransportKind, TransportSet};

/// Bytes a second that a rail is taken for until it is measured, unless its link says: 10 GbE.
const BANDWIDTH_ASSUMED: f64 = 1.25e9;

/// The least bandwidth that is expected of a rail, so that no finish time is infinite.
const BANDWIDTH_MIN: f64 = 1e3;

/// Weight of the newest measurement: the last eight or so decide.
const NEWEST_WEIGHT: f64 = 0.25;

/// How far ahead a rail is given slices, beside twice the time that one alone takes on it: long
/// against a thread's wake-up, short against what a user notices when a rail fails.
const WINDOW_SECONDS: f64 = 0.001;

/// The longest round trip that a window makes up for.
const LATENCY_MAX_NS: u64 = 200_000_000;

/// The least that a rail is given ahead, in bytes: a millisecond of a link of 16 Gbit/s. Less would make
/// rings of a NIC's doorbell for a slice or two on links that are slow anyway.
const WINDOW_LEN_MIN: f64 = 2_097_152.0;

/// Slices a rail has at least, so that one goes while the next is on its way.
const WINDOW_COUNT_MIN: u64 = 2;

/// Slices a rail has at most.
const WINDOW_COUNT_MAX: u64 = 512;

/// How much later than the whole backlog a slice may finish and still be given to a rail.
const LATE_FACTOR: f64 = 1.02;

/// The first rest of a rail that failed.
const REST_FIRST_NS: u64 = 2_000_000;

/// A rail rests for this part of the time it has been down: what is lost by a late probe stays
/// small against what the failure itself costs, and probes become rare by themselves.
const REST_PART: u64 = 8;

/// NUMA nodes that are told apart; memory of a higher one counts as near.
pub const NODE_COUNT_MAX: usize = 8;

/// How far a rail is from memory of each NUMA node: 1 is beside it, 2 takes twice the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distances(pub [f64; NODE_COUNT_MAX]);

impl Default for Distances {
    fn default() -> Self {
        Self([1.0; NODE_COUNT_MAX])
    }
}

impl Distances {
    fn from(&self, node: Option<usize>) -> f64 {
        let distance = node.and_then(|node| self.0.get(node)).copied();
        distance.unwrap_or(1.0).max(1.0)
    }
}

/// A slice as the chooser sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceTraits {
    /// Bytes of it.
    pub len: u64,
    /// The NUMA node of its local memory, if that is known.
    pub node: Option<usize>,
    /// The kinds of rails that can move it.
    pub kinds: TransportSet,
}

/// What is known of a rail when it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RailTraits {
    /// How it moves bytes.
    pub kind: TransportKind,
    /// Rails of a lower rank are used only while all of a higher one are down. The higher number
    /// is the higher rank.
    pub rank: u8,
    /// What its link says of its bandwidth, in bytes a second.
    pub bandwidth: Option<u64>,
    /// How far it is from memory.
    pub distances: Distances,
}

/// Whether a rail can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailState {
    /// It takes slices.
    Up,
    /// It failed, and is left alone until then, in nanoseconds.
    Resting {
        /// When it is probed.
        until_ns: u64,
    },
    /// It is being probed.
    Probing,
}

/// One rail as the chooser sees it.
#[derive(Clone, Copy, Debug)]
pub struct RailFigures {
    /// What was known from the start.
    pub traits: RailTraits,
    /// Whether it can be used.
    pub state: RailState,
    /// Bytes that it has and that have not ended.
    pub outstanding_len: u64,
    /// Slices that it has.
    pub outstanding_count: u64,
    /// Bytes a second, as measured.
    pub bandwidth: f64,
    /// Bytes of slices that ended on it.
    pub moved_len: u64,
    /// How often it failed.
    pub failures: u64,
    /// When it last ended a slice, or began after it had none.
    progress_ns: u64,
    /// Bytes that ended since `sample_ns`, until there are enough for a measurement.
    sample_len: u64,
    sample_ns: u64,
    is_measured: bool,
    failed_ns: u64,
    /// Whether its window is being filled.
    is_filling: bool,
    /// Whether the next slice to end is the first after a time without any.
    is_first: bool,
    /// How long one slice takes from its being given to its end, when it is alone.
    latency_ns: u64,
}

impl RailFigures {
    const fn is_up(&self) -> bool {
        matches!(self.state, RailState::Up)
    }

    /// Bytes a second that are expected now. A rail that has ended nothing for longer than a
    /// slice should take is as slow as that wait shows.
    fn expected_bandwidth(&self, node: Option<usize>, now_ns: u64) -> f64 {
        let mut bandwidth = self.bandwidth;
        if self.outstanding_count > 0 {
            let waited = seconds(now_ns.saturating_sub(self.progress_ns));
            let slice_len = self.outstanding_len as f64 / self.outstanding_count as f64;
            // Four slices' time is within what a busy machine does to one of them.
            if waited * bandwidth > 4.0 * slice_len + WINDOW_SECONDS * bandwidth {
                bandwidth = slice_len / waited;
            }
        }
        (bandwidth / self.traits.distances.from(node)).max(BANDWIDTH_MIN)
    }

    /// Seconds from now until it would have ended one more slice.
    fn finish(&self, slice: SliceTraits, now_ns: u64) -> f64 {
        let len = self.outstanding_len + slice.len;
        len as f64 / self.expected_bandwidth(slice.node, now_ns)
    }

    /// Bytes that it is given ahead.
    fn window(&self) -> f64 {
        // One shorter than the round trip would be what limits the bandwidth.
        let ahead = self.bandwidth * (WINDOW_SECONDS + 2.0 * seconds(self.latency_ns));
        ahead.max(WINDOW_LEN_MIN)
    }

    /// A full window is filled again when half of it is done: slices go to a rail in groups, which
    /// cost it one call.
    fn has_room(&self, len: u64) -> bool {
        self.outstanding_count < WINDOW_COUNT_MIN || (self.is_filling && self.fits(len))
    }

    fn fits(&self, len: u64) -> bool {
        self.outstanding_count < WINDOW_COUNT_MAX
            && (self.outstanding_len + len) as f64 <= self.window()
    }

    fn is_half_done(&self) -> bool {
        self.outstanding_count <= WINDOW_COUNT_MAX / 2
            && self.outstanding_len as f64 <= self.window() / 2.0
    }
}

/// Chooses rails for one peer.
#[derive(Clone, Debug, Default)]
pub struct Chooser {
    rails: Vec<RailFigures>,
    rest_max_ns: u64,
}

impl Chooser {
    /// A chooser among `rails`, all of them up, that leaves a failed one alone for at most
    /// `rest_max`.
    #[must_use]
    pub fn new(rails: &[RailTraits], rest_max: Duration) -> Self {
        let figures = |traits: &RailTraits| {
            let told = traits.bandwidth.map(|bandwidth| bandwidth as f64);
            RailFigures {
                traits: *traits,
                state: RailState::Up,
                outstanding_len: 0,
                outstanding_count: 0,
                bandwidth: told.unwrap_or(BANDWIDTH_ASSUMED).max(BANDWIDTH_MIN),
                moved_len: 0,
                failures: 0,
                progress_ns: 0,
                sample_len: 0,
                sample_ns: 0,
                is_measured: false,
                failed_ns: 0,
                is_filling: true,
                is_first: false,
                latency_ns: 0,
            }
        };
        Self {
            rails: rails.iter().map(figures).collect(),
            rest_max_ns: u64::try_from(rest_max.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// What is known of each rail.
    #[must_use]
    pub fn rails(&self) -> &[RailFigures] {
        &self.rails
    }

    /// The rails that may be given a slice that goes by `kinds`: those up, of the highest rank
    /// that has one.
    fn usable(&self, kinds: TransportSet) -> impl Iterator<Item = (usize, &RailFigures)> {
        let is_up = move |rail: &RailFigures| rail.is_up() && kinds.contains(rail.traits.kind);
        let up = self.rails.iter().filter(|rail| is_up(rail));
        let rank = up.map(|rail| rail.traits.rank).max();
        let is_usable = move |rail: &RailFigures| is_up(rail) && Some(rail.traits.rank) == rank;
        self.rails
            .iter()
            .enumerate()
            .filter(move |(_, rail)| is_usable(rail))
    }

    /// Whether any rail of `kind` is up.
    #[must_use]
    pub fn is_any_up(&self, kind: TransportKind) -> bool {
        let mut rails = self.rails.iter();
        rails.any(|rail| rail.is_up() && rail.traits.kind == kind)
    }

    /// The rail that is to have a slice now, when `backlog_len` bytes wait with it. `None`: no
    /// rail has room, or waiting for one that has none is better.
    #[must_use]
    pub fn choose(&self, slice: SliceTraits, backlog_len: u64, now_ns: u64) -> Option<usize> {
        let len = slice.len;
        let first = self.first_to_finish(slice, now_ns)?;
        if self.rails[first].has_room(len) {
            return Some(first);
        }
        let outstanding: u64 = self
            .usable(slice.kinds)
            .map(|(_, rail)| rail.outstanding_len)
            .sum();
        let bandwidth: f64 = self
            .usable(slice.kinds)
            .map(|(_, rail)| rail.expected_bandwidth(slice.node, now_ns))
            .sum();
        let whole = (outstanding + backlog_len.max(len)) as f64 / bandwidth;
        self.usable(slice.kinds)
            .filter(|(_, rail)| rail.has_room(len))
            .map(|(ix, rail)| (ix, rail.finish(slice, now_ns)))
            .filter(|(_, finish)| *finish <= whole * LATE_FACTOR)
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(ix, _)| ix)
    }

    /// The rail for an urgent slice. It goes before what is not urgent, so only the room for
    /// slices at all is asked for.
    #[must_use]
    pub fn choose_urgent(&self, slice: SliceTraits, now_ns: u64) -> Option<usize> {
        let first = self.first_to_finish(slice, now_ns)?;
        (self.rails[first].outstanding_count < WINDOW_COUNT_MAX).then_some(first)
    }

    fn first_to_finish(&self, slice: SliceTraits, now_ns: u64) -> Option<usize> {
        self.usable(slice.kinds)
            .map(|(ix, rail)| (ix, rail.finish(slice, now_ns)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(ix, _)| ix)
    }

    /// A slice of `len` bytes was given to a rail.
    pub fn given(&mut self, ix: usize, len: u64, now_ns: u64) {
        let rail = &mut self.rails[ix];
        if rail.outstanding_count == 0 {
            (rail.progress_ns, rail.sample_ns, rail.sample_len) = (now_ns, now_ns, 0);
            rail.is_first = true;
        }
        rail.outstanding_len += len;
        rail.outstanding_count += 1;
        // The next one is as long, most likely.
        rail.is_filling &= rail.fits(len);
    }

    /// A slice of `len` bytes ended on a rail; `is_moved` when its bytes went over it.
    pub fn ended(&mut self, ix: usize, len: u64, is_moved: bool, now_ns: u64) {
        let rail = &mut self.rails[ix];
        if std::mem::take(&mut rail.is_first) {
            let taken = now_ns.saturating_sub(rail.progress_ns).min(LATENCY_MAX_NS);
            // One that was late by chance is forgotten slowly, a better one is believed.
            let more = taken.saturating_sub(rail.latency_ns) / 4;
            let is_new = rail.latency_ns == 0 || taken < rail.latency_ns;
            rail.latency_ns = if is_new {
                taken
            } else {
                rail.latency_ns + more
            };
        }
        rail.outstanding_len = rail.outstanding_len.saturating_sub(len);
        rail.outstanding_count = rail.outstanding_count.saturating_sub(1);
        rail.is_filling |= rail.is_half_done();
        rail.progress_ns = now_ns;
        if !is_moved {
            return;
        }
        rail.moved_len += len;
        rail.sample_len += len;
        let span_ns = now_ns.saturating_sub(rail.sample_ns);
        // A measurement of less than 50 us is one of the clock and the scheduler.
        if span_ns < 50_000 {
            return;
        }
        let measured = rail.sample_len as f64 / seconds(span_ns);
        // One short slice on an idle rail shows its latency, not its bandwidth.
        let is_short = rail.sample_len < 64 << 10 && measured < rail.bandwidth;
        if !is_short {
            let weight = if rail.is_measured { NEWEST_WEIGHT } else { 1.0 };
            rail.bandwidth += (measured - rail.bandwidth) * weight;
            rail.bandwidth = rail.bandwidth.max(BANDWIDTH_MIN);
            rail.is_measured = true;
        }
        (rail.sample_ns, rail.sample_len) = (now_ns, 0);
    }

    /// A rail failed: it has nothing any more, and rests.
    pub fn failed(&mut self, ix: usize, now_ns: u64) {
        let rest_max_ns = self.rest_max_ns;
        let rail = &mut self.rails[ix];
        (
            rail.outstanding_len,
            rail.outstanding_count,
            rail.is_filling,
        ) = (0, 0, true);
        if rail.is_up() {
            rail.failures += 1;
            rail.failed_ns = now_ns;
        }
        let down_ns = now_ns.saturating_sub(rail.failed_ns);
        let rest_ns = (down_ns / REST_PART).max(REST_FIRST_NS).min(rest_max_ns);
        rail.state = RailState::Resting {
            until_ns: now_ns.saturating_add(rest_ns),
        };
    }

    /// How long a rail goes on resting; `None` when it does not rest. When it is over the rail
    /// is on probation, and [`Chooser::failed`] or [`Chooser::returned`] follows.
    pub fn rest_of(&mut self, ix: usize, now_ns: u64) -> Option<Duration> {
        let rail = &mut self.rails[ix];
        let RailState::Resting { until_ns } = rail.state else {
            return None;
        };
        if until_ns <= now_ns {
            rail.state = RailState::Probing;
        }
        Some(Duration::from_nanos(until_ns.saturating_sub(now_ns)))
    }

    /// A probe succeeded: the rail is up again, and measured anew.
    pub fn returned(&mut self, ix: usize, now_ns: u64) {
        let rail = &mut self.rails[ix];
        rail.state = RailState::Up;
        rail.is_measured = false;
        rail.progress_ns = now_ns;
    }

    /// How long a rail that has slices has ended none.
    #[must_use]
    pub fn stalled_for(&self, ix: usize, now_ns: u64) -> Duration {
        let rail = &self.rails[ix];
        let is_busy = rail.outstanding_count > 0;
        let since = now_ns.saturating_sub(rail.progress_ns);
        Duration::from_nanos(if is_busy { since } else { 0 })
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
#[path = "chooser_simulation.rs"]
mod chooser_simulation;
