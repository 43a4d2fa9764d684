//! What programs with flags tell a client: the files of the token and of TLS, and of one-sided access.
//! Variables of the environment stand in for flags of TLS that are not given.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use terrace_wire::limits::TOKEN_LEN_MAX;
use terrace_wire::token_of;

use crate::one_sided::OneSidedOptions;
use crate::tls::TlsOptions;

/// Longest token file in bytes; a longer file is another one.
const TOKEN_FILE_MAX: u64 = 4096;

/// Longest file of TLS in bytes. A bundle of all public CAs has 200 KiB.
const TLS_FILE_MAX: u64 = 1 << 20;

/// Why a file, or what was said of files, is of no use: a line for people, which names the flag or the
/// variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FileError(String);

/// A path or a name, and what the user gave it by.
struct Given<T> {
    by: &'static str,
    value: T,
}

/// The files of TLS, as the flags `--tls-ca`, `--tls-cert`, `--tls-key` and `--tls-name` name them.
/// With the feature `clap` they are these flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct TlsFiles {
    /// PEM file of the CAs that the node's certificate may come from: the node is spoken to by TLS
    /// [default: $TERRACE_CLIENT_TLS_CA].
    #[cfg_attr(
        feature = "clap",
        arg(id = "tls_ca", long = "tls-ca", value_name = "FILE")
    )]
    pub ca: Option<PathBuf>,
    /// PEM file of the certificate to show to the node [default: $TERRACE_CLIENT_TLS_CERT].
    #[cfg_attr(
        feature = "clap",
        arg(id = "tls_cert", long = "tls-cert", value_name = "FILE")
    )]
    pub cert: Option<PathBuf>,
    /// PEM file of that certificate's private key [default: $TERRACE_CLIENT_TLS_KEY].
    #[cfg_attr(
        feature = "clap",
        arg(id = "tls_key", long = "tls-key", value_name = "FILE")
    )]
    pub key: Option<PathBuf>,
    /// Host name or address that the node's certificate is for [default: $TERRACE_CLIENT_TLS_NAME,
    /// else the host of the address].
    #[cfg_attr(
        feature = "clap",
        arg(id = "tls_name", long = "tls-name", value_name = "NAME")
    )]
    pub name: Option<String>,
}

impl TlsFiles {
    /// What they hold; `None` when neither flags nor environment say whom to trust, and the node is
    /// spoken to without TLS.
    ///
    /// # Errors
    /// When one is given without another that it needs, or a file cannot be read.
    pub fn options(&self) -> Result<Option<TlsOptions>, FileError> {
        let ca = given("--tls-ca", &self.ca, "TERRACE_CLIENT_TLS_CA")?;
        let cert = given("--tls-cert", &self.cert, "TERRACE_CLIENT_TLS_CERT")?;
        let key = given("--tls-key", &self.key, "TERRACE_CLIENT_TLS_KEY")?;
        let name = given("--tls-name", &self.name, "TERRACE_CLIENT_TLS_NAME")?;
        let Some(ca) = ca else {
            let files = [cert, key].into_iter().flatten().map(|given| given.by);
            let surplus = files.chain(name.map(|given| given.by)).next();
            return surplus.map_or(Ok(None), |by| {
                let line = format!("{by} is given without --tls-ca, which says whom to trust");
                Err(FileError(line))
            });
        };
        let mut options = TlsOptions::new(&ca.read(TLS_FILE_MAX)?);
        options.identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert.read(TLS_FILE_MAX)?, key.read(TLS_FILE_MAX)?)),
            (Some(one), None) | (None, Some(one)) => {
                let line = format!("{} needs --tls-cert and --tls-key both", one.by);
                return Err(FileError(line));
            }
        };
        options.server_name = name.map(|given| given.value);
        Ok(Some(options))
    }
}

/// What says of one-sided access: the flags `--rdma` and `--rdma-listen`. With the feature `clap` it
/// is these flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct RdmaFlags {
    /// Whether blocks are read out of the node's memory, if it allows that: off; auto, by all RDMA
    /// devices, else by TCP without the node's shards; or by the devices with these names.
    #[cfg_attr(
        feature = "clap",
        arg(long = "rdma", value_name = "auto|off|DEVICE,...")
    )]
    pub rdma: Option<String>,
    /// Address of this machine at which the node may read the values of puts; without it they are
    /// sent.
    #[cfg_attr(
        feature = "clap",
        arg(long = "rdma-listen", value_name = "ADDRESS", requires = "rdma")
    )]
    pub rdma_listen: Option<IpAddr>,
}

impl RdmaFlags {
    /// What is asked for; `None` for nothing. The client checks it.
    #[must_use]
    pub fn options(&self) -> Option<OneSidedOptions> {
        let devices = match self.rdma.as_deref()? {
            "off" => return None,
            "auto" => Vec::new(),
            names => names.split(',').map(str::to_owned).collect(),
        };
        let listen = self.rdma_listen;
        Some(OneSidedOptions { devices, listen })
    }
}

