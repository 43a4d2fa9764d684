//! The files of TLS, checked before the node listens.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use terrace_server::tls::{NodePem, NodeTls, Part};

use crate::settings::{Effective, SettingsError};

/// Longest file of TLS; a longer one is another file. A bundle of all public CAs has 200 KiB.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Rights that nobody but owner and group may have on the key.
const OTHERS: u32 = 0o007;

/// The node's side of TLS, when it is asked for.
pub(crate) fn of(values: &Effective) -> Result<Option<NodeTls>, SettingsError> {
    let (Some(certificate_file), Some(key_file)) = (&values.tls_cert, &values.tls_key) else {
        return Ok(None);
    };
    let certificate = read("tls_cert", certificate_file)?;
    let key = read_key("tls_key", key_file)?;
    let ca_file = values.tls_client_ca.as_deref();
    let ca = ca_file
        .map(|path| read("tls_client_ca", path))
        .transpose()?;
    let pem = NodePem {
        certificate: &certificate,
        key: &key,
        client_ca: ca.as_deref(),
    };
    let made = NodeTls::new(&pem).map_err(|error| {
        let (field, path) = match error.part {
            Part::Certificate => ("tls_cert", certificate_file.as_path()),
            Part::Key => ("tls_key", key_file.as_path()),
            Part::Ca => ("tls_client_ca", ca_file.unwrap_or(Path::new(""))),
        };
        SettingsError::field(field, path.display(), error.limit)
    });
    made.map(Some)
}

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>, SettingsError> {
    read_checked(field, path, |_| None)
}

/// The key, which must not be everybody's.
fn read_key(field: &'static str, path: &Path) -> Result<Vec<u8>, SettingsError> {
    read_checked(field, path, |meta| {
        let mode = meta.permissions().mode() & 0o777;
        let is_open = mode & OTHERS != 0;
        is_open.then(|| {
            format!("a file that others cannot read (it has mode {mode:o}): `chmod o-rwx` it")
        })
    })
}

/// A file's contents. `objection` is asked of the very file that is read.
fn read_checked(
    field: &'static str,
    path: &Path,
    objection: impl Fn(&Metadata) -> Option<String>,
) -> Result<Vec<u8>, SettingsError> {
    let wrong = |limit: String| SettingsError::field(field, path.display(), limit);
    let unreadable = |error: std::io::Error| wrong(format!("a file that can be read ({error})"));
    // Opening a pipe would wait for whoever writes to it.
    let is_file = std::fs::metadata(path).map_err(unreadable)?.is_file();
    if !is_file {
        return Err(wrong("a file".to_owned()));
    }
    let file = File::open(path).map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    if let Some(limit) = objection(&meta) {
        return Err(wrong(limit));
    }
    let mut bytes = Vec::new();
    let taken = file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes);
    if taken.map_err(unreadable)? as u64 > FILE_LEN_MAX {
        return Err(wrong(format!("a file of at most {FILE_LEN_MAX} bytes")));
    }
    Ok(bytes)
}
