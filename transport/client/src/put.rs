//! Storing blocks, straight from the memory of the caller.

use std::sync::Arc;

use futures_lite::future::yield_now;
use terrace_types::checksum::ChecksumStream;
use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_types::{BlockKey, Checksum, Hint, PutOutcome, RejectReason};
use terrace_wire::{KeyStatus, Options, PutEntry, Reply, Verb, request};

use crate::client::{CallOptions, Namespace, only};
use crate::connection::{Call, Connection, Frame};
use crate::error::{Error, Failure, Retry};
use crate::fan_out::{Answer, Item, Plan, Weight};
use crate::keys::{in_order, split_keys};

/// Bytes that are hashed before other tasks of the thread have their turn: less than a millisecond.
const HASH_LEN: usize = 4 << 20;

/// A block that is to be stored.
#[derive(Clone, Copy, Debug)]
pub struct PutItem<'a> {
    /// The key, 1 to 512 bytes.
    pub key: &'a [u8],
    /// The value, 1 byte to 128 MiB, one piece of memory after another.
    pub value: &'a [&'a [u8]],
    /// What is known of the block.
    pub hint: Hint,
}

#[derive(Clone, Copy)]
struct Source<'a> {
    value: &'a [&'a [u8]],
    hint: Hint,
    len: u32,
    checksum: Checksum,
}

/// What a run of a put needs.
#[derive(Clone, Copy)]
struct Run<'a> {
    verb: Verb,
    plan: Plan,
    namespace: &'a Namespace,
    keys: &'a [BlockKey],
    options: &'a CallOptions,
}

impl Namespace {
    /// Stores a block. One that is stored under the key already is kept, as blocks are immutable.
    ///
    /// # Errors
    /// As all calls: see [`Cause`](crate::Cause). After [`Cause::TimedOut`](crate::Cause::TimedOut)
    /// and [`Cause::Io`](crate::Cause::Io) the block may be stored or not. A put that the node
    /// declined is no error: see [`PutOutcome`].
    pub async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        options: &CallOptions,
    ) -> Result<PutOutcome, Error> {
        self.put_gather(key, &[value], options).await
    }

    /// As [`Namespace::put`], of a value that lies in several pieces of memory.
    ///
    /// # Errors
    /// As [`Namespace::put`].
    pub async fn put_gather(
        &self,
        key: &[u8],
        value: &[&[u8]],
        options: &CallOptions,
    ) -> Result<PutOutcome, Error> {
        let hint = options.hint;
        let items = [PutItem { key, value, hint }];
        only(self.put_batch(&items, options).await, &self.client)
    }

    /// Stores many blocks; one result for each, in their order.
    pub async fn put_batch(
        &self,
        items: &[PutItem<'_>],
        options: &CallOptions,
    ) -> Vec<Result<PutOutcome, Error>> {
        self.put_all(Verb::Put, items, options).await
    }

    /// Stores a block in place of what is there.
    ///
    /// # Errors
    /// As [`Namespace::put`].
    pub async fn upsert(
        &self,
        key: &[u8],
        value: &[u8],
        options: &CallOptions,
    ) -> Result<PutOutcome, Error> {
        let hint = options.hint;
        let value = &[value];
        let items = [PutItem { key, value, hint }];
        only(self.upsert_batch(&items, options).await, &self.client)
    }

    /// Stores many blocks in place of what is there; one result for each, in their order.
    pub async fn upsert_batch(
        &self,
        items: &[PutItem<'_>],
        options: &CallOptions,
    ) -> Vec<Result<PutOutcome, Error>> {
        self.put_all(Verb::Upsert, items, options).await
    }

    async fn put_all(
        &self,
        verb: Verb,
        items: &[PutItem<'_>],
        options: &CallOptions,
    ) -> Vec<Result<PutOutcome, Error>> {
        let plan = match self.client.plan(options, false) {
            Ok(plan) => plan,
            Err(error) => return items.iter().map(|_| Err(error.clone())).collect(),
        };
        let names: Vec<_> = items.iter().map(|item| item.key).collect();
        let (keys, mut decided) = split_keys(self, &names);
        let mut kept = Vec::with_capacity(keys.len());
        let mut sources = Vec::with_capacity(keys.len());
        let mut keys = keys.into_iter();
        for (item, decided) in items.iter().zip(&mut decided) {
            let Some(key) = (match decided {
                Some(_) => None,
                None => keys.next(),
            }) else {
                continue;
            };
            match source_of(&key, item).await {
                Ok(source) => {
                    let mut weight = Weight::of_key(32, &key);
                    weight.values_len = u64::from(source.len);
                    sources.push((source, weight));
                    kept.push(key);
                }
                Err(reason) => *decided = Some(Ok(PutOutcome::Rejected(reason))),
            }
        }
        let run = Run {
            verb,
            plan,
            namespace: self,
            keys: &kept,
            options,
        };
        let pools = &self.client.pools;
        let results = pools
            .fan_out(plan, &kept, sources, |connection, items| {
                run.attempt(connection, items)
            })
            .await;
        in_order(decided, results)
    }
}

/// Looks at a value and hashes it. Why it cannot be a block, if so.
//= docs/wire-protocol.md#WP-18
async fn source_of<'a>(key: &BlockKey, item: &PutItem<'a>) -> Result<Source<'a>, RejectReason> {
    let len: u64 = item.value.iter().map(|slice| slice.len() as u64).sum();
    if len == 0 {
        return Err(RejectReason::BlockEmpty);
    }
    let limit = BLOCK_LEN_MAX;
    if len > limit {
        return Err(RejectReason::BlockTooLarge { len, limit });
    }
    let mut stream = ChecksumStream::new(key, len);
    let mut hashed = 0;
    for slice in item.value {
        for piece in slice.chunks(HASH_LEN) {
            stream.update(piece);
            hashed += piece.len();
            if hashed >= HASH_LEN {
                hashed = 0;
                yield_now().await;
            }
        }
    }
    Ok(Source {
        value: item.value,
        hint: item.hint,
        len: len as u32,
        checksum: stream.finish(),
    })
}

