//! Pulled puts: the node reads the values out of registered memory.

use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::transfer::LocalPart;
use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_types::{BlockKey, Checksum, PutOutcome, RejectReason};
use terrace_wire::{ErrorCode, Options, PullEntry, PutEntry, Reply, Verb, request};

use super::Reach;
use super::rails::are_taken_back;
use super::read::hash;
use crate::client::{CallOptions, Namespace};
use crate::connection::{Connection, Frame};
use crate::error::{Cause, Error, Failure};
use crate::fan_out::{Answer, Item, Plan, Weight};
use crate::get::seed_of_whole;
use crate::keys::{in_order, split_keys};
use crate::pool::Counters;
use crate::put::{PutItem, outcome_of};
use crate::region::Region;

/// How long a node that could not read a value is not asked to.
const UNREAD_REST: Duration = Duration::from_secs(1);

/// How long a node that has no pulls is not asked for one: until it may have been replaced by one that
/// has.
const UNKNOWN_REST: Duration = Duration::from_secs(60);

/// A value that the node is to read.
struct Source {
    part: LocalPart,
    checksum: Checksum,
}

/// What became of one block; `None`: the node cannot read it.
type Pulled = Option<PutOutcome>;

/// What a run of a pull needs.
#[derive(Clone, Copy)]
struct Run<'a> {
    plan: Plan,
    namespace: &'a Namespace,
    reach: &'a Reach,
    keys: &'a [BlockKey],
    options: &'a CallOptions,
}

impl Namespace {
    /// Stores the bytes of regions as blocks; one result for each, in their order.
    ///
    /// With one-sided access and an address to listen at, the node reads them itself. Bytes that
    /// somebody writes over meanwhile are rejected there, as they do not have their checksum.
    pub async fn put_regions_from(
        &self,
        sources: &[(&[u8], &Region)],
        options: &CallOptions,
    ) -> Vec<Result<PutOutcome, Error>> {
        let reach = self.client.pools.one_sided.as_ref();
        let Some(reach) = reach.filter(|reach| reach.is_open()) else {
            return self.put_copies(sources, options).await;
        };
        let plan = match self.client.plan(options, false) {
            Ok(plan) => plan,
            Err(error) => return sources.iter().map(|_| Err(error.clone())).collect(),
        };
        let pulled = self.pull(reach, plan, sources, options).await;
        let left = pulled.iter().zip(sources);
        let left = left.filter_map(|(pulled, source)| match pulled {
            Ok(None) => Some(*source),
            _ => None,
        });
        let left: Vec<_> = left.collect();
        let mut copied = match left.is_empty() {
            true => Vec::new(),
            false => self.put_rest(reach, plan, &left, options).await,
        }
        .into_iter();
        pulled
            .into_iter()
            .filter_map(|pulled| match pulled {
                Ok(None) => copied.next(),
                Ok(Some(outcome)) => Some(Ok(outcome)),
                Err(error) => Some(Err(error)),
            })
            .collect()
    }

    /// Stores what the node could not read over connections.
    async fn put_rest(
        &self,
        reach: &Reach,
        plan: Plan,
        sources: &[(&[u8], &Region)],
        options: &CallOptions,
    ) -> Vec<Result<PutOutcome, Error>> {
        let pools = &self.client.pools;
        if reach.is_required() {
            let cause = reach.required().cause;
            let failed = sources
                .iter()
                .map(|(key, _)| Err(Error::new(&pools.address, Some(key), cause.clone())));
            return failed.collect();
        }
        Counters::add(&pools.counters.one_sided_fallbacks, sources.len());
        let left = plan.deadline.saturating_duration_since(crate::time::now());
        let options = CallOptions {
            deadline: Some(left.max(Duration::from_millis(1))),
            ..*options
        };
        self.put_copies(sources, &options).await
    }

    /// Stores copies of regions: what is hashed has to be what is sent, whoever writes to them
    /// meanwhile.
    async fn put_copies(
        &self,
        sources: &[(&[u8], &Region)],
        options: &CallOptions,
    ) -> Vec<Result<PutOutcome, Error>> {
        let copy = |(_, source): &(&[u8], &Region)| {
            let mut value = vec![0; source.len()];
            source.memory().copy_to(&mut value);
            value
        };
        let values: Vec<Vec<u8>> = sources.iter().map(copy).collect();
        let values: Vec<[&[u8]; 1]> = values.iter().map(|value| [value.as_slice()]).collect();
        let items = sources
            .iter()
            .zip(&values)
            .map(|((key, _), value)| PutItem {
                key,
                value,
                hint: options.hint,
            });
        let items: Vec<_> = items.collect();
        self.put_batch(&items, options).await
    }

    //= docs/wire-protocol.md#WP-29
    async fn pull(
        &self,
        reach: &Reach,
        plan: Plan,
        sources: &[(&[u8], &Region)],
        options: &CallOptions,
    ) -> Vec<Result<Pulled, Error>> {
        let names: Vec<_> = sources.iter().map(|(key, _)| *key).collect();
        let (keys, mut decided) = split_keys(self, &names);
        let mut keys = keys.into_iter();
        let (mut kept, mut entries) = (Vec::new(), Vec::new());
        for ((_, region), decided) in sources.iter().zip(&mut decided) {
            if decided.is_some() {
                continue;
            }
            let Some(key) = keys.next() else { break };
            match self.source_of(reach, &key, region).await {
                Ok(source) => {
                    entries.push((source, Weight::of_key(56, &key)));
                    kept.push(key);
                }
                Err(undone) => *decided = Some(Ok(undone)),
            }
        }
        let run = Run {
            plan: plan.home(),
            namespace: self,
            reach,
            keys: &kept,
            options,
        };
        let pools = &self.client.pools;
        let results = pools
            .fan_out(run.plan, &kept, entries, |connection, items| {
                run.attempt(connection, items)
            })
            .await;
        in_order(decided, results)
    }

