//! Calls about keys that carry no values.

use std::sync::Arc;
use std::time::Duration;

use terrace_types::{BlockKey, Checksum, Lookup};
use terrace_wire::{Facts, KeyEntry, KeyStatus, LeaseId, Reply, Verb, request};

use crate::client::{CallOptions, Namespace, only};
use crate::connection::{Arrived, Call, Connection, Frame};
use crate::error::{Error, Failure, Retry};
use crate::fan_out::{Answer, Item, Plan, Weight};

/// What a node knows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// Length in bytes.
    pub len: u64,
    /// Checksum of the block.
    pub checksum: Checksum,
    /// Whether it survives kill -9 and power loss.
    pub durable: bool,
    /// Whether it is in DRAM.
    pub in_dram: bool,
    /// Whether it is on a device.
    pub on_nvme: bool,
    /// Whether somebody has it pinned.
    pub pinned: bool,
    /// Whether somebody has it leased.
    pub leased: bool,
}

/// Takes the results of one frame of a reply, one for each record of it.
/// The last argument is how many entries are not answered yet.
pub(crate) type Take<T> = fn(&Reply<'_>, Plan, usize) -> Option<Vec<Result<T, Failure>>>;

/// A call about keys.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) verb: Verb,
    pub(crate) plan: Plan,
    pub(crate) namespace: &'a Namespace,
    pub(crate) options: &'a CallOptions,
    pub(crate) argument: u32,
    /// What stands in place of the keys in the request, one for each.
    pub(crate) leases: Option<&'a [LeaseId]>,
}

impl Namespace {
    /// Whether a block is stored, and in which tier. Moves nothing and renews nothing.
    ///
    /// # Errors
    /// As all calls: see [`Cause`](crate::Cause).
    pub async fn exists(&self, key: &[u8], options: &CallOptions) -> Result<Lookup<()>, Error> {
        only(self.exists_batch(&[key], options).await, &self.client)
    }

    /// [`Namespace::exists`] of many keys; one result for each, in their order.
    pub async fn exists_batch<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        self.ask(Verb::Exists, keys, options, 0).await
    }

    /// Removes blocks; a hit for each that was there. One result for each key, in their order.
    pub async fn remove_batch<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        self.ask(Verb::Remove, keys, options, 0).await
    }

    /// Removes a block; a hit when it was there.
    ///
    /// # Errors
    /// As all calls: see [`Cause`](crate::Cause). After [`Cause::TimedOut`](crate::Cause::TimedOut)
    /// and [`Cause::Io`](crate::Cause::Io) the block may be there or not.
    pub async fn remove(&self, key: &[u8], options: &CallOptions) -> Result<Lookup<()>, Error> {
        only(self.remove_batch(&[key], options).await, &self.client)
    }

    /// Brings blocks to DRAM ahead of need, for at most `span`; one result for each key, in their
    /// order.
    pub async fn prefetch<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        span: Duration,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        self.ask(Verb::Prefetch, keys, options, millis(span)).await
    }

    /// Tells the policy of a use of blocks; one result for each key, in their order.
    pub async fn touch<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        self.ask(Verb::Touch, keys, options, 0).await
    }

    /// Keeps blocks from being given up for `span`, or until [`Namespace::unpin`]; at most as long as
    /// this client is connected. One result for each key, in their order.
    pub async fn pin<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        span: Duration,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        self.ask(Verb::Pin, keys, options, millis(span)).await
    }

    /// Ends pins of this client; one result for each key, in their order.
    pub async fn unpin<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<()>, Error>> {
        self.ask(Verb::Unpin, keys, options, 0).await
    }

    /// What the node knows of blocks; one result for each key, in their order.
    pub async fn stat<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<BlockFacts>, Error>> {
        match self.prepare(Verb::Stat, options, 0) {
            Ok(ask) => ask.all(keys, facts).await,
            Err(error) => keys.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn ask<K: AsRef<[u8]>>(
        &self,
        verb: Verb,
        keys: &[K],
        options: &CallOptions,
        argument: u32,
    ) -> Vec<Result<Lookup<()>, Error>> {
        match self.prepare(verb, options, argument) {
            Ok(ask) => ask.all(keys, statuses).await,
            Err(error) => keys.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// A call of a verb about keys.
    pub(crate) fn prepare<'a>(
        &'a self,
        verb: Verb,
        options: &'a CallOptions,
        argument: u32,
    ) -> Result<Ask<'a>, Error> {
        // What is pinned or leased twice is still pinned or leased once.
        let plan = self.client.plan(options, verb != Verb::Remove)?;
        //= docs/wire-protocol.md#WP-24
        let plan = match verb {
            Verb::Pin | Verb::Unpin | Verb::Lease | Verb::Renew | Verb::Release | Verb::Locate => {
                plan.home()
            }
            _ => plan,
        };
        Ok(Ask {
            verb,
            plan,
            namespace: self,
            options,
            argument,
            leases: None,
        })
    }
}

/// A span in whole milliseconds, as far as 32 bits go.
pub(crate) fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

impl Ask<'_> {
    /// Asks for all keys; one result for each, in their order.
    pub(crate) async fn all<T, K: AsRef<[u8]>>(
        self,
        keys: &[K],
        take: Take<T>,
    ) -> Vec<Result<T, Error>> {
        let names: Vec<_> = keys.iter().map(AsRef::as_ref).collect();
        let (keys, refused) = split_keys(self.namespace, &names);
        in_order(refused, self.all_of(&keys, take).await)
    }

    /// As [`Ask::all`], of keys that are keys.
    pub(crate) async fn all_of<T>(self, keys: &[BlockKey], take: Take<T>) -> Vec<Result<T, Error>> {
        let entries = keys.iter().map(|key| ((), Weight::of_key(16, key)));
        let entries = entries.collect();
        let pools = &self.namespace.client.pools;
        pools
            .fan_out(self.plan, keys, entries, |connection, items| {
                self.attempt(connection, items, keys, take)
            })
            .await
    }

    async fn attempt<T>(
        self,
        connection: Arc<Connection>,
        items: Vec<Item<()>>,
        keys: &[BlockKey],
        take: Take<T>,
    ) -> Vec<Answer<(), T>> {
        let mut call = match self.send(&connection, &items, keys).await {
            Ok(call) => call,
            Err(failure) => return Answer::fail_all(items, &failure),
        };
        let mut answers = Vec::with_capacity(items.len());
        let mut items = items.into_iter();
        loop {
            let taken = match call.receive().await {
                Ok(arrived) => self
                    .take(&call, &arrived, (take, items.len()))
                    .map(|all| (arrived.is_last, all)),
                Err(failure) => Err(failure),
            };
            match taken {
                Ok((is_last, results)) => {
                    answers.extend(results.into_iter().zip(&mut items).map(|(result, item)| {
                        match result {
                            Ok(value) => Answer::Done(item.index, value),
                            Err(failure) => Answer::Failed(item, failure),
                        }
                    }));
                    if is_last {
                        return answers;
                    }
                }
                Err(failure) => {
                    answers.extend(Answer::fail_all(items, &failure));
                    return answers;
                }
            }
        }
    }

    pub(crate) async fn send(
        &self,
        connection: &Arc<Connection>,
        items: &[Item<()>],
        keys: &[BlockKey],
    ) -> Result<Call, Failure> {
        let namespace = self.namespace;
        let (options, argument) = (self.options, self.argument);
        let head = options.head(self.plan, connection, namespace.number, argument);
        let (verb, hint) = (self.verb, self.options.hint);
        let frame = Frame {
            verb,
            entries: items.len(),
            values: &[],
            namespace: Some((namespace.number, namespace.name())),
        };
        let encode = |id, out: &mut [u8]| {
            if let Some(leases) = self.leases {
                let entries = items.iter().map(|item| leases[item.index]);
                return request::encode(verb, id, &head, entries, out);
            }
            let entries = items.iter().map(|item| KeyEntry {
                key: keys[item.index].bytes(),
                hint,
            });
            request::encode(verb, id, &head, entries, out)
        };
        connection.send(frame, &encode).await
    }

    fn take<T>(
        &self,
        call: &Call,
        arrived: &Arrived,
        (take, left): (Take<T>, usize),
    ) -> Result<Vec<Result<T, Failure>>, Failure> {
        let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
        if let Reply::Error(error) = &reply {
            return Err(call.refusal(error, self.namespace.number));
        }
        let name = self.verb.name();
        let wrong = || Failure::protocol(format_args!("{name} has a reply of another kind"));
        take(&reply, self.plan, left).ok_or_else(wrong)
    }
}

