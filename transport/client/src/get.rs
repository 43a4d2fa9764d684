//! Reading blocks, straight into the memory of the caller, verified as the bytes arrive.

use std::ops::Range;
use std::sync::Arc;

use terrace_slab::RegisteredRegion;
use terrace_types::limits::BLOCK_LEN_MAX;
use terrace_types::{BlockKey, Checksum, KeyHash, Lookup};
use terrace_wire::{GetEntry, KeyStatus, Options, Reply, ValueRecord, Verb, part_seed, request};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::client::{CallOptions, Namespace, only};
use crate::connection::{Call, Connection, Frame};
use crate::error::{Cause, Error, Failure, Retry};
use crate::fan_out::{Answer, Item, Plan, Weight};
use crate::keys::{found, in_order, split_keys};

/// Most bytes between two looks at the checksum; what the CPU's cache still has.
const PIECE_LEN: usize = 128 << 10;

/// What registered memory is wiped with.
static ZEROS: [u8; 4096] = [0; 4096];

/// What was read of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes that were read to the front of the target.
    pub len: usize,
    /// Length of the whole block in bytes. Longer than `len` when the target was too short, or the
    /// range did not have all.
    pub block_len: u64,
}

/// A key, and where bytes of its block go.
#[derive(Debug)]
pub struct Target<'a> {
    /// The key, 1 to 512 bytes.
    pub key: &'a [u8],
    /// First byte wanted.
    pub offset: u32,
    /// Where the bytes go, one piece of memory after another, as far as it reaches. After an error
    /// it holds anything, but never bytes that failed their checksum.
    pub memory: Vec<&'a mut [u8]>,
}

/// Where the bytes of an entry go.
enum Sink<'a> {
    /// Memory of their length.
    Owned,
    /// The caller's.
    Parts(Vec<&'a mut [u8]>),
    /// The caller's, registered.
    Region(&'a RegisteredRegion),
}

struct Want<'a> {
    offset: u32,
    len: u32,
    sink: Sink<'a>,
}

/// What came for an entry.
struct Got {
    part: Part,
    owned: Vec<u8>,
}

/// What a run of a get needs.
#[derive(Clone, Copy)]
struct Run<'a> {
    plan: Plan,
    namespace: &'a Namespace,
    keys: &'a [BlockKey],
    options: &'a CallOptions,
}

impl Namespace {
    /// Reads a block into memory of its length.
    ///
    /// # Errors
    /// As all calls: see [`Cause`]. [`Cause::Corrupt`] when the bytes are not those that were put.
    pub async fn get(&self, key: &[u8], options: &CallOptions) -> Result<Lookup<Vec<u8>>, Error> {
        only(self.get_batch(&[key], options).await, &self.client)
    }

    /// Reads a block into `target`, as far as that reaches.
    ///
    /// # Errors
    /// As [`Namespace::get`].
    pub async fn get_into(
        &self,
        key: &[u8],
        target: &mut [u8],
        options: &CallOptions,
    ) -> Result<Lookup<Part>, Error> {
        self.get_range(key, 0, target, options).await
    }

    /// Reads the bytes of a block from `offset` on into `target`, as far as that reaches.
    ///
    /// # Errors
    /// As [`Namespace::get`].
    pub async fn get_range(
        &self,
        key: &[u8],
        offset: u32,
        target: &mut [u8],
        options: &CallOptions,
    ) -> Result<Lookup<Part>, Error> {
        let target = Target {
            key,
            offset,
            memory: vec![target],
        };
        only(
            self.get_batch_into(vec![target], options).await,
            &self.client,
        )
    }

