//! Owns reading xz files. The decoder works in memory and has no bound, so the lengths the file
//! states are added up first.

#![deny(clippy::indexing_slicing)]

use std::io::{self, BufRead, Cursor, Read};

use super::error::StreamFault;

/// First bytes of a file.
pub(super) const MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];

/// Bytes of the stream header: magic, flags, checksum.
const STREAM_HEADER_LEN: usize = 12;

/// The decompressed content of `input`; the first read decodes all of it.
pub(super) struct XzReader<R> {
    /// Taken by the first read.
    input: Option<R>,
    content: Cursor<Vec<u8>>,
    len_max: u64,
}

impl<R: BufRead> XzReader<R> {
    /// Reads nothing yet; refuses more than `len_max` bytes before or after decompression.
    pub(super) fn new(input: R, len_max: u64) -> Self {
        Self {
            input: Some(input),
            content: Cursor::default(),
            len_max,
        }
    }
}

impl<R: BufRead> Read for XzReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(input) = self.input.take() {
            self.content = Cursor::new(decode(input, self.len_max)?);
        }
        self.content.read(buf)
    }
}

fn decode(input: impl BufRead, len_max: u64) -> io::Result<Vec<u8>> {
    let mut packed = Vec::new();
    input
        .take(len_max.saturating_add(1))
        .read_to_end(&mut packed)?;
    check_limit("bytes of an xz file", packed.len() as u64, len_max)?;
    let stated_len = stated_len(&packed).map_err(io::Error::other)?;
    check_limit(
        "bytes of an xz file after decompression",
        stated_len,
        len_max,
    )?;
    // The footer is 4 bytes of checksum, the length of the index, 2 of flags and 2 of magic. The
    // decoder adds one to the length without a check.
    if let Some((_, [.., 0xff, 0xff, 0xff, 0xff, _, _, _, _])) = packed.split_last_chunk::<12>() {
        return Err(io::Error::other("footer states an index of 16 GiB"));
    }

    let mut content = Vec::new();
    match lzma_rs::xz_decompress(&mut packed.as_slice(), &mut content) {
        Ok(()) => Ok(content),
        Err(lzma_rs::error::Error::IoError(error)) => Err(error),
        Err(lzma_rs::error::Error::HeaderTooShort(error)) => Err(error),
        Err(
            lzma_rs::error::Error::LzmaError(message) | lzma_rs::error::Error::XzError(message),
        ) => Err(io::Error::other(message)),
    }
}

fn check_limit(what: &'static str, found: u64, limit: u64) -> io::Result<()> {
    if found > limit {
        return Err(StreamFault::OverLimit {
            what,
            offset: 0,
            limit,
            found,
        }
        .into());
    }
    Ok(())
}

/// Adds up the decompressed lengths that the parts of an LZMA2 stream state in the clear. A file
/// cut short yields the sum up to the cut: the decoder stops there too.
pub(super) fn stated_len(packed: &[u8]) -> Result<u64, &'static str> {
    /// Bytes of the block check by its kind (xz format 1.1.0, section 2.1.1.2).
    const CHECK_LEN: [usize; 16] = [0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64];
    let kind = packed.get(7).map_or(0, |flags| usize::from(flags & 0x0f));
    let check_len = CHECK_LEN.get(kind).copied().unwrap_or(0);
    let mut total = 0;
    let mut at = STREAM_HEADER_LEN;
    // A block header starts with its length in words; 0 starts the index instead.
    while let Some(&[words, flags]) = packed.get(at..at + 2)
        && words != 0
    {
        if flags & 0x03 != 0 {
            return Err("more than one filter in an xz block");
        }
        let block = at;
        at += (usize::from(words) + 1) * 4;
        while let Some((part_len, unpacked_len)) = part(packed, at) {
            at += part_len;
            total += unpacked_len;
        }
        if packed.get(at) != Some(&0) {
            break;
        }
        at += 1;
        at = block + (at - block).next_multiple_of(4) + check_len;
    }
    Ok(total)
}

/// Length in the file and decompressed length of the LZMA2 part at `at`; none at the end.
fn part(packed: &[u8], at: usize) -> Option<(usize, u64)> {
    let &[control, high, low, packed_high, packed_low] = packed.get(at..at + 5)? else {
        return None;
    };
    let word = |high, low| usize::from(u16::from_le_bytes([low, high]));
    match control {
        1 | 2 => {
            let len = word(high, low) + 1;
            Some((3 + len, len as u64))
        }
        0x80.. => {
            let unpacked_len = (usize::from(control & 0x1f) << 16) + word(high, low) + 1;
            // From 0xc0 on, a byte of new properties follows the lengths.
            let head_len = if control >= 0xc0 { 6 } else { 5 };
            Some((
                head_len + word(packed_high, packed_low) + 1,
                unpacked_len as u64,
            ))
        }
        _ => None,
    }
}
