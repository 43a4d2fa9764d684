//! Devices as the tier sees them, and the backends that carry their operations out.

use std::task::{Context, Poll};

use terrace_types::Nanos;

use crate::buffer::IoBuffer;
use crate::ops::IoFuture;

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its path, or another name; errors and reports carry it.
    pub name: String,
    /// Usable length in bytes, a multiple of 4096.
    pub len: u64,
    /// Logical sector length in bytes.
    pub sector: u32,
}

/// A medium of fixed length that moves whole units of 4096 bytes between itself and memory of
/// the caller's. Used on one thread; operations run side by side and end in any order.
///
/// Offsets, lengths and addresses are multiples of 4096. An operation owns its buffer until it
/// completes, whatever becomes of the future.
pub trait BlockDevice {
    /// What the device is.
    fn info(&self) -> &DeviceInfo;

    /// Reads `len` bytes at `offset` to the start of `buffer`.
    fn read(&self, offset: u64, len: u32, buffer: IoBuffer, deadline: Nanos) -> IoFuture;

    /// Writes the first `len` bytes of `buffer` to `offset`.
    fn write(&self, offset: u64, len: u32, buffer: IoBuffer, deadline: Nanos) -> IoFuture;

    /// Makes all writes that completed before this call survive power loss.
    fn flush(&self, deadline: Nanos) -> IoFuture;
}

/// How a backend tells that operations completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// By the eventfd that it was opened with.
    Event,
    /// Not at all: it has to be asked as long as operations are under way.
    Polled,
    /// By the clock: the next is due then.
    At(Nanos),
}

/// What carries the operations of a shard's devices out. A driver on the shard's thread turns
/// it: submits when something was queued, reaps when something may have completed, and lets
/// operations expire.
pub trait IoBackend {
    /// Ready when operations are queued, or were handed over since the last call of this;
    /// otherwise `context` is woken by the next one.
    fn poll_queued(&self, context: &mut Context<'_>) -> Poll<()>;

    /// Hands all queued operations to the medium.
    fn submit(&self);

    /// Takes in what completed by `now`, or as much of it as tasks should see before they ask
    /// for more; returns how many operations. Asked again it takes the rest.
    fn reap(&self, now: Nanos) -> usize;

    /// Resolves operations whose deadline passed.
    fn expire(&self, now: Nanos);

    /// Operations under way, queued ones included.
    fn in_flight(&self) -> usize;

    /// How completions are told.
    fn completion(&self) -> Completion;
}
