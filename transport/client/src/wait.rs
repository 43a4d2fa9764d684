//! Waits for sockets and for time: by the reactor, or on a thread that blocks by that thread itself.
//!
//! The reactor is one for the process: each wait by it changes what it watches and sets a timer, and
//! often wakes a thread of its own. A thread that blocks in [`block_on`] needs none of that. What its
//! future waits for is noted in a list of the thread, and then the thread asks the kernel for all of it
//! in one call.
//!
//! **Invariants**
//! - What is noted stays noted until it is told, or the call is over; then the list is empty.
//! - A future asks the socket before it waits for it: a wait by the list is never ready at once.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use async_io::{Async, Timer};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::time::now;

/// Nobody has woken the thread.
const QUIET: u8 = 0;
/// The thread sleeps: whoever wakes it signals its eventfd.
const ASLEEP: u8 = 1;
/// Somebody has woken it.
const WOKEN: u8 = 2;

/// Wakes one thread that blocks.
#[derive(Debug)]
struct Bell {
    state: AtomicU8,
    eventfd: EventFd,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            // Its counter cannot overflow: the thread reads it each time it sleeps.
            let _ = self.eventfd.write(1);
        }
    }
}

/// A socket that somebody waits for.
struct SocketWait {
    socket: Arc<Async<TcpStream>>,
    flags: PollFlags,
    waker: Waker,
}

/// A moment that somebody waits for.
struct TimeWait {
    at: Instant,
    number: u64,
    waker: Waker,
}

/// What the future of a thread that blocks waits for.
#[derive(Default)]
struct Waits {
    sockets: Vec<SocketWait>,
    times: Vec<TimeWait>,
}

thread_local! {
    /// There while this thread blocks.
    static WAITS: RefCell<Option<Waits>> = const { RefCell::new(None) };
    static BELL: RefCell<Option<Arc<Bell>>> = const { RefCell::new(None) };
    static NUMBERS: Cell<u64> = const { Cell::new(1) };
}

/// Runs `future` to its end on this thread, which waits for what it waits for.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    // A call within a call, and a process without descriptors, wait by the reactor.
    let bell = BELL.with_borrow_mut(Option::take).or_else(new_bell);
    let (Some(bell), Some(blocking)) = (bell, Blocking::begin()) else {
        let _hidden = Hidden(WAITS.take());
        return async_io::block_on(future);
    };
    let mut future = pin!(future);
    let waker = Waker::from(Arc::clone(&bell));
    let context = &mut Context::from_waker(&waker);
    let value = loop {
        bell.state.store(QUIET, Ordering::Release);
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            break value;
        }
        sleep(&bell);
    };
    drop(blocking);
    BELL.set(Some(bell));
    value
}

fn new_bell() -> Option<Arc<Bell>> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let eventfd = EventFd::from_value_and_flags(0, flags).ok()?;
    let state = AtomicU8::new(QUIET);
    Some(Arc::new(Bell { state, eventfd }))
}

/// The list is there as long as this is.
struct Blocking;

impl Blocking {
    fn begin() -> Option<Self> {
        WAITS.with_borrow_mut(|waits| match waits {
            Some(_) => None,
            None => {
                *waits = Some(Waits::default());
                Some(Self)
            }
        })
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        // Wakers are dropped outside of the list's borrow.
        drop(WAITS.take());
    }
}

/// The list of the call around this one, which nobody is to use meanwhile.
struct Hidden(Option<Waits>);

impl Drop for Hidden {
    fn drop(&mut self) {
        WAITS.set(self.0.take());
    }
}

