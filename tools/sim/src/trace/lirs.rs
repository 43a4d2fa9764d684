//! Decodes the traces of the LIRS paper: one block number per line; a line that starts with `*`
//! marks a phase of the program and is skipped.

#![deny(clippy::indexing_slicing)]

use super::TraceRequest;
use super::error::Fault;
use super::lines::LineDecoder;
use super::requests::Requests;

/// Decoder of LIRS lines.
#[derive(Debug)]
pub(super) struct LirsDecoder;

impl LineDecoder for LirsDecoder {
    fn decode(&mut self, line: &str, requests: &mut Requests) -> Result<(), Fault> {
        if line.starts_with('*') {
            return Ok(());
        }
        let block = line
            .parse()
            .map_err(|_| Fault::malformed("one integer or `*`", line))?;
        requests.push(1, || TraceRequest {
            timestamp_ms: 0,
            input_tokens: 0,
            output_tokens: 0,
            blocks: vec![block],
            is_chain: false,
        })
    }
}
