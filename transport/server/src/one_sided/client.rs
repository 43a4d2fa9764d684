//! A client with rails: its ticket, and how that is taken back.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_channel::oneshot;
use terrace_engine::Fence;
use terrace_fabric::transfer::{Region, Ticket, TransferEngine};
use terrace_runtime::LocalFuture;

use super::staging::Staging;
use super::{OneSided, OneSidedError, OneSidedReach};

/// How long connections of a client may take to end before that is told and tried again.
const EXPEL_TIMEOUT: Duration = Duration::from_secs(10);

/// A client by its id, with all of its connections.
pub(crate) struct Client {
    owner: Arc<OneSided>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    grant: Option<Arc<Grant>>,
    last: u64,
    /// Who waits until a grant that was taken back reaches nothing any more, by its number.
    ending: HashMap<u64, Vec<oneshot::Sender<()>>>,
}

/// What a client has until it is taken back.
pub(crate) struct Grant {
    owner: Arc<OneSided>,
    number: u64,
    pub(super) ticket: Ticket,
    staging: Option<Staging>,
}

impl Grant {
    fn new(owner: &Arc<OneSided>, number: u64) -> Result<Self, OneSidedError> {
        let staging = match owner.config.reach {
            OneSidedReach::Arena => None,
            OneSidedReach::Staged {
                client_len,
                clients_max,
            } => Some(Staging::new(owner, client_len, clients_max)?),
        };
        let arenas = owner.arenas.as_ref().map(|arenas| &arenas.engine);
        let engine = staging.as_ref().map(|staging| &staging.engine).or(arenas);
        let invited = engine.map(TransferEngine::invite).transpose()?;
        Ok(Self {
            owner: Arc::clone(owner),
            number,
            ticket: invited.unwrap_or(Ticket::from_bytes([0; 16])),
            staging,
        })
    }

    /// Memory for copies, unless the arenas are read.
    pub(super) const fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref()
    }

    /// The engine that the ticket is for.
    pub(super) fn engine(&self) -> Option<&TransferEngine> {
        match &self.staging {
            Some(staging) => Some(&staging.engine),
            None => self.owner.arenas.as_ref().map(|arenas| &arenas.engine),
        }
    }

    /// The region that descriptors of a shard lie in.
    pub(super) fn region(&self, shard: usize) -> Option<&Arc<Region>> {
        match &self.staging {
            Some(staging) => Some(&staging.region),
            None => self.owner.arenas.as_ref()?.regions.get(shard),
        }
    }

    /// Sends the client away, however long that takes.
    fn end(&self) {
        let Some(engine) = self.engine() else { return };
        while let Err(error) = engine.expel(&self.ticket, EXPEL_TIMEOUT) {
            tracing::error!(%error, "a client cannot be kept away; its slots stay as they are");
        }
    }
}

impl Client {
    pub(super) fn new(owner: Arc<OneSided>) -> Self {
        Self {
            owner,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has now, or gets. Blocks for milliseconds when that is new memory.
    pub(super) fn grant(&self) -> Result<Arc<Grant>, OneSidedError> {
        let mut state = self.state();
        if let Some(grant) = &state.grant {
            return Ok(Arc::clone(grant));
        }
        state.last += 1;
        let grant = Arc::new(Grant::new(&self.owner, state.last)?);
        state.grant = Some(Arc::clone(&grant));
        Ok(grant)
    }

    fn has(&self, number: u64) -> bool {
        let state = self.state();
        state.grant.as_ref().is_some_and(|of| of.number == number)
    }

    /// Takes a grant back. Completes when nothing is read by it any more.
    async fn expel(self: Arc<Self>, number: u64) {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.state();
            if let Some(grant) = state.grant.take_if(|grant| grant.number == number) {
                state.ending.insert(number, vec![sender]);
                drop(state);
                tracing::info!(number, "a lease on rails ended without a release: fence");
                let client = Arc::clone(&self);
                spawn(move || {
                    grant.end();
                    drop(grant);
                    // Whoever waited may be gone.
                    let waiting = client.state().ending.remove(&number);
                    let waiting = waiting.into_iter().flatten();
                    waiting.for_each(|waiting| _ = waiting.send(()));
                });
            } else {
                match state.ending.get_mut(&number) {
                    Some(waiting) => waiting.push(sender),
                    // It was over before.
                    None => return,
                }
            }
        }
        // The sender is dropped by a thread that panicked: then it is not known that the client
        // is kept away.
        if receiver.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Client {
    /// Its last connection is gone.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(grant) = state.grant.take() {
            spawn(move || grant.end());
        }
    }
}

/// Runs what blocks, on a thread of its own; here when there is none.
fn spawn<W: FnOnce() + Send + 'static>(work: W) {
    fn run<W: FnOnce()>(work: &Mutex<Option<W>>) {
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        work.into_iter().for_each(|work| work());
    }
    let work = Arc::new(Mutex::new(Some(work)));
    let other = Arc::clone(&work);
    let spawned = std::thread::Builder::new()
        .name("terrace-fence".to_owned())
        .spawn(move || run(&other));
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for a fence: the shard waits for it");
        run(&work);
    }
}

/// The rails of a connection.
#[derive(Clone)]
pub(crate) struct Rails {
    pub(crate) client: Arc<Client>,
    pub(crate) grant: Arc<Grant>,
}

impl Rails {
    /// Whether they are still the client's.
    pub(crate) fn are_granted(&self) -> bool {
        self.client.has(self.grant.number)
    }

    /// Whether blocks are copied for the client.
    pub(crate) fn are_staged(&self) -> bool {
        self.grant.staging.is_some()
    }

    /// What leases on them end behind.
    pub(crate) fn fence(&self) -> Option<Rc<dyn Fence>> {
        let is_skipped = self.client.owner.config.skip_fence;
        let fence = || -> Rc<dyn Fence> { Rc::new(self.clone()) };
        (!is_skipped).then(fence)
    }
}

impl Fence for Rails {
    fn raise(self: Rc<Self>) -> LocalFuture<'static, ()> {
        Box::pin(Arc::clone(&self.client).expel(self.grant.number))
    }
}
