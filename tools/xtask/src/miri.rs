//! `cargo xtask miri`: the tests that Miri can run, by a fixed list; what is left out is said by name.

use crate::nightly;
use crate::process;
use crate::workspace::Workspace;

/// A crate, the tests of it that run, and those that do not although their names fit.
struct Part {
    package: &'static str,
    /// Parts of the names of tests; none for all.
    run: &'static [&'static str],
    skip: &'static [&'static str],
}

const PARTS: [Part; 4] = [
    Part {
        package: "terrace-types",
        run: &[],
        // It reads files.
        skip: &["fuzzing::"],
    },
    Part {
        package: "terrace-wire",
        run: &[],
        skip: &["fuzzing::"],
    },
    Part {
        package: "terrace-slab",
        run: &["runs::", "classes::"],
        skip: &[],
    },
    Part {
        package: "terrace-nvme",
        run: &[
            "format::",
            "mem::",
            "ops::",
            "tier::lane::",
            "tier::segments::",
        ],
        // All bits and all lengths of four structures: minutes where a cycle costs thousands.
        skip: &["bit_flipped_anywhere", "structure_cut_anywhere"],
    },
];

/// What Miri cannot run, or not in minutes.
const LEFT_OUT: [(&str, &str); 5] = [
    ("terrace-nvme uring", "rings"),
    ("terrace-nvme file, set", "files, locks; sets are minutes"),
    ("terrace-slab but for runs and classes", "mappings"),
    (
        "terrace-engine index, policies",
        "their arrays are mappings",
    ),
    ("simulation, power loss", "hours"),
];

/// Cases of each property: Miri looks at what one does, not for a rare one.
const CASES: &str = "4";

/// `cargo xtask miri`.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    if let Some(missing) = nightly::missing_miri(workspace) {
        return Err(format!("Miri cannot run: {missing}"));
    }
    for (what, reason) in LEFT_OUT {
        println!("miri: left out: {what} ({reason})");
    }
    PARTS.iter().try_for_each(|part| {
        let mut command = nightly::cargo(workspace, &["miri", "test", "--locked", "--lib"]);
        command
            .args(arguments(part))
            .env("PROPTEST_CASES", CASES)
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            // Names of folders and the environment are the machine's.
            .env("MIRIFLAGS", "-Zmiri-disable-isolation")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        process::run(&mut command)
    })
}

/// The arguments behind `test` that choose the tests of a part.
fn arguments(part: &Part) -> Vec<&'static str> {
    let mut arguments = vec!["--package", part.package, "--"];
    arguments.extend(part.run);
    for name in part.skip {
        arguments.extend(["--skip", name]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::Tree;
    use crate::workspace::package_name;

    #[test]
    fn arguments_choose_and_skip_by_name() {
        let part = Part {
            package: "x",
            run: &["a::", "b::"],
            skip: &["a::slow"],
        };
        let expected = ["--package", "x", "--", "a::", "b::", "--skip", "a::slow"];
        assert_eq!(arguments(&part), expected);
    }

    /// Aim: a module that is renamed does not drop out in silence.
    #[test]
    fn every_module_and_test_of_the_list_is_there() {
        let tree = Tree::load(Workspace::find().unwrap().root()).unwrap();
        for part in &PARTS {
            let mut packages = tree.packages().into_iter();
            let package =
                packages.find(|(_, text)| package_name(text).as_deref() == Some(part.package));
            let folder = package.expect(part.package).0;
            let sources = || {
                let files = tree.texts_ending(".rs");
                files.filter(|(path, _)| path.starts_with(folder))
            };
            for name in part.run.iter().chain(part.skip) {
                let is_there = match name.strip_suffix("::") {
                    Some(module) => {
                        let file = format!("/src/{}", module.replace("::", "/"));
                        let is_file = |path: &str| {
                            path == format!("{folder}{file}.rs")
                                || path == format!("{folder}{file}/mod.rs")
                        };
                        sources().any(|(path, _)| is_file(path))
                    }
                    None => sources().any(|(_, text)| text.contains(&format!("fn {name}"))),
                };
                assert!(is_there, "{name} of {}", part.package);
            }
        }
    }
}
