//! The transport over TCP: two lanes of each rail, one of them for what is urgent.
//!
//! A lane is a connection. The opener sends groups of slices on it, several ahead; the other end
//! answers each in order: a status for every slice, then the payloads of reads, with nothing
//! between them, so that one system call moves many slices between the socket and the regions.

mod lane;
mod rail;
pub(super) mod serve;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::error::RailError;
use super::wire::{HELLO_LEN, Hello, Purpose, Token, Welcome};

pub(super) use rail::{TcpRail, question};

/// Connects and says hello; the token of the welcome.
pub(super) fn connect(
    address: SocketAddr,
    purpose: Purpose,
    token: Token,
    timeout: Duration,
) -> Result<(TcpStream, Token), RailError> {
    let mut stream =
        TcpStream::connect_timeout(&address, timeout).map_err(RailError::os("connect"))?;
    let prepared = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(timeout)))
        .and_then(|()| stream.set_write_timeout(Some(timeout)));
    prepared.map_err(RailError::os("prepare a socket"))?;
    let token = greet(&mut stream, purpose, token, timeout)?;
    Ok((stream, token))
}

/// Says hello on a new connection; the token of the welcome.
pub(super) fn greet(
    stream: &mut (impl Read + Write),
    purpose: Purpose,
    token: Token,
    timeout: Duration,
) -> Result<Token, RailError> {
    let hello = Hello { purpose, token };
    let mut welcome = [0; HELLO_LEN];
    stream
        .write_all(&hello.encode())
        .and_then(|()| stream.read_exact(&mut welcome))
        .map_err(timed_out("say hello", timeout))?;
    match Welcome::decode(&welcome) {
        Some(Welcome::Accepted(token)) => Ok(token),
        Some(Welcome::OtherVersion) => Err(RailError::Refused("it speaks another version")),
        Some(Welcome::UnknownToken) => Err(RailError::Refused(UNKNOWN_TOKEN)),
        Some(Welcome::NotInvited) => Err(RailError::Refused(
            "it takes openers with a ticket only, and this one has none in force",
        )),
        Some(Welcome::TooManyConnections) => Err(RailError::Refused("it has no free connection")),
        None => Err(RailError::Protocol("the other end is no transfer engine")),
    }
}

/// What a peer says that has started again, or has forgotten this one.
pub(super) const UNKNOWN_TOKEN: &str = "it does not know this peer any more";

/// As [`RailError::os`], for a socket whose calls end after `timeout`.
pub(super) fn timed_out(op: &'static str, timeout: Duration) -> impl Fn(io::Error) -> RailError {
    move |source| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            RailError::TimedOut { waited: timeout }
        }
        _ => RailError::os(op)(source),
    }
}
