//! One frame of each message of version 1, every field with a value of its own.

use terrace_types::{BlockKind, Checksum, Hint, KeyHash, RequestContext, Tier, UnavailableReason};
use terrace_wire::{
    AccessEntry, ClientHello, Credit, Descriptor, Endpoint, ErrorCode, ErrorFrame, EventKind,
    EventRecord, Facts, Features, Flags, FrameLimits, GetEntry, Goodbye, GoodbyeReason, KeyEntry,
    KeyStatus, LeaseId, LeaseRecord, ListRequest, ListedBlock, Matched, NamespaceNumber, NodeTerms,
    OpenNamespace, Pong, PullEntry, PutEntry, PutPart, RailsTerms, Reach, Record, Rejection,
    Removed, ReplyHead, RequestHead, Security, StreamEnd, Transport, ValueRecord, Verb, WireError,
    rails, reply, request,
};

/// A frame without its values.
pub(crate) struct Sample {
    /// What it is: `get`, or `get-reply`.
    pub(crate) name: String,
    /// Its head and its body.
    pub(crate) bytes: Vec<u8>,
}

pub(crate) const KEY: &[u8] = b"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a";

pub(crate) const HINT: Hint = Hint {
    parent: Some(KeyHash(0x4142_4344_4546_4748)),
    depth: 0x3132_3334,
    kind: BlockKind::Tail,
};

/// The head of requests, with the options of `verb`.
pub(crate) fn head(verb: Verb) -> RequestHead {
    RequestHead {
        namespace: NamespaceNumber(0x0102),
        deadline_ms: 0x1112_1314,
        context: RequestContext {
            clock_ms: 0x2122_2324_2526_2728,
            tenant: 0x3132_3334,
            priority: 0x05,
        },
        options: verb.options(),
        argument: 0x5152_5354,
    }
}

pub(crate) const REPLY_HEAD: ReplyHead = ReplyHead {
    first: 0x102,
    map_epoch: 0x2122_2324_2526_2728,
};

pub(crate) const TERMS: NodeTerms = NodeTerms {
    version: 1,
    security: Security(Security::TOKEN.0 | Security::TLS.0),
    shard: 5,
    features: Features::ALL,
    node_id: *b"node-id-node-id-",
    node_epoch: 0x3132_3334_3536_3738,
    map_epoch: 0x4142_4344_4546_4748,
    shards: 7,
    limits: FrameLimits {
        body_len_max: 0x0001_0008,
        values_len_max: 0x0200_0000,
    },
    batch_max: 0x0404,
    credit_requests: 0x0111,
    credit_bytes: 0x1_0000_0000,
    block_len_max: 0x0100_0000,
    lease_max_ms: 0x6162_6364,
    deadline_max_ms: 0x7172_7374,
    silence_max_ms: 0x8182_8384,
};

pub(crate) const RAILS: RailsTerms = RailsTerms {
    ticket: [0xa5; 16],
    slot: 0x1112_1314,
    epoch: 0x2122_2324_2526_2728,
    reach: Reach::Staged,
    len: 0x3132_3334_3536_3738,
};

pub(crate) fn client_hello() -> ClientHello<'static> {
    ClientHello {
        version_low: 1,
        version_high: 3,
        shard: Some(5),
        features: Features::ALL,
        client_id: *b"client-id-client",
        limits: FrameLimits {
            body_len_max: 0x0001_0000,
            values_len_max: 0x0100_0000,
        },
        token: b"secret",
        name: "vllm",
    }
}

pub(crate) fn endpoints() -> [Endpoint<'static>; 2] {
    let any = Endpoint {
        shard: None,
        port: 7440,
        rail: 0,
        transport: Transport::Tcp,
        host: "",
    };
    let one = Endpoint {
        shard: Some(0x0506),
        port: 0x1112,
        rail: 3,
        transport: Transport::Rdma,
        host: "10.0.0.1",
    };
    [one, any]
}

pub(crate) const PUT: PutEntry<'static> = PutEntry {
    key: KEY,
    hint: HINT,
    len: 0x0001_0203,
    checksum: Checksum(0x6162_6364_6566_6768),
};

pub(crate) const PULL: PullEntry<'static> = PullEntry {
    put: PUT,
    slot: 0x8182_8384,
    epoch: 0x9192_9394_9596_9798,
    offset: 0xa1a2_a3a4_a5a6_a7a8,
};

pub(crate) const GET: GetEntry<'static> = GetEntry {
    key: KEY,
    hint: HINT,
    offset: 0x0001_0203,
    len: 0x1112_1314,
};

pub(crate) const ACCESS: AccessEntry = AccessEntry {
    id: KeyHash(0x7172_7374_7576_7778),
    hint: HINT,
    len: 0x0001_0203,
};

