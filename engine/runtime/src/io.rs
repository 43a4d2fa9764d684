//! Turning the backend of a shard's devices on the shard's executor: three tasks that hand over
//! what was queued, take in what completed, and let deadlines pass.
//!
//! **Invariants**
//! - Nothing runs while nothing is under way: no timer, no poll.
//! - Operations that tasks queue in the same turn go to the medium by one call, unless the
//!   backend finds that there are enough of them earlier.
//! - The tasks hold the backend only within a step; when the [`Driver`] is dropped they end.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_lite::future::or;
use terrace_nvme::{Completion, IoBackend};
use terrace_types::Nanos;

use crate::{Eventfd, Runtime};

/// How late a deadline may be noticed.
const EXPIRE_INTERVAL: Duration = Duration::from_millis(50);

/// A flag that one task waits for. It stays up until it is waited for, so none is lost.
#[derive(Default)]
struct Signal {
    up: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Signal {
    fn raise(&self) {
        self.up.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.up.take() {
            return Poll::Ready(());
        }
        self.waker.set(Some(context.waker().clone()));
        Poll::Pending
    }

    async fn wait(&self) {
        poll_fn(|context| self.poll(context)).await;
    }
}

struct Shared {
    runtime: Rc<dyn Runtime>,
    /// `None` once the driver was dropped.
    backend: RefCell<Option<Rc<dyn IoBackend>>>,
    event: Option<Eventfd>,
    /// The driver was dropped; for the submit task, which otherwise waits for the backend.
    ended: Signal,
    /// Operations went to the medium, or the driver was dropped; for the reap task.
    reap: Signal,
    /// The same, for the expire task while nothing is under way.
    expire: Signal,
    /// The driver was dropped; for the expire task while it sleeps.
    expire_ended: Signal,
}

/// The tasks that turn a backend. Dropping it ends them and lets go of the backend.
#[must_use = "dropping it ends the tasks"]
pub struct Driver {
    shared: Rc<Shared>,
}

/// Starts the tasks that turn `backend` on this thread. `event` is the eventfd that the
/// backend signals, if it does.
///
/// # Panics
/// When the backend tells completions by an event and none is given.
pub fn drive(
    runtime: &Rc<dyn Runtime>,
    backend: Rc<dyn IoBackend>,
    event: Option<Eventfd>,
) -> Driver {
    let told = backend.completion();
    let shared = Rc::new(Shared {
        runtime: Rc::clone(runtime),
        backend: RefCell::new(Some(backend)),
        event,
        ended: Signal::default(),
        reap: Signal::default(),
        expire: Signal::default(),
        expire_ended: Signal::default(),
    });
    runtime.spawn(Box::pin(submit(Rc::clone(&shared))));
    runtime.spawn(Box::pin(expire(Rc::clone(&shared))));
    match told {
        Completion::Event => {
            let event = shared.event.clone();
            let event = event.expect("the backend signals an eventfd, and none was given");
            runtime.spawn(Box::pin(reap_on_event(Rc::clone(&shared), event)));
        }
        Completion::Polled => runtime.spawn(Box::pin(reap_by_polling(Rc::clone(&shared)))),
        Completion::At(_) => runtime.spawn(Box::pin(reap_by_clock(Rc::clone(&shared)))),
    }
    Driver { shared }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let backend = self.shared.backend.take();
        let shared = &self.shared;
        [
            &shared.ended,
            &shared.reap,
            &shared.expire,
            &shared.expire_ended,
        ]
        .into_iter()
        .for_each(Signal::raise);
        if let Some(event) = &shared.event {
            event.signal();
        }
        drop(backend);
    }
}

impl Shared {
    fn backend(&self) -> Option<Rc<dyn IoBackend>> {
        self.backend.borrow().clone()
    }

    /// When the next completion is due; `None` when nobody can say or nothing is under way.
    fn next_due(backend: &dyn IoBackend) -> Option<Nanos> {
        match backend.completion() {
            Completion::At(due) if backend.in_flight() > 0 && due < Nanos::MAX => Some(due),
            _ => None,
        }
    }

    fn has_queued(backend: &dyn IoBackend) -> bool {
        // The submit task registers its own waker right afterwards.
        let mut context = Context::from_waker(Waker::noop());
        backend.poll_queued(&mut context).is_ready()
    }

    fn poll_queued(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(backend) = self.backend() else {
            return Poll::Ready(());
        };
        if self.ended.poll(context).is_ready() {
            return Poll::Ready(());
        }
        backend.poll_queued(context)
    }
}

async fn submit(shared: Rc<Shared>) {
    loop {
        poll_fn(|context| shared.poll_queued(context)).await;
        let Some(backend) = shared.backend() else {
            return;
        };
        backend.submit();
        shared.reap.raise();
        shared.expire.raise();
        let again = Shared::has_queued(&*backend);
        drop(backend);
        if again {
            // The medium took none or not all: others run before it is asked again.
            shared.runtime.yield_now().await;
        }
    }
}

async fn reap_on_event(shared: Rc<Shared>, event: Eventfd) {
    loop {
        shared.runtime.wait_for(&event).await;
        let Some(backend) = shared.backend() else {
            return;
        };
        // Whoever waited may ask for more before the next ones are told.
        while backend.reap(shared.runtime.now()) > 0 {
            shared.runtime.yield_now().await;
        }
    }
}

/// Turns without a completion after which a poller lets time pass between two looks: a device
/// that slow gains nothing by more, and other threads may be what it waits for.
const FRUITLESS_TURNS: u32 = 256;
/// The time it lets pass; timers make some 50 us of it.
const FRUITLESS_PAUSE: Duration = Duration::from_micros(20);

async fn reap_by_polling(shared: Rc<Shared>) {
    let mut fruitless = 0;
    loop {
        let Some(backend) = shared.backend() else {
            return;
        };
        if backend.in_flight() > 0 {
            let now = shared.runtime.now();
            let reaped = backend.reap(now);
            drop(backend);
            fruitless = if reaped > 0 { 0 } else { fruitless + 1 };
            if fruitless > FRUITLESS_TURNS {
                shared.runtime.sleep_until(now + FRUITLESS_PAUSE).await;
            } else {
                shared.runtime.yield_now().await;
            }
        } else {
            drop(backend);
            shared.reap.wait().await;
        }
    }
}

async fn reap_by_clock(shared: Rc<Shared>) {
    loop {
        let Some(backend) = shared.backend() else {
            return;
        };
        match Shared::next_due(&*backend) {
            Some(due) if due <= shared.runtime.now() => {
                backend.reap(shared.runtime.now());
                drop(backend);
                shared.runtime.yield_now().await;
            }
            Some(due) => {
                drop(backend);
                // What is submitted meanwhile may be due earlier.
                or(shared.runtime.sleep_until(due), shared.reap.wait()).await;
            }
            None => {
                drop(backend);
                shared.reap.wait().await;
            }
        }
    }
}

async fn expire(shared: Rc<Shared>) {
    loop {
        let Some(backend) = shared.backend() else {
            return;
        };
        if backend.in_flight() == 0 {
            drop(backend);
            shared.expire.wait().await;
            continue;
        }
        drop(backend);
        let next = shared.runtime.now() + EXPIRE_INTERVAL;
        or(shared.runtime.sleep_until(next), shared.expire_ended.wait()).await;
        if let Some(backend) = shared.backend() {
            backend.expire(shared.runtime.now());
        }
    }
}

#[cfg(test)]
#[path = "io_tests.rs"]
mod tests;
