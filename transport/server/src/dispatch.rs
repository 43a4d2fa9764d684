//! From a request's body to what does it.

use std::rc::Rc;
use std::time::Duration;

use terrace_engine::{
    Access, BlockKey, GetOptions, Hint, Lookup, Namespace, RequestContext, Shard, Tier, WholeChain,
};
use terrace_wire::{
    AccessEntry, ErrorCode, Facts, FrameHead, KeyEntry, KeyStatus, Matched, OpenNamespace, Pong,
    Records, Removed, Request, RequestHead, Verb, reply,
};

use crate::connection::{Connection, Ticket};
use crate::session::End;
use crate::values::{Frames, skip};
use crate::{events, get, leases, list, locate, one_sided, pins, put, stream};

/// Keys of a request that are looked at before other tasks of the thread run.
const KEYS_IN_A_ROW: usize = 512;

/// Prefetches of a connection that are under way at once. More are not begun: they are hints.
const PREFETCHES_MAX: u32 = 16;

/// Takes a request on. When this returns its values are read, and it is answered or goes on in a
/// task of its own.
pub(crate) async fn request(
    connection: &Rc<Connection>,
    frames: &mut Frames,
    head: FrameHead,
    verb: Verb,
    body: Vec<u8>,
) -> Result<(), End> {
    let request = match Request::decode(&head, &body) {
        Ok(request) => request,
        //= docs/wire-protocol.md#WP-5
        Err(error) if error.is_of_request() => {
            skip(connection, frames, head.values_len.into()).await?;
            connection.refuse_body(&head, &error);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    connection.note_keys(request.entry_count());
    let noted = connection.session.borrow_mut().on_request(&head, &request);
    if let Err(error) = noted {
        skip(connection, frames, head.values_len.into()).await?;
        connection.refuse_body(&head, &error);
        return Ok(());
    }
    let id = head.request_id;
    match request {
        Request::Put(told, entries) | Request::Upsert(told, entries) => {
            let ticket = connection.ticket(id, verb, told.deadline_ms);
            put::put(connection, frames, &head, ticket, &told, entries).await
        }
        Request::PutPart(part) => stream::part(connection, frames, &head, part).await,
        Request::PutBegin(told, entry) => {
            let ticket = connection.ticket(id, verb, told.deadline_ms);
            stream::begin(connection, ticket, &told, &entry).await;
            Ok(())
        }
        Request::PutCommit(end) => {
            stream::commit(connection, &head, end).await;
            Ok(())
        }
        Request::PutAbort(end) => {
            stream::abort(connection, &head, end);
            Ok(())
        }
        request => {
            without_values(connection, id, verb, request).await;
            Ok(())
        }
    }
}

async fn without_values(connection: &Rc<Connection>, id: u64, verb: Verb, request: Request<'_>) {
    match request {
        Request::Ping => {
            let terms = connection.terms.get();
            let pong = Pong {
                node_epoch: terms.node_epoch,
                map_epoch: terms.map_epoch,
            };
            connection.reply_once(id, |out| pong.encode(id, out));
        }
        Request::OpenNamespace(open) => open_namespace(connection, id, &open),
        Request::RemoveNamespace(told) => remove_namespace(connection, id, verb, &told).await,
        Request::Get(told, entries) => {
            let ticket = connection.ticket(id, verb, told.deadline_ms);
            get::get(connection, ticket, &told, entries).await;
        }
        Request::MatchPrefix(told, keys) => match_prefix(connection, id, verb, &told, keys),
        Request::Announce(told, accesses) => announce(connection, id, &told, accesses),
        Request::List(told, asked) => list::list(connection, id, &told, asked).await,
        Request::Lease(told, keys) => {
            let ticket = connection.ticket(id, verb, told.deadline_ms);
            leases::lease(connection, ticket, &told, keys).await;
        }
        Request::Locate(told, keys) => {
            let ticket = connection.ticket(id, verb, told.deadline_ms);
            locate::locate(connection, ticket, &told, keys).await;
        }
        Request::Events(told, kinds) => {
            // Without entries there is nothing that could be late.
            let ticket = connection.ticket(id, verb, 0);
            events::events(connection, ticket, &told, kinds).await;
        }
        Request::Rails(wanted) => {
            let ticket = connection.ticket(id, verb, 0);
            one_sided::rails(connection, ticket, &wanted).await;
        }
        Request::Pull(told, entries) => {
            let ticket = connection.ticket(id, verb, told.deadline_ms);
            one_sided::pull(connection, ticket, &told, entries).await;
        }
        Request::Renew(told, ids) => leases::renew(connection, id, &told, ids),
        Request::Release(_, ids) => leases::release(connection, id, ids),
        Request::Stat(told, keys) => stat(connection, id, verb, &told, keys),
        Request::Exists(told, keys)
        | Request::Touch(told, keys)
        | Request::Prefetch(told, keys)
        | Request::Remove(told, keys)
        | Request::Pin(told, keys)
        | Request::Unpin(told, keys) => {
            let ticket = connection.ticket(id, verb, told.deadline_ms);
            of_keys(connection, ticket, &told, keys).await;
        }
        _ => {
            // The hello offers none of their features, so the session refuses them before.
            let text = "the node does not have this verb";
            connection.refuse(id, verb.number(), ErrorCode::FeatureNotInForce, text);
        }
    }
}

fn announce(
    connection: &Rc<Connection>,
    id: u64,
    told: &RequestHead,
    accesses: Records<'_, AccessEntry>,
) {
    let terms = connection.terms.get();
    let is_own = |entry: &AccessEntry| entry.id.shard(terms.shards) == terms.shard;
    let own = accesses.iter().filter(is_own);
    let own: Vec<Access> = own.map(|entry| entry.access(told.context)).collect();
    let all = accesses.iter();
    let all = all.map(|entry| (entry.id, entry.hint, told.context));
    match WholeChain::of(all).filter(|_| terms.shards > 1) {
        Some(chain) => connection.shard().announce_chain(&chain, &own),
        None => connection.shard().announce(&own),
    }
    connection.reply_once(id, |out| {
        let head = connection.reply_head(0);
        let none: [KeyStatus; 0] = [];
        let verb = Verb::Announce;
        reply::encode(verb, id, terrace_wire::Flags::NONE, &head, none, out)
    });
}

fn open_namespace(connection: &Rc<Connection>, id: u64, open: &OpenNamespace<'_>) {
    let verb = Verb::OpenNamespace;
    match connection.host.engine.namespace(open.name) {
        Ok(namespace) if connection.add_namespace(open.number, namespace) => {
            connection.reply_once(id, |out| {
                let head = connection.reply_head(0);
                let none: [KeyStatus; 0] = [];
                reply::encode(verb, id, terrace_wire::Flags::NONE, &head, none, out)
            });
        }
        Ok(_) => {
            let text = "the number is taken on this connection; choose another one";
            connection.refuse(id, verb.number(), ErrorCode::NamespaceNumber, text);
        }
        Err(error) => {
            let text = error.to_string();
            connection.refuse(id, verb.number(), ErrorCode::NamespaceRefused, &text);
        }
    }
}

async fn remove_namespace(connection: &Rc<Connection>, id: u64, verb: Verb, told: &RequestHead) {
    let Some(namespace) = connection.namespace(id, verb, told) else {
        return;
    };
    let ticket = connection.ticket(id, verb, told.deadline_ms);
    let (owner, at) = (Rc::clone(connection), ticket.clone());
    let work = async move {
        let engine = owner.host.engine.clone();
        let removal = engine.remove_namespace(namespace);
        let removed = at.before_deadline(owner.shard().runtime(), removal).await;
        let (status, count) = match removed {
            Some(Ok(count)) => (KeyStatus::Hit(Tier::Dram), count),
            Some(Err(reason)) => (KeyStatus::Unavailable(reason), 0),
            None => (KeyStatus::TimedOut, 0),
        };
        let removed = Removed { status, count };
        owner.reply_once(id, |out| {
            reply::encode_removed(id, terrace_wire::Flags::NONE, &removed, out)
        });
    };
    connection.run(&ticket, Box::pin(work)).await;
}

/// The keys of a request, as the engine knows them.
pub(crate) fn keys_of(namespace: Namespace, keys: Records<'_, KeyEntry<'_>>) -> Vec<Asked> {
    let asked = |entry: KeyEntry<'_>| {
        let key = namespace.key(entry.key).ok()?;
        Some((key, entry.hint))
    };
    // Decoding has checked their lengths, which is all that can be wrong.
    keys.iter().filter_map(asked).collect()
}

/// A key, and what its caller knows of the block.
pub(crate) type Asked = (BlockKey, Hint);

fn match_prefix(
    connection: &Rc<Connection>,
    id: u64,
    verb: Verb,
    told: &RequestHead,
    keys: Records<'_, KeyEntry<'_>>,
) {
    let Some(namespace) = connection.namespace(id, verb, told) else {
        return;
    };
    let (mut count, mut end) = (0, None);
    for entry in keys {
        let Ok(key) = namespace.key(entry.key) else {
            break;
        };
        let status = connection
            .wrong_shard(&key)
            .unwrap_or_else(|| KeyStatus::of_lookup(&connection.shard().exists(&key)));
        if !matches!(status, KeyStatus::Hit(_)) {
            end = Some(status);
            break;
        }
        count += 1;
    }
    connection.reply_once(id, |out| {
        let matched = Matched { count, end };
        let head = connection.reply_head(0);
        reply::encode_matched(id, terrace_wire::Flags::NONE, &head, &matched, out)
    });
}

fn stat(
    connection: &Rc<Connection>,
    id: u64,
    verb: Verb,
    told: &RequestHead,
    keys: Records<'_, KeyEntry<'_>>,
) {
    let Some(namespace) = connection.namespace(id, verb, told) else {
        return;
    };
    let all: Vec<Facts> = keys_of(namespace, keys)
        .iter()
        .map(|(key, _)| facts(connection, key))
        .collect();
    connection.reply(id, verb, &all, 24);
}

fn facts(connection: &Connection, key: &BlockKey) -> Facts {
    let none = |status| Facts {
        status,
        block_len: 0,
        bits: 0,
        checksum: terrace_types::Checksum::default(),
    };
    if let Some(status) = connection.wrong_shard(key) {
        return none(status);
    }
    let found = connection.shard().stat(key);
    let status = KeyStatus::of_lookup(&found);
    let Lookup::Hit { value: known, .. } = found else {
        return none(status);
    };
    let bits = [
        (known.durable, Facts::DURABLE),
        (known.in_dram, Facts::IN_DRAM),
        (known.on_nvme, Facts::ON_NVME),
        (known.pinned, Facts::PINNED),
        (known.leased, Facts::LEASED),
    ];
    let set = bits.iter().filter(|(is_so, _)| *is_so);
    Facts {
        status,
        block_len: known.len,
        bits: set.fold(0, |all, (_, bit)| all | bit),
        checksum: known.checksum,
    }
}

/// A request that has one status for each key.
async fn of_keys(
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
        let mut statuses = Vec::with_capacity(keys.len());
        for (place, (key, hint)) in keys.iter().enumerate() {
            let status = match owner.wrong_shard(key) {
                Some(status) => {
                    owner.host.count(|counters| counters.wrong_shard += 1);
                    status
                }
                None => match at.is_over(owner.host.now()) {
                    Some(status) => status,
                    None => status_of(&owner, &at, &told, key, *hint).await,
                },
            };
            statuses.push(status);
            if place % KEYS_IN_A_ROW == KEYS_IN_A_ROW - 1 {
                owner.shard().runtime().yield_now().await;
            }
        }
        if at.verb == Verb::Prefetch {
            prefetch(&owner, &keys, &statuses, &told);
        }
        owner.reply_statuses(at.id, at.verb, &statuses);
    };
    connection.run(&ticket, Box::pin(work)).await;
}

