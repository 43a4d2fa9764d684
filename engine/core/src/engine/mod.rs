//! The engine as programs embed it: a handle for any thread and any async runtime.
//!
//! Calls go to the shard that owns the key as one message each, a batch as one message a
//! shard; the answer comes back through a future that needs no particular runtime. Code on a
//! shard's own thread uses [`Shard`] directly, through [`Engine::run_on`].

mod batch;
mod calls;
mod devices;
mod namespace;
mod open;
mod prefetch;

use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::join_all;
use terrace_runtime::executor::ShardThread;
use terrace_runtime::{LocalFuture, MailboxSender};
use terrace_types::{BlockKey, KeyHash, Namespace, UnavailableReason};

use crate::config::{EngineConfig, NamespaceOptions};
use crate::error::Error;
use crate::events::{EventFilter, EventStream, subscription};
use crate::namespaces::NamespaceRegistry;
use crate::shard::{Job, PersistReport, Shard};
use crate::stats::{EngineStats, MissingDevice, ShardStats};

use devices::Devices;
pub(crate) use devices::ShardIo;

pub use batch::PutItem;
pub use open::EngineBuilder;
pub use prefetch::Prefetch;

/// What is left when an engine has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReport {
    /// Dirty blocks that were written to the NVMe tier.
    pub blocks_written: u64,
    /// Blocks that were in DRAM only, and are gone.
    pub blocks_lost: u64,
    /// Shards that did not end by the deadline, or ended by a panic.
    pub shards_unclean: usize,
    /// Whether the devices are marked as closed cleanly: the next open starts warm.
    pub devices_clean: bool,
}

struct Inner {
    id: u32,
    config: EngineConfig,
    senders: Vec<MailboxSender<Job>>,
    threads: Mutex<Vec<ShardThread>>,
    namespaces: Arc<NamespaceRegistry>,
    closed: AtomicBool,
    devices: Mutex<Option<Devices>>,
    /// What holds for namespaces now.
    rules: Mutex<Vec<(String, NamespaceOptions)>>,
}

/// A handle to an open engine; clones share it. The last one to go closes the engine.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

impl Engine {
    /// Opens an engine: checks every field, then takes all memory and starts the shards.
    ///
    /// # Errors
    /// [`Error`] names the field, the shard or the resource that is wrong.
    pub fn open(config: EngineConfig) -> Result<Self, Error> {
        Self::builder(config).open()
    }

    /// An engine with a policy of the embedder's own.
    #[must_use]
    pub fn builder(config: EngineConfig) -> EngineBuilder {
        EngineBuilder::new(config)
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// The namespace of a name; the same name gives the same namespace.
    ///
    /// # Errors
    /// [`Error::Key`] for a name that is not allowed, [`Error::TooManyNamespaces`].
    pub fn namespace(&self, name: &str) -> Result<Namespace, Error> {
        self.inner.namespaces.get(name)
    }

    /// Count of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.inner.senders.len()
    }

    /// The shard that owns a key.
    #[must_use]
    pub fn shard_of(&self, key: &BlockKey) -> usize {
        route(key.hash(), self.shards())
    }

