//! Leases that nobody needs any more: those of calls that are over, or were given up before they
//! learned of them. Nobody waits for their releases.
//!
//! A release that the credit or the socket does not take now goes with what is sent next. Until then
//! the lease holds; left to its time, it would cost this client its rails.

use std::sync::Arc;

use terrace_wire::{
    FRAME_HEAD_LEN, FrameHead, KeyStatus, LeaseId, Reply, RequestHead, Verb, request,
};

use super::Connection;
use super::send::{Outgoing, encode_into};

/// Leases that one request ends: what the shortest body that a node takes has room for.
const RELEASE_MAX: usize = 500;

/// A lease that ends with this.
#[derive(Debug)]
pub(crate) struct Unneeded {
    /// `None`: somebody else ends it.
    connection: Option<Arc<Connection>>,
    lease: LeaseId,
}

impl Unneeded {
    pub(crate) fn new(connection: &Arc<Connection>, lease: LeaseId) -> Self {
        let connection = Some(Arc::clone(connection));
        Self { connection, lease }
    }

    /// Leaves the lease to somebody else.
    pub(crate) fn keep(mut self) {
        self.connection = None;
    }
}

impl Drop for Unneeded {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.state().unneeded.push(self.lease);
            connection.send_releases();
        }
    }
}

/// Ends leases together.
pub(crate) fn end_all(leases: Vec<Unneeded>) {
    let mut connections: Vec<Arc<Connection>> = Vec::new();
    for mut lease in leases {
        let Some(connection) = lease.connection.take() else {
            continue;
        };
        connection.state().unneeded.push(lease.lease);
        if !connections
            .iter()
            .any(|known| Arc::ptr_eq(known, &connection))
        {
            connections.push(connection);
        }
    }
    for connection in connections {
        connection.send_releases();
    }
}

/// The leases that a reply grants.
pub(super) fn granted(head: &FrameHead, reply: &Reply<'_>) -> Vec<LeaseId> {
    let is_hit = |status: KeyStatus| matches!(status, KeyStatus::Hit(_));
    match reply {
        Reply::Descriptors(_, records) => records
            .iter()
            .filter(|record| is_hit(record.lease.status) && record.inline_len == 0)
            .map(|record| record.lease.id)
            .collect(),
        // Those of a renewal are known to whoever renews them.
        Reply::Leases(_, records) if head.verb_number == Verb::Lease.number() => records
            .iter()
            .filter(|record| is_hit(record.status))
            .map(|record| record.id)
            .collect(),
        _ => Vec::new(),
    }
}

impl Connection {
    /// Sends releases now if nobody is writing, and else with what is sent next.
    pub(super) fn send_releases(&self) {
        let Some(mut outgoing) = self.outgoing.try_lock() else {
            return;
        };
        self.push_releases(&mut outgoing);
    }

    /// Puts releases behind what is to be written, as far as the credit goes, and writes what the
    /// socket takes.
    pub(super) fn push_releases(&self, outgoing: &mut Outgoing) {
        let mut state = self.state();
        let state = &mut *state;
        // Behind values that are owed nothing may stand before they are written.
        if state.unneeded.is_empty() || outgoing.owes_values() {
            return;
        }
        let most = RELEASE_MAX.min(self.terms.batch_max as usize);
        while !state.unneeded.is_empty() {
            let count = most.min(state.unneeded.len());
            let ids = &state.unneeded[..count];
            let (id, head) = (state.session.next_id(), RequestHead::default());
            let encode = |out: &mut [u8]| {
                request::encode(Verb::Release, id, &head, ids.iter().copied(), out)
            };
            let Ok(len) = encode_into(outgoing.next(), encode) else {
                break;
            };
            let body_len = len - FRAME_HEAD_LEN;
            let begun = state.session.begin(Verb::Release, body_len, 0, count);
            if begun.is_err() {
                break;
            }
            outgoing.push_next();
            state.unneeded.drain(..count);
        }
        // Whatever is wrong with the socket is found by the next call.
        drop(self.write_some(state, outgoing));
    }
}
