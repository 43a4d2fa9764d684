//! What is under way on one queue of a queue pair, in the order it was posted.
//!
//! **Invariants**
//! - Requests end in the order they were posted; one completion ends all before it, too, as most
//!   are not signalled on their own.
//! - A request holds its memory until it has ended.
//! - An identifier names the life of the queue pair, so what was posted before a reset ends
//!   nothing that was posted after it.

use std::collections::VecDeque;

use super::completion::Status;
use super::region::LocalSlice;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Bytes of the peer's memory were read into this end's.
    Read,
    /// Bytes of this end's memory were written into the peer's.
    Write,
    /// A message was sent.
    Send,
    /// A message was received, or the peer wrote and told so.
    Receive,
}

/// How one request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the caller named it by.
    pub token: u64,
    /// What it was.
    pub kind: RequestKind,
    /// What became of it.
    pub status: Status,
    /// Bytes that were moved, if it succeeded: of a receive, those of the message.
    pub len: u64,
    /// What came with a received message, or with a write.
    pub immediate: Option<u32>,
}

/// One request under way.
pub(super) struct Posted {
    pub(super) token: u64,
    pub(super) kind: RequestKind,
    pub(super) len: u64,
    #[expect(dead_code, reason = "kept for its drop, which lets the memory go")]
    pub(super) held: Vec<LocalSlice>,
}

/// Requests are counted by 31 bits; the 32nd tells receives from the rest.
const SEQUENCE_MASK: u32 = u32::MAX >> 1;
const RECEIVE_BIT: u32 = 1 << 31;

/// The identifier of a request: the life of its queue pair, its queue, its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestId(u64);

impl RequestId {
    pub(super) fn raw(self) -> u64 {
        self.0
    }

