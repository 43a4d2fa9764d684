//! A request's way through the server: when it came, where its time went, and when the last byte of
//! its reply was sent.
//!
//! **Invariants**
//! - A clock is read at most once for each hop, and for waits of the tiers only when there are any.
//! - Replies of a connection are sent in the order in which they were queued.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use terrace_runtime::Runtime;
use terrace_types::Nanos;
use terrace_wire::Verb;

use crate::latency::Hop;

/// The times of a request under way.
pub(crate) struct Trace {
    pub(crate) id: u64,
    pub(crate) verb: Verb,
    pub(crate) received_len: u64,
    pub(crate) arrived: Nanos,
    pub(crate) keys: Cell<u32>,
    pub(crate) sent_len: Cell<u64>,
    pub(crate) is_cancelled: Cell<bool>,
    /// When the last of its reply was queued.
    ended: Cell<Nanos>,
    hops: [Cell<Duration>; Hop::ALL.len()],
    /// Waits for the tiers that are under way, and since when there are any: those side by side
    /// count once.
    waits: Cell<u32>,
    waits_since: Cell<Nanos>,
}

impl Trace {
    /// Of a request whose frame has `received_len` bytes.
    pub(crate) fn new(
        id: u64,
        verb: Verb,
        received_len: u64,
        arrived: Nanos,
        turn: Nanos,
    ) -> Rc<Self> {
        let trace = Self {
            id,
            verb,
            received_len,
            arrived,
            keys: Cell::new(0),
            sent_len: Cell::new(0),
            is_cancelled: Cell::new(false),
            ended: Cell::new(turn),
            hops: Default::default(),
            waits: Cell::new(0),
            waits_since: Cell::new(turn),
        };
        trace.add(Hop::Queue, turn.since(arrived));
        Rc::new(trace)
    }

    pub(crate) fn add(&self, hop: Hop, span: Duration) {
        if let Some(sum) = self.hops.get(hop as usize) {
            sum.set(sum.get().saturating_add(span));
        }
    }

    /// The last of its reply is queued at `now`.
    pub(crate) fn end(&self, now: Nanos) {
        self.ended.set(now);
    }

    /// The last of its reply is sent at `now`: its time, and that of each hop.
    pub(crate) fn settle(&self, now: Nanos) -> (Duration, [Duration; Hop::ALL.len()]) {
        self.add(Hop::Socket, now.since(self.ended.get()));
        (now.since(self.arrived), self.hops.each_ref().map(Cell::get))
    }

    /// `work`, whose waits are waits for the tiers. Work that needs no waiting reads no clock.
    pub(crate) async fn waited<T>(
        &self,
        runtime: &Rc<dyn Runtime>,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        let mut is_waiting = false;
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            if polled.is_ready() == is_waiting {
                is_waiting = !is_waiting;
                self.note_wait(is_waiting, runtime.now());
            }
            polled
        })
        .await
    }

    fn note_wait(&self, begins: bool, now: Nanos) {
        let waits = self.waits.get();
        if begins {
            if waits == 0 {
                self.waits_since.set(now);
            }
            self.waits.set(waits + 1);
            return;
        }
        self.waits.set(waits - 1);
        if waits == 1 {
            self.add(Hop::Device, now.since(self.waits_since.get()));
        }
    }
}

/// The replies of a connection: which bytes of what is queued are whose.
#[derive(Default)]
pub(crate) struct Replies {
    /// Bytes that were queued, and bytes that were sent, since the connection began.
    queued_len: u64,
    sent_len: u64,
    /// Whose frame is queued now, and whether it is the last one.
    current: Option<(Rc<Trace>, bool)>,
    /// Whole replies that are not sent, by where they end.
    unsent: VecDeque<(u64, Rc<Trace>)>,
}

impl Replies {
    /// What is queued from now on is `trace`'s.
    pub(crate) fn begin_frame(&mut self, trace: Rc<Trace>, is_last: bool) {
        self.end_frame();
        self.current = Some((trace, is_last));
    }

    fn end_frame(&mut self) {
        if let Some((trace, true)) = self.current.take() {
            self.unsent.push_back((self.queued_len, trace));
        }
    }

    pub(crate) fn queued(&mut self, len: usize) {
        self.queued_len += len as u64;
        if let Some((trace, _)) = &self.current {
            trace.sent_len.set(trace.sent_len.get() + len as u64);
        }
    }

    /// Notes bytes that were sent; whether the last byte of a reply was among them.
    pub(crate) fn sent(&mut self, len: usize) -> bool {
        self.end_frame();
        self.sent_len += len as u64;
        let first = self.unsent.front();
        first.is_some_and(|(end, _)| *end <= self.sent_len)
    }

    /// The next of the replies whose last byte was sent.
    pub(crate) fn pop_sent(&mut self) -> Option<Rc<Trace>> {
        let (end, _) = self.unsent.front()?;
        if *end > self.sent_len {
            return None;
        }
        self.unsent.pop_front().map(|(_, trace)| trace)
    }

    pub(crate) fn clear(&mut self) {
        self.current = None;
        self.unsent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(id: u64) -> Rc<Trace> {
        Trace::new(id, Verb::Get, 32, Nanos(100), Nanos(150))
    }

    /// Aim: a reply of several frames among others counts its own bytes, and is sent with its last
    /// one.
    #[test]
    fn replies_are_sent_with_their_last_bytes() {
        let (one, two) = (trace(1), trace(2));
        let mut replies = Replies::default();
        replies.begin_frame(Rc::clone(&one), false);
        replies.queued(10);
        replies.begin_frame(Rc::clone(&two), true);
        replies.queued(3);
        replies.begin_frame(Rc::clone(&one), true);
        replies.queued(5);
        replies.queued(2);
        assert!(!replies.sent(12));
        assert!(replies.sent(1));
        assert_eq!(replies.pop_sent().map(|trace| trace.id), Some(2));
        assert!(replies.pop_sent().is_none());
        assert!(!replies.sent(6));
        assert!(replies.sent(1));
        assert_eq!(replies.pop_sent().map(|trace| trace.id), Some(1));
        assert_eq!((one.sent_len.get(), two.sent_len.get()), (17, 3));
    }

    #[test]
    fn waits_side_by_side_count_once() {
        let trace = trace(1);
        for (begins, at) in [(true, 200), (true, 210), (false, 220), (false, 250)] {
            trace.note_wait(begins, Nanos(at));
        }
        for (begins, at) in [(true, 300), (false, 301)] {
            trace.note_wait(begins, Nanos(at));
        }
        trace.end(Nanos(400));
        let (whole, hops) = trace.settle(Nanos(407));
        assert_eq!(whole.as_nanos(), 307);
        assert_eq!(hops.map(|hop| hop.as_nanos()), [50, 0, 0, 51, 7]);
    }
}
