//! Reading leased blocks into registered memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::yield_now;
use terrace_fabric::transfer::{BatchOptions, RemotePart, Request, Status};
use terrace_slab::RegisteredRegion;
use terrace_types::{Checksum, Lookup};
use terrace_wire::Verb;
use xxhash_rust::xxh3::Xxh3;

use super::Reach;
use super::rails::{Opened, Rails};
use crate::client::{CallOptions, Namespace};
use crate::connection::end_all;
use crate::error::{Cause, Error, Failure, Retry};
use crate::fan_out::Plan;
use crate::get::{Part, copy_into, hash_of_region, seed_of_whole, wipe};
use crate::keys::{millis, split_keys};
use crate::lease::Lease;
use crate::locate::{At, Found, Located};
use crate::pool::{Counters, Pools};
use crate::region::Region;
use crate::time::now;

/// How long blocks are leased for a read of their own at most. A client that dies keeps their slots no
/// longer.
const LEASE_MAX: Duration = Duration::from_secs(4);

/// Bytes that are leased and read together: 4 s are 8 times what they take at 4 Gbit/s.
const ROUND_LEN: usize = 256 << 20;

/// The part of a lease that is left for its release.
const GRACE: u32 = 8;

/// Bytes that are hashed before other tasks of the thread have their turn: less than a millisecond.
const HASH_LEN: usize = 4 << 20;

/// Why a block was not read.
enum Missed {
    /// For good.
    Failed(Failure),
    /// It may be read with other rails.
    Lost(Failure),
    /// The node grants no more leases now.
    Full(Failure),
    /// It may be had over a connection.
    Gone(Failure),
    /// Only a part of it is wanted, which has no checksum to compare it with: it is had over a
    /// connection.
    Part,
}

/// A block that is to be read.
struct Read<'a> {
    located: &'a Located,
    lease: &'a Lease,
    rails: &'a Arc<Rails>,
    offset: u64,
    target: &'a Region,
}

impl<'a> Read<'a> {
    /// `None`: the block is here, or nothing says how to read it.
    fn of(located: &'a Located, target: &'a Region) -> Option<Self> {
        let At::Leased { lease, rails } = &located.at else {
            return None;
        };
        let (rails, offset) = rails.as_ref()?;
        Some(Self {
            located,
            lease,
            rails,
            offset: *offset,
            target,
        })
    }
}

