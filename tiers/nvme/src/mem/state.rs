//! What a device in memory holds: operations, what reads see, and what power loss leaves.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use terrace_types::Nanos;

use super::faults::{Fault, Operation};
use super::guard::Guard;
use super::image::{MemImage, Unit};
use crate::UNIT;
use crate::ops::OpId;

pub(super) struct Flight {
    pub(super) id: OpId,
    pub(super) operation: Operation,
    /// What the operation's memory held when it was asked for: a write writes it.
    pub(super) bytes: Rc<[u8]>,
    /// Gives the memory back with the flight.
    pub(super) _memory: Option<Guard>,
    pub(super) fault: Option<Fault>,
    /// `None` while it is stuck.
    pub(super) due: Option<Nanos>,
    /// For a flush: the writes that it makes durable are those below this count.
    pub(super) completed_before: u64,
}

/// A write that no flush made durable yet.
#[derive(Clone, Debug)]
pub(super) struct Unflushed {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) bytes: Rc<[u8]>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) queued: VecDeque<Flight>,
    pub(super) flying: Vec<Flight>,
    /// What reads see.
    pub(super) volatile: MemImage,
    /// What power loss leaves for certain.
    pub(super) durable: MemImage,
    /// In order of completion.
    pub(super) unflushed: Vec<Unflushed>,
    /// What units held before their last write; for stale reads.
    pub(super) previous: BTreeMap<u64, Unit>,
    pub(super) writes_completed: u64,
    pub(super) submitted: u64,
}

impl State {
    pub(super) fn flush(&mut self, completed_before: u64) {
        // `unflushed` holds the last of all completed writes.
        let flushed = self.writes_completed - self.unflushed.len() as u64;
        let count = completed_before.saturating_sub(flushed) as usize;
        for write in self.unflushed.drain(..count) {
            self.durable.write(write.offset, &write.bytes);
        }
    }

    pub(super) fn stale(&self, offset: u64, len: u32) -> Vec<u8> {
        let units = offset / UNIT..(offset + u64::from(len)) / UNIT;
        units
            .flat_map(|at| match self.previous.get(&at) {
                Some(unit) => **unit,
                None => *self.volatile.unit(at),
            })
            .collect()
    }
}
