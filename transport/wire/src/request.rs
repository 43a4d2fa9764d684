//! Requests: what a client asks.

use terrace_types::{Checksum, RequestContext};

use crate::bytes::{Reader, Writer};
use crate::control::{Goodbye, OpenNamespace};
use crate::entry::{AccessEntry, GetEntry, KeyEntry, LeaseId, PullEntry, PutEntry};
use crate::error::{Limit, WireError};
use crate::frame::{Flags, FrameHead, FrameWriter};
use crate::hello::ClientHello;
use crate::limits::BATCH_MAX;
use crate::rails::RailsWanted;
use crate::records::{self, Record, Records};
use crate::verb::{EntryKind, Options, Verb};

const HEAD: &str = "request head";

/// A namespace as one connection calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceNumber(pub u16);

impl NamespaceNumber {
    /// No namespace, or all that the connection has opened.
    pub const NONE: Self = Self(u16::MAX);
}

/// What a request says beside its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The namespace of all keys.
    pub namespace: NamespaceNumber,
    /// Milliseconds from arrival in which it is done or given up; 0 for as long as the node waits.
    //= docs/wire-protocol.md#WP-13
    pub deadline_ms: u32,
    /// What the caller knows of the request it belongs to.
    pub context: RequestContext,
    /// Options.
    pub options: Options,
    /// What the verb says: milliseconds of a pin, lease or prefetch, most entries of a list.
    pub argument: u32,
}

impl Default for RequestHead {
    /// Namespace 0, and nothing told.
    fn default() -> Self {
        Self {
            namespace: NamespaceNumber(0),
            deadline_ms: 0,
            context: RequestContext::default(),
            options: Options::NONE,
            argument: 0,
        }
    }
}

/// Where a list goes on, and what it lists.
//= docs/wire-protocol.md#WP-23
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRequest<'a> {
    /// From the reply before; 0 to begin.
    pub cursor: u64,
    /// What the keys begin with.
    pub prefix: &'a [u8],
}

/// A piece of a streamed put; its bytes are the frame's values.
//= docs/wire-protocol.md#WP-20
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutPart {
    /// The id of the request that began the put.
    pub begun: u64,
    /// Where the piece belongs, in bytes from the start of the block.
    pub offset: u32,
}

/// The end of a streamed put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    /// The id of the request that began the put.
    pub begun: u64,
    /// The checksum of the whole value; of no meaning when it is given up.
    pub checksum: Checksum,
}

