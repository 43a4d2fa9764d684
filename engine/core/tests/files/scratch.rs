//! A file of a test's own.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than any close takes.
pub(crate) const CLOSE: Duration = Duration::from_secs(60);

/// A file of a test's own, removed when the test ends.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self::at(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    /// A file in a folder of the caller's choice.
    pub(crate) fn at(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
