//! Where the recorded traces are, for the tests that need them.

use std::path::{Path, PathBuf};

/// The path of a trace; reports the skip when it is missing. The traces are no part of the
/// repository: `TERRACE_TRACES` names their folder, by default `shared/traces` beside a folder
/// above.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = folder()
        .map(|folder| folder.join(name))
        .filter(|path| path.is_file());
    if path.is_none() {
        eprintln!("skipped: trace {name} not found (set TERRACE_TRACES to the folder)");
    }
    path
}

fn folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("TERRACE_TRACES") {
        return Some(PathBuf::from(folder));
    }
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("shared/traces"))
        .find(|folder| folder.is_dir())
}
