//! Calls that are about shards and not about keys: removing a namespace, listing it, pings.

use std::time::Duration;

use futures_util::future::join_all;
use terrace_types::Tier;
use terrace_wire::{
    ListRequest, NamespaceNumber, Pong, Reply, RequestHead, Verb, WireError, request,
};

use crate::client::{CallOptions, Client, Namespace};
use crate::connection::Frame;
use crate::error::{Error, Failure, Retry};
use crate::fan_out::Plan;
use crate::keys::found;
use crate::pool::{Counters, Layout, backoff};
use crate::time::now;
use crate::wait::Sleep;

/// What a shard says to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPong {
    /// The shard.
    pub shard: u32,
    /// Grows with every start of the node.
    pub node_epoch: u64,
    /// How long the answer took, connecting included.
    pub took: Duration,
}

/// A block that a listing names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: Vec<u8>,
    /// The fastest tier that holds it.
    pub tier: Tier,
    /// Whether it survives kill -9 and power loss.
    pub durable: bool,
    /// Its length in bytes.
    pub len: u64,
}

/// The blocks of a namespace, page after page.
#[derive(Debug)]
pub struct Listing {
    namespace: Namespace,
    prefix: Vec<u8>,
    options: CallOptions,
    layout: Option<Layout>,
    shard: u32,
    cursor: u64,
}

type Encode<'a> =
    dyn Fn(u64, &RequestHead, &mut [u8]) -> Result<usize, WireError> + Send + Sync + 'a;

/// A question to one shard that one frame answers.
#[derive(Clone, Copy)]
struct Question<'a> {
    verb: Verb,
    plan: Plan,
    namespace: Option<&'a Namespace>,
    options: &'a CallOptions,
    argument: u32,
    encode: &'a Encode<'a>,
}

impl Client {
    /// Asks all shards whether they are there; one answer for each, in their order.
    ///
    /// # Errors
    /// As all calls: see [`Cause`](crate::Cause). That of the first shard that gave none.
    pub async fn ping(&self, options: &CallOptions) -> Result<Vec<ShardPong>, Error> {
        let plan = self.plan(options, true)?;
        let question = Question {
            verb: Verb::Ping,
            plan,
            namespace: None,
            options,
            argument: 0,
            encode: &|id, _, out| request::encode_ping(id, out),
        };
        let started = now();
        let take = |reply: &Reply<'_>, shard| match reply {
            Reply::Pong(Pong { node_epoch, .. }) => Some(Ok(ShardPong {
                shard,
                node_epoch: *node_epoch,
                took: now().saturating_duration_since(started),
            })),
            _ => None,
        };
        self.ask_all_shards(question, &take).await
    }

    /// The answers of all shards.
    async fn ask_all_shards<T>(
        &self,
        question: Question<'_>,
        take: &Take<'_, T>,
    ) -> Result<Vec<T>, Error> {
        let layout = question.plan.within(self.pools.layout()).await;
        let layout = layout.map_err(|failure| self.error(failure))?;
        let shards = 0..layout.shards;
        let answers = shards.map(|shard| self.ask_shard(layout, shard, question, take));
        join_all(answers).await.into_iter().collect()
    }

    async fn ask_shard<T>(
        &self,
        layout: Layout,
        shard: u32,
        question: Question<'_>,
        take: &Take<'_, T>,
    ) -> Result<T, Error> {
        let plan = question.plan;
        let mut attempts = 0;
        loop {
            let work = self.ask_once(layout, shard, question, take);
            let failure = match plan.within(work).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            attempts += 1;
            let wait = backoff(attempts);
            let is_late = now() + wait >= plan.deadline;
            let is_last = attempts >= self.pools.config.attempts || is_late;
            if failure.retry == Retry::Moved {
                // Which shards there are has changed under the call.
                self.pools.mark_stale(layout.generation);
                return Err(self.error(failure));
            }
            if is_last || !failure.is_retried(plan.is_read) {
                return Err(self.error(failure));
            }
            Counters::add(&self.pools.counters.retries, 1);
            Sleep::lasting(wait).await;
        }
    }

    async fn ask_once<T>(
        &self,
        layout: Layout,
        shard: u32,
        question: Question<'_>,
        take: &Take<'_, T>,
    ) -> Result<T, Failure> {
        let connection = self.pools.acquire(layout, shard, false).await?;
        let _entered = connection.enter();
        let none = NamespaceNumber::NONE.0;
        let number = (question.namespace).map_or(none, |namespace| namespace.number);
        let (options, argument) = (question.options, question.argument);
        let head = options.head(question.plan, &connection, number, argument);
        let frame = Frame {
            verb: question.verb,
            entries: 0,
            values: &[],
            namespace: question
                .namespace
                .map(|namespace| (namespace.number, namespace.name())),
        };
        let encode = |id, out: &mut [u8]| (question.encode)(id, &head, out);
        let mut call = connection.send(frame, &encode).await?;
        let arrived = call.receive().await?;
        let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
        if let Reply::Error(error) = &reply {
            return Err(call.refusal(error, head.namespace.0));
        }
        let name = question.verb.name();
        let wrong = || Failure::protocol(format_args!("{name} has a reply of another kind"));
        take(&reply, shard).ok_or_else(wrong)?
    }
}

