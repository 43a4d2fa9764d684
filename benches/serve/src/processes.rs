//! Child processes that end with the command.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A child that is killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    lines: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdout(Stdio::piped())
            // Some are scripts that start the program itself.
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let lines = child.stdout.take().map(BufReader::new);
        Ok(Self { child, lines })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) const fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The next line that begins with `start`, without it; others before it are passed over.
    pub(crate) fn line(&mut self, start: &str) -> Result<String> {
        let lines = self.lines.as_mut().context("the child has no output")?;
        loop {
            let mut line = String::new();
            let count = lines.read_line(&mut line).context("read from the child")?;
            anyhow::ensure!(count > 0, "the child ended before it said `{start}`");
            if let Some(rest) = line.trim_end().strip_prefix(start) {
                return Ok(rest.to_owned());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        if let Ok(group) = i32::try_from(self.child.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}

/// The folder for what is installed and written.
pub(crate) fn folder() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join("terrace-serve");
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Runs a command to its end, its output to standard error.
pub(crate) fn complete(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("run {name}"))?;
    anyhow::ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}
