//! The server as a program starts and stops it, and the thread that accepts.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_channel::oneshot;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use terrace_engine::{ArenaShared, Engine, UnavailableReason};
use terrace_fabric::tls::NodeTls;
use terrace_runtime::executor::MonotonicClock;
use terrace_runtime::mailbox::mailbox;
use terrace_runtime::{Eventfd, MailboxSender, block_on};
use terrace_types::Clock;

use crate::config::ServerConfig;
use crate::host::{Arrival, CloseWhich, Command, Host, Seat, Shared};
use crate::one_sided::{OneSided, OneSidedError};
use crate::stats::{ServerCounters, ServerReport};

/// Commands that may wait for a shard's host.
const COMMANDS_MAX: usize = 1024;

/// How long accepting rests when the process has no descriptors left.
const NO_DESCRIPTORS_PAUSE_MS: u16 = 100;

/// How long a drain leaves connections that nothing is under way on.
const DRAIN_GRACE: Duration = Duration::from_millis(200);

/// How often a drain looks whether connections are done.
const DRAIN_POLL_MS: u16 = 5;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The operating system refused something.
    #[error("{what}: {cause}")]
    Os {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        cause: std::io::Error,
    },
    /// There are no rails to be had as they were asked for.
    #[error("one-sided reads: {0}")]
    OneSided(#[from] OneSidedError),
    /// A shard did not take its part of the server.
    #[error("start the server on shard {shard}: {reason:?}")]
    Shard {
        /// The shard.
        shard: usize,
        /// Why.
        reason: UnavailableReason,
    },
}

/// The arenas of all shards.
fn arenas(engine: &Engine) -> Result<Vec<Arc<ArenaShared>>, ServerError> {
    let arena_of = |shard| {
        let arena = engine.run_on(shard, |shard| std::future::ready(Arc::clone(shard.arena())));
        block_on(arena).map_err(|reason| ServerError::Shard { shard, reason })
    };
    (0..engine.shards()).map(arena_of).collect()
}

/// What a drain came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections that were closed with requests under way.
    pub cut_off: usize,
}

/// A running server. Dropping it closes all connections.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    stop: Eventfd,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `engine` on `listener` from now on.
    ///
    /// # Errors
    /// [`ServerError`]; nothing runs then.
    pub fn start(
        engine: &Engine,
        listener: TcpListener,
        config: ServerConfig,
    ) -> Result<Self, ServerError> {
        let os = |what| move |cause| ServerError::Os { what, cause };
        let address = listener.local_addr().map_err(os("name the listener"))?;
        listener
            .set_nonblocking(true)
            .map_err(os("set the listener up"))?;
        let stop = Eventfd::new().map_err(|e| os("open an eventfd")(e.into()))?;
        let (mut hosts, mut inboxes) = (Vec::new(), Vec::new());
        for _ in 0..engine.shards() {
            let (sender, inbox) =
                mailbox(COMMANDS_MAX).map_err(|e| os("open a mailbox")(e.into()))?;
            hosts.push(sender);
            inboxes.push(inbox);
        }
        let one_sided = match config.one_sided.clone() {
            None => None,
            Some(wanted) => Some(OneSided::start(wanted, &arenas(engine)?)?),
        };
        let shared = Arc::new(Shared {
            config,
            hosts,
            port: address.port(),
            one_sided,
        });
        let mut server = Self {
            shared: Arc::clone(&shared),
            address,
            stop: stop.clone(),
            thread: None,
        };
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let (owner, shared) = (engine.clone(), Arc::clone(&shared));
            let started = block_on(engine.run_on(number, move |shard| {
                let host = Host::new(std::rc::Rc::clone(&shard), owner, shared);
                shard.spawn(Box::pin(host.run(inbox)));
                std::future::ready(())
            }));
            started.map_err(|reason| ServerError::Shard {
                shard: number,
                reason,
            })?;
        }
        let thread = std::thread::Builder::new()
            .name("terrace-accept".to_owned())
            .spawn(move || accept(&listener, &shared, &stop))
            .map_err(os("start the accepting thread"))?;
        server.thread = Some(thread);
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that reads counters, for any thread.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes no more connections and requests, and closes connections as what they have under way
    /// is answered; all of them when `deadline` has passed. Blocks the calling thread.
    pub fn drain(&mut self, deadline: Duration) -> DrainReport {
        self.stop_accepting();
        let clock = MonotonicClock;
        let start = clock.now();
        let grace = DRAIN_GRACE.min(deadline / 2);
        let close_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        for host in &self.shared.hosts {
            let _ = block_on(host.send(Command::Drain(close_ms)));
        }
        loop {
            let span = clock.now().since(start);
            // Requests that crossed the goodbye are answered, so idle clients have a little time.
            let which = if span < grace {
                CloseWhich::Neither
            } else {
                CloseWhich::Idle
            };
            let left = self.close(which);
            if left == 0 || span >= deadline {
                self.close(CloseWhich::All);
                return DrainReport { cut_off: left };
            }
            pause(DRAIN_POLL_MS);
        }
    }

    fn close(&self, which: CloseWhich) -> usize {
        let close = |host: &MailboxSender<Command>| {
            let (reply, answer) = oneshot::channel();
            let sent = block_on(host.send(Command::Close(which, reply)));
            sent.ok().and_then(|()| block_on(answer).ok()).unwrap_or(0)
        };
        self.shared.hosts.iter().map(close).sum()
    }

    fn stop_accepting(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the accepting thread panicked");
        }
    }
}

