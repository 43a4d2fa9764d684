//! `cargo xtask rdma`: the RDMA tests in small virtual machines with soft-RoCE NICs.
//!
//! The host builds and the machines run: `tools/vm-run` boots them with the host's own files. One
//! machine talks to itself: the layers, the node's rails, a client and a node. Two talk to each other,
//! and take links down. Without KVM they are
//! emulated: what is shown there is function, not speed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process;
use crate::steps::Done;
use crate::workspace::Workspace;

/// The package of the layers, and its program that measures.
const PACKAGE: &str = "terrace-fabric";
const BANDWIDTH: &str = "rdma_bandwidth";

/// Test programs, and the machines that each runs in.
const PROGRAMS: [TestProgram; 5] = [
    TestProgram {
        package: PACKAGE,
        test: "rdma",
        // Both ends of 128 MiB in the longest test, and some to spare.
        machine: &["--hugepages", "200"],
        filter: &["--skip", "pair::", "--skip", "two_rails"],
        variables: &[],
    },
    TestProgram {
        package: PACKAGE,
        test: "rdma",
        machine: &["--vms", "2", "--nics", "3", "--mem", "1024"],
        filter: &["pair::", "two_rails"],
        variables: &[],
    },
    TestProgram {
        package: "terrace-server",
        test: "rails",
        machine: &["--mem", "1536"],
        filter: &[],
        // An emulated machine has not the time for more; without RDMA there are thousands.
        variables: &[("TERRACE_RAILS_ROUNDS", "24")],
    },
    TestProgram {
        package: "terrace-node",
        test: "node",
        machine: &["--mem", "2048", "--hugepages", "300"],
        filter: &["one_sided::"],
        variables: &[],
    },
    TestProgram {
        package: "terrace-bench",
        test: "remote",
        machine: &[],
        filter: &["one_sided"],
        variables: &[],
    },
];

/// Time limits in seconds, boot included: several times what is needed, as the machine that emulates
/// may be busy.
const TESTS_SECONDS: &str = "300";
const BANDWIDTH_SECONDS: &str = "240";

/// How long a machine may take to boot before this host counts as one that runs none.
const BOOT_SECONDS: &str = "90";

struct TestProgram {
    package: &'static str,
    test: &'static str,
    machine: &'static [&'static str],
    /// Which tests of the program.
    filter: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

/// Runs the tests, or tells why no virtual machine can be had.
pub(crate) fn run(workspace: &Workspace) -> Result<Done, String> {
    let vm_run = workspace.root().join("tools/vm-run");
    if let Some(reason) = missing(&vm_run) {
        return Ok(Done::Skipped(reason));
    }
    for tests in &PROGRAMS {
        // With the features that the tests of the workspace were built with.
        let arguments = ["test", "--workspace", "--test", tests.test, "--no-run"];
        let program = build(workspace, (tests.package, tests.test), &arguments)?;
        let mut command = Command::new(&vm_run);
        command
            .args(["--timeout", TESTS_SECONDS])
            .args(tests.machine)
            .arg("--")
            .arg(program)
            // Some take the link down that others use.
            .arg("--test-threads=1")
            .args(tests.filter)
            .envs(tests.variables.iter().copied())
            .current_dir(workspace.root());
        process::run(&mut command)?;
    }
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
    let example = [
        "build",
        "--release",
        "--package",
        PACKAGE,
        "--example",
        BANDWIDTH,
    ];
    let program = build(workspace, (PACKAGE, BANDWIDTH), &example)?;
    let mut command = Command::new(&vm_run);
    command
        .args(["--timeout", BANDWIDTH_SECONDS, "--"])
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

/// Builds a program of a package; where it is.
fn build(
    workspace: &Workspace,
    wanted: (&str, &str),
    arguments: &[&str],
) -> Result<PathBuf, String> {
    let output = workspace
        .cargo(arguments)
        .arg("--locked")
        .args(["--message-format", "json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the build ended with {}", output.status));
    }
    executable(&String::from_utf8_lossy(&output.stdout), wanted)
        .map(PathBuf::from)
        .ok_or_else(|| "cargo names no program".to_owned())
}

/// The program of a package and a target of it that cargo's messages name.
fn executable<'a>(messages: &'a str, (package, target): (&str, &str)) -> Option<&'a str> {
    let (package, target) = (format!("#{package}@"), format!("\"name\":\"{target}\""));
    let is_wanted = |line: &&str| line.contains(&package) && line.contains(&target);
    let named = messages.lines().filter(is_wanted);
    let mut named = named.filter_map(|line| line.split_once("\"executable\":\""));
    let (_, rest) = named.next_back()?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_that_of_package_and_target() {
        let line = |package: &str, target: &str, path: &str| {
            format!(
                "{{\"package_id\":\"path+file:///x#{package}@0.1.0\",\
                 \"target\":{{\"name\":\"{target}\"}},\"executable\":{path}}}\n"
            )
        };
        let messages = [
            line("terrace-fabric", "terrace_fabric", "null"),
            line("terrace-bench", "remote", "\"/target/deps/remote-1\""),
            line("terrace-cli", "remote", "\"/target/deps/remote-2\""),
            line(
                "terrace-bench",
                "terrace-bench",
                "\"/target/terrace-bench\"",
            ),
        ]
        .concat();
        let found = |package, target| executable(&messages, (package, target));
        assert_eq!(
            found("terrace-bench", "remote"),
            Some("/target/deps/remote-1")
        );
        assert_eq!(
            found("terrace-cli", "remote"),
            Some("/target/deps/remote-2")
        );
        assert_eq!(found("terrace-fabric", "terrace_fabric"), None);
        assert_eq!(found("terrace-fabric", "rdma"), None);
    }
}
