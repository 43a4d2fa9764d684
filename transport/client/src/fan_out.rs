//! Splitting a call by shard, running the parts side by side, and trying again what may be.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::FutureExt;
use futures_util::future::join_all;
use terrace_types::BlockKey;

use crate::connection::Connection;
use crate::error::{Cause, Error, Failure, Retry};
use crate::pool::{Counters, Layout, Pools, backoff};
use crate::time::{ahead, now};
use crate::wait::Sleep;

/// How often a call follows a shard map that changes under it.
const MOVES_MAX: u32 = 4;

/// What of a frame an entry takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    /// Bytes of the body.
    pub(crate) body_len: usize,
    /// Bytes of values.
    pub(crate) values_len: u64,
}

impl Weight {
    /// That of an entry with `fixed` bytes before its key, and no value.
    pub(crate) fn of_key(fixed: usize, key: &BlockKey) -> Self {
        Self {
            body_len: fixed + key.bytes().len().next_multiple_of(8),
            values_len: 0,
        }
    }
}

/// One entry of a call, on its way.
#[derive(Debug)]
pub(crate) struct Item<E> {
    /// Its place among the keys of the call.
    pub(crate) index: usize,
    pub(crate) entry: E,
}

/// What an attempt came to for one entry. What failed comes back, to be tried again.
#[derive(Debug)]
pub(crate) enum Answer<E, T> {
    Done(usize, T),
    Failed(Item<E>, Failure),
}

impl<E, T> Answer<E, T> {
    /// The same failure for all.
    pub(crate) fn fail_all(
        items: impl IntoIterator<Item = Item<E>>,
        failure: &Failure,
    ) -> Vec<Self> {
        let items = items.into_iter();
        items
            .map(|item| Self::Failed(item, failure.clone()))
            .collect()
    }
}

/// How long a call has, and how it may be tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Whether it changes nothing, and so may be sent twice.
    pub(crate) is_read: bool,
    /// Whether it has to stay with one connection.
    pub(crate) is_home: bool,
    pub(crate) span: Duration,
    pub(crate) deadline: Instant,
}

impl Plan {
    pub(crate) fn new(span: Duration, is_read: bool) -> Self {
        Self {
            is_read,
            is_home: false,
            span,
            deadline: ahead(span),
        }
    }

    /// As [`Plan::new`], to a deadline that there is already.
    pub(crate) fn until(deadline: Instant, is_read: bool) -> Self {
        Self {
            is_read,
            is_home: false,
            span: deadline.saturating_duration_since(now()),
            deadline,
        }
    }

    pub(crate) const fn home(mut self) -> Self {
        self.is_home = true;
        self
    }

    /// When the call began.
    pub(crate) fn start(&self) -> Instant {
        self.deadline
            .checked_sub(self.span)
            .unwrap_or(self.deadline)
    }

    pub(crate) fn timed_out(&self) -> Failure {
        let after = self.span;
        Failure::new(Cause::TimedOut { after }, Retry::Never)
    }

    /// `work`, or the failure of the deadline.
    pub(crate) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let late = async {
            Sleep::until(self.deadline).await;
            Err(self.timed_out())
        };
        work.or(late).await
    }
}

/// The results of a call by the place of their keys.
struct Results<'a, T> {
    address: &'a Arc<str>,
    keys: &'a [BlockKey],
    list: Vec<Option<Result<T, Error>>>,
}

impl<T> Results<'_, T> {
    fn fail(&mut self, index: usize, address: &Arc<str>, failure: Failure) {
        let key = self.keys.get(index).map(BlockKey::bytes);
        let error = Error::new(address, key, failure.cause);
        if let Some(place) = self.list.get_mut(index) {
            *place = Some(Err(error));
        }
    }

    fn finish(self) -> Vec<Result<T, Error>> {
        let (address, keys) = (self.address, self.keys);
        let missing = |index: usize| {
            let what = "an entry was not answered".to_owned();
            let key = keys.get(index).map(BlockKey::bytes);
            Err(Error::new(address, key, Cause::Protocol { what }))
        };
        let list = self.list.into_iter().enumerate();
        list.map(|(index, result)| result.unwrap_or_else(|| missing(index)))
            .collect()
    }
}

/// What became of one batch: at which address, and the entries that had no answer at the deadline.
struct Ran<E, T> {
    address: Arc<str>,
    answers: Vec<Answer<E, T>>,
    late: Vec<usize>,
}

