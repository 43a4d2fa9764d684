//! The commands that talk to a node: what they have in common, and their exit codes.

pub mod events;
pub mod files;
pub mod get;
pub mod keys;
pub mod ping;
pub mod put;
pub mod said;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use terrace_client::blocking::{Client, Namespace};
use terrace_client::{
    CallOptions, Cause, ClientConfig, FileError, OneSided, TlsFault, TlsFiles, read_token,
};

/// Exit code: all is done.
pub const DONE: u8 = 0;
/// Exit code: a block is missing.
pub const MISSING: u8 = 1;
/// Exit code: the command makes no sense, or a file of it cannot be read or written.
pub const USAGE: u8 = 2;
/// Exit code: the node has no answer, or none that can be used.
pub const UNAVAILABLE: u8 = 3;
/// Exit code: the node declined.
pub const REJECTED: u8 = 4;

/// Where a node listens unless it is told otherwise.
const ADDRESS: &str = "127.0.0.1:7440";

/// Transfers from this length on show a progress bar, in bytes: about a second on a slow link.
const PROGRESS_MIN: u64 = 16 << 20;

/// Which node, and how to talk to it.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// Address of the node [default: $TERRACE_ADDR, else 127.0.0.1:7440].
    #[arg(long, value_name = "HOST:PORT")]
    pub addr: Option<String>,
    /// Namespace of the blocks.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// File whose first line is the token that the node asks for, without the white space around it.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// TLS to the node.
    #[command(flatten)]
    pub tls: TlsFiles,
    /// Seconds that one call may take.
    #[arg(long, value_name = "SECONDS", default_value = "30",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub timeout: u64,
    /// Print one JSON object on stdout and nothing else there.
    #[arg(long)]
    pub json: bool,
}

/// Why a command ends early: one line for people, and the exit code.
#[derive(Debug)]
pub struct Stop {
    /// The exit code.
    pub code: u8,
    /// What is wrong.
    pub line: String,
}

impl Stop {
    /// What the user or a file of the user is to blame for.
    #[must_use]
    pub fn usage(line: impl Into<String>) -> Self {
        Self {
            code: USAGE,
            line: line.into(),
        }
    }
}

impl From<terrace_client::Error> for Stop {
    fn from(error: terrace_client::Error) -> Self {
        Self {
            code: code_of(&error),
            line: error.to_string(),
        }
    }
}

impl From<FileError> for Stop {
    fn from(error: FileError) -> Self {
        Self::usage(error.to_string())
    }
}

/// The exit code of a call without an answer.
#[must_use]
pub fn code_of(error: &terrace_client::Error) -> u8 {
    match error.cause() {
        Cause::Argument { .. } | Cause::Key(_) => USAGE,
        Cause::Rejected { .. } if !error.is_retryable() => REJECTED,
        Cause::Tls(TlsFault::Refused { .. }) => REJECTED,
        _ => UNAVAILABLE,
    }
}

/// A node, ready to be asked.
#[derive(Debug)]
pub struct Node {
    /// Its client.
    pub client: Client,
    /// The blocks of the namespace.
    pub blocks: Namespace,
    /// What goes with each call.
    pub options: CallOptions,
}

impl NodeArgs {
    /// The client for these arguments. Nothing is sent yet.
    ///
    /// # Errors
    /// [`USAGE`] when an argument or the token's file is wrong.
    pub fn node(&self) -> Result<Node, Stop> {
        self.node_by(OneSided::Off)
    }

    /// The same with one-sided access.
    ///
    /// # Errors
    /// As [`NodeArgs::node`].
    pub fn node_by(&self, one_sided: OneSided) -> Result<Node, Stop> {
        let address = match &self.addr {
            Some(address) => address.clone(),
            None => std::env::var("TERRACE_ADDR").unwrap_or_else(|_| ADDRESS.to_owned()),
        };
        let deadline = Duration::from_secs(self.timeout);
        let mut config = ClientConfig::new(&address).deadline(deadline);
        config.name = "terrace".to_owned();
        config.connect_timeout = deadline.min(Duration::from_secs(5));
        if let Some(path) = &self.token_file {
            config.token = read_token("--token-file", path)?;
        }
        config.tls = self.tls.options()?;
        config.one_sided = one_sided;
        let client = Client::new(config)?;
        let blocks = client.namespace(&self.namespace)?;
        Ok(Node {
            client,
            blocks,
            options: CallOptions::default(),
        })
    }
}

/// A bar for a transfer of `len` bytes; hidden when that is short, and where stderr is no terminal.
#[must_use]
pub fn progress(len: u64) -> ProgressBar {
    if len < PROGRESS_MIN {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len);
    let style = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}
