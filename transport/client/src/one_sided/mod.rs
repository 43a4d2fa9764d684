//! Blocks that go between registered memory of this program and the node's by a transfer engine at
//! each end: over RDMA without the node's processor, else over rails of TCP.
//!
//! **Invariants**
//! - What lies in a region of the node is read only by rails that were in force when the node said
//!   where it lies, and only as long as its lease holds.
//! - Bytes are compared with the checksum of their block before anybody is told of them.

mod engine;
mod pull;
mod rails;
mod read;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use terrace_fabric::transfer::{Peer, RailReport};

use crate::client::Client;
use crate::error::{Failure, Retry};

use engine::Engine;
pub(crate) use engine::Registration;
use rails::Opened;
pub(crate) use rails::{InForce, Rails, RailsSlot, are_taken_back};

/// Whether blocks are read and stored one-sided.
///
/// It needs a node that grants it, and memory that was registered by
/// [`Client::register`](crate::Client::register).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OneSided {
    /// All blocks go over the connections.
    #[default]
    Off,
    /// Blocks go one-sided where that can be had, and over the connections where not;
    /// [`Client::one_sided_fault`](crate::Client::one_sided_fault) tells why.
    Auto(OneSidedOptions),
    /// As `Auto`, but calls that would go over the connections fail.
    Required(OneSidedOptions),
}

/// How this program's memory is reached. The default uses all RDMA devices and lets nobody in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneSidedOptions {
    /// RDMA devices, as `NAME` or `NAME/PORT`; empty for all that carry packets. Without RDMA in
    /// the machine blocks go over TCP.
    pub devices: Vec<String>,
    /// An address of this machine that the node can reach, at which it may read registered memory
    /// to store blocks of it. `None`: the values of puts go over the connections.
    pub listen: Option<IpAddr>,
}

impl OneSided {
    const fn options(&self) -> Option<&OneSidedOptions> {
        match self {
            Self::Off => None,
            Self::Auto(options) | Self::Required(options) => Some(options),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Some(options) = self.options() else {
            return Ok(());
        };
        if let Some(address) = options.listen.filter(IpAddr::is_unspecified) {
            let limit = "an address that the node can reach";
            return Err(Failure::argument("one_sided.listen", address, limit));
        }
        let is_name = |name: &String| !name.is_empty() && !name.contains(char::is_whitespace);
        if let Some(name) = options.devices.iter().find(|name| !is_name(name)) {
            let shown = name.escape_debug().take(80).collect::<String>();
            let limit = "NAME or NAME/PORT";
            return Err(Failure::argument(
                "one_sided.devices",
                format!("`{shown}`"),
                limit,
            ));
        }
        Ok(())
    }
}

/// What a client needs to reach memory of its node.
pub(crate) struct Reach {
    options: OneSidedOptions,
    is_required: bool,
    /// Started when it is needed for the first time.
    engine: async_lock::OnceCell<Result<Arc<Engine>, Failure>>,
    /// The node's engine as it was opened last.
    opened: async_lock::Mutex<Option<Arc<Opened>>>,
    /// Why something went over a connection.
    fault: Mutex<Option<Failure>>,
}

impl std::fmt::Debug for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach")
            .field("options", &self.options)
            .field("is_required", &self.is_required)
            .finish_non_exhaustive()
    }
}

impl Reach {
    /// `None` when it is off.
    pub(crate) fn new(config: &OneSided) -> Option<Self> {
        Some(Self {
            options: config.options()?.clone(),
            is_required: matches!(config, OneSided::Required(_)),
            engine: async_lock::OnceCell::new(),
            opened: async_lock::Mutex::default(),
            fault: Mutex::default(),
        })
    }

    /// Whether nothing may go over a connection.
    pub(crate) const fn is_required(&self) -> bool {
        self.is_required
    }

    /// Whether the node may read registered memory.
    const fn is_open(&self) -> bool {
        self.options.listen.is_some()
    }

    /// Notes why something did not go one-sided.
    pub(crate) fn note(&self, failure: &Failure) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
    }

    /// The failure of a call that may not go over a connection.
    pub(crate) fn required(&self) -> Failure {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match &*fault {
            Some(failure) => Failure::new(failure.cause.clone(), Retry::Never),
            None => Failure::one_sided("it is required, and this block cannot be had by it"),
        }
    }
}

impl Client {
    /// Why the last block that was to go one-sided went over a connection; `None` when none has.
    #[must_use]
    pub fn one_sided_fault(&self) -> Option<String> {
        let reach = self.pools.one_sided.as_ref()?;
        let fault = reach.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.as_ref().map(|failure| failure.cause.to_string())
    }

    /// The rails to the node's transfer engine, with what each has done since it was opened; none
    /// before the first block went by them.
    pub async fn rails(&self) -> Vec<RailReport> {
        let Some(reach) = &self.pools.one_sided else {
            return Vec::new();
        };
        let opened = reach.opened.lock().await;
        let peer = opened.as_ref().and_then(|opened| opened.peer().ok());
        peer.map(Peer::rails).unwrap_or_default()
    }
}
