//! A deterministic runtime: one thread, virtual time, and an order of tasks that a seed decides.
//!
//! **Invariants**
//! - The same seed and the same tasks run in the same order, to the same virtual times.
//! - Virtual time moves only when no task can run, and then to the next timer.
//!
//! Eventfds work here too: a wait polls the eventfd without blocking, so threads outside the
//! simulation should not signal into it when a run is to be repeated exactly.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use terrace_types::{Clock, Nanos};

use crate::{Eventfd, LocalFuture, Runtime, Tasks};

type ReadyList = Arc<Mutex<Vec<u64>>>;

struct TaskWaker {
    id: u64,
    ready: ReadyList,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.id);
    }
}

struct Timer {
    at: Nanos,
    order: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

struct EventfdWait {
    wake: Eventfd,
    waker: Waker,
    signalled: Rc<Cell<bool>>,
}

struct State {
    now: Cell<Nanos>,
    next_id: Cell<u64>,
    random: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, LocalFuture<'static, ()>>>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    waits: RefCell<Vec<EventfdWait>>,
    ready: ReadyList,
    steps: Cell<u64>,
}

/// The id of the future that `run` drives itself.
const ROOT: u64 = 0;

/// See the module's text.
pub struct Sim {
    state: Rc<State>,
}

impl Sim {
    /// A simulation whose task order derives from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            state: Rc::new(State {
                now: Cell::new(Nanos(1)),
                next_id: Cell::new(ROOT + 1),
                random: Cell::new(seed),
                tasks: RefCell::default(),
                timers: RefCell::default(),
                waits: RefCell::default(),
                ready: Arc::default(),
                steps: Cell::new(0),
            }),
        }
    }

    /// The runtime that tasks of this simulation use.
    #[must_use]
    pub fn runtime(&self) -> Rc<dyn Runtime> {
        Rc::new(SimRuntime {
            state: Rc::clone(&self.state),
        })
    }

    /// Runs until `root` completes.
    ///
    /// # Panics
    /// When nothing can run any more and `root` is not complete: a lost wake-up.
    pub fn run<T>(&self, root: impl Future<Output = T>) -> T {
        let mut root = pin!(root);
        let root_waker = self.state.waker(ROOT);
        self.state.wake(ROOT);
        loop {
            let Some(id) = self.state.pick() else {
                assert!(self.state.advance(), "no task can run: a wake-up was lost");
                continue;
            };
            self.state.steps.set(self.state.steps.get() + 1);
            if id == ROOT {
                let mut context = Context::from_waker(&root_waker);
                if let Poll::Ready(value) = root.as_mut().poll(&mut context) {
                    return value;
                }
                continue;
            }
            let waker = self.state.waker(id);
            let mut context = Context::from_waker(&waker);
            let Some(mut task) = self.state.tasks.borrow_mut().remove(&id) else {
                continue;
            };
            if task.as_mut().poll(&mut context).is_pending() {
                self.state.tasks.borrow_mut().insert(id, task);
            }
        }
    }

    /// Polls made so far: equal for equal runs.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.state.steps.get()
    }
}

impl Drop for Sim {
    /// Drops the tasks that are left: they hold the runtime, and it would hold them for ever.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        loop {
            let tasks = self.state.tasks.take();
            if tasks.is_empty() {
                break;
            }
            drop(tasks);
        }
        drop(self.state.timers.take());
        drop(self.state.waits.take());
    }
}

impl State {
    fn wake(&self, id: u64) {
        self.ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(id);
    }

    fn waker(&self, id: u64) -> Waker {
        Waker::from(Arc::new(TaskWaker {
            id,
            ready: Arc::clone(&self.ready),
        }))
    }

    fn new_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// The next number of a splitmix64 sequence.
    fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn pick(&self) -> Option<u64> {
        self.poll_waits();
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.sort_unstable();
        ready.dedup();
        if ready.is_empty() {
            return None;
        }
        let at = (self.random() % ready.len() as u64) as usize;
        Some(ready.swap_remove(at))
    }

    fn poll_waits(&self) {
        let mut waits = self.waits.borrow_mut();
        let mut kept = Vec::new();
        for wait in waits.drain(..) {
            if wait.wake.try_take() {
                wait.signalled.set(true);
                wait.waker.wake();
            } else {
                kept.push(wait);
            }
        }
        *waits = kept;
    }

