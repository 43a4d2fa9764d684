//! Making a connection: the address, the socket, the hellos.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use async_io::Async;
use terrace_fabric::thread::on_thread;
use terrace_fabric::tls::{ClientTls, TlsFault};
use terrace_wire::limits::{VALUES_LEN_MAX, VERSION};
use terrace_wire::{
    ClientHello, ClientSession, Endpoint, ErrorFrame, Expected, FRAME_HEAD_LEN, Features,
    FrameHead, FrameLimits, NodeTerms, Offer, Partial, Reply, Transport,
};

use super::link::Link;
use super::receive::Incoming;
use super::send::Outgoing;
use super::{Connection, State};
use crate::error::{Cause, Failure, Retry};

/// What this client can in any case: all that goes over TCP.
const FEATURES: Features = Features::STREAMED_PUTS
    .with(Features::EVENTS)
    .with(Features::LEASES)
    .with(Features::DESCRIPTORS)
    .with(Features::LISTING)
    .with(Features::PINS);

/// The longest frame that it takes. Values are read to where they belong, so their limit is the
/// protocol's own.
const LIMITS: FrameLimits = FrameLimits {
    body_len_max: 1 << 20,
    values_len_max: VALUES_LEN_MAX,
};

/// How a record of TLS begins that carries an alert.
const TLS_ALERT: [u8; 2] = [21, 3];

/// Whom to connect to, and as whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// Host and port.
    pub(crate) address: &'a Arc<str>,
    /// The shard wanted; `None` for any.
    pub(crate) shard: Option<u32>,
    /// Random for each client.
    pub(crate) client_id: [u8; 16],
    /// Whether it can do one-sided reads.
    pub(crate) is_one_sided: bool,
    /// What shows who the client is.
    pub(crate) token: &'a [u8],
    /// What logs call it.
    pub(crate) name: &'a str,
    /// TLS below the frames, and the name that the node's certificate has to be for, unless that is
    /// the host of the address.
    pub(crate) tls: Option<(&'a ClientTls, Option<&'a str>)>,
}

/// What a node said in its hello.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) terms: NodeTerms,
    /// Where shards are reached over TCP: the shard, if only one, and the address.
    pub(crate) endpoints: Vec<(Option<u32>, Arc<str>)>,
}

/// Connects and shakes hands.
pub(crate) async fn open(wish: Wish<'_>) -> Result<(Arc<Connection>, Hello), Failure> {
    let addresses = resolve(wish.address).await?;
    let mut failure = Failure::unavailable("the name has no address");
    for address in addresses {
        match Async::<TcpStream>::connect(address).await {
            Ok(socket) => return shake_hands(wish, socket).await,
            Err(error) => failure = Failure::unavailable(format_args!("connect: {error}")),
        }
    }
    Err(failure)
}

/// The addresses of a host and a port. A name is looked up on a thread of its own, as the operating
/// system's own way blocks.
pub(crate) async fn resolve(address: &Arc<str>) -> Result<Vec<SocketAddr>, Failure> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let name = Arc::clone(address);
    let look_up = move || name.to_socket_addrs().map(Iterator::collect);
    let failed =
        |error: &dyn fmt::Display| Failure::unavailable(format_args!("look up the name: {error}"));
    let found = on_thread("terrace-resolve", look_up).await;
    found
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))
}

