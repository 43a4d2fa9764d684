//! A read for all who want its block, run by the one who came first.
//!
//! Most reads are waited for by one caller: it polls the read itself, and no task, message or
//! wake is between the two. The read becomes a task of the shard's own as soon as somebody else
//! waits for it, or its caller goes away: it may not depend on a caller that does not poll.
//!
//! **Invariants**
//! - The read ends and cleans up by itself, whoever goes away.
//! - Its outcome is taken once, by the caller that began it, or dropped.

use std::cell::RefCell;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use terrace_types::UnavailableReason;

use super::Shard;
use terrace_runtime::LocalFuture;

/// What a read comes to.
pub(super) type Outcome<T> = Result<Option<T>, UnavailableReason>;

/// A read under way, as others see it.
pub(super) trait UnderWay {
    /// From now on it is a task of the shard's own.
    fn leave(self: Rc<Self>);
}

/// See the module's text.
pub(super) struct Flight<T> {
    shard: Rc<Shard>,
    state: RefCell<FlightState<T>>,
}

struct FlightState<T> {
    /// The read, while its caller runs it and does not poll it right now.
    read: Option<LocalFuture<'static, Outcome<T>>>,
    /// It is to leave when its caller has polled it.
    leaves: bool,
    /// It has left, and will not come to anything any more.
    over: bool,
    outcome: Option<Outcome<T>>,
    waker: Option<Waker>,
}

impl<T> FlightState<T> {
    fn wait(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            None => self.waker = Some(waker.clone()),
        }
    }
}

/// The caller's end of a [`Flight`].
pub(super) struct Caller<T: 'static>(Rc<Flight<T>>);

impl<T: 'static> Flight<T> {
    /// Nothing runs until [`Flight::caller`] is polled.
    pub(super) fn new(shard: &Rc<Shard>, read: LocalFuture<'static, Outcome<T>>) -> Rc<Self> {
        Rc::new(Self {
            shard: Rc::clone(shard),
            state: RefCell::new(FlightState {
                read: Some(read),
                leaves: false,
                over: false,
                outcome: None,
                waker: None,
            }),
        })
    }

    /// Waits for the outcome, and runs the read meanwhile.
    pub(super) fn caller(self: &Rc<Self>) -> Caller<T> {
        Caller(Rc::clone(self))
    }
}

impl<T: 'static> UnderWay for Flight<T> {
    fn leave(self: Rc<Self>) {
        let read = {
            let mut state = self.state.borrow_mut();
            state.leaves = true;
            state.read.take()
        };
        let Some(read) = read else { return };
        let shard = Rc::clone(&self.shard);
        shard.spawn(Box::pin(async move {
            let landing = Landing(self);
            let outcome = read.await;
            landing.0.state.borrow_mut().outcome = Some(outcome);
        }));
    }
}

/// Tells the caller when the task of a read ends, by a panic, too.
struct Landing<T>(Rc<Flight<T>>);

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.state.borrow_mut();
            state.over = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: 'static> Future for Caller<T> {
    type Output = Outcome<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        let flight = &self.0;
        let read = flight.state.borrow_mut().read.take();
        if let Some(mut read) = read {
            let poll = AssertUnwindSafe(|| read.as_mut().poll(context));
            match std::panic::catch_unwind(poll) {
                Ok(Poll::Pending) => {}
                Ok(ready) => return ready,
                Err(panic) => {
                    flight.shard.fence(&*panic);
                    return Poll::Ready(Err(UnavailableReason::ShardFenced));
                }
            }
            let mut state = flight.state.borrow_mut();
            state.read = Some(read);
            if !state.leaves {
                // It may leave before the next poll.
                state.wait(context.waker());
                return Poll::Pending;
            }
            drop(state);
            Rc::clone(flight).leave();
        }
        let mut state = flight.state.borrow_mut();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        if state.over {
            return Poll::Ready(Err(UnavailableReason::ShardFenced));
        }
        state.wait(context.waker());
        Poll::Pending
    }
}

impl<T: 'static> Drop for Caller<T> {
    fn drop(&mut self) {
        Rc::clone(&self.0).leave();
    }
}
