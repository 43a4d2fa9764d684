//! Counts operations, their latency and the CPU time they cost, within a span of time.

use std::time::Duration;

use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::utsname::uname;
use terrace_runtime::executor::MonotonicClock;
use terrace_types::{Clock, Nanos};

/// Operations before this share of the span has passed are left out: queues fill first.
const RAMP_SHARE: u32 = 10;

/// What an engine did beside what was counted.
#[derive(Clone, Debug, Default)]
pub struct EngineShare {
    /// Lookups that DRAM answered, which are not counted as operations.
    pub dram_hits: u64,
    /// Lookups that found nothing or were not answered, and puts that were not stored.
    pub failures: u64,
    /// What the first of those came to.
    pub first_failure: Option<String>,
    /// Bytes written to the device, heads and footers included.
    pub bytes_written: u64,
    /// Payload bytes among them.
    pub payload_bytes: u64,
    /// Device flushes.
    pub flushes: u64,
}

impl EngineShare {
    /// Payload bytes that a flush covers.
    #[must_use]
    pub const fn bytes_per_flush(&self) -> Option<u64> {
        self.payload_bytes.checked_div(self.flushes)
    }
}

/// What one mode came to in one round.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Operations counted.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time they were counted in.
    pub elapsed: Duration,
    /// CPU time of the process meanwhile, kernel threads that work for it included.
    pub cpu: Duration,
    /// Latency, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Calls of `io_uring_enter` for an operation; `None` where nobody counts them.
    pub enters_per_io: Option<f64>,
    /// Bytes between two flushes, of durable writes on a ring.
    pub bytes_per_flush: Option<u64>,
    /// Bytes that were written meanwhile and are not among those counted.
    pub written_beside: Option<u64>,
    /// Where an engine took part.
    pub engine: Option<EngineShare>,
}

impl Sample {
    /// Bytes per second, in GB.
    #[must_use]
    pub fn gb_per_s(&self) -> f64 {
        ratio(self.bytes, self.elapsed.as_secs_f64()) / 1e9
    }

    /// Bytes per second that were written meanwhile, in GB.
    #[must_use]
    pub fn written_gb_per_s(&self) -> Option<f64> {
        let per = self.elapsed.as_secs_f64();
        self.written_beside.map(|bytes| ratio(bytes, per) / 1e9)
    }

    /// Operations per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        ratio(self.ios, self.elapsed.as_secs_f64())
    }

    /// CPU time of an operation, in microseconds.
    #[must_use]
    pub fn cpu_us_per_io(&self) -> f64 {
        if self.ios == 0 {
            return 0.0;
        }
        1.0 / ratio(self.ios, self.cpu.as_secs_f64() * 1e6)
    }

    /// A quantile of latency, in microseconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e3
    }
}

#[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
fn ratio(count: u64, per: f64) -> f64 {
    count as f64 / per.max(1e-9)
}

/// The moment now, of the clock that all threads share.
pub(super) fn now() -> Nanos {
    MonotonicClock.now()
}

/// CPU time of the process so far, and of the kernel's threads that work for it.
pub(super) fn cpu_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    let total = usage.user_time() + usage.system_time();
    let micros = total.tv_sec() * 1_000_000 + total.tv_usec();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Load of the machine, as the kernel words it.
pub(super) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let words: Vec<&str> = text.split_ascii_whitespace().take(3).collect();
    words.join(" ")
}

/// The kernel's release.
pub(super) fn kernel() -> String {
    uname().map_or_else(
        |_| "unknown".to_owned(),
        |name| name.release().to_string_lossy().into_owned(),
    )
}

/// See the module's text.
pub(super) struct Meter {
    begin: Nanos,
    end: Nanos,
    /// When counting began, and the CPU time then.
    begun: Option<(Nanos, Duration)>,
    ended: Option<(Duration, Duration)>,
    ios: u64,
    bytes: u64,
    written_beside: Option<u64>,
    latency_ns: Histogram<u64>,
}

impl Meter {
    /// Counts for `span` after a ramp.
    pub(super) fn start(span: Duration) -> anyhow::Result<Self> {
        let begin = now() + span / RAMP_SHARE;
        Ok(Self {
            begin,
            end: begin + span,
            begun: None,
            ended: None,
            ios: 0,
            bytes: 0,
            written_beside: None,
            latency_ns: Histogram::new(3)?,
        })
    }

    /// Whether operations are still to be begun.
    pub(super) const fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    /// Takes in that time passed, without an operation to count.
    pub(super) fn pass(&mut self, now: Nanos) {
        match self.begun {
            None if now >= self.begin => self.begun = Some((now, cpu_time())),
            Some((at, cpu)) if now >= self.end && self.ended.is_none() => {
                self.ended = Some((now - at, cpu_time().saturating_sub(cpu)));
            }
            None | Some(_) => {}
        }
    }

    /// Counts an operation that took from `begun` to `now`. One that ends the ramp only starts
    /// the count.
    pub(super) fn record(&mut self, begun: Nanos, now: Nanos, len: u64) {
        if self.begun.is_some() && self.ended.is_none() {
            self.ios += 1;
            self.bytes += len;
            let took = u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX);
            // It grows as needed, so recording fails for no value.
            let recorded = self.latency_ns.record(took);
            debug_assert!(recorded.is_ok());
        }
        self.pass(now);
    }

    /// Counts bytes written beside what is measured.
    pub(super) fn write_beside(&mut self, len: u64) {
        if self.begun.is_some() && self.ended.is_none() {
            *self.written_beside.get_or_insert(0) += len;
        }
    }

    /// Ends a run that failed.
    pub(super) fn stop(&mut self) {
        self.ended = Some((Duration::ZERO, Duration::ZERO));
    }

    /// What was counted.
    pub(super) fn sample(&self) -> Sample {
        let (elapsed, cpu) = self.ended.unwrap_or_default();
        Sample {
            ios: self.ios,
            bytes: self.bytes,
            elapsed,
            cpu,
            latency_ns: self.latency_ns.clone(),
            enters_per_io: None,
            bytes_per_flush: None,
            written_beside: self.written_beside,
            engine: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_leaves_the_ramp_out_and_ends_by_itself() {
        let mut meter = Meter::start(Duration::from_secs(100)).unwrap();
        let at = |seconds: u64| meter_origin() + Duration::from_secs(seconds);
        fn meter_origin() -> Nanos {
            now()
        }
        meter.record(at(0), at(1), 10);
        meter.record(at(0), at(11), 10);
        meter.record(at(11), at(12), 10);
        assert!(meter.is_running());
        meter.record(at(12), at(120), 10);
        assert!(!meter.is_running());
        meter.record(at(120), at(121), 10);
        let sample = meter.sample();
        assert_eq!((sample.ios, sample.bytes), (2, 20));
        assert!(sample.elapsed >= Duration::from_secs(100));
    }
}
