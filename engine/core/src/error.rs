//! Operating errors of the engine. Outcomes of calls are not errors; see `terrace_types`.

use terrace_runtime::executor::ExecutorError;
use terrace_slab::{ArenaError, HugeVecError, RegionError};
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
    #[error("open shard {shard}: {source}")]
    Arena {
        /// The shard's number.
        shard: usize,
        /// What failed.
        source: ArenaError,
    },
    /// A shard's thread did not start.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// Address space for the index is not to be had.
    #[error("open the index: {0}")]
    Index(#[from] HugeVecError),
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
    /// Caller memory could not be registered.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A shard ended while it was being opened.
    #[error("open shard {shard}: {why}")]
    ShardStart {
        /// The shard's number.
        shard: usize,
        /// What happened.
        why: String,
    },
    /// There is no shard of that number.
    #[error("there is no shard {shard}; the engine has {count}")]
    NoSuchShard {
        /// The number asked for.
        shard: usize,
        /// Shards there are.
        count: usize,
    },
}
