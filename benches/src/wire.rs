//! One get on the wire, both ends of it, but for sockets and values.

use std::hint::black_box;

use terrace_types::{Checksum, Hint, Tier};
use terrace_wire::{
    ClientHello, ClientSession, Features, Flags, FrameHead, FrameLimits, GetEntry, KeyStatus,
    NodeTerms, Offer, Partial, Reply, ReplyHead, Request, RequestHead, Security, ServerSession,
    ValueRecord, Verb, WireError, reply, request,
};

use crate::{Measured, now, per_op};

const VALUE_LEN: u32 = 65536;

/// Both ends of a connection, with the hellos exchanged.
fn connection() -> Option<(ClientSession, ServerSession)> {
    let (features, limits) = (Features::ALL, FrameLimits::default());
    let hello = ClientHello {
        version_low: 1,
        version_high: 1,
        shard: None,
        features,
        client_id: [1; 16],
        limits,
        token: b"",
        name: "bench",
    };
    let mut server = ServerSession::new(NodeTerms {
        version: 1,
        security: Security::default(),
        shard: 0,
        features,
        node_id: [2; 16],
        node_epoch: 1,
        map_epoch: 1,
        shards: 1,
        limits,
        batch_max: 8192,
        credit_requests: 64,
        credit_bytes: 8 << 30,
        block_len_max: 128 << 20,
        lease_max_ms: 1000,
        deadline_max_ms: 1000,
        silence_max_ms: 0,
    });
    let mut client = ClientSession::new(Offer { features, limits });
    let terms = server.on_hello(&hello).ok()?;
    client.on_hello(&terms).ok()?;
    Some((client, server))
}

fn parse(frame: &[u8]) -> Result<(FrameHead, &[u8]), WireError> {
    match FrameHead::parse(frame, &FrameLimits::default())? {
        Partial::Whole(head) => Ok((head, head.body(&frame[32..])?)),
        Partial::Needs(needed) => Err(WireError::NoRoom {
            needed,
            given: frame.len(),
        }),
    }
}

/// Gets of `keys` keys of 32 bytes, `count` times: request encoded, decoded, accounted for and
/// walked; the same with its reply. `None` when an end refuses, which none does.
#[must_use]
pub fn gets(keys: usize, count: u64) -> Option<Measured> {
    let (mut client, mut server) = connection()?;
    let mut frame = vec![0; 1 << 20];
    let names: Vec<[u8; 32]> = (0..keys).map(|at| [at as u8; 32]).collect();
    let mut hash = 0_u64;
    let begun = now();
    for _ in 0..count {
        let id = client.next_id();
        let entries = names
            .iter()
            .map(|name| GetEntry::whole(name, Hint::default()));
        let head = RequestHead::default();
        let len = request::encode(Verb::Get, id, &head, entries, &mut frame).ok()?;
        client.begin(Verb::Get, len - 32, 0, keys).ok()?;
        let (head, body) = parse(black_box(&frame[..len])).ok()?;
        server.on_head(&head).ok()?;
        let asked = Request::decode(&head, body).ok()?;
        server.on_request(&head, &asked).ok()?;
        let Request::Get(_, entries) = asked else {
            return None;
        };
        for entry in entries {
            hash = hash.wrapping_add(u64::from(entry.key[0]));
        }
        let record = ValueRecord {
            status: KeyStatus::Hit(Tier::Dram),
            block_len: VALUE_LEN,
            len: VALUE_LEN,
            checksum: Checksum(id),
        };
        server.answer(id, 0, keys).ok()?;
        server.end(id, false, false).ok()?;
        let (none, head) = (Flags::NONE, ReplyHead::default());
        let records = std::iter::repeat_n(record, keys);
        let len = reply::encode(Verb::Get, id, none, &head, records, &mut frame).ok()?;
        let (head, body) = parse(black_box(&frame[..len])).ok()?;
        client.on_head(&head).ok()?;
        let answered = Reply::decode(&head, body).ok()?;
        client.on_reply(&head, &answered).ok()?;
        let Reply::Values(_, records) = answered else {
            return None;
        };
        for record in records {
            hash = hash.wrapping_add(record.checksum.0);
        }
    }
    let ns = per_op(begun, count);
    Some(Measured { ns, hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gets_of_any_count_of_keys_are_answered() {
        for keys in [1, 16, 1024] {
            let (one, other) = (gets(keys, 3).unwrap(), gets(keys, 3).unwrap());
            assert_eq!(one.hash, other.hash);
            assert!(one.hash > 0);
        }
    }
}
