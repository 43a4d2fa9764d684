//! Rules of the formats and the code that follows them, tied together in both directions.
//!
//! A document defines a rule on the line that begins with its id, after list, table or heading
//! marks: `- **OD-3** ...`. A comment in a source file cites it by the same id. Documents that
//! do not exist yet are left alone.

use std::collections::BTreeMap;

use super::Finding;
use super::rust_text::RustText;
use super::tree::Tree;

/// The documents that define rules, and how the ids of their rules begin.
const DOCUMENTS: [(&str, &str); 2] = [
    ("docs/on-disk-format.md", "OD-"),
    ("docs/wire-protocol.md", "WP-"),
];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (document, prefix) in DOCUMENTS {
        let Some(text) = tree.text(document) else {
            continue;
        };
        let defined = definitions(document, text, prefix, findings);
        let cited = citations(tree, prefix);
        for (id, (path, line)) in &cited {
            if !defined.contains_key(id) {
                let what = format!("{document} defines no {id}: cite a rule that it has");
                findings.push(Finding::new(path, *line, what));
            }
        }
        for (id, line) in &defined {
            if !cited.contains_key(id) {
                let what = format!("no source file cites {id}: nothing shows where it is kept");
                findings.push(Finding::new(document, *line, what));
            }
        }
    }
}

/// Rules and the lines that define them. A second definition is a finding.
fn definitions(
    document: &str,
    text: &str,
    prefix: &str,
    findings: &mut Vec<Finding>,
) -> BTreeMap<String, usize> {
    let mut defined = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start_matches([' ', '#', '-', '*', '|', '`']);
        let Some(id) = ids(start, prefix)
            .next()
            .filter(|id| start.starts_with(id.as_str()))
        else {
            continue;
        };
        if let Some(first) = defined.insert(id.clone(), index + 1) {
            let what = format!("{id} is defined in line {first} already");
            findings.push(Finding::new(document, index + 1, what));
        }
    }
    defined
}

/// The rules that comments of source files name, with the last place of each.
fn citations<'tree>(tree: &'tree Tree, prefix: &str) -> BTreeMap<String, (&'tree str, usize)> {
    let mut cited = BTreeMap::new();
    for (path, source) in tree.texts_ending(".rs") {
        for (line, comment) in RustText::split(source).comment_lines() {
            // This checker's own examples cite nothing.
            if !path.starts_with("tools/xtask/") {
                cited.extend(ids(comment, prefix).map(|id| (id, (path, line))));
            }
        }
    }
    cited
}

/// The ids in a text: the prefix and digits, not within a longer word.
fn ids<'text>(text: &'text str, prefix: &'text str) -> impl Iterator<Item = String> {
    text.match_indices(prefix).filter_map(move |(at, _)| {
        let is_part = text[..at]
            .chars()
            .next_back()
            .is_some_and(char::is_alphanumeric);
        let digits: String = text[at + prefix.len()..]
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        (!is_part && !digits.is_empty()).then(|| format!("{prefix}{digits}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(document: &str, source: &str) -> Vec<(String, usize)> {
        let tree = Tree::of(&[
            ("docs/on-disk-format.md", document),
            ("tiers/nvme/src/x.rs", source),
        ]);
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        findings
            .into_iter()
            .map(|finding| (finding.path, finding.line))
            .collect()
    }

    #[test]
    fn rule_and_citation_that_match_are_fine() {
        let document = "Text names OD-9 in passing.\n- **OD-1** a\n### OD-2 b\n| OD-3 | c |\n";
        let source = "//= docs/on-disk-format.md#OD-1\n// as OD-2 says\n/* OD-3. */\n";
        assert_eq!(findings(document, source), []);
    }

    #[test]
    fn rule_that_no_source_cites_is_found() {
        let found = findings("\n- OD-1 a\n", "let a = \"OD-1\";\n");
        assert_eq!(found, [("docs/on-disk-format.md".to_owned(), 2)]);
    }

    #[test]
    fn citation_of_a_missing_rule_is_found() {
        let found = findings("- OD-1 a\n", "// OD-1\n// OD-11\n");
        assert_eq!(found, [("tiers/nvme/src/x.rs".to_owned(), 2)]);
    }

    #[test]
    fn rule_defined_twice_is_found() {
        let found = findings("- OD-1 a\n- OD-1 b\n", "// OD-1\n");
        assert_eq!(found, [("docs/on-disk-format.md".to_owned(), 2)]);
    }

    #[test]
    fn citations_before_the_document_exists_are_left_alone() {
        let mut findings = Vec::new();
        check(
            &Tree::of(&[("transport/wire/src/x.rs", "// WP-1\n")]),
            &mut findings,
        );
        assert_eq!(findings, []);
    }
}
