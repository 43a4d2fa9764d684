//! Streamed puts: a slot that is filled by one request after the other.

use std::rc::Rc;

use terrace_engine::{BlockKey, PutOptions, SlotWriter};
use terrace_types::Nanos;
use terrace_types::checksum::ChecksumStream;
use terrace_wire::{
    ErrorCode, FrameHead, KeyStatus, PutEntry, PutPart, RequestHead, StreamEnd, Verb,
};

use crate::connection::{Connection, Ticket};
use crate::put::{Answer, Filled, commit as commit_filled, options, reserve};
use crate::session::End;
use crate::values::{Frames, receive, skip};

/// Streamed puts of a connection at once; each holds a slot.
const STREAMS_MAX: usize = 16;

/// A streamed put under way.
//= docs/wire-protocol.md#WP-20
pub(crate) struct Stream {
    key: BlockKey,
    writer: SlotWriter,
    checksum: ChecksumStream,
    filled: usize,
    options: PutOptions,
    /// When the last part came.
    pub(crate) used: Nanos,
}

pub(crate) async fn begin(
    connection: &Rc<Connection>,
    ticket: Ticket,
    told: &RequestHead,
    entry: &PutEntry<'_>,
) {
    let (id, verb) = (ticket.id, ticket.verb);
    let Some(namespace) = connection.namespace(id, verb, told) else {
        return;
    };
    let Ok(key) = namespace.key(entry.key) else {
        let text = "the key is not one";
        return connection.refuse(id, verb.number(), ErrorCode::MalformedBody, text);
    };
    if connection.streams.borrow().len() >= STREAMS_MAX {
        return connection.reply_statuses(id, verb, &[KeyStatus::Busy]);
    }
    let options = options(told, entry);
    let status = match reserve(connection, &ticket, &key, entry.len.into(), &options).await {
        Err(status) => status,
        Ok(writer) => {
            let stream = Stream {
                checksum: ChecksumStream::new(&key, entry.len.into()),
                key,
                writer,
                filled: 0,
                options,
                used: connection.host.now(),
            };
            connection.streams.borrow_mut().insert(id, stream);
            KeyStatus::Granted
        }
    };
    connection.reply_statuses(id, verb, &[status]);
}

pub(crate) async fn part(
    connection: &Rc<Connection>,
    frames: &mut Frames,
    head: &FrameHead,
    part: PutPart,
) -> Result<(), End> {
    let (id, verb) = (head.request_id, Verb::PutPart);
    let stream = connection.streams.borrow_mut().remove(&part.begun);
    let end = u64::from(part.offset) + u64::from(head.values_len);
    let fits = |stream: &Stream| {
        let len = stream.writer.bytes().len() as u64;
        stream.filled == part.offset as usize && end <= len
    };
    let mut stream = match stream {
        Some(stream) if fits(&stream) => stream,
        other => {
            if let Some(stream) = other {
                connection.streams.borrow_mut().insert(part.begun, stream);
            }
            skip(connection, frames, head.values_len.into()).await?;
            let text = "parts come in order, without gaps, within the length that was begun";
            connection.refuse(id, verb.number(), ErrorCode::NoSuchPut, text);
            return Ok(());
        }
    };
    let (start, end) = (stream.filled, end as usize);
    let checksum = &mut stream.checksum;
    let into = &mut stream.writer.bytes_mut()[start..end];
    let deadline = connection.ticket(id, verb, 0).deadline;
    let each = |piece: &[u8]| checksum.update(piece);
    let filled = receive(connection, frames, into, deadline, each).await?;
    if filled < end - start {
        // A part of a part is of no use: the put is given up.
        drop(stream);
        let left = (end - start - filled) as u64;
        skip(connection, frames, left).await?;
        connection.reply_statuses(id, verb, &[KeyStatus::TimedOut]);
        return Ok(());
    }
    stream.filled = end;
    stream.used = connection.host.now();
    connection.streams.borrow_mut().insert(part.begun, stream);
    connection.reply_statuses(id, verb, &[KeyStatus::Granted]);
    Ok(())
}

pub(crate) async fn commit(connection: &Rc<Connection>, head: &FrameHead, end: StreamEnd) {
    let (id, verb) = (head.request_id, Verb::PutCommit);
    let stream = connection.streams.borrow_mut().remove(&end.begun);
    let is_whole = |stream: &Stream| stream.filled == stream.writer.bytes().len();
    let stream = match stream {
        Some(stream) if is_whole(&stream) => stream,
        other => {
            if let Some(stream) = other {
                connection.streams.borrow_mut().insert(end.begun, stream);
            }
            let text = "nothing was begun under this id, or parts of it are missing";
            return connection.refuse(id, verb.number(), ErrorCode::NoSuchPut, text);
        }
    };
    connection.host.count(|counters| counters.put_values += 1);
    let ticket = connection.ticket(id, verb, 0);
    let answer = Answer::new(connection, &ticket, 1);
    let filled = Filled {
        key: stream.key,
        writer: stream.writer,
        checksum: stream.checksum.finish(),
        options: PutOptions {
            checksum: Some(end.checksum),
            ..stream.options
        },
    };
    commit_filled(connection, &ticket, filled, 0, &answer).await;
}

pub(crate) fn abort(connection: &Rc<Connection>, head: &FrameHead, end: StreamEnd) {
    let (id, verb) = (head.request_id, Verb::PutAbort);
    let stream = connection.streams.borrow_mut().remove(&end.begun);
    if stream.is_none() {
        let text = "nothing was begun under this id";
        return connection.refuse(id, verb.number(), ErrorCode::NoSuchPut, text);
    }
    connection.reply_statuses(id, verb, &[KeyStatus::Cancelled]);
}
