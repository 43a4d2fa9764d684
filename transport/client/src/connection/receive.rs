//! Reading: frames, whom they belong to, and values into the memory of their call.

use std::future::poll_fn;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_lite::FutureExt;
use terrace_wire::{
    ErrorCode, Expected, FRAME_HEAD_LEN, FrameHead, FrameLimits, Partial, Reply, ReplyHead,
};

use super::{Arrived, CREDIT_WAITER, Call, Connection, LOOKER, State, open, unneeded};
use crate::error::{Cause, Failure, Retry};
use crate::wait::Sleep;

/// Most bytes that are received at once: what is hashed while it is still in the CPU's cache.
const PIECE_LEN: usize = 128 << 10;

/// Bytes received past what a frame needs, so that a head and a short body come at once. Values among
/// them are copied once more.
const AHEAD_LEN: usize = 512;

/// How long a call that has the lead may stay away before another one takes it. It is not polled
/// then: its task waits for something else.
const AWAY: Duration = Duration::from_millis(100);

/// Bytes that were received and not yet taken, and what comes next.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    stage: Stage,
    /// The socket was found empty: the next thing to do is to wait for it.
    is_drained: bool,
}

/// What the next byte is of.
#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Head,
    Body(FrameHead),
    Values {
        id: u64,
        left: usize,
    },
}

impl Incoming {
    fn held(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for what is missing of `needed` bytes, and a little more.
    fn room(&mut self, needed: usize) -> &mut [u8] {
        let held = self.end - self.start;
        let whole = needed.max(held) + AHEAD_LEN;
        if self.start + whole > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
            if self.buffer.len() < whole {
                self.buffer.resize(whole, 0);
            }
        }
        &mut self.buffer[self.end..self.start + whole]
    }
}

impl State {
    /// Whether there is something for a call to take.
    fn is_told(&self, id: u64) -> bool {
        let slot = self.slots.get(&id);
        slot.is_some_and(|slot| !slot.arrived.is_empty())
    }
}

impl Connection {
    /// Takes what came while nobody waited: most of all, that the node ended the connection.
    pub(crate) fn look(&self) {
        let mut state = self.state();
        let state = &mut *state;
        if state.leader.is_some() || !matches!(state.incoming.stage, Stage::Head) {
            return;
        }
        match self.receive_held(state, FRAME_HEAD_LEN) {
            Ok(false) => return,
            Ok(true) => {}
            Err(failure) => return self.fail(state, failure),
        }
        state.leader = Some(LOOKER);
        let cx = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(Err(failure)) = self.poll_lead(state, LOOKER, cx) {
            self.fail(state, failure);
        }
        state.free_lead(LOOKER);
    }

