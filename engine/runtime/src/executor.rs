//! The production runtime: one glommio executor on one thread, pinned or not.
//!
//! Threads outlive their shards: an ended shard's thread waits, parked, for the next.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::mpsc::SendError;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_lite::future::or;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use glommio::io::BufferedFile;
use glommio::timer::Timer;
use glommio::{LocalExecutorBuilder, Placement};
use nix::sys::resource::{Resource, getrlimit};
use terrace_types::{Clock, Nanos};

use crate::busy::{self, Counted};
use crate::mailbox::{self, Mailbox, MailboxSender};
use crate::{Eventfd, LocalFuture, Runtime, Tasks};

/// glommio 0.9 refuses to start below this soft limit, whatever the capabilities.
pub const MEMLOCK_MIN: u64 = 512 << 10;

/// Each executor registers a pool of buffers for its own files. Terrace reads into its slabs
/// by a ring of its own, so the pool is as small as glommio takes it.
const GLOMMIO_POOL_LEN: usize = 64 << 10;

thread_local! {
    /// Whether this thread's executor runs nothing any more.
    static HAS_ENDED: Cell<bool> = const { Cell::new(false) };
}

/// Entries of glommio's rings; they carry timers, sockets and eventfds, not block I/O.
const GLOMMIO_RING_DEPTH: usize = 128;

/// How long a runnable task may keep the reactor from its completions. glommio's default of
/// 100 ms would let a busy mailbox delay a device completion by as much.
const PREEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// glommio 0.9 parks although tasks may run when the preemption timer is over before it looked
/// at them, as happens to a thread that the kernel took off its processor in between. So every
/// executor is woken so often, and looks again.
const BEAT_INTERVAL: Duration = Duration::from_millis(50);
/// Beats that are set at once: the task that sets them may be among those that are not run.
const BEATS_AHEAD: u32 = 8;

/// How long a new executor may take until it runs, and how many are started before none is had.
/// One that parked before it set its first beat cannot be woken: it is left, and another one
/// started. Should it run after all, it waits for a shard as any idle one does.
const START_WAIT: Duration = Duration::from_millis(500);
const STARTS_MAX: usize = 8;

/// How long a wait lasts that cannot be told of its eventfd, for want of descriptors.
const EVENTFD_PAUSE: Duration = Duration::from_millis(10);

/// Why a shard's thread could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// The limit on locked memory is too low for glommio.
    #[error(
        "the limit on locked memory is {limit} bytes, at least {MEMLOCK_MIN} are needed; raise it \
         with `ulimit -l 8192`, LimitMEMLOCK= in a systemd unit, or --ulimit memlock in a container"
    )]
    Memlock {
        /// The soft limit in force, in bytes.
        limit: u64,
    },
    /// glommio refused to start.
    #[error("start the executor of shard {shard}: {why}")]
    Start {
        /// The shard's number.
        shard: usize,
        /// What glommio said.
        why: String,
    },
}

/// How to run a shard's thread.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The shard's number; it names the thread.
    pub shard: usize,
    /// The processor to stay on, or `None` to leave that to the kernel.
    pub cpu: Option<usize>,
    /// How long to look for work before the thread parks. Zero parks at once.
    pub spin: Duration,
}

type Job = Box<dyn FnOnce(Rc<dyn Runtime>) -> LocalFuture<'static, ()> + Send>;

struct Assignment {
    job: Job,
    done: Arc<Done>,
}

/// Executors whose shard ended, kept for the next one. glommio 0.9 loses an eventfd with each
/// executor, so a process makes no more of them than it runs at once.
static IDLE: Mutex<Vec<Executor>> = Mutex::new(Vec::new());

struct Executor {
    cpu: Option<usize>,
    spin: Duration,
    jobs: MailboxSender<Assignment>,
}

#[derive(Default)]
struct Done {
    /// Whether the job ended, and then whether without a panic.
    ended: Mutex<Option<bool>>,
    changed: Condvar,
}

/// A shard's running thread.
pub struct ShardThread {
    executor: Option<Executor>,
    done: Arc<Done>,
}

