//! Who the node is: an id for ever, an epoch for each start, and one node to a data folder.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const LOCK_FILE: &str = "node.lock";
const IDENTITY_FILE: &str = "node.id";

/// A data folder that this node holds as long as this lives.
pub(crate) struct Identity {
    pub(crate) node_id: [u8; 16],
    /// Grows with every start.
    pub(crate) epoch: u64,
    _lock: Flock<File>,
}

/// Why the data folder is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("data is {}; another node holds it: stop that one, or choose another folder", path.display())]
    Held { path: PathBuf },
    #[error("data is {}; {what}: {cause}", path.display())]
    Os {
        path: PathBuf,
        what: &'static str,
        cause: std::io::Error,
    },
    #[error(
        "{} does not hold an id and an epoch; restore it, or remove it for a new identity",
        path.display()
    )]
    Damaged { path: PathBuf },
}

impl Identity {
    /// Takes the folder, makes it if needed, and counts the start.
    pub(crate) fn take(data: &Path) -> Result<Self, IdentityError> {
        let os = |what| {
            move |cause| IdentityError::Os {
                path: data.to_owned(),
                what,
                cause,
            }
        };
        std::fs::create_dir_all(data).map_err(os("make the folder"))?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(data.join(LOCK_FILE))
            .map_err(os("open its lock file"))?;
        let lock =
            Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(
                |(_, error)| match error {
                    Errno::EWOULDBLOCK => IdentityError::Held {
                        path: data.to_owned(),
                    },
                    error => os("lock it")(error.into()),
                },
            )?;
        let path = data.join(IDENTITY_FILE);
        let (node_id, epoch) = match std::fs::read_to_string(&path) {
            Ok(text) => parse(&text).ok_or(IdentityError::Damaged { path: path.clone() })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                (random_id().map_err(os("draw an id"))?, 0)
            }
            Err(error) => return Err(os("read the node's id")(error)),
        };
        let epoch = epoch + 1;
        write(data, &path, node_id, epoch).map_err(os("write the node's id"))?;
        Ok(Self {
            node_id,
            epoch,
            _lock: lock,
        })
    }
}

pub(crate) fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> Option<([u8; 16], u64)> {
    let (id, epoch) = text.trim().split_once(' ')?;
    if id.len() != 32 || !id.is_ascii() {
        return None;
    }
    let mut node_id = [0; 16];
    for (at, byte) in node_id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(id.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    let epoch: u64 = epoch.parse().ok()?;
    (epoch < u64::MAX).then_some((node_id, epoch))
}

fn random_id() -> std::io::Result<[u8; 16]> {
    let mut id = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(id)
}

/// Whole or not at all, power loss included.
fn write(data: &Path, path: &Path, node_id: [u8; 16], epoch: u64) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    writeln!(file, "{} {epoch}", hex(&node_id))?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(data)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_text_comes_back_and_damage_is_told() {
        let text = format!("{} 41\n", hex(&[0xab; 16]));
        assert_eq!(parse(&text), Some(([0xab; 16], 41)));
        for damaged in [
            "",
            "ab 1",
            "zz",
            &text[..20],
            &format!("{} x", hex(&[1; 16])),
        ] {
            assert_eq!(parse(damaged), None, "{damaged}");
        }
    }
}
