//! Gets: from slots to the socket, in frames that are sent while later blocks are looked up.

use std::rc::Rc;

use futures_util::future::join_all;
use terrace_engine::{BlockKey, GetOptions, LocalPin, Lookup, Namespace, Placement, TryGet};
use terrace_types::{Checksum, Nanos};
use terrace_wire::{
    GetEntry, KeyStatus, Options, Records, RequestHead, ValueRecord, part_checksum, reply,
};

use crate::connection::{Connection, Ticket};
use crate::dispatch::get_options;
use crate::latency::Hop;

/// Bytes of blocks that a request holds pinned at once, unless one block is longer.
const STEP_LEN: u64 = 4 << 20;

/// Entries of one step: reads of the tier below that go side by side.
const STEP_ENTRIES: usize = 32;

/// Bytes of a value record.
const RECORD_LEN: usize = 24;

/// An entry of a get.
struct Wanted {
    key: BlockKey,
    options: GetOptions,
    offset: u32,
    len: u32,
}

/// What an entry came to.
enum Found {
    Block(LocalPin, terrace_engine::Tier),
    Status(KeyStatus),
}

pub(crate) async fn get(
    connection: &Rc<Connection>,
    ticket: Ticket,
    told: &RequestHead,
    entries: Records<'_, GetEntry<'_>>,
) {
    let Some(namespace) = connection.namespace(ticket.id, ticket.verb, told) else {
        return;
    };
    let wanted = wanted(namespace, told, entries);
    let work = Get {
        connection: Rc::clone(connection),
        ticket: ticket.clone(),
        wanted,
        first: 0,
        records: Vec::new(),
        parts: Vec::new(),
        values_len: 0,
    };
    connection.run(&ticket, Box::pin(work.run())).await;
}

fn wanted(
    namespace: Namespace,
    told: &RequestHead,
    entries: Records<'_, GetEntry<'_>>,
) -> Vec<Wanted> {
    let placement = if told.options.has(Options::BYPASS) {
        Placement::Bypass
    } else {
        Placement::Promote
    };
    let one = |entry: GetEntry<'_>| {
        let key = namespace.key(entry.key).ok()?;
        let options = GetOptions {
            placement,
            ..get_options(entry.hint, told.context)
        };
        let (offset, len) = (entry.offset, entry.len);
        Some(Wanted {
            key,
            options,
            offset,
            len,
        })
    };
    // Decoding has checked the lengths of keys, which is all that can be wrong.
    entries.iter().filter_map(one).collect()
}

/// A get under way, and the frame that it fills.
struct Get {
    connection: Rc<Connection>,
    ticket: Ticket,
    wanted: Vec<Wanted>,
    /// The first entry of the frame.
    first: usize,
    records: Vec<ValueRecord>,
    parts: Vec<(LocalPin, std::ops::Range<usize>)>,
    values_len: u64,
}

impl Get {
    async fn run(mut self) {
        let limits = self.connection.session.borrow().client_limits();
        let records_max = self.connection.records_max(RECORD_LEN);
        let mut next = 0;
        while next < self.wanted.len() {
            if self.values_len > 0 {
                self.push(false);
            }
            let waited = self.connection.room().await;
            self.ticket.trace.add(Hop::Socket, waited);
            if self.connection.is_closed() {
                return;
            }
            let end = self.step_end(next);
            let step = self.look_up(next, end).await;
            for (at, found) in (next..end).zip(step) {
                let is_full = self.records.len() >= records_max;
                let (record, part) = self.record(at, found, limits.values_len_max);
                let len = u64::from(record.len);
                if is_full || self.values_len + len > limits.values_len_max.into() {
                    self.push(false);
                }
                self.records.push(record);
                self.values_len += len;
                self.parts.extend(part);
            }
            next = end;
        }
        self.push(true);
    }

    /// How far a step from `next` goes: as many blocks as may be pinned at once, at least one.
    fn step_end(&self, next: usize) -> usize {
        let (mut end, mut len) = (next, 0);
        let left = &self.wanted[next..];
        if left.len() == 1 {
            return next + 1;
        }
        for wanted in left.iter().take(STEP_ENTRIES) {
            let block_len = self.connection.shard().len_of(&wanted.key);
            len += u64::from(block_len.unwrap_or(0));
            if len > STEP_LEN && end > next {
                break;
            }
            end += 1;
        }
        end
    }

