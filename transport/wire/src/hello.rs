//! The handshake: what each side says of itself before anything else.

use std::fmt;

use terrace_types::limits::{BLOCK_LEN_MAX, SHARDS_MAX};

use crate::bytes::{Reader, Writer};
use crate::error::{Limit, WireError};
use crate::frame::{FRAME_HEAD_LEN, Flags, FrameLimits, FrameWriter};
use crate::limits::{
    BATCH_MAX, BODY_LEN_MAX, CLIENT_NAME_LEN_MAX, HOST_LEN_MAX, LEN_MAX_MIN, REQUESTS_MAX,
    TOKEN_LEN_MAX, VALUES_LEN_MAX,
};
use crate::records::{self, Codec, Records};
use crate::verb::{Features, Verb};

const CLIENT: &str = "client hello";
const SERVER: &str = "server hello";

/// No shard in particular, in a client's hello.
const ANY_SHARD: u32 = u32::MAX;

/// No shard in particular, in an endpoint.
const ANY_SHARD_HERE: u16 = u16::MAX;

/// The rule by which keys go to shards: the upper half of their hash, scaled to the count.
//= docs/wire-protocol.md#WP-17
const HASH_RULE: u16 = 1;

/// The first frame of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClientHello<'a> {
    /// Lowest version spoken.
    pub version_low: u16,
    /// Highest version spoken.
    pub version_high: u16,
    /// The shard that the connection is for; `None` for any.
    pub shard: Option<u32>,
    /// What the client can.
    pub features: Features,
    /// Random for each process.
    pub client_id: [u8; 16],
    /// The longest frame that it takes.
    pub limits: FrameLimits,
    /// What shows who it is; empty for nothing.
    pub token: &'a [u8],
    /// What logs call it.
    pub name: &'a str,
}

impl fmt::Debug for ClientHello<'_> {
    // The token stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHello")
            .field("version_low", &self.version_low)
            .field("version_high", &self.version_high)
            .field("shard", &self.shard)
            .field("features", &self.features)
            .field("client_id", &self.client_id)
            .field("limits", &self.limits)
            .field("token_len", &self.token.len())
            .field("name", &self.name)
            .finish()
    }
}

/// What a node checked before it said hello.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Security(pub u16);

impl Security {
    /// The token.
    pub const TOKEN: Self = Self(1);
    /// The connection is encrypted.
    pub const TLS: Self = Self(1 << 1);
    /// The client's certificate.
    pub const CLIENT_CERTIFICATE: Self = Self(1 << 2);
}

/// What a node says of itself and of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTerms {
    /// The version in force.
    pub version: u16,
    /// What was checked.
    pub security: Security,
    /// The shard that the connection belongs to.
    pub shard: u32,
    /// The features in force.
    pub features: Features,
    /// The node's id, the same for ever.
    pub node_id: [u8; 16],
    /// Grows with every start of the node.
    pub node_epoch: u64,
    /// Grows with every change of the shard map.
    pub map_epoch: u64,
    /// How many shards there are.
    pub shards: u32,
    /// The longest frame that the node takes.
    pub limits: FrameLimits,
    /// Most entries of a request.
    pub batch_max: u32,
    /// Credit: requests under way.
    pub credit_requests: u32,
    /// Credit: bytes of requests under way.
    pub credit_bytes: u64,
    /// Longest block in bytes.
    pub block_len_max: u32,
    /// Longest lease, in ms.
    pub lease_max_ms: u32,
    /// Longest deadline, in ms; also that of a request that gives none.
    //= docs/wire-protocol.md#WP-13
    pub deadline_max_ms: u32,
    /// Silence after which the node closes the connection, in ms; 0 for never.
    pub silence_max_ms: u32,
}

/// How an endpoint is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// TCP.
    Tcp = 1,
    /// RDMA.
    Rdma = 2,
    /// A Unix socket, which the host names.
    Unix = 3,
}

/// An address at which shards are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// The shard; `None` for any, and the hello's wish decides.
    pub shard: Option<u16>,
    /// The port.
    pub port: u16,
    /// The rail that it belongs to.
    pub rail: u8,
    /// How it is reached.
    pub transport: Transport,
    /// The host; empty for the one that was connected to.
    pub host: &'a str,
}

/// The first frame of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerHello<'a> {
    /// The terms.
    pub terms: NodeTerms,
    /// Where the shards are.
    pub endpoints: Records<'a, Endpoint<'a>>,
}

