//! One connection: what its reader, its writer and its requests share, all on one shard's thread.
//!
//! **Invariants**
//! - Every request that the session has under way is with the reader or with one task.
//! - Bytes that wait to be sent are bounded: whoever adds blocks waits for room first.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use terrace_engine::{BlockKey, LeaseId, LocalPin, Namespace, Shard};
use terrace_fabric::{Sender, TcpSender};
use terrace_runtime::{LocalFuture, Runtime};
use terrace_types::Nanos;
use terrace_wire::{
    ErrorCode, ErrorFrame, Flags, FrameHead, Goodbye, GoodbyeReason, KeyStatus, NamespaceNumber,
    NodeTerms, Record, ReplyHead, RequestHead, ServerSession, SessionError, Verb, WireError, reply,
};

use crate::host::Host;
use crate::latency::Hop;
use crate::namespaces::OpenNamespaces;
use crate::outbox::{Outbox, Part};
use crate::socket::{ShardSocket, before};
use crate::stream::Stream;
use crate::trace::{Replies, Trace};

/// Bytes that may wait to be sent before a request that adds blocks waits too, and before the next
/// request is taken. A longer block is sent all the same, one at a time.
const WINDOW_LEN: usize = 8 << 20;

/// Bytes that a client has to take within the time that it may stall: one that takes a byte now and
/// then must not keep blocks pinned for ever.
const PROGRESS_LEN: usize = 256 << 10;

/// Bytes that a task sends or receives before other tasks of the thread run.
pub(crate) const TURN_LEN: usize = 1 << 20;

/// Frame head, reply head and what stands between the reply head and its records.
const REPLY_HEAD_LEN: usize = 32 + 16 + 8;

/// Longest frame of an error: head, body with the longest text, and a rest.
const ERROR_FRAME_LEN: usize = 640;

/// What a connection waits for, and since when; the watch looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// For the hello.
    Hello,
    /// For the next frame.
    Frame,
    /// For the rest of a frame.
    Rest,
    /// Not for the client.
    Not,
}

/// See the module's text.
pub(crate) struct Connection {
    pub(crate) host: Rc<Host>,
    /// A number of the shard's own, for the log.
    pub(crate) number: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) session: RefCell<ServerSession>,
    pub(crate) terms: Cell<NodeTerms>,
    sender: TcpSender<ShardSocket>,
    outbox: RefCell<Outbox>,
    namespaces: RefCell<OpenNamespaces>,
    /// Requests that run in tasks of their own, and whether they were cancelled.
    running: RefCell<HashMap<u64, Rc<Trace>>>,
    /// Requests that are not answered.
    traces: RefCell<Vec<Rc<Trace>>>,
    /// The one that the reader is at.
    current: RefCell<Option<Rc<Trace>>>,
    replies: RefCell<Replies>,
    /// When the last bytes of frames came.
    arrived: Cell<Nanos>,
    pub(crate) pins: RefCell<HashMap<BlockKey, (LocalPin, Nanos)>>,
    pub(crate) streams: RefCell<HashMap<u64, Stream>>,
    /// Leases by id: the block's length, and when they end.
    pub(crate) leases: RefCell<HashMap<LeaseId, (u32, Nanos)>>,
    /// Prefetches that are under way.
    pub(crate) prefetches: Rc<Cell<u32>>,
    /// Subscriptions that are under way.
    pub(crate) subscriptions: Cell<u32>,
    takes_no_more: Cell<bool>,
    changed: RefCell<Vec<Waker>>,
    waiting: Cell<(Waiting, Nanos)>,
    /// Since when bytes wait that the client does not take.
    unsent_since: Cell<Option<Nanos>>,
    closed: Cell<bool>,
}

/// A request under way.
#[derive(Clone)]
pub(crate) struct Ticket {
    pub(crate) id: u64,
    pub(crate) verb: Verb,
    pub(crate) deadline: Nanos,
    pub(crate) trace: Rc<Trace>,
}

