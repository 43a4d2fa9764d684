//! What happens to blocks, as a stream for indexers and routers.
//!
//! **Invariants**
//! - Events of one shard arrive in the order they happened, numbered without gaps.
//! - A subscriber that is too slow loses events, never slows the shard; the gap in the
//!   sequence and [`EventStream::lost`] tell of it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use crossbeam_queue::ArrayQueue;
use futures_util::task::AtomicWaker;
use terrace_types::KeyHash;

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Stored in DRAM by a put.
    Stored,
    /// Given up; no tier holds it.
    Evicted,
    /// Removed or replaced by a caller.
    Removed,
    /// Copied to the tier below and dropped from DRAM.
    Demoted,
    /// Copied from the tier below into DRAM.
    Promoted,
    /// Given up by the tier below and still in DRAM: what was durable is not any more.
    Undurable,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The shard it happened in.
    pub shard: usize,
    /// Its number among the shard's events, from 1.
    pub sequence: u64,
    /// What happened.
    pub kind: EventKind,
    /// The block's key.
    pub key: Box<[u8]>,
    /// The hash of namespace and key.
    pub hash: KeyHash,
}

struct Queue {
    events: ArrayQueue<Event>,
    lost: AtomicU64,
    waker: AtomicWaker,
}

/// The receiving end of a subscription. Dropping it ends the subscription.
pub struct EventStream {
    queue: Arc<Queue>,
}

/// The shard's end of a subscription.
#[derive(Clone)]
pub(crate) struct EventSink {
    queue: Arc<Queue>,
}

/// A subscription that holds at most `capacity` events.
pub(crate) fn subscription(capacity: usize) -> (EventSink, EventStream) {
    let queue = Arc::new(Queue {
        events: ArrayQueue::new(capacity.max(1)),
        lost: AtomicU64::new(0),
        waker: AtomicWaker::new(),
    });
    (
        EventSink {
            queue: Arc::clone(&queue),
        },
        EventStream { queue },
    )
}

impl EventSink {
    /// Hands an event over; false when the subscriber is gone or had no room.
    pub(crate) fn send(&self, event: Event) -> bool {
        let taken = self.queue.events.push(event).is_ok();
        if !taken {
            self.queue.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.queue.waker.wake();
        taken
    }

    /// Whether no stream reads from it any more: only sinks are left.
    pub(crate) fn is_orphan(&self, sinks: usize) -> bool {
        Arc::strong_count(&self.queue) <= sinks
    }
}

impl EventStream {
    /// The next event that waits, if any.
    #[must_use]
    pub fn try_next(&self) -> Option<Event> {
        self.queue.events.pop()
    }

    /// The next event; waits for it. One task may wait at a time.
    pub async fn next(&self) -> Event {
        poll_fn(|context| {
            if let Some(event) = self.try_next() {
                return Poll::Ready(event);
            }
            self.queue.waker.register(context.waker());
            self.try_next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Events that found no room, over all shards.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.queue.lost.load(Ordering::Relaxed)
    }
}
