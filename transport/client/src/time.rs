//! The clock that deadlines are counted by.

use std::time::{Duration, Instant};

/// Now.
#[expect(
    clippy::disallowed_methods,
    reason = "a client has no shard and so no runtime whose clock it could go by"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The moment that lies `span` ahead. Spans that no clock can count end in a year.
pub(crate) fn ahead(span: Duration) -> Instant {
    let now = now();
    now.checked_add(span)
        .unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}

/// What is left until `deadline` in whole milliseconds, at least one: zero would mean as long as
/// the node waits.
pub(crate) fn left_ms(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(now()).as_millis();
    u32::try_from(left).unwrap_or(u32::MAX).max(1)
}
