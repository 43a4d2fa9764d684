//! The order of crates, read from their manifests: control goes down, nothing points up.

use super::Finding;
use super::rust_text::{RustText, has_word};
use super::tree::Tree;
use crate::workspace::package_name;

/// Each crate of the engine and what it may depend on, all of its dependencies included, those
/// of its tests too. Whatever lies under a folder of [`FREE`] may depend on everything, and
/// nothing here may depend on it.
const ORDER: [(&str, &[&str]); 10] = [
    ("terrace-types", &[]),
    ("terrace-slab", &["terrace-types"]),
    ("terrace-nvme", &["terrace-types", "terrace-slab"]),
    (
        "terrace-runtime",
        &["terrace-types", "terrace-slab", "terrace-nvme"],
    ),
    (
        "terrace-engine",
        &[
            "terrace-types",
            "terrace-slab",
            "terrace-nvme",
            "terrace-runtime",
        ],
    ),
    ("terrace-wire", &["terrace-types"]),
    ("terrace-fabric", &["terrace-types", "terrace-slab"]),
    (
        "terrace-client",
        &[
            "terrace-types",
            "terrace-slab",
            "terrace-wire",
            "terrace-fabric",
        ],
    ),
    (
        "terrace-server",
        &[
            "terrace-types",
            "terrace-slab",
            "terrace-nvme",
            "terrace-runtime",
            "terrace-engine",
            "terrace-wire",
            "terrace-fabric",
        ],
    ),
    ("terrace-catalog", &["terrace-types", "terrace-wire"]),
];

const FREE: [&str; 3] = ["tools/", "benches", "fuzz"];

/// The one crate that names the executor; the others go through its traits, so that they run
/// on virtual time too.
const EXECUTOR: (&str, &str) = ("glommio", "engine/runtime");

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for (folder, manifest) in tree.packages() {
        let path = format!("{folder}/Cargo.toml");
        let dependencies = dependencies(manifest);
        for (line, name) in &dependencies {
            if name == EXECUTOR.0 && folder != EXECUTOR.1 {
                findings.push(Finding::new(&path, *line, executor_finding()));
            }
        }
        if !FREE.iter().any(|free| folder.starts_with(free)) {
            check_order(&path, manifest, &dependencies, findings);
        }
    }
    let (executor, home) = (EXECUTOR.0, format!("{}/", EXECUTOR.1));
    for (path, source) in tree
        .texts_ending(".rs")
        .filter(|(path, _)| !path.starts_with(&home))
    {
        for (line, code) in RustText::split(source).code_lines() {
            if has_word(code, executor) {
                findings.push(Finding::new(path, line, executor_finding()));
            }
        }
    }
}

fn executor_finding() -> String {
    format!(
        "{} is named in {} only: use its traits",
        EXECUTOR.0, EXECUTOR.1
    )
}

fn check_order(
    path: &str,
    manifest: &str,
    dependencies: &[(usize, String)],
    findings: &mut Vec<Finding>,
) {
    let name = package_name(manifest).unwrap_or_default();
    let Some((_, allowed)) = ORDER.iter().find(|(known, _)| *known == name) else {
        let what = format!("`{name}` has no place in the order of crates: give it one in tidy");
        findings.push(Finding::new(path, 1, what));
        return;
    };
    for (line, dependency) in dependencies {
        let is_ours = dependency.starts_with("terrace-") || dependency == "xtask";
        if is_ours && !allowed.contains(&dependency.as_str()) {
            let what = format!("`{name}` must not depend on `{dependency}`: it is not below it");
            findings.push(Finding::new(path, *line, what));
        }
    }
}