    /// Looks at a region and hashes it. What it comes to without a pull, if so.
    async fn source_of(
        &self,
        reach: &Reach,
        key: &BlockKey,
        region: &Region,
    ) -> Result<Source, Pulled> {
        let (len, limit) = (region.len() as u64, BLOCK_LEN_MAX);
        if len == 0 {
            return Err(Some(PutOutcome::Rejected(RejectReason::BlockEmpty)));
        }
        if len > limit {
            let reason = RejectReason::BlockTooLarge { len, limit };
            return Err(Some(PutOutcome::Rejected(reason)));
        }
        let pools = &self.client.pools;
        let part = region.part(pools, reach, len).await.map_err(|failure| {
            reach.note(&failure);
            None
        })?;
        let seed = seed_of_whole(key.hash(), len as u32);
        let checksum = hash(region.memory(), region.len(), seed).await;
        Ok(Source { part, checksum })
    }
}

/// Whether a node refused a pull as it has none.
fn is_unknown(failure: &Failure) -> bool {
    let Cause::Rejected { code, .. } = &failure.cause else {
        return false;
    };
    matches!(code, ErrorCode::UnknownVerb | ErrorCode::FeatureNotInForce)
}

impl Run<'_> {
    async fn attempt(
        self,
        connection: Arc<Connection>,
        items: Vec<Item<Source>>,
    ) -> Vec<Answer<Source, Pulled>> {
        let pools = &self.namespace.client.pools;
        let mut answers = Vec::with_capacity(items.len());
        let mut items = items;
        for is_again in [false, true] {
            let in_force = match pools.rails(self.reach, &connection, self.plan).await {
                Ok(in_force) => in_force,
                Err(failure) => {
                    self.reach.note(&failure);
                    break;
                }
            };
            if !in_force.rails.take_pulls() {
                break;
            }
            let mut left = items.into_iter();
            let exchanged = self.exchange(&connection, &mut left, &mut answers).await;
            items = left.collect();
            match exchanged {
                Ok(()) => return answers,
                Err(failure) if are_taken_back(&failure) => {
                    // With rails the node opens this end again. If it cannot read then, others may.
                    match is_again {
                        false => in_force.rails.lose(),
                        true => in_force.rails.put_off_pulls(UNREAD_REST),
                    }
                    self.reach.note(&failure);
                }
                Err(failure) if is_unknown(&failure) => {
                    in_force.rails.put_off_pulls(UNKNOWN_REST);
                    self.reach.note(&failure);
                }
                Err(failure) => {
                    answers.extend(Answer::fail_all(items, &failure));
                    return answers;
                }
            }
        }
        answers.extend(items.into_iter().map(|item| Answer::Done(item.index, None)));
        answers
    }

    /// Sends the request, and takes its replies.
    async fn exchange(
        &self,
        connection: &Arc<Connection>,
        items: &mut std::vec::IntoIter<Item<Source>>,
        answers: &mut Vec<Answer<Source, Pulled>>,
    ) -> Result<(), Failure> {
        let namespace = self.namespace;
        let mut head = self
            .options
            .head(self.plan, connection, namespace.number, 0);
        if self.options.durable {
            head.options = Options::DURABLE;
        }
        let frame = Frame {
            verb: Verb::Pull,
            entries: items.len(),
            values: &[],
            namespace: Some((namespace.number, namespace.name())),
        };
        let sources = items.as_slice();
        let encode = |id, out: &mut [u8]| {
            let entries = sources.iter().map(|item| self.entry(item));
            request::encode(Verb::Pull, id, &head, entries, out)
        };
        let mut call = connection.send(frame, &encode).await?;
        loop {
            let arrived = call.receive().await?;
            let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
            let records = match reply {
                Reply::Statuses(_, records) => records,
                Reply::Error(error) => return Err(call.refusal(&error, namespace.number)),
                _ => return Err(Failure::protocol("a pull was not answered by statuses")),
            };
            for (status, item) in records.iter().zip(&mut *items) {
                let outcome = outcome_of(status, item.entry.part.len, self.plan);
                answers.push(match outcome {
                    Ok(outcome) => {
                        let counters = &namespace.client.pools.counters;
                        Counters::add(&counters.pulled_puts, 1);
                        Answer::Done(item.index, Some(outcome))
                    }
                    Err(failure) => Answer::Failed(item, failure),
                });
            }
            if arrived.is_last {
                return Ok(());
            }
        }
    }

    fn entry(&self, item: &Item<Source>) -> PullEntry<'_> {
        let Source { part, checksum } = &item.entry;
        let id = part.region.id();
        PullEntry {
            put: PutEntry {
                key: self.keys[item.index].bytes(),
                hint: self.options.hint,
                len: part.len as u32,
                checksum: *checksum,
            },
            slot: id.slot,
            epoch: id.epoch,
            offset: part.offset,
        }
    }
}
