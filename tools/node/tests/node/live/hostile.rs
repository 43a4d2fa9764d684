//! Aim: whatever comes to a live port, the node goes on: no panic, memory flat, others served. Method:
//! random bytes, and frames that are right but for some bytes, with and without checksums put right,
//! cut off anywhere, while another client compares what it gets. For a while by command:
//! `TERRACE_FUZZ_SECONDS=60`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use terrace_client::CallOptions;
use terrace_client::blocking::Namespace;
use terrace_types::{Checksum, Hint, PutOutcome};
use terrace_wire::{
    ClientHello, Features, FrameHead, FrameLimits, GetEntry, KeyEntry, OpenNamespace, Options,
    Partial, PutEntry, RequestHead, Verb, request,
};
use xxhash_rust::xxh3::xxh3_64;

use super::process::{Random, Stop, now, number_of, value};
use crate::started::{Folder, Node};

const ATTACKERS: u64 = 2;
/// Connections of each attacker in each half of a run of CI.
const CONNECTIONS: u64 = 150;
/// What the second half may add to the node's memory, in bytes: its allocator keeps some.
const GROWTH_MAX: u64 = 8 << 20;
const FRAME_HEAD_LEN: usize = 32;

/// The hello of a client that wants `shard`.
pub(crate) fn greeting(shard: Option<u32>) -> Vec<u8> {
    let hello = ClientHello {
        version_low: 1,
        version_high: 1,
        shard,
        features: Features::ALL,
        client_id: [7; 16],
        limits: FrameLimits::default(),
        token: b"",
        name: "strange",
    };
    encoded(|out| hello.encode(out))
}

/// The next frame's body, when the node sends one.
pub(crate) fn read_frame(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = [0; FRAME_HEAD_LEN];
    socket.read_exact(&mut bytes).ok()?;
    let parsed = FrameHead::parse(&bytes, &FrameLimits::default());
    let Partial::Whole(head) = parsed.unwrap() else {
        unreachable!("32 bytes are a head");
    };
    let mut body = vec![0; (head.body_len + head.values_len) as usize];
    socket.read_exact(&mut body).ok()?;
    Some(body)
}

