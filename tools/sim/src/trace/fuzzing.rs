//! What the fuzz target of this crate calls: the reader of traces, compressed ones included.
//!
//! Aim: no file makes the reader panic, take more than its limits, or say what is wrong at a length
//! that no one reads. Method: limits far below those for files; a trace that is read is read
//! again up to half of its requests.

use std::path::Path;

use super::limits::Limits;
use super::{Trace, TraceError};

/// Small enough that an input of a few bytes reaches them.
const LIMITS: Limits = Limits {
    decompressed_len_max: 1 << 20,
    xz_len_max: 256 << 10,
    line_len_max: 16 << 10,
    request_blocks_max: 2048,
    requests_max: 4096,
    accesses_max: 8192,
};

/// Longest message of an error: names of a file, a place and a format, and an excerpt.
const MESSAGE_LEN_MAX: usize = 1000;

/// A trace in any format and compression.
#[must_use]
pub fn trace(bytes: &[u8]) -> bool {
    let read = |limit| Trace::read(Path::new("fuzz"), bytes, limit, LIMITS);
    let whole = match read(None) {
        Ok(whole) => whole,
        Err(error) => {
            check_error(&error);
            return false;
        }
    };
    let requests = &whole.requests;
    assert!(requests.len() as u64 <= LIMITS.requests_max);
    assert!(whole.accesses() as u64 <= LIMITS.accesses_max);
    let longest = requests.iter().map(|request| request.blocks.len()).max();
    assert!(longest.unwrap_or(0) as u64 <= LIMITS.request_blocks_max);
    // No format has later times than these: 2^53 ms, or the years up to 9999.
    assert!(requests.iter().all(|it| it.timestamp_ms <= 1 << 53));
    let half = requests.len() / 2;
    let start = read(Some(half)).expect("the whole was read");
    assert_eq!(start.requests, requests[..half]);
    true
}

fn check_error(error: &TraceError) {
    let message = error.to_string();
    assert!(message.starts_with("fuzz: "), "{message}");
    assert!(message.len() <= MESSAGE_LEN_MAX, "{message}");
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpus_replayed_is_accepted_and_refused() {
        replay::all(&[("trace", trace)]);
    }
}