pub(crate) const VALUE: ValueRecord = ValueRecord {
    status: KeyStatus::Hit(Tier::Nvme),
    block_len: 0x0001_0203,
    len: 0x0203,
    checksum: Checksum(0x6162_6364_6566_6768),
};

pub(crate) const LEASE: LeaseRecord = LeaseRecord {
    status: KeyStatus::Hit(Tier::Dram),
    id: LeaseId(0x2122_2324_2526_2728),
    block_len: 0x0001_0203,
    duration_ms: 0x3132_3334,
};

pub(crate) const DESCRIPTOR: Descriptor = Descriptor {
    lease: LEASE,
    checksum: Checksum(0x6162_6364_6566_6768),
    address: 0x7172_7374_7576_7778,
    rkey: 0x8182_8384,
    generation: 0x9192_9394,
    inline_len: 0x0001_0203,
};

pub(crate) const STATUSES: [KeyStatus; 13] = [
    KeyStatus::Stored { durable: true },
    KeyStatus::Stored { durable: false },
    KeyStatus::AlreadyExists { durable: true },
    KeyStatus::Rejected(Rejection::TooLarge { limit: 0x0102_0304 }),
    KeyStatus::Rejected(Rejection::Checksum),
    KeyStatus::Busy,
    KeyStatus::Hit(Tier::Nvme),
    KeyStatus::Miss,
    KeyStatus::Unavailable(UnavailableReason::TierFailed),
    KeyStatus::Granted,
    KeyStatus::WrongShard { shard: 0x1112_1314 },
    KeyStatus::TimedOut,
    KeyStatus::Cancelled,
];

/// The id of all requests.
pub(crate) const ID: u64 = 0x0102_0304_0506_0708;

type Encode<'a> = &'a dyn Fn(&mut [u8]) -> Result<usize, WireError>;

