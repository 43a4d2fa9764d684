//! How files become blocks: their keys, and the pieces of those that are too long for one.
//!
//! A file of at most `piece_len` bytes is one block under its key. A longer one is cut into pieces, and
//! piece 3 of 12 has the key `KEY.part-00003-of-00012`, counted from 1: so each name tells how many
//! there have to be. A file of a folder has the key `KEY/PATH`, where `PATH` is its path within it.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Stop;

/// Longest piece of a file, in bytes, unless told otherwise.
pub const PIECE_LEN: u64 = 64 << 20;

/// Most pieces of a file: five digits.
const PIECES_MAX: u64 = 99_999;

/// Most folders in folders that are walked: a loop of mounts ends somewhere.
const DEPTH_MAX: usize = 64;

/// A piece of a file, which becomes one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its key.
    pub key: Vec<u8>,
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// A file that is to be stored.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it lies.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// The key of it as a whole.
    pub key: Vec<u8>,
}

/// The pieces of a file of `len` bytes.
///
/// # Errors
/// When it is empty, or there would be more than 99,999.
pub fn pieces(source: &Source, piece_len: u64) -> Result<Vec<Piece>, Stop> {
    let count = source.len.div_ceil(piece_len.max(1));
    let path = source.path.display();
    if count == 0 {
        return Err(Stop::usage(format!(
            "{path}: an empty file; a block has at least 1 byte"
        )));
    }
    if count > PIECES_MAX {
        return Err(Stop::usage(format!(
            "{path}: {count} pieces of {piece_len} bytes, the limit is {PIECES_MAX}; give a \
             larger --piece"
        )));
    }
    let piece = |number: u64| {
        let offset = number * piece_len;
        Piece {
            key: match count {
                1 => source.key.clone(),
                _ => piece_key(&source.key, number + 1, count),
            },
            offset,
            len: piece_len.min(source.len - offset),
        }
    };
    Ok((0..count).map(piece).collect())
}

/// The key of piece `number` of `count`.
#[must_use]
pub fn piece_key(key: &[u8], number: u64, count: u64) -> Vec<u8> {
    let suffix = format!(
        "{}{number:05}-of-{count:05}",
        str::from_utf8(PART).unwrap_or_default()
    );
    [key, suffix.as_bytes()].concat()
}

/// What stands between a key and the number of a piece.
pub const PART: &[u8] = b".part-";

/// The key of the whole, the number of the piece and how many there are; `None` for a key that is
/// none of a piece.
#[must_use]
pub fn parse_piece(key: &[u8]) -> Option<(&[u8], u64, u64)> {
    // `.part-`, five digits, `-of-`, five digits.
    let (whole, suffix) = key.split_at_checked(key.len().checked_sub(PART.len() + 14)?)?;
    let numbers = str::from_utf8(suffix.strip_prefix(PART)?).ok()?;
    let (number, count) = numbers.split_once("-of-")?;
    let parse = |digits: &str| {
        let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            digits.parse::<u64>().ok()
        } else {
            None
        }
    };
    let (number, count) = (parse(number)?, parse(count)?);
    (1..=count)
        .contains(&number)
        .then_some((whole, number, count))
}

/// The files of a folder, those of its folders too, in the order of their names. Links are followed;
/// what is neither a file nor a folder is refused.
///
/// # Errors
/// What cannot be read, by name.
pub fn walk(folder: &Path, key: &[u8]) -> Result<Vec<Source>, Stop> {
    let mut found = Vec::new();
    walk_into(folder, key, 0, &mut found)?;
    Ok(found)
}

fn walk_into(folder: &Path, key: &[u8], depth: usize, found: &mut Vec<Source>) -> Result<(), Stop> {
    use std::os::unix::ffi::OsStrExt;
    let wrong = |path: &Path, why: &dyn std::fmt::Display| {
        Stop::usage(format!("{}: {why}", path.display()))
    };
    if depth > DEPTH_MAX {
        let why = format!("more than {DEPTH_MAX} folders in each other");
        return Err(wrong(folder, &why));
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| wrong(folder, &error))? {
        names.push(entry.map_err(|error| wrong(folder, &error))?.file_name());
    }
    names.sort();
    for name in names {
        let path = folder.join(&name);
        let key = [key, b"/", name.as_bytes()].concat();
        let meta = fs::metadata(&path).map_err(|error| wrong(&path, &error))?;
        if meta.is_dir() {
            walk_into(&path, &key, depth + 1, found)?;
        } else if meta.is_file() {
            let len = meta.len();
            found.push(Source { path, len, key });
        } else {
            return Err(wrong(&path, &"neither a file nor a folder"));
        }
    }
    Ok(())
}

/// Where the file of a key goes that was stored from a folder under `prefix`.
///
/// # Errors
/// When the key would lead out of the folder.
pub fn path_in(folder: &Path, prefix: &[u8], key: &[u8]) -> Result<PathBuf, Stop> {
    use std::os::unix::ffi::OsStrExt;
    let rest = key.strip_prefix(prefix).unwrap_or(key);
    let rest = Path::new(std::ffi::OsStr::from_bytes(rest));
    let is_inside = rest
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !is_inside || rest.as_os_str().is_empty() || rest.as_os_str().as_bytes().contains(&0) {
        let shown = super::said::shown(key);
        return Err(Stop::usage(format!(
            "key `{shown}`: no path within {}",
            folder.display()
        )));
    }
    Ok(folder.join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(len: u64) -> Source {
        Source {
            path: PathBuf::from("file"),
            len,
            key: b"k".to_vec(),
        }
    }

    #[test]
    fn pieces_cover_the_file_and_their_keys_tell_how_many() {
        assert_eq!(pieces(&source(10), 10).unwrap()[0].key, b"k");
        let all = pieces(&source(25), 10).unwrap();
        assert_eq!(all.iter().map(|piece| piece.len).sum::<u64>(), 25);
        assert_eq!(all[2].key, b"k.part-00003-of-00003");
        assert_eq!((all[2].offset, all[2].len), (20, 5));
        for (number, piece) in (1..).zip(&all) {
            assert_eq!(parse_piece(&piece.key), Some((&b"k"[..], number, 3)));
        }
        assert!(pieces(&source(0), 10).unwrap_err().line.contains("empty"));
        assert!(
            pieces(&source(1 << 40), 10)
                .unwrap_err()
                .line
                .contains("--piece")
        );
    }

    #[test]
    fn other_keys_are_no_pieces() {
        for key in [
            &b""[..],
            b"k",
            b".part-00001-of-0001",
            b"k.part-00000-of-00003",
            b"k.part-00004-of-00003",
            b"k.part-0000a-of-00003",
            b"k.part-+0001-of-00003",
        ] {
            assert_eq!(parse_piece(key), None);
        }
    }

    #[test]
    fn keys_that_lead_out_of_the_folder_are_refused() {
        let folder = Path::new("out");
        assert_eq!(
            path_in(folder, b"k/", b"k/a/b").unwrap(),
            folder.join("a/b")
        );
        for key in [
            &b"k/../x"[..],
            b"k//etc/x",
            b"k/",
            b"k/a\0b",
            b"k/a/../../x",
        ] {
            assert!(
                path_in(folder, b"k/", key).is_err(),
                "{}",
                key.escape_ascii()
            );
        }
    }
}
