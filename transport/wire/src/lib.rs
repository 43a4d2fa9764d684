//! The protocol between clients and nodes as bytes, docs/wire-protocol.md: frames, messages, and
//! what each end of a connection may say when.
//!
//! Nothing here does I/O. Decoding borrows from the bytes that were received, encoding writes
//! into memory of the caller, and neither allocates. A receiver goes by three steps: the head of a
//! frame ([`FrameHead::parse`]), which tells how much follows; the body ([`Request::decode`],
//! [`Reply::decode`]), which tells how long each value is; then the values, each read to where it
//! belongs. [`ServerSession`] and [`ClientSession`] say whether a frame may come now.
//!
//! ```
//! use terrace_wire::{FrameHead, FrameLimits, KeyEntry, Partial, Request, RequestHead, Verb, request};
//!
//! let mut frame = [0; 256];
//! let entries = [KeyEntry::plain(b"block 1"), KeyEntry::plain(b"block 2")];
//! let len = request::encode(Verb::Exists, 1, &RequestHead::default(), entries, &mut frame)?;
//!
//! let limits = FrameLimits::default();
//! assert!(matches!(FrameHead::parse(&frame[..20], &limits)?, Partial::Needs(12)));
//! let Partial::Whole(head) = FrameHead::parse(&frame[..len], &limits)? else {
//!     unreachable!("32 bytes are a head");
//! };
//! let body = head.body(&frame[32..len])?;
//! let Request::Exists(_, keys) = Request::decode(&head, body)? else {
//!     unreachable!("it was encoded as one");
//! };
//! assert_eq!(keys.iter().last().map(|entry| entry.key), Some(&b"block 2"[..]));
//! # Ok::<(), terrace_wire::WireError>(())
//! ```

#![forbid(unsafe_code)]

mod bytes;
mod checksum;
mod control;
mod entry;
mod error;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod hello;
pub mod limits;
pub mod rails;
mod record;
mod records;
pub mod reply;
pub mod request;
mod session;
mod status;
mod verb;

pub use checksum::{part_checksum, part_seed};
pub use control::{Credit, ErrorFrame, Goodbye, GoodbyeReason, OpenNamespace, Pong};
pub use entry::{AccessEntry, GetEntry, KeyEntry, LeaseId, PullEntry, PutEntry};
pub use error::{ErrorCode, Limit, WireError};
pub use frame::{FRAME_HEAD_LEN, Flags, FrameHead, FrameLimits, Partial};
pub use hello::{ClientHello, Endpoint, NodeTerms, Security, ServerHello, Transport, token_of};
pub use rails::{Rails, RailsTerms, RailsWanted, Reach};
pub use record::{
    Descriptor, EventKind, EventRecord, Facts, LeaseRecord, ListedBlock, ValueRecord,
};
pub use records::{Record, Records};
pub use reply::{Matched, Removed, Reply, ReplyHead};
pub use request::{ListRequest, NamespaceNumber, PutPart, Request, RequestHead, StreamEnd};
pub use session::{
    ClientSession, Expected, Incoming, Offer, ServerSession, SessionError, SessionState,
};
pub use status::{KeyStatus, Rejection};
pub use verb::{Features, Options, Verb};
