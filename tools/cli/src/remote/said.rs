//! What a command says of each key: a line for people, or an object for programs.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{DONE, Stop};

/// What became of one key.
#[derive(Clone, Debug)]
pub struct Row {
    /// The key.
    pub key: Vec<u8>,
    /// Its exit code.
    pub code: u8,
    /// What became of it, in a word or two.
    pub status: String,
    /// What more there is to say, by name.
    pub facts: Vec<(&'static str, Value)>,
}

impl Row {
    /// A row with nothing more to say.
    #[must_use]
    pub fn plain(key: &[u8], code: u8, status: impl Into<String>) -> Self {
        Self {
            key: key.to_vec(),
            code,
            status: status.into(),
            facts: Vec::new(),
        }
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("key".into(), shown(&self.key).into());
        object.insert("key_hex".into(), hex(&self.key).into());
        object.insert("status".into(), self.status.as_str().into());
        for (name, value) in &self.facts {
            object.insert((*name).into(), value.clone());
        }
        Value::Object(object)
    }

    fn line(&self) -> String {
        let mut line = format!("{}\t{}", shown(&self.key), self.status);
        for (name, value) in &self.facts {
            let value = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            line.push_str(&format!("\t{name}={value}"));
        }
        line
    }
}

/// A key for people: what is not printable ASCII is escaped.
#[must_use]
pub fn shown(key: &[u8]) -> String {
    match str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}

/// A key for programs: its bytes as hexadecimal digits.
#[must_use]
pub fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The exit code of many keys: the highest of theirs.
#[must_use]
pub fn worst<'r>(rows: impl IntoIterator<Item = &'r Row>) -> u8 {
    rows.into_iter().map(|row| row.code).max().unwrap_or(DONE)
}

/// Prints rows, and returns the exit code of them all.
///
/// # Errors
/// When stdout cannot be written to. That its reader went away is no error.
pub fn say(rows: &[Row], is_json: bool) -> Result<u8, Stop> {
    let code = worst(rows);
    let text = if is_json {
        let results: Vec<_> = rows.iter().map(Row::json).collect();
        format!("{}\n", json!({ "results": results, "exit_code": code }))
    } else {
        rows.iter().map(|row| row.line() + "\n").collect()
    };
    print(text.as_bytes())?;
    Ok(code)
}

/// Writes to stdout.
///
/// # Errors
/// When it cannot be written to. That its reader went away is no error.
pub fn print(bytes: &[u8]) -> Result<(), Stop> {
    print_more(bytes).map(|_| ())
}

/// Writes to stdout; whether its reader is still there.
///
/// # Errors
/// As [`print()`].
pub fn print_more(bytes: &[u8]) -> Result<bool, Stop> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Stop::usage(format!("write to stdout: {error}"))),
    }
}
