//! `cargo xtask ci`: the same steps, in the same order, as CI.

use std::fs;

use crate::fuzz;
use crate::miri;
use crate::nightly;
use crate::process;
use crate::rdma;
use crate::steps::{Done, Steps};
use crate::suite;
use crate::tidy;
use crate::workspace::Workspace;

/// How long CI fuzzes, all targets together, in seconds.
const FUZZ_SECONDS: u32 = 60;

/// The commands a reader of the README must be able to copy.
const README_COMMANDS: [&str; 2] = ["cargo xtask demo", "cargo xtask test"];

/// Runs every step up to the first failure and prints the table either way.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    let mut steps = Steps::default();
    let outcome = run_steps(workspace, &mut steps);
    println!("\n{}", steps.table());
    outcome?;
    match steps.skipped().as_slice() {
        [] => println!("ci: green, nothing skipped"),
        skipped => println!("ci: green, skipped: {}", skipped.join(", ")),
    }
    Ok(())
}

fn run_steps(workspace: &Workspace, steps: &mut Steps) -> Result<(), String> {
    let cargo =
        |arguments: &[&str]| process::run(&mut workspace.cargo(arguments)).map(|()| Done::Passed);
    steps.run("fmt", || cargo(&["fmt", "--all", "--check"]))?;
    steps.run("clippy", || {
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ])
    })?;
    steps.run("tidy", || tidy::run(workspace).map(|()| Done::Passed))?;
    suite::run_in(workspace, steps, "test: ")?;
    steps.run("doc", || {
        let mut doc = workspace.cargo(&["doc", "--workspace", "--no-deps", "--locked"]);
        process::run(doc.env("RUSTDOCFLAGS", "-D warnings")).map(|()| Done::Passed)
    })?;
    steps.run("rdma", || rdma::run(workspace))?;
    steps.run("deny", || {
        if workspace.has_cargo_subcommand("deny") {
            cargo(&["deny", "check", "licenses", "bans", "sources"])
        } else {
            Ok(Done::Skipped("cargo-deny is not installed".to_owned()))
        }
    })?;
    steps.run("miri", || match nightly::missing_miri(workspace) {
        None => miri::run(workspace).map(|()| Done::Passed),
        Some(missing) => Ok(Done::Skipped(missing)),
    })?;
    steps.run("fuzz", || match fuzz::missing(workspace) {
        None => fuzz::run_all(workspace, FUZZ_SECONDS).map(|()| Done::Passed),
        Some(missing) => Ok(Done::Skipped(missing)),
    })?;
    steps.run("readme", || {
        let readme = fs::read_to_string(workspace.root().join("README.md"))
            .map_err(|error| format!("read README.md: {error}"))?;
        check_readme(&readme).map(|()| Done::Passed)
    })
}

/// Every command of [`README_COMMANDS`] must be named.
fn check_readme(readme: &str) -> Result<(), String> {
    match README_COMMANDS
        .iter()
        .find(|command| !readme.contains(**command))
    {
        None => Ok(()),
        Some(missing) => Err(format!("README.md does not name `{missing}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_readme_names_the_missing_command() {
        assert_eq!(
            check_readme("Run `cargo xtask demo`, then `cargo xtask test`."),
            Ok(())
        );
        let message = check_readme("Run `cargo xtask demo`.").unwrap_err();
        assert!(message.contains("`cargo xtask test`"), "{message}");
    }
}
