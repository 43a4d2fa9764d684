//! Metrics, health and the like over HTTP, on threads of their own.
//!
//! **Invariants**
//! - No more than [`CALLERS_MAX`] requests are answered at once, each within [`CALL_MAX`] of time.
//! - One look at the engine is under way at most; when a shard does not answer, the last one is
//!   shown, and that it is old.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use terrace_engine::{Engine, block_on};
use terrace_runtime::executor::MonotonicClock;
use terrace_server::Observer;
use terrace_types::Clock;

use crate::log::Log;
use crate::samples::{Process, Sample, Snapshot, histograms, json, samples, text};
use crate::shards;

/// Requests that are answered at once.
const CALLERS_MAX: usize = 8;
/// How long a call may take, from its connection to the last byte of its answer.
const CALL_MAX: Duration = Duration::from_secs(5);
/// How long nothing is accepted after that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a look at the engine is waited for.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Longest request head that is read.
const HEAD_LEN_MAX: usize = 8192;

/// How far the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Opening,
    Serving,
    Draining,
}

/// What the admin interface tells of.
pub(crate) struct State {
    phase: AtomicU8,
    /// The values in force, as JSON.
    config: String,
    slow_ms: u64,
    log: Option<Log>,
    /// When the process started, since the beginning of 1970.
    started: Duration,
    node: OnceLock<(Engine, Observer)>,
    look: Mutex<Look>,
    looked: Condvar,
    callers: AtomicUsize,
}

#[derive(Default)]
struct Look {
    /// The last that was found, and how many there were.
    snapshot: Arc<Snapshot>,
    count: u64,
    is_under_way: bool,
}

impl State {
    pub(crate) fn new(config: String, slow_ms: u64, log: Option<Log>) -> Arc<Self> {
        Arc::new(Self {
            phase: AtomicU8::new(Phase::Opening as u8),
            config,
            slow_ms,
            log,
            started: unix_now(),
            node: OnceLock::new(),
            look: Mutex::default(),
            looked: Condvar::new(),
            callers: AtomicUsize::new(0),
        })
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// The node serves from now on.
    pub(crate) fn serve(&self, engine: Engine, observer: Observer) {
        let _ = self.node.set((engine, observer));
        self.set_phase(Phase::Serving);
    }

    /// What there is now, and whether it is what there was at an earlier look.
    fn snapshot(self: &Arc<Self>) -> (Arc<Snapshot>, bool) {
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        let before = look.count;
        if !look.is_under_way && self.node.get().is_some() {
            let state = Arc::clone(self);
            let started = std::thread::Builder::new().spawn(move || state.look());
            look.is_under_way = started.is_ok();
        }
        if !look.is_under_way {
            // Before it serves there is nothing to look at, and so nothing old.
            return (Arc::clone(&look.snapshot), self.node.get().is_some());
        }
        let waited = self
            .looked
            .wait_timeout_while(look, LOOK_MAX, |look| look.count == before);
        let (look, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&look.snapshot), timeout.timed_out())
    }

    fn look(&self) {
        let Some((engine, observer)) = self.node.get() else {
            return;
        };
        let found = Snapshot {
            engine: block_on(engine.stats()),
            server: block_on(observer.reports()),
        };
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        look.snapshot = Arc::new(found);
        look.count += 1;
        look.is_under_way = false;
        self.looked.notify_all();
    }

    fn samples(self: &Arc<Self>) -> (Arc<Snapshot>, Vec<Sample>) {
        let (snapshot, is_old) = self.snapshot();
        let process = Process {
            started: self.started,
            is_ready: self.phase.load(Ordering::Acquire) == Phase::Serving as u8,
            is_old,
            log_lines_lost: self.log.as_ref().map_or(0, Log::lost),
        };
        let all = samples(&snapshot, &process);
        (snapshot, all)
    }

    fn answer(self: &Arc<Self>, path: &str) -> Answer {
        let phase = self.phase.load(Ordering::Acquire);
        match path {
            "/metrics" => {
                let (snapshot, all) = self.samples();
                let body = text(&all) + &histograms(&snapshot);
                Answer::new(200, "text/plain; version=0.0.4", body)
            }
            "/stats" => {
                let (snapshot, all) = self.samples();
                let mut object = json(&all);
                object.append(&mut shards::shards(&snapshot));
                let body = serde_json::Value::Object(object).to_string();
                Answer::new(200, "application/json", body + "\n")
            }
            "/slow" => {
                let (snapshot, _) = self.snapshot();
                let clock = (MonotonicClock.now(), unix_now());
                let body = shards::slow(&snapshot, self.slow_ms, clock).to_string();
                Answer::new(200, "application/json", body + "\n")
            }
            "/config" => Answer::new(200, "application/json", self.config.clone() + "\n"),
            "/healthz" => Answer::new(200, "text/plain", "alive\n".to_owned()),
            "/readyz" if phase == Phase::Serving as u8 => {
                Answer::new(200, "text/plain", "ready\n".to_owned())
            }
            "/readyz" => {
                let what = match phase == Phase::Opening as u8 {
                    true => "opening\n",
                    false => "draining\n",
                };
                Answer::new(503, "text/plain", what.to_owned())
            }
            _ => {
                let known = "try /metrics, /healthz, /readyz, /stats, /slow or /config\n";
                Answer::new(404, "text/plain", known.to_owned())
            }
        }
    }
}

struct Answer {
    code: u16,
    kind: &'static str,
    body: String,
}

