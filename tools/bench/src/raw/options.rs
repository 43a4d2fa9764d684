//! What `terrace-bench raw` is asked for, and every check of it that needs no device.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use terrace_engine::HugepageMode;
use terrace_types::ByteLen;
use terrace_types::limits::{BLOCK_LEN_MAX, HUGEPAGE_LEN, SLOT_ALIGN};

/// Most operations in flight: as many as an engine's shard takes.
const IODEPTH_MAX: usize = 4096;

/// Memory of the default: beyond the processor's own caches, as an engine's is.
const MEMORY_LEN: u64 = 64 << 20;

/// Most memory that is taken without being asked for.
const MEMORY_LEN_MAX: u64 = 1 << 30;

/// Shortest data set of an engine, and how many blocks it holds at least.
const FILE_LEN_MIN: u64 = 64 << 20;
const FILE_BLOCKS_MIN: u64 = 8;

/// Bytes before the first operation's offset: superblocks of ours and marks of others.
pub(super) const HEAD_LEN: u64 = 1 << 20;

/// What is done to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rw {
    /// Reads at random offsets.
    Randread,
    /// Writes one after the other, never flushed.
    Write,
    /// Writes one after the other; each counts when a flush covered it.
    Durable,
    /// Reads at random offsets, and as many writes in flight beside them, never flushed. Reads
    /// count; of writes the throughput is told.
    Mixed,
}

impl Rw {
    /// The name of the choice.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Randread => "randread",
            Self::Write => "write",
            Self::Durable => "durable",
            Self::Mixed => "mixed",
        }
    }

    /// Whether reads are what counts.
    pub(super) const fn counts_reads(self) -> bool {
        matches!(self, Self::Randread | Self::Mixed)
    }
}

/// What drives the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A ring alone.
    Ring,
    /// The same, and blocks are hashed after they were read or before they are written.
    RingHash,
    /// The ring beside the executor.
    Hybrid,
    /// The same, and blocks are hashed after they were read or before they are written.
    HybridHash,
    /// An engine, asked on its shard's thread; mixed work puts from another.
    Engine,
    /// The same, with puts whose blocks are made in their slots: nothing is copied.
    EngineInPlace,
    /// An engine, asked from another thread.
    EngineRemote,
}

