//! What a client is told, and its limits.

use std::fmt;
use std::time::Duration;

use terrace_wire::limits::{CLIENT_NAME_LEN_MAX, TOKEN_LEN_MAX};

use crate::error::Failure;
use crate::one_sided::OneSided;
use crate::tls::TlsOptions;

/// Longest deadline that a call may have: a day.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);

/// How to reach a node, and how long to try.
#[derive(Clone)]
pub struct ClientConfig {
    /// Host and port of any shard of the node, `127.0.0.1:7440`. A host that is a name is looked
    /// up at each connect, on a thread of its own.
    pub address: String,
    /// What shows who the client is, at most 1024 bytes; empty for nothing.
    pub token: Vec<u8>,
    /// TLS below the frames; `None` sends them as they are, the token too.
    pub tls: Option<TlsOptions>,
    /// What the node's logs call the client, at most 64 bytes.
    pub name: String,
    /// How long a call may take that gives no deadline of its own, 1 ms to a day.
    pub deadline: Duration,
    /// How long a connect and its handshake may take, 1 ms to a day.
    pub connect_timeout: Duration,
    /// Most connections to one shard, 1 to 64. One more is made when all others are in use.
    pub connections_per_shard: usize,
    /// How often a call is tried, 1 to 16. Puts and removals are tried again only when they were not
    /// carried out.
    pub attempts: u32,
    /// Whether blocks go between registered memory of this program and the node's without the node's
    /// processor, or over rails of their own.
    pub one_sided: OneSided,
}

impl fmt::Debug for ClientConfig {
    // The token stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("address", &self.address)
            .field("token_len", &self.token.len())
            .field("tls", &self.tls)
            .field("name", &self.name)
            .field("deadline", &self.deadline)
            .field("connect_timeout", &self.connect_timeout)
            .field("connections_per_shard", &self.connections_per_shard)
            .field("attempts", &self.attempts)
            .field("one_sided", &self.one_sided)
            .finish()
    }
}

impl ClientConfig {
    /// The defaults, for the node at `address`: 10 s for a call, 3 s for a connect, 4 connections to
    /// a shard, 3 attempts.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            token: Vec::new(),
            tls: None,
            name: String::new(),
            deadline: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(3),
            connections_per_shard: 4,
            attempts: 3,
            one_sided: OneSided::Off,
        }
    }

    /// The same with a token.
    #[must_use]
    pub fn token(mut self, token: &[u8]) -> Self {
        self.token = token.to_vec();
        self
    }

    /// The same with TLS.
    #[must_use]
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The same with a deadline for calls that give none.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The same with one-sided access.
    #[must_use]
    pub fn one_sided(mut self, one_sided: OneSided) -> Self {
        self.one_sided = one_sided;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        let port = self.address.rsplit_once(':').map(|(_, port)| port);
        if port.and_then(|port| port.parse::<u16>().ok()).is_none() {
            let limit = "a host and a port, as in `127.0.0.1:7440`";
            let shown = format_args!("`{}`", self.address.escape_debug()).to_string();
            return Err(Failure::argument("address", shown, limit));
        }
        if self.token.len() > TOKEN_LEN_MAX {
            let limit = format_args!("at most {TOKEN_LEN_MAX}").to_string();
            return Err(Failure::argument("token length", self.token.len(), limit));
        }
        if self.name.len() > CLIENT_NAME_LEN_MAX || self.name.chars().any(char::is_control) {
            let limit = format!("at most {CLIENT_NAME_LEN_MAX} bytes, without control characters");
            let shown = self.name.escape_debug().take(80).collect::<String>();
            return Err(Failure::argument("name", shown, limit));
        }
        check_deadline("deadline", self.deadline)?;
        check_deadline("connect_timeout", self.connect_timeout)?;
        for (field, value, most) in [
            ("connections_per_shard", self.connections_per_shard, 64),
            ("attempts", self.attempts as usize, 16),
        ] {
            if value == 0 || value > most {
                return Err(Failure::argument(field, value, format!("1 to {most}")));
            }
        }
        self.one_sided.check()
    }
}

/// Refuses spans that no call may have.
pub(crate) fn check_deadline(field: &'static str, span: Duration) -> Result<(), Failure> {
    if span < Duration::from_millis(1) || span > DEADLINE_MAX {
        return Err(Failure::argument(
            field,
            format!("{span:?}"),
            "1 ms to 24 h",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::one_sided::OneSidedOptions;

    use super::*;

    #[test]
    fn config_outside_its_limits_is_refused_by_name() {
        let good = ClientConfig::new("[::1]:7440");
        assert!(good.check().is_ok());
        type Break = fn(&mut ClientConfig);
        let breaks: [(&str, Break); 12] = [
            ("address", |config| config.address = "host".to_owned()),
            ("address", |config| config.address = "host:65536".to_owned()),
            ("token length", |config| config.token = vec![0; 1025]),
            ("name", |config| config.name = "x".repeat(65)),
            ("name", |config| config.name = "a\nb".to_owned()),
            ("deadline", |config| config.deadline = Duration::ZERO),
            ("deadline", |config| config.deadline = Duration::MAX),
            ("connect_timeout", |config| {
                config.connect_timeout = Duration::ZERO;
            }),
            ("connections_per_shard", |config| {
                config.connections_per_shard = 65;
            }),
            ("attempts", |config| config.attempts = 0),
            ("one_sided.listen", |config| {
                config.one_sided = OneSided::Auto(OneSidedOptions {
                    listen: Some("0.0.0.0".parse().unwrap()),
                    ..OneSidedOptions::default()
                });
            }),
            ("one_sided.devices", |config| {
                config.one_sided = OneSided::Required(OneSidedOptions {
                    devices: vec![String::new()],
                    ..OneSidedOptions::default()
                });
            }),
        ];
        for (field, wrong) in breaks {
            let mut config = good.clone();
            wrong(&mut config);
            let failure = config.check().unwrap_err();
            let said = failure.cause.to_string();
            assert!(said.starts_with(&format!("{field} is ")), "{said}");
        }
    }
}
