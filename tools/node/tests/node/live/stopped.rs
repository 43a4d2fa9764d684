//! Aim: who is stopped holds up nobody: calls to a stopped node end at their deadlines, and a stopped
//! client does not slow the others. Method: SIGSTOP of a node under calls; SIGSTOP of a client process
//! in the middle of its gets, and latencies of others beside those without it.

use std::io::{BufRead, BufReader, Write};
use std::process::ChildStdout;
use std::time::Duration;

use terrace_client::blocking::Namespace;
use terrace_client::{CallOptions, Cause};
use terrace_types::{Lookup, PutOutcome};

use super::process::{child_of, now, outage, value};
use crate::started::{Folder, Node, Process, blocks_at};

const DEADLINE: Duration = Duration::from_millis(300);
const THREADS: u64 = 4;

/// A call may end later than its deadline on a machine that has much else to do, though not by
/// several times.
const LATE_MAX: u32 = 10;

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// Calls until `span` is over, at least two; how many there were, and the longest one.
fn calls_that_time_out(blocks: &Namespace, thread: u64, span: Duration) -> (u64, Duration) {
    let soon = CallOptions::within(DEADLINE);
    let (started, mut longest) = (now(), Duration::ZERO);
    let large = value(thread, 3 << 20);
    for count in 0.. {
        if count >= 2 && started.elapsed() >= span {
            return (count, longest);
        }
        let begun = now();
        let error = match count % 2 {
            0 => blocks.get(&key(thread), &soon).unwrap_err(),
            _ => blocks.put(&key(100 + thread), &large, &soon).unwrap_err(),
        };
        longest = longest.max(begun.elapsed());
        assert!(matches!(error.cause(), Cause::TimedOut { .. }), "{error}");
    }
    unreachable!("counting does not end")
}

#[test]
fn node_stopped_under_calls_ends_them_at_their_deadlines_and_goes_on() {
    let folder = Folder::new("live-stopped");
    let node = Node::start(&folder.0, &["--nvme", "0"]);
    let blocks = node.blocks();
    let plain = CallOptions::default();
    for thread in 0..THREADS {
        let outcome = blocks.put(&key(thread), &value(thread, 100_000), &plain);
        assert_eq!(outcome.unwrap(), PutOutcome::Stored { durable: false });
    }
    let span = outage(DEADLINE * 4);
    node.process.stop();
    let (count, longest) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let blocks = &blocks;
                scope.spawn(move || calls_that_time_out(blocks, thread, span))
            })
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap());
        ends.fold((0, Duration::ZERO), |(count, longest), end| {
            (count + end.0, longest.max(end.1))
        })
    });
    eprintln!("stopped for {span:?}: {count} calls of {DEADLINE:?} timed out, longest {longest:?}");
    assert!(longest < DEADLINE * LATE_MAX, "{longest:?}");
    node.process.go_on();
    for thread in 0..THREADS {
        let got = blocks.get(&key(thread), &plain).unwrap();
        assert!(got.hit().unwrap() == value(thread, 100_000));
    }
    // What became of the puts that timed out is not known; their bytes are right or not there.
    for thread in 0..THREADS {
        match blocks.get(&key(100 + thread), &plain).unwrap() {
            Lookup::Hit { value: got, .. } => assert!(got == value(thread, 3 << 20)),
            other => assert_eq!(other, Lookup::Miss),
        }
    }
    node.end();
}

/// Names the node to the child, which is this program once more.
const CHILD: &str = "TERRACE_LIVE_CLIENT";
const LARGE_LEN: usize = 8 << 20;
const SMALL_LEN: usize = 64 << 10;

/// The client that is stopped: eight threads that get large blocks until it is killed. Without the
/// variable it is no test.
#[test]
fn client_of_its_own() {
    let Ok(address) = std::env::var(CHILD) else {
        return;
    };
    let blocks = blocks_at(&address);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut target = vec![0; LARGE_LEN];
                loop {
                    let got = blocks.get_into(b"large", &mut target, &CallOptions::default());
                    assert!(got.unwrap().is_hit());
                    let _ = writeln!(std::io::stdout(), "got");
                }
            });
        }
    });
}

/// A client that is stopped while replies are on their way to it.
fn stopped_client(node: &Node) -> (Process, BufReader<ChildStdout>) {
    let test = "live::stopped::client_of_its_own";
    let (client, mut output) = child_of(test, CHILD, &node.address.to_string());
    let (mut line, mut count) = (String::new(), 0);
    while count < 16 {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the client ended");
        count += u32::from(line.contains("got"));
    }
    client.stop();
    (client, output)
}

/// Latencies of gets by two threads for `span`, the 99th percentile of them in microseconds.
fn p99(blocks: &Namespace, span: Duration) -> u64 {
    let of_thread = |thread: u64| {
        let (started, mut all) = (now(), Vec::new());
        let mut target = vec![0; SMALL_LEN];
        while started.elapsed() < span || all.len() < 200 {
            let begun = now();
            let got = blocks.get_into(&key(thread), &mut target, &CallOptions::default());
            assert!(got.unwrap().is_hit());
            all.push(begun.elapsed().as_micros() as u64);
        }
        all
    };
    let mut all = std::thread::scope(|scope| {
        let second = scope.spawn(|| of_thread(1));
        let mut all = of_thread(0);
        all.extend(second.join().unwrap());
        all
    });
    all.sort_unstable();
    all[all.len() * 99 / 100]
}

/// Rounds, each measured without the stopped client and with it, the order turned each time.
const ROUNDS: usize = 7;

#[test]
fn client_stopped_in_its_gets_does_not_slow_others() {
    let folder = Folder::new("live-client-stopped");
    let node = Node::start(&folder.0, &["--nvme", "0"]);
    let blocks = node.blocks();
    let plain = CallOptions::default();
    blocks.put(b"large", &value(9, LARGE_LEN), &plain).unwrap();
    for thread in 0..2 {
        let sent = value(thread, SMALL_LEN);
        blocks.put(&key(thread), &sent, &plain).unwrap();
    }
    let span = outage(Duration::from_millis(200));
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        // What the start or the end of the other client stirred up settles first.
        let settled = || {
            p99(&blocks, span / 4);
            p99(&blocks, span)
        };
        let with = || {
            let _stopped = stopped_client(&node);
            settled()
        };
        let without = settled;
        let (beside, alone) = match round % 2 {
            0 => (with(), without()),
            _ => {
                let alone = without();
                (with(), alone)
            }
        };
        eprintln!("p99 of others: {beside} us beside a stopped client, {alone} us without");
        #[expect(clippy::cast_precision_loss, reason = "a ratio with two digits")]
        ratios.push(beside as f64 / alone.max(1) as f64);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ROUNDS / 2];
    eprintln!("median ratio {median:.2} of {ratios:.2?}");
    // Noise makes twice of it; a node that waits for the stopped client makes a hundred times.
    assert!(median < 5.0, "{ratios:?}");
    // What the killed ones held is given back.
    node.until_metric("terrace_pinned_bytes", 0);
    node.end();
}
