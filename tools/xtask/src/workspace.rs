//! Where the workspace lies, and the little that is read from its manifests outside tidy.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of this workspace.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the root: two folders above this package when cargo started us, else the nearest
    /// folder upward that has a workspace manifest.
    pub(crate) fn find() -> Result<Self, String> {
        let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
            Some(package) => PathBuf::from(package),
            None => std::env::current_dir().map_err(|e| format!("no current folder: {e}"))?,
        };
        start
            .ancestors()
            .find(|folder| {
                fs::read_to_string(folder.join("Cargo.toml"))
                    .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
            })
            .map(|root| Self {
                root: root.to_path_buf(),
            })
            .ok_or_else(|| format!("no workspace manifest above {}", start.display()))
    }

    /// The root folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A cargo command that runs in the root folder.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// Whether a cargo subcommand is installed.
    pub(crate) fn has_cargo_subcommand(&self, name: &str) -> bool {
        self.cargo(&[name, "--version"])
            .output()
            .is_ok_and(|output| output.status.success())
    }

    /// The folder that cargo builds into.
    pub(crate) fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => self.root.join(folder),
            None => self.root.join("target"),
        }
    }

    /// The name of the package in a folder below the root; `None` when there is no package.
    pub(crate) fn package_name(&self, folder: &str) -> Option<String> {
        let manifest = fs::read_to_string(self.root.join(folder).join("Cargo.toml")).ok()?;
        package_name(&manifest)
    }
}

/// The `name` in the `[package]` section of a manifest.
pub(crate) fn package_name(manifest: &str) -> Option<String> {
    manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[package]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .find_map(|line| line.strip_prefix("name")?.trim_start().strip_prefix('='))
        .map(|value| value.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_name_is_read_from_its_own_section_only() {
        let manifest =
            "[lib]\nname = \"wrong\"\n\n[package]\nedition = \"2024\"\nname = \"right\"\n";
        assert_eq!(package_name(manifest).as_deref(), Some("right"));
        assert_eq!(package_name("[package]\n[lib]\nname = \"wrong\"\n"), None);
        assert_eq!(package_name("[workspace]\nmembers = []\n"), None);
    }

    #[test]
    fn find_from_this_package_gives_a_root_with_this_package() {
        let workspace = Workspace::find().unwrap();
        assert_eq!(
            workspace.package_name("tools/xtask").as_deref(),
            Some("xtask")
        );
    }
}
