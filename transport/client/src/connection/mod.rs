//! One connection, shared by the calls that are under way on it.
//!
//! There is no task in the background. Whoever waits for a reply may read the socket for all: one of
//! the waiting calls *leads* at a time, hands short replies to those that they belong to, and hands
//! the lead to the call whose value comes next, so that each call receives its value straight into
//! its own memory. So nothing but a call that is being polled ever touches the memory of a caller.
//!
//! **Invariants**
//! - A call has its slot as long as it may still be told something; a reply to a call without one is
//!   read and dropped.
//! - Only the leader reads from the socket. When the lead is free and a call waits, one is woken.
//! - A frame that was begun is finished: when its call is gone, with zeros in place of its values.
//!   They do not match their checksum, and so the node refuses them.

mod link;
mod open;
mod receive;
mod send;
mod unneeded;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use terrace_wire::{
    ClientSession, ErrorCode, FrameHead, LeaseId, NodeTerms, Reply, SessionState, request,
};

use crate::error::Failure;
use crate::one_sided::RailsSlot;

use link::Link;
pub(crate) use open::{Hello, Wish, address_of, open, resolve};
use receive::Incoming;
pub(crate) use send::Frame;
use send::Outgoing;
pub(crate) use unneeded::{Unneeded, end_all};

/// Leads for a moment when nobody waits; no request has this id.
const LOOKER: u64 = u64::MAX - 1;

/// The slot of whoever waits for credit; there is one at a time, and no request has this id.
const CREDIT_WAITER: u64 = u64::MAX;

/// A frame that came for a call. Its values, if any, are still to be read.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) head: FrameHead,
    pub(crate) body: Vec<u8>,
    pub(crate) is_last: bool,
}

/// What a connection keeps for a call.
#[derive(Debug, Default)]
struct Slot {
    waker: Option<Waker>,
    arrived: VecDeque<Arrived>,
    /// Values that another call had to read, as this one did not come for them.
    spilled: VecDeque<u8>,
    /// The namespace that the request opens; nobody waits for its reply.
    opens: Option<u16>,
}

/// All that calls share.
#[derive(Debug)]
struct State {
    session: ClientSession,
    slots: BTreeMap<u64, Slot>,
    /// The call that reads the socket for all.
    leader: Option<u64>,
    incoming: Incoming,
    fault: Option<Failure>,
    /// Bytes received so far; tells whether anything moves.
    received: u64,
    /// Cancels that are still to be sent.
    control: Vec<u8>,
    /// Leases whose releases are still to be sent.
    unneeded: Vec<LeaseId>,
    /// Namespaces that were opened here, by number.
    opened: Vec<u16>,
    /// Those that the node refused, and why.
    refused: BTreeMap<u16, (ErrorCode, String)>,
}

/// A connection to one shard.
#[derive(Debug)]
pub(crate) struct Connection {
    address: Arc<str>,
    link: Link,
    terms: NodeTerms,
    outgoing: async_lock::Mutex<Outgoing>,
    state: Mutex<State>,
    /// By which one-sided reads go, once they were asked for here.
    rails: async_lock::RwLock<RailsSlot>,
    /// Calls under way.
    calls: AtomicUsize,
    is_retired: AtomicBool,
    has_moved: AtomicBool,
}

impl Connection {
    /// The address of the node.
    pub(crate) fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// What the node said of itself.
    pub(crate) const fn terms(&self) -> &NodeTerms {
        &self.terms
    }

    /// The rails that were asked for here. Who reads by them, or waits for what lies in their region,
    /// holds the lock.
    pub(crate) const fn rails(&self) -> &async_lock::RwLock<RailsSlot> {
        &self.rails
    }

    /// Calls under way.
    pub(crate) fn load(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whether new calls may go here.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_retired.load(Ordering::Relaxed)
    }

    /// Whether the node told of another shard map than that of the handshake.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// No new calls go here. What is under way goes on.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// Bytes received so far.
    pub(crate) fn received(&self) -> u64 {
        self.state().received
    }

    /// Counts a call that is about to begin here, until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Entered(Arc::clone(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked with it held left it whole: each step under the lock is complete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection for all calls.
    fn fail(&self, state: &mut State, failure: Failure) {
        self.retire();
        if state.fault.is_none() {
            state.fault = Some(failure);
            state.session.close();
        }
        for slot in state.slots.values_mut() {
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
    }
}

/// A call that counts as under way on a connection.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Connection>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    fn slot_to_wake(&mut self, id: u64) -> Option<Waker> {
        self.slots.get_mut(&id)?.waker.take()
    }

    /// Gives the lead away, and wakes a call to take it. So does a call that ends when it was woken to
    /// take it.
    fn free_lead(&mut self, id: u64) {
        if self.leader.is_some_and(|leader| leader != id) {
            return;
        }
        self.leader = None;
        let mut others = self.slots.iter_mut().filter(|(other, _)| **other != id);
        if let Some(waker) = others.find_map(|(_, slot)| slot.waker.take()) {
            waker.wake();
        }
    }
}

/// A request that is under way. Dropped before its end, it is cancelled.
#[derive(Debug)]
pub(crate) struct Call {
    connection: Arc<Connection>,
    id: u64,
    is_done: bool,
}

impl Call {
    /// The id of the request.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        if let Some(slot) = state.slots.remove(&self.id) {
            for Arrived { head, body, .. } in slot.arrived {
                let reply = Reply::decode(&head, &body);
                let granted = reply.map(|reply| unneeded::granted(&head, &reply));
                state.unneeded.extend(granted.unwrap_or_default());
            }
        }
        state.free_lead(self.id);
        //= docs/wire-protocol.md#WP-14
        let is_cancelled = !self.is_done && state.session.state() != SessionState::Closed;
        if is_cancelled {
            let mut frame = [0; 64];
            if let Ok(len) = request::encode_cancel(self.id, &mut frame) {
                state.control.extend_from_slice(&frame[..len]);
            }
            if let Some(waker) = state.slot_to_wake(CREDIT_WAITER) {
                waker.wake();
            }
        }
        let has_unneeded = !state.unneeded.is_empty();
        drop(state);
        if is_cancelled {
            self.connection.send_control();
        }
        if has_unneeded {
            self.connection.send_releases();
        }
    }
}
