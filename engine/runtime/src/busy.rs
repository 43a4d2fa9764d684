//! Waits of sockets on an executor's thread, by one epoll for all of them while they are busy.
//!
//! glommio waits for a socket by its rings, and each turn of them is a dozen system calls: more
//! than sending a block of 64 KiB takes. So as long as sockets are busy a task of the executor
//! waits for them, in one call that tells of all that are ready. When none was for [`BUSY_SPAN`],
//! it ends, and those that wait go on waiting by the rings.
//!
//! The thread sleeps in that call only when no other task may run, and then for a millisecond at
//! most: completions of the rings interrupt it, and only glommio's timers and wakes from other
//! threads that go past the rings may be late by as much.
//!
//! **Invariants**
//! - A socket that is not known to be ready was found empty, or full, behind its last event:
//!   events tell of changes only.
//! - While a socket waits here, the task runs.
//! - The thread does not sleep while glommio has something to tell its rings.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use terrace_types::{Clock, LocalFuture, Nanos};

use crate::executor::{MonotonicClock, yield_to_reactor};

/// How long sockets count as busy behind their last event. Waiting for so long costs about as much as
/// going over to the rings and back, which is what it saves when an event comes in time.
const BUSY_SPAN: Duration = Duration::from_millis(5);

/// How often other tasks go first before the sockets are looked at all the same.
const PASSES_MAX: u32 = 16;

/// Events that are taken at once.
const EVENTS_MAX: usize = 64;

thread_local! {
    /// Polls of this thread's tasks so far. Who gave way and finds it unchanged is alone.
    static TURNS: Cell<u64> = const { Cell::new(0) };
    /// Whether glommio was told of waits that its rings have not been told of yet.
    static IS_RING_BEHIND: Cell<bool> = const { Cell::new(false) };
    static SOCKETS: RefCell<Option<Rc<Sockets>>> = const { RefCell::new(None) };
}

/// A task that counts its polls.
pub(crate) struct Counted(pub(crate) LocalFuture<'static, ()>);

impl Future for Counted {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        TURNS.set(TURNS.get().wrapping_add(1));
        self.0.as_mut().poll(context)
    }
}

/// Takes note that a wait by glommio's rings begins: they have a turn before the thread sleeps.
pub(crate) fn ring_is_behind() {
    IS_RING_BEHIND.set(true);
}

/// What a socket waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receive,
    Send,
}

#[derive(Default)]
struct Side {
    /// Whether it is worth a try.
    is_ready: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Side {
    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A socket's state. It leaves the epoll with its [`Entry`].
struct Socket {
    receive: Side,
    send: Side,
    /// The other side ended, or something is wrong: no later event tells of it.
    is_over: Cell<bool>,
    /// It is to wait by glommio's rings.
    is_idle: Cell<bool>,
    /// It is among those that wait here.
    is_listed: Cell<bool>,
}

/// The sockets of a thread.
struct Sockets {
    epoll: Epoll,
    known: RefCell<HashMap<u64, Rc<Socket>>>,
    next: Cell<u64>,
    /// Those that waited here since the task began.
    waiting: RefCell<Vec<Rc<Socket>>>,
    has_task: Cell<bool>,
    /// The epoll failed: all wait by the rings.
    is_broken: Cell<bool>,
}

/// A socket that this thread's epoll watches.
pub(crate) struct Entry {
    sockets: Rc<Sockets>,
    socket: Rc<Socket>,
    token: u64,
}

impl Entry {
    /// Watches a socket, which has to be taken out again by [`Entry::remove`].
    ///
    /// # Errors
    /// What the operating system said, normally `EMFILE`: too many open files.
    pub(crate) fn add(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let sockets = Sockets::of_thread()?;
        let token = sockets.next.get();
        sockets.next.set(token + 1);
        let flags = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        sockets.epoll.add(fd, EpollEvent::new(flags, token))?;
        let ready = || Side {
            is_ready: Cell::new(true),
            waker: RefCell::default(),
        };
        let socket = Rc::new(Socket {
            receive: ready(),
            send: ready(),
            is_over: Cell::new(false),
            is_idle: Cell::new(false),
            is_listed: Cell::new(false),
        });
        let known = &sockets.known;
        known.borrow_mut().insert(token, Rc::clone(&socket));
        Ok(Self {
            sockets,
            socket,
            token,
        })
    }

    /// Watches it no more.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // Only a descriptor that is not there can be refused.
        let _ = self.sockets.epoll.delete(fd);
        self.sockets.known.borrow_mut().remove(&self.token);
    }

    fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Receive => &self.socket.receive,
            Direction::Send => &self.socket.send,
        }
    }

    /// Whether a call is worth a try.
    pub(crate) fn is_ready(&self, direction: Direction) -> bool {
        self.side(direction).is_ready.get()
    }

    /// Takes note that a call moved less than it might have: the next one would move nothing.
    pub(crate) fn moved_less(&self, direction: Direction) {
        if !self.socket.is_over.get() {
            self.blocked(direction);
        }
    }

    /// Takes note that a call would have waited.
    pub(crate) fn blocked(&self, direction: Direction) {
        self.side(direction).is_ready.set(false);
    }

    /// Has `context` woken by the next event. False: it has to wait by the rings.
    pub(crate) fn wait(&self, direction: Direction, context: &Context<'_>) -> bool {
        let waker = &mut *self.side(direction).waker.borrow_mut();
        match waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => *waker = Some(context.waker().clone()),
        }
        if self.socket.is_idle.get() || self.sockets.is_broken.get() {
            ring_is_behind();
            return false;
        }
        if !self.socket.is_listed.replace(true) {
            let waiting = &self.sockets.waiting;
            waiting.borrow_mut().push(Rc::clone(&self.socket));
        }
        self.sockets.ensure_task();
        true
    }

    /// Takes note that a wait by the rings is over.
    pub(crate) fn is_awake(&self, direction: Direction) {
        self.socket.is_idle.set(false);
        self.side(direction).is_ready.set(true);
    }
}

