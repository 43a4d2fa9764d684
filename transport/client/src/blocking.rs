//! The same calls for code without an executor: each waits on the caller's thread.
//!
//! The thread that waits asks the kernel itself, so that nothing but the node has to wake it. Not for
//! use inside an async task: it would block its executor's thread.

use std::time::Duration;

use terrace_types::{Lookup, PutOutcome};

use crate::wait::block_on;
use crate::{
    Announced, BlockFacts, CallOptions, ClientConfig, ClientStats, Error, EventBatch, EventKind,
    Lease, Leased, Listed, Located, Part, PutItem, RailReport, Region, RegisteredRegion, ShardPong,
    Target,
};

/// A client of one node, for code that waits. Clones share its connections, and may be used from any
/// thread.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

/// The blocks of one namespace, for code that waits.
#[derive(Clone, Debug)]
pub struct Namespace(crate::Namespace);

/// The blocks of a namespace, page after page.
#[derive(Debug)]
pub struct Listing(crate::Listing);

/// What the begin of a streamed put came to, for code that waits.
#[derive(Debug)]
#[must_use]
pub enum PutStart {
    /// The node waits for the bytes.
    Open(Box<PutStream>),
    /// The node does not want them.
    Done(PutOutcome),
}

/// A streamed put, for code that waits.
#[derive(Debug)]
pub struct PutStream(crate::PutStream);

/// A subscription, for code that waits.
#[derive(Debug)]
pub struct Events(crate::Events);

impl Client {
    /// As [`crate::Client::new`].
    ///
    /// # Errors
    /// As that.
    pub fn new(config: ClientConfig) -> Result<Self, Error> {
        crate::Client::new(config).map(Self)
    }

    /// As [`crate::Client::connect`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn connect(config: ClientConfig) -> Result<Self, Error> {
        block_on(crate::Client::connect(config)).map(Self)
    }

    /// As [`crate::Client::namespace`].
    ///
    /// # Errors
    /// As that.
    pub fn namespace(&self, name: &str) -> Result<Namespace, Error> {
        self.0.namespace(name).map(Namespace)
    }

    /// As [`crate::Client::ping`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn ping(&self, options: &CallOptions) -> Result<Vec<ShardPong>, Error> {
        block_on(self.0.ping(options))
    }

    /// As [`crate::Client::register`].
    ///
    /// # Errors
    /// As that.
    pub fn register(&self, memory: &RegisteredRegion) -> Result<Region, Error> {
        self.0.register(memory)
    }

    /// As [`crate::Client::one_sided_fault`].
    #[must_use]
    pub fn one_sided_fault(&self) -> Option<String> {
        self.0.one_sided_fault()
    }

    /// As [`crate::Client::rails`], and waits.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        block_on(self.0.rails())
    }

    /// What the client counted.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        self.0.stats()
    }
}

/// Calls of the same name that wait.
macro_rules! waiting {
    ($($name:ident $(<$keys:ident>)? ($($argument:ident: $kind:ty),*) -> $outcome:ty;)+) => {
        impl Namespace {
            $(
                #[doc = concat!("As [`crate::Namespace::", stringify!($name), "`], and waits.")]
                ///
                /// # Errors
                /// As that.
                pub fn $name$(<$keys: AsRef<[u8]>>)?(
                    &self,
                    $($argument: $kind,)*
                    options: &CallOptions,
                ) -> $outcome {
                    block_on(self.0.$name($($argument,)* options))
                }
            )+
        }
    };
}

