//! Subscriptions: what happens to blocks of the shard, told until the client gives the request up.
//!
//! **Invariants**
//! - What a subscription keeps is bounded, by events and by bytes; what finds no room is lost to this
//!   subscriber only, and counted. The shard never waits for it.
//! - Only namespaces that the connection has opened are told of.
//! - Its request ends with a frame without `more`: by a cancel, the client's goodbye, or a drain.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use terrace_engine::{Event, EventFilter, EventKind, EventStream, Namespace};
use terrace_wire::{ErrorCode, EventRecord, Flags, NamespaceNumber, RequestHead, reply};

use crate::connection::{Connection, Ticket};

/// Events that wait for a subscriber: with the longest keys 2.3 MiB.
const EVENTS_MAX: usize = 4096;

/// Subscriptions of a connection.
const SUBSCRIPTIONS_MAX: u32 = 4;

/// Bytes of one frame's events.
const FRAME_LEN: usize = 64 << 10;

/// Bytes that wait to be sent on the connection before the next frame of events waits too.
const UNSENT_MAX: usize = 256 << 10;

/// Bytes of a reply beside its events.
const HEADS_LEN: usize = 24;

/// Bytes of an event before its key.
const EVENT_LEN: usize = 24;

//= docs/wire-protocol.md#WP-22
pub(crate) async fn events(
    connection: &Rc<Connection>,
    ticket: Ticket,
    told: &RequestHead,
    kinds: u32,
) {
    let (id, verb) = (ticket.id, ticket.verb);
    let known = terrace_wire::EventKind::ALL.iter();
    //= docs/wire-protocol.md#WP-5
    let unknown = known.fold(kinds, |left, kind| left & !kind.bit());
    if unknown != 0 {
        let text = "no kind of event of version 1 has these bits";
        let code = ErrorCode::UnknownOption;
        return connection.refuse_with(id, verb.number(), code, unknown.into(), text);
    }
    let mut namespace = None;
    if told.namespace != NamespaceNumber::NONE {
        namespace = connection.namespace(id, verb, told);
        if namespace.is_none() {
            return;
        }
    }
    let Some(seat) = Seat::take(connection) else {
        let text = format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions");
        return connection.refuse(id, verb.number(), ErrorCode::NotPermitted, &text);
    };
    let filter = filter(kinds, namespace);
    let work = Subscription {
        seat,
        ticket: ticket.clone(),
        number: namespace.map(|_| told.namespace),
        stream: connection.shard().events(EVENTS_MAX, filter),
        held: None,
    };
    connection.run(&ticket, Box::pin(work.run())).await;
}

fn filter(kinds: u32, namespace: Option<Namespace>) -> EventFilter {
    let all = [
        EventKind::Stored,
        EventKind::Evicted,
        EventKind::Removed,
        EventKind::Demoted,
        EventKind::Promoted,
        EventKind::Undurable,
    ];
    let wanted = all.iter().filter(|kind| on_wire(**kind).bit() & kinds != 0);
    EventFilter {
        kinds: Some(wanted.copied().collect()),
        namespace,
    }
}

const fn on_wire(kind: EventKind) -> terrace_wire::EventKind {
    match kind {
        EventKind::Stored => terrace_wire::EventKind::Stored,
        EventKind::Evicted => terrace_wire::EventKind::Evicted,
        EventKind::Removed => terrace_wire::EventKind::Removed,
        EventKind::Demoted => terrace_wire::EventKind::Demoted,
        EventKind::Promoted => terrace_wire::EventKind::Promoted,
        EventKind::Undurable => terrace_wire::EventKind::Undurable,
    }
}

const fn record_len(event: &Event) -> usize {
    EVENT_LEN + event.key.len().next_multiple_of(8)
}

/// A subscription's place among those that its connection may have.
struct Seat(Rc<Connection>);

impl Seat {
    fn take(connection: &Rc<Connection>) -> Option<Self> {
        let taken = connection.subscriptions.get();
        if taken >= SUBSCRIPTIONS_MAX {
            return None;
        }
        connection.subscriptions.set(taken + 1);
        Some(Self(Rc::clone(connection)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.subscriptions.set(self.0.subscriptions.get() - 1);
    }
}

struct Subscription {
    seat: Seat,
    ticket: Ticket,
    /// The namespace that it is of; `None` for all that are open.
    number: Option<NamespaceNumber>,
    stream: EventStream,
    /// An event that the last frame had no room for.
    held: Option<Event>,
}

impl Subscription {
    async fn run(mut self) {
        let connection = Rc::clone(&self.seat.0);
        let client = connection.session.borrow().client_limits();
        let room = (client.body_len_max as usize).saturating_sub(HEADS_LEN);
        let room = room.min(FRAME_LEN);
        // Says that it holds from now on.
        self.push(&[], false);
        connection.flush().await;
        while !connection.is_closed() {
            let events = match self.next(&connection).await {
                None => break,
                Some(first) => self.take(first, room),
            };
            if !events.is_empty() {
                connection.room_below(UNSENT_MAX).await;
                self.push(&events, false);
                connection.flush().await;
            }
            // Whoever makes events must not be the only one that runs.
            connection.shard().runtime().yield_now().await;
        }
        if !connection.is_closed() {
            self.push(&[], true);
        }
    }

    /// The next event; `None` when the subscription is over.
    async fn next(&mut self, connection: &Connection) -> Option<Event> {
        let held = self.held.take();
        poll_fn(|context| {
            //= docs/wire-protocol.md#WP-14
            let is_cancelled = self.ticket.trace.is_cancelled.get();
            if is_cancelled || connection.is_closed() || connection.takes_no_more() {
                return Poll::Ready(None);
            }
            if let Some(held) = &held {
                return Poll::Ready(Some(held.clone()));
            }
            if let Poll::Ready(event) = self.stream.poll_next(context) {
                return Poll::Ready(Some(event));
            }
            connection.on_change(context.waker());
            Poll::Pending
        })
        .await
    }

    /// The events of a frame that `first` begins, with `room` bytes for them.
    fn take(&mut self, first: Event, room: usize) -> Vec<(NamespaceNumber, Event)> {
        let mut events = Vec::new();
        let (mut len, mut next) = (0, Some(first));
        while let Some(event) = next {
            if let Some(number) = self.number_of(&event) {
                len += record_len(&event);
                if len > room {
                    self.held = Some(event);
                    break;
                }
                events.push((number, event));
            }
            next = self.stream.try_next();
        }
        events
    }

    /// The number of an event's namespace, if the connection has opened that.
    fn number_of(&self, event: &Event) -> Option<NamespaceNumber> {
        self.number
            .or_else(|| self.seat.0.number_of(event.namespace))
    }

    /// Queues a frame of events.
    fn push(&self, events: &[(NamespaceNumber, Event)], is_last: bool) {
        let (id, connection) = (self.ticket.id, &self.seat.0);
        let flags = match is_last {
            true => connection.answer(id, 0, 0, true),
            false => {
                connection.begin_reply(id, false);
                Flags::MORE
            }
        };
        let records = events.iter().map(|(number, event)| EventRecord {
            sequence: event.sequence,
            hash: event.hash,
            namespace: *number,
            kind: on_wire(event.kind),
            key: &event.key,
        });
        let len: usize = events.iter().map(|(_, event)| record_len(event)).sum();
        let (head, lost) = (connection.reply_head(0), self.stream.lost());
        connection
            .host
            .count(|counters| counters.events_sent += events.len() as u64);
        connection.push_frame(64 + len, |out| {
            reply::encode_events(id, flags, &head, lost, records, out)
        });
    }
}
