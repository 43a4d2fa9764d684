//! Memory that a caller registers once, and that any number of its calls read blocks into and put them
//! from.
//!
//! Its bytes may be written by others at any time, so they are never behind a reference: over a
//! connection a call copies them on their way, in pieces that the CPU's cache holds; one-sided they are
//! moved by a transfer engine, and hashed where they lie. A block that somebody writes over while it is read fails its checksum at its next reader.

use std::ops::Range;
use std::sync::Arc;

use terrace_fabric::transfer::LocalPart;
use terrace_slab::RegisteredRegion;
use terrace_types::{Lookup, PutOutcome};

use crate::client::{CallOptions, Client, Namespace, only};
use crate::error::{Error, Failure};
use crate::get::Part;
use crate::one_sided::{Reach, Registration};
use crate::pool::Pools;

/// A part of registered memory, or all of it. Clones and parts share the memory, which stays mapped as
/// long as one of them exists.
#[derive(Clone)]
pub struct Region {
    client: Client,
    memory: RegisteredRegion,
    /// All of what was registered.
    whole: Arc<Registration>,
    /// Where the memory begins in it.
    start: usize,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len()).finish()
    }
}

impl Client {
    /// Registers memory for calls of this client, on all connections that it has or makes. With
    /// one-sided access the first call that uses it gives it to the transfer engine and the NICs,
    /// until no part of the region exists any more.
    ///
    /// # Errors
    /// [`Cause::Argument`](crate::Cause::Argument) when it has no bytes.
    pub fn register(&self, memory: &RegisteredRegion) -> Result<Region, Error> {
        if memory.is_empty() {
            let failure = Failure::argument("length of the memory", 0, "at least 1");
            return Err(self.error(failure));
        }
        Ok(Region {
            client: self.clone(),
            memory: memory.clone(),
            whole: Arc::new(Registration::new(memory)),
            start: 0,
        })
    }
}

impl Region {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The bytes of `range` within this one.
    ///
    /// # Errors
    /// [`Cause::Argument`](crate::Cause::Argument) when they do not all lie in it.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, Error> {
        let wanted = format!("{}..{}", range.start, range.end);
        let start = self.start.saturating_add(range.start);
        let sliced = self.memory.slice(range);
        let memory = sliced.map_err(|_| {
            let limit = format!("within 0..{}", self.len());
            let failure = Failure::argument("range of a region", wanted, limit);
            self.client.error(failure)
        })?;
        Ok(Self {
            client: self.client.clone(),
            memory,
            whole: Arc::clone(&self.whole),
            start,
        })
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// The first `len` bytes, which it has, as the transfer engine knows them.
    pub(crate) async fn part(
        &self,
        pools: &Pools,
        reach: &Reach,
        len: u64,
    ) -> Result<LocalPart, Failure> {
        if !std::ptr::eq(Arc::as_ptr(&self.client.pools), pools) {
            return Err(Failure::one_sided(
                "the memory is registered with another client",
            ));
        }
        Ok(LocalPart {
            region: self.whole.region(reach).await?,
            offset: self.start as u64,
            len,
        })
    }

    /// The memory.
    #[must_use]
    pub const fn memory(&self) -> &RegisteredRegion {
        &self.memory
    }
}

impl Namespace {
    /// Reads a block into a region, as far as that reaches. After an error the region holds anything,
    /// but never bytes that failed their checksum.
    ///
    /// # Errors
    /// As [`Namespace::get`].
    pub async fn get_into_region(
        &self,
        key: &[u8],
        target: &Region,
        options: &CallOptions,
    ) -> Result<Lookup<Part>, Error> {
        let targets = [(key, target)];
        only(self.get_regions_into(&targets, options).await, &self.client)
    }

    /// Stores the bytes of a region as a block.
    ///
    /// # Errors
    /// As [`Namespace::put`].
    pub async fn put_from_region(
        &self,
        key: &[u8],
        source: &Region,
        options: &CallOptions,
    ) -> Result<PutOutcome, Error> {
        let sources = [(key, source)];
        only(self.put_regions_from(&sources, options).await, &self.client)
    }
}