waiting! {
    put(key: &[u8], value: &[u8]) -> Result<PutOutcome, Error>;
    put_gather(key: &[u8], value: &[&[u8]]) -> Result<PutOutcome, Error>;
    put_batch(items: &[PutItem<'_>]) -> Vec<Result<PutOutcome, Error>>;
    upsert(key: &[u8], value: &[u8]) -> Result<PutOutcome, Error>;
    upsert_batch(items: &[PutItem<'_>]) -> Vec<Result<PutOutcome, Error>>;
    put_from_region(key: &[u8], source: &Region) -> Result<PutOutcome, Error>;
    get_into_region(key: &[u8], target: &Region) -> Result<Lookup<Part>, Error>;
    get(key: &[u8]) -> Result<Lookup<Vec<u8>>, Error>;
    get_into(key: &[u8], target: &mut [u8]) -> Result<Lookup<Part>, Error>;
    get_range(key: &[u8], offset: u32, target: &mut [u8]) -> Result<Lookup<Part>, Error>;
    get_batch<K>(keys: &[K]) -> Vec<Result<Lookup<Vec<u8>>, Error>>;
    get_batch_into(targets: Vec<Target<'_>>) -> Vec<Result<Lookup<Part>, Error>>;
    exists(key: &[u8]) -> Result<Lookup<()>, Error>;
    exists_batch<K>(keys: &[K]) -> Vec<Result<Lookup<()>, Error>>;
    match_prefix<K>(keys: &[K]) -> Result<usize, Error>;
    remove(key: &[u8]) -> Result<Lookup<()>, Error>;
    remove_batch<K>(keys: &[K]) -> Vec<Result<Lookup<()>, Error>>;
    remove_all() -> Result<u64, Error>;
    prefetch<K>(keys: &[K], span: Duration) -> Vec<Result<Lookup<()>, Error>>;
    touch<K>(keys: &[K]) -> Vec<Result<Lookup<()>, Error>>;
    pin<K>(keys: &[K], span: Duration) -> Vec<Result<Lookup<()>, Error>>;
    unpin<K>(keys: &[K]) -> Vec<Result<Lookup<()>, Error>>;
    stat<K>(keys: &[K]) -> Vec<Result<Lookup<BlockFacts>, Error>>;
    lease<K>(keys: &[K], span: Duration) -> Vec<Result<Lookup<Lease>, Error>>;
    locate<K>(keys: &[K], span: Duration) -> Vec<Result<Lookup<Located>, Error>>;
    get_regions_into(targets: &[(&[u8], &Region)]) -> Vec<Result<Lookup<Part>, Error>>;
    put_regions_from(sources: &[(&[u8], &Region)]) -> Vec<Result<PutOutcome, Error>>;
    announce(accesses: &[Announced<'_>]) -> Vec<Result<(), Error>>;
}

impl Namespace {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// As [`crate::Namespace::list`].
    #[must_use]
    pub fn list(&self, prefix: &[u8], options: &CallOptions) -> Listing {
        Listing(self.0.list(prefix, options))
    }

    /// As [`crate::Namespace::events`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn events(&self, kinds: &[EventKind], options: &CallOptions) -> Result<Events, Error> {
        block_on(self.0.events(kinds, options)).map(Events)
    }
}

impl Namespace {
    /// As [`crate::Namespace::renew`], and waits.
    pub fn renew<L: Leased>(
        &self,
        leases: &[L],
        span: Duration,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<L>, Error>> {
        block_on(self.0.renew(leases, span, options))
    }

    /// As [`crate::Namespace::release`], and waits.
    pub fn release<L: Leased>(
        &self,
        leases: &[L],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        block_on(self.0.release(leases, options))
    }

    /// As [`Located::read_into`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn read_located(
        &self,
        located: &Located,
        target: &Region,
        options: &CallOptions,
    ) -> Result<Part, Error> {
        block_on(located.read_into(target, options))
    }
}

impl Namespace {
    /// As [`crate::Namespace::put_stream`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn put_stream(
        &self,
        key: &[u8],
        len: u64,
        options: &CallOptions,
    ) -> Result<PutStart, Error> {
        let start = block_on(self.0.put_stream(key, len, options))?;
        Ok(match start {
            crate::PutStart::Open(stream) => PutStart::Open(Box::new(PutStream(*stream))),
            crate::PutStart::Done(outcome) => PutStart::Done(outcome),
        })
    }
}

impl PutStream {
    /// As [`crate::PutStream::left`].
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.0.left()
    }

    /// As [`crate::PutStream::push`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        block_on(self.0.push(bytes))
    }

    /// As [`crate::PutStream::finish`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn finish(self) -> Result<PutOutcome, Error> {
        block_on(self.0.finish())
    }
}

impl Events {
    /// As [`crate::Events::next_batch`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn next_batch(&mut self) -> Result<EventBatch, Error> {
        block_on(self.0.next_batch())
    }
}

impl Listing {
    /// As [`crate::Listing::next_page`], and waits.
    ///
    /// # Errors
    /// As that.
    pub fn next_page(&mut self) -> Result<Option<Vec<Listed>>, Error> {
        block_on(self.0.next_page())
    }
}
