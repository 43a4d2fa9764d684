//! `cargo xtask asan`: the tests of the crates with unsafe code, under AddressSanitizer.
//!
//! It sees what the program itself reads and writes, in heap, stack and statics. What the kernel
//! moves by a ring it does not see, nor what lies outside of any allocation of a mapping.

use crate::nightly;
use crate::process;
use crate::workspace::Workspace;

/// Built with the sanitizer and run, one after the other.
const PACKAGES: [&str; 3] = ["terrace-slab", "terrace-nvme", "terrace-engine"];

/// `cargo xtask asan`, of one package or all.
pub(crate) fn run(workspace: &Workspace, package: Option<&str>) -> Result<(), String> {
    let chosen = chosen(package)?;
    if let Some(missing) = nightly::missing(workspace) {
        return Err(format!("AddressSanitizer cannot run: {missing}"));
    }
    chosen.iter().try_for_each(|package| {
        let mut command = nightly::cargo(workspace, &["test", "--locked", "--lib", "--tests"]);
        command
            .args(["--package", package, "--target", nightly::TARGET])
            .arg("--target-dir")
            .arg(workspace.target().join("asan"))
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        process::run(&mut command)
    })
}

fn chosen(package: Option<&str>) -> Result<Vec<&'static str>, String> {
    let list = PACKAGES.into_iter();
    let chosen: Vec<&str> = list
        .filter(|known| package.is_none_or(|package| package == *known))
        .collect();
    match (chosen.as_slice(), package) {
        ([], Some(package)) => {
            let list = PACKAGES.join(", ");
            Err(format!(
                "asan takes one of {list}, or nothing, not `{package}`"
            ))
        }
        _ => Ok(chosen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_is_one_or_all_and_else_named() {
        assert_eq!(chosen(None).unwrap(), PACKAGES);
        assert_eq!(chosen(Some("terrace-nvme")).unwrap(), ["terrace-nvme"]);
        assert!(chosen(Some("x")).unwrap_err().contains("`x`"));
    }
}