impl Sockets {
    fn of_thread() -> io::Result<Rc<Self>> {
        SOCKETS.with_borrow_mut(|place| {
            if let Some(sockets) = place {
                return Ok(Rc::clone(sockets));
            }
            let sockets = Rc::new(Self {
                epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
                known: RefCell::default(),
                next: Cell::new(0),
                waiting: RefCell::default(),
                has_task: Cell::new(false),
                is_broken: Cell::new(false),
            });
            Ok(Rc::clone(place.insert(sockets)))
        })
    }

    fn ensure_task(self: &Rc<Self>) {
        if !self.has_task.replace(true) {
            let sockets = Rc::clone(self);
            glommio::spawn_local(async move { sockets.run().await }).detach();
        }
    }

    /// Wakes those whose sockets are ready, until none was for a while.
    async fn run(&self) {
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        let mut last = MonotonicClock.now();
        let mut passes = 0;
        loop {
            let turns = TURNS.get();
            pass().await;
            let is_alone = TURNS.get() == turns;
            passes += 1;
            if !is_alone && passes < PASSES_MAX {
                continue;
            }
            if is_alone && IS_RING_BEHIND.replace(false) {
                yield_to_reactor().await;
                continue;
            }
            passes = 0;
            let span = if is_alone { 1 } else { 0_u8 };
            match self.epoll.wait(&mut events, EpollTimeout::from(span)) {
                Ok(count) if count > 0 => {
                    events[..count].iter().for_each(|event| self.tell(event));
                    last = MonotonicClock.now();
                }
                Ok(_) | Err(Errno::EINTR) if is_alone => {
                    if is_over(last) {
                        break;
                    }
                    // What interrupted it waits in the rings.
                    yield_to_reactor().await;
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => {
                    tracing::error!(%error, "wait for sockets");
                    self.is_broken.set(true);
                    break;
                }
            }
        }
        self.has_task.set(false);
        for socket in self.waiting.take() {
            socket.is_listed.set(false);
            socket.is_idle.set(true);
            socket.receive.wake();
            socket.send.wake();
        }
    }

    fn tell(&self, event: &EpollEvent) {
        let socket = self.known.borrow().get(&event.data()).cloned();
        let Some(socket) = socket else {
            return;
        };
        socket.is_idle.set(false);
        let flags = event.events();
        let over = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        if flags.intersects(over) {
            socket.is_over.set(true);
        }
        if flags.intersects(EpollFlags::EPOLLIN | over) {
            socket.receive.is_ready.set(true);
            socket.receive.wake();
        }
        if flags.intersects(EpollFlags::EPOLLOUT | over) {
            socket.send.is_ready.set(true);
            socket.send.wake();
        }
    }
}

fn is_over(last: Nanos) -> bool {
    MonotonicClock.now().since(last) >= BUSY_SPAN
}

/// Lets the tasks that may run now go first.
async fn pass() {
    let mut has_passed = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_passed, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
