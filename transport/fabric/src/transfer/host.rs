//! The end that is opened: connections of peers, each served by a thread of its own.
//!
//! **Invariants**
//! - A peer is known as long as one of its connections is there.
//! - A connection is in the list until its thread touches no region any more, and until what its
//!   peer had of transports is gone, if it is the last one of the peer.
//! - Where openers are invited, a connection has the token of a ticket that was not taken back.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::clock::random;
use super::error::TransferError;
use super::limits::{
    CONNECTION_COUNT_MAX, NOTIFICATION_COUNT_MAX, NOTIFICATION_LEN_MAX, TICKET_COUNT_MAX,
};
use super::shm::host::SharedHost;
use super::table::RegionTable;
use super::tcp::{question, serve};
use super::ticket::{Admission, Ticket};
use super::transport::{Session, Transport, TransportKind};
use super::wire::{
    HELLO_LEN, Hello, MESSAGE_HEAD_LEN, MessageHead, MessageKind, Purpose, Token, Welcome,
    encode_regions, number,
};

/// How long a new connection may take to say what it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a peer may take none of what is sent to it.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long it is waited for the threads of connections that were ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a question to a transport.
const QUESTION_LEN_MAX: usize = 64 << 10;

/// A few bytes from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Where the peer's control connection comes from.
    pub from: SocketAddr,
    /// What it said.
    pub bytes: Vec<u8>,
}

/// A peer that opened this engine.
pub(super) struct ServedPeer {
    pub(super) token: Token,
    sessions: Mutex<HashMap<TransportKind, Box<dyn Session>>>,
}

/// A connection that is being served.
struct Connection {
    purpose: Purpose,
    /// None: an opener on this host.
    from: Option<SocketAddr>,
    token: Token,
    /// Ends both directions of it.
    socket: OwnedFd,
    is_busy: Arc<AtomicBool>,
}

impl Connection {
    /// What it is and where it comes from, for an error.
    fn name(&self) -> String {
        let from = self.from.map(|from| from.to_string());
        let from = from.as_deref().unwrap_or("this host");
        match self.purpose {
            Purpose::Control => format!("control from {from}"),
            Purpose::Lane { rail, .. } => format!("rail {rail} from {from}"),
            Purpose::SharedMemory => format!("shared memory of {from}"),
        }
    }
}

#[derive(Default)]
struct Served {
    connections: HashMap<u64, Connection>,
    peers: HashMap<Token, Weak<ServedPeer>>,
    /// Tickets that were given out and not taken back.
    tickets: HashSet<Token>,
    next: u64,
}

/// What is served to peers.
pub(super) struct Host {
    pub(super) regions: RegionTable,
    pub(super) transports: Vec<Arc<dyn Transport>>,
    /// None: peers on this host take another way.
    pub(super) shared: Option<SharedHost>,
    admission: Admission,
    served: Mutex<Served>,
    /// Told when a connection is gone.
    gone: Condvar,
    notifications: Mutex<VecDeque<Notification>>,
    arrived: Condvar,
    is_closing: AtomicBool,
}

