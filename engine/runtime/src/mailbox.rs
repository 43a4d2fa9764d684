//! Bounded mailboxes: how other threads hand work to a shard.
//!
//! **Invariants**
//! - Messages of one sender arrive in the order they were sent.
//! - A message is in the queue, handed to the shard, or returned to its sender; never lost.
//! - The shard is signalled at most once per sleep; a shard that is awake costs its senders
//!   no system call.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crossbeam_queue::ArrayQueue;

use crate::{Eventfd, Runtime};

struct Shared<T> {
    queue: ArrayQueue<T>,
    /// Whether the shard is about to sleep and must be signalled.
    asleep: AtomicBool,
    closed: AtomicBool,
    wake: Eventfd,
    /// Senders that found the queue full.
    waiting: Mutex<VecDeque<Waker>>,
    any_waiting: AtomicBool,
}

impl<T> Shared<T> {
    fn signal_if_asleep(&self) {
        // Pairs with the fence in `sleep`: either the shard sees what was queued before this
        // call, or this thread sees that it is about to sleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.wake.signal();
        }
    }

    fn wake_senders(&self) {
        if self.any_waiting.swap(false, Ordering::AcqRel) {
            let waiting =
                std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

/// A message that could not be delivered, given back.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// The queue is full.
    Full(T),
    /// The shard takes no more messages.
    Closed(T),
}

/// The sending end, usable from any thread and any async runtime.
pub struct MailboxSender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for MailboxSender<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> MailboxSender<T> {
    /// Queues `message`.
    ///
    /// # Errors
    /// [`SendError`] with the message, when the queue is full or the shard is gone.
    pub fn try_send(&self, message: T) -> Result<(), SendError<T>> {
        if self.shared.closed.load(Ordering::Acquire) {
            return Err(SendError::Closed(message));
        }
        self.shared.queue.push(message).map_err(SendError::Full)?;
        self.shared.signal_if_asleep();
        Ok(())
    }

    /// Queues `message`, waiting for room. The caller bounds the wait by dropping the future;
    /// the message is then dropped, undelivered.
    ///
    /// # Errors
    /// [`SendError::Closed`] with the message when the shard is gone.
    pub async fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut message = Some(message);
        poll_fn(|context| {
            let mut registered = false;
            loop {
                let Some(item) = message.take() else {
                    return Poll::Ready(Ok(()));
                };
                match self.try_send(item) {
                    Ok(()) => return Poll::Ready(Ok(())),
                    Err(SendError::Closed(item)) => {
                        return Poll::Ready(Err(SendError::Closed(item)));
                    }
                    Err(SendError::Full(item)) => message = Some(item),
                }
                if registered {
                    return Poll::Pending;
                }
                let mut waiting = self
                    .shared
                    .waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                waiting.push_back(context.waker().clone());
                self.shared.any_waiting.store(true, Ordering::Release);
                // One more try: the shard may have made room before it could see the waker.
                registered = true;
            }
        })
        .await
    }

    /// Wakes the shard without a message.
    pub fn nudge(&self) {
        self.shared.signal_if_asleep();
    }

    /// Whether the shard takes no more messages.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}

/// The receiving end, owned by one shard.
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
}

/// A mailbox for at most `capacity` messages that wait, and its sending end.
///
/// # Errors
/// What the operating system said on creating the eventfd.
pub fn mailbox<T>(capacity: usize) -> Result<(MailboxSender<T>, Mailbox<T>), nix::Error> {
    let shared = Arc::new(Shared {
        queue: ArrayQueue::new(capacity.max(1)),
        asleep: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        wake: Eventfd::new()?,
        waiting: Mutex::new(VecDeque::new()),
        any_waiting: AtomicBool::new(false),
    });
    Ok((
        MailboxSender {
            shared: Arc::clone(&shared),
        },
        Mailbox { shared },
    ))
}

impl<T> Mailbox<T> {
    /// The next message that waits, if any.
    pub fn try_recv(&self) -> Option<T> {
        let message = self.shared.queue.pop();
        if message.is_some() {
            self.shared.wake_senders();
        }
        message
    }

    /// Count of messages that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.queue.len()
    }

    /// Whether no message waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }

    /// Completes when a message waits or the shard was nudged; may complete for neither.
    pub async fn sleep(&self, runtime: &dyn Runtime) {
        self.announce_sleep();
        if self.shared.queue.is_empty() {
            runtime.wait_for(&self.shared.wake).await;
        }
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Announces that the shard is about to sleep; call it before a last look at whatever
    /// else may wake it by [`MailboxSender::nudge`].
    pub fn announce_sleep(&self) {
        self.shared.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes no more messages; those that wait can still be received.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.wake_senders();
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.close();
        // Messages hold the reply ends their senders wait on: dropping them ends the waits.
        while self.shared.queue.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use futures_lite::future::block_on;

    #[test]
    fn mailbox_when_full_gives_the_message_back() {
        let (sender, mailbox) = mailbox::<u32>(2).unwrap();
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Ok(()));
        assert_eq!(sender.try_send(3), Err(SendError::Full(3)));
        assert_eq!(mailbox.try_recv(), Some(1));
        assert_eq!(sender.try_send(3), Ok(()));
        drop(mailbox);
        assert_eq!(sender.try_send(4), Err(SendError::Closed(4)));
        assert_eq!(block_on(sender.send(4)), Err(SendError::Closed(4)));
    }

    /// Aim: no message is lost or reordered when senders outrun the shard. Method: four
    /// threads send through a mailbox of four places to a receiver that drains in bursts.
    #[test]
    fn mailbox_under_many_senders_loses_nothing() {
        let (sender, mailbox) = mailbox::<(u32, u32)>(4).unwrap();
        let threads: Vec<_> = (0..4_u32)
            .map(|thread| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    for i in 0..2000 {
                        block_on(sender.send((thread, i))).unwrap();
                    }
                })
            })
            .collect();
        let mut next = [0; 4];
        while next.iter().sum::<u32>() < 8000 {
            while let Some((thread, i)) = mailbox.try_recv() {
                assert_eq!(next[thread as usize], i);
                next[thread as usize] += 1;
            }
            std::thread::yield_now();
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn mailbox_sleeper_is_woken_by_message_and_nudge() {
        let sim = Sim::new(1);
        let (sender, mailbox) = mailbox::<u32>(4).unwrap();
        let runtime = sim.runtime();
        let got = sim.run(async move {
            let task = async {
                mailbox.sleep(&*runtime).await;
                let first = mailbox.try_recv();
                mailbox.sleep(&*runtime).await;
                (first, mailbox.try_recv())
            };
            let send = async {
                runtime.yield_now().await;
                sender.try_send(7).unwrap();
                runtime.sleep_until(terrace_types::Nanos(1_000_000)).await;
                sender.nudge();
            };
            futures_lite::future::zip(task, send).await.0
        });
        assert_eq!(got, (Some(7), None));
    }
}
