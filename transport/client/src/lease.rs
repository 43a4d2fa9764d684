//! Leases: slots that the node keeps for a while.

use std::time::{Duration, Instant};

use terrace_types::{BlockKey, Lookup};
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

impl Lease {
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

    /// Keeps leases for `span` from now; a miss for one that has ended. One result for each, in their
    /// order.
    pub async fn renew(
        &self,
        leases: &[Lease],
        span: Duration,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<Lease>, Error>> {
        let (keys, ids) = parts(leases);
        let mut ask = match self.prepare(Verb::Renew, options, millis(span)) {
            Ok(ask) => ask,
            Err(error) => return leases.iter().map(|_| Err(error.clone())).collect(),
        };
        ask.leases = Some(&ids);
        let results = ask.all_of(&keys, granted).await;
        let renewed = results.into_iter().zip(&keys);
        let renewed = renewed.map(|(result, key)| Ok(result?.map(|granted| granted.of(key))));
        renewed.collect()
    }

    /// Ends leases; one result for each, in their order.
    pub async fn release(
        &self,
        leases: &[Lease],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        let (keys, ids) = parts(leases);
        let mut ask = match self.prepare(Verb::Release, options, 0) {
            Ok(ask) => ask,
            Err(error) => return leases.iter().map(|_| Err(error.clone())).collect(),
        };
        ask.leases = Some(&ids);
        ask.all_of(&keys, statuses).await
    }
}

fn parts(leases: &[Lease]) -> (Vec<BlockKey>, Vec<LeaseId>) {
    let parts = leases.iter().map(|lease| (lease.key.clone(), lease.id));
    parts.unzip()
}

/// What a node granted.
struct Granted {
    record: LeaseRecord,
    from: Instant,
}

impl Granted {
    //= docs/wire-protocol.md#WP-21
    fn of(&self, key: &BlockKey) -> Lease {
        let span = Duration::from_millis(self.record.duration_ms.into());
        Lease {
            key: key.clone(),
            id: self.record.id,
            block_len: u64::from(self.record.block_len),
            until: self.from + span,
        }
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
