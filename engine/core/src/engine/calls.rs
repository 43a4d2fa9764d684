//! Calls on one key.

use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use terrace_slab::{PinnedBlock, RegisteredRegion, SlotWriter, gather, scatter};
use terrace_types::{
    BlockKey, Checksum, Lookup, Namespace, PutOutcome, RejectReason, UnavailableReason,
};

use super::Engine;
use crate::shard::{
    Descriptor, Direct, Durability, GetOptions, Job, Lease, LeaseId, LocalPin, Placement,
    PutOptions, Reservation, Shard, TryGet,
};

/// Values up to this length travel in the message: one hop in place of two is worth a copy.
const INLINE_PUT_MAX: usize = 16 << 10;

impl Engine {
    /// Looks a block up. A hit is the block's own slot, pinned: no copy is made.
    pub async fn get(&self, key: &BlockKey, options: &GetOptions) -> Lookup<PinnedBlock> {
        let (owned, options) = (key.clone(), *options);
        self.lookup(self.shard_of(key), move |shard, reply| {
            match shard.try_get(&owned, &options) {
                TryGet::Hit(pin) => reply.now(dram(pin)),
                TryGet::Miss => reply.now(Lookup::Miss),
                TryGet::Unavailable(UnavailableReason::PinLimit) | TryGet::Below => {
                    let shard = Rc::clone(shard);
                    reply.later(async move {
                        shard.get(&owned, &options).await.map(LocalPin::into_pinned)
                    })
                }
                TryGet::Unavailable(reason) => reply.now(Lookup::Unavailable(reason)),
            }
        })
        .await
    }

    /// Pins a block, with nothing told about it. To the policy it is a use like any lookup.
    pub async fn pin(&self, key: &BlockKey) -> Lookup<PinnedBlock> {
        self.get(key, &GetOptions::default()).await
    }

    /// Copies a block into registered caller memory, over `targets` in order, on the calling
    /// thread; or reads it there from its device, see [`Placement::Bypass`]. The value is the
    /// count of bytes of the block in the targets, at most what they hold.
    pub async fn get_into(
        &self,
        key: &BlockKey,
        targets: &[RegisteredRegion],
        options: &GetOptions,
    ) -> Lookup<usize> {
        let ([target], Placement::Bypass) = (targets, options.placement) else {
            let found = self.get(key, options).await;
            return found.map(|block| scatter(&block, targets));
        };
        let (owned, region, options) = (key.clone(), target.clone(), *options);
        let found = self.lookup(self.shard_of(key), move |shard, reply| {
            let shard = Rc::clone(shard);
            reply.later(async move {
                let found = shard.get_direct(&owned, &region, &options).await;
                found.map(|direct| match direct {
                    Direct::Pinned(pin) => Err(pin.into_pinned()),
                    Direct::Read(len) => Ok(len),
                })
            })
        });
        found
            .await
            .map(|direct| direct.unwrap_or_else(|block| scatter(&block, targets)))
    }

    /// Registers caller memory that blocks are read into with the rings of all shards. Do it
    /// once and keep the region. The engine keeps it mapped for about a second after its last clone
    /// and slice are gone.
    #[must_use]
    pub fn register(&self, memory: RegisteredRegion) -> RegisteredRegion {
        for sender in &self.inner.senders {
            let region = memory.clone();
            let job: Job = Box::new(move |shard| {
                shard.register_region(&region);
                None
            });
            // A shard that is gone reads nothing any more.
            let _ = terrace_runtime::block_on(sender.send(job));
        }
        memory
    }

    /// Stores `value` under `key`.
    pub async fn put(
        &self,
        key: &BlockKey,
        value: impl AsRef<[u8]>,
        options: &PutOptions,
    ) -> PutOutcome {
        let value = value.as_ref();
        if value.len() <= INLINE_PUT_MAX {
            return self.put_inline(key, value, options).await;
        }
        self.put_with(key, value.len() as u64, options, |slot| {
            slot.copy_from_slice(value)
        })
        .await
    }

    /// Stores the bytes of `sources`, gathered in order from registered caller memory.
    pub async fn put_from(
        &self,
        key: &BlockKey,
        sources: &[RegisteredRegion],
        options: &PutOptions,
    ) -> PutOutcome {
        let len = sources.iter().map(|source| source.len() as u64).sum();
        self.put_with(key, len, options, |slot| {
            gather(sources, slot);
        })
        .await
    }

