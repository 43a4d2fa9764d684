//! How long requests take, in buckets: counts on a shard's thread, and their sums.
//!
//! **Invariants**
//! - A histogram has a fixed length: noting a time takes no memory and no lock.
//! - Buckets are log-linear: [`STEPS`] of equal width to each power of two, so an edge is at most
//!   half as much again as the one before.

use terrace_wire::Verb;

/// The first edge is two to this power, in nanoseconds: about 2 us, less than a request takes.
const FIRST_POWER: u32 = 11;

/// The last edge is two to this power: about 34 s, more than a request may take by default.
const LAST_POWER: u32 = 35;

/// Buckets of a power of two.
const STEPS: usize = 2;

/// Edges of the buckets.
pub const EDGES: usize = (LAST_POWER - FIRST_POWER) as usize * STEPS + 1;

/// The buckets' upper edges in nanoseconds, each of them inside of its bucket. What is longer than
/// the last is in one more bucket.
pub const EDGES_NS: [u64; EDGES] = {
    let mut edges = [1 << FIRST_POWER; EDGES];
    let mut at = 1;
    while at < EDGES {
        let power = (at - 1) / STEPS;
        let low = 1_u64 << (FIRST_POWER as usize + power);
        let step = (at - 1) % STEPS + 1;
        edges[at] = low + low / STEPS as u64 * step as u64;
        at += 1;
    }
    edges
};

/// Times in buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; EDGES + 1],
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; EDGES + 1],
            sum_ns: 0,
        }
    }
}

impl Histogram {
    /// Notes a time.
    pub const fn record(&mut self, span_ns: u64) {
        self.counts[bucket(span_ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(span_ns);
    }

    /// Adds another shard's.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// How many times lie in each bucket: those of [`EDGES_NS`], and one for all that is longer.
    #[must_use]
    pub const fn counts(&self) -> &[u64; EDGES + 1] {
        &self.counts
    }

    /// How many times were noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all times in nanoseconds.
    #[must_use]
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }
}

/// The bucket of a time. Of 2049 ns it is the second: a power of two and one more is past the edge.
const fn bucket(span_ns: u64) -> usize {
    let below = span_ns.saturating_sub(1);
    if below >> FIRST_POWER == 0 {
        return 0;
    }
    let power = u64::BITS - 1 - below.leading_zeros();
    if power >= LAST_POWER {
        return EDGES;
    }
    let step = (below >> (power - STEPS.trailing_zeros())) as usize & (STEPS - 1);
    (power - FIRST_POWER) as usize * STEPS + step + 1
}

/// Where the time of a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// From its arrival to its turn, behind other requests of its connection.
    Queue,
    /// Waiting for the values of a put, which its client sends.
    Receive,
    /// Computing checksums: of values that come, and of parts of blocks that go.
    Hash,
    /// Waiting for the tiers: reads from devices, room for a put, writes that are to be durable.
    Device,
    /// From the reply's end in the queue of its connection to the kernel's taking it, and waiting for
    /// the client to take what comes before.
    Socket,
}

impl Hop {
    /// All hops, in the order that a request takes them.
    pub const ALL: [Self; 5] = [
        Self::Queue,
        Self::Receive,
        Self::Hash,
        Self::Device,
        Self::Socket,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Receive => "receive",
            Self::Hash => "hash",
            Self::Device => "device",
            Self::Socket => "socket",
        }
    }
}

/// The verbs whose requests are timed: those that a server answers.
const VERBS: [Verb; 23] = [
    Verb::Get,
    Verb::Put,
    Verb::Upsert,
    Verb::Exists,
    Verb::MatchPrefix,
    Verb::Prefetch,
    Verb::Touch,
    Verb::Stat,
    Verb::List,
    Verb::Announce,
    Verb::PutBegin,
    Verb::PutPart,
    Verb::PutCommit,
    Verb::PutAbort,
    Verb::Remove,
    Verb::RemoveNamespace,
    Verb::OpenNamespace,
    Verb::Pin,
    Verb::Unpin,
    Verb::Lease,
    Verb::Renew,
    Verb::Release,
    Verb::Ping,
];

/// Where a verb's histogram is, by its number.
const PLACES: [usize; 64] = {
    let mut places = [VERBS.len(); 64];
    let mut at = 0;
    while at < VERBS.len() {
        places[VERBS[at].number() as usize] = at;
        at += 1;
    }
    places
};

/// The times of all requests that were answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    requests: Vec<Histogram>,
    hops: Vec<Histogram>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            requests: vec![Histogram::default(); VERBS.len()],
            hops: vec![Histogram::default(); Hop::ALL.len()],
        }
    }
}

impl Latencies {
    /// Adds another shard's.
    pub fn add(&mut self, other: &Self) {
        let own = self.requests.iter_mut().chain(&mut self.hops);
        let others = other.requests.iter().chain(&other.hops);
        own.zip(others).for_each(|(own, more)| own.add(more));
    }

    /// Whole requests, from their arrival to the last byte of their reply: verb and times.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        VERBS.iter().map(|verb| verb.name()).zip(&self.requests)
    }

    /// Hops of requests that had them: name and times.
    pub fn hops(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        Hop::ALL.iter().map(|hop| hop.name()).zip(&self.hops)
    }

    pub(crate) fn record_request(&mut self, verb: Verb, span_ns: u64) {
        let place = PLACES.get(usize::from(verb.number()));
        if let Some(histogram) = place.and_then(|place| self.requests.get_mut(*place)) {
            histogram.record(span_ns);
        }
    }

    pub(crate) fn record_hop(&mut self, hop: Hop, span_ns: u64) {
        if let Some(histogram) = self.hops.get_mut(hop as usize) {
            histogram.record(span_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: a time lies in the bucket whose edges enclose it. Method: every edge, one below, one
    /// above.
    #[test]
    fn times_lie_between_the_edges_of_their_bucket() {
        assert!(EDGES_NS.is_sorted());
        assert_eq!(EDGES_NS[..4], [2048, 3072, 4096, 6144]);
        assert_eq!(EDGES_NS[EDGES - 1], 1 << LAST_POWER);
        for (at, edge) in EDGES_NS.into_iter().enumerate() {
            assert_eq!(bucket(edge), at, "{edge}");
            assert_eq!(bucket(edge - 1), at, "{edge} - 1");
            assert_eq!(bucket(edge + 1), at + 1, "{edge} + 1");
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), EDGES);
    }

    #[test]
    fn histogram_sums_what_it_was_told() {
        let (mut one, mut two) = (Histogram::default(), Histogram::default());
        one.record(1);
        one.record(5000);
        two.record(u64::MAX);
        one.add(&two);
        assert_eq!(one.count(), 3);
        assert_eq!(one.sum_ns(), u64::MAX);
        assert_eq!((one.counts()[0], one.counts()[EDGES]), (1, 1));
    }

    #[test]
    fn every_verb_of_a_server_has_a_histogram_of_its_own() {
        let mut latencies = Latencies::default();
        let is_served = |verb: &&Verb| {
            let is_offered = !matches!(verb, Verb::Events | Verb::Locate);
            verb.is_request() && is_offered
        };
        for verb in Verb::ALL.iter().filter(is_served) {
            latencies.record_request(*verb, 1);
        }
        assert!(latencies.requests().all(|(_, times)| times.count() == 1));
    }
}
