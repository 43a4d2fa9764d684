//! Starting other programs: what runs is shown, and what fails is named.

use std::process::{Command, Stdio};

/// Runs a command with its output passed through; an error names the command and its end.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let line = command_line(command);
    println!("+ {line}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("`{line}` could not be started: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{line}` ended with {status}"))
    }
}

/// The first line that a command prints; `None` when it is missing or fails.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Whether a command can be started and succeeds; its output is not shown.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let output = command.stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

/// The command as one would type it, the program without its folder.
fn command_line(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    let arguments = command
        .get_args()
        .map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(program)
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_failing_command_is_named_with_its_arguments() {
        let message = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(message.contains("`sh -c exit 3`"), "{message}");
        assert!(message.contains('3'), "{message}");
    }

    #[test]
    fn run_missing_program_is_an_error() {
        let message = run(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(message.contains("could not be started"), "{message}");
    }

    #[test]
    fn first_line_of_a_failing_command_is_none() {
        let text = first_line(Command::new("sh").args(["-c", "echo one; echo two"]));
        assert_eq!(text.as_deref(), Some("one"));
        assert_eq!(
            first_line(Command::new("sh").args(["-c", "echo one; exit 1"])),
            None
        );
    }
}