impl Answer {
    const fn new(code: u16, kind: &'static str, body: String) -> Self {
        Self { code, kind, body }
    }

    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let reason = match self.code {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            _ => "Service Unavailable",
        };
        let head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.code,
            self.kind,
            self.body.len()
        );
        let body = if with_body { self.body.as_str() } else { "" };
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

/// Answers on `listener` as long as the process runs.
pub(crate) fn start(listener: TcpListener, state: Arc<State>) -> std::io::Result<()> {
    let serve = move || {
        for socket in listener.incoming() {
            let Ok(socket) = socket else {
                // No descriptors are left, say: some come back when others are closed.
                std::thread::park_timeout(ACCEPT_PAUSE);
                continue;
            };
            let state = Arc::clone(&state);
            if state.callers.fetch_add(1, Ordering::AcqRel) >= CALLERS_MAX {
                state.callers.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let counted = Arc::clone(&state);
            let call = move || {
                // Whoever asks and goes away is no news.
                let _ = call(Timed::new(socket, CALL_MAX), &state);
                state.callers.fetch_sub(1, Ordering::AcqRel);
            };
            if std::thread::Builder::new().spawn(call).is_err() {
                counted.callers.fetch_sub(1, Ordering::AcqRel);
            }
        }
    };
    let named = std::thread::Builder::new().name("terrace-admin".to_owned());
    named.spawn(serve).map(|_| ())
}

/// A socket whose reads and writes all end by one deadline, however little each of them brings.
struct Timed {
    socket: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn new(socket: TcpStream, within: Duration) -> Self {
        let deadline = now() + within;
        Self { socket, deadline }
    }

    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.socket.flush()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "callers of the admin interface are timed outside of any runtime"
)]
fn now() -> Instant {
    Instant::now()
}

/// Time since the beginning of 1970, for people; nothing is measured by it.
#[expect(
    clippy::disallowed_types,
    reason = "the admin interface tells when something was"
)]
fn unix_now() -> Duration {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}

fn call(mut socket: Timed, state: &Arc<State>) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = socket.read(&mut piece)?;
        if count == 0 || head.len() + count > HEAD_LEN_MAX {
            let what = "the request has no end, or a head of more than 8 KiB\n";
            let answer = Answer::new(400, "text/plain", what.to_owned());
            return socket.write_all(&answer.bytes(true));
        }
        head.extend_from_slice(&piece[..count]);
    }
    socket.write_all(&respond(&head, state))
}

fn respond(head: &[u8], state: &Arc<State>) -> Vec<u8> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(target), Some(version)) = (target, version) else {
        let what = "the request has no target or no version\n";
        return Answer::new(400, "text/plain", what.to_owned()).bytes(true);
    };
    if !version.starts_with("HTTP/1.") {
        let what = "only HTTP/1 is spoken here\n";
        return Answer::new(400, "text/plain", what.to_owned()).bytes(true);
    }
    let path = target.split('?').next().unwrap_or_default();
    match method {
        Some("GET") => state.answer(path).bytes(true),
        Some("HEAD") => state.answer(path).bytes(false),
        _ => Answer::new(405, "text/plain", "GET and HEAD only\n".to_owned()).bytes(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8], state: &Arc<State>) -> String {
        let answer = respond(request, state);
        String::from_utf8_lossy(&answer)
            .split(' ')
            .nth(1)
            .unwrap()
            .to_owned()
    }

    #[test]
    fn requests_of_every_kind_are_answered() {
        let state = State::new("{}".to_owned(), 100, None);
        for (request, code) in [
            (&b"GET /healthz HTTP/1.1\r\n\r\n"[..], "200"),
            (b"HEAD /healthz HTTP/1.0\r\n\r\n", "200"),
            (b"GET /readyz HTTP/1.1\r\n\r\n", "503"),
            (b"GET /metrics?a=b HTTP/1.1\r\n\r\n", "200"),
            (b"GET /stats HTTP/1.1\r\n\r\n", "200"),
            (b"GET /config HTTP/1.1\r\n\r\n", "200"),
            (b"GET /slow HTTP/1.1\r\n\r\n", "200"),
            (b"GET /nothing HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /healthz HTTP/2\r\n\r\n", "400"),
            (b"\x00\xff\r\n\r\n", "400"),
            (b"", "400"),
        ] {
            assert_eq!(status(request, &state), code, "{request:?}");
        }
        let head = respond(b"HEAD /config HTTP/1.1\r\n\r\n", &state);
        assert!(head.ends_with(b"\r\n\r\n"), "a HEAD has no body");
    }

    /// Aim: a caller that sends a byte now and then does not keep its place. Method: bytes without an
    /// end, each within the time of the whole call, until the other side closes.
    #[test]
    fn slow_caller_is_closed_at_the_deadline_of_its_call() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let socket = Timed::new(socket, Duration::from_millis(200));
        let called =
            std::thread::spawn(move || call(socket, &State::new(String::new(), 100, None)));
        let pause = Duration::from_millis(20);
        caller.set_read_timeout(Some(pause)).unwrap();
        let is_closed = (0..1000).any(|_| {
            let _ = caller.write_all(b"x");
            let read = caller.read(&mut [0; 64]);
            !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
        assert!(is_closed, "the caller is listened to for ever");
        assert!(called.join().unwrap().is_err());
    }

    #[test]
    fn readiness_follows_the_phase() {
        let state = State::new(String::new(), 100, None);
        for (phase, code) in [
            (Phase::Opening, "503"),
            (Phase::Serving, "200"),
            (Phase::Draining, "503"),
        ] {
            state.set_phase(phase);
            assert_eq!(status(b"GET /readyz HTTP/1.1\r\n\r\n", &state), code);
        }
    }
}
