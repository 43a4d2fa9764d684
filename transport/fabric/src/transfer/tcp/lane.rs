//! The opener's end of one connection: groups that are being sent, and those that are answered.
//!
//! **Invariants**
//! - Groups are answered in the order in which they were sent.
//! - A slice that was cancelled is never looked up in its region again: what comes for it is
//!   thrown away, and what is still to be sent of it is zeros.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};

use crate::transfer::error::{RailError, Status};
use crate::transfer::transport::{Ended, Interest, Operation, Slice, SliceId};
use crate::transfer::vectored::{Incoming, Outgoing};
use crate::transfer::wire::{
    ENTRY_LEN, Entry, GROUP_COUNT_MAX, GROUP_HEAD_LEN, decode_answer, encode_group,
};

/// Bytes received before the engine is told what ended.
const RECEIVE_LEN: usize = 4 << 20;

/// Memory for what is thrown away.
const SCRATCH_LEN: usize = 256 << 10;

/// A slice in a group; `slice` is gone once it was cancelled.
struct Place {
    id: SliceId,
    len: u64,
    slice: Option<Slice>,
    /// Whether its payload follows the answer. Known once the answer's head is there.
    is_coming: bool,
}

struct Group {
    operation: Operation,
    sequence: u32,
    places: Vec<Place>,
    /// Head and entries, then the payload of a write: how much of all that was sent.
    head: Vec<u8>,
    sent_len: u64,
    /// The answer's head, then the payload of a read: how much of that came.
    answer: Vec<u8>,
    answer_len: usize,
    /// The place whose payload comes now, and how much of it came.
    next_place: usize,
    place_len: u64,
}

impl Group {
    fn new(operation: Operation, sequence: u32, slices: Vec<Slice>) -> Self {
        let entries = slices.iter().map(|slice| Entry {
            region: slice.remote.id,
            offset: slice.remote_offset,
            len: slice.len as u32,
        });
        Self {
            head: encode_group(operation, sequence, entries),
            answer: vec![0; GROUP_HEAD_LEN + slices.len()],
            places: slices.into_iter().map(Place::new).collect(),
            operation,
            sequence,
            sent_len: 0,
            answer_len: 0,
            next_place: 0,
            place_len: 0,
        }
    }

    fn send_len(&self) -> u64 {
        let payload = match self.operation {
            Operation::Read => 0,
            Operation::Write => self.places.iter().map(|place| place.len).sum(),
        };
        self.head.len() as u64 + payload
    }

