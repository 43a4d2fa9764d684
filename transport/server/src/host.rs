//! A shard's part of the server: its connections, and the watch over them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_channel::oneshot;
use terrace_engine::{Engine, Shard};
use terrace_fabric::tls::NodeTls;
use terrace_fabric::{TcpReceiver, TcpSender};
use terrace_runtime::net::TcpSocket;
use terrace_runtime::{Mailbox, MailboxSender};
use terrace_types::Nanos;
use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_wire::limits::{BATCH_MAX, VERSION};
use terrace_wire::{ErrorCode, Features, FrameLimits, GoodbyeReason, NodeTerms, Security, Verb};

use crate::config::{CREDIT_BYTES, LIMITS, ServerConfig};
use crate::connection::{Connection, Overdue};
use crate::latency::{Hop, Latencies};
use crate::one_sided::OneSided;
use crate::session;
use crate::slow::{SlowLog, SlowRequest};
use crate::socket::{Records, ShardSocket};
use crate::stats::{ServerCounters, ServerReport};
use crate::trace::Trace;

/// How often the watch looks at connections, at most.
const WATCH_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// What a shard's host is told from other threads.
pub(crate) enum Command {
    /// Serve a connection.
    Adopt(Arrival),
    /// Say goodbye to all clients; they are closed within so many ms.
    Drain(u32),
    /// Close connections: idle ones, or all. The answer: how many are left.
    Close(CloseWhich, oneshot::Sender<usize>),
    /// What was counted.
    Report(oneshot::Sender<Box<ServerReport>>),
    /// The server is gone.
    End,
}

/// Which connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseWhich {
    /// None: how many there are is asked.
    Neither,
    Idle,
    All,
}

/// A connection that comes to a shard.
pub(crate) struct Arrival {
    pub(crate) socket: TcpStream,
    pub(crate) peer: SocketAddr,
    /// What was received of it before: its hello, when it comes from another shard.
    pub(crate) received: Vec<u8>,
    /// Its TLS, when it comes from another shard and has one.
    pub(crate) tls: Option<Records>,
    /// Counts the connection as long as it lives.
    pub(crate) seat: Seat,
}

/// A connection's place among the most that there may be.
pub(crate) struct Seat(Arc<AtomicUsize>);

impl Seat {
    /// A place, unless all are taken.
    pub(crate) fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let more = |count: usize| (count < most).then_some(count + 1);
        let taken_one = taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken_one.ok().map(|_| Self(Arc::clone(taken)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What all shards of a server share.
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) hosts: Vec<MailboxSender<Command>>,
    /// The port that clients come to.
    pub(crate) port: u16,
    /// Rails for clients, where they may have them.
    pub(crate) one_sided: Option<Arc<OneSided>>,
}

/// See the module's text.
pub(crate) struct Host {
    pub(crate) shard: Rc<Shard>,
    pub(crate) engine: Engine,
    pub(crate) shared: Arc<Shared>,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    counters: RefCell<ServerCounters>,
    latencies: RefCell<Latencies>,
    slow: RefCell<SlowLog>,
    next_id: Cell<u64>,
    is_watched: Cell<bool>,
    draining: Cell<bool>,
}

impl Host {
    pub(crate) fn new(shard: Rc<Shard>, engine: Engine, shared: Arc<Shared>) -> Rc<Self> {
        Rc::new(Self {
            shard,
            engine,
            shared,
            connections: RefCell::default(),
            counters: RefCell::default(),
            latencies: RefCell::default(),
            slow: RefCell::new(SlowLog::new()),
            next_id: Cell::new(1),
            is_watched: Cell::new(false),
            draining: Cell::new(false),
        })
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    pub(crate) fn now(&self) -> Nanos {
        self.shard.runtime().now()
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut ServerCounters)) {
        count(&mut self.counters.borrow_mut());
    }

    /// Handles commands until the server ends.
    pub(crate) async fn run(self: Rc<Self>, mailbox: Mailbox<Command>) {
        let runtime = Rc::clone(self.shard.runtime());
        loop {
            match mailbox.try_recv() {
                None => mailbox.sleep(&*runtime).await,
                Some(Command::Adopt(arrival)) => self.adopt(arrival),
                Some(Command::Drain(close_ms)) => self.drain(close_ms).await,
                Some(Command::Close(which, reply)) => {
                    let _ = reply.send(self.close(which));
                }
                Some(Command::Report(reply)) => {
                    let _ = reply.send(Box::new(self.report()));
                }
                Some(Command::End) => break,
            }
        }
        self.close(CloseWhich::All);
    }

