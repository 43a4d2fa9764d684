//! Decodes the `.lis` traces of the ARC paper (FAST'03): `start count ignore seq` per line.
//!
//! A line is one request for the blocks `start .. start + count`.

#![deny(clippy::indexing_slicing)]

use super::TraceRequest;
use super::error::Fault;
use super::lines::LineDecoder;
use super::requests::Requests;

const EXPECTED: &str = "four integers `start count ignore seq`";

/// Decoder of `.lis` lines.
#[derive(Debug)]
pub(super) struct ArcDecoder;

impl LineDecoder for ArcDecoder {
    fn decode(&mut self, line: &str, requests: &mut Requests) -> Result<(), Fault> {
        let malformed = || Fault::malformed(EXPECTED, line);
        let mut words = line.split_ascii_whitespace();
        let mut next = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (Some(start), Some(count), Some(_ignored), Some(_seq)) =
            (next(), next(), next(), next())
        else {
            return Err(malformed());
        };
        if words.next().is_some() {
            return Err(malformed());
        }
        let end = start
            .checked_add(count)
            .ok_or_else(|| Fault::malformed("`start + count` to fit in 64 bits", line))?;
        requests.push(count, || TraceRequest {
            timestamp_ms: 0,
            input_tokens: 0,
            output_tokens: 0,
            blocks: (start..end).collect(),
            is_chain: false,
        })
    }
}
