//! What P-GIT learns of the reuse of blocks: for each category of blocks the hazard of a use by
//! age, and the index that follows.
//!
//! The index is Gittins': of all spans from now on, the most uses for each millisecond that the
//! block is held. Category, prior and shrinkage are those of P-GIT; it is written here once more,
//! with plain tables, so that the tiers can ask for any block at any time. `P-GIT` of the engine
//! must come to the same counts.

/// Spans of age.
pub(super) const BINS: usize = 39;
/// Kinds of blocks that are told apart.
pub(super) const CATEGORIES: usize = 30;

const PRIOR_USES: f64 = 0.1;
const PRIOR_EXPOSED: f64 = 2.0;
const PRIOR_SCALE: f64 = 15.0;
const PRIOR_SHAPE: f64 = 100.0;

/// Blocks of one category whose last request is the same one.
pub(super) struct Group {
    since_ms: u64,
    /// Number of that request.
    pub(super) request: u32,
    alive: u32,
    pub(super) category: u8,
    /// The span of age it has reached.
    pub(super) bin: u8,
}

/// Uses and blocks exposed to them, by span of age.
#[derive(Clone, Copy)]
struct Counts {
    uses: [f64; BINS],
    exposed: [f64; BINS],
}

impl Counts {
    const NONE: Self = Self {
        uses: [0.0; BINS],
        exposed: [0.0; BINS],
    };
}

/// See the module's text.
pub(super) struct Learner {
    edges_ms: [f64; BINS + 1],
    counts: [Counts; CATEGORIES],
    pooled: Counts,
    hazard: [[f64; BINS]; CATEGORIES],
    index: [[f64; BINS]; CATEGORIES],
    groups: Vec<Group>,
    /// By span: the first group that has not reached it.
    reached: [usize; BINS],
}

impl Learner {
    pub(super) fn new() -> Self {
        let mut learner = Self {
            edges_ms: edges_ms(),
            counts: [Counts::NONE; CATEGORIES],
            pooled: Counts::NONE,
            hazard: [[0.0; BINS]; CATEGORIES],
            index: [[0.0; BINS]; CATEGORIES],
            groups: Vec::new(),
            reached: [0; BINS],
        };
        learner.reindex();
        learner
    }

    /// Groups come of age. Tells `moved` each group that reached a span, and which.
    pub(super) fn advance(&mut self, now_ms: u64, mut moved: impl FnMut(u32, &Group)) {
        for bin in 1..BINS {
            while let Some(group) = self.groups.get_mut(self.reached[bin]) {
                if millis(group.since_ms) + self.edges_ms[bin] > millis(now_ms) {
                    break;
                }
                let alive = f64::from(group.alive);
                self.counts[group.category as usize].exposed[bin] += alive;
                self.pooled.exposed[bin] += alive;
                group.bin = bin as u8;
                moved(self.reached[bin] as u32, group);
                self.reached[bin] += 1;
            }
        }
    }

    pub(super) fn group(&self, group: u32) -> &Group {
        &self.groups[group as usize]
    }

    /// A new group, of no block yet. Groups are numbered in this order.
    pub(super) fn begin_group(&mut self, category: usize, request: u32, now_ms: u64) -> u32 {
        self.groups.push(Group {
            since_ms: now_ms,
            request,
            alive: 0,
            category: category as u8,
            bin: 0,
        });
        (self.groups.len() - 1) as u32
    }

    /// A block joins a group that has just begun.
    pub(super) fn join(&mut self, group: u32) {
        let group = &mut self.groups[group as usize];
        group.alive += 1;
        self.counts[group.category as usize].exposed[0] += 1.0;
        self.pooled.exposed[0] += 1.0;
    }

    /// A block of a group was used.
    pub(super) fn learn_use(&mut self, group: u32, now_ms: u64) {
        let group = &mut self.groups[group as usize];
        group.alive -= 1;
        let age = millis(now_ms.saturating_sub(group.since_ms));
        let bin = self.edges_ms[1..BINS].partition_point(|edge| *edge <= age);
        self.counts[group.category as usize].uses[bin] += 1.0;
        self.pooled.uses[bin] += 1.0;
    }

    /// A block of a group is not known any more.
    pub(super) fn forget(&mut self, group: u32) {
        self.groups[group as usize].alive -= 1;
    }

    /// Hazards and indices anew from the counts.
    pub(super) fn reindex(&mut self) {
        let mut pooled = [0.0; BINS];
        for (bin, hazard) in pooled.iter_mut().enumerate() {
            *hazard =
                (self.pooled.uses[bin] + PRIOR_USES) / (self.pooled.exposed[bin] + PRIOR_EXPOSED);
        }
        for category in 0..CATEGORIES {
            let hazard = shrunk(&self.counts[category], &pooled);
            self.hazard[category] = hazard;
            for bin in 0..BINS {
                let mut best = 0.0_f64;
                self.from(category, bin, |uses, held_ms| {
                    best = best.max(uses / held_ms)
                });
                self.index[category][bin] = best;
            }
        }
    }

