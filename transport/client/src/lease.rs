//! Leases: slots that the node keeps for a while.

use std::time::{Duration, Instant};

use terrace_types::{BlockKey, Lookup, Tier};
use terrace_wire::{LeaseId, LeaseRecord, Reply, Verb};

use crate::client::{CallOptions, Namespace};
use crate::error::{Error, Failure};
use crate::fan_out::Plan;
use crate::keys::{found, in_order, millis, split_keys, statuses};

/// A block that the node keeps where it is.
#[derive(Clone, Debug)]
pub struct Lease {
    key: BlockKey,
    id: LeaseId,
    /// Length of the block in bytes.
    pub block_len: u64,
    /// When it ends, counted from before it was asked for.
    pub until: Instant,
}

/// What may have a lease: a [`Lease`], or a [`Located`](crate::Located) block.
pub trait Leased: Clone {
    /// The lease; `None` for a block whose bytes are here.
    fn lease(&self) -> Option<&Lease>;

    /// The same with a lease that was renewed.
    #[must_use]
    fn with(&self, lease: Lease) -> Self;
}

impl Leased for Lease {
    fn lease(&self) -> Option<&Lease> {
        Some(self)
    }

    fn with(&self, lease: Lease) -> Self {
        lease
    }
}

impl Lease {
    pub(crate) const fn id(&self) -> LeaseId {
        self.id
    }

    /// A lease that was granted to a call that began at `from`.
    //= docs/wire-protocol.md#WP-21
    pub(crate) fn granted(key: &BlockKey, record: &LeaseRecord, from: Instant) -> Self {
        let span = Duration::from_millis(record.duration_ms.into());
        Self {
            key: key.clone(),
            id: record.id,
            block_len: u64::from(record.block_len),
            until: from + span,
        }
    }

    /// The key of the block.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.key.bytes()
    }
}

impl Namespace {
    /// Keeps blocks where they are for `span`, or as long as the node allows; one result for each key,
    /// in their order.
    pub async fn lease<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        span: Duration,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<Lease>, Error>> {
        let ask = match self.prepare(Verb::Lease, options, millis(span)) {
            Ok(ask) => ask,
            Err(error) => return keys.iter().map(|_| Err(error.clone())).collect(),
        };
        let names: Vec<_> = keys.iter().map(AsRef::as_ref).collect();
        let (keys, refused) = split_keys(self, &names);
        let results = ask.all_of(&keys, granted).await;
        let leases = results.into_iter().zip(&keys).map(|(result, key)| {
            let lookup = result?;
            Ok(lookup.map(|granted| granted.of(key)))
        });
        in_order(refused, leases.collect())
    }

    /// Keeps leases for `span` from now; a miss for one that has ended, and a block whose bytes are
    /// here as it is. One result for each, in their order.
    pub async fn renew<L: Leased>(
        &self,
        leases: &[L],
        span: Duration,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<L>, Error>> {
        let (keys, ids) = parts(leases);
        let mut ask = match self.prepare(Verb::Renew, options, millis(span)) {
            Ok(ask) => ask,
            Err(error) => return leases.iter().map(|_| Err(error.clone())).collect(),
        };
        ask.leases = Some(&ids);
        let mut results = ask.all_of(&keys, granted).await.into_iter().zip(&keys);
        let renewed = |leased: &L| {
            if leased.lease().is_none() {
                return Some(Ok(here(leased.clone())));
            }
            let (result, key) = results.next()?;
            let with = |granted: Granted| leased.with(granted.of(key));
            Some(result.map(|lookup| lookup.map(with)))
        };
        leases.iter().filter_map(renewed).collect()
    }

    /// Ends leases; one result for each, in their order. Of a block whose bytes are here there is
    /// nothing to end.
    pub async fn release<L: Leased>(
        &self,
        leases: &[L],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        let (keys, ids) = parts(leases);
        let mut ask = match self.prepare(Verb::Release, options, 0) {
            Ok(ask) => ask,
            Err(error) => return leases.iter().map(|_| Err(error.clone())).collect(),
        };
        ask.leases = Some(&ids);
        let mut results = ask.all_of(&keys, statuses).await.into_iter();
        let released = |leased: &L| match leased.lease() {
            None => Some(Ok(here(()))),
            Some(_) => results.next(),
        };
        leases.iter().filter_map(released).collect()
    }
}

/// A hit of what is in this program's memory.
const fn here<T>(value: T) -> Lookup<T> {
    let tier = Tier::Dram;
    Lookup::Hit { tier, value }
}

fn parts<L: Leased>(leases: &[L]) -> (Vec<BlockKey>, Vec<LeaseId>) {
    let leases = leases.iter().filter_map(Leased::lease);
    leases.map(|lease| (lease.key.clone(), lease.id)).unzip()
}

/// What a node granted.
struct Granted {
    record: LeaseRecord,
    from: Instant,
}

impl Granted {
    fn of(&self, key: &BlockKey) -> Lease {
        Lease::granted(key, &self.record, self.from)
    }
}

fn granted(
    reply: &Reply<'_>,
    plan: Plan,
    _: usize,
) -> Option<Vec<Result<Lookup<Granted>, Failure>>> {
    let Reply::Leases(_, records) = reply else {
        return None;
    };
    let of = |record: LeaseRecord| {
        let from = plan.start();
        Ok(found(record.status, plan)?.map(|()| Granted { record, from }))
    };
    Some(records.iter().map(of).collect())
}
