//! `terrace-bench`: a trace through a real engine, with real bytes.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use terrace_bench::burst::{self, BurstOptions};
use terrace_bench::chain::{Announce, ChainOptions};
use terrace_bench::pace::Speed;
use terrace_bench::raw::{self, Mode, RawOptions, Rw};
use terrace_bench::recover::{self, RecoverOptions};
use terrace_bench::remote::{self, RemoteArgs, RemoteOptions};
use terrace_bench::replay::{self, NvmeOptions, ReplayOptions};
use terrace_bench::report;
use terrace_bench::sim::{self, GoldenArgs, SimArgs, SimOptions};
use terrace_bench::soak::{self, SoakOptions};
use terrace_bench::transfer::{self, TransferArgs};
use terrace_engine::{Engine, EngineConfig, HugepageMode, Use};
use terrace_sim::trace::{SynthConfig, Trace};
use terrace_types::ByteLen;

/// Measures the Terrace engine.
#[derive(Parser)]
#[command(name = "terrace-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replay a trace: every block id becomes a block, hits are verified byte by byte, misses
    /// are generated and put.
    Replay(Box<ReplayArgs>),
    /// Compare every expected hit count with the one that is simulated here.
    Golden(GoldenArgs),
    /// Open an engine, say `ready`, leave it alone, and print the CPU time that took.
    Idle(IdleArgs),
    /// Compare a bare ring, the ring beside the executor, and the engine on one device.
    Raw(RawArgs),
    /// Store more blocks than DRAM holds as fast as they are taken, and read all of them back.
    Burst(BurstArgs),
    /// Fill a data set, kill who fills it, and measure how long the set takes to open.
    Recover(RecoverArgs),
    /// Do everything at once for some minutes, verify it, and look for what leaks.
    Soak(SoakArgs),
    /// Move batches between the registered memory of two processes, beside a copy and a hash.
    Transfer(TransferArgs),
}

#[derive(Parser)]
struct RecoverArgs {
    /// File of the data set. Nothing may be there; it is removed at the end.
    path: PathBuf,
    /// Its length.
    #[arg(long, value_name = "SIZE", default_value = "16GiB")]
    nvme: ByteLen,
    /// Length of every block.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    block_len: ByteLen,
    /// DRAM for blocks.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    dram: ByteLen,
    /// Shards, each on a thread of its own.
    #[arg(long, default_value_t = 1)]
    shards: usize,
    /// Kills, each followed by an opening and, after a clean close, another one.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Whether DRAM must lie on hugepages.
    #[arg(long, value_enum, default_value = "prefer")]
    hugepages: Hugepages,
    /// What a child is told: fill from this number on, until it is killed.
    #[arg(long, hide = true)]
    fill_from: Option<u64>,
}

#[derive(Parser)]
struct SoakArgs {
    /// File of the data set. Nothing may be there; it is removed at the end.
    path: PathBuf,
    /// Its length.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    nvme: ByteLen,
    /// DRAM for blocks.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    dram: ByteLen,
    /// Shards, each on a thread of its own.
    #[arg(long, default_value_t = 2)]
    shards: usize,
    /// How long it goes on.
    #[arg(long, default_value = "10")]
    minutes: f64,
    /// Times that the engine is closed and opened again meanwhile.
    #[arg(long, default_value_t = 4)]
    reopens: u32,
    /// Decides what is done.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Whether DRAM must lie on hugepages.
    #[arg(long, value_enum, default_value = "prefer")]
    hugepages: Hugepages,
}

#[derive(Parser)]
struct BurstArgs {
    /// Payload bytes to store.
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    bytes: ByteLen,
    /// Length of every block.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    block_len: ByteLen,
    /// DRAM for blocks.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    dram: ByteLen,
    /// NVMe tier, over all its devices.
    #[arg(long, value_name = "SIZE", default_value = "6GiB")]
    nvme: ByteLen,
    /// File or block device of the NVMe tier; may be given several times. A file is removed
    /// before and after.
    #[arg(long, value_name = "PATH")]
    nvme_path: Vec<PathBuf>,
    /// Shards, each on a thread of its own.
    #[arg(long, default_value_t = 1)]
    shards: usize,
    /// Puts in flight.
    #[arg(long, default_value_t = 32)]
    iodepth: usize,
    /// Whether DRAM must lie on hugepages.
    #[arg(long, value_enum, default_value = "prefer")]
    hugepages: Hugepages,
}

#[derive(Parser)]
struct IdleArgs {
    /// DRAM for blocks.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    dram: ByteLen,
    /// Shards, each on a thread of its own.
    #[arg(long, default_value_t = 1)]
    shards: usize,
    /// How long to leave it alone.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Whether DRAM must lie on hugepages.
    #[arg(long, value_enum, default_value = "prefer")]
    hugepages: Hugepages,
}

