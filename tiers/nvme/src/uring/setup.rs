//! Making a ring: what is asked of the kernel, what it granted, and why it may refuse.

use std::fmt;
use std::io;

use io_uring::IoUring;
use nix::sys::resource::{Resource, getrlimit};

use super::fixed::PLACES;
use super::probe;

/// Places for files in a ring's table.
pub(super) const FILES_MAX: usize = 64;

/// How long the kernel's submission thread looks for work before it sleeps.
const SQ_POLL_IDLE_MS: u32 = 100;

/// The longest completion queue that the kernel makes.
pub(super) const OPS_MAX: usize = 65_536;

/// Why a ring could not be had, or could not take something in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The kernel made no ring.
    #[error("make an io_uring of {entries} submissions: {cause}{}", advice(.cause))]
    Setup {
        /// Submissions asked for.
        entries: u32,
        /// What the kernel said.
        cause: io::Error,
    },
    /// More operations at once than a completion queue holds, or none at all.
    #[error("{ops_max} operations at once are not possible: 1 to {limit} are")]
    Ops {
        /// Operations asked for.
        ops_max: usize,
        /// As many as the completion queue holds.
        limit: usize,
    },
    /// The table of fixed memory is full.
    #[error(
        "memory of {needed} GiB or parts of it does not fit: {left} of {PLACES} places are left"
    )]
    Places {
        /// Places needed, one for each GiB.
        needed: usize,
        /// Places left.
        left: usize,
    },
    /// The limit on locked memory is too low to fix memory.
    #[error(
        "fix {len} bytes of memory: the limit on locked memory of {} is too low; raise it with \
         `ulimit -l`, LimitMEMLOCK= in a systemd unit, or --ulimit memlock in a container, or \
         grant CAP_IPC_LOCK", limit_text(*.limit)
    )]
    Memlock {
        /// Bytes to be fixed.
        len: usize,
        /// The soft limit in force, in bytes.
        limit: u64,
    },
    /// The table of files is full.
    #[error("a ring takes {FILES_MAX} files at most")]
    Files,
    /// The kernel refused to take something in.
    #[error("register {what} with a ring: {cause}")]
    Register {
        /// What was to be taken in.
        what: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

fn advice(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::ENOSYS) => "; this kernel has no io_uring, or a container profile hides it",
        Some(libc::EPERM) => {
            "; see `sysctl kernel.io_uring_disabled` and the container's seccomp profile"
        }
        Some(libc::ENOMEM) => "; the limit on locked memory may be too low: see `ulimit -l`",
        _ => "",
    }
}

fn limit_text(limit: u64) -> String {
    format!("{} KiB", limit >> 10)
}

/// The soft limit on locked memory.
pub(super) fn memlock_limit() -> u64 {
    getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(soft, _)| soft)
}

/// What kind of ring to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Submissions that fit the queue to the kernel; more go in rounds.
    pub entries: u32,
    /// Whether completions are polled for at the device. The device must support that.
    pub polled: bool,
    /// Whether a thread of the kernel takes submissions, so that submitting needs no call.
    pub sq_poll: bool,
    /// Operations that the kernel has at once, stuck ones included; more wait for their turn.
    pub ops_max: usize,
    /// Whether to fix memory and files beforehand.
    pub register: bool,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            entries: 256,
            polled: false,
            sq_poll: false,
            ops_max: 1024,
            register: true,
        }
    }
}

/// What is in force on a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingReport {
    /// All memory that was handed in is fixed.
    pub fixed_buffers: bool,
    /// Files go by their place in the ring's table.
    pub registered_files: bool,
    /// Completions are polled for.
    pub polled: bool,
    /// A thread of the kernel takes submissions.
    pub sq_poll: bool,
    /// The kernel knows that one thread submits.
    pub single_issuer: bool,
    /// Completions do not interrupt the thread.
    pub coop_taskrun: bool,
    /// The kernel could scatter one operation over fixed memory.
    pub vectored_fixed: bool,
    /// Places in the submission queue.
    pub sq_entries: u32,
    /// Places in the completion queue.
    pub cq_entries: u32,
}

impl fmt::Display for RingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io_uring {}+{}:", self.sq_entries, self.cq_entries)?;
        for (name, on) in [
            ("fixed-buffers", self.fixed_buffers),
            ("registered-files", self.registered_files),
            ("polled", self.polled),
            ("sq-poll", self.sq_poll),
            ("single-issuer", self.single_issuer),
            ("coop-taskrun", self.coop_taskrun),
            ("vectored-fixed", self.vectored_fixed),
        ] {
            write!(f, " {}{name}", if on { '+' } else { '-' })?;
        }
        Ok(())
    }
}

/// Operations and calls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Calls of `io_uring_enter`.
    pub enters: u64,
    /// Operations that the kernel took.
    pub submitted: u64,
    /// Operations that ended.
    pub completed: u64,
}

/// Makes a ring with as many of the wished flags as the kernel knows.
pub(super) fn make(config: &RingConfig) -> Result<(IoUring, RingReport), RingError> {
    let ops_max = config.ops_max;
    if ops_max == 0 || ops_max > OPS_MAX {
        let limit = OPS_MAX;
        return Err(RingError::Ops { ops_max, limit });
    }
    let wishes = [(true, true), (false, true), (false, false)];
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for (single_issuer, coop_taskrun) in wishes {
        // The kernel's own submission thread is where completions would run then.
        let coop_taskrun = coop_taskrun && !config.sq_poll;
        match build(config, single_issuer, coop_taskrun) {
            Ok(io) => {
                let limit = io.params().cq_entries() as usize;
                if ops_max > limit {
                    return Err(RingError::Ops { ops_max, limit });
                }
                let report = RingReport {
                    polled: config.polled,
                    sq_poll: config.sq_poll,
                    single_issuer,
                    coop_taskrun,
                    vectored_fixed: probe::vectored_fixed(&io.submitter()),
                    sq_entries: io.params().sq_entries(),
                    cq_entries: io.params().cq_entries(),
                    ..RingReport::default()
                };
                return Ok((io, report));
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => {
                refused = error;
                break;
            }
        }
    }
    Err(RingError::Setup {
        entries: config.entries,
        cause: refused,
    })
}

fn build(config: &RingConfig, single_issuer: bool, coop_taskrun: bool) -> io::Result<IoUring> {
    let entries = config.entries.max(1);
    // Every operation has room for its completion, so the queue cannot overflow.
    let completions = config.ops_max.max(entries as usize) as u32;
    let mut builder = IoUring::builder();
    builder.dontfork().setup_clamp().setup_cqsize(completions);
    if single_issuer {
        builder.setup_single_issuer();
    }
    if coop_taskrun {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    if config.polled {
        builder.setup_iopoll();
    }
    if config.sq_poll {
        builder.setup_sqpoll(SQ_POLL_IDLE_MS);
    }
    builder.build(entries)
}
