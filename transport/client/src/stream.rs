//! Streamed puts: a block whose bytes come piece by piece, published when all of them are there.
//!
//! **Invariants**
//! - Each has a connection of its own: it holds up no other call, and its end gives the put up.
//! - After a failure, or a call that was dropped halfway, nothing of it can be published.

use std::collections::VecDeque;
use std::sync::Arc;

use terrace_types::checksum::ChecksumStream;
use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_types::{BlockKey, Checksum, PutOutcome, RejectReason};
use terrace_wire::{KeyStatus, Options, PutEntry, PutPart, Reply, StreamEnd, Verb, request};

use crate::client::{CallOptions, Namespace};
use crate::connection::{Call, Connection, Frame};
use crate::error::{Cause, Error, Failure, Retry};
use crate::fan_out::Plan;

/// Bytes of one part: what is sent before other tasks of the thread have their turn.
const PART_LEN_MAX: u64 = 4 << 20;

/// Parts whose answers are not awaited yet. More would only wait in the sockets.
const PARTS_AHEAD: usize = 4;

/// How often a put that begins follows a shard map that changes under it.
const MOVES_MAX: u32 = 4;

/// What the begin of a streamed put came to.
#[derive(Debug)]
#[must_use]
pub enum PutStart {
    /// The node waits for the bytes.
    Open(Box<PutStream>),
    /// The node does not want them: the block is there already, or it declined.
    Done(PutOutcome),
}

/// A streamed put. Dropped before [`PutStream::finish`] it is given up, and nothing is stored. A node
/// gives one up, too, that brings nothing for its longest deadline.
pub struct PutStream {
    namespace: Namespace,
    key: BlockKey,
    options: CallOptions,
    connection: Arc<Connection>,
    /// The id of the request that began it.
    begun: u64,
    len: u32,
    pushed: u32,
    checksum: ChecksumStream,
    /// Parts that were sent and not answered, oldest first.
    parts: VecDeque<Call>,
    fault: Option<Failure>,
}

impl std::fmt::Debug for PutStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PutStream")
            .field("key", &self.key)
            .field("len", &self.len)
            .field("pushed", &self.pushed)
            .finish_non_exhaustive()
    }
}

impl Namespace {
    /// Begins to store a block of `len` bytes, 1 to 128 MiB, that come piece by piece. A deadline of
    /// `options` holds for each call, not for the whole.
    ///
    /// # Errors
    /// As all calls: see [`Cause`]. Nothing is stored.
    pub async fn put_stream(
        &self,
        key: &[u8],
        len: u64,
        options: &CallOptions,
    ) -> Result<PutStart, Error> {
        let key = self.key(key)?;
        let plan = self.client.plan(options, false)?;
        if len == 0 {
            return Ok(PutStart::Done(PutOutcome::Rejected(
                RejectReason::BlockEmpty,
            )));
        }
        let limit = BLOCK_LEN_MAX;
        if len > limit {
            let reason = RejectReason::BlockTooLarge { len, limit };
            return Ok(PutStart::Done(PutOutcome::Rejected(reason)));
        }
        let mut moves = 0;
        loop {
            let begun = self.begin_stream(plan, &key, len as u32, options);
            match plan.within(begun).await {
                Err(failure) if failure.retry == Retry::Moved && moves < MOVES_MAX => moves += 1,
                other => return other.map_err(|failure| self.failed(&key, failure)),
            }
        }
    }

    //= docs/wire-protocol.md#WP-20
    async fn begin_stream(
        &self,
        plan: Plan,
        key: &BlockKey,
        len: u32,
        options: &CallOptions,
    ) -> Result<PutStart, Failure> {
        let pools = &self.client.pools;
        let layout = pools.layout().await?;
        let shard = key.hash().shard(layout.shards);
        let address = pools.address_of(layout, shard)?;
        let (connection, _) = pools.open(&address, Some(shard)).await?;
        let mut head = options.head(plan, &connection, self.number, 0);
        if options.durable {
            head.options = Options::DURABLE;
        }
        let entry = PutEntry {
            key: key.bytes(),
            hint: options.hint,
            len,
            checksum: Checksum::default(),
        };
        let frame = Frame {
            verb: Verb::PutBegin,
            entries: 1,
            values: &[],
            namespace: Some((self.number, self.name())),
        };
        let encode = |id, out: &mut [u8]| request::encode(Verb::PutBegin, id, &head, [entry], out);
        let mut call = connection.send(frame, &encode).await?;
        let status = status_of(&mut call, self.number).await?;
        match status {
            KeyStatus::Granted => {}
            KeyStatus::WrongShard { .. } => {
                pools.mark_stale(layout.generation);
                return Err(Failure::moved());
            }
            other => return outcome_of(other, len, plan).map(PutStart::Done),
        }
        Ok(PutStart::Open(Box::new(PutStream {
            namespace: self.clone(),
            checksum: ChecksumStream::new(key, len.into()),
            key: key.clone(),
            options: *options,
            begun: call.id(),
            connection,
            len,
            pushed: 0,
            parts: VecDeque::new(),
            fault: None,
        })))
    }

