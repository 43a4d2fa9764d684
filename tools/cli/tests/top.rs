//! Aim: `terrace top` as scripts call it: what it prints, that a node which is away is a bounded error,
//! and that one which comes back is shown again. Method: the built binary as a child process, and an
//! admin interface of canned answers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// Answers calls on `listener` by each of `bodies`, and ends.
fn serve(listener: TcpListener, bodies: Vec<String>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for body in bodies {
            let (mut socket, _) = listener.accept().unwrap();
            let mut line = String::new();
            let mut lines = BufReader::new(socket.try_clone().unwrap());
            lines.read_line(&mut line).unwrap();
            assert_eq!(line, "GET /stats HTTP/1.1\r\n");
            while line != "\r\n" {
                line.clear();
                lines.read_line(&mut line).unwrap();
            }
            write!(socket, "HTTP/1.1 200 OK\r\n\r\n{body}").unwrap();
        }
    })
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn stats(hits: u64) -> String {
    json!({
        "terrace_start_time_seconds": 1.5,
        "terrace_ready": 1,
        "terrace_scrape_old": 0,
        "terrace_process_memory_bytes": 1 << 20,
        "edges_ns": [1_000_000, 2_000_000],
        "shards": [{
            "shard": 0, "fenced": false, "pages": "hugetlb-2MiB", "rings": ["io_uring 256+512"],
            "dram_bytes": 1000, "dram_free_bytes": 500, "dram_blocks": 7,
            "engine": { "terrace_dram_hits_total": hits, "terrace_misses_total": hits },
            "server": { "terrace_server_connections": 3 },
            "requests": { "get": { "counts": [hits, 0, 0] } },
            "hops": { "device": { "counts": [0, hits, 0] } },
            "devices": [{
                "device": "blocks.nvme",
                "counts": { "terrace_nvme_health": 1, "terrace_nvme_bytes": 100 },
            }],
        }],
    })
    .to_string()
}

fn top(address: SocketAddr, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command
        .args(["top", "--admin", &address.to_string()])
        .args(flags);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn once_shows_one_interval_as_text_and_as_json() {
    for is_json in [false, true] {
        let (listener, address) = listener();
        let served = serve(listener, vec![stats(10), stats(30)]);
        let flags: &[&str] = if is_json {
            &["--once", "--json"]
        } else {
            &["--once"]
        };
        let output = top(address, flags).output().unwrap();
        served.join().unwrap();
        let out = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        if is_json {
            let told: Value = serde_json::from_str(&out).unwrap();
            let shard = &told["shards"][0];
            assert_eq!(told["ready"], true);
            assert_eq!(shard["dram"]["hit_ratio"], 0.5);
            assert_eq!(shard["dram"]["fill_ratio"], 0.5);
            assert_eq!(shard["server"]["connections"], 3);
            assert_eq!(shard["nvme"][0]["health"], 1);
            assert_eq!(shard["nvme"][0]["wait"]["p50_us"], 1500.0);
            assert_eq!(told["requests"]["get"]["p50_us"], 500.0);
            continue;
        }
        for part in [
            "ready",
            "50.0%",
            "read only",
            "500 us",
            "1.5 ms",
            "DRAM on hugetlb-2MiB",
            "io_uring",
        ] {
            assert!(out.contains(part), "no `{part}` in\n{out}");
        }
        assert!(!out.contains('\x1b'), "no terminal, no control sequences");
    }
}

fn assert_unavailable(output: &Output, word: &str) {
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains(word), "no `{word}` in {err}");
}

#[test]
fn node_that_is_not_there_is_unavailable() {
    let (closed, address) = listener();
    drop(closed);
    assert_unavailable(&top(address, &[]).output().unwrap(), &address.to_string());
}

#[test]
fn answers_that_make_no_sense_are_told() {
    for body in ["", "not json", "[1]", "{\"shards\": 5}"] {
        let (listener, address) = listener();
        let served = serve(listener, vec![body.to_owned()]);
        assert_unavailable(&top(address, &[]).output().unwrap(), "/stats");
        served.join().unwrap();
    }
}

/// Aim: a node that goes away is told, and shown again when it is back; one that stays away is an
/// error once patience is over.
#[test]
fn node_that_comes_back_is_shown_again() {
    let (first, address) = listener();
    let served = serve(first, vec![stats(10), stats(20)]);
    let mut child = top(address, &["--json", "--patience", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut next = || -> Value {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    assert_eq!(next()["ready"], true);
    served.join().unwrap();
    assert!(next()["away"].as_str().unwrap().contains("refused"));
    let served = serve(TcpListener::bind(address).unwrap(), vec![stats(30)]);
    let mut told = next();
    while told["away"].is_string() {
        told = next();
    }
    assert_eq!(told["shards"][0]["dram"]["hit_ratio"], 0.5);
    served.join().unwrap();
    assert!(next()["away"].is_string());
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert!(err.contains("refused"), "{err}");
}
