//! What tests of nodes that live through something share: values, outages, and children of the test.

use std::io::BufReader;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrace_client::{Cause, Error};

use crate::started::Process;

impl Process {
    /// Memory of the process that is resident, arenas included, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }
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
