//! `terrace put`: files, folders and stdin become blocks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use terrace_client::{CallOptions, PutItem};
use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_types::{ByteLen, Hint, Lookup, PutOutcome, RejectReason};

use super::files::{self, Piece, Source};
use super::said::{Row, say};
use super::{DONE, Node, NodeArgs, REJECTED, Stop, UNAVAILABLE, code_of, progress};

/// Most blocks that go in one call; with their bytes it bounds what is held in memory.
const BATCH_MAX: usize = 256;

/// What to store.
#[derive(Args, Debug)]
pub struct PutArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Key of the block.
    key: OsString,
    /// File or folder to store; `-` or nothing for stdin.
    file: Option<PathBuf>,
    /// Answer when the blocks survive kill -9 and power loss.
    #[arg(long)]
    durable: bool,
    /// Store in place of what is there. Without it what is there is kept.
    #[arg(long)]
    replace: bool,
    /// Longest piece; a longer file becomes several blocks.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    piece: ByteLen,
}

/// Runs the command; its exit code.
///
/// # Errors
/// What ends it early.
pub fn run(args: &PutArgs) -> Result<u8, Stop> {
    let piece_len = args.piece.0;
    if piece_len == 0 || piece_len > BLOCK_LEN_MAX {
        return Err(Stop::usage(format!(
            "--piece is {piece_len} bytes, it has to be 1 to {BLOCK_LEN_MAX}"
        )));
    }
    let mut node = args.node.node()?;
    node.options = CallOptions {
        durable: args.durable,
        ..CallOptions::default()
    };
    let key = args.key.as_bytes();
    let path = args.file.as_deref().filter(|path| *path != Path::new("-"));
    let rows = match path {
        None => from_stdin(&node, args, key)?,
        Some(path) => from_files(&node, args, &sources(path, key)?)?,
    };
    say(&rows, args.node.json)
}

fn sources(path: &Path, key: &[u8]) -> Result<Vec<Source>, Stop> {
    let wrong = |why: &dyn std::fmt::Display| Stop::usage(format!("{}: {why}", path.display()));
    let meta = std::fs::metadata(path).map_err(|error| wrong(&error))?;
    if meta.is_dir() {
        // `k/` names what `k` does: get, too, takes a folder's key with the slash.
        return files::walk(path, key.strip_suffix(b"/").unwrap_or(key));
    }
    if !meta.is_file() {
        return Err(wrong(
            &"neither a file nor a folder; give - to read from stdin",
        ));
    }
    Ok(vec![Source {
        path: path.to_owned(),
        len: meta.len(),
        key: key.to_vec(),
    }])
}

fn from_files(node: &Node, args: &PutArgs, sources: &[Source]) -> Result<Vec<Row>, Stop> {
    let bar = progress(sources.iter().map(|source| source.len).sum());
    let mut rows = Vec::new();
    let mut batch = Batch::default();
    for source in sources {
        let wrong = |error: io::Error| Stop::usage(format!("{}: {error}", source.path.display()));
        let pieces = files::pieces(source, args.piece.0)?;
        let file = File::open(&source.path).map_err(wrong)?;
        if pieces.len() > 1
            && let Some(kept) = make_way(node, source, args.replace)?
        {
            rows.push(kept);
            continue;
        }
        for piece in pieces {
            if batch.is_full(piece.len, args.piece.0) {
                rows.extend(batch.send(node, args.replace, &bar));
            }
            let mut value = vec![0; piece.len as usize];
            file.read_exact_at(&mut value, piece.offset)
                .map_err(wrong)?;
            batch.push(piece, value);
        }
    }
    rows.extend(batch.send(node, args.replace, &bar));
    bar.finish_and_clear();
    Ok(rows)
}

/// Sees to it that no block under the key of a whole file hides its pieces: reads find that first. It
/// is removed when it is to be replaced; else it is kept, and its row tells so.
fn make_way(node: &Node, source: &Source, is_replace: bool) -> Result<Option<Row>, Stop> {
    if is_replace {
        node.blocks.remove(&source.key, &node.options)?;
        return Ok(None);
    }
    let is_there = node.blocks.exists(&source.key, &node.options)? != Lookup::Miss;
    let status = "already there as one block; --replace stores the pieces in its place";
    Ok(is_there.then(|| Row::plain(&source.key, DONE, status)))
}

