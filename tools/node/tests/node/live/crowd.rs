//! Aim: idle connections cost little, and others are served beside them. Method: connections that have
//! said hello and say nothing more, then the node's memory over their count. Of a size by command:
//! `TERRACE_IDLE_CONNECTIONS=5000`.

use std::io::Write;
use std::net::TcpStream;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use terrace_client::blocking::Client;
use terrace_client::{CallOptions, ClientConfig, TlsOptions};

use super::hostile::{greeting, read_frame};
use super::process::{number_of, value};
use crate::certificates::Files;
use crate::started::{Folder, Node};

/// What an idle connection may cost the node, in bytes. It has no buffers of its own while it is idle.
const COST_MAX: u64 = 32 << 10;

/// The same over TLS, whose session has records of its own besides.
const TLS_COST_MAX: u64 = 160 << 10;

/// Descriptors that the test needs beside those of connections.
const DESCRIPTORS_BESIDE: u64 = 64;

/// What sockets take of the kernel's memory, in bytes.
fn kernel_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let tcp = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let pages = tcp.and_then(|tcp| tcp.split(" mem ").nth(1)?.trim().parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn idle_connection(node: &Node) -> TcpStream {
    let mut socket = TcpStream::connect(node.address).unwrap();
    socket.write_all(&greeting(None)).unwrap();
    read_frame(&mut socket).expect("the hello is answered");
    socket
}

/// Has so many descriptors allowed, and those of the test.
fn allow_descriptors(count: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let needed = count + DESCRIPTORS_BESIDE;
    assert!(
        needed <= hard,
        "the limit on open files is {hard}, needed are {needed}"
    );
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), hard).unwrap();
}

/// What a connection of a client that does nothing more costs a node that speaks TLS. A client makes
/// it, and so the handshake is whole.
#[test]
fn idle_connections_over_tls_cost_bounded_memory() {
    let count = number_of("TERRACE_IDLE_CONNECTIONS").unwrap_or(100);
    // Clients have more descriptors than their socket.
    allow_descriptors(count * 2);
    let (files, authority) = Files::of_node("live-crowd-tls");
    let flags = ["--tls-cert", "node.pem", "--tls-key", "node.key"];
    let node = Node::start(&files.0, &[&flags[..], &["--nvme", "0"]].concat());
    let tls = TlsOptions::new(authority.pem().as_bytes());
    let config = ClientConfig::new(&node.address.to_string()).tls(tls);
    let connect = || Client::connect(config.clone()).unwrap();
    drop((0..16).map(|_| connect()).collect::<Vec<_>>());
    node.until_metric("terrace_server_connections", 0);
    let before = node.process.resident();
    let crowd: Vec<_> = (0..count).map(|_| connect()).collect();
    node.until_metric("terrace_server_connections", count);
    let after = node.process.resident();
    let cost = after.saturating_sub(before) / count;
    eprintln!(
        "{count} idle connections over TLS: {cost} bytes of the node's memory for each ({before} \
         before, {after} after)"
    );
    assert!(cost <= TLS_COST_MAX, "{cost} bytes a connection");
    drop(crowd);
    node.until_metric("terrace_server_connections", 0);
    node.end();
}

#[test]
fn idle_connections_cost_little_and_others_are_served() {
    let count = number_of("TERRACE_IDLE_CONNECTIONS").unwrap_or(400);
    allow_descriptors(count);
    let folder = Folder::new("live-crowd");
    let node = Node::start(&folder.0, &["--nvme", "0"]);
    let blocks = node.blocks();
    let plain = CallOptions::default();
    let sent = value(1, 100_000);
    blocks.put(b"k", &sent, &plain).unwrap();
    // What is made at the first connections is not theirs.
    drop((0..16).map(|_| idle_connection(&node)).collect::<Vec<_>>());
    node.until_metric("terrace_server_connections", 2);
    let (before, kernel_before) = (node.process.resident(), kernel_bytes());
    let mut crowd = Vec::new();
    for number in 0..count {
        crowd.push(idle_connection(&node));
        if number % 100 == 0 {
            assert!(blocks.get(b"k", &plain).unwrap().hit().unwrap() == sent);
        }
    }
    node.until_metric("terrace_server_connections", count + 2);
    let (after, kernel_after) = (node.process.resident(), kernel_bytes());
    let cost = after.saturating_sub(before) / count;
    let kernel = kernel_after.saturating_sub(kernel_before) / count;
    eprintln!(
        "{count} idle connections: {cost} bytes of the node's memory for each ({before} before, \
         {after} after), {kernel} of the kernel's buffers"
    );
    assert!(cost <= COST_MAX, "{cost} bytes a connection");
    drop(crowd);
    node.until_metric("terrace_server_connections", 2);
    assert!(blocks.get(b"k", &plain).unwrap().hit().unwrap() == sent);
    node.end();
}
