//! The time that rails and deadlines are measured with, and random numbers for names.

use std::io::Read;
use std::sync::OnceLock;
use std::time::Instant;

use super::error::TransferError;

/// The monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "real sockets on threads of this crate's own; the chooser is given its time"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since the first call.
pub(super) fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(now);
    u64::try_from(now().duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes that nobody guesses.
pub(super) fn random<const N: usize>() -> Result<[u8; N], TransferError> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|source| TransferError::Os {
            op: "read random bytes",
            source,
        })?;
    Ok(bytes)
}