/// Stdin has no length. What is longer than a piece has to be read to its end before the first key is
/// known, and so it is refused beyond the length of a piece.
fn from_stdin(node: &Node, args: &PutArgs, key: &[u8]) -> Result<Vec<Row>, Stop> {
    let piece_len = args.piece.0;
    let wrong = |error: io::Error| Stop::usage(format!("read stdin: {error}"));
    let mut value = Vec::new();
    let mut source = io::stdin().lock().take(piece_len + 1);
    source.read_to_end(&mut value).map_err(wrong)?;
    if value.is_empty() {
        return Err(Stop::usage("stdin is empty; a block has at least 1 byte"));
    }
    if value.len() as u64 > piece_len {
        return Err(Stop::usage(format!(
            "stdin has more than {piece_len} bytes; store it as a file, which is cut into pieces"
        )));
    }
    let mut batch = Batch::default();
    let (offset, len) = (0, value.len() as u64);
    let key = key.to_vec();
    batch.push(Piece { key, offset, len }, value);
    Ok(batch.send(node, args.replace, &ProgressBar::hidden()))
}

/// Blocks that go in one call.
#[derive(Default)]
struct Batch {
    pieces: Vec<(Piece, Vec<u8>)>,
    len: u64,
}

impl Batch {
    /// Whether a piece has to wait for the next one.
    fn is_full(&self, len: u64, most: u64) -> bool {
        let is_over = self.len + len > most.max(files::PIECE_LEN);
        !self.pieces.is_empty() && (self.pieces.len() >= BATCH_MAX || is_over)
    }

    fn push(&mut self, piece: Piece, value: Vec<u8>) {
        self.len += piece.len;
        self.pieces.push((piece, value));
    }

    fn send(&mut self, node: &Node, is_replace: bool, bar: &ProgressBar) -> Vec<Row> {
        let pieces = std::mem::take(&mut self.pieces);
        let len = std::mem::take(&mut self.len);
        let values: Vec<[&[u8]; 1]> = pieces.iter().map(|(_, value)| [&value[..]]).collect();
        let items = pieces
            .iter()
            .zip(&values)
            .map(|((piece, _), value)| PutItem {
                key: &piece.key,
                value,
                hint: Hint::default(),
            });
        let items: Vec<_> = items.collect();
        let outcomes = match is_replace {
            true => node.blocks.upsert_batch(&items, &node.options),
            false => node.blocks.put_batch(&items, &node.options),
        };
        bar.inc(len);
        let rows = pieces.iter().zip(outcomes);
        rows.map(|((piece, _), outcome)| row(piece, outcome))
            .collect()
    }
}

fn row(piece: &Piece, outcome: Result<PutOutcome, terrace_client::Error>) -> Row {
    let (code, status, durable) = match outcome {
        Ok(PutOutcome::Stored { durable }) => (DONE, "stored".to_owned(), Some(durable)),
        Ok(PutOutcome::AlreadyExists { durable }) => {
            (DONE, "already there".to_owned(), Some(durable))
        }
        Ok(PutOutcome::Rejected(reason)) => {
            (REJECTED, format!("rejected: {}", hint_of(reason)), None)
        }
        Ok(PutOutcome::Busy) => (
            UNAVAILABLE,
            "busy: no room within the wait".to_owned(),
            None,
        ),
        Err(error) => (code_of(&error), error.to_string(), None),
    };
    let mut row = Row::plain(&piece.key, code, status);
    row.facts.push(("len", piece.len.into()));
    if let Some(durable) = durable {
        row.facts.push(("durable", durable.into()));
    }
    row
}

fn hint_of(reason: RejectReason) -> String {
    match reason {
        RejectReason::BlockTooLarge { limit, .. } => {
            format!("{reason}; give --piece {limit} or less")
        }
        reason => reason.to_string(),
    }
}
