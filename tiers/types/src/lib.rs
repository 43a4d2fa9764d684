//! The words every Terrace crate shares: keys, hints, outcomes, limits, units and the clock.
//!
//! Nothing here does I/O and nothing here is unsafe. A type belongs here when two crates that
//! do not depend on each other must agree on it.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod clock;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod hint;
pub mod key;
pub mod limit;
pub mod limits;
pub mod outcome;
pub mod tasks;
pub mod units;

pub use checksum::Checksum;
pub use clock::{Clock, Nanos};
pub use hint::{Access, BlockKind, Hint, RequestContext};
pub use key::{BlockIx, BlockKey, KeyError, KeyHash, Namespace, NamespaceName};
pub use limit::Limit;
pub use outcome::{Lookup, PutOutcome, RejectReason, Tier, UnavailableReason};
pub use tasks::{LocalFuture, Tasks};
pub use units::{ByteLen, ParseByteLenError};

const _: () = assert!(
    usize::BITS == 64,
    "Terrace addresses slabs of many GiB and is built for 64-bit machines only"
);