impl Host {
    pub(super) fn new(
        transports: Vec<Arc<dyn Transport>>,
        shared: Option<SharedHost>,
        admission: Admission,
    ) -> Self {
        Self {
            admission,
            regions: RegionTable::default(),
            transports,
            shared,
            served: Mutex::new(Served::default()),
            gone: Condvar::new(),
            notifications: Mutex::new(VecDeque::new()),
            arrived: Condvar::new(),
            is_closing: AtomicBool::new(false),
        }
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections until the listener is shut down.
    pub(super) fn listen(self: &Arc<Self>, listener: &TcpListener) {
        let accept = || {
            let (stream, from) = listener.accept()?;
            let host = Arc::clone(self);
            Ok(move || host.serve(&stream, from))
        };
        self.accept(accept);
    }

    /// The same for openers on this host.
    pub(super) fn listen_shared(self: &Arc<Self>) {
        let Some(shared) = &self.shared else {
            return;
        };
        let accept = || {
            let (stream, _) = shared.listener.accept()?;
            let host = Arc::clone(self);
            Ok(move || host.serve_shared(&stream))
        };
        self.accept(accept);
    }

    /// Serves what is accepted, each on a thread of its own.
    fn accept<S: FnOnce() + Send + 'static>(&self, accept: impl Fn() -> io::Result<S>) {
        loop {
            match accept() {
                Ok(serve) => {
                    let name = "transfer-serve".to_owned();
                    if let Err(error) = std::thread::Builder::new().name(name).spawn(serve) {
                        tracing::warn!(%error, "no thread for a peer's connection");
                    }
                }
                Err(_) if self.is_closing.load(Ordering::Acquire) => return,
                Err(error) if is_passing(&error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Until a connection is gone there may be no descriptor for another one.
                    let served = self.served();
                    drop(self.gone.wait_timeout(served, Duration::from_millis(100)));
                }
                Err(error) => {
                    tracing::error!(%error, "connections are not accepted any more");
                    return;
                }
            }
        }
    }