impl ShardThread {
    /// Starts a thread, or takes an idle one, and runs on it the future that `main` makes.
    /// Tasks that `main` spawned and did not end stay on the thread: it has to end them.
    ///
    /// # Errors
    /// [`ExecutorError`], before anything runs.
    pub fn start<F>(
        config: &ExecutorConfig,
        main: impl FnOnce(Rc<dyn Runtime>) -> F + Send + 'static,
    ) -> Result<Self, ExecutorError>
    where
        F: Future<Output = ()> + 'static,
    {
        check_memlock()?;
        let job: Job = Box::new(move |runtime| Box::pin(main(runtime)));
        let done = Arc::<Done>::default();
        let idle = {
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |e: &Executor| e.cpu == config.cpu && e.spin == config.spin;
            idle.iter().position(fits).map(|at| idle.swap_remove(at))
        };
        let executor = match idle {
            Some(executor) => executor,
            None => start_executor(config)?,
        };
        executor
            .jobs
            .try_send(Assignment {
                job,
                done: Arc::clone(&done),
            })
            .map_err(|_| ExecutorError::Start {
                shard: config.shard,
                why: "its thread ended".to_owned(),
            })?;
        Ok(Self {
            executor: Some(executor),
            done,
        })
    }

    /// Waits for the end of what [`ShardThread::start`] started. False when it panicked.
    #[must_use]
    pub fn join(mut self) -> bool {
        let mut ended = self
            .done
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let clean = loop {
            if let Some(clean) = *ended {
                break clean;
            }
            ended = self
                .done
                .changed
                .wait(ended)
                .unwrap_or_else(PoisonError::into_inner);
        };
        if let Some(executor) = self.executor.take() {
            IDLE.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(executor);
        }
        clean
    }
}

fn start_executor(config: &ExecutorConfig) -> Result<Executor, ExecutorError> {
    start_one_of(config, &[PREEMPT_INTERVAL; STARTS_MAX])
}

/// The first executor that runs, of those started one after the other with these intervals.
fn start_one_of(
    config: &ExecutorConfig,
    preempt_intervals: &[Duration],
) -> Result<Executor, ExecutorError> {
    let failed = |why: String| ExecutorError::Start {
        shard: config.shard,
        why,
    };
    for interval in preempt_intervals {
        let (jobs, inbox) = mailbox::mailbox(1).map_err(|error| failed(error.to_string()))?;
        let executor = Executor {
            cpu: config.cpu,
            spin: config.spin,
            jobs,
        };
        // Without room for one: an executor that is late could be lost in it with the receiver.
        let (running, runs) = std::sync::mpsc::sync_channel(0);
        let placement = config.cpu.map_or(Placement::Unbound, Placement::Fixed);
        LocalExecutorBuilder::new(placement)
            .name(&format!("terrace-{}", config.shard))
            .io_memory(GLOMMIO_POOL_LEN)
            .ring_depth(GLOMMIO_RING_DEPTH)
            .preempt_timer(*interval)
            .spin_before_park(config.spin)
            .spawn(move || async move {
                let jobs = async move {
                    if let Err(SendError(late)) = running.send(executor) {
                        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
                        idle.push(late);
                    }
                    run_jobs(inbox).await;
                };
                // In one task: no beat is missing when the jobs begin.
                Counted(Box::pin(or(beat(), jobs))).await;
                HAS_ENDED.set(true);
            })
            .map_err(|error| failed(error.to_string()))?;
        if let Ok(executor) = runs.recv_timeout(START_WAIT) {
            return Ok(executor);
        }
        tracing::warn!(
            shard = config.shard,
            "an executor is late; starting another"
        );
    }
    Err(failed("its thread does not begin to run".to_owned()))
}

/// Keeps timers set, so that the thread never parks for longer than a beat.
async fn beat() {
    loop {
        let beats = (1..=BEATS_AHEAD).map(|count| Timer::new(BEAT_INTERVAL * count));
        let mut beats: FuturesUnordered<_> = beats.collect();
        let _ = beats.next().await;
    }
}

