//! memcached by its text protocol, in memory only, with a client that reads into its own memory as
//! the others do, and hashes what it reads or not.

use std::collections::HashMap;
use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::measure::{Buffers, CpuClocks, Sample, turn};
use crate::peer::{Peer, Worker};
use crate::processes::{Running, complete, folder, free_port};
use crate::shape::Shape;

/// Bytes that are received and hashed at once.
const PIECE_LEN: usize = 128 << 10;

/// What stands behind a value.
const END: &[u8] = b"\r\nEND\r\n";

pub(crate) struct Memcached {
    is_verified: bool,
    dram_len: u64,
    port: u16,
    count: u64,
    hashes: Arc<HashMap<u64, u64>>,
    connections: Vec<Connection>,
    clocks: CpuClocks,
    server: Running,
}

impl Memcached {
    pub(crate) fn start(dram_len: u64, is_verified: bool) -> Result<Self> {
        let (port, server) = start_server(dram_len)?;
        Ok(Self {
            is_verified,
            dram_len,
            port,
            count: 0,
            hashes: Arc::default(),
            connections: Vec::new(),
            clocks: CpuClocks::new(&[server.pid()])?,
            server,
        })
    }

    fn connect(&mut self, count: usize) -> Result<&mut [Connection]> {
        while self.connections.len() < count {
            let socket = TcpStream::connect(("127.0.0.1", self.port)).context("connect")?;
            socket.set_nodelay(true)?;
            self.connections.push(Connection {
                socket,
                is_verified: self.is_verified,
                hashes: Arc::clone(&self.hashes),
            });
        }
        Ok(&mut self.connections[..count])
    }
}

/// Starts a server; the port that it listens on.
fn start_server(dram_len: u64) -> Result<(u16, Running)> {
    let (program, libraries) = program()?;
    let port = free_port()?;
    let mut command = Command::new(program);
    command.args(["-u", "root", "-l", "127.0.0.1", "-U", "0"]);
    command.args(["-t", "2", "-I", "8m", "-p", &port.to_string()]);
    command.arg("-m").arg((dram_len >> 20).to_string());
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let server = Running::start(&mut command)?;
    let mut is_up = false;
    for _ in 0..500 {
        is_up = TcpStream::connect(("127.0.0.1", port)).is_ok();
        if is_up {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    anyhow::ensure!(is_up, "memcached does not listen");
    Ok((port, server))
}

/// The program, and the folder of libraries that it needs when it is not the system's.
fn program() -> Result<(PathBuf, Option<PathBuf>)> {
    let here = Path::new("/usr/bin/memcached");
    if here.is_file() {
        return Ok((here.to_owned(), None));
    }
    let folder = folder()?.join("memcached");
    let program = folder.join("usr/bin/memcached");
    if !program.is_file() {
        std::fs::create_dir_all(&folder)?;
        let mut download = Command::new("apt-get");
        download.args(["download", "memcached", "libevent-2.1-7"]);
        complete(download.current_dir(&folder)).context("download memcached")?;
        for file in std::fs::read_dir(&folder)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                complete(Command::new("dpkg-deb").arg("-x").arg(file).arg(&folder))?;
            }
        }
    }
    let libraries = std::fs::read_dir(folder.join("usr/lib"))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.is_dir());
    Ok((program, libraries))
}

impl Peer for Memcached {
    fn name(&self) -> &'static str {
        if self.is_verified {
            "memcached, verified"
        } else {
            "memcached"
        }
    }

    fn takes(&self, shape: &Shape) -> bool {
        shape.is_single
    }

    fn fill(&mut self, len: usize, count: u64) -> Result<()> {
        self.connections.clear();
        // It does not give memory of one length to another by itself, so each has a server of its own.
        (self.port, self.server) = start_server(self.dram_len)?;
        self.clocks = CpuClocks::new(&[self.server.pid()])?;
        let value: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let mut hash = Xxh3::new();
        hash.update(&value);
        let hashes = (0..count).map(|key| (key, hash.digest()));
        self.hashes = Arc::new(hashes.collect());
        // It loses more to its chunks than others do.
        self.count = count / 2;
        let count = self.count;
        let connection = &mut self.connect(1)?[0];
        for key in 0..count {
            connection.put(&[key], len, &value)?;
        }
        Ok(())
    }

    fn sample(&mut self, shape: &Shape, span: Duration, buffers: &mut Buffers) -> Result<Sample> {
        self.connect(shape.threads)?;
        let workers = &mut self.connections[..shape.threads];
        turn(shape, span, self.count, buffers, workers, &self.clocks)
    }
}

struct Connection {
    socket: TcpStream,
    is_verified: bool,
    hashes: Arc<HashMap<u64, u64>>,
}

impl Connection {
    fn expect(&self, answer: &[u8]) -> Result<()> {
        let mut said = vec![0; answer.len()];
        (&self.socket).read_exact(&mut said)?;
        let shown = String::from_utf8_lossy(&said);
        anyhow::ensure!(said == answer, "memcached said `{}`", shown.trim_end());
        Ok(())
    }
}

impl Worker for Connection {
    fn get(&mut self, keys: &[u64], len: usize, memory: &mut [u8]) -> Result<()> {
        let &[key] = keys else {
            anyhow::bail!("one key at a time");
        };
        (&self.socket).write_all(format!("get {key}\r\n").as_bytes())?;
        let head = format!("VALUE {key} 0 {len}\r\n");
        let mut first = [0; 64];
        // The head and the first bytes of the value come at once.
        let mut held = 0;
        while held < head.len() {
            let count = (&self.socket).read(&mut first[held..])?;
            anyhow::ensure!(count > 0, "memcached is gone");
            held += count;
            let said = String::from_utf8_lossy(&first[..held.min(head.len())]);
            anyhow::ensure!(head.starts_with(&*said), "memcached said `{said}`");
        }
        let mut filled = held - head.len();
        memory[..filled].copy_from_slice(&first[head.len()..held]);
        let mut hash = Xxh3::new();
        hash.update(&memory[..filled]);
        while filled < len {
            let end = len.min(filled + PIECE_LEN);
            let count = (&self.socket).read(&mut memory[filled..end])?;
            anyhow::ensure!(count > 0, "memcached is gone");
            if self.is_verified {
                hash.update(&memory[filled..filled + count]);
            }
            filled += count;
        }
        self.expect(END)?;
        if self.is_verified {
            let is_same = self.hashes.get(&key) == Some(&hash.digest());
            anyhow::ensure!(is_same, "the bytes of {key} are not those that were put");
        }
        Ok(())
    }

    fn put(&mut self, keys: &[u64], _: usize, memory: &[u8]) -> Result<()> {
        let &[key] = keys else {
            anyhow::bail!("one key at a time");
        };
        if self.is_verified {
            let mut hash = Xxh3::new();
            hash.update(memory);
            std::hint::black_box(hash.digest());
        }
        let head = format!("set {key} 0 0 {}\r\n", memory.len());
        let (mut slices, mut left) = (
            [
                IoSlice::new(head.as_bytes()),
                IoSlice::new(memory),
                IoSlice::new(b"\r\n"),
            ],
            head.len() + memory.len() + 2,
        );
        let mut slices = &mut slices[..];
        while left > 0 {
            let count = (&self.socket).write_vectored(slices)?;
            left -= count;
            IoSlice::advance_slices(&mut slices, count);
        }
        self.expect(b"STORED\r\n")
    }
}
