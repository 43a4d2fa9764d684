//! What the kernel says of itself under /proc, read and judged without changing anything.

use std::fmt;
use std::fs;

/// The oldest kernel that glommio runs on.
pub(super) const KERNEL_MIN: KernelVersion = KernelVersion { major: 5, minor: 8 };

/// What glommio asks for of locked memory, in bytes: it refuses a lower soft limit even where
/// the kernel would not count it.
const MEMLOCK_MIN: u64 = 512 << 10;

/// What the soft limit is raised to, in bytes: room for the rings of some dozen executors.
const MEMLOCK_RAISED: u64 = 8 << 20;

/// Whether this process runs with effective user 0.
pub(super) fn is_root() -> bool {
    effective_uid(&fs::read_to_string("/proc/self/status").unwrap_or_default()) == Some(0)
}

fn effective_uid(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

/// Major and minor number of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KernelVersion {
    major: u32,
    minor: u32,
}

impl KernelVersion {
    /// Reads `6.1.0-18-amd64`, `5.8-rc1` and the like.
    pub(super) fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Self { major, minor })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why io_uring cannot be used, with the command that changes it. `switch` is the content of
/// `io_uring_disabled`; kernels before 6.6 have no such switch and never disable it.
pub(super) fn io_uring_refusal(switch: Option<&str>, is_root: bool) -> Option<String> {
    let command = "sudo sysctl -w kernel.io_uring_disabled=0";
    match switch.map(str::trim) {
        None | Some("0") => None,
        Some("1") if is_root => None,
        Some("1") => Some(format!("kept for privileged processes; run: {command}")),
        Some(value) => Some(format!(
            "kernel.io_uring_disabled is {value}; run: {command}"
        )),
    }
}

/// The limit of locked memory, in bytes; `u64::MAX` stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    soft: u64,
    hard: u64,
}

impl Limit {
    /// Reads it from the text of `/proc/self/limits`.
    pub(super) fn parse(limits: &str) -> Option<Self> {
        let values = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"))?;
        let mut values = values.split_whitespace().map(|value| match value {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        });
        Some(Self {
            soft: values.next()??,
            hard: values.next()??,
        })
    }

    /// Whether glommio accepts it.
    pub(super) fn is_enough(self) -> bool {
        self.soft >= MEMLOCK_MIN
    }

    /// Whether the process may raise its soft limit far enough by itself.
    pub(super) fn can_be_raised(self) -> bool {
        self.hard >= MEMLOCK_MIN
    }

    /// The `soft:hard` that prlimit is asked for. Only root may raise the hard limit.
    pub(super) fn raised(self, is_root: bool) -> String {
        let hard = if is_root {
            self.hard.max(MEMLOCK_RAISED)
        } else {
            self.hard
        };
        let bytes = |value| {
            if value == u64::MAX {
                "unlimited".to_owned()
            } else {
                format!("{value}")
            }
        };
        format!("{}:{}", bytes(MEMLOCK_RAISED.min(hard)), bytes(hard))
    }

    /// What to do when it is not enough.
    pub(super) fn advice(self) -> String {
        let kib = MEMLOCK_RAISED >> 10;
        let how = if self.can_be_raised() {
            format!("run: ulimit -l {}", kib.min(self.hard >> 10))
        } else {
            format!("run: sudo prlimit --pid $$ --memlock={MEMLOCK_RAISED}:{MEMLOCK_RAISED}")
        };
        format!(
            "{self}, glommio wants at least {} KiB; {how}",
            MEMLOCK_MIN >> 10
        )
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.soft == u64::MAX {
            f.write_str("unlimited")
        } else {
            write!(f, "{} KiB", self.soft >> 10)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_version_orders_by_number_not_by_text() {
        let parse = |text| KernelVersion::parse(text).unwrap();
        assert!(parse("5.10.0-8-amd64") > KERNEL_MIN);
        assert!(parse("6.1") > KERNEL_MIN);
        assert!(parse("5.8-rc1") >= KERNEL_MIN);
        assert!(parse("5.4.0") < KERNEL_MIN);
        assert!(parse("4.19.0") < KERNEL_MIN);
        assert_eq!(KernelVersion::parse("unknown"), None);
    }

    #[test]
    fn io_uring_refusal_follows_the_switch_and_the_user() {
        assert_eq!(io_uring_refusal(None, false), None);
        assert_eq!(io_uring_refusal(Some("0\n"), false), None);
        assert_eq!(io_uring_refusal(Some("1\n"), true), None);
        assert!(
            io_uring_refusal(Some("1\n"), false)
                .unwrap()
                .contains("sysctl -w")
        );
        assert!(
            io_uring_refusal(Some("2\n"), true)
                .unwrap()
                .contains("is 2")
        );
    }

    #[test]
    fn limit_is_read_from_its_own_line() {
        let line = |soft: &str, hard: &str| {
            let text = format!(
                "Max processes  7 7 processes\nMax locked memory         {soft}  {hard}  bytes\n"
            );
            Limit::parse(&text)
        };
        assert_eq!(
            line("65536", "8388608"),
            Some(Limit {
                soft: 65536,
                hard: 8_388_608
            })
        );
        assert_eq!(line("unlimited", "unlimited").unwrap().soft, u64::MAX);
        assert_eq!(Limit::parse("Max processes 1 1 processes\n"), None);
    }

    #[test]
    fn limit_edge_is_512_kib() {
        assert!(
            Limit {
                soft: 524_288,
                hard: 524_288
            }
            .is_enough()
        );
        assert!(
            !Limit {
                soft: 524_287,
                hard: 524_288
            }
            .is_enough()
        );
    }

    #[test]
    fn limit_raised_leaves_the_hard_limit_to_root() {
        let low = Limit {
            soft: 65_536,
            hard: 1 << 20,
        };
        assert_eq!(low.raised(false), "1048576:1048576");
        assert_eq!(low.raised(true), "8388608:8388608");
        let free = Limit {
            soft: 65_536,
            hard: u64::MAX,
        };
        assert_eq!(free.raised(false), "8388608:unlimited");
    }

    #[test]
    fn limit_advice_fits_what_the_user_may_do() {
        assert!(
            Limit {
                soft: 1,
                hard: 1 << 20
            }
            .advice()
            .contains("ulimit -l 1024")
        );
        assert!(Limit { soft: 1, hard: 1 }.advice().contains("sudo prlimit"));
    }

    #[test]
    fn effective_uid_is_the_second_number() {
        assert_eq!(effective_uid("Name:\tx\nUid:\t1000\t0\t0\t0\n"), Some(0));
        assert_eq!(effective_uid("Uid:\t0\t1000\t0\t0\n"), Some(1000));
        assert_eq!(effective_uid(""), None);
    }
}
