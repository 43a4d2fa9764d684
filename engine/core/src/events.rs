//! What happens to blocks, as a stream for indexers and routers.
//!
//! **Invariants**
//! - Events of one shard arrive in the order they happened, numbered without gaps.
//! - A subscriber that is too slow loses events, never slows the shard; the gap in the
//!   sequence and [`EventStream::lost`] tell of it.
//! - What waits for a subscriber goes with its stream; the shard lets go of the rest with its next
//!   event.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use crossbeam_queue::ArrayQueue;
use futures_util::task::AtomicWaker;
use terrace_types::{KeyHash, Namespace};

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
    /// The namespace of the block.
    pub namespace: Namespace,
    /// The block's key.
    pub key: Box<[u8]>,
    /// The hash of namespace and key.
    pub hash: KeyHash,
}

/// Which events a subscription is told of. The default: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only these kinds; `None` for all.
    pub kinds: Option<Vec<EventKind>>,
    /// Only of blocks in this namespace; `None` for all.
    pub namespace: Option<Namespace>,
}

impl EventFilter {
    /// Whether it lets an event through.
    fn takes(&self, kind: EventKind, namespace: Namespace) -> bool {
        let kinds = self.kinds.as_ref();
        let is_of_kind = kinds.is_none_or(|kinds| kinds.contains(&kind));
        is_of_kind && self.namespace.is_none_or(|own| own == namespace)
    }
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

/// The shard's end of a subscription. It keeps nothing of a stream that is gone.
#[derive(Clone)]
pub(crate) struct EventSink {
    queue: Weak<Queue>,
    filter: EventFilter,
}

/// A subscription to what `filter` takes that holds at most `capacity` events.
pub(crate) fn subscription(capacity: usize, filter: EventFilter) -> (EventSink, EventStream) {
    let queue = Arc::new(Queue {
        events: ArrayQueue::new(capacity.max(1)),
        lost: AtomicU64::new(0),
        waker: AtomicWaker::new(),
    });
    let sink = EventSink {
        queue: Arc::downgrade(&queue),
        filter,
    };
    (sink, EventStream { queue })
}

/// What became of an event at a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It waits there, or the subscription is not of such events.
    Done,
    /// There was no room.
    Lost,
    /// The stream is gone.
    Gone,
}

impl EventSink {
    /// Hands an event over.
    pub(crate) fn send(&self, event: &Event) -> Sent {
        let Some(queue) = self.queue.upgrade() else {
            return Sent::Gone;
        };
        if !self.filter.takes(event.kind, event.namespace) {
            return Sent::Done;
        }
        // Looked at first: for one that does not keep up no key is copied.
        let is_taken = !queue.events.is_full() && queue.events.push(event.clone()).is_ok();
        if !is_taken {
            queue.lost.fetch_add(1, Ordering::Relaxed);
        }
        queue.waker.wake();
        if is_taken { Sent::Done } else { Sent::Lost }
    }

    /// Whether no stream reads from it any more.
    pub(crate) fn is_orphan(&self) -> bool {
        self.queue.strong_count() == 0
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
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`EventStream::next`], for whoever polls several things.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.try_next() {
            return Poll::Ready(event);
        }
        self.queue.waker.register(context.waker());
        self.try_next().map_or(Poll::Pending, Poll::Ready)
    }

    /// Events that found no room, over all shards.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.queue.lost.load(Ordering::Relaxed)
    }
}