impl Mode {
    /// The name of the choice.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::RingHash => "ring-hash",
            Self::Hybrid => "hybrid",
            Self::HybridHash => "hybrid-hash",
            Self::Engine => "engine",
            Self::EngineInPlace => "engine-in-place",
            Self::EngineRemote => "engine-remote",
        }
    }

    /// Whether blocks are hashed without an engine.
    #[must_use]
    pub const fn only_hashes(self) -> bool {
        matches!(self, Self::RingHash | Self::HybridHash)
    }

    /// Whether an engine takes part.
    #[must_use]
    pub const fn needs_engine(self) -> bool {
        matches!(
            self,
            Self::Engine | Self::EngineInPlace | Self::EngineRemote
        )
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct RawOptions {
    /// A file or block device.
    pub path: PathBuf,
    /// Length of a file that is to be made, or that the one there must have.
    pub file_len: Option<u64>,
    /// What is done to it.
    pub rw: Rw,
    /// Bytes of an operation, each measured.
    pub lens: Vec<u64>,
    /// Operations in flight, each measured with each length.
    pub depths: Vec<usize>,
    /// Turns of all modes.
    pub rounds: usize,
    /// How long a mode is measured in a round.
    pub span: Duration,
    /// What drives the device.
    pub modes: Vec<Mode>,
    /// Bytes between flushes of durable writes; `None` for the engine's own.
    pub flush_every: Option<u64>,
    /// Memory that operations go round in, and DRAM of the engine.
    pub dram: Option<u64>,
    /// Where the engine's own data set lies.
    pub engine_path: Option<PathBuf>,
    /// Whether memory must lie on hugepages.
    pub hugepages: HugepageMode,
    /// Completions by polling the device.
    pub io_poll: bool,
    /// Write over what a device holds.
    pub overwrite: bool,
}

impl RawOptions {
    /// Checks what needs no device.
    ///
    /// # Errors
    /// Names the flag, its value and the limit.
    pub fn validate(&self) -> anyhow::Result<()> {
        for len in &self.lens {
            ensure!(
                len.is_multiple_of(SLOT_ALIGN) && (SLOT_ALIGN..=BLOCK_LEN_MAX).contains(len),
                "--bs is {len}; allowed are multiples of {SLOT_ALIGN} from {SLOT_ALIGN} to \
                 {BLOCK_LEN_MAX}"
            );
        }
        for depth in &self.depths {
            ensure!(
                (1..=IODEPTH_MAX).contains(depth),
                "--iodepth is {depth}; allowed is 1 to {IODEPTH_MAX}"
            );
        }
        let (rounds, seconds) = (self.rounds, self.span.as_secs_f64());
        ensure!(
            (1..=1000).contains(&rounds),
            "--rounds is {rounds}; allowed is 1 to 1000"
        );
        ensure!(
            (0.01..=3600.0).contains(&seconds),
            "--seconds is {seconds}; allowed is 0.01 to 3600"
        );
        if let Some(every) = self.flush_every {
            ensure!(
                self.rw == Rw::Durable && every > 0,
                "--flush-every is {every} with --rw {}; it is for --rw durable and at least 1",
                self.rw.name()
            );
        }
        ensure!(
            self.engine_path.as_ref() != Some(&self.path),
            "--engine-path is PATH itself; the engine needs a data set of its own"
        );
        ensure!(
            !(self.io_poll && self.rw == Rw::Durable),
            "--io-poll with --rw durable: a polled ring cannot flush"
        );
        for (at, mode) in self.modes.iter().enumerate() {
            let name = mode.name();
            ensure!(
                !self.modes[..at].contains(mode),
                "--modes names {name} twice; each is measured once a round"
            );
            ensure!(
                *mode != Mode::EngineInPlace || matches!(self.rw, Rw::Write | Rw::Durable),
                "--modes {name} with --rw {}; it is for --rw write and durable",
                self.rw.name()
            );
        }
        self.check_memory()
    }

    /// Half of the memory is as much as an engine lets its callers hold.
    fn check_memory(&self) -> anyhow::Result<()> {
        let depth = self.tasks_of(self.depth_max());
        for len in &self.lens {
            let needed = 2 * len * depth as u64;
            let dram = self.dram.unwrap_or(MEMORY_LEN_MAX);
            ensure!(
                needed <= dram,
                "--bs {} x --iodepth {depth} needs --dram {} at least, twice as much; it is {}",
                ByteLen(*len),
                ByteLen(needed),
                ByteLen(dram)
            );
        }
        Ok(())
    }

    fn depth_max(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(1)
    }

    /// Operations in flight in all, of a cell with `depth`.
    pub(super) const fn tasks_of(&self, depth: usize) -> usize {
        match self.rw {
            Rw::Mixed => 2 * depth,
            Rw::Randread | Rw::Write | Rw::Durable => depth,
        }
    }

    /// Checks every length against a device that is there, or that is about to be made.
    ///
    /// # Errors
    /// Names the flags, the device's length and what is needed.
    pub(super) fn check_device_len(&self, device_len: u64) -> anyhow::Result<()> {
        self.lens
            .iter()
            .try_for_each(|len| self.check_len(*len, device_len))
    }

    fn check_len(&self, len: u64, device_len: u64) -> anyhow::Result<()> {
        let depth = self.tasks_of(self.depth_max());
        let needed = HEAD_LEN + len * depth as u64;
        ensure!(
            device_len >= needed,
            "{}: {device_len} bytes are too few: --bs {} x --iodepth {depth} needs at least \
             {needed}",
            self.path.display(),
            ByteLen(len)
        );
        let least = FILE_LEN_MIN.max(FILE_BLOCKS_MIN * len);
        let makes_engine =
            self.modes.iter().any(|mode| mode.needs_engine()) && !self.engine_path().exists();
        ensure!(
            !makes_engine || device_len >= least,
            "--size {} is too small for an engine with --bs {}: at least {} are needed",
            ByteLen(device_len),
            ByteLen(len),
            ByteLen(least)
        );
        Ok(())
    }

    /// Where the engine's data set lies.
    pub(super) fn engine_path(&self) -> PathBuf {
        self.engine_path.clone().unwrap_or_else(|| {
            let mut name = self.path.clone().into_os_string();
            name.push(".engine");
            name.into()
        })
    }

    /// Memory for operations of `len` bytes: eight times what is in flight, beyond the
    /// processor's caches, and a small part of the device.
    pub(super) fn memory_len(&self, len: u64, device_len: u64) -> u64 {
        let in_flight = len * self.tasks_of(self.depth_max()) as u64;
        let wanted = MEMORY_LEN.min(device_len / 16).max(8 * in_flight);
        let default = wanted.min(MEMORY_LEN_MAX).max(2 * in_flight);
        let len = self.dram.unwrap_or(default);
        len.max(HUGEPAGE_LEN).next_multiple_of(HUGEPAGE_LEN)
    }

    /// Submissions that a ring's queue takes.
    pub(super) fn queue_depth(&self) -> u32 {
        u32::try_from(self.tasks_of(self.depth_max()).max(256)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> RawOptions {
        RawOptions {
            path: "x".into(),
            file_len: None,
            rw: Rw::Randread,
            lens: vec![64 << 10, 1 << 20],
            depths: vec![1, 32],
            rounds: 5,
            span: Duration::from_secs(2),
            modes: vec![Mode::Ring],
            flush_every: None,
            dram: None,
            engine_path: None,
            hugepages: HugepageMode::Prefer,
            io_poll: false,
            overwrite: false,
        }
    }

    #[test]
    fn memory_len_is_beyond_caches_and_small_beside_the_device() {
        let options = options();
        assert_eq!(options.memory_len(64 << 10, 4 << 30), 64 << 20);
        assert_eq!(options.memory_len(1 << 20, 4 << 30), 256 << 20);
        assert_eq!(options.memory_len(64 << 10, 64 << 20), 16 << 20);
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        let mut wrong = options();
        wrong.dram = Some(32 << 20);
        let text = wrong.validate().unwrap_err().to_string();
        assert!(text.contains("64 MiB") && text.contains("32 MiB"), "{text}");
        let mut wrong = options();
        wrong.modes = vec![Mode::Ring, Mode::Ring];
        assert!(wrong.validate().unwrap_err().to_string().contains("twice"));
        assert!(options().validate().is_ok());
    }
}