impl Ticket {
    /// What becomes of an entry that was not begun; `None` when it may be.
    pub(crate) fn is_over(&self, now: Nanos) -> Option<KeyStatus> {
        //= docs/wire-protocol.md#WP-14
        if self.trace.is_cancelled.get() {
            return Some(KeyStatus::Cancelled);
        }
        //= docs/wire-protocol.md#WP-13
        (now >= self.deadline).then_some(KeyStatus::TimedOut)
    }

    /// What `work` of the tiers comes to, or `None` at the deadline. The wait counts as the
    /// request's.
    pub(crate) async fn before_deadline<T>(
        &self,
        runtime: &Rc<dyn Runtime>,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let timed = before(runtime, self.deadline, work);
        self.trace.waited(runtime, timed).await
    }
}

impl Connection {
    pub(crate) fn new(
        host: Rc<Host>,
        number: u64,
        peer: SocketAddr,
        terms: NodeTerms,
        sender: TcpSender<ShardSocket>,
    ) -> Rc<Self> {
        let now = host.now();
        Rc::new(Self {
            number,
            peer,
            session: RefCell::new(ServerSession::new(terms)),
            terms: Cell::new(terms),
            sender,
            outbox: RefCell::default(),
            namespaces: RefCell::default(),
            running: RefCell::default(),
            traces: RefCell::default(),
            current: RefCell::default(),
            replies: RefCell::default(),
            arrived: Cell::new(now),
            pins: RefCell::default(),
            streams: RefCell::default(),
            leases: RefCell::default(),
            prefetches: Rc::default(),
            subscriptions: Cell::new(0),
            takes_no_more: Cell::new(false),
            changed: RefCell::default(),
            waiting: Cell::new((Waiting::Hello, now)),
            unsent_since: Cell::new(None),
            closed: Cell::new(false),
            host,
        })
    }

    pub(crate) fn shard(&self) -> &Rc<Shard> {
        &self.host.shard
    }

    /// Notes what is waited for; since when.
    pub(crate) fn wait_for(&self, waiting: Waiting) -> Nanos {
        let now = self.host.now();
        self.waiting.set((waiting, now));
        now
    }

    /// Bytes of frames came.
    pub(crate) fn note_arrival(&self) {
        self.arrived.set(self.host.now());
    }

    /// A request begins, now that its body was read.
    pub(crate) fn begin(&self, head: &FrameHead, verb: Verb) {
        let (arrived, (_, turn)) = (self.arrived.get(), self.waiting.get());
        let trace = Trace::new(head.request_id, verb, head.frame_len(), arrived, turn);
        self.traces.borrow_mut().push(Rc::clone(&trace));
        self.current.replace(Some(trace));
    }

