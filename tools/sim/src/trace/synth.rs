//! Makes a synthetic chat trace from a seed, for machines without the recorded ones.
//!
//! Sessions arrive as a Poisson process. A session starts with a system prompt from a shared pool
//! and a first message; each further turn repeats the whole conversation so far, after a pause,
//! and adds the previous answer and a new message. The defaults resemble the conversation trace
//! of Mooncake: input length p50 6.9k and p90 27k tokens, a third of the block accesses repeated,
//! half of those within two minutes.
//!
//! **Invariants**
//! - The same configuration gives the same trace on every machine.
//! - Ids name prefixes: an id has one predecessor (or none) throughout, and every request starts
//!   with block 0.
//! - The last id of a request is a partial block, used by this request alone; the others are full.
//!
//! It does not imitate bursts, days, or tenants.

use std::collections::BTreeMap;

use super::random::Random;
use super::{Trace, TraceRequest};

/// Shape of a synthetic trace.
#[derive(Clone, Debug, PartialEq)]
pub struct SynthConfig {
    /// Number of requests.
    pub requests: usize,
    /// Same seed, same trace.
    pub seed: u64,
    /// Tokens of a full block.
    pub block_tokens: u32,
    /// Mean time between the starts of two sessions.
    pub session_gap_ms_mean: f64,
    /// Mean number of turns of a session.
    pub turns_mean: f64,
    /// Median pause between two turns of a session.
    pub turn_gap_ms_median: f64,
    /// Median length of the first message of a session, documents included.
    pub first_tokens_median: f64,
    /// Median length of a later message.
    pub turn_tokens_median: f64,
    /// Median length of an answer.
    pub output_tokens_median: f64,
    /// Number of different system prompts; the first ones are the most used.
    pub system_prompts: u32,
    /// Longest prompt; a session that would exceed it ends.
    pub context_tokens_max: u32,
}

impl Default for SynthConfig {
    fn default() -> Self {
        Self {
            requests: 12_000,
            seed: 1,
            block_tokens: 512,
            // With 1.6 turns per session: about 3.4 requests per second, as recorded.
            session_gap_ms_mean: 455.0,
            turns_mean: 1.6,
            // More than the two minutes of the recorded reuse gap: system prompts come back sooner.
            turn_gap_ms_median: 165_000.0,
            first_tokens_median: 4_600.0,
            turn_tokens_median: 800.0,
            output_tokens_median: 350.0,
            system_prompts: 32,
            context_tokens_max: 128 << 10,
        }
    }
}

/// Why a synthetic trace cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A field of the configuration makes no sense.
    #[error("synthetic trace: {field} is {value}, must be between {min} and {max}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: f64,
        /// Least value allowed.
        min: f64,
        /// Largest value allowed.
        max: f64,
    },
}

/// Deviations of the logarithms, from the recorded trace: long prompts are wildly different in
/// length, pauses and answers less so.
const FIRST_TOKENS_SIGMA: f64 = 1.25;
const TURN_TOKENS_SIGMA: f64 = 1.2;
const OUTPUT_TOKENS_SIGMA: f64 = 0.8;
const TURN_GAP_SIGMA: f64 = 0.9;

/// Blocks of the longest system prompt: 4k tokens at 512 per block.
const PROMPT_BLOCKS_MAX: u32 = 8;

/// Shortest context, in blocks: a system prompt and room to talk.
const CONTEXT_BLOCKS_MIN: u32 = 16;

impl Trace {
    /// Makes the trace that `config` describes.
    ///
    /// # Errors
    ///
    /// [`SynthError`] when a field of `config` is out of range.
    pub fn synthesize(config: &SynthConfig) -> Result<Self, SynthError> {
        config.check()?;
        let mut generator = Generator::new(config);
        let requests = (0..config.requests)
            .map(|_| generator.next_request())
            .collect();
        Ok(Self {
            name: format!("synth-{}", config.seed),
            requests,
        })
    }
}