    fn serve(self: &Arc<Self>, stream: &TcpStream, from: SocketAddr) {
        let outcome = (|| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
            stream.set_write_timeout(Some(SEND_TIMEOUT))?;
            let accepted = self.greet(stream, stream.try_clone()?.into(), Some(from))?;
            stream.set_read_timeout(None)?;
            match accepted {
                Some(accepted) => self.serve_accepted(stream, from, &accepted),
                None => Ok(()),
            }
        })();
        if let Err(error) = outcome {
            tracing::debug!(%from, %error, "a peer's connection ended");
        }
    }

    fn serve_shared(self: &Arc<Self>, stream: &UnixStream) {
        let outcome = (|| {
            stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
            stream.set_write_timeout(Some(SEND_TIMEOUT))?;
            let accepted = self.greet(stream, stream.try_clone()?.into(), None)?;
            stream.set_read_timeout(None)?;
            match (accepted, &self.shared) {
                (Some(_accepted), Some(shared)) => shared.serve(stream, &self.regions),
                _ => Ok(()),
            }
        })();
        if let Err(error) = outcome {
            tracing::debug!(%error, "an opener on this host has left");
        }
    }

    /// Reads the hello and answers it; what is to be served, if anything.
    fn greet<'a, S>(
        self: &Arc<Self>,
        mut stream: &'a S,
        socket: OwnedFd,
        from: Option<SocketAddr>,
    ) -> io::Result<Option<Accepted>>
    where
        &'a S: Read + Write,
    {
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello)?;
        let welcome = match Hello::decode(&hello) {
            Ok(hello) if from.is_none() != (hello.purpose == Purpose::SharedMemory) => None,
            Ok(hello) => match self.admit(&hello, socket, from)? {
                Ok(accepted) => {
                    stream.write_all(&Welcome::Accepted(accepted.peer.token).encode())?;
                    return Ok(Some(accepted));
                }
                Err(welcome) => Some(welcome),
            },
            Err(welcome) => welcome,
        };
        if let Some(welcome) = welcome {
            stream.write_all(&welcome.encode())?;
        }
        Ok(None)
    }

    /// Takes a connection into the list.
    fn admit(
        self: &Arc<Self>,
        hello: &Hello,
        socket: OwnedFd,
        from: Option<SocketAddr>,
    ) -> io::Result<Result<Accepted, Welcome>> {
        let fresh = random().map_err(io::Error::other)?;
        let mut served = self.served();
        if served.connections.len() >= CONNECTION_COUNT_MAX
            || self.is_closing.load(Ordering::Acquire)
        {
            return Ok(Err(Welcome::TooManyConnections));
        }
        let known = served.peers.get(&hello.token).and_then(Weak::upgrade);
        let is_control = hello.purpose == Purpose::Control;
        let new = match self.admission {
            Admission::Anyone => (hello.token == [0; 16]).then_some(fresh),
            Admission::Invited => served.tickets.get(&hello.token).copied(),
        };
        let peer = match (known, new.filter(|_| is_control)) {
            (Some(peer), _) => peer,
            (None, Some(token)) => {
                let peer = Arc::new(ServedPeer {
                    token,
                    sessions: Mutex::default(),
                });
                served.peers.retain(|_, peer| peer.strong_count() > 0);
                served.peers.insert(token, Arc::downgrade(&peer));
                peer
            }
            (None, None) if self.admission == Admission::Invited => {
                return Ok(Err(Welcome::NotInvited));
            }
            (None, None) => return Ok(Err(Welcome::UnknownToken)),
        };
        served.next += 1;
        let (id, is_busy) = (served.next, Arc::new(AtomicBool::new(false)));
        let connection = Connection {
            purpose: hello.purpose,
            from,
            token: peer.token,
            socket,
            is_busy: Arc::clone(&is_busy),
        };
        served.connections.insert(id, connection);
        Ok(Ok(Accepted {
            peer,
            is_busy,
            purpose: hello.purpose,
            _listed: Listed {
                host: Arc::clone(self),
                id,
            },
        }))
    }

    fn serve_accepted(
        &self,
        stream: &TcpStream,
        from: SocketAddr,
        accepted: &Accepted,
    ) -> io::Result<()> {
        match accepted.purpose {
            Purpose::Lane { .. } => serve::serve(stream, &self.regions, &accepted.is_busy),
            Purpose::Control => self.serve_control(stream, from, &accepted.peer),
            Purpose::SharedMemory => Ok(()),
        }
    }

    fn serve_control(
        &self,
        mut stream: &TcpStream,
        from: SocketAddr,
        peer: &Arc<ServedPeer>,
    ) -> io::Result<()> {
        loop {
            let mut head = [0; MESSAGE_HEAD_LEN];
            stream.read_exact(&mut head)?;
            let head = MessageHead::decode(&head)
                .filter(|head| head.len as usize <= QUESTION_LEN_MAX)
                .ok_or(io::ErrorKind::InvalidData)?;
            let mut body = vec![0; head.len as usize];
            stream.read_exact(&mut body)?;
            let answer = match head.kind {
                MessageKind::Regions => Some(encode_regions(&self.regions.offers())),
                MessageKind::Notify => self.notified(from, body),
                MessageKind::Ask(kind) => self.answer(peer, kind, &body),
            };
            let is_refused = answer.is_none();
            let answer = answer.unwrap_or_default();
            let head = MessageHead {
                len: answer.len() as u32,
                is_refused,
                ..head
            };
            let mut message = head.encode().to_vec();
            message.extend(answer);
            stream.write_all(&message)?;
        }
    }

    fn notified(&self, from: SocketAddr, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let mut waiting = self
            .notifications
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if bytes.len() > NOTIFICATION_LEN_MAX || waiting.len() >= NOTIFICATION_COUNT_MAX {
            return None;
        }
        waiting.push_back(Notification { from, bytes });
        self.arrived.notify_one();
        Some(Vec::new())
    }

    /// The next notification, if one comes within `timeout`.
    pub(super) fn notification(&self, timeout: Duration) -> Option<Notification> {
        let waiting = self
            .notifications
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_empty = |waiting: &mut VecDeque<Notification>| waiting.is_empty();
        let waited = self.arrived.wait_timeout_while(waiting, timeout, is_empty);
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    fn answer(&self, peer: &ServedPeer, kind: TransportKind, body: &[u8]) -> Option<Vec<u8>> {
        if kind == TransportKind::Tcp {
            return self.answer_tcp(peer, body);
        }
        if kind == TransportKind::SharedMemory {
            return self.shared.as_ref()?.location();
        }
        let mut sessions = peer.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = match sessions.entry(kind) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let transport = self.transports.iter().find(|of| of.kind() == kind)?;
                entry.insert(logged(kind, transport.accept())?)
            }
        };
        logged(kind, session.answer(body))
    }

    fn answer_tcp(&self, peer: &ServedPeer, body: &[u8]) -> Option<Vec<u8>> {
        match *body {
            [question::TOKEN] => Some(peer.token.to_vec()),
            [question::FENCE, ref rail @ ..] if rail.len() == 4 => {
                let rail = number(rail, 0, 4) as u32;
                let is_of_rail = |connection: &Connection| {
                    let is_lane =
                        matches!(connection.purpose, Purpose::Lane { rail: of, .. } if of == rail);
                    is_lane && connection.token == peer.token
                };
                self.end(END_TIMEOUT, is_of_rail).then(Vec::new)
            }
            _ => None,
        }
    }

    /// A ticket for one opener.
    pub(super) fn invite(&self) -> Result<Ticket, TransferError> {
        let token = random()?;
        let mut served = self.served();
        if served.tickets.len() >= TICKET_COUNT_MAX {
            let max = TICKET_COUNT_MAX;
            return Err(TransferError::TooManyTickets { max });
        }
        served.tickets.insert(token);
        Ok(Ticket::from_bytes(token))
    }

    /// Takes a ticket back, and ends what its opener has here.
    pub(super) fn expel(&self, ticket: &Ticket, timeout: Duration) -> Result<(), TransferError> {
        let token = ticket.bytes();
        {
            let mut served = self.served();
            served.tickets.remove(&token);
            // From here on no connection of it is taken in.
            served.peers.remove(&token);
        }
        let is_of_ticket = |connection: &Connection| connection.token == token;
        if self.end(timeout, is_of_ticket) {
            return Ok(());
        }
        let served = self.served();
        let left = served.connections.values().filter(|of| is_of_ticket(of));
        let left: Vec<String> = left.map(Connection::name).collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(TransferError::StillServed {
            connections: left.join(", "),
            waited: timeout,
        })
    }

    /// Ends connections and waits for their threads; whether all are gone.
    fn end(&self, timeout: Duration, which: impl Fn(&Connection) -> bool) -> bool {
        let served = self.served();
        for connection in served.connections.values().filter(|of| which(of)) {
            shut_down(connection.socket.as_raw_fd());
        }
        let is_there = |served: &mut Served| served.connections.values().any(&which);
        let waited = self.gone.wait_timeout_while(served, timeout, is_there);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Ends connections that use regions right now: their openers do not move on.
    pub(super) fn end_busy(&self) {
        self.end(END_TIMEOUT, |connection| {
            connection.is_busy.load(Ordering::Acquire)
        });
    }

    /// Serves nobody any more.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.end(END_TIMEOUT, |_| true);
    }
}

