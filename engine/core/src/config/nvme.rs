//! What the NVMe tier is opened with.

use std::path::PathBuf;
use std::time::Duration;

use terrace_types::limits::BLOCK_LEN_MAX;

use super::{WAIT_MAX, check};
use crate::error::Error;

/// When blocks are written below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// When they leave DRAM, or are put durably.
    #[default]
    Back,
    /// As soon as they are stored. Nobody waits for it.
    Through,
}

/// Whether a feature of the kernel or device is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    /// Not used.
    #[default]
    Off,
    /// Used where it works; what is in force is reported.
    Prefer,
    /// Opening fails where it does not work.
    Require,
}

/// What is done about devices that the set lists and that are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// Opening fails and names them.
    #[default]
    Refuse,
    /// The others are served. What the missing ones hold is not; they may come back.
    Accept,
    /// The others are served, and the missing ones are never taken back.
    Forget,
}

/// Devices of the NVMe tier and how they are used. Without a path there is no such tier.
#[derive(Clone, Debug, PartialEq)]
pub struct NvmeConfig {
    /// Files or block devices, each divided among the shards.
    pub paths: Vec<PathBuf>,
    /// Length in bytes of files that are not there yet; one that is there keeps its own.
    pub file_bytes: Option<u64>,
    /// Devices to be emptied onto the others and then left out.
    pub drain: Vec<PathBuf>,
    /// Take devices though they hold something else; what they hold is lost.
    pub format: bool,
    /// Do not write new files with zeros first: opens at once, writes at half the speed until
    /// everything was written once.
    pub lazy: bool,
    /// What is done about missing devices.
    pub missing: Missing,
    /// When blocks are written.
    pub write_mode: WriteMode,
    /// Completions by polling the device, on devices with poll queues.
    pub io_poll: Use,
    /// Submissions by a kernel thread. Costs a core.
    pub sq_poll: bool,
    /// Operations that may be under way in a shard.
    pub queue_depth: u32,
    /// How long an operation may take.
    pub io_deadline: Duration,
    /// Bytes a second that blocks leaving DRAM may cost in writes, over all shards; 0 for no
    /// bound. Durable puts are not held back.
    pub write_budget: u64,
    /// Bytes a second that are read and verified in the background, over all shards; 0 for
    /// none.
    pub scrub_rate: u64,
}

impl Default for NvmeConfig {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            file_bytes: None,
            drain: Vec::new(),
            format: false,
            lazy: false,
            missing: Missing::Refuse,
            write_mode: WriteMode::Back,
            io_poll: Use::Off,
            sq_poll: false,
            queue_depth: 256,
            io_deadline: Duration::from_secs(10),
            write_budget: 0,
            scrub_rate: 0,
        }
    }
}

/// Shortest file: a superblock area and a few of the shortest segments.
const FILE_BYTES_MIN: u64 = 64 << 20;

impl NvmeConfig {
    /// Whether there is an NVMe tier.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.paths.is_empty()
    }

    pub(super) fn validate(&self, block_len_max: u64) -> Result<(), Error> {
        let count = self.paths.len() + self.drain.len();
        let most = terrace_nvme::format::DEVICES_MAX;
        check("nvme.paths", count, count <= most, || {
            format!("at most {most} devices, those to be emptied included")
        })?;
        let all: Vec<&PathBuf> = self.paths.iter().chain(&self.drain).collect();
        for (at, path) in all.iter().enumerate() {
            let twice = all[..at].contains(path);
            check("nvme.paths", path.display(), !twice, || {
                "each device once".to_owned()
            })?;
        }
        let stays = self.drain.is_empty() || !self.paths.is_empty();
        check("nvme.drain", self.drain.len(), stays, || {
            "a device can be emptied only onto another in nvme.paths".to_owned()
        })?;
        if let Some(len) = self.file_bytes {
            let least = FILE_BYTES_MIN.max(8 * block_len_max.min(BLOCK_LEN_MAX));
            check("nvme.file_bytes", len, len >= least, || {
                format!("at least {least}")
            })?;
        }
        let depth = self.queue_depth;
        check(
            "nvme.queue_depth",
            depth,
            (8..=4096).contains(&depth),
            || "8 to 4096".to_owned(),
        )?;
        let wait = self.io_deadline;
        let least = Duration::from_millis(100);
        let sane = wait >= least && wait <= WAIT_MAX;
        check("nvme.io_deadline", format!("{wait:?}"), sane, || {
            format!("{least:?} to {WAIT_MAX:?}")
        })
    }
}