    /// Reads many blocks; one result for each key, in their order.
    pub async fn get_batch<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        options: &CallOptions,
    ) -> Vec<Result<Lookup<Vec<u8>>, Error>> {
        let entries = keys.iter().map(|key| {
            let want = Want {
                offset: 0,
                len: u32::MAX,
                sink: Sink::Owned,
            };
            (key.as_ref(), want)
        });
        let results = self.get_all(entries.collect(), options).await;
        let owned = |lookup: Lookup<Got>| lookup.map(|got| got.owned);
        results.into_iter().map(|one| one.map(owned)).collect()
    }

    /// Reads many blocks or parts of them into the caller's memory; one result for each target, in
    /// their order.
    pub async fn get_batch_into(
        &self,
        targets: Vec<Target<'_>>,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<Part>, Error>> {
        let entries = targets.into_iter().map(|target| {
            let room: usize = target.memory.iter().map(|memory| memory.len()).sum();
            let want = Want {
                offset: target.offset,
                len: room.min(BLOCK_LEN_MAX as usize) as u32,
                sink: Sink::Parts(target.memory),
            };
            (target.key, want)
        });
        let results = self.get_all(entries.collect(), options).await;
        let part = |lookup: Lookup<Got>| lookup.map(|got| got.part);
        results.into_iter().map(|one| one.map(part)).collect()
    }

    /// Reads many blocks into registered memory; one result for each, in their order.
    pub(crate) async fn get_regions(
        &self,
        targets: Vec<(&[u8], &RegisteredRegion)>,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<Part>, Error>> {
        let entries = targets.into_iter().map(|(key, region)| {
            let want = Want {
                offset: 0,
                len: region.len().min(BLOCK_LEN_MAX as usize) as u32,
                sink: Sink::Region(region),
            };
            (key, want)
        });
        let results = self.get_all(entries.collect(), options).await;
        let part = |lookup: Lookup<Got>| lookup.map(|got| got.part);
        results.into_iter().map(|one| one.map(part)).collect()
    }

    async fn get_all(
        &self,
        entries: Vec<(&[u8], Want<'_>)>,
        options: &CallOptions,
    ) -> Vec<Result<Lookup<Got>, Error>> {
        let plan = match self.client.plan(options, true) {
            Ok(plan) => plan,
            Err(error) => return entries.iter().map(|_| Err(error.clone())).collect(),
        };
        let (names, wants): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        let (keys, refused) = split_keys(self, &names);
        let wants = wants.into_iter().zip(&refused);
        let wants = wants.filter_map(|(want, refused)| refused.is_none().then_some(want));
        let wants = wants.zip(&keys);
        let wants = wants.map(|(want, key)| (want, Weight::of_key(24, key)));
        let run = Run {
            plan,
            namespace: self,
            keys: &keys,
            options,
        };
        let wants = wants.collect();
        let pools = &self.client.pools;
        let results = pools
            .fan_out(plan, &keys, wants, |connection, items| {
                run.attempt(connection, items)
            })
            .await;
        in_order(refused, results)
    }
}

impl Run<'_> {
    async fn attempt<'w>(
        self,
        connection: Arc<Connection>,
        items: Vec<Item<Want<'w>>>,
    ) -> Vec<Answer<Want<'w>, Lookup<Got>>> {
        let mut call = match self.send(&connection, &items).await {
            Ok(call) => call,
            Err(failure) => return Answer::fail_all(items, &failure),
        };
        let mut answers = Vec::with_capacity(items.len());
        let mut items = items.into_iter();
        let failure = loop {
            match self.receive(&mut call, &mut items, &mut answers).await {
                Ok(true) => return answers,
                Ok(false) => {}
                Err(failure) => break failure,
            }
        };
        answers.extend(Answer::fail_all(items, &failure));
        answers
    }

    async fn send(
        &self,
        connection: &Arc<Connection>,
        items: &[Item<Want<'_>>],
    ) -> Result<Call, Failure> {
        let (options, namespace) = (self.options, self.namespace);
        let mut head = options.head(self.plan, connection, namespace.number, 0);
        if options.bypass {
            head.options = Options::BYPASS;
        }
        let hint = options.hint;
        let frame = Frame {
            verb: Verb::Get,
            entries: items.len(),
            values: &[],
            namespace: Some((namespace.number, namespace.name())),
        };
        let encode = |id, out: &mut [u8]| {
            let entries = items.iter().map(|item| GetEntry {
                key: self.keys[item.index].bytes(),
                hint,
                offset: item.entry.offset,
                len: item.entry.len,
            });
            request::encode(Verb::Get, id, &head, entries, out)
        };
        connection.send(frame, &encode).await
    }

    /// Takes one frame of the reply. Whether it was the last.
    async fn receive<'w>(
        &self,
        call: &mut Call,
        items: &mut std::vec::IntoIter<Item<Want<'w>>>,
        answers: &mut Vec<Answer<Want<'w>, Lookup<Got>>>,
    ) -> Result<bool, Failure> {
        let arrived = call.receive().await?;
        let reply = Reply::decode(&arrived.head, &arrived.body).map_err(Failure::protocol)?;
        let records = match reply {
            Reply::Values(_, records) => records,
            Reply::Error(error) => return Err(call.refusal(&error, self.namespace.number)),
            _ => return Err(Failure::protocol("a get was not answered by values")),
        };
        for record in records {
            let Some(mut item) = items.next() else {
                return Err(Failure::protocol("more values than were asked for"));
            };
            let key = &self.keys[item.index];
            match take_value(call, key, &record, &mut item.entry, self.plan).await {
                Ok(lookup) => answers.push(Answer::Done(item.index, lookup)),
                Err(failure) => {
                    // Corrupt values are read to their end, the others behind them are sound.
                    let is_sound =
                        matches!(failure.cause, Cause::Corrupt { .. }) || record.len == 0;
                    answers.push(Answer::Failed(item, failure.clone()));
                    if !is_sound {
                        return Err(failure);
                    }
                }
            }
        }
        Ok(arrived.is_last)
    }
}