    /// Runs `f` on a shard's thread and returns what its future comes to. This is how a
    /// server puts its sessions beside the data: no hop on its calls.
    ///
    /// # Errors
    /// [`UnavailableReason`] when the shard is fenced or closing, or `f` panicked.
    pub async fn run_on<R, F, Fut>(&self, shard: usize, f: F) -> Result<R, UnavailableReason>
    where
        R: Send + 'static,
        F: FnOnce(Rc<Shard>) -> Fut + Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        self.call(shard, move |shard, reply| {
            let rest = f(Rc::clone(shard));
            Some(Box::pin(async move {
                let _ = reply.send(rest.await);
            }))
        })
        .await
    }

    /// A stream of what happens to blocks, holding at most `capacity` events that wait.
    ///
    /// # Errors
    /// [`UnavailableReason::Closing`] when the engine is closed.
    pub async fn events(&self, capacity: usize) -> Result<EventStream, UnavailableReason> {
        let (sink, stream) = subscription(capacity, EventFilter::default());
        for shard in 0..self.shards() {
            let sink = sink.clone();
            self.call(shard, move |shard, reply| {
                shard.subscribe(sink);
                let _ = reply.send(());
                None
            })
            .await?;
        }
        Ok(stream)
    }

    /// What the engine did and holds, over all shards.
    pub async fn stats(&self) -> EngineStats {
        let mut stats = EngineStats {
            missing: self.inner.missing(),
            ..EngineStats::default()
        };
        for shard in 0..self.shards() {
            let report = self.call(shard, |shard, reply: oneshot::Sender<ShardStats>| {
                let _ = reply.send(shard.stats());
                None
            });
            stats.push(report.await.ok());
        }
        stats
    }

    /// Walks all state of all shards and panics there when an invariant is broken, which
    /// fences the shard. True when none was; for tests.
    pub async fn check(&self) -> bool {
        for shard in 0..self.shards() {
            let checked = self.call(shard, |shard, reply| {
                shard.check();
                let _ = reply.send(());
                None
            });
            if checked.await.is_err() {
                return false;
            }
        }
        true
    }

    /// Waits until all blocks that are on their way to the devices survive power loss. What is
    /// in DRAM only stays there.
    ///
    /// # Errors
    /// [`UnavailableReason`] of the first shard that did not answer, or whose devices failed.
    pub async fn sync(&self) -> Result<(), UnavailableReason> {
        for shard in 0..self.shards() {
            let synced = self.call(shard, |shard, reply| {
                let shard = Rc::clone(shard);
                Some(Box::pin(async move {
                    let _ = reply.send(shard.sync().await);
                }))
            });
            synced.await??;
        }
        Ok(())
    }

    /// Closes the engine. Blocks that are in DRAM only are written to the devices, the most
    /// valuable first, until half of `deadline` is over; then what waits is answered and the
    /// shards end. Blocks that are pinned elsewhere stay readable until their pins go.
    pub async fn close(&self, deadline: Duration) -> CloseReport {
        let persisted = self.persist(deadline / 2).await;
        let threads = self.inner.begin_close();
        let (done, ended) = oneshot::channel();
        let count = threads.len();
        // Joining blocks; the caller's runtime must not.
        std::thread::spawn(move || {
            let clean = threads
                .into_iter()
                .map(ShardThread::join)
                .filter(|clean| *clean)
                .count();
            let _ = done.send(clean);
        });
        let clean = self.within(deadline, ended).await.unwrap_or(0);
        let mut report = CloseReport {
            blocks_written: persisted.blocks_written,
            blocks_lost: persisted.blocks_lost,
            shards_unclean: count - clean,
            devices_clean: false,
        };
        if clean == count && count > 0 {
            report.devices_clean = self.inner.close_devices(&persisted);
        }
        report
    }

    /// Has all shards write down what they hold, side by side.
    async fn persist(&self, span: Duration) -> PersistReport {
        let calls = (0..self.shards()).map(|shard| {
            self.call(shard, move |shard, reply| {
                let shard = Rc::clone(shard);
                let deadline = shard.runtime().now() + span;
                Some(Box::pin(async move {
                    let _ = reply.send(shard.persist(deadline).await);
                }))
            })
        });
        let mut sum = PersistReport {
            clean: true,
            drained: true,
            ..PersistReport::default()
        };
        for report in join_all(calls).await {
            let report = report.unwrap_or_default();
            sum.blocks_written += report.blocks_written;
            sum.blocks_lost += report.blocks_lost;
            sum.clean &= report.clean;
            sum.drained &= report.drained;
        }
        sum
    }

    /// `reply`, or `None` when `deadline` passes first; timed by a thread of its own, as no
    /// shard runs any more.
    async fn within(&self, deadline: Duration, reply: oneshot::Receiver<usize>) -> Option<usize> {
        let (late, too_late) = oneshot::channel::<()>();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            let _ = stopped.recv_timeout(deadline);
            let _ = late.send(());
        });
        let answered = async { reply.await.ok() };
        let timed_out = async {
            let _ = too_late.await;
            None
        };
        let clean = futures_lite::future::or(answered, timed_out).await;
        drop(stop);
        clean
    }

    /// Sends a job to a shard and waits for its reply.
    async fn call<R, F>(&self, shard: usize, f: F) -> Result<R, UnavailableReason>
    where
        R: Send + 'static,
        F: FnOnce(&Rc<Shard>, oneshot::Sender<R>) -> Option<LocalFuture<'static, ()>>
            + Send
            + 'static,
    {
        let Some(sender) = self.inner.senders.get(shard) else {
            return Err(UnavailableReason::Closing);
        };
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |shard| f(shard, reply));
        sender
            .send(job)
            .await
            .map_err(|_| UnavailableReason::Closing)?;
        answer.await.map_err(|_| {
            if self.inner.closed.load(Ordering::Relaxed) {
                UnavailableReason::Closing
            } else {
                UnavailableReason::ShardFenced
            }
        })
    }
}

impl Inner {
    fn missing(&self) -> Vec<MissingDevice> {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.as_ref().map_or_else(Vec::new, Devices::missing)
    }

    /// Marks the devices as closed cleanly when they are, and lets go of them.
    fn close_devices(&self, persisted: &PersistReport) -> bool {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut devices) = devices.take().filter(|_| persisted.clean) else {
            return false;
        };
        match devices.close(persisted.drained) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "mark the devices as closed");
                false
            }
        }
    }

    /// Tells the shards to end; returns their threads, once.
    fn begin_close(&self) -> Vec<ShardThread> {
        self.closed.store(true, Ordering::Relaxed);
        for sender in &self.senders {
            let job: Job = Box::new(|shard| {
                shard.begin_close();
                None
            });
            // A full mailbox is drained by its shard, which then finds the closing job.
            let _ = terrace_runtime::block_on(sender.send(job));
        }
        std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let threads = self.begin_close();
        // The last handle may go on a shard's own thread, which cannot wait for itself.
        if !threads.is_empty() {
            std::thread::spawn(move || {
                for thread in threads {
                    let _ = thread.join();
                }
            });
        }
    }
}

/// The shard that owns a key.
#[must_use]
pub const fn route(hash: KeyHash, shards: usize) -> usize {
    hash.shard(shards as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_spreads_evenly_and_stays_in_range() {
        let name = terrace_types::NamespaceName::new("m").unwrap();
        let ns = Namespace::new(0, 0, &name);
        let mut counts = [0_u32; 3];
        for i in 0..30_000_u32 {
            counts[route(ns.key(&i.to_le_bytes()).unwrap().hash(), 3)] += 1;
        }
        assert!(
            counts.iter().all(|count| (9_500..10_500).contains(count)),
            "{counts:?}"
        );
        assert_eq!(route(KeyHash(u64::MAX), 3), 2);
    }
}
