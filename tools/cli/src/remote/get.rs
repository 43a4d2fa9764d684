//! `terrace get`: blocks become files, or go to stdout.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use terrace_client::Listed;
use terrace_types::Lookup;

use super::files;
use super::said::{Row, print, say, shown};
use super::{DONE, MISSING, Node, NodeArgs, REJECTED, Stop, UNAVAILABLE, progress};

/// What to read.
#[derive(Args, Debug)]
pub struct GetArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Key of the block, or of the file that was cut into pieces. One that ends in `/` names all that
    /// was stored from a folder, and `-o` the folder it goes to.
    key: OsString,
    /// File to write; nothing for stdout. It is there when all of it is, and not before.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command; its exit code.
///
/// # Errors
/// What ends it early.
pub fn run(args: &GetArgs) -> Result<u8, Stop> {
    let node = args.node.node()?;
    let key = args.key.as_bytes();
    let Some(output) = &args.output else {
        if key.ends_with(b"/") {
            return Err(Stop::usage(
                "a key that ends in `/` names a folder: give -o FOLDER",
            ));
        }
        if args.node.json {
            return Err(Stop::usage(
                "--json and the block cannot both go to stdout: give -o FILE",
            ));
        }
        return to_stdout(&node, key);
    };
    let rows = match key.ends_with(b"/") {
        true => to_folder(&node, key, output)?,
        false => vec![to_file(&node, key, output)?],
    };
    let has_failed = rows.iter().any(|row| row.code != DONE);
    if args.node.json || has_failed {
        return say(&rows, args.node.json);
    }
    Ok(DONE)
}

fn missing(key: &[u8]) -> Stop {
    Stop {
        code: MISSING,
        line: format!("key `{}`: no such block", shown(key)),
    }
}

/// A block; `None` when it is missing.
fn block(node: &Node, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
    match node.blocks.get(key, &node.options)? {
        Lookup::Hit { value, .. } => Ok(Some(value)),
        Lookup::Miss => Ok(None),
        Lookup::Unavailable(reason) => Err(Stop {
            code: UNAVAILABLE,
            line: format!("key `{}`: {reason}", shown(key)),
        }),
    }
}

fn to_stdout(node: &Node, key: &[u8]) -> Result<u8, Stop> {
    copy(node, key, &mut print).map(|_| DONE)
}

/// Hands the bytes of a key to `write`, those of its pieces one after another. How many there were.
fn copy(
    node: &Node,
    key: &[u8],
    write: &mut dyn FnMut(&[u8]) -> Result<(), Stop>,
) -> Result<u64, Stop> {
    if let Some(value) = block(node, key)? {
        write(&value)?;
        return Ok(value.len() as u64);
    }
    let pieces = pieces_of(node, key)?;
    let bar = progress(pieces.iter().map(|piece| piece.len).sum());
    let len = copy_pieces(node, &pieces, &bar, write)?;
    bar.finish_and_clear();
    Ok(len)
}

fn copy_pieces(
    node: &Node,
    pieces: &[Listed],
    bar: &ProgressBar,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Stop>,
) -> Result<u64, Stop> {
    let mut len = 0;
    for piece in pieces {
        let value = block(node, &piece.key)?.ok_or_else(|| missing(&piece.key))?;
        write(&value)?;
        bar.inc(value.len() as u64);
        len += value.len() as u64;
    }
    Ok(len)
}

/// The blocks whose keys begin with `prefix`, by key.
fn listed(node: &Node, prefix: &[u8]) -> Result<BTreeMap<Vec<u8>, Listed>, Stop> {
    let mut all = BTreeMap::new();
    let mut listing = node.blocks.list(prefix, &node.options);
    while let Some(page) = listing.next_page()? {
        all.extend(page.into_iter().map(|block| (block.key.clone(), block)));
    }
    Ok(all)
}

/// All pieces of a file, in order.
fn pieces_of(node: &Node, key: &[u8]) -> Result<Vec<Listed>, Stop> {
    let all = match listed(node, &[key, files::PART].concat()) {
        // A node that lists nothing has no files of several pieces to find.
        Err(stop) if stop.code == REJECTED => return Err(missing(key)),
        all => all?,
    };
    let of_key = all
        .into_values()
        .filter(|block| files::parse_piece(&block.key).is_some_and(|(whole, ..)| whole == key));
    complete(key, of_key.collect())
}

