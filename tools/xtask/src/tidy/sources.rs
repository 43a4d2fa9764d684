//! Rules for each Rust file by itself: head, length, names, marks that must not stay.

use super::Finding;
use super::rust_text::{RustText, has_word, words};
use super::tree::Tree;

/// A file that is longer holds more than one thing.
const LINES_MAX: usize = 800;

/// Ends of type names that tell nothing of what the type does.
const BANNED_ENDS: [&str; 3] = ["Manager", "Handler", "Helper"];

/// Module names that collect whatever comes by.
const BANNED_MODULES: [&str; 6] = ["util", "utils", "helper", "helpers", "common", "misc"];

/// Keywords that a new type's name follows.
const TYPE_KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// How far above a sleep its `expect` may stand: rustfmt lays one out on five lines.
const EXPECT_LINES: usize = 5;

/// Marks that something is unfinished. Spelled so that this file has none.
const MARKS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, source) in tree.texts_ending(".rs") {
        check_head(path, source, findings);
        let text = RustText::split(source);
        check_names(path, &text, findings);
        check_calls(path, &text, findings);
        for (line, comment) in text.comment_lines() {
            check_mark(path, line, comment, findings);
            if comment.contains(concat!("```", "ignore")) {
                let what = "a doc test that is not compiled rots: make it compile, or use ```text";
                findings.push(Finding::new(path, line, what));
            }
        }
    }
    for (path, text) in tree.texts().filter(|(path, _)| !path.ends_with(".rs")) {
        for (line, prose) in super::documents::prose_lines(path, text) {
            check_mark(path, line, &prose, findings);
        }
    }
}

fn check_head(path: &str, source: &str, findings: &mut Vec<Finding>) {
    let is_build_script = path == "build.rs" || path.ends_with("/build.rs");
    if !source.starts_with("//!") && !is_build_script {
        let what = "the file does not start with `//!`: say in one sentence what it owns";
        findings.push(Finding::new(path, 1, what));
    }
    let count = source.lines().count();
    if count > LINES_MAX {
        let what = format!("{count} lines, at most {LINES_MAX}: split it by job");
        findings.push(Finding::new(path, LINES_MAX + 1, what));
    }
}

fn check_names(path: &str, text: &RustText, findings: &mut Vec<Finding>) {
    let stem = path
        .rsplit('/')
        .find(|part| *part != "mod.rs")
        .unwrap_or_default();
    let stem = stem.trim_end_matches(".rs");
    if BANNED_MODULES.contains(&stem) {
        let what = format!("a module named `{stem}` collects whatever comes by: name its job");
        findings.push(Finding::new(path, 1, what));
    }
    for (line, code) in text.code_lines() {
        let names = words(code).zip(words(code).skip(1));
        for (keyword, name) in names {
            let is_type = TYPE_KEYWORDS.contains(&keyword);
            if is_type && BANNED_ENDS.iter().any(|end| name.ends_with(end)) {
                let what = format!("`{name}` does not tell what it does: name its job");
                findings.push(Finding::new(path, line, what));
            }
            if keyword == "mod" && BANNED_MODULES.contains(&name) {
                let what =
                    format!("a module named `{name}` collects whatever comes by: name its job");
                findings.push(Finding::new(path, line, what));
            }
        }
    }
}

fn check_calls(path: &str, text: &RustText, findings: &mut Vec<Finding>) {
    for (line, code) in text.code_lines() {
        let compact: String = code.split_whitespace().collect();
        let mut find = |what: &str| findings.push(Finding::new(path, line, what));
        let is_conditional = compact.contains("cfg_attr") && has_word(code, "ignore");
        if compact.contains("#[ignore") || is_conditional {
            find("an ignored test is skipped in silence: make it run, or report the skip by name");
        }
        if compact.contains("thread::sleep") && !may_sleep(path, text, line) {
            find("a sleep guesses how long something takes: wait for the thing itself");
        }
        for name in ["todo", "unimplemented"] {
            if has_word(code, name) && compact.contains(&format!("{name}!")) {
                find(&format!(
                    "`{name}!` is an unfinished path that panics: return an error"
                ));
            }
        }
    }
}

/// Whether a sleep carries an `expect` of clippy's lint, and with it a reason. Tests may not
/// sleep at all.
fn may_sleep(path: &str, text: &RustText, sleep_line: usize) -> bool {
    let is_test_file = path.contains("/tests/") || path.ends_with("tests.rs");
    let before = || text.code_lines().take_while(|(line, _)| *line < sleep_line);
    let is_test_module = before().any(|(_, code)| code.contains("cfg(test)"));
    let is_expected = before()
        .skip_while(|(line, _)| line + EXPECT_LINES < sleep_line)
        .any(|(_, code)| has_word(code, "disallowed_methods"));
    is_expected && !is_test_file && !is_test_module
}

