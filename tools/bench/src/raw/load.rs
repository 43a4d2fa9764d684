//! What `depth` tasks do to a device, whatever turns them: the same code on the bare ring and
//! beside the executor, so that only what turns it differs.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use anyhow::{anyhow, bail};
use terrace_engine::{BlockKey, Namespace, SlotWriter};
use terrace_nvme::uring::{Ring, RingConfig, UringDevice};
use terrace_nvme::{BlockDevice, IoBuffer};
use terrace_types::{Checksum, NamespaceName};

use super::commits::Commits;
use super::memory::{BlockMemory, Slots};
use super::meter::{self, Meter, Sample};
use super::options::{HEAD_LEN, Rw};
use super::target::Target;

/// How long an operation may take: as an engine allows.
const IO_DEADLINE: Duration = Duration::from_secs(10);

/// What one round of one mode does.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) rw: Rw,
    pub(super) len: u64,
    pub(super) depth: usize,
    pub(super) span: Duration,
    pub(super) flush_every: u64,
    /// Hash what was read.
    pub(super) hash: bool,
    pub(super) round: u64,
    pub(super) io_poll: bool,
}

impl Work {
    /// Tasks that a round has.
    pub(super) const fn tasks(&self) -> usize {
        match self.rw {
            Rw::Mixed => 2 * self.depth,
            Rw::Randread | Rw::Write | Rw::Durable => self.depth,
        }
    }

    /// What task `number` does.
    const fn rw_of(&self, number: usize) -> Rw {
        match self.rw {
            Rw::Mixed if number < self.depth => Rw::Randread,
            Rw::Mixed => Rw::Write,
            rw => rw,
        }
    }

    /// A ring as an engine's shard has it.
    pub(super) fn ring_config(&self) -> RingConfig {
        let entries = self.tasks().max(256);
        RingConfig {
            entries: entries as u32,
            polled: self.io_poll,
            ops_max: 2 * entries,
            ..RingConfig::default()
        }
    }
}

/// Numbers that look random and are the same in every run.
pub(super) struct Draw(Cell<u64>);

impl Draw {
    pub(super) const fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    /// A number below `count`.
    pub(super) fn below(&self, count: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        ((x >> 32) * count) >> 32
    }
}

/// Opens when as many tasks ended as were begun.
pub(super) struct Gate {
    left: Cell<usize>,
    waker: Cell<Option<Waker>>,
}

impl Gate {
    pub(super) const fn new(tasks: usize) -> Self {
        Self {
            left: Cell::new(tasks),
            waker: Cell::new(None),
        }
    }

