//! What the fuzz targets of this crate call: the codec, and the node's end of a connection.
//!
//! Aim: no bytes make a decoder or a session panic; what is decoded keeps the protocol's limits and is
//! the same after it was encoded again; credit is neither lost nor made. Method: each function takes
//! the bytes as they are, and once more with what no mutation finds by itself put right: magic,
//! lengths and checksums.
//!
//! Each tells whether it accepted anything; a test replays `fuzz/corpus` through the same functions.

use terrace_types::limits::{BLOCK_LEN_MAX, KEY_LEN_MAX};
use xxhash_rust::xxh3::xxh3_64;

use crate::bytes::Reader;
use crate::entry::{KeyEntry, PutEntry};
use crate::error::{Limit, WireError};
use crate::frame::{FRAME_HEAD_LEN, Flags, FrameHead, FrameLimits, Partial};
use crate::hello::{NodeTerms, Security};
use crate::limits::{BATCH_MAX, RAILS_MAX};
use crate::rails;
use crate::records::{Record, Records};
use crate::reply::{self, Reply};
use crate::request::{self, Request};
use crate::session::{Incoming, ServerSession, SessionState};
use crate::verb::{Features, Verb};

/// The bytes as a frame: filled up to whole words, with magic, layout, lengths and checksums right.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    frame.resize(bytes.len().max(FRAME_HEAD_LEN).next_multiple_of(8), 0);
    put(&mut frame, 0, b"TERW\x01");
    frame[6] &= 0b111;
    seal(&mut frame);
    frame
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

fn seal(frame: &mut [u8]) {
    let body_len = (frame.len() - FRAME_HEAD_LEN) as u32;
    put(frame, 16, &body_len.to_le_bytes());
    let half = |bytes: &[u8]| (xxh3_64(bytes) as u32).to_le_bytes();
    let checksum = half(&frame[FRAME_HEAD_LEN..]);
    put(frame, 24, &checksum);
    let checksum = half(&frame[..28]);
    put(frame, 28, &checksum);
}

/// A frame from either side.
#[must_use]
pub fn wire_frame(bytes: &[u8]) -> bool {
    let mut whole = sealed(bytes);
    // No mutation finds the sum of the values.
    if let Err(WireError::Field {
        field: "values length",
        limit: Limit::Exactly(values),
        ..
    }) = decode(&whole)
        && let Ok(values) = u32::try_from(values)
    {
        put(&mut whole, 20, &values.to_le_bytes());
        seal(&mut whole);
    }
    is_frame(bytes) | is_frame(&whole)
}