async fn run_jobs(inbox: Mailbox<Assignment>) {
    let glommio = Rc::new(GlommioRuntime::new());
    let runtime: Rc<dyn Runtime> = Rc::<GlommioRuntime>::clone(&glommio);
    loop {
        let Some(Assignment { job, done }) = inbox.try_recv() else {
            inbox.sleep(&*runtime).await;
            continue;
        };
        // The job's future is made inside the guard too: making it may panic as well.
        let shard = Rc::clone(&runtime);
        let outcome = AssertUnwindSafe(async move { job(shard).await })
            .catch_unwind()
            .await;
        if let Err(panic) = &outcome {
            tracing::error!(
                message = panic_message(&**panic),
                "a shard's main task panicked"
            );
        }
        glommio.forget_eventfds();
        *done.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.is_ok());
        done.changed.notify_all();
    }
}

/// Checks the limit on locked memory before glommio does, to say what to do about it.
///
/// # Errors
/// [`ExecutorError::Memlock`] with the limit in force.
pub fn check_memlock() -> Result<(), ExecutorError> {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(soft, _)| soft);
    if limit < MEMLOCK_MIN {
        return Err(ExecutorError::Memlock { limit });
    }
    Ok(())
}

/// `task`, with a panic in it logged and swallowed: glommio's executor would end with it.
pub(crate) fn logged(task: LocalFuture<'static, ()>) -> LocalFuture<'static, ()> {
    Box::pin(AssertUnwindSafe(task).catch_unwind().map(|outcome| {
        if let Err(panic) = outcome {
            tracing::error!(message = panic_message(&*panic), "a task panicked");
        }
    }))
}

/// The text of a panic, as far as it has one.
#[must_use]
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Gives way to the other tasks of the executor.
pub(crate) async fn yield_to_reactor() {
    glommio::executor().yield_task_queue_now().await;
}

/// An eventfd and the file by which glommio reads it.
type Watched = (Eventfd, Rc<BufferedFile>);

struct GlommioRuntime {
    origin: Instant,
    /// Eventfds as glommio reads them, opened at their first wait. Each is kept beside its file,
    /// so that its number is not given to another.
    eventfds: Rc<RefCell<HashMap<usize, Watched>>>,
    /// The last wait for an eventfd failed: the next ones that do are no news.
    failing: Rc<Cell<bool>>,
}

impl GlommioRuntime {
    fn new() -> Self {
        Self {
            origin: process_origin(),
            eventfds: Rc::default(),
            failing: Rc::default(),
        }
    }

    /// Closes the descriptors opened for a shard that ended, but for the one in use now.
    fn forget_eventfds(&self) {
        self.eventfds.borrow_mut().clear();
    }

    fn file_of(&self, wake: &Eventfd) -> Result<Rc<BufferedFile>, std::io::Error> {
        let mut files = self.eventfds.borrow_mut();
        if let Some((_, file)) = files.get(&wake.id()) {
            return Ok(Rc::clone(file));
        }
        let file = Rc::new(wake.to_glommio()?);
        files.insert(wake.id(), (wake.clone(), Rc::clone(&file)));
        Ok(file)
    }
}

/// One origin for all shards, so that their times compare.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the clock that all others go by"
)]
fn process_origin() -> Instant {
    static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// The clock of production code outside a shard's thread; equal to every shard's.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Nanos {
        Nanos(process_origin().elapsed().as_nanos() as u64 + 1)
    }
}

impl Clock for GlommioRuntime {
    fn now(&self) -> Nanos {
        Nanos(self.origin.elapsed().as_nanos() as u64 + 1)
    }
}

impl Tasks for GlommioRuntime {
    fn spawn(&self, task: LocalFuture<'static, ()>) {
        // What is dropped with an executor may hand its rest over: there is nobody to run it.
        if !HAS_ENDED.get() {
            glommio::spawn_local(Counted(logged(task))).detach();
        }
    }

    fn sleep_until(&self, deadline: Nanos) -> LocalFuture<'static, ()> {
        let span = deadline.since(self.now());
        if span.is_zero() {
            return Box::pin(std::future::ready(()));
        }
        Box::pin(async move {
            Timer::new(span).await;
        })
    }

    fn yield_now(&self) -> LocalFuture<'static, ()> {
        Box::pin(yield_to_reactor())
    }
}

