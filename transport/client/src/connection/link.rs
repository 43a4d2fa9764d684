//! The socket below the frames, with TLS or without.
//!
//! **Invariants**
//! - The lock of the records is taken for one call that does not wait, and under it no other lock.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use async_io::Async;
use futures_lite::future::poll_fn;
use terrace_fabric::tls::TlsSession;

use crate::wait;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Link {
    socket: Arc<Async<TcpStream>>,
    /// Sending and receiving share the keys' state, so one waits while the other works.
    tls: Option<Box<Mutex<TlsSession>>>,
}

impl Link {
    pub(super) fn new(socket: Async<TcpStream>, tls: Option<TlsSession>) -> Self {
        let tls = tls.map(|session| Box::new(Mutex::new(session)));
        Self {
            socket: Arc::new(socket),
            tls,
        }
    }

    /// Agrees with the node on TLS, if there is any.
    pub(super) async fn shake_hands(&self) -> io::Result<()> {
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        poll_fn(|cx| {
            loop {
                let (mut reads, mut writes) = (false, false);
                let shaken = lock(tls).poll_handshake(
                    |into| blocked(self.read_socket(into), &mut reads),
                    |slices| blocked(self.write_socket(slices), &mut writes),
                );
                if shaken.is_ready() {
                    return shaken;
                }
                // It waits for what it tried last; what it is told again is tried again.
                let ready = match writes {
                    true => self.poll_writable(cx),
                    false => self.poll_readable(cx),
                };
                match ready {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Whether bytes that came may lie here, in records, and no more in the socket.
    pub(super) const fn has_records(&self) -> bool {
        self.tls.is_some()
    }

    /// Receives without waiting.
    pub(super) fn read(&self, target: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.read_socket(target);
        };
        let mut waits = false;
        let recv = |into: &mut [u8]| blocked(self.read_socket(into), &mut waits);
        or_would_block(lock(tls).poll_recv(target, recv))
    }

    /// Sends without waiting. After [`ErrorKind::WouldBlock`] the next call brings the same bytes
    /// again, or as many others.
    pub(super) fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.write_socket(slices);
        };
        let mut waits = false;
        let send = |slices: &[IoSlice<'_>]| blocked(self.write_socket(slices), &mut waits);
        or_would_block(lock(tls).poll_send(slices, send))
    }

    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        wait::poll_readable(&self.socket, cx)
    }

    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        wait::poll_writable(&self.socket, cx)
    }

    /// Sends all of `bytes`.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let write = || self.write_vectored(&[IoSlice::new(bytes)]);
            match self.tried(write, Self::poll_writable).await? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => bytes = bytes.get(count..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    /// Fills `target`; how many bytes came before the node ended the connection.
    pub(super) async fn read_full(&self, target: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < target.len() {
            let read = || self.read(&mut target[filled..]);
            match self.tried(read, Self::poll_readable).await? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    /// What `call` comes to, which is made again behind each wait: that a wait is over shows only so.
    async fn tried(
        &self,
        mut call: impl FnMut() -> io::Result<usize>,
        wait: impl Fn(&Self, &mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> io::Result<usize> {
        poll_fn(|cx| {
            loop {
                match call() {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(wait(self, cx))?,
                    outcome => return Poll::Ready(outcome),
                }
            }
        })
        .await
    }

    fn read_socket(&self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.get_ref().read(into)
    }

    fn write_socket(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.get_ref().write_vectored(slices)
    }
}

fn lock(tls: &Mutex<TlsSession>) -> MutexGuard<'_, TlsSession> {
    // A session whose holder panicked has records that the node does not take: its connection ends.
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket's answer as the session takes it; `waits` notes that there was none.
fn blocked(answer: io::Result<usize>, waits: &mut bool) -> Poll<io::Result<usize>> {
    match answer {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            *waits = true;
            Poll::Pending
        }
        answer => Poll::Ready(answer),
    }
}

fn or_would_block(answer: Poll<io::Result<usize>>) -> io::Result<usize> {
    match answer {
        Poll::Ready(answer) => answer,
        Poll::Pending => Err(ErrorKind::WouldBlock.into()),
    }
}