/// A message of either side.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Message<'a> {
    Request(Request<'a>),
    Reply(Reply<'a>),
}

fn decode(bytes: &[u8]) -> Result<(FrameHead, Message<'_>), WireError> {
    let head = match FrameHead::parse(bytes, &FrameLimits::default())? {
        Partial::Whole(head) => head,
        Partial::Needs(count) => {
            assert_eq!(count, FRAME_HEAD_LEN - bytes.len());
            return Err(Reader::new("frame", bytes).wrong("head", 0, Limit::Is("whole")));
        }
    };
    let body = head.body(bytes.get(FRAME_HEAD_LEN..).unwrap_or_default())?;
    let message = if head.is_reply() {
        Message::Reply(Reply::decode(&head, body)?)
    } else {
        Message::Request(Request::decode(&head, body)?)
    };
    Ok((head, message))
}

fn is_frame(bytes: &[u8]) -> bool {
    let Ok((head, message)) = decode(bytes) else {
        return false;
    };
    check_limits(&message, bytes.len());
    let mut again = vec![0xee; bytes.len()];
    let len = match &message {
        Message::Request(request) => encode_request(&head, request, &mut again),
        Message::Reply(reply) => encode_reply(&head, reply, &mut again),
    };
    let len = len.expect("what was decoded fits and keeps its limits");
    let (head_again, message_again) = decode(&again[..len]).expect("just encoded");
    assert_eq!(message_again, message);
    assert_eq!(
        (head_again.verb_number, head_again.request_id),
        (head.verb_number, own_id(&head))
    );
    assert_eq!(head_again.values_len, head.values_len);
    true
}

/// The id that a frame of its verb has when it is encoded.
fn own_id(head: &FrameHead) -> u64 {
    match head.verb() {
        Ok(Verb::Hello | Verb::Goodbye | Verb::Credit) => 0,
        _ => head.request_id,
    }
}

fn check_limits(message: &Message<'_>, len: usize) {
    let keys = |keys: Records<'_, KeyEntry<'_>>| {
        assert!(keys.len() <= BATCH_MAX as usize && keys.len() * 24 <= len);
        for entry in keys {
            assert!((1..=KEY_LEN_MAX).contains(&entry.key.len()));
        }
    };
    match message {
        Message::Request(Request::Exists(_, entries) | Request::Locate(_, entries)) => {
            keys(*entries);
        }
        Message::Request(Request::Put(_, entries)) => {
            let lens = entries
                .iter()
                .map(|entry: PutEntry<'_>| u64::from(entry.len));
            assert!(lens.clone().all(|len| (1..=BLOCK_LEN_MAX).contains(&len)));
            assert_eq!(lens.sum::<u64>(), entries.values_len());
        }
        Message::Request(Request::Pull(_, entries)) => {
            for entry in *entries {
                let len = u64::from(entry.put.len);
                assert!((1..=BLOCK_LEN_MAX).contains(&len));
                assert!(entry.offset.checked_add(len).is_some());
            }
        }
        Message::Request(Request::Rails(wanted)) => {
            assert!(wanted.endpoints.len() <= RAILS_MAX.into());
        }
        Message::Reply(Reply::Rails(rails)) => {
            assert!((1..=usize::from(RAILS_MAX)).contains(&rails.endpoints.len()));
        }
        Message::Reply(Reply::Values(_, records)) => {
            for record in *records {
                assert!(record.len <= record.block_len);
                assert!(u64::from(record.block_len) <= BLOCK_LEN_MAX);
            }
        }
        _ => {}
    }
}

fn encode_request(
    head: &FrameHead,
    request: &Request<'_>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let id = head.request_id;
    let verb = head.verb()?;
    match request {
        Request::Hello(hello) => hello.encode(out),
        Request::Goodbye(goodbye) => goodbye.encode(out),
        Request::Ping => request::encode_ping(id, out),
        Request::Cancel => request::encode_cancel(id, out),
        Request::OpenNamespace(namespace) => namespace.encode(id, out),
        Request::RemoveNamespace(head) => request::encode_remove_namespace(id, head, out),
        Request::List(head, list) => request::encode_list(id, head, list, out),
        Request::Events(head, kinds) => request::encode_events(id, head, *kinds, out),
        Request::Pull(head, entries) => request::encode(verb, id, head, *entries, out),
        Request::Rails(wanted) => rails::encode_wanted(id, &wanted.ticket, wanted.endpoints, out),
        Request::PutPart(part) => part.encode(id, head.values_len, out),
        Request::PutCommit(end) => end.encode_commit(id, out),
        Request::PutAbort(end) => end.encode_abort(id, out),
        Request::Get(head, entries) => request::encode(verb, id, head, *entries, out),
        Request::Announce(head, entries) => request::encode(verb, id, head, *entries, out),
        Request::PutBegin(head, entry) => request::encode(verb, id, head, [*entry], out),
        Request::Put(head, entries) | Request::Upsert(head, entries) => {
            request::encode(verb, id, head, *entries, out)
        }
        Request::Renew(head, ids) | Request::Release(head, ids) => {
            request::encode(verb, id, head, *ids, out)
        }
        Request::Exists(head, keys)
        | Request::MatchPrefix(head, keys)
        | Request::Prefetch(head, keys)
        | Request::Touch(head, keys)
        | Request::Stat(head, keys)
        | Request::Remove(head, keys)
        | Request::Pin(head, keys)
        | Request::Unpin(head, keys)
        | Request::Lease(head, keys)
        | Request::Locate(head, keys) => request::encode(verb, id, head, *keys, out),
    }
}

fn encode_reply(head: &FrameHead, reply: &Reply<'_>, out: &mut [u8]) -> Result<usize, WireError> {
    fn records<'a, R: Record<'a>>(
        frame: &FrameHead,
        head: &reply::ReplyHead,
        records: Records<'a, R>,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let (verb, id) = (frame.verb()?, frame.request_id);
        reply::encode(verb, id, frame.flags, head, records, out)
    }
    let (id, flags) = (head.request_id, head.flags);
    match reply {
        Reply::Hello(hello) => hello.terms.encode(hello.endpoints, out),
        Reply::Goodbye(goodbye) => {
            let len = goodbye.encode(out)?;
            // The other direction, so that it is decoded as this one.
            out[6] = 1;
            seal(&mut out[..len]);
            Ok(len)
        }
        Reply::Pong(pong) => pong.encode(id, out),
        Reply::Rails(found) => rails::encode(id, &found.terms, found.endpoints, out),
        Reply::Credit(credit) => credit.encode(out),
        Reply::Error(error) => error.encode(id, out),
        Reply::Statuses(reply, all) => records(head, reply, *all, out),
        Reply::Values(reply, all) => records(head, reply, *all, out),
        Reply::Facts(reply, all) => records(head, reply, *all, out),
        Reply::Leases(reply, all) => records(head, reply, *all, out),
        Reply::Descriptors(reply, all) => records(head, reply, *all, out),
        Reply::Matched(reply, matched) => reply::encode_matched(id, flags, reply, matched, out),
        Reply::Removed(removed) => reply::encode_removed(id, flags, removed, out),
        Reply::Listed(reply, cursor, blocks) => {
            reply::encode_listed(id, flags, reply, *cursor, *blocks, out)
        }
        Reply::Events(reply, lost, events) => {
            reply::encode_events(id, flags, reply, *lost, *events, out)
        }
    }
}

const TERMS: NodeTerms = NodeTerms {
    version: 1,
    security: Security(0),
    shard: 0,
    features: Features::ALL,
    node_id: [1; 16],
    node_epoch: 1,
    map_epoch: 1,
    shards: 1,
    limits: FrameLimits {
        body_len_max: 4096,
        values_len_max: 4096,
    },
    batch_max: 16,
    credit_requests: 4,
    credit_bytes: 20_000,
    block_len_max: 4096,
    lease_max_ms: 1000,
    deadline_max_ms: 1000,
    silence_max_ms: 0,
};

/// A node's end of a connection. The bytes are steps: a frame of the client (verb, flags, how far
/// the id rises, words of the body, the body), or something that the node does.
#[must_use]
pub fn wire_session(bytes: &[u8]) -> bool {
    let mut session = ServerSession::new(TERMS);
    let mut asked = Asked::default();
    let mut rest = bytes;
    while let [step, more @ ..] = rest {
        rest = more;
        if *step < 0x80 {
            let [verb, flags, rise, words, more @ ..] = rest else {
                break;
            };
            let (body, more) = more.split_at((usize::from(*words) * 8).min(more.len()));
            rest = more;
            let mut frame = vec![0; FRAME_HEAD_LEN];
            frame[5] = *verb;
            frame[6] = *flags;
            let is_numbered = !matches!(Verb::try_from(*verb), Ok(Verb::Hello | Verb::Goodbye));
            let id = (asked.last_id + u64::from(*rise)) * u64::from(is_numbered);
            put(&mut frame, 8, &id.to_le_bytes());
            frame[20] = step.wrapping_mul(2);
            frame.extend(body);
            if !asked.frame(&mut session, &sealed(&frame)) {
                break;
            }
        } else {
            asked.act(&mut session, *step);
        }
        session.check();
        assert!(session.under_way() <= TERMS.credit_requests as usize + 1);
        assert_eq!(session.under_way(), asked.open.len());
    }
    asked.ended > 0
}

/// What the client asked, as a model of the session.
#[derive(Default)]
struct Asked {
    last_id: u64,
    /// Id, entries to be answered one by one, how many are.
    open: Vec<(u64, usize, usize)>,
    ended: usize,
}

impl Asked {
    /// Takes a frame; false when the connection is over.
    fn frame(&mut self, session: &mut ServerSession, frame: &[u8]) -> bool {
        let Ok(Partial::Whole(head)) = FrameHead::parse(frame, &session.frame_limits()) else {
            return false;
        };
        let state = session.state();
        let Ok(incoming) = session.on_head(&head) else {
            return false;
        };
        let body = head.body(&frame[FRAME_HEAD_LEN..]).expect("just sealed");
        let decoded = Request::decode(&head, body);
        match incoming {
            Incoming::Hello => match decoded {
                Ok(Request::Hello(hello)) => session.on_hello(&hello).is_ok(),
                _ => false,
            },
            Incoming::Goodbye => session.state() == SessionState::Ending,
            Incoming::Cancel { is_under_way } => {
                let is_open = self.open.iter().any(|(id, ..)| *id == head.request_id);
                assert_eq!(is_under_way, is_open);
                true
            }
            Incoming::Refused(code) => {
                assert!(!code.ends_connection());
                self.begin(&head, 0);
                true
            }
            Incoming::Request(verb) => {
                assert!(state != SessionState::Hello && verb.is_request());
                let is_taken = decoded
                    .ok()
                    .filter(|request| session.on_request(&head, request).is_ok());
                let entries = is_taken.map_or(0, |request| request.entry_count());
                let is_by_entry = verb.is_answered_by_entry();
                self.begin(&head, if is_by_entry { entries } else { 0 });
                true
            }
        }
    }

    fn begin(&mut self, head: &FrameHead, entries: usize) {
        assert!(head.request_id > self.last_id && !head.flags.has(Flags::REPLY));
        self.last_id = head.request_id;
        self.open.push((head.request_id, entries, 0));
    }

    /// Something that the node does.
    fn act(&mut self, session: &mut ServerSession, step: u8) {
        let at = usize::from(step >> 3 & 3);
        match (step & 7, self.open.get_mut(at)) {
            (0, _) => drop(session.give_held()),
            (1, _) => session.drain(),
            (2..=4, Some((id, entries, answered))) => {
                let (first, count) = (*answered as u32, usize::from(step & 7) - 2);
                let is_taken = session.answer(*id, first, count).is_ok();
                assert_eq!(is_taken, *answered + count <= *entries);
                *answered += if is_taken { count } else { 0 };
                assert!(session.answer(*id, u32::MAX, 0).is_err());
            }
            (last, Some((id, entries, answered))) => {
                let is_error = last == 5;
                let is_complete = entries == answered;
                let ended = session.end(*id, is_error, last == 6);
                assert_eq!(ended.is_ok(), is_error || is_complete);
                if ended.is_ok() {
                    self.open.remove(at);
                    self.ended += 1;
                }
            }
            (_, None) => assert!(session.end(u64::MAX, true, false).is_err()),
        }
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora_replayed_are_accepted_and_refused() {
        replay::all(&[("wire_frame", wire_frame), ("wire_session", wire_session)]);
    }
}
