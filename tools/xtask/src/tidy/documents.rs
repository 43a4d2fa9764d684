//! Rules for documents: length, links, decision records and their index.

use super::Finding;
use super::tree::Tree;

/// The most lines of each document: one that outgrows its reader is not read.
const LINES_MAX: [(&str, usize); 9] = [
    ("README.md", 120),
    ("docs/architecture.md", 400),
    ("docs/on-disk-format.md", 300),
    ("docs/wire-protocol.md", 350),
    ("docs/operations.md", 300),
    ("docs/benchmarks.md", 250),
    ("docs/testing.md", 120),
    ("docs/style.md", 200),
    ("docs/glossary.md", 80),
];

const DECISIONS: &str = "docs/decisions/";
const DECISION_LINES_MAX: usize = 80;

/// The parts of a decision record, in order.
const DECISION_PARTS: [&str; 6] = [
    "Status",
    "Context",
    "Decision",
    "Measured",
    "Alternatives",
    "Consequences",
];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, max) in LINES_MAX {
        if let Some(text) = tree.text(path) {
            check_length(path, text, max, findings);
        }
    }
    for (path, text) in tree.texts_ending(".md") {
        check_links(tree, path, text, findings);
        if let Some(name) = decision_name(path) {
            check_length(path, text, DECISION_LINES_MAX, findings);
            check_decision(tree, path, name, text, findings);
        }
    }
}

fn check_length(path: &str, text: &str, max: usize, findings: &mut Vec<Finding>) {
    let count = text.lines().count();
    if count > max {
        let what = format!("{count} lines, at most {max}: say it shorter or move it");
        findings.push(Finding::new(path, max + 1, what));
    }
}

/// The file name of a decision record, `NNNN-title.md`.
fn decision_name(path: &str) -> Option<&str> {
    let name = path.strip_prefix(DECISIONS)?;
    let (number, title) = name.split_once('-')?;
    let is_number = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !title.contains('/')).then_some(name)
}

fn check_decision(tree: &Tree, path: &str, name: &str, text: &str, findings: &mut Vec<Finding>) {
    let index = format!("{DECISIONS}README.md");
    let is_listed = tree
        .text(&index)
        .is_some_and(|text| text.contains(&format!("({name})")));
    if !is_listed {
        findings.push(Finding::new(
            path,
            1,
            format!("{index} does not link it: it will not be found"),
        ));
    }
    let headings: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(str::trim)
        .collect();
    if headings != DECISION_PARTS {
        let what = format!("its parts must be, in order: {}", DECISION_PARTS.join(", "));
        findings.push(Finding::new(path, 1, what));
    }
}

fn check_links(tree: &Tree, path: &str, text: &str, findings: &mut Vec<Finding>) {
    for (line, prose) in prose_lines(path, text) {
        for target in link_targets(&prose) {
            let file = target.split('#').next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if is_elsewhere || file.is_empty() {
                continue;
            }
            let is_there = resolve(path, file)
                .is_some_and(|file| tree.has_file(&file) || tree.has_folder(&file));
            if !is_there {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`{file}` is linked and not there"),
                ));
            }
        }
    }
}

/// The targets of `[text](target)` in a line.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?;
        target.split_whitespace().next()
    })
}

/// A target relative to the file that names it, as a path below the root; `None` when it
/// leads out of the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        return None;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The lines of a document with their numbers, without code: fenced lines are left out and
/// code spans blanked. Files other than Markdown are taken as they are.
pub(super) fn prose_lines(path: &str, text: &str) -> Vec<(usize, String)> {
    let is_markdown = path.ends_with(".md");
    let mut is_fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if is_markdown && line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            let prose = if is_markdown {
                without_code(line)
            } else {
                line.to_owned()
            };
            lines.push((index + 1, prose));
        }
    }
    lines
}

/// A line without what stands between backticks; the backticks stay.
fn without_code(line: &str) -> String {
    let parts = line.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 0 { part } else { "``" })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<(String, usize, String)> {
        let mut findings = Vec::new();
        check(&Tree::of(files), &mut findings);
        findings
            .into_iter()
            .map(|finding| (finding.path, finding.line, finding.what))
            .collect()
    }

    fn decision(parts: &[&str]) -> String {
        parts.iter().map(|part| format!("## {part}\n")).collect()
    }

    #[test]
    fn length_edges_are_those_of_the_table() {
        for (path, max) in LINES_MAX {
            assert_eq!(findings(&[(path, &"x\n".repeat(max))]), []);
            let found = findings(&[(path, &"x\n".repeat(max + 1))]);
            assert_eq!((found.len(), found[0].1), (1, max + 1), "{path}");
        }
    }

    #[test]
    fn links_resolve_from_the_file_that_names_them() {
        fn files(text: &str) -> [(&str, &str); 4] {
            [
                ("docs/a.md", text),
                ("docs/b.md", ""),
                ("README.md", ""),
                ("fio/x.fio", ""),
            ]
        }
        let good = "[b](b.md#part) [r](../README.md \"title\") [f](../fio) [w](https://a.b/c)\n\
                    [own](#part) `[code](no.md)`\n```\n[code](no.md)\n```\n";
        assert_eq!(findings(&files(good)), []);
        for bad in [
            "[x](README.md)",
            "[x](../../README.md)",
            "[x](/README.md)",
            "[x](c.md#b)",
        ] {
            let text = format!("line\n{bad}\n");
            let found = findings(&files(&text));
            assert_eq!((found.len(), found[0].1), (1, 2), "{bad}");
        }
    }

    #[test]
    fn decision_must_be_in_the_index() {
        let record = decision(&DECISION_PARTS);
        let with_index = |index| {
            [
                ("docs/decisions/0001-a.md", record.as_str()),
                ("docs/decisions/README.md", index),
            ]
        };
        assert_eq!(findings(&with_index("[a](0001-a.md)\n")), []);
        let found = findings(&with_index("0001-a\n"));
        assert_eq!(found.len(), 1);
        assert!(found[0].2.contains("does not link it"));
    }

    #[test]
    fn decision_must_have_its_parts_in_order() {
        let index = ("docs/decisions/README.md", "[a](0001-a.md)\n");
        let mut parts = DECISION_PARTS;
        assert_eq!(
            findings(&[index, ("docs/decisions/0001-a.md", &decision(&parts))]),
            []
        );
        parts.swap(0, 1);
        assert_eq!(
            findings(&[index, ("docs/decisions/0001-a.md", &decision(&parts))]).len(),
            1
        );
        let short = decision(&DECISION_PARTS[..5]);
        assert_eq!(
            findings(&[index, ("docs/decisions/0001-a.md", &short)]).len(),
            1
        );
    }

    #[test]
    fn decision_edge_is_80_lines() {
        let index = ("docs/decisions/README.md", "[a](0001-a.md)\n");
        let long = |lines: usize| decision(&DECISION_PARTS) + &"x\n".repeat(lines - 6);
        assert_eq!(
            findings(&[index, ("docs/decisions/0001-a.md", &long(80))]),
            []
        );
        assert_eq!(
            findings(&[index, ("docs/decisions/0001-a.md", &long(81))]).len(),
            1
        );
    }

    #[test]
    fn decision_name_is_four_digits_and_a_title() {
        assert_eq!(decision_name("docs/decisions/0012-x.md"), Some("0012-x.md"));
        for other in [
            "docs/decisions/README.md",
            "docs/decisions/12-x.md",
            "docs/0012-x.md",
        ] {
            assert_eq!(decision_name(other), None);
        }
    }
}