/// Takes the answer of a shard out of its reply.
type Take<'a, T> = dyn Fn(&Reply<'_>, u32) -> Option<Result<T, Failure>> + Send + Sync + 'a;

impl Namespace {
    /// Removes all blocks of the namespace. How many there were.
    ///
    /// # Errors
    /// As all calls: see [`Cause`](crate::Cause). After an error some shards may have removed theirs.
    pub async fn remove_all(&self, options: &CallOptions) -> Result<u64, Error> {
        let plan = self.client.plan(options, false)?;
        let question = Question {
            verb: Verb::RemoveNamespace,
            plan,
            namespace: Some(self),
            options,
            argument: 0,
            encode: &|id, head, out| request::encode_remove_namespace(id, head, out),
        };
        let take = |reply: &Reply<'_>, _| match reply {
            Reply::Removed(removed) => Some(found(removed.status, plan).map(|_| removed.count)),
            _ => None,
        };
        let counts = self.client.ask_all_shards(question, &take).await?;
        Ok(counts.into_iter().sum())
    }

    /// The blocks whose keys begin with `prefix`. Those that are there from first to last page are
    /// named, others may be, or twice.
    //= docs/wire-protocol.md#WP-23
    #[must_use]
    pub fn list(&self, prefix: &[u8], options: &CallOptions) -> Listing {
        Listing {
            namespace: self.clone(),
            prefix: prefix.to_vec(),
            options: *options,
            layout: None,
            shard: 0,
            cursor: 0,
        }
    }
}

impl Listing {
    /// Most blocks of a page.
    const PAGE: u32 = 1000;

    /// The next page, which may be empty; `None` at the end. Each page has the deadline of a call.
    ///
    /// # Errors
    /// As all calls: see [`Cause`](crate::Cause). The same page may be asked for again; after a
    /// change of the shard map list anew.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Listed>>, Error> {
        let client = &self.namespace.client;
        let plan = client.plan(&self.options, true)?;
        let layout = match self.layout {
            Some(layout) => layout,
            None => {
                let layout = plan.within(client.pools.layout()).await;
                *self
                    .layout
                    .insert(layout.map_err(|failure| client.error(failure))?)
            }
        };
        if self.shard >= layout.shards {
            return Ok(None);
        }
        let list = ListRequest {
            cursor: self.cursor,
            prefix: &self.prefix,
        };
        let question = Question {
            verb: Verb::List,
            plan,
            namespace: Some(&self.namespace),
            options: &self.options,
            argument: Self::PAGE,
            encode: &|id, head, out| request::encode_list(id, head, &list, out),
        };
        let answer = client.ask_shard(layout, self.shard, question, &listed);
        let (cursor, page) = answer.await?;
        self.cursor = cursor;
        if cursor == 0 {
            self.shard += 1;
        }
        Ok(Some(page))
    }
}

fn listed(reply: &Reply<'_>, _: u32) -> Option<Result<(u64, Vec<Listed>), Failure>> {
    let Reply::Listed(_, cursor, blocks) = reply else {
        return None;
    };
    let page = blocks.iter().map(|block| Listed {
        key: block.key.to_vec(),
        tier: block.tier,
        durable: block.durable,
        len: u64::from(block.len),
    });
    Some(Ok((*cursor, page.collect())))
}