/// An unfinished mark must carry the number of an issue.
fn check_mark(path: &str, line: usize, text: &str, findings: &mut Vec<Finding>) {
    for mark in MARKS {
        let is_unnumbered = text.match_indices(mark).any(|(at, _)| {
            let is_part = text[..at]
                .chars()
                .next_back()
                .is_some_and(char::is_alphanumeric);
            let after = &text[at + mark.len()..];
            let number = after
                .strip_prefix("(#")
                .and_then(|rest| rest.split_once(')'));
            let is_numbered = number.is_some_and(|(number, _)| number.parse::<u32>().is_ok());
            let is_longer = after.chars().next().is_some_and(char::is_alphanumeric);
            !is_part && !is_longer && !is_numbered
        });
        if is_unnumbered {
            let what = format!("{mark} without the number of an issue: write {mark}(#123)");
            findings.push(Finding::new(path, line, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, source: &str) -> Vec<(usize, String)> {
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, source)]), &mut findings);
        findings
            .into_iter()
            .map(|finding| (finding.line, finding.what))
            .collect()
    }

    fn lines(source: &str) -> Vec<usize> {
        let source = format!("//! Head.\n{source}");
        whats("a/src/x.rs", &source)
            .into_iter()
            .map(|(line, _)| line)
            .collect()
    }

    #[test]
    fn head_is_wanted_everywhere_but_in_build_scripts() {
        assert_eq!(whats("a/src/x.rs", "#![no_std]\n//! Late.\n").len(), 1);
        assert_eq!(whats("a/src/x.rs", "//! Head.\n").len(), 0);
        assert_eq!(whats("a/build.rs", "fn main() {}\n").len(), 0);
        assert_eq!(whats("a/src/rebuild.rs", "fn main() {}\n").len(), 1);
    }

    #[test]
    fn length_edge_is_800_lines() {
        assert_eq!(lines(&"\n".repeat(799)), []);
        assert_eq!(lines(&"\n".repeat(800)), [801]);
    }

    #[test]
    fn names_of_new_types_are_checked_and_others_are_not() {
        assert_eq!(
            lines("pub struct SlabManager;\nenum Handler { A }\n"),
            [2, 3]
        );
        assert_eq!(lines("trait EventHandler {}\ntype XHelper = u8;\n"), [2, 3]);
        assert_eq!(
            lines("use other::SlabManager;\nstruct Handlers;\n// struct XManager\n"),
            []
        );
    }

    #[test]
    fn module_names_are_checked_in_code_and_in_paths() {
        assert_eq!(lines("mod utils;\npub(crate) mod common { }\n"), [2, 3]);
        assert_eq!(lines("mod utilities;\nlet util = 1;\n"), []);
        assert_eq!(whats("a/src/misc.rs", "//! Head.\n").len(), 1);
        assert_eq!(whats("a/tests/common/mod.rs", "//! Head.\n").len(), 1);
        assert_eq!(whats("a/src/slab/mod.rs", "//! Head.\n").len(), 0);
    }

    #[test]
    fn calls_that_must_not_stay_are_found() {
        assert_eq!(lines("#[ignore]\n#[ignore = \"slow\"]\n"), [2, 3]);
        assert_eq!(lines("#[cfg_attr(miri, ignore)]\n"), [2]);
        assert_eq!(
            lines("std::thread::sleep(a);\ntodo!();\nunimplemented!(\"x\");\n"),
            [2, 3, 4]
        );
        assert_eq!(
            lines("let ignore = \"#[ignore]\";\nlet todo = a != b;\n// thread::sleep\n"),
            []
        );
    }

    #[test]
    fn sleep_needs_a_reason_and_tests_have_none() {
        let sleep = "#[expect(\n    clippy::disallowed_methods,\n    reason = \"x\"\n)]\n\
                     std::thread::sleep(a);\n";
        assert_eq!(lines(sleep), []);
        assert_eq!(
            lines(&format!("{sleep}\n\n\n\n\nstd::thread::sleep(b);\n")),
            [12]
        );
        assert_eq!(
            lines(&format!("#[cfg(test)]\nmod tests {{\n{sleep}}}\n")),
            [8]
        );
        let source = format!("//! Head.\n{sleep}");
        assert_eq!(whats("a/tests/x.rs", &source).len(), 1);
        assert_eq!(whats("a/src/x_tests.rs", &source).len(), 1);
    }

    #[test]
    fn marks_need_the_number_of_an_issue() {
        let mark = MARKS[0];
        assert_eq!(
            lines(&format!(
                "// {mark}: later\n// {mark}(#)\n// {mark}(#12x)\n"
            )),
            [2, 3, 4]
        );
        assert_eq!(lines(&format!("// {mark}(#12): later\n")), []);
        assert_eq!(lines(&format!("let a = \"{mark}\"; // {mark}S\n")), []);
        assert_eq!(whats("run.sh", &format!("# {} later\n", MARKS[1])).len(), 1);
    }

    #[test]
    fn doc_tests_that_are_not_compiled_are_found() {
        let fence = concat!("```", "ignore");
        assert_eq!(lines(&format!("/// {fence}\n/// ```text\n")), [2]);
    }
}
