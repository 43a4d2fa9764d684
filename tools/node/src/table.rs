//! The table of all settings, as docs/node.md has it: names and words from where they are parsed.

use std::fmt::Write;

use clap::CommandFactory;

use crate::Cli;
use crate::settings::FIELDS;

/// The table in Markdown, a row for each setting.
pub(crate) fn settings() -> String {
    let command = Cli::command();
    let mut table = String::from("| name | flag | what | default |\n|---|---|---|---|\n");
    for field in FIELDS {
        let found = command.get_arguments().find(|arg| arg.get_id() == field);
        let flag = found.and_then(clap::Arg::get_long).unwrap_or_default();
        let what = found.and_then(clap::Arg::get_help).map(ToString::to_string);
        let what = what.unwrap_or_default();
        let (what, default) = (what.trim_end_matches('.'), default_of(field));
        // Writing to a string does not fail.
        let _ = writeln!(table, "| `{field}` | `--{flag}` | {what} | {default} |");
    }
    table
}

/// What is in force when nobody says, in words where the machine decides.
fn default_of(field: &str) -> &'static str {
    match field {
        "listen" => "`127.0.0.1:7440`",
        "metrics" => "`127.0.0.1:7441`",
        "data" => "`terrace-data`",
        "dram" => "a quarter of what machine or control group have, 64 MiB to 64 GiB",
        "nvme" => {
            "that of a file that is there; else four times `dram`, at most 8 GiB and a quarter of \
             the free space"
        }
        "shards" => "processors but one",
        "pinned" | "insecure" | "format" => "`false`",
        "hugepages" => "`prefer`",
        "policy" => "that of the engine",
        "connections" => "16384",
        "silence" => "300",
        "slow_ms" => "100",
        "log_format" => "`text`",
        "drain" => "30",
        _ => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: no setting without its flag and its words, and no flag that is no setting.
    #[test]
    fn settings_and_flags_are_the_same() {
        let command = Cli::command();
        let own = ["config", "check", "help_config"];
        let flags = command.get_arguments().map(|arg| arg.get_id().as_str());
        let mut flags: Vec<&str> = flags.filter(|id| !own.contains(id)).collect();
        let mut fields = FIELDS.to_vec();
        flags.sort_unstable();
        fields.sort_unstable();
        assert_eq!(flags, fields);
        for row in settings().lines().skip(2) {
            let cells: Vec<&str> = row.split(" | ").collect();
            assert_eq!(cells.len(), 4, "{row}");
            assert!(cells[1].len() > 4 && !cells[2].is_empty(), "{row}");
        }
    }
}