    /// Adds what is still to be sent.
    fn push_unsent<'a>(&'a self, zeros: &'a [u8], out: &mut Outgoing<'a>) {
        let head_len = self.head.len() as u64;
        if self.sent_len < head_len {
            out.push(&self.head[self.sent_len as usize..]);
        }
        if self.operation == Operation::Read {
            return;
        }
        let mut skip = self.sent_len.saturating_sub(head_len);
        for place in &self.places {
            if out.is_full() {
                return;
            }
            if skip >= place.len {
                skip -= place.len;
                continue;
            }
            let (from, len) = (skip, place.len - skip);
            skip = 0;
            match &place.slice {
                Some(slice) => {
                    out.push_memory(slice.local.memory(), slice.local_offset + from, len);
                }
                None => push_zeros(zeros, len, out),
            }
        }
    }

    /// Adds where the rest of the answer goes; whether that was all of it.
    fn push_expected<'a>(&'a mut self, scratch: &'a mut [u8], into: &mut Incoming<'a>) -> bool {
        if self.answer_len < self.answer.len() {
            into.push(&mut self.answer[self.answer_len..]);
            return false;
        }
        let mut skip = self.place_len;
        for place in self.places[self.next_place..]
            .iter()
            .filter(|place| place.is_coming)
        {
            let len = place.len - skip;
            let Some(slice) = &place.slice else {
                // What is thrown away is the last piece of a call: its memory is lent once.
                let thrown = len.min(scratch.len() as u64) as usize;
                into.push(&mut scratch[..thrown]);
                return false;
            };
            into.push_memory(slice.local.memory(), slice.local_offset + skip, len);
            skip = 0;
        }
        true
    }

    /// Takes note that `count` bytes came; how many of them belong to a later group.
    fn came(&mut self, mut count: usize, ended: &mut Vec<Ended>) -> Result<usize, RailError> {
        if self.answer_len < self.answer.len() {
            let taken = count.min(self.answer.len() - self.answer_len);
            self.answer_len += taken;
            count -= taken;
            if self.answer_len < self.answer.len() {
                return Ok(0);
            }
            self.answered(ended)?;
        }
        while count > 0 && self.skip_refused() {
            let place = &mut self.places[self.next_place];
            let taken = (count as u64).min(place.len - self.place_len);
            self.place_len += taken;
            count -= taken as usize;
            if self.place_len == place.len {
                if place.slice.take().is_some() {
                    ended.push(Ended {
                        id: place.id,
                        status: Status::Done,
                    });
                }
                (self.next_place, self.place_len) = (self.next_place + 1, 0);
            }
        }
        Ok(count)
    }

    /// Moves on to the next place whose payload comes; whether there is one.
    fn skip_refused(&mut self) -> bool {
        while self
            .places
            .get(self.next_place)
            .is_some_and(|place| !place.is_coming)
        {
            self.next_place += 1;
        }
        self.next_place < self.places.len()
    }

    /// Reads the statuses of an answer.
    fn answered(&mut self, ended: &mut Vec<Ended>) -> Result<(), RailError> {
        let statuses = decode_answer(&self.answer, self.sequence)
            .ok_or(RailError::Protocol("the answer is to another group"))?;
        for (place, status) in self.places.iter_mut().zip(statuses) {
            let is_done = status == Status::Done;
            place.is_coming = is_done && self.operation == Operation::Read;
            if place.is_coming {
                continue;
            }
            let was_cancelled = place.slice.take().is_none();
            // A cancelled read was reported when it was cancelled; a write waits for this.
            if was_cancelled && self.operation == Operation::Write {
                ended.push(Ended {
                    id: place.id,
                    status: Status::Cancelled,
                });
            } else if !was_cancelled {
                ended.push(Ended {
                    id: place.id,
                    status,
                });
            }
        }
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        self.answer_len == self.answer.len() && !self.skip_refused()
    }
}

impl Place {
    const fn new(slice: Slice) -> Self {
        Self {
            id: slice.id,
            len: slice.len,
            slice: Some(slice),
            is_coming: false,
        }
    }
}

fn push_zeros<'a>(zeros: &'a [u8], len: u64, out: &mut Outgoing<'a>) {
    let mut left = len as usize;
    while left > 0 {
        let piece = left.min(zeros.len());
        out.push(&zeros[..piece]);
        left -= piece;
    }
}

/// One connection to the peer.
pub(super) struct Lane {
    stream: TcpStream,
    /// Groups in the order they were made; the first `sent_count` were sent whole.
    groups: VecDeque<Group>,
    sent_count: usize,
    sequence: u32,
    scratch: Vec<u8>,
}