    fn report(&self) -> ServerReport {
        let mut counters = *self.counters.borrow();
        let connections = self.connections.borrow();
        counters.connections = connections.len() as u64;
        for connection in connections.values() {
            let (requests, bytes) = connection.depths();
            counters.requests_under_way += requests as u64;
            counters.unsent_bytes += bytes as u64;
            counters.subscriptions += u64::from(connection.subscriptions.get());
        }
        ServerReport {
            counters,
            latencies: self.latencies.borrow().clone(),
            slow: self.slow.borrow().last(),
        }
    }

    /// Notes the times of a request whose reply is sent.
    pub(crate) fn answered(&self, connection: &Connection, trace: &Trace, now: Nanos) {
        if trace.verb == Verb::Events {
            // It lasted as long as its client liked.
            return;
        }
        let (time, hops) = trace.settle(now);
        let mut latencies = self.latencies.borrow_mut();
        latencies.record_request(trace.verb, time.as_nanos() as u64);
        for (hop, span) in Hop::ALL.into_iter().zip(hops) {
            // A request without values waits for none, and few wait for the tiers.
            let is_common = matches!(hop, Hop::Queue | Hop::Socket);
            if is_common || !span.is_zero() {
                latencies.record_hop(hop, span.as_nanos() as u64);
            }
        }
        drop(latencies);
        let threshold = self.config().slow;
        if threshold.is_zero() || time < threshold {
            return;
        }
        self.count(|counters| counters.requests_slow += 1);
        let slow = SlowRequest {
            shard: self.shard.number(),
            connection: connection.number,
            peer: connection.peer,
            request: trace.id,
            verb: trace.verb.name(),
            keys: trace.keys.get(),
            bytes_received: trace.received_len,
            bytes_sent: trace.sent_len.get(),
            arrived: trace.arrived,
            time,
            hops,
        };
        self.slow.borrow_mut().push(slow, now);
    }

    fn adopt(self: &Rc<Self>, arrival: Arrival) {
        let Arrival {
            socket,
            peer,
            received,
            tls,
            seat,
        } = arrival;
        let socket = match TcpSocket::adopt(socket) {
            Ok(socket) => Rc::new(ShardSocket::new(socket, tls)),
            Err(error) => return tracing::warn!(%peer, %error, "take a connection over"),
        };
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let sender = TcpSender::new(Rc::clone(&socket));
        let connection = Connection::new(Rc::clone(self), id, peer, self.terms(), sender);
        let receiver = TcpReceiver::new(Rc::clone(&socket), received);
        self.connections
            .borrow_mut()
            .insert(id, Rc::clone(&connection));
        self.count(|counters| counters.connections_taken += 1);
        self.watch();
        let host = Rc::clone(self);
        self.shard.spawn(Box::pin(async move {
            // The time for the hello counts from the arrival, so it bounds this too.
            let leaves = match socket.shake_hands().await {
                Ok(()) => session::serve(&connection, receiver).await,
                Err(error) => {
                    tracing::info!(%peer, %error, "no agreement on TLS");
                    host.count(|counters| counters.tls_refused += 1);
                    socket.linger().await;
                    None
                }
            };
            host.connections.borrow_mut().remove(&id);
            match leaves {
                None => connection.close(),
                Some((shard, received)) => {
                    drop(connection);
                    host.pass_on(shard, socket, peer, received, seat).await;
                }
            }
        }));
    }

    /// Gives a connection to the shard that its hello asks for.
    async fn pass_on(
        &self,
        shard: u32,
        socket: Rc<ShardSocket>,
        peer: SocketAddr,
        received: Vec<u8>,
        seat: Seat,
    ) {
        let Some(socket) = Rc::into_inner(socket) else {
            return tracing::error!(%peer, "a connection that moves is still in use");
        };
        let (socket, tls) = socket.into_parts();
        let socket = match socket.release() {
            Ok(socket) => socket,
            Err(error) => return tracing::warn!(%peer, %error, "move a connection"),
        };
        let arrival = Arrival {
            socket,
            peer,
            received,
            tls,
            seat,
        };
        if let Some(host) = self.shared.hosts.get(shard as usize) {
            // Without that shard the connection ends, as its client asked for no other.
            let _ = host.send(Command::Adopt(arrival)).await;
        }
    }

