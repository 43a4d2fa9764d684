//! Shared memory of one host: a peer's regions are mapped here, and who reads copies.
//!
//! The owner takes no part in a read or write. Two tables of words stand in for its checks: it
//! writes the epoch of each place in the one, and each opener counts its accesses under way in
//! another. An access counts itself, then looks at the epoch; to unregister, the owner clears the
//! epoch, then waits until no opener counts one. Bounds and access are kept by the kernel: only
//! what may be written can be mapped for writing, and lengths are sealed.

pub(super) mod host;
mod map;
mod opener;
mod words;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use super::error::Status;
use super::region::RegionId;
use super::wire::{number, status_code, status_of};

pub use opener::Lease;
pub(super) use opener::{SharedPeer, SharedWork};

/// Bytes of a question on a connection for shared memory.
const QUESTION_LEN: usize = 40;
/// Bytes of an answer.
const ANSWER_LEN: usize = 16;
/// Descriptors that an answer brings at most.
const FD_COUNT_MAX: usize = 2;

/// Leases that one opener has at once.
pub(super) const LEASE_COUNT_MAX: usize = 4096;
/// The longest lease, in milliseconds: an owner that unregisters waits for it.
pub(super) const LEASE_MILLIS_MAX: u64 = 60_000;

/// What an opener asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// The table of epochs and one for counting.
    Tables,
    /// A region's memory.
    Map(RegionId),
    /// That bytes of a region stay what they are for a while.
    Lease {
        region: RegionId,
        offset: u64,
        len: u64,
        millis: u64,
    },
    /// That a lease is over. It has no answer.
    Release { lease: u64 },
}

impl Question {
    fn encode(self) -> [u8; QUESTION_LEN] {
        let none = RegionId { slot: 0, epoch: 0 };
        let (kind, region, words) = match self {
            Self::Tables => (1, none, [0; 3]),
            Self::Map(region) => (2, region, [0; 3]),
            Self::Lease {
                region,
                offset,
                len,
                millis,
            } => (3, region, [offset, len, millis]),
            Self::Release { lease } => (4, none, [lease, 0, 0]),
        };
        let mut bytes = [0; QUESTION_LEN];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&region.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&region.epoch.to_le_bytes());
        for (at, word) in words.into_iter().enumerate() {
            bytes[16 + at * 8..24 + at * 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; QUESTION_LEN]) -> Option<Self> {
        let region = RegionId {
            slot: number(bytes, 4, 4) as u32,
            epoch: number(bytes, 8, 8),
        };
        let [first, second, third] = [16, 24, 32].map(|at| number(bytes, at, 8));
        Some(match bytes[0] {
            1 => Self::Tables,
            2 => Self::Map(region),
            3 => Self::Lease {
                region,
                offset: first,
                len: second,
                millis: third,
            },
            4 => Self::Release { lease: first },
            _ => return None,
        })
    }
}

/// What it is answered with.
struct Answer {
    status: Status,
    value: u64,
    fds: Vec<OwnedFd>,
}

fn send_answer(
    stream: &UnixStream,
    status: Status,
    value: u64,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut bytes = [0; ANSWER_LEN];
    bytes[0] = status_code(status);
    bytes[8..].copy_from_slice(&value.to_le_bytes());
    let raw: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let pieces = [IoSlice::new(&bytes)];
    let sent = sendmsg::<()>(
        stream.as_raw_fd(),
        &pieces,
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    // So few bytes go whole or not at all.
    (sent == ANSWER_LEN)
        .then_some(())
        .ok_or_else(|| io::ErrorKind::WriteZero.into())
}

fn receive_answer(stream: &UnixStream) -> io::Result<Answer> {
    let mut bytes = [0; ANSWER_LEN];
    let mut space = nix::cmsg_space!([i32; FD_COUNT_MAX]);
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_WAITALL | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut pieces, Some(&mut space), flags)?;
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just made these descriptors for this process.
            fds.extend(
                raw.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    if message.bytes != ANSWER_LEN {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let status = status_of(bytes[0]).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Answer {
        status,
        value: number(&bytes, 8, 8),
        fds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_come_back() {
        let region = RegionId {
            slot: 5,
            epoch: 1 << 50,
        };
        for question in [
            Question::Tables,
            Question::Map(region),
            Question::Lease {
                region,
                offset: 1,
                len: 2,
                millis: 3,
            },
            Question::Release { lease: 9 },
        ] {
            assert_eq!(Question::decode(&question.encode()), Some(question));
        }
        assert_eq!(Question::decode(&[0; QUESTION_LEN]), None);
    }

    #[test]
    fn answers_bring_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsFd::as_fd(&file);
        send_answer(&one, Status::StaleRegion, 77, &[fd, fd]).unwrap();
        let answer = receive_answer(&other).unwrap();
        assert_eq!((answer.status, answer.value), (Status::StaleRegion, 77));
        assert_eq!(answer.fds.len(), 2);
        drop(one);
        assert!(receive_answer(&other).is_err());
    }
}