    pub(super) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(super) fn life(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn is_receive(self) -> bool {
        self.0 as u32 & RECEIVE_BIT != 0
    }

    fn sequence(self) -> u32 {
        self.0 as u32 & SEQUENCE_MASK
    }
}

/// The requests under way on one queue.
pub(super) struct InFlight {
    posted: VecDeque<Posted>,
    capacity: usize,
    /// The number of the front request.
    first: u32,
    life: u32,
    is_receive: bool,
    has_failed: bool,
}

impl InFlight {
    /// An empty queue of so many places.
    pub(super) fn new(capacity: u32, life: u32, is_receive: bool) -> Self {
        Self {
            posted: VecDeque::with_capacity(capacity as usize),
            capacity: capacity as usize,
            first: 0,
            life,
            is_receive,
            has_failed: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.posted.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn room(&self) -> usize {
        self.capacity - self.posted.len()
    }

    /// The identifier of the request that is pushed after `ahead` more.
    pub(super) fn id(&self, ahead: usize) -> RequestId {
        let count = (self.posted.len() + ahead) as u32;
        let sequence = self.first.wrapping_add(count) & SEQUENCE_MASK;
        let queue = if self.is_receive { RECEIVE_BIT } else { 0 };
        RequestId(u64::from(self.life) << 32 | u64::from(queue | sequence))
    }

    /// Takes note of a request that is about to be posted.
    pub(super) fn push(&mut self, request: Posted) {
        assert!(self.room() > 0, "posted beyond the capacity");
        self.posted.push_back(request);
    }

    /// Ends the request `id`, and those before it, which then were successful unless one has
    /// failed already. Of an identifier that is not under way nothing happens.
    pub(super) fn end(
        &mut self,
        id: RequestId,
        status: Status,
        received: Option<(u64, Option<u32>)>,
        ended: &mut Vec<Completion>,
    ) {
        let ahead = id.sequence().wrapping_sub(self.first) & SEQUENCE_MASK;
        if id.life() != self.life || ahead as usize >= self.posted.len() {
            return;
        }
        let before = match self.has_failed {
            false => Status::Success,
            true => Status::Flushed,
        };
        for _ in 0..ahead {
            self.end_first(before, None, ended);
        }
        self.has_failed |= !status.is_success();
        self.end_first(status, received, ended);
    }

    /// Ends all as flushed.
    pub(super) fn flush(&mut self, ended: &mut Vec<Completion>) {
        while !self.posted.is_empty() {
            self.end_first(Status::Flushed, None, ended);
        }
    }

    /// Begins another life. Nothing is under way.
    pub(super) fn begin(&mut self, life: u32) {
        assert!(self.posted.is_empty(), "requests of another life");
        self.first = 0;
        self.life = life;
        self.has_failed = false;
    }

    fn end_first(
        &mut self,
        status: Status,
        received: Option<(u64, Option<u32>)>,
        ended: &mut Vec<Completion>,
    ) {
        let Some(request) = self.posted.pop_front() else {
            return;
        };
        self.first = self.first.wrapping_add(1) & SEQUENCE_MASK;
        let (len, immediate) = received.unwrap_or((request.len, None));
        ended.push(Completion {
            token: request.token,
            kind: request.kind,
            status,
            len: if status.is_success() { len } else { 0 },
            immediate,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(capacity: u32, count: u64) -> InFlight {
        let mut queue = InFlight::new(capacity, 7, false);
        for token in 0..count {
            queue.push(posted(token));
        }
        queue
    }

    fn posted(token: u64) -> Posted {
        Posted {
            token,
            kind: RequestKind::Read,
            len: 10,
            held: Vec::new(),
        }
    }

    fn end(queue: &mut InFlight, id: RequestId, status: Status) -> Vec<(u64, Status)> {
        let mut ended = Vec::new();
        queue.end(id, status, None, &mut ended);
        ended.iter().map(|one| (one.token, one.status)).collect()
    }

    #[test]
    fn end_one_completion_ends_all_before_it() {
        let mut queue = queue(16, 0);
        let ids: Vec<RequestId> = (0..16).map(|ahead| queue.id(ahead)).collect();
        (0..16).for_each(|token| queue.push(posted(token)));
        assert_eq!(queue.room(), 0);
        let ended = end(&mut queue, ids[11], Status::Success);
        assert_eq!(ended.len(), 12);
        assert!(ended.iter().all(|(_, status)| status.is_success()));
        assert_eq!((queue.len(), queue.room()), (4, 12));
        assert_eq!(end(&mut queue, ids[11], Status::Success), []);
        let ended = end(&mut queue, ids[12], Status::RemoteAccess);
        assert_eq!(ended, [(12, Status::RemoteAccess)]);
    }

    #[test]
    fn end_after_a_failure_nothing_skipped_counts_as_done() {
        let mut queue = queue(4, 0);
        let ids: Vec<RequestId> = (0..4).map(|ahead| queue.id(ahead)).collect();
        (0..4).for_each(|token| queue.push(posted(token)));
        let ended = end(&mut queue, ids[1], Status::RetriesExceeded);
        assert_eq!(ended, [(0, Status::Success), (1, Status::RetriesExceeded)]);
        let ended = end(&mut queue, ids[3], Status::Flushed);
        assert_eq!(ended, [(2, Status::Flushed), (3, Status::Flushed)]);
    }

    #[test]
    fn flush_ends_all_and_old_identifiers_end_nothing() {
        let mut queue = queue(4, 3);
        let old = InFlight::new(4, 7, false).id(1);
        let mut ended = Vec::new();
        queue.flush(&mut ended);
        queue.begin(8);
        assert_eq!(ended.len(), 3);
        assert!(
            ended
                .iter()
                .all(|one| one.status == Status::Flushed && one.len == 0)
        );
        queue.push(posted(9));
        queue.push(posted(10));
        assert_eq!(end(&mut queue, old, Status::Success), []);
        assert_eq!(queue.len(), 2);
    }

    #[test]
    fn id_goes_round_without_mixing_queues() {
        let mut queue = InFlight::new(2, 1, true);
        queue.first = SEQUENCE_MASK;
        queue.push(posted(0));
        queue.push(posted(1));
        let second = RequestId::from_raw(queue.id(0).raw() - 1);
        assert!(second.is_receive());
        assert_eq!((second.sequence(), second.life()), (0, 1));
        assert_eq!(end(&mut queue, second, Status::Success).len(), 2);
        assert_eq!(queue.first, 1);
    }
}