/// The pieces, in order of their keys, when none is missing.
fn complete(key: &[u8], pieces: Vec<Listed>) -> Result<Vec<Listed>, Stop> {
    let count_of = |piece: &Listed| files::parse_piece(&piece.key).map(|(_, _, count)| count);
    let Some(count) = pieces.first().and_then(count_of) else {
        return Err(missing(key));
    };
    if pieces.iter().any(|piece| count_of(piece) != Some(count)) {
        let line = format!(
            "key `{}`: pieces of several lengths are stored; remove those that are old",
            shown(key)
        );
        return Err(Stop::usage(line));
    }
    for number in 1..=count {
        let wanted = files::piece_key(key, number, count);
        if pieces.get(number as usize - 1).map(|piece| &piece.key) != Some(&wanted) {
            return Err(missing(&wanted));
        }
    }
    Ok(pieces)
}

fn to_file(node: &Node, key: &[u8], path: &Path) -> Result<Row, Stop> {
    let len = write_file(path, |write| copy(node, key, write))?;
    let mut row = Row::plain(key, DONE, "written");
    row.facts.push(("len", len.into()));
    Ok(row)
}

/// Writes a file that is there when all of it is.
fn write_file(
    path: &Path,
    fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), Stop>) -> Result<u64, Stop>,
) -> Result<u64, Stop> {
    let wrong = |error: io::Error| Stop::usage(format!("{}: {error}", path.display()));
    let Some(name) = path.file_name() else {
        let line = format!("{}: names no file", path.display());
        return Err(Stop::usage(line));
    };
    // A rename would put a file in its place.
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        let line = format!("{}: there, and no plain file", path.display());
        return Err(Stop::usage(line));
    }
    let mut partial = name.to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial);
    // One that is there is another's, and stays.
    let mut file = File::create_new(&partial).map_err(wrong)?;
    let mut write = |value: &[u8]| file.write_all(value).map_err(wrong);
    let written = fill(&mut write).and_then(|len| {
        fs::rename(&partial, path).map_err(wrong)?;
        Ok(len)
    });
    if written.is_err() {
        // What is wrong is told already.
        drop(fs::remove_file(&partial));
    }
    written
}

fn to_folder(node: &Node, prefix: &[u8], folder: &Path) -> Result<Vec<Row>, Stop> {
    let all = listed(node, prefix)?;
    if all.is_empty() {
        return Err(missing(prefix));
    }
    let bar = progress(all.values().map(|block| block.len).sum());
    let mut wholes: BTreeMap<Vec<u8>, Vec<Listed>> = BTreeMap::new();
    for (key, block) in all {
        let whole = files::parse_piece(&key).map_or(&key[..], |(whole, ..)| whole);
        wholes.entry(whole.to_vec()).or_default().push(block);
    }
    let mut rows = Vec::new();
    for (key, blocks) in wholes {
        let path = files::path_in(folder, prefix, &key)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .map_err(|error| Stop::usage(format!("{}: {error}", parent.display())))?;
        }
        let is_whole = blocks.iter().any(|block| block.key == key);
        let blocks = match is_whole {
            true => blocks
                .into_iter()
                .filter(|block| block.key == key)
                .collect(),
            false => complete(&key, blocks)?,
        };
        let len = write_file(&path, |write| copy_pieces(node, &blocks, &bar, write))?;
        let mut row = Row::plain(&key, DONE, "written");
        row.facts.push(("len", len.into()));
        rows.push(row);
    }
    bar.finish_and_clear();
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_file_of_another_is_not_removed() {
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("terrace-get-{process}"));
        let partial = path.with_extension(format!("{process}.partial"));
        fs::write(&partial, b"another's").unwrap();
        let written = write_file(&path, |_| panic!("nothing to write to"));
        assert_eq!(written.unwrap_err().code, super::super::USAGE);
        assert_eq!(fs::read(&partial).unwrap(), b"another's");
        fs::remove_file(&partial).unwrap();
    }
}
