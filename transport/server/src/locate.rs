//! Locates: leases with the place of the bytes, or the bytes where they are few.

use std::rc::Rc;

use terrace_engine::{LocalPin, Lookup, Tier};
use terrace_types::Checksum;
use terrace_wire::{Descriptor, ErrorCode, KeyEntry, KeyStatus, Records, RequestHead, reply};

use crate::connection::{Connection, Ticket};
use crate::dispatch::{Asked, get_options, keys_of};
use crate::latency::Hop;
use crate::leases::{Granted, grant, none};
use crate::one_sided::Rails;

/// Bytes of a descriptor.
const RECORD_LEN: usize = 56;

/// Longest block whose bytes come with the reply: reading it from its slot would take a second way to
/// the node and back, and a slot has no less.
const INLINE_LEN_MAX: u32 = 4096;

/// Bytes of blocks in one frame, which are pinned until they are sent.
const FRAME_VALUES_MAX: u32 = 1 << 20;

/// Entries of one frame.
const FRAME_ENTRIES_MAX: usize = 512;

/// What an entry came to.
enum Found {
    Leased(Granted),
    Short(LocalPin, Tier),
    Status(KeyStatus),
}

//= docs/wire-protocol.md#WP-27
pub(crate) async fn locate(
    connection: &Rc<Connection>,
    ticket: Ticket,
    told: &RequestHead,
    keys: Records<'_, KeyEntry<'_>>,
) {
    let Some(namespace) = connection.namespace(ticket.id, ticket.verb, told) else {
        return;
    };
    let rails = connection.rails.borrow().clone();
    //= docs/wire-protocol.md#WP-28
    if rails.as_ref().is_some_and(|rails| !rails.are_granted()) {
        let text = "the rails were taken back; ask for new ones";
        return connection.refuse(ticket.id, ticket.verb.number(), ErrorCode::NoRails, text);
    }
    let work = Locate {
        connection: Rc::clone(connection),
        rails,
        ticket: ticket.clone(),
        told: *told,
        keys: keys_of(namespace, keys),
        first: 0,
        records: Vec::new(),
        pins: Vec::new(),
        values_len: 0,
    };
    connection.run(&ticket, Box::pin(work.run())).await;
}

/// A locate under way, and the frame that it fills.
struct Locate {
    connection: Rc<Connection>,
    rails: Option<Rails>,
    ticket: Ticket,
    told: RequestHead,
    keys: Vec<Asked>,
    /// The first entry of the frame.
    first: usize,
    records: Vec<Descriptor>,
    pins: Vec<LocalPin>,
    values_len: u32,
}

impl Locate {
    async fn run(mut self) {
        let limits = self.connection.session.borrow().client_limits();
        let values_max = limits.values_len_max.min(FRAME_VALUES_MAX);
        let records_max = self
            .connection
            .records_max(RECORD_LEN)
            .min(FRAME_ENTRIES_MAX);
        for asked in std::mem::take(&mut self.keys) {
            let is_full = self.records.len() >= records_max;
            // A block that comes with the reply may have as many bytes more.
            if is_full || self.values_len + INLINE_LEN_MAX > values_max {
                self.push(false);
                let waited = self.connection.room().await;
                self.ticket.trace.add(Hop::Socket, waited);
            }
            if self.connection.is_closed() {
                return;
            }
            let found = self.find(&asked).await;
            self.add(found);
        }
        self.push(true);
    }

    async fn find(&self, asked: &Asked) -> Found {
        let (connection, ticket) = (&self.connection, &self.ticket);
        let (key, hint) = asked;
        let is_short = |len: u32| len <= INLINE_LEN_MAX;
        let shard = connection.shard();
        if connection.wrong_shard(key).is_none() && shard.len_of(key).is_some_and(is_short) {
            if let Some(status) = ticket.is_over(connection.host.now()) {
                return Found::Status(status);
            }
            let options = get_options(*hint, self.told.context);
            let get = shard.get(key, &options);
            match ticket.before_deadline(shard.runtime(), get).await {
                None => return Found::Status(KeyStatus::TimedOut),
                Some(Lookup::Hit { tier, value: pin }) if is_short(pin.len() as u32) => {
                    return Found::Short(pin, tier);
                }
                // Another block took its place meanwhile, a longer one.
                Some(Lookup::Hit { .. }) => {}
                Some(lookup) => return Found::Status(KeyStatus::of_lookup(&lookup)),
            }
        }
        match grant(connection, ticket, &self.told, asked, self.rails.as_ref()).await {
            Ok(granted) => Found::Leased(granted),
            Err(status) => Found::Status(status),
        }
    }

    fn add(&mut self, found: Found) {
        let host = &self.connection.host;
        self.records.push(match found {
            Found::Leased(granted) => descriptor_of(&granted),
            Found::Short(pin, tier) => {
                let len = pin.len() as u32;
                let mut record = empty(KeyStatus::Hit(tier));
                record.lease.block_len = len;
                record.checksum = pin.checksum();
                record.inline_len = len;
                self.values_len += len;
                self.pins.push(pin);
                record
            }
            Found::Status(status) => {
                host.count(|counters| match status {
                    KeyStatus::WrongShard { .. } => counters.wrong_shard += 1,
                    KeyStatus::TimedOut => counters.timed_out += 1,
                    _ => {}
                });
                empty(status)
            }
        });
    }

    /// Queues the frame, and begins the next one.
    fn push(&mut self, is_last: bool) {
        let (id, verb) = (self.ticket.id, self.ticket.verb);
        let records = std::mem::take(&mut self.records);
        let connection = &self.connection;
        let flags = connection.answer(id, self.first, records.len(), is_last);
        let head = connection.reply_head(self.first);
        self.first += records.len();
        connection.push_frame(64 + records.len() * RECORD_LEN, |out| {
            reply::encode(verb, id, flags, &head, records, out)
        });
        for pin in self.pins.drain(..) {
            let all = 0..pin.len();
            connection.push_block(pin, all);
        }
        self.values_len = 0;
    }
}

/// What a client reads a leased block by. Without rails the address is zero.
const fn descriptor_of(granted: &Granted) -> Descriptor {
    let place = &granted.lease.descriptor;
    Descriptor {
        lease: granted.record(),
        checksum: place.checksum,
        address: granted.address,
        rkey: 0,
        generation: place.generation,
        inline_len: 0,
    }
}

const fn empty(status: KeyStatus) -> Descriptor {
    Descriptor {
        lease: none(status),
        checksum: Checksum(0),
        address: 0,
        rkey: 0,
        generation: 0,
        inline_len: 0,
    }
}
