//! Aim: what was acknowledged as durable survives kill -9, whenever it comes.
//! Method: this test runs itself as a child that stores and removes blocks and prints what was
//! acknowledged; it is killed after a random count of lines, and the next one begins by
//! verifying all of it. More rounds by command: `TERRACE_KILLS=200`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use futures_util::stream::{FuturesUnordered, StreamExt};
use terrace_engine::{
    BlockKey, Durability, Engine, EngineConfig, GetOptions, HugepageMode, Lookup, Namespace,
    NvmeConfig, PutOptions, PutOutcome, block_on,
};

/// Names the file in the child's environment.
const FILE: &str = "TERRACE_KILL_FILE";
const FIRST: &str = "TERRACE_KILL_FIRST";
/// Blocks that fit without any being given up: nothing may be missing.
const KEYS: u64 = 400;
/// What recovery may read: whole segments without a footer, and the footers of others.
const WALKED_MAX: u64 = 2;
const SEGMENT_LEN: u64 = 8 << 20;
const FOOTER_MAX: u64 = 256 << 10;

fn open(file: &Path) -> Engine {
    let config = EngineConfig {
        dram_bytes: 8 << 20,
        hugepages: HugepageMode::Off,
        nvme: NvmeConfig {
            paths: vec![file.to_owned()],
            file_bytes: Some(96 << 20),
            ..NvmeConfig::default()
        },
        ..EngineConfig::default()
    };
    Engine::open(config).unwrap_or_else(|error| panic!("open: {error:#?}"))
}

fn key(ns: Namespace, number: u64) -> BlockKey {
    ns.key(&number.to_le_bytes()).unwrap()
}

/// The bytes of a key's `version`, which tell the version first.
fn value(number: u64, version: u64) -> Vec<u8> {
    let len = 8 + (number * 7919 + version * 131) % 60_000;
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.extend((8..len).map(|at| (number ^ version.wrapping_mul(31) ^ at) as u8));
    bytes
}

/// One step of the child on one key: what it printed when the call had returned.
async fn step(engine: &Engine, ns: Namespace, number: u64, version: u64) -> String {
    let key = key(ns, number);
    let durable = PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    };
    if version % 5 == 4 {
        let removed = engine.remove(&key).await;
        assert!(!matches!(removed, Lookup::Unavailable(_)));
        return format!("removed {number} {version}");
    }
    match engine.upsert(&key, value(number, version), &durable).await {
        PutOutcome::Stored { durable: true } => format!("stored {number} {version}"),
        // An overloaded machine is late beyond the bounded wait: nothing was promised.
        PutOutcome::Busy => format!("busy {number} {version}"),
        outcome => panic!("put {number} {version}: {outcome:?}"),
    }
}

/// The child: goes on until it is killed.
fn run_child(file: &Path, first: u64) {
    let engine = open(file);
    let ns = engine.namespace("m").unwrap();
    let mut lines = std::io::stdout();
    writeln!(lines, "open").unwrap();
    block_on(async {
        let mut under_way = FuturesUnordered::new();
        for turn in 0.. {
            // A key has one call under way at most: the versions of a key come in order.
            let (number, version) = (turn % KEYS, first + turn / KEYS);
            writeln!(lines, "begun {number} {version}").unwrap();
            under_way.push(step(&engine, ns, number, version));
            while under_way.len() >= 16 {
                let line = under_way.next().await.unwrap();
                writeln!(lines, "{line}").unwrap();
            }
        }
    });
}

/// What may be found of a key: the versions (or absence) since the last acknowledged one.
type Known = BTreeMap<u64, Vec<Option<u64>>>;

fn take_line(known: &mut Known, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let ["begun" | "stored" | "removed", number, version] = words[..] else {
        return;
    };
    let (number, version): (u64, u64) = (number.parse().unwrap(), version.parse().unwrap());
    let state = if version % 5 == 4 {
        None
    } else {
        Some(version)
    };
    let may = known.entry(number).or_insert_with(|| vec![None]);
    match words[0] {
        // Until it is acknowledged the old one or the new one may be there, or neither: an
        // upsert takes the old one out first.
        "begun" => may.extend([state, None]),
        "stored" | "removed" => *may = vec![state],
        _ => {}
    }
}

fn verify(file: &Path, known: &mut Known, round: u64) {
    let engine = open(file);
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        for (number, may) in known.iter_mut() {
            let found = engine.get(&key(ns, *number), &GetOptions::default()).await;
            let version = match found {
                Lookup::Hit { value: block, .. } => {
                    let version = u64::from_le_bytes(block[..8].try_into().unwrap());
                    assert!(block[..] == value(*number, version)[..], "wrong bytes");
                    Some(version)
                }
                Lookup::Miss => None,
                Lookup::Unavailable(reason) => panic!("{reason}"),
            };
            assert!(
                may.contains(&version),
                "round {round}, key {number}: {version:?} of {may:?}"
            );
            *may = vec![version];
        }
        assert!(engine.check().await);
        let stats = engine.stats().await;
        assert_eq!(stats.counters.checksum_mismatches, 0);
        // Recovery is bounded: it walks what was open and what was being sealed, no more, and
        // reads no payload elsewhere.
        let found = stats.recovery;
        assert!(found.segments_walked <= WALKED_MAX, "{found:?}");
        let (walks, footers) = (
            found.segments_walked * SEGMENT_LEN,
            found.segments * FOOTER_MAX,
        );
        assert!(found.bytes_read <= walks + footers, "{found:?}");
    });
    // Every second time the engine is not closed either.
    if round.is_multiple_of(2) {
        block_on(engine.close(std::time::Duration::from_secs(20)));
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    if let Some(file) = std::env::var_os(FILE) {
        let first = std::env::var(FIRST).unwrap().parse().unwrap();
        run_child(Path::new(&file), first);
        return;
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kill-9");
    let _ = std::fs::remove_file(&file);
    let rounds = std::env::var("TERRACE_KILLS").map_or(50, |count| count.parse().unwrap());
    let (mut known, mut random) = (Known::new(), 0x9e37_79b9_7f4a_7c15_u64);
    let mut acknowledged = 0;
    for round in 0..rounds {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let lines_max = 50 + (random >> 33) % 4000;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "what_was_acknowledged_survives_kill_9",
                "--exact",
                "--nocapture",
            ])
            .env(FILE, &file)
            .env(FIRST, (round * 1_000_000).to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut killed = false;
        for (at, line) in out.lines().enumerate() {
            let Ok(line) = line else { break };
            acknowledged += u64::from(line.starts_with("stored") || line.starts_with("removed"));
            take_line(&mut known, &line);
            if at as u64 >= lines_max && !std::mem::replace(&mut killed, true) {
                // What was printed before it died is read to the end.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(killed, "the child ended by itself");
        verify(&file, &mut known, round);
    }
    assert!(
        acknowledged > rounds * 50,
        "{acknowledged} calls were acknowledged"
    );
    let _ = std::fs::remove_file(&file);
}
