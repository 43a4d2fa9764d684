//! A client of one node, and the namespaces of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use terrace_types::{
    BlockKey, Hint, Namespace as KeySpace, NamespaceName, RequestContext, limits::NAMESPACES_MAX,
};
use terrace_wire::{NamespaceNumber, Options, RequestHead};

use crate::config::{ClientConfig, check_deadline};
use crate::connection::Connection;
use crate::error::{Cause, Error, Failure};
use crate::fan_out::Plan;
use crate::pool::{ClientStats, Pools};
use crate::time::left_ms;
use crate::tls::TlsOptions;

/// What a caller tells with a call. The default tells nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// How long the call may take; `None` for the client's default. At least 1 ms.
    pub deadline: Option<Duration>,
    /// What is known of the request that the call belongs to.
    pub context: RequestContext,
    /// What is known of the block, in calls of one key; batches of puts have one for each.
    pub hint: Hint,
    /// A put is answered when its block is durable.
    pub durable: bool,
    /// A get does not bring the block into DRAM.
    pub bypass: bool,
}

impl CallOptions {
    /// Nothing but a deadline.
    #[must_use]
    pub fn within(deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
            ..Self::default()
        }
    }

    /// The same, answered when the block is durable.
    #[must_use]
    pub const fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// The head of a request of this call that is sent now; its deadline is no longer than the node
    /// takes.
    pub(crate) fn head(
        &self,
        plan: Plan,
        connection: &Connection,
        number: u16,
        argument: u32,
    ) -> RequestHead {
        let longest_ms = connection.terms().deadline_max_ms;
        RequestHead {
            namespace: NamespaceNumber(number),
            deadline_ms: left_ms(plan.deadline).min(longest_ms),
            context: self.context,
            options: Options::NONE,
            argument,
        }
    }
}

/// A client of one node. Clones share its connections. It may be used from any thread and under any
/// executor; dropping it closes the connections.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) pools: Arc<Pools>,
    /// The namespaces that were named, by their number.
    names: Arc<Mutex<Vec<NamespaceName>>>,
}

/// The blocks of one namespace. Two namespaces never see each other's.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub(crate) client: Client,
    pub(crate) name: NamespaceName,
    pub(crate) number: u16,
    pub(crate) keys: KeySpace,
}

impl Client {
    /// A client whose connections are made when they are needed.
    ///
    /// # Errors
    /// [`Cause::Argument`] when a field of `config` is outside its limits.
    pub fn new(config: ClientConfig) -> Result<Self, Error> {
        let address = Arc::from(config.address.as_str());
        let wrong = |failure: Failure| Error::new(&address, None, failure.cause);
        config.check().map_err(wrong)?;
        let tls = config.tls.as_ref().map(TlsOptions::ready).transpose();
        let tls = tls.map_err(wrong)?;
        Ok(Self {
            pools: Arc::new(Pools::new(config, tls)),
            names: Arc::default(),
        })
    }

    /// As [`Client::new`], and makes the first connection, so that a wrong address or token is told
    /// here, and that one-sided access is required and cannot be had at this end.
    ///
    /// # Errors
    /// [`Cause::Argument`]; [`Cause::Unavailable`], [`Cause::Rejected`], [`Cause::Tls`] and
    /// [`Cause::Protocol`] of the connection; [`Cause::OneSided`].
    pub async fn connect(config: ClientConfig) -> Result<Self, Error> {
        let client = Self::new(config)?;
        let layout = client.pools.layout().await;
        layout.map_err(|failure| client.error(failure))?;
        let reach = client.pools.one_sided.as_ref();
        if let Some(reach) = reach.filter(|reach| reach.is_required()) {
            let engine = reach.engine().await;
            engine.map_err(|failure| client.error(failure))?;
        }
        Ok(client)
    }

    /// The blocks of a namespace, by its name: 1 to 255 printable bytes, normally a digest of all that
    /// tells apart blocks that must not be mixed.
    ///
    /// # Errors
    /// [`Cause::Key`] when the name is none; [`Cause::Argument`] when the client has named 4096.
    pub fn namespace(&self, name: &str) -> Result<Namespace, Error> {
        let name = NamespaceName::new(name)
            .map_err(|error| Error::new(&self.pools.address, None, Cause::Key(error)))?;
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let place = names.iter().position(|known| *known == name);
        let number = place.unwrap_or(names.len());
        if number >= NAMESPACES_MAX {
            let limit = format_args!("at most {NAMESPACES_MAX}").to_string();
            return Err(self.error(Failure::argument("namespaces", number + 1, limit)));
        }
        if place.is_none() {
            names.push(name.clone());
        }
        let number = number as u16;
        Ok(Namespace {
            client: self.clone(),
            keys: KeySpace::new(0, number, &name),
            name,
            number,
        })
    }

    /// What the client counted.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        self.pools.counters.read()
    }

    pub(crate) fn error(&self, failure: Failure) -> Error {
        Error::new(&self.pools.address, None, failure.cause)
    }

    /// How long a call has, from now.
    pub(crate) fn plan(&self, options: &CallOptions, is_read: bool) -> Result<Plan, Error> {
        let span = options.deadline.unwrap_or(self.pools.config.deadline);
        check_deadline("deadline", span).map_err(|failure| self.error(failure))?;
        Ok(Plan::new(span, is_read))
    }
}

impl Namespace {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The client.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn key(&self, key: &[u8]) -> Result<BlockKey, Error> {
        let address = &self.client.pools.address;
        let made = self.keys.key(key);
        made.map_err(|error| Error::new(address, Some(key), Cause::Key(error)))
    }
}

/// The result of a call of one key.
pub(crate) fn only<T>(results: Vec<Result<T, Error>>, client: &Client) -> Result<T, Error> {
    let none = || Err(client.error(Failure::protocol("the call has no result")));
    results.into_iter().next().unwrap_or_else(none)
}
