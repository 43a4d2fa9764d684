//! `terrace`: looks at what Terrace keeps.

#![forbid(unsafe_code)]

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use terrace_cli::inspect::{self, InspectOptions};
use terrace_cli::report::{self, ReportOptions};
use terrace_types::ByteLen;

/// Looks at what Terrace keeps on its devices.
#[derive(Parser)]
#[command(name = "terrace", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
        Command::Inspect(args) => run_inspect(args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("terrace: {error:#}");
            ExitCode::from(2)
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