impl Run<'_> {
    async fn attempt<'s>(
        self,
        connection: Arc<Connection>,
        items: Vec<Item<Source<'s>>>,
    ) -> Vec<Answer<Source<'s>, PutOutcome>> {
        let mut call = match self.send(&connection, &items).await {
            Ok(call) => call,
            Err(failure) => return Answer::fail_all(items, &failure),
        };
        let mut answers = Vec::with_capacity(items.len());
        let mut items = items.into_iter();
        let failure = loop {
            match self.receive(&mut call, &mut items, &mut answers).await {
                Ok(true) => return answers,
                Ok(false) => {}
                Err(failure) => break failure,
            }
        };
        answers.extend(Answer::fail_all(items, &failure));
        answers
    }

    async fn send(
        &self,
        connection: &Arc<Connection>,
        items: &[Item<Source<'_>>],
    ) -> Result<Call, Failure> {
        let (options, namespace) = (self.options, self.namespace);
        let mut head = options.head(self.plan, connection, namespace.number, 0);
        if options.durable {
            head.options = Options::DURABLE;
        }
        let values: Vec<&[u8]> = items
            .iter()
            .flat_map(|item| item.entry.value.iter().copied())
            .filter(|slice| !slice.is_empty())
            .collect();
        let frame = Frame {
            verb: self.verb,
            entries: items.len(),
            values: &values,
            namespace: Some((namespace.number, namespace.name())),
        };
        let encode = |id, out: &mut [u8]| {
            let entries = items.iter().map(|item| PutEntry {
                key: self.keys[item.index].bytes(),
                hint: item.entry.hint,
                len: item.entry.len,
                checksum: item.entry.checksum,
            });
            request::encode(self.verb, id, &head, entries, out)
        };
        connection.send(frame, &encode).await
    }

    async fn receive<'s>(
        &self,
        call: &mut Call,
        items: &mut std::vec::IntoIter<Item<Source<'s>>>,
        answers: &mut Vec<Answer<Source<'s>, PutOutcome>>,
    ) -> Result<bool, Failure> {
        let arrived = call.receive().await?;
        let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
        let records = match reply {
            Reply::Statuses(_, records) => records,
            Reply::Error(error) => return Err(call.refusal(&error, self.namespace.number)),
            _ => return Err(Failure::protocol("a put was not answered by statuses")),
        };
        for (status, item) in records.iter().zip(items) {
            let len = u64::from(item.entry.len);
            answers.push(match outcome_of(status, len, self.plan) {
                Ok(outcome) => Answer::Done(item.index, outcome),
                Err(failure) => Answer::Failed(item, failure),
            });
        }
        Ok(arrived.is_last)
    }
}

/// What a put of `len` bytes came to, or why there is no outcome.
pub(crate) fn outcome_of(status: KeyStatus, len: u64, plan: Plan) -> Result<PutOutcome, Failure> {
    if let Some(outcome) = status.put_outcome(len) {
        return Ok(outcome);
    }
    Err(match status {
        KeyStatus::WrongShard { .. } => Failure::moved(),
        // It was not stored by this request.
        KeyStatus::TimedOut | KeyStatus::Cancelled => {
            Failure::new(plan.timed_out().cause, Retry::Always)
        }
        other => Failure::protocol(format_args!("a put was answered by {other:?}")),
    })
}
