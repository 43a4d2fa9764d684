//! What two engines say to each other, as bytes. docs/transfer.md has the tables.
//!
//! All numbers are little endian. Nothing here reads or writes a socket.

use super::error::Status;
use super::limits::{REGION_COUNT_MAX, REGION_KEY_LEN_MAX, SLICE_LEN_MAX};
use super::region::{Access, RegionId, RemoteRegion};
use super::transport::{Operation, TransportKind};

/// The first bytes of every connection, both ways.
pub(super) const MAGIC: [u8; 8] = *b"TERRXFER";
/// What both ends must speak.
pub(super) const VERSION: u16 = 1;
/// Length of a hello and of a welcome.
pub(super) const HELLO_LEN: usize = 32;
/// Length of a message's head on a control connection.
pub(super) const MESSAGE_HEAD_LEN: usize = 8;
/// Length of a group's head on a lane, and of its answer's.
pub(super) const GROUP_HEAD_LEN: usize = 8;
/// Length of one slice in a group.
pub(super) const ENTRY_LEN: usize = 24;
/// Slices of one group: with 64 of them the head costs nothing, and one call sends them all.
pub(super) const GROUP_COUNT_MAX: usize = 64;

/// Names one opened peer at the engine it opened. Zeros: none yet.
pub(super) type Token = [u8; 16];

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Control,
    Lane { rail: u32, is_urgent: bool },
    SharedMemory,
}

/// The opener's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) purpose: Purpose,
    pub(super) token: Token,
}

/// What a hello is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Welcome {
    Accepted(Token),
    OtherVersion,
    UnknownToken,
    TooManyConnections,
    NotInvited,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_LEN] {
        let (purpose, lane, rail) = match self.purpose {
            Purpose::Control => (1, 0, 0),
            Purpose::Lane { rail, is_urgent } => (2, u8::from(is_urgent), rail),
            Purpose::SharedMemory => (3, 0, 0),
        };
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = purpose;
        bytes[11] = lane;
        bytes[12..16].copy_from_slice(&rail.to_le_bytes());
        bytes[16..].copy_from_slice(&self.token);
        bytes
    }

    /// `Err` holds what to answer; `None` in it: nothing, the other end is no engine.
    pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, Option<Welcome>> {
        if bytes[..8] != MAGIC {
            return Err(None);
        }
        if number(bytes, 8, 2) != u64::from(VERSION) {
            return Err(Some(Welcome::OtherVersion));
        }
        let purpose = match bytes[10] {
            1 => Purpose::Control,
            2 => Purpose::Lane {
                rail: number(bytes, 12, 4) as u32,
                is_urgent: bytes[11] == 1,
            },
            3 => Purpose::SharedMemory,
            _ => return Err(None),
        };
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[16..]);
        Ok(Self { purpose, token })
    }
}

impl Welcome {
    pub(super) fn encode(self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = match self {
            Self::Accepted(token) => {
                bytes[16..].copy_from_slice(&token);
                0
            }
            Self::OtherVersion => 1,
            Self::UnknownToken => 2,
            Self::TooManyConnections => 3,
            Self::NotInvited => 4,
        };
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        if bytes[..8] != MAGIC {
            return None;
        }
        Some(match bytes[10] {
            0 if number(bytes, 8, 2) == u64::from(VERSION) => {
                let mut token = [0; 16];
                token.copy_from_slice(&bytes[16..]);
                Self::Accepted(token)
            }
            0 | 1 => Self::OtherVersion,
            2 => Self::UnknownToken,
            3 => Self::TooManyConnections,
            4 => Self::NotInvited,
            _ => return None,
        })
    }
}

/// Kinds of messages on a control connection. An answer's kind is its question's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Regions,
    Notify,
    Ask(TransportKind),
}

/// Head of a message on a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageHead {
    pub(super) len: u32,
    pub(super) kind: MessageKind,
    /// Of an answer: whether the question was refused.
    pub(super) is_refused: bool,
}

impl MessageHead {
    pub(super) fn encode(self) -> [u8; MESSAGE_HEAD_LEN] {
        let (kind, transport) = match self.kind {
            MessageKind::Regions => (1, 0),
            MessageKind::Notify => (2, 0),
            MessageKind::Ask(kind) => (3, transport_code(kind)),
        };
        let mut bytes = [0; MESSAGE_HEAD_LEN];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4] = kind;
        bytes[5] = transport;
        bytes[6] = u8::from(self.is_refused);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; MESSAGE_HEAD_LEN]) -> Option<Self> {
        let kind = match bytes[4] {
            1 => MessageKind::Regions,
            2 => MessageKind::Notify,
            3 => MessageKind::Ask(transport_of(bytes[5])?),
            _ => return None,
        };
        Some(Self {
            len: number(bytes, 0, 4) as u32,
            kind,
            is_refused: bytes[6] != 0,
        })
    }
}

