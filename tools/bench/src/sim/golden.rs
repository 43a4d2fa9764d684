//! `golden`: every expected count beside the one that is simulated here.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use terrace_sim::golden::{self, Comparison, Expected, TRACES};

use crate::report::print_line;

/// Flags of the comparison.
#[derive(Clone, Debug, Args)]
pub struct GoldenArgs {
    /// Folder of the traces; without it TERRACE_TRACES, or shared/traces beside a folder above.
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
    /// File of expected counts; golden.json in the folder of the traces without it.
    #[arg(long, value_name = "FILE")]
    golden: Option<PathBuf>,
}

/// Compares and prints; returns the count of numbers that are not as expected.
///
/// # Errors
/// When the traces or the expected counts are not to be had, or not what they must be.
pub fn compare(args: &GoldenArgs) -> anyhow::Result<usize> {
    let folder = args.traces.clone().or_else(folder).context(
        "no traces: give their folder by --traces, or in the environment by TERRACE_TRACES",
    )?;
    let file = args
        .golden
        .clone()
        .unwrap_or_else(|| folder.join(golden::FILE));
    let all = golden::read(&file).context("--golden")?;
    let (mut compared, mut differing) = (0, 0);
    let mut missing = Vec::new();
    for (name, expected) in &all {
        let Some(path) = trace_file(&folder, name) else {
            missing.push(name.as_str());
            continue;
        };
        let (numbers, wrong) = compare_trace(name, expected, &path)?;
        compared += numbers;
        differing += wrong;
    }
    if !missing.is_empty() {
        let names = missing.join(", ");
        print_line(&format!("no trace in {} for {names}", folder.display()));
    }
    ensure!(
        compared > 0,
        "--traces: nothing in {} to compare with {}",
        folder.display(),
        file.display()
    );
    print_line(&format!("{compared} numbers compared, {differing} differ"));
    Ok(differing)
}

/// Compares one trace; returns the counts of numbers, and of those that differ.
fn compare_trace(name: &str, expected: &Expected, path: &Path) -> anyhow::Result<(usize, usize)> {
    let workload = expected.workload(path).context("--traces")?;
    let (accesses, blocks) = expected.extent;
    print_line(&format!("{name}: {accesses} accesses to {blocks} blocks"));
    print_line(&line("", "blocks", &expected.capacities, |_| false));
    let (mut compared, mut differing) = (0, 0);
    expected.compare(&workload, &mut |comparison| {
        compared += comparison.expected.len();
        differing += comparison.differences();
        print(&comparison);
    })?;
    Ok((compared, differing))
}

fn print(comparison: &Comparison) {
    let name = &comparison.name;
    print_line(&line(name, "expected", &comparison.expected, |_| false));
    match &comparison.got {
        Some(got) => {
            let is_marked = |at: usize| comparison.expected.get(at) != got.get(at);
            print_line(&line("", "got", got, is_marked));
        }
        None => print_line(&line("", "no such policy here *", &[], |_| false)),
    }
}

/// `name  what  numbers`, a `*` behind each number that is marked.
fn line(name: &str, what: &str, numbers: &[u64], is_marked: impl Fn(usize) -> bool) -> String {
    let mut line = format!("  {name:<28}{what:<9}");
    for (at, number) in numbers.iter().enumerate() {
        let mark = if is_marked(at) { '*' } else { ' ' };
        line += &format!("{number:>9}{mark}");
    }
    line.trim_end().to_owned()
}

/// The file of a trace by its name in the expected counts.
fn trace_file(folder: &Path, name: &str) -> Option<PathBuf> {
    let (_, file) = TRACES.iter().find(|(known, _)| *known == name)?;
    let path = folder.join(file);
    path.is_file().then_some(path)
}

/// Where traces are looked for when no folder is given.
fn folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("TERRACE_TRACES") {
        return Some(PathBuf::from(folder));
    }
    let here = std::env::current_dir().ok()?;
    let mut above = here.ancestors().map(|folder| folder.join("shared/traces"));
    above.find(|folder| folder.join(golden::FILE).is_file())
}
