//! A run of named, timed steps that ends at the first failure.

use std::fmt::Write as _;
use std::time::Instant;

/// How a step ended that did not fail.
pub(crate) enum Done {
    /// It ran and found nothing wrong.
    Passed,
    /// It did not run, for this reason.
    Skipped(String),
}

struct Row {
    name: String,
    seconds: f64,
    end: String,
}

/// The steps run so far.
#[derive(Default)]
pub(crate) struct Steps {
    rows: Vec<Row>,
}

impl Steps {
    /// Runs one step. An error carries the step's name.
    pub(crate) fn run(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<Done, String>,
    ) -> Result<(), String> {
        println!("== {name}");
        let start = now();
        let outcome = step();
        let seconds = now().duration_since(start).as_secs_f64();
        let end = match &outcome {
            Ok(Done::Passed) => "ok".to_owned(),
            Ok(Done::Skipped(reason)) => format!("SKIPPED: {reason}"),
            Err(_) => "FAILED".to_owned(),
        };
        self.rows.push(Row {
            name: name.to_owned(),
            seconds,
            end,
        });
        outcome
            .map(drop)
            .map_err(|error| format!("step `{name}` failed: {error}"))
    }

    /// The names of the steps that were skipped.
    pub(crate) fn skipped(&self) -> Vec<&str> {
        let skipped = self
            .rows
            .iter()
            .filter(|row| row.end.starts_with("SKIPPED"));
        skipped.map(|row| row.name.as_str()).collect()
    }

    /// One line a step: name, seconds, how it ended.
    pub(crate) fn table(&self) -> String {
        let width = self
            .rows
            .iter()
            .map(|row| row.name.len())
            .max()
            .unwrap_or(0)
            .max(4);
        let mut table = format!("{:width$}  {:>8}  end\n", "step", "seconds");
        for Row { name, seconds, end } in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{name:width$}  {seconds:>8.1}  {end}");
        }
        table
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "times whole build steps; there is no runtime here"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_failing_step_is_named_and_stays_in_the_table() {
        let mut steps = Steps::default();
        steps.run("first", || Ok(Done::Passed)).unwrap();
        let message = steps
            .run("second", || Err("it broke".to_owned()))
            .unwrap_err();
        assert_eq!(message, "step `second` failed: it broke");
        let table = steps.table();
        let ends: Vec<&str> = table
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .collect();
        assert_eq!(ends, ["end", "ok", "FAILED"]);
    }

    #[test]
    fn skipped_names_only_what_did_not_run() {
        let mut steps = Steps::default();
        steps.run("ran", || Ok(Done::Passed)).unwrap();
        steps
            .run("deny", || Ok(Done::Skipped("not installed".to_owned())))
            .unwrap();
        assert_eq!(steps.skipped(), ["deny"]);
        assert!(steps.table().contains("SKIPPED: not installed"));
    }
}