    /// Receives into `target` without waiting; `None` when nothing is there.
    fn try_receive(&self, target: &mut [u8]) -> Result<Option<usize>, Failure> {
        loop {
            match self.link.read(target) {
                Ok(0) => {
                    let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Err(Failure::io("receive", &error));
                }
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::io("receive", &error)),
            }
        }
    }

    /// Receives what is missing of `needed` bytes and a little more, without waiting; whether any came.
    fn receive_held(&self, state: &mut State, needed: usize) -> Result<bool, Failure> {
        let room = state.incoming.room(needed);
        let len = room.len();
        let received = self.try_receive(room)?;
        let count = received.unwrap_or(0);
        state.incoming.end += count;
        state.incoming.is_drained = self.is_drained(received, len);
        state.received += count as u64;
        Ok(received.is_some())
    }

    /// Whether the socket is empty behind a call that received so much into `room` bytes. Records that
    /// came already are not in the socket any more: with them a short answer says nothing.
    fn is_drained(&self, received: Option<usize>, room: usize) -> bool {
        received.is_none_or(|count| count < room && !self.link.has_records())
    }

    /// Waits for the socket as the leader.
    fn poll_socket(&self, state: &mut State, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        // Whoever comes back from the wait looks.
        state.incoming.is_drained = false;
        let ready = ready!(self.link.poll_readable(cx));
        Poll::Ready(ready.map_err(|error| Failure::io("receive", &error)))
    }

    /// Reads until there is something for the call `id`, or another one has to lead.
    fn poll_lead(
        &self,
        state: &mut State,
        id: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            if state.is_told(id) || state.leader != Some(id) {
                return Poll::Ready(Ok(()));
            }
            match state.incoming.stage {
                Stage::Head => {
                    ready!(self.poll_fill(state, FRAME_HEAD_LEN, cx))?;
                    self.take_head(state)?;
                }
                Stage::Body(head) => {
                    ready!(self.poll_fill(state, head.body_len as usize, cx))?;
                    self.take_body(state, &head)?;
                }
                Stage::Values { left: 0, .. } => state.incoming.stage = Stage::Head,
                Stage::Values { id: owner, .. } => {
                    ready!(self.poll_others_values(state, owner, cx))?;
                }
            }
        }
    }

    /// Reads until `needed` bytes are held.
    fn poll_fill(
        &self,
        state: &mut State,
        needed: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        while state.incoming.held().len() < needed {
            if state.incoming.is_drained || !self.receive_held(state, needed)? {
                ready!(self.poll_socket(state, cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Values of a call that is gone are dropped, those of one that is away are kept for it.
    fn poll_others_values(
        &self,
        state: &mut State,
        owner: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        let Stage::Values { left, .. } = state.incoming.stage else {
            return Poll::Ready(Ok(()));
        };
        if state.incoming.held().is_empty() {
            ready!(self.poll_fill(state, left.min(PIECE_LEN), cx))?;
        }
        let held = state.incoming.held();
        let count = left.min(held.len());
        if let Some(slot) = state.slots.get_mut(&owner) {
            slot.spilled.extend(&held[..count]);
        }
        state.incoming.take(count);
        let (id, left) = (owner, left - count);
        state.incoming.stage = Stage::Values { id, left };
        if left == 0
            && let Some(waker) = state.slot_to_wake(owner)
        {
            waker.wake();
        }
        Poll::Ready(Ok(()))
    }

    fn take_head(&self, state: &mut State) -> Result<(), Failure> {
        let limits: FrameLimits = state.session.frame_limits();
        let parsed = FrameHead::parse(state.incoming.held(), &limits).map_err(Failure::protocol)?;
        let Partial::Whole(head) = parsed else {
            return Err(Failure::protocol("a head of 32 bytes was not whole"));
        };
        let expected = state.session.on_head(&head).map_err(Failure::protocol)?;
        if expected == Expected::Goodbye {
            self.retire();
        }
        state.incoming.take(FRAME_HEAD_LEN);
        state.incoming.stage = Stage::Body(head);
        Ok(())
    }

    /// Takes a body that is held, and gives it to whom it belongs to.
    fn take_body(&self, state: &mut State, head: &FrameHead) -> Result<(), Failure> {
        let body = head
            .body(state.incoming.held())
            .map_err(Failure::protocol)?;
        let reply = Reply::decode(head, body).map_err(Failure::protocol)?;
        let id = head.request_id;
        let mut is_last = false;
        match &reply {
            Reply::Credit(credit) => state.session.on_credit(credit).map_err(Failure::protocol)?,
            // Noted with its head.
            Reply::Goodbye(_) => {}
            reply => {
                is_last = state
                    .session
                    .on_reply(head, reply)
                    .map_err(Failure::protocol)?;
                if let (Reply::Error(error), 0) = (reply, id) {
                    let lost = open::refusal(error);
                    // Requests under way may have been carried out before.
                    return Err(Failure::new(lost.cause, reads_only(lost.retry)));
                }
            }
        }
        if head_of(&reply).is_some_and(|head| head.map_epoch != self.terms.map_epoch) {
            //= docs/wire-protocol.md#WP-17
            self.has_moved.store(true, Ordering::Relaxed);
        }
        let opens = state.slots.get(&id).and_then(|slot| slot.opens);
        if let Some(number) = opens {
            if let Reply::Error(error) = &reply {
                let refused = (error.code, error.text.to_owned());
                state.refused.insert(number, refused);
            }
            state.slots.remove(&id);
        } else if let Some(slot) = state.slots.get_mut(&id) {
            slot.arrived.push_back(Arrived {
                head: *head,
                body: body.to_vec(),
                is_last,
            });
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        } else {
            // Whoever asked is gone.
            state.unneeded.extend(unneeded::granted(head, &reply));
        }
        // Replies bring credit back.
        if let Some(waker) = state.slot_to_wake(CREDIT_WAITER) {
            waker.wake();
        }
        state.incoming.take(head.body_len as usize);
        let left = head.values_len as usize;
        state.incoming.stage = match left {
            0 => Stage::Head,
            _ => Stage::Values { id, left },
        };
        // Whoever gets values reads them.
        if left > 0 && state.slots.contains_key(&id) {
            state.leader = Some(id);
        }
        Ok(())
    }

    /// Leads on behalf of `id` if nobody else does; ready when there is something for it.
    pub(super) fn poll_progress(
        &self,
        state: &mut State,
        id: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        let outcome = loop {
            // What came before a fault counts.
            if state.is_told(id) {
                return Poll::Ready(Ok(()));
            }
            if let Some(failure) = &state.fault {
                return Poll::Ready(Err(failure.clone()));
            }
            let leader = *state.leader.get_or_insert(id);
            if leader != id {
                break Poll::Pending;
            }
            match self.poll_lead(state, id, cx) {
                // Told, or the lead went to the call whose values come next; that was woken.
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(failure)) => self.fail(state, failure),
                Poll::Pending => break Poll::Pending,
            }
        };
        if outcome.is_pending()
            && let Some(slot) = state.slots.get_mut(&id)
        {
            slot.waker = Some(cx.waker().clone());
        }
        outcome
    }
}

/// The head of a reply that has one.
const fn head_of(reply: &Reply<'_>) -> Option<ReplyHead> {
    Some(match reply {
        Reply::Statuses(head, _) => *head,
        Reply::Values(head, _) => *head,
        Reply::Facts(head, _) => *head,
        Reply::Leases(head, _) => *head,
        Reply::Descriptors(head, _) => *head,
        Reply::Matched(head, _) => *head,
        Reply::Listed(head, ..) => *head,
        Reply::Events(head, ..) => *head,
        _ => return None,
    })
}

const fn reads_only(retry: Retry) -> Retry {
    match retry {
        Retry::Always => Retry::Reads,
        other => other,
    }
}

impl Call {
    /// The next frame of the reply. Its values have to be received before the one after it.
    pub(crate) async fn receive(&mut self) -> Result<Arrived, Failure> {
        let mut away = None;
        let arrived = poll_fn(|cx| self.poll_arrived(&mut away, cx)).await?;
        self.is_done = arrived.is_last;
        Ok(arrived)
    }

    fn poll_arrived(
        &self,
        away: &mut Option<(Sleep, u64)>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arrived, Failure>> {
        let connection = Arc::clone(&self.connection);
        loop {
            let mut state = connection.state();
            let outcome = connection.poll_progress(&mut state, self.id, cx);
            if outcome.is_ready() {
                ready!(outcome)?;
                let slot = state.slots.get_mut(&self.id);
                let Some(arrived) = slot.and_then(|slot| slot.arrived.pop_front()) else {
                    return Poll::Ready(Err(Failure::protocol("values came without their reply")));
                };
                if arrived.head.values_len == 0 {
                    state.free_lead(self.id);
                }
                return Poll::Ready(Ok(arrived));
            }
            if state.leader == Some(self.id) {
                *away = None;
                return Poll::Pending;
            }
            if !self.poll_away(&mut state, away, cx) {
                return Poll::Pending;
            }
        }
    }

    /// Takes the lead of a call that stays away.
    fn poll_away(
        &self,
        state: &mut State,
        away: &mut Option<(Sleep, u64)>,
        cx: &mut Context<'_>,
    ) -> bool {
        let (timer, seen) = away.get_or_insert_with(|| (Sleep::lasting(AWAY), state.received));
        if timer.poll(cx).is_pending() {
            return false;
        }
        let is_away = *seen == state.received;
        *away = None;
        if is_away {
            state.leader = Some(self.id);
        }
        true
    }

    /// Receives some bytes of the values that are next, into the front of `target`, which is not
    /// empty and no longer than they are.
    pub(crate) async fn receive_values(&mut self, target: &mut [u8]) -> Result<usize, Failure> {
        poll_fn(|cx| self.poll_values(target, cx)).await
    }

    fn poll_values(&self, target: &mut [u8], cx: &mut Context<'_>) -> Poll<Result<usize, Failure>> {
        let connection = &self.connection;
        let mut state = connection.state();
        let state = &mut *state;
        if let Some(slot) = state.slots.get_mut(&self.id)
            && !slot.spilled.is_empty()
        {
            let count = slot.spilled.read(target).unwrap_or(0);
            return Poll::Ready(Ok(count));
        }
        if let Some(failure) = &state.fault {
            return Poll::Ready(Err(failure.clone()));
        }
        let left = match state.incoming.stage {
            Stage::Values { id, left } if id == self.id && left > 0 => left,
            _ => return Poll::Ready(Err(Failure::protocol("there are no values to receive"))),
        };
        // Whoever took the lead while this call was away gives it back.
        state.leader = Some(self.id);
        let len = target.len().min(left).min(PIECE_LEN);
        let held = state.incoming.held();
        let count = if held.is_empty() {
            match connection.poll_piece(state, &mut target[..len], cx) {
                Poll::Ready(Ok(count)) => count,
                Poll::Ready(Err(failure)) => {
                    connection.fail(state, failure.clone());
                    return Poll::Ready(Err(failure));
                }
                Poll::Pending => {
                    if let Some(slot) = state.slots.get_mut(&self.id) {
                        slot.waker = Some(cx.waker().clone());
                    }
                    return Poll::Pending;
                }
            }
        } else {
            let count = len.min(held.len());
            target[..count].copy_from_slice(&held[..count]);
            state.incoming.take(count);
            count
        };
        let (id, left) = (self.id, left - count);
        state.incoming.stage = Stage::Values { id, left };
        if left == 0 {
            state.incoming.stage = Stage::Head;
            state.free_lead(id);
        }
        Poll::Ready(Ok(count))
    }

    /// The failure that an error frame tells of.
    pub(crate) fn refusal(&self, error: &terrace_wire::ErrorFrame<'_>, number: u16) -> Failure {
        let state = self.connection.state();
        if let (ErrorCode::NamespaceNumber, Some((code, text))) =
            (error.code, state.refused.get(&number))
        {
            let (code, text) = (*code, text.clone());
            return Failure::new(Cause::Rejected { code, text }, Retry::Never);
        }
        let failure = open::refusal(error);
        match error.code {
            //= docs/wire-protocol.md#WP-15
            ErrorCode::Draining => Failure::new(failure.cause, Retry::Always),
            // It may have failed halfway.
            _ => Failure::new(failure.cause, reads_only(failure.retry)),
        }
    }
}

impl Connection {
    fn poll_piece(
        &self,
        state: &mut State,
        target: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, Failure>> {
        loop {
            if !state.incoming.is_drained
                && let Some(count) = self.try_receive(target)?
            {
                state.incoming.is_drained = self.is_drained(Some(count), target.len());
                state.received += count as u64;
                return Poll::Ready(Ok(count));
            }
            ready!(self.poll_socket(state, cx))?;
        }
    }
}
