//! Leases of a connection. They end by release, after their time, or with the connection. Without
//! rails nobody reads a slot whose connection is gone; with rails such a lease ends behind a fence.

use std::rc::Rc;
use std::time::Duration;

use terrace_engine::{Lease, LeaseId, Lookup, Tier, UnavailableReason};
use terrace_types::Nanos;
use terrace_wire::{KeyEntry, KeyStatus, LeaseRecord, Records, RequestHead, Verb};

use crate::connection::{Connection, Ticket};
use crate::dispatch::{Asked, get_options, keys_of};
use crate::one_sided::{Copied, Rails};

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
    match grant(connection, ticket, told, asked, None).await {
        Ok(granted) => granted.record(),
        Err(status) => none(status),
    }
}

/// What a connection keeps of a lease.
pub(crate) struct Leased {
    block_len: u32,
    /// When it ends.
    pub(crate) until: Nanos,
    /// Whether the client may read the block by itself.
    pub(crate) is_on_rails: bool,
    /// The copy that it reads.
    copied: Option<Copied>,
}

/// A lease that the connection has.
pub(crate) struct Granted {
    /// Where the block was found.
    tier: Tier,
    pub(crate) lease: Lease,
    span: Duration,
    /// Where the client finds the block in the region of its rails.
    pub(crate) address: u64,
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

/// Leases a block for the connection, to be read over `rails` if there are any; else what became
/// of it.
pub(crate) async fn grant(
    connection: &Rc<Connection>,
    ticket: &Ticket,
    told: &RequestHead,
    (key, hint): &Asked,
    rails: Option<&Rails>,
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
    let fence = rails.and_then(Rails::fence);
    let lease = shard.lease_fenced(key, span, &options, fence);
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
    let copied = match rails.filter(|rails| rails.are_staged()) {
        None => None,
        Some(rails) => match copy(connection, rails, &lease).await {
            Some(copied) => Some(copied),
            None => {
                shard.release(lease.id);
                return Err(limit);
            }
        },
    };
    // Other requests may have taken the last ones meanwhile.
    if has_all_leases(connection) || connection.is_closed() {
        shard.release(lease.id);
        copied.into_iter().for_each(Copied::give_back);
        return Err(limit);
    }
    let address = copied.as_ref().map(Copied::offset);
    let leased = Leased {
        block_len: lease.descriptor.len,
        until: lease.deadline,
        is_on_rails: rails.is_some(),
        copied,
    };
    connection.leases.borrow_mut().insert(lease.id, leased);
    let in_arena = rails.map_or(0, |_| lease.descriptor.offset);
    Ok(Granted {
        tier,
        lease,
        span,
        address: address.unwrap_or(in_arena),
    })
}

/// Copies a leased block to where the client reads it.
async fn copy(connection: &Connection, rails: &Rails, lease: &Lease) -> Option<Copied> {
    let shard = connection.shard();
    let pin = shard.resolve(&lease.descriptor)?;
    let yield_now = async || shard.runtime().yield_now().await;
    Copied::of(&rails.grant, &pin, yield_now).await
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
        known.until = connection.shard().renew(LeaseId(lease.0), span)?;
        Some(LeaseRecord {
            status: KeyStatus::Hit(Tier::Dram),
            id: lease,
            block_len: known.block_len,
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
        let is_there = known.is_some() && connection.shard().release(LeaseId(lease.0));
        if !is_there {
            // Its time was over before: what the client may still read stays as it is.
            return KeyStatus::Miss;
        }
        let copied = known.and_then(|leased| leased.copied);
        copied.into_iter().for_each(Copied::give_back);
        KeyStatus::Hit(Tier::Dram)
    };
    let statuses: Vec<KeyStatus> = ids.iter().map(released).collect();
    connection.reply_statuses(id, Verb::Release, &statuses);
}
