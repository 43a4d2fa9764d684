//! The opener's control connection: questions and answers, over whichever address works.
//!
//! **Invariants**
//! - One question is under way at a time.
//! - A notification is never sent twice; other questions may be.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::error::RailError;
use super::limits::MESSAGE_LEN_MAX;
use super::tcp::{UNKNOWN_TOKEN, connect, timed_out};
use super::ticket::Ticket;
use super::transport::{Ask, TransportKind};
use super::wire::{MESSAGE_HEAD_LEN, MessageHead, MessageKind, Purpose, Token};

struct Connection {
    stream: Option<TcpStream>,
    token: Token,
}

/// The way to ask a peer.
pub(super) struct Control {
    addresses: Vec<SocketAddr>,
    timeout: Duration,
    /// What the first hello shows: a ticket, or zeros.
    first_token: Token,
    connection: Mutex<Connection>,
}

impl Control {
    /// A connection to be made to one of `addresses`, on which nothing takes longer than
    /// `timeout`, with a ticket where one is needed.
    pub(super) fn new(
        addresses: Vec<SocketAddr>,
        timeout: Duration,
        ticket: Option<&Ticket>,
    ) -> Self {
        let first_token = ticket.map_or([0; 16], Ticket::bytes);
        let connection = Connection {
            stream: None,
            token: first_token,
        };
        Self {
            addresses,
            timeout,
            first_token,
            connection: Mutex::new(connection),
        }
    }

    /// Asks, and waits for the answer.
    pub(super) fn call(&self, kind: MessageKind, body: &[u8]) -> Result<Vec<u8>, RailError> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_new = connection.stream.is_none();
        match self.try_call(&mut connection, kind, body) {
            // A connection that was there may have ended while nobody used it.
            Err(error) if !is_new && kind != MessageKind::Notify && !is_final(&error) => {
                self.try_call(&mut connection, kind, body)
            }
            outcome => outcome,
        }
    }

    fn try_call(
        &self,
        connection: &mut Connection,
        kind: MessageKind,
        body: &[u8],
    ) -> Result<Vec<u8>, RailError> {
        if connection.stream.is_none() {
            self.connect(connection)?;
        }
        let stream = connection.stream.as_mut().ok_or(RailError::Closed)?;
        let outcome = exchange(stream, kind, body, self.timeout);
        if outcome.as_ref().is_err_and(|error| !is_final(error)) {
            connection.stream = None;
        }
        outcome
    }

    fn connect(&self, connection: &mut Connection) -> Result<(), RailError> {
        let mut last = RailError::Refused("no address was given");
        for &address in &self.addresses {
            let mut outcome = connect(address, Purpose::Control, connection.token, self.timeout);
            if matches!(outcome, Err(RailError::Refused(what)) if what == UNKNOWN_TOKEN) {
                outcome = connect(address, Purpose::Control, self.first_token, self.timeout);
            }
            match outcome {
                Ok((stream, token)) => {
                    *connection = Connection {
                        stream: Some(stream),
                        token,
                    };
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Whether the connection can be used after this error.
const fn is_final(error: &RailError) -> bool {
    matches!(error, RailError::Refused(_))
}

fn exchange(
    stream: &mut TcpStream,
    kind: MessageKind,
    body: &[u8],
    timeout: Duration,
) -> Result<Vec<u8>, RailError> {
    let head = MessageHead {
        len: body.len() as u32,
        kind,
        is_refused: false,
    };
    let mut message = head.encode().to_vec();
    message.extend(body);
    let mut head = [0; MESSAGE_HEAD_LEN];
    stream
        .write_all(&message)
        .and_then(|()| stream.read_exact(&mut head))
        .map_err(timed_out("ask the peer", timeout))?;
    let head = MessageHead::decode(&head)
        .filter(|head| head.kind == kind && head.len as usize <= MESSAGE_LEN_MAX)
        .ok_or(RailError::Protocol("the answer is to another question"))?;
    let mut answer = vec![0; head.len as usize];
    stream
        .read_exact(&mut answer)
        .map_err(timed_out("read an answer", timeout))?;
    if head.is_refused {
        return Err(RailError::Refused(match kind {
            MessageKind::Notify => "it has too many notifications that nobody took",
            MessageKind::Ask(_) => "it has no such transport, or that cannot do it",
            MessageKind::Regions => "it does not tell its regions",
        }));
    }
    Ok(answer)
}

/// Asks one kind of transport.
pub(super) struct AskTransport<'a> {
    pub(super) control: &'a Control,
    pub(super) kind: TransportKind,
}

impl Ask for AskTransport<'_> {
    fn ask(&mut self, question: &[u8]) -> Result<Vec<u8>, RailError> {
        self.control.call(MessageKind::Ask(self.kind), question)
    }
}