    /// Notes how many keys the request has that the reader is at.
    pub(crate) fn note_keys(&self, count: usize) {
        if let Some(trace) = &*self.current.borrow() {
            trace.keys.set(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// Adds to a hop of the request that the reader is at.
    pub(crate) fn note_hop(&self, hop: Hop, span: Duration) {
        if let Some(trace) = &*self.current.borrow() {
            trace.add(hop, span);
        }
    }

    /// Takes a request on: its deadline counts from now.
    pub(crate) fn ticket(&self, id: u64, verb: Verb, deadline_ms: u32) -> Ticket {
        let longest = self.host.config().deadline_max;
        let asked = Duration::from_millis(deadline_ms.into());
        let span = if deadline_ms == 0 {
            longest
        } else {
            asked.min(longest)
        };
        let current = self.current.borrow().clone();
        let now = self.host.now();
        Ticket {
            id,
            verb,
            deadline: now + span,
            trace: current.unwrap_or_else(|| Trace::new(id, verb, 0, now, now)),
        }
    }

    /// Runs a request's work: as far as it goes at once, and the rest in a task of its own, so that
    /// later requests may overtake it.
    pub(crate) async fn run(self: &Rc<Self>, ticket: &Ticket, work: LocalFuture<'static, ()>) {
        let mut work = work;
        let is_done = poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
        if is_done {
            return;
        }
        let trace = Rc::clone(&ticket.trace);
        self.running.borrow_mut().insert(ticket.id, trace);
        let (connection, id) = (Rc::clone(self), ticket.id);
        self.shard().spawn(Box::pin(async move {
            work.await;
            connection.running.borrow_mut().remove(&id);
            connection.flush().await;
        }));
    }

    pub(crate) fn cancel(&self, id: u64) {
        if let Some(trace) = self.running.borrow().get(&id) {
            trace.is_cancelled.set(true);
        }
        self.wake();
    }

    /// No more requests come: subscriptions end, what else is under way goes on.
    //= docs/wire-protocol.md#WP-15
    pub(crate) fn take_no_more(&self) {
        self.takes_no_more.set(true);
        self.wake();
    }

    pub(crate) fn takes_no_more(&self) -> bool {
        self.takes_no_more.get()
    }

    /// Gives a namespace a number; false when the number is taken.
    pub(crate) fn add_namespace(&self, number: NamespaceNumber, namespace: Namespace) -> bool {
        self.namespaces.borrow_mut().add(number, namespace)
    }

    /// The number of a namespace that is open.
    pub(crate) fn number_of(&self, namespace: Namespace) -> Option<NamespaceNumber> {
        self.namespaces.borrow().number_of(namespace)
    }

    /// The namespace that a request names; when there is none the request is answered.
    pub(crate) fn namespace(&self, id: u64, verb: Verb, head: &RequestHead) -> Option<Namespace> {
        let known = self.namespaces.borrow().get(head.namespace);
        if known.is_none() {
            let text = "open a namespace under this number first";
            self.refuse(id, verb.number(), ErrorCode::NamespaceNumber, text);
        }
        known
    }

    /// The shard that owns a key, when it is another one.
    //= docs/wire-protocol.md#WP-17
    pub(crate) fn wrong_shard(&self, key: &BlockKey) -> Option<KeyStatus> {
        let terms = self.terms.get();
        let shard = key.hash().shard(terms.shards);
        (shard != terms.shard).then_some(KeyStatus::WrongShard { shard })
    }

    pub(crate) fn reply_head(&self, first: usize) -> ReplyHead {
        ReplyHead {
            first: first as u32,
            map_epoch: self.terms.get().map_epoch,
        }
    }

    /// Queues a frame that `encode` writes into at most `len` bytes.
    pub(crate) fn push_frame(
        &self,
        len: usize,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) {
        if self.closed.get() {
            return;
        }
        let mut bytes = vec![0; len.next_multiple_of(8)];
        match encode(&mut bytes) {
            Ok(len) => bytes.truncate(len),
            Err(error) => {
                // A reply that is not sent breaks the connection, so it ends.
                tracing::error!(connection = self.number, peer = %self.peer, %error, "encode a reply");
                return self.close();
            }
        }
        self.host.count(|counters| counters.frames_sent += 1);
        self.replies.borrow_mut().queued(bytes.len());
        self.outbox.borrow_mut().push(Part::Bytes(bytes));
    }

    pub(crate) fn push_block(&self, pin: LocalPin, range: std::ops::Range<usize>) {
        if !self.closed.get() && !range.is_empty() {
            self.replies.borrow_mut().queued(range.len());
            self.outbox.borrow_mut().push(Part::Block(pin, range));
        }
    }

    /// Answers entries from `first` on by the records of one frame.
    pub(crate) fn answer(&self, id: u64, first: usize, count: usize, is_last: bool) -> Flags {
        let mut session = self.session.borrow_mut();
        let answered = session.answer(id, first as u32, count);
        let ended = if is_last {
            session.end(id, false, false)
        } else {
            Ok(())
        };
        drop(session);
        if let Err(error) = answered.and(ended) {
            self.report(id, &error, "answer a request");
        }
        self.begin_reply(id, is_last);
        if is_last {
            self.wake();
            return Flags::NONE;
        }
        Flags::MORE
    }

    /// What the session says of a reply that must not be; the connection ends by it.
    fn report(&self, id: u64, error: &SessionError, what: &str) {
        let (connection, peer) = (self.number, self.peer);
        tracing::error!(connection, %peer, request = id, %error, "{what}");
        self.close();
    }

    /// The frame that is queued next is of this request.
    pub(crate) fn begin_reply(&self, id: u64, is_last: bool) {
        let mut traces = self.traces.borrow_mut();
        let Some(at) = traces.iter().position(|trace| trace.id == id) else {
            return;
        };
        let trace = if is_last {
            let trace = traces.swap_remove(at);
            trace.end(self.host.now());
            trace
        } else {
            Rc::clone(&traces[at])
        };
        self.replies.borrow_mut().begin_frame(trace, is_last);
    }

    /// How many records of `len` bytes the client takes in one frame.
    pub(crate) fn records_max(&self, len: usize) -> usize {
        let limit = self.session.borrow().client_limits().body_len_max as usize;
        (limit.saturating_sub(24) / len).max(1)
    }

    /// Answers a request by all its records, in as many frames as the client's limit asks for.
    pub(crate) fn reply<R: Record<'static>>(&self, id: u64, verb: Verb, records: &[R], len: usize) {
        let most = self.records_max(len);
        let mut first = 0;
        loop {
            let count = most.min(records.len() - first);
            let is_last = first + count == records.len();
            let flags = self.answer(id, first, count, is_last);
            let frame = &records[first..first + count];
            self.push_frame(REPLY_HEAD_LEN + count * len, |out| {
                let head = self.reply_head(first);
                reply::encode(verb, id, flags, &head, frame.iter().copied(), out)
            });
            first += count;
            if is_last {
                return;
            }
        }
    }

    /// Answers a request by statuses.
    pub(crate) fn reply_statuses(&self, id: u64, verb: Verb, statuses: &[KeyStatus]) {
        self.reply(id, verb, statuses, 8);
    }

    /// Answers a request that has no entries by `encode`'s frame.
    pub(crate) fn reply_once(
        &self,
        id: u64,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) {
        self.reply_long(id, REPLY_HEAD_LEN + 16, encode);
    }

    /// As [`Connection::reply_once`], by a frame of at most `len` bytes.
    pub(crate) fn reply_long(
        &self,
        id: u64,
        len: usize,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) {
        let ended = self.session.borrow_mut().end(id, false, false);
        if let Err(error) = ended {
            self.report(id, &error, "end a request");
        }
        self.begin_reply(id, true);
        self.push_frame(len, encode);
        self.wake();
    }

    /// Ends a request by an error.
    pub(crate) fn refuse(&self, id: u64, verb_number: u8, code: ErrorCode, text: &str) {
        self.refuse_with(id, verb_number, code, 0, text);
    }

    /// Ends a request by what is wrong with its body.
    pub(crate) fn refuse_body(&self, head: &FrameHead, error: &WireError) {
        let argument = match error {
            WireError::UnknownOptions { bits, .. } => u64::from(*bits),
            _ => 0,
        };
        let (id, verb) = (head.request_id, head.verb_number);
        self.refuse_with(id, verb, error.code(), argument, &error.to_string());
    }

    /// As [`Connection::refuse`], with the number that the code's row in the protocol asks for.
    pub(crate) fn refuse_with(
        &self,
        id: u64,
        verb_number: u8,
        code: ErrorCode,
        argument: u64,
        text: &str,
    ) {
        self.host.count(|counters| counters.requests_refused += 1);
        let ended = self.session.borrow_mut().end(id, true, false);
        if let Err(error) = ended {
            self.report(id, &error, "refuse a request");
        }
        self.begin_reply(id, true);
        tracing::debug!(
            connection = self.number,
            peer = %self.peer,
            request = id,
            verb = verb_number,
            ?code,
            text,
            "a request is refused"
        );
        self.push_error(id, verb_number, code, argument, text);
        self.wake();
    }

    /// Queues an error; without a request id it is the last frame.
    pub(crate) fn push_error(
        &self,
        id: u64,
        verb_number: u8,
        code: ErrorCode,
        argument: u64,
        text: &str,
    ) {
        let frame = ErrorFrame {
            code,
            verb_number,
            argument,
            text,
        };
        self.push_frame(ERROR_FRAME_LEN, |out| frame.encode(id, out));
    }

    pub(crate) fn say_goodbye(&self, reason: GoodbyeReason, close_ms: u32) {
        let goodbye = Goodbye { reason, close_ms };
        self.push_frame(64, |out| goodbye.encode(out));
    }

    /// Sends what waits, as far as it goes at once; a task sends the rest.
    pub(crate) async fn flush(self: &Rc<Self>) {
        let must_wait = poll_fn(|context| {
            let mut outbox = self.outbox.borrow_mut();
            if outbox.has_writer {
                return Poll::Ready(false);
            }
            Poll::Ready(loop {
                match outbox.poll_send(&self.sender, context) {
                    Poll::Ready(Ok(0)) => break false,
                    Poll::Ready(Ok(sent)) => self.sent(sent),
                    Poll::Ready(Err(_)) => {
                        drop(outbox);
                        self.close();
                        break false;
                    }
                    Poll::Pending => {
                        outbox.has_writer = true;
                        break true;
                    }
                }
            })
        })
        .await;
        if must_wait {
            self.unsent_since.set(Some(self.host.now()));
            let connection = Rc::clone(self);
            self.shard()
                .spawn(Box::pin(async move { connection.write().await }));
        } else {
            self.wake();
        }
    }

    fn sent(&self, len: usize) {
        self.host
            .count(|counters| counters.bytes_sent += len as u64);
        let mut replies = self.replies.borrow_mut();
        if replies.sent(len) {
            let now = self.host.now();
            while let Some(trace) = replies.pop_sent() {
                self.host.answered(self, &trace, now);
            }
        }
    }

    /// Sends until nothing waits.
    async fn write(self: Rc<Self>) {
        let (mut taken, mut turn) = (0, 0);
        loop {
            let sent = poll_fn(|context| {
                let mut outbox = self.outbox.borrow_mut();
                outbox.poll_send(&self.sender, context)
            })
            .await;
            match sent {
                Ok(0) => break,
                Ok(sent) => {
                    self.sent(sent);
                    taken += sent;
                    turn += sent;
                    if taken >= PROGRESS_LEN {
                        taken = 0;
                        self.unsent_since.set(Some(self.host.now()));
                    }
                    self.wake();
                }
                Err(_) => {
                    self.close();
                    break;
                }
            }
            // A client as fast as this one must not keep the thread to itself.
            if turn >= TURN_LEN {
                turn = 0;
                self.shard().runtime().yield_now().await;
            }
        }
        self.outbox.borrow_mut().has_writer = false;
        self.unsent_since.set(None);
        self.wake();
    }

    /// Waits until blocks may be added to what waits to be sent; how long that was.
    pub(crate) async fn room(self: &Rc<Self>) -> Duration {
        self.room_below(WINDOW_LEN).await
    }

    /// Waits until fewer than `len` bytes wait to be sent; how long that was.
    pub(crate) async fn room_below(self: &Rc<Self>, len: usize) -> Duration {
        if self.outbox.borrow().len() < len {
            return Duration::ZERO;
        }
        let start = self.host.now();
        self.flush().await;
        self.until(|connection| connection.outbox.borrow().len() < len)
            .await;
        self.host.now().since(start)
    }

    /// Requests under way, and bytes that wait to be sent.
    pub(crate) fn depths(&self) -> (usize, usize) {
        let under_way = self.session.borrow().under_way();
        (under_way, self.outbox.borrow().len())
    }

    /// Waits until all that was queued is sent.
    pub(crate) async fn all_sent(self: &Rc<Self>) {
        self.flush().await;
        self.until(|connection| connection.outbox.borrow().is_empty())
            .await;
    }

    /// Waits until all is answered and sent.
    pub(crate) async fn finished(self: &Rc<Self>) {
        self.flush().await;
        self.until(|connection| {
            let is_answered = connection.session.borrow().under_way() == 0;
            is_answered && connection.outbox.borrow().is_empty()
        })
        .await;
    }

    /// Whether nothing of it is under way or waits to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.session.borrow().under_way() == 0 && self.outbox.borrow().is_empty()
    }

    /// Whether its client relies on it though nothing is under way.
    fn holds_something(&self) -> bool {
        !self.pins.borrow().is_empty() || !self.leases.borrow().is_empty()
    }

    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        poll_fn(|context| {
            if self.closed.get() || holds(self) {
                return Poll::Ready(());
            }
            self.on_change(context.waker());
            Poll::Pending
        })
        .await;
    }