impl Pools {
    /// Runs a call with an entry for each of `keys`; one result for each, in their order.
    ///
    /// `run` makes one attempt for some entries on a connection of their shard.
    pub(crate) async fn fan_out<E, T, R, F>(
        &self,
        plan: Plan,
        keys: &[BlockKey],
        entries: Vec<(E, Weight)>,
        run: R,
    ) -> Vec<Result<T, Error>>
    where
        R: Fn(Arc<Connection>, Vec<Item<E>>) -> F,
        F: Future<Output = Vec<Answer<E, T>>>,
    {
        let mut results = Results {
            address: &self.address,
            keys,
            list: (0..entries.len()).map(|_| None).collect(),
        };
        let weights: Vec<_> = entries.iter().map(|(_, weight)| *weight).collect();
        let mut pending: Vec<_> = entries
            .into_iter()
            .enumerate()
            .map(|(index, (entry, _))| Item { index, entry })
            .collect();
        let (mut attempts, mut moves) = (0, 0);
        while !pending.is_empty() {
            let ran = self.attempt(plan, keys, &weights, pending, &run).await;
            pending = Vec::new();
            let mut is_moved = true;
            let mut failed = Vec::new();
            for Ran {
                address,
                answers,
                late,
            } in ran
            {
                Counters::add(&self.counters.timeouts, late.len());
                for index in late {
                    results.fail(index, &address, plan.timed_out());
                }
                for answer in answers {
                    match answer {
                        Answer::Done(index, value) => results.list[index] = Some(Ok(value)),
                        Answer::Failed(item, failure) => {
                            if matches!(failure.cause, Cause::Corrupt { .. }) {
                                Counters::add(&self.counters.corrupt, 1);
                            }
                            is_moved &= failure.retry == Retry::Moved;
                            failed.push((item, Arc::clone(&address), failure));
                        }
                    }
                }
            }
            if is_moved {
                moves += 1;
            } else {
                attempts += 1;
            }
            let is_last = attempts >= self.config.attempts || moves > MOVES_MAX;
            let wait = if is_moved {
                Duration::ZERO
            } else {
                backoff(attempts)
            };
            let is_late = now() + wait >= plan.deadline;
            for (item, address, failure) in failed {
                if is_last || is_late || !failure.is_retried(plan.is_read) {
                    results.fail(item.index, &address, failure);
                } else {
                    pending.push(item);
                }
            }
            if !pending.is_empty() {
                Counters::add(&self.counters.retries, pending.len());
                if wait > Duration::ZERO {
                    Sleep::lasting(wait).await;
                }
            }
        }
        results.finish()
    }

    /// One attempt of all that is pending.
    async fn attempt<E, T, R, F>(
        &self,
        plan: Plan,
        keys: &[BlockKey],
        weights: &[Weight],
        pending: Vec<Item<E>>,
        run: &R,
    ) -> Vec<Ran<E, T>>
    where
        R: Fn(Arc<Connection>, Vec<Item<E>>) -> F,
        F: Future<Output = Vec<Answer<E, T>>>,
    {
        let layout = match plan.within(self.layout()).await {
            Ok(layout) => layout,
            Err(failure) => {
                return vec![Ran {
                    address: Arc::clone(&self.address),
                    answers: Answer::fail_all(pending, &failure),
                    late: Vec::new(),
                }];
            }
        };
        let batches = split(layout, keys, weights, pending);
        let running = batches
            .into_iter()
            .map(|(shard, items)| self.run_batch(plan, layout, (shard, items), run));
        join_all(running).await
    }

