//! A small node for tests: the protocol's own session over threads and sockets, with a map as its
//! store, and switches for what may go wrong.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use terrace_fabric::transfer::Ticket;
use terrace_wire::{
    ErrorCode, ErrorFrame, Features, FrameHead, FrameLimits, Goodbye, GoodbyeReason, Incoming,
    KeyStatus, NodeTerms, Partial, Pong, Request, Security, ServerSession, Verb,
};

use crate::rails::NodeEngine;

/// What a node does wrong, or differently.
#[derive(Default)]
pub(crate) struct Switches {
    /// Takes connections and says nothing, not even hello.
    pub(crate) mute: AtomicBool,
    /// Reads requests and answers none.
    pub(crate) silent: AtomicBool,
    /// Ends the connection in place of so many replies, after the request was carried out.
    pub(crate) vanish: AtomicU32,
    /// Ends the connection in the middle of so many values.
    pub(crate) vanish_in_value: AtomicU32,
    /// Flips a bit of so many values.
    pub(crate) corrupt: AtomicU32,
    /// Answers so many requests by *draining*.
    pub(crate) draining: AtomicU32,
    /// Refuses all namespaces.
    pub(crate) refuse_namespaces: AtomicBool,
    /// Replies of gets are kept until a `touch` comes, and then sent last first.
    pub(crate) hold_gets: AtomicBool,
    /// What puts are answered by: 0 stored, 1 busy, 2 not admitted.
    pub(crate) put_status: AtomicU32,
    /// Says goodbye behind the next reply.
    pub(crate) goodbye: AtomicBool,
    /// Ends the connection behind a goodbye.
    pub(crate) closes: AtomicBool,
    /// Splits replies of gets into frames of one value.
    pub(crate) split: AtomicBool,
    /// Says that every key belongs to another shard.
    pub(crate) wrong_shard: AtomicBool,
    /// Tells subscribers of all events again: twice at the first shard, once at the second.
    pub(crate) events_again: AtomicBool,
}

/// What a node saw.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    pub(crate) cancels: AtomicUsize,
    pub(crate) puts: AtomicUsize,
    pub(crate) gets: AtomicUsize,
    pub(crate) requests: AtomicUsize,
    /// Requests whose replies were sent, or kept on purpose.
    pub(crate) answered: AtomicUsize,
}

type Store = HashMap<(String, Vec<u8>), Vec<u8>>;

pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) shards: AtomicU32,
    pub(crate) map_epoch: AtomicU64,
    pub(crate) credit: AtomicU32,
    pub(crate) token: Mutex<Vec<u8>>,
    pub(crate) switches: Switches,
    pub(crate) seen: Seen,
    pub(crate) store: Mutex<Store>,
    /// There when it grants one-sided access.
    pub(crate) engine: OnceLock<NodeEngine>,
    listener: Mutex<Option<TcpListener>>,
    sockets: Mutex<Vec<TcpStream>>,
    changed: Condvar,
    changes: Mutex<u64>,
}

