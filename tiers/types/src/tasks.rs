//! What code that waits may ask of the thread it runs on: tasks and timers, no executor named.

use std::future::Future;
use std::pin::Pin;

use crate::{Clock, Nanos};

/// A future of one shard's thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Tasks and timers of the thread that a shard lives on.
pub trait Tasks: Clock {
    /// Starts a task on this thread. A panic in it ends the task alone and is logged.
    fn spawn(&self, task: LocalFuture<'static, ()>);

    /// Completes at `deadline`, or at once when that has passed.
    fn sleep_until(&self, deadline: Nanos) -> LocalFuture<'static, ()>;

    /// Lets the other tasks of the thread run.
    fn yield_now(&self) -> LocalFuture<'static, ()>;
}
