//! TLS 1.3 below the frames: what an end shows, whom it trusts, and the records.
//!
//! TLS wraps a whole connection and knows nothing of what goes over it: who sends and receives does
//! so as over a bare socket. Why it is done this way: docs/decisions/0023-tls.md.

mod fault;
mod pem;
mod session;

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

pub use fault::{Ended, TlsFault};
pub use pem::{Part, PemError};
pub use session::TlsSession;

/// What a node shows to its clients, and what it asks of them, as the contents of PEM files.
#[derive(Clone, Copy)]
pub struct NodePem<'a> {
    /// The node's certificate, and behind it those that lead to its CA.
    pub certificate: &'a [u8],
    /// The private key of the certificate.
    pub key: &'a [u8],
    /// Certificates of CAs; clients have to show a certificate of one of them.
    pub client_ca: Option<&'a [u8]>,
}

/// The node's side of TLS, checked and ready for connections.
#[derive(Clone, Debug)]
pub struct NodeTls {
    config: Arc<ServerConfig>,
    asks_clients: bool,
}

impl NodeTls {
    /// The node's side from its files.
    ///
    /// # Errors
    /// [`PemError`] names the file and what it would have to be: one without what it should hold, a
    /// certificate that is not valid now, a key of another certificate.
    pub fn new(pem: &NodePem<'_>) -> Result<Self, PemError> {
        let provider = Arc::new(ring::default_provider());
        let chain = pem::chain(pem.certificate)?;
        pem::check_node(&chain, &provider)?;
        let key = pem::key(pem.key)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| PemError::other(Part::Certificate, &error))?;
        let builder = match pem.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(pem::roots(ca, &provider)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = verifier.build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| PemError::other(Part::Ca, &error))?,
                )
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| PemError::of_pair(&error))?;
        // Connections are few and long. Each shows its certificate anew, so that one that expired
        // does not go on by a ticket.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            asks_clients: pem.client_ca.is_some(),
        })
    }

    /// Whether clients without a certificate are refused.
    #[must_use]
    pub const fn asks_clients(&self) -> bool {
        self.asks_clients
    }

    /// The node's end of a new connection.
    ///
    /// # Errors
    /// [`TlsFault::Broken`] when the configuration cannot be used, which [`NodeTls::new`] rules out.
    pub fn accept(&self) -> Result<TlsSession, TlsFault> {
        let session = ServerConnection::new(Arc::clone(&self.config));
        Ok(TlsSession::new(Connection::Server(session?)))
    }
}

/// Whom a client trusts, and what it shows, as the contents of PEM files.
#[derive(Clone, Copy)]
pub struct ClientPem<'a> {
    /// Certificates of the CAs that nodes' certificates may come from.
    pub ca: &'a [u8],
    /// The client's certificate and those that lead to its CA, and its private key.
    pub identity: Option<(&'a [u8], &'a [u8])>,
}

/// The client's side of TLS, checked and ready for connections.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
}

impl ClientTls {
    /// The client's side from its files.
    ///
    /// # Errors
    /// [`PemError`] names the file and what it would have to be.
    pub fn new(pem: &ClientPem<'_>) -> Result<Self, PemError> {
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let roots = pem::roots(pem.ca, &provider)?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| PemError::other(Part::Ca, &error))?
            .with_root_certificates(roots);
        let mut config = match pem.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = pem::chain(certificate)?;
                pem::check_client(&chain, &provider)?;
                let key = pem::key(key)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| PemError::of_pair(&error))?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// The client's end of a new connection to the node `name`: a host name or an IP address, which
    /// the node's certificate has to be for.
    ///
    /// # Errors
    /// [`TlsFault::Broken`] when `name` is neither.
    pub fn connect(&self, name: &str) -> Result<TlsSession, TlsFault> {
        let name = server_name(name)?;
        let session = ClientConnection::new(Arc::clone(&self.config), name);
        Ok(TlsSession::new(Connection::Client(session?)))
    }
}

/// Checks that a certificate may be for `name`: a host name, or an IP address with or without the
/// brackets of IPv6.
///
/// # Errors
/// [`TlsFault::Broken`] when it is neither.
pub fn check_name(name: &str) -> Result<(), TlsFault> {
    server_name(name).map(drop)
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsFault> {
    let bare = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(name);
    ServerName::try_from(bare.to_owned()).map_err(|_| TlsFault::Broken {
        what: format!("`{}` is no host name and no address", bare.escape_debug()),
    })
}

#[cfg(test)]
mod tests;
