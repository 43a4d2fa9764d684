//! Aim: what goes wrong before TLS is agreed on ends in time, and keeps nobody waiting. Method: a server
//! over a real engine, and bare sockets that begin a handshake and do not go on.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod served;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::task::Poll;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use served::{engine, start_with};
use terrace_engine::{Engine, block_on};
use terrace_fabric::tls::{ClientPem, ClientTls, NodePem, NodeTls, TlsSession};
use terrace_server::{Server, ServerConfig, ServerCounters};
use terrace_wire::{ClientHello, Features, FrameHead, FrameLimits, Partial, Reply, Security};

/// A server of two shards whose clients come by TLS, and a client's side for it.
fn start(change: impl FnOnce(&mut ServerConfig)) -> (Engine, Server, ClientTls) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["node".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap().pem();
    let (ca, key) = (ca.pem(), key.serialize_pem());
    let (ca, certificate, key) = (ca.as_bytes(), certificate.as_bytes(), key.as_bytes());
    let node = NodeTls::new(&NodePem {
        certificate,
        key,
        client_ca: Some(ca),
    });
    let identity = Some((certificate, key));
    let client = ClientTls::new(&ClientPem { ca, identity }).unwrap();

    let mut config = ServerConfig {
        tls: Some(node.unwrap()),
        ..ServerConfig::default()
    };
    change(&mut config);
    let (engine, server) = start_with(engine(64, 2), config);
    (engine, server, client)
}

fn counters(server: &Server) -> ServerCounters {
    block_on(server.observer().counters())
}

/// A client's end over a socket that waits.
struct End {
    session: TlsSession,
    socket: TcpStream,
}

impl End {
    fn connect(server: &Server, tls: &ClientTls) -> Self {
        Self {
            session: tls.connect("node").unwrap(),
            socket: TcpStream::connect(server.address()).unwrap(),
        }
    }

    fn shake_hands(&mut self) -> io::Result<()> {
        let mut socket = &self.socket;
        let shaken = self.session.poll_handshake(
            |into| Poll::Ready(socket.read(into)),
            |out| Poll::Ready((&self.socket).write_vectored(out)),
        );
        match shaken {
            Poll::Ready(shaken) => shaken,
            Poll::Pending => unreachable!("the socket waits by itself"),
        }
    }

    fn hello(&mut self, shard: u32) -> Vec<u8> {
        let hello = ClientHello {
            version_low: 1,
            version_high: 1,
            shard: Some(shard),
            features: Features::ALL,
            client_id: [7; 16],
            limits: FrameLimits::default(),
            token: b"",
            name: "test",
        };
        let mut out = [0; 4096];
        let len = hello.encode(&mut out).unwrap();
        let mut socket = &self.socket;
        let part = [io::IoSlice::new(&out[..len])];
        let sent = self
            .session
            .poll_send(&part, |out| Poll::Ready(socket.write_vectored(out)));
        assert!(matches!(sent, Poll::Ready(Ok(count)) if count == len));
        let mut came = vec![0; 4096];
        let received = self
            .session
            .poll_recv(&mut came, |into| Poll::Ready(socket.read(into)));
        let Poll::Ready(Ok(count)) = received else {
            panic!("{received:?}");
        };
        came.truncate(count);
        came
    }
}

/// Aim: the hello reaches the shard that it asks for, keys and all, and tells what was checked.
#[test]
fn connection_moves_to_its_shard_under_tls() {
    let (_engine, server, tls) = start(|_| {});
    for shard in [0, 1, 0, 1] {
        let mut end = End::connect(&server, &tls);
        end.shake_hands().unwrap();
        let answer = end.hello(shard);
        let Partial::Whole(head) = FrameHead::parse(&answer, &FrameLimits::default()).unwrap()
        else {
            panic!("{} bytes are no frame", answer.len());
        };
        let body = &answer[32..32 + head.body_len as usize];
        let Reply::Hello(hello) = Reply::decode(&head, body).unwrap() else {
            panic!("no hello");
        };
        assert_eq!(hello.terms.shard, shard);
        let checked = Security::TLS.0 | Security::CLIENT_CERTIFICATE.0;
        assert_eq!(hello.terms.security.0, checked);
    }
}

/// Aim: a handshake that stops halfway, at any place, is ended when the time for the hello is over.
#[test]
fn handshake_that_stops_is_ended_in_time() {
    let (_engine, server, tls) = start(|config| config.stall_max = Duration::from_millis(100));
    let mut hello = Vec::new();
    let mut session = tls.connect("node").unwrap();
    let begun = session.poll_handshake(
        |_| Poll::Pending,
        |out| {
            let before = hello.len();
            out.iter().for_each(|slice| hello.extend_from_slice(slice));
            Poll::Ready(Ok(hello.len() - before))
        },
    );
    assert!(begun.is_pending());
    let stops = [0, 1, 5, hello.len() / 2, hello.len()];
    let mut sockets: Vec<_> = stops
        .iter()
        .map(|stop| {
            let mut socket = TcpStream::connect(server.address()).unwrap();
            socket.write_all(&hello[..*stop]).unwrap();
            socket
        })
        .collect();
    for socket in &mut sockets {
        // What the node says of the handshake, and then the end.
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
    }
    assert_eq!(counters(&server).closed_stalled, stops.len() as u64);
    // One that agreed on keys and says no hello has no longer.
    let mut end = End::connect(&server, &tls);
    end.shake_hands().unwrap();
    let mut rest = Vec::new();
    let _ = end.socket.read_to_end(&mut rest);
    assert_eq!(counters(&server).closed_stalled, stops.len() as u64 + 1);
}

/// Aim: a client that is refused hears why though it goes on sending. Method: a frame without TLS, as
/// long as a hello, and an alert in answer.
#[test]
fn plain_frames_are_answered_by_an_alert() {
    let (_engine, server, _) = start(|_| {});
    let mut socket = TcpStream::connect(server.address()).unwrap();
    socket.write_all(&[b'T'; 2000]).unwrap();
    let mut answer = [0; 7];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..2], [21, 3], "an alert in {answer:?}");
    let mut rest = Vec::new();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(socket.read_to_end(&mut rest).unwrap(), 0);
    let refused = counters(&server);
    assert_eq!(refused.tls_refused, 1);
}
