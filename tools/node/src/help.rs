//! What metrics mean: the words of docs/metrics.md, so that page and `/metrics` say the same.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

const DOCUMENT: &str = include_str!("../../../docs/metrics.md");

/// Meanings by name.
static MEANINGS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |row: &'static str| {
        let (name, rest) = row.split_once("` | ")?;
        let (_, meaning) = rest.trim_end_matches(" |").rsplit_once(" | ")?;
        let meaning = meaning.replace('`', "").replace('\\', "\\\\");
        Some((name, meaning))
    };
    rows.filter_map(row).collect()
});

/// Begins the samples of a metric: its meaning, if the page has it, and its type.
pub(crate) fn declare(out: &mut String, name: &str, kind: &str) {
    if let Some(meaning) = MEANINGS.get(name) {
        let _ = writeln!(out, "# HELP {name} {meaning}");
    }
    let _ = writeln!(out, "# TYPE {name} {kind}");
}
