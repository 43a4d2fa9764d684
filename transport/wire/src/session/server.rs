//! The node's end of a connection.

use super::table::{Table, UnderWay};
use super::{Account, SessionError, SessionState, check_no_id, is_ping, ping_again};
use crate::control::Credit;
use crate::error::{ErrorCode, Limit, WireError};
use crate::frame::{FrameHead, FrameLimits};
use crate::hello::{ClientHello, NodeTerms};
use crate::limits::VERSION;
use crate::request::Request;
use crate::verb::Verb;

/// What the head of a frame from a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// The hello: [`ServerSession::on_hello`] is next.
    Hello,
    /// A request, under way from now on: [`ServerSession::on_request`] is next.
    Request(Verb),
    /// A request to be answered by this error without a look at it. Body and values are passed
    /// over.
    Refused(ErrorCode),
    /// The request of the frame's id is given up; when it is not under way any more, nothing is.
    Cancel {
        /// Whether it is.
        is_under_way: bool,
    },
    /// The client sends no more requests.
    Goodbye,
}

/// What a node knows of one connection.
#[derive(Debug)]
pub struct ServerSession {
    state: SessionState,
    /// What the node says of itself; after the hello, what is in force.
    terms: NodeTerms,
    client: FrameLimits,
    last_id: u64,
    left: Account,
    held: Account,
    table: Table,
    client_is_done: bool,
}

impl ServerSession {
    /// A connection that was just made. `terms` name all features that the node has.
    #[must_use]
    pub fn new(terms: NodeTerms) -> Self {
        Self {
            state: SessionState::Hello,
            terms,
            client: FrameLimits::BEFORE_HELLO,
            last_id: 0,
            left: Account {
                requests: terms.credit_requests,
                bytes: terms.credit_bytes,
            },
            held: Account::default(),
            table: Table::default(),
            client_is_done: false,
        }
    }

    /// How far the connection is.
    #[must_use]
    pub const fn state(&self) -> SessionState {
        self.state
    }

    /// The longest frame that the node takes now.
    #[must_use]
    pub const fn frame_limits(&self) -> FrameLimits {
        //= docs/wire-protocol.md#WP-7
        match self.state {
            SessionState::Hello => FrameLimits::BEFORE_HELLO,
            _ => self.terms.limits,
        }
    }

    /// The longest frame that the client takes.
    #[must_use]
    pub const fn client_limits(&self) -> FrameLimits {
        self.client
    }

    /// Credit that the client has left: requests, and bytes.
    #[must_use]
    pub const fn credit(&self) -> Credit {
        let Account { requests, bytes } = self.left;
        Credit { bytes, requests }
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.table.len()
    }

    /// Whether a request is under way.
    #[must_use]
    pub fn is_under_way(&self, id: u64) -> bool {
        self.table.has(id)
    }

    /// Takes the head of a frame, before its body is read.
    ///
    /// # Errors
    /// What the client may not do; the connection ends with it.
    pub fn on_head(&mut self, head: &FrameHead) -> Result<Incoming, SessionError> {
        let verb = Verb::try_from(head.verb_number).ok();
        let verb_number = head.verb_number;
        if head.is_reply() || matches!(verb, Some(Verb::Credit | Verb::Error)) {
            return Err(SessionError::Direction { verb_number });
        }
        //= docs/wire-protocol.md#WP-7
        match (self.state, verb) {
            (SessionState::Closed, _) => {
                let state = self.state;
                return Err(SessionError::NotOpen { state });
            }
            (SessionState::Hello, Some(Verb::Hello)) => {
                return check_no_id(head.request_id).map(|()| Incoming::Hello);
            }
            (SessionState::Hello, _) => return Err(SessionError::HelloExpected { verb_number }),
            (_, Some(Verb::Hello)) => return Err(SessionError::HelloAgain),
            _ => {}
        }
        match verb {
            Some(Verb::Goodbye) => {
                check_no_id(head.request_id)?;
                self.client_is_done = true;
                self.state.transition(SessionState::Ending);
                Ok(Incoming::Goodbye)
            }
            //= docs/wire-protocol.md#WP-14
            Some(Verb::Cancel) => Ok(Incoming::Cancel {
                is_under_way: self.table.has(head.request_id),
            }),
            verb => self.on_request_head(head, verb),
        }
    }

    fn on_request_head(
        &mut self,
        head: &FrameHead,
        verb: Option<Verb>,
    ) -> Result<Incoming, SessionError> {
        let id = head.request_id;
        //= docs/wire-protocol.md#WP-15
        if self.client_is_done {
            return Err(SessionError::AfterGoodbye { id });
        }
        //= docs/wire-protocol.md#WP-9
        if id <= self.last_id {
            let limit = Limit::AtLeast(self.last_id.saturating_add(1));
            return Err(SessionError::RequestId { id, limit });
        }
        let bytes = if is_ping(verb) {
            let is_again = self.table.iter().any(|request| request.bytes.is_none());
            if is_again {
                return Err(ping_again());
            }
            None
        } else {
            self.left.take(head.frame_len())?;
            Some(head.frame_len())
        };
        self.last_id = id;
        self.table.push(UnderWay {
            id,
            verb_number: head.verb_number,
            bytes,
            entries: 0,
            answered: 0,
        });
        Ok(match verb {
            //= docs/wire-protocol.md#WP-6
            None => Incoming::Refused(ErrorCode::UnknownVerb),
            Some(verb) if !self.terms.features.has(verb.feature()) => {
                Incoming::Refused(ErrorCode::FeatureNotInForce)
            }
            Some(verb) if verb.takes_credit() && self.state == SessionState::Ending => {
                Incoming::Refused(ErrorCode::Draining)
            }
            Some(verb) => Incoming::Request(verb),
        })
    }

