//! TLS of the commands that talk to a node: its flags.

use std::path::PathBuf;

use clap::Args;
use terrace_client::{FileError, TlsFiles, TlsOptions};

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

impl TlsArgs {
    /// What they say; `None` when the node is spoken to without TLS.
    ///
    /// # Errors
    /// When one is given without another that it needs, or a file cannot be read.
    pub fn options(&self) -> Result<Option<TlsOptions>, FileError> {
        let files = TlsFiles {
            ca: self.tls_ca.clone(),
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            name: self.tls_name.clone(),
        };
        files.options()
    }
}
