//! The records of one connection, driven by whoever has its socket.
//!
//! **Invariants**
//! - Bytes of a send count as sent when all of their records are with the kernel.
//! - A connection keeps at most [`SEND_LEN_MAX`] of records to send, [`BUFFER_LONG`] of records that
//!   came, and the few records that are being opened; after short messages [`BUFFER_SHORT`].

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::task::{Poll, ready};

use rustls::{Connection, Error, InvalidMessage};

use super::fault::TlsFault;

/// Bytes of records that are received at once while messages are short.
const BUFFER_SHORT: usize = 4 << 10;

/// Bytes of records that are received at once while values come: two of the longest records.
pub(super) const BUFFER_LONG: usize = 34 << 10;

/// Bytes that become records at once, four of the longest.
const SEND_LEN_MAX: usize = 64 << 10;

/// How often the socket is read in a row without a byte of contents. Records may be empty, and whoever
/// sends them without end must not keep the thread to itself.
const READS_IN_A_ROW: u32 = 64;

/// TLS of one connection. It has no socket: each call is given the ways to receive and to send, which
/// do not wait.
pub struct TlsSession {
    session: Connection,
    /// Records that came and were not opened yet: `buffer[start..end]`.
    pub(super) buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the last receive filled the buffer.
    was_full: bool,
    /// Bytes of a send whose records are not all with the kernel.
    unsent: usize,
    fault: Option<TlsFault>,
}

impl TlsSession {
    pub(super) fn new(mut session: Connection) -> Self {
        session.set_buffer_limit(Some(SEND_LEN_MAX));
        Self {
            session,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            was_full: false,
            unsent: 0,
            fault: None,
        }
    }

    /// Agrees with the other side on keys, and checks who it is as far as the configuration asks.
    ///
    /// # Errors
    /// A [`TlsFault`] in an [`io::Error`], which the other side was told of if that went at once; else
    /// what the socket said. [`ErrorKind::UnexpectedEof`]: the other side ended.
    pub fn poll_handshake(
        &mut self,
        mut recv: impl FnMut(&mut [u8]) -> Poll<io::Result<usize>>,
        mut send: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(&mut send))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if self.start == self.end && ready!(self.poll_fill(&mut recv))? == 0 {
                return Poll::Ready(Err(ErrorKind::UnexpectedEof.into()));
            }
            if let Err(fault) = self.open_some() {
                // The alert goes out if it goes at once.
                let _ = self.poll_flush(&mut send);
                return Poll::Ready(Err(fault.into()));
            }
        }
    }

    /// Receives up to `into.len()` bytes; 0 when the other side sends no more.
    ///
    /// # Errors
    /// A [`TlsFault`] in an [`io::Error`], or what the socket said. [`ErrorKind::Interrupted`]: much
    /// came and nothing of it has contents; others should have their turn before the next call.
    pub fn poll_recv(
        &mut self,
        into: &mut [u8],
        mut recv: impl FnMut(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let (mut filled, mut reads) = (0, 0);
        loop {
            match self.session.reader().read(&mut into[filled..]) {
                // It is full, or the other side said that it ends.
                Ok(0) => return Poll::Ready(Ok(filled)),
                Ok(count) => {
                    filled += count;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            if self.start == self.end && self.fault.is_none() {
                if filled > 0 {
                    return Poll::Ready(Ok(filled));
                }
                reads += 1;
                if reads > READS_IN_A_ROW {
                    return Poll::Ready(Err(ErrorKind::Interrupted.into()));
                }
                if ready!(self.poll_fill(&mut recv))? == 0 {
                    // A stream that was cut ends in the middle of a frame, whose length tells it.
                    return Poll::Ready(Ok(0));
                }
            }
            match self.open_some() {
                Ok(()) => {}
                // What came before counts; the fault is told by the next call.
                Err(_) if filled > 0 => return Poll::Ready(Ok(filled)),
                Err(fault) => return Poll::Ready(Err(fault.into())),
            }
        }
    }

    /// Sends bytes of `parts` in order; how many went. After [`Poll::Pending`] the next call has to
    /// bring the same bytes again, or as many others in place of them: some became records already.
    ///
    /// # Errors
    /// What the socket said; [`ErrorKind::NotConnected`] before the end of the handshake.
    pub fn poll_send(
        &mut self,
        parts: &[IoSlice<'_>],
        mut send: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.session.is_handshaking() {
            return Poll::Ready(Err(ErrorKind::NotConnected.into()));
        }
        if self.unsent == 0 {
            // What is left of the handshake, or an answer to a change of keys.
            ready!(self.poll_flush(&mut send))?;
            self.unsent = self.session.writer().write_vectored(parts)?;
        }
        ready!(self.poll_flush(&mut send))?;
        Poll::Ready(Ok(std::mem::take(&mut self.unsent)))
    }

    /// Tells the other side that nothing more comes, if that goes at once.
    pub fn finish(&mut self, mut send: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>) {
        self.session.send_close_notify();
        // Who misses it finds the end of the stream behind its last frame.
        let _ = self.poll_flush(&mut send);
    }

    fn poll_flush(
        &mut self,
        send: &mut impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Outlet(send)) {
                Ok(0) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Receives records into the buffer, which is empty; how many bytes came.
    fn poll_fill(
        &mut self,
        recv: &mut impl FnMut(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let last = self.end;
        let len = match self.buffer.len() {
            BUFFER_LONG if last >= BUFFER_SHORT => BUFFER_LONG,
            _ if self.was_full => BUFFER_LONG,
            _ => BUFFER_SHORT,
        };
        if self.buffer.len() != len {
            self.buffer = vec![0; len];
        }
        let count = ready!(recv(&mut self.buffer))?;
        (self.start, self.end) = (0, count);
        self.was_full = count == len;
        Poll::Ready(Ok(count))
    }

    /// Gives some of the buffer to the session, which opens the records that are whole by then.
    fn open_some(&mut self) -> Result<(), TlsFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let was_handshaking = self.session.is_handshaking();
        let mut held = &self.buffer[self.start..self.end];
        let taken = self.session.read_tls(&mut held);
        let opened = match taken {
            Ok(count) => {
                self.start += count;
                self.session.process_new_packets().map_err(|error| {
                    let is_foreign = matches!(
                        error,
                        Error::InvalidMessage(
                            InvalidMessage::InvalidContentType
                                | InvalidMessage::UnknownProtocolVersion
                        )
                    );
                    match is_foreign && was_handshaking {
                        true => TlsFault::NotTls,
                        false => error.into(),
                    }
                })
            }
            Err(error) => Err(TlsFault::Broken {
                what: error.to_string(),
            }),
        };
        opened.map(drop).inspect_err(|fault| {
            self.fault = Some(fault.clone());
        })
    }
}

impl std::fmt::Debug for TlsSession {
    // Keys and contents stay out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSession")
            .field("held", &(self.end - self.start))
            .field("unsent", &self.unsent)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

/// A way to send as the session takes it.
struct Outlet<'a, F>(&'a mut F);

impl<F: FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>> Write for Outlet<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self.0)(slices) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
