//! The engine on a data set of its own: filled with blocks of one length that lie on its device
//! while they are read, or put until the time is over.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use futures_lite::future::zip;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use terrace_engine::{
    BlockKey, Durability, Engine, EngineConfig, GetOptions, Lookup, Namespace, NvmeConfig,
    PutOptions, PutOutcome, RegisteredRegion, Reservation, Tier, Use, WriteMode, block_on,
};
use terrace_nvme::AlignedBuffer;
use terrace_nvme::file::{DeviceSpec, open_device};
use terrace_types::Checksum;

use super::load::{Draw, Gate, Work};
use super::meter::{self, EngineShare, Meter, Sample};
use super::options::{Mode, RawOptions, Rw};
use super::target::{Target, check_folder};
use crate::payload;

/// Puts in flight while the data set is filled, at most.
const FILLING_MAX: u64 = 16;

/// How often a put that finds no room is tried again while filling.
const FILL_TRIES: usize = 60;

/// How long the device may take for the last of them, and how often it is looked at.
const SETTLE_WAIT: Duration = Duration::from_secs(60);
const SETTLE_STEP: Duration = Duration::from_millis(10);

/// How much of a block's start is compared with what was put.
const CHECKED_LEN: usize = 64;

/// How long an engine may take to close.
const CLOSE_WAIT: Duration = Duration::from_secs(60);

/// A file that this run made, and takes away again.
struct MadeFile(PathBuf);

impl Drop for MadeFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            eprintln!("terrace-bench: remove {}: {error}", self.0.display());
        }
    }
}

/// See the module's text.
pub(super) struct EngineSide {
    engine: Engine,
    namespace: Namespace,
    len: u64,
    /// Blocks that were put to be read.
    blocks: u64,
    /// Number of the next block that is put to be measured.
    next: Arc<AtomicU64>,
    /// Of mixed work: how far behind that the blocks begin and end that are read. Younger ones
    /// may be in DRAM, older ones may have been reclaimed.
    window: Option<(u64, u64)>,
    /// What is put; see [`Self::sources`].
    sources: RefCell<Vec<RegisteredRegion>>,
    /// Taken away after the engine closed.
    _made: Option<MadeFile>,
}

impl EngineSide {
    /// Opens an engine for blocks of `len` bytes with `dram` bytes of memory, and fills it when
    /// it is to be read.
    pub(super) fn open(
        options: &RawOptions,
        len: u64,
        dram: u64,
        target: &Target,
    ) -> anyhow::Result<Self> {
        let path = options.engine_path();
        let file_len = target.info.len;
        let made = prepare(&path, options.overwrite)?;
        let config = EngineConfig {
            dram_bytes: dram,
            hugepages: options.hugepages,
            block_lens: vec![len],
            nvme: NvmeConfig {
                paths: vec![path],
                file_bytes: made.as_ref().map(|_| file_len),
                write_mode: match options.rw {
                    Rw::Randread => WriteMode::Through,
                    Rw::Write | Rw::Durable | Rw::Mixed => WriteMode::Back,
                },
                io_poll: if options.io_poll {
                    Use::Require
                } else {
                    Use::Off
                },
                queue_depth: options.queue_depth(),
                ..NvmeConfig::default()
            },
            ..EngineConfig::default()
        };
        let engine = Engine::open(config).context("open the engine")?;
        let namespace = engine.namespace("raw")?;
        let mut side = Self {
            engine,
            namespace,
            len,
            blocks: 0,
            next: Arc::new(AtomicU64::new(1 << 32)),
            window: None,
            sources: RefCell::default(),
            _made: made,
        };
        if options.rw.counts_reads() {
            block_on(side.fill(dram))?;
            block_on(side.settle(options.rw))?;
        }
        if options.rw == Rw::Mixed {
            side.next = Arc::new(AtomicU64::new(side.blocks));
            let in_dram = dram.div_ceil(len);
            let first = side.blocks / 3 * 2;
            ensure!(
                first > in_dram,
                "--size is too small for --rw mixed: {first} blocks are to be read, and DRAM \
                 holds {in_dram}"
            );
            side.window = Some((first, in_dram));
        }
        Ok(side)
    }

