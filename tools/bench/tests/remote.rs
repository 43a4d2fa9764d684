//! Aim: `terrace-bench replay --remote` plays a trace to a node, and says what went wrong. Method: the
//! built binary against a server of this process, which goes away and comes back under one run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use terrace_engine::{Engine, EngineConfig, HugepageMode, block_on};
use terrace_fabric::verbs::{RdmaConfig, RdmaTransport};
use terrace_server::tls::{NodePem, NodeTls};
use terrace_server::{OneSidedConfig, OneSidedReach, Server, ServerConfig};

const TOKEN: &str = "a secret of some length";

fn engine() -> Engine {
    Engine::open(EngineConfig {
        dram_bytes: 64 << 20,
        shards: 2,
        hugepages: HugepageMode::Off,
        ..EngineConfig::default()
    })
    .unwrap()
}

fn serve(engine: &Engine, address: &str, token: Option<&str>) -> Server {
    let config = ServerConfig {
        token: token.map(|token| token.as_bytes().to_vec()),
        ..ServerConfig::default()
    };
    Server::start(engine, TcpListener::bind(address).unwrap(), config).unwrap()
}

fn command(address: SocketAddr, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-bench"));
    command.args(["replay", "--remote", &address.to_string()]);
    command.args(["--block-len", "16KiB"]).args(args);
    command
}

fn report(output: &Output) -> serde_json::Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(report: &serde_json::Value, path: &str) -> u64 {
    let found = report.pointer(path).and_then(serde_json::Value::as_u64);
    found.unwrap_or_else(|| panic!("no {path} in {report}"))
}

fn no_failures(report: &serde_json::Value) {
    for name in ["unavailable", "timed_out", "connection_lost", "refused"] {
        assert_eq!(number(report, &format!("/failures/{name}")), 0, "{report}");
    }
    assert_eq!(number(report, "/failures/corrupt"), 0, "{report}");
    assert_eq!(number(report, "/verify_failures"), 0, "{report}");
}

#[test]
fn trace_is_played_to_a_node_and_verified() {
    let engine = engine();
    let server = serve(&engine, "127.0.0.1:0", Some(TOKEN));
    let folder = std::env::temp_dir();
    let file = folder.join(format!("terrace-remote-token-{}", std::process::id()));
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let token = ["--token-file", file.to_str().unwrap()];
    let more = ["--requests", "100", "--threads", "2", "--prefetch"];
    let args = [&token[..], &more].concat();
    let json = [&args[..], &["--json"]].concat();
    let output = command(server.address(), &json).output().unwrap();
    let report = report(&output);
    no_failures(&report);
    assert_eq!(number(&report, "/requests"), 100);
    assert_eq!(number(&report, "/shards"), 2);
    let (hits, misses) = (number(&report, "/dram/hits"), number(&report, "/misses"));
    assert_eq!(hits + misses, number(&report, "/accesses"));
    let counters = block_on(engine.stats()).counters;
    assert_eq!(counters.puts_stored, number(&report, "/puts/stored"));
    assert!(hits > 0 && counters.puts_stored > 0, "{report}");

    let output = command(server.address(), &args).output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for words in [
        "2 shard(s)",
        "wrong bytes           0",
        "calls without answer",
    ] {
        assert!(table.contains(words), "no `{words}` in {table}");
    }
    std::fs::remove_file(file).unwrap();
}

/// Aim: with --rdma blocks are pulled and read one-sided, without it by connections, and a node that
/// grants none is told of. Over RDMA where there is a device, else over rails of TCP.
#[test]
fn trace_goes_one_sided_where_it_is_granted() {
    let engine = engine();
    let reach = OneSidedReach::Staged {
        client_len: 8 << 20,
        clients_max: 2,
    };
    let has_rdma = RdmaTransport::open(&RdmaConfig::default()).is_ok();
    let config = ServerConfig {
        one_sided: Some(OneSidedConfig {
            reach,
            hosts: vec!["127.0.0.1".parse().unwrap()],
            rdma: has_rdma.then(RdmaConfig::default),
            skip_fence: false,
        }),
        ..ServerConfig::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(&engine, listener, config).unwrap();
    let args = ["--requests", "60", "--threads", "2", "--json"];
    let one_sided = ["--rdma", "auto", "--rdma-listen", "127.0.0.1"];
    let args = [&args[..], &one_sided].concat();
    for turn in 0..2 {
        let output = command(server.address(), &args).output().unwrap();
        let report = report(&output);
        no_failures(&report);
        let count = |name: &str| number(&report, &format!("/client/{name}"));
        assert!(count("one_sided_gets") > 0, "{report}");
        assert_eq!(count("rails_lost"), 0, "{report}");
        if turn == 0 {
            assert!(count("pulled_puts") > 0, "{report}");
        }
    }
    let table = command(server.address(), &["--requests", "9", "--rdma", "auto"]);
    let table = { table }.output().unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.contains("  one-sided ") && table.contains("  rail "),
        "{table}"
    );

    let plain = serve(&engine, "127.0.0.1:0", None);
    let output = command(plain.address(), &args).output().unwrap();
    let report = report(&output);
    no_failures(&report);
    assert_eq!(number(&report, "/client/one_sided_gets"), 0, "{report}");
    let fault = report["client"]["one_sided_fault"].as_str().unwrap();
    assert!(fault.contains("the node grants none"), "{fault}");
}

