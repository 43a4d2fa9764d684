//! Work requests, and their form for the NIC.

use super::abi::{self, SendWr, Sge};
use super::error::VerbsError;
use super::in_flight::RequestKind;
use super::region::{LocalSlice, RemoteSlice};

/// One work request.
pub struct WorkRequest<'a> {
    /// What its completion will be told by.
    pub token: u64,
    /// What to do.
    pub operation: Operation<'a>,
}

/// What a work request does.
pub enum Operation<'a> {
    /// Reads bytes of the peer, one after the other into slices of this end.
    Read {
        /// Where they go.
        into: Vec<LocalSlice>,
        /// Where they are.
        from: RemoteSlice,
    },
    /// Writes slices of this end, one after the other into memory of the peer.
    Write {
        /// Where the bytes are.
        from: Vec<LocalSlice>,
        /// Where they go.
        into: RemoteSlice,
        /// Takes a receive of the peer and tells it this number, behind the bytes.
        immediate: Option<u32>,
    },
    /// Sends a message into a receive of the peer.
    Send {
        /// Where its bytes are.
        from: Vec<LocalSlice>,
        /// A number that goes with it.
        immediate: Option<u32>,
    },
    /// Sends a short message, whose bytes are copied while it is posted.
    SendInline {
        /// The message.
        message: &'a [u8],
        /// A number that goes with it.
        immediate: Option<u32>,
    },
}

/// What a queue pair takes.
#[derive(Clone, Copy)]
pub(super) struct RequestLimits {
    pub(super) slice_count: usize,
    pub(super) message_len: u32,
    pub(super) inline_len: u32,
}

impl Operation<'_> {
    pub(super) fn kind(&self) -> RequestKind {
        match self {
            Self::Read { .. } => RequestKind::Read,
            Self::Write { .. } => RequestKind::Write,
            Self::Send { .. } | Self::SendInline { .. } => RequestKind::Send,
        }
    }

    /// The slices of this end.
    pub(super) fn slices(&self) -> &[LocalSlice] {
        match self {
            Self::Read { into: slices, .. }
            | Self::Write { from: slices, .. }
            | Self::Send { from: slices, .. } => slices,
            Self::SendInline { .. } => &[],
        }
    }

    /// Bytes that it moves.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::SendInline { message, .. } => message.len() as u64,
            _ => total(self.slices()),
        }
    }

    pub(super) fn into_slices(self) -> Vec<LocalSlice> {
        match self {
            Self::Read { into: slices, .. }
            | Self::Write { from: slices, .. }
            | Self::Send { from: slices, .. } => slices,
            Self::SendInline { .. } => Vec::new(),
        }
    }

    /// Refuses what the queue pair does not take.
    pub(super) fn check(&self, limits: RequestLimits) -> Result<(), VerbsError> {
        let kind = match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Send { .. } => "send",
            Self::SendInline { .. } => "inline send",
        };
        let most = match self {
            Self::SendInline { .. } => limits.inline_len.min(limits.message_len),
            _ => limits.message_len,
        };
        let slice_count = self.slices().len() as u64;
        at_most(kind, "slices", slice_count, limits.slice_count as u64)?;
        at_most(kind, "bytes", self.len(), most.into())
    }

    fn opcode(&self) -> u32 {
        match self {
            Self::Read { .. } => abi::WR_RDMA_READ,
            Self::Write { immediate, .. } => match immediate {
                None => abi::WR_RDMA_WRITE,
                Some(_) => abi::WR_RDMA_WRITE_WITH_IMM,
            },
            Self::Send { immediate, .. } | Self::SendInline { immediate, .. } => match immediate {
                None => abi::WR_SEND,
                Some(_) => abi::WR_SEND_WITH_IMM,
            },
        }
    }

    /// The pieces of memory as the NIC takes them, appended to `pieces`.
    fn append_pieces(&self, pieces: &mut Vec<Sge>) {
        match self {
            Self::SendInline { message, .. } => pieces.push(Sge {
                addr: message.as_ptr().addr() as u64,
                length: message.len() as u32,
                lkey: 0,
            }),
            _ => pieces.extend(self.slices().iter().map(LocalSlice::raw)),
        }
    }
}

pub(super) fn total(slices: &[LocalSlice]) -> u64 {
    slices.iter().map(|slice| u64::from(slice.len())).sum()
}