    /// Looks entries up: those in DRAM at once, those below side by side.
    async fn look_up(&self, next: usize, end: usize) -> Vec<Found> {
        let now = self.connection.host.now();
        let mut found = Vec::with_capacity(end - next);
        let mut below = Vec::new();
        for (at, wanted) in self.wanted[next..end].iter().enumerate() {
            found.push(match self.try_one(wanted, now) {
                Some(found) => found,
                None => {
                    below.push(self.wait_for(at, wanted));
                    Found::Status(KeyStatus::TimedOut)
                }
            });
        }
        // Most often none of them waits.
        if !below.is_empty() {
            for (at, one) in join_all(below).await {
                found[at] = one;
            }
        }
        found
    }

    /// What an entry comes to without waiting, if anything.
    fn try_one(&self, wanted: &Wanted, now: Nanos) -> Option<Found> {
        let over = self.connection.wrong_shard(&wanted.key);
        if let Some(status) = over.or_else(|| self.ticket.is_over(now)) {
            return Some(Found::Status(status));
        }
        match self
            .connection
            .shard()
            .try_get(&wanted.key, &wanted.options)
        {
            TryGet::Hit(pin) => Some(Found::Block(pin, terrace_engine::Tier::Dram)),
            TryGet::Miss => Some(Found::Status(KeyStatus::Miss)),
            TryGet::Below | TryGet::Unavailable(terrace_engine::UnavailableReason::PinLimit) => {
                None
            }
            TryGet::Unavailable(reason) => Some(Found::Status(KeyStatus::Unavailable(reason))),
        }
    }

    /// The entry at `at` of a step, with what it comes to by its deadline.
    async fn wait_for(&self, at: usize, wanted: &Wanted) -> (usize, Found) {
        let shard = self.connection.shard();
        let get = shard.get(&wanted.key, &wanted.options);
        let found = self.ticket.before_deadline(shard.runtime(), get).await;
        (at, settled(found))
    }

    /// The record of an entry, and the part of its block that goes with it.
    fn record(
        &self,
        at: usize,
        found: Found,
        values_len_max: u32,
    ) -> (ValueRecord, Option<(LocalPin, std::ops::Range<usize>)>) {
        let host = &self.connection.host;
        let wanted = &self.wanted[at];
        let (pin, tier) = match found {
            Found::Block(pin, tier) => (pin, tier),
            Found::Status(status) => {
                host.count(|counters| match status {
                    KeyStatus::WrongShard { .. } => counters.wrong_shard += 1,
                    KeyStatus::TimedOut => counters.timed_out += 1,
                    _ => counters.get_misses += 1,
                });
                let record = ValueRecord {
                    status,
                    block_len: 0,
                    len: 0,
                    checksum: Checksum::default(),
                };
                return (record, None);
            }
        };
        host.count(|counters| counters.get_hits += 1);
        let block_len = pin.len() as u32;
        //= docs/wire-protocol.md#WP-19
        let entry = GetEntry {
            key: wanted.key.bytes(),
            hint: wanted.options.hint,
            offset: wanted.offset,
            len: wanted.len,
        };
        let part = entry.part(block_len, values_len_max);
        let range = part.start as usize..part.end as usize;
        let checksum = if range.len() == pin.len() {
            pin.checksum()
        } else {
            let bytes = pin.get(range.clone()).unwrap_or_default();
            let start = host.now();
            let checksum = part_checksum(wanted.key.hash(), block_len, part.start, bytes);
            self.ticket.trace.add(Hop::Hash, host.now().since(start));
            checksum
        };
        let record = ValueRecord {
            status: KeyStatus::Hit(tier),
            block_len,
            len: range.len() as u32,
            checksum,
        };
        (record, Some((pin, range)))
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
        for (pin, range) in self.parts.drain(..) {
            connection.push_block(pin, range);
        }
        self.values_len = 0;
    }
}

fn settled(found: Option<Lookup<LocalPin>>) -> Found {
    match found {
        Some(Lookup::Hit { tier, value }) => Found::Block(value, tier),
        Some(Lookup::Miss) => Found::Status(KeyStatus::Miss),
        Some(Lookup::Unavailable(reason)) => Found::Status(KeyStatus::Unavailable(reason)),
        None => Found::Status(KeyStatus::TimedOut),
    }
}
