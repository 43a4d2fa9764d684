//! The executor seam: what shard code may ask of the thread it runs on.
//!
//! Shard code sees the [`Runtime`] trait and [`Mailbox`]es, and names no executor. Two
//! runtimes exist: [`executor`] runs a shard on a pinned glommio thread, [`sim`] runs any
//! count of shards on one thread in virtual time, in an order that a seed decides.
//!
//! glommio 0.9's traps and where they are met: task panics take its executor down, so
//! [`executor`] wraps every task; a runnable task keeps the reactor from its completions for
//! up to the preemption interval, so that is 1 ms here; `Timer(0)` does not yield, so
//! [`Tasks::yield_now`] does; an executor loses one eventfd in its life, so
//! [`executor`] keeps the threads of ended shards for later ones.

#![deny(unsafe_code)]

pub mod affinity;
mod busy;
pub mod executor;
mod fd;
pub mod io;
pub mod mailbox;
pub mod net;
pub mod sim;

pub use terrace_types::{LocalFuture, Tasks};

pub use fd::Eventfd;
pub use futures_lite::future::block_on;
pub use mailbox::{Mailbox, MailboxSender, SendError};

/// What shard code may ask of the thread it runs on.
pub trait Runtime: Tasks {
    /// Completes when `wake` was signalled since the last wait on it.
    fn wait_for(&self, wake: &Eventfd) -> LocalFuture<'static, ()>;
}
