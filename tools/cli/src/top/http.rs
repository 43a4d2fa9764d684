//! One question to the admin interface of a node, answered in time and within bounds.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest answer that is taken, in bytes: a node of 1024 shards has less.
const ANSWER_MAX: u64 = 64 << 20;

/// The body of what `address` answers to a GET of `path`, within `span`; else why there is none.
pub(super) fn get(address: &str, path: &str, span: Duration) -> Result<String, String> {
    let deadline = now() + span;
    let mut socket = connect(address, deadline)?;
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            format!("{address}: no answer within {} s", span.as_secs_f64())
        }
        _ => format!("{address}: {error}"),
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let written = left(deadline).and_then(|left| socket.set_write_timeout(Some(left)));
    written.map_err(failed)?;
    socket.write_all(request.as_bytes()).map_err(failed)?;
    let answer = read(&mut socket, deadline).map_err(failed)?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| format!("{address}: what answers does not speak HTTP"))?;
    let line = head.lines().next().unwrap_or_default();
    if line.split(' ').nth(1) != Some("200") {
        return Err(format!("{address}{path}: {line}"));
    }
    Ok(body.to_owned())
}

fn connect(address: &str, deadline: Instant) -> Result<TcpStream, String> {
    let wrong = |error: std::io::Error| format!("{address}: {error}");
    let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(wrong)?.collect();
    let mut why = format!("{address}: no address has this name");
    for at in found {
        let tried = left(deadline).and_then(|left| TcpStream::connect_timeout(&at, left));
        match tried {
            Ok(socket) => return Ok(socket),
            Err(error) => why = wrong(error),
        }
    }
    Err(why)
}

/// Reads to the end of the answer; the deadline is for all of it.
fn read(socket: &mut TcpStream, deadline: Instant) -> std::io::Result<Vec<u8>> {
    let (mut all, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        socket.set_read_timeout(Some(left(deadline)?))?;
        let count = socket.read(&mut piece)?;
        if count == 0 {
            return Ok(all);
        }
        all.extend_from_slice(&piece[..count]);
        if all.len() as u64 > ANSWER_MAX {
            let what = format!("the answer has more than {ANSWER_MAX} bytes");
            return Err(std::io::Error::other(what));
        }
    }
}

fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(now());
    match left.is_zero() {
        true => Err(std::io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command times its calls outside of any runtime"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}
