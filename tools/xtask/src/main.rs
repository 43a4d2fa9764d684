//! The development commands of this workspace: `cargo xtask <command>`.
//!
//! It uses nothing but std, so that it builds in seconds and can say what the machine lacks
//! before anything heavy is compiled. It starts cargo; it never links a crate of the workspace.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "a command-line tool reports on standard output"
)]

mod asan;
mod ci;
mod demo;
mod fuzz;
mod miri;
mod nightly;
mod planted;
mod process;
mod rdma;
mod setup;
mod steps;
mod suite;
mod tidy;
mod workspace;

use std::process::ExitCode;

use setup::Reserved;
use steps::Done;
use workspace::Workspace;

const USAGE: &str = "\
cargo xtask <command>

  demo             set up, build, start a node, replay a trace to it, print the table
  test             set up, then every test, doc test, example and small bench run
  ci               what CI runs: fmt, clippy, tidy, test, doc, rdma, deny, miri, fuzz, readme
  planted [NAME]   plant known bugs, one at a time: the tests have to find each
  tidy             the rules of docs/style.md that a program can check
  setup [--check]  find what build and tests need; install it as root, else print the command
                   (--check changes nothing)
  fuzz [TARGET] [--seconds N] [--keep] [--list]
                   run fuzz targets, 60 s each; --keep adds to fuzz/corpus what adds coverage
  miri             the tests that Miri can run
  rdma [--bandwidth]
                   the RDMA tests, in virtual machines with soft-RoCE NICs; as root
                   (--bandwidth: reads beside ib_read_bw instead)
  asan [PACKAGE]   tests of the crates with unsafe code under AddressSanitizer
  help             this text
";

/// One command line, understood.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Demo,
    Test,
    Ci,
    Planted { only: Option<String> },
    Tidy,
    Setup { check_only: bool },
    Fuzz(fuzz::Options),
    Miri,
    Rdma { is_bandwidth: bool },
    Asan { package: Option<String> },
    Help,
}

fn parse(arguments: &[String]) -> Result<Task, String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["demo"] => Ok(Task::Demo),
        ["test"] => Ok(Task::Test),
        ["ci"] => Ok(Task::Ci),
        ["planted"] => Ok(Task::Planted { only: None }),
        ["planted", name] => Ok(Task::Planted {
            only: Some((*name).to_owned()),
        }),
        ["tidy"] => Ok(Task::Tidy),
        ["setup"] => Ok(Task::Setup { check_only: false }),
        ["setup", "--check"] => Ok(Task::Setup { check_only: true }),
        ["fuzz", rest @ ..] => fuzz::Options::parse(rest).map(Task::Fuzz),
        ["miri"] => Ok(Task::Miri),
        ["rdma"] => Ok(Task::Rdma {
            is_bandwidth: false,
        }),
        ["rdma", "--bandwidth"] => Ok(Task::Rdma { is_bandwidth: true }),
        ["rdma", other, ..] => Err(format!("rdma takes --bandwidth or nothing, not `{other}`")),
        ["asan"] => Ok(Task::Asan { package: None }),
        ["asan", package] => Ok(Task::Asan {
            package: Some((*package).to_owned()),
        }),
        [] | ["help" | "--help" | "-h"] => Ok(Task::Help),
        ["asan", _, other, ..] => Err(format!("asan takes one package, not also `{other}`")),
        ["planted", _, other, ..] => Err(format!("planted takes one name, not also `{other}`")),
        ["setup", other, ..] => Err(format!("setup takes --check or nothing, not `{other}`")),
        [
            known @ ("demo" | "test" | "ci" | "tidy" | "miri" | "help"),
            other,
            ..,
        ] => Err(format!(
            "{known} takes no arguments, but was given `{other}`"
        )),
        [unknown, ..] => Err(format!(
            "there is no command `{unknown}`; the commands are demo, test, ci, tidy, setup, \
             planted, fuzz, miri, rdma, asan, help"
        )),
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let task = parse(arguments)?;
    if task == Task::Help {
        print!("{USAGE}");
        return Ok(());
    }
    let workspace = Workspace::find()?;
    match task {
        Task::Demo => demo::run(&workspace),
        Task::Test => suite::run(&workspace),
        Task::Ci => ci::run(&workspace),
        Task::Planted { only } => planted::run(&workspace, only.as_deref()),
        Task::Tidy => tidy::run(&workspace),
        Task::Setup { check_only } => setup::run(check_only).map(Reserved::keep),
        Task::Fuzz(options) => fuzz::run(&workspace, &options),
        Task::Miri => miri::run(&workspace),
        Task::Rdma {
            is_bandwidth: false,
        } => rdma::run(&workspace).map(report_skip),
        Task::Rdma { is_bandwidth: true } => rdma::bandwidth(&workspace).map(report_skip),
        Task::Asan { package } => asan::run(&workspace, package.as_deref()),
        Task::Help => Ok(()),
    }
}

/// Says so when a step did not run, and why.
fn report_skip(done: Done) {
    if let Done::Skipped(reason) = done {
        println!("skipped: {reason}");
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Task, String> {
        parse(
            &line
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn parse_known_commands_gives_their_task() {
        assert_eq!(parse_line("demo"), Ok(Task::Demo));
        assert_eq!(parse_line("test"), Ok(Task::Test));
        assert_eq!(parse_line("ci"), Ok(Task::Ci));
        assert_eq!(parse_line("tidy"), Ok(Task::Tidy));
        assert_eq!(parse_line("setup"), Ok(Task::Setup { check_only: false }));
        assert_eq!(
            parse_line("setup --check"),
            Ok(Task::Setup { check_only: true })
        );
        assert_eq!(parse_line("miri"), Ok(Task::Miri));
        let rdma = |is_bandwidth| Ok(Task::Rdma { is_bandwidth });
        assert_eq!(parse_line("rdma"), rdma(false));
        assert_eq!(parse_line("rdma --bandwidth"), rdma(true));
        assert_eq!(
            parse_line("fuzz --list"),
            fuzz::Options::parse(&["--list"]).map(Task::Fuzz)
        );
        let package = Some("x".to_owned());
        assert_eq!(parse_line("asan x"), Ok(Task::Asan { package }));
        assert_eq!(parse_line("asan"), Ok(Task::Asan { package: None }));
        assert_eq!(parse_line(""), Ok(Task::Help));
    }

    #[test]
    fn parse_unknown_command_lists_all_commands() {
        let message = parse_line("tset").unwrap_err();
        for command in [
            "`tset`", "demo", "test", "ci", "tidy", "setup", "planted", "fuzz", "miri", "rdma",
            "asan", "help",
        ] {
            assert!(message.contains(command), "{message}");
        }
    }

    #[test]
    fn parse_stray_argument_is_named() {
        assert!(
            parse_line("setup --chekc")
                .unwrap_err()
                .contains("`--chekc`")
        );
        assert!(parse_line("test fast").unwrap_err().contains("`fast`"));
        assert!(parse_line("asan x y").unwrap_err().contains("`y`"));
    }
}