    /// Wakes `waker` at the next change.
    pub(crate) fn on_change(&self, waker: &Waker) {
        let mut changed = self.changed.borrow_mut();
        if !changed.iter().any(|known| known.will_wake(waker)) {
            changed.push(waker.clone());
        }
    }

    fn wake(&self) {
        let woken = std::mem::take(&mut *self.changed.borrow_mut());
        woken.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Sends nothing more, but what is with the kernel.
    pub(crate) fn finish_sending(&self) {
        self.sender.finish();
    }

    /// Ends the connection: who waits for it is woken, and all that it holds is given back.
    pub(crate) fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        self.sender.close();
        if let Ok(mut session) = self.session.try_borrow_mut() {
            session.close();
        }
        if let Ok(mut outbox) = self.outbox.try_borrow_mut() {
            outbox.clear();
        }
        for trace in self.running.borrow().values() {
            trace.is_cancelled.set(true);
        }
        self.traces.borrow_mut().clear();
        self.replies.borrow_mut().clear();
        self.pins.borrow_mut().clear();
        //= docs/wire-protocol.md#WP-20
        self.streams.borrow_mut().clear();
        for (lease, _) in self.leases.borrow_mut().drain() {
            self.host.shard.release(lease);
        }
        self.wake();
    }

    /// What the watch finds: why the connection has to end, if it has to.
    pub(crate) fn overdue(&self, now: Nanos) -> Option<Overdue> {
        let config = self.host.config();
        if let Some(since) = self.unsent_since.get()
            && now.since(since) > config.stall_max
        {
            return Some(Overdue::SlowReader);
        }
        let (waiting, since) = self.waiting.get();
        let span = now.since(since);
        match waiting {
            Waiting::Hello | Waiting::Rest if span > config.stall_max => Some(Overdue::Stalled),
            Waiting::Frame if span > config.silence_max => {
                // What it holds ends by itself, so this does too.
                let is_silent = self.is_idle() && !self.holds_something();
                is_silent.then_some(Overdue::Silent)
            }
            _ => None,
        }
    }

    /// Gives back pins and streamed puts whose time is over.
    pub(crate) fn expire(&self, now: Nanos) {
        //= docs/wire-protocol.md#WP-24
        self.pins.borrow_mut().retain(|_, (_, until)| now < *until);
        self.leases
            .borrow_mut()
            .retain(|_, (_, until)| now < *until);
        let longest = self.host.config().deadline_max;
        let mut streams = self.streams.borrow_mut();
        streams.retain(|_, stream| now.since(stream.used) <= longest);
    }
}

/// Why a connection is ended by the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Bytes wait for it that it does not take.
    SlowReader,
    /// A frame does not go on.
    Stalled,
    /// Nothing came, and nothing is under way or held.
    Silent,
}
