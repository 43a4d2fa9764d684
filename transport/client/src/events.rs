//! What happens to blocks, told as it happens.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::{join_all, select_all};
use terrace_types::KeyHash;
use terrace_wire::{EventKind, Reply, Verb, request};

use crate::client::{CallOptions, Namespace};
use crate::connection::{Call, Frame};
use crate::error::{Error, Failure};
use crate::fan_out::Plan;
use crate::pool::Layout;

/// Something that happened to a block of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number among the events of its shard; gaps are events of other namespaces, and lost ones.
    pub sequence: u64,
    /// What happened.
    pub kind: EventKind,
    /// The block's key.
    pub key: Vec<u8>,
    /// The hash of namespace and key.
    pub hash: KeyHash,
}

/// Events of one shard, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// The shard.
    pub shard: u32,
    /// Events that this subscription has lost at the shard so far, as it did not keep up.
    pub lost: u64,
    /// The events.
    pub events: Vec<Event>,
}

/// A subscription. Each shard has a connection of its own for it, so that a subscriber that does not
/// keep up holds up no calls. Dropped, it ends.
#[derive(Debug)]
pub struct Events {
    namespace: Namespace,
    /// The subscription at each shard, the one that told something last behind the others.
    calls: Vec<(u32, Call)>,
    /// What came with the answers to the subscriptions.
    early: VecDeque<EventBatch>,
}

impl Namespace {
    /// Subscribes to what happens to blocks of the namespace, at all shards. When it returns, each
    /// shard has begun to tell.
    ///
    /// # Errors
    /// As all calls: see [`Cause`](crate::Cause).
    //= docs/wire-protocol.md#WP-22
    pub async fn events(
        &self,
        kinds: &[EventKind],
        options: &CallOptions,
    ) -> Result<Events, Error> {
        let plan = self.client.plan(options, true)?;
        let pools = &self.client.pools;
        let failed = |failure| self.client.error(failure);
        let layout = plan.within(pools.layout()).await.map_err(failed)?;
        let kinds = kinds.iter().fold(0, |bits, kind| bits | kind.bit());
        let shards = (0..layout.shards).map(|shard| {
            let call = self.subscribe(plan, (layout, shard), options, kinds);
            plan.within(call)
        });
        let (mut calls, mut early) = (Vec::new(), VecDeque::new());
        for (shard, subscribed) in (0..).zip(join_all(shards).await) {
            let (call, first) = subscribed.map_err(failed)?;
            calls.push((shard, call));
            early.extend(Some(first).filter(|first| !first.events.is_empty()));
        }
        Ok(Events {
            namespace: self.clone(),
            calls,
            early,
        })
    }

    async fn subscribe(
        &self,
        plan: Plan,
        (layout, shard): (Layout, u32),
        options: &CallOptions,
        kinds: u32,
    ) -> Result<(Call, EventBatch), Failure> {
        let pools = &self.client.pools;
        let address = pools.address_of(layout, shard)?;
        let (connection, _) = pools.open(&address, Some(shard)).await?;
        let mut head = options.head(plan, &connection, self.number, 0);
        // It lasts until it is dropped.
        head.deadline_ms = 0;
        let frame = Frame {
            verb: Verb::Events,
            entries: 0,
            values: &[],
            namespace: Some((self.number, self.name())),
        };
        let encode = |id, out: &mut [u8]| request::encode_events(id, &head, kinds, out);
        let mut call = Arc::clone(&connection).send(frame, &encode).await?;
        let first = next_of(shard, &mut call, self.number).await?;
        Ok((call, first))
    }
}

impl Events {
    /// The next events of any shard; waits for them.
    ///
    /// # Errors
    /// When a connection is lost or a node ends the subscription. What happens from then on is not
    /// told: subscribe again, and look at the blocks.
    pub async fn next_batch(&mut self) -> Result<EventBatch, Error> {
        if let Some(batch) = self.early.pop_front() {
            return Ok(batch);
        }
        let namespace = &self.namespace;
        let waiting = self.calls.iter_mut().map(|(shard, call)| {
            let next = next_of(*shard, call, namespace.number);
            Box::pin(next)
        });
        let (batch, place, rest) = select_all(waiting).await;
        drop(rest);
        // The first in order that has something is told: a busy one must not stay in front.
        self.calls.rotate_left(place + 1);
        batch.map_err(|failure| namespace.client.error(failure))
    }
}

async fn next_of(shard: u32, call: &mut Call, number: u16) -> Result<EventBatch, Failure> {
    let arrived = call.receive().await?;
    let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
    let (lost, records) = match reply {
        Reply::Events(_, lost, records) => (lost, records),
        Reply::Error(error) => return Err(call.refusal(&error, number)),
        _ => return Err(Failure::protocol("events has a reply of another kind")),
    };
    if arrived.is_last && records.is_empty() {
        return Err(Failure::unavailable("the node ended the subscription"));
    }
    let events = records.iter().map(|record| Event {
        sequence: record.sequence,
        kind: record.kind,
        key: record.key.to_vec(),
        hash: record.hash,
    });
    Ok(EventBatch {
        shard,
        lost,
        events: events.collect(),
    })
}