fn encoded<E: std::fmt::Debug>(encode: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Vec<u8> {
    let mut out = vec![0; 4096];
    let len = encode(&mut out).unwrap();
    out.truncate(len);
    out
}

const VERBS: [Verb; 9] = [
    Verb::Exists,
    Verb::MatchPrefix,
    Verb::Prefetch,
    Verb::Touch,
    Verb::Remove,
    Verb::Pin,
    Verb::Unpin,
    Verb::Stat,
    Verb::Lease,
];

/// A request that the node takes, with its values.
fn right_frame(random: &mut Random, id: u64) -> Vec<u8> {
    let key = [b'a' + random.below(20) as u8; 3];
    let head = RequestHead {
        argument: random.below(2000) as u32,
        ..RequestHead::default()
    };
    match random.below(4) {
        0 => {
            let bytes = value(random.next(), 1 + random.below(3000));
            let entries = [PutEntry {
                key: &key,
                hint: Hint::default(),
                len: bytes.len() as u32,
                checksum: Checksum::of_named("strange", &key, &bytes),
            }];
            let head = RequestHead {
                options: Options::NONE,
                argument: 0,
                ..head
            };
            let mut frame = encoded(|out| request::encode(Verb::Put, id, &head, entries, out));
            frame.extend(bytes);
            frame
        }
        1 => {
            let entries = [GetEntry::whole(&key, Hint::default())];
            let head = RequestHead::default();
            encoded(|out| request::encode(Verb::Get, id, &head, entries, out))
        }
        2 => encoded(|out| request::encode_ping(id, out)),
        _ => {
            let verb = VERBS[random.below(VERBS.len())];
            let entries = [KeyEntry::plain(&key), KeyEntry::plain(b"other")];
            encoded(|out| request::encode(verb, id, &head, entries, out))
        }
    }
}

/// Puts the checksums of a frame right, so that what is wrong behind them is looked at.
fn seal(frame: &mut [u8]) {
    let half = |bytes: &[u8]| (xxh3_64(bytes) as u32).to_le_bytes();
    let told = u32::from_le_bytes(frame[16..20].try_into().unwrap()) as usize;
    if let Some(body) = frame.get(FRAME_HEAD_LEN..FRAME_HEAD_LEN.saturating_add(told)) {
        let checksum = half(body);
        frame[24..28].copy_from_slice(&checksum);
    }
    let checksum = half(&frame[..28]);
    frame[28..32].copy_from_slice(&checksum);
}

fn spoil(random: &mut Random, frame: &mut Vec<u8>) {
    match random.below(5) {
        0 => {}
        1 => {
            let at = random.below(frame.len());
            frame[at] ^= 1 << random.below(8);
        }
        // Lengths, flags, verbs and ids that lie.
        2 => {
            let at = 4 + random.below(20);
            frame[at] = random.next() as u8;
            seal(frame);
        }
        3 => {
            for _ in 0..=random.below(4) {
                let at = FRAME_HEAD_LEN + random.below(frame.len() - FRAME_HEAD_LEN);
                if let Some(byte) = frame.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
            seal(frame);
        }
        _ => frame.truncate(random.below(frame.len())),
    }
}

/// What one connection sends.
fn strange_bytes(random: &mut Random) -> Vec<u8> {
    if random.below(8) == 0 {
        return value(random.next(), 1 + random.below(8000));
    }
    let mut bytes = greeting(None);
    let name = OpenNamespace {
        number: terrace_wire::NamespaceNumber(0),
        name: "strange",
    };
    bytes.extend(encoded(|out| name.encode(1, out)));
    // Several right ones come first, so that what is spoiled finds something under way.
    let count = 1 + random.below(20) as u64;
    for number in 0..count {
        let mut frame = right_frame(random, 2 + number);
        if number + 1 == count || random.below(10) == 0 {
            spoil(random, &mut frame);
        }
        bytes.extend(frame);
    }
    if random.below(4) == 0 {
        bytes.extend(value(random.next(), random.below(5000)));
    }
    bytes
}

fn attack(address: SocketAddr, random: &mut Random) {
    let mut socket = TcpStream::connect(address).unwrap();
    let limit = Some(Duration::from_secs(2));
    socket.set_read_timeout(limit).unwrap();
    socket.set_write_timeout(limit).unwrap();
    let _ = socket.write_all(&strange_bytes(random));
    match random.below(4) {
        // Gone in the middle, nothing read.
        0 => {}
        1 => {
            let _ = socket.read(&mut [0; 64]);
        }
        _ => {
            let _ = socket.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut socket, &mut std::io::sink());
        }
    }
}

/// One half of the attack: for `span`, or a count of connections.
fn attack_all(address: SocketAddr, half: u64, span: Option<Duration>) -> u64 {
    std::thread::scope(|scope| {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|attacker| {
                scope.spawn(move || {
                    let started = now();
                    let mut random = Random::new(1 + attacker + half * ATTACKERS);
                    let mut count = 0;
                    while span.map_or(count < CONNECTIONS, |span| started.elapsed() < span) {
                        attack(address, &mut random);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let counts = attackers
            .into_iter()
            .map(|attacker| attacker.join().unwrap());
        counts.sum()
    })
}

/// Another client, which goes on until it is told to stop.
fn honest(blocks: &Namespace, stop: &AtomicBool, calls: &AtomicU64) {
    let plain = CallOptions::default();
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (key, sent) = ((number % 64).to_le_bytes(), value(number % 64, 50_000));
        let outcome = blocks.put(&key, &sent, &plain).unwrap();
        assert!(!matches!(outcome, PutOutcome::Rejected(_)), "{outcome:?}");
        if outcome != PutOutcome::Busy {
            let got = blocks.get(&key, &plain).unwrap();
            assert!(got.hit().unwrap() == sent, "block {number}");
        }
        calls.fetch_add(2, Ordering::Relaxed);
    }
}

#[test]
fn strange_bytes_at_a_live_port_do_no_harm() {
    let folder = Folder::new("live-hostile");
    let node = Node::start(&folder.0, &["--nvme", "256MiB"]);
    let blocks = node.blocks();
    let span = number_of("TERRACE_FUZZ_SECONDS").map(Duration::from_secs);
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let (count, before, after) = std::thread::scope(|scope| {
        let told = Stop(&stop);
        let other = scope.spawn(|| honest(&blocks, &stop, &calls));
        let first = attack_all(node.address, 0, span.map(|span| span / 4));
        let before = node.process.resident();
        let second = attack_all(node.address, 1, span.map(|span| span * 3 / 4));
        drop(told);
        other.join().unwrap();
        (first + second, before, node.process.resident())
    });
    let malformed = node.metric("terrace_server_closed_malformed_total");
    eprintln!(
        "{count} connections of strange bytes, {malformed} ended as malformed; the node's memory \
         {before} bytes after the first quarter or half, {after} at the end; {} calls of another client",
        calls.load(Ordering::Relaxed)
    );
    assert!(malformed > 0, "nothing strange came to the node");
    assert!(
        after <= before + GROWTH_MAX,
        "memory grew from {before} to {after}"
    );
    node.until_metric("terrace_pinned_bytes", 0);
    node.until_metric("terrace_slots_being_written", 0);
    node.end();
}