/// Receives the value of one record.
async fn take_value(
    call: &mut Call,
    key: &BlockKey,
    record: &ValueRecord,
    want: &mut Want<'_>,
    plan: Plan,
) -> Result<Lookup<Got>, Failure> {
    let found = found(record.status, plan)?;
    if !matches!(record.status, KeyStatus::Hit(_)) {
        return Ok(found.map(|()| Got {
            part: Part {
                len: 0,
                block_len: 0,
            },
            owned: Vec::new(),
        }));
    }
    let entry = GetEntry {
        key: key.bytes(),
        hint: Default::default(),
        offset: want.offset,
        len: want.len,
    };
    let part = entry.part(record.block_len, u32::MAX);
    if part.end - part.start != record.len {
        let (len, wanted) = (record.len, part.end - part.start);
        return Err(Failure::protocol(format_args!(
            "{len} bytes came where {wanted} were asked for"
        )));
    }
    let mut hash = Xxh3::with_seed(seed_of(key.hash(), record, part.start));
    let len = record.len as usize;
    let mut owned = Vec::new();
    match &mut want.sink {
        Sink::Owned => {
            owned = vec![0; len];
            receive_into(call, &mut owned, &mut hash).await?;
        }
        Sink::Parts(parts) => {
            let mut left = len;
            for memory in parts.iter_mut() {
                let count = left.min(memory.len());
                receive_into(call, &mut memory[..count], &mut hash).await?;
                left -= count;
            }
        }
        Sink::Region(region) => receive_region(call, region, len, &mut hash).await?,
    }
    let (expected, actual) = (record.checksum, Checksum(hash.digest()));
    //= docs/wire-protocol.md#WP-18
    if actual != expected {
        want.wipe(len);
        return Err(Failure::new(
            Cause::Corrupt { expected, actual },
            Retry::Reads,
        ));
    }
    let block_len = u64::from(record.block_len);
    let part = Part { len, block_len };
    Ok(found.map(|()| Got { part, owned }))
}

/// The seed of the checksum of what comes: of the block when that is all of it, else of the part.
//= docs/wire-protocol.md#WP-19
fn seed_of(hash: KeyHash, record: &ValueRecord, offset: u32) -> u64 {
    if record.len == record.block_len {
        return seed_of_whole(hash, record.block_len);
    }
    part_seed(hash, record.block_len, offset, record.len)
}

/// The seed of the checksum of a whole block.
//= docs/wire-protocol.md#WP-18
pub(crate) fn seed_of_whole(hash: KeyHash, block_len: u32) -> u64 {
    xxh3_64_with_seed(&u64::from(block_len).to_le_bytes(), hash.0)
}

/// Receives values to where they belong, and hashes them on their way.
pub(crate) async fn receive_into(
    call: &mut Call,
    target: &mut [u8],
    hash: &mut Xxh3,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < target.len() {
        let end = target.len().min(at + PIECE_LEN);
        let count = call.receive_values(&mut target[at..end]).await?;
        hash.update(&target[at..at + count]);
        at += count;
    }
    Ok(())
}

/// As [`receive_into`], for the first `len` bytes of registered memory. They are copied out of a piece
/// that was just hashed: others may write to the region meanwhile.
async fn receive_region(
    call: &mut Call,
    region: &RegisteredRegion,
    len: usize,
    hash: &mut Xxh3,
) -> Result<(), Failure> {
    let mut piece = vec![0; len.min(PIECE_LEN)];
    for start in (0..len).step_by(PIECE_LEN) {
        let end = len.min(start + PIECE_LEN);
        let piece = &mut piece[..end - start];
        receive_into(call, piece, hash).await?;
        copy_into(region, start, piece);
    }
    Ok(())
}

/// Copies bytes to a place in a region. It has them: no more was asked for than it takes.
pub(crate) fn copy_into(region: &RegisteredRegion, start: usize, bytes: &[u8]) {
    if let Ok(target) = region.slice(start..start + bytes.len()) {
        target.copy_from(bytes);
    }
}

/// Wipes the first `len` bytes of a region, which has them.
pub(crate) fn wipe(region: &RegisteredRegion, len: usize) {
    for start in (0..len).step_by(ZEROS.len()) {
        let end = len.min(start + ZEROS.len());
        copy_into(region, start, &ZEROS[..end - start]);
    }
}

/// Hashes bytes of a region, which has them, in pieces that the CPU's cache holds.
pub(crate) fn hash_of_region(region: &RegisteredRegion, range: Range<usize>, hash: &mut Xxh3) {
    let mut piece = [0; 16 << 10];
    for start in range.clone().step_by(piece.len()) {
        let end = range.end.min(start + piece.len());
        if let Ok(source) = region.slice(start..end) {
            let piece = &mut piece[..end - start];
            source.copy_to(piece);
            hash.update(piece);
        }
    }
}

impl Want<'_> {
    /// Wipes what was received: nobody is to take it for the block.
    fn wipe(&mut self, len: usize) {
        match &mut self.sink {
            Sink::Owned => {}
            Sink::Parts(parts) => {
                let mut left = len;
                for memory in parts {
                    let count = left.min(memory.len());
                    memory[..count].fill(0);
                    left -= count;
                }
            }
            Sink::Region(region) => wipe(region, len),
        }
    }
}
