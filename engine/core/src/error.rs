//! Operating errors of the engine. Outcomes of calls are not errors; see `terrace_types`.

use std::path::PathBuf;

use terrace_nvme::file::OpenError;
use terrace_nvme::set::SetError;
use terrace_nvme::tier::TierError;
use terrace_nvme::uring::RingError;
use terrace_runtime::executor::ExecutorError;
use terrace_slab::{ArenaError, HugeVecError};
use terrace_types::KeyError;
use terrace_types::limits::NAMESPACES_MAX;

use crate::policy::PolicyError;

/// Why an engine could not be opened or a call not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value of the configuration is out of range.
    #[error("{field} is {value}; allowed is {limit}")]
    Config {
        /// The field of [`crate::EngineConfig`].
        field: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        limit: String,
    },
    /// A shard's memory is not to be had.
    #[error("open shard {shard}: {cause}")]
    Arena {
        /// The shard's number.
        shard: usize,
        /// What failed.
        cause: ArenaError,
    },
    /// A shard's thread did not start.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// Address space for the index is not to be had.
    #[error("open the index: {0}")]
    Index(HugeVecError),
    /// The policy could not be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The operating system refused an eventfd.
    #[error("open a mailbox: {0}")]
    Mailbox(String),
    /// A key or a namespace name is not allowed.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The engine keeps as many namespaces apart as it can.
    #[error("namespace `{name}` is one too many: an engine keeps at most {NAMESPACES_MAX}")]
    TooManyNamespaces {
        /// The name that was to be added.
        name: String,
    },
    /// A shard ended while it was being opened.
    #[error("open shard {shard}: {why}")]
    ShardStart {
        /// The shard's number.
        shard: usize,
        /// What happened.
        why: String,
    },
    /// A file or block device could not be opened.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The devices do not make a set, or could not be read.
    #[error(transparent)]
    Set(#[from] SetError),
    /// A device holds something that is not Terrace's.
    #[error(
        "{} holds {what}; nothing was changed. Have it formatted to use it, and lose that",
        path.display()
    )]
    ForeignContent {
        /// The device.
        path: PathBuf,
        /// What it holds.
        what: String,
    },
    /// What a device held could not be taken away.
    #[error("format {}: {cause}", path.display())]
    Wipe {
        /// The device.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// A device that has to be polled cannot be.
    #[error("nvme.io_poll is required, and {device} cannot be polled: {why}")]
    NotPolled {
        /// The device.
        device: String,
        /// What stands against it.
        why: String,
    },
    /// The kernel refused a shard's ring.
    #[error("open shard {shard}: {cause}")]
    Ring {
        /// The shard's number.
        shard: usize,
        /// What failed.
        cause: RingError,
    },
    /// A shard's tier could not be made.
    #[error("open shard {shard}: {cause}")]
    Tier {
        /// The shard's number.
        shard: usize,
        /// What failed.
        cause: TierError,
    },
}

// By hand: `#[from]` would make the cause a source as well, and whoever prints the chain would
// say it twice.
impl From<HugeVecError> for Error {
    fn from(cause: HugeVecError) -> Self {
        Self::Index(cause)
    }
}