/// Whether accepting may succeed later.
fn is_passing(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    let is_scarce = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    let is_retried = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
    );
    is_retried || code.is_some_and(|code| is_scarce.contains(&code))
}

/// Ends both directions of a socket; who waits on it is woken.
pub(super) fn shut_down(socket: std::os::fd::RawFd) {
    // An error says that it has ended already.
    let _ = nix::sys::socket::shutdown(socket, nix::sys::socket::Shutdown::Both);
}

fn logged<T>(kind: TransportKind, outcome: Result<T, TransferError>) -> Option<T> {
    outcome
        .inspect_err(|error| tracing::warn!(%kind, %error, "a peer's question was refused"))
        .ok()
}

/// A connection that was taken in.
pub(super) struct Accepted {
    // Dropped before the connection leaves the list: with the last one go the peer's sessions, and
    // who waits for the list must not find them still at work.
    pub(super) peer: Arc<ServedPeer>,
    pub(super) is_busy: Arc<AtomicBool>,
    purpose: Purpose,
    _listed: Listed,
}

/// A connection in the list; gone from it with this.
struct Listed {
    host: Arc<Host>,
    id: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let gone = self.host.served().connections.remove(&self.id);
        if let Some(connection) = gone {
            shut_down(connection.socket.as_raw_fd());
        }
        self.host.gone.notify_all();
    }
}
