//! What each end of a connection may say when, without I/O: the handshake, request ids, credit, and
//! the order of answers.
//!
//! **Invariants**, of both ends
//! - What is under way is in one table, sorted by request id; it has room for all that the credit
//!   allows, so that nothing is allocated for a request.
//! - The credit left, and that of what is under way, and that held, are what was given.

mod client;
mod server;
mod table;
#[cfg(test)]
mod tests;

use crate::error::{ErrorCode, Limit};
use crate::verb::Verb;

pub use client::{ClientSession, Expected, Offer};
pub use server::{Incoming, ServerSession};

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// The hellos are not exchanged.
    Hello,
    /// Requests may come.
    Open,
    /// One side said goodbye; what is under way is answered.
    Ending,
    /// It is over.
    Closed,
}

impl SessionState {
    /// Goes on to `next`.
    fn transition(&mut self, next: Self) {
        let is_legal = match next {
            Self::Hello => false,
            Self::Open => *self == Self::Hello,
            Self::Ending => matches!(self, Self::Open | Self::Ending),
            Self::Closed => true,
        };
        assert!(is_legal, "{self:?} to {next:?}");
        *self = next;
    }
}

/// What a side of a connection did that it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Something came before the hello.
    #[error("verb {verb_number} came before the hello")]
    HelloExpected {
        /// The verb's number.
        verb_number: u8,
    },
    /// A hello came when there had been one.
    #[error("a second hello")]
    HelloAgain,
    /// There is no version that both speak.
    #[error("the other side speaks versions {low} to {high}, this one {ours}")]
    Version {
        /// The other side's lowest.
        low: u16,
        /// The other side's highest.
        high: u16,
        /// What this side speaks.
        ours: u16,
    },
    /// The node has features in force that the client did not name.
    #[error("the node has features {features:#x} in force, of which {unasked:#x} were not named")]
    Features {
        /// The features.
        features: u64,
        /// Those that were not named.
        unasked: u64,
    },
    /// A request's id is not above those before, or a frame of no request has one.
    #[error("request id is {id}, it has to be {limit}")]
    RequestId {
        /// The id.
        id: u64,
        /// What it would have to be.
        limit: Limit,
    },
    /// The credit does not cover a request.
    #[error("a request needs credit for {needed} {what}, {left} are left")]
    Credit {
        /// Requests, bytes or pings.
        what: &'static str,
        /// What it needs.
        needed: u64,
        /// What is left.
        left: u64,
    },
    /// A frame goes the wrong way.
    #[error("verb {verb_number} does not go this way")]
    Direction {
        /// The verb's number.
        verb_number: u8,
    },
    /// The verb belongs to a feature that is not in force.
    #[error("{verb} needs a feature that is not in force on this connection")]
    Feature {
        /// Its name.
        verb: &'static str,
    },
    /// A request is longer than the node takes.
    #[error("{field} is {value}, the node takes {limit}")]
    OverLimit {
        /// Which length or count.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The node's limit.
        limit: u64,
    },
    /// A request after its sender's goodbye.
    #[error("request {id} came after the goodbye")]
    AfterGoodbye {
        /// Its id.
        id: u64,
    },
    /// The connection takes no requests: it is not open yet, or not any more.
    #[error("the connection takes no requests, it is {state:?}")]
    NotOpen {
        /// How far it is.
        state: SessionState,
    },
    /// A reply to what was not asked, or was answered.
    #[error("request {id} is not under way")]
    NotUnderWay {
        /// Its id.
        id: u64,
    },
    /// A reply to another verb than the request's.
    #[error("request {id} is a {expected}, its reply has verb {found}")]
    WrongVerb {
        /// Its id.
        id: u64,
        /// The verb's name.
        expected: &'static str,
        /// The number of the verb that came.
        found: u8,
    },
    /// Entries are not answered once each, in order.
    #[error("request {id}: {field} is {value}, it has to be {limit}")]
    Answers {
        /// Its id.
        id: u64,
        /// Which number is wrong.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What it would have to be.
        limit: Limit,
    },
}

impl SessionError {
    /// The code by which a node tells the client that the connection ends.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::HelloExpected { .. } | Self::HelloAgain => ErrorCode::HelloExpected,
            Self::Version { .. } => ErrorCode::Version,
            Self::RequestId { .. } => ErrorCode::RequestId,
            Self::Credit { .. } => ErrorCode::OverCredit,
            Self::AfterGoodbye { .. } => ErrorCode::AfterGoodbye,
            _ => ErrorCode::MalformedFrame,
        }
    }

    /// Whether the same request may be sent later on this connection.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Credit { .. })
    }
}

/// Credit that is left, under way, or held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    requests: u32,
    bytes: u64,
}

impl Account {
    /// Takes what a request of `bytes` needs.
    const fn take(&mut self, bytes: u64) -> Result<(), SessionError> {
        //= docs/wire-protocol.md#WP-11
        let (what, needed, left) = if self.requests == 0 {
            ("requests", 1, 0)
        } else {
            ("bytes", bytes, self.bytes)
        };
        if left < needed {
            return Err(SessionError::Credit { what, needed, left });
        }
        self.requests -= 1;
        self.bytes -= bytes;
        Ok(())
    }

    const fn add(&mut self, requests: u32, bytes: u64) {
        self.requests = self.requests.saturating_add(requests);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The id of frames that belong to no request.
const fn check_no_id(id: u64) -> Result<(), SessionError> {
    //= docs/wire-protocol.md#WP-9
    if id == 0 {
        return Ok(());
    }
    let limit = Limit::Exactly(0);
    Err(SessionError::RequestId { id, limit })
}

/// Pings are no matter of credit; there is one at a time.
const fn ping_again() -> SessionError {
    //= docs/wire-protocol.md#WP-11
    SessionError::Credit {
        what: "pings",
        needed: 1,
        left: 0,
    }
}

/// Whether a verb's number is that of a ping.
const fn is_ping(verb: Option<Verb>) -> bool {
    matches!(verb, Some(Verb::Ping))
}
