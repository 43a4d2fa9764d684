//! The reader of a connection: its hello, and then frame after frame.

use std::future::poll_fn;
use std::rc::Rc;

use terrace_fabric::Receiver;
use terrace_wire::limits::VERSION;
use terrace_wire::{
    ClientHello, Endpoint, ErrorCode, FRAME_HEAD_LEN, FrameHead, GoodbyeReason, Incoming, Partial,
    Request, SessionError, Transport, WireError,
};

use crate::connection::{Connection, Waiting};
use crate::dispatch;
use crate::values::{Frames, skip};

/// Frames after which other tasks of the thread run. A body counts for as many more as its length
/// is worth.
const FRAMES_IN_A_ROW: u32 = 32;

/// Bytes of a body that take about as long as a short frame.
const FRAME_WORTH: u32 = 4096;

/// Bytes that are thrown away behind an error, so that it arrives before the connection is reset.
const LINGER_LEN_MAX: usize = 1 << 20;

/// Why no more frames are read.
#[derive(Debug)]
pub(crate) enum End {
    /// The client went away, or the connection is closed.
    Gone,
    /// The client sends no more, and may still read.
    Ended,
    /// The client broke a rule: it is told by this error.
    Broken {
        code: ErrorCode,
        argument: u64,
        text: String,
    },
}

impl From<WireError> for End {
    fn from(error: WireError) -> Self {
        let code = match error.code() {
            code if code.ends_connection() => code,
            _ => ErrorCode::MalformedFrame,
        };
        let argument = match error {
            WireError::OverLimit { limit, .. } => limit,
            _ => 0,
        };
        let text = error.to_string();
        Self::Broken {
            code,
            argument,
            text,
        }
    }
}

impl From<SessionError> for End {
    fn from(error: SessionError) -> Self {
        let code = error.code();
        let argument = match code {
            //= docs/wire-protocol.md#WP-8
            ErrorCode::Version => u64::from(VERSION) | u64::from(VERSION) << 16,
            _ => 0,
        };
        let text = error.to_string();
        Self::Broken {
            code,
            argument,
            text,
        }
    }
}

/// Serves a connection to its end. What is returned tells that it moves to another shard, and what
/// was received of it.
pub(crate) async fn serve(
    connection: &Rc<Connection>,
    mut frames: Frames,
) -> Option<(u32, Vec<u8>)> {
    let end = match hello(connection, &mut frames).await {
        Ok(Some(shard)) => return Some((shard, frames.message().to_vec())),
        Ok(None) => requests(connection, &mut frames).await,
        Err(end) => Err(end),
    };
    if matches!(end, Err(End::Ended)) {
        connection.wait_for(Waiting::Not);
        connection.take_no_more();
        connection.finished().await;
    }
    if let Err(End::Broken {
        code,
        argument,
        text,
    }) = end
    {
        tracing::info!(
            connection = connection.number,
            peer = %connection.peer,
            ?code,
            text,
            "a client broke the protocol"
        );
        connection
            .host
            .count(|counters| counters.closed_malformed += 1);
        connection.push_error(0, 0, code, argument, &text);
        linger(connection, &mut frames).await;
    }
    None
}

/// Sends what waits, and then reads to nowhere: closing with bytes unread would reset the
/// connection, and the error with it.
async fn linger(connection: &Rc<Connection>, frames: &mut Frames) {
    connection.wait_for(Waiting::Not);
    connection.all_sent().await;
    connection.finish_sending();
    connection.wait_for(Waiting::Hello);
    let mut scratch = [0; 4096];
    let mut read = 0;
    while read < LINGER_LEN_MAX {
        match poll_fn(|context| frames.poll_slice(context, &mut scratch)).await {
            Ok(count) if count > 0 => read += count,
            _ => return,
        }
    }
}

/// The head of the next frame. What waits to be sent goes out before this one waits.
async fn next_head(connection: &Rc<Connection>, frames: &mut Frames) -> Result<FrameHead, End> {
    let limits = connection.session.borrow().frame_limits();
    let mut is_hello = limits == terrace_wire::FrameLimits::BEFORE_HELLO;
    loop {
        //= docs/wire-protocol.md#WP-1
        let here = frames.message();
        match FrameHead::parse(here, &limits)? {
            Partial::Whole(head) => return Ok(head),
            Partial::Needs(_) => {}
        }
        let len = here.len();
        if len > 0 {
            connection.wait_for(Waiting::Rest);
        } else if !std::mem::take(&mut is_hello) {
            connection.wait_for(Waiting::Frame);
        }
        connection.flush().await;
        let received = poll_fn(|context| frames.poll_message(context, len + 1)).await;
        received.map_err(|_| End::Gone)?;
        connection.note_arrival();
        if connection.is_closed() {
            return Err(End::Gone);
        }
        if frames.message().len() == len {
            return Err(if len == 0 { End::Ended } else { End::Gone });
        }
    }
}

