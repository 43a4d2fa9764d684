//! The client's end of a connection.

use super::table::{Table, UnderWay};
use super::{Account, SessionError, SessionState, check_no_id, ping_again};
use crate::control::Credit;
use crate::frame::{FRAME_HEAD_LEN, Flags, FrameHead, FrameLimits};
use crate::hello::NodeTerms;
use crate::limits::{REQUESTS_MAX, VERSION};
use crate::reply::Reply;
use crate::verb::{Features, Verb};

/// What a client says of itself in its hello that binds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What it can.
    pub features: Features,
    /// The longest frame that it takes.
    pub limits: FrameLimits,
}

/// What the head of a frame from a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The hello: [`ClientSession::on_hello`] is next.
    Hello,
    /// A reply to a request under way: [`ClientSession::on_reply`] is next.
    Reply(Verb),
    /// An error; without a request id the connection is over.
    Error,
    /// Credit: [`ClientSession::on_credit`] is next.
    Credit,
    /// The node takes no new requests.
    Goodbye,
}

/// What a client knows of one connection.
#[derive(Debug)]
pub struct ClientSession {
    state: SessionState,
    offer: Offer,
    features: Features,
    node: FrameLimits,
    batch_max: u32,
    last_id: u64,
    left: Account,
    table: Table,
}

impl ClientSession {
    /// A connection whose hello is about to be sent.
    #[must_use]
    pub fn new(offer: Offer) -> Self {
        Self {
            state: SessionState::Hello,
            offer,
            features: Features::NONE,
            node: FrameLimits::BEFORE_HELLO,
            batch_max: 0,
            last_id: 0,
            left: Account::default(),
            table: Table::default(),
        }
    }

    /// How far the connection is.
    #[must_use]
    pub const fn state(&self) -> SessionState {
        self.state
    }

    /// The longest frame that the client takes.
    #[must_use]
    pub const fn frame_limits(&self) -> FrameLimits {
        self.offer.limits
    }

    /// The longest frame that the node takes.
    #[must_use]
    pub const fn node_limits(&self) -> FrameLimits {
        self.node
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.table.len()
    }

    /// The id of the next request.
    #[must_use]
    pub const fn next_id(&self) -> u64 {
        self.last_id + 1
    }

    /// Takes the terms of the node's hello.
    ///
    /// # Errors
    /// What the node may not do; the connection is of no use.
    pub fn on_hello(&mut self, terms: &NodeTerms) -> Result<(), SessionError> {
        if self.state != SessionState::Hello {
            return Err(SessionError::HelloAgain);
        }
        //= docs/wire-protocol.md#WP-8
        if terms.version != VERSION {
            return Err(SessionError::Version {
                low: terms.version,
                high: terms.version,
                ours: VERSION,
            });
        }
        let unasked = terms.features.0 & !self.offer.features.0;
        if unasked != 0 {
            let features = terms.features.0;
            return Err(SessionError::Features { features, unasked });
        }
        self.features = terms.features;
        self.node = terms.limits;
        self.batch_max = terms.batch_max;
        self.left.add(terms.credit_requests, terms.credit_bytes);
        // One more for a ping.
        self.table.reserve(terms.credit_requests as usize + 1);
        self.state.transition(SessionState::Open);
        Ok(())
    }

    /// Notes that a request is about to be sent under [`ClientSession::next_id`]: a frame with a
    /// body and values of these lengths, and so many entries. Its id.
    ///
    /// # Errors
    /// [`SessionError::Credit`] when it has to wait for a reply; others when it may not be sent.
    pub fn begin(
        &mut self,
        verb: Verb,
        body_len: usize,
        values_len: u64,
        entries: usize,
    ) -> Result<u64, SessionError> {
        let (id, state) = (self.next_id(), self.state);
        if state != SessionState::Open {
            return Err(SessionError::NotOpen { state });
        }
        //= docs/wire-protocol.md#WP-6
        if !verb.is_request() {
            let verb_number = verb.number();
            return Err(SessionError::Direction { verb_number });
        }
        if !self.features.has(verb.feature()) {
            let verb = verb.name();
            return Err(SessionError::Feature { verb });
        }
        for (field, value, limit) in [
            ("body length", body_len as u64, self.node.body_len_max),
            ("values length", values_len, self.node.values_len_max),
            ("count of entries", entries as u64, self.batch_max),
        ] {
            let limit = u64::from(limit);
            if value > limit {
                return Err(SessionError::OverLimit {
                    field,
                    value,
                    limit,
                });
            }
        }
        let bytes = if verb.takes_credit() {
            let frame_len = FRAME_HEAD_LEN as u64 + body_len as u64 + values_len;
            self.left.take(frame_len)?;
            Some(frame_len)
        } else {
            if self.table.iter().any(|request| request.bytes.is_none()) {
                return Err(ping_again());
            }
            None
        };
        self.last_id = id;
        self.table.push(UnderWay {
            id,
            verb_number: verb.number(),
            bytes,
            entries: if verb.is_answered_by_entry() {
                entries as u32
            } else {
                0
            },
            answered: 0,
        });
        Ok(id)
    }