fn sample(name: &str, encode: Encode<'_>) -> Sample {
    let mut bytes = vec![0xee; 4096];
    let len = encode(&mut bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    bytes.truncate(len);
    Sample {
        name: name.to_owned(),
        bytes,
    }
}

/// All frames that clients send.
pub(crate) fn requests() -> Vec<Sample> {
    let mut all = control_requests();
    all.extend(stream_requests());
    all.extend(keyed_requests());
    all
}

/// Those about the connection, and those without entries.
fn control_requests() -> Vec<Sample> {
    let goodbye = Goodbye {
        reason: GoodbyeReason::Draining,
        close_ms: 0x1112_1314,
    };
    let namespace = OpenNamespace {
        number: NamespaceNumber(0x0102),
        name: "llama-8b/bf16",
    };
    let list = ListRequest {
        cursor: 0x7172_7374_7576_7778,
        prefix: b"block-",
    };
    vec![
        sample("rails", &|out| {
            rails::encode_wanted(ID, &[0x5a; 16], endpoints(), out)
        }),
        sample("hello", &|out| client_hello().encode(out)),
        sample("goodbye", &|out| goodbye.encode(out)),
        sample("ping", &|out| request::encode_ping(ID, out)),
        sample("cancel", &|out| request::encode_cancel(ID, out)),
        sample("open_namespace", &|out| namespace.encode(ID, out)),
        sample("remove_namespace", &|out| {
            request::encode_remove_namespace(ID, &head(Verb::RemoveNamespace), out)
        }),
        sample("list", &|out| {
            request::encode_list(ID, &head(Verb::List), &list, out)
        }),
        sample("events", &|out| {
            request::encode_events(ID, &head(Verb::Events), 0x2122_2324, out)
        }),
    ]
}

/// Those that follow a `put_begin`.
fn stream_requests() -> [Sample; 3] {
    let end = StreamEnd {
        begun: 0x0102_0304_0506_0701,
        checksum: Checksum(0x6162_6364_6566_6768),
    };
    let part = PutPart {
        begun: end.begun,
        offset: 0x2122_2324,
    };
    [
        sample("put_part", &|out| part.encode(ID, 0x1112, out)),
        sample("put_commit", &|out| end.encode_commit(ID, out)),
        sample("put_abort", &|out| end.encode_abort(ID, out)),
    ]
}

/// A request of `verb` with these entries.
fn entries<'e, R: Record<'e>>(verb: Verb, entries: impl IntoIterator<Item = R> + Clone) -> Sample {
    sample(verb.name(), &|out| {
        request::encode(verb, ID, &head(verb), entries.clone(), out)
    })
}

fn keyed_requests() -> Vec<Sample> {
    let first = KeyEntry {
        key: KEY,
        hint: HINT,
    };
    let keys = [first, KeyEntry::plain(b"block-01")];
    let whole = GetEntry::whole(b"block-01", Hint::default());
    let ids = [LeaseId(0x7172_7374_7576_7778), LeaseId(2)];
    let mut all = vec![
        entries(Verb::Get, [GET, whole]),
        entries(Verb::Announce, [ACCESS]),
        entries(Verb::Put, [PUT; 2]),
        entries(Verb::Upsert, [PUT; 2]),
        entries(Verb::PutBegin, [PUT]),
        entries(Verb::Pull, [PULL; 2]),
        entries(Verb::Renew, ids),
        entries(Verb::Release, ids),
    ];
    let verbs = [
        Verb::Exists,
        Verb::MatchPrefix,
        Verb::Prefetch,
        Verb::Touch,
        Verb::Stat,
        Verb::Remove,
        Verb::Pin,
        Verb::Unpin,
        Verb::Lease,
        Verb::Locate,
    ];
    all.extend(verbs.map(|verb| entries(verb, keys)));
    all
}

/// A frame of every kind that nodes send.
pub(crate) fn replies() -> Vec<Sample> {
    let mut all = control_replies();
    all.extend(record_replies());
    all.extend(other_replies());
    all
}

fn control_replies() -> Vec<Sample> {
    let error = ErrorFrame {
        code: ErrorCode::NamespaceRefused,
        verb_number: Verb::OpenNamespace.number(),
        argument: 0x7172_7374_7576_7778,
        text: "ask the operator",
    };
    let pong = Pong {
        node_epoch: 0x3132_3334_3536_3738,
        map_epoch: 0x4142_4344_4546_4748,
    };
    let credit = Credit {
        bytes: 0x3132_3334_3536_3738,
        requests: 0x4142_4344,
    };
    vec![
        sample("rails-reply", &|out| {
            rails::encode(ID, &RAILS, endpoints(), out)
        }),
        sample("hello-reply", &|out| TERMS.encode(endpoints(), out)),
        sample("ping-reply", &|out| pong.encode(ID, out)),
        sample("credit-reply", &|out| credit.encode(out)),
        sample("error-reply", &|out| error.encode(ID, out)),
    ]
}

/// A reply to `verb` with these records.
fn records<'r, R: Record<'r>>(
    verb: Verb,
    flags: Flags,
    records: impl IntoIterator<Item = R> + Clone,
) -> Sample {
    let name = format!("{}-reply", verb.name());
    sample(&name, &|out| {
        reply::encode(verb, ID, flags, &REPLY_HEAD, records.clone(), out)
    })
}

fn record_replies() -> Vec<Sample> {
    let none = Flags::NONE;
    let miss = ValueRecord {
        status: KeyStatus::Miss,
        block_len: 0,
        len: 0,
        checksum: Checksum(0),
    };
    let facts = Facts {
        status: VALUE.status,
        block_len: VALUE.block_len,
        bits: Facts::DURABLE | Facts::ON_NVME,
        checksum: VALUE.checksum,
    };
    let no_status: [KeyStatus; 0] = [];
    vec![
        records(Verb::Get, Flags::MORE, [VALUE, miss]),
        records(Verb::Stat, none, [facts]),
        records(Verb::Lease, none, [LEASE]),
        records(Verb::Renew, none, [LEASE]),
        records(Verb::Locate, none, [DESCRIPTOR]),
        records(Verb::Put, none, STATUSES),
        records(Verb::Exists, none, STATUSES),
        records(Verb::Pull, none, STATUSES),
        records(Verb::OpenNamespace, none, no_status),
    ]
}

fn other_replies() -> [Sample; 4] {
    let (head, none) = (&REPLY_HEAD, Flags::NONE);
    let listed = ListedBlock {
        key: KEY,
        tier: Tier::Nvme,
        durable: true,
        len: 0x0001_0203,
    };
    let event = EventRecord {
        sequence: 0x7172_7374_7576_7778,
        hash: KeyHash(0x8182_8384_8586_8788),
        namespace: NamespaceNumber(0x0102),
        kind: EventKind::Promoted,
        key: KEY,
    };
    let matched = Matched {
        count: 0x0304,
        end: Some(KeyStatus::Miss),
    };
    let removed = Removed {
        status: KeyStatus::Hit(Tier::Dram),
        count: 0x7172_7374_7576_7778,
    };
    [
        sample("match_prefix-reply", &|out| {
            reply::encode_matched(ID, none, head, &matched, out)
        }),
        sample("remove_namespace-reply", &|out| {
            reply::encode_removed(ID, Flags::HELD, &removed, out)
        }),
        sample("list-reply", &|out| {
            reply::encode_listed(ID, none, head, 0x7172_7374, [listed], out)
        }),
        sample("events-reply", &|out| {
            reply::encode_events(ID, Flags::MORE, head, 0x7172_7374, [event], out)
        }),
    ]
}