fn check_limits(reader: &Reader<'_>, limits: &FrameLimits) -> Result<(), WireError> {
    let (low, body) = (LEN_MAX_MIN.into(), limits.body_len_max.into());
    reader.check_range("body limit", body, low, BODY_LEN_MAX.into())?;
    let values = limits.values_len_max.into();
    reader.check_range("values limit", values, low, VALUES_LEN_MAX.into())
}

impl<'a> ClientHello<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(CLIENT, body);
        let version_low = reader.u16()?;
        let version_high = reader.u16()?;
        let lowest = Limit::AtLeast(u64::from(version_low).max(1));
        reader.check("highest version", version_high.into(), lowest)?;
        let shard = reader.u32()?;
        let features = Features(reader.u64()?);
        let client_id = reader.array()?;
        let limits = FrameLimits {
            body_len_max: reader.u32()?,
            values_len_max: reader.u32()?,
        };
        check_limits(&reader, &limits)?;
        let token_len = reader.u16()?;
        let limit = Limit::AtMost(TOKEN_LEN_MAX as u64);
        reader.check("token length", token_len.into(), limit)?;
        let name_len = reader.u16()?;
        let limit = Limit::AtMost(CLIENT_NAME_LEN_MAX as u64);
        reader.check("name length", name_len.into(), limit)?;
        reader.reserved(12)?;
        Ok(Self {
            version_low,
            version_high,
            shard: (shard != ANY_SHARD).then_some(shard),
            features,
            client_id,
            limits,
            token: reader.padded(token_len.into())?,
            name: reader.text("name", name_len.into())?,
        })
    }

    /// Writes its frame; the bytes of it.
    ///
    /// # Errors
    /// [`WireError::Field`] when token or name are too long, [`WireError::NoRoom`] when `out` is too
    /// short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut frame = FrameWriter::new(Verb::Hello, Flags::NONE, 0, out);
        let body = &mut frame.body;
        let (token_len, name_len) = (self.token.len() as u64, self.name.len() as u64);
        let limit = Limit::AtMost(TOKEN_LEN_MAX as u64);
        body.check(CLIENT, "token length", token_len, limit);
        let limit = Limit::AtMost(CLIENT_NAME_LEN_MAX as u64);
        body.check(CLIENT, "name length", name_len, limit);
        body.u16(self.version_low);
        body.u16(self.version_high);
        body.u32(self.shard.unwrap_or(ANY_SHARD));
        body.u64(self.features.0);
        body.put(&self.client_id);
        body.u32(self.limits.body_len_max);
        body.u32(self.limits.values_len_max);
        body.u16(token_len as u16);
        body.u16(name_len as u16);
        body.zeros(12);
        body.padded(self.token);
        body.padded(self.name.as_bytes());
        frame.finish(0)
    }
}

impl NodeTerms {
    fn read(reader: &mut Reader<'_>) -> Result<(Self, u16), WireError> {
        let version = reader.u16()?;
        let security = Security(reader.u16()?);
        let shard = reader.u32()?;
        let features = Features(reader.u64()?);
        let node_id = reader.array()?;
        let node_epoch = reader.u64()?;
        let map_epoch = reader.u64()?;
        let hash_rule = reader.u16()?;
        reader.check(
            "hash rule",
            hash_rule.into(),
            Limit::Exactly(HASH_RULE.into()),
        )?;
        let endpoints = reader.u16()?;
        let terms = Self {
            version,
            security,
            shard,
            features,
            node_id,
            node_epoch,
            map_epoch,
            shards: reader.u32()?,
            limits: FrameLimits {
                body_len_max: reader.u32()?,
                values_len_max: reader.u32()?,
            },
            batch_max: reader.u32()?,
            credit_requests: reader.u32()?,
            credit_bytes: reader.u64()?,
            block_len_max: reader.u32()?,
            lease_max_ms: reader.u32()?,
            deadline_max_ms: reader.u32()?,
            silence_max_ms: reader.u32()?,
        };
        reader.reserved(24)?;
        terms.check(reader)?;
        Ok((terms, endpoints))
    }