    /// Closes the engine, and takes its data set away when this run made it.
    pub(super) fn close(self) -> anyhow::Result<()> {
        let report = block_on(self.engine.close(CLOSE_WAIT));
        ensure!(
            report.shards_unclean == 0,
            "the engine did not close: {report:?}"
        );
        Ok(())
    }

    /// Fills three quarters of the device, so that no segment has to be reclaimed.
    async fn fill(&mut self, dram: u64) -> anyhow::Result<()> {
        let stats = self.engine.stats().await;
        let capacity: u64 = stats.nvme.iter().map(|device| device.bytes).sum();
        self.blocks = (capacity / 4 * 3 / self.len).max(1);
        let in_flight = (dram / 4 / self.len).clamp(1, FILLING_MAX) as usize;
        let mut puts = FuturesUnordered::new();
        for number in 0..self.blocks {
            if puts.len() >= in_flight
                && let Some(outcome) = puts.next().await
            {
                let outcome: anyhow::Result<()> = outcome;
                outcome?;
            }
            puts.push(self.fill_one(number));
        }
        while let Some(outcome) = puts.next().await {
            outcome?;
        }
        Ok(())
    }

    /// Waits until every block that was put lies on the device: writing them is no part of what
    /// is measured.
    async fn settle(&self, rw: Rw) -> anyhow::Result<()> {
        let deadline = meter::now() + SETTLE_WAIT;
        // Beside writes that go on, what is still in DRAM is written soon enough.
        let wanted = if rw == Rw::Randread { self.blocks } else { 0 };
        loop {
            let written = self.engine.stats().await.nvme_counters().blocks_written;
            if written >= wanted {
                break;
            }
            ensure!(
                meter::now() < deadline,
                "fill the engine: {written} of {} blocks are on the device after {SETTLE_WAIT:?}",
                self.blocks
            );
            async_io::Timer::after(SETTLE_STEP).await;
        }
        let synced = self.engine.sync().await;
        synced.map_err(|reason| anyhow!("write the blocks to the device: {reason:?}"))
    }

    async fn fill_one(&self, number: u64) -> anyhow::Result<()> {
        let key = self.namespace.key(&number.to_le_bytes())?;
        for _ in 0..FILL_TRIES {
            let options = PutOptions::default();
            let fill = |slot: &mut [u8]| payload::fill(number, slot);
            match self.engine.put_with(&key, self.len, &options, fill).await {
                PutOutcome::Busy => {}
                PutOutcome::Stored { .. } | PutOutcome::AlreadyExists { .. } => return Ok(()),
                PutOutcome::Rejected(reason) => bail!("fill the engine: rejected, {reason:?}"),
            }
        }
        bail!("fill the engine: it stayed busy")
    }

    /// One round of a mode.
    pub(super) fn round(&self, mode: Mode, work: Work) -> anyhow::Result<Sample> {
        let begun = meter::now();
        let before = block_on(self.engine.stats()).nvme_counters();
        let (mut sample, mut share) = match (work.rw, mode) {
            (Rw::Randread, Mode::Engine | Mode::EngineInPlace) => self.read_on_shard(work)?,
            (Rw::Randread, _) => self.read_remotely(work)?,
            (Rw::Mixed, mode) => self.mixed(mode, work)?,
            (Rw::Write | Rw::Durable, Mode::EngineRemote) => self.put_remotely(work)?,
            (Rw::Write | Rw::Durable, mode) => self.put_on_shard(mode, work)?,
        };
        let after = block_on(self.engine.stats()).nvme_counters();
        share.bytes_written = after.bytes_written - before.bytes_written;
        share.payload_bytes = after.payload_bytes - before.payload_bytes;
        share.flushes = after.flushes - before.flushes;
        if work.rw == Rw::Mixed {
            // Of the whole round, its ramp included.
            let (counted, whole) = (sample.elapsed, meter::now() - begun);
            let of_whole = u128::from(share.payload_bytes) * counted.as_nanos();
            let written = of_whole / whole.as_nanos().max(1);
            sample.written_beside = Some(u64::try_from(written)?);
        }
        ensure!(
            sample.ios > 0,
            "the engine did nothing on its device: {} DRAM hits, {} failures; give it less \
             --dram or a longer --size",
            share.dram_hits,
            share.failures
        );
        sample.engine = Some(share);
        Ok(sample)
    }