    /// Stores a block of `len` bytes that `fill` writes straight into its slot, on the
    /// calling thread. The slot is handed over with whatever bytes it held before.
    pub async fn put_with(
        &self,
        key: &BlockKey,
        len: u64,
        options: &PutOptions,
        fill: impl FnOnce(&mut [u8]),
    ) -> PutOutcome {
        match self.reserve(key, len, options).await {
            Reservation::Done(outcome) => outcome,
            Reservation::Granted(mut writer) => {
                fill(writer.bytes_mut());
                self.commit(key, writer, options).await
            }
        }
    }

    /// The first step of a put: a slot to fill. Dropping it gives the slot back.
    pub async fn reserve(&self, key: &BlockKey, len: u64, options: &PutOptions) -> Reservation {
        let (owned, options) = (key.clone(), *options);
        let reserved = self.call(self.shard_of(key), move |shard, reply| {
            let reply = Reply(reply);
            match shard.try_reserve(&owned, len, &options) {
                Some(reservation) => reply.now(reservation),
                None => {
                    let shard = Rc::clone(shard);
                    reply.later(async move { shard.reserve(&owned, len, &options).await })
                }
            }
        });
        reserved
            .await
            .unwrap_or_else(|reason| Reservation::Done(refused(reason)))
    }

    /// The second step of a put: publishes a filled slot under the key it was reserved for.
    pub async fn commit(
        &self,
        key: &BlockKey,
        writer: SlotWriter,
        options: &PutOptions,
    ) -> PutOutcome {
        let checksum = Checksum::of(key, writer.bytes());
        let (owned, options) = (key.clone(), *options);
        let committed = self.call(self.shard_of(key), move |shard, reply| {
            finish(shard, Reply(reply), owned, options, move |shard, key| {
                shard.commit_now(key, writer, checksum, &options)
            })
        });
        committed.await.unwrap_or_else(refused)
    }

    async fn put_inline(&self, key: &BlockKey, value: &[u8], options: &PutOptions) -> PutOutcome {
        let checksum = Checksum::of(key, value);
        let (owned, options) = (key.clone(), *options);
        let value: Box<[u8]> = value.into();
        let put = self.call(self.shard_of(key), move |shard, reply| {
            let reply = Reply(reply);
            let len = value.len() as u64;
            let publish = move |shard: &Rc<Shard>, reservation, key: &BlockKey| match reservation {
                Reservation::Done(outcome) => outcome,
                Reservation::Granted(mut writer) => {
                    writer.bytes_mut().copy_from_slice(&value);
                    shard.commit_now(key, writer, checksum, &options)
                }
            };
            match shard.try_reserve(&owned, len, &options) {
                Some(reservation) => finish(shard, reply, owned, options, move |shard, key| {
                    publish(shard, reservation, key)
                }),
                None => {
                    let shard = Rc::clone(shard);
                    reply.later(async move {
                        let reservation = shard.reserve(&owned, len, &options).await;
                        let outcome = publish(&shard, reservation, &owned);
                        shard.ensured(&owned, outcome, &options).await
                    })
                }
            }
        });
        put.await.unwrap_or_else(refused)
    }

    /// Replaces whatever is stored under `key`. Between the old block and the new one a
    /// lookup may miss; when the put is refused, neither is there.
    pub async fn upsert(
        &self,
        key: &BlockKey,
        value: impl AsRef<[u8]>,
        options: &PutOptions,
    ) -> PutOutcome {
        if let Lookup::Unavailable(reason) = self.remove(key).await {
            return refused(reason);
        }
        self.put(key, value, options).await
    }

    /// Whether a block is stored. Moves, pins and renews nothing.
    pub async fn exists(&self, key: &BlockKey) -> Lookup<()> {
        let owned = key.clone();
        self.lookup(self.shard_of(key), move |shard, reply| {
            reply.now(shard.exists(&owned))
        })
        .await
    }

    /// Tells the policy that a block was used, without reading it.
    pub async fn touch(&self, key: &BlockKey, options: &GetOptions) -> Lookup<()> {
        let (owned, options) = (key.clone(), *options);
        self.lookup(self.shard_of(key), move |shard, reply| {
            reply.now(shard.touch(&owned, &options))
        })
        .await
    }

    /// Removes a block from every tier. A hit says that there was one.
    pub async fn remove(&self, key: &BlockKey) -> Lookup<()> {
        let owned = key.clone();
        self.lookup(self.shard_of(key), move |shard, reply| {
            let (found, tombstone) = shard.take_key_out(&owned);
            let Some(tombstone) = tombstone else {
                return reply.now(found);
            };
            let shard = Rc::clone(shard);
            reply.later(async move { shard.buried(found, tombstone).await })
        })
        .await
    }

