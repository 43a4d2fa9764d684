//! Why a call has no answer. A block that is not there is no error, nor is a put that the node
//! declined: those are outcomes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::tls::TlsFault;
use terrace_types::{Checksum, KeyError};
use terrace_wire::ErrorCode;

/// Why a call has no answer, with the address and the key that it was about.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    address: Arc<str>,
    key: Option<String>,
    cause: Cause,
}

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The caller gave something that cannot be.
    #[error("{field} is {value}, it has to be {limit}")]
    Argument {
        /// Which argument or setting.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it would have to be.
        limit: String,
    },
    /// A key or the name of a namespace is none.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The node cannot be reached, or takes no requests. The request was not carried out.
    #[error("the node is not available: {why}")]
    Unavailable {
        /// What was seen.
        why: String,
    },
    /// The deadline came first. What became of a put or a removal is not known.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// How long the call had.
        after: Duration,
    },
    /// The connection broke after the request was sent. What became of a put or a removal is not
    /// known.
    #[error("{op}: {why}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// What kind of failure it was.
        kind: io::ErrorKind,
        /// What the operating system said.
        why: String,
    },
    /// The node refused the request, or the connection.
    #[error("the node refused it: {}{}", words_of(*code), text_of(text))]
    Rejected {
        /// Why.
        code: ErrorCode,
        /// What the node says to do.
        text: String,
    },
    /// The node and the client do not agree on TLS. One of them has to be told something else; the
    /// same call fails again.
    #[error("TLS: {0}")]
    Tls(TlsFault),
    /// One-sided access is required and not to be had, or a lease has none.
    #[error("one-sided access: {why}")]
    OneSided {
        /// Why not.
        why: String,
    },
    /// The time of a lease is over, or too little of it is left: the block may be elsewhere.
    #[error("the lease has ended")]
    LeaseEnded,
    /// The bytes that came are not those that were put. They were dropped.
    #[error("the bytes that came have checksum {:#018x}, not {:#018x}", actual.0, expected.0)]
    Corrupt {
        /// The checksum that the node sent.
        expected: Checksum,
        /// The checksum of the bytes.
        actual: Checksum,
    },
    /// The other side does not keep to the protocol.
    #[error("the other side breaks the protocol: {what}")]
    Protocol {
        /// By what.
        what: String,
    },
}

/// The name of a code in words.
fn words_of(code: ErrorCode) -> String {
    let mut words = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

fn text_of(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!(": {text}")
}

impl Error {
    pub(crate) fn new(address: &Arc<str>, key: Option<&[u8]>, cause: Cause) -> Self {
        Self(Box::new(Inner {
            address: Arc::clone(address),
            key: key.map(shown),
            cause,
        }))
    }

    /// What went wrong.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// The node's address, as the caller gave it or the node told it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// The key, shortened and with what cannot be printed escaped; `None` when the call was not
    /// about one key.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match &self.0.cause {
            Cause::Unavailable { .. }
            | Cause::TimedOut { .. }
            | Cause::Io { .. }
            | Cause::OneSided { .. }
            | Cause::Corrupt { .. } => true,
            Cause::Rejected { code, .. } => code.is_retryable(),
            Cause::Argument { .. }
            | Cause::Key(_)
            | Cause::LeaseEnded
            | Cause::Protocol { .. }
            | Cause::Tls(_) => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.0.address)?;
        if let Some(key) = &self.0.key {
            write!(f, "key `{key}`: ")?;
        }
        self.0.cause.fmt(f)
    }
}

impl std::error::Error for Error {}

/// A key for people: its first 64 bytes, escaped.
fn shown(key: &[u8]) -> String {
    let head = key.get(..64).unwrap_or(key);
    let more = if head.len() < key.len() { ".." } else { "" };
    format!("{}{more}", head.escape_ascii())
}

/// Why one attempt failed, and what may be done about it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) retry: Retry,
}

/// When the same request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Whatever it is: it was not carried out.
    Always,
    /// When it changes nothing: it may have been carried out.
    Reads,
    /// Not at all.
    Never,
    /// After a look at the shard map, whatever it is.
    Moved,
}

impl Failure {
    pub(crate) fn new(cause: Cause, retry: Retry) -> Self {
        Self { cause, retry }
    }

    pub(crate) fn unavailable(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        Self::new(Cause::Unavailable { why }, Retry::Always)
    }

    pub(crate) fn protocol(what: impl fmt::Display) -> Self {
        let what = what.to_string();
        Self::new(Cause::Protocol { what }, Retry::Never)
    }

    pub(crate) fn one_sided(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        Self::new(Cause::OneSided { why }, Retry::Never)
    }

    pub(crate) fn tls(fault: TlsFault) -> Self {
        Self::new(Cause::Tls(fault), Retry::Never)
    }

    pub(crate) fn io(op: &'static str, error: &io::Error) -> Self {
        let (kind, why) = (error.kind(), error.to_string());
        Self::new(Cause::Io { op, kind, why }, Retry::Reads)
    }

    pub(crate) fn argument(
        field: &'static str,
        value: impl fmt::Display,
        limit: impl fmt::Display,
    ) -> Self {
        let (value, limit) = (value.to_string(), limit.to_string());
        Self::new(
            Cause::Argument {
                field,
                value,
                limit,
            },
            Retry::Never,
        )
    }

    pub(crate) fn moved() -> Self {
        Self::new(
            Cause::Unavailable {
                why: "the shard map changed".to_owned(),
            },
            Retry::Moved,
        )
    }

    /// The same for a request of which nothing was sent: it was not carried out.
    pub(crate) fn before_sent(self) -> Self {
        match (self.retry, self.cause) {
            (Retry::Reads, Cause::Io { op, why, .. }) => {
                Self::unavailable(format_args!("{op}: {why}"))
            }
            (retry, cause) => Self { cause, retry },
        }
    }

    /// Whether to try again, when a request that only reads is `is_read`.
    pub(crate) fn is_retried(&self, is_read: bool) -> bool {
        match self.retry {
            Retry::Always | Retry::Moved => true,
            Retry::Reads => is_read,
            Retry::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_address_and_key_in_one_line() {
        let address = Arc::from("host:1");
        let why = "connect: refused".to_owned();
        let error = Error::new(&address, Some(b"a\nb"), Cause::Unavailable { why });
        let expected = "host:1: key `a\\nb`: the node is not available: connect: refused";
        assert_eq!(error.to_string(), expected);
        let (code, text) = (ErrorCode::NotPermitted, String::new());
        let error = Error::new(&address, None, Cause::Rejected { code, text });
        assert_eq!(
            error.to_string(),
            "host:1: the node refused it: not permitted"
        );
        let error = Error::new(&address, Some(&[b'k'; 100]), Cause::Key(KeyError::KeyEmpty));
        assert_eq!(error.key(), Some(format!("{}..", "k".repeat(64)).as_str()));
    }

    #[test]
    fn only_what_was_not_carried_out_is_sent_again_when_it_changes_something() {
        let io = Failure::io("receive", &io::Error::from(io::ErrorKind::ConnectionReset));
        assert!(io.is_retried(true) && !io.is_retried(false));
        let before = io.before_sent();
        assert!(before.is_retried(false));
        assert!(matches!(before.cause, Cause::Unavailable { .. }));
        assert!(!Failure::protocol("x").is_retried(true));
        assert!(Failure::moved().is_retried(false));
    }
}