pub(super) fn at_most(
    kind: &'static str,
    field: &'static str,
    value: u64,
    max: u64,
) -> Result<(), VerbsError> {
    if value <= max {
        return Ok(());
    }
    Err(VerbsError::Request {
        kind,
        field,
        value,
        max,
    })
}

/// Requests of a batch that share a completion: enough that completions cost little, few enough
/// that the first of a long batch is not told of late.
const SIGNAL_EVERY: usize = 16;

/// A list of requests as the NIC takes it: kept and used again, so that posting allocates
/// nothing once it has grown.
#[derive(Default)]
pub(super) struct Chain {
    requests: Vec<SendWr>,
    pieces: Vec<Sge>,
}

// SAFETY: its addresses are used only between `finish` and the call that posts, on one thread.
unsafe impl Send for Chain {}
// SAFETY: through a shared reference nothing can be done with it.
unsafe impl Sync for Chain {}

impl Chain {
    /// Adds a request.
    pub(super) fn push(&mut self, id: u64, operation: &Operation<'_>) {
        let before = self.pieces.len();
        operation.append_pieces(&mut self.pieces);
        let (remote, immediate) = match operation {
            Operation::Read { from, .. } => (*from, None),
            Operation::Write {
                into, immediate, ..
            } => (*into, *immediate),
            Operation::Send { immediate, .. } | Operation::SendInline { immediate, .. } => {
                let nowhere = RemoteSlice {
                    address: 0,
                    rkey: 0,
                };
                (nowhere, *immediate)
            }
        };
        let send_flags = match operation {
            Operation::SendInline { .. } => abi::SEND_INLINE,
            _ => 0,
        };
        self.requests.push(SendWr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: (self.pieces.len() - before) as u32,
            opcode: operation.opcode(),
            send_flags,
            imm_data: immediate.unwrap_or(0).to_be(),
            remote_addr: remote.address,
            rkey: remote.rkey,
            unused: [0; 19],
        });
    }

    /// Links the requests, asks for completions of every 16th and the last, and returns the
    /// first. It is valid until the chain is changed.
    pub(super) fn finish(&mut self) -> *mut SendWr {
        let mut piece = self.pieces.as_mut_ptr();
        let mut next = std::ptr::null_mut();
        let count = self.requests.len();
        for (index, request) in self.requests.iter_mut().enumerate() {
            if (index + 1).is_multiple_of(SIGNAL_EVERY) || index + 1 == count {
                request.send_flags |= abi::SEND_SIGNALED;
            }
        }
        for request in &mut self.requests {
            request.sg_list = piece;
            piece = piece.wrapping_add(request.num_sge as usize);
        }
        for request in self.requests.iter_mut().rev() {
            request.next = next;
            next = request;
        }
        next
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteSlice = RemoteSlice {
        address: 0x1000,
        rkey: 5,
    };

    #[test]
    fn chain_links_all_and_signals_only_the_last() {
        let mut chain = Chain::default();
        let message = [1, 2, 3];
        for id in 0..3 {
            chain.push(
                id,
                &Operation::SendInline {
                    message: &message,
                    immediate: Some(9),
                },
            );
        }
        chain.push(
            3,
            &Operation::Read {
                into: Vec::new(),
                from: REMOTE,
            },
        );
        let first = chain.finish();
        assert!(std::ptr::eq(first, &raw const chain.requests[0]));
        for (index, request) in chain.requests.iter().enumerate() {
            let is_last = index == 3;
            assert_eq!(request.next.is_null(), is_last);
            assert_eq!(request.send_flags & abi::SEND_SIGNALED != 0, is_last);
            if !is_last {
                assert!(std::ptr::eq(
                    request.next,
                    &raw const chain.requests[index + 1]
                ));
                assert!(std::ptr::eq(
                    request.sg_list,
                    &raw const chain.pieces[index]
                ));
                assert_eq!(request.imm_data, 9_u32.to_be());
            }
        }
        assert_eq!(chain.requests[3].remote_addr, 0x1000);
        chain.clear();
        assert!(chain.finish().is_null());
    }

    #[test]
    fn check_too_much_is_named() {
        let limits = RequestLimits {
            slice_count: 1,
            message_len: 100,
            inline_len: 2,
        };
        let send = |message| {
            let immediate = None;
            Operation::SendInline { message, immediate }.check(limits)
        };
        assert!(send(&[1, 2]).is_ok());
        let message = send(&[1, 2, 3]).unwrap_err().to_string();
        assert_eq!(message, "inline send of 3 bytes: at most 2");
    }
}
