//! What a simulation came to, counted from which accesses hit.

use std::time::Duration;

use terrace_engine::policy::PolicyBytes;

use crate::cost::{BLOCK_TOKENS, prefill_seconds};
use crate::drive::DriveCounts;
use crate::workload::{Request, Workload};

/// Counts over the accesses of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HitCounts {
    /// Blocks asked for.
    pub accesses: u64,
    /// Accesses to resident blocks.
    pub hits: u64,
    /// Hits of which every earlier block of the request hit, too: the others save nothing. Where
    /// requests are not chains, each block stands for itself.
    pub prefix_valid_hits: u64,
    /// Tokens of all prompts, a full block being [`BLOCK_TOKENS`] and the last one the rest; 0 in
    /// traces that are not about language models.
    pub tokens: u64,
    /// Tokens of the prefix-valid hits.
    pub token_hits: u64,
    /// Seconds of prefill that the prefix-valid hits saved, see [`prefill_seconds`].
    pub prefill_seconds_saved: f64,
}

impl HitCounts {
    /// Counts over `workload`, of which the accesses set in `hits` hit.
    #[must_use]
    pub fn of(workload: &Workload, hits: &[bool]) -> Self {
        let mut counts = Self::default();
        for request in workload.requests() {
            let end = request.begin + request.blocks.len();
            counts.add(&request, &hits[request.begin..end]);
        }
        counts
    }

    fn add(&mut self, request: &Request<'_>, hits: &[bool]) {
        let flat = hits.iter().filter(|&&hit| hit).count();
        self.accesses += hits.len() as u64;
        self.hits += flat as u64;
        if !request.is_chain {
            self.prefix_valid_hits += flat as u64;
            return;
        }
        let valid = hits.iter().take_while(|&&hit| hit).count();
        self.prefix_valid_hits += valid as u64;
        let tokens = tokens_of(request, hits.len());
        let token_hits = tokens_of(request, valid);
        self.tokens += tokens;
        self.token_hits += token_hits;
        // The last token of a prompt is always computed: it gives the first of the answer.
        self.prefill_seconds_saved += prefill_seconds(token_hits.min(tokens.saturating_sub(1)));
    }

    /// Accesses that found nothing.
    #[must_use]
    pub const fn misses(&self) -> u64 {
        self.accesses - self.hits
    }

    /// Token hits in tokens; none without tokens.
    #[must_use]
    pub fn token_hit_ratio(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        (self.tokens > 0).then(|| self.token_hits as f64 / self.tokens as f64)
    }
}

/// Tokens in the first `count` blocks of a request.
fn tokens_of(request: &Request<'_>, count: usize) -> u64 {
    let full = count as u64 * u64::from(BLOCK_TOKENS);
    full.min(u64::from(request.input_tokens))
}

/// What a simulation came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Hits and what follows from them.
    pub hits: HitCounts,
    /// What else happened; nothing for bounds, which evict nothing one could count.
    pub counts: DriveCounts,
    /// Memory of the policies of all shards at the end; nothing for bounds.
    pub policy_bytes: PolicyBytes,
    /// How long it took, the counting left out.
    pub elapsed: Duration,
}

impl Outcome {
    /// Accesses simulated a second.
    #[must_use]
    pub fn accesses_per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let accesses = self.hits.accesses as f64;
        accesses / self.elapsed.as_secs_f64().max(1e-9)
    }
}
