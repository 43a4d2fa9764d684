//! Aim: nodes and clients that speak TLS serve each other as without it, and those that do not agree say
//! why. Method: nodes as processes of their own, certificates of a CA made for the test, the client's
//! library and bare sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use terrace_client::blocking::{Client, Namespace};
use terrace_client::{CallOptions, Cause, ClientConfig, Error, PutItem, TlsFault, TlsOptions};
use terrace_types::{Hint, Lookup, PutOutcome};

use crate::certificates::{Authority, Files, Issued, expired};
use crate::started::Node;

/// A node with these flags more.
fn start(files: &Files, flags: &[&str]) -> Node {
    let own = ["--nvme", "0", "--dram", "256MiB"];
    Node::start(&files.0, &[&own, flags].concat())
}

const TLS: [&str; 4] = ["--tls-cert", "node.pem", "--tls-key", "node.key"];

fn with_tls(more: &[&'static str]) -> Vec<&'static str> {
    TLS.iter().chain(more).copied().collect()
}

fn config(address: SocketAddr, tls: TlsOptions) -> ClientConfig {
    ClientConfig::new(&address.to_string()).tls(tls)
}

fn trusting(authority: &Authority) -> TlsOptions {
    TlsOptions::new(authority.pem().as_bytes())
}

fn showing(authority: &Authority, own: &Issued) -> TlsOptions {
    trusting(authority).identity(own.certificate.as_bytes(), own.key.as_bytes())
}

fn connect(config: ClientConfig) -> Result<Namespace, Error> {
    Client::connect(config)?.namespace("model")
}

fn refused(config: ClientConfig) -> TlsFault {
    let error = connect(config).unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    match error.cause() {
        Cause::Tls(fault) => fault.clone(),
        other => panic!("{other:?} is no fault of TLS"),
    }
}

fn value(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| seed.wrapping_add((at % 251) as u8))
        .collect()
}

/// Aim: blocks of all lengths, batches, and many callers at once go over TLS as they do without.
#[test]
fn blocks_go_over_tls_and_come_back() {
    let (files, authority) = Files::of_node("tls-blocks");
    let node = start(&files, &with_tls(&["--tls-client-ca", "ca.pem"]));
    let own = authority.issue(|_| {});
    let blocks = connect(config(node.address, showing(&authority, &own))).unwrap();
    let options = CallOptions::within(Duration::from_secs(60));
    for (seed, len) in [1, 4096, 16_384, 65_537, 1 << 20, 40_000_001]
        .into_iter()
        .enumerate()
    {
        let (key, bytes) = (format!("block {len}"), value(seed as u8, len));
        let put = blocks.put(key.as_bytes(), &bytes, &options).unwrap();
        assert_eq!(put, PutOutcome::Stored { durable: false });
        let got = blocks.get(key.as_bytes(), &options).unwrap();
        assert!(
            matches!(got, Lookup::Hit { value, .. } if value == bytes),
            "{len}"
        );
        assert!(blocks.remove(key.as_bytes(), &options).is_ok());
    }
    std::thread::scope(|scope| {
        for caller in 0..4_u8 {
            let blocks = &blocks;
            scope.spawn(move || {
                for round in 0..4_u8 {
                    let values: Vec<_> = (0..16).map(|at| value(caller ^ at, 100_000)).collect();
                    let keys: Vec<_> = (0..16).map(|at| format!("{caller} {round} {at}")).collect();
                    let slices = values.iter().map(|value| value.split_at(7000));
                    let slices: Vec<[&[u8]; 2]> = slices.map(Into::into).collect();
                    let items = keys.iter().zip(&slices).map(|(key, value)| PutItem {
                        key: key.as_bytes(),
                        value,
                        hint: Hint::default(),
                    });
                    let put = blocks.put_batch(&items.collect::<Vec<_>>(), &options);
                    assert!(put.into_iter().all(|one| one.is_ok()));
                    let got = blocks.get_batch(&keys, &options);
                    let got = got.into_iter().map(|one| one.unwrap().hit().unwrap());
                    assert!(got.eq(values));
                }
            });
        }
    });
}

#[test]
fn client_without_a_certificate_of_the_ca_is_refused_by_name() {
    let (files, authority) = Files::of_node("tls-refused");
    let node = start(&files, &with_tls(&["--tls-client-ca", "ca.pem"]));
    let (other, own) = (Authority::new(), authority.issue(|_| {}));
    let refusals = [
        (trusting(&authority), "asks for a certificate"),
        (
            showing(&authority, &other.issue(|_| {})),
            "does not trust the CA",
        ),
    ];
    for (options, words) in refusals {
        let fault = refused(config(node.address, options));
        assert!(matches!(fault, TlsFault::Refused { .. }), "{fault}");
        assert!(fault.to_string().contains(words), "{fault}");
    }
    // One that expired does not leave the client.
    let old = authority.issue(expired);
    let error = connect(config(node.address, showing(&authority, &old))).unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
    assert!(matches!(error.cause(), Cause::Argument { .. }));
    // Others are served meanwhile.
    assert!(connect(config(node.address, showing(&authority, &own))).is_ok());
}

#[test]
fn client_refuses_nodes_that_are_not_whom_it_trusts() {
    let (files, authority) = Files::of_node("tls-untrusted");
    let node = start(&files, &TLS);
    let other = Authority::new();
    let fault = refused(config(node.address, trusting(&other)));
    assert_eq!(fault, TlsFault::Untrusted);
    let wrong = trusting(&authority).server_name("elsewhere.example");
    let fault = refused(config(node.address, wrong));
    assert!(matches!(&fault, TlsFault::WrongName { .. }), "{fault}");
    assert!(fault.to_string().contains("elsewhere.example"), "{fault}");
    assert!(fault.to_string().contains("node.example"), "{fault}");
    let right = trusting(&authority).server_name("node.example");
    assert!(connect(config(node.address, right)).is_ok());
}

#[test]
fn token_is_asked_for_over_tls_too() {
    let (files, authority) = Files::of_node("tls-token");
    files.write("token", "a token of some length\n");
    let node = start(&files, &with_tls(&["--token-file", "token"]));
    let bare = config(node.address, trusting(&authority));
    let error = connect(bare.clone()).unwrap_err();
    assert!(matches!(error.cause(), Cause::Rejected { .. }), "{error}");
    assert!(connect(bare.token(b"a token of some length")).is_ok());
}

#[test]
fn sides_that_do_not_both_speak_tls_say_so() {
    let (files, authority) = Files::of_node("tls-sides");
    let secure = start(&files, &TLS);
    files.write("token", "a token of some length\n");
    let fault =
        refused(ClientConfig::new(&secure.address.to_string()).token(b"a token of some length"));
    assert_eq!(fault, TlsFault::TlsOnly);
    drop(secure);
    let plain = start(&files, &["--data", "plain"]);
    let fault = refused(config(plain.address, trusting(&authority)));
    assert_eq!(fault, TlsFault::NotTls);
    // A node that says nothing is bounded by the time for a connect.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut late = config(mute.local_addr().unwrap(), trusting(&authority));
    late.connect_timeout = Duration::from_millis(50);
    late.attempts = 1;
    let error = connect(late).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Unavailable { .. }),
        "{error}"
    );
}

/// Aim: bytes that are no handshake end their own connection, and no other. Method: many sockets that
/// send what looks like records, and nonsense, beside a client that goes on.
#[test]
fn random_bytes_in_the_handshake_end_their_connection_only() {
    let (files, authority) = Files::of_node("tls-random");
    let node = start(&files, &TLS);
    let blocks = connect(config(node.address, trusting(&authority))).unwrap();
    let options = CallOptions::default();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..60_usize {
        let mut bytes: Vec<u8> = (0..700)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[0]
            })
            .collect();
        if round % 3 > 0 {
            // The head of a record, whose contents are nonsense or cut.
            bytes[..5].copy_from_slice(&[22, 3, 1, 2, (round * 4) as u8]);
        }
        if round % 3 > 1 {
            // A hello whose length fits.
            bytes[5..9].copy_from_slice(&[1, 0, 1, (round * 4) as u8]);
        }
        let mut socket = TcpStream::connect(node.address).unwrap();
        // The node may be done with it before all is written.
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.len() < 100, "{} bytes for nonsense", answer.len());
        let key = format!("{round}");
        assert!(blocks.put(key.as_bytes(), b"value", &options).is_ok());
    }
}
