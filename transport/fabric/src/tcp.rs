//! Endpoints over TCP: one stream, in which slices follow the messages that tell of them.
//!
//! **Invariants**
//! - Bytes of slices that came along with a message are handed out before later ones.
//! - A connection that waits keeps no more memory than [`BUFFER_LEN`], and [`BUFFER_KEPT_MAX`] while
//!   part of a message is there.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use crate::{Receiver, Sender};

/// Bytes of messages that are received at once: a request for a few blocks. What it takes of a
/// slice that follows is copied, so it is short.
const BUFFER_LEN: usize = 4096;

/// The longest buffer that a receiver keeps after a long message.
const BUFFER_KEPT_MAX: usize = 64 << 10;

/// A connection as an executor makes it, for one thread.
pub trait Socket {
    /// Receives up to `into.len()` bytes; 0 when the other side sends no more.
    ///
    /// # Errors
    /// What the operating system said.
    fn poll_recv(&self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Sends bytes of `slices` in order; how many went.
    ///
    /// # Errors
    /// What the operating system said.
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Tells the other side that nothing more comes.
    fn finish(&self);

    /// Ends both directions and wakes whoever waits.
    fn close(&self);
}

/// Sends over TCP.
pub struct TcpSender<S> {
    socket: Rc<S>,
}

impl<S: Socket> TcpSender<S> {
    /// The sending half of `socket`.
    #[must_use]
    pub const fn new(socket: Rc<S>) -> Self {
        Self { socket }
    }
}

impl<S: Socket> Sender for TcpSender<S> {
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_send(context, parts)
    }

    fn finish(&self) {
        self.socket.finish();
    }

    fn close(&self) {
        self.socket.close();
    }
}

/// Receives over TCP.
pub struct TcpReceiver<S> {
    socket: Rc<S>,
    buffer: Vec<u8>,
    /// What was received and not read: `buffer[start..end]`.
    start: usize,
    end: usize,
}

impl<S: Socket> TcpReceiver<S> {
    /// The receiving half of `socket`, of which `received` was received before.
    #[must_use]
    pub fn new(socket: Rc<S>, received: Vec<u8>) -> Self {
        Self {
            socket,
            start: 0,
            end: received.len(),
            buffer: received,
        }
    }

    /// Makes room for `len` bytes from `start` on.
    fn make_room(&mut self, len: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > BUFFER_KEPT_MAX {
                self.buffer = Vec::new();
            }
        }
        if self.start > 0 && self.start + len > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let len = len.max(BUFFER_LEN);
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
    }
}

impl<S: Socket> Receiver for TcpReceiver<S> {
    fn poll_message(&mut self, context: &mut Context<'_>, len: usize) -> Poll<io::Result<()>> {
        while self.end - self.start < len {
            self.make_room(len);
            let room = &mut self.buffer[self.end..];
            let count = ready!(self.socket.poll_recv(context, room))?;
            if count == 0 {
                break;
            }
            self.end += count;
        }
        Poll::Ready(Ok(()))
    }

    fn message(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
    }

    fn poll_slice(
        &mut self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let here = self.message();
        if here.is_empty() {
            return self.socket.poll_recv(context, into);
        }
        let count = here.len().min(into.len());
        into[..count].copy_from_slice(&here[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    /// Hands out its bytes `step` at a time, and keeps what is sent.
    struct Script {
        bytes: RefCell<VecDeque<u8>>,
        step: usize,
        sent: RefCell<Vec<u8>>,
    }

    impl Script {
        fn new(bytes: &[u8], step: usize) -> Rc<Self> {
            Rc::new(Self {
                bytes: RefCell::new(bytes.iter().copied().collect()),
                step,
                sent: RefCell::default(),
            })
        }
    }

    impl Socket for Script {
        fn poll_recv(&self, _: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
            let mut bytes = self.bytes.borrow_mut();
            let count = self.step.min(into.len()).min(bytes.len());
            into.iter_mut()
                .zip(bytes.drain(..count))
                .for_each(|(to, byte)| *to = byte);
            Poll::Ready(Ok(count))
        }

        fn poll_send(
            &self,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut sent = self.sent.borrow_mut();
            slices
                .iter()
                .for_each(|slice| sent.extend_from_slice(slice));
            Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
        }

        fn finish(&self) {}

        fn close(&self) {
            self.bytes.borrow_mut().clear();
        }
    }

    fn whole<T>(poll: Poll<io::Result<T>>) -> T {
        let Poll::Ready(value) = poll else {
            unreachable!("a script never waits");
        };
        value.unwrap()
    }

    /// Aim: messages and slices come out as they were put in, wherever the stream is cut. Method:
    /// messages of many lengths, each behind a slice, received in steps of every kind.
    #[test]
    fn receiver_tells_messages_and_slices_apart_at_any_cut() {
        let mut stream = Vec::new();
        let lens = [1, 40, 4095, 4096, 4097, 100_000, 3, 70_000, 8];
        for (at, len) in lens.into_iter().enumerate() {
            stream.extend(std::iter::repeat_n(at as u8, len));
            stream.extend(std::iter::repeat_n(at as u8 | 0x80, len * 2));
        }
        let mut context = Context::from_waker(Waker::noop());
        for step in [1, 7, 4096, 5000, 1 << 20] {
            let script = Script::new(&stream, step);
            let mut receiver = TcpReceiver::new(Rc::clone(&script), Vec::new());
            for (at, len) in lens.into_iter().enumerate() {
                whole(receiver.poll_message(&mut context, len));
                assert!(
                    receiver.message()[..len]
                        .iter()
                        .all(|byte| *byte == at as u8)
                );
                receiver.consume(len);
                let mut slice = vec![0; len * 2];
                let mut filled = 0;
                while filled < slice.len() {
                    filled += whole(receiver.poll_slice(&mut context, &mut slice[filled..]));
                }
                assert!(slice.iter().all(|byte| *byte == at as u8 | 0x80));
            }
            whole(receiver.poll_message(&mut context, 1));
            assert!(receiver.message().is_empty(), "the other side ended");
            assert!(receiver.buffer.len() <= BUFFER_KEPT_MAX);
        }
    }

    #[test]
    fn receiver_begins_with_what_was_received_before() {
        let mut context = Context::from_waker(Waker::noop());
        let script = Script::new(b"lo", 1);
        let mut receiver = TcpReceiver::new(script, b"hel".to_vec());
        whole(receiver.poll_message(&mut context, 5));
        assert_eq!(receiver.message(), b"hello");
    }

    #[test]
    fn sender_passes_parts_on_in_order() {
        let mut context = Context::from_waker(Waker::noop());
        let script = Script::new(b"", 1);
        let sender = TcpSender::new(Rc::clone(&script));
        let parts = [
            IoSlice::new(b"head"),
            IoSlice::new(b""),
            IoSlice::new(b"value"),
        ];
        assert_eq!(whole(sender.poll_send(&mut context, &parts)), 9);
        assert_eq!(*script.sent.borrow(), b"headvalue");
        sender.close();
    }
}
