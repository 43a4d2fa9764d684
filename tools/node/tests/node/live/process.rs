//! Nodes and clients as processes of their own, and what the kernel tells of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use terrace_client::blocking::{Client, Namespace};
use terrace_client::{Cause, ClientConfig, Error};

pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child that is killed when it is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Stops it, and waits until all of its threads are stopped: the signal alone only begins that.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(status, WaitStatus::Stopped(self.pid(), Signal::SIGSTOP));
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Memory of the process that is resident, arenas included, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
    // Kept open, so that the node can write to it.
    _output: BufReader<ChildStdout>,
}

impl Node {
    /// A node of two shards that listens at `address`.
    pub(crate) fn start(folder: &Folder, address: &str, flags: &[&str]) -> Self {
        Self::start_by(
            Command::new(env!("CARGO_BIN_EXE_terrace-node")),
            folder,
            address,
            flags,
        )
    }

    /// The same, by a command to which the node's flags are added.
    pub(crate) fn start_by(
        mut command: Command,
        folder: &Folder,
        address: &str,
        flags: &[&str],
    ) -> Self {
        let child = command
            .current_dir(&folder.0)
            .env_clear()
            .env("TERRACE_LOG", "error")
            .args(["--listen", address, "--metrics", "127.0.0.1:0"])
            .args(["--dram", "128MiB", "--shards", "2", "--hugepages", "off"])
            .args(["--data", "store"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn();
        let mut process = Process(child.unwrap());
        let mut output = BufReader::new(process.0.stdout.take().unwrap());
        let mut all = String::new();
        while !all.ends_with("\nready\n") {
            let count = output.read_line(&mut all).unwrap();
            assert!(count > 0, "the node ended before it was ready: {all}");
        }
        let after = |what: &str| {
            let at = all.find(what).unwrap() + what.len();
            let end = all[at..].find(',').unwrap() + at;
            all[at..end].parse().unwrap()
        };
        Self {
            process,
            address: after(" on "),
            metrics: after("metrics on "),
            _output: output,
        }
    }

    pub(crate) fn blocks(&self) -> Namespace {
        blocks_at(&self.address.to_string())
    }

    /// A value of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut socket = TcpStream::connect(self.metrics).unwrap();
        write!(socket, "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("no {name} in {text}"));
        value.parse().unwrap()
    }

    /// Waits until a value of `/metrics` is `wanted`: sessions end a little after their sockets.
    pub(crate) fn until_metric(&self, name: &str, wanted: u64) {
        for _ in 0..20_000 {
            if self.metric(name) == wanted {
                return;
            }
            std::thread::yield_now();
        }
        panic!(
            "{name} is {} and does not become {wanted}",
            self.metric(name)
        );
    }

    /// Tells the node to stop, and holds it to a clean end.
    pub(crate) fn end(mut self) {
        self.process.signal(Signal::SIGTERM);
        let status = self.process.0.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

pub(crate) fn blocks_at(address: &str) -> Namespace {
    let client = Client::connect(ClientConfig::new(address)).unwrap();
    client.namespace("model").unwrap()
}

/// An address that nobody listens at now. A node that is started again has to find it free, so it is
/// not one that the kernel gives to connections by itself.
pub(crate) fn free_address() -> String {
    let first = 10_000 + std::process::id() % 10_000;
    (first..first + 100)
        .map(|port| format!("127.0.0.1:{port}"))
        .find(|address| TcpListener::bind(address).is_ok())
        .unwrap()
}

/// Bytes that tell themselves apart.
pub(crate) fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = std::iter::repeat_with(|| random.next().to_le_bytes());
    words.flatten().take(len).collect()
}

/// Numbers that a seed decides.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }
}

/// Tells threads to stop when it is dropped: also when an assertion fails, or their scope would wait
/// for ever.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether an error says that there was no node to answer, and not that anything was wrong.
pub(crate) fn is_of_outage(error: &Error) -> bool {
    matches!(
        error.cause(),
        Cause::Unavailable { .. } | Cause::TimedOut { .. } | Cause::Io { .. }
    )
}

/// A number of the environment.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is {text}; allowed is a number")))
}

/// How long an outage lasts: `TERRACE_OUTAGE_SECONDS`, else as a test of CI has it.
pub(crate) fn outage(short: Duration) -> Duration {
    number_of("TERRACE_OUTAGE_SECONDS").map_or(short, Duration::from_secs)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test measures from outside the node"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs one test of this program as a process of its own, for `role` at `address`.
pub(crate) fn child_of(test: &str, role: &str, address: &str) -> (Process, BufReader<ChildStdout>) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(role, address)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut process = Process(child.unwrap());
    let output = BufReader::new(process.0.stdout.take().unwrap());
    (process, output)
}
