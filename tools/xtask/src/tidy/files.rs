//! Rules for any file: white space, paths of one machine, traces.

use super::Finding;
use super::tree::Tree;

/// Folders that exist on the machine of whoever builds, and on no other.
const MACHINE_FOLDERS: [&str; 3] = [
    concat!("/", "work/"),
    concat!("/", "root/"),
    concat!("/", "farm/"),
];

/// How names of trace files end. They are large, and each has a licence and a source of its own.
const TRACE_ENDS: [&str; 8] = [
    ".jsonl.zst",
    ".csv.zst",
    ".lis.zst",
    ".trace.zst",
    ".jsonl.gz",
    ".csv.gz",
    ".trace.gz",
    ".trace.xz",
];

/// Files whose bytes are input of a test, kept as they are.
const AS_THEY_ARE: [&str; 2] = ["/fixtures/", "/corpus/"];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (path, _) in tree.files() {
        if TRACE_ENDS.iter().any(|end| path.ends_with(end)) {
            let what = "traces are not committed: they are large and have licences of their own";
            findings.push(Finding::new(path, 1, what));
        }
    }
    for (path, text) in tree.texts() {
        if AS_THEY_ARE.iter().any(|folder| path.contains(folder)) {
            continue;
        }
        check_white_space(path, text, findings);
        check_machine_folders(path, text, findings);
    }
}

fn check_white_space(path: &str, text: &str, findings: &mut Vec<Finding>) {
    for (index, line) in text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            let what = "the line ends in a space, tab or carriage return: noise in diffs";
            findings.push(Finding::new(path, index + 1, what));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        let last = text.lines().count();
        findings.push(Finding::new(
            path,
            last,
            "no newline at the end: noise in diffs",
        ));
    }
}

fn check_machine_folders(path: &str, text: &str, findings: &mut Vec<Finding>) {
    for (index, line) in text.lines().enumerate() {
        for folder in MACHINE_FOLDERS {
            if names_folder(line, folder) {
                let what =
                    format!("`{folder}` exists on one machine only: name it relative to the root");
                findings.push(Finding::new(path, index + 1, what));
            }
        }
    }
}

/// Whether an absolute path below the folder is named; `~/work/` and `a/work/` are others.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|char| char.is_alphanumeric() || "~._-})/*$".contains(char))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut findings);
        findings
            .into_iter()
            .map(|finding| (finding.line, finding.what))
            .collect()
    }

    fn lines(path: &str, text: &str) -> Vec<usize> {
        findings(path, text)
            .into_iter()
            .map(|(line, _)| line)
            .collect()
    }

    #[test]
    fn white_space_at_line_ends_is_found_where_it_is() {
        assert_eq!(lines("a.md", "one\ntwo \nthree\t\nfour\r\n"), [2, 3, 4]);
        assert_eq!(lines("a.md", "one\n\ntwo\n"), []);
    }

    #[test]
    fn missing_last_newline_is_found_on_the_last_line() {
        assert_eq!(lines("a.md", "one\ntwo"), [2]);
        assert_eq!(lines("a.md", ""), []);
    }

    #[test]
    fn fixtures_are_left_as_they_are() {
        assert_eq!(lines("tiers/nvme/fixtures/v1/a.txt", "one "), []);
    }

    #[test]
    fn machine_folders_are_found_only_as_absolute_paths() {
        let named = format!("see {}main\n", MACHINE_FOLDERS[0]);
        assert_eq!(lines("a.md", &named), [1]);
        assert_eq!(
            lines("a.toml", &format!("x = \"{}x\"\n", MACHINE_FOLDERS[1])),
            [1]
        );
        for start in ["~", "$HOME", "${A}", "dir", ".."] {
            assert_eq!(
                lines("a.md", &format!("see {start}{}main\n", MACHINE_FOLDERS[0])),
                []
            );
        }
    }

    #[test]
    fn traces_are_found_by_name() {
        assert_eq!(lines("x/conversation.jsonl.zst", ""), [1]);
        assert_eq!(lines("loop.trace.gz", ""), [1]);
        assert_eq!(lines("src/trace.rs", ""), []);
    }
}
