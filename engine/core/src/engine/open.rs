//! Opening: arenas in parallel, each on its shard's thread, and an error from the first that
//! fails.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use terrace_runtime::executor::{ExecutorConfig, ShardThread, check_memlock};
use terrace_runtime::mailbox::mailbox;
use terrace_runtime::{Mailbox, Runtime, affinity};
use terrace_slab::{Arena, ArenaConfig, ArenaShared};

use super::devices::{Devices, ShardDevices};
use super::{Engine, Inner};
use crate::config::{EngineConfig, Pinning};
use crate::error::Error;
use crate::namespaces::NamespaceRegistry;
use crate::policy::{Policy, PolicyConfig};
use crate::shard::{Job, Place, Plugins, Shard, serve};

/// Engines of one process have different ids, which their namespaces carry.
static NEXT_ENGINE: AtomicU32 = AtomicU32::new(1);

/// An engine that is about to be opened.
pub struct EngineBuilder {
    config: EngineConfig,
    plugins: Plugins,
}

impl EngineBuilder {
    pub(super) fn new(config: EngineConfig) -> Self {
        Self {
            config,
            plugins: Plugins::default(),
        }
    }

    /// Takes a policy of the embedder's own in place of the one named in the configuration.
    /// `make` is called on each shard's thread.
    #[must_use]
    pub fn policy(
        mut self,
        make: impl Fn(PolicyConfig) -> Result<Box<dyn Policy>, Error> + Send + Sync + 'static,
    ) -> Self {
        self.plugins.policy = Some(Arc::new(make));
        self
    }

    /// Opens the engine.
    ///
    /// # Errors
    /// [`Error`] names the field, the shard or the resource that is wrong.
    pub fn open(self) -> Result<Engine, Error> {
        self.config.validate()?;
        check_memlock()?;
        let devices = Devices::open(&self.config)?;
        let id = NEXT_ENGINE.fetch_add(1, Ordering::Relaxed);
        let (mut senders, mut inboxes) = (Vec::new(), Vec::new());
        for _ in 0..self.config.shards {
            let (sender, inbox) = mailbox::<Job>(self.config.mailbox_len)
                .map_err(|error| Error::Mailbox(error.to_string()))?;
            senders.push(sender);
            inboxes.push(inbox);
        }
        let rules = Mutex::new(self.config.namespaces.clone());
        let inner = Inner {
            id,
            config: self.config,
            senders,
            threads: Mutex::default(),
            namespaces: Arc::new(NamespaceRegistry::new(id)),
            closed: AtomicBool::new(false),
            devices: Mutex::new(devices),
            rules,
        };
        let (report, reports) = mpsc::channel();
        let started = start_shards(&inner, &self.plugins, inboxes, &report);
        drop(report);
        // On an error `inner` goes, and with it the shards that run.
        started.and_then(|()| all_opened(&reports, inner.config.shards))?;
        tracing::info!(engine = inner.id, shards = inner.config.shards, "open");
        Ok(Engine {
            inner: Arc::new(inner),
        })
    }
}

/// Starts a thread for each shard; those that run belong to `inner`, whatever became of others.
fn start_shards(
    inner: &Inner,
    plugins: &Plugins,
    inboxes: Vec<Mailbox<Job>>,
    report: &mpsc::Sender<Result<(), Error>>,
) -> Result<(), Error> {
    let config = &inner.config;
    let cpus = affinity::allowed_cpus();
    let devices = inner.devices.lock().unwrap_or_else(PoisonError::into_inner);
    for (number, inbox) in inboxes.into_iter().enumerate() {
        let cpu = (config.pinning == Pinning::Pinned).then(|| cpus[number % cpus.len()]);
        let executor = ExecutorConfig {
            shard: number,
            cpu,
            spin: config.spin,
        };
        let start = ShardStart {
            place: Place {
                number,
                engine: inner.id,
                registry: Arc::clone(&inner.namespaces),
                peers: inner.senders.clone(),
            },
            cpu,
            config: config.clone(),
            plugins: plugins.clone(),
            devices: devices.as_ref().map(|devices| devices.share(number)),
            inbox,
            report: report.clone(),
        };
        let thread = ShardThread::start(&executor, move |runtime| start.run(runtime))?;
        let mut threads = inner.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
    }
    Ok(())
}

/// Waits for all shards to be open, or for the first that is not.
fn all_opened(reports: &mpsc::Receiver<Result<(), Error>>, shards: usize) -> Result<(), Error> {
    let mut opened = 0;
    for outcome in reports {
        outcome?;
        opened += 1;
    }
    if opened == shards {
        return Ok(());
    }
    Err(Error::ShardStart {
        shard: opened,
        why: "its thread ended while it was being opened".to_owned(),
    })
}

struct ShardStart {
    place: Place,
    cpu: Option<usize>,
    config: EngineConfig,
    plugins: Plugins,
    devices: Option<ShardDevices>,
    inbox: Mailbox<Job>,
    report: mpsc::Sender<Result<(), Error>>,
}

impl ShardStart {
    async fn run(self, runtime: Rc<dyn Runtime>) {
        let report = self.report.clone();
        let warm = self.devices.as_ref().and_then(|devices| devices.warm);
        let (shard, inbox) = match self.make(&runtime) {
            Ok(made) => made,
            Err(error) => {
                let _ = report.send(Err(error));
                return;
            }
        };
        if let Err(error) = shard.set_configured_namespaces() {
            let _ = report.send(Err(error));
            return;
        }
        shard.recover(warm).await;
        shard.start_scrub();
        let _ = report.send(Ok(()));
        drop(report);
        tracing::debug!(shard = shard.number(), "serving");
        serve(shard, inbox).await;
    }

    fn make(self, runtime: &Rc<dyn Runtime>) -> Result<(Rc<Shard>, Mailbox<Job>), Error> {
        let number = self.place.number;
        let arena_config = ArenaConfig {
            hugepages: self.config.hugepages,
            numa_node: self.cpu.and_then(affinity::numa_node_of),
            ..ArenaConfig::new(self.config.arena_len())
        };
        let arena = Arena::open(&arena_config).map_err(|cause| Error::Arena {
            shard: number,
            cause,
        })?;
        let below = match self.devices {
            Some(devices) => Some(devices.attach(&self.config, number, runtime, &arena)?),
            None => None,
        };
        let sender = self.place.peers[number].clone();
        let shared = ArenaShared::new(arena, Box::new(move || sender.nudge()));
        let shard = Shard::new(
            self.place,
            self.config,
            shared,
            Rc::clone(runtime),
            &self.plugins,
            below,
        )?;
        Ok((shard, self.inbox))
    }
}
