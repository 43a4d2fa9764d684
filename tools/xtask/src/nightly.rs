//! The nightly compiler, which nothing is built with that is shipped: fuzzing
//! needs it, and what of it is missing is said by name.

use std::process::Command;

use crate::process;
use crate::workspace::Workspace;

/// What sanitizers and fuzz targets are built for. It is named although it is the machine's own:
/// build scripts and macros are then built without the flags that are meant for the target.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A nightly cargo that runs in the root folder.
pub(crate) fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo"])
        .args(arguments)
        .current_dir(workspace.root());
    command
}

/// What is missing to build for [`TARGET`] with nightly; `None` when nothing is.
pub(crate) fn missing(workspace: &Workspace) -> Option<String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Some(format!("this machine is not {TARGET}"));
    }
    let is_there = process::succeeds(&mut cargo(workspace, &["--version"]));
    (!is_there).then(|| "the nightly toolchain is not installed".to_owned())
}
