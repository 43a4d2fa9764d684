//! Owns cutting a text trace into lines and naming the line in errors.

#![deny(clippy::indexing_slicing)]

use std::io::{BufRead, Read};
use std::path::Path;

use super::error::{Fault, Position, TraceError, excerpt};
use super::requests::Requests;

/// Turns the lines of one text format into requests.
pub(super) trait LineDecoder {
    /// Decodes one line, trimmed and not blank.
    fn decode(&mut self, line: &str, requests: &mut Requests) -> Result<(), Fault>;
}

/// Feeds `decoder` every line that is not blank, until the input ends or enough requests are in.
pub(super) fn read(
    path: &Path,
    mut input: impl BufRead,
    decoder: &mut dyn LineDecoder,
    requests: &mut Requests,
) -> Result<(), TraceError> {
    let len_max = requests.limits().line_len_max;
    let mut line = Vec::new();
    let mut number = 0;
    while !requests.is_complete() {
        line.clear();
        number += 1;
        let read_len = input
            .by_ref()
            .take(len_max.saturating_add(1))
            .read_until(b'\n', &mut line)
            .map_err(|error| TraceError::from_read(path, error))?;
        if read_len == 0 {
            break;
        }
        decode_line(&line, len_max, decoder, requests)
            .map_err(|fault| fault.at(path, Position::Line(number)))?;
    }
    Ok(())
}

fn decode_line(
    line: &[u8],
    len_max: u64,
    decoder: &mut dyn LineDecoder,
    requests: &mut Requests,
) -> Result<(), Fault> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    Fault::check_limit("bytes of a line", len_max, line.len() as u64)?;
    let text = str::from_utf8(line).map_err(|error| Fault::Malformed {
        expected: "UTF-8 text",
        found: excerpt(line.get(error.valid_up_to()..).unwrap_or(line)),
    })?;
    // A mark at the start of a file says UTF-8 and nothing else.
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        Ok(())
    } else {
        decoder.decode(text, requests)
    }
}