    /// What the node says of itself to a client of this shard.
    fn terms(&self) -> NodeTerms {
        let config = self.config();
        let ms = |span: Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        let arena_len = self.engine.config().arena_len();
        NodeTerms {
            version: VERSION,
            security: security(config),
            shard: self.shard.number() as u32,
            features: match self.shared.one_sided {
                Some(_) => FEATURES.with(Features::ONE_SIDED),
                None => FEATURES,
            },
            node_id: config.node_id,
            node_epoch: config.node_epoch,
            map_epoch: 1,
            shards: self.engine.shards() as u32,
            limits: LIMITS,
            batch_max: BATCH_MAX,
            credit_requests: config.credit_requests,
            credit_bytes: CREDIT_BYTES,
            block_len_max: arena_len.min(BLOCK_LEN_MAX) as u32,
            lease_max_ms: ms(config.lease_max),
            deadline_max_ms: ms(config.deadline_max),
            silence_max_ms: ms(config.silence_max),
        }
    }

    /// Whether the server takes no new requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    async fn drain(&self, close_ms: u32) {
        self.draining.set(true);
        for connection in self.all() {
            if connection.session.borrow().frame_limits() == FrameLimits::BEFORE_HELLO {
                // Before the answer to its hello a client takes no other frame.
                connection.close();
                continue;
            }
            //= docs/wire-protocol.md#WP-15
            connection.session.borrow_mut().drain();
            connection.say_goodbye(GoodbyeReason::Draining, close_ms);
            connection.take_no_more();
            connection.flush().await;
        }
    }

    fn close(&self, which: CloseWhich) -> usize {
        let mut left = 0;
        for connection in self.all() {
            let closes = match which {
                CloseWhich::Neither => false,
                CloseWhich::Idle => connection.is_idle(),
                CloseWhich::All => true,
            };
            if closes {
                connection.close();
            } else {
                left += 1;
            }
        }
        left
    }

    fn all(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().cloned().collect()
    }

    /// Starts the watch, unless it runs.
    fn watch(self: &Rc<Self>) {
        if self.is_watched.replace(true) {
            return;
        }
        let host = Rc::clone(self);
        self.shard.spawn(Box::pin(async move {
            let config = host.config();
            let shortest = config.stall_max.min(config.silence_max);
            let interval = (shortest / 4).min(WATCH_INTERVAL_MAX);
            while !host.connections.borrow().is_empty() {
                let runtime = host.shard.runtime();
                runtime.sleep_until(runtime.now() + interval).await;
                host.look().await;
            }
            host.is_watched.set(false);
        }));
    }

    /// Ends connections that are overdue. What they are told goes out if it goes at once.
    async fn look(&self) {
        let now = self.now();
        for connection in self.all() {
            connection.expire(now);
            let Some(overdue) = connection.overdue(now) else {
                continue;
            };
            let number = connection.number;
            tracing::info!(connection = number, peer = %connection.peer, ?overdue, "close a connection");
            self.count(|counters| match overdue {
                Overdue::SlowReader => counters.closed_slow += 1,
                Overdue::Stalled => counters.closed_stalled += 1,
                Overdue::Silent => counters.closed_silent += 1,
            });
            match overdue {
                Overdue::SlowReader => {}
                Overdue::Silent => connection.say_goodbye(GoodbyeReason::Idle, 0),
                Overdue::Stalled => {
                    let text = "nothing came for too long; connect again";
                    connection.push_error(0, 0, ErrorCode::Silent, 0, text);
                }
            }
            if overdue != Overdue::SlowReader {
                connection.flush().await;
            }
            connection.close();
        }
    }
}

/// What is checked before a hello is answered.
fn security(config: &ServerConfig) -> Security {
    let tls = config.tls.as_ref();
    let checks = [
        (config.token.is_some(), Security::TOKEN),
        (tls.is_some(), Security::TLS),
        (
            tls.is_some_and(NodeTls::asks_clients),
            Security::CLIENT_CERTIFICATE,
        ),
    ];
    let checked = checks.iter().filter(|(is_checked, _)| *is_checked);
    Security(checked.fold(0, |all, (_, one)| all | one.0))
}

/// What the server can.
const FEATURES: Features = Features::STREAMED_PUTS
    .with(Features::PINS)
    .with(Features::LEASES)
    .with(Features::LISTING)
    .with(Features::EVENTS)
    .with(Features::DESCRIPTORS);