/// Sleeps until something is there that the thread waits for, and tells those who do.
fn sleep(bell: &Bell) {
    let Some(mut waits) = WAITS.take() else {
        return;
    };
    let asleep = bell
        .state
        .compare_exchange(QUIET, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
    let span = match asleep {
        Ok(_) => waits.span(),
        // Woken meanwhile: it looks, and does not sleep.
        Err(_) => PollTimeout::ZERO,
    };
    let mut polled = Vec::with_capacity(1 + waits.sockets.len());
    polled.push(PollFd::new(bell.eventfd.as_fd(), PollFlags::POLLIN));
    let sockets = waits.sockets.iter();
    polled.extend(sockets.map(|wait| PollFd::new(wait.socket.as_fd(), wait.flags)));
    let outcome = poll(&mut polled, span);
    let ready: Vec<bool> = match outcome {
        Ok(0) | Err(Errno::EINTR) => Vec::new(),
        Ok(_) => polled.iter().map(|one| one.any() != Some(false)).collect(),
        // Whoever waits asks its socket, and is told what is wrong.
        Err(_) => vec![true; polled.len()],
    };
    if ready.first() == Some(&true) {
        // It is there to be read, or nobody signalled after all.
        let _ = bell.eventfd.read();
    }
    let mut woken = Vec::new();
    let mut at = 0;
    waits.sockets.retain_mut(|wait| {
        at += 1;
        let is_ready = ready.get(at) == Some(&true);
        if is_ready {
            woken.push(wait.waker.clone());
        }
        !is_ready
    });
    if !waits.times.is_empty() {
        let now = now();
        waits.times.retain(|wait| {
            if wait.at <= now {
                woken.push(wait.waker.clone());
            }
            wait.at > now
        });
    }
    WAITS.set(Some(waits));
    // The thread is awake: wakers that are its own need not signal.
    bell.state.store(WOKEN, Ordering::Release);
    woken.into_iter().for_each(Waker::wake);
}

impl Waits {
    /// How long to sleep at most.
    fn span(&self) -> PollTimeout {
        let Some(first) = self.times.iter().map(|wait| wait.at).min() else {
            return PollTimeout::NONE;
        };
        // Rounded up: a moment that is told too early would be waited for again.
        let span = first.saturating_duration_since(now()) + Duration::from_micros(999);
        PollTimeout::try_from(span).unwrap_or(PollTimeout::MAX)
    }
}

/// Waits until the socket may have something to be received.
pub(crate) fn poll_readable(
    socket: &Arc<Async<TcpStream>>,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    if note(socket, PollFlags::POLLIN, context) {
        return Poll::Pending;
    }
    socket.poll_readable(context)
}

/// Waits until the socket may take something to be sent.
pub(crate) fn poll_writable(
    socket: &Arc<Async<TcpStream>>,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    if note(socket, PollFlags::POLLOUT, context) {
        return Poll::Pending;
    }
    socket.poll_writable(context)
}

/// Notes a wait for a socket, as of the latest who waits for it, in the thread's list. False: there is
/// none.
fn note(socket: &Arc<Async<TcpStream>>, flags: PollFlags, context: &Context<'_>) -> bool {
    WAITS.with_borrow_mut(|waits| {
        let Some(waits) = waits else {
            return false;
        };
        let mut known = waits.sockets.iter_mut();
        let known = known.find(|wait| Arc::ptr_eq(&wait.socket, socket) && wait.flags == flags);
        match known {
            Some(wait) => wait.waker.clone_from(context.waker()),
            None => waits.sockets.push(SocketWait {
                socket: Arc::clone(socket),
                flags,
                waker: context.waker().clone(),
            }),
        }
        true
    })
}

/// Completes at a moment.
#[derive(Debug)]
pub(crate) struct Sleep {
    at: Instant,
    /// In the list of the thread that blocks; 0 before the first wait.
    number: u64,
    timer: Option<Timer>,
}

impl Sleep {
    pub(crate) const fn until(at: Instant) -> Self {
        Self {
            at,
            number: 0,
            timer: None,
        }
    }

    pub(crate) fn lasting(span: Duration) -> Self {
        Self::until(crate::time::ahead(span))
    }

    /// Notes it in the thread's list. False: there is none.
    fn note(&mut self, context: &Context<'_>) -> bool {
        WAITS.with_borrow_mut(|waits| {
            let Some(waits) = waits else {
                return false;
            };
            if self.number == 0 {
                self.number = NUMBERS.get();
                NUMBERS.set(self.number + 1);
            }
            let mut known = waits.times.iter_mut();
            match known.find(|wait| wait.number == self.number) {
                Some(wait) => wait.waker.clone_from(context.waker()),
                None => waits.times.push(TimeWait {
                    at: self.at,
                    number: self.number,
                    waker: context.waker().clone(),
                }),
            }
            true
        })
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = &mut self.timer {
            return Pin::new(timer).poll(context).map(drop);
        }
        if now() >= self.at {
            return Poll::Ready(());
        }
        if self.note(context) {
            return Poll::Pending;
        }
        let at = self.at;
        let timer = self.timer.insert(Timer::at(at));
        Pin::new(timer).poll(context).map(drop)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if self.number == 0 {
            return;
        }
        let number = self.number;
        // On another thread, or behind the call, there is nothing of it.
        let _ = WAITS.try_with(|waits| {
            if let Ok(mut waits) = waits.try_borrow_mut()
                && let Some(waits) = waits.as_mut()
            {
                waits.times.retain(|wait| wait.number != number);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use futures_util::future::{join_all, poll_fn};

    use super::*;

    fn pair() -> (Arc<Async<TcpStream>>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = Async::new(near).unwrap();
        (Arc::new(near), listener.accept().unwrap().0)
    }

    async fn byte_of(socket: &Arc<Async<TcpStream>>) -> u8 {
        let mut byte = [0];
        poll_fn(|context| {
            match socket.get_ref().read(&mut byte) {
                Ok(count) => assert_eq!(count, 1),
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    let waits = poll_readable(socket, context);
                    assert!(waits.is_pending(), "the thread waits itself");
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        })
        .await;
        byte[0]
    }

    /// Aim: many waits of one future are each told, whichever order their sockets speak in, also where
    /// each has a waker of its own. Method: sockets that answer each other in turn, the last first.
    #[test]
    fn thread_that_blocks_tells_each_of_many_waits() {
        const COUNT: usize = 40;
        let pairs: Vec<_> = (0..COUNT).map(|_| pair()).collect();
        let (nears, mut fars): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        fars[COUNT - 1].write_all(&[7]).unwrap();
        let fars = RefCell::new(fars);
        let waits = nears.iter().enumerate().map(|(at, near)| {
            let fars = &fars;
            async move {
                let byte = byte_of(near).await;
                if at > 0 {
                    fars.borrow_mut()[at - 1].write_all(&[byte]).unwrap();
                }
                byte
            }
        });
        assert_eq!(block_on(join_all(waits)), [7; COUNT]);
    }

    #[test]
    fn thread_that_blocks_is_woken_by_another_and_by_time() {
        let (sender, receiver) = futures_channel::oneshot::channel();
        let waker = std::thread::spawn(move || sender.send(3).unwrap());
        assert_eq!(block_on(receiver), Ok(3));
        waker.join().unwrap();

        let (near, _far) = pair();
        let first = futures_lite::future::or(
            async {
                byte_of(&near).await;
                "a byte"
            },
            async {
                Sleep::lasting(Duration::from_millis(2)).await;
                "time"
            },
        );
        assert_eq!(block_on(first), "time");
        assert!(WAITS.with_borrow(Option::is_none));
    }

    /// A call within a call has a list of nobody: it waits by the reactor.
    #[test]
    fn call_within_a_call_waits_by_the_reactor() {
        let inner = block_on(async {
            block_on(async { Sleep::lasting(Duration::from_millis(1)).await });
            Sleep::lasting(Duration::from_millis(1)).await;
            5
        });
        assert_eq!(inner, 5);
    }
}
