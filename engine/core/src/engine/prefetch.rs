//! Prefetch as callers see it: a handle on reads ahead of need.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::join_all;
use terrace_runtime::MailboxSender;
use terrace_types::{BlockKey, Hint, RequestContext};

use super::Engine;
use super::batch::split;
use crate::shard::{Chain, GetOptions, Job, PrefetchReport};

/// Reads ahead of need that are under way. Awaited, it tells what they came to; dropped, it
/// cancels those that were not begun. What was begun ends by itself.
#[must_use = "a prefetch ends when its handle is dropped"]
pub struct Prefetch {
    whole: Pin<Box<dyn Future<Output = PrefetchReport> + Send>>,
    cancelled: Arc<AtomicBool>,
    /// The mailboxes of the shards that read; empty when the reads are over.
    shards: Vec<MailboxSender<Job>>,
}

impl Future for Prefetch {
    type Output = PrefetchReport;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PrefetchReport> {
        let polled = self.whole.as_mut().poll(context);
        if polled.is_ready() {
            self.shards.clear();
        }
        polled
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        for shard in &self.shards {
            let job: Job = Box::new(|shard| {
                shard.wake_prefetches();
                None
            });
            // A shard whose mailbox is full looks by itself, before the next read it begins.
            let _ = shard.try_send(job);
        }
    }
}

impl Engine {
    /// Brings the blocks of a chain up from the tier below ahead of need, in the order of `keys`,
    /// which are the chain from its first block on. What is in DRAM is left alone; the first
    /// block that is in no tier ends it, and so does `deadline`. Returns when the shards know of
    /// it, with a handle that cancels the rest when it is dropped.
    ///
    /// Bytes that are under way or were not used yet are bounded by
    /// [`crate::EngineConfig::prefetch_ratio_max`]: at the bound it waits until some are used.
    pub async fn prefetch(
        &self,
        keys: &[BlockKey],
        deadline: Duration,
        context: &RequestContext,
    ) -> Prefetch {
        // One shard sees by itself where the chain ends.
        let present = match self.shards() {
            1 => keys.len(),
            _ => self.match_prefix(keys).await,
        };
        let keys = keys.get(..present).unwrap_or_default();
        let cancelled: Arc<AtomicBool> = Arc::default();
        let (mut reports, mut shards) = (Vec::new(), Vec::new());
        let parts = split(keys.iter().map(BlockKey::hash), self.shards());
        for (shard, part) in parts.iter().enumerate() {
            let Some(sender) = self.inner.senders.get(shard).filter(|_| !part.is_empty()) else {
                continue;
            };
            let chain = Chain {
                blocks: part.iter().map(|at| told(keys, *at, context)).collect(),
                cancelled: Arc::clone(&cancelled),
            };
            let (reply, report) = oneshot::channel();
            let job: Job = Box::new(move |shard| {
                let shard = Rc::clone(shard);
                Some(Box::pin(async move {
                    let until = shard.runtime().now() + deadline;
                    // Who does not want to know has dropped its end.
                    let _ = reply.send(shard.prefetch(chain, until).await);
                }))
            });
            // A shard that is closed reads nothing ahead.
            if sender.send(job).await.is_ok() {
                reports.push(report);
                shards.push(sender.clone());
            }
        }
        let whole = async move {
            let mut sum = PrefetchReport::default();
            for report in join_all(reports).await.into_iter().flatten() {
                sum.add(&report);
            }
            sum
        };
        Prefetch {
            whole: Box::pin(whole),
            cancelled,
            shards,
        }
    }
}

/// A block of a chain, with what its place in the chain tells.
fn told(keys: &[BlockKey], at: usize, context: &RequestContext) -> (BlockKey, GetOptions) {
    let parent = at.checked_sub(1).and_then(|parent| keys.get(parent));
    let options = GetOptions {
        hint: Hint {
            parent: parent.map(BlockKey::hash),
            depth: u32::try_from(at).unwrap_or(u32::MAX),
            ..Hint::default()
        },
        context: *context,
        ..GetOptions::default()
    };
    (keys[at].clone(), options)
}
