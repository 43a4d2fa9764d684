//! Why two ends do not agree on TLS, in words for people.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Why two ends do not agree on TLS. Trying again helps with none of it: a side has to be told
/// something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFault {
    /// The other side speaks no TLS.
    #[error("the other side speaks no TLS")]
    NotTls,
    /// The other side speaks nothing but TLS.
    #[error("the other side speaks TLS only")]
    TlsOnly,
    /// The other side's certificate comes from a CA that is not trusted here.
    #[error("the other side's certificate is of no CA that is trusted here")]
    Untrusted,
    /// The other side's certificate is for other names.
    #[error(
        "the other side's certificate is for {}, not for {expected}",
        names(presented)
    )]
    WrongName {
        /// Whom it should be for.
        expected: String,
        /// Whom it is for.
        presented: Vec<String>,
    },
    /// The other side's certificate is not valid any more, or not yet.
    #[error("the other side's certificate {0}")]
    NotValidNow(Ended),
    /// The other side showed no certificate.
    #[error("the other side showed no certificate")]
    NoCertificate,
    /// The other side does not take what this side showed.
    #[error("the other side refused this side: {why}")]
    Refused {
        /// What it said.
        why: String,
    },
    /// Records, messages or certificates are not what they have to be.
    #[error("{what}")]
    Broken {
        /// What is wrong.
        what: String,
    },
}

/// When a certificate is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its time is over, since so many seconds if that is known.
    Expired(Option<u64>),
    /// Its time begins, in so many seconds if that is known.
    NotYet(Option<u64>),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(None) => f.write_str("expired"),
            Self::Expired(Some(secs)) => write!(f, "expired {} ago", span(*secs)),
            Self::NotYet(None) => f.write_str("is not valid yet"),
            Self::NotYet(Some(secs)) => write!(f, "is valid in {} only", span(*secs)),
        }
    }
}

/// Seconds in the unit that people would take.
fn span(secs: u64) -> String {
    match secs {
        0..120 => format!("{secs} s"),
        120..7200 => format!("{} minutes", secs / 60),
        7200..172_800 => format!("{} hours", secs / 3600),
        _ => format!("{} days", secs / 86_400),
    }
}

fn names(presented: &[String]) -> String {
    match presented {
        [] => "no name".to_owned(),
        // A certificate may have any number of them.
        [first, .., last] if presented.len() > 4 => {
            format!("{first} to {last}, {} names", presented.len())
        }
        few => few.join(", "),
    }
}

impl Ended {
    /// When the certificate that an error is about is not valid, if the error is about that.
    pub(super) fn of(error: &CertificateError) -> Option<Self> {
        Some(match error {
            CertificateError::Expired => Self::Expired(None),
            CertificateError::ExpiredContext { time, not_after } => {
                Self::Expired(Some(time.as_secs().saturating_sub(not_after.as_secs())))
            }
            CertificateError::NotValidYet => Self::NotYet(None),
            CertificateError::NotValidYetContext { time, not_before } => {
                Self::NotYet(Some(not_before.as_secs().saturating_sub(time.as_secs())))
            }
            _ => return None,
        })
    }
}

impl From<Error> for TlsFault {
    fn from(error: Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::AlertReceived(alert) => Self::Refused {
                why: alert_words(alert),
            },
            Error::InvalidCertificate(error) => of_certificate(error),
            error => Self::Broken {
                what: error.to_string(),
            },
        }
    }
}

fn of_certificate(error: CertificateError) -> TlsFault {
    if let Some(ended) = Ended::of(&error) {
        return TlsFault::NotValidNow(ended);
    }
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsFault::Untrusted,
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => TlsFault::WrongName {
            expected: expected.to_str().into_owned(),
            presented,
        },
        error => TlsFault::Broken {
            what: format!("the other side's certificate cannot be used: {error}"),
        },
    }
}

/// What the alerts mean that a wrong configuration brings about.
fn alert_words(alert: AlertDescription) -> String {
    let words = match alert {
        AlertDescription::CertificateRequired => "it asks for a certificate",
        AlertDescription::UnknownCA => "it does not trust the CA of the certificate",
        // Two CAs of one name look alike until a signature is checked.
        AlertDescription::DecryptError => "a signature of the certificate's is not right",
        AlertDescription::CertificateExpired => "the certificate is not valid now",
        AlertDescription::BadCertificate | AlertDescription::UnsupportedCertificate => {
            "the certificate cannot be used"
        }
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.3",
        AlertDescription::HandshakeFailure => "no method of TLS 1.3 is known to both",
        other => return format!("alert {other:?}"),
    };
    words.to_owned()
}

impl From<TlsFault> for io::Error {
    fn from(fault: TlsFault) -> Self {
        Self::new(io::ErrorKind::InvalidData, fault)
    }
}

impl TlsFault {
    /// The fault that an error of a [`super::TlsSession`] carries, if it is one of TLS.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_few_names_and_counts_many() {
        let fault = |presented: &[&str]| {
            let presented = presented.iter().map(ToString::to_string).collect();
            let expected = "n".to_owned();
            TlsFault::WrongName {
                expected,
                presented,
            }
            .to_string()
        };
        assert!(fault(&[]).ends_with("is for no name, not for n"));
        assert!(fault(&["a", "b"]).ends_with("is for a, b, not for n"));
        let many = fault(&["a", "b", "c", "d", "e"]);
        assert!(many.ends_with("is for a to e, 5 names, not for n"));
    }

    #[test]
    fn fault_goes_through_an_io_error() {
        let error = io::Error::from(TlsFault::NotTls);
        assert_eq!(TlsFault::of(&error), Some(&TlsFault::NotTls));
        assert_eq!(TlsFault::of(&io::ErrorKind::NotFound.into()), None);
    }
}