impl Runtime for GlommioRuntime {
    fn wait_for(&self, wake: &Eventfd) -> LocalFuture<'static, ()> {
        let (file, failing) = (self.file_of(wake), Rc::clone(&self.failing));
        async move {
            let read = match file {
                Ok(file) => {
                    busy::ring_is_behind();
                    let read = file.read_at(0, 8).await;
                    read.map(|_| ()).map_err(|e| e.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let was_failing = failing.replace(read.is_err());
            if let Err(error) = read {
                if !was_failing {
                    tracing::error!(error, "wait for an eventfd");
                }
                // Who waits in a loop must not keep the thread: it looks again a little later.
                Timer::new(EVENTFD_PAUSE).await;
            }
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn open_fds() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    fn config() -> ExecutorConfig {
        ExecutorConfig {
            shard: 0,
            cpu: None,
            spin: Duration::ZERO,
        }
    }

    /// Aim: a task that may run does, also where the thread lost its processor at the wrong moment
    /// and glommio parked. Method: more threads than processors, a preemption timer that is
    /// shorter than their turns, and nothing but the beat to wake the executor.
    #[test]
    fn task_that_may_run_is_not_left_when_the_thread_lost_its_processor() {
        let executor = start_one_of(&config(), &[Duration::from_micros(50); STARTS_MAX]).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let job: Job = Box::new(move |runtime| {
            Box::pin(async move {
                let event = Eventfd::new().unwrap();
                for _ in 0..20_000 {
                    event.signal();
                    runtime.wait_for(&event).await;
                }
                sender.send(()).unwrap();
            })
        });
        let over = Arc::new(AtomicBool::new(false));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let rivals: Vec<_> = (0..3 * processors)
            .map(|_| {
                let over = Arc::clone(&over);
                std::thread::spawn(move || while !over.load(Ordering::Relaxed) {})
            })
            .collect();
        let done = Arc::default();
        assert!(executor.jobs.try_send(Assignment { job, done }).is_ok());
        let ended = receiver.recv_timeout(Duration::from_secs(60));
        over.store(true, Ordering::Relaxed);
        rivals.into_iter().for_each(|rival| rival.join().unwrap());
        assert!(
            ended.is_ok(),
            "the executor sleeps over a task that may run"
        );
    }

    /// With a preemption timer that is over at once an executor never looks at its first task.
    #[test]
    fn executor_that_parked_before_it_ran_is_replaced() {
        let executor = start_one_of(&config(), &[Duration::from_nanos(1), PREEMPT_INTERVAL]);
        let (sender, receiver) = std::sync::mpsc::channel();
        let job: Job = Box::new(move |_| Box::pin(async move { sender.send(()).unwrap() }));
        let done = Arc::default();
        let sent = executor.unwrap().jobs.try_send(Assignment { job, done });
        assert!(sent.is_ok());
        receiver.recv().unwrap();

        let stuck = start_one_of(&config(), &[Duration::from_nanos(1)]);
        let said = stuck.err().unwrap().to_string();
        assert!(said.contains("does not begin to run"), "{said}");
    }

    /// Aim: starting and ending shards costs the process no descriptors. glommio alone loses
    /// one for each executor.
    #[test]
    fn shard_thread_started_again_and_again_leaks_nothing() {
        let round = || {
            let thread = ShardThread::start(&config(), |runtime| async move {
                runtime.spawn(Box::pin(async { panic!("on purpose") }));
                runtime
                    .sleep_until(runtime.now() + Duration::from_micros(100))
                    .await;
                let wake = Eventfd::new().unwrap();
                wake.signal();
                runtime.wait_for(&wake).await;
                runtime.yield_now().await;
            });
            assert!(thread.unwrap().join());
        };
        round();
        let before = open_fds();
        (0..20).for_each(|_| round());
        // glommio closes files by its ring, a little after they are dropped.
        let settled = (0..100_000).any(|_| {
            std::thread::yield_now();
            open_fds() <= before
        });
        assert!(settled, "{before} descriptors became {}", open_fds());
        let panicking = ShardThread::start(&config(), |_| async { panic!("on purpose") }).unwrap();
        assert!(!panicking.join());
    }
}