async fn shake_hands(
    wish: Wish<'_>,
    socket: Async<TcpStream>,
) -> Result<(Arc<Connection>, Hello), Failure> {
    // Requests are whole when they are written.
    socket.get_ref().set_nodelay(true).map_err(failed)?;
    let link = link(wish, socket).await?;
    let features = match wish.is_one_sided {
        true => FEATURES.with(Features::ONE_SIDED),
        false => FEATURES,
    };
    let hello = ClientHello {
        version_low: VERSION,
        version_high: VERSION,
        shard: wish.shard,
        features,
        client_id: wish.client_id,
        limits: LIMITS,
        token: wish.token,
        name: wish.name,
    };
    let mut frame = vec![0; 4096];
    let len = hello.encode(&mut frame).map_err(Failure::protocol)?;
    // A node that refuses the client may end the connection before it read the hello; what it said
    // before is what counts.
    let sent = link.write_all(&frame[..len]).await;

    let count = link.read_full(&mut frame[..FRAME_HEAD_LEN]).await;
    let count = count.map_err(failed)?;
    if count < FRAME_HEAD_LEN {
        sent.map_err(failed)?;
        return Err(ended(wish, &frame[..count]));
    }
    let mut session = ClientSession::new(Offer {
        features,
        limits: LIMITS,
    });
    let parsed = FrameHead::parse(&frame[..FRAME_HEAD_LEN], &LIMITS);
    let Partial::Whole(head) = parsed.map_err(Failure::protocol)? else {
        return Err(Failure::protocol("a head of 32 bytes was not whole"));
    };
    let expected = session.on_head(&head).map_err(Failure::protocol)?;
    frame.resize(head.body_len as usize, 0);
    if link.read_full(&mut frame).await.map_err(failed)? < frame.len() {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    let body = head.body(&frame).map_err(Failure::protocol)?;
    let reply = Reply::decode(&head, body).map_err(Failure::protocol)?;
    let hello = match (expected, reply) {
        (Expected::Hello, Reply::Hello(hello)) => {
            session.on_hello(&hello.terms).map_err(Failure::protocol)?;
            check_shard(wish, &hello.terms)?;
            hello_of(wish, &hello)
        }
        (_, Reply::Error(error)) => return Err(refusal(&error)),
        _ => return Err(Failure::protocol("the first frame is no hello")),
    };
    let connection = made(wish, link, session, hello.terms);
    Ok((Arc::new(connection), hello))
}

/// The socket below the frames; with TLS, once that is agreed on.
async fn link(wish: Wish<'_>, socket: Async<TcpStream>) -> Result<Link, Failure> {
    let host = wish.address.rsplit_once(':').map_or("", |(host, _)| host);
    let session = match wish.tls {
        None => None,
        Some((tls, name)) => Some(tls.connect(name.unwrap_or(host)).map_err(Failure::tls)?),
    };
    let link = Link::new(socket, session);
    link.shake_hands().await.map_err(failed)?;
    Ok(link)
}

/// Why the hellos were not exchanged.
fn failed(error: io::Error) -> Failure {
    match TlsFault::of(&error) {
        Some(fault) => Failure::tls(fault.clone()),
        None => Failure::unavailable(format_args!("handshake: {error}")),
    }
}

/// Why a node ended the connection behind so few bytes.
fn ended(wish: Wish<'_>, received: &[u8]) -> Failure {
    // What answers a frame by an alert of TLS 1.2 or 1.3 takes nothing else.
    if wish.tls.is_none() && received.starts_with(&TLS_ALERT) {
        return Failure::tls(TlsFault::TlsOnly);
    }
    failed(io::ErrorKind::UnexpectedEof.into())
}

/// A node that gives another shard than was asked for has another map.
fn check_shard(wish: Wish<'_>, terms: &NodeTerms) -> Result<(), Failure> {
    match wish.shard {
        Some(wanted) if wanted != terms.shard => Err(Failure::moved()),
        _ => Ok(()),
    }
}

fn made(wish: Wish<'_>, link: Link, session: ClientSession, terms: NodeTerms) -> Connection {
    Connection {
        address: Arc::clone(wish.address),
        link,
        terms,
        outgoing: async_lock::Mutex::new(Outgoing::default()),
        state: Mutex::new(State {
            session,
            slots: Default::default(),
            leader: None,
            incoming: Incoming::default(),
            fault: None,
            received: 0,
            control: Vec::new(),
            unneeded: Vec::new(),
            opened: Vec::new(),
            refused: Default::default(),
        }),
        rails: Default::default(),
        calls: AtomicUsize::new(0),
        is_retired: AtomicBool::new(false),
        has_moved: AtomicBool::new(false),
    }
}

fn hello_of(wish: Wish<'_>, hello: &terrace_wire::ServerHello<'_>) -> Hello {
    let host = wish.address.rsplit_once(':').map_or("", |(host, _)| host);
    let endpoints = hello
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.transport == Transport::Tcp)
        .map(|endpoint| {
            let address = Arc::from(address_of(endpoint, host));
            (endpoint.shard.map(u32::from), address)
        })
        .collect();
    Hello {
        terms: hello.terms,
        endpoints,
    }
}

/// The address of an endpoint of a node that was reached at the host `here`.
pub(crate) fn address_of(endpoint: Endpoint<'_>, here: &str) -> String {
    let (host, port) = (endpoint.host, endpoint.port);
    match host {
        "" => format!("{here}:{port}"),
        // IPv6 addresses stand in brackets before a port.
        name if name.contains(':') && !name.starts_with('[') => format!("[{name}]:{port}"),
        name => format!("{name}:{port}"),
    }
}

/// The failure that an error frame of a node tells of.
pub(super) fn refusal(error: &ErrorFrame<'_>) -> Failure {
    let retry = match error.code.is_retryable() {
        true => Retry::Always,
        false => Retry::Never,
    };
    let text = error.text.to_owned();
    let code = error.code;
    Failure::new(Cause::Rejected { code, text }, retry)
}
