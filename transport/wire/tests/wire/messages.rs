//! Aim: every message is decoded as it was encoded, whatever its fields. Method: random ones.

use proptest::collection::vec;
use proptest::prelude::*;
use terrace_types::{
    BlockKind, Checksum, Hint, KeyHash, Lookup, PutOutcome, RejectReason, RequestContext, Tier,
    UnavailableReason,
};
use terrace_wire::{
    AccessEntry, ClientHello, Credit, Descriptor, Endpoint, ErrorCode, ErrorFrame, EventKind,
    EventRecord, Facts, Features, Flags, FrameHead, FrameLimits, GetEntry, Goodbye, GoodbyeReason,
    KeyEntry, KeyStatus, LeaseId, LeaseRecord, ListRequest, ListedBlock, Matched, NamespaceNumber,
    NodeTerms, OpenNamespace, Options, Partial, Pong, PullEntry, PutEntry, PutPart, RailsTerms,
    Reach, Rejection, Removed, Reply, ReplyHead, Request, RequestHead, Security, StreamEnd,
    Transport, ValueRecord, Verb, WireError, rails, reply, request,
};

/// The longest frame of these tests: 8 entries with their keys.
const ROOM: usize = 8192;

fn encode(encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>) -> (FrameHead, Vec<u8>) {
    let mut out = vec![0xee; ROOM];
    let len = encode(&mut out).unwrap();
    out.truncate(len);
    let Ok(Partial::Whole(head)) = FrameHead::parse(&out, &FrameLimits::default()) else {
        panic!("no head");
    };
    assert_eq!(len, 32 + head.body_len as usize);
    let body = head.body(&out[32..]).unwrap().to_vec();
    (head, body)
}

/// Encodes a request, and says what is decoded.
macro_rules! asked {
    ($encode:expr, $pattern:pat => $check:expr) => {
        let (head, body) = encode($encode);
        match Request::decode(&head, &body).unwrap() {
            $pattern => $check,
            other => panic!("{other:?}"),
        }
    };
}

/// Encodes a reply, and says what is decoded.
macro_rules! answered {
    ($encode:expr, $pattern:pat => $check:expr) => {
        let (head, body) = encode($encode);
        match Reply::decode(&head, &body).unwrap() {
            $pattern => $check,
            other => panic!("{other:?}"),
        }
    };
}

const LEN_MAX: u32 = 128 << 20;

fn hint() -> impl Strategy<Value = Hint> {
    let kind = prop_oneof![
        Just(BlockKind::Unknown),
        Just(BlockKind::Full),
        Just(BlockKind::Tail)
    ];
    (any::<Option<u64>>(), any::<u32>(), kind).prop_map(|(parent, depth, kind)| Hint {
        parent: parent.map(KeyHash),
        depth,
        kind,
    })
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..=512)
}

fn status() -> impl Strategy<Value = KeyStatus> {
    prop_oneof![
        any::<bool>().prop_map(|durable| KeyStatus::Stored { durable }),
        any::<bool>().prop_map(|durable| KeyStatus::AlreadyExists { durable }),
        any::<u32>().prop_map(|limit| KeyStatus::Rejected(Rejection::TooLarge { limit })),
        Just(KeyStatus::Rejected(Rejection::NotAdmitted)),
        Just(KeyStatus::Busy),
        Just(KeyStatus::Hit(Tier::Dram)),
        Just(KeyStatus::Miss),
        Just(KeyStatus::Unavailable(UnavailableReason::PinLimit)),
        any::<u32>().prop_map(|shard| KeyStatus::WrongShard { shard }),
        Just(KeyStatus::TimedOut),
    ]
}

fn head() -> impl Strategy<Value = RequestHead> {
    let context = (any::<u64>(), any::<u32>(), any::<u8>());
    (any::<u16>(), any::<u32>(), context, any::<u32>()).prop_map(
        |(namespace, deadline_ms, (clock_ms, tenant, priority), argument)| RequestHead {
            namespace: NamespaceNumber(namespace),
            deadline_ms,
            context: RequestContext {
                clock_ms,
                tenant,
                priority,
            },
            options: Options::NONE,
            argument,
        },
    )
}