    /// What a round's tasks draw blocks from.
    fn choice(&self) -> Choice {
        Choice {
            namespace: self.namespace,
            blocks: self.blocks,
            window: self.window,
            next: Arc::clone(&self.next),
        }
    }

    fn read_on_shard(&self, work: Work) -> anyhow::Result<(Sample, EngineShare)> {
        block_on(self.reading_on_shard(work))
    }

    async fn reading_on_shard(&self, work: Work) -> anyhow::Result<(Sample, EngineShare)> {
        let choice = self.choice();
        let reading = self.engine.run_on(0, move |shard| async move {
            let tally = Rc::new(Tally::new(work, choice)?);
            let gate = Rc::new(Gate::new(work.depth));
            for _ in 0..work.depth {
                let (tally, gate, own) = (Rc::clone(&tally), Rc::clone(&gate), Rc::clone(&shard));
                shard.spawn(Box::pin(async move {
                    let get = async |key: BlockKey| own.get(&key, &GetOptions::default()).await;
                    let rest = || own.runtime().yield_now();
                    tally.read(get, rest).await;
                    gate.pass();
                }));
            }
            gate.opened().await;
            Ok(tally.take())
        });
        reading
            .await
            .map_err(|reason| anyhow!("ask the shard: {reason:?}"))?
    }

    fn read_remotely(&self, work: Work) -> anyhow::Result<(Sample, EngineShare)> {
        block_on(self.reading_remotely(work))
    }

    async fn reading_remotely(&self, work: Work) -> anyhow::Result<(Sample, EngineShare)> {
        let tally = Tally::new(work, self.choice())?;
        let get = async |key: BlockKey| self.engine.get(&key, &GetOptions::default()).await;
        let readers = (0..work.depth).map(|_| tally.read(get, || std::future::ready(())));
        let readers: FuturesUnordered<_> = readers.collect();
        readers.collect::<()>().await;
        Ok(tally.take())
    }

    /// Reads, and puts from this thread as long as they go on.
    fn mixed(&self, mode: Mode, work: Work) -> anyhow::Result<(Sample, EngineShare)> {
        let sources = self.sources(work)?;
        let ended = Cell::new(false);
        let writers = sources.iter().map(|source| self.put_beside(source, &ended));
        let writers: FuturesUnordered<_> = writers.collect();
        let reading = async {
            let outcome = match mode {
                Mode::EngineRemote => self.reading_remotely(work).await,
                _ => self.reading_on_shard(work).await,
            };
            ended.set(true);
            outcome
        };
        block_on(zip(reading, writers.collect::<()>())).0
    }

