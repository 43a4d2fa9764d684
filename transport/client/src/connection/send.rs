//! Writing: whole frames, from the memory of their call, one after another.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use terrace_wire::{
    ErrorCode, FRAME_HEAD_LEN, NamespaceNumber, OpenNamespace, SessionError, Verb, WireError,
};

use super::link::Link;
use super::{CREDIT_WAITER, Call, Connection, Slot, State};
use crate::error::{Cause, Failure, Retry};

/// Most slices that go to the operating system at once; it takes 1024.
const SLICES_MAX: usize = 64;

/// What stands in for values whose call is gone.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What of the frames that were begun is still to be written.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Heads and bodies.
    frame: Vec<u8>,
    /// How much of them was written.
    sent: usize,
    /// Bytes of values behind them that were not written yet.
    values_left: u64,
    /// The frame that is to begin.
    next: Vec<u8>,
}

/// Values of a request as slices, and where writing them is.
#[derive(Default)]
struct Values<'a> {
    slices: &'a [&'a [u8]],
    first: usize,
    offset: usize,
}

impl Values<'_> {
    fn advance(&mut self, mut count: usize) {
        while let Some(slice) = self.slices.get(self.first) {
            let left = slice.len() - self.offset;
            if count < left {
                self.offset += count;
                return;
            }
            count -= left;
            (self.first, self.offset) = (self.first + 1, 0);
        }
    }
}

/// A request that is to be sent.
pub(crate) struct Frame<'a> {
    pub(crate) verb: Verb,
    /// How many entries it has.
    pub(crate) entries: usize,
    /// Its values, in order.
    pub(crate) values: &'a [&'a [u8]],
    /// The namespace that has to be open before it.
    pub(crate) namespace: Option<(u16, &'a str)>,
}

/// Writes the frame of a request with the id it gets, into memory that may be too short.
pub(crate) type Encode<'a> = dyn Fn(u64, &mut [u8]) -> Result<usize, WireError> + Send + Sync + 'a;

impl Connection {
    /// Sends a request. Dropped halfway, the rest of the frame is made up for by whoever sends next.
    pub(crate) async fn send(
        self: &Arc<Self>,
        frame: Frame<'_>,
        encode: &Encode<'_>,
    ) -> Result<Call, Failure> {
        let mut outgoing = self.outgoing.lock().await;
        if let Some((number, name)) = frame.namespace {
            self.open_namespace(&mut outgoing, number, name).await?;
        }
        let values_len = frame.values.iter().map(|slice| slice.len() as u64).sum();
        let id = self
            .begin(
                &mut outgoing,
                frame.verb,
                (values_len, frame.entries),
                encode,
            )
            .await
            .map_err(Failure::before_sent)?;
        let call = {
            let mut state = self.state();
            state.slots.insert(id, Slot::default());
            Call {
                connection: Arc::clone(self),
                id,
                is_done: false,
            }
        };
        let mut values = Values {
            slices: frame.values,
            first: 0,
            offset: 0,
        };
        let written = poll_fn(|cx| self.poll_write(&mut outgoing, &mut values, id, cx)).await;
        // A node carries out no request that it does not have whole.
        written.map_err(|failure| match outgoing.is_done() {
            true => failure,
            false => failure.before_sent(),
        })?;
        self.push_releases(&mut outgoing);
        Ok(call)
    }

    /// Opens a namespace unless that was done. Nobody waits for the reply.
    //= docs/wire-protocol.md#WP-16
    async fn open_namespace(
        &self,
        outgoing: &mut Outgoing,
        number: u16,
        name: &str,
    ) -> Result<(), Failure> {
        if self.state().opened.contains(&number) {
            return Ok(());
        }
        let open = OpenNamespace {
            number: NamespaceNumber(number),
            name,
        };
        let encode = |id, out: &mut [u8]| open.encode(id, out);
        let id = self
            .begin(outgoing, Verb::OpenNamespace, (0, 0), &encode)
            .await
            .map_err(Failure::before_sent)?;
        let mut state = self.state();
        state.opened.push(number);
        let slot = Slot {
            opens: Some(number),
            ..Slot::default()
        };
        state.slots.insert(id, slot);
        Ok(())
    }

