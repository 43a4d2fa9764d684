//! A node as a process of its own in a folder of its own, and its admin interface.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use terrace_client::ClientConfig;
use terrace_client::blocking::{Client, Namespace};

/// What a node is started with unless a test says otherwise.
const DEFAULTS: [(&str, &str); 5] = [
    ("--listen", "127.0.0.1:0"),
    ("--metrics", "127.0.0.1:0"),
    ("--dram", "128MiB"),
    ("--shards", "2"),
    ("--hugepages", "off"),
];

/// A folder of the test, gone at its end.
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
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The node's program in a folder, without an environment.
pub(crate) fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-node"));
    command.current_dir(folder).env_clear();
    command
}

/// Adds flags to the node's program, and the defaults that they leave out.
pub(crate) fn add_flags(command: &mut Command, flags: &[&str]) {
    command.args(flags);
    for (flag, value) in DEFAULTS {
        if !flags.contains(&flag) {
            command.args([flag, value]);
        }
    }
}

pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    metrics: SocketAddr,
    // Kept open, so that the node can write to it.
    _output: BufReader<ChildStdout>,
}

impl Node {
    /// Starts a node, and waits until it serves. Its warnings go to the folder's file `log`.
    pub(crate) fn start(folder: &Path, flags: &[&str]) -> Self {
        Self::start_by(program(folder), folder, flags)
    }

    /// The same, by a command to which the flags are added.
    pub(crate) fn start_by(mut command: Command, folder: &Path, flags: &[&str]) -> Self {
        add_flags(&mut command, flags);
        let log = folder.join("log");
        let child = command
            .current_dir(folder)
            .env_clear()
            .env("TERRACE_LOG", "warn")
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn();
        let mut process = Process(child.unwrap());
        let mut output = BufReader::new(process.0.stdout.take().unwrap());
        let mut all = String::new();
        while !all.ends_with("\nready\n") {
            if output.read_line(&mut all).unwrap() == 0 {
                let log = std::fs::read_to_string(log).unwrap();
                panic!("the node ended before it was ready: {all}{log}");
            }
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

    pub(crate) fn http(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(self.metrics).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A value of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.http("/metrics");
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
    pub(crate) fn end(self) {
        self.end_by(Signal::SIGTERM);
    }

    pub(crate) fn end_by(mut self, signal: Signal) {
        self.process.signal(signal);
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
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = 10_000 + std::process::id() % 10_000;
    std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed))
        .take(100)
        .map(|port| format!("127.0.0.1:{port}"))
        .find(|address| TcpListener::bind(address).is_ok())
        .unwrap()
}
