//! Requests that took long: the last of them, and a line in the log for each, as far as there are not
//! too many.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use terrace_types::Nanos;

use crate::latency::Hop;

/// Slow requests that a shard remembers.
pub const SLOW_MAX: usize = 128;

/// Lines of the log that a shard writes in a second about slow requests.
const LINES_MAX: u32 = 10;

/// A request that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// The shard that answered it.
    pub shard: usize,
    /// Its connection: a number that the shard gives once.
    pub connection: u64,
    /// Its client.
    pub peer: SocketAddr,
    /// Its id on its connection.
    pub request: u64,
    /// What it asked for.
    pub verb: &'static str,
    /// Keys, or other entries, that it named.
    pub keys: u32,
    /// Bytes of its frame, the values included.
    pub bytes_received: u64,
    /// Bytes of its reply.
    pub bytes_sent: u64,
    /// When it arrived, by the monotonic clock.
    pub arrived: Nanos,
    /// From its arrival to the last byte of its reply.
    pub time: Duration,
    /// The time of each hop, in the order of [`Hop::ALL`].
    pub hops: [Duration; Hop::ALL.len()],
}

/// The slow requests of a shard.
pub(crate) struct SlowLog {
    last: VecDeque<SlowRequest>,
    /// The second in which lines are counted, and how many it had.
    second: u64,
    lines: u32,
    /// Requests since the last line that got none.
    unsaid: u64,
}

impl SlowLog {
    pub(crate) fn new() -> Self {
        Self {
            last: VecDeque::with_capacity(SLOW_MAX),
            second: 0,
            lines: 0,
            unsaid: 0,
        }
    }

    pub(crate) fn last(&self) -> Vec<SlowRequest> {
        self.last.iter().cloned().collect()
    }

    pub(crate) fn push(&mut self, request: SlowRequest, now: Nanos) {
        if self.may_say(now) {
            say(&request, std::mem::take(&mut self.unsaid));
        } else {
            self.unsaid += 1;
        }
        if self.last.len() == SLOW_MAX {
            self.last.pop_front();
        }
        self.last.push_back(request);
    }

    fn may_say(&mut self, now: Nanos) -> bool {
        let second = now.as_millis() / 1000;
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        self.lines += 1;
        self.lines <= LINES_MAX
    }
}

fn say(slow: &SlowRequest, unsaid: u64) {
    let [queue, receive, hash, device, socket] = slow.hops.map(us);
    tracing::warn!(
        shard = slow.shard,
        connection = slow.connection,
        peer = %slow.peer,
        request = slow.request,
        verb = slow.verb,
        keys = slow.keys,
        bytes_received = slow.bytes_received,
        bytes_sent = slow.bytes_sent,
        time_us = us(slow.time),
        queue_us = queue,
        receive_us = receive,
        hash_us = hash,
        device_us = device,
        socket_us = socket,
        unsaid,
        "a slow request"
    );
}

fn us(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(request: u64) -> SlowRequest {
        SlowRequest {
            shard: 0,
            connection: 1,
            peer: "127.0.0.1:1".parse().unwrap(),
            request,
            verb: "get",
            keys: 1,
            bytes_received: 0,
            bytes_sent: 0,
            arrived: Nanos::ZERO,
            time: Duration::ZERO,
            hops: Default::default(),
        }
    }

    /// Aim: however many there are, the last ones stay, and the log gets a few lines a second.
    #[test]
    fn last_requests_stay_and_lines_are_bounded() {
        let mut log = SlowLog::new();
        let now = Nanos(5_000_000_000);
        for request in 0..1000 {
            log.push(slow(request), now);
        }
        let last = log.last();
        assert_eq!(last.len(), SLOW_MAX);
        assert_eq!(last[0].request, 1000 - SLOW_MAX as u64);
        assert_eq!(log.unsaid, 1000 - u64::from(LINES_MAX));
        log.push(slow(1000), now + Duration::from_secs(1));
        assert_eq!(log.unsaid, 0, "the next second has lines of its own");
    }
}