/// Reads what a server counts. It goes on to exist when the server is gone.
#[derive(Clone)]
pub struct Observer {
    shared: Arc<Shared>,
}

impl Observer {
    /// What was counted, over the shards that answer.
    pub async fn counters(&self) -> ServerCounters {
        let mut sum = ServerCounters::default();
        for report in self.reports().await.iter().flatten() {
            sum.add(&report.counters);
        }
        sum
    }

    /// Each shard's report; `None` where it did not answer.
    pub async fn reports(&self) -> Vec<Option<Box<ServerReport>>> {
        let mut all = Vec::with_capacity(self.shared.hosts.len());
        for host in &self.shared.hosts {
            let (reply, answer) = oneshot::channel();
            let sent = host.send(Command::Report(reply)).await;
            all.push(match sent {
                Ok(()) => answer.await.ok(),
                Err(_) => None,
            });
        }
        all
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_accepting();
        for host in &self.shared.hosts {
            let _ = block_on(host.send(Command::End));
        }
    }
}

/// Lets time pass on a thread that has nothing else to do.
fn pause(ms: u16) {
    let _ = poll(&mut [], PollTimeout::from(ms));
}

/// Accepts until told to stop. Each connection goes to the next shard, which reads its hello.
fn accept(listener: &TcpListener, shared: &Arc<Shared>, stop: &Eventfd) {
    let taken = Arc::new(AtomicUsize::new(0));
    let mut next = 0;
    loop {
        let mut polled = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut polled, PollTimeout::NONE).is_err() {
            continue;
        }
        if polled[1].any().unwrap_or(true) {
            return;
        }
        match listener.accept() {
            Ok((socket, peer)) => {
                let most = shared.config.connections_max;
                let tls = &shared.config.tls;
                let Some(seat) = Seat::take(&taken, most) else {
                    // Frames mean nothing to a client that speaks TLS: its connection just ends.
                    if tls.is_none() {
                        turn_away(&socket, most);
                    }
                    continue;
                };
                let tls = match tls.as_ref().map(NodeTls::accept).transpose() {
                    Ok(session) => session.map(|session| Box::new(RefCell::new(session))),
                    Err(error) => {
                        tracing::error!(%peer, %error, "begin TLS");
                        continue;
                    }
                };
                let arrival = Arrival {
                    socket,
                    peer,
                    received: Vec::new(),
                    tls,
                    seat,
                };
                next = (next + 1) % shared.hosts.len();
                // A shard that is gone serves nobody: the client finds the connection closed.
                let _ = block_on(shared.hosts[next].send(Command::Adopt(arrival)));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // The client that gave up is no news; with no descriptors left, some come back.
                tracing::debug!(%error, "accept");
                pause(NO_DESCRIPTORS_PAUSE_MS);
            }
        }
    }
}

/// Tells a client that there are too many, as far as that goes without waiting.
fn turn_away(socket: &std::net::TcpStream, most: usize) {
    let frame = terrace_wire::ErrorFrame {
        code: terrace_wire::ErrorCode::TooManyConnections,
        verb_number: 0,
        argument: most as u64,
        text: "the node has as many connections as it takes; use fewer, or try again later",
    };
    let mut bytes = [0; 256];
    if let Ok(len) = frame.encode(0, &mut bytes) {
        let _ = socket.set_nonblocking(true);
        let _ = std::io::Write::write(&mut &*socket, &bytes[..len]);
    }
}
