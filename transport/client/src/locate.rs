//! Locates: leases of blocks that tell where their bytes lie, or the bytes where they are few.

use std::sync::Arc;

use terrace_types::{BlockKey, Checksum, Lookup};
use terrace_wire::{Descriptor, KeyStatus, Reply, Verb};
use xxhash_rust::xxh3::Xxh3;

use crate::client::{CallOptions, Namespace};
use crate::connection::{Call, Connection, Unneeded};
use crate::error::{Cause, Error, Failure, Retry};
use crate::fan_out::{Answer, Item, Weight};
use crate::get::{receive_into, seed_of_whole};
use crate::keys::{Ask, found, in_order, millis, split_keys};
use crate::lease::{Lease, Leased};
use crate::one_sided::{InForce, Rails, Reach, are_taken_back};

/// A block that was found: its bytes, or a lease on them.
#[derive(Clone)]
pub struct Located {
    key: BlockKey,
    len: u64,
    checksum: Checksum,
    pub(crate) at: At,
}

/// Where the bytes of a located block are.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Here: the block is short. They were compared with its checksum.
    Here(&'a [u8]),
    /// At the node, for as long as the lease holds.
    Leased {
        /// The lease.
        lease: &'a Lease,
        /// The first byte's place in the region of the block's shard; `None` without one-sided
        /// access.
        offset: Option<u64>,
    },
}

#[derive(Clone)]
pub(crate) enum At {
    Here(Arc<[u8]>),
    Leased {
        lease: Lease,
        /// By which the bytes can be read, and where they begin in their region.
        rails: Option<(Arc<Rails>, u64)>,
    },
}

impl std::fmt::Debug for Located {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Located")
            .field("key", &self.key)
            .field("len", &self.len)
            .field("checksum", &self.checksum)
            .field("lease", &self.lease())
            .finish_non_exhaustive()
    }
}

impl Located {
    /// The key of the block.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.key.bytes()
    }

    pub(crate) const fn block_key(&self) -> &BlockKey {
        &self.key
    }

    /// Length of the block in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a block has at least one byte")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// The checksum of the block.
    #[must_use]
    pub const fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Where its bytes are.
    #[must_use]
    pub fn place(&self) -> Place<'_> {
        match &self.at {
            At::Here(bytes) => Place::Here(bytes),
            At::Leased { lease, rails } => Place::Leased {
                lease,
                offset: rails.as_ref().map(|(_, offset)| *offset),
            },
        }
    }
}

impl Leased for Located {
    fn lease(&self) -> Option<&Lease> {
        match &self.at {
            At::Here(_) => None,
            At::Leased { lease, .. } => Some(lease),
        }
    }

    fn with(&self, renewed: Lease) -> Self {
        let mut located = self.clone();
        if let At::Leased { lease, .. } = &mut located.at {
            *lease = renewed;
        }
        located
    }
}

/// What became of one key.
pub(crate) enum Found {
    /// With a lease, which ends with this.
    Looked(Lookup<Located>, Option<Unneeded>),
    /// Its shard was not asked, as there are no rails to it.
    NoRails(Failure),
}

/// What a run of a locate needs.
#[derive(Clone, Copy)]
pub(crate) struct Locate<'a> {
    ask: Ask<'a>,
    keys: &'a [BlockKey],
    reach: Option<&'a Reach>,
    /// Whether shards without rails are left alone.
    needs_rails: bool,
}

impl Namespace {
    /// Finds blocks: short ones come with the answer, others are leased for `span`, or as long as
    /// the node allows. One result for each key, in their order. With one-sided access they can be
    /// read by [`Located::read_into`] until their lease ends.
    //= docs/wire-protocol.md#WP-27
    pub async fn locate<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        span: std::time::Duration,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<Located>, Error>> {
        let ask = match self.prepare(Verb::Locate, options, millis(span)) {
            Ok(ask) => ask,
            Err(error) => return keys.iter().map(|_| Err(error.clone())).collect(),
        };
        let names: Vec<_> = keys.iter().map(AsRef::as_ref).collect();
        let (keys, refused) = split_keys(self, &names);
        let looked = self.locate_all(ask, &keys, false).await;
        let looked = looked.into_iter().map(|result| match result? {
            Found::Looked(lookup, lease) => {
                // From here on it is the caller's.
                lease.into_iter().for_each(Unneeded::keep);
                Ok(lookup)
            }
            Found::NoRails(failure) => Err(self.client.error(failure)),
        });
        in_order(refused, looked.collect())
    }

    pub(crate) async fn locate_all(
        &self,
        ask: Ask<'_>,
        keys: &[BlockKey],
        needs_rails: bool,
    ) -> Vec<Result<Found, Error>> {
        let pools = &self.client.pools;
        let run = Locate {
            ask,
            keys,
            reach: pools.one_sided.as_ref(),
            needs_rails,
        };
        let entries = keys.iter().map(|key| ((), Weight::of_key(16, key)));
        let entries = entries.collect();
        pools
            .fan_out(ask.plan, keys, entries, |connection, items| {
                run.attempt(connection, items)
            })
            .await
    }
}