    async fn put_beside(&self, source: &RegisteredRegion, ended: &Cell<bool>) {
        let mut start = [0; CHECKED_LEN];
        while !ended.get() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Ok(key) = self.namespace.key(&number.to_le_bytes()) else {
                return;
            };
            payload::fill(number, &mut start);
            source.copy_from(&start);
            let source = std::slice::from_ref(source);
            // One that was not stored is a miss of whoever reads it.
            let _ = self
                .engine
                .put_from(&key, source, &PutOptions::default())
                .await;
        }
    }

    /// Registered memory for puts, one block for each in flight; registered once for all rounds.
    fn sources(&self, work: Work) -> anyhow::Result<Vec<RegisteredRegion>> {
        let mut sources = self.sources.borrow_mut();
        let mut block = vec![0; work.len as usize];
        for number in sources.len()..work.depth {
            let region = RegisteredRegion::allocate(block.len())?;
            payload::fill(number as u64, &mut block);
            region.copy_from(&block);
            sources.push(self.engine.register(region));
        }
        Ok(sources.iter().take(work.depth).cloned().collect())
    }

    fn put_on_shard(&self, mode: Mode, work: Work) -> anyhow::Result<(Sample, EngineShare)> {
        block_on(self.putting_on_shard(mode, work))
    }

    async fn putting_on_shard(
        &self,
        mode: Mode,
        work: Work,
    ) -> anyhow::Result<(Sample, EngineShare)> {
        let (choice, sources) = (self.choice(), self.sources(work)?);
        let putting = self.engine.run_on(0, move |shard| async move {
            let tally = Rc::new(Tally::new(work, choice)?);
            let gate = Rc::new(Gate::new(sources.len()));
            for source in sources {
                let (tally, gate, own) = (Rc::clone(&tally), Rc::clone(&gate), Rc::clone(&shard));
                shard.spawn(Box::pin(async move {
                    let (own, source) = (&own, &source);
                    let put = async |key: BlockKey, options: PutOptions| match own
                        .reserve(&key, work.len, &options)
                        .await
                    {
                        Reservation::Done(outcome) => outcome,
                        Reservation::Granted(mut writer) => {
                            let slot = writer.bytes_mut();
                            if mode == Mode::EngineInPlace {
                                let stamp = key.bytes().len().min(slot.len());
                                slot[..stamp].copy_from_slice(&key.bytes()[..stamp]);
                            } else {
                                source.copy_to(slot);
                            }
                            let checksum = Checksum::of(&key, writer.bytes());
                            own.commit(&key, writer, checksum, &options).await
                        }
                    };
                    tally.write(work, put).await;
                    gate.pass();
                }));
            }
            gate.opened().await;
            Ok(tally.take())
        });
        putting
            .await
            .map_err(|reason| anyhow!("ask the shard: {reason:?}"))?
    }

    fn put_remotely(&self, work: Work) -> anyhow::Result<(Sample, EngineShare)> {
        let tally = Tally::new(work, self.choice())?;
        let sources = self.sources(work)?;
        let writers = sources.iter().map(|source| {
            let source = std::slice::from_ref(source);
            let put = async move |key: BlockKey, options: PutOptions| {
                self.engine.put_from(&key, source, &options).await
            };
            tally.write(work, put)
        });
        let writers: FuturesUnordered<_> = writers.collect();
        block_on(writers.collect::<()>());
        Ok(tally.take())
    }
}

/// Sees to it that nothing of value lies where the engine's data set goes.
fn prepare(path: &Path, overwrite: bool) -> anyhow::Result<Option<MadeFile>> {
    if !path.exists() {
        check_folder(path).context("make --engine-path")?;
        return Ok(Some(MadeFile(path.to_owned())));
    }
    ensure!(
        overwrite,
        "{}: the engine's data set would write over what is there; remove it, name another \
         --engine-path, or say --overwrite if it may be lost",
        path.display()
    );
    let opened = open_device(&DeviceSpec::existing(path)).context("open --engine-path")?;
    let zeros = AlignedBuffer::zeroed(opened.info.len.min(1 << 20) as usize);
    let wiped = opened
        .write_at(0, &zeros)
        .and_then(|()| opened.write_at(opened.info.len - zeros.bytes().len() as u64, &zeros))
        .and_then(|()| opened.sync());
    wiped.with_context(|| format!("wipe {}", path.display()))?;
    Ok(None)
}

/// The blocks that tasks of one round read.
struct Choice {
    namespace: Namespace,
    blocks: u64,
    window: Option<(u64, u64)>,
    next: Arc<AtomicU64>,
}