/// The body of a frame whose head was read, compared with its checksum.
async fn body(
    connection: &Rc<Connection>,
    frames: &mut Frames,
    head: &FrameHead,
) -> Result<Vec<u8>, End> {
    let len = FRAME_HEAD_LEN + head.body_len as usize;
    if frames.message().len() < len {
        connection.wait_for(Waiting::Rest);
        connection.flush().await;
        let received = poll_fn(|context| frames.poll_message(context, len)).await;
        received.map_err(|_| End::Gone)?;
        connection.note_arrival();
    }
    let Some(bytes) = frames.message().get(FRAME_HEAD_LEN..len) else {
        return Err(End::Gone);
    };
    //= docs/wire-protocol.md#WP-2
    let body = head.body(bytes)?.to_vec();
    connection.wait_for(Waiting::Not);
    Ok(body)
}

/// Takes the hello and answers it; the shard that the connection is for, when it is another one.
async fn hello(connection: &Rc<Connection>, frames: &mut Frames) -> Result<Option<u32>, End> {
    let head = next_head(connection, frames).await?;
    //= docs/wire-protocol.md#WP-7
    let incoming = connection.session.borrow_mut().on_head(&head)?;
    let body = body(connection, frames, &head).await?;
    let hello = match (incoming, Request::decode(&head, &body)?) {
        (Incoming::Hello, Request::Hello(hello)) => hello,
        _ => return Err(End::Gone),
    };
    check_token(connection, &hello)?;
    let terms = connection.terms.get();
    if let Some(shard) = hello.shard
        && shard != terms.shard
        && shard < terms.shards
    {
        return Ok(Some(shard));
    }
    frames.consume(FRAME_HEAD_LEN + body.len());
    if connection.host.is_draining() {
        return Err(End::Gone);
    }
    let terms = connection.session.borrow_mut().on_hello(&hello)?;
    connection.terms.set(terms);
    connection.client_id.set(hello.client_id);
    tracing::debug!(
        connection = connection.number,
        peer = %connection.peer,
        name = hello.name,
        shard = terms.shard,
        "hello"
    );
    let endpoint = Endpoint {
        shard: None,
        port: connection.host.shared.port,
        rail: 0,
        transport: Transport::Tcp,
        host: "",
    };
    connection.push_frame(256, |out| terms.encode([endpoint], out));
    Ok(None)
}

fn check_token(connection: &Connection, hello: &ClientHello<'_>) -> Result<(), End> {
    let Some(token) = &connection.host.config().token else {
        return Ok(());
    };
    // Every byte is looked at, so that the time tells nothing of where the first wrong one is.
    let differ = token
        .iter()
        .zip(hello.token)
        .fold(0, |differ, (a, b)| differ | (a ^ b));
    if differ == 0 && token.len() == hello.token.len() {
        return Ok(());
    }
    Err(End::Broken {
        code: ErrorCode::NotAuthenticated,
        argument: 0,
        text: "the token is missing or not the node's; give the node's token file".to_owned(),
    })
}

/// Takes requests until the connection ends.
async fn requests(connection: &Rc<Connection>, frames: &mut Frames) -> Result<(), End> {
    let mut in_a_row = 0;
    loop {
        // Credit comes back with each reply that is queued, so it does not bound what waits.
        connection.room().await;
        if connection.is_closed() {
            return Err(End::Gone);
        }
        let head = next_head(connection, frames).await?;
        let incoming = connection.session.borrow_mut().on_head(&head)?;
        connection
            .host
            .count(|counters| counters.bytes_received += FRAME_HEAD_LEN as u64);
        match incoming {
            Incoming::Request(verb) => {
                let body = body(connection, frames, &head).await?;
                frames.consume(FRAME_HEAD_LEN + body.len());
                connection.begin(&head, verb);
                connection.host.count(|counters| counters.requests += 1);
                dispatch::request(connection, frames, head, verb, body).await?;
            }
            //= docs/wire-protocol.md#WP-6
            Incoming::Refused(code) => {
                pass_over(connection, frames, &head).await?;
                let text = refusal_text(code);
                connection.refuse(head.request_id, head.verb_number, code, text);
            }
            Incoming::Cancel { .. } => {
                pass_over(connection, frames, &head).await?;
                connection.cancel(head.request_id);
            }
            Incoming::Goodbye => {
                pass_over(connection, frames, &head).await?;
                connection.say_goodbye(GoodbyeReason::Done, 0);
                return Err(End::Ended);
            }
            Incoming::Hello => return Err(End::Gone),
        }
        in_a_row += 1 + head.body_len / FRAME_WORTH;
        if in_a_row >= FRAMES_IN_A_ROW {
            in_a_row = 0;
            connection.flush().await;
            connection.shard().runtime().yield_now().await;
        }
    }
}

const fn refusal_text(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Draining => "the node stops; connect again, or to another one",
        ErrorCode::FeatureNotInForce => "the hello did not agree on the verb's feature",
        _ => "no verb of version 1 has this number",
    }
}

/// Passes over body and values of a frame.
async fn pass_over(
    connection: &Rc<Connection>,
    frames: &mut Frames,
    head: &FrameHead,
) -> Result<(), End> {
    frames.consume(FRAME_HEAD_LEN);
    let len = u64::from(head.body_len) + u64::from(head.values_len);
    skip(connection, frames, len).await?;
    connection.wait_for(Waiting::Not);
    Ok(())
}
