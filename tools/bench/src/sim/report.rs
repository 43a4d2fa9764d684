//! Tables, JSON and CSV of rows, all from the same columns.

use serde_json::{Map, Value};

use super::options::SimOptions;
use super::rows::Column;
use super::write;
use crate::report::print_line;

/// Prints `rows` as `options` ask, and writes the CSV that they ask for.
pub(super) fn print<R>(
    options: &SimOptions,
    columns: &[Column<R>],
    rows: &[R],
) -> anyhow::Result<()> {
    if let Some(path) = &options.csv {
        write(path, "--csv", &csv(columns, rows))?;
    }
    if options.json {
        print_line(&serde_json::to_string_pretty(&objects(columns, rows))?);
        return Ok(());
    }
    for line in table(columns, rows) {
        print_line(&line);
    }
    Ok(())
}

/// An object for each row.
fn objects<R>(columns: &[Column<R>], rows: &[R]) -> Vec<Value> {
    let object = |row: &R| {
        let fields = columns
            .iter()
            .map(|column| (column.name.to_owned(), (column.value)(row)));
        Value::Object(fields.collect::<Map<_, _>>())
    };
    rows.iter().map(object).collect()
}

/// A line of names, and a line for each row; what a row has not is left empty.
fn csv<R>(columns: &[Column<R>], rows: &[R]) -> String {
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let mut text = names.join(",") + "\n";
    for row in rows {
        let values = columns.iter().map(|column| csv_value(&(column.value)(row)));
        text += &values.collect::<Vec<_>>().join(",");
        text += "\n";
    }
    text
}

fn csv_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text.clone(),
        number => number.to_string(),
    }
}

/// Lines of aligned columns, names to the left and numbers to the right.
fn table<R>(columns: &[Column<R>], rows: &[R]) -> Vec<String> {
    let shown = columns
        .iter()
        .filter_map(|column| Some((column.head?, column.value)));
    let (heads, values): (Vec<_>, Vec<_>) = shown.unzip();
    let mut cells: Vec<Vec<(String, bool)>> = Vec::new();
    for row in rows {
        let line = values
            .iter()
            .zip(&heads)
            .map(|(value, head)| cell(head, &value(row)));
        cells.push(line.collect());
    }
    let width = |at: usize| {
        let widths = cells.iter().map(|line| line[at].0.chars().count());
        widths.chain([heads[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let is_text = |at: usize| cells.first().is_some_and(|line| line[at].1);
    let head = heads
        .iter()
        .enumerate()
        .map(|(at, head)| aligned(head, widths[at], is_text(at)));
    let mut lines = vec![head.collect::<Vec<_>>().join("  ")];
    lines.extend(cells.iter().map(|line| {
        let line = line.iter().zip(&widths);
        let line = line.map(|((text, is_text), &width)| aligned(text, width, *is_text));
        line.collect::<Vec<_>>().join("  ")
    }));
    lines
}

fn aligned(text: &str, width: usize, is_text: bool) -> String {
    if is_text {
        format!("{text:<width$}")
    } else {
        format!("{text:>width$}")
    }
}

/// A value as a table shows it, and whether it is text.
fn cell(head: &str, value: &Value) -> (String, bool) {
    match value {
        Value::Null => ("-".to_owned(), false),
        Value::String(text) => (text.clone(), true),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(rate) if head == "million/s" => (format!("{:.1}", rate / 1e6), false),
            Some(seconds) if head == "prefill s saved" => (format!("{seconds:.0}"), false),
            Some(number) if matches!(head, "price" | "budget") => (number.to_string(), false),
            Some(bytes) if head == "bytes/block" => (format!("{bytes:.1}"), false),
            Some(share) => (format!("{:.2}%", share * 100.0), false),
            None => (number.to_string(), false),
        },
        other => (other.to_string(), false),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COLUMNS: [Column<(&str, Option<f64>)>; 2] = [
        Column {
            name: "name",
            head: Some("name"),
            value: |row| json!(row.0),
        },
        Column {
            name: "share",
            head: Some("%"),
            value: |row| json!(row.1),
        },
    ];

    #[test]
    fn csv_quotes_what_would_break_a_line() {
        let rows = [("plain", Some(0.5)), ("a,\"b\"", None)];
        let expected = "name,share\nplain,0.5\n\"a,\"\"b\"\"\",\n";
        assert_eq!(csv(&COLUMNS, &rows), expected);
    }

    #[test]
    fn table_aligns_names_left_and_numbers_right() {
        let rows = [("longer", Some(0.5)), ("x", None)];
        let expected = ["name         %", "longer  50.00%", "x            -"];
        assert_eq!(table(&COLUMNS, &rows), expected);
    }

    #[test]
    fn objects_have_every_column() {
        let objects = objects(&COLUMNS, &[("x", None)]);
        assert_eq!(json!(objects), json!([{"name": "x", "share": null}]));
    }
}
