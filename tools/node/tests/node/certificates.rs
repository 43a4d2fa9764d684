//! Certificates for tests: a CA, what it signs, and the files of a node.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

/// A CA.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key in PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("CA {}", NEXT.fetch_add(1, Relaxed));
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for `node.example` and the loopback, changed by `change`.
    pub(crate) fn issue(&self, change: impl Fn(&mut CertificateParams)) -> Issued {
        let names = vec!["node.example".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Issued {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Makes a certificate one of the past.
pub(crate) fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
}

/// A folder of files that nobody else reads, gone with it.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// The files of a node, `node.pem`, `node.key` and `ca.pem`, and the CA.
    pub(crate) fn of_node(name: &str) -> (Self, Authority) {
        let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let (files, authority) = (Self(path), Authority::new());
        let node = authority.issue(|_| {});
        files.write("node.pem", &node.certificate);
        files.write("node.key", &node.key);
        files.write("ca.pem", &authority.pem());
        (files, authority)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        self.write_as(name, text, 0o600);
    }

    pub(crate) fn write_as(&self, name: &str, text: &str, mode: u32) {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
