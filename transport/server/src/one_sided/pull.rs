//! Pulled puts: values that the node reads out of memory of the client into slots.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use terrace_engine::{BlockKey, PutOptions, SlotWriter};
use terrace_fabric::thread::on_thread;
use terrace_fabric::transfer::{
    BatchOptions, LocalPart, Peer, Region, RegionId, RemotePart, RemoteRegion, Request, Status,
};
use terrace_types::checksum::ChecksumStream;
use terrace_wire::{ErrorCode, KeyStatus, PullEntry, Records, Rejection, RequestHead};

use super::client::{Client, Source};
use crate::connection::{Connection, Ticket};
use crate::put::{options, reserve};

/// Most values, and bytes of them, that are read by one batch of transfers.
const BATCH_COUNT_MAX: usize = 64;
const BATCH_LEN_MAX: u64 = 8 << 20;

/// Bytes that are hashed before other tasks of the thread run.
const HASH_LEN: usize = 256 << 10;

/// A value to be read.
struct Wanted {
    key: BlockKey,
    len: u64,
    options: PutOptions,
    region: RegionId,
    offset: u64,
}

/// A value whose slot is there.
struct Reserved {
    at: usize,
    wanted: Wanted,
    writer: SlotWriter,
}

/// Reads values of the client and stores them.
//= docs/wire-protocol.md#WP-29
pub(crate) async fn pull(
    connection: &Rc<Connection>,
    ticket: Ticket,
    told: &RequestHead,
    entries: Records<'_, PullEntry<'_>>,
) {
    let Some(namespace) = connection.namespace(ticket.id, ticket.verb, told) else {
        return;
    };
    let client = connection.rails.borrow().clone().map(|rails| rails.client);
    let source = client.and_then(|client| Some((client.source()?, client)));
    let Some((source, client)) = source else {
        let text = "the node has not opened the client's engine; put the blocks";
        return connection.refuse(ticket.id, ticket.verb.number(), ErrorCode::NoRails, text);
    };
    let wanted = |entry: PullEntry<'_>| {
        // Decoding has checked its length, which is all that can be wrong.
        let key = namespace.key(entry.put.key).ok()?;
        Some(Wanted {
            key,
            len: entry.put.len.into(),
            options: options(told, &entry.put),
            region: RegionId {
                slot: entry.slot,
                epoch: entry.epoch,
            },
            offset: entry.offset,
        })
    };
    let wanted: Vec<_> = entries.iter().map(wanted).collect();
    let pulling = Rc::new(Pulling {
        connection: Rc::clone(connection),
        statuses: RefCell::new(vec![KeyStatus::Busy; wanted.len()]),
        left: Cell::new(wanted.len()),
        is_unreadable: Cell::new(false),
        client,
        source,
        ticket: ticket.clone(),
    });
    connection.run(&ticket, Box::pin(pulling.run(wanted))).await;
}

/// A request under way.
struct Pulling {
    connection: Rc<Connection>,
    client: Arc<Client>,
    source: Arc<Source>,
    ticket: Ticket,
    statuses: RefCell<Vec<KeyStatus>>,
    left: Cell<usize>,
    /// Something could not be read where the client said it is.
    is_unreadable: Cell<bool>,
}