impl Choice {
    fn draw(&self, draw: &Draw) -> u64 {
        let Some((first, last)) = self.window else {
            return draw.below(self.blocks);
        };
        let next = self.next.load(Ordering::Relaxed);
        next - first + draw.below(first - last)
    }
}

/// What the tasks of one round count.
struct Tally {
    choice: Choice,
    draw: Draw,
    len: u64,
    meter: RefCell<Meter>,
    dram_hits: Cell<u64>,
    failures: Cell<u64>,
    first_failure: RefCell<Option<String>>,
}

impl Tally {
    fn new(work: Work, choice: Choice) -> anyhow::Result<Self> {
        Ok(Self {
            choice,
            draw: Draw::new(work.round + 1),
            len: work.len,
            meter: RefCell::new(Meter::start(work.span)?),
            dram_hits: Cell::new(0),
            failures: Cell::new(0),
            first_failure: RefCell::new(None),
        })
    }

    fn is_running(&self) -> bool {
        self.meter.borrow().is_running()
    }

    /// One task: a lookup after the other until the time is over. `rest` gives way after one
    /// that needed no device.
    async fn read<V, Get, Rest>(&self, get: Get, rest: impl Fn() -> Rest)
    where
        V: Deref<Target = [u8]>,
        Get: AsyncFn(BlockKey) -> Lookup<V>,
        Rest: Future<Output = ()>,
    {
        while self.is_running() {
            let number = self.choice.draw(&self.draw);
            let Ok(key) = self.choice.namespace.key(&number.to_le_bytes()) else {
                return;
            };
            let begun = meter::now();
            match get(key).await {
                Lookup::Hit { tier, value } => {
                    let start = value.get(..CHECKED_LEN.min(value.len()));
                    let whole = value.len() as u64 == self.len;
                    if !whole || !start.is_some_and(|start| payload::verify(number, start)) {
                        self.fail(number, "wrong bytes");
                    } else if tier == Tier::Nvme {
                        let mut meter = self.meter.borrow_mut();
                        meter.record(begun, meter::now(), self.len);
                        continue;
                    } else {
                        self.dram_hits.set(self.dram_hits.get() + 1);
                    }
                }
                Lookup::Miss => self.fail(number, "a miss"),
                Lookup::Unavailable(reason) => self.fail(number, &format!("{reason:?}")),
            }
            self.meter.borrow_mut().pass(meter::now());
            rest().await;
        }
    }

    /// One task: a put after the other until the time is over.
    async fn write<Put>(&self, work: Work, put: Put)
    where
        Put: AsyncFn(BlockKey, PutOptions) -> PutOutcome,
    {
        let options = PutOptions {
            durability: match work.rw {
                Rw::Durable => Durability::Durable,
                Rw::Randread | Rw::Write | Rw::Mixed => Durability::Volatile,
            },
            ..PutOptions::default()
        };
        while self.is_running() {
            let number = self.choice.next.fetch_add(1, Ordering::Relaxed);
            let Ok(key) = self.choice.namespace.key(&number.to_le_bytes()) else {
                return;
            };
            let begun = meter::now();
            match put(key, options).await {
                PutOutcome::Stored { durable } if durable || work.rw == Rw::Write => {
                    let mut meter = self.meter.borrow_mut();
                    meter.record(begun, meter::now(), work.len);
                }
                outcome => self.fail(number, &format!("{outcome:?}")),
            }
        }
    }

    fn fail(&self, block: u64, what: &str) {
        self.failures.set(self.failures.get() + 1);
        let mut first = self.first_failure.borrow_mut();
        first.get_or_insert_with(|| format!("block {block}: {what}"));
        drop(first);
        self.meter.borrow_mut().pass(meter::now());
    }

    fn take(&self) -> (Sample, EngineShare) {
        let share = EngineShare {
            dram_hits: self.dram_hits.get(),
            failures: self.failures.get(),
            first_failure: self.first_failure.take(),
            ..EngineShare::default()
        };
        (self.meter.borrow().sample(), share)
    }
}