    /// A task ended.
    pub(super) fn pass(&self) {
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// Waits for all of them.
    pub(super) async fn opened(&self) {
        poll_fn(|context| {
            if self.left.get() == 0 {
                return Poll::Ready(());
            }
            self.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// See the module's text.
pub(super) struct Load {
    work: Work,
    ring: Rc<Ring>,
    device: UringDevice,
    slots: Slots,
    places: u64,
    draw: Draw,
    next: Cell<u64>,
    commits: Commits,
    key: BlockKey,
    meter: RefCell<Meter>,
    failure: RefCell<Option<anyhow::Error>>,
}

impl Load {
    /// Puts the device on `ring`.
    pub(super) fn new(
        work: Work,
        ring: &Rc<Ring>,
        target: &Target,
        memory: &BlockMemory,
    ) -> anyhow::Result<Rc<Self>> {
        let plain = if work.io_poll {
            // Never used: `UringDevice` wants one that could flush.
            Ring::new(
                &RingConfig {
                    polled: false,
                    ..work.ring_config()
                },
                None,
                &[],
            )?
        } else {
            Rc::clone(ring)
        };
        let file = Arc::clone(&target.file);
        let device = UringDevice::new(Rc::clone(ring), plain, file, target.info.clone())?;
        let name = NamespaceName::new("raw")?;
        let places = (target.info.len - HEAD_LEN) / work.len;
        Ok(Rc::new(Self {
            work,
            ring: Rc::clone(ring),
            device,
            slots: memory.slots(),
            places,
            draw: Draw::new(work.round + 1),
            next: Cell::new(0),
            commits: Commits::new(work.flush_every),
            key: Namespace::new(0, 0, &name).key(b"block")?,
            meter: RefCell::new(Meter::start(work.span)?),
            failure: RefCell::new(None),
        }))
    }

    /// Task `number`: an operation after the other until the time is over.
    pub(super) async fn turn(&self, number: usize) {
        let rw = self.work.rw_of(number);
        let beside = self.work.rw == Rw::Mixed && rw == Rw::Write;
        while self.meter.borrow().is_running() {
            let Some(slot) = self.slots.take() else {
                return self.fail(anyhow!("more operations than slots"));
            };
            let begun = meter::now();
            match self.operate(rw, slot).await {
                Ok(slot) => {
                    self.slots.give(slot);
                    let mut meter = self.meter.borrow_mut();
                    if beside {
                        meter.write_beside(self.work.len);
                    } else {
                        meter.record(begun, meter::now(), self.work.len);
                    }
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&self, error: anyhow::Error) {
        self.failure.borrow_mut().get_or_insert(error);
        self.meter.borrow_mut().stop();
    }

    async fn operate(&self, rw: Rw, slot: SlotWriter) -> anyhow::Result<SlotWriter> {
        let (len, deadline) = (self.work.len as u32, || meter::now() + IO_DEADLINE);
        if self.work.hash && rw != Rw::Randread {
            std::hint::black_box(Checksum::of(&self.key, slot.bytes()));
        }
        let buffer = IoBuffer::Writer(slot);
        let (what, offset, operation) = match rw {
            Rw::Randread => {
                let offset = self.offset_of(self.draw.below(self.places));
                (
                    "read",
                    offset,
                    self.device.read(offset, len, buffer, deadline()),
                )
            }
            Rw::Write | Rw::Durable | Rw::Mixed => {
                let place = self.next.get();
                self.next.set((place + 1) % self.places);
                let offset = self.offset_of(place);
                self.commits.begin_write();
                (
                    "write",
                    offset,
                    self.device.write(offset, len, buffer, deadline()),
                )
            }
        };
        let outcome = operation.await;
        if let Err(error) = outcome.result {
            bail!(
                "{what} {len} bytes at {offset} of {}: {error}",
                self.device.info().name
            );
        }
        let Some(slot) = outcome.buffer.and_then(IoBuffer::writer) else {
            bail!("{what} at {offset} kept its memory");
        };
        match rw {
            Rw::Durable => {
                self.commits
                    .commit(&self.device, self.work.len, deadline)
                    .await?
            }
            Rw::Randread if self.work.hash => {
                std::hint::black_box(Checksum::of(&self.key, slot.bytes()));
            }
            Rw::Randread | Rw::Write | Rw::Mixed => {}
        }
        Ok(slot)
    }

    const fn offset_of(&self, place: u64) -> u64 {
        HEAD_LEN + place * self.work.len
    }

    /// What came of it, once all tasks ended.
    pub(super) fn sample(&self) -> anyhow::Result<Sample> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let counts = self.ring.counts();
        #[expect(clippy::cast_precision_loss, reason = "reports round anyway")]
        let enters = counts.enters as f64 / counts.completed.max(1) as f64;
        Ok(Sample {
            enters_per_io: Some(enters),
            bytes_per_flush: self.commits.bytes_per_flush(),
            ..self.meter.borrow().sample()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw_stays_below_and_reaches_all() {
        let draw = Draw::new(3);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[draw.below(7) as usize] += 1);
        assert!(
            seen.iter().all(|count| (800..1200).contains(count)),
            "{seen:?}"
        );
    }
}
