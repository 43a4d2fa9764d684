//! One system call for many pieces of memory: what is sent from regions and received into them.
//!
//! **Invariants**
//! - Every piece lies in memory that is borrowed for as long as the list.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::memory::Memory;

/// Pieces that one call takes at most: the kernel's `UIO_MAXIOV`.
pub(super) const PIECE_COUNT_MAX: usize = 1024;

/// Pieces to be sent in order.
#[derive(Default)]
pub(super) struct Outgoing<'a> {
    pieces: Vec<libc::iovec>,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Outgoing<'a> {
    pub(super) fn push(&mut self, bytes: &'a [u8]) {
        self.pieces.push(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
    }

    /// `len` bytes at `offset` of `memory`, in which they lie.
    pub(super) fn push_memory(&mut self, memory: &'a Memory, offset: u64, len: u64) {
        self.pieces.push(libc::iovec {
            iov_base: memory.at(offset, len).as_ptr().cast(),
            iov_len: len as usize,
        });
    }

    pub(super) const fn is_full(&self) -> bool {
        self.pieces.len() >= PIECE_COUNT_MAX
    }

    /// Sends what the socket takes; how many bytes went.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let message = message(&mut self.pieces);
        // SAFETY: the message points to as many pieces as it says, each in borrowed memory, and
        // the call only reads them. What a concurrent writer of a region does to its bytes is
        // what the peer receives.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, FLAGS) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Pieces to be received into, in order.
#[derive(Default)]
pub(super) struct Incoming<'a> {
    pieces: Vec<libc::iovec>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Incoming<'a> {
    pub(super) fn push(&mut self, bytes: &'a mut [u8]) {
        self.pieces.push(libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        });
    }

    /// `len` bytes at `offset` of `memory`, in which they lie.
    pub(super) fn push_memory(&mut self, memory: &'a Memory, offset: u64, len: u64) {
        self.pieces.push(libc::iovec {
            iov_base: memory.at(offset, len).as_ptr().cast(),
            iov_len: len as usize,
        });
    }

    /// Receives what is there; how many bytes came. 0: the other side sends no more.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut message = message(&mut self.pieces);
        // SAFETY: the message points to as many pieces as it says, each in memory that is
        // borrowed for writing or belongs to a region, which is never behind a reference.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, FLAGS) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

/// A peer that has gone is an error of the call, not a signal.
const FLAGS: libc::c_int = libc::MSG_NOSIGNAL;

fn message(pieces: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeros is a message without name, pieces and control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len().min(PIECE_COUNT_MAX);
    message
}