impl Lane {
    /// A lane over a connection that was welcomed.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            groups: VecDeque::new(),
            sent_count: 0,
            sequence: 0,
            scratch: vec![0; SCRATCH_LEN],
        })
    }

    /// Takes slices, and sends what the socket takes of them.
    pub(super) fn post(&mut self, slices: impl Iterator<Item = Slice>) -> Result<(), RailError> {
        let mut run: Vec<Slice> = Vec::new();
        for slice in slices {
            let is_other = run
                .first()
                .is_some_and(|first| first.operation != slice.operation);
            if is_other || run.len() == GROUP_COUNT_MAX {
                self.add(std::mem::take(&mut run));
            }
            run.push(slice);
        }
        self.add(run);
        self.send()
    }

    fn add(&mut self, slices: Vec<Slice>) {
        if let Some(first) = slices.first() {
            let group = Group::new(first.operation, self.sequence, slices);
            self.sequence = self.sequence.wrapping_add(1);
            self.groups.push_back(group);
        }
    }

    /// Sends what the socket takes.
    pub(super) fn send(&mut self) -> Result<(), RailError> {
        while self.sent_count < self.groups.len() {
            let zeros = &self.scratch;
            let mut out = Outgoing::default();
            for group in self.groups.range(self.sent_count..) {
                if out.is_full() {
                    break;
                }
                group.push_unsent(zeros, &mut out);
            }
            let mut count = match out.send(self.stream.as_fd()) {
                Ok(count) => count as u64,
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) => return Err(RailError::os("send")(error)),
            };
            for group in self.groups.range_mut(self.sent_count..) {
                let taken = count.min(group.send_len() - group.sent_len);
                group.sent_len += taken;
                count -= taken;
                if group.sent_len < group.send_len() {
                    break;
                }
                self.sent_count += 1;
            }
        }
        Ok(())
    }

    /// Receives what is there of answers.
    pub(super) fn receive(&mut self, ended: &mut Vec<Ended>) -> Result<(), RailError> {
        let mut received = 0;
        while self.sent_count > 0 && received < RECEIVE_LEN {
            let mut into = Incoming::default();
            let mut groups = self.groups.iter_mut();
            if let Some(group) = groups.next() {
                let is_whole = group.push_expected(&mut self.scratch, &mut into);
                // The next answer's head comes along with the end of a payload.
                if let (true, Some(next)) = (is_whole, groups.next()) {
                    into.push(&mut next.answer[next.answer_len..]);
                }
            }
            let mut count = match into.receive(self.stream.as_fd()) {
                Ok(0) => return Err(RailError::Closed),
                Ok(count) => count,
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) => return Err(RailError::os("receive")(error)),
            };
            received += count;
            while let Some(group) = self.groups.front_mut() {
                count = group.came(count, ended)?;
                if !group.is_over() {
                    break;
                }
                self.groups.pop_front();
                self.sent_count -= 1;
                if count == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether the peer has closed a lane on which nothing is awaited.
    pub(super) fn is_closed(&self) -> bool {
        let is_idle = self.groups.is_empty();
        is_idle && !matches!(self.stream.peek(&mut [0]), Err(error) if is_not_now(&error))
    }

    /// What to sleep on.
    pub(super) fn interest(&self) -> Interest {
        Interest {
            fd: self.stream.as_raw_fd(),
            read: true,
            write: self.sent_count < self.groups.len(),
        }
    }

    /// Cancels a slice if it is here. A read is over at once: what comes for it is thrown away.
    /// A write is over when the peer has answered, so that it writes nothing later.
    pub(super) fn cancel(&mut self, id: SliceId, ended: &mut Vec<Ended>) -> bool {
        for group in &mut self.groups {
            let Some(at) = group.places.iter().position(|place| place.id == id) else {
                continue;
            };
            let was_here = group.places[at].slice.take().is_some();
            if group.operation == Operation::Read && was_here {
                ended.push(Ended {
                    id,
                    status: Status::Cancelled,
                });
            }
            if group.operation == Operation::Write && group.sent_len == 0 {
                group.remove(at);
                ended.push(Ended {
                    id,
                    status: Status::Cancelled,
                });
            }
            self.drop_empty();
            return true;
        }
        false
    }

    /// Forgets groups of which nothing is left to send.
    fn drop_empty(&mut self) {
        let is_empty = |group: &Group| group.places.is_empty();
        self.groups.retain(|group| !is_empty(group));
    }
}

impl Group {
    /// Takes a slice out of a group of which nothing was sent.
    fn remove(&mut self, at: usize) {
        self.places.remove(at);
        let start = GROUP_HEAD_LEN + at * ENTRY_LEN;
        self.head.drain(start..start + ENTRY_LEN);
        self.head[2..4].copy_from_slice(&(self.places.len() as u16).to_le_bytes());
        self.answer.pop();
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
