//! `cargo xtask demo`: a fresh clone to a table of results in one command.
//!
//! Hugepages that this run reserved are given back at its end, whether it succeeds or not.
//! An interrupt ends this process at once: then they stay reserved.

use std::path::{Path, PathBuf};
use std::process::Command;

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
    steps.run("replay", || {
        let program = workspace.target().join("release/terrace-bench");
        let device = workspace.target().join("demo.nvme");
        process::run(&mut replay(&program, &device, trace.as_deref())).map(|()| Done::Passed)
    })
}

/// The replay of the demo, on DRAM and a file that is removed again; without a trace the tool
/// makes one of its own.
fn replay(program: &Path, device: &Path, trace: Option<&Path>) -> Command {
    let mut command = Command::new(program);
    command.args([
        "replay",
        "--requests",
        "2000",
        "--dram",
        "256MiB",
        "--block-len",
        "64KiB",
        "--nvme",
        "2GiB",
        "--scratch",
    ]);
    command.arg("--nvme-path").arg(device);
    if let Some(trace) = trace {
        command.arg("--trace").arg(trace);
    }
    command
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
    fn replay_names_a_trace_only_when_there_is_one() {
        let arguments = |trace: Option<&Path>| {
            let command = replay(Path::new("terrace-bench"), Path::new("d"), trace);
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
