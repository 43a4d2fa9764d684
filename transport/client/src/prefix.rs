//! How much of a prompt is stored, and what a request is about to use.

use std::sync::Arc;

use terrace_types::Hint;
use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_wire::{AccessEntry, Reply, Verb, request};

use crate::client::{CallOptions, Namespace};
use crate::connection::{Connection, Frame};
use crate::error::{Error, Failure};
use crate::fan_out::{Answer, Item, Plan, Weight};
use crate::keys::{found, in_order, split_keys};

/// A block that a request is about to use.
#[derive(Clone, Copy, Debug)]
pub struct Announced<'a> {
    /// The key, 1 to 512 bytes.
    pub key: &'a [u8],
    /// What is known of the block.
    pub hint: Hint,
    /// Length of the block in bytes; 0 when it is not known.
    pub len: u32,
}

impl Namespace {
    /// How many of the leading blocks of `keys` are stored. Moves nothing and renews nothing.
    ///
    /// Each shard tells how many of its own keys lead; the first one that any shard misses ends the
    /// match. What is matched may be given up before it is read: a get of it tells.
    ///
    /// # Errors
    /// As all calls: see [`Cause`](crate::Cause). Of the keys behind the match none is looked at.
    pub async fn match_prefix<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        options: &CallOptions,
    ) -> Result<usize, Error> {
        let ask = self.prepare(Verb::MatchPrefix, options, 0)?;
        let mut count = 0;
        for is_stored in ask.all(keys, matched).await {
            if !is_stored? {
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    /// Tells the policy of all blocks that a request will use, in the order of its prompt, before it
    /// asks for any; one result for each, in their order.
    pub async fn announce(
        &self,
        accesses: &[Announced<'_>],
        options: &CallOptions,
    ) -> Vec<Result<(), Error>> {
        let plan = match self.client.plan(options, true) {
            Ok(plan) => plan,
            Err(error) => return accesses.iter().map(|_| Err(error.clone())).collect(),
        };
        let names: Vec<_> = accesses.iter().map(|access| access.key).collect();
        let (keys, refused) = split_keys(self, &names);
        let kept = accesses.iter().zip(&refused);
        let kept = kept.filter_map(|(access, refused)| refused.is_none().then_some(access));
        let weight = Weight {
            body_len: 32,
            values_len: 0,
        };
        let entries = kept.zip(&keys).map(|(access, key)| {
            let entry = AccessEntry {
                id: key.hash(),
                hint: access.hint,
                len: access.len.min(BLOCK_LEN_MAX as u32),
            };
            (entry, weight)
        });
        let entries = entries.collect();
        let pools = &self.client.pools;
        let results = pools
            .fan_out(plan, &keys, entries, |connection, items| {
                self.announce_to(connection, items, plan, options)
            })
            .await;
        in_order(refused, results)
    }

    async fn announce_to(
        &self,
        connection: Arc<Connection>,
        items: Vec<Item<AccessEntry>>,
        plan: Plan,
        options: &CallOptions,
    ) -> Vec<Answer<AccessEntry, ()>> {
        let told = self.announce_once(&connection, &items, plan, options).await;
        match told {
            Ok(()) => {
                let items = items.into_iter();
                items.map(|item| Answer::Done(item.index, ())).collect()
            }
            Err(failure) => Answer::fail_all(items, &failure),
        }
    }

    async fn announce_once(
        &self,
        connection: &Arc<Connection>,
        items: &[Item<AccessEntry>],
        plan: Plan,
        options: &CallOptions,
    ) -> Result<(), Failure> {
        let head = options.head(plan, connection, self.number, 0);
        let frame = Frame {
            verb: Verb::Announce,
            entries: items.len(),
            values: &[],
            namespace: Some((self.number, self.name())),
        };
        let encode = |id, out: &mut [u8]| {
            let entries = items.iter().map(|item| item.entry);
            request::encode(Verb::Announce, id, &head, entries, out)
        };
        let mut call = connection.send(frame, &encode).await?;
        let arrived = call.receive().await?;
        match Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)? {
            Reply::Statuses(..) => Ok(()),
            Reply::Error(error) => Err(call.refusal(&error, self.number)),
            _ => Err(Failure::protocol("announce has a reply of another kind")),
        }
    }
}

/// Whether each entry is stored, as far as a shard tells.
fn matched(reply: &Reply<'_>, plan: Plan, left: usize) -> Option<Vec<Result<bool, Failure>>> {
    let Reply::Matched(_, matched) = reply else {
        return None;
    };
    let count = left.min(matched.count as usize);
    let mut all = vec![Ok(true); count];
    // A failure says nothing of the keys behind it: they fail alike, and are asked for again with it.
    let end = matched
        .end
        .map_or(Ok(false), |end| found(end, plan).map(|_| false));
    all.resize(left, end);
    Some(all)
}
