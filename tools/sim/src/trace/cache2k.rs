//! Decodes the binary traces of the cache2k benchmarks: big-endian 32-bit keys and nothing else.
//!
//! A key is an `i32` in its source; the id here is its bit pattern, so that it is never negative.

#![deny(clippy::indexing_slicing)]

use std::io::{BufRead, Read};
use std::path::Path;

use super::TraceRequest;
use super::error::{Fault, Position, TraceError, excerpt};
use super::requests::Requests;

/// Bytes of one key.
pub(super) const KEY_LEN: usize = 4;

/// Bytes read at a time: whole keys, so that only the end of the file can cut one.
const READ_LEN: u64 = 64 << 10;

const _: () = assert!(READ_LEN.is_multiple_of(KEY_LEN as u64));

/// Reads keys until the input ends or enough requests are in; each key is one request.
pub(super) fn read(
    path: &Path,
    mut input: impl BufRead,
    requests: &mut Requests,
) -> Result<(), TraceError> {
    let mut keys = Vec::new();
    let mut offset = 0;
    loop {
        keys.clear();
        input
            .by_ref()
            .take(READ_LEN)
            .read_to_end(&mut keys)
            .map_err(|error| TraceError::from_read(path, error))?;
        if keys.is_empty() {
            return Ok(());
        }
        let (whole, rest) = keys.as_chunks::<KEY_LEN>();
        for &key in whole {
            if requests.is_complete() {
                return Ok(());
            }
            push(key, requests).map_err(|fault| fault.at(path, Position::Offset(offset)))?;
            offset += KEY_LEN as u64;
        }
        if !rest.is_empty() && !requests.is_complete() {
            let expected = "a 4-byte key (length of the trace divisible by 4)";
            let fault = Fault::Malformed {
                expected,
                found: excerpt(rest),
            };
            return Err(fault.at(path, Position::Offset(offset)));
        }
    }
}

fn push(key: [u8; KEY_LEN], requests: &mut Requests) -> Result<(), Fault> {
    #[expect(
        clippy::big_endian_bytes,
        reason = "the format is big-endian (Java's DataOutput)"
    )]
    let block = u64::from(u32::from_be_bytes(key));
    requests.push(1, || TraceRequest {
        timestamp_ms: 0,
        input_tokens: 0,
        output_tokens: 0,
        blocks: vec![block],
        is_chain: false,
    })
}
