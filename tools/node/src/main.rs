//! `terrace-node`: serves an engine to other processes and machines.

#![forbid(unsafe_code)]

mod admin;
mod effective;
mod help;
mod identity;
mod log;
mod machine;
mod rails;
mod run;
mod samples;
mod settings;
mod shards;
mod table;
mod tls;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use settings::{Effective, Settings, SettingsError};

/// Exit code for what the node was told wrongly, or what stands against its start.
const WRONG: u8 = 2;

/// Stores KV blocks and serves them over TCP.
///
/// Values come from flags, else from TERRACE_* variables, else from the file, else from the
/// machine. Without any the node serves this machine only, from a folder beside it.
#[derive(Parser)]
#[command(name = "terrace-node", version)]
struct Cli {
    /// TOML file; its names are those of the flags.
    #[arg(long, value_name = "FILE", env = "TERRACE_CONFIG")]
    config: Option<PathBuf>,
    /// Check all values and the host, print what is in force, and end.
    #[arg(long)]
    check: bool,
    /// Print the table of all settings in Markdown, and end.
    #[arg(long)]
    help_config: bool,
    #[command(flatten)]
    settings: Settings,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if cli.help_config {
        let _ = write!(std::io::stdout(), "{}", table::settings());
        return ExitCode::SUCCESS;
    }
    let is_check = cli.check;
    let outcome = effective(cli).map_err(anyhow::Error::from);
    let outcome = outcome.and_then(|values| match is_check {
        true => run::check(&values),
        false => run::run(&values),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "terrace-node: {error:#}");
            ExitCode::from(WRONG)
        }
    }
}

/// Usage errors are one line; help and version are what was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let first = first.trim_start_matches("error: ");
    let _ = writeln!(std::io::stderr(), "terrace-node: {first}; see --help");
    ExitCode::from(WRONG)
}

fn effective(cli: Cli) -> Result<Effective, SettingsError> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((name, value.to_string_lossy().into_owned()))
    });
    let environment = Settings::of_environment(variables)?;
    let file = match &cli.config {
        Some(path) => Settings::of_file(path)?,
        None => Settings::default(),
    };
    Effective::of(cli.settings.or(environment).or(file))
}