/// A frame from a client, decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// Opens the connection.
    Hello(ClientHello<'a>),
    /// Announces the end.
    Goodbye(Goodbye),
    /// Shows that the client is there.
    Ping,
    /// Gives up the request that has the frame's id.
    Cancel,
    /// Gives a name a number.
    OpenNamespace(OpenNamespace<'a>),
    /// Removes all blocks of a namespace.
    RemoveNamespace(RequestHead),
    /// Reads blocks or parts of them.
    Get(RequestHead, Records<'a, GetEntry<'a>>),
    /// Tells whether blocks are stored.
    Exists(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Counts leading blocks that are stored.
    MatchPrefix(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Brings blocks to DRAM ahead of need.
    Prefetch(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Tells the policy of a use.
    Touch(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Tells what is known of blocks.
    Stat(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Names stored blocks.
    List(RequestHead, ListRequest<'a>),
    /// Tells of a request's whole chain ahead.
    Announce(RequestHead, Records<'a, AccessEntry>),
    /// Subscribes to the kinds of events whose bits are set.
    Events(RequestHead, u32),
    /// Stores blocks; their values are the frame's.
    Put(RequestHead, Records<'a, PutEntry<'a>>),
    /// Stores blocks in place of what is there.
    Upsert(RequestHead, Records<'a, PutEntry<'a>>),
    /// Begins a streamed put.
    PutBegin(RequestHead, PutEntry<'a>),
    /// Carries a piece of it.
    PutPart(PutPart),
    /// Publishes it.
    PutCommit(StreamEnd),
    /// Gives it up.
    PutAbort(StreamEnd),
    /// Removes blocks.
    Remove(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Keeps blocks from being given up.
    //= docs/wire-protocol.md#WP-24
    Pin(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Ends pins.
    Unpin(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Keeps slots.
    Lease(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Keeps them again.
    Renew(RequestHead, Records<'a, LeaseId>),
    /// Ends leases.
    Release(RequestHead, Records<'a, LeaseId>),
    /// Leases blocks and tells where their bytes lie.
    Locate(RequestHead, Records<'a, KeyEntry<'a>>),
    /// Asks for rails to the node's memory.
    Rails(RailsWanted<'a>),
    /// Stores blocks that the node reads out of the client's memory.
    Pull(RequestHead, Records<'a, PullEntry<'a>>),
}

impl<'a> Request<'a> {
    /// The request of a frame whose body was compared with its checksum. Values follow by
    /// themselves.
    ///
    /// # Errors
    /// What is wrong with it; [`WireError::is_of_request`] tells whether the frames behind it are
    /// sound.
    pub fn decode(head: &FrameHead, body: &'a [u8]) -> Result<Self, WireError> {
        let verb = head.verb()?;
        let reader = &mut Reader::new(verb.name(), body);
        let no_flags = Limit::Exactly(0);
        let is_reply = u64::from(head.is_reply() || head.flags.has(Flags::MORE));
        reader.check("flags of a reply", is_reply, no_flags)?;
        let request = Self::read(verb, body, reader)?;
        let values = head.values_len.into();
        let limit = Limit::Exactly(match &request {
            //= docs/wire-protocol.md#WP-3
            Self::Put(_, entries) | Self::Upsert(_, entries) => entries.values_len(),
            Self::PutPart(_) => values,
            _ => 0,
        });
        reader
            .within(verb.name())
            .check("values length", values, limit)?;
        Ok(request)
    }

    fn read(verb: Verb, body: &'a [u8], reader: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(match verb {
            Verb::Hello => Self::Hello(ClientHello::read(body)?),
            Verb::Goodbye => Self::Goodbye(Goodbye::read(body)?),
            Verb::Ping => Self::Ping,
            Verb::Cancel => Self::Cancel,
            Verb::OpenNamespace => Self::OpenNamespace(OpenNamespace::read(body)?),
            Verb::Rails => Self::Rails(RailsWanted::read(body)?),
            Verb::PutPart => Self::PutPart(PutPart::read(reader)?),
            Verb::PutCommit => Self::PutCommit(StreamEnd::read(reader)?),
            Verb::PutAbort => Self::PutAbort(StreamEnd::read(reader)?),
            Verb::Credit | Verb::Error => {
                let limit = Limit::Is("a verb of clients");
                return Err(reader.wrong("verb", verb.number().into(), limit));
            }
            _ => {
                let (head, count) = RequestHead::read(verb, reader)?;
                Self::read_entries(verb, head, count, reader)?
            }
        })
    }

    fn read_entries(
        verb: Verb,
        head: RequestHead,
        count: u32,
        reader: &mut Reader<'a>,
    ) -> Result<Self, WireError> {
        Ok(match verb.entries() {
            EntryKind::Get => Self::Get(head, Records::read(reader, count)?),
            EntryKind::Pull => Self::Pull(head, Records::read(reader, count)?),
            EntryKind::Access => Self::Announce(head, Records::read(reader, count)?),
            EntryKind::LeaseId => {
                let ids = Records::read(reader, count)?;
                match verb {
                    Verb::Renew => Self::Renew(head, ids),
                    _ => Self::Release(head, ids),
                }
            }
            EntryKind::Put => {
                let entries = Records::read(reader, count)?;
                match verb {
                    Verb::Put => Self::Put(head, entries),
                    Verb::Upsert => Self::Upsert(head, entries),
                    _ => Self::PutBegin(head, only(reader, entries)?),
                }
            }
            EntryKind::Key => Self::of_keys(verb, head, Records::read(reader, count)?),
            EntryKind::None => {
                reader.check("count of entries", count.into(), Limit::Exactly(0))?;
                match verb {
                    Verb::List => Self::List(head, ListRequest::read(reader)?),
                    Verb::Events => {
                        let kinds = reader.u32()?;
                        reader.reserved(4)?;
                        Self::Events(head, kinds)
                    }
                    _ => Self::RemoveNamespace(head),
                }
            }
        })
    }

    const fn of_keys(verb: Verb, head: RequestHead, keys: Records<'a, KeyEntry<'a>>) -> Self {
        match verb {
            Verb::Exists => Self::Exists(head, keys),
            Verb::MatchPrefix => Self::MatchPrefix(head, keys),
            Verb::Prefetch => Self::Prefetch(head, keys),
            Verb::Touch => Self::Touch(head, keys),
            Verb::Stat => Self::Stat(head, keys),
            Verb::Pin => Self::Pin(head, keys),
            Verb::Unpin => Self::Unpin(head, keys),
            Verb::Lease => Self::Lease(head, keys),
            Verb::Locate => Self::Locate(head, keys),
            _ => Self::Remove(head, keys),
        }
    }

    /// How many entries it has; 1 for a piece and the end of a streamed put.
    #[must_use]
    pub const fn entry_count(&self) -> usize {
        match self {
            Self::Get(_, entries) => entries.len(),
            Self::Put(_, entries) | Self::Upsert(_, entries) => entries.len(),
            Self::Pull(_, entries) => entries.len(),
            Self::Announce(_, entries) => entries.len(),
            Self::Renew(_, ids) | Self::Release(_, ids) => ids.len(),
            Self::Exists(_, keys)
            | Self::MatchPrefix(_, keys)
            | Self::Prefetch(_, keys)
            | Self::Touch(_, keys)
            | Self::Stat(_, keys)
            | Self::Remove(_, keys)
            | Self::Pin(_, keys)
            | Self::Unpin(_, keys)
            | Self::Lease(_, keys)
            | Self::Locate(_, keys) => keys.len(),
            Self::PutBegin(..) | Self::PutPart(_) | Self::PutCommit(_) | Self::PutAbort(_) => 1,
            _ => 0,
        }
    }
}

/// The one entry of a request that has one.
fn only<'a>(
    reader: &Reader<'a>,
    entries: Records<'a, PutEntry<'a>>,
) -> Result<PutEntry<'a>, WireError> {
    let (count, mut all) = (entries.len() as u64, entries.iter());
    match (count, all.next()) {
        (1, Some(entry)) => Ok(entry),
        _ => Err(reader.wrong("count of entries", count, Limit::Exactly(1))),
    }
}

impl RequestHead {
    fn read(verb: Verb, reader: &mut Reader<'_>) -> Result<(Self, u32), WireError> {
        reader.within(HEAD);
        let namespace = NamespaceNumber(reader.u16()?);
        let priority = reader.u8()?;
        reader.reserved(1)?;
        let deadline_ms = reader.u32()?;
        let clock_ms = reader.u64()?;
        let tenant = reader.u32()?;
        let count = reader.u32()?;
        reader.check(
            "count of entries",
            count.into(),
            Limit::AtMost(BATCH_MAX.into()),
        )?;
        let options = Options(reader.u32()?);
        check_options(verb, options)?;
        let head = Self {
            namespace,
            deadline_ms,
            context: RequestContext {
                clock_ms,
                tenant,
                priority,
            },
            options,
            argument: reader.u32()?,
        };
        Ok((head, count))
    }

    /// Writes the head for entries that follow; where their count goes.
    fn write(&self, writer: &mut Writer<'_>) -> usize {
        writer.u16(self.namespace.0);
        writer.u8(self.context.priority);
        writer.zeros(1);
        writer.u32(self.deadline_ms);
        writer.u64(self.context.clock_ms);
        writer.u32(self.context.tenant);
        let count_at = writer.at();
        writer.u32(0);
        writer.u32(self.options.0);
        writer.u32(self.argument);
        count_at
    }
}

const fn check_options(verb: Verb, options: Options) -> Result<(), WireError> {
    //= docs/wire-protocol.md#WP-5
    let bits = options.0 & !verb.options().0;
    if bits == 0 {
        return Ok(());
    }
    let verb = verb.name();
    Err(WireError::UnknownOptions { verb, bits })
}

impl<'a> ListRequest<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let cursor = reader.u64()?;
        let len = reader.u16()?;
        let limit = Limit::AtMost(terrace_types::limits::KEY_LEN_MAX as u64);
        reader.check("prefix length", len.into(), limit)?;
        reader.reserved(6)?;
        let prefix = reader.padded(len.into())?;
        Ok(Self { cursor, prefix })
    }
}

impl PutPart {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let begun = reader.u64()?;
        let offset = reader.u32()?;
        reader.reserved(4)?;
        Ok(Self { begun, offset })
    }

    /// Writes its frame without the values; the bytes of it. `values_len` bytes have to follow.
    ///
    /// # Errors
    /// [`WireError::Field`] when the piece is too long, [`WireError::NoRoom`] when `out` is too short.
    pub fn encode(
        &self,
        request_id: u64,
        values_len: u32,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let mut frame = FrameWriter::new(Verb::PutPart, Flags::NONE, request_id, out);
        frame.body.u64(self.begun);
        frame.body.u32(self.offset);
        frame.body.zeros(4);
        frame.finish(values_len.into())
    }
}

impl StreamEnd {
    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            begun: reader.u64()?,
            checksum: Checksum(reader.u64()?),
        })
    }

    /// Writes the frame that publishes the put; the bytes of it.
    ///
    /// # Errors
    /// [`WireError::NoRoom`] when `out` is too short.
    pub fn encode_commit(&self, request_id: u64, out: &mut [u8]) -> Result<usize, WireError> {
        self.encode(Verb::PutCommit, request_id, out)
    }

    /// Writes the frame that gives the put up; the bytes of it.
    ///
    /// # Errors
    /// [`WireError::NoRoom`] when `out` is too short.
    pub fn encode_abort(&self, request_id: u64, out: &mut [u8]) -> Result<usize, WireError> {
        self.encode(Verb::PutAbort, request_id, out)
    }

    fn encode(&self, verb: Verb, request_id: u64, out: &mut [u8]) -> Result<usize, WireError> {
        let mut frame = FrameWriter::new(verb, Flags::NONE, request_id, out);
        frame.body.u64(self.begun);
        frame.body.u64(self.checksum.0);
        frame.finish(0)
    }
}

/// Writes the frame of a request with entries; the bytes of it without values. The values of puts
/// have to follow, in the order of their entries.
///
/// # Errors
/// [`WireError::Field`] when an entry is not one of the verb or breaks a limit,
/// [`WireError::UnknownOptions`] when the verb does not have the options, [`WireError::NoRoom`] when
/// `out` is too short.
pub fn encode<'e, R: Record<'e>>(
    verb: Verb,
    request_id: u64,
    head: &RequestHead,
    entries: impl IntoIterator<Item = R>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    check_options(verb, head.options)?;
    let mut frame = FrameWriter::new(verb, Flags::NONE, request_id, out);
    let body = &mut frame.body;
    if R::ENTRY == EntryKind::None || R::ENTRY != verb.entries() {
        let limit = Limit::Is("a verb of such entries");
        body.check(verb.name(), "verb", verb.number().into(), limit);
    }
    let count_at = head.write(body);
    let (count, values_len) = records::write(entries, body);
    let most = if verb == Verb::PutBegin { 1 } else { BATCH_MAX };
    let limit = Limit::AtMost(most.into());
    body.check(verb.name(), "count of entries", count.into(), limit);
    body.patch(count_at, &count.to_le_bytes());
    let is_inline = verb.carries_values();
    frame.finish(if is_inline { values_len } else { 0 })
}

/// Writes the frame of a removal of a namespace; the bytes of it.
///
/// # Errors
/// [`WireError::NoRoom`] when `out` is too short.
pub fn encode_remove_namespace(
    request_id: u64,
    head: &RequestHead,
    out: &mut [u8],
) -> Result<usize, WireError> {
    encode_alone(Verb::RemoveNamespace, request_id, head, out, |_| {})
}

/// Writes the frame of a list; the bytes of it.
///
/// # Errors
/// [`WireError::Field`] when the prefix is longer than a key, [`WireError::NoRoom`] when `out` is too
/// short.
pub fn encode_list(
    request_id: u64,
    head: &RequestHead,
    list: &ListRequest<'_>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    encode_alone(Verb::List, request_id, head, out, |body| {
        let limit = Limit::AtMost(terrace_types::limits::KEY_LEN_MAX as u64);
        let len = list.prefix.len() as u64;
        body.check(Verb::List.name(), "prefix length", len, limit);
        body.u64(list.cursor);
        body.u16(len as u16);
        body.zeros(6);
        body.padded(list.prefix);
    })
}

/// Writes the frame of a subscription to `kinds`; the bytes of it.
///
/// # Errors
/// [`WireError::NoRoom`] when `out` is too short.
pub fn encode_events(
    request_id: u64,
    head: &RequestHead,
    kinds: u32,
    out: &mut [u8],
) -> Result<usize, WireError> {
    encode_alone(Verb::Events, request_id, head, out, |body| {
        body.u32(kinds);
        body.zeros(4);
    })
}

fn encode_alone(
    verb: Verb,
    request_id: u64,
    head: &RequestHead,
    out: &mut [u8],
    rest: impl FnOnce(&mut Writer<'_>),
) -> Result<usize, WireError> {
    check_options(verb, head.options)?;
    let mut frame = FrameWriter::new(verb, Flags::NONE, request_id, out);
    head.write(&mut frame.body);
    rest(&mut frame.body);
    frame.finish(0)
}

/// Writes the frame of a ping; the bytes of it.
///
/// # Errors
/// [`WireError::NoRoom`] when `out` is too short.
pub fn encode_ping(request_id: u64, out: &mut [u8]) -> Result<usize, WireError> {
    FrameWriter::new(Verb::Ping, Flags::NONE, request_id, out).finish(0)
}

/// Writes the frame that gives up the request `request_id`; the bytes of it.
///
/// # Errors
/// [`WireError::NoRoom`] when `out` is too short.
//= docs/wire-protocol.md#WP-14
pub fn encode_cancel(request_id: u64, out: &mut [u8]) -> Result<usize, WireError> {
    FrameWriter::new(Verb::Cancel, Flags::NONE, request_id, out).finish(0)
}