    async fn run_batch<E, T, R, F>(
        &self,
        plan: Plan,
        layout: Layout,
        (shard, items): (u32, Vec<Item<E>>),
        run: &R,
    ) -> Ran<E, T>
    where
        R: Fn(Arc<Connection>, Vec<Item<E>>) -> F,
        F: Future<Output = Vec<Answer<E, T>>>,
    {
        let acquired = plan.within(self.acquire(layout, shard, plan.is_home)).await;
        let connection = match acquired {
            Ok(connection) => connection,
            Err(failure) => {
                if failure.retry == Retry::Moved {
                    self.mark_stale(layout.generation);
                }
                return Ran {
                    address: Arc::clone(&self.address),
                    answers: Answer::fail_all(items, &failure),
                    late: Vec::new(),
                };
            }
        };
        let _entered = connection.enter();
        let address = Arc::clone(connection.address());
        let indices: Vec<_> = items.iter().map(|item| item.index).collect();
        let heard_before = connection.received();
        let work = async { Some(run(Arc::clone(&connection), items).await) };
        let late = async {
            Sleep::until(plan.deadline).await;
            None
        };
        let answers = work.or(late).await;
        if answers.is_none() && connection.received() == heard_before {
            // The node says nothing here: the next call goes elsewhere.
            connection.retire();
        }
        let is_moved = |answer: &Answer<E, T>| match answer {
            Answer::Failed(_, failure) => failure.retry == Retry::Moved,
            Answer::Done(..) => false,
        };
        if connection.has_moved() || answers.iter().flatten().any(is_moved) {
            connection.retire();
            self.mark_stale(layout.generation);
        }
        let late = if answers.is_none() {
            indices
        } else {
            Vec::new()
        };
        Ran {
            address,
            answers: answers.unwrap_or_default(),
            late,
        }
    }
}

/// Splits entries by the shard of their key, and those of a shard by what a request may have.
//= docs/wire-protocol.md#WP-17
fn split<E>(
    layout: Layout,
    keys: &[BlockKey],
    weights: &[Weight],
    pending: Vec<Item<E>>,
) -> Vec<(u32, Vec<Item<E>>)> {
    /// Bytes of a request's own head.
    const HEAD: usize = 32;
    let mut batches: Vec<(u32, Weight, Vec<Item<E>>)> = Vec::new();
    // The batch of each shard that is not full.
    let mut open = vec![None; layout.shards as usize];
    for item in pending {
        let shard = keys[item.index].hash().shard(layout.shards);
        let weight = weights[item.index];
        let place = open[shard as usize].filter(|place: &usize| {
            let (_, taken, items) = &batches[*place];
            let body_len = HEAD + taken.body_len + weight.body_len;
            items.len() < layout.batch_max
                && body_len <= layout.limits.body_len_max as usize
                && taken.values_len + weight.values_len <= u64::from(layout.limits.values_len_max)
        });
        let place = place.unwrap_or_else(|| {
            let none = Weight {
                body_len: 0,
                values_len: 0,
            };
            batches.push((shard, none, Vec::new()));
            batches.len() - 1
        });
        open[shard as usize] = Some(place);
        let (_, taken, items) = &mut batches[place];
        taken.body_len += weight.body_len;
        taken.values_len += weight.values_len;
        items.push(item);
    }
    batches
        .into_iter()
        .map(|(shard, _, items)| (shard, items))
        .collect()
}

#[cfg(test)]
mod tests {
    use terrace_types::{Namespace, NamespaceName};
    use terrace_wire::FrameLimits;

    use super::*;

    const LAYOUT: Layout = Layout {
        generation: 1,
        shards: 3,
        limits: FrameLimits {
            body_len_max: 4096,
            values_len_max: 10_000,
        },
        batch_max: 7,
    };

    /// Aim: a batch keeps all limits of the node, and what cannot keep them goes alone. Method: 200
    /// entries, one of which is longer than a frame.
    #[test]
    fn split_keeps_the_limits_of_requests_and_loses_nothing() {
        let namespace = Namespace::new(0, 0, &NamespaceName::new("m").unwrap());
        let keys: Vec<_> = (0..200_u32)
            .map(|number| {
                namespace
                    .key(&[number.to_le_bytes(); 100].concat())
                    .unwrap()
            })
            .collect();
        let weights: Vec<_> = (0..200)
            .map(|number| Weight {
                values_len: if number == 77 { 20_000 } else { number * 20 },
                ..Weight::of_key(32, &keys[number as usize])
            })
            .collect();
        let pending = (0..200).map(|index| Item { index, entry: () }).collect();
        let batches = split(LAYOUT, &keys, &weights, pending);
        let mut seen = vec![false; 200];
        for (shard, items) in batches {
            let sum = |of: fn(&Weight) -> u64| -> u64 {
                items.iter().map(|item| of(&weights[item.index])).sum()
            };
            assert!(items.len() <= 7);
            assert!(32 + sum(|weight| weight.body_len as u64) <= 4096);
            assert!(items.len() == 1 || sum(|weight| weight.values_len) <= 10_000);
            assert!(items.is_sorted_by_key(|item| item.index));
            for item in items {
                assert_eq!(keys[item.index].hash().shard(3), shard);
                assert!(!std::mem::replace(&mut seen[item.index], true));
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}
