//! Turning tasks with a ring and nothing else: a list of those that may go on, and one call
//! that hands over what they queued and sleeps until something completed.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use anyhow::Context as _;
use terrace_nvme::IoBackend;
use terrace_nvme::uring::Ring;
use terrace_types::{LocalFuture, Nanos};

use super::load::{Load, Work};
use super::memory::BlockMemory;
use super::meter::Sample;
use super::options::RawOptions;
use super::target::Target;

/// Tasks that may go on, by number.
type Ready = Mutex<Vec<usize>>;

/// Wakes one task.
struct Task {
    number: usize,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push(self.number);
    }
}

/// One round of the mode `ring`.
pub(super) fn round(target: &Target, memory: &BlockMemory, work: Work) -> anyhow::Result<Sample> {
    let ring = Ring::new(&work.ring_config(), None, &[memory.range()])?;
    let load = Load::new(work, &ring, target, memory)?;
    let tasks = (0..work.tasks()).map(|number| {
        let load = Rc::clone(&load);
        let task: LocalFuture<'static, ()> = Box::pin(async move { load.turn(number).await });
        task
    });
    run(&ring, tasks.collect());
    load.sample()
}

/// What is in force on a ring as the modes use it.
pub(super) fn report(memory: &BlockMemory, options: &RawOptions) -> anyhow::Result<String> {
    let work = Work {
        rw: options.rw,
        len: memory.block_len(),
        depth: options.queue_depth() as usize,
        span: options.span,
        flush_every: 0,
        hash: false,
        round: 0,
        io_poll: options.io_poll,
    };
    let ring = Ring::new(&work.ring_config(), None, &[memory.range()]).context("make a ring")?;
    Ok(ring.report().to_string())
}

fn run(ring: &Ring, tasks: Vec<LocalFuture<'static, ()>>) {
    let ready = Arc::<Ready>::default();
    let waker = |number| {
        let ready = Arc::clone(&ready);
        Waker::from(Arc::new(Task { number, ready }))
    };
    let wakers: Vec<Waker> = (0..tasks.len()).map(waker).collect();
    let mut left = tasks.len();
    let mut tasks: Vec<Option<LocalFuture<'static, ()>>> = tasks.into_iter().map(Some).collect();
    let mut batch: Vec<usize> = (0..left).collect();
    while left > 0 {
        for number in batch.drain(..) {
            let mut context = Context::from_waker(&wakers[number]);
            let task = &mut tasks[number];
            let ended = task
                .as_mut()
                .is_some_and(|task| task.as_mut().poll(&mut context).is_ready());
            if ended {
                *task = None;
                left -= 1;
            }
        }
        let swap = |batch: &mut Vec<usize>| {
            let mut ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *ready, batch);
        };
        swap(&mut batch);
        if batch.is_empty() && left > 0 {
            ring.submit_and_wait();
            ring.reap(Nanos::ZERO);
            swap(&mut batch);
        }
    }
}
