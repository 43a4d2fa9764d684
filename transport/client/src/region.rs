//! Memory that a caller registers once, and that any number of its calls read blocks into and put them
//! from.
//!
//! Its bytes may be written by others at any time, so they are never behind a reference: over TCP a call
//! copies them on their way, in pieces that the CPU's cache holds, and registering checks nothing but
//! bounds. A block that somebody writes over while it is read fails its checksum at its next reader.

use std::ops::Range;

use terrace_slab::RegisteredRegion;
use terrace_types::{Lookup, PutOutcome};

use crate::client::{CallOptions, Client, Namespace, only};
use crate::error::{Error, Failure};
use crate::get::Part;

/// A part of registered memory, or all of it. Clones and parts share the memory, which stays mapped as
/// long as one of them exists.
#[derive(Clone)]
pub struct Region {
    client: Client,
    memory: RegisteredRegion,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len()).finish()
    }
}

impl Client {
    /// Registers memory for calls of this client, on all connections that it has or makes.
    ///
    /// # Errors
    /// [`Cause::Argument`](crate::Cause::Argument) when a transport in force cannot take the memory;
    /// over TCP none.
    pub fn register(&self, memory: &RegisteredRegion) -> Result<Region, Error> {
        Ok(Region {
            client: self.clone(),
            memory: memory.clone(),
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
        let sliced = self.memory.slice(range);
        let memory = sliced.map_err(|_| {
            let limit = format!("within 0..{}", self.len());
            let failure = Failure::argument("range of a region", wanted, limit);
            self.client.error(failure)
        })?;
        Ok(Self {
            client: self.client.clone(),
            memory,
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
        let targets = vec![(key, target.memory())];
        only(self.get_regions(targets, options).await, &self.client)
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
        // What is hashed has to be what is sent, whoever writes to the region meanwhile.
        let mut value = vec![0; source.len()];
        source.memory.copy_to(&mut value);
        self.put(key, &value, options).await
    }
}
