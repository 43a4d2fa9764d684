//! `cargo xtask fuzz`: builds the fuzz targets as cargo-fuzz does, and runs them for a while.
//!
//! What a run finds to add coverage goes to `target/fuzz/found`; with `--keep` the least of it that
//! adds coverage goes to `fuzz/corpus`, which is committed. An input that breaks a target stays in
//! `target/fuzz/broken`, and the command fails.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::nightly;
use crate::process;
use crate::suite::programs;
use crate::workspace::Workspace;

/// How long a target runs when nobody says, in seconds.
const SECONDS: u32 = 60;

/// Longest input that the fuzzer makes, in bytes.
const INPUT_LEN_MAX: u32 = 4096;

/// What a target may take, in MiB: far above what the limits of its decoder allow, so that memory
/// that grows with a number in the input shows.
const MEMORY_MIB: u32 = 1024;
const ALLOCATION_MIB: u32 = 256;

/// Coverage of each branch, counted, and the operands of comparisons, as libFuzzer wants them; and
/// AddressSanitizer, so that a read past an end is a failure too.
const FLAGS: [&str; 8] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Zsanitizer=address",
];

/// What to fuzz, and how.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Options {
    target: Option<String>,
    seconds: Option<u32>,
    list: bool,
    keep: bool,
}

impl Options {
    /// The arguments behind `fuzz`.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--seconds" => {
                    let seconds = words.next().and_then(|text| text.parse().ok());
                    let seconds = seconds.filter(|seconds| *seconds > 0);
                    options.seconds = Some(seconds.ok_or("--seconds takes a number above 0")?);
                }
                name if !name.starts_with('-') && options.target.is_none() => {
                    options.target = Some(name.to_owned());
                }
                other => {
                    let known = "a target, --seconds N, --keep, --list";
                    return Err(format!("fuzz takes {known}, not `{other}`"));
                }
            }
        }
        Ok(options)
    }
}

/// `cargo xtask fuzz`.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let targets = chosen(targets(workspace)?, options.target.as_deref())?;
    if options.list {
        targets.iter().for_each(|target| println!("{target}"));
        return Ok(());
    }
    if let Some(missing) = missing(workspace) {
        return Err(format!("fuzzing cannot run: {missing}"));
    }
    build(workspace)?;
    let fuzz = Fuzz {
        workspace,
        seconds: options.seconds.unwrap_or(SECONDS),
    };
    for target in &targets {
        fuzz.run(target)?;
        if options.keep {
            fuzz.keep(target)?;
        }
    }
    Ok(())
}

/// All targets, `seconds` shared among them; for CI.
pub(crate) fn run_all(workspace: &Workspace, seconds: u32) -> Result<(), String> {
    let share = seconds / targets(workspace)?.len() as u32;
    let options = Options {
        seconds: Some(share.max(1)),
        ..Options::default()
    };
    run(workspace, &options)
}

/// What is missing to fuzz here; `None` when nothing is.
pub(crate) fn missing(workspace: &Workspace) -> Option<String> {
    let fetch = ["fetch", "--locked", "--manifest-path", "fuzz/Cargo.toml"];
    nightly::missing(workspace).or_else(|| {
        let has_compiler = process::succeeds(Command::new("c++").arg("--version"));
        if !has_compiler {
            return Some("no C++ compiler `c++`, which libfuzzer-sys is built with".to_owned());
        }
        let fetched = nightly::cargo(workspace, &fetch).output();
        let said = match fetched {
            Ok(output) if output.status.success() => return None,
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        (!is_stale(&said)).then(|| "libfuzzer-sys cannot be fetched".to_owned())
    })
}

/// Whether cargo says that `fuzz/Cargo.lock` no longer fits the packages. Nothing is missing then: the build
/// is to fail by it.
fn is_stale(said: &str) -> bool {
    said.contains("--locked")
}

fn targets(workspace: &Workspace) -> Result<Vec<String>, String> {
    programs(&workspace.root().join("fuzz/targets"))
}

fn chosen(targets: Vec<String>, name: Option<&str>) -> Result<Vec<String>, String> {
    match name {
        None => Ok(targets),
        Some(name) if targets.iter().any(|target| target == name) => Ok(vec![name.to_owned()]),
        Some(name) => {
            let list = targets.join(", ");
            Err(format!("there is no target `{name}`; there are {list}"))
        }
    }
}

fn build(workspace: &Workspace) -> Result<(), String> {
    let mut command = nightly::cargo(
        workspace,
        &["build", "--locked", "--manifest-path", "fuzz/Cargo.toml"],
    );
    command
        .args(["--bins", "--target", nightly::TARGET, "--target-dir"])
        .arg(workspace.target().join("fuzz"))
        .env("RUSTFLAGS", FLAGS.join(" "))
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    process::run(&mut command)
}

struct Fuzz<'a> {
    workspace: &'a Workspace,
    seconds: u32,
}

