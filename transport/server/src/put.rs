//! Puts: from the socket into slots, hashed as the bytes arrive.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use terrace_engine::{BlockKey, Checksum, Durability, PutOptions, Reservation, SlotWriter};
use terrace_types::checksum::ChecksumStream;
use terrace_wire::{
    FrameHead, KeyStatus, Options, PutEntry, Records, Rejection, RequestHead, Verb,
};

use crate::connection::{Connection, Ticket};
use crate::session::End;
use crate::values::{Frames, receive, skip};

/// Takes the values of a put, and answers it once they are as durable as asked for.
pub(crate) async fn put(
    connection: &Rc<Connection>,
    frames: &mut Frames,
    head: &FrameHead,
    ticket: Ticket,
    told: &RequestHead,
    entries: Records<'_, PutEntry<'_>>,
) -> Result<(), End> {
    let Some(namespace) = connection.namespace(ticket.id, ticket.verb, told) else {
        return skip(connection, frames, head.values_len.into()).await;
    };
    let answer = Answer::new(connection, &ticket, entries.len());
    for (at, entry) in entries.iter().enumerate() {
        let len = u64::from(entry.len);
        let Ok(key) = namespace.key(entry.key) else {
            // Decoding has checked its length, which is all that can be wrong.
            skip(connection, frames, len).await?;
            answer.set(at, KeyStatus::Rejected(Rejection::Empty));
            continue;
        };
        let options = options(told, &entry);
        match reserve(connection, &ticket, &key, len, &options).await {
            Err(status) => {
                skip(connection, frames, len).await?;
                answer.set(at, status);
            }
            Ok(mut writer) => {
                let mut stream = ChecksumStream::new(&key, len);
                let into = writer.bytes_mut();
                let each = |piece: &[u8]| stream.update(piece);
                let filled = receive(connection, frames, into, ticket.deadline, each).await?;
                if (filled as u64) < len {
                    drop(writer);
                    skip(connection, frames, len - filled as u64).await?;
                    answer.set(at, KeyStatus::TimedOut);
                    continue;
                }
                connection.host.count(|counters| counters.put_values += 1);
                let filled = Filled {
                    key,
                    writer,
                    checksum: stream.finish(),
                    options,
                };
                commit(connection, &ticket, filled, at, &answer).await;
            }
        }
    }
    Ok(())
}

pub(crate) fn options(told: &RequestHead, entry: &PutEntry<'_>) -> PutOptions {
    PutOptions {
        durability: if told.options.has(Options::DURABLE) {
            Durability::Durable
        } else {
            Durability::Volatile
        },
        hint: entry.hint,
        context: told.context,
        checksum: Some(entry.checksum),
    }
}

/// A slot for a value that is about to come; else what became of its put.
pub(crate) async fn reserve(
    connection: &Rc<Connection>,
    ticket: &Ticket,
    key: &BlockKey,
    len: u64,
    options: &PutOptions,
) -> Result<SlotWriter, KeyStatus> {
    let shard = connection.shard();
    if let Some(status) = connection.wrong_shard(key) {
        connection.host.count(|counters| counters.wrong_shard += 1);
        return Err(status);
    }
    if let Some(status) = ticket.is_over(connection.host.now()) {
        return Err(status);
    }
    if ticket.verb == Verb::Upsert {
        let removal = shard.remove(key);
        let removed = ticket.before_deadline(shard.runtime(), removal).await;
        match removed.map(|found| KeyStatus::of_lookup(&found)) {
            None => return Err(KeyStatus::TimedOut),
            Some(status @ KeyStatus::Unavailable(_)) => return Err(status),
            Some(_) => {}
        }
    }
    let reservation = match shard.try_reserve(key, len, options) {
        Some(reservation) => reservation,
        None => {
            // What was read before is answered while this one waits for room.
            connection.flush().await;
            let reserve = shard.reserve(key, len, options);
            match ticket.before_deadline(shard.runtime(), reserve).await {
                Some(reservation) => reservation,
                None => return Err(KeyStatus::TimedOut),
            }
        }
    };
    match reservation {
        Reservation::Granted(writer) => Ok(writer),
        Reservation::Done(outcome) => Err(outcome.into()),
    }
}

/// A value that is complete.
pub(crate) struct Filled {
    pub(crate) key: BlockKey,
    pub(crate) writer: SlotWriter,
    pub(crate) checksum: Checksum,
    pub(crate) options: PutOptions,
}

/// Publishes a value. One that has to be durable is waited for in a task of its own, so that the
/// next values come in meanwhile.
pub(crate) async fn commit(
    connection: &Rc<Connection>,
    ticket: &Ticket,
    filled: Filled,
    at: usize,
    answer: &Rc<Answer>,
) {
    let (shard, ticket) = (Rc::clone(connection.shard()), ticket.clone());
    let (answer, is_durable) = (
        Rc::clone(answer),
        filled.options.durability == Durability::Durable,
    );
    let work = async move {
        let Filled {
            key,
            writer,
            checksum,
            options,
        } = filled;
        let commit = shard.commit(&key, writer, checksum, &options);
        let outcome = ticket.before_deadline(shard.runtime(), commit).await;
        // It is published at once; what took longer than it may is to make it durable. One that
        // existed already is told as stored, not durable, too: no more is known of either.
        let late = KeyStatus::Stored { durable: false };
        answer.set(at, outcome.map_or(late, Into::into));
    };
    if is_durable {
        let owner = Rc::clone(connection);
        connection.shard().spawn(Box::pin(async move {
            work.await;
            owner.flush().await;
        }));
    } else {
        work.await;
    }
}

/// The answer to a put, sent when its last entry is done.
pub(crate) struct Answer {
    connection: Rc<Connection>,
    id: u64,
    verb: Verb,
    statuses: RefCell<Vec<KeyStatus>>,
    left: Cell<usize>,
}

impl Answer {
    pub(crate) fn new(connection: &Rc<Connection>, ticket: &Ticket, count: usize) -> Rc<Self> {
        let answer = Rc::new(Self {
            connection: Rc::clone(connection),
            id: ticket.id,
            verb: ticket.verb,
            statuses: RefCell::new(vec![KeyStatus::Busy; count]),
            left: Cell::new(count),
        });
        if count == 0 {
            answer.send();
        }
        answer
    }

    pub(crate) fn set(&self, at: usize, status: KeyStatus) {
        self.statuses.borrow_mut()[at] = status;
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.send();
        }
    }

    fn send(&self) {
        if self.connection.is_closed() {
            return;
        }
        let statuses = self.statuses.take();
        self.connection
            .reply_statuses(self.id, self.verb, &statuses);
    }
}
