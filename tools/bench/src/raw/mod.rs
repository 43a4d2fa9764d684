//! `terrace-bench raw`: what a ring, the ring beside the executor, and the engine make of one
//! device, with the same lengths, depths and memory, in turns within one run.
//!
//! - `ring`: one thread, a ring with registered memory, and a loop that submits, sleeps until
//!   something completed, and goes on. The limit that the others are quoted against.
//! - `ring-hash`: the same, and each block is hashed as the engine hashes it, after it was read
//!   or before it is written.
//! - `hybrid`: the tasks of `ring`, turned by a shard's executor and [`terrace_runtime::io::drive`].
//! - `hybrid-hash`: the same with hashing.
//! - `engine`: a whole engine, asked on its shard's own thread; `engine-remote` through
//!   [`terrace_engine::Engine`] from another one, where mixed work's puts always come from.
//! - `engine-in-place`: as `engine`, and a block that is put is made in its slot, as one that a
//!   network or a GPU delivers there. Only its first bytes differ from what the slot held before.

mod bare;
mod commits;
mod engine;
mod hybrid;
mod load;
mod memory;
mod meter;
mod options;
mod report;
mod target;

use anyhow::Context;

pub use options::{Mode, RawOptions, Rw};
pub use report::{print_json, print_table, to_json};

use engine::EngineSide;
use load::Work;
use memory::BlockMemory;
use meter::{EngineShare, Sample};
use target::Target;

/// Bytes between two flushes when nothing says otherwise: a frame of the engine's.
const FLUSH_EVERY: u64 = 1 << 20;

/// One mode in one cell.
pub struct ModeSamples {
    /// The mode.
    pub mode: Mode,
    /// What it came to, by round.
    pub rounds: Vec<Sample>,
}

/// All modes at one length and depth.
pub struct Cell {
    /// Bytes of an operation.
    pub len: u64,
    /// Operations in flight.
    pub iodepth: usize,
    /// Bytes between two flushes, and whether they were taken from the engine.
    pub flush_every: Option<(u64, bool)>,
    /// Bytes of memory that operations go round in, and of the engine's DRAM.
    pub memory_bytes: u64,
    /// CPU time of hashing one block right after it was read, by round, in microseconds.
    pub hash_us: Vec<f64>,
    /// The modes, in the order they ran.
    pub modes: Vec<ModeSamples>,
}

/// What was measured, and on what.
pub struct RawOutcome {
    /// Kernel release.
    pub kernel: String,
    /// The device's name, length and sector, and the disk below.
    pub device: String,
    /// The pages that operations' memory lies on.
    pub hugepages: String,
    /// What is in force on the ring.
    pub ring: String,
    /// Load of the machine before and after, as the kernel words it.
    pub load: [String; 2],
    /// The cells.
    pub cells: Vec<Cell>,
}

/// Measures all cells.
///
/// # Errors
/// Names the flag, its value and the limit, or what the device or engine said.
pub fn run(options: &RawOptions) -> anyhow::Result<RawOutcome> {
    options.validate()?;
    let load_before = meter::load_average();
    let target = Target::open(options)?;
    options.check_device_len(target.info.len)?;
    let mut outcome = RawOutcome {
        kernel: meter::kernel(),
        device: target.describe(),
        hugepages: String::new(),
        ring: String::new(),
        load: [load_before, String::new()],
        cells: Vec::new(),
    };
    for len in &options.lens {
        let memory_len = options.memory_len(*len, target.info.len);
        let memory = BlockMemory::open(*len, memory_len, options)?;
        if outcome.ring.is_empty() {
            outcome.hugepages = memory.backing();
            outcome.ring = bare::report(&memory, options)?;
        }
        let side = if options.modes.iter().any(|mode| mode.needs_engine()) {
            Some(EngineSide::open(options, *len, memory_len, &target)?)
        } else {
            None
        };
        for depth in &options.depths {
            let cell = measure(options, &target, &memory, side.as_ref(), *depth)
                .with_context(|| format!("measure --bs {len} --iodepth {depth}"))?;
            outcome.cells.push(cell);
        }
        if let Some(side) = side {
            side.close()?;
        }
    }
    outcome.load[1] = meter::load_average();
    Ok(outcome)
}

/// One cell: every mode once a round, so that what the machine does meanwhile meets them all.
fn measure(
    options: &RawOptions,
    target: &Target,
    memory: &BlockMemory,
    side: Option<&EngineSide>,
    depth: usize,
) -> anyhow::Result<Cell> {
    let mut work = Work {
        rw: options.rw,
        len: memory.block_len(),
        depth,
        span: options.span,
        flush_every: options.flush_every.unwrap_or(FLUSH_EVERY),
        hash: false,
        round: 0,
        io_poll: options.io_poll,
    };
    let mut flush_every = (options.rw == Rw::Durable).then_some((work.flush_every, false));
    if let (Some(side), None, true) = (side, options.flush_every, flush_every.is_some()) {
        let warm_up = side.round(Mode::Engine, work)?;
        if let Some(cadence) = warm_up
            .engine
            .as_ref()
            .and_then(EngineShare::bytes_per_flush)
        {
            // Whole blocks: a byte more would be a block more.
            let blocks = (cadence + work.len / 2) / work.len;
            work.flush_every = blocks.max(1) * work.len;
            flush_every = Some((work.flush_every, true));
        }
    }
    let mut cell = Cell {
        len: memory.block_len(),
        iodepth: depth,
        flush_every,
        memory_bytes: memory.len(),
        hash_us: Vec::new(),
        modes: Vec::new(),
    };
    let samples = |mode: &Mode| ModeSamples {
        mode: *mode,
        rounds: Vec::new(),
    };
    cell.modes = options.modes.iter().map(samples).collect();
    for round in 0..options.rounds {
        work.round = round as u64;
        for at in 0..cell.modes.len() {
            let mode = cell.modes[at].mode;
            work.hash = mode.only_hashes();
            let sample = match (mode, side) {
                (Mode::Ring | Mode::RingHash, _) => bare::round(target, memory, work)?,
                (Mode::Hybrid | Mode::HybridHash, _) => hybrid::round(target, memory, work)?,
                (Mode::Engine | Mode::EngineInPlace | Mode::EngineRemote, side) => match side {
                    Some(side) => side.round(mode, work)?,
                    None => continue,
                },
            };
            cell.modes[at].rounds.push(sample);
        }
        cell.hash_us.push(memory.hash_us());
    }
    Ok(cell)
}
