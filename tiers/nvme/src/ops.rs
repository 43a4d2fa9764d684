//! Operations under way: who owns their memory, who waits for them, and until when.
//!
//! **Invariants**
//! - An operation's number is reused only after its completion was taken.
//! - Its buffer leaves the table with the completion, never before: dropping the future or
//!   passing the deadline leaves the buffer with the operation.
//! - A future resolves once: with the completion, or with [`IoError::TimedOut`].

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use terrace_types::Nanos;

use crate::buffer::IoBuffer;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The operating system said so; `EIO` when the medium failed.
    #[error("{}", nix::errno::Errno::from_raw(*.errno).desc())]
    Os {
        /// The error's number.
        errno: i32,
    },
    /// Fewer bytes were moved than asked for.
    #[error("{done} of {wanted} bytes were moved")]
    Short {
        /// Bytes moved.
        done: u32,
        /// Bytes asked for.
        wanted: u32,
    },
    /// The deadline passed. The operation goes on and keeps its memory until it ends.
    #[error("no completion within the deadline")]
    TimedOut,
    /// As many operations as allowed are under way or stuck.
    #[error("too many operations are under way")]
    Full,
}

/// What an operation came to.
#[derive(Debug)]
pub struct IoOutcome {
    /// Success means that every byte asked for was moved.
    pub result: Result<(), IoError>,
    /// The memory; `None` when the operation still has it.
    pub buffer: Option<IoBuffer>,
}

enum Stage {
    Vacant,
    Pending,
    Done(Result<(), IoError>),
}

struct Op {
    stage: Stage,
    buffer: IoBuffer,
    waker: Option<Waker>,
    deadline: Nanos,
    wanted: u32,
    /// Nobody waits any more.
    orphan: bool,
    /// The deadline passed; the future was told, or is gone.
    late: bool,
    generation: u32,
}

/// The number of an operation: its place and the generation of that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