/// One slice of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) region: RegionId,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// Adds a group's head to `bytes`; its entries follow.
pub(super) fn encode_group(
    operation: Operation,
    sequence: u32,
    entries: impl ExactSizeIterator<Item = Entry>,
) -> Vec<u8> {
    let count = entries.len();
    let mut bytes = Vec::with_capacity(GROUP_HEAD_LEN + count * ENTRY_LEN);
    let code = match operation {
        Operation::Read => 1,
        Operation::Write => 2,
    };
    bytes.extend([code, 0]);
    bytes.extend((count as u16).to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    for entry in entries {
        bytes.extend(entry.region.slot.to_le_bytes());
        bytes.extend(entry.len.to_le_bytes());
        bytes.extend(entry.region.epoch.to_le_bytes());
        bytes.extend(entry.offset.to_le_bytes());
    }
    bytes
}

/// A group's operation, number and count of slices.
pub(super) fn decode_group(bytes: &[u8; GROUP_HEAD_LEN]) -> Option<(Operation, u32, usize)> {
    let operation = match bytes[0] {
        1 => Operation::Read,
        2 => Operation::Write,
        _ => return None,
    };
    let count = number(bytes, 2, 2) as usize;
    let is_valid = (1..=GROUP_COUNT_MAX).contains(&count);
    is_valid.then_some((operation, number(bytes, 4, 4) as u32, count))
}

/// The entries of a group; `None` when one is longer than a slice may be.
pub(super) fn decode_entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let entry = |bytes: &[u8]| {
        let entry = Entry {
            region: RegionId {
                slot: number(bytes, 0, 4) as u32,
                epoch: number(bytes, 8, 8),
            },
            offset: number(bytes, 16, 8),
            len: number(bytes, 4, 4) as u32,
        };
        let is_valid = entry.len > 0 && u64::from(entry.len) <= SLICE_LEN_MAX;
        is_valid.then_some(entry)
    };
    bytes.chunks_exact(ENTRY_LEN).map(entry).collect()
}

