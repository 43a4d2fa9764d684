//! Eventfds: how other threads wake a shard that is parked in its ring; and descriptors as
//! glommio takes them.

#![expect(
    unsafe_code,
    reason = "glommio takes a file descriptor only as a raw one"
)]

use std::net::TcpStream as NetStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use glommio::io::BufferedFile;
use glommio::net::TcpStream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// A counter in the kernel that a shard can wait for. Clones share it.
#[derive(Clone, Debug)]
pub struct Eventfd {
    inner: Arc<EventFd>,
}

impl Eventfd {
    /// A new eventfd with nothing signalled. Reads of it block, which is what a ring needs.
    ///
    /// # Errors
    /// What the operating system said, normally `EMFILE`: too many open files.
    pub fn new() -> Result<Self, nix::Error> {
        let inner = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// A number that tells eventfds of this process apart while they live.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Wakes whoever waits, or the next one to wait.
    pub fn signal(&self) {
        // The counter overflows after 2^64 - 2 signals without a read; that does not happen.
        if let Err(error) = self.inner.write(1) {
            tracing::error!(%error, "signal an eventfd");
        }
    }

    /// Takes the signals there are, without waiting; false when there are none.
    pub(crate) fn try_take(&self) -> bool {
        let mut polled = [PollFd::new(self.inner.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
            && self.inner.read().is_ok()
    }

    /// The eventfd as a file that glommio can read from its ring.
    ///
    /// # Errors
    /// What the operating system said on duplicating the descriptor.
    pub(crate) fn to_glommio(&self) -> Result<BufferedFile, std::io::Error> {
        let copy: OwnedFd = self.inner.as_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is a fresh duplicate, open, and owned by nobody else.
        Ok(unsafe { BufferedFile::from_raw_fd(copy.into_raw_fd()) })
    }
}

/// A connected socket as one that glommio waits for.
pub(crate) fn to_glommio_stream(socket: OwnedFd) -> TcpStream {
    // SAFETY: the descriptor is open, and from here on owned by the stream alone.
    unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) }
}

/// The descriptor of a socket that glommio waits for.
pub(crate) fn as_fd(stream: &TcpStream) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as the stream that is borrowed.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }
}

/// A duplicate of the socket that glommio waits for.
pub(crate) fn from_glommio_stream(stream: &TcpStream) -> Result<NetStream, std::io::Error> {
    Ok(NetStream::from(as_fd(stream).try_clone_to_owned()?))
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
