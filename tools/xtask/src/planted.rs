//! `cargo xtask planted [NAME]`: bugs planted on purpose, one at a time, each of which the suite
//! has to find.
//!
//! A bug is a patch in `tools/xtask/planted`. Before the patch stand lines `# bug: WHAT` and
//! `# tests: ARGUMENTS OF cargo test`. It is applied to a copy of the last commit, whose tests
//! have to build and then to fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process;
use crate::workspace::Workspace;

/// Where the patches lie.
const FOLDER: &str = "tools/xtask/planted";

/// A planted bug.
#[derive(Debug, PartialEq, Eq)]
struct Bug {
    name: String,
    what: String,
    /// What `cargo test` is given.
    tests: Vec<String>,
    patch: PathBuf,
}

/// Plants each bug, or the one named, and runs what has to find it.
pub(crate) fn run(workspace: &Workspace, only: Option<&str>) -> Result<(), String> {
    let bugs = bugs(&workspace.root().join(FOLDER))?;
    let chosen: Vec<&Bug> = bugs
        .iter()
        .filter(|bug| only.is_none_or(|name| name == bug.name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = bugs.iter().map(|bug| bug.name.as_str()).collect();
        let only = only.unwrap_or_default();
        return Err(format!(
            "there is no planted bug `{only}`; there are {}",
            names.join(", ")
        ));
    }
    let ground = Ground::new(workspace)?;
    let mut table = Vec::new();
    let mut missed = Vec::new();
    for bug in chosen {
        println!("\n== {}: {}", bug.name, bug.what);
        let found = ground.plant(bug)?;
        let by = found.unwrap_or_else(|| {
            missed.push(bug.name.as_str());
            "NOT FOUND".to_owned()
        });
        table.push(format!("{:<28} {by}", bug.name));
    }
    println!("\n{}", table.join("\n"));
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("not found by the suite: {}", missed.join(", ")))
    }
}

/// A copy of the last commit to plant bugs in, with a target folder of its own.
struct Ground {
    main: PathBuf,
    tree: PathBuf,
    target: PathBuf,
}

impl Ground {
    fn new(workspace: &Workspace) -> Result<Self, String> {
        let folder = workspace.target().join("planted");
        let ground = Self {
            main: workspace.root().to_path_buf(),
            tree: folder.join("tree"),
            target: folder.join("target"),
        };
        ground.clear();
        let mut add = git(&ground.main, &["worktree", "add", "--detach", "--force"]);
        process::run(add.arg(&ground.tree).arg("HEAD"))?;
        Ok(ground)
    }

    fn clear(&self) {
        let mut remove = git(&self.main, &["worktree", "remove", "--force"]);
        let quiet = remove.arg(&self.tree).stderr(Stdio::null());
        // There may be none.
        let _ = quiet.status();
    }

    /// Runs what has to find a bug. The value names the first test that failed; `None` when
    /// all passed.
    fn plant(&self, bug: &Bug) -> Result<Option<String>, String> {
        process::run(&mut git(&self.tree, &["checkout", "--quiet", "."]))?;
        process::run(git(&self.tree, &["apply"]).arg(&bug.patch))?;
        process::run(self.cargo(bug).arg("--no-run"))
            .map_err(|error| format!("{} does not build: {error}", bug.name))?;
        let output = self
            .cargo(bug)
            .output()
            .map_err(|error| format!("run the tests of {}: {error}", bug.name))?;
        if output.status.success() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Some(first_failure(&text)))
    }

    fn cargo(&self, bug: &Bug) -> Command {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(program);
        command
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .args(["test", "--locked", "--quiet"])
            .args(&bug.tests)
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.clear();
    }
}

fn git(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder).args(arguments);
    command
}

/// The first test that a run of the test harness says failed, with what it said.
fn first_failure(text: &str) -> String {
    let mut lines = text.lines();
    let name = lines.by_ref().find_map(|line| {
        line.strip_prefix("---- ")
            .and_then(|rest| rest.split_whitespace().next())
    });
    let Some(name) = name else {
        return "a test process that ended early".to_owned();
    };
    let said = lines.find(|line| !line.trim().is_empty() && !line.contains("panicked at"));
    let said: String = said.unwrap_or_default().chars().take(120).collect();
    format!("{name}: {said}")
}

fn bugs(folder: &Path) -> Result<Vec<Bug>, String> {
    let context = |error| format!("read {}: {error}", folder.display());
    let mut bugs = Vec::new();
    for item in fs::read_dir(folder).map_err(context)? {
        let path = item.map_err(context)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "patch")
        {
            let text = fs::read_to_string(&path).map_err(context)?;
            bugs.push(bug(&path, &text)?);
        }
    }
    bugs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(bugs)
}

fn bug(path: &Path, text: &str) -> Result<Bug, String> {
    let line = |start: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(start));
        found
            .map(|rest| rest.trim().to_owned())
            .ok_or_else(|| format!("{} has no line `{start}`", path.display()))
    };
    let name = path.file_stem().unwrap_or_default();
    Ok(Bug {
        name: name.to_string_lossy().into_owned(),
        what: line("# bug:")?,
        tests: line("# tests:")?
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        patch: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_bugs_name_what_they_are_and_what_finds_them() {
        let root = Workspace::find().unwrap();
        let bugs = bugs(&root.root().join(FOLDER)).unwrap();
        assert!(!bugs.is_empty());
        for bug in &bugs {
            let by_package = bug.tests.first().is_some_and(|word| word == "-p");
            assert!(by_package && bug.tests.len() >= 2, "{bug:?}");
            // A patch that no longer fits is found here and not in the long run.
            let mut check = git(root.root(), &["apply", "--check"]);
            process::run(check.arg(&bug.patch)).unwrap();
        }
    }

    #[test]
    fn bug_without_its_lines_is_refused() {
        let path = Path::new("some.patch");
        let message = bug(path, "# bug: one\n--- a\n").unwrap_err();
        assert!(
            message.contains("some.patch has no line `# tests:`"),
            "{message}"
        );
    }

    #[test]
    fn first_failure_is_named_with_what_it_said() {
        let text = "running 2 tests\n\nfailures:\n\n---- a::b stdout ----\n\n\
                    thread 'a::b' panicked at x.rs:1:2:\nseed 3: wrong bytes\n";
        assert_eq!(first_failure(text), "a::b: seed 3: wrong bytes");
        assert!(first_failure("").contains("ended early"));
    }
}
