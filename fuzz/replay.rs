//! Runs the committed corpora of some fuzz targets through the functions that the targets call.

use std::fs;
use std::path::{Path, PathBuf};

/// The name of a target, and the function that it calls: whether it accepted the bytes.
pub(super) type Target<'a> = (&'a str, fn(&[u8]) -> bool);

/// Runs every file of each target's corpus; a failure names the file. A corpus of which nothing
/// is accepted, or nothing refused, looks at half of its decoder and is a failure too.
pub(super) fn all(targets: &[Target<'_>]) {
    for (name, target) in targets {
        let files = files(name);
        let accepted = files.iter().filter(|path| {
            let bytes = fs::read(path).unwrap();
            eprintln!("{}", path.display());
            target(&bytes)
        });
        let accepted = accepted.count();
        assert!(accepted > 0, "nothing of {name} is accepted");
        assert!(accepted < files.len(), "nothing of {name} is refused");
    }
}

/// The files of a corpus, sorted.
fn files(name: &str) -> Vec<PathBuf> {
    // A crate lies two folders below the root.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join("fuzz/corpus").join(name);
    let list = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut files: Vec<PathBuf> = list.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}
