//! Where unsafe code may be, and how much of it there is.

use super::Finding;
use super::rust_text::{RustText, words};
use super::tree::Tree;

/// Crates that may hold unsafe code, and for what. Tests of other crates may not either.
const ALLOWED: [&str; 7] = [
    "tiers/slab",       // mappings, hugepages, NUMA
    "tiers/nvme",       // the io_uring ring
    "engine/runtime",   // descriptors made from raw ones
    "transport/fabric", // verbs and shared memory
    "transport/server", // an arena's address, for the transfer engine
    "tools/capi",       // arguments that come through C
    "tools/python",     // arguments that come through CPython
];

const FORBID: &str = "#![forbid(unsafe_code)]";

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, source) in tree.texts_ending(".rs") {
        if ALLOWED.iter().any(|folder| is_below(path, folder)) {
            continue;
        }
        for line in unsafe_lines(source) {
            let what = "unsafe outside the crates that may hold it: move it there";
            findings.push(Finding::new(path, line, what));
        }
    }
    for (folder, _) in tree.packages() {
        if ALLOWED.contains(&folder) {
            continue;
        }
        for root in ["lib.rs", "main.rs"] {
            let path = format!("{folder}/src/{root}");
            let Some(source) = tree.text(&path) else {
                continue;
            };
            let code = RustText::split(source).code;
            if !code.lines().any(|line| line.trim() == FORBID) {
                let what =
                    format!("no `{FORBID}`: only the crates at an unsafe boundary go without");
                findings.push(Finding::new(&path, 1, what));
            }
        }
    }
}

/// How many times each crate that may hold unsafe code says so; crates without a file are left
/// out.
pub(super) fn counts(tree: &Tree) -> Vec<(&'static str, usize)> {
    let count = |folder: &str| {
        let sources = tree
            .texts_ending(".rs")
            .filter(|(path, _)| is_below(path, folder));
        sources
            .map(|(_, source)| unsafe_lines(source).count())
            .sum()
    };
    let present = ALLOWED.into_iter().filter(|folder| tree.has_folder(folder));
    present.map(|folder| (folder, count(folder))).collect()
}

/// The line of each `unsafe` in code.
fn unsafe_lines(source: &str) -> impl Iterator<Item = usize> {
    let text = RustText::split(source);
    let lines: Vec<usize> = text
        .code_lines()
        .flat_map(|(line, code)| {
            words(code)
                .filter(|word| *word == "unsafe")
                .map(move |_| line)
        })
        .collect();
    lines.into_iter()
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGE: &str = "[package]\nname = \"x\"\n";

    fn findings(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let mut findings = Vec::new();
        check(&Tree::of(files), &mut findings);
        findings
            .into_iter()
            .map(|finding| (finding.path, finding.line))
            .collect()
    }

    #[test]
    fn unsafe_is_found_outside_the_allowed_crates_tests_included() {
        let source = "//! Head.\nfn f() {\n    unsafe { g() }\n}\n";
        for path in [
            "engine/core/src/x.rs",
            "engine/core/tests/x.rs",
            "tiers/slabs/src/x.rs",
        ] {
            assert_eq!(findings(&[(path, source)]), [(path.to_owned(), 3)]);
        }
        assert_eq!(findings(&[("tiers/slab/src/x.rs", source)]), []);
    }

    #[test]
    fn the_word_alone_is_no_unsafe_code() {
        let source = "//! unsafe\n#![forbid(unsafe_code)]\nlet a = \"unsafe\"; /* unsafe */\n";
        assert_eq!(findings(&[("engine/core/src/x.rs", source)]), []);
    }

    #[test]
    fn roots_of_other_crates_must_forbid_it() {
        let (good, bad) = (
            "//! Head.\n#![forbid(unsafe_code)]\n",
            "//! #![forbid(unsafe_code)]\n",
        );
        let files = |manifest, root, source| [(manifest, PACKAGE), (root, source)];
        let (manifest, root) = ("engine/core/Cargo.toml", "engine/core/src/lib.rs");
        assert_eq!(findings(&files(manifest, root, good)), []);
        assert_eq!(
            findings(&files(manifest, root, bad)),
            [(root.to_owned(), 1)]
        );
        let main = "tools/x/src/main.rs";
        assert_eq!(
            findings(&files("tools/x/Cargo.toml", main, bad)),
            [(main.to_owned(), 1)]
        );
        assert_eq!(
            findings(&files(
                "tiers/slab/Cargo.toml",
                "tiers/slab/src/lib.rs",
                bad
            )),
            []
        );
    }

    #[test]
    fn counts_every_occurrence_of_each_crate() {
        let tree = Tree::of(&[
            ("tiers/slab/src/a.rs", "unsafe fn f() { unsafe { g() } }\n"),
            (
                "tiers/slab/src/b.rs",
                "// unsafe\nunsafe impl Send for X {}\n",
            ),
            ("engine/runtime/src/lib.rs", "fn f() {}\n"),
            ("engine/core/src/lib.rs", "unsafe fn f() {}\n"),
        ]);
        assert_eq!(counts(&tree), [("tiers/slab", 3), ("engine/runtime", 0)]);
    }
}
