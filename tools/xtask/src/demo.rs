//! `cargo xtask demo`: a fresh clone to a table of results in one command: a node is started, a trace
//! is replayed to it over TCP, and the node is drained.
//!
//! Hugepages that this run reserved are given back at its end, whether it succeeds or not.
//! An interrupt ends this process at once: then they stay reserved.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::process;
use crate::setup::{self, Reserved};
use crate::steps::{Done, Steps};
use crate::workspace::Workspace;

/// The trace that is replayed when it is at hand; it is not part of the repository.
const TRACE: &str = "conversation_trace.jsonl.zst";

/// Sets up, builds and replays.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    let mut steps = Steps::default();
    let mut reserved = None;
    let outcome = run_steps(workspace, &mut steps, &mut reserved);
    drop(reserved);
    println!("\n{}", steps.table());
    outcome
}

/// The pages that setup reserves are handed to the caller, who drops them after the last step.
fn run_steps(
    workspace: &Workspace,
    steps: &mut Steps,
    reserved: &mut Option<Reserved>,
) -> Result<(), String> {
    steps.run("setup", || {
        *reserved = Some(setup::run(false)?);
        Ok(Done::Passed)
    })?;
    steps.run("build", || {
        let arguments = [
            "build",
            "--release",
            "--locked",
            "--package",
            "terrace-node",
            "--package",
            "terrace-bench",
        ];
        process::run(&mut workspace.cargo(&arguments)).map(|()| Done::Passed)
    })?;
    let trace = find_trace(
        std::env::var_os("TERRACE_TRACES").map(PathBuf::from),
        workspace.root(),
    );
    match &trace {
        Some(path) => println!("demo: replaying {}", path.display()),
        None => println!("demo: {TRACE} is not at hand (TERRACE_TRACES); using a synthetic trace"),
    }
    let programs = workspace.target().join("release");
    let mut node = None;
    steps.run("node", || {
        let data = workspace.target().join("demo");
        node = Some(Node::start(&programs.join("terrace-node"), data)?);
        Ok(Done::Passed)
    })?;
    let Some(node) = node else { return Ok(()) };
    steps.run("replay", || {
        let program = programs.join("terrace-bench");
        let mut command = replay(&program, &node.address, trace.as_deref());
        process::run(&mut command).map(|()| Done::Passed)
    })?;
    steps.run("drain", || node.stop().map(|()| Done::Passed))
}

/// The replay of the demo; without a trace the tool makes one of its own.
fn replay(program: &Path, address: &str, trace: Option<&Path>) -> Command {
    let mut command = Command::new(program);
    command.args(["replay", "--requests", "2000", "--block-len", "64KiB"]);
    command.args(["--remote", address]);
    if let Some(trace) = trace {
        command.arg("--trace").arg(trace);
    }
    command
}

/// A running node. Its data folder goes with it.
struct Node {
    child: Child,
    said: BufReader<ChildStdout>,
    address: String,
    data: PathBuf,
}

impl Node {
    /// Starts one on ports that are free, and waits until it serves.
    fn start(program: &Path, data: PathBuf) -> Result<Self, String> {
        // What a run that was interrupted left.
        let _ = std::fs::remove_dir_all(&data);
        let mut command = Command::new(program);
        command.args(["--dram", "256MiB", "--nvme", "2GiB"]);
        command.args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
        command.arg("--data").arg(&data);
        let name = program.display();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name} could not be started: {error}"))?;
        let said = child.stdout.take().ok_or("the node has no output")?;
        let mut node = Self {
            child,
            said: BufReader::new(said),
            address: String::new(),
            data,
        };
        while let Some(line) = node.line()? {
            if let Some(address) = address_in(&line) {
                node.address = address.to_owned();
            }
            if line == "ready" {
                return Ok(node);
            }
        }
        Err(format!("{name} ended before it was ready"))
    }

    /// The next line that the node says, which is shown; none when it ended.
    fn line(&mut self) -> Result<Option<String>, String> {
        let mut line = String::new();
        let read = self.said.read_line(&mut line);
        if read.map_err(|error| format!("read what the node says: {error}"))? == 0 {
            return Ok(None);
        }
        let line = line.trim_end().to_owned();
        println!("node: {line}");
        Ok(Some(line))
    }

    /// Has it drained, and waits for its end.
    fn stop(mut self) -> Result<(), String> {
        let id = self.child.id().to_string();
        process::run(Command::new("kill").args(["-TERM", &id]))?;
        while self.line()?.is_some() {}
        let status = self.child.wait();
        let status = status.map_err(|error| format!("wait for the node: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the node ended with {status}"))
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Behind `stop` it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// The address for clients in the node's first line.
fn address_in(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("terrace-node ")?;
    rest.split_once(" on ")?.1.split(',').next()
}

/// The first of the named folder and the one beside the workspace that holds the trace.
fn find_trace(named: Option<PathBuf>, root: &Path) -> Option<PathBuf> {
    let beside = root.parent().map(|parent| parent.join("shared/traces"));
    [named, beside]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(TRACE))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::scratch::ScratchFolder;

    #[test]
    fn find_trace_prefers_the_named_folder_then_the_one_beside() {
        let scratch = ScratchFolder::new("traces");
        let root = scratch.path().join("main");
        assert_eq!(find_trace(None, &root), None);

        scratch.write(&format!("shared/traces/{TRACE}"), "");
        let beside = scratch.path().join("shared/traces").join(TRACE);
        assert_eq!(find_trace(None, &root), Some(beside.clone()));
        assert_eq!(
            find_trace(Some(scratch.path().join("empty")), &root),
            Some(beside)
        );

        scratch.write(&format!("named/{TRACE}"), "");
        let named = scratch.path().join("named");
        assert_eq!(
            find_trace(Some(named.clone()), &root),
            Some(named.join(TRACE))
        );
    }

    #[test]
    fn address_is_that_for_clients() {
        let line = "terrace-node 0.1.0 on 127.0.0.1:34567, metrics on 127.0.0.1:41899, data in d";
        assert_eq!(address_in(line), Some("127.0.0.1:34567"));
        assert_eq!(address_in("ready"), None);
    }

    #[test]
    fn replay_names_a_trace_only_when_there_is_one() {
        let arguments = |trace: Option<&Path>| {
            let command = replay(Path::new("terrace-bench"), "127.0.0.1:1", trace);
            command
                .get_args()
                .map(|a| a.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
        };
        assert!(!arguments(None).contains(&"--trace".to_owned()));
        let named = arguments(Some(Path::new("t.zst")));
        assert!(named.ends_with(&["--trace".to_owned(), "t.zst".to_owned()]));
    }
}
