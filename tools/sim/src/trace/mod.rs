//! Owns reading recorded request traces: one file in, a list of requests with block ids out.
//!
//! The format is told from the content, never from the file name, in two steps: `decompress`
//! looks at the magic bytes, `format` at the first line that comes out. Each format has a file
//! of its own that turns one line (or key) into one request; `requests` counts and bounds them.
//!
//! **Invariants**
//! - A file cannot make the reader panic. What is kept of it is bounded by `limits`; what a decoder
//!   takes while it works, by what `decompress` says.
//! - Requests keep the order of the file: timestamps tie, and ties go by position.
//! - An error names the file, the line or byte, what was expected and what was found.
//!
//! It does not replay anything and does not judge a trace: repeated ids inside a request or ids
//! with two parents pass. [`synth`] makes a trace where there is no recorded one.

mod arc;
mod azure;
mod cache2k;
mod decompress;
mod error;
mod format;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod limits;
mod lines;
mod lirs;
mod mooncake;
mod random;
pub use random::Random;
mod requests;
pub mod synth;
#[cfg(test)]
mod tests;
mod xz;
mod zstd;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

pub use error::{Position, TraceError};
use limits::Limits;
use requests::Requests;
pub use synth::{SynthConfig, SynthError};

/// A recorded or synthetic sequence of requests, in order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// File name up to its first dot, or the name of the generator.
    pub name: String,
    /// The requests in the order of the file.
    pub requests: Vec<TraceRequest>,
}

/// One request: the blocks it reads and when it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Arrival since the start of the trace; 0 in formats that record no time.
    pub timestamp_ms: u64,
    /// Tokens of the prompt; 0 in formats that are not about language models.
    pub input_tokens: u32,
    /// Tokens generated; 0 in formats that are not about language models.
    pub output_tokens: u32,
    /// Ids of the blocks, in chain order. May be empty.
    pub blocks: Vec<u64>,
    /// Whether the parent of block `i` is block `i - 1`; false for traces of storage accesses.
    pub is_chain: bool,
}

impl Trace {
    /// Reads the trace at `path`, or its first `limit` requests: what follows those is not looked
    /// at, so damage there goes unseen.
    ///
    /// # Errors
    ///
    /// [`TraceError`] when the file cannot be read, is damaged, is in no known format, breaks its
    /// format, or exceeds a limit.
    pub fn open(path: &Path, limit: Option<usize>) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(|cause| TraceError::Io {
            op: "open",
            path: path.to_owned(),
            cause,
        })?;
        Self::read(path, BufReader::new(file), limit, Limits::DEFAULT)
    }

    /// Reads a trace from `input`; `path` names it.
    fn read(
        path: &Path,
        input: impl BufRead,
        limit: Option<usize>,
        limits: Limits,
    ) -> Result<Self, TraceError> {
        let mut requests = Requests::new(limit, limits);
        let plain = decompress::open(path, input, limits)?;
        format::read(path, plain, &mut requests)?;
        Ok(Self {
            name: name_of(path),
            requests: requests.into_list(),
        })
    }

    /// Number of block accesses: the block counts of all requests added up.
    #[must_use]
    pub fn accesses(&self) -> usize {
        self.requests
            .iter()
            .map(|request| request.blocks.len())
            .sum()
    }

    /// Number of different block ids. Sorts a copy of all ids: call it once.
    #[must_use]
    pub fn unique_blocks(&self) -> usize {
        let mut ids: Vec<u64> = self
            .requests
            .iter()
            .flat_map(|r| &r.blocks)
            .copied()
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    }
}

/// `traces/OLTP.lis.zst` is `OLTP`.
fn name_of(path: &Path) -> String {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    name.split('.')
        .find(|part| !part.is_empty())
        .unwrap_or(&name)
        .to_owned()
}
