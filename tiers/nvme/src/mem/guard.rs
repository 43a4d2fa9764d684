//! The memory of operations under way: until an operation completed nobody else may use it.
//!
//! A write's memory must be the same at its completion as when it was asked for, and so must a
//! read's until the device fills it. No other operation of this thread, on whatever device, may
//! use memory that one of them has the device fill.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::faults::Operation;
use super::{Kind, MemDevice};

thread_local! {
    static UNDER_WAY: RefCell<Vec<Span>> = const { RefCell::new(Vec::new()) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

struct Span {
    number: u64,
    addresses: Range<usize>,
    /// The device writes to it.
    filled: bool,
}

/// Memory that an operation has; it is given back when this is dropped.
pub(super) struct Guard(u64);

impl Guard {
    /// Takes memory for an operation; tells whether another one has part of it.
    pub(super) fn take(operation: &Operation, start: usize) -> (Self, bool) {
        let number = NEXT.replace(NEXT.get() + 1);
        let addresses = start..start + operation.len as usize;
        let filled = operation.kind == Kind::Read;
        let taken = UNDER_WAY.with_borrow_mut(|under_way| {
            let taken = under_way.iter().any(|other| {
                let shares =
                    other.addresses.start < addresses.end && addresses.start < other.addresses.end;
                shares && (filled || other.filled)
            });
            under_way.push(Span {
                number,
                addresses,
                filled,
            });
            taken
        });
        (Self(number), taken)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // At the end of a thread the list may be gone already.
        let _ = UNDER_WAY.try_with(|under_way| {
            let mut under_way = under_way.borrow_mut();
            under_way.retain(|span| span.number != self.0);
        });
    }
}

impl MemDevice {
    /// What was done to the memory of operations that were under way; nothing, if all is well.
    #[must_use]
    pub fn misuses(&self) -> Vec<String> {
        self.misuses.borrow().clone()
    }

    pub(super) fn misuse(&self, operation: &Operation, what: &str) {
        let misuse = format!("{operation:?}: {what}");
        self.misuses.borrow_mut().push(misuse);
    }
}
