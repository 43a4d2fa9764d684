//! What two ends have to know of each other before their queue pairs can be connected.
//!
//! The ends exchange it over a connection they have already, such as TCP. As bytes:
//!
//! | offset | bytes | field |
//! |--:|--:|---|
//! | 0 | 1 | version: 1 |
//! | 1 | 1 | network: 1 InfiniBand, 2 Ethernet |
//! | 2 | 1 | longest packet payload: 1 to 5 for 256 to 4096 bytes |
//! | 3 | 1 | reads this end answers at a time |
//! | 4 | 4 | number of the queue pair, 24 bits |
//! | 8 | 4 | number of the first packet it sends, 24 bits |
//! | 12 | 2 | LID; 0 over Ethernet |
//! | 14 | 2 | zero |
//! | 16 | 16 | GID |
//!
//! Numbers are little-endian.

use super::abi::{LINK_LAYER_ETHERNET, LINK_LAYER_INFINIBAND};
use super::device::{LinkLayer, Mtu};
use super::error::VerbsError;
use super::gid::Gid;

/// Queue pair and packet numbers have 24 bits.
pub(super) const NUMBER_MAX: u32 = (1 << 24) - 1;

const VERSION: u8 = 1;

/// Where a queue pair is reached, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairAddress {
    /// The kind of network.
    pub link: LinkLayer,
    /// Longest packet payload that its port takes.
    pub mtu: Mtu,
    /// Reads that it answers at a time.
    pub reads_in: u8,
    /// Its number.
    pub queue_pair: u32,
    /// The number of the first packet it will send.
    pub first_packet: u32,
    /// Its port's LID; 0 over Ethernet.
    pub lid: u16,
    /// Its port's GID.
    pub gid: Gid,
}

impl QueuePairAddress {
    /// Length of an address in bytes.
    pub const LEN: usize = 32;

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = VERSION;
        bytes[1] = match self.link {
            LinkLayer::InfiniBand => LINK_LAYER_INFINIBAND,
            LinkLayer::Ethernet => LINK_LAYER_ETHERNET,
            LinkLayer::Other(raw) => raw,
        };
        bytes[2] = self.mtu.raw();
        bytes[3] = self.reads_in;
        bytes[4..8].copy_from_slice(&self.queue_pair.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.first_packet.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.lid.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.gid.0);
        bytes
    }

    /// From bytes that a peer sent.
    ///
    /// # Errors
    /// [`VerbsError::Address`] names the first field that is not as it has to be.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, VerbsError> {
        let refuse = |field, value| Err(VerbsError::Address { field, value });
        let [version, link, mtu, reads_in, rest @ ..] = *bytes;
        let [a, b, c, d, e, f, g, h, i, j, zero @ ..] = rest;
        let [z, y, gid @ ..] = zero;
        let queue_pair = u32::from_le_bytes([a, b, c, d]);
        let first_packet = u32::from_le_bytes([e, f, g, h]);
        let spare = u16::from_le_bytes([z, y]);
        if version != VERSION {
            return refuse("version", version.into());
        }
        let link = match link {
            LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            other => return refuse("network", other.into()),
        };
        let Some(mtu) = Mtu::from_raw(mtu.into()) else {
            return refuse("packet payload", mtu.into());
        };
        // 0 and 1 are queue pairs of the network's own management.
        if !(2..=NUMBER_MAX).contains(&queue_pair) {
            return refuse("queue pair", queue_pair.into());
        }
        if first_packet > NUMBER_MAX {
            return refuse("first packet", first_packet.into());
        }
        if spare != 0 {
            return refuse("spare bytes", spare.into());
        }
        Ok(Self {
            link,
            mtu,
            reads_in,
            queue_pair,
            first_packet,
            lid: u16::from_le_bytes([i, j]),
            gid: Gid(gid),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> QueuePairAddress {
        QueuePairAddress {
            link: LinkLayer::Ethernet,
            mtu: Mtu::from_raw(5).unwrap(),
            reads_in: 16,
            queue_pair: 0x12_3456,
            first_packet: 0xff_fffe,
            lid: 0x0102,
            gid: Gid::from_ip("10.77.0.1".parse().unwrap()),
        }
    }

    #[test]
    fn encode_gives_the_bytes_of_the_table() {
        let bytes = address().encode();
        let head = [
            1, 2, 5, 16, 0x56, 0x34, 0x12, 0, 0xfe, 0xff, 0xff, 0, 2, 1, 0, 0,
        ];
        assert_eq!(bytes[..16], head);
        assert_eq!(
            bytes[16..],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]
        );
        assert_eq!(QueuePairAddress::decode(&bytes).unwrap(), address());
    }

    #[test]
    fn decode_wrong_field_is_named() {
        let changes: [(usize, u8, &str); 6] = [
            (0, 2, "version"),
            (1, 3, "network"),
            (2, 6, "packet payload"),
            (7, 1, "queue pair"),
            (11, 1, "first packet"),
            (15, 1, "spare bytes"),
        ];
        for (offset, value, expected) in changes {
            let mut bytes = address().encode();
            bytes[offset] = value;
            match QueuePairAddress::decode(&bytes) {
                Err(VerbsError::Address { field, .. }) => assert_eq!(field, expected),
                other => panic!("byte {offset}: {other:?}"),
            }
        }
        let mut bytes = address().encode();
        bytes[4..8].fill(0);
        assert!(QueuePairAddress::decode(&bytes).is_err());
    }
}
