//! Sending what waits, and waiting for it to be sent.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use terrace_fabric::Sender;

use super::Connection;

/// Bytes that may wait to be sent before a request that adds blocks waits too, and before the next
/// request is taken. A longer block is sent all the same, one at a time.
const WINDOW_LEN: usize = 8 << 20;

/// Bytes that a client has to take within the time that it may stall: one that takes a byte now and
/// then must not keep blocks pinned for ever.
const PROGRESS_LEN: usize = 256 << 10;

/// Bytes that a task sends or receives before other tasks of the thread run.
pub(crate) const TURN_LEN: usize = 1 << 20;

impl Connection {
    /// Sends what waits, as far as it goes at once; a task sends the rest.
    pub(crate) async fn flush(self: &Rc<Self>) {
        let must_wait = poll_fn(|context| {
            let mut outbox = self.outbox.borrow_mut();
            if outbox.has_writer {
                return Poll::Ready(false);
            }
            Poll::Ready(loop {
                match outbox.poll_send(&self.sender, context) {
                    Poll::Ready(Ok(0)) => break false,
                    Poll::Ready(Ok(sent)) => self.sent(sent),
                    Poll::Ready(Err(_)) => {
                        drop(outbox);
                        self.close();
                        break false;
                    }
                    Poll::Pending => {
                        outbox.has_writer = true;
                        break true;
                    }
                }
            })
        })
        .await;
        if must_wait {
            self.unsent_since.set(Some(self.host.now()));
            let connection = Rc::clone(self);
            self.shard()
                .spawn(Box::pin(async move { connection.write().await }));
        } else {
            self.wake();
        }
    }

    fn sent(&self, len: usize) {
        self.host
            .count(|counters| counters.bytes_sent += len as u64);
        let mut replies = self.replies.borrow_mut();
        if replies.sent(len) {
            let now = self.host.now();
            while let Some(trace) = replies.pop_sent() {
                self.host.answered(self, &trace, now);
            }
        }
    }

    /// Sends until nothing waits.
    async fn write(self: Rc<Self>) {
        let (mut taken, mut turn) = (0, 0);
        loop {
            let sent = poll_fn(|context| {
                let mut outbox = self.outbox.borrow_mut();
                outbox.poll_send(&self.sender, context)
            })
            .await;
            match sent {
                Ok(0) => break,
                Ok(sent) => {
                    self.sent(sent);
                    taken += sent;
                    turn += sent;
                    if taken >= PROGRESS_LEN {
                        taken = 0;
                        self.unsent_since.set(Some(self.host.now()));
                    }
                    self.wake();
                }
                Err(_) => {
                    self.close();
                    break;
                }
            }
            // A client as fast as this one must not keep the thread to itself.
            if turn >= TURN_LEN {
                turn = 0;
                self.shard().runtime().yield_now().await;
            }
        }
        self.outbox.borrow_mut().has_writer = false;
        self.unsent_since.set(None);
        self.wake();
    }

    /// Waits until blocks may be added to what waits to be sent; how long that was.
    pub(crate) async fn room(self: &Rc<Self>) -> Duration {
        self.room_below(WINDOW_LEN).await
    }

    /// Waits until fewer than `len` bytes wait to be sent; how long that was.
    pub(crate) async fn room_below(self: &Rc<Self>, len: usize) -> Duration {
        if self.outbox.borrow().len() < len {
            return Duration::ZERO;
        }
        let start = self.host.now();
        self.flush().await;
        self.until(|connection| connection.outbox.borrow().len() < len)
            .await;
        self.host.now().since(start)
    }

    /// Waits until all that was queued is sent.
    pub(crate) async fn all_sent(self: &Rc<Self>) {
        self.flush().await;
        self.until(|connection| connection.outbox.borrow().is_empty())
            .await;
    }

    /// Waits until all is answered and sent.
    pub(crate) async fn finished(self: &Rc<Self>) {
        self.flush().await;
        self.until(|connection| {
            let is_answered = connection.session.borrow().under_way() == 0;
            is_answered && connection.outbox.borrow().is_empty()
        })
        .await;
    }

    /// Sends nothing more, but what is with the kernel.
    pub(crate) fn finish_sending(&self) {
        self.sender.finish();
    }
}
