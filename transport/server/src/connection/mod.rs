//! One connection: what its reader, its writer and its requests share, all on one shard's thread.
//!
//! **Invariants**
//! - Every request that the session has under way is with the reader or with one task.
//! - Bytes that wait to be sent are bounded: whoever adds blocks waits for room first.

mod answer;
mod send;
mod watch;

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
    ErrorCode, FrameHead, KeyStatus, NamespaceNumber, NodeTerms, RequestHead, ServerSession, Verb,
};

pub(crate) use self::send::TURN_LEN;
pub(crate) use self::watch::{Overdue, Waiting};
use crate::host::Host;
use crate::latency::Hop;
use crate::leases::Leased;
use crate::namespaces::OpenNamespaces;
use crate::one_sided::Rails;
use crate::outbox::Outbox;
use crate::socket::{ShardSocket, before};
use crate::stream::Stream;
use crate::trace::{Replies, Trace};

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
    pub(crate) leases: RefCell<HashMap<LeaseId, Leased>>,
    /// Who the client says it is.
    pub(crate) client_id: Cell<[u8; 16]>,
    /// By which it reads leased blocks by itself.
    pub(crate) rails: RefCell<Option<Rails>>,
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
            client_id: Cell::default(),
            rails: RefCell::default(),
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

    /// Requests under way, and bytes that wait to be sent.
    pub(crate) fn depths(&self) -> (usize, usize) {
        let under_way = self.session.borrow().under_way();
        (under_way, self.outbox.borrow().len())
    }

    /// Whether nothing of it is under way or waits to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.session.borrow().under_way() == 0 && self.outbox.borrow().is_empty()
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
        for (lease, held) in self.leases.borrow_mut().drain() {
            //= docs/wire-protocol.md#WP-28
            if held.is_on_rails {
                self.host.shard.abandon(lease);
            } else {
                self.host.shard.release(lease);
            }
        }
        self.rails.replace(None);
        self.wake();
    }
}
