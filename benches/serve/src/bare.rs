//! The bare exchange: blocking sockets between two processes, a thread to each connection, a pool of
//! the same memory as the node's. Whoever receives hashes as it reads; a get's request is 16 bytes
//! and its values follow at once, a put is answered by 16 bytes.
//!
//! What it leaves out is everything else: keys, an index, checksums on the wire, deadlines.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use terrace_slab::{Arena, ArenaConfig, ArenaShared, ClassChoice, SlabPool, SlotWriter};
use xxhash_rust::xxh3::Xxh3;

use crate::measure::{Buffers, CpuClocks, Random, Sample, turn};
use crate::peer::{Peer, Worker};
use crate::processes::Running;
use crate::shape::{Shape, Verb};

/// Bytes that are received and hashed at once.
const PIECE_LEN: usize = 128 << 10;

/// Bytes of a request, and of the answer to a put.
const HEAD_LEN: usize = 16;

/// Bytes of a part of the pool; the longest block.
const PART_LEN: usize = 4 << 20;

/// Most connections.
const CONNECTIONS_MAX: u32 = 8;

/// A pool in parts, which the connections share out among them.
type Pool = Arc<Vec<Mutex<SlotWriter>>>;

/// Serves until the process is killed; says on which port.
pub(crate) fn serve(pool_len: u64) -> Result<()> {
    let pool = Arc::new(pool(pool_len)?);
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let port = listener.local_addr().context("listen")?.port();
    writeln!(std::io::stdout(), "port {port}").context("say the port")?;
    for number in 0.. {
        let (socket, _) = listener.accept().context("accept")?;
        let pool = Arc::clone(&pool);
        // An error is the end of the client.
        std::thread::spawn(move || answer(&socket, &pool, number));
    }
    Ok(())
}

fn pool(pool_len: u64) -> Result<Vec<Mutex<SlotWriter>>> {
    let arena = Arena::open(&ArenaConfig::new(pool_len)).context("take memory")?;
    let mut slots = SlabPool::new(ArenaShared::new(arena, Box::new(|| ())));
    let ClassChoice::Fits(class) = slots.choose_class(PART_LEN as u64) else {
        anyhow::bail!("the pool has no class of {PART_LEN} bytes");
    };
    let mut parts = Vec::new();
    while let Some(slot) = slots.take(class) {
        let mut part = slots.writer(slot, PART_LEN as u32);
        part.bytes_mut().fill(parts.len() as u8);
        parts.push(Mutex::new(part));
    }
    Ok(parts)
}

/// Answers requests of one connection.
fn answer(mut socket: &TcpStream, pool: &Pool, number: usize) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut random = Random(number as u64);
    let mut head = [0; HEAD_LEN];
    loop {
        socket.read_exact(&mut head)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (len, batch) = (word(4) as usize, word(8) as usize);
        anyhow::ensure!(len > 0 && len <= PART_LEN, "the length is {len}");
        let mut place = || {
            // With few connections all of the pool is used, and no two wait for each other.
            let spread = u64::from(word(12).clamp(1, CONNECTIONS_MAX));
            let part = random.below(pool.len() as u64 / spread) * spread + number as u64 % spread;
            let offset = random.below((PART_LEN / len) as u64) as usize * len;
            (&pool[part as usize], offset)
        };
        if head[0] == 0 {
            let places: Vec<_> = (0..batch).map(|_| place()).collect();
            for (part, offset) in places {
                let part = part.lock().unwrap_or_else(PoisonError::into_inner);
                socket.write_all(&part.bytes()[offset..offset + len])?;
            }
        } else {
            let mut hash = Xxh3::new();
            for _ in 0..batch {
                let (part, offset) = place();
                let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
                receive(
                    socket,
                    &mut part.bytes_mut()[offset..offset + len],
                    &mut hash,
                )?;
            }
            head[8..].copy_from_slice(&hash.digest().to_le_bytes());
            socket.write_all(&head)?;
        }
    }
}

/// Receives and hashes in pieces.
fn receive(mut socket: &TcpStream, into: &mut [u8], hash: &mut Xxh3) -> Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        let end = into.len().min(filled + PIECE_LEN);
        let count = socket.read(&mut into[filled..end])?;
        anyhow::ensure!(count > 0, "the other side is gone");
        hash.update(&into[filled..filled + count]);
        filled += count;
    }
    Ok(())
}

/// The client's side.
pub(crate) struct Bare {
    clocks: CpuClocks,
    port: u16,
    connections: Vec<Exchange>,
    _server: Running,
}

impl Bare {
    pub(crate) fn start(pool_len: u64) -> Result<Self> {
        debug_assert!(pool_len > PART_LEN as u64, "a pool has parts");
        let own = std::env::current_exe().context("find this program")?;
        let mut server = Running::start(Command::new(own).arg("--bare-source"))?;
        let port = server.line("port ")?.parse().context("read the port")?;
        Ok(Self {
            clocks: CpuClocks::new(&[server.pid()])?,
            port,
            connections: Vec::new(),
            _server: server,
        })
    }
}

impl Peer for Bare {
    fn name(&self) -> &'static str {
        "bare"
    }

    fn takes(&self, _: &Shape) -> bool {
        true
    }

    fn fill(&mut self, _: usize, _: u64) -> Result<()> {
        Ok(())
    }

    fn sample(&mut self, shape: &Shape, span: Duration, buffers: &mut Buffers) -> Result<Sample> {
        while self.connections.len() < shape.threads {
            let socket = TcpStream::connect(("127.0.0.1", self.port)).context("connect")?;
            socket.set_nodelay(true)?;
            self.connections.push(Exchange { socket, spread: 1 });
        }
        let workers = &mut self.connections[..shape.threads];
        workers
            .iter_mut()
            .for_each(|one| one.spread = shape.threads as u32);
        turn(shape, span, 1, buffers, workers, &self.clocks)
    }
}

/// One connection.
struct Exchange {
    socket: TcpStream,
    /// Connections that are in use.
    spread: u32,
}

impl Exchange {
    fn head(&self, verb: Verb, len: usize, batch: usize) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        head[0] = u8::from(verb == Verb::Put);
        for (at, word) in [(4, len as u32), (8, batch as u32), (12, self.spread)] {
            head[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        head
    }
}

impl Worker for Exchange {
    fn get(&mut self, keys: &[u64], len: usize, memory: &mut [u8]) -> Result<()> {
        let head = self.head(Verb::Get, len, keys.len());
        (&self.socket).write_all(&head)?;
        for block in memory.chunks_exact_mut(len) {
            let mut hash = Xxh3::new();
            receive(&self.socket, block, &mut hash)?;
            std::hint::black_box(hash.digest());
        }
        Ok(())
    }

    fn put(&mut self, keys: &[u64], len: usize, memory: &[u8]) -> Result<()> {
        for block in memory.chunks_exact(len) {
            let mut hash = Xxh3::new();
            hash.update(block);
            std::hint::black_box(hash.digest());
        }
        let mut head = self.head(Verb::Put, len, keys.len());
        let mut sent = 0;
        while sent < HEAD_LEN + memory.len() {
            let slices = [
                IoSlice::new(&head[sent.min(HEAD_LEN)..]),
                IoSlice::new(&memory[sent.saturating_sub(HEAD_LEN)..]),
            ];
            sent += (&self.socket).write_vectored(&slices)?;
        }
        (&self.socket).read_exact(&mut head)?;
        Ok(())
    }
}
