//! Every test there is: unit and integration tests, small bench runs among them, doc tests,
//! and the engine's examples run to their end.

use std::fs;
use std::path::Path;

use crate::process;
use crate::setup;
use crate::steps::{Done, Steps};
use crate::workspace::Workspace;

/// The crate whose examples are run, not only built.
const EXAMPLES_OF: &str = "engine/core";

/// The seed of the property tests. With the same one a run is repeatable; who looks for new cases
/// sets another.
const SEED: &str = "PROPTEST_RNG_SEED";

/// `cargo xtask test`.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    let mut steps = Steps::default();
    let outcome = run_in(workspace, &mut steps, "");
    println!("\n{}", steps.table());
    outcome
}

/// Runs the suite as steps of a longer run; `prefix` goes before each step's name.
pub(crate) fn run_in(workspace: &Workspace, steps: &mut Steps, prefix: &str) -> Result<(), String> {
    let cargo =
        |arguments: &[&str]| process::run(&mut workspace.cargo(arguments)).map(|()| Done::Passed);
    steps.run(&format!("{prefix}setup"), || {
        setup::run(false)?.keep();
        Ok(Done::Passed)
    })?;

    // Bench targets are built and not run: their `main` measures at full size. What they call
    // runs small in the tests of their package's library.
    let tests: &[&str] = if workspace.has_cargo_subcommand("nextest") {
        &[
            "nextest",
            "run",
            "--workspace",
            "--locked",
            "--no-fail-fast",
        ]
    } else {
        &[
            "test",
            "--workspace",
            "--tests",
            "--locked",
            "--no-fail-fast",
        ]
    };
    steps.run(&format!("{prefix}tests"), || {
        let mut command = workspace.cargo(tests);
        if std::env::var_os(SEED).is_none() {
            command.env(SEED, "1");
        }
        process::run(&mut command).map(|()| Done::Passed)
    })?;
    steps.run(&format!("{prefix}doc tests"), || {
        cargo(&["test", "--workspace", "--doc", "--locked"])
    })?;
    steps.run(&format!("{prefix}examples and benches, build"), || {
        cargo(&[
            "build",
            "--workspace",
            "--examples",
            "--benches",
            "--locked",
        ])
    })?;
    let package = workspace
        .package_name(EXAMPLES_OF)
        .ok_or_else(|| format!("{EXAMPLES_OF}/Cargo.toml names no package"))?;
    for example in programs(&workspace.root().join(EXAMPLES_OF).join("examples"))? {
        steps.run(&format!("{prefix}example {example}"), || {
            cargo(&[
                "run",
                "--locked",
                "--quiet",
                "--package",
                &package,
                "--example",
                &example,
            ])
        })?;
    }
    Ok(())
}

/// The names of the programs in a folder, sorted: `name.rs` or `name/main.rs`. No folder is an
/// error: they are part of what is tested, and would else vanish in silence.
pub(crate) fn programs(folder: &Path) -> Result<Vec<String>, String> {
    let context = |error| format!("read {}: {error}", folder.display());
    let mut names = Vec::new();
    for item in fs::read_dir(folder).map_err(context)? {
        let path = item.map_err(context)?.path();
        let is_program = path.extension().is_some_and(|extension| extension == "rs")
            || path.join("main.rs").is_file();
        if let (true, Some(stem)) = (is_program, path.file_stem()) {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    if names.is_empty() {
        return Err(format!("{} has no programs", folder.display()));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::scratch::ScratchFolder;

    #[test]
    fn programs_files_and_folders_are_listed_sorted() {
        let scratch = ScratchFolder::new("examples");
        scratch.write("put_get.rs", "");
        scratch.write("custom/main.rs", "");
        scratch.write("shared/part.rs", "");
        scratch.write("notes.md", "");
        assert_eq!(programs(scratch.path()).unwrap(), ["custom", "put_get"]);
    }

    #[test]
    fn programs_missing_or_empty_folder_is_an_error() {
        let scratch = ScratchFolder::new("no-examples");
        assert!(programs(&scratch.path().join("missing")).is_err());
        assert!(
            programs(scratch.path())
                .unwrap_err()
                .contains("no programs")
        );
    }
}
