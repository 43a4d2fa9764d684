//! The files that tidy looks at: what git tracks or would track, held in memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Paths below the root, with `/`, and the contents of the files.
pub(crate) struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// Reads what git tracks or would track below `root`; without git, everything but `.git`
    /// and folders that cargo builds into.
    pub(crate) fn load(root: &Path) -> Result<Self, String> {
        let paths = match git_paths(root) {
            Some(paths) => paths,
            None => walk(root)?,
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let full = root.join(&path);
            // Links are not followed, and a file removed but not yet committed is gone.
            if fs::symlink_metadata(&full).is_ok_and(|metadata| metadata.is_file()) {
                let bytes = fs::read(&full).map_err(|error| format!("read {path}: {error}"))?;
                files.insert(path, bytes);
            }
        }
        Ok(Self { files })
    }

    /// A tree in memory.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), text.as_bytes().to_vec());
        Self {
            files: files.iter().map(own).collect(),
        }
    }

    /// Every file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files
            .iter()
            .map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
    }

    /// Every text file; one with a zero byte or that is not UTF-8 is none.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files()
            .filter(|(_, bytes)| !bytes.contains(&0))
            .filter_map(|(path, bytes)| std::str::from_utf8(bytes).ok().map(|text| (path, text)))
    }

    /// Every text file whose name ends so.
    pub(crate) fn texts_ending<'tree>(
        &'tree self,
        end: &'tree str,
    ) -> impl Iterator<Item = (&'tree str, &'tree str)> {
        self.texts().filter(move |(path, _)| path.ends_with(end))
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files
            .get(path)
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// Whether there is such a file.
    pub(crate) fn has_file(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Whether there is a file below such a folder.
    pub(crate) fn has_folder(&self, path: &str) -> bool {
        let prefix = format!("{}/", path.trim_end_matches('/'));
        self.files.keys().any(|file| file.starts_with(&prefix))
    }

    /// The folders that hold a package, nearest to the root first.
    pub(crate) fn packages(&self) -> Vec<(&str, &str)> {
        let manifests = self.texts_ending("/Cargo.toml");
        manifests
            .filter(|(_, text)| text.lines().any(|line| line.trim() == "[package]"))
            .map(|(path, text)| (path.trim_end_matches("/Cargo.toml"), text))
            .collect()
    }
}

fn git_paths(root: &Path) -> Option<Vec<String>> {
    let arguments = [
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
    ];
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).ok()?;
    Some(
        text.split('\0')
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect(),
    )
}

fn walk(root: &Path) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let context = |error| format!("read folder `{folder}`: {error}");
        for item in fs::read_dir(root.join(&folder)).map_err(context)? {
            let item = item.map_err(context)?;
            let name = item.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() {
                name.clone()
            } else {
                format!("{folder}/{name}")
            };
            if !item.file_type().map_err(context)?.is_dir() {
                paths.push(path);
            } else if name != ".git" && name != "target" {
                folders.push(path);
            }
        }
    }
    Ok(paths)
}

/// A folder of a test's own.
#[cfg(test)]
pub(crate) mod scratch {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// A new folder below the system's temporary one, removed when dropped.
    pub(crate) struct ScratchFolder(PathBuf);

    impl ScratchFolder {
        /// The name tells the tests of one process apart.
        pub(crate) fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let full = self.0.join(path);
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            fs::write(full, text).unwrap();
        }
    }

    impl Drop for ScratchFolder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scratch::ScratchFolder;
    use super::*;

    fn paths(tree: &Tree) -> Vec<&str> {
        tree.files().map(|(path, _)| path).collect()
    }

    #[test]
    fn load_without_git_skips_what_cargo_builds() {
        let scratch = ScratchFolder::new("walk");
        scratch.write("a/b.rs", "");
        scratch.write("c.md", "");
        scratch.write("target/debug/x.rs", "");
        scratch.write("a/target/y.rs", "");
        let mut found = walk(scratch.path()).unwrap();
        found.sort();
        assert_eq!(found, ["a/b.rs", "c.md"]);
        assert_eq!(
            paths(&Tree::load(scratch.path()).unwrap()),
            ["a/b.rs", "c.md"]
        );
    }

    #[test]
    fn load_with_git_takes_untracked_and_leaves_ignored_and_removed() {
        let scratch = ScratchFolder::new("git");
        let git = |arguments: &[&str]| {
            let output = Command::new("git")
                .args(arguments)
                .current_dir(scratch.path())
                .output();
            assert!(output.unwrap().status.success(), "{arguments:?}");
        };
        scratch.write(".gitignore", "/ignored\n");
        for path in ["tracked.rs", "removed.rs", "ignored/x.rs", "untracked.rs"] {
            scratch.write(path, "");
        }
        git(&["init", "--quiet"]);
        git(&["add", "tracked.rs", "removed.rs"]);
        fs::remove_file(scratch.path().join("removed.rs")).unwrap();
        let tree = Tree::load(scratch.path()).unwrap();
        assert_eq!(paths(&tree), [".gitignore", "tracked.rs", "untracked.rs"]);
    }

    #[test]
    fn texts_leave_out_what_is_binary() {
        let mut tree = Tree::of(&[("a.txt", "text"), ("b.bin", "zero\0byte")]);
        tree.files.insert("c.bin".to_owned(), vec![0xff, 0xfe]);
        assert_eq!(
            tree.texts().map(|(path, _)| path).collect::<Vec<_>>(),
            ["a.txt"]
        );
    }

    #[test]
    fn has_folder_needs_a_whole_name() {
        let tree = Tree::of(&[("docs/a.md", "")]);
        assert!(tree.has_folder("docs") && tree.has_folder("docs/"));
        assert!(!tree.has_folder("doc") && !tree.has_folder("docs/a.md"));
    }
}
