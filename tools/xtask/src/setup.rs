//! What build and tests need of the machine: found, installed as root, or named with the
//! exact command that brings it.
//!
//! What is needed, and by whom:
//! - a C compiler, `gcc` or what `CC` names: glommio's build script compiles its bundled
//!   liburing, after a `configure` that calls the compiler by itself (no make, no pkg-config);
//! - `git`: the same build script starts it and panics when it is missing;
//! - Linux 5.8 with io_uring switched on, and 512 KiB of locked memory: glommio refuses less;
//! - 2 MiB hugepages: wanted, not needed. The engine falls back to 4 KiB pages.

mod host;
mod hugepages;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process;
use host::{KernelVersion, Limit};
use hugepages::Pool;
pub(crate) use hugepages::Reserved;

/// What one check found.
enum Finding {
    /// As needed; what was seen.
    Fine(String),
    /// Works without; what was seen and what would better it.
    Warning(String),
    /// Missing, and this Debian package brings it.
    Package { package: &'static str, why: String },
    /// Missing, and this command or change brings it.
    Missing(String),
}

/// Checks everything, and as root installs and reserves what is missing. Dropping what this
/// returns gives the hugepages reserved here back to the kernel; `keep` leaves them.
pub(crate) fn run(check_only: bool) -> Result<Reserved, String> {
    let is_root = host::is_root();
    let mut missing = report(&programs());
    if !missing.packages.is_empty() && !check_only && is_root && apt_get_exists() {
        install(&missing.packages)?;
        missing = report(&programs());
    }
    missing.extend(report(&[
        ("kernel", kernel()),
        ("io_uring", io_uring(is_root)),
        ("locked memory", locked_memory(check_only, is_root)),
    ]));
    let reserved = if check_only || !missing.is_empty() {
        report(&[("2 MiB hugepages", hugepages_as_found())]);
        Reserved::nothing()
    } else {
        let (reserved, finding) = hugepages_reserved(is_root);
        report(&[("2 MiB hugepages", finding)]);
        reserved
    };
    missing.into_result().map(|()| reserved)
}

/// What is missing after a round of checks.
#[derive(Default)]
struct Missing {
    packages: Vec<&'static str>,
    others: Vec<String>,
}

impl Missing {
    fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.others.is_empty()
    }

    fn extend(&mut self, other: Self) {
        self.packages.extend(other.packages);
        self.others.extend(other.others);
    }

    /// An error with one line for each thing to do.
    fn into_result(self) -> Result<(), String> {
        let mut lines = self.others;
        if !self.packages.is_empty() {
            lines.insert(0, format!("run: sudo {}", install_line(&self.packages)));
        }
        if lines.is_empty() {
            return Ok(());
        }
        Err(format!(
            "the machine lacks something\n  {}",
            lines.join("\n  ")
        ))
    }
}

fn report(findings: &[(&str, Finding)]) -> Missing {
    let mut missing = Missing::default();
    for (name, finding) in findings {
        let (mark, text) = match finding {
            Finding::Fine(text) => ("ok", text),
            Finding::Warning(text) => ("WARN", text),
            Finding::Package { package, why } => {
                missing.packages.push(package);
                ("MISSING", why)
            }
            Finding::Missing(text) => {
                missing.others.push(format!("{name}: {text}"));
                ("MISSING", text)
            }
        };
        println!("setup: {name:<16} {mark:<8} {text}");
    }
    missing
}

