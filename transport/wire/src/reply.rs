//! Replies: what a node answers.

use crate::bytes::{Reader, Writer};
use crate::control::{Credit, ErrorFrame, Goodbye, Pong};
use crate::error::{Limit, WireError};
use crate::frame::{Flags, FrameHead, FrameWriter};
use crate::hello::ServerHello;
use crate::limits::BATCH_MAX;
use crate::rails::Rails;
use crate::record::{Descriptor, EventRecord, Facts, LeaseRecord, ListedBlock, ValueRecord};
use crate::records::{self, Codec, Record, Records};
use crate::status::KeyStatus;
use crate::verb::Verb;

const HEAD: &str = "reply head";

/// What a reply says beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyHead {
    /// Place of the first record among the entries of the request.
    pub first: u32,
    /// The shard map's epoch.
    //= docs/wire-protocol.md#WP-17
    pub map_epoch: u64,
}

/// How many leading blocks are stored, among the keys that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched {
    /// How many.
    pub count: u32,
    /// What became of the key behind them; `None` when all are stored.
    pub end: Option<KeyStatus>,
}

/// What a removal of a namespace came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// A hit when it is done; the tier says nothing.
    pub status: KeyStatus,
    /// How many blocks there were.
    pub count: u64,
}

/// A frame from a node, decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'a> {
    /// Opens the connection.
    Hello(ServerHello<'a>),
    /// Announces the end.
    Goodbye(Goodbye),
    /// Answers a ping.
    Pong(Pong),
    /// Gives credit.
    Credit(Credit),
    /// Ends a request, or the connection.
    Error(ErrorFrame<'a>),
    /// A status for each entry; for none when the request has no keys and is done.
    Statuses(ReplyHead, Records<'a, KeyStatus>),
    /// Answers a get; the parts are the frame's values.
    Values(ReplyHead, Records<'a, ValueRecord>),
    /// Answers a stat.
    Facts(ReplyHead, Records<'a, Facts>),
    /// Answers a lease or a renewal.
    Leases(ReplyHead, Records<'a, LeaseRecord>),
    /// Answers a locate; short blocks are the frame's values.
    Descriptors(ReplyHead, Records<'a, Descriptor>),
    /// Answers a match of a prefix.
    Matched(ReplyHead, Matched),
    /// Answers a removal of a namespace.
    Removed(Removed),
    /// Answers a wish for rails.
    Rails(Rails<'a>),
    /// Answers a list: where it goes on, 0 for nowhere, and what there is.
    Listed(ReplyHead, u64, Records<'a, ListedBlock<'a>>),
    /// Events of a subscription, behind how many were lost so far.
    Events(ReplyHead, u64, Records<'a, EventRecord<'a>>),
}

impl<'a> Reply<'a> {
    /// The reply of a frame whose body was compared with its checksum. Values follow by
    /// themselves.
    ///
    /// # Errors
    /// What is wrong with it; whatever it is, the connection is of no use any more.
    pub fn decode(head: &FrameHead, body: &'a [u8]) -> Result<Self, WireError> {
        let verb = head.verb()?;
        let reader = &mut Reader::new(verb.name(), body);
        let is_reply = head.is_reply() || verb == Verb::Goodbye;
        reader.check("flag of a reply", is_reply.into(), Limit::Exactly(1))?;
        if head.flags.has(Flags::MORE) && !verb.has_replies() {
            return Err(reader.wrong("flag of more", 1, Limit::Exactly(0)));
        }
        let reply = Self::read(verb, body, reader)?;
        let limit = Limit::Exactly(match &reply {
            //= docs/wire-protocol.md#WP-3
            Self::Values(_, records) => records.values_len(),
            Self::Descriptors(_, records) => records.values_len(),
            _ => 0,
        });
        let values = head.values_len.into();
        reader
            .within(verb.name())
            .check("values length", values, limit)?;
        Ok(reply)
    }

    fn read(verb: Verb, body: &'a [u8], reader: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(match verb {
            Verb::Hello => Self::Hello(ServerHello::read(body)?),
            Verb::Goodbye => Self::Goodbye(Goodbye::read(body)?),
            Verb::Ping => Self::Pong(Pong::read(body)?),
            Verb::Credit => Self::Credit(Credit::read(body)?),
            Verb::Error => Self::Error(ErrorFrame::read(body)?),
            Verb::Rails => Self::Rails(Rails::read(body)?),
            Verb::RemoveNamespace => Self::Removed(Removed {
                status: KeyStatus::read(reader)?,
                count: reader.u64()?,
            }),
            Verb::Cancel => {
                let limit = Limit::Is("a verb of nodes");
                return Err(reader.wrong("verb", verb.number().into(), limit));
            }
            _ => {
                let (head, count) = ReplyHead::read(reader)?;
                Self::read_records(verb, head, count, reader)?
            }
        })
    }

    fn read_records(
        verb: Verb,
        head: ReplyHead,
        count: u32,
        reader: &mut Reader<'a>,
    ) -> Result<Self, WireError> {
        Ok(match verb {
            Verb::Get => Self::Values(head, Records::read(reader, count)?),
            Verb::Stat => Self::Facts(head, Records::read(reader, count)?),
            Verb::Lease | Verb::Renew => Self::Leases(head, Records::read(reader, count)?),
            Verb::Locate => Self::Descriptors(head, Records::read(reader, count)?),
            Verb::MatchPrefix => Self::Matched(head, Matched::read(reader, count)?),
            Verb::List => {
                let cursor = reader.u64()?;
                Self::Listed(head, cursor, Records::read(reader, count)?)
            }
            Verb::Events => {
                let lost = reader.u64()?;
                Self::Events(head, lost, Records::read(reader, count)?)
            }
            _ => Self::Statuses(head, Records::read(reader, count)?),
        })
    }

    /// Which entries of the request it answers, the first and how many; `None` when it does not go
    /// by entries.
    #[must_use]
    pub const fn answered(&self) -> Option<(u32, usize)> {
        Some(match self {
            Self::Statuses(head, records) => (head.first, records.len()),
            Self::Values(head, records) => (head.first, records.len()),
            Self::Facts(head, records) => (head.first, records.len()),
            Self::Leases(head, records) => (head.first, records.len()),
            Self::Descriptors(head, records) => (head.first, records.len()),
            _ => return None,
        })
    }
}

impl ReplyHead {
    fn read(reader: &mut Reader<'_>) -> Result<(Self, u32), WireError> {
        reader.within(HEAD);
        let first = reader.u32()?;
        let count = reader.u32()?;
        let map_epoch = reader.u64()?;
        let most = Limit::AtMost(BATCH_MAX.into());
        reader.check("first", first.into(), most)?;
        reader.check("count of records", count.into(), most)?;
        Ok((Self { first, map_epoch }, count))
    }

    /// Writes the head; where the count goes.
    fn write(&self, writer: &mut Writer<'_>) -> usize {
        writer.u32(self.first);
        let count_at = writer.at();
        writer.u32(0);
        writer.u64(self.map_epoch);
        count_at
    }
}

impl Matched {
    fn read(reader: &mut Reader<'_>, count: u32) -> Result<Self, WireError> {
        let is_end = reader.clone().u64()? != 0;
        let end = if is_end {
            Some(KeyStatus::read(reader)?)
        } else {
            None
        };
        Ok(Self { count, end })
    }
}

/// Writes the frame of a reply with records; the bytes of it without values. Those of hits have
/// to follow, in the order of their records.
///
/// # Errors
/// [`WireError::Field`] when a record breaks a limit, [`WireError::NoRoom`] when `out` is too short.
pub fn encode<'r, R: Record<'r>>(
    verb: Verb,
    request_id: u64,
    flags: Flags,
    head: &ReplyHead,
    records: impl IntoIterator<Item = R>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    encode_behind((verb, None), request_id, flags, head, records, out)
}

/// Writes the frame of a list's reply, `cursor` telling where it goes on; the bytes of it.
///
/// # Errors
/// As [`encode`].
pub fn encode_listed<'r>(
    request_id: u64,
    flags: Flags,
    head: &ReplyHead,
    cursor: u64,
    blocks: impl IntoIterator<Item = ListedBlock<'r>>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let verb = (Verb::List, Some(cursor));
    encode_behind(verb, request_id, flags, head, blocks, out)
}

/// Writes a frame of events, `lost` telling how many were lost so far; the bytes of it.
///
/// # Errors
/// As [`encode`].
pub fn encode_events<'r>(
    request_id: u64,
    flags: Flags,
    head: &ReplyHead,
    lost: u64,
    events: impl IntoIterator<Item = EventRecord<'r>>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let verb = (Verb::Events, Some(lost));
    encode_behind(verb, request_id, flags, head, events, out)
}

/// As [`encode`], with the word that a verb has between the head and the records.
fn encode_behind<'r, R: Record<'r>>(
    (verb, word): (Verb, Option<u64>),
    request_id: u64,
    flags: Flags,
    head: &ReplyHead,
    records: impl IntoIterator<Item = R>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let flags = flags.with(Flags::REPLY);
    let mut frame = FrameWriter::new(verb, flags, request_id, out);
    let body = &mut frame.body;
    if R::NAME != verb.record() {
        let limit = Limit::Is("a verb of such records");
        body.check(verb.name(), "verb", verb.number().into(), limit);
    }
    let count_at = head.write(body);
    if let Some(word) = word {
        body.u64(word);
    }
    let (count, values_len) = records::write(records, body);
    let limit = Limit::AtMost(BATCH_MAX.into());
    body.check(verb.name(), "count of records", count.into(), limit);
    body.patch(count_at, &count.to_le_bytes());
    frame.finish(values_len)
}

/// Writes the frame that answers a match of a prefix; the bytes of it.
///
/// # Errors
/// [`WireError::NoRoom`] when `out` is too short.
pub fn encode_matched(
    request_id: u64,
    flags: Flags,
    head: &ReplyHead,
    matched: &Matched,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let flags = flags.with(Flags::REPLY);
    let mut frame = FrameWriter::new(Verb::MatchPrefix, flags, request_id, out);
    let body = &mut frame.body;
    let count_at = head.write(body);
    body.patch(count_at, &matched.count.to_le_bytes());
    match &matched.end {
        Some(status) => status.write(body),
        None => body.zeros(8),
    }
    frame.finish(0)
}

/// Writes the frame that answers a removal of a namespace; the bytes of it.
///
/// # Errors
/// [`WireError::NoRoom`] when `out` is too short.
pub fn encode_removed(
    request_id: u64,
    flags: Flags,
    removed: &Removed,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let flags = flags.with(Flags::REPLY);
    let mut frame = FrameWriter::new(Verb::RemoveNamespace, flags, request_id, out);
    removed.status.write(&mut frame.body);
    frame.body.u64(removed.count);
    frame.finish(0)
}
