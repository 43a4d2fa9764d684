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
            // With 1.6 turns per session: 3.4 requests per second, as recorded.
            session_gap_ms_mean: 455.0,
            turns_mean: 1.6,
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