impl Locate<'_> {
    async fn attempt(
        self,
        connection: Arc<Connection>,
        items: Vec<Item<()>>,
    ) -> Vec<Answer<(), Found>> {
        let mut answers = Vec::with_capacity(items.len());
        let mut items = items;
        let mut is_again = false;
        loop {
            let in_force = match self.rails(&connection).await {
                Ok(in_force) => in_force,
                Err(failure) => return without(items, &failure),
            };
            let rails = in_force.as_ref().map(|in_force| &in_force.rails);
            let mut left = items.into_iter();
            let exchanged = self.exchange(&connection, rails, &mut left, &mut answers);
            let Err(failure) = exchanged.await else {
                return answers;
            };
            let are_lost = rails.filter(|_| are_taken_back(&failure));
            let Some(lost) = are_lost else {
                answers.extend(Answer::fail_all(left, &failure));
                return answers;
            };
            lost.lose();
            items = left.collect();
            if std::mem::replace(&mut is_again, true) {
                answers.extend(match self.needs_rails {
                    true => without(items, &failure),
                    false => Answer::fail_all(items, &failure),
                });
                return answers;
            }
        }
    }

    /// The rails of a connection. `None`: it is asked without any.
    async fn rails<'c>(
        &self,
        connection: &'c Arc<Connection>,
    ) -> Result<Option<InForce<'c>>, Failure> {
        let Some(reach) = self.reach else {
            return Ok(None);
        };
        let pools = &self.ask.namespace.client.pools;
        match pools.rails(reach, connection, self.ask.plan).await {
            Ok(in_force) => Ok(Some(in_force)),
            Err(failure) => {
                reach.note(&failure);
                match self.needs_rails {
                    true => Err(failure),
                    false => Ok(None),
                }
            }
        }
    }

    /// Sends the request, and takes its replies.
    async fn exchange(
        &self,
        connection: &Arc<Connection>,
        rails: Option<&Arc<Rails>>,
        items: &mut std::vec::IntoIter<Item<()>>,
        answers: &mut Vec<Answer<(), Found>>,
    ) -> Result<(), Failure> {
        let mut call = self
            .ask
            .send(connection, items.as_slice(), self.keys)
            .await?;
        loop {
            let arrived = call.receive().await?;
            let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
            let records = match reply {
                Reply::Descriptors(_, records) => records,
                Reply::Error(error) => {
                    return Err(call.refusal(&error, self.ask.namespace.number));
                }
                _ => {
                    return Err(Failure::protocol(
                        "a locate was not answered by descriptors",
                    ));
                }
            };
            for record in records {
                let Some(item) = items.next() else {
                    return Err(Failure::protocol("more descriptors than were asked for"));
                };
                let key = &self.keys[item.index];
                match self.take(&mut call, key, &record, rails).await {
                    Ok(lookup) => {
                        let lease = match &lookup {
                            Lookup::Hit { value, .. } => value.lease(),
                            _ => None,
                        };
                        let lease = lease.map(|lease| Unneeded::new(connection, lease.id()));
                        answers.push(Answer::Done(item.index, Found::Looked(lookup, lease)));
                    }
                    Err(failure) => {
                        // Corrupt values are read to their end, the others behind them are sound.
                        let is_corrupt = matches!(failure.cause, Cause::Corrupt { .. });
                        answers.push(Answer::Failed(item, failure.clone()));
                        if !is_corrupt && record.inline_len > 0 {
                            return Err(failure);
                        }
                    }
                }
            }
            if arrived.is_last {
                return Ok(());
            }
        }
    }

    async fn take(
        &self,
        call: &mut Call,
        key: &BlockKey,
        record: &Descriptor,
        rails: Option<&Arc<Rails>>,
    ) -> Result<Lookup<Located>, Failure> {
        let lookup = found(record.lease.status, self.ask.plan)?;
        let at = if !matches!(record.lease.status, KeyStatus::Hit(_)) {
            At::Here(Arc::default())
        } else if record.inline_len > 0 {
            At::Here(receive_short(call, key, record).await?)
        } else {
            At::Leased {
                lease: Lease::granted(key, &record.lease, self.ask.plan.start()),
                rails: rails.map(|rails| (Arc::clone(rails), record.address)),
            }
        };
        Ok(lookup.map(|()| Located {
            key: key.clone(),
            len: record.lease.block_len.into(),
            checksum: record.checksum,
            at,
        }))
    }
}

/// All of these are left to another way.
fn without(items: Vec<Item<()>>, failure: &Failure) -> Vec<Answer<(), Found>> {
    let items = items.into_iter();
    items
        .map(|item| Answer::Done(item.index, Found::NoRails(failure.clone())))
        .collect()
}

/// Receives a block that comes with its descriptor.
async fn receive_short(
    call: &mut Call,
    key: &BlockKey,
    record: &Descriptor,
) -> Result<Arc<[u8]>, Failure> {
    let mut bytes = vec![0; record.inline_len as usize];
    let mut hash = Xxh3::with_seed(seed_of_whole(key.hash(), record.inline_len));
    receive_into(call, &mut bytes, &mut hash).await?;
    let (expected, actual) = (record.checksum, Checksum(hash.digest()));
    //= docs/wire-protocol.md#WP-18
    if actual != expected {
        let cause = Cause::Corrupt { expected, actual };
        return Err(Failure::new(cause, Retry::Reads));
    }
    Ok(bytes.into())
}
