//! TLS of the commands that talk to a node: flags, the environment, and the files they name.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use terrace_client::TlsOptions;

use super::Stop;

/// Longest file in bytes; a longer one is another file.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Whom to trust, and what to show. Each is also taken from the environment, where the flag is
/// stronger.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsArgs {
    /// PEM file of the CAs that the node's certificate may come from: the node is spoken to by TLS
    /// [default: $TERRACE_CLIENT_TLS_CA].
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// PEM file of the certificate to show to the node [default: $TERRACE_CLIENT_TLS_CERT].
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file of that certificate's private key [default: $TERRACE_CLIENT_TLS_KEY].
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Host name or address that the node's certificate is for [default: $TERRACE_CLIENT_TLS_NAME,
    /// else the host of the address].
    #[arg(long, value_name = "NAME")]
    pub tls_name: Option<String>,
}

/// A value, and what the user gave it by.
struct Given<T> {
    by: &'static str,
    value: T,
}

fn given<T>(
    flag: (&'static str, Option<&T>),
    variable: &'static str,
    of: impl Fn(OsString) -> Option<T>,
) -> Option<Given<T>>
where
    T: Clone,
{
    match flag {
        (by, Some(value)) => Some(Given {
            by,
            value: value.clone(),
        }),
        (_, None) => {
            let found = std::env::var_os(variable).filter(|value| !value.is_empty())?;
            let by = variable;
            of(found).map(|value| Given { by, value })
        }
    }
}

impl TlsArgs {
    /// What they say; `None` when the node is spoken to without TLS.
    ///
    /// # Errors
    /// [`super::USAGE`] when one is given without another that it needs, or a file cannot be read.
    pub fn options(&self) -> Result<Option<TlsOptions>, Stop> {
        let path = |value| Some(PathBuf::from(value));
        let ca = given(
            ("--tls-ca", self.tls_ca.as_ref()),
            "TERRACE_CLIENT_TLS_CA",
            path,
        );
        let cert = given(
            ("--tls-cert", self.tls_cert.as_ref()),
            "TERRACE_CLIENT_TLS_CERT",
            path,
        );
        let key = given(
            ("--tls-key", self.tls_key.as_ref()),
            "TERRACE_CLIENT_TLS_KEY",
            path,
        );
        let name = given(
            ("--tls-name", self.tls_name.as_ref()),
            "TERRACE_CLIENT_TLS_NAME",
            |value| value.into_string().ok(),
        );
        let Some(ca) = ca else {
            let surplus = [
                cert.map(|given| given.by),
                key.map(|given| given.by),
                name.map(|given| given.by),
            ];
            return match surplus.into_iter().flatten().next() {
                None => Ok(None),
                Some(by) => Err(Stop::usage(format!(
                    "{by} is given without --tls-ca, which says whom to trust"
                ))),
            };
        };
        let mut options = TlsOptions::new(&read(&ca)?);
        options.identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((read(&cert)?, read(&key)?)),
            (Some(one), None) | (None, Some(one)) => {
                let line = format!("{} needs --tls-cert and --tls-key both", one.by);
                return Err(Stop::usage(line));
            }
        };
        options.server_name = name.map(|given| given.value);
        Ok(Some(options))
    }
}

fn read(given: &Given<PathBuf>) -> Result<Vec<u8>, Stop> {
    let path: &Path = &given.value;
    let wrong = |why: String| Stop::usage(format!("{} {}: {why}", given.by, path.display()));
    let meta = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !meta.is_file() || meta.len() > FILE_LEN_MAX {
        return Err(wrong(format!("not a file of at most {FILE_LEN_MAX} bytes")));
    }
    let mut bytes = Vec::new();
    let taken = File::open(path).and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes));
    taken.map_err(|error| wrong(error.to_string()))?;
    Ok(bytes)
}
