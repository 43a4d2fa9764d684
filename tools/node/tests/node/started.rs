//! A node as a process of its own, and its admin interface.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

pub(crate) fn command(folder: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-node"));
    command
        .current_dir(folder)
        .env_clear()
        .args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
        .args(["--dram", "64MiB", "--shards", "1", "--hugepages", "off"])
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) struct Node {
    pub(crate) child: Child,
    output: BufReader<std::process::ChildStdout>,
    pub(crate) address: SocketAddr,
    metrics: SocketAddr,
}

impl Node {
    /// Starts a node, and waits until it serves. What it logs goes to the folder's file `log`.
    pub(crate) fn start(folder: &Path, flags: &[&str]) -> Self {
        let mut child = command(folder, flags)
            .stderr(File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        if line.is_empty() {
            let log = std::fs::read_to_string(folder.join("log")).unwrap();
            panic!("the node does not start: {log}");
        }
        let after = |what: &str| {
            let at = line.find(what).unwrap() + what.len();
            let end = line[at..].find(',').unwrap() + at;
            line[at..end].parse().unwrap()
        };
        let (address, metrics) = (after(" on "), after("metrics on "));
        let mut node = Self {
            child,
            output,
            address,
            metrics,
        };
        node.until_line("ready");
        node
    }

    fn until_line(&mut self, what: &str) {
        let mut line = String::new();
        while line.trim_end() != what {
            line.clear();
            let count = self.output.read_line(&mut line).unwrap();
            assert!(count > 0, "the node ended before it said `{what}`");
        }
    }

    pub(crate) fn http(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(self.metrics).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.http("/metrics");
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
