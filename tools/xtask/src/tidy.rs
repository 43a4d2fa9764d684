//! The rules of docs/style.md that a program can check, as `cargo xtask tidy` and as a test.
//!
//! Each check takes the whole [`Tree`] and adds findings; none of them reads the disk, so each
//! is tested on a tree of a few lines in memory. A rule that would give false alarms stays out
//! of here: what is printed is to be fixed, not to be argued with.

mod citations;
mod documents;
mod files;
mod manifests;
mod rust_text;
mod sources;
mod structure;
pub(crate) mod tree;
mod unsafety;

use std::fmt;

use crate::workspace::Workspace;
use tree::Tree;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Counted from 1; 1 also when the whole file is meant.
    line: usize,
    /// What is wrong, and why it matters or what to do.
    what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Checks the workspace's files, prints every finding and how much unsafe each crate holds.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    let tree = Tree::load(workspace.root())?;
    for (name, count) in unsafety::counts(&tree) {
        println!("tidy: {count:>4} times unsafe in {name}");
    }
    let findings = check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files, nothing to say", tree.files().count());
            Ok(())
        }
        count => Err(format!("findings of tidy: {count}")),
    }
}

/// All findings, in the order of paths and lines.
fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    files::check(tree, &mut findings);
    sources::check(tree, &mut findings);
    structure::check(tree, &mut findings);
    unsafety::check(tree, &mut findings);
    manifests::check(tree, &mut findings);
    documents::check(tree, &mut findings);
    citations::check(tree, &mut findings);
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree that this test is compiled from.
    #[test]
    fn workspace_is_tidy() {
        let tree = Tree::load(Workspace::find().unwrap().root()).unwrap();
        let findings: Vec<String> = check(&tree).iter().map(Finding::to_string).collect();
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }

    /// Every check is wired into [`check`]: one tree breaks one rule of each.
    #[test]
    fn check_runs_every_check() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\n"),
            (
                "engine/core/Cargo.toml",
                "[package]\nname = \"terrace-engine\"\n\n[dependencies]\nglommio = \"1\"\n",
            ),
            ("engine/core/src/lib.rs", "//! Head.\n\nunsafe fn f() {}\n"),
            ("engine/core/src/orphan.rs", "no head\n"),
            ("docs/decisions/0001-first.md", "# First\n"),
            (
                "docs/wire-protocol.md",
                "- **WP-1** a rule that no code cites\n",
            ),
            ("notes.txt", "trailing \n"),
        ]);
        let findings = check(&tree);
        let has = |path: &str, part: &str| {
            findings
                .iter()
                .any(|finding| finding.path == path && finding.what.contains(part))
        };
        assert!(has("notes.txt", "ends in a space"), "files");
        assert!(has("engine/core/src/orphan.rs", "//!"), "sources");
        assert!(has("engine/core/src/orphan.rs", "no `mod"), "structure");
        assert!(has("engine/core/src/lib.rs", "unsafe"), "unsafety");
        assert!(has("engine/core/Cargo.toml", "glommio"), "manifests");
        assert!(
            has("docs/decisions/0001-first.md", "README.md"),
            "documents"
        );
        assert!(has("docs/wire-protocol.md", "WP-1"), "citations");
    }

    #[test]
    fn finding_is_printed_as_file_line_what() {
        assert_eq!(
            Finding::new("a/b.rs", 7, "what and why").to_string(),
            "a/b.rs:7: what and why"
        );
    }
}
