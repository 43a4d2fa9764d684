//! Decodes the jsonl traces of Mooncake (FAST'25): one request per line with `timestamp` (ms),
//! `input_length`, `output_length` and `hash_ids`.
//!
//! Hash ids name prefixes, so a request is a chain. Other fields are ignored.

#![deny(clippy::indexing_slicing)]

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::TraceRequest;
use super::error::Fault;
use super::lines::LineDecoder;
use super::requests::Requests;

/// As much of the parser's message as is shown: it may quote a value of any length.
const MESSAGE_CHARS_MAX: usize = 160;

/// Decoder of Mooncake lines.
#[derive(Debug)]
pub(super) struct MooncakeDecoder;

/// A line. Fields are optional to tell a missing one (named in the error) from a wrong one.
#[derive(Deserialize)]
struct Line {
    #[serde(default, deserialize_with = "timestamp")]
    timestamp: Option<serde_json::Number>,
    #[serde(default, deserialize_with = "input_length")]
    input_length: Option<u32>,
    #[serde(default, deserialize_with = "output_length")]
    output_length: Option<u32>,
    #[serde(default, deserialize_with = "hash_ids")]
    hash_ids: Option<Vec<u64>>,
}

impl LineDecoder for MooncakeDecoder {
    fn decode(&mut self, line: &str, requests: &mut Requests) -> Result<(), Fault> {
        let line: Line = serde_json::from_str(line).map_err(|error| describe(&error))?;
        let missing = |field| Fault::MissingField { field };
        let timestamp = line.timestamp.ok_or_else(|| missing("timestamp"))?;
        let input_tokens = line.input_length.ok_or_else(|| missing("input_length"))?;
        let output_tokens = line.output_length.ok_or_else(|| missing("output_length"))?;
        let blocks = line.hash_ids.ok_or_else(|| missing("hash_ids"))?;
        let timestamp_ms = whole_ms(&timestamp).ok_or_else(|| {
            Fault::malformed("a `timestamp` of 0 to 2^53 ms", &timestamp.to_string())
        })?;
        requests.push(blocks.len() as u64, || TraceRequest {
            timestamp_ms,
            input_tokens,
            output_tokens,
            blocks,
            is_chain: true,
        })
    }
}

/// The parser counts the line it was given as line 1: keep its message and column only.
fn describe(error: &serde_json::Error) -> Fault {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    let (head, dots) = match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => (message.get(..end).unwrap_or_default(), "..."),
        None => (message, ""),
    };
    Fault::Malformed {
        expected: "a JSON object with timestamp, input_length, output_length, hash_ids",
        found: format!("{head}{dots} (column {})", error.column()),
    }
}

/// Whole milliseconds of an integer or fraction; none if negative or absurd.
fn whole_ms(timestamp: &serde_json::Number) -> Option<u64> {
    /// 2^53: above it a float no longer holds every integer.
    const WHOLE_MAX: u64 = 1 << 53;
    const MS_MAX: f64 = 9_007_199_254_740_992.0;
    if let Some(whole) = timestamp.as_u64() {
        return (whole <= WHOLE_MAX).then_some(whole);
    }
    let fraction = timestamp.as_f64()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked first"
    )]
    (0.0..=MS_MAX)
        .contains(&fraction)
        .then(|| fraction.round() as u64)
}

fn timestamp<'de, D: Deserializer<'de>>(d: D) -> Result<Option<serde_json::Number>, D::Error> {
    named("timestamp", d)
}

fn input_length<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    named("input_length", d)
}

fn output_length<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    named("output_length", d)
}

fn hash_ids<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<u64>>, D::Error> {
    named("hash_ids", d)
}

/// Deserializes a field and names it in the error; serde names missing fields only.
fn named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    field: &'static str,
    deserializer: D,
) -> Result<T, D::Error> {
    T::deserialize(deserializer).map_err(|error| D::Error::custom(format_args!("{field}: {error}")))
}
