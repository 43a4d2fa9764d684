//! Owns undoing the compression of a trace file, told by its magic bytes, and bounding the result.
//!
//! Foreign decoders meet foreign bytes here. They hold asserts of their own, so a panic of theirs
//! counts as damage, and the stream stops for good at the first error.
//!
//! It does not defend against a file made to exhaust memory: the zstd decoder does not bound what a
//! single block expands to, and the xz decoder trusts the lengths inside a block.

#![deny(clippy::indexing_slicing)]

use std::io::{self, BufRead, Cursor, Read};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::{StreamFault, TraceError};
use super::limits::Limits;
use super::{xz, zstd};

/// Longest magic (xz).
const MAGIC_LEN_MAX: u64 = 6;

/// First bytes of compressed files that are not read, so that they are not taken for binary keys.
const UNKNOWN: [(&[u8], &str); 3] = [
    (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PK\x03\x04", "zip"),
];

/// The decompressed bytes of a trace file.
pub(super) struct Decompressed<'a> {
    inner: Box<dyn Read + 'a>,
    /// None for a file that is not compressed: its errors are the operating system's.
    compression: Option<&'static str>,
    offset: u64,
    len_max: u64,
}

/// Looks at the magic bytes of `input` and prepares to decompress it.
pub(super) fn open<'a>(
    path: &Path,
    mut input: impl BufRead + 'a,
    limits: Limits,
) -> Result<Decompressed<'a>, TraceError> {
    let read_error = |error| TraceError::from_read(path, error);
    let mut magic = Vec::new();
    input
        .by_ref()
        .take(MAGIC_LEN_MAX)
        .read_to_end(&mut magic)
        .map_err(read_error)?;
    if let Some(&(_, found)) = UNKNOWN.iter().find(|(known, _)| magic.starts_with(known)) {
        return Err(TraceError::UnknownCompression {
            path: path.to_owned(),
            found,
        });
    }
    let whole = Cursor::new(magic.clone()).chain(input);
    let (compression, inner): (_, Box<dyn Read + 'a>) = if magic.starts_with(&zstd::MAGIC) {
        (Some("zstd"), Box::new(zstd::ZstdReader::new(whole)))
    } else if magic.starts_with(&[0x1f, 0x8b]) {
        (Some("gzip"), Box::new(MultiGzDecoder::new(whole)))
    } else if magic.starts_with(&xz::MAGIC) {
        (
            Some("xz"),
            Box::new(xz::XzReader::new(whole, limits.xz_len_max)),
        )
    } else {
        (None, Box::new(whole))
    };
    Ok(Decompressed {
        inner,
        compression,
        offset: 0,
        len_max: limits.decompressed_len_max,
    })
}

impl Decompressed<'_> {
    /// The error to report for `error`: damage unless it is the file itself that cannot be read.
    fn explain(&self, error: io::Error) -> io::Error {
        let is_own = error
            .get_ref()
            .is_some_and(|inner| inner.is::<StreamFault>());
        match self.compression {
            Some(compression) if !is_own && error.raw_os_error().is_none() => {
                let found = error.to_string();
                StreamFault::Damaged {
                    compression,
                    offset: self.offset,
                    found,
                }
                .into()
            }
            _ => error,
        }
    }
}

impl Read for Decompressed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let inner = &mut self.inner;
        // Unwind safe: nothing reads `inner` again after a panic, and `buf` holds plain bytes.
        let result = panic::catch_unwind(AssertUnwindSafe(|| inner.read(buf)))
            .unwrap_or_else(|_| Err(io::Error::other("the decoder panicked")));
        let read_len = match result {
            Ok(read_len) => read_len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.inner = Box::new(io::empty());
                return Err(self.explain(error));
            }
        };
        self.offset += read_len as u64;
        if self.offset > self.len_max {
            let what = "bytes after decompression";
            let (offset, limit) = (self.offset, self.len_max);
            return Err(StreamFault::OverLimit {
                what,
                offset,
                limit,
                found: offset,
            }
            .into());
        }
        Ok(read_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_panicking_decoder_is_damage_and_ends_the_stream() {
        struct Panicking;
        impl Read for Panicking {
            fn read(&mut self, _buf: &mut [u8]) -> io::Result<usize> {
                panic!("expected by this test");
            }
        }
        let mut stream = Decompressed {
            inner: Box::new(Panicking),
            compression: Some("zstd"),
            offset: 9,
            len_max: 100,
        };
        let error = TraceError::from_read(Path::new("t"), stream.read(&mut [0]).unwrap_err());
        assert_eq!(
            error.to_string(),
            "t: zstd stream damaged after 9 decompressed bytes: the decoder panicked"
        );
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}