    fn failed(&self, key: &BlockKey, failure: Failure) -> Error {
        Error::new(&self.client.pools.address, Some(key.bytes()), failure.cause)
    }
}

impl PutStream {
    /// Bytes that are missing.
    #[must_use]
    pub const fn left(&self) -> u64 {
        (self.len - self.pushed) as u64
    }

    /// Sends the next bytes of the block. They may be used for something else when this returns. A
    /// call that is dropped before its end gives the put up.
    ///
    /// # Errors
    /// [`Cause::Argument`] when the block has fewer bytes left; the put goes on. After all others it is
    /// given up.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 > self.left() {
            let limit = format!("at most {}, which are left of the block", self.left());
            let failure = Failure::argument("bytes of a streamed put", bytes.len(), limit);
            return Err(self.namespace.failed(&self.key, failure));
        }
        let pushed = self.guarded(async |stream, plan| {
            let limit = stream.connection.terms().limits.values_len_max;
            let part_len = PART_LEN_MAX.min(limit.into()) as usize;
            for part in bytes.chunks(part_len) {
                stream.push_part(part, plan).await?;
            }
            Ok(())
        });
        pushed.await
    }

    async fn push_part(&mut self, part: &[u8], plan: Plan) -> Result<(), Failure> {
        self.checksum.update(part);
        let told = PutPart {
            begun: self.begun,
            offset: self.pushed,
        };
        let frame = Frame {
            verb: Verb::PutPart,
            entries: 1,
            values: &[part],
            namespace: None,
        };
        let encode = |id, out: &mut [u8]| told.encode(id, part.len() as u32, out);
        let call = self.connection.send(frame, &encode).await?;
        self.parts.push_back(call);
        self.pushed += part.len() as u32;
        self.await_parts(PARTS_AHEAD, plan).await
    }

    /// Waits until so many parts at most are not answered.
    async fn await_parts(&mut self, most: usize, plan: Plan) -> Result<(), Failure> {
        while self.parts.len() > most {
            let Some(mut call) = self.parts.pop_front() else {
                break;
            };
            match status_of(&mut call, self.namespace.number).await? {
                KeyStatus::Granted => {}
                KeyStatus::TimedOut | KeyStatus::Cancelled => return Err(plan.timed_out()),
                other => {
                    let what = format_args!("a part of a put was answered by {other:?}");
                    return Err(Failure::protocol(what));
                }
            }
        }
        Ok(())
    }

    /// Publishes the block, once all of its bytes are there.
    ///
    /// # Errors
    /// [`Cause::Argument`] when bytes are missing. After [`Cause::TimedOut`] and [`Cause::Io`] the
    /// block may be stored or not; after all others it is not.
    pub async fn finish(mut self) -> Result<PutOutcome, Error> {
        if self.left() > 0 {
            let limit = format!("{}, the length that was told", self.len);
            let failure = Failure::argument("bytes of a streamed put", self.pushed, limit);
            return Err(self.namespace.failed(&self.key, failure));
        }
        let finished = self.guarded(async |stream, plan| {
            stream.await_parts(0, plan).await?;
            let end = StreamEnd {
                begun: stream.begun,
                checksum: stream.checksum.finish(),
            };
            let frame = Frame {
                verb: Verb::PutCommit,
                entries: 1,
                values: &[],
                namespace: None,
            };
            let encode = |id, out: &mut [u8]| end.encode_commit(id, out);
            let mut call = stream.connection.send(frame, &encode).await?;
            let status = status_of(&mut call, stream.namespace.number).await?;
            outcome_of(status, stream.len, plan)
        });
        finished.await
    }

    /// One call: within its deadline, and only while nothing has failed. What is dropped halfway counts
    /// as a failure.
    async fn guarded<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Self, Plan) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let plan = self.namespace.client.plan(&self.options, false)?;
        let outcome = match self.fault.clone() {
            Some(failure) => Err(failure),
            None => {
                let why = "a call of the streamed put was dropped before its end";
                self.fault = Some(Failure::new(
                    Cause::Unavailable { why: why.into() },
                    Retry::Never,
                ));
                plan.within(work(self, plan)).await
            }
        };
        self.fault = outcome.as_ref().err().cloned();
        outcome.map_err(|failure| self.namespace.failed(&self.key, failure))
    }
}

/// The only status of a reply.
async fn status_of(call: &mut Call, number: u16) -> Result<KeyStatus, Failure> {
    let arrived = call.receive().await?;
    let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
    let first = match reply {
        Reply::Statuses(_, records) => records.iter().next(),
        Reply::Error(error) => return Err(call.refusal(&error, number)),
        _ => None,
    };
    first.ok_or_else(|| Failure::protocol("a streamed put was not answered by a status"))
}

fn outcome_of(status: KeyStatus, len: u32, plan: Plan) -> Result<PutOutcome, Failure> {
    match (status, status.put_outcome(len.into())) {
        (_, Some(outcome)) => Ok(outcome),
        (KeyStatus::TimedOut | KeyStatus::Cancelled, _) => Err(plan.timed_out()),
        (other, _) => {
            let what = format_args!("a streamed put was answered by {other:?}").to_string();
            Err(Failure::protocol(what))
        }
    }
}
