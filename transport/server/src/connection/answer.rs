//! Answers: frames of replies, queued behind what waits to be sent.

use std::rc::Rc;

use terrace_engine::LocalPin;
use terrace_wire::{
    ErrorCode, ErrorFrame, Flags, FrameHead, Goodbye, GoodbyeReason, KeyStatus, Record, ReplyHead,
    SessionError, Verb, WireError, reply,
};

use super::Connection;
use crate::outbox::Part;

/// Frame head, reply head and what stands between the reply head and its records.
const REPLY_HEAD_LEN: usize = 32 + 16 + 8;

/// Longest frame of an error: head, body with the longest text, and a rest.
const ERROR_FRAME_LEN: usize = 640;

impl Connection {
    pub(crate) fn reply_head(&self, first: usize) -> ReplyHead {
        ReplyHead {
            first: first as u32,
            map_epoch: self.terms.get().map_epoch,
        }
    }

    /// Queues a frame that `encode` writes into at most `len` bytes.
    pub(crate) fn push_frame(
        &self,
        len: usize,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) {
        if self.closed.get() {
            return;
        }
        let mut bytes = vec![0; len.next_multiple_of(8)];
        match encode(&mut bytes) {
            Ok(len) => bytes.truncate(len),
            Err(error) => {
                // A reply that is not sent breaks the connection, so it ends.
                tracing::error!(connection = self.number, peer = %self.peer, %error, "encode a reply");
                return self.close();
            }
        }
        self.host.count(|counters| counters.frames_sent += 1);
        self.replies.borrow_mut().queued(bytes.len());
        self.outbox.borrow_mut().push(Part::Bytes(bytes));
    }

    pub(crate) fn push_block(&self, pin: LocalPin, range: std::ops::Range<usize>) {
        if !self.closed.get() && !range.is_empty() {
            self.replies.borrow_mut().queued(range.len());
            self.outbox.borrow_mut().push(Part::Block(pin, range));
        }
    }

    /// Answers entries from `first` on by the records of one frame.
    pub(crate) fn answer(&self, id: u64, first: usize, count: usize, is_last: bool) -> Flags {
        let mut session = self.session.borrow_mut();
        let answered = session.answer(id, first as u32, count);
        let ended = if is_last {
            session.end(id, false, false)
        } else {
            Ok(())
        };
        drop(session);
        if let Err(error) = answered.and(ended) {
            self.report(id, &error, "answer a request");
        }
        self.begin_reply(id, is_last);
        if is_last {
            self.wake();
            return Flags::NONE;
        }
        Flags::MORE
    }

    /// What the session says of a reply that must not be; the connection ends by it.
    fn report(&self, id: u64, error: &SessionError, what: &str) {
        let (connection, peer) = (self.number, self.peer);
        tracing::error!(connection, %peer, request = id, %error, "{what}");
        self.close();
    }

    /// The frame that is queued next is of this request.
    pub(crate) fn begin_reply(&self, id: u64, is_last: bool) {
        let mut traces = self.traces.borrow_mut();
        let Some(at) = traces.iter().position(|trace| trace.id == id) else {
            return;
        };
        let trace = if is_last {
            let trace = traces.swap_remove(at);
            trace.end(self.host.now());
            trace
        } else {
            Rc::clone(&traces[at])
        };
        self.replies.borrow_mut().begin_frame(trace, is_last);
    }

    /// How many records of `len` bytes the client takes in one frame.
    pub(crate) fn records_max(&self, len: usize) -> usize {
        let limit = self.session.borrow().client_limits().body_len_max as usize;
        (limit.saturating_sub(24) / len).max(1)
    }

    /// Answers a request by all its records, in as many frames as the client's limit asks for.
    pub(crate) fn reply<R: Record<'static>>(&self, id: u64, verb: Verb, records: &[R], len: usize) {
        let most = self.records_max(len);
        let mut first = 0;
        loop {
            let count = most.min(records.len() - first);
            let is_last = first + count == records.len();
            let flags = self.answer(id, first, count, is_last);
            let frame = &records[first..first + count];
            self.push_frame(REPLY_HEAD_LEN + count * len, |out| {
                let head = self.reply_head(first);
                reply::encode(verb, id, flags, &head, frame.iter().copied(), out)
            });
            first += count;
            if is_last {
                return;
            }
        }
    }

    /// Answers a request by statuses.
    pub(crate) fn reply_statuses(&self, id: u64, verb: Verb, statuses: &[KeyStatus]) {
        self.reply(id, verb, statuses, 8);
    }

    /// Answers a request that has no entries by `encode`'s frame.
    pub(crate) fn reply_once(
        &self,
        id: u64,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) {
        self.reply_long(id, REPLY_HEAD_LEN + 16, encode);
    }

    /// As [`Connection::reply_once`], by a frame of at most `len` bytes.
    pub(crate) fn reply_long(
        &self,
        id: u64,
        len: usize,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) {
        let ended = self.session.borrow_mut().end(id, false, false);
        if let Err(error) = ended {
            self.report(id, &error, "end a request");
        }
        self.begin_reply(id, true);
        self.push_frame(len, encode);
        self.wake();
    }

    /// Ends a request by an error.
    pub(crate) fn refuse(&self, id: u64, verb_number: u8, code: ErrorCode, text: &str) {
        self.refuse_with(id, verb_number, code, 0, text);
    }

    /// Ends a request by what is wrong with its body.
    pub(crate) fn refuse_body(&self, head: &FrameHead, error: &WireError) {
        let argument = match error {
            WireError::UnknownOptions { bits, .. } => u64::from(*bits),
            _ => 0,
        };
        let (id, verb) = (head.request_id, head.verb_number);
        self.refuse_with(id, verb, error.code(), argument, &error.to_string());
    }

    /// As [`Connection::refuse`], with the number that the code's row in the protocol asks for.
    pub(crate) fn refuse_with(
        &self,
        id: u64,
        verb_number: u8,
        code: ErrorCode,
        argument: u64,
        text: &str,
    ) {
        self.host.count(|counters| counters.requests_refused += 1);
        let ended = self.session.borrow_mut().end(id, true, false);
        if let Err(error) = ended {
            self.report(id, &error, "refuse a request");
        }
        self.begin_reply(id, true);
        tracing::debug!(
            connection = self.number,
            peer = %self.peer,
            request = id,
            verb = verb_number,
            ?code,
            text,
            "a request is refused"
        );
        self.push_error(id, verb_number, code, argument, text);
        self.wake();
    }

    /// Queues an error; without a request id it is the last frame.
    pub(crate) fn push_error(
        &self,
        id: u64,
        verb_number: u8,
        code: ErrorCode,
        argument: u64,
        text: &str,
    ) {
        let frame = ErrorFrame {
            code,
            verb_number,
            argument,
            text,
        };
        self.push_frame(ERROR_FRAME_LEN, |out| frame.encode(id, out));
    }

    pub(crate) fn say_goodbye(&self, reason: GoodbyeReason, close_ms: u32) {
        let goodbye = Goodbye { reason, close_ms };
        self.push_frame(64, |out| goodbye.encode(out));
    }
}
