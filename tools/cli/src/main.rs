//! `terrace`: blocks of a node, and what lies on its devices.

#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use terrace_cli::inspect::{self, InspectOptions};
use terrace_cli::remote::Stop;
use terrace_cli::remote::events::{self, EventsArgs};
use terrace_cli::remote::get::{self, GetArgs};
use terrace_cli::remote::keys::{self, KeysArgs, ListArgs, RemoveArgs, SpanArgs};
use terrace_cli::remote::ping::{self, PingArgs};
use terrace_cli::remote::put::{self, PutArgs};
use terrace_cli::report::{self, ReportOptions};
use terrace_cli::top::{self, TopArgs};
use terrace_types::ByteLen;

/// Stores, reads and looks at the blocks of a node, and looks at what lies on its devices.
///
/// Exit codes of the commands that talk to a node: 0 done, 1 a block is missing, 2 usage, 3 the node is
/// unavailable or did not answer in time, 4 the node declined.
#[derive(Parser)]
#[command(name = "terrace", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Store a file, a folder or stdin.
    ///
    /// A file longer than --piece becomes blocks KEY.part-00001-of-00003 and so on; a folder becomes
    /// blocks KEY/PATH, one for each file or piece of one.
    Put(PutArgs),
    /// Read a block, a file that was cut into pieces, or all that was stored from a folder.
    Get(GetArgs),
    /// Tell whether blocks are stored, without moving or renewing any.
    Exists(KeysArgs),
    /// Remove blocks.
    Rm(RemoveArgs),
    /// Tell what the node knows of blocks.
    Stat(KeysArgs),
    /// List the blocks of the namespace.
    Ls(ListArgs),
    /// Bring blocks to DRAM ahead of need.
    Prefetch(SpanArgs),
    /// Keep blocks from being given up, for as long as the command runs.
    Pin(SpanArgs),
    /// Tell what happens to the blocks of the namespace, as it happens.
    ///
    /// A line for each event: shard, number, kind and key. Events that were lost, as stdout was not read
    /// fast enough, are told on stderr, or as objects with --json.
    Events(EventsArgs),
    /// Ask each shard of the node whether it is there.
    ///
    /// With --rdma it also stores some blocks of random bytes, has them read out of the node's memory,
    /// compares and removes them, and tells how long that took and by which rails they went.
    Ping(PingArgs),
    /// Show what a node does, again each second: tiers and shards, rates, latencies, queues.
    Top(TopArgs),
    /// Read the devices of a closed engine, tell what they hold and what is damaged, and change
    /// nothing.
    ///
    /// Exit code: 0 when all is sound, 1 when something is damaged, 2 when a path could not be
    /// inspected. Frames that a crash cut off before they were durable are no damage.
    Inspect(InspectArgs),
}

#[derive(Parser)]
struct InspectArgs {
    /// Device files or block devices, those of one set.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Read every payload and every frame head too, and compare checksums. Reads go past the
    /// kernel's memory (O_DIRECT) where the file system can do that.
    #[arg(long)]
    verify: bool,
    /// Print one JSON object on stdout and nothing else there.
    #[arg(long)]
    json: bool,
    /// List every live block.
    #[arg(long)]
    keys: bool,
    /// List every segment.
    #[arg(long)]
    segments: bool,
    /// Length of the segments of a device whose superblocks are both damaged. Without it the
    /// segment heads of the first 4 GiB are searched.
    #[arg(long, value_name = "SIZE")]
    segment_len: Option<ByteLen>,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Inspect(args) => run_inspect(args).map_err(|error| Stop {
            code: 2,
            line: format!("{error:#}"),
        }),
        Command::Put(args) => put::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Exists(args) => keys::exists(&args),
        Command::Rm(args) => keys::remove(&args),
        Command::Stat(args) => keys::stat(&args),
        Command::Ls(args) => keys::list(&args),
        Command::Prefetch(args) => keys::prefetch(&args),
        Command::Pin(args) => keys::pin(&args),
        Command::Events(args) => events::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Top(args) => top::run(&args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(stop) => {
            eprintln!("terrace: {}", stop.line);
            ExitCode::from(stop.code)
        }
    }
}

fn run_inspect(args: InspectArgs) -> anyhow::Result<u8> {
    let inspection = inspect::inspect(&InspectOptions {
        paths: args.paths,
        verify: args.verify,
        segment_len: args.segment_len,
        progress: true,
    });
    let options = ReportOptions {
        keys: args.keys,
        segments: args.segments,
    };
    for error in &inspection.errors {
        eprintln!("terrace: {error}");
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match args.json {
        true => report::json::write(&mut out, &inspection, options),
        false => report::text::write(&mut out, &inspection, options),
    };
    match written.and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.context("write the report")?,
    }
    Ok(inspection.exit_code())
}