impl Pulling {
    /// Takes slots, and begins a batch of reads when there are enough or before it waits for more.
    async fn run(self: Rc<Self>, wanted: Vec<Option<Wanted>>) {
        if wanted.is_empty() {
            return self.finish();
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (at, wanted) in wanted.into_iter().enumerate() {
            let Some(wanted) = wanted else {
                self.set(at, KeyStatus::Rejected(Rejection::Empty));
                continue;
            };
            if batch.len() >= BATCH_COUNT_MAX || bytes + wanted.len > BATCH_LEN_MAX {
                self.begin(std::mem::take(&mut batch));
                bytes = 0;
            }
            let reserved = {
                let (len, options) = (wanted.len, &wanted.options);
                let slot = reserve(&self.connection, &self.ticket, &wanted.key, len, options);
                let mut slot = Box::pin(slot);
                match futures_lite::future::poll_once(slot.as_mut()).await {
                    Some(reserved) => reserved,
                    None => {
                        // Slots that are held may be what it waits for.
                        self.begin(std::mem::take(&mut batch));
                        bytes = 0;
                        slot.await
                    }
                }
            };
            match reserved {
                Err(status) => self.set(at, status),
                Ok(writer) => {
                    bytes += wanted.len;
                    batch.push(Reserved { at, wanted, writer });
                }
            }
        }
        self.begin(batch);
    }

    /// Reads a batch in a task of its own.
    fn begin(self: &Rc<Self>, batch: Vec<Reserved>) {
        if batch.is_empty() {
            return;
        }
        let this = Rc::clone(self);
        self.connection.shard().spawn(Box::pin(async move {
            let statuses = this.read(&batch).await;
            let mut commits = Vec::with_capacity(batch.len());
            for (reserved, status) in batch.into_iter().zip(statuses) {
                match status {
                    Status::Done => commits.push(this.store(reserved)),
                    Status::DeadlineExceeded => this.set(reserved.at, KeyStatus::TimedOut),
                    _ => {
                        this.is_unreadable.set(true);
                        this.set(reserved.at, KeyStatus::TimedOut);
                    }
                }
            }
            futures_util::future::join_all(commits).await;
            this.connection.flush().await;
        }));
    }

    /// Reads values into their slots. When this returns nothing touches slots or values any more.
    async fn read(&self, batch: &[Reserved]) -> Vec<Status> {
        let mut statuses = vec![Status::UnknownRegion; batch.len()];
        let (mut places, mut requests) = self.requests(batch);
        if places.len() < batch.len() {
            // The client has registered memory since.
            let source = Arc::clone(&self.source);
            let refresh = move || source.peer().map(Peer::refresh);
            if let Ok(Some(Ok(()))) = on_thread("terrace-regions", refresh).await {
                (places, requests) = self.requests(batch);
            }
        }
        let Some(peer) = self.source.peer().filter(|_| !requests.is_empty()) else {
            return statuses;
        };
        let options = BatchOptions {
            timeout: self.ticket.deadline.since(self.connection.host.now()),
            ..BatchOptions::default()
        };
        match peer.submit(&requests, options) {
            Ok(transfer) => {
                let found = transfer.await;
                places
                    .into_iter()
                    .zip(found)
                    .for_each(|(place, status)| statuses[place] = status);
            }
            Err(error) => {
                let connection = self.connection.number;
                tracing::debug!(connection, %error, "values of a client cannot be read");
            }
        }
        statuses
    }

    /// What is to be read of regions that are known, and its places in the batch.
    fn requests(&self, batch: &[Reserved]) -> (Vec<usize>, Vec<Request>) {
        let arena = self.client.arena(self.connection.shard().number());
        let request = |(place, reserved): (usize, &Reserved)| {
            let remote = self.source.peer()?.region(reserved.wanted.region)?;
            Some((place, request(arena?, reserved, remote)))
        };
        batch.iter().enumerate().filter_map(request).unzip()
    }

    /// Compares a value with its checksum and publishes it.
    async fn store(&self, reserved: Reserved) {
        let Reserved { at, wanted, writer } = reserved;
        let shard = self.connection.shard();
        let mut stream = ChecksumStream::new(&wanted.key, wanted.len);
        for piece in writer.bytes().chunks(HASH_LEN) {
            stream.update(piece);
            shard.runtime().yield_now().await;
        }
        self.connection
            .host
            .count(|counters| counters.pulled_values += 1);
        let commit = shard.commit(&wanted.key, writer, stream.finish(), &wanted.options);
        let outcome = self.ticket.before_deadline(shard.runtime(), commit).await;
        // As for a put: it is published at once, and what took long is to make it durable.
        let late = KeyStatus::Stored { durable: false };
        self.set(at, outcome.map_or(late, Into::into));
    }

    fn set(&self, at: usize, status: KeyStatus) {
        self.statuses.borrow_mut()[at] = status;
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.finish();
        }
    }

    fn finish(&self) {
        if self.connection.is_closed() {
            return;
        }
        let (id, verb) = (self.ticket.id, self.ticket.verb);
        if self.is_unreadable.get() {
            let text = "values cannot be read where the client's engine has them; put the blocks";
            let code = ErrorCode::NoRails;
            return self.connection.refuse(id, verb.number(), code, text);
        }
        self.connection
            .reply_statuses(id, verb, &self.statuses.take());
    }
}

/// Reads a value into its slot.
fn request(arena: &Arc<Region>, reserved: &Reserved, remote: Arc<RemoteRegion>) -> Request {
    let len = reserved.wanted.len;
    let local = LocalPart {
        region: Arc::clone(arena),
        offset: reserved.writer.slot().offset(),
        len,
    };
    let remote = RemotePart {
        region: remote,
        offset: reserved.wanted.offset,
        len,
    };
    Request::read(local, remote)
}