    /// Most uses for each millisecond held, of a block of this category in this span of age.
    pub(super) fn index(&self, category: usize, bin: usize) -> f64 {
        self.index[category][bin]
    }

    /// Most uses that holding the block wins over what its room is worth, in uses a millisecond.
    pub(super) fn surplus(&self, category: usize, bin: usize, room_worth: f64) -> f64 {
        let mut best = 0.0_f64;
        self.from(category, bin, |uses, held_ms| {
            best = best.max(uses - room_worth * held_ms);
        });
        best
    }

    /// Tells `visit` the expected uses and the expected time held, for holding the block to the
    /// end of each span at most, until its first use.
    fn from(&self, category: usize, bin: usize, mut visit: impl FnMut(f64, f64)) {
        let (mut uses, mut held_ms, mut unused) = (0.0, 0.0, 1.0);
        for at in bin..BINS {
            let hazard = self.hazard[category][at];
            uses += unused * hazard;
            held_ms += unused * (self.edges_ms[at + 1] - self.edges_ms[at]) * (1.0 - 0.5 * hazard);
            unused *= 1.0 - hazard;
            visit(uses, held_ms);
        }
    }
}

/// Hazards of a category: its own counts, smoothed over neighbours and drawn to the pooled ones
/// times how much more often it is used than they say.
fn shrunk(counts: &Counts, pooled: &[f64; BINS]) -> [f64; BINS] {
    let (mut uses, mut expected) = (0.0, 0.0);
    for (bin, pooled) in pooled.iter().enumerate() {
        uses += counts.uses[bin];
        expected += counts.exposed[bin] * pooled;
    }
    let scale = (uses + PRIOR_SCALE) / (expected + PRIOR_SCALE);
    let mut hazard = [0.0; BINS];
    for (bin, hazard) in hazard.iter_mut().enumerate() {
        let prior = PRIOR_SHAPE * (scale * pooled[bin]).min(0.95);
        let uses = smooth(&counts.uses, bin) + prior;
        *hazard = (uses / (smooth(&counts.exposed, bin) + PRIOR_SHAPE)).min(0.999);
    }
    hazard
}

fn smooth(values: &[f64; BINS], bin: usize) -> f64 {
    let mut sum = values[bin];
    if bin > 0 {
        sum += 0.5 * values[bin - 1];
    }
    if bin + 1 < BINS {
        sum += 0.5 * values[bin + 1];
    }
    sum
}

/// Three spans an octave, from a second on.
fn edges_ms() -> [f64; BINS + 1] {
    let mut edges = [0.0; BINS + 1];
    for (at, edge) in (0_u32..).zip(edges.iter_mut()).skip(1) {
        *edge = (1000.0 * 2_f64.powf(f64::from(at - 1) / 3.0) + 0.5).floor();
    }
    edges
}

#[expect(
    clippy::cast_precision_loss,
    reason = "times of a trace are far below 2^53 ms"
)]
const fn millis(ms: u64) -> f64 {
    ms as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_those_of_the_definition() {
        let edges = edges_ms();
        let begin = [0.0, 1000.0, 1260.0, 1587.0, 2000.0, 2520.0, 3175.0];
        assert_eq!(edges[..7], begin);
        assert_eq!(edges[BINS - 1..], [5_160_637.0, 6_501_995.0]);
    }

    #[test]
    fn index_of_a_category_that_is_used_rises() {
        let mut learner = Learner::new();
        let before = learner.index(6, 0);
        for second in 0..100 {
            let group = learner.begin_group(6, second, u64::from(second) * 1000);
            learner.join(group);
            learner.learn_use(group, u64::from(second) * 1000 + 500);
        }
        learner.reindex();
        assert!(learner.index(6, 0) > 2.0 * before);
        assert!(
            learner.index(6, 0) > learner.index(7, 0),
            "the others follow less"
        );
    }

    #[test]
    fn surplus_falls_with_the_worth_of_room_to_nothing_at_the_index() {
        let learner = Learner::new();
        let index = learner.index(6, 3);
        let (free, dear) = (
            learner.surplus(6, 3, 0.0),
            learner.surplus(6, 3, index / 2.0),
        );
        assert!(free > dear);
        assert!(dear > 0.0);
        assert!(learner.surplus(6, 3, index * 1.000_001).abs() < 1e-12);
    }
}