/// The packages a manifest depends on, with their lines. Reads the two ways a dependency is
/// written, a line in a `dependencies` section and a section of its own, and renames on a line.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for (index, line) in manifest.lines().map(str::trim).enumerate() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            is_inside = section.ends_with("dependencies");
            if let Some((_, name)) = section.rsplit_once("dependencies.") {
                found.push((index + 1, name.trim_matches('"').to_owned()));
            }
        } else if let (true, Some((key, value))) = (is_inside, line.split_once('=')) {
            let key = key
                .split('.')
                .next()
                .unwrap_or_default()
                .trim()
                .trim_matches('"');
            let renamed = value
                .split_once("package")
                .and_then(|(_, rest)| rest.trim_start().strip_prefix('='))
                .and_then(|rest| rest.split('"').nth(1));
            if !key.starts_with('#') {
                found.push((index + 1, renamed.unwrap_or(key).to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{rest}")
    }

    fn findings(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut findings);
        findings
            .into_iter()
            .map(|finding| (finding.line, finding.what))
            .collect()
    }

    #[test]
    fn dependencies_are_read_however_they_are_written() {
        let manifest = "[dependencies]\na = \"1\"\nb.workspace = true\n# no = \"1\"\n\
            c = { package = \"d\", version = \"1\" }\n[dev-dependencies.e]\nversion = \"1\"\n\
            [target.'cfg(unix)'.dependencies]\nf = \"1\"\n[features]\ng = []\n";
        let found = dependencies(manifest);
        let names: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "d", "e", "f"]);
        assert_eq!(found[0].0, 2);
    }

    #[test]
    fn order_downward_is_fine_and_upward_is_not() {
        let manifest = |dependency: &str| {
            package(
                "terrace-slab",
                &format!("[dependencies]\n{dependency}.workspace = true\n"),
            )
        };
        assert_eq!(
            findings("tiers/slab/Cargo.toml", &manifest("terrace-types")),
            []
        );
        assert_eq!(findings("tiers/slab/Cargo.toml", &manifest("libc")), []);
        for upward in ["terrace-engine", "terrace-slab", "terrace-bench", "xtask"] {
            let found = findings("tiers/slab/Cargo.toml", &manifest(upward));
            assert_eq!(found.len(), 1, "{upward}");
            assert_eq!(found[0].0, 4, "{upward}");
        }
    }

    #[test]
    fn order_counts_dependencies_of_tests_too() {
        let text = package(
            "terrace-types",
            "[dev-dependencies]\nterrace-slab.workspace = true\n",
        );
        assert_eq!(findings("tiers/types/Cargo.toml", &text).len(), 1);
    }

    #[test]
    fn crate_unknown_to_the_order_is_found_unless_it_is_a_tool() {
        let text = package("terrace-new", "");
        assert_eq!(findings("engine/new/Cargo.toml", &text).len(), 1);
        assert_eq!(findings("tools/new/Cargo.toml", &text), []);
        assert_eq!(findings("benches/Cargo.toml", &text), []);
    }

    #[test]
    fn order_names_only_what_stands_before() {
        for (index, (name, allowed)) in ORDER.iter().enumerate() {
            for dependency in *allowed {
                let before = ORDER[..index]
                    .iter()
                    .any(|(earlier, _)| earlier == dependency);
                assert!(
                    before,
                    "{name} may depend on {dependency}, which stands after it"
                );
            }
        }
    }

    #[test]
    fn executor_is_named_in_one_crate_only() {
        let text = package(
            "terrace-bench",
            "[dependencies]\nglommio.workspace = true\n",
        );
        assert_eq!(findings("tools/bench/Cargo.toml", &text).len(), 1);
        let runtime = package(
            "terrace-runtime",
            "[dependencies]\nglommio.workspace = true\n",
        );
        assert_eq!(findings("engine/runtime/Cargo.toml", &runtime), []);
        let source = "//! glommio\nuse glommio::Task;\nlet a = \"glommio\";\n";
        let lines: Vec<usize> = findings("engine/core/src/x.rs", source)
            .into_iter()
            .map(|(line, _)| line)
            .collect();
        assert_eq!(lines, [2]);
        assert_eq!(findings("engine/runtime/src/x.rs", source), []);
    }
}