    /// Takes credit for a request and puts its head and body behind what is to be written.
    async fn begin(
        &self,
        outgoing: &mut Outgoing,
        verb: Verb,
        (values_len, entries): (u64, usize),
        encode: &Encode<'_>,
    ) -> Result<u64, Failure> {
        let mut waiter = Waiter::new(self, outgoing);
        // The values that are owed have to be written before anything new stands behind them.
        if waiter.outgoing.values_left > 0 {
            let mut none = Values::default();
            poll_fn(|cx| self.poll_write(waiter.outgoing, &mut none, CREDIT_WAITER, cx)).await?;
        }
        let id = self.state().session.next_id();
        let len = encode_into(&mut waiter.outgoing.next, |out| encode(id, out));
        let len = len.map_err(unsendable)?;
        let request = (verb, len - FRAME_HEAD_LEN, values_len, entries);
        poll_fn(|cx| waiter.poll_begin(request, cx)).await?;
        Ok(id)
    }

    /// Writes all of the frames that were begun, and of cancels behind them what the socket takes.
    /// `id` is told of replies meanwhile, so that a node that waits for its replies to be read goes on
    /// reading.
    fn poll_write(
        &self,
        outgoing: &mut Outgoing,
        values: &mut Values<'_>,
        id: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            if let Some(failure) = self.state().fault.clone() {
                return Poll::Ready(Err(failure));
            }
            if outgoing.is_done() {
                // The request is whole on the wire. Were it a failure of its sending that a cancel of
                // another call cannot follow, a put would be sent again that the node may have: the
                // fault shows where the reply is awaited.
                drop(self.write_some(&mut self.state(), outgoing));
                return Poll::Ready(Ok(()));
            }
            match outgoing.write(&self.link, values) {
                Ok(()) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    let failure = Failure::io("send", &error);
                    self.fail(&mut self.state(), failure.clone());
                    return Poll::Ready(Err(failure));
                }
            }
            let mut state = self.state();
            if let Poll::Ready(Err(failure)) = self.poll_progress(&mut state, id, cx) {
                return Poll::Ready(Err(failure));
            }
            drop(state);
            if let Err(error) = ready!(self.link.poll_writable(cx)) {
                let failure = Failure::io("send", &error);
                self.fail(&mut self.state(), failure.clone());
                return Poll::Ready(Err(failure));
            }
        }
    }

    /// Writes what the socket takes now of frames without values.
    pub(super) fn write_some(
        &self,
        state: &mut State,
        outgoing: &mut Outgoing,
    ) -> Result<(), Failure> {
        if outgoing.is_done() {
            outgoing.reset();
        }
        outgoing.frame.append(&mut state.control);
        let mut none = Values::default();
        while !outgoing.is_done() {
            match outgoing.write(&self.link, &mut none) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    let failure = Failure::io("send", &error);
                    self.fail(state, failure.clone());
                    return Err(failure);
                }
            }
        }
        outgoing.reset();
        Ok(())
    }

    /// Sends cancels now if nobody is writing and the socket takes them; else with what is sent next.
    pub(super) fn send_control(&self) {
        let Some(mut outgoing) = self.outgoing.try_lock() else {
            return;
        };
        if outgoing.values_left > 0 {
            return;
        }
        // Whatever is wrong with the socket is found by the next call.
        drop(self.write_some(&mut self.state(), &mut outgoing));
    }
}

impl Outgoing {
    fn is_done(&self) -> bool {
        self.sent == self.frame.len() && self.values_left == 0
    }

    fn reset(&mut self) {
        self.frame.clear();
        self.sent = 0;
    }

    /// Whether values of a frame that was begun are still to be written.
    pub(super) const fn owes_values(&self) -> bool {
        self.values_left > 0
    }

    /// Where a frame is encoded before it is known whether it may begin.
    pub(super) const fn next(&mut self) -> &mut Vec<u8> {
        &mut self.next
    }

    /// Puts that frame behind what is to be written.
    pub(super) fn push_next(&mut self) {
        self.frame.extend_from_slice(&self.next);
    }

