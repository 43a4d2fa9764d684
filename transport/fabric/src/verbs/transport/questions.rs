//! What the two ends of the transport say to each other while rails are made, and which port
//! goes with which.
//!
//! Questions begin with their number. Numbers are little-endian.
//!
//! | question | bytes behind its number | answer |
//! |---|---|---|
//! | 1 list | none | each port: network (0 down, 1 InfiniBand, 2 Ethernet), GID (16) |
//! | 2 connect | port (1), rail (4), address of the asker's queue pair (32) | address of the queue pair for it (32) |
//! | 3 fence | rail (4) | empty, when the NIC serves its queue pair no more |
//!
//! A rail is named by its opener, who names another one for each. It has one queue pair at a time: an
//! answer that got lost leaves none behind, as the next one takes its place.

use std::net::Ipv6Addr;

use crate::transfer::limits::RAIL_COUNT_MAX;
use crate::verbs::address::QueuePairAddress;
use crate::verbs::device::LinkLayer;
use crate::verbs::gid::Gid;

const NIC_LEN: usize = 17;

/// A port, as its owner tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NicAddress {
    /// Its network; `None` while it is down.
    pub(super) link: Option<LinkLayer>,
    /// Its GID; zeros while it has none.
    pub(super) gid: Gid,
}

impl NicAddress {
    pub(super) fn encode_list(nics: &[Self]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(NIC_LEN * nics.len());
        for nic in nics {
            bytes.push(match nic.link {
                Some(LinkLayer::InfiniBand) => 1,
                Some(LinkLayer::Ethernet) => 2,
                _ => 0,
            });
            bytes.extend(nic.gid.0);
        }
        bytes
    }

    pub(super) fn decode_list(bytes: &[u8]) -> Option<Vec<Self>> {
        if !bytes.len().is_multiple_of(NIC_LEN) || bytes.len() > NIC_LEN * RAIL_COUNT_MAX {
            return None;
        }
        let nics = bytes.chunks_exact(NIC_LEN).map(|bytes| {
            let link = match bytes.first()? {
                0 => None,
                1 => Some(LinkLayer::InfiniBand),
                2 => Some(LinkLayer::Ethernet),
                _ => return None,
            };
            let gid = Gid(bytes.get(1..)?.try_into().ok()?);
            Some(Self { link, gid })
        });
        nics.collect()
    }

    /// How many leading bits the GIDs have in common: ports of one network have most.
    fn common_bits(&self, other: &Self) -> u32 {
        let number = |nic: &Self| u128::from(Ipv6Addr::from(nic.gid.0));
        (number(self) ^ number(other)).leading_zeros()
    }

    fn may_reach(&self, other: &Self) -> bool {
        // Of a port that is down the network shows when it is up again.
        self.link.is_none() || other.link.is_none() || self.link == other.link
    }
}

/// Which ports of the two ends go together, as pairs of places: each port of either end is in
/// one pair at least, if it can be, and those of one network go together.
pub(super) fn pairs(ours: &[NicAddress], theirs: &[NicAddress]) -> Vec<(usize, usize)> {
    let mut candidates: Vec<(u32, usize, usize)> = Vec::new();
    for (i, our) in ours.iter().enumerate() {
        for (j, their) in theirs.iter().enumerate() {
            if our.may_reach(their) {
                candidates.push((our.common_bits(their), i, j));
            }
        }
    }
    // Nearest first; among equals by place, so that both ends' first ports go together.
    candidates.sort_by_key(|(bits, i, j)| (u32::MAX - bits, i.abs_diff(*j), *i));
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    // First each port once, then those that are left over with the nearest of the other end.
    for is_again in [false, true] {
        for &(_, i, j) in &candidates {
            let has_ours = pairs.iter().any(|(ours, _)| *ours == i);
            let has_theirs = pairs.iter().any(|(_, theirs)| *theirs == j);
            let is_wanted = match is_again {
                false => !has_ours && !has_theirs,
                true => !has_ours || !has_theirs,
            };
            if is_wanted && pairs.len() < RAIL_COUNT_MAX {
                pairs.push((i, j));
            }
        }
    }
    pairs
}

