//! The nightly compiler, which nothing is built with that is shipped: fuzzing, Miri and sanitizers
//! need it, and what of it is missing is said by name.

use std::path::Path;
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

/// What is missing to run Miri; `None` when nothing is.
pub(crate) fn missing_miri(workspace: &Workspace) -> Option<String> {
    missing(workspace).or_else(|| {
        let has_miri = process::succeeds(&mut cargo(workspace, &["miri", "--version"]));
        let source = process::first_line(
            Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]),
        )
        .map(|root| Path::new(&root).join("lib/rustlib/src/rust/library/Cargo.toml"));
        let has_source = source.is_some_and(|path| path.is_file());
        missing_components(has_miri, has_source)
    })
}

fn missing_components(has_miri: bool, has_source: bool) -> Option<String> {
    let parts = [("miri", has_miri), ("rust-src", has_source)];
    let missing: Vec<&str> = parts
        .into_iter()
        .filter_map(|(name, is_there)| (!is_there).then_some(name))
        .collect();
    (!missing.is_empty()).then(|| {
        let list = missing.join(" and ");
        format!("nightly has no {list}: rustup component add --toolchain nightly miri rust-src")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_components_are_named_and_only_those() {
        assert_eq!(missing_components(true, true), None);
        let both = missing_components(false, false).unwrap();
        assert!(both.contains("no miri and rust-src:"), "{both}");
        let source = missing_components(true, false).unwrap();
        assert!(source.contains("no rust-src:"), "{source}");
    }
}
