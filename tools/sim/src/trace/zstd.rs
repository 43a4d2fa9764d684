//! Owns reading zstd files: one frame after the other, checksums and lengths compared.

#![deny(clippy::indexing_slicing)]

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// First bytes of a frame.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A frame without content. The decoder only bounds the window (to 100 MiB) from its second frame
/// on, so it is shown this one first.
const EMPTY_FRAME: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];

/// Bytes decoded at a time: the largest block of the format.
const STEP_LEN: usize = 128 << 10;

/// The decompressed content of all frames of `input`.
pub(super) struct ZstdReader<R> {
    input: R,
    decoder: FrameDecoder,
    /// Content bytes of the current frame so far; none between frames.
    frame_len: Option<u64>,
}

impl<R: BufRead> ZstdReader<R> {
    /// Reads nothing yet.
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            decoder: FrameDecoder::new(),
            frame_len: None,
        }
    }

    /// Starts the next frame; false at the end of the input.
    fn open_frame(&mut self) -> io::Result<bool> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(false);
        }
        self.decoder
            .reset(&EMPTY_FRAME[..])
            .map_err(io::Error::other)?;
        match self.decoder.reset(&mut self.input) {
            Ok(()) => self.frame_len = Some(0),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let length = u64::from(length);
                let skipped = io::copy(&mut self.input.by_ref().take(length), &mut io::sink())?;
                if skipped < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(true)
    }

    /// Compares what came out of a frame of `frame_len` bytes with what its head and foot say.
    fn close_frame(&self, frame_len: u64) -> io::Result<()> {
        // The decoder gives 0 for a frame that does not state its length.
        let stated_len = self.decoder.content_size();
        if stated_len != 0 && stated_len != frame_len {
            let message = format!("frame of {frame_len} bytes states {stated_len}");
            return Err(io::Error::other(message));
        }
        if let Some(stated) = self.decoder.get_checksum_from_data() {
            let actual = self.decoder.get_calculated_checksum();
            if actual != Some(stated) {
                let message = format!("frame checksum {actual:x?}, expected {stated:x}");
                return Err(io::Error::other(message));
            }
        }
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(frame_len) = self.frame_len else {
                if self.open_frame()? {
                    continue;
                }
                return Ok(0);
            };
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBytes(STEP_LEN))
                    .map_err(io::Error::other)?;
            }
            let read_len = self.decoder.read(buf)?;
            if read_len > 0 {
                self.frame_len = Some(frame_len.saturating_add(read_len as u64));
                return Ok(read_len);
            }
            self.close_frame(frame_len)?;
            self.frame_len = None;
        }
    }
}
