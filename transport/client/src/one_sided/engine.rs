//! This program's transfer engine, and its memory in it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::thread::{leave_to_thread, on_thread};
use terrace_fabric::transfer::{
    Access, Admission, EngineConfig, Memory, Region, Ticket, TransferEngine, TransferError,
    Transport,
};
use terrace_fabric::verbs::{RdmaConfig, RdmaTransport};
use terrace_slab::RegisteredRegion;

use super::{OneSidedOptions, Reach};
use crate::error::Failure;

/// How long all rails may be down before reads by them end. A block that is not read by then comes over
/// a connection.
const LOST: Duration = Duration::from_millis(500);

/// How long memory that nobody needs may still be used by what was cancelled.
const UNREGISTER: Duration = Duration::from_secs(30);

/// A transfer engine of this program's own.
pub(crate) struct Engine {
    pub(super) transfer: TransferEngine,
    /// What the node shows to read from it; `None` when it listens nowhere.
    pub(super) invited: Option<Ticket>,
}

impl Engine {
    fn start(options: &OneSidedOptions) -> Result<Self, Failure> {
        let rdma = RdmaConfig {
            devices: options.devices.clone(),
            ..RdmaConfig::default()
        };
        let mut transports: Vec<Arc<dyn Transport>> = Vec::new();
        match RdmaTransport::open(&rdma) {
            Ok(transport) => transports.push(transport),
            Err(error) if error.is_absent() && options.devices.is_empty() => {}
            Err(error) => return Err(Failure::one_sided(error)),
        }
        let listen = options.listen.map(|address| SocketAddr::new(address, 0));
        let config = EngineConfig {
            listen: listen.into_iter().collect(),
            admission: Admission::Invited,
            lost_timeout: LOST,
            ..EngineConfig::default()
        };
        let transfer =
            TransferEngine::start_with(config, transports).map_err(Failure::one_sided)?;
        let invited = match listen {
            Some(_) => Some(transfer.invite().map_err(Failure::one_sided)?),
            None => None,
        };
        Ok(Self { transfer, invited })
    }

    fn register(&self, memory: &RegisteredRegion) -> Result<Arc<Region>, TransferError> {
        // Nobody but the node is let in, and it has no more to do than to read.
        let access = match self.invited {
            Some(_) => Access::Read,
            None => Access::Local,
        };
        self.transfer.register(Memory::of_region(memory)?, access)
    }
}

impl Reach {
    /// The engine of this program. A failure to start it is for good.
    pub(crate) async fn engine(&self) -> Result<Arc<Engine>, Failure> {
        let start = async || {
            let options = self.options.clone();
            let started = on_thread("terrace-engine", move || Engine::start(&options)).await;
            started.map_err(Failure::one_sided)?.map(Arc::new)
        };
        self.engine.get_or_init(start).await.clone()
    }
}

/// Memory that is registered once for all parts of it.
pub(crate) struct Registration {
    memory: RegisteredRegion,
    /// As the engine knows it, since it was needed for the first time.
    entered: async_lock::OnceCell<Result<Entered, Failure>>,
}

struct Entered {
    region: Arc<Region>,
    engine: Arc<Engine>,
}

impl Registration {
    pub(crate) fn new(memory: &RegisteredRegion) -> Self {
        Self {
            memory: memory.clone(),
            entered: async_lock::OnceCell::new(),
        }
    }

    /// The memory as the engine knows it. That it cannot take it is for good.
    pub(crate) async fn region(&self, reach: &Reach) -> Result<Arc<Region>, Failure> {
        let enter = async || {
            let engine = reach.engine().await?;
            let memory = self.memory.clone();
            let register = move || {
                let region = engine.register(&memory)?;
                Ok(Entered { region, engine })
            };
            let entered = on_thread("terrace-register", register).await;
            let entered: Result<_, TransferError> = entered.map_err(Failure::one_sided)?;
            entered.map_err(Failure::one_sided)
        };
        match self.entered.get_or_init(enter).await {
            Ok(entered) => Ok(Arc::clone(&entered.region)),
            Err(failure) => Err(failure.clone()),
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let (engine, id) = (Arc::clone(&self.engine), self.region.id());
        leave_to_thread("terrace-unregister", move || {
            // What is still used then stays closed and mapped as long as the engine.
            drop(engine.transfer.unregister(id, UNREGISTER));
        });
    }
}