    /// Writes once, as much as the socket takes.
    fn write(&mut self, link: &Link, values: &mut Values<'_>) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut push = |slice| {
            if let Some(place) = slices.get_mut(count) {
                *place = IoSlice::new(slice);
                count += 1;
            }
        };
        let frame_left = self.frame.get(self.sent..).unwrap_or_default();
        if !frame_left.is_empty() {
            push(frame_left);
        }
        if self.values_left > 0 {
            match values.slices.get(values.first..) {
                Some([first, rest @ ..]) => {
                    push(first.get(values.offset..).unwrap_or_default());
                    rest.iter().take(SLICES_MAX).for_each(|slice| push(slice));
                }
                _ => {
                    let len = (self.values_left).min(ZEROS.len() as u64) as usize;
                    push(&ZEROS[..len]);
                }
            }
        }
        let written = link.write_vectored(&slices[..count])?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_frame = written.min(frame_left.len());
        self.sent += of_frame;
        let of_values = written - of_frame;
        self.values_left -= of_values as u64;
        values.advance(of_values);
        Ok(())
    }
}

/// Encodes into `frame`, which grows as needed.
pub(super) fn encode_into(
    frame: &mut Vec<u8>,
    encode: impl Fn(&mut [u8]) -> Result<usize, WireError>,
) -> Result<usize, WireError> {
    frame.resize(frame.capacity().max(512), 0);
    loop {
        match encode(frame) {
            Err(WireError::NoRoom { needed, .. }) if needed > frame.len() => {
                frame.resize(needed, 0);
            }
            Ok(len) => {
                frame.truncate(len);
                return Ok(len);
            }
            Err(error) => return Err(error),
        }
    }
}

/// A request that waits to begin. Dropped before it has its credit, nothing of it is sent.
struct Waiter<'a> {
    connection: &'a Connection,
    outgoing: &'a mut Outgoing,
}

impl<'a> Waiter<'a> {
    fn new(connection: &'a Connection, outgoing: &'a mut Outgoing) -> Self {
        let mut state = connection.state();
        state.slots.insert(CREDIT_WAITER, Slot::default());
        drop(state);
        Self {
            connection,
            outgoing,
        }
    }

    fn poll_begin(
        &mut self,
        (verb, body_len, values_len, entries): (Verb, usize, u64, usize),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            let mut state = self.connection.state();
            let state: &mut State = &mut state;
            if let Some(failure) = &state.fault {
                return Poll::Ready(Err(failure.clone()));
            }
            let begun = state.session.begin(verb, body_len, values_len, entries);
            match begun {
                Ok(_) => {
                    self.outgoing.push_next();
                    self.outgoing.values_left = values_len;
                    return Poll::Ready(Ok(()));
                }
                Err(SessionError::Credit { .. }) => {}
                Err(error) => return Poll::Ready(Err(refused(error))),
            }
            // What stands before it has to be sent, so that its credit comes back.
            if !self.outgoing.is_done() || !state.control.is_empty() {
                let written = self.connection.write_some(state, self.outgoing);
                if let Err(failure) = written {
                    return Poll::Ready(Err(failure));
                }
            }
            let before = state.received;
            let progress = self.connection.poll_progress(state, CREDIT_WAITER, cx);
            match progress {
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                // Something came: it may have been credit.
                _ if state.received != before => continue,
                _ => {}
            }
            if self.outgoing.is_done() {
                return Poll::Pending;
            }
            ready!(self.connection.link.poll_writable(cx))
                .map_err(|error| Failure::io("send", &error))?;
        }
    }
}

/// Why a request cannot be made bytes.
fn unsendable(error: WireError) -> Failure {
    match error {
        WireError::Field {
            field,
            value,
            limit,
            ..
        } => Failure::argument(field, value, limit),
        error => Failure::protocol(error),
    }
}

/// Why a request may not be sent on a connection.
fn refused(error: SessionError) -> Failure {
    match error {
        SessionError::NotOpen { .. } => Failure::unavailable("the node takes no requests"),
        SessionError::OverLimit {
            field,
            value,
            limit,
        } => Failure::argument(field, value, format_args!("at most {limit} for this node")),
        SessionError::Feature { .. } => Failure::new(
            Cause::Rejected {
                code: ErrorCode::FeatureNotInForce,
                text: error.to_string(),
            },
            Retry::Never,
        ),
        error => Failure::protocol(error),
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        state.slots.remove(&CREDIT_WAITER);
        state.free_lead(CREDIT_WAITER);
    }
}