fn reply_head() -> impl Strategy<Value = ReplyHead> {
    (0..=8192_u32, any::<u64>()).prop_map(|(first, map_epoch)| ReplyHead { first, map_epoch })
}

fn lease() -> impl Strategy<Value = LeaseRecord> {
    (status(), any::<u64>(), 0..=LEN_MAX, any::<u32>()).prop_map(
        |(status, id, block_len, duration_ms)| LeaseRecord {
            status,
            id: LeaseId(id),
            block_len,
            duration_ms,
        },
    )
}

/// The values, and the part of them that a hit has.
fn value() -> impl Strategy<Value = ValueRecord> {
    let len = (1..=LEN_MAX).prop_flat_map(|len| (Just(len), 0..=len));
    (len, any::<u64>(), any::<bool>()).prop_map(|((block_len, len), checksum, is_hit)| {
        let status = KeyStatus::Hit(Tier::Nvme);
        ValueRecord {
            status: if is_hit { status } else { KeyStatus::Busy },
            block_len: if is_hit { block_len } else { 0 },
            len: if is_hit { len } else { 0 },
            checksum: Checksum(checksum),
        }
    })
}

proptest! {
    #[test]
    fn keyed_requests_are_decoded_as_encoded(
        head in head(),
        keys in vec((key(), hint()), 0..8),
        id in any::<u64>(),
    ) {
        let entries: Vec<KeyEntry<'_>> =
            keys.iter().map(|(key, hint)| KeyEntry { key, hint: *hint }).collect();
        for verb in [
            Verb::Exists, Verb::MatchPrefix, Verb::Prefetch, Verb::Touch, Verb::Stat, Verb::Remove,
            Verb::Pin, Verb::Unpin, Verb::Lease, Verb::Locate,
        ] {
            let (frame, body) = encode(|out| {
                request::encode(verb, id, &head, entries.iter().copied(), out)
            });
            prop_assert_eq!((frame.verb(), frame.request_id), (Ok(verb), id));
            let decoded = Request::decode(&frame, &body).unwrap();
            let (Request::Exists(found, keys)
            | Request::MatchPrefix(found, keys)
            | Request::Prefetch(found, keys)
            | Request::Touch(found, keys)
            | Request::Stat(found, keys)
            | Request::Remove(found, keys)
            | Request::Pin(found, keys)
            | Request::Unpin(found, keys)
            | Request::Lease(found, keys)
            | Request::Locate(found, keys)) = decoded else {
                panic!("{decoded:?}");
            };
            prop_assert_eq!(found, head);
            prop_assert_eq!(decoded.entry_count(), entries.len());
            prop_assert_eq!(keys.iter().len(), entries.len());
            prop_assert!(keys.iter().eq(entries.iter().copied()));
        }
    }

    #[test]
    fn gets_are_decoded_as_encoded(
        head in head(),
        keys in vec((key(), hint(), any::<u32>(), any::<u32>()), 0..8),
    ) {
        let entries: Vec<GetEntry<'_>> = keys
            .iter()
            .map(|(key, hint, offset, len)| GetEntry { key, hint: *hint, offset: *offset, len: *len })
            .collect();
        let head = RequestHead { options: Options::BYPASS, ..head };
        asked!(
            |out| request::encode(Verb::Get, 7, &head, entries.iter().copied(), out),
            Request::Get(found, records) => {
                prop_assert_eq!(found, head);
                prop_assert!(records.iter().eq(entries.iter().copied()));
            }
        );
    }

    #[test]
    fn puts_are_decoded_as_encoded(
        head in head(),
        keys in vec((key(), hint(), 1..=LEN_MAX, any::<u64>()), 1..8),
    ) {
        let entries: Vec<PutEntry<'_>> = keys
            .iter()
            .map(|(key, hint, len, checksum)| PutEntry {
                key, hint: *hint, len: *len, checksum: Checksum(*checksum),
            })
            .collect();
        let head = RequestHead { options: Options::DURABLE, ..head };
        let sum: u64 = entries.iter().map(|entry| u64::from(entry.len)).sum();
        for verb in [Verb::Put, Verb::Upsert] {
            let (frame, body) =
                encode(|out| request::encode(verb, 7, &head, entries.iter().copied(), out));
            prop_assert_eq!(u64::from(frame.values_len), sum);
            let decoded = Request::decode(&frame, &body).unwrap();
            let (Request::Put(found, records) | Request::Upsert(found, records)) = decoded else {
                panic!("{decoded:?}");
            };
            prop_assert_eq!(found, head);
            prop_assert_eq!(records.values_len(), sum);
            prop_assert!(records.iter().eq(entries.iter().copied()));
        }
        let pulls: Vec<PullEntry<'_>> = entries
            .iter()
            .map(|put| PullEntry {
                put: *put, slot: put.len, epoch: put.checksum.0, offset: put.checksum.0 >> 1,
            })
            .collect();
        asked!(
            |out| request::encode(Verb::Pull, 7, &head, pulls.iter().copied(), out),
            Request::Pull(found, records) => {
                prop_assert_eq!((found, records.values_len()), (head, 0));
                prop_assert!(records.iter().eq(pulls.iter().copied()));
            }
        );
        asked!(
            |out| request::encode(Verb::PutBegin, 7, &head, entries.first().copied(), out),
            Request::PutBegin(found, entry) => prop_assert_eq!((found, entry), (head, entries[0]))
        );
    }

    #[test]
    fn other_requests_are_decoded_as_encoded(
        head in head(),
        accesses in vec((any::<u64>(), hint(), 0..=LEN_MAX), 0..8),
        ids in vec(any::<u64>().prop_map(LeaseId), 0..8),
        prefix in vec(any::<u8>(), 0..=512),
        (word, half) in (any::<u64>(), any::<u32>()),
    ) {
        let accesses: Vec<AccessEntry> = accesses
            .iter()
            .map(|(id, hint, len)| AccessEntry { id: KeyHash(*id), hint: *hint, len: *len })
            .collect();
        asked!(
            |out| request::encode(Verb::Announce, 7, &head, accesses.iter().copied(), out),
            Request::Announce(found, records) => {
                prop_assert_eq!(found, head);
                prop_assert!(records.iter().eq(accesses.iter().copied()));
            }
        );
        asked!(
            |out| request::encode(Verb::Renew, 7, &head, ids.iter().copied(), out),
            Request::Renew(found, records) => {
                prop_assert_eq!(found, head);
                prop_assert!(records.iter().eq(ids.iter().copied()));
            }
        );
        asked!(
            |out| request::encode(Verb::Release, 7, &head, ids.iter().copied(), out),
            Request::Release(_, records) => prop_assert!(records.iter().eq(ids.iter().copied()))
        );
        let list = ListRequest { cursor: word, prefix: &prefix };
        asked!(
            |out| request::encode_list(7, &head, &list, out),
            Request::List(found, read) => prop_assert_eq!((found, read), (head, list))
        );
        asked!(
            |out| request::encode_events(7, &head, half, out),
            Request::Events(found, kinds) => prop_assert_eq!((found, kinds), (head, half))
        );
        asked!(
            |out| request::encode_remove_namespace(7, &head, out),
            Request::RemoveNamespace(found) => prop_assert_eq!(found, head)
        );
        let part = PutPart { begun: word, offset: half };
        let len = half % (1 << 30);
        asked!(
            |out| part.encode(7, len, out),
            Request::PutPart(found) => prop_assert_eq!(found, part)
        );
        let end = StreamEnd { begun: word, checksum: Checksum(!word) };
        asked!(
            |out| end.encode_commit(7, out),
            Request::PutCommit(found) => prop_assert_eq!(found, end)
        );
        asked!(
            |out| end.encode_abort(7, out),
            Request::PutAbort(found) => prop_assert_eq!(found, end)
        );
    }

    #[test]
    fn control_is_decoded_as_encoded(
        number in 0..4096_u16,
        name in "[^\\p{Cc}]{1,63}",
        text in "[^\\p{Cc}]{0,200}",
        (word, half) in (any::<u64>(), any::<u32>()),
    ) {
        let namespace = OpenNamespace { number: NamespaceNumber(number), name: &name };
        asked!(
            |out| namespace.encode(7, out),
            Request::OpenNamespace(found) => prop_assert_eq!(found, namespace)
        );
        asked!(|out| request::encode_ping(7, out), Request::Ping => ());
        asked!(|out| request::encode_cancel(7, out), Request::Cancel => ());
        for reason in [GoodbyeReason::Done, GoodbyeReason::Draining, GoodbyeReason::Idle] {
            let goodbye = Goodbye { reason, close_ms: half };
            asked!(
                |out| goodbye.encode(out),
                Request::Goodbye(found) => prop_assert_eq!(found, goodbye)
            );
            answered!(
                |out| goodbye.encode(out),
                Reply::Goodbye(found) => prop_assert_eq!(found, goodbye)
            );
        }
        let ticket = [number as u8; 16];
        let places = || [80, number].map(|port| Endpoint {
            shard: None,
            port,
            rail: 0,
            transport: Transport::Tcp,
            host: &name[..name.len().min(255)],
        });
        asked!(
            |out| rails::encode_wanted(7, &ticket, places(), out),
            Request::Rails(found) => {
                prop_assert_eq!(found.ticket, ticket);
                prop_assert!(found.endpoints.iter().eq(places()));
            }
        );
        for reach in [Reach::Arena, Reach::Staged] {
            let terms = RailsTerms { ticket, slot: half, epoch: word, reach, len: !word };
            answered!(
                |out| rails::encode(7, &terms, places(), out),
                Reply::Rails(found) => {
                    prop_assert_eq!(found.terms, terms);
                    prop_assert!(found.endpoints.iter().eq(places()));
                }
            );
        }
        let credit = Credit { bytes: word, requests: half };
        answered!(
            |out| credit.encode(out),
            Reply::Credit(found) => prop_assert_eq!(found, credit)
        );
        let pong = Pong { node_epoch: word, map_epoch: !word };
        answered!(|out| pong.encode(7, out), Reply::Pong(found) => prop_assert_eq!(found, pong));
        for code in ErrorCode::ALL {
            let error = ErrorFrame { code: *code, verb_number: 9, argument: word, text: &text };
            answered!(
                |out| error.encode(7, out),
                Reply::Error(found) => {
                    prop_assert!(text.starts_with(found.text) && found.text.len() <= 512);
                    prop_assert!(text.len() > 512 || text == found.text);
                    prop_assert_eq!(found, ErrorFrame { text: found.text, ..error });
                }
            );
        }
    }

    #[test]
    fn hellos_are_decoded_as_encoded(
        shard in 0..u32::MAX,
        token in vec(any::<u8>(), 0..=1024),
        name in "[a-z]{0,64}",
        (id, features) in (any::<[u8; 16]>(), any::<u64>()),
        limits in (4096..=1_u32 << 20, 4096..=1_u32 << 30),
        versions in (1..9_u16, 0..9_u16),
    ) {
        let limits = FrameLimits { body_len_max: limits.0, values_len_max: limits.1 };
        let hello = ClientHello {
            version_low: versions.0,
            version_high: versions.0 + versions.1,
            shard: (shard % 2 == 0).then_some(shard),
            features: Features(features),
            client_id: id,
            limits,
            token: &token,
            name: &name,
        };
        let shown = format!("{hello:?}");
        prop_assert!(shown.contains("token_len") && !shown.contains("token: "));
        asked!(|out| hello.encode(out), Request::Hello(found) => prop_assert_eq!(found, hello));
    }

    #[test]
    fn terms_are_decoded_as_encoded(
        shards in 1..=1024_u32,
        hosts in vec("[a-z0-9.:/-]{0,255}", 0..8),
        (words, epochs) in (any::<[u32; 4]>(), any::<[u64; 2]>()),
        limits in (4096..=1_u32 << 20, 4096..=1_u32 << 30),
        (batch_max, credit_requests) in (1..=8192_u32, 1..=65536_u32),
        spare in 0..1_u64 << 40,
    ) {
        let limits = FrameLimits { body_len_max: limits.0, values_len_max: limits.1 };
        let least = 32 + u64::from(limits.body_len_max) + u64::from(limits.values_len_max);
        let terms = NodeTerms {
            version: 1,
            security: Security(words[0] as u16),
            shard: words[1] % shards,
            features: Features(epochs[0]),
            node_id: [words[0] as u8; 16],
            node_epoch: epochs[0],
            map_epoch: epochs[1],
            shards,
            limits,
            batch_max,
            credit_requests,
            credit_bytes: least + spare,
            block_len_max: 1 + words[2] % LEN_MAX,
            lease_max_ms: words[0],
            deadline_max_ms: words[1],
            silence_max_ms: words[3],
        };
        let all = [Transport::Tcp, Transport::Rdma, Transport::Unix];
        let endpoints: Vec<Endpoint<'_>> = hosts.iter().zip(all.into_iter().cycle()).map(
            |(host, transport)| Endpoint {
                shard: (!host.is_empty()).then_some(host.len() as u16),
                port: words[0] as u16,
                rail: words[1] as u8,
                transport,
                host,
            },
        ).collect();
        answered!(
            |out| terms.encode(endpoints.iter().copied(), out),
            Reply::Hello(found) => {
                prop_assert_eq!(found.terms, terms);
                prop_assert!(found.endpoints.iter().eq(endpoints.iter().copied()));
            }
        );
    }

    #[test]
    fn replies_with_records_are_decoded_as_encoded(
        head in reply_head(),
        statuses in vec(status(), 0..8),
        values in vec(value(), 0..8),
        leases in vec(lease(), 0..8),
        bits in any::<u32>(),
    ) {
        answered!(
            |out| reply::encode(Verb::Put, 7, Flags::HELD, &head, statuses.iter().copied(), out),
            Reply::Statuses(found, records) => {
                prop_assert_eq!(found, head);
                prop_assert!(records.iter().eq(statuses.iter().copied()));
            }
        );
        answered!(
            |out| reply::encode(Verb::Get, 7, Flags::MORE, &head, values.iter().copied(), out),
            Reply::Values(found, records) => {
                prop_assert_eq!(found, head);
                prop_assert!(records.iter().eq(values.iter().copied()));
            }
        );
        let facts: Vec<Facts> = values.iter().map(|value| Facts {
            status: value.status, block_len: value.block_len, bits, checksum: value.checksum,
        }).collect();
        answered!(
            |out| reply::encode(Verb::Stat, 7, Flags::NONE, &head, facts.iter().copied(), out),
            Reply::Facts(_, records) => prop_assert!(records.iter().eq(facts.iter().copied()))
        );
        answered!(
            |out| reply::encode(Verb::Lease, 7, Flags::NONE, &head, leases.iter().copied(), out),
            Reply::Leases(_, records) => prop_assert!(records.iter().eq(leases.iter().copied()))
        );
        let descriptors: Vec<Descriptor> = leases.iter().map(|lease| Descriptor {
            lease: *lease,
            checksum: Checksum(lease.id.0),
            address: !lease.id.0,
            rkey: bits,
            generation: !bits,
            inline_len: if matches!(lease.status, KeyStatus::Hit(_)) && lease.block_len < 4096 {
                lease.block_len
            } else {
                0
            },
        }).collect();
        answered!(
            |out| reply::encode(
                Verb::Locate, 7, Flags::NONE, &head, descriptors.iter().copied(), out
            ),
            Reply::Descriptors(_, records) => {
                prop_assert!(records.iter().eq(descriptors.iter().copied()));
            }
        );
    }

    #[test]
    fn other_replies_are_decoded_as_encoded(
        head in reply_head(),
        keys in vec((key(), 0..=LEN_MAX, 0..6_usize, any::<u64>()), 0..8),
        status in status(),
        (word, count) in (any::<u64>(), 0..=8192_u32),
    ) {
        let blocks: Vec<ListedBlock<'_>> = keys.iter().map(|(key, len, kind, _)| ListedBlock {
            key,
            tier: if kind % 2 == 0 { Tier::Dram } else { Tier::Nvme },
            durable: kind % 3 == 0,
            len: *len,
        }).collect();
        answered!(
            |out| reply::encode_listed(7, Flags::NONE, &head, word, blocks.iter().copied(), out),
            Reply::Listed(found, cursor, records) => {
                prop_assert_eq!((found, cursor), (head, word));
                prop_assert!(records.iter().eq(blocks.iter().copied()));
            }
        );
        let events: Vec<EventRecord<'_>> = keys.iter().map(|(key, len, kind, sequence)| EventRecord {
            sequence: *sequence,
            hash: KeyHash(!sequence),
            namespace: NamespaceNumber(*len as u16),
            kind: EventKind::ALL[*kind],
            key,
        }).collect();
        answered!(
            |out| reply::encode_events(7, Flags::MORE, &head, word, events.iter().copied(), out),
            Reply::Events(found, lost, records) => {
                prop_assert_eq!((found, lost), (head, word));
                prop_assert!(records.iter().eq(events.iter().copied()));
            }
        );
        for end in [None, Some(status)] {
            let matched = Matched { count, end };
            answered!(
                |out| reply::encode_matched(7, Flags::NONE, &head, &matched, out),
                Reply::Matched(found, read) => prop_assert_eq!((found.map_epoch, read), (head.map_epoch, matched))
            );
        }
        let removed = Removed { status, count: word };
        answered!(
            |out| reply::encode_removed(7, Flags::NONE, &removed, out),
            Reply::Removed(found) => prop_assert_eq!(found, removed)
        );
    }
}

