//! `cargo xtask rdma`: the RDMA tests in small virtual machines with soft-RoCE NICs.
//!
//! The host builds and the machines run: `tools/vm-run` boots them with the host's own files. One
//! machine talks to itself; two talk to each other, and take links down. Without KVM they are
//! emulated: what is shown there is function, not speed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process;
use crate::steps::Done;
use crate::workspace::Workspace;

/// The package, its tests and its program that measures.
const PACKAGE: &str = "terrace-fabric";
const TESTS: &str = "rdma";
const BANDWIDTH: &str = "rdma_bandwidth";

/// Time limits of the two runs in seconds: several times what they take, as the machine that
/// emulates may be busy.
const ONE_MACHINE_SECONDS: &str = "180";
const TWO_MACHINES_SECONDS: &str = "240";

/// How long a machine may take to boot before this host counts as one that runs none.
const BOOT_SECONDS: &str = "90";

/// Both ends of 128 MiB in the longest test, and some to spare.
const HUGEPAGES: &str = "200";

/// Runs the tests, or tells why no virtual machine can be had.
pub(crate) fn run(workspace: &Workspace) -> Result<Done, String> {
    let vm_run = workspace.root().join("tools/vm-run");
    if let Some(reason) = missing(&vm_run) {
        return Ok(Done::Skipped(reason));
    }
    let tests = ["test", "--test", TESTS, "--no-run"];
    let program = build(workspace, &tests)?;
    let one = [
        "--hugepages",
        HUGEPAGES,
        "--timeout",
        ONE_MACHINE_SECONDS,
        "--",
    ];
    machines(
        workspace,
        &vm_run,
        &one,
        &program,
        &["--skip", "pair::", "--skip", "two_rails"],
    )?;
    let two = [
        "--vms",
        "2",
        "--nics",
        "3",
        "--mem",
        "1024",
        "--timeout",
        TWO_MACHINES_SECONDS,
        "--",
    ];
    machines(workspace, &vm_run, &two, &program, &["pair::", "two_rails"])?;
    Ok(Done::Passed)
}

/// Reads beside perftest's in one machine, or tells why that cannot be. It is no test: an emulated
/// machine's figures vary too much for a bound.
pub(crate) fn bandwidth(workspace: &Workspace) -> Result<Done, String> {
    let vm_run = workspace.root().join("tools/vm-run");
    if let Some(reason) = missing(&vm_run) {
        return Ok(Done::Skipped(reason));
    }
    if !process::succeeds(Command::new("sh").args(["-c", "command -v ib_read_bw"])) {
        let mut install = Command::new("apt-get");
        install.args(["install", "--yes", "--no-install-recommends", "perftest"]);
        process::run(install.env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    let example = ["build", "--release", "--example", BANDWIDTH];
    let program = build(workspace, &example)?;
    let mut command = Command::new(&vm_run);
    command
        .args(["--timeout", TWO_MACHINES_SECONDS, "--"])
        .arg(program)
        .current_dir(workspace.root());
    process::run(&mut command).map(|()| Done::Passed)
}

/// Why this host runs no virtual machine; `None` when it does.
fn missing(vm_run: &Path) -> Option<String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Some("the virtual machines are for x86_64".to_owned());
    }
    if !process::succeeds(Command::new("sh").args(["-c", "test $(id -u) = 0"])) {
        return Some("virtual machines with the host's files need root".to_owned());
    }
    // Installs and downloads what it needs; a host without a network has had it, or has not.
    if !process::succeeds(Command::new(vm_run).arg("--prepare")) {
        return Some("tools/vm-run --prepare fails: qemu or a kernel cannot be had".to_owned());
    }
    let boot = ["--timeout", BOOT_SECONDS, "--", "true"];
    (!process::succeeds(Command::new(vm_run).args(boot)))
        .then(|| "no virtual machine boots here".to_owned())
}

/// Builds a program of the package; where it is.
fn build(workspace: &Workspace, arguments: &[&str]) -> Result<PathBuf, String> {
    let output = workspace
        .cargo(arguments)
        .args(["--package", PACKAGE, "--locked"])
        .args(["--message-format", "json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the build ended with {}", output.status));
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .map(PathBuf::from)
        .ok_or_else(|| "cargo names no program".to_owned())
}

/// The program that cargo's messages name.
fn executable(messages: &str) -> Option<&str> {
    let mark = "\"executable\":\"";
    let (_, rest) = messages.rsplit_once(mark)?;
    rest.split('"').next()
}

/// Runs the tests in machines, one test at a time: some take the link down that others use.
fn machines(
    workspace: &Workspace,
    vm_run: &Path,
    options: &[&str],
    program: &Path,
    filter: &[&str],
) -> Result<(), String> {
    let mut command = Command::new(vm_run);
    command
        .args(options)
        .arg(program)
        .arg("--test-threads=1")
        .args(filter)
        .current_dir(workspace.root());
    process::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_the_last_that_is_named() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"executable\":\"/target/deps/rdma-1\",\"fresh\":true}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some("/target/deps/rdma-1"));
        assert_eq!(executable("{\"executable\":null}"), None);
    }
}