/// Aim: the flags of TLS are those of `terrace`, and a node that speaks TLS is replayed to by them.
#[test]
fn trace_is_played_over_tls() {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["node.example".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap().pem();
    let (ca, key) = (ca.pem(), key.serialize_pem());
    let tls = NodeTls::new(&NodePem {
        certificate: certificate.as_bytes(),
        key: key.as_bytes(),
        client_ca: Some(ca.as_bytes()),
    });
    let config = ServerConfig {
        tls: Some(tls.unwrap()),
        ..ServerConfig::default()
    };
    let engine = engine();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(&engine, listener, config).unwrap();
    let file = |name: &str, text: &str| {
        let name = format!("terrace-remote-tls-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let files = [
        file("ca", &ca),
        file("cert", &certificate),
        file("key", &key),
    ];
    let [ca, cert, key] = &files;
    let name = ["--tls-name", "node.example"];
    let trust = ["--requests", "20", "--json", "--tls-ca", ca];
    let show = ["--tls-cert", cert, "--tls-key", key];
    let args = [&trust[..], &show, &name].concat();
    let output = command(server.address(), &args).output().unwrap();
    no_failures(&report(&output));
    // The node asks for a certificate, and a key alone says nothing.
    let cases = [
        ([&trust[..], &name].concat(), "certificate"),
        (vec!["--tls-key", key], "--tls-ca"),
    ];
    for (args, word) in cases {
        let output = command(server.address(), &args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(word), "no `{word}` in {text}");
    }
    for path in &files {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn node_that_goes_away_and_comes_back_costs_failures_only() {
    let engine = engine();
    let server = serve(&engine, "127.0.0.1:0", None);
    let address = server.address();
    let args = ["--requests", "400", "--json"];
    let mut child = command(address, &args);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap();
    let observer = server.observer();
    while block_on(observer.counters()).requests < 500 {
        std::thread::yield_now();
    }
    drop(server);
    let server = serve(&engine, &address.to_string(), None);
    let report = report(&child.wait_with_output().unwrap());
    assert_eq!(number(&report, "/requests"), 400);
    assert_eq!(number(&report, "/verify_failures"), 0, "{report}");
    assert!(number(&report, "/client/connects") > 3, "{report}");
    assert!(block_on(server.observer().counters()).requests > 0);
}

#[test]
fn wrong_input_is_named() {
    let engine = engine();
    let server = serve(&engine, "127.0.0.1:0", Some(TOKEN));
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let cases: [(SocketAddr, &[&str], &[&str]); 10] = [
        (nobody, &[], &["--remote", "not available"]),
        (server.address(), &[], &["token", "refused"]),
        (nobody, &["--shards", "2"], &["--shards", "--remote"]),
        (nobody, &["--scratch"], &["--scratch", "--remote"]),
        (nobody, &["--threads", "0"], &["--threads", "0", "256"]),
        (nobody, &["--threads", "9"], &["--iodepth", "4", "9"]),
        (nobody, &["--namespace", ""], &["--namespace"]),
        (nobody, &["--rdma", ""], &["devices", "NAME/PORT"]),
        (nobody, &["--rdma-listen", "127.0.0.1"], &["--rdma "]),
        (
            nobody,
            &["--token-file", "no/such"],
            &["--token-file", "no/such"],
        ),
    ];
    for (address, args, words) in cases {
        let output = command(address, args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{args:?}: no `{word}` in {text}");
        }
    }
    let bench = Command::new(env!("CARGO_BIN_EXE_terrace-bench"))
        .args(["replay", "--threads", "2"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&bench.stderr).into_owned();
    assert!(
        text.contains("--threads") && text.contains("--remote"),
        "{text}"
    );
}
