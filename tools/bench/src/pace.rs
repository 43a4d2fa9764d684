//! The requests of a trace as they are due, several at once.

use std::future::Future;
use std::str::FromStr;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use terrace_sim::trace::TraceRequest;

/// How fast requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// The next one as soon as one ends: a closed loop.
    Max,
    /// At the trace's times divided by this: an open loop.
    Times(f64),
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("max") {
            return Ok(Self::Max);
        }
        let times: f64 = text
            .parse()
            .map_err(|_| format!("`{text}` is neither max nor a number"))?;
        if !(1e-6..=1e9).contains(&times) {
            return Err(format!(
                "{times} is out of range; allowed is 0.000001 to 1000000000"
            ));
        }
        Ok(Self::Times(times))
    }
}

/// How requests follow one another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Requests in flight.
    pub(crate) iodepth: usize,
    /// How fast they arrive.
    pub(crate) speed: Speed,
    /// When the trace's clock was 0.
    pub(crate) started: Instant,
}

/// Makes each request when it is due, and waits until all have ended.
pub(crate) async fn drive<'a, F: Future<Output = ()>>(
    requests: impl Iterator<Item = &'a TraceRequest>,
    pace: Pace,
    bar: &indicatif::ProgressBar,
    make: impl Fn(&'a TraceRequest) -> F,
) {
    let mut in_flight = FuturesUnordered::new();
    for request in requests {
        if let Speed::Times(times) = pace.speed {
            #[expect(clippy::cast_precision_loss, reason = "times of a trace are short")]
            let due = Duration::from_secs_f64(request.timestamp_ms as f64 / 1e3 / times);
            let timer = async_io::Timer::at(pace.started + due);
            let rest = async { while in_flight.next().await.is_some() {} };
            // Requests under way go on while the next one is not due.
            let due = async {
                timer.await;
            };
            futures_lite::future::or(due, async {
                rest.await;
                std::future::pending::<()>().await;
            })
            .await;
        }
        while in_flight.len() >= pace.iodepth {
            in_flight.next().await;
        }
        in_flight.push(make(request));
        bar.inc(1);
    }
    while in_flight.next().await.is_some() {}
}
