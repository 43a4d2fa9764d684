//! What a client is told of TLS.

use std::fmt;

use terrace_fabric::tls::{ClientPem, ClientTls, Part, check_name};

use crate::error::Failure;

/// TLS 1.3 to the node: whom to trust, and what to show.
#[derive(Clone)]
pub struct TlsOptions {
    /// Certificates, in PEM, of the CAs that the node's certificate may come from.
    pub ca: Vec<u8>,
    /// The client's certificate and those that lead to its CA, in PEM, and its private key in PEM;
    /// `None` for nodes that ask for none.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The host name or IP address that the node's certificate has to be for; `None` for the host of
    /// the address.
    pub server_name: Option<String>,
}

impl fmt::Debug for TlsOptions {
    // The key stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("ca_len", &self.ca.len())
            .field("has_identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

impl TlsOptions {
    /// Trusts the CAs of `ca`, in PEM, and shows no certificate.
    #[must_use]
    pub fn new(ca: &[u8]) -> Self {
        Self {
            ca: ca.to_vec(),
            identity: None,
            server_name: None,
        }
    }

    /// The same with a certificate and its key to show, both in PEM.
    #[must_use]
    pub fn identity(mut self, certificate: &[u8], key: &[u8]) -> Self {
        self.identity = Some((certificate.to_vec(), key.to_vec()));
        self
    }

    /// The same with the name that the node's certificate has to be for.
    #[must_use]
    pub fn server_name(mut self, name: &str) -> Self {
        self.server_name = Some(name.to_owned());
        self
    }

    /// Reads the PEM, and checks all of it.
    pub(crate) fn ready(&self) -> Result<ClientTls, Failure> {
        if let Some(name) = &self.server_name
            && check_name(name).is_err()
        {
            let shown = name.escape_debug().take(80).collect::<String>();
            let limit = "a host name or an IP address";
            return Err(Failure::argument("tls.server_name", shown, limit));
        }
        let identity = self.identity.as_ref();
        let pem = ClientPem {
            ca: &self.ca,
            identity: identity.map(|(certificate, key)| (&certificate[..], &key[..])),
        };
        ClientTls::new(&pem).map_err(|error| {
            let (field, len) = match error.part {
                Part::Ca => ("tls.ca", self.ca.len()),
                Part::Certificate => ("tls.identity", identity.map_or(0, |(pem, _)| pem.len())),
                _ => (
                    "tls.identity, the key,",
                    identity.map_or(0, |(_, pem)| pem.len()),
                ),
            };
            Failure::argument(field, format_args!("{len} bytes"), error.limit)
        })
    }
}