/// A status is what the outcome was; each outcome has one.
#[test]
fn outcomes_become_statuses_and_come_back() {
    let rejections = [
        RejectReason::BlockEmpty,
        RejectReason::BlockTooLarge { len: 9, limit: 8 },
        RejectReason::NotAdmitted,
        RejectReason::NotDurable,
        RejectReason::ChecksumMismatch,
        RejectReason::ForeignNamespace,
        RejectReason::ShardFenced,
        RejectReason::Closing,
    ];
    let stored = [false, true].into_iter().flat_map(|durable| {
        [
            PutOutcome::Stored { durable },
            PutOutcome::AlreadyExists { durable },
        ]
    });
    let puts = stored
        .chain(rejections.map(PutOutcome::Rejected))
        .chain([PutOutcome::Busy]);
    let lookups = [
        UnavailableReason::ShardFenced,
        UnavailableReason::Closing,
        UnavailableReason::PinLimit,
        UnavailableReason::NoRoom,
        UnavailableReason::TierFailed,
        UnavailableReason::ForeignNamespace,
    ]
    .map(Lookup::Unavailable);
    let hits = [Tier::Dram, Tier::Nvme].map(|tier| Lookup::Hit { tier, value: () });
    let lookups = lookups.into_iter().chain(hits).chain([Lookup::Miss]);
    let there_and_back = |status: KeyStatus| {
        let head = ReplyHead::default();
        let (head, body) =
            encode(|out| reply::encode(Verb::Exists, 1, Flags::NONE, &head, [status], out));
        match Reply::decode(&head, &body).unwrap() {
            Reply::Statuses(_, records) => records.iter().next().unwrap(),
            other => panic!("{other:?}"),
        }
    };
    for outcome in puts {
        let status = there_and_back(outcome.into());
        assert_eq!(status.put_outcome(9), Some(outcome));
        assert_eq!(status.lookup(), None);
    }
    for lookup in lookups {
        let status = there_and_back(KeyStatus::of_lookup(&lookup));
        assert_eq!(status.lookup(), Some(lookup));
        assert_eq!(status.put_outcome(9), None);
    }
}