#[derive(Clone, Copy, ValueEnum)]
enum Hugepages {
    Require,
    Prefer,
    Off,
}

impl From<Hugepages> for HugepageMode {
    fn from(choice: Hugepages) -> Self {
        match choice {
            Hugepages::Require => Self::Require,
            Hugepages::Prefer => Self::Prefer,
            Hugepages::Off => Self::Off,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Polling {
    Off,
    Prefer,
    Require,
}

impl From<Polling> for Use {
    fn from(choice: Polling) -> Self {
        match choice {
            Polling::Off => Self::Off,
            Polling::Prefer => Self::Prefer,
            Polling::Require => Self::Require,
        }
    }
}

#[derive(Parser)]
struct ReplayArgs {
    /// What the trace is played to.
    #[arg(long, value_enum, default_value = "engine")]
    mode: sim::Mode,
    /// Trace file: Mooncake jsonl, ARC .lis, LIRS, cache2k or Azure csv; plain, zst, gz or xz.
    /// Without one a synthetic chat trace is made. A simulation takes a list, too.
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Policy by name, in any case; LRU without it. A simulation takes a list, or all, and the
    /// bounds OPT, OPTbypass and P-OPT too.
    #[arg(long)]
    policy: Option<String>,
    /// Shards, each on a thread of its own. A simulation takes a list.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    shards: Vec<usize>,
    #[command(flatten)]
    sim: SimArgs,
    #[command(flatten)]
    remote: RemoteArgs,
    /// DRAM for blocks, such as 512MiB; 1 GiB unless --dram-blocks says otherwise.
    #[arg(long, value_name = "SIZE")]
    dram: Option<ByteLen>,
    /// Most blocks in DRAM; without --dram the bytes follow from it.
    #[arg(long, value_name = "N")]
    dram_blocks: Option<usize>,
    /// NVMe tier, over all its devices; 0 for none. Without --nvme-path a file in the folder
    /// for temporary files is made, and removed at the end.
    #[arg(long, value_name = "SIZE")]
    nvme: Option<ByteLen>,
    /// File or block device of the NVMe tier; may be given several times. A file that is not
    /// there is made, of --nvme's size. What it holds is kept for the next run.
    #[arg(long, value_name = "PATH")]
    nvme_path: Vec<PathBuf>,
    /// Device to be emptied onto the others, and then left out.
    #[arg(long, value_name = "PATH")]
    nvme_drain: Vec<PathBuf>,
    /// Serve what is there when a device of the set is missing.
    #[arg(long)]
    nvme_accept_missing: bool,
    /// Take devices that hold something else. What they hold is lost.
    #[arg(long)]
    nvme_format: bool,
    /// Poll the devices for completions: off, prefer or require.
    #[arg(long, value_enum, default_value = "off")]
    io_poll: Polling,
    /// Each put waits until its block survives power loss.
    #[arg(long)]
    durable: bool,
    /// Write blocks below when they are put, not when they leave DRAM.
    #[arg(long)]
    write_through: bool,
    /// Tell the policies each request before its blocks are read: for traces that hold chains,
    /// always or never.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    announce: Announce,
    /// Match the chain of each request, and have it read ahead before its blocks are read.
    #[arg(long)]
    prefetch: bool,
    /// Length of every block.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    block_len: ByteLen,
    /// Requests in flight.
    #[arg(long, default_value_t = 4)]
    iodepth: usize,
    /// How fast requests arrive: `max`, or a multiple of the trace's own time.
    #[arg(long, default_value = "max")]
    speed: Speed,
    /// Only the first N requests.
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Whether DRAM must lie on hugepages.
    #[arg(long, value_enum, default_value = "prefer")]
    hugepages: Hugepages,
    /// Start from nothing and keep nothing: the files of --nvme-path are removed before and after.
    #[arg(long)]
    scratch: bool,
    /// Print one JSON object on stdout and nothing else there.
    #[arg(long)]
    json: bool,
}

#[derive(Parser)]
struct RawArgs {
    /// File or block device. A file that is not there is made and written once.
    path: PathBuf,
    /// Length of a file that is made, 4 GiB without it; one that is there must have it.
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteLen>,
    /// What is done to the device.
    #[arg(long, value_enum, default_value = "randread")]
    rw: Rw,
    /// Lengths of operations.
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "64KiB,256KiB,1MiB"
    )]
    bs: Vec<ByteLen>,
    /// Operations in flight.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,32")]
    iodepth: Vec<usize>,
    /// Turns of all modes; medians over them are reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long a mode is measured in a round.
    #[arg(long, default_value = "2")]
    seconds: f64,
    /// What drives the device. Shares are those of `ring`.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "ring,hybrid,engine"
    )]
    modes: Vec<Mode>,
    /// Bytes between flushes of the ring's durable writes. Without it as many as the engine has
    /// between its own, or 1 MiB when no engine takes part.
    #[arg(long, value_name = "SIZE")]
    flush_every: Option<ByteLen>,
    /// Memory that operations go round in, and DRAM of the engine; by default eight times what
    /// is in flight, and 64 MiB at least.
    #[arg(long, value_name = "SIZE")]
    dram: Option<ByteLen>,
    /// Where the engine's own data set is made; PATH.engine without it. A file that this run
    /// made is removed at its end.
    #[arg(long, value_name = "PATH")]
    engine_path: Option<PathBuf>,
    /// Write over a block device, a data set, or anything else that this tool did not write.
    #[arg(long)]
    overwrite: bool,
    /// Whether memory must lie on hugepages.
    #[arg(long, value_enum, default_value = "prefer")]
    hugepages: Hugepages,
    /// Complete operations by polling the device.
    #[arg(long)]
    io_poll: bool,
    /// Print one JSON object on stdout and nothing else there.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("TERRACE_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .init();
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        Command::Replay(args) => run_replay(&args, &matches),
        Command::Golden(args) => return run_golden(&args),
        Command::Idle(args) => run_idle(&args).map(|()| 0),
        Command::Raw(args) => run_raw(&args).map(|()| 0),
        Command::Burst(args) => run_burst(&args),
        Command::Recover(args) => run_recover(&args),
        Command::Soak(args) => run_soak(&args),
        Command::Transfer(args) => transfer::run(&args),
    };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("terrace-bench: {failures} blocks came back with wrong bytes");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("terrace-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run_golden(args: &GoldenArgs) -> ExitCode {
    match sim::compare(args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("terrace-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Replays and prints; returns the count of blocks that came back wrong.
fn run_replay(args: &ReplayArgs, matches: &ArgMatches) -> anyhow::Result<u64> {
    let given = matches.subcommand_matches("replay");
    let is_given = |flag: &str| {
        let source = given.and_then(|given| given.value_source(flag));
        source == Some(ValueSource::CommandLine)
    };
    if args.mode == sim::Mode::Sim {
        if let Some(flag) = sim::engine_flag(is_given) {
            bail!("{flag} is for an engine, and --mode is sim");
        }
        return run_sim(args).map(|()| 0);
    }
    if let Some(flag) = sim::sim_flag(is_given) {
        bail!("{flag} is for simulations, and --mode is not sim");
    }
    if args.remote.remote.is_some() {
        if let Some(flag) = remote::engine_flag(is_given) {
            bail!("{flag} is for an engine of this process, and --remote is given");
        }
        return run_remote(args);
    }
    if let Some(flag) = remote::remote_flag(is_given) {
        bail!("{flag} is for a node, and --remote is not given");
    }
    let &[shards] = &args.shards[..] else {
        bail!("--shards has several values, and --mode is not sim");
    };
    let options = ReplayOptions {
        policy: args.policy.clone().unwrap_or_else(|| "LRU".to_owned()),
        shards,
        dram: args.dram.map(|dram| dram.0),
        dram_blocks: args.dram_blocks,
        nvme: NvmeOptions {
            bytes: args.nvme.map(|len| len.0),
            paths: args.nvme_path.clone(),
            drain: args.nvme_drain.clone(),
            accept_missing: args.nvme_accept_missing,
            format: args.nvme_format,
            io_poll: args.io_poll.into(),
            durable: args.durable,
            write_through: args.write_through,
            scratch: args.scratch,
        },
        chain: ChainOptions {
            announce: args.announce,
            prefetch: args.prefetch,
        },
        block_len: args.block_len.0,
        iodepth: args.iodepth,
        speed: args.speed,
        hugepages: args.hugepages.into(),
        progress: !args.json,
    };
    options.validate()?;
    let trace = trace_of(args)?;
    let outcome = replay::run(&options, &trace)?;
    if args.json {
        report::print_json(&outcome)?;
    } else {
        report::print_table(&trace, &options, &outcome);
    }
    Ok(outcome.verify_failures)
}

fn trace_of(args: &ReplayArgs) -> anyhow::Result<Trace> {
    ensure!(
        args.trace.len() < 2,
        "--trace is given twice, and --mode is not sim"
    );
    match args.trace.first() {
        Some(path) => Trace::open(path, args.requests).context("read the trace"),
        None => {
            let requests = args.requests.unwrap_or(2000);
            Trace::synthesize(&SynthConfig {
                requests,
                ..SynthConfig::default()
            })
            .context("make a synthetic trace")
        }
    }
}

/// Replays to a node and prints; returns the count of blocks that came back wrong.
fn run_remote(args: &ReplayArgs) -> anyhow::Result<u64> {
    let options = RemoteOptions {
        chain: ChainOptions {
            announce: args.announce,
            prefetch: args.prefetch,
        },
        durable: args.durable,
        block_len: args.block_len.0,
        iodepth: args.iodepth,
        speed: args.speed,
        progress: !args.json,
        ..RemoteOptions::new(&args.remote)?
    };
    options.validate()?;
    let trace = trace_of(args)?;
    let outcome = remote::run(&options, &trace)?;
    if args.json {
        report::print_remote_json(&outcome)?;
    } else {
        report::print_remote_table(&trace, &options, &outcome);
    }
    Ok(outcome.replay.verify_failures)
}

fn run_sim(args: &ReplayArgs) -> anyhow::Result<()> {
    let (policy, shards) = (args.policy.as_deref(), &args.shards);
    let options = SimOptions::new(&args.sim, &args.trace, policy, shards, args.block_len.0)?;
    sim::run(&SimOptions {
        requests: args.requests,
        json: args.json,
        ..options
    })
}

fn run_idle(args: &IdleArgs) -> anyhow::Result<()> {
    let config = EngineConfig {
        dram_bytes: args.dram.0,
        shards: args.shards,
        hugepages: args.hugepages.into(),
        ..EngineConfig::default()
    };
    let engine = Engine::open(config).context("open the engine")?;
    report::print_line("ready");
    let idle = replay::idle_cpu(std::time::Duration::from_secs(args.seconds));
    report::print_line(&format!(
        "{:.3}% of a core over {} s, {} shard(s) open",
        idle * 100.0,
        args.seconds,
        engine.shards()
    ));
    Ok(())
}

/// Prints one JSON object; returns the count of stored blocks that were not read back right.
fn run_burst(args: &BurstArgs) -> anyhow::Result<u64> {
    let options = BurstOptions {
        bytes: args.bytes.0,
        block_len: args.block_len.0,
        dram: args.dram.0,
        nvme: NvmeOptions {
            bytes: Some(args.nvme.0),
            paths: args.nvme_path.clone(),
            scratch: true,
            ..NvmeOptions::default()
        },
        shards: args.shards,
        iodepth: args.iodepth,
        hugepages: args.hugepages.into(),
    };
    let (outcome, lost) = burst::run(&options)?;
    report::print_line(&serde_json::to_string_pretty(&outcome)?);
    Ok(lost)
}

/// Prints one JSON object; returns the count of blocks that were not read back right.
fn run_recover(args: &RecoverArgs) -> anyhow::Result<u64> {
    let options = RecoverOptions {
        path: args.path.clone(),
        nvme: args.nvme.0,
        block_len: args.block_len.0,
        dram: args.dram.0,
        shards: args.shards,
        rounds: args.rounds,
        hugepages: args.hugepages.into(),
    };
    if let Some(first) = args.fill_from {
        recover::fill(&options, first, report::print_line)?;
        return Ok(0);
    }
    let (outcome, wrong) = recover::run(&options)?;
    report::print_line(&serde_json::to_string_pretty(&outcome)?);
    Ok(wrong)
}

/// Prints one JSON object; returns the count of wrong answers and leaks.
fn run_soak(args: &SoakArgs) -> anyhow::Result<u64> {
    let options = SoakOptions {
        path: args.path.clone(),
        nvme: args.nvme.0,
        dram: args.dram.0,
        shards: args.shards,
        minutes: args.minutes,
        reopens: args.reopens,
        seed: args.seed,
        hugepages: args.hugepages.into(),
    };
    let (outcome, faults) = soak::run(&options)?;
    report::print_line(&serde_json::to_string_pretty(&outcome)?);
    Ok(faults)
}

fn run_raw(args: &RawArgs) -> anyhow::Result<()> {
    let seconds = args.seconds;
    let span = std::time::Duration::try_from_secs_f64(seconds)
        .with_context(|| format!("--seconds is {seconds}; allowed is 0.01 to 3600"))?;
    let options = RawOptions {
        path: args.path.clone(),
        file_len: args.size.map(|len| len.0),
        rw: args.rw,
        lens: args.bs.iter().map(|len| len.0).collect(),
        depths: args.iodepth.clone(),
        rounds: args.rounds,
        span,
        modes: args.modes.clone(),
        flush_every: args.flush_every.map(|len| len.0),
        dram: args.dram.map(|len| len.0),
        engine_path: args.engine_path.clone(),
        hugepages: args.hugepages.into(),
        io_poll: args.io_poll,
        overwrite: args.overwrite,
    };
    let outcome = raw::run(&options)?;
    if args.json {
        raw::print_json(&options, &outcome)?;
    } else {
        raw::print_table(&options, &outcome);
    }
    Ok(())
}
