//! `terrace top`: a live view of a node, from its admin interface.
//!
//! **Invariants**
//! - Every question to the node ends in time; a node that goes away is asked again until it was away
//!   for as long as the caller has patience.

mod http;
mod look;
mod view;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use crate::remote::{DONE, Stop, UNAVAILABLE};
use look::{Change, Look};

/// How long the node may take for an answer. It gives an older one after 2 s by itself.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// What to show, and how often.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Address of the node's admin interface.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7441")]
    admin: String,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Show what happens in one interval, and end.
    #[arg(long)]
    once: bool,
    /// Print one JSON object a line on stdout, and nothing else there.
    #[arg(long)]
    json: bool,
    /// Seconds for which a node that was there may be away.
    #[arg(long, value_name = "SECONDS", default_value = "60",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    patience: u64,
}

/// Shows a node until it is stopped, or the node is away for too long.
///
/// # Errors
/// [`UNAVAILABLE`] when the node is not there, or went away for too long; usage when stdout cannot
/// be written to.
pub fn run(args: &TopArgs) -> Result<u8, Stop> {
    let screen = Screen::of(args);
    let mut before = look(&args.admin).map_err(away)?;
    let mut away_since: Option<Instant> = None;
    loop {
        let interval = Duration::from_secs(args.interval);
        async_io::block_on(async_io::Timer::after(interval));
        match look(&args.admin) {
            Ok(now) => {
                away_since = None;
                let is_read = screen.show(args, &Change::between(&before, &now))?;
                before = now;
                if args.once || !is_read {
                    return Ok(DONE);
                }
            }
            Err(why) => {
                let since = *away_since.get_or_insert_with(http::now);
                let span = http::now().saturating_duration_since(since);
                if args.once || span >= Duration::from_secs(args.patience) {
                    return Err(away(why));
                }
                if !screen.show_away(&why)? {
                    return Ok(DONE);
                }
            }
        }
    }
}

fn look(admin: &str) -> Result<Look, String> {
    let body = http::get(admin, "/stats", ANSWER_TIME_MAX)?;
    // An array would be taken for the fields in their order.
    let object = serde_json::from_str(&body).map(serde_json::Value::Object);
    let stats = object.and_then(serde_json::from_value);
    let stats = stats.map_err(|error| format!("{admin}/stats: {error}"))?;
    let at = http::now();
    Ok(Look { stats, at })
}

fn away(line: String) -> Stop {
    let code = UNAVAILABLE;
    Stop { code, line }
}

/// How changes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Screen {
    Json,
    /// Blocks of lines, one after the other.
    Blocks,
    /// A terminal, drawn again each time.
    Terminal,
}

impl Screen {
    fn of(args: &TopArgs) -> Self {
        if args.json {
            return Self::Json;
        }
        let is_terminal = io::stdout().is_terminal() && !args.once;
        if is_terminal {
            Self::Terminal
        } else {
            Self::Blocks
        }
    }

    /// Whether anybody reads, as of the others.
    fn show(self, args: &TopArgs, change: &Change) -> Result<bool, Stop> {
        if self == Self::Json {
            let text = serde_json::to_string(change);
            let text = text.map_err(|error| Stop::usage(format!("print JSON: {error}")))?;
            return print(&format!("{text}\n"));
        }
        self.draw(&view::lines(&args.admin, change))
    }

    fn show_away(self, why: &str) -> Result<bool, Stop> {
        match self {
            Self::Json => print(&format!("{}\n", json!({ "away": why }))),
            _ => self.draw(&[format!("{why}; trying again")]),
        }
    }

    fn draw(self, lines: &[String]) -> Result<bool, Stop> {
        if self != Self::Terminal {
            return print(&format!("{}\n\n", lines.join("\n")));
        }
        let rows = terminal_size::terminal_size().map_or(24, |(_, rows)| usize::from(rows.0));
        print(&frame(lines, rows))
    }
}

/// Writes to stdout; whether anybody reads there.
fn print(text: &str) -> Result<bool, Stop> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Stop::usage(format!("write to stdout: {error}"))),
    }
}

/// Lines as a terminal of so many rows takes them: over what is there, and cut at its edges.
fn frame(lines: &[String], rows: usize) -> String {
    // Home, and no wrapping; each line clears its rest, and the last one what is below.
    let mut out = String::from("\x1b[H\x1b[?7l");
    let shown: Vec<&str> = lines.iter().take(rows).map(String::as_str).collect();
    out.push_str(&shown.join("\x1b[K\r\n"));
    out.push_str("\x1b[K\x1b[J\x1b[?7h");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_has_no_more_lines_than_the_terminal() {
        let lines: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        let out = frame(&lines, 10);
        assert_eq!(out.matches("\r\n").count(), 9);
        assert!(out.contains("\n9\x1b[K\x1b[J") && !out.contains("10"));
    }
}
