//! How messages and slices go between two ends, whatever lies between them.
//!
//! A *message* is a few bytes that its receiver keeps until it has read them; a *slice* is a part
//! of a block that goes from memory of its owner to memory of its receiver, with no copy on the
//! way that the transport can do without. Over TCP both follow each other in one stream, and who
//! receives says which of the two comes next, as the protocol tells it. Over RDMA messages are
//! sends, and slices are read or written one-sided; over shared memory slices do not move at all.
//!
//! Nothing here names an executor: a [`Socket`] is what one makes of a connection, and all waits
//! are polls.

#![deny(unsafe_code)]

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod tcp;
pub mod thread;
pub mod tls;
pub mod transfer;
#[expect(unsafe_code, reason = "libibverbs is a C library")]
pub mod verbs;

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

pub use tcp::{Socket, TcpReceiver, TcpSender};

/// The end that sends.
pub trait Sender {
    /// Sends bytes of messages and slices, in order; how many went. The memory may be used for
    /// something else as soon as its bytes are counted.
    ///
    /// # Errors
    /// What became of the connection; nothing can be sent after that.
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Tells the other side that nothing more comes.
    fn finish(&self);

    /// Ends both directions. Whoever waits at either end is woken.
    fn close(&self);
}

/// The end that receives.
pub trait Receiver {
    /// Waits until `len` bytes of messages are there, or the other side ends: fewer are there then.
    /// See [`Receiver::message`].
    ///
    /// # Errors
    /// What became of the connection.
    fn poll_message(&mut self, context: &mut Context<'_>, len: usize) -> Poll<io::Result<()>>;

    /// The bytes of messages that are there. Bytes of slices may follow among them.
    fn message(&self) -> &[u8];

    /// Takes note that the first `len` bytes of [`Receiver::message`] were read.
    fn consume(&mut self, len: usize);

    /// Receives bytes of a slice to where they belong; how many came. 0: the other side ended.
    ///
    /// # Errors
    /// What became of the connection.
    fn poll_slice(&mut self, context: &mut Context<'_>, into: &mut [u8])
    -> Poll<io::Result<usize>>;
}
