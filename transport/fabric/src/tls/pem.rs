//! What PEM files hold, checked before the first connection.

use std::sync::Arc;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use super::fault::Ended;

/// Which file a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The certificate that is shown.
    Certificate,
    /// Its private key.
    Key,
    /// The CAs that the other side's certificate may come from.
    Ca,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit}")]
pub struct PemError {
    /// Which one.
    pub part: Part,
    /// What it would have to be, and what it is.
    pub limit: String,
}

impl PemError {
    fn new(part: Part, limit: impl Into<String>) -> Self {
        let limit = limit.into();
        Self { part, limit }
    }

    /// What stands in the way though the files are sound.
    pub(super) fn other(part: Part, error: &dyn std::fmt::Display) -> Self {
        Self::new(part, format!("one that TLS can use ({error})"))
    }

    /// Why a certificate and a key do not go together.
    pub(super) fn of_pair(error: &Error) -> Self {
        match error {
            Error::InconsistentKeys(_) => Self::new(
                Part::Key,
                "the key of the certificate (it is the key of another one)",
            ),
            Error::InvalidCertificate(_) => Self::other(Part::Certificate, error),
            _ => Self::other(Part::Key, error),
        }
    }
}

fn certificates(part: Part, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = read.map_err(|error| {
        let limit = format!("a file of certificates in PEM ({error})");
        PemError::new(part, limit)
    })?;
    if found.is_empty() {
        let limit = "a file with a certificate in PEM (none is in it)";
        return Err(PemError::new(part, limit));
    }
    Ok(found)
}

/// The certificate that is shown, and those behind it.
pub(super) fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    certificates(Part::Certificate, pem)
}

pub(super) fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let what = match error {
            rustls::pki_types::pem::Error::NoItemsFound => "none is in it".to_owned(),
            error => error.to_string(),
        };
        let limit = format!("a file with a private key in PEM, not encrypted ({what})");
        PemError::new(Part::Key, limit)
    })
}

/// The CAs of a file, each of which is valid now.
pub(super) fn roots(pem: &[u8], provider: &CryptoProvider) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(Part::Ca, pem)? {
        if let Some(Error::InvalidCertificate(error)) = objection(&certificate, provider)
            && let Some(ended) = Ended::of(&error)
        {
            return Err(not_valid(Part::Ca, ended));
        }
        let added = roots.add(certificate);
        added.map_err(|error| PemError::other(Part::Ca, &error))?;
    }
    Ok(roots)
}

/// Refuses certificates that no client would take.
pub(super) fn check_node(
    chain: &[CertificateDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<(), PemError> {
    for (at, certificate) in chain.iter().enumerate() {
        match objection(certificate, provider) {
            Some(Error::InvalidCertificate(error)) => {
                if let Some(ended) = Ended::of(&error) {
                    return Err(not_valid(Part::Certificate, ended));
                }
                // Those behind the first are CAs, which may not be shown by themselves.
                if at == 0 {
                    let limit = format!("a certificate that a node may show ({error})");
                    return Err(PemError::new(Part::Certificate, limit));
                }
            }
            Some(error) if at == 0 => return Err(PemError::other(Part::Certificate, &error)),
            _ => {}
        }
    }
    Ok(())
}

/// Refuses certificates that no node would take for their time. What else there is to them, the node
/// says.
pub(super) fn check_client(
    chain: &[CertificateDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<(), PemError> {
    for certificate in chain {
        if let Some(Error::InvalidCertificate(error)) = objection(certificate, provider)
            && let Some(ended) = Ended::of(&error)
        {
            return Err(not_valid(Part::Certificate, ended));
        }
    }
    Ok(())
}

fn not_valid(part: Part, ended: Ended) -> PemError {
    PemError::new(
        part,
        format!("a certificate that is valid now (it {ended})"),
    )
}

/// What is wrong with a certificate by itself. It is verified without any CA: what is wrong by
/// itself is told before the CA is missed.
fn objection(certificate: &CertificateDer<'_>, provider: &CryptoProvider) -> Option<Error> {
    let parsed = match ParsedCertificate::try_from(certificate) {
        Ok(parsed) => parsed,
        Err(error) => return Some(error),
    };
    let verified = verify_server_cert_signed_by_trust_anchor(
        &parsed,
        &RootCertStore::empty(),
        &[],
        UnixTime::now(),
        provider.signature_verification_algorithms.all,
    );
    match verified {
        Ok(()) | Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => None,
        Err(error) => Some(error),
    }
}