async fn status_of(
    connection: &Rc<Connection>,
    ticket: &Ticket,
    told: &RequestHead,
    key: &BlockKey,
    hint: Hint,
) -> KeyStatus {
    let shard = connection.shard();
    match ticket.verb {
        Verb::Touch => {
            let options = get_options(hint, told.context);
            KeyStatus::of_lookup(&shard.touch(key, &options))
        }
        Verb::Remove => remove(shard, ticket, key).await,
        Verb::Pin => pins::pin(connection, ticket, told, key, hint).await,
        Verb::Unpin => pins::unpin(connection, key),
        _ => KeyStatus::of_lookup(&shard.exists(key)),
    }
}

async fn remove(shard: &Rc<Shard>, ticket: &Ticket, key: &BlockKey) -> KeyStatus {
    let removal = shard.remove(key);
    let removed = ticket.before_deadline(shard.runtime(), removal).await;
    removed.map_or(KeyStatus::TimedOut, |found| KeyStatus::of_lookup(&found))
}

/// Brings the blocks that are there up in the background, for as long as the request says.
fn prefetch(
    connection: &Rc<Connection>,
    keys: &[Asked],
    statuses: &[KeyStatus],
    told: &RequestHead,
) {
    let under_way = Rc::clone(&connection.prefetches);
    if under_way.get() >= PREFETCHES_MAX {
        return;
    }
    under_way.set(under_way.get() + 1);
    let there = keys
        .iter()
        .zip(statuses)
        .filter(|(_, status)| matches!(status, KeyStatus::Hit(_)));
    let keys: Vec<BlockKey> = there.map(|((key, _), _)| key.clone()).collect();
    let most = connection.host.config().deadline_max;
    let budget = Duration::from_millis(told.argument.into()).min(most);
    let (engine, context) = (connection.host.engine.clone(), told.context);
    connection.shard().spawn(Box::pin(async move {
        engine.prefetch(&keys, budget, &context).await.await;
        under_way.set(under_way.get() - 1);
    }));
}

pub(crate) fn get_options(hint: Hint, context: RequestContext) -> GetOptions {
    GetOptions {
        hint,
        context,
        ..GetOptions::default()
    }
}