    fn check(&self, reader: &Reader<'_>) -> Result<(), WireError> {
        reader.check_range("count of shards", self.shards.into(), 1, SHARDS_MAX as u64)?;
        let last = Limit::AtMost(u64::from(self.shards) - 1);
        reader.check("shard", self.shard.into(), last)?;
        check_limits(reader, &self.limits)?;
        reader.check_range("batch limit", self.batch_max.into(), 1, BATCH_MAX.into())?;
        let (requests, most) = (self.credit_requests.into(), REQUESTS_MAX.into());
        reader.check_range("credit of requests", requests, 1, most)?;
        let least = Limit::AtLeast(self.credit_bytes_min());
        reader.check("credit of bytes", self.credit_bytes, least)?;
        let (block, most) = (self.block_len_max.into(), BLOCK_LEN_MAX);
        reader.check_range("longest block", block, 1, most)
    }

    /// The least credit of bytes by which any frame within the limits can be sent.
    //= docs/wire-protocol.md#WP-11
    #[must_use]
    pub const fn credit_bytes_min(&self) -> u64 {
        let limits = &self.limits;
        FRAME_HEAD_LEN as u64 + limits.body_len_max as u64 + limits.values_len_max as u64
    }

    /// Writes the frame of the hello; the bytes of it.
    ///
    /// # Errors
    /// [`WireError::Field`] when the terms break a limit, [`WireError::NoRoom`] when `out` is too
    /// short.
    pub fn encode<'e>(
        &self,
        endpoints: impl IntoIterator<Item = Endpoint<'e>>,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        self.check(&Reader::new(SERVER, &[]))?;
        let mut frame = FrameWriter::new(Verb::Hello, Flags::REPLY, 0, out);
        let body = &mut frame.body;
        body.u16(self.version);
        body.u16(self.security.0);
        body.u32(self.shard);
        body.u64(self.features.0);
        body.put(&self.node_id);
        body.u64(self.node_epoch);
        body.u64(self.map_epoch);
        body.u16(HASH_RULE);
        let count_at = body.at();
        body.u16(0);
        for word in [
            self.shards,
            self.limits.body_len_max,
            self.limits.values_len_max,
            self.batch_max,
            self.credit_requests,
        ] {
            body.u32(word);
        }
        body.u64(self.credit_bytes);
        for word in [
            self.block_len_max,
            self.lease_max_ms,
            self.deadline_max_ms,
            self.silence_max_ms,
        ] {
            body.u32(word);
        }
        body.zeros(24);
        let (count, _) = records::write(endpoints, body);
        let limit = Limit::AtMost(u16::MAX.into());
        body.check(SERVER, "count of endpoints", count.into(), limit);
        body.patch(count_at, &(count as u16).to_le_bytes());
        frame.finish(0)
    }
}

impl<'a> ServerHello<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(SERVER, body);
        let (terms, count) = NodeTerms::read(&mut reader)?;
        let endpoints = Records::read(&mut reader, count.into())?;
        Ok(Self { terms, endpoints })
    }
}

impl<'a> Codec<'a> for Endpoint<'a> {
    const NAME: &'static str = "endpoint";
    const LEN_MIN: usize = 8;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let shard = reader.u16()?;
        let port = reader.u16()?;
        let rail = reader.u8()?;
        let transport = match reader.u8()? {
            1 => Transport::Tcp,
            2 => Transport::Rdma,
            3 => Transport::Unix,
            other => return Err(reader.wrong("transport", other.into(), Limit::AtMost(3))),
        };
        let host_len = reader.u16()?;
        let limit = Limit::AtMost(HOST_LEN_MAX as u64);
        reader.check("host length", host_len.into(), limit)?;
        Ok(Self {
            shard: (shard != ANY_SHARD_HERE).then_some(shard),
            port,
            rail,
            transport,
            host: reader.text("host", host_len.into())?,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let limit = Limit::AtMost(HOST_LEN_MAX as u64);
        let host_len = self.host.len() as u64;
        writer.check(Self::NAME, "host length", host_len, limit);
        writer.u16(self.shard.unwrap_or(ANY_SHARD_HERE));
        writer.u16(self.port);
        writer.u8(self.rail);
        writer.u8(self.transport as u8);
        writer.u16(host_len as u16);
        writer.padded(self.host.as_bytes());
    }
}
/// The token that the text of a token's file has, the same for a node and its clients: its first line,
/// without the white space around it. `None` unless that has 1 to 1024 bytes.
#[must_use]
pub fn token_of(text: &str) -> Option<&[u8]> {
    let line = text.lines().next().unwrap_or_default().trim();
    let token = Some(line.as_bytes());
    token.filter(|token| (1..=TOKEN_LEN_MAX).contains(&token.len()))
}