impl Fuzz<'_> {
    /// A folder below the fuzz targets' own, made when it is not there.
    fn folder(&self, name: &str, target: &str) -> Result<PathBuf, String> {
        let folder = self.workspace.target().join("fuzz").join(name).join(target);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }

    fn corpus(&self, target: &str) -> PathBuf {
        self.workspace.root().join("fuzz/corpus").join(target)
    }

    fn program(&self, target: &str) -> Result<Command, String> {
        let folder = self.workspace.target().join("fuzz");
        let mut command = Command::new(folder.join(nightly::TARGET).join("debug").join(target));
        let broken = self.folder("broken", target)?;
        command
            .current_dir(self.workspace.root())
            .arg(format!("-artifact_prefix={}/", broken.display()))
            .arg(format!("-max_len={INPUT_LEN_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-malloc_limit_mb={ALLOCATION_MIB}"))
            .args(["-timeout=10", "-verbosity=0", "-print_final_stats=1"]);
        Ok(command)
    }

    /// Runs a target on what is known of it, and lets the fuzzer find more.
    fn run(&self, target: &str) -> Result<(), String> {
        let mut command = self.program(target)?;
        command
            .arg(format!("-max_total_time={}", self.seconds))
            .arg(self.folder("found", target)?)
            .arg(self.corpus(target));
        process::run(&mut command).map_err(|error| {
            let broken = self.workspace.target().join("fuzz/broken").join(target);
            format!("{error}; the input is in {}", broken.display())
        })
    }

    /// Adds to the committed corpus the fewest inputs that together cover what was found. How often
    /// a branch was taken does not count: thousands of files would differ by that alone.
    fn keep(&self, target: &str) -> Result<(), String> {
        let mut command = self.program(target)?;
        command
            .args(["-set_cover_merge=1", "-use_counters=0"])
            .arg(self.corpus(target))
            .arg(self.folder("found", target)?);
        process::run(&mut command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn lock_file_that_does_not_fit_is_no_lack_of_a_package() {
        assert!(is_stale(
            "error: cannot update the lock file fuzz/Cargo.lock because --locked was passed"
        ));
        assert!(!is_stale(
            "error: failed to download from `https://index.crates.io`"
        ));
    }

    #[test]
    fn options_in_any_order_are_understood() {
        let options = parse("--keep footer --seconds 5").unwrap();
        assert_eq!(options.target.as_deref(), Some("footer"));
        assert_eq!((options.seconds, options.keep), (Some(5), true));
        assert!(parse("--list").unwrap().list);
        assert_eq!(parse(""), Ok(Options::default()));
    }

    #[test]
    fn options_wrong_are_named() {
        for line in ["--seconds", "--seconds 0", "--seconds x"] {
            assert!(parse(line).unwrap_err().contains("--seconds"), "{line}");
        }
        assert!(parse("a b").unwrap_err().contains("`b`"));
        assert!(parse("--fast").unwrap_err().contains("`--fast`"));
    }

    #[test]
    fn chosen_unknown_target_lists_those_there_are() {
        let targets = || vec!["footer".to_owned(), "trace".to_owned()];
        assert_eq!(chosen(targets(), None).unwrap().len(), 2);
        assert_eq!(chosen(targets(), Some("trace")).unwrap(), ["trace"]);
        let message = chosen(targets(), Some("tail")).unwrap_err();
        assert!(message.contains("`tail`") && message.contains("footer, trace"));
    }

    /// Aim: no target is without a corpus, and no corpus without a target.
    #[test]
    fn every_target_has_a_corpus_and_is_built() {
        let workspace = Workspace::find().unwrap();
        let manifest = fs::read_to_string(workspace.root().join("fuzz/Cargo.toml")).unwrap();
        let targets = targets(&workspace).unwrap();
        for target in &targets {
            assert!(
                manifest.contains(&format!("\"targets/{target}.rs\"")),
                "{target}"
            );
        }
        let folders = fs::read_dir(workspace.root().join("fuzz/corpus")).unwrap();
        let mut corpora: Vec<String> = folders
            .map(|folder| folder.unwrap().file_name().into_string().unwrap())
            .collect();
        corpora.sort();
        assert_eq!(corpora, targets);
    }
}
