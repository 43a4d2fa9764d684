//! The table of operations against a simple model: begun, completed, expired, polled and dropped in
//! any order.
//!
//! Aim: no number is two operations', memory stays with its operation until that completed, a future
//! resolves once and as it should, and is woken for it. Method: random steps, and after each the
//! whole model is compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::buffer::AlignedBuffer;

const LIMIT: usize = 6;
const WANTED: u32 = 4096;

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An operation as the model knows it.
struct Known {
    id: OpId,
    address: usize,
    deadline: u64,
    future: Option<IoFuture>,
    /// What it completed with.
    end: Option<Result<(), IoError>>,
    late: bool,
    /// Its future resolved.
    resolved: bool,
    /// It was polled and is to be woken.
    awaited: bool,
    wakes: Arc<Wakes>,
    woken: usize,
}

impl Known {
    fn is_pending(&self) -> bool {
        self.end.is_none()
    }

    /// It takes up a place: it is under way, or nobody took its completion yet.
    fn has_place(&self) -> bool {
        self.is_pending() || (!self.late && self.future.is_some() && !self.resolved)
    }

    fn told(&mut self) {
        self.woken += usize::from(std::mem::take(&mut self.awaited));
    }
}

struct World {
    table: OpTable,
    known: Vec<Known>,
}

impl World {
    fn begin(&mut self, deadline: u64) {
        let buffer = IoBuffer::Owned(AlignedBuffer::zeroed(WANTED as usize));
        let address = buffer.range().0.as_ptr() as usize;
        let places = self.known.iter().filter(|op| op.has_place()).count();
        match self.table.begin(buffer, WANTED, Nanos(deadline)) {
            Err(back) => {
                assert_eq!(places, LIMIT, "refused with room left");
                assert_eq!(back.range().0.as_ptr() as usize, address);
            }
            Ok(id) => {
                assert!(places < LIMIT);
                assert!(self.known.iter().all(|op| op.id != id), "{id:?} twice");
                self.known.push(Known {
                    id,
                    address,
                    deadline,
                    future: Some(self.table.future(id)),
                    end: None,
                    late: false,
                    resolved: false,
                    awaited: false,
                    wakes: Arc::default(),
                    woken: 0,
                });
            }
        }
    }

    fn complete(&mut self, which: Index, moved: Result<u32, i32>) {
        let mut pending: Vec<_> = self.known.iter_mut().filter(|op| op.is_pending()).collect();
        if pending.is_empty() {
            return;
        }
        let at = which.index(pending.len());
        let op = &mut pending[at];
        op.end = Some(match moved {
            Ok(WANTED) => Ok(()),
            Ok(done) => Err(IoError::Short {
                done,
                wanted: WANTED,
            }),
            Err(errno) => Err(IoError::Os { errno }),
        });
        op.told();
        self.table.complete(op.id, moved);
    }

    fn expire(&mut self, now: u64) {
        let mut count = 0;
        for op in &mut self.known {
            if op.is_pending() && !op.late && op.deadline <= now {
                op.late = true;
                op.told();
                count += 1;
            }
        }
        assert_eq!(self.table.expire(Nanos(now)), count);
    }

    fn poll(&mut self, which: Index) {
        let open = |op: &&mut Known| op.future.is_some() && !op.resolved;
        let mut open: Vec<_> = self.known.iter_mut().filter(open).collect();
        if open.is_empty() {
            return;
        }
        let at = which.index(open.len());
        let op = &mut open[at];
        let waker = Waker::from(Arc::clone(&op.wakes));
        let future = op.future.as_mut().unwrap();
        match Pin::new(future).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                assert!(op.is_pending() && !op.late);
                op.awaited = true;
            }
            Poll::Ready(outcome) if op.late => {
                assert_eq!(outcome.result, Err(IoError::TimedOut));
                assert!(outcome.buffer.is_none(), "the operation still has it");
                op.resolved = true;
            }
            Poll::Ready(outcome) => {
                assert_eq!(Some(outcome.result), op.end);
                let (address, _) = outcome.buffer.unwrap().range();
                assert_eq!(address.as_ptr() as usize, op.address);
                op.resolved = true;
            }
        }
    }

    fn drop_future(&mut self, which: Index) {
        let held = |op: &&mut Known| op.future.is_some();
        let mut held: Vec<_> = self.known.iter_mut().filter(held).collect();
        if held.is_empty() {
            return;
        }
        let at = which.index(held.len());
        held[at].future = None;
        held[at].awaited = false;
    }

    fn check(&self) {
        let count = |what: fn(&Known) -> bool| self.known.iter().filter(|op| what(op)).count();
        assert_eq!(self.table.in_flight(), count(Known::is_pending));
        assert_eq!(self.table.late(), count(|op| op.late && op.is_pending()));
        for op in &self.known {
            assert_eq!(op.wakes.0.load(Ordering::Relaxed), op.woken, "{:?}", op.id);
            if op.is_pending() {
                let (address, _) = self.table.range(op.id);
                assert_eq!(address.as_ptr() as usize, op.address);
            }
        }
    }
}

proptest! {
    #[test]
    fn operations_in_any_order_agree_with_a_model(
        steps in vec((0_u8..12, any::<Index>(), 0_u64..100), 1..150),
    ) {
        let mut world = World { table: OpTable::new(LIMIT), known: Vec::new() };
        for (step, which, number) in steps {
            match step {
                0..4 => world.begin(number),
                4..6 => world.complete(which, Ok(WANTED)),
                6 => world.complete(which, Ok(number as u32)),
                7 => world.complete(which, Err(number as i32)),
                8 => world.expire(number),
                9 | 10 => world.poll(which),
                _ => world.drop_future(which),
            }
            world.check();
        }
    }
}

#[test]
#[should_panic(expected = "completed twice")]
fn operation_completed_twice_is_refused() {
    let table = OpTable::new(1);
    let id = table.begin(IoBuffer::None, 0, Nanos::MAX).unwrap();
    let _future = table.future(id);
    table.complete(id, Ok(0));
    table.complete(id, Ok(0));
}
