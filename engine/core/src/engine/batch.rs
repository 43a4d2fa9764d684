//! Calls on many keys: one message for each shard, one result for each key.

use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use terrace_slab::{PinnedBlock, SlotWriter};
use terrace_types::{Access, BlockKey, Checksum, Lookup, PutOutcome, UnavailableReason};

use super::calls::{Reply, dram, refused};
use super::{Engine, route};
use crate::shard::{
    Durability, GetOptions, Job, LocalPin, PutOptions, Reservation, Shard, TryGet, WholeChain,
};

/// One block of a batch of puts.
#[derive(Clone, Copy, Debug)]
pub struct PutItem<'a> {
    /// Its key.
    pub key: &'a BlockKey,
    /// Its bytes.
    pub value: &'a [u8],
    /// What is known about it.
    pub options: PutOptions,
}

/// A slot that was filled for its key.
type Filled = (BlockKey, SlotWriter, Checksum, PutOptions);

/// Which positions of a batch go to each shard.
pub(super) fn split(
    hashes: impl Iterator<Item = terrace_types::KeyHash>,
    shards: usize,
) -> Vec<Vec<usize>> {
    let mut parts = vec![Vec::new(); shards];
    for (at, hash) in hashes.enumerate() {
        parts[route(hash, shards)].push(at);
    }
    parts
}

