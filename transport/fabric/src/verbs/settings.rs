//! How a queue pair is set up, checked before the NIC is asked.

use std::time::Duration;

use super::device::DeviceLimits;
use super::error::VerbsError;
use super::gid::GidChoice;
use super::region::Access;

/// How a queue pair is set up.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairSettings {
    /// The port of the device, from 1.
    pub port: u8,
    /// The address of this end.
    pub gid: GidChoice,
    /// Reads, writes and sends that may be under way.
    pub send_depth: u32,
    /// Receives that may be posted.
    pub receive_depth: u32,
    /// Pieces of memory in a request.
    pub slice_count_max: u32,
    /// Longest inline send in bytes; the NIC may grant more.
    pub inline_len: u32,
    /// Reads under way at a time, each way; cut to what both NICs can do.
    pub reads: u8,
    /// How long the NIC waits for an answer before it sends again; rounded up to a power of two
    /// times 4.096 us. NICs may wait up to four times as long.
    pub answer_timeout: Duration,
    /// How often it sends again before the queue pair fails.
    pub retry_count: u8,
    /// How often it sends again when the peer has no receive posted, 0.64 ms apart or more.
    pub receiver_retry_count: u8,
    /// The most that the peer may do with memory whose key it knows.
    pub peer_access: Access,
    /// The byte of IP packets by which switches tell classes of traffic apart.
    pub traffic_class: u8,
    /// The same for InfiniBand, and for VLANs: 0 to 7, on InfiniBand to 15.
    pub service_level: u8,
}

impl Default for QueuePairSettings {
    fn default() -> Self {
        Self {
            port: 1,
            gid: GidChoice::Auto,
            send_depth: 128,
            receive_depth: 128,
            slice_count_max: 4,
            inline_len: 64,
            reads: 16,
            // 67 ms with 6 retries: a link that is down shows after 0.5 to 2 s.
            answer_timeout: Duration::from_millis(67),
            retry_count: 6,
            receiver_retry_count: 6,
            peer_access: Access::Local,
            traffic_class: 0,
            service_level: 0,
        }
    }
}

/// 7 means "for ever" for the count after a missing receive by the standard, and with the
/// soft-RoCE driver for that after a missing answer, too: such requests never end.
const RETRIES_MAX: u64 = 6;

/// 0 would mean to wait for ever, 31 are two hours; 21 are 8.6 s.
const TIMEOUT_EXPONENT_MAX: u32 = 21;

impl QueuePairSettings {
    /// Checks every setting against its bounds and the device's.
    pub(super) fn check(&self, limits: &DeviceLimits) -> Result<(), VerbsError> {
        let depth_max = limits.queue_depth_max.into();
        let slices_max = limits.slice_count_max.into();
        between("port", self.port.into(), 1, limits.port_count.into())?;
        between("send_depth", self.send_depth.into(), 1, depth_max)?;
        between("receive_depth", self.receive_depth.into(), 0, depth_max)?;
        let slices = self.slice_count_max.into();
        between("slice_count_max", slices, 1, slices_max)?;
        between("reads", self.reads.into(), 1, u8::MAX.into())?;
        between("retry_count", self.retry_count.into(), 0, RETRIES_MAX)?;
        let receiver_retries = self.receiver_retry_count.into();
        between("receiver_retry_count", receiver_retries, 0, RETRIES_MAX)?;
        between("service_level", self.service_level.into(), 0, 15)?;
        self.timeout_exponent().map(drop)
    }

    /// The time limit of an answer as the NIC takes it: 4.096 us times two to its power.
    pub(super) fn timeout_exponent(&self) -> Result<u8, VerbsError> {
        let wanted = self.answer_timeout.as_nanos();
        let exponent = (1..=TIMEOUT_EXPONENT_MAX).find(|power| (4096_u128 << power) >= wanted);
        match exponent {
            Some(exponent) if wanted > 0 => Ok(exponent as u8),
            _ => Err(VerbsError::Setting {
                field: "answer_timeout in nanoseconds",
                value: u64::try_from(wanted).unwrap_or(u64::MAX),
                min: 1,
                max: 4096 << TIMEOUT_EXPONENT_MAX,
            }),
        }
    }

    /// Places it takes in a completion queue: each request may end with an error of its own.
    #[must_use]
    pub fn completion_count(&self) -> u32 {
        self.send_depth.saturating_add(self.receive_depth)
    }
}

fn between(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(VerbsError::Setting {
        field,
        value,
        min,
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DeviceLimits = DeviceLimits {
        region_len_max: u64::MAX,
        region_count_max: 10,
        queue_pair_count_max: 10,
        queue_depth_max: 1000,
        completion_depth_max: 1000,
        slice_count_max: 4,
        reads_out_max: 16,
        reads_in_max: 16,
        port_count: 2,
    };

    #[test]
    fn check_defaults_pass_and_each_bound_is_named() {
        type Change = fn(&mut QueuePairSettings);
        QueuePairSettings::default().check(&LIMITS).unwrap();
        let changes: [(&str, Change); 10] = [
            ("port", |settings| settings.port = 0),
            ("port", |settings| settings.port = 3),
            ("send_depth", |settings| settings.send_depth = 0),
            ("send_depth", |settings| settings.send_depth = 1001),
            ("receive_depth", |settings| settings.receive_depth = 1001),
            ("slice_count_max", |settings| settings.slice_count_max = 5),
            ("reads", |settings| settings.reads = 0),
            ("retry_count", |settings| settings.retry_count = 7),
            ("receiver_retry_count", |settings| {
                settings.receiver_retry_count = 7
            }),
            ("answer_timeout in nanoseconds", |settings| {
                settings.answer_timeout = Duration::ZERO;
            }),
        ];
        for (expected, change) in changes {
            let mut settings = QueuePairSettings::default();
            change(&mut settings);
            match settings.check(&LIMITS) {
                Err(VerbsError::Setting { field, .. }) => assert_eq!(field, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    #[test]
    fn timeout_exponent_rounds_up() {
        let exponent = |nanoseconds| {
            let answer_timeout = Duration::from_nanos(nanoseconds);
            let settings = QueuePairSettings {
                answer_timeout,
                ..QueuePairSettings::default()
            };
            settings.timeout_exponent().ok()
        };
        assert_eq!(exponent(1), Some(1));
        assert_eq!(exponent(8192), Some(1));
        assert_eq!(exponent(8193), Some(2));
        assert_eq!(exponent(67_000_000), Some(14));
        assert_eq!(exponent(4096 << 21), Some(21));
        assert_eq!(exponent((4096 << 21) + 1), None);
    }
}