/// What the opener asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Which ports there are.
    List,
    /// A queue pair for the asker's.
    Connect {
        nic: u8,
        rail: u32,
        address: QueuePairAddress,
    },
    /// The end of a queue pair.
    Fence { rail: u32 },
}

impl Question {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::List => vec![1],
            Self::Connect { nic, rail, address } => {
                let mut bytes = vec![2, *nic];
                bytes.extend(rail.to_le_bytes());
                bytes.extend(address.encode());
                bytes
            }
            Self::Fence { rail } => {
                let mut bytes = vec![3];
                bytes.extend(rail.to_le_bytes());
                bytes
            }
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [1] => Some(Self::List),
            [2, nic, a, b, c, d, address @ ..] => Some(Self::Connect {
                nic: *nic,
                rail: u32::from_le_bytes([*a, *b, *c, *d]),
                address: QueuePairAddress::decode(address.try_into().ok()?).ok()?,
            }),
            [3, a, b, c, d] => Some(Self::Fence {
                rail: u32::from_le_bytes([*a, *b, *c, *d]),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::device::Mtu;

    fn nic(address: &str) -> NicAddress {
        NicAddress {
            link: Some(LinkLayer::Ethernet),
            gid: Gid::from_ip(address.parse().unwrap()),
        }
    }

    fn address() -> QueuePairAddress {
        QueuePairAddress {
            link: LinkLayer::Ethernet,
            mtu: Mtu::from_raw(3).unwrap(),
            reads_in: 4,
            queue_pair: 77,
            first_packet: 5,
            lid: 0,
            gid: nic("10.0.0.1").gid,
        }
    }

    #[test]
    fn pairs_are_of_one_network_whatever_their_order() {
        let ours = [nic("10.0.0.1"), nic("10.9.0.1")];
        let theirs = [nic("10.9.0.2"), nic("10.0.0.2")];
        assert_eq!(pairs(&ours, &theirs), [(0, 1), (1, 0)]);
        assert_eq!(pairs(&ours, &theirs[..1]), [(1, 0), (0, 0)]);
        assert_eq!(pairs(&ours[..1], &theirs), [(0, 1), (0, 0)]);
        assert_eq!(pairs(&ours, &[]), []);
    }

    #[test]
    fn pairs_of_different_kinds_of_networks_are_none_and_down_ports_stay() {
        let infiniband = NicAddress {
            link: Some(LinkLayer::InfiniBand),
            ..nic("10.0.0.2")
        };
        assert_eq!(pairs(&[nic("10.0.0.1")], &[infiniband]), []);
        let down = NicAddress {
            link: None,
            gid: Gid::default(),
        };
        let ours = [nic("10.0.0.1"), nic("10.9.0.1")];
        assert_eq!(pairs(&ours, &[nic("10.0.0.2"), down]), [(0, 0), (1, 1)]);
    }

    #[test]
    fn questions_and_answers_come_back_and_cut_ones_do_not() {
        let questions = [
            Question::List,
            Question::Connect {
                nic: 3,
                rail: 9,
                address: address(),
            },
            Question::Fence { rail: 1 << 20 },
        ];
        for question in questions {
            let bytes = question.encode();
            assert_eq!(Question::decode(&bytes), Some(question));
            assert_eq!(Question::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Question::decode(&[9]), None);
        let nics = [nic("10.0.0.1"), nic("2001:db8::1")];
        let bytes = NicAddress::encode_list(&nics);
        assert_eq!(NicAddress::decode_list(&bytes), Some(nics.to_vec()));
        assert_eq!(NicAddress::decode_list(&bytes[1..]), None);
    }
}
