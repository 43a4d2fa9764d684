//! The shard's message loop and its once-a-second publishing of counters.

use std::panic::AssertUnwindSafe;
use std::rc::{Rc, Weak};
use std::time::Duration;

use metrics::Counter;
use terrace_runtime::{LocalFuture, Mailbox, Runtime};
use terrace_types::Nanos;

use super::Shard;
use crate::engine::ShardIo;

/// A message: what is to be done on the shard's thread, and maybe a rest that has to wait.
pub(crate) type Job = Box<dyn FnOnce(&Rc<Shard>) -> Option<LocalFuture<'static, ()>> + Send>;

/// Messages handled before other tasks of the thread run.
const JOBS_IN_A_ROW: usize = 32;
/// How long the end of a shard waits for what is under way.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often it looks.
const END_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How often counters are published.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// Handles messages until the shard closes.
pub(crate) async fn serve(shard: Rc<Shard>, mailbox: Mailbox<Job>) {
    let runtime = Rc::clone(shard.runtime());
    runtime.spawn(Box::pin(publish(
        Rc::downgrade(&shard),
        Rc::clone(&runtime),
    )));
    let mut last_job = Nanos::ZERO;
    while !shard.closing.get() {
        shard.tick();
        let mut handled = 0;
        while handled < JOBS_IN_A_ROW
            && let Some(job) = mailbox.try_recv()
        {
            handle(&shard, job);
            handled += 1;
        }
        if handled > 0 {
            last_job = shard.now.get();
            runtime.yield_now().await;
        } else if runtime.now().since(last_job) < shard.config.spin {
            runtime.yield_now().await;
        } else {
            mailbox.announce_sleep();
            // What came back before the announcement signalled nobody: a put may wait for it.
            if !shard.drain_returns() {
                mailbox.sleep(&*runtime).await;
            }
        }
    }
    mailbox.close();
    // What waits is answered, not dropped: every call gets an outcome.
    while let Some(job) = mailbox.try_recv() {
        handle(&shard, job);
    }
    shard.end();
    let_go(shard).await;
}

/// Waits until nothing uses the shard any more, so that its devices are closed when it is.
async fn let_go(shard: Rc<Shard>) {
    let runtime = Rc::clone(shard.runtime());
    let deadline = runtime.now() + shard.config.nvme.io_deadline.min(END_WAIT_MAX);
    let in_flight = || {
        let io = shard.io.borrow();
        io.as_ref().map_or(0, ShardIo::in_flight)
    };
    while runtime.now() < deadline && (in_flight() > 0 || Rc::strong_count(&shard) > 1) {
        runtime.sleep_until(runtime.now() + END_POLL_INTERVAL).await;
    }
    let late = in_flight();
    if late > 0 {
        tracing::error!(
            shard = shard.number,
            late,
            "closed while operations are under way"
        );
    }
    if let Some(io) = shard.io.borrow_mut().as_mut() {
        io.end();
    }
    shard.regions.borrow_mut().clear();
}

fn handle(shard: &Rc<Shard>, job: Job) {
    match std::panic::catch_unwind(AssertUnwindSafe(|| job(shard))) {
        Ok(None) => {}
        Ok(Some(rest)) => shard.spawn(rest),
        Err(panic) => shard.fence(&*panic),
    }
}

impl Shard {
    /// No more work is begun; what waits is told so.
    pub(crate) fn begin_close(&self) {
        self.closing.set(true);
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.wake_waiting();
            state.ahead.wake();
        }
    }

    fn end(&self) {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.wake_waiting();
            if let Some(tier) = &self.tier {
                tier.wake();
            }
            state.sinks.clear();
            state.leases.clear();
        }
    }
}

async fn publish(shard: Weak<Shard>, runtime: Rc<dyn Runtime>) {
    let mut handles: Vec<Counter> = Vec::new();
    loop {
        {
            let Some(shard) = shard.upgrade() else { return };
            if shard.closing.get() {
                return;
            }
            shard.forget_unused_regions();
            let Ok(state) = shard.state.try_borrow() else {
                return;
            };
            let mut named = state.counters.named();
            if let Some(tier) = &shard.tier {
                named.extend(tier.counters().named());
            }
            if handles.is_empty() {
                let label = shard.number.to_string();
                let handle = |(name, _): &(&'static str, u64)| metrics::counter!(*name, "shard" => label.clone());
                handles = named.iter().map(handle).collect();
            }
            handles
                .iter()
                .zip(&named)
                .for_each(|(handle, (_, count))| handle.absolute(*count));
        }
        runtime.sleep_until(runtime.now() + PUBLISH_INTERVAL).await;
    }
}
