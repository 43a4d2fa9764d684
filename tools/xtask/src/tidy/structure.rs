//! Rules for a crate's files together: every source file is part of its crate.

use std::collections::BTreeSet;

use super::Finding;
use super::rust_text::{RustText, words};
use super::tree::Tree;

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (folder, _) in tree.packages() {
        let sources = format!("{folder}/src/");
        let files = || {
            tree.texts_ending(".rs")
                .filter(|(path, _)| path.starts_with(&sources))
        };
        let declared: BTreeSet<String> = files()
            .flat_map(|(_, source)| declared_modules(source))
            .collect();
        for (path, _) in files() {
            let within = &path[sources.len()..];
            let name = within.trim_end_matches(".rs").trim_end_matches("/mod");
            let name = name.rsplit('/').next().unwrap_or_default();
            let is_root = matches!(within, "lib.rs" | "main.rs") || within.starts_with("bin/");
            if !is_root && !declared.contains(name) {
                let what =
                    format!("no `mod {name}` in its crate: the compiler never sees this file");
                findings.push(Finding::new(path, 1, what));
            }
        }
    }
}

/// Names that follow `mod`, and the stems of files named by a `path` attribute.
fn declared_modules(source: &str) -> Vec<String> {
    let code = RustText::split(source).code;
    let names = words(&code).zip(words(&code).skip(1));
    let by_name = names
        .filter(|(keyword, _)| *keyword == "mod")
        .map(|(_, name)| name.to_owned());
    let by_path = source.lines().filter_map(|line| {
        let value = line.trim().strip_prefix("#[path")?.split('"').nth(1)?;
        Some(value.rsplit('/').next()?.trim_end_matches(".rs").to_owned())
    });
    by_name.chain(by_path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphans(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![("a/Cargo.toml", "[package]\nname = \"a\"\n")];
        all.extend(files);
        let mut findings = Vec::new();
        check(&Tree::of(&all), &mut findings);
        findings.into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn file_without_a_mod_line_is_an_orphan() {
        let found = orphans(&[
            (
                "a/src/lib.rs",
                "mod seen;\npub(crate) mod deep;\n// mod lost;\n",
            ),
            ("a/src/seen.rs", ""),
            (
                "a/src/deep/mod.rs",
                "#[path = \"odd/elsewhere.rs\"]\nmod other_name;\n",
            ),
            ("a/src/deep/odd/elsewhere.rs", ""),
            ("a/src/lost.rs", ""),
            ("a/src/bin/tool.rs", ""),
            ("a/tests/it.rs", ""),
        ]);
        assert_eq!(found, ["a/src/lost.rs"]);
    }

    #[test]
    fn mod_line_of_another_crate_does_not_count() {
        let other = [
            ("b/Cargo.toml", "[package]\nname = \"b\"\n"),
            ("b/src/lib.rs", "mod x;\n"),
        ];
        let mut files = vec![("a/src/lib.rs", ""), ("a/src/x.rs", "")];
        files.extend(other);
        assert_eq!(orphans(&files), ["a/src/x.rs"]);
    }
}
