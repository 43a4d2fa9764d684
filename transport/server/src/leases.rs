//! Leases of a connection. They end by release, after their time, or with the connection: over TCP
//! nobody reads a slot whose connection is gone.

use std::rc::Rc;
use std::time::Duration;

use terrace_engine::{Lease, LeaseId, Lookup, Tier, UnavailableReason};
use terrace_wire::{KeyEntry, KeyStatus, LeaseRecord, Records, RequestHead, Verb};

use crate::connection::{Connection, Ticket};
use crate::dispatch::{Asked, get_options, keys_of};

/// Bytes of a lease record.
const RECORD_LEN: usize = 24;

/// Leases that a connection may have: many of one block take no more pinned bytes than one.
const LEASES_MAX: usize = 4096;

pub(crate) const fn none(status: KeyStatus) -> LeaseRecord {
    LeaseRecord {
        status,
        id: terrace_wire::LeaseId(0),
        block_len: 0,
        duration_ms: 0,
    }
}

fn has_all_leases(connection: &Connection) -> bool {
    connection.leases.borrow().len() >= LEASES_MAX
}

/// How long a lease is granted for.
fn duration(connection: &Connection, told: &RequestHead) -> Duration {
    let asked = Duration::from_millis(told.argument.into());
    asked.min(connection.host.config().lease_max)
}

//= docs/wire-protocol.md#WP-21
pub(crate) async fn lease(
    connection: &Rc<Connection>,
    ticket: Ticket,
    told: &RequestHead,
    keys: Records<'_, KeyEntry<'_>>,
) {
    let Some(namespace) = connection.namespace(ticket.id, ticket.verb, told) else {
        return;
    };
    let keys = keys_of(namespace, keys);
    let (owner, told, at) = (Rc::clone(connection), *told, ticket.clone());
    let work = async move {
        let mut records = Vec::with_capacity(keys.len());
        for asked in &keys {
            records.push(lease_one(&owner, &at, &told, asked).await);
        }
        owner.reply(at.id, at.verb, &records, RECORD_LEN);
    };
    connection.run(&ticket, Box::pin(work)).await;
}

async fn lease_one(
    connection: &Rc<Connection>,
    ticket: &Ticket,
    told: &RequestHead,
    asked: &Asked,
) -> LeaseRecord {
    match grant(connection, ticket, told, asked).await {
        Ok(granted) => granted.record(),
        Err(status) => none(status),
    }
}

/// A lease that the connection has.
pub(crate) struct Granted {
    /// Where the block was found.
    tier: Tier,
    pub(crate) lease: Lease,
    span: Duration,
}

impl Granted {
    pub(crate) const fn record(&self) -> LeaseRecord {
        LeaseRecord {
            status: KeyStatus::Hit(self.tier),
            id: terrace_wire::LeaseId(self.lease.id.0),
            block_len: self.lease.descriptor.len,
            duration_ms: self.span.as_millis() as u32,
        }
    }
}

/// Leases a block for the connection; else what became of it.
pub(crate) async fn grant(
    connection: &Rc<Connection>,
    ticket: &Ticket,
    told: &RequestHead,
    (key, hint): &Asked,
) -> Result<Granted, KeyStatus> {
    let over = connection.wrong_shard(key);
    if let Some(status) = over.or_else(|| ticket.is_over(connection.host.now())) {
        return Err(status);
    }
    let limit = KeyStatus::Unavailable(UnavailableReason::PinLimit);
    if has_all_leases(connection) {
        return Err(limit);
    }
    let shard = connection.shard();
    let span = duration(connection, told);
    let options = get_options(*hint, told.context);
    let lease = shard.lease(key, span, &options);
    let granted = match ticket.before_deadline(shard.runtime(), lease).await {
        None => return Err(KeyStatus::TimedOut),
        Some(granted) => granted,
    };
    let status = KeyStatus::of_lookup(&granted);
    let Lookup::Hit { tier, value: lease } = granted else {
        return Err(status);
    };
    if connection.is_closed() {
        shard.release(lease.id);
        return Err(KeyStatus::Cancelled);
    }
    // Other requests may have taken the last ones meanwhile.
    if has_all_leases(connection) {
        shard.release(lease.id);
        return Err(limit);
    }
    let held = (lease.descriptor.len, lease.deadline);
    connection.leases.borrow_mut().insert(lease.id, held);
    Ok(Granted { tier, lease, span })
}

pub(crate) fn renew(
    connection: &Rc<Connection>,
    id: u64,
    told: &RequestHead,
    ids: Records<'_, terrace_wire::LeaseId>,
) {
    let span = duration(connection, told);
    let renewed = |lease: terrace_wire::LeaseId| {
        let mut leases = connection.leases.borrow_mut();
        let known = leases.get_mut(&LeaseId(lease.0))?;
        known.1 = connection.shard().renew(LeaseId(lease.0), span)?;
        Some(LeaseRecord {
            status: KeyStatus::Hit(Tier::Dram),
            id: lease,
            block_len: known.0,
            duration_ms: span.as_millis() as u32,
        })
    };
    let records: Vec<LeaseRecord> = ids
        .iter()
        .map(|lease| renewed(lease).unwrap_or(none(KeyStatus::Miss)))
        .collect();
    connection.reply(id, Verb::Renew, &records, RECORD_LEN);
}

pub(crate) fn release(
    connection: &Rc<Connection>,
    id: u64,
    ids: Records<'_, terrace_wire::LeaseId>,
) {
    let released = |lease: terrace_wire::LeaseId| {
        let known = connection.leases.borrow_mut().remove(&LeaseId(lease.0));
        match known.is_some() && connection.shard().release(LeaseId(lease.0)) {
            true => KeyStatus::Hit(Tier::Dram),
            false => KeyStatus::Miss,
        }
    };
    let statuses: Vec<KeyStatus> = ids.iter().map(released).collect();
    connection.reply_statuses(id, Verb::Release, &statuses);
}