impl OpId {
    const fn new(at: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | at as u64)
    }

    const fn at(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[derive(Default)]
struct Table {
    ops: Vec<Op>,
    vacant: Vec<u32>,
    late: usize,
}

/// See the module's text. Clones share the table.
#[derive(Clone)]
pub struct OpTable {
    table: Rc<RefCell<Table>>,
    limit: usize,
}

impl OpTable {
    /// A table for at most `limit` operations at once.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            table: Rc::default(),
            limit,
        }
    }

    /// Takes an operation in. `wanted` is the count of bytes it must move to succeed.
    ///
    /// # Errors
    /// The buffer, when the table is full.
    pub fn begin(&self, buffer: IoBuffer, wanted: u32, deadline: Nanos) -> Result<OpId, IoBuffer> {
        let mut table = self.table.borrow_mut();
        let at = match table.vacant.pop() {
            Some(at) => at,
            None if table.ops.len() < self.limit => {
                table.ops.push(Op {
                    stage: Stage::Vacant,
                    buffer: IoBuffer::None,
                    waker: None,
                    deadline,
                    wanted: 0,
                    orphan: false,
                    late: false,
                    generation: 0,
                });
                (table.ops.len() - 1) as u32
            }
            None => return Err(buffer),
        };
        let op = &mut table.ops[at as usize];
        op.generation = op.generation.wrapping_add(1);
        op.stage = Stage::Pending;
        op.buffer = buffer;
        op.waker = None;
        op.deadline = deadline;
        op.wanted = wanted;
        (op.orphan, op.late) = (false, false);
        Ok(OpId::new(at, op.generation))
    }

    /// The future of an operation that was taken in.
    #[must_use]
    pub fn future(&self, id: OpId) -> IoFuture {
        IoFuture(Inner::Op {
            table: self.clone(),
            id,
        })
    }

    /// Takes in a completion: the bytes moved, or the error's number.
    ///
    /// # Panics
    /// When no such operation is under way: the backend completed it twice.
    pub fn complete(&self, id: OpId, moved: Result<u32, i32>) {
        let mut table = self.table.borrow_mut();
        let op = &mut table.ops[id.at()];
        assert_eq!(op.generation, id.generation(), "completed twice");
        assert!(matches!(op.stage, Stage::Pending), "completed twice");
        let wanted = op.wanted;
        let result = match moved {
            Ok(done) if done == wanted => Ok(()),
            Ok(done) => Err(IoError::Short { done, wanted }),
            Err(errno) => Err(IoError::Os { errno }),
        };
        if op.orphan || op.late {
            let was_late = op.late;
            op.stage = Stage::Vacant;
            let buffer = std::mem::replace(&mut op.buffer, IoBuffer::None);
            table.late -= usize::from(was_late);
            table.vacant.push(id.at() as u32);
            drop(table);
            // Dropping a slot's writer or pin wakes its shard: not while the table is held.
            drop(buffer);
            return;
        }
        op.stage = Stage::Done(result);
        let waker = op.waker.take();
        drop(table);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Resolves the futures of operations whose deadline passed; returns how many those were.
    pub fn expire(&self, now: Nanos) -> usize {
        let mut wakers = Vec::new();
        let mut expired = 0;
        {
            let mut table = self.table.borrow_mut();
            let table = &mut *table;
            for op in &mut table.ops {
                if matches!(op.stage, Stage::Pending) && !op.late && op.deadline <= now {
                    op.late = true;
                    table.late += 1;
                    expired += 1;
                    wakers.extend(op.waker.take());
                }
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        expired
    }

    /// Address and length of an operation's memory.
    #[must_use]
    pub fn range(&self, id: OpId) -> (std::ptr::NonNull<u8>, usize) {
        self.table.borrow().ops[id.at()].buffer.range()
    }

    /// Operations that are not completed, late ones included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let table = self.table.borrow();
        let pending = |op: &&Op| matches!(op.stage, Stage::Pending);
        table.ops.iter().filter(pending).count()
    }

    /// Operations that passed their deadline and did not complete yet.
    #[must_use]
    pub fn late(&self) -> usize {
        self.table.borrow().late
    }
}

enum Inner {
    Op { table: OpTable, id: OpId },
    Ready(Option<IoOutcome>),
}

/// An operation as its caller awaits it. Dropping it gives up the answer, not the operation.
pub struct IoFuture(Inner);

impl IoFuture {
    /// A future that is resolved already; for operations that were refused.
    #[must_use]
    pub const fn ready(outcome: IoOutcome) -> Self {
        Self(Inner::Ready(Some(outcome)))
    }
}

impl Future for IoFuture {
    type Output = IoOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<IoOutcome> {
        let inner = &mut self.get_mut().0;
        let (table, id) = match inner {
            Inner::Ready(outcome) => {
                let outcome = outcome
                    .take()
                    .expect("a future is not polled after its end");
                return Poll::Ready(outcome);
            }
            Inner::Op { table, id } => (table.clone(), *id),
        };
        let mut table = table.table.borrow_mut();
        let op = &mut table.ops[id.at()];
        // Once late, the operation may have completed and its place be another's by now.
        if op.generation != id.generation() || op.late {
            drop(table);
            *inner = Inner::Ready(None);
            return Poll::Ready(IoOutcome {
                result: Err(IoError::TimedOut),
                buffer: None,
            });
        }
        let Stage::Done(result) = op.stage else {
            let waker = context.waker();
            if !op
                .waker
                .as_ref()
                .is_some_and(|known| known.will_wake(waker))
            {
                op.waker = Some(waker.clone());
            }
            return Poll::Pending;
        };
        op.stage = Stage::Vacant;
        let buffer = Some(std::mem::replace(&mut op.buffer, IoBuffer::None));
        table.vacant.push(id.at() as u32);
        let outcome = IoOutcome { result, buffer };
        drop(table);
        *inner = Inner::Ready(None);
        Poll::Ready(outcome)
    }
}

impl Drop for IoFuture {
    fn drop(&mut self) {
        let Inner::Op { table, id } = &self.0 else {
            return;
        };
        let mut table = table.table.borrow_mut();
        let op = &mut table.ops[id.at()];
        if op.generation != id.generation() || op.late {
            return;
        }
        op.orphan = true;
        op.waker = None;
        if matches!(op.stage, Stage::Done(_)) {
            op.stage = Stage::Vacant;
            let buffer = std::mem::replace(&mut op.buffer, IoBuffer::None);
            table.vacant.push(id.at() as u32);
            drop(table);
            drop(buffer);
        }
    }
}

#[cfg(test)]
#[path = "ops_tests.rs"]
mod tests;