/// The head of a group's answer, with a status for each slice.
pub(super) fn encode_answer(sequence: u32, statuses: &[Status]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(GROUP_HEAD_LEN + statuses.len());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend((statuses.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(statuses.iter().map(|status| status_code(*status)));
    bytes
}

/// The statuses of an answer to group `sequence`; `None` when it is not one.
pub(super) fn decode_answer(bytes: &[u8], sequence: u32) -> Option<Vec<Status>> {
    let (head, codes) = bytes.split_at_checked(GROUP_HEAD_LEN)?;
    let is_that =
        number(head, 0, 4) == u64::from(sequence) && number(head, 4, 2) == codes.len() as u64;
    if !is_that {
        return None;
    }
    codes.iter().map(|code| status_of(*code)).collect()
}

/// Regions as their owner tells of them.
pub(super) fn encode_regions(regions: &[RemoteRegion]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((regions.len() as u32).to_le_bytes());
    for region in regions {
        bytes.extend(region.id.slot.to_le_bytes());
        bytes.extend([access_code(region.access), region.keys.len() as u8, 0, 0]);
        bytes.extend(region.id.epoch.to_le_bytes());
        bytes.extend(region.len.to_le_bytes());
        for (kind, key) in &region.keys {
            bytes.extend([transport_code(*kind), 0]);
            bytes.extend((key.len() as u16).to_le_bytes());
            bytes.extend(key);
        }
    }
    bytes
}

/// The regions of a list; `None` when it is not one.
pub(super) fn decode_regions(bytes: &[u8]) -> Option<Vec<RemoteRegion>> {
    let mut rest = bytes;
    let count = number(take(&mut rest, 4)?, 0, 4) as usize;
    if count > REGION_COUNT_MAX {
        return None;
    }
    let mut regions = Vec::new();
    for _ in 0..count {
        let head = take(&mut rest, 24)?;
        let mut keys = Vec::new();
        for _ in 0..head[5] {
            let key_head = take(&mut rest, 4)?;
            let len = number(key_head, 2, 2) as usize;
            let key = take(&mut rest, len)?;
            // A transport this end does not know is one it does not use.
            if let (Some(kind), true) = (transport_of(key_head[0]), len <= REGION_KEY_LEN_MAX) {
                keys.push((kind, key.to_vec()));
            }
        }
        regions.push(RemoteRegion {
            id: RegionId {
                slot: number(head, 0, 4) as u32,
                epoch: number(head, 8, 8),
            },
            len: number(head, 16, 8),
            access: access_of(head[4])?,
            keys,
        });
    }
    rest.is_empty().then_some(regions)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

/// The number of `len` bytes at `at`, which callers know to be there.
pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(wide)
}

const fn transport_code(kind: TransportKind) -> u8 {
    match kind {
        TransportKind::Tcp => 1,
        TransportKind::SharedMemory => 2,
        TransportKind::Rdma => 3,
    }
}

const fn transport_of(code: u8) -> Option<TransportKind> {
    Some(match code {
        1 => TransportKind::Tcp,
        2 => TransportKind::SharedMemory,
        3 => TransportKind::Rdma,
        _ => return None,
    })
}

const fn access_code(access: Access) -> u8 {
    match access {
        Access::Local => 0,
        Access::Read => 1,
        Access::ReadWrite => 3,
    }
}

const fn access_of(code: u8) -> Option<Access> {
    Some(match code {
        1 => Access::Read,
        3 => Access::ReadWrite,
        _ => return None,
    })
}

/// The code of a status that one end gives the other.
pub(super) const fn status_code(status: Status) -> u8 {
    match status {
        Status::Done => 0,
        Status::UnknownRegion => 1,
        Status::StaleRegion => 2,
        Status::OutOfBounds => 3,
        Status::AccessDenied => 4,
        Status::Pending
        | Status::Cancelled
        | Status::ChecksumMismatch
        | Status::DeadlineExceeded
        | Status::PeerLost => 5,
    }
}

/// The status of a code. What only the one end knows is lost to the other.
pub(super) const fn status_of(code: u8) -> Option<Status> {
    Some(match code {
        0 => Status::Done,
        1 => Status::UnknownRegion,
        2 => Status::StaleRegion,
        3 => Status::OutOfBounds,
        4 => Status::AccessDenied,
        5 => Status::PeerLost,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_and_welcome_come_back() {
        for purpose in [
            Purpose::Control,
            Purpose::Lane {
                rail: 7,
                is_urgent: true,
            },
            Purpose::SharedMemory,
        ] {
            let hello = Hello {
                purpose,
                token: [9; 16],
            };
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
        for welcome in [
            Welcome::Accepted([3; 16]),
            Welcome::OtherVersion,
            Welcome::UnknownToken,
            Welcome::TooManyConnections,
        ] {
            assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        }
        assert_eq!(Hello::decode(&[0; HELLO_LEN]), Err(None));
        let mut other = Hello {
            purpose: Purpose::Control,
            token: [0; 16],
        }
        .encode();
        other[8] = 2;
        assert_eq!(Hello::decode(&other), Err(Some(Welcome::OtherVersion)));
    }

    #[test]
    fn group_and_answer_come_back() {
        let entry = Entry {
            region: RegionId { slot: 3, epoch: 5 },
            offset: 1 << 40,
            len: 77,
        };
        let bytes = encode_group(Operation::Write, 12, [entry; 3].into_iter());
        let head = bytes[..GROUP_HEAD_LEN].try_into().unwrap();
        assert_eq!(decode_group(head), Some((Operation::Write, 12, 3)));
        assert_eq!(
            decode_entries(&bytes[GROUP_HEAD_LEN..]),
            Some(vec![entry; 3])
        );
        let long = Entry {
            len: SLICE_LEN_MAX as u32 + 1,
            ..entry
        };
        let bytes = encode_group(Operation::Read, 0, [long].into_iter());
        assert_eq!(decode_entries(&bytes[GROUP_HEAD_LEN..]), None);
        let statuses = [Status::Done, Status::StaleRegion, Status::OutOfBounds];
        let answer = encode_answer(12, &statuses);
        assert_eq!(decode_answer(&answer, 12), Some(statuses.to_vec()));
        assert_eq!(decode_answer(&answer, 13), None);
        assert_eq!(decode_answer(&answer[..9], 12), None);
    }

    #[test]
    fn regions_come_back_and_cut_lists_do_not() {
        let region = |slot, access| RemoteRegion {
            id: RegionId {
                slot,
                epoch: 1 << 60,
            },
            len: 1 << 33,
            access,
            keys: vec![
                (TransportKind::Tcp, vec![]),
                (TransportKind::Rdma, vec![1, 2, 3]),
            ],
        };
        let regions = vec![region(0, Access::Read), region(9, Access::ReadWrite)];
        let bytes = encode_regions(&regions);
        assert_eq!(decode_regions(&bytes), Some(regions));
        for len in 0..bytes.len() {
            assert_eq!(decode_regions(&bytes[..len]), None, "{len}");
        }
    }
}
