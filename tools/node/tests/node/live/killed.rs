//! Aim: kill -9 under load costs nothing that was acknowledged as durable, clients go on without being
//! restarted, and no bytes are wrong. Method: threads put and get through clients that live through
//! all of it, while the node is killed after so many puts and started again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use terrace_client::CallOptions;
use terrace_client::blocking::Namespace;
use terrace_types::{Lookup, PutOutcome};

use super::process::{Stop, is_of_outage, number_of, value};
use crate::started::{Folder, Node, blocks_at, free_address};

const THREADS: u64 = 4;
/// Puts that are acknowledged between one kill and the next.
const PUTS: usize = 100;
/// Blocks of this many rounds fit without any being given up: nothing may be missing.
const ROUNDS_KEPT: u64 = 4;

/// What the threads know together.
#[derive(Default)]
struct Known {
    stop: AtomicBool,
    failures: AtomicU64,
    durable: Mutex<Vec<u64>>,
}

impl Known {
    fn durable(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// The bytes of a block, which its number decides.
fn bytes(number: u64) -> Vec<u8> {
    value(number, 1 + (number as usize * 7919) % 120_000)
}

/// Puts and gets until it is told to stop; an outage is no reason to.
fn load(blocks: &Namespace, first: u64, known: &Known, told: &Sender<u64>) {
    let options = CallOptions::within(Duration::from_secs(5)).durable();
    let failed = |error: &terrace_client::Error| {
        assert!(is_of_outage(error), "{error}");
        known.failures.fetch_add(1, Ordering::Relaxed);
    };
    let mut number = first;
    while !known.stop.load(Ordering::Relaxed) {
        match blocks.put(&key(number), &bytes(number), &options) {
            // It is there already when the answer to the put before was lost.
            Ok(PutOutcome::Stored { durable } | PutOutcome::AlreadyExists { durable }) => {
                if durable {
                    known.durable().push(number);
                    let _ = told.send(number);
                }
                number += THREADS;
            }
            Ok(PutOutcome::Busy) => {}
            Ok(outcome) => panic!("put {number}: {outcome:?}"),
            Err(error) => failed(&error),
        }
        let earlier = {
            let durable = known.durable();
            durable.get(durable.len() / 2).copied()
        };
        let Some(earlier) = earlier else { continue };
        match blocks.get(&key(earlier), &options) {
            Ok(Lookup::Hit { value, .. }) => assert!(value == bytes(earlier), "{earlier}"),
            Ok(Lookup::Unavailable(_)) => {}
            Ok(Lookup::Miss) => panic!("block {earlier} was durable and is missing"),
            Err(error) => failed(&error),
        }
    }
}

/// Every block that was acknowledged is there, and none has other bytes.
fn verify(blocks: &Namespace, known: &Known) -> usize {
    let numbers = known.durable().clone();
    for number in &numbers {
        let got = blocks.get(&key(*number), &CallOptions::default());
        let got = got.unwrap_or_else(|error| panic!("{error}"));
        let got = got
            .hit()
            .unwrap_or_else(|| panic!("block {number} is missing"));
        assert!(got == bytes(*number), "block {number} has other bytes");
    }
    numbers.len()
}

#[test]
fn node_killed_under_load_serves_what_was_durable_to_the_same_clients() {
    let folder = Folder::new("live-killed");
    let address = free_address();
    let flags = ["--listen", &address, "--nvme", "512MiB"];
    let mut node = Node::start(&folder.0, &flags);
    let clients = [blocks_at(&address), blocks_at(&address)];
    let known = Known::default();
    let kills = number_of("TERRACE_KILLS").unwrap_or(3);
    let (told, heard) = channel();
    std::thread::scope(|scope| {
        let stop = Stop(&known.stop);
        let start = |first: u64| {
            for thread in 0..THREADS {
                let (known, told) = (&known, told.clone());
                let blocks = &clients[thread as usize % clients.len()];
                scope.spawn(move || load(blocks, first + thread, known, &told));
            }
        };
        start(0);
        for kill in 0..kills {
            heard.iter().take(PUTS).for_each(|_| ());
            node.process.kill();
            node = Node::start(&folder.0, &flags);
            let count = verify(&node.blocks(), &known);
            assert!(count >= PUTS, "{count} blocks");
            if kill % ROUNDS_KEPT == ROUNDS_KEPT - 1 {
                // Blocks that are put meanwhile may go, too: they are forgotten with the others.
                known.durable().clear();
            }
        }
        heard.iter().take(PUTS).for_each(|_| ());
        drop(stop);
    });
    let count = verify(&clients[0], &known);
    let failures = known.failures.load(Ordering::Relaxed);
    eprintln!("{kills} kills, {count} durable blocks read back, {failures} calls failed");
    node.end();
}