pub(crate) fn statuses(
    reply: &Reply<'_>,
    plan: Plan,
    _: usize,
) -> Option<Vec<Result<Lookup<()>, Failure>>> {
    let Reply::Statuses(_, records) = reply else {
        return None;
    };
    Some(records.iter().map(|status| found(status, plan)).collect())
}

fn facts(
    reply: &Reply<'_>,
    plan: Plan,
    _: usize,
) -> Option<Vec<Result<Lookup<BlockFacts>, Failure>>> {
    let Reply::Facts(_, records) = reply else {
        return None;
    };
    let of = |facts: Facts| {
        let has = |bit| facts.bits & bit != 0;
        let known = BlockFacts {
            len: u64::from(facts.block_len),
            checksum: facts.checksum,
            durable: has(Facts::DURABLE),
            in_dram: has(Facts::IN_DRAM),
            on_nvme: has(Facts::ON_NVME),
            pinned: has(Facts::PINNED),
            leased: has(Facts::LEASED),
        };
        Ok(found(facts.status, plan)?.map(|()| known))
    };
    Some(records.iter().map(of).collect())
}

/// The outcome of a lookup, or why there is none.
pub(crate) fn found(status: KeyStatus, plan: Plan) -> Result<Lookup<()>, Failure> {
    if let Some(lookup) = status.lookup() {
        return Ok(lookup);
    }
    Err(match status {
        KeyStatus::WrongShard { .. } => Failure::moved(),
        KeyStatus::TimedOut | KeyStatus::Cancelled => {
            Failure::new(plan.timed_out().cause, Retry::Always)
        }
        KeyStatus::Busy => Failure::unavailable("it is busy"),
        other => Failure::protocol(format_args!("a key was answered by {other:?}")),
    })
}

/// The keys that are keys, and for each name why it is none.
pub(crate) fn split_keys<T>(
    namespace: &Namespace,
    names: &[&[u8]],
) -> (Vec<BlockKey>, Vec<Option<Result<T, Error>>>) {
    let mut keys = Vec::with_capacity(names.len());
    let mut refused = Vec::with_capacity(names.len());
    for name in names {
        match namespace.key(name) {
            Ok(key) => {
                keys.push(key);
                refused.push(None);
            }
            Err(error) => refused.push(Some(Err(error))),
        }
    }
    (keys, refused)
}

/// The results of all names: those that were decided before, and in the gaps the others.
pub(crate) fn in_order<T>(
    decided: Vec<Option<Result<T, Error>>>,
    results: Vec<Result<T, Error>>,
) -> Vec<Result<T, Error>> {
    let mut results = results.into_iter();
    decided
        .into_iter()
        .filter_map(|decided| decided.or_else(|| results.next()))
        .collect()
}