    /// Moves time to the next timer; false when there is none.
    fn advance(&self) -> bool {
        let Some(Reverse(timer)) = self.timers.borrow_mut().pop() else {
            // Only a thread outside can still signal: let it run.
            std::thread::yield_now();
            return !self.waits.borrow().is_empty();
        };
        self.now.set(self.now.get().max(timer.at));
        timer.waker.wake();
        true
    }
}

struct SimRuntime {
    state: Rc<State>,
}

impl Clock for SimRuntime {
    fn now(&self) -> Nanos {
        self.state.now.get()
    }
}

impl Tasks for SimRuntime {
    fn spawn(&self, task: LocalFuture<'static, ()>) {
        let id = self.state.new_id();
        self.state
            .tasks
            .borrow_mut()
            .insert(id, crate::executor::logged(task));
        self.state.wake(id);
    }

    fn sleep_until(&self, deadline: Nanos) -> LocalFuture<'static, ()> {
        let state = Rc::clone(&self.state);
        let mut registered: Option<Waker> = None;
        Box::pin(poll_fn(move |context| {
            if state.now.get() >= deadline {
                return Poll::Ready(());
            }
            // A task may poll this again for another reason: one timer is enough.
            if !registered
                .as_ref()
                .is_some_and(|waker| waker.will_wake(context.waker()))
            {
                let (order, waker) = (state.new_id(), context.waker().clone());
                state.timers.borrow_mut().push(Reverse(Timer {
                    at: deadline,
                    order,
                    waker,
                }));
                registered = Some(context.waker().clone());
            }
            Poll::Pending
        }))
    }

    fn yield_now(&self) -> LocalFuture<'static, ()> {
        Box::pin(futures_lite::future::yield_now())
    }
}

impl Runtime for SimRuntime {
    fn wait_for(&self, wake: &Eventfd) -> LocalFuture<'static, ()> {
        let (state, wake) = (Rc::clone(&self.state), wake.clone());
        let mut registered: Option<Rc<Cell<bool>>> = None;
        Box::pin(poll_fn(move |context| {
            if let Some(signalled) = &registered {
                return if signalled.get() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                };
            }
            if wake.try_take() {
                return Poll::Ready(());
            }
            let signalled = Rc::new(Cell::new(false));
            registered = Some(Rc::clone(&signalled));
            let waker = context.waker().clone();
            state.waits.borrow_mut().push(EventfdWait {
                wake: wake.clone(),
                waker,
                signalled,
            });
            Poll::Pending
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(seed: u64) -> (Vec<u32>, u64) {
        let sim = Sim::new(seed);
        let runtime = sim.runtime();
        let log: Rc<RefCell<Vec<u32>>> = Rc::default();
        for i in 0..8 {
            let (runtime, log) = (Rc::clone(&runtime), Rc::clone(&log));
            let inner = Rc::clone(&runtime);
            runtime.spawn(Box::pin(async move {
                inner.yield_now().await;
                inner.sleep_until(Nanos(u64::from(i % 3) * 1000)).await;
                log.borrow_mut().push(i);
            }));
        }
        sim.run(runtime.sleep_until(Nanos(5000)));
        assert_eq!(runtime.now(), Nanos(5000));
        let log = log.borrow().clone();
        (log, sim.steps())
    }

    #[test]
    fn sim_repeats_by_seed() {
        assert_eq!(trace(3), trace(3));
        let orders: std::collections::HashSet<Vec<u32>> = (0..20).map(|s| trace(s).0).collect();
        assert!(orders.len() > 5, "seeds must change the order");
        assert!(trace(3).0.iter().filter(|i| *i % 3 == 2).count() == 2);
    }

    #[test]
    fn sim_task_panic_ends_the_task_alone() {
        let sim = Sim::new(1);
        let runtime = sim.runtime();
        runtime.spawn(Box::pin(async { panic!("on purpose") }));
        sim.run(runtime.sleep_until(Nanos(10)));
    }

    #[test]
    #[should_panic(expected = "a wake-up was lost")]
    fn sim_that_cannot_go_on_says_so() {
        Sim::new(1).run(std::future::pending::<()>());
    }
}
