//! Owns the errors of the simulator: each says what is wrong, its value and what is allowed.

use terrace_engine::policy::PolicyError;

use crate::contender::Contender;
use crate::two_tier::TwoTierScheme;

/// Why nothing can be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The name is neither that of a policy nor that of a bound.
    #[error("`{name}` is not a policy; there are {}, and all", Contender::names().join(", "))]
    UnknownPolicy {
        /// The name as given.
        name: String,
    },
    /// The name is not that of a scheme of two tiers.
    #[error("`{name}` is not a scheme of two tiers; there are {}", TwoTierScheme::NAMES.join(", "))]
    UnknownScheme {
        /// The name as given.
        name: String,
    },
    /// A list has nothing in it, or an empty place.
    #[error("`{list}` has an empty place; write values with a comma between two")]
    EmptyPlace {
        /// The list as given.
        list: String,
    },
    /// A list names the same thing twice.
    #[error("`{value}` is given twice")]
    GivenTwice {
        /// The second one, as given.
        value: String,
    },
    /// A capacity is neither a count nor a share.
    #[error("`{text}` is neither a count of blocks such as 1827 nor a share such as 1%")]
    NotACapacity {
        /// The capacity as given.
        text: String,
    },
    /// A capacity is outside what the trace has.
    #[error("{capacity} is out of range; {allowed}")]
    CapacityOutOfRange {
        /// The capacity as given.
        capacity: String,
        /// What is allowed.
        allowed: String,
    },
    /// There are no shards, or more than blocks of capacity.
    #[error("{shards} is out of range; allowed is 1 to {max}, a block of capacity each")]
    ShardsOutOfRange {
        /// The count as given.
        shards: usize,
        /// The most there may be.
        max: usize,
    },
    /// The trace accesses no block.
    #[error("{name} has no accesses: nothing can be simulated")]
    NoAccesses {
        /// Name of the trace.
        name: String,
    },
    /// A joined workload has more blocks than can be numbered.
    #[error("{name} has more than {max} blocks")]
    TooManyBlocks {
        /// Name of the workload.
        name: String,
        /// The most there may be.
        max: u32,
    },
    /// A simulation of tiers that follows chains was asked of something else.
    #[error("{name} is no trace of chains: a block has to have the same ones before it always")]
    NotChains {
        /// Name of the trace.
        name: String,
    },
    /// The policy could not be made.
    #[error("make the policy: {0}")]
    Policy(PolicyError),
}

// By hand: `#[from]` would make the cause a source as well, and it would be said twice.
impl From<PolicyError> for SimError {
    fn from(cause: PolicyError) -> Self {
        Self::Policy(cause)
    }
}