    /// Takes the client's hello; the terms in force, for the answer.
    ///
    /// # Errors
    /// [`SessionError::Version`] without a common version.
    pub fn on_hello(&mut self, hello: &ClientHello<'_>) -> Result<NodeTerms, SessionError> {
        if self.state != SessionState::Hello {
            return Err(SessionError::HelloAgain);
        }
        //= docs/wire-protocol.md#WP-8
        if !(hello.version_low..=hello.version_high).contains(&VERSION) {
            return Err(SessionError::Version {
                low: hello.version_low,
                high: hello.version_high,
                ours: VERSION,
            });
        }
        self.terms.version = VERSION;
        self.terms.features = self.terms.features.common(hello.features);
        self.client = hello.limits;
        // One more for a ping.
        self.table.reserve(self.terms.credit_requests as usize + 1);
        self.state.transition(SessionState::Open);
        Ok(self.terms)
    }

    /// Takes a request that was decoded.
    ///
    /// # Errors
    /// [`WireError::Field`] when it has more entries than the node takes.
    pub fn on_request(&mut self, head: &FrameHead, request: &Request<'_>) -> Result<(), WireError> {
        let entries = request.entry_count();
        let limit = Limit::AtMost(self.terms.batch_max.into());
        if !limit.allows(entries as u64) {
            return Err(WireError::Field {
                message: "request head",
                field: "count of entries",
                value: entries as u64,
                limit,
            });
        }
        let is_by_entry = answers_by_entry(head.verb_number);
        if let (true, Ok(request)) = (is_by_entry, self.table.get(head.request_id)) {
            request.entries = entries as u32;
        }
        Ok(())
    }

    /// Notes that `count` entries from `first` on are answered by a frame that is about to be sent.
    ///
    /// # Errors
    /// [`SessionError::NotUnderWay`], [`SessionError::Answers`] when the node itself errs.
    pub fn answer(&mut self, id: u64, first: u32, count: usize) -> Result<(), SessionError> {
        self.table.get(id)?.answer(first, count)
    }

    /// Notes that the last reply of a request is about to be sent; by it the client has its credit
    /// back, unless the node holds it. An error may come before all entries are answered.
    ///
    /// # Errors
    /// [`SessionError::NotUnderWay`], [`SessionError::Answers`] when the node itself errs.
    pub fn end(&mut self, id: u64, is_error: bool, is_held: bool) -> Result<(), SessionError> {
        if !is_error {
            self.table.get(id)?.check_complete()?;
        }
        let request = self.table.remove(id)?;
        if let Some(bytes) = request.bytes {
            //= docs/wire-protocol.md#WP-12
            let to = if is_held {
                &mut self.held
            } else {
                &mut self.left
            };
            to.add(1, bytes);
        }
        Ok(())
    }

    /// Gives back all credit that is held; what to send. `None` when none is.
    pub fn give_held(&mut self) -> Option<Credit> {
        let held = std::mem::take(&mut self.held);
        if held == Account::default() {
            return None;
        }
        self.left.add(held.requests, held.bytes);
        let Account { requests, bytes } = held;
        Some(Credit { bytes, requests })
    }

    /// Notes that the node says goodbye: requests from now on are refused.
    pub fn drain(&mut self) {
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

    /// Whether the connection may be closed without anybody missing something.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match self.state {
            SessionState::Closed => true,
            SessionState::Ending => self.table.len() == 0,
            SessionState::Hello | SessionState::Open => false,
        }
    }

    /// Walks all state.
    ///
    /// # Panics
    /// When credit got lost or made, or a request is answered more than it has entries.
    pub fn check(&self) {
        let (mut requests, mut bytes) = (self.left.requests, self.left.bytes);
        requests += self.held.requests;
        bytes += self.held.bytes;
        for request in self.table.iter() {
            assert!(request.answered <= request.entries);
            assert!(request.id <= self.last_id);
            requests += u32::from(request.bytes.is_some());
            bytes += request.bytes.unwrap_or(0);
        }
        assert_eq!(requests, self.terms.credit_requests);
        assert_eq!(bytes, self.terms.credit_bytes);
    }
}

/// Whether a reply goes by entries.
fn answers_by_entry(verb_number: u8) -> bool {
    let verb = Verb::try_from(verb_number).ok();
    verb.is_some_and(Verb::is_answered_by_entry)
}