impl Engine {
    /// Looks many blocks up. `options` has one entry a key, or is empty. When hints tell a chain,
    /// the policies hear of the whole request first, as by [`Engine::announce`].
    pub async fn get_batch(
        &self,
        keys: &[BlockKey],
        options: &[GetOptions],
    ) -> Vec<Lookup<PinnedBlock>> {
        if self.shards() == 1 {
            return self
                .get_part(0, keys.to_vec(), options.to_vec(), None)
                .await;
        }
        let parts = split(keys.iter().map(BlockKey::hash), self.shards());
        let told = keys.iter().zip(options);
        let told = told.map(|(key, options)| (key.hash(), options.hint, options.context));
        let chain = WholeChain::of(told).map(Arc::new);
        self.tell_others(&parts, chain.as_ref(), |shard, chain| {
            shard.announce_lookup(&[], &[], Some(chain));
        });
        let calls = parts
            .iter()
            .enumerate()
            .filter(|(_, part)| !part.is_empty())
            .map(|(shard, part)| {
                let keys: Vec<BlockKey> = part.iter().map(|at| keys[*at].clone()).collect();
                let options = part
                    .iter()
                    .filter_map(|at| options.get(*at).copied())
                    .collect();
                let chain = chain.clone();
                async move { (part, self.get_part(shard, keys, options, chain).await) }
            });
        let mut results: Vec<Option<Lookup<PinnedBlock>>> = keys.iter().map(|_| None).collect();
        for (part, found) in join_all(calls).await {
            for (at, outcome) in part.iter().zip(found) {
                results[*at] = Some(outcome);
            }
        }
        let unanswered = || Lookup::Unavailable(UnavailableReason::ShardFenced);
        results
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(unanswered))
            .collect()
    }

    async fn get_part(
        &self,
        shard: usize,
        keys: Vec<BlockKey>,
        options: Vec<GetOptions>,
        chain: Option<Arc<WholeChain>>,
    ) -> Vec<Lookup<PinnedBlock>> {
        let count = keys.len();
        let answer = self.call(shard, move |shard, reply| {
            let reply = Reply(reply);
            shard.announce_lookup(&keys, &options, chain.as_deref());
            let tried = shard.try_get_batch(&keys, &options);
            if !tried.iter().any(|outcome| matches!(outcome, TryGet::Below)) {
                return reply.now(tried.into_iter().map(settled).collect());
            }
            let shard = Rc::clone(shard);
            reply.later(async move {
                // Blocks below are read side by side; those in DRAM stay pinned meanwhile.
                let plain = GetOptions::default();
                let reads = tried.into_iter().enumerate().map(|(i, outcome)| {
                    let (shard, keys) = (&shard, &keys);
                    let options = options.get(i).unwrap_or(&plain);
                    async move {
                        match outcome {
                            TryGet::Below => shard
                                .get(&keys[i], options)
                                .await
                                .map(LocalPin::into_pinned),
                            outcome => settled(outcome),
                        }
                    }
                });
                join_all(reads).await
            })
        });
        answer
            .await
            .unwrap_or_else(|reason| (0..count).map(|_| Lookup::Unavailable(reason)).collect())
    }

    /// Stores many blocks. One result a block, in order. When hints tell a chain, the policies
    /// hear of the whole request first, unless they did when its blocks were looked up.
    pub async fn put_batch(&self, items: &[PutItem<'_>]) -> Vec<PutOutcome> {
        let parts = split(items.iter().map(|item| item.key.hash()), self.shards());
        let told = items.iter().filter(|_| self.shards() > 1);
        let told = told.map(|item| (item.key.hash(), item.options.hint, item.options.context));
        let chain = WholeChain::of(told).map(Arc::new);
        self.tell_others(&parts, chain.as_ref(), |shard, chain| {
            shard.announce_put(&[], Some(chain));
        });
        let calls = parts
            .iter()
            .enumerate()
            .filter(|(_, part)| !part.is_empty())
            .map(|(shard, part)| {
                let chain = chain.clone();
                async move { (part, self.put_part(shard, part, items, chain).await) }
            });
        let mut results = vec![PutOutcome::Busy; items.len()];
        for (part, outcomes) in join_all(calls).await {
            for (at, outcome) in part.iter().zip(outcomes) {
                results[*at] = outcome;
            }
        }
        results
    }

    /// The items at the positions `part`, all of one shard: reserve, fill here, commit.
    async fn put_part(
        &self,
        shard: usize,
        part: &[usize],
        items: &[PutItem<'_>],
        chain: Option<Arc<WholeChain>>,
    ) -> Vec<PutOutcome> {
        let wanted: Vec<(BlockKey, u64, PutOptions)> = part
            .iter()
            .map(|at| &items[*at])
            .map(|item| (item.key.clone(), item.value.len() as u64, item.options))
            .collect();
        let reserved = self.call(shard, move |shard, reply| {
            shard.announce_put(&wanted, chain.as_deref());
            let shard = Rc::clone(shard);
            Reply(reply).later(async move {
                let mut reservations = Vec::with_capacity(wanted.len());
                for (key, len, options) in &wanted {
                    reservations.push(shard.reserve(key, *len, options).await);
                }
                reservations
            })
        });
        let reservations = match reserved.await {
            Ok(reservations) => reservations,
            Err(reason) => return vec![refused(reason); part.len()],
        };
        let mut outcomes: Vec<Option<PutOutcome>> = Vec::with_capacity(part.len());
        let mut filled: Vec<Filled> = Vec::new();
        for (at, reservation) in part.iter().zip(reservations) {
            let item = &items[*at];
            match reservation {
                Reservation::Done(outcome) => outcomes.push(Some(outcome)),
                Reservation::Granted(mut writer) => {
                    writer.bytes_mut().copy_from_slice(item.value);
                    let checksum = Checksum::of(item.key, item.value);
                    filled.push((item.key.clone(), writer, checksum, item.options));
                    outcomes.push(None);
                }
            }
        }
        let committed = self.commit_part(shard, filled).await;
        let mut committed = committed.into_iter();
        let last = |outcome: Option<PutOutcome>| outcome.or_else(|| committed.next());
        outcomes
            .into_iter()
            .map(last)
            .map(|outcome| outcome.unwrap_or(PutOutcome::Busy))
            .collect()
    }

    /// Publishes filled slots of one shard; durable ones are waited for side by side.
    async fn commit_part(&self, shard: usize, filled: Vec<Filled>) -> Vec<PutOutcome> {
        let count = filled.len();
        let committed = self.call(shard, move |shard, reply| {
            let mut waits = false;
            let outcomes: Vec<_> = filled
                .into_iter()
                .map(|(key, writer, checksum, options)| {
                    waits |= options.durability == Durability::Durable;
                    let outcome = shard.commit_now(&key, writer, checksum, &options);
                    (key, outcome, options)
                })
                .collect();
            let reply = Reply(reply);
            if !waits {
                let outcomes = outcomes.into_iter().map(|(_, outcome, _)| outcome);
                return reply.now(outcomes.collect());
            }
            let shard = Rc::clone(shard);
            reply.later(async move {
                let ensure = outcomes
                    .iter()
                    .map(|(key, outcome, options)| shard.ensured(key, *outcome, options));
                join_all(ensure).await
            })
        });
        committed
            .await
            .unwrap_or_else(|reason| vec![refused(reason); count])
    }

    /// Tells the policies of a whole request before its accesses come one by one: a chain is
    /// known when its request arrives. Each shard hears of the accesses that are its own, and of
    /// the ids of all of a chain that is told from its first block on. Batches with hints do this
    /// by themselves.
    ///
    /// # Errors
    /// [`UnavailableReason`] of the first shard that did not answer.
    pub async fn announce(&self, accesses: &[Access]) -> Result<(), UnavailableReason> {
        let parts = split(accesses.iter().map(|access| access.id), self.shards());
        let told = accesses.iter().filter(|_| self.shards() > 1);
        let told = told.map(|access| (access.id, access.hint, access.context));
        let chain = WholeChain::of(told).map(Arc::new);
        for (shard, part) in parts.iter().enumerate() {
            if part.is_empty() && chain.is_none() {
                continue;
            }
            let own: Vec<Access> = part.iter().map(|at| accesses[*at]).collect();
            let chain = chain.clone();
            self.call(shard, move |shard, reply| {
                match chain {
                    Some(chain) => shard.announce_chain(&chain, &own),
                    None => shard.announce(&own),
                }
                Reply(reply).now(())
            })
            .await?;
        }
        Ok(())
    }

    /// Tells the shards of a chain that own none of its blocks. One that has no time for it does
    /// not hear.
    fn tell_others(
        &self,
        parts: &[Vec<usize>],
        chain: Option<&Arc<WholeChain>>,
        tell: impl Fn(&Shard, &WholeChain) + Copy + Send + 'static,
    ) {
        let Some(chain) = chain else {
            return;
        };
        let senders = self.inner.senders.iter().zip(parts);
        for (sender, _) in senders.filter(|(_, part)| part.is_empty()) {
            let chain = Arc::clone(chain);
            let job: Job = Box::new(move |shard| {
                tell(shard, &chain);
                None
            });
            // It guesses worse of this chain, no more.
            let _ = sender.try_send(job);
        }
    }

    /// Removes many blocks.
    pub async fn remove_batch(&self, keys: &[BlockKey]) -> Vec<Lookup<()>> {
        join_all(keys.iter().map(|key| self.remove(key))).await
    }

    /// How many blocks at the start of a chain are stored. Moves none of them.
    pub async fn match_prefix(&self, keys: &[BlockKey]) -> usize {
        let parts = split(keys.iter().map(BlockKey::hash), self.shards());
        let calls = parts
            .iter()
            .enumerate()
            .filter(|(_, part)| !part.is_empty())
            .map(|(shard, part)| {
                let keys: Vec<BlockKey> = part.iter().map(|at| keys[*at].clone()).collect();
                let first_missing = self.call(shard, move |shard, reply| {
                    let missing = keys.iter().position(|key| !shard.exists(key).is_hit());
                    Reply(reply).now(missing)
                });
                // The shard's first missing key, as a position of the whole chain.
                async move {
                    match first_missing.await {
                        Ok(Some(at)) => part[at],
                        // A shard with all of its keys does not bound the prefix.
                        Ok(None) => usize::MAX,
                        Err(_) => part[0],
                    }
                }
            });
        join_all(calls)
            .await
            .into_iter()
            .min()
            .unwrap_or(0)
            .min(keys.len())
    }
}

fn settled(outcome: TryGet) -> Lookup<PinnedBlock> {
    match outcome {
        TryGet::Hit(pin) => dram(pin),
        TryGet::Miss | TryGet::Below => Lookup::Miss,
        TryGet::Unavailable(reason) => Lookup::Unavailable(reason),
    }
}