/// The token in a file that a flag names: its first line, without the white space around it.
///
/// # Errors
/// When the file cannot be read, has more than 4096 bytes, or a first line that is no token.
pub fn read_token(flag: &'static str, path: &Path) -> Result<Vec<u8>, FileError> {
    let file = Given {
        by: flag,
        value: path.to_owned(),
    };
    let bytes = file.read(TOKEN_FILE_MAX)?;
    let text = String::from_utf8_lossy(&bytes);
    let token = token_of(&text).ok_or_else(|| {
        let why = format!("its first line has not 1 to {TOKEN_LEN_MAX} bytes");
        file.wrong(&why)
    })?;
    Ok(token.to_vec())
}

/// What a flag says, else what a variable does. An empty variable says nothing.
fn given<T: Clone + std::str::FromStr>(
    flag: &'static str,
    value: &Option<T>,
    variable: &'static str,
) -> Result<Option<Given<T>>, FileError> {
    if let Some(value) = value {
        let value = value.clone();
        return Ok(Some(Given { by: flag, value }));
    }
    let Some(found) = std::env::var_os(variable).filter(|found| !found.is_empty()) else {
        return Ok(None);
    };
    let parsed = found.to_str().and_then(|text| text.parse().ok());
    let wrong = || FileError(format!("{variable} is not UTF-8"));
    let value = parsed.ok_or_else(wrong)?;
    Ok(Some(Given {
        by: variable,
        value,
    }))
}

impl Given<PathBuf> {
    fn wrong(&self, why: &dyn std::fmt::Display) -> FileError {
        FileError(format!("{} {}: {why}", self.by, self.value.display()))
    }

    fn read(&self, len_max: u64) -> Result<Vec<u8>, FileError> {
        // Opening a pipe would wait for whoever writes to it.
        let meta = std::fs::metadata(&self.value).map_err(|error| self.wrong(&error))?;
        if !meta.is_file() || meta.len() > len_max {
            return Err(self.wrong(&format_args!("not a file of at most {len_max} bytes")));
        }
        let mut bytes = Vec::new();
        let taken = File::open(&self.value).and_then(|file| {
            let mut file = file.take(len_max);
            file.read_to_end(&mut bytes)
        });
        taken.map_err(|error| self.wrong(&error))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn token_is_the_first_line_of_a_short_file() {
        let long = [b'x'; TOKEN_LEN_MAX + 1];
        let cases: [(&[u8], Option<&[u8]>); 6] = [
            (b"a token\n", Some(b"a token")),
            (b"  spaced \r\nand more", Some(b"spaced")),
            (b"", None),
            (b"\nsecond", None),
            (&long, None),
            (&[b' '; 4097], None),
        ];
        for (bytes, expected) in cases {
            let path = file("client-token", bytes);
            let read = read_token("--token-file", &path);
            if let Err(error) = &read {
                let text = error.to_string();
                assert!(
                    text.contains("--token-file") && text.contains("client-token"),
                    "{text}"
                );
            }
            assert_eq!(read.ok().as_deref(), expected);
            std::fs::remove_file(path).unwrap();
        }
        assert!(read_token("--token-file", Path::new("/")).is_err());
    }

    #[test]
    fn rdma_is_off_unless_it_is_asked_for() {
        let options = |rdma: Option<&str>| {
            let rdma = rdma.map(str::to_owned);
            let rdma_listen = None;
            RdmaFlags { rdma, rdma_listen }.options()
        };
        assert_eq!(options(None), None);
        assert_eq!(options(Some("off")), None);
        assert_eq!(options(Some("auto")), Some(OneSidedOptions::default()));
        let named = options(Some("rxe0,rxe1/2")).unwrap();
        assert_eq!(named.devices, ["rxe0", "rxe1/2"]);
    }

    #[test]
    fn files_of_tls_that_need_others_are_named() {
        let path = file("client-tls", b"pem");
        let given = Some(path.clone());
        let only_cert = TlsFiles {
            cert: given.clone(),
            ..TlsFiles::default()
        };
        let without_key = TlsFiles {
            ca: given.clone(),
            cert: given.clone(),
            ..TlsFiles::default()
        };
        let no_file = TlsFiles {
            ca: Some(PathBuf::from("no/such")),
            ..TlsFiles::default()
        };
        let cases = [
            (only_cert, ["--tls-cert", "--tls-ca"]),
            (without_key, ["--tls-cert", "--tls-key"]),
            (no_file, ["--tls-ca", "no/such"]),
        ];
        for (files, words) in cases {
            let text = files.options().unwrap_err().to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        let whole = TlsFiles {
            ca: given.clone(),
            cert: given.clone(),
            key: given,
            name: Some("node".to_owned()),
        };
        let options = whole.options().unwrap().unwrap();
        assert_eq!(options.ca, b"pem");
        assert_eq!(options.identity, Some((b"pem".to_vec(), b"pem".to_vec())));
        assert_eq!(TlsFiles::default().options().unwrap().map(|_| ()), None);
        std::fs::remove_file(path).unwrap();
    }
}