impl SynthConfig {
    fn check(&self) -> Result<(), SynthError> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "compared with a far smaller limit"
        )]
        let requests = self.requests as f64;
        let context_blocks = f64::from(self.context_tokens_max) / f64::from(self.block_tokens);
        let ranges = [
            // A request of the default shape costs about 300 bytes: 2.5 GB.
            ("requests", requests, 0.0, f64::from(1 << 23)),
            // A block of one token cannot be partial.
            (
                "block_tokens",
                f64::from(self.block_tokens),
                2.0,
                f64::from(1 << 20),
            ),
            ("session_gap_ms_mean", self.session_gap_ms_mean, 0.001, 1e9),
            ("turns_mean", self.turns_mean, 1.0, 1e6),
            ("turn_gap_ms_median", self.turn_gap_ms_median, 0.0, 1e9),
            ("first_tokens_median", self.first_tokens_median, 1.0, 1e8),
            ("turn_tokens_median", self.turn_tokens_median, 1.0, 1e8),
            ("output_tokens_median", self.output_tokens_median, 1.0, 1e8),
            (
                "system_prompts",
                f64::from(self.system_prompts),
                1.0,
                f64::from(1 << 16),
            ),
            (
                "context_tokens_max",
                f64::from(self.context_tokens_max),
                0.0,
                f64::from(1 << 30),
            ),
            (
                "context_tokens_max / block_tokens",
                context_blocks,
                f64::from(CONTEXT_BLOCKS_MIN),
                f64::from(1 << 20),
            ),
        ];
        for (field, value, min, max) in ranges {
            // Written so that NaN is refused.
            if !(min..=max).contains(&value) {
                return Err(SynthError::OutOfRange {
                    field,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

/// A conversation between two turns.
#[derive(Debug)]
struct Session {
    /// Full blocks of the conversation, in order.
    chain: Vec<u64>,
    /// Tokens of the next prompt but for its new message.
    context_tokens: u32,
    /// Tokens of the next message.
    message_tokens: u32,
}

struct Generator<'a> {
    config: &'a SynthConfig,
    random: Random,
    next_block: u64,
    prompts: Vec<Vec<u64>>,
    /// Sum of the weights `1 / rank` of all prompts.
    prompts_weight: f64,
    /// When the next session starts. Kept as a fraction: a rounded gap would shift the rate.
    arrival_ms: f64,
    /// Sessions that will have another turn, by its time and, among ties, by age.
    waiting: BTreeMap<(u64, u64), Session>,
    turns: u64,
}

impl<'a> Generator<'a> {
    fn new(config: &'a SynthConfig) -> Self {
        let mut generator = Self {
            config,
            random: Random::new(config.seed),
            next_block: 1,
            prompts: Vec::new(),
            prompts_weight: 0.0,
            arrival_ms: 0.0,
            waiting: BTreeMap::new(),
            turns: 0,
        };
        for rank in 1..=config.system_prompts {
            // Block 0 is the preamble that all prompts share. Half of them have no other block, a
            // quarter has one more, an eighth two.
            let mut prompt = vec![0];
            let own_blocks = generator.random.bits().trailing_ones();
            for _ in 0..own_blocks.min(PROMPT_BLOCKS_MAX - 1) {
                prompt.push(generator.fresh_block());
            }
            generator.prompts.push(prompt);
            generator.prompts_weight += 1.0 / f64::from(rank);
        }
        generator
    }

    fn fresh_block(&mut self) -> u64 {
        self.next_block += 1;
        self.next_block - 1
    }

    /// Lets sessions arrive until the next thing to happen is a turn, and takes it.
    fn next_request(&mut self) -> TraceRequest {
        loop {
            let arrival_ms = whole(self.arrival_ms);
            match self.waiting.first_entry() {
                Some(first) if first.key().0 <= arrival_ms => {
                    let ((timestamp_ms, _), session) = first.remove_entry();
                    return self.turn(timestamp_ms, session);
                }
                _ => {
                    let session = self.new_session();
                    self.wait(arrival_ms, session);
                    self.arrival_ms += self.random.exponential(self.config.session_gap_ms_mean);
                }
            }
        }
    }

    fn new_session(&mut self) -> Session {
        let chain = self.pick_prompt();
        let prompt_blocks = u32::try_from(chain.len()).expect("at most PROMPT_BLOCKS_MAX");
        Session {
            context_tokens: prompt_blocks * self.config.block_tokens,
            message_tokens: self.tokens(self.config.first_tokens_median, FIRST_TOKENS_SIGMA),
            chain,
        }
    }

    /// A system prompt by Zipf's law: the second is half as frequent as the first.
    fn pick_prompt(&mut self) -> Vec<u64> {
        let mut weight = self.random.unit() * self.prompts_weight;
        let mut rank = 0.0;
        for prompt in &self.prompts {
            rank += 1.0;
            weight -= 1.0 / rank;
            if weight <= 0.0 {
                return prompt.clone();
            }
        }
        // Rounding may leave a trace of weight over.
        self.prompts
            .last()
            .expect("check() asks for one prompt or more")
            .clone()
    }

    fn wait(&mut self, until_ms: u64, session: Session) {
        self.turns += 1;
        self.waiting.insert((until_ms, self.turns), session);
    }

    fn turn(&mut self, timestamp_ms: u64, mut session: Session) -> TraceRequest {
        let block_tokens = self.config.block_tokens;
        let input_tokens = self.input_tokens(&session);
        let full_count = (input_tokens / block_tokens) as usize;
        assert!(
            session.chain.len() <= full_count,
            "a conversation only grows"
        );
        while session.chain.len() < full_count {
            session.chain.push(self.fresh_block());
        }
        let mut blocks = session.chain.clone();
        blocks.push(self.fresh_block());

        let output_tokens = self.tokens(self.config.output_tokens_median, OUTPUT_TOKENS_SIGMA);
        session.context_tokens = input_tokens.saturating_add(output_tokens);
        session.message_tokens = self.tokens(self.config.turn_tokens_median, TURN_TOKENS_SIGMA);
        let prompt_tokens = session
            .context_tokens
            .saturating_add(session.message_tokens);
        let has_more_turns = self.random.chance(1.0 - 1.0 / self.config.turns_mean);
        if has_more_turns && prompt_tokens < self.config.context_tokens_max {
            let pause = self
                .random
                .log_normal(self.config.turn_gap_ms_median, TURN_GAP_SIGMA);
            self.wait(timestamp_ms.saturating_add(whole(pause)), session);
        }
        TraceRequest {
            timestamp_ms,
            input_tokens,
            output_tokens,
            blocks,
            is_chain: true,
        }
    }

    /// Length of the prompt of the next turn: within the context, and never whole blocks only.
    fn input_tokens(&self, session: &Session) -> u32 {
        let wanted = session
            .context_tokens
            .saturating_add(session.message_tokens);
        let tokens = wanted.min(self.config.context_tokens_max);
        // One token less could cut into the chain when the message is a single token; one more
        // exceeds the context at its end, where the message is far longer than that.
        match (
            tokens.is_multiple_of(self.config.block_tokens),
            tokens < wanted,
        ) {
            (true, true) => tokens - 1,
            (true, false) => tokens + 1,
            (false, _) => tokens,
        }
    }

    /// A length of one token or more.
    fn tokens(&mut self, median: f64, sigma: f64) -> u32 {
        let tokens = whole(self.random.log_normal(median, sigma)).max(1);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

/// Rounds down; what is no number of 64 bits saturates.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounding down and saturating are meant"
)]
const fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    //! Aim: the trace has the structure promised and resembles the recorded one. Method: check
    //! every request of a few seeds; compare quantiles with wide bounds.

    use std::collections::{HashMap, HashSet};

    use super::*;

    fn trace(config: &SynthConfig) -> Trace {
        Trace::synthesize(config).unwrap()
    }

    /// The shapes to check: the default, tiny blocks, long sessions at the end of a short context.
    fn shapes() -> Vec<SynthConfig> {
        let base = SynthConfig {
            requests: 3000,
            ..SynthConfig::default()
        };
        vec![
            base.clone(),
            SynthConfig {
                seed: 99,
                system_prompts: 1,
                ..base.clone()
            },
            SynthConfig {
                block_tokens: 2,
                context_tokens_max: 32,
                turns_mean: 5.0,
                ..base.clone()
            },
            SynthConfig {
                context_tokens_max: 8192,
                turns_mean: 50.0,
                ..base.clone()
            },
            SynthConfig {
                turn_gap_ms_median: 0.0,
                session_gap_ms_mean: 0.001,
                ..base
            },
        ]
    }

    #[test]
    fn ids_have_one_predecessor_and_no_repeats_in_a_request() {
        for config in shapes() {
            let mut predecessors = HashMap::new();
            for request in trace(&config).requests {
                let unique: HashSet<_> = request.blocks.iter().collect();
                assert_eq!(
                    unique.len(),
                    request.blocks.len(),
                    "a request repeats an id"
                );
                let mut previous = None;
                for id in request.blocks {
                    assert_eq!(
                        *predecessors.entry(id).or_insert(previous),
                        previous,
                        "id {id}"
                    );
                    previous = Some(id);
                }
            }
        }
    }

    #[test]
    fn last_block_is_partial_and_never_used_again() {
        for config in shapes() {
            let mut last_ids = HashSet::new();
            for request in trace(&config).requests {
                let tokens = request.input_tokens;
                assert!(tokens <= config.context_tokens_max);
                assert!(!tokens.is_multiple_of(config.block_tokens));
                assert_eq!(
                    request.blocks.len(),
                    tokens.div_ceil(config.block_tokens) as usize
                );
                assert_eq!(request.blocks[0], 0);
                assert!(request.is_chain);
                assert!(request.blocks.iter().all(|id| !last_ids.contains(id)));
                last_ids.insert(*request.blocks.last().unwrap());
            }
        }
    }

    #[test]
    fn arrivals_never_go_back_and_the_count_is_exact() {
        for config in shapes() {
            let trace = trace(&config);
            assert_eq!(trace.requests.len(), config.requests);
            assert!(
                trace
                    .requests
                    .is_sorted_by_key(|request| request.timestamp_ms)
            );
        }
    }

    #[test]
    fn turns_extend_the_whole_conversation() {
        // Every full block of an earlier request that a later one reaches beyond the prompts
        // belongs to the same conversation: then all full blocks of that turn are repeated.
        let config = SynthConfig {
            requests: 3000,
            ..SynthConfig::default()
        };
        let mut full_chains: HashMap<u64, Vec<u64>> = HashMap::new();
        let mut extended = 0;
        for request in trace(&config).requests {
            let full = &request.blocks[..request.blocks.len() - 1];
            let Some(&own) = full.get(PROMPT_BLOCKS_MAX as usize) else {
                continue;
            };
            if let Some(earlier) = full_chains.insert(own, full.to_vec()) {
                assert!(full.starts_with(&earlier));
                extended += 1;
            }
        }
        assert!(extended > 500, "{extended} turns extend an earlier one");
    }

    #[test]
    fn same_seed_same_trace_on_every_machine() {
        let digest = |seed| {
            let config = SynthConfig {
                seed,
                requests: 2000,
                ..SynthConfig::default()
            };
            trace(&config)
                .requests
                .iter()
                .fold(0_u64, |digest, request| {
                    let numbers = [request.timestamp_ms, u64::from(request.output_tokens)];
                    numbers
                        .iter()
                        .chain(&request.blocks)
                        .fold(digest, |digest, number| {
                            (digest ^ number)
                                .wrapping_mul(0x100_0000_01b3)
                                .rotate_left(23)
                        })
                })
        };
        assert_ne!(digest(1), digest(2));
        // Recorded on x86-64 with Rust 1.95. Published numbers depend on it: a change of the
        // generator needs new ones.
        assert_eq!(digest(1), 906_284_548_484_942_438);
    }

    fn quantile<T: Copy + Ord>(values: &mut [T], percent: usize) -> T {
        values.sort_unstable();
        values[values.len() * percent / 100]
    }

    #[test]
    fn defaults_resemble_the_conversation_trace() {
        for seed in 1..4 {
            let trace = trace(&SynthConfig {
                seed,
                ..SynthConfig::default()
            });
            let mut input: Vec<_> = trace.requests.iter().map(|r| r.input_tokens).collect();
            let (p50, p90) = (quantile(&mut input, 50), quantile(&mut input, 90));
            assert!((6_000..8_000).contains(&p50), "input p50 {p50}");
            assert!((23_000..31_000).contains(&p90), "input p90 {p90}");

            let mut last_use = HashMap::new();
            let mut gaps = Vec::new();
            for request in &trace.requests {
                for id in &request.blocks {
                    if let Some(before) = last_use.insert(id, request.timestamp_ms) {
                        gaps.push(request.timestamp_ms - before);
                    }
                }
            }
            let percent_reused = gaps.len() * 100 / trace.accesses();
            assert!(
                (33..43).contains(&percent_reused),
                "reused {percent_reused}%"
            );
            let gap = quantile(&mut gaps, 50);
            assert!((90_000..150_000).contains(&gap), "reuse gap p50 {gap} ms");
            let duration_s = trace.requests.last().unwrap().timestamp_ms / 1000;
            assert!(
                (3_200..4_000).contains(&duration_s),
                "duration {duration_s} s"
            );
        }
    }

    #[test]
    fn config_out_of_range_is_refused_by_field() {
        type Case = (&'static str, fn(&mut SynthConfig));
        let cases: [Case; 12] = [
            ("requests", |c| c.requests = usize::MAX),
            ("block_tokens", |c| c.block_tokens = 0),
            ("block_tokens", |c| c.block_tokens = 1),
            ("session_gap_ms_mean", |c| c.session_gap_ms_mean = 0.0),
            ("turns_mean", |c| c.turns_mean = f64::NAN),
            ("turn_gap_ms_median", |c| c.turn_gap_ms_median = -1.0),
            ("first_tokens_median", |c| c.first_tokens_median = 0.0),
            ("turn_tokens_median", |c| c.turn_tokens_median = 0.0),
            ("output_tokens_median", |c| {
                c.output_tokens_median = f64::INFINITY
            }),
            ("system_prompts", |c| c.system_prompts = 0),
            ("context_tokens_max", |c| c.context_tokens_max = u32::MAX),
            ("context_tokens_max / block_tokens", |c| {
                c.context_tokens_max = 8191
            }),
        ];
        for (field, spoil) in cases {
            let mut config = SynthConfig::default();
            spoil(&mut config);
            let message = Trace::synthesize(&config).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("synthetic trace: {field} is ")),
                "{message}"
            );
        }
        let error = SynthConfig {
            block_tokens: 1,
            ..SynthConfig::default()
        }
        .check();
        assert_eq!(
            error.unwrap_err().to_string(),
            "synthetic trace: block_tokens is 1, must be between 2 and 1048576"
        );
    }
}
