//! Aim: two ends agree or say why not, and what goes in comes out, however the wire cuts it. Method:
//! both ends in memory, over wires that take and give a few bytes at a time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::task::Poll;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};

use super::*;

/// A CA and what it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key in PEM.
struct Issued {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        Self::of(|_| {})
    }

    fn of(change: impl Fn(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, change: impl Fn(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::new(vec!["node".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Issued {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
}

fn early(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(3001, 1, 1);
    params.not_after = date_time_ymd(3002, 1, 1);
}

fn node_tls(issued: &Issued, client_ca: Option<&str>) -> Result<NodeTls, PemError> {
    NodeTls::new(&NodePem {
        certificate: issued.certificate.as_bytes(),
        key: issued.key.as_bytes(),
        client_ca: client_ca.map(str::as_bytes),
    })
}

fn client_tls(ca: &str, identity: Option<&Issued>) -> Result<ClientTls, PemError> {
    let identity = identity.map(|one| (one.certificate.as_bytes(), one.key.as_bytes()));
    let ca = ca.as_bytes();
    ClientTls::new(&ClientPem { ca, identity })
}

/// One direction: what is under way, how much it holds, and how much goes in one call.
struct Wire {
    bytes: RefCell<VecDeque<u8>>,
    capacity: usize,
    step: usize,
}

impl Wire {
    fn new(capacity: usize, step: usize) -> Self {
        let bytes = RefCell::default();
        Self {
            bytes,
            capacity,
            step,
        }
    }

    fn send(&self, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut bytes = self.bytes.borrow_mut();
        let room = (self.capacity - bytes.len()).min(self.step);
        if room == 0 {
            return Poll::Pending;
        }
        let before = bytes.len();
        bytes.extend(slices.iter().flat_map(|slice| slice.iter()).take(room));
        Poll::Ready(Ok(bytes.len() - before))
    }

    fn recv(&self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut bytes = self.bytes.borrow_mut();
        let count = bytes.len().min(self.step).min(into.len());
        if count == 0 {
            return Poll::Pending;
        }
        let drained = bytes.drain(..count);
        into.iter_mut()
            .zip(drained)
            .for_each(|(to, byte)| *to = byte);
        Poll::Ready(Ok(count))
    }
}

/// A node's and a client's end, and the wires between.
struct Pair {
    node: TlsSession,
    client: TlsSession,
    up: Wire,
    down: Wire,
}

impl Pair {
    fn new(node: &NodeTls, client: &ClientTls, name: &str, step: usize) -> Self {
        Self {
            node: node.accept().unwrap(),
            client: client.connect(name).unwrap(),
            up: Wire::new(100_000, step),
            down: Wire::new(100_000, step),
        }
    }

    /// How the handshake ends at the node and at the client. A client reads once more, as a refusal
    /// of its certificate comes behind its own last message.
    fn shake_hands(&mut self) -> (io::Result<()>, io::Result<()>) {
        let (mut at_node, mut at_client) = (Poll::Pending, Poll::Pending);
        for _ in 0..100_000 {
            let Self {
                node,
                client,
                up,
                down,
            } = self;
            if at_client.is_pending() {
                at_client = client.poll_handshake(|into| down.recv(into), |out| up.send(out));
            }
            if at_node.is_pending() {
                at_node = node.poll_handshake(|into| up.recv(into), |out| down.send(out));
            }
            if let (Poll::Ready(at_node), Poll::Ready(at_client)) = (&at_node, &at_client) {
                let again = |result: &io::Result<()>| match result {
                    Ok(()) => Ok(()),
                    Err(error) => Err(again(error)),
                };
                let told = match at_client {
                    Ok(()) => match client.poll_recv(&mut [0], |into| down.recv(into)) {
                        Poll::Ready(Err(error)) => Err(error),
                        _ => Ok(()),
                    },
                    failed => again(failed),
                };
                return (again(at_node), told);
            }
            // The other one may wait for ever when its peer has given up.
            if at_node.is_ready() != at_client.is_ready()
                && up.bytes.borrow().is_empty()
                && down.bytes.borrow().is_empty()
            {
                let ended = || Poll::Ready(Err(ErrorKind::UnexpectedEof.into()));
                match (&at_node, &at_client) {
                    (Poll::Ready(Err(_)), _) if at_client.is_pending() => at_client = ended(),
                    (_, Poll::Ready(Err(_))) if at_node.is_pending() => at_node = ended(),
                    _ => {}
                }
            }
        }
        unreachable!("the handshake does not end");
    }
}

fn again(error: &io::Error) -> io::Error {
    match TlsFault::of(error) {
        Some(fault) => fault.clone().into(),
        None => error.kind().into(),
    }
}

fn fault(result: &io::Result<()>) -> &TlsFault {
    TlsFault::of(result.as_ref().unwrap_err()).expect("a fault of TLS")
}

#[test]
fn session_carries_bytes_both_ways_at_any_cut() {
    let authority = Authority::new();
    let (shown, own) = (authority.issue(|_| {}), authority.issue(|_| {}));
    let node = node_tls(&shown, Some(&authority.pem())).unwrap();
    let client = client_tls(&authority.pem(), Some(&own)).unwrap();
    for step in [1, 100, 5000, 1 << 20] {
        let mut pair = Pair::new(&node, &client, "node", step);
        let (at_node, at_client) = pair.shake_hands();
        assert!(at_node.is_ok() && at_client.is_ok());
        // More than the wires and the sessions hold, so that sends have to wait halfway.
        let bytes: Vec<u8> = (0..700_000_u32).map(|i| (i % 251) as u8).collect();
        let (mut sent, mut came) = (0, Vec::new());
        let mut piece = vec![0; 50_000];
        while came.len() < bytes.len() {
            let left = &bytes[sent..];
            let parts = [
                IoSlice::new(&left[..left.len() / 2]),
                IoSlice::new(&left[left.len() / 2..]),
            ];
            if let Poll::Ready(count) = pair.node.poll_send(&parts, |out| pair.down.send(out)) {
                sent += count.unwrap();
            }
            let recv = |into: &mut [u8]| pair.down.recv(into);
            match pair.client.poll_recv(&mut piece, recv) {
                Poll::Ready(Ok(count)) => came.extend_from_slice(&piece[..count]),
                // A record in many small pieces: others have their turn.
                Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::Interrupted),
                Poll::Pending => {}
            }
        }
        assert!(came == bytes, "step {step}");
        let sent = pair
            .client
            .poll_send(&[IoSlice::new(b"ping")], |out| pair.up.send(out));
        assert!(matches!(sent, Poll::Ready(Ok(4)) | Poll::Pending));
        assert!(pair.client.buffer.len() <= session::BUFFER_LONG);
    }
}

/// Aim: each of the ways in which certificates are wrong has its own name at both ends.
#[test]
fn handshake_names_what_is_wrong_with_certificates() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (good, own) = (authority.issue(|_| {}), authority.issue(|_| {}));
    let foreign = other.issue(|_| {});
    let node = node_tls(&good, Some(&authority.pem())).unwrap();

    let trusting = client_tls(&other.pem(), Some(&own)).unwrap();
    let (at_node, at_client) = Pair::new(&node, &trusting, "node", 999).shake_hands();
    assert_eq!(fault(&at_client), &TlsFault::Untrusted);
    assert!(matches!(fault(&at_node), TlsFault::Refused { .. }));

    let client = client_tls(&authority.pem(), Some(&own)).unwrap();
    let (_, at_client) = Pair::new(&node, &client, "elsewhere", 999).shake_hands();
    let said = fault(&at_client).to_string();
    assert!(
        said.contains("node") && said.contains("elsewhere"),
        "{said}"
    );

    let bare = client_tls(&authority.pem(), None).unwrap();
    let (at_node, at_client) = Pair::new(&node, &bare, "node", 999).shake_hands();
    assert_eq!(fault(&at_node), &TlsFault::NoCertificate);
    let said = fault(&at_client).to_string();
    assert!(said.contains("asks for a certificate"), "{said}");

    let stranger = client_tls(&authority.pem(), Some(&foreign)).unwrap();
    let (at_node, at_client) = Pair::new(&node, &stranger, "node", 999).shake_hands();
    assert_eq!(fault(&at_node), &TlsFault::Untrusted);
    assert!(matches!(fault(&at_client), TlsFault::Refused { .. }));
}

#[test]
fn session_of_what_is_no_tls_says_so() {
    let authority = Authority::new();
    let client = client_tls(&authority.pem(), None).unwrap();
    let node = node_tls(&authority.issue(|_| {}), None).unwrap();
    let frame = b"TERW a frame of the protocol without TLS, of some length";
    for mut session in [client.connect("node").unwrap(), node.accept().unwrap()] {
        let wire = Wire::new(4096, 4096);
        wire.bytes.borrow_mut().extend(frame);
        let out = Wire::new(1 << 16, 1 << 16);
        let ended = session.poll_handshake(|into| wire.recv(into), |slices| out.send(slices));
        let Poll::Ready(ended) = ended else {
            unreachable!("all of it is there");
        };
        assert_eq!(fault(&ended), &TlsFault::NotTls);
    }
}

/// Aim: a peer that goes on sending records after a fault, or flips bits, gives an error each time and
/// never bytes.
#[test]
fn session_refuses_flipped_records_for_good() {
    let authority = Authority::new();
    let node = node_tls(&authority.issue(|_| {}), None).unwrap();
    let client = client_tls(&authority.pem(), None).unwrap();
    let mut pair = Pair::new(&node, &client, "node", 1 << 20);
    assert!(pair.shake_hands().0.is_ok());
    let part = [IoSlice::new(&[7; 1000])];
    assert!(
        pair.node
            .poll_send(&part, |out| pair.down.send(out))
            .is_ready()
    );
    pair.down.bytes.borrow_mut()[500] ^= 1;
    assert!(
        pair.node
            .poll_send(&part, |out| pair.down.send(out))
            .is_ready()
    );
    for _ in 0..2 {
        let mut into = [0; 100];
        let came = pair
            .client
            .poll_recv(&mut into, |into| pair.down.recv(into));
        let Poll::Ready(Err(error)) = came else {
            unreachable!("a flipped record gave {came:?}");
        };
        assert!(TlsFault::of(&error).is_some(), "{error}");
    }
}

#[test]
fn send_before_the_handshake_is_refused() {
    let authority = Authority::new();
    let node = node_tls(&authority.issue(|_| {}), None).unwrap();
    let mut session = node.accept().unwrap();
    let sent = session.poll_send(&[IoSlice::new(b"x")], |_| Poll::Pending);
    assert!(matches!(sent, Poll::Ready(Err(error)) if error.kind() == ErrorKind::NotConnected));
}

fn pair(certificate: &str, key: &str) -> Issued {
    Issued {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    }
}

fn assert_wrong(made: Result<NodeTls, PemError>, part: Part, word: &str) {
    let error = made.unwrap_err();
    assert_eq!(error.part, part, "{error}");
    assert!(error.to_string().contains(word), "no `{word}` in {error}");
}

#[test]
fn certificate_and_key_that_are_wrong_are_refused_by_part() {
    let authority = Authority::new();
    let (good, other) = (authority.issue(|_| {}), authority.issue(|_| {}));
    let (shown, key) = (&good.certificate[..], &good.key[..]);
    let broken = shown.replace("-----END", "-----STOP");
    let ca = authority.pem();
    let (old, future) = (authority.issue(expired), authority.issue(early));
    for (issued, part, word) in [
        (pair("", key), Part::Certificate, "none is in it"),
        (pair(key, key), Part::Certificate, "none is in it"),
        (pair(&broken, key), Part::Certificate, "end marker"),
        (pair(&ca, key), Part::Certificate, "a node may show"),
        (old, Part::Certificate, "expired"),
        (future, Part::Certificate, "valid in"),
        (pair(shown, ""), Part::Key, "none is in it"),
        (pair(shown, &ca), Part::Key, "none is in it"),
        (pair(shown, &other.key), Part::Key, "another one"),
    ] {
        assert_wrong(node_tls(&issued, None), part, word);
    }
    // One behind the first is looked at too.
    let behind = authority.issue(expired).certificate;
    let chain = pair(&format!("{shown}{behind}"), key);
    assert_wrong(node_tls(&chain, None), Part::Certificate, "expired");
}

#[test]
fn ca_and_what_a_client_shows_are_checked_too() {
    let authority = Authority::new();
    let good = authority.issue(|_| {});
    let old = Authority::of(expired).pem();
    assert_wrong(node_tls(&good, Some("")), Part::Ca, "none is in it");
    assert_wrong(node_tls(&good, Some(&old)), Part::Ca, "expired");
    let error = client_tls(&authority.pem(), Some(&authority.issue(expired))).unwrap_err();
    assert_eq!(error.part, Part::Certificate);
    let error = client_tls("", None).unwrap_err();
    assert_eq!(error.part, Part::Ca);
}

#[test]
fn names_are_hosts_or_addresses() {
    for good in ["node", "a.b.example", "127.0.0.1", "::1", "[::1]"] {
        assert!(check_name(good).is_ok(), "{good}");
    }
    for wrong in ["", "a b", "no\nde", "[node]x"] {
        assert!(check_name(wrong).is_err(), "{wrong}");
    }
}