    /// Takes the head of a frame, before its body is read.
    ///
    /// # Errors
    /// What the node may not do; the connection is of no use any more.
    pub fn on_head(&mut self, head: &FrameHead) -> Result<Expected, SessionError> {
        let (id, verb_number) = (head.request_id, head.verb_number);
        let verb = Verb::try_from(verb_number).ok();
        if self.state == SessionState::Closed {
            let state = self.state;
            return Err(SessionError::NotOpen { state });
        }
        if !head.is_reply() && verb != Some(Verb::Goodbye) {
            return Err(SessionError::Direction { verb_number });
        }
        //= docs/wire-protocol.md#WP-7
        match (self.state, verb) {
            (SessionState::Hello, Some(Verb::Hello)) => {
                return check_no_id(id).map(|()| Expected::Hello);
            }
            (SessionState::Hello, Some(Verb::Error)) => {
                return check_no_id(id).map(|()| Expected::Error);
            }
            (SessionState::Hello, _) => return Err(SessionError::HelloExpected { verb_number }),
            (_, Some(Verb::Hello)) => return Err(SessionError::HelloAgain),
            _ => {}
        }
        match verb {
            Some(Verb::Goodbye) => {
                check_no_id(id)?;
                //= docs/wire-protocol.md#WP-15
                self.state.transition(SessionState::Ending);
                Ok(Expected::Goodbye)
            }
            Some(Verb::Credit) => check_no_id(id).map(|()| Expected::Credit),
            Some(Verb::Error) if id == 0 => Ok(Expected::Error),
            _ => {
                let request = self.table.get(id)?;
                match verb {
                    Some(Verb::Error) => Ok(Expected::Error),
                    Some(verb) if verb_number == request.verb_number => Ok(Expected::Reply(verb)),
                    _ => {
                        let asked = Verb::try_from(request.verb_number);
                        Err(SessionError::WrongVerb {
                            id,
                            expected: asked.map_or("request", Verb::name),
                            found: verb_number,
                        })
                    }
                }
            }
        }
    }

    /// Takes a reply that was decoded. Whether it is the request's last; always for an error. One
    /// without a request id closes the connection.
    ///
    /// # Errors
    /// [`SessionError::Answers`] when entries are not answered once each, in order;
    /// [`SessionError::NotUnderWay`].
    pub fn on_reply(&mut self, head: &FrameHead, reply: &Reply<'_>) -> Result<bool, SessionError> {
        let id = head.request_id;
        let is_error = matches!(reply, Reply::Error(_));
        if is_error && id == 0 {
            //= docs/wire-protocol.md#WP-25
            self.close();
            return Ok(true);
        }
        let request = self.table.get(id)?;
        let is_by_entry = Verb::try_from(request.verb_number).is_ok_and(Verb::is_answered_by_entry);
        if let (true, Some((first, count))) = (is_by_entry, reply.answered()) {
            request.answer(first, count)?;
        }
        if head.flags.has(Flags::MORE) && !is_error {
            return Ok(false);
        }
        if !is_error {
            request.check_complete()?;
        }
        let request = self.table.remove(id)?;
        //= docs/wire-protocol.md#WP-12
        if let (Some(bytes), false) = (request.bytes, head.flags.has(Flags::HELD)) {
            self.left.add(1, bytes);
        }
        Ok(true)
    }

    /// Takes credit.
    ///
    /// # Errors
    /// [`SessionError::Credit`] when it is for more requests than the protocol has.
    pub fn on_credit(&mut self, credit: &Credit) -> Result<(), SessionError> {
        let requests = self.left.requests.saturating_add(credit.requests);
        let most = u64::from(REQUESTS_MAX);
        let all = u64::from(requests) + self.table.len() as u64;
        if all > most + 1 {
            return Err(SessionError::Credit {
                what: "requests",
                needed: all,
                left: most,
            });
        }
        self.left.add(credit.requests, credit.bytes);
        self.table.reserve(all as usize + 1);
        Ok(())
    }

    /// Credit that is left: requests, and bytes.
    #[must_use]
    pub const fn credit(&self) -> Credit {
        let Account { requests, bytes } = self.left;
        Credit { bytes, requests }
    }

    /// Notes that the client says goodbye.
    pub fn end(&mut self) {
        match self.state {
            SessionState::Open | SessionState::Ending => {
                self.state.transition(SessionState::Ending);
            }
            SessionState::Hello | SessionState::Closed => self.close(),
        }
    }

    /// Notes that the connection is gone.
    pub fn close(&mut self) {
        self.state.transition(SessionState::Closed);
    }
}