fn programs() -> [(&'static str, Finding); 2] {
    [("C compiler", c_compiler()), ("git", git())]
}

fn c_compiler() -> Finding {
    let package = "build-essential";
    // liburing's configure takes gcc, the cc crate takes cc, and CC overrides both.
    let compilers = match std::env::var("CC") {
        Ok(named) => vec![named],
        Err(_) => vec!["cc".to_owned(), "gcc".to_owned()],
    };
    for compiler in &compilers {
        if process::first_line(Command::new(compiler).arg("--version")).is_none() {
            let why = format!("`{compiler}` does not run; glommio builds its liburing with it");
            return Finding::Package { package, why };
        }
        // A compiler without the C library's headers answers --version all the same.
        let headers =
            "printf '#include <stdlib.h>\\n#include <linux/types.h>\\n' | \"$0\" -E -x c -";
        if process::first_line(Command::new("sh").args(["-c", headers, compiler])).is_none() {
            let why = format!("`{compiler}` finds no headers of the C library or the kernel");
            return Finding::Package { package, why };
        }
    }
    Finding::Fine(compilers.join(", "))
}

fn git() -> Finding {
    match process::first_line(Command::new("git").arg("--version")) {
        Some(version) => Finding::Fine(version),
        None => Finding::Package {
            package: "git",
            why: "`git` does not run; glommio's build script starts it".to_owned(),
        },
    }
}

fn kernel() -> Finding {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = text.trim();
    match KernelVersion::parse(release) {
        Some(version) if version >= host::KERNEL_MIN => Finding::Fine(release.to_owned()),
        _ => Finding::Missing(format!(
            "`{release}` is not Linux {} or newer",
            host::KERNEL_MIN
        )),
    }
}

fn io_uring(is_root: bool) -> Finding {
    let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    match host::io_uring_refusal(switch.as_deref(), is_root) {
        None => Finding::Fine("not disabled".to_owned()),
        Some(refusal) => Finding::Missing(refusal),
    }
}

fn locked_memory(check_only: bool, is_root: bool) -> Finding {
    let read = || Limit::parse(&fs::read_to_string("/proc/self/limits").unwrap_or_default());
    let Some(mut limit) = read() else {
        return Finding::Missing("/proc/self/limits does not tell the limit".to_owned());
    };
    if !limit.is_enough() && !check_only && (is_root || limit.can_be_raised()) {
        // Raises the limit of this process, and with it of all that it starts.
        let pid = std::process::id().to_string();
        let value = format!("--memlock={}", limit.raised(is_root));
        let _ = process::first_line(Command::new("prlimit").args(["--pid", &pid, &value]));
        limit = read().unwrap_or(limit);
    }
    if limit.is_enough() {
        Finding::Fine(limit.to_string())
    } else {
        Finding::Missing(limit.advice())
    }
}

fn hugepages_as_found() -> Finding {
    match Pool::read() {
        Ok(pool) => match pool.wanted_total() {
            None => Finding::Fine(pool.to_string()),
            Some(total) => Finding::Warning(format!("{pool}; {}", hugepages::advice(total))),
        },
        Err(why) => Finding::Warning(format!("{why}; the engine falls back to 4 KiB pages")),
    }
}

fn hugepages_reserved(is_root: bool) -> (Reserved, Finding) {
    let Some(total) = Pool::read().ok().and_then(|pool| pool.wanted_total()) else {
        return (Reserved::nothing(), hugepages_as_found());
    };
    if !is_root {
        return (Reserved::nothing(), hugepages_as_found());
    }
    match Reserved::reserve(total) {
        Ok(reserved) => (reserved, hugepages_as_found()),
        Err(why) => (Reserved::nothing(), Finding::Warning(why)),
    }
}

fn apt_get_exists() -> bool {
    Path::new("/usr/bin/apt-get").exists()
}

fn install_line(packages: &[&str]) -> String {
    format!(
        "apt-get install --yes --no-install-recommends {}",
        packages.join(" ")
    )
}

fn install(packages: &[&str]) -> Result<(), String> {
    process::run(Command::new("apt-get").arg("update"))?;
    let line = install_line(packages);
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    process::run(command.args(words).env("DEBIAN_FRONTEND", "noninteractive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_collects_what_is_missing_and_nothing_else() {
        let missing = report(&[
            ("a", Finding::Fine("seen".to_owned())),
            ("b", Finding::Warning("odd".to_owned())),
            (
                "c",
                Finding::Package {
                    package: "git",
                    why: "gone".to_owned(),
                },
            ),
            ("d", Finding::Missing("run: this".to_owned())),
        ]);
        assert_eq!(missing.packages, ["git"]);
        assert_eq!(missing.others, ["d: run: this"]);
        let message = missing.into_result().unwrap_err();
        assert!(message.contains("sudo apt-get install --yes --no-install-recommends git"));
        assert!(message.contains("d: run: this"), "{message}");
    }

    #[test]
    fn report_warnings_alone_do_not_fail() {
        assert_eq!(
            report(&[("b", Finding::Warning("odd".to_owned()))]).into_result(),
            Ok(())
        );
    }
}