impl Node {
    pub(crate) fn start(shards: u32) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            shards: AtomicU32::new(shards),
            map_epoch: AtomicU64::new(1),
            credit: AtomicU32::new(64),
            token: Mutex::default(),
            switches: Switches::default(),
            seen: Seen::default(),
            store: Mutex::default(),
            engine: OnceLock::new(),
            listener: Mutex::default(),
            sockets: Mutex::default(),
            changed: Condvar::new(),
            changes: Mutex::default(),
        });
        node.serve(listener);
        node
    }

    fn serve(self: &Arc<Self>, listener: TcpListener) {
        *self.listener.lock().unwrap() = Some(listener.try_clone().unwrap());
        let node = Arc::clone(self);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let Ok(socket) = socket else { return };
                socket.set_nodelay(true).unwrap();
                node.seen.connections.fetch_add(1, SeqCst);
                node.sockets
                    .lock()
                    .unwrap()
                    .push(socket.try_clone().unwrap());
                node.note();
                let node = Arc::clone(&node);
                std::thread::spawn(move || {
                    // How it ends is what the client's side tests.
                    drop(Session::new(&node, &socket).run());
                    drop(socket.shutdown(Shutdown::Both));
                });
            }
        });
    }

    /// Ends all connections and the listener, as a kill would.
    pub(crate) fn kill(&self) {
        use std::os::fd::AsRawFd;
        if let Some(listener) = self.listener.lock().unwrap().take() {
            nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both)
                .unwrap();
        }
        for socket in self.sockets.lock().unwrap().drain(..) {
            drop(socket.shutdown(Shutdown::Both));
        }
    }

    /// Listens at the same address again.
    pub(crate) fn restart(self: &Arc<Self>) {
        let listener = TcpListener::bind(self.address).unwrap();
        self.serve(listener);
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    fn note(&self) {
        *self.changes.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Waits until what the node saw fulfils `is`.
    pub(crate) fn wait_until(&self, is: impl Fn(&Seen) -> bool) {
        let mut changes = self.changes.lock().unwrap();
        while !is(&self.seen) {
            changes = self.changed.wait(changes).unwrap();
        }
    }
}

/// Takes one from a count, when there is one.
pub(crate) fn take(count: &AtomicU32) -> bool {
    count
        .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

const LIMITS: FrameLimits = FrameLimits {
    body_len_max: 1 << 20,
    values_len_max: 256 << 20,
};

/// One connection of it.
pub(crate) struct Session<'a> {
    pub(crate) node: &'a Node,
    socket: &'a TcpStream,
    state: ServerSession,
    pub(crate) shard: u32,
    pub(crate) names: HashMap<u16, String>,
    held: Vec<Vec<u8>>,
    /// A goodbye follows the reply under way: decided before the reply lets the test go on.
    says_goodbye: bool,
    pub(crate) pins: usize,
    pub(crate) client_id: [u8; 16],
    /// Of the rails that were asked for here.
    pub(crate) ticket: Option<Ticket>,
}

impl<'a> Session<'a> {
    fn new(node: &'a Node, socket: &'a TcpStream) -> Self {
        Self {
            node,
            socket,
            state: ServerSession::new(terms(node, 0)),
            shard: 0,
            names: HashMap::new(),
            held: Vec::new(),
            says_goodbye: false,
            pins: 0,
            client_id: [0; 16],
            ticket: None,
        }
    }

    fn run(&mut self) -> io::Result<()> {
        if self.node.switches.mute.load(SeqCst) {
            let mut one = [0; 1];
            while self.socket.read(&mut one)? > 0 {}
            return Ok(());
        }
        loop {
            let mut head = [0; 32];
            self.socket.read_exact(&mut head)?;
            let parsed = FrameHead::parse(&head, &self.state.frame_limits()).unwrap();
            let Partial::Whole(head) = parsed else {
                panic!("32 bytes are a head")
            };
            let incoming = self.state.on_head(&head).unwrap();
            let mut body = vec![0; head.body_len as usize];
            self.socket.read_exact(&mut body)?;
            let mut values = vec![0; head.values_len as usize];
            self.socket.read_exact(&mut values)?;
            match incoming {
                Incoming::Cancel { .. } => {
                    self.node.seen.cancels.fetch_add(1, SeqCst);
                    self.node.note();
                    continue;
                }
                Incoming::Goodbye => return Ok(()),
                _ => {}
            }
            let body = head.body(&body).unwrap();
            let request = Request::decode(&head, body).unwrap();
            if incoming == Incoming::Hello {
                self.greet(&request)?;
                continue;
            }
            self.state.on_request(&head, &request).unwrap();
            self.node.seen.requests.fetch_add(1, SeqCst);
            self.answer(&head, &request, &values)?;
            self.node.note();
        }
    }

    fn greet(&mut self, request: &Request<'_>) -> io::Result<()> {
        let Request::Hello(hello) = request else {
            panic!("no hello")
        };
        let mut out = vec![0; 4096];
        if hello.token != *self.node.token.lock().unwrap() {
            let error = ErrorFrame {
                code: ErrorCode::NotAuthenticated,
                verb_number: Verb::Hello.number(),
                argument: 0,
                text: "give a token",
            };
            let len = error.encode(0, &mut out).unwrap();
            self.send(&out[..len])?;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let shards = self.node.shards.load(SeqCst);
        self.shard = hello.shard.unwrap_or(0).min(shards - 1);
        self.state = ServerSession::new(terms(self.node, self.shard));
        self.client_id = hello.client_id;
        let agreed = self.state.on_hello(hello).unwrap();
        let len = agreed.encode([], &mut out).unwrap();
        self.send(&out[..len])
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    fn answer(&mut self, head: &FrameHead, request: &Request<'_>, values: &[u8]) -> io::Result<()> {
        let switches = &self.node.switches;
        if switches.silent.load(SeqCst) {
            return Ok(());
        }
        self.says_goodbye = switches.goodbye.swap(false, SeqCst);
        if take(&switches.draining) {
            return self.refuse(head, ErrorCode::Draining);
        }
        let is_opening = matches!(request, Request::OpenNamespace(_));
        if is_opening && switches.refuse_namespaces.load(SeqCst) {
            return self.refuse(head, ErrorCode::NamespaceRefused);
        }
        if !self.has_namespace(request) {
            return self.refuse(head, ErrorCode::NamespaceNumber);
        }
        let frames = match self.one_sided(head, request) {
            None => self.frames(head, request, values),
            Some(Ok(frame)) => vec![frame],
            Some(Err(code)) => return self.refuse(head, code),
        };
        if matches!(request, Request::Get(..)) && switches.hold_gets.load(SeqCst) {
            self.held.extend(frames);
        } else {
            for frame in frames {
                self.reply(head, &frame)?;
            }
        }
        if matches!(request, Request::Touch(..)) {
            while let Some(frame) = self.held.pop() {
                self.send(&frame)?;
            }
        }
        self.finish(head)
    }

    /// `None`: the request is about something else.
    fn one_sided(
        &mut self,
        head: &FrameHead,
        request: &Request<'_>,
    ) -> Option<Result<Vec<u8>, ErrorCode>> {
        let lost = ErrorCode::NoRails;
        match request {
            Request::Rails(wanted) => Some(self.rails(head, wanted).ok_or(lost)),
            Request::Locate(..) | Request::Pull(..) if self.has_lost_rails() => Some(Err(lost)),
            Request::Pull(..) if self.node.engine().pulls_nothing.load(SeqCst) => {
                Some(Err(ErrorCode::FeatureNotInForce))
            }
            Request::Pull(_, entries) => Some(self.pull(head, entries).ok_or(lost)),
            _ => None,
        }
    }

    fn frames(&mut self, head: &FrameHead, request: &Request<'_>, values: &[u8]) -> Vec<Vec<u8>> {
        match request {
            Request::OpenNamespace(open) => {
                self.names.insert(open.number.0, open.name.to_owned());
                vec![self.records::<KeyStatus>(head, [])]
            }
            Request::Ping => {
                let pong = Pong {
                    node_epoch: 1,
                    map_epoch: self.node.map_epoch.load(SeqCst),
                };
                vec![made(|out| pong.encode(head.request_id, out))]
            }
            Request::Put(_, entries) | Request::Upsert(_, entries) => {
                self.node.seen.puts.fetch_add(1, SeqCst);
                let is_upsert = matches!(request, Request::Upsert(..));
                let mut at = 0;
                let mut statuses = Vec::new();
                for entry in entries.iter() {
                    let value = &values[at..at + entry.len as usize];
                    at += value.len();
                    statuses.push(self.put(entry.key, value, entry.checksum, is_upsert));
                }
                vec![self.records(head, statuses)]
            }
            Request::Get(_, entries) => {
                self.node.seen.gets.fetch_add(1, SeqCst);
                let entries: Vec<_> = entries.iter().collect();
                self.values(head, &entries)
            }
            Request::Events(..) => {
                let is_again = self.node.switches.events_again.load(SeqCst);
                let count = if is_again { 3 - self.shard as usize } else { 1 };
                // In one piece, so that they come together.
                vec![self.events(head.request_id).repeat(count)]
            }
            request => vec![self.about_keys(head, request)],
        }
    }

    fn finish(&mut self, head: &FrameHead) -> io::Result<()> {
        // The session counts entries only where it is told of them; tests of it are elsewhere.
        self.state.end(head.request_id, true, false).unwrap();
        self.node.seen.answered.fetch_add(1, SeqCst);
        if std::mem::take(&mut self.says_goodbye) {
            let goodbye = Goodbye {
                reason: GoodbyeReason::Draining,
                close_ms: 1000,
            };
            let frame = made(|out| goodbye.encode(out));
            self.send(&frame)?;
            if self.node.switches.closes.load(SeqCst) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        Ok(())
    }

    fn reply(&mut self, head: &FrameHead, frame: &[u8]) -> io::Result<()> {
        let switches = &self.node.switches;
        let is_namespace = head.verb_number == Verb::OpenNamespace.number();
        if !is_namespace && take(&switches.vanish) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if frame.len() > 4096 && take(&switches.vanish_in_value) {
            self.send(&frame[..frame.len() - 1000])?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.send(frame)
    }

    fn refuse(&mut self, head: &FrameHead, code: ErrorCode) -> io::Result<()> {
        let error = ErrorFrame {
            code,
            verb_number: head.verb_number,
            argument: 0,
            text: "as the test wants it",
        };
        let frame = made(|out| error.encode(head.request_id, out));
        self.send(&frame)?;
        self.finish(head)
    }

    fn has_namespace(&self, request: &Request<'_>) -> bool {
        let head = match request {
            Request::Put(head, _) | Request::Upsert(head, _) => head,
            Request::Get(head, _) => head,
            Request::Exists(head, _) | Request::Locate(head, _) => head,
            Request::Pull(head, _) => head,
            _ => return true,
        };
        self.names.contains_key(&head.namespace.0)
    }
}

pub(crate) fn made(
    encode: impl Fn(&mut [u8]) -> Result<usize, terrace_wire::WireError>,
) -> Vec<u8> {
    let mut out = vec![0; 1 << 20];
    let len = encode(&mut out).unwrap();
    out.truncate(len);
    out
}

fn terms(node: &Node, shard: u32) -> NodeTerms {
    let credit_requests = node.credit.load(SeqCst);
    NodeTerms {
        version: 1,
        security: Security::default(),
        shard,
        features: match node.engine.get() {
            Some(_) => Features::ALL,
            None => Features(Features::ALL.0 & !Features::ONE_SIDED.0),
        },
        node_id: [1; 16],
        node_epoch: 1,
        map_epoch: node.map_epoch.load(SeqCst),
        shards: node.shards.load(SeqCst),
        limits: LIMITS,
        batch_max: 64,
        credit_requests,
        credit_bytes: u64::from(credit_requests) * (300 << 20),
        block_len_max: 128 << 20,
        lease_max_ms: 60_000,
        deadline_max_ms: 60_000,
        silence_max_ms: 0,
    }
}