    /// Removes all blocks of a namespace; returns how many there were. After the return none
    /// of them is found again.
    ///
    /// # Errors
    /// [`UnavailableReason`] of the first shard that did not answer.
    pub async fn remove_namespace(&self, namespace: Namespace) -> Result<u64, UnavailableReason> {
        let mut removed = 0;
        for shard in 0..self.shards() {
            removed += self
                .call(shard, move |shard, reply| {
                    let shard = Rc::clone(shard);
                    Reply(reply).later(async move { shard.remove_namespace(namespace).await })
                })
                .await??;
        }
        Ok(removed)
    }

    /// Keeps a block's slot for `ttl`, at most ten minutes, for a reader elsewhere.
    pub async fn lease(
        &self,
        key: &BlockKey,
        ttl: Duration,
        options: &GetOptions,
    ) -> Lookup<Lease> {
        let (owned, options) = (key.clone(), *options);
        self.lookup(self.shard_of(key), move |shard, reply| {
            let shard = Rc::clone(shard);
            reply.later(async move { shard.lease(&owned, ttl, &options).await })
        })
        .await
    }

    /// The block that a descriptor was made for, as long as its slot still holds it; `None` for
    /// one that was given up or moved since, and for numbers that were never a descriptor.
    pub async fn resolve(&self, descriptor: &Descriptor) -> Option<PinnedBlock> {
        let descriptor = *descriptor;
        let resolved = self.call(descriptor.shard, move |shard, reply| {
            Reply(reply).now(shard.resolve(&descriptor).map(LocalPin::into_pinned))
        });
        resolved.await.unwrap_or(None)
    }

    /// Ends a lease early. False when it had ended already, or the shard did.
    pub async fn release(&self, lease: &Lease) -> bool {
        let id: LeaseId = lease.id;
        let released = self.call(lease.descriptor.shard, move |shard, reply| {
            Reply(reply).now(shard.release(id))
        });
        released.await.unwrap_or(false)
    }

    async fn lookup<R, F>(&self, shard: usize, f: F) -> Lookup<R>
    where
        R: Send + 'static,
        F: FnOnce(
                &Rc<Shard>,
                Reply<Lookup<R>>,
            ) -> Option<terrace_runtime::LocalFuture<'static, ()>>
            + Send
            + 'static,
    {
        let looked = self.call(shard, move |shard, reply| f(shard, Reply(reply)));
        looked.await.unwrap_or_else(Lookup::Unavailable)
    }
}

pub(super) fn dram(pin: LocalPin) -> Lookup<PinnedBlock> {
    Lookup::Hit {
        tier: terrace_types::Tier::Dram,
        value: pin.into_pinned(),
    }
}

/// Ends a put: at once, or when the block is durable if that was asked for.
fn finish(
    shard: &Rc<Shard>,
    reply: Reply<PutOutcome>,
    key: BlockKey,
    options: PutOptions,
    publish: impl FnOnce(&Rc<Shard>, &BlockKey) -> PutOutcome + 'static,
) -> Option<terrace_runtime::LocalFuture<'static, ()>> {
    let outcome = publish(shard, &key);
    if options.durability == Durability::Volatile {
        return reply.now(outcome);
    }
    let shard = Rc::clone(shard);
    reply.later(async move { shard.ensured(&key, outcome, &options).await })
}

/// The outcome of a put that its shard did not answer.
pub(super) const fn refused(reason: UnavailableReason) -> PutOutcome {
    match reason {
        UnavailableReason::Closing => PutOutcome::Rejected(RejectReason::Closing),
        UnavailableReason::ForeignNamespace => PutOutcome::Rejected(RejectReason::ForeignNamespace),
        _ => PutOutcome::Rejected(RejectReason::ShardFenced),
    }
}

/// The end of a call that its answer goes into: at once, or when a future completes.
pub(super) struct Reply<T>(pub(super) oneshot::Sender<T>);

impl<T: 'static> Reply<T> {
    pub(super) fn now(self, value: T) -> Option<terrace_runtime::LocalFuture<'static, ()>> {
        // A caller that dropped its future wants no answer; pins in it go back by themselves.
        let _ = self.0.send(value);
        None
    }

    pub(super) fn later(
        self,
        rest: impl Future<Output = T> + 'static,
    ) -> Option<terrace_runtime::LocalFuture<'static, ()>> {
        Some(Box::pin(async move {
            let _ = self.0.send(rest.await);
        }))
    }
}
