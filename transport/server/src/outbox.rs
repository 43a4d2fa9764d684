//! What waits to be sent on a connection: bytes of frames, and parts of blocks in their slots.
//!
//! **Invariants**
//! - Parts go out in the order they came in.
//! - A block stays pinned until its last byte is with the kernel, or the connection is over.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::task::{Context, Poll, ready};

use terrace_engine::LocalPin;
use terrace_fabric::Sender;

/// Parts that go to the kernel in one call.
const PARTS_AT_ONCE: usize = 64;

/// Something to be sent.
pub(crate) enum Part {
    Bytes(Vec<u8>),
    Block(LocalPin, Range<usize>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Block(pin, range) => pin.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Outbox {
    parts: VecDeque<Part>,
    /// Bytes of the first part that are sent.
    sent: usize,
    len: usize,
    /// A task sends what there is.
    pub(crate) has_writer: bool,
}

impl Outbox {
    pub(crate) fn push(&mut self, part: Part) {
        self.len += part.bytes().len();
        self.parts.push_back(part);
    }

    /// Bytes that wait.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        (self.sent, self.len) = (0, 0);
    }

    /// Sends what there is; how much of it went in one call. Zero: there is nothing.
    pub(crate) fn poll_send(
        &mut self,
        sender: &impl Sender,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.parts.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut slices = [IoSlice::new(&[]); PARTS_AT_ONCE];
        let mut skip = self.sent;
        let count = self.parts.len().min(PARTS_AT_ONCE);
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part.bytes().get(skip..).unwrap_or_default());
            skip = 0;
        }
        let sent = ready!(sender.poll_send(context, &slices[..count]))?;
        self.advance(sent);
        Poll::Ready(Ok(sent))
    }

    fn advance(&mut self, sent: usize) {
        self.len -= sent;
        self.sent += sent;
        while let Some(first) = self.parts.front() {
            let len = first.bytes().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            self.parts.pop_front();
        }
        assert_eq!(self.sent, 0, "more was sent than there was");
        assert_eq!(self.len, 0, "the parts and their length differ");
    }
}
