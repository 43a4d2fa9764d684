//! Owns telling the trace formats apart by how the content starts.

#![deny(clippy::indexing_slicing)]

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::arc::ArcDecoder;
use super::azure::{AzureDecoder, HEADER};
use super::cache2k;
use super::error::{TraceError, excerpt};
use super::lines;
use super::lirs::LirsDecoder;
use super::mooncake::MooncakeDecoder;
use super::requests::Requests;

/// The formats, for the error that says a file is in none of them.
pub(super) const FORMATS: &str = "Mooncake jsonl (timestamp, input_length, output_length, \
    hash_ids), ARC lines `start count ignore seq`, LIRS (one integer per line), cache2k \
    (big-endian 32-bit keys), Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens)";

/// Bytes looked at. A line of ARC, LIRS or the CSV header is far shorter; a binary file shows a
/// control byte long before.
const PREFIX_LEN: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Mooncake,
    Arc,
    Lirs,
    Cache2k,
    Azure,
}

/// Recognises the format of the decompressed `input` and reads it into `requests`.
pub(super) fn read(
    path: &Path,
    mut input: impl Read,
    requests: &mut Requests,
) -> Result<(), TraceError> {
    let mut prefix = Vec::new();
    input
        .by_ref()
        .take(PREFIX_LEN)
        .read_to_end(&mut prefix)
        .map_err(|error| TraceError::from_read(path, error))?;
    let Some(format) = recognise(&prefix) else {
        return Err(TraceError::UnknownFormat {
            path: path.to_owned(),
            found: excerpt(&prefix),
        });
    };
    let whole = io::Cursor::new(prefix).chain(BufReader::new(input));
    decode(format, path, whole, requests)
}

fn decode(
    format: Format,
    path: &Path,
    input: impl BufRead,
    requests: &mut Requests,
) -> Result<(), TraceError> {
    match format {
        Format::Mooncake => lines::read(path, input, &mut MooncakeDecoder, requests),
        Format::Arc => lines::read(path, input, &mut ArcDecoder, requests),
        Format::Lirs => lines::read(path, input, &mut LirsDecoder, requests),
        Format::Azure => lines::read(path, input, &mut AzureDecoder::default(), requests),
        Format::Cache2k => cache2k::read(path, input, requests),
    }
}

/// The format of a file that starts with `prefix`, if it is a known one.
fn recognise(prefix: &[u8]) -> Option<Format> {
    let is_whole_file = (prefix.len() as u64) < PREFIX_LEN;
    if !is_text(prefix, is_whole_file) {
        // Of a short file the length is known; of a long one it shows at the end.
        let is_in_keys = !is_whole_file || prefix.len().is_multiple_of(cache2k::KEY_LEN);
        return is_in_keys.then_some(Format::Cache2k);
    }
    let text = String::from_utf8_lossy(prefix);
    let text = text.trim_start_matches('\u{feff}');
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let words = line.split_whitespace().count();
    if line.starts_with('{') {
        Some(Format::Mooncake)
    } else if line == HEADER {
        Some(Format::Azure)
    } else if line.starts_with('*') || (words == 1 && is_number(line)) {
        Some(Format::Lirs)
    } else if words == 4 && line.split_whitespace().all(is_number) {
        Some(Format::Arc)
    } else {
        None
    }
}

/// Whether `prefix` is UTF-8 without control characters. An empty file counts as text.
fn is_text(prefix: &[u8], is_whole_file: bool) -> bool {
    let has_control = prefix
        .iter()
        .any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace());
    // The end of a prefix may cut a character in two: that has no error length.
    let is_utf8 = match str::from_utf8(prefix) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && !is_whole_file,
    };
    is_utf8 && !has_control
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognise_first_line_of_each_format_tells_them_apart() {
        let cases: [(&[u8], Option<Format>); 15] = [
            (b"{\"timestamp\": 0}", Some(Format::Mooncake)),
            (b"\n  {}\n", Some(Format::Mooncake)),
            (b"\xef\xbb\xbf{}\n", Some(Format::Mooncake)),
            (b"1 2 0 0\n", Some(Format::Arc)),
            (b"1\t2\t0\t0\r\n", Some(Format::Arc)),
            (b"17\r\n18\r\n", Some(Format::Lirs)),
            (b"*\n18\n", Some(Format::Lirs)),
            (
                b"TIMESTAMP,ContextTokens,GeneratedTokens\n",
                Some(Format::Azure),
            ),
            (b"\0\0\0\x01", Some(Format::Cache2k)),
            (b"\xff\xff\xff\xfe", Some(Format::Cache2k)),
            (b"\0\0\0\x01\0", None),
            (b"", None),
            (b"\n \n", None),
            (b"hello world\n", None),
            (b"1 2 3\n", None),
        ];
        for (prefix, expected) in cases {
            assert_eq!(recognise(prefix), expected, "{}", excerpt(prefix));
        }
    }

    #[test]
    fn recognise_long_line_cut_inside_a_character_is_text() {
        for shift in 0..2 {
            let text = format!("{}{}", "{ ".split_at(1 + shift).0, "ä".repeat(4096));
            let mut prefix = Vec::new();
            text.as_bytes()
                .take(PREFIX_LEN)
                .read_to_end(&mut prefix)
                .unwrap();
            assert_eq!(recognise(&prefix), Some(Format::Mooncake), "shift {shift}");
        }
    }
}