impl Namespace {
    /// Reads many blocks into regions, as far as those reach; one result for each, in their order.
    /// After an error a region holds anything, but never bytes that failed their checksum.
    ///
    /// With one-sided access blocks are leased, read by the transfer engine, compared with their
    /// checksum where they lie, and released. A read that is under way at the deadline is waited for
    /// until nothing of it touches the region, for the few seconds at most in which a rail that
    /// stands still is given up. Blocks that are longer than their region go over a connection.
    pub async fn get_regions_into(
        &self,
        targets: &[(&[u8], &Region)],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<Part>, Error>> {
        let Some(reach) = &self.client.pools.one_sided else {
            let plain = targets.iter().map(|(key, target)| (*key, target.memory()));
            return self.get_regions(plain.collect(), options).await;
        };
        let plan = match self.client.plan(options, true) {
            Ok(plan) => plan,
            Err(error) => return targets.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut results: Vec<_> = targets.iter().map(|_| None).collect();
        let (mut plain, mut parts) = (Vec::new(), Vec::new());
        // What is to be read, and whether its rails were lost before.
        let mut pending: VecDeque<_> = (0..targets.len()).map(|index| (index, false)).collect();
        while !pending.is_empty() {
            let round = round_of(&mut pending, targets);
            let wanted: Vec<_> = round.iter().map(|(index, _)| targets[*index]).collect();
            let outcomes = self.read_once(reach, plan, &wanted, options).await;
            let has_progress = outcomes.iter().any(Result::is_ok);
            for ((index, was_lost), outcome) in round.into_iter().zip(outcomes) {
                let (failure, next) = match outcome {
                    Ok(result) => {
                        results[index] = Some(result);
                        continue;
                    }
                    Err(Missed::Failed(failure)) => {
                        results[index] = Some(Err(self.not_read(targets[index].0, failure)));
                        continue;
                    }
                    Err(Missed::Part) => {
                        parts.push(index);
                        continue;
                    }
                    Err(Missed::Lost(failure)) => (failure, (!was_lost).then_some(true)),
                    Err(Missed::Full(failure)) => (failure, has_progress.then_some(was_lost)),
                    Err(Missed::Gone(failure)) => (failure, None),
                };
                match next {
                    Some(was_lost) => pending.push_back((index, was_lost)),
                    None => {
                        reach.note(&failure);
                        plain.push(index);
                    }
                }
            }
        }
        Counters::add(&self.client.pools.counters.one_sided_fallbacks, plain.len());
        for (indices, may_fail) in [(plain, reach.is_required()), (parts, false)] {
            let wanted: Vec<_> = indices.iter().map(|index| targets[*index]).collect();
            let required = may_fail.then(|| reach.required());
            let read = self.read_plain(plan, &wanted, options, required).await;
            for (index, result) in indices.into_iter().zip(read) {
                results[index] = Some(result);
            }
        }
        results.into_iter().flatten().collect()
    }

    fn not_read(&self, key: &[u8], failure: Failure) -> Error {
        Error::new(&self.client.pools.address, Some(key), failure.cause)
    }

    /// Reads what is left over connections, unless that is `refused`.
    async fn read_plain(
        &self,
        plan: Plan,
        targets: &[(&[u8], &Region)],
        options: &CallOptions,
        refused: Option<Failure>,
    ) -> Vec<Result<Lookup<Part>, Error>> {
        let fail = |failure: &Failure| {
            let keys = targets.iter().map(|(key, _)| key);
            keys.map(|key| Err(self.not_read(key, failure.clone())))
                .collect()
        };
        if targets.is_empty() {
            return Vec::new();
        }
        if let Some(failure) = &refused {
            return fail(failure);
        }
        let left = plan.deadline.saturating_duration_since(now());
        if left < Duration::from_millis(1) {
            Counters::add(&self.client.pools.counters.timeouts, targets.len());
            return fail(&plan.timed_out());
        }
        let options = CallOptions {
            deadline: Some(left),
            ..*options
        };
        let plain = targets.iter().map(|(key, target)| (*key, target.memory()));
        self.get_regions(plain.collect(), &options).await
    }

    /// One attempt of all targets.
    async fn read_once(
        &self,
        reach: &Reach,
        plan: Plan,
        targets: &[(&[u8], &Region)],
        options: &CallOptions,
    ) -> Vec<Result<Result<Lookup<Part>, Error>, Missed>> {
        let left = plan.deadline.saturating_duration_since(now());
        let span = LEASE_MAX.min(left).max(Duration::from_millis(1));
        let mut ask = match self.prepare(Verb::Locate, options, millis(span)) {
            Ok(ask) => ask,
            Err(error) => return targets.iter().map(|_| Ok(Err(error.clone()))).collect(),
        };
        ask.plan = Plan::until(plan.deadline, true).home();
        let names: Vec<_> = targets.iter().map(|(key, _)| *key).collect();
        let (keys, refused) = split_keys(self, &names);
        let mut found = self.locate_all(ask, &keys, true).await.into_iter();
        let found: Vec<_> = refused
            .into_iter()
            .filter_map(|refused| refused.or_else(|| found.next()))
            .collect();
        let reads = found
            .iter()
            .zip(targets)
            .filter_map(|(found, (_, target))| {
                let Ok(Found::Looked(Lookup::Hit { value, .. }, _)) = found else {
                    return None;
                };
                Read::of(value, target)
            });
        let reads: Vec<_> = reads.collect();
        let pools = &self.client.pools;
        let grace = |lease: &Lease| {
            let granted = lease.until.saturating_duration_since(ask.plan.start());
            lease.until - granted / GRACE
        };
        let read = pools.read_all(reach, &reads, plan, grace).await;
        let mut read = read.into_iter();
        let mut next = || read.next().unwrap_or_else(|| Err(no_way()));
        let mut leases = Vec::new();
        let mut take = |(found, (_, target)): (_, &(_, &Region))| match found {
            Err(error) => Ok(Err(error)),
            Ok(Found::NoRails(failure)) => Err(Missed::Gone(failure)),
            Ok(Found::Looked(lookup, lease)) => {
                leases.extend(lease);
                let mut part = Ok(Part {
                    len: 0,
                    block_len: 0,
                });
                match &lookup {
                    Lookup::Hit { value, .. } => {
                        part = match &value.at {
                            At::Here(bytes) => Ok(copy_short(bytes, target)),
                            At::Leased { rails: Some(_), .. } => next(),
                            At::Leased { rails: None, .. } => Err(no_way()),
                        };
                    }
                    Lookup::Miss => {}
                    // It may be had without a lease.
                    Lookup::Unavailable(reason) => {
                        let why = format_args!("no lease: {reason}");
                        part = Err(Missed::Full(Failure::one_sided(why)));
                    }
                }
                part.map(|part| Ok(lookup.map(|_| part)))
            }
        };
        let outcomes = found.into_iter().zip(targets).map(&mut take).collect();
        end_all(leases);
        outcomes
    }
}

/// Takes what is leased and read together.
fn round_of(
    pending: &mut VecDeque<(usize, bool)>,
    targets: &[(&[u8], &Region)],
) -> Vec<(usize, bool)> {
    let mut round = Vec::new();
    let mut len = 0;
    while let Some((index, _)) = pending.front() {
        len += targets[*index].1.len();
        if len > ROUND_LEN && !round.is_empty() {
            break;
        }
        round.extend(pending.pop_front());
    }
    round
}

fn no_way() -> Missed {
    Missed::Gone(Failure::one_sided("the lease has no rails"))
}

/// Copies a block that is here, as far as the target reaches.
fn copy_short(bytes: &[u8], target: &Region) -> Part {
    let len = bytes.len().min(target.len());
    copy_into(target.memory(), 0, &bytes[..len]);
    let block_len = bytes.len() as u64;
    Part { len, block_len }
}

impl Located {
    /// Reads the block into `target`, which has room for all of it, without a question to the node.
    /// It may be read as often as wanted while its lease holds.
    ///
    /// # Errors
    /// [`Cause::LeaseEnded`] when the lease is over, or ends before the bytes are there;
    /// [`Cause::OneSided`] when nothing says how to read it, or the rails were lost: locate it again
    /// or get it. [`Cause::Argument`] when the target is too short, [`Cause::Corrupt`],
    /// [`Cause::TimedOut`].
    pub async fn read_into(&self, target: &Region, options: &CallOptions) -> Result<Part, Error> {
        let client = target.client();
        let pools = &client.pools;
        let failed = |failure: Failure| Error::new(&pools.address, Some(self.key()), failure.cause);
        let plan = client.plan(options, true)?;
        if (target.len() as u64) < self.len() {
            let limit = format!("at least {}", self.len());
            let failure = Failure::argument("length of the region", target.len(), limit);
            return Err(failed(failure));
        }
        if let At::Here(bytes) = &self.at {
            return Ok(copy_short(bytes, target));
        }
        let read = Read::of(self, target).zip(pools.one_sided.as_ref());
        let Some((read, reach)) = read else {
            return Err(failed(Failure::one_sided("the lease has no rails")));
        };
        let reads = [read];
        let result = pools.read_all(reach, &reads, plan, |lease| lease.until);
        let result = result.await;
        match result.into_iter().next() {
            Some(Ok(part)) => Ok(part),
            Some(Err(Missed::Failed(failure) | Missed::Lost(failure) | Missed::Gone(failure))) => {
                Err(failed(failure))
            }
            // It was leased before, and seen to have room for all.
            Some(Err(Missed::Full(_) | Missed::Part)) | None => {
                Err(failed(Failure::protocol("the call has no result")))
            }
        }
    }
}

impl Pools {
    /// Reads blocks; one result for each, in their order. None of the reads goes on behind what `end`
    /// says of its lease.
    async fn read_all(
        &self,
        reach: &Reach,
        reads: &[Read<'_>],
        plan: Plan,
        end: impl Fn(&Lease) -> Instant,
    ) -> Vec<Result<Part, Missed>> {
        let mut results: Vec<Option<Result<Part, Missed>>> = reads.iter().map(|_| None).collect();
        // Of the batch for each engine that is read from: the reads, and what is asked of it.
        let mut batches: Vec<(Arc<Opened>, Vec<usize>, Vec<Request>)> = Vec::new();
        for (index, read) in reads.iter().enumerate() {
            let request = match self.request(reach, read).await {
                Ok(request) => request,
                Err(missed) => {
                    results[index] = Some(Err(missed));
                    continue;
                }
            };
            let opened = &read.rails.opened;
            let is_same = |batch: &&mut (Arc<Opened>, _, _)| Arc::ptr_eq(&batch.0, opened);
            match batches.iter_mut().find(is_same) {
                Some((_, indices, requests)) => {
                    indices.push(index);
                    requests.push(request);
                }
                None => batches.push((Arc::clone(opened), vec![index], vec![request])),
            }
        }
        for (opened, indices, requests) in batches {
            let ends = indices.iter().map(|index| end(reads[*index].lease));
            let until = ends.min().unwrap_or(plan.deadline);
            let moved = move_all(&opened, &requests, until.min(plan.deadline)).await;
            for (place, index) in indices.into_iter().enumerate() {
                let status = match &moved {
                    Ok(statuses) => Ok(statuses.get(place).copied().unwrap_or(Status::PeerLost)),
                    Err(failure) => Err(failure.clone()),
                };
                results[index] = Some(self.judge(&reads[index], status, plan).await);
            }
        }
        let none = || Err(no_way());
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(none))
            .collect()
    }

    async fn request(&self, reach: &Reach, read: &Read<'_>) -> Result<Request, Missed> {
        let len = read.located.len();
        if len > read.target.len() as u64 {
            return Err(Missed::Part);
        }
        let local = read.target.part(self, reach, len).await;
        let local = local.map_err(Missed::Gone)?;
        let remote = RemotePart {
            region: Arc::clone(&read.rails.region),
            offset: read.offset,
            len,
        };
        Ok(Request::read(local, remote))
    }

    /// What became of one read.
    async fn judge(
        &self,
        read: &Read<'_>,
        status: Result<Status, Failure>,
        plan: Plan,
    ) -> Result<Part, Missed> {
        match status.map_err(Missed::Gone)? {
            Status::Done => self.verify(read).await.map_err(Missed::Failed),
            Status::DeadlineExceeded if now() >= plan.deadline => {
                Counters::add(&self.counters.timeouts, 1);
                Err(Missed::Failed(plan.timed_out()))
            }
            Status::DeadlineExceeded => {
                let failure = Failure::new(Cause::LeaseEnded, Retry::Reads);
                Err(Missed::Gone(failure))
            }
            status => {
                read.rails.fail();
                let why = format_args!("the node's memory cannot be read: {status}");
                Err(Missed::Lost(Failure::one_sided(why)))
            }
        }
    }

    /// Compares what was read with its checksum, where it lies.
    async fn verify(&self, read: &Read<'_>) -> Result<Part, Failure> {
        let Read {
            located, target, ..
        } = read;
        let (memory, len) = (target.memory(), located.len() as usize);
        let seed = seed_of_whole(located.block_key().hash(), located.len() as u32);
        let (expected, actual) = (located.checksum(), hash(memory, len, seed).await);
        //= docs/wire-protocol.md#WP-18
        if actual != expected {
            wipe(memory, len);
            Counters::add(&self.counters.corrupt, 1);
            let cause = Cause::Corrupt { expected, actual };
            return Err(Failure::new(cause, Retry::Never));
        }
        read.rails.use_well();
        Counters::add(&self.counters.one_sided_gets, 1);
        let block_len = located.len();
        Ok(Part { len, block_len })
    }
}

/// Moves the bytes of a batch; the status of each. What is not there by `until` ends then.
async fn move_all(
    opened: &Opened,
    requests: &[Request],
    until: Instant,
) -> Result<Vec<Status>, Failure> {
    //= docs/wire-protocol.md#WP-21
    let timeout = until.saturating_duration_since(now());
    if timeout.is_zero() {
        return Ok(vec![Status::DeadlineExceeded; requests.len()]);
    }
    let options = BatchOptions {
        timeout,
        ..BatchOptions::default()
    };
    let submitted = opened.peer()?.submit(requests, options);
    Ok(submitted.map_err(Failure::one_sided)?.await)
}

/// The checksum of the first `len` bytes of registered memory.
pub(super) async fn hash(memory: &RegisteredRegion, len: usize, seed: u64) -> Checksum {
    let mut hash = Xxh3::with_seed(seed);
    for start in (0..len).step_by(HASH_LEN) {
        if start > 0 {
            yield_now().await;
        }
        hash_of_region(memory, start..len.min(start + HASH_LEN), &mut hash);
    }
    Checksum(hash.digest())
}
