//! What the small node answers: its blocks, and the verbs about them.

use std::sync::atomic::Ordering::SeqCst;

use terrace_types::{Checksum, KeyHash, PutOutcome, Tier};
use terrace_wire::{
    EventKind, EventRecord, Facts, Flags, FrameHead, GetEntry, KeyEntry, KeyStatus, LeaseId,
    LeaseRecord, ListRequest, ListedBlock, Matched, NamespaceNumber, Record, Records, Rejection,
    Removed, ReplyHead, Request, ValueRecord, Verb, part_checksum, reply,
};

use crate::node::{Session, made, take};

impl Session<'_> {
    pub(crate) fn name(&self) -> String {
        // Tests use one namespace to a connection, unless they look at two.
        self.names.values().next().cloned().unwrap_or_default()
    }

    fn head(&self) -> ReplyHead {
        ReplyHead {
            first: 0,
            map_epoch: self.node.map_epoch.load(SeqCst),
        }
    }

    pub(crate) fn records<'r, R: Record<'r>>(
        &self,
        head: &FrameHead,
        records: impl IntoIterator<Item = R>,
    ) -> Vec<u8> {
        let verb = head.verb().unwrap();
        let records: Vec<R> = records.into_iter().collect();
        made(|out| {
            let records = records.iter().copied();
            reply::encode(
                verb,
                head.request_id,
                Flags::NONE,
                &self.head(),
                records,
                out,
            )
        })
    }

    fn wrong_shard(&self, key: &[u8]) -> Option<KeyStatus> {
        let hash = KeyHash::of_named(&self.name(), key);
        let shard = hash.shard(self.node.shards.load(SeqCst));
        let is_wrong = shard != self.shard || self.node.switches.wrong_shard.load(SeqCst);
        is_wrong.then_some(KeyStatus::WrongShard { shard })
    }

    pub(crate) fn look(&self, key: &[u8]) -> KeyStatus {
        if let Some(status) = self.wrong_shard(key) {
            return status;
        }
        let store = self.node.store.lock().unwrap();
        match store.contains_key(&(self.name(), key.to_vec())) {
            true => KeyStatus::Hit(Tier::Dram),
            false => KeyStatus::Miss,
        }
    }

    pub(crate) fn stored(&self, key: &[u8]) -> Vec<u8> {
        let store = self.node.store.lock().unwrap();
        store[&(self.name(), key.to_vec())].clone()
    }

    pub(crate) fn put(
        &self,
        key: &[u8],
        value: &[u8],
        checksum: Checksum,
        is_upsert: bool,
    ) -> KeyStatus {
        if let Some(status) = self.wrong_shard(key) {
            return status;
        }
        match self.node.switches.put_status.load(SeqCst) {
            1 => return KeyStatus::Busy,
            2 => return KeyStatus::Rejected(Rejection::NotAdmitted),
            _ => {}
        }
        if Checksum::of_named(&self.name(), key, value) != checksum {
            return KeyStatus::Rejected(Rejection::Checksum);
        }
        let mut store = self.node.store.lock().unwrap();
        let name = (self.name(), key.to_vec());
        if !is_upsert && store.contains_key(&name) {
            return PutOutcome::AlreadyExists { durable: false }.into();
        }
        store.insert(name, value.to_vec());
        PutOutcome::Stored { durable: false }.into()
    }

    pub(crate) fn values(&self, head: &FrameHead, entries: &[GetEntry<'_>]) -> Vec<Vec<u8>> {
        let is_split = self.node.switches.split.load(SeqCst);
        let groups: Vec<_> = match is_split {
            true => entries.chunks(1).collect(),
            false => vec![entries],
        };
        let mut frames = Vec::new();
        let mut first = 0;
        for (place, group) in groups.iter().enumerate() {
            let mut bytes = Vec::new();
            let records: Vec<_> = group
                .iter()
                .map(|entry| self.value(entry, &mut bytes))
                .collect();
            let flags = match place + 1 == groups.len() {
                true => Flags::NONE,
                false => Flags::MORE,
            };
            let reply_head = ReplyHead {
                first,
                ..self.head()
            };
            first += group.len() as u32;
            let mut frame = made(|out| {
                let records = records.iter().copied();
                reply::encode(Verb::Get, head.request_id, flags, &reply_head, records, out)
            });
            if !bytes.is_empty() && take(&self.node.switches.corrupt) {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            frame.extend_from_slice(&bytes);
            frames.push(frame);
        }
        frames
    }

    fn value(&self, entry: &GetEntry<'_>, bytes: &mut Vec<u8>) -> ValueRecord {
        let status = self.look(entry.key);
        let mut record = ValueRecord {
            status,
            block_len: 0,
            len: 0,
            checksum: Checksum(0),
        };
        if let KeyStatus::Hit(_) = status {
            let store = self.node.store.lock().unwrap();
            let value = &store[&(self.name(), entry.key.to_vec())];
            let part = entry.part(value.len() as u32, u32::MAX);
            let sent = &value[part.start as usize..part.end as usize];
            record.block_len = value.len() as u32;
            record.len = sent.len() as u32;
            record.checksum = if sent.len() == value.len() {
                Checksum::of_named(&self.name(), entry.key, value)
            } else {
                let hash = KeyHash::of_named(&self.name(), entry.key);
                part_checksum(hash, record.block_len, part.start, sent)
            };
            bytes.extend_from_slice(sent);
        }
        record
    }

    pub(crate) fn about_keys(&mut self, head: &FrameHead, request: &Request<'_>) -> Vec<u8> {
        let id = head.request_id;
        match request {
            Request::Stat(_, keys) => {
                let facts = keys.iter().map(|entry| self.facts(entry.key));
                self.records(head, facts)
            }
            Request::MatchPrefix(_, keys) => self.match_prefix(id, keys),
            Request::RemoveNamespace(_) => self.remove_all(id),
            Request::List(list_head, list) => self.list(id, list_head.argument, list),
            Request::Announce(..) => self.records::<KeyStatus>(head, []),
            Request::Lease(list_head, keys) => {
                let leases = keys.iter().map(|entry| LeaseRecord {
                    status: self.look(entry.key),
                    id: LeaseId(u64::from(self.shard) + 1),
                    block_len: 1,
                    duration_ms: list_head.argument,
                });
                self.records(head, leases)
            }
            Request::Renew(list_head, ids) => {
                let leases = ids.iter().map(|id| LeaseRecord {
                    status: KeyStatus::Hit(Tier::Dram),
                    id,
                    block_len: 1,
                    duration_ms: list_head.argument,
                });
                self.records(head, leases)
            }
            Request::Locate(told, keys) => self.locate(head, told, keys),
            Request::Release(_, ids) => {
                let statuses = ids.iter().map(|id| self.release(id));
                self.records(head, statuses)
            }
            Request::Remove(_, keys) => {
                let statuses = keys.iter().map(|entry| {
                    let status = self.look(entry.key);
                    if let KeyStatus::Hit(_) = status {
                        let mut store = self.node.store.lock().unwrap();
                        store.remove(&(self.name(), entry.key.to_vec()));
                    }
                    status
                });
                self.records(head, statuses)
            }
            Request::Pin(_, keys) => {
                self.pins += keys.len();
                let statuses = keys.iter().map(|entry| self.look(entry.key));
                self.records(head, statuses)
            }
            Request::Unpin(_, keys) => {
                let mut statuses = Vec::new();
                for _ in keys.iter() {
                    statuses.push(match self.pins {
                        0 => KeyStatus::Miss,
                        _ => KeyStatus::Hit(Tier::Dram),
                    });
                    self.pins = self.pins.saturating_sub(1);
                }
                self.records(head, statuses)
            }
            Request::Exists(_, keys) | Request::Touch(_, keys) | Request::Prefetch(_, keys) => {
                let statuses = keys.iter().map(|entry| self.look(entry.key));
                self.records(head, statuses)
            }
            other => panic!("{other:?}"),
        }
    }

    fn facts(&self, key: &[u8]) -> Facts {
        let status = self.look(key);
        let store = self.node.store.lock().unwrap();
        let value = store.get(&(self.name(), key.to_vec()));
        Facts {
            status,
            block_len: value.map_or(0, |value| value.len() as u32),
            bits: Facts::IN_DRAM,
            checksum: Checksum(7),
        }
    }

    /// Tells of all that is stored, as if it happened now.
    pub(crate) fn events(&self, id: u64) -> Vec<u8> {
        let store = self.node.store.lock().unwrap();
        let number = *self.names.keys().next().unwrap();
        let events: Vec<_> = (1..)
            .zip(store.keys())
            .map(|(sequence, (name, key))| EventRecord {
                sequence,
                hash: KeyHash::of_named(name, key),
                namespace: NamespaceNumber(number),
                kind: EventKind::Stored,
                key,
            })
            .collect();
        made(|out| {
            let events = events.iter().copied();
            reply::encode_events(id, Flags::MORE, &self.head(), 3, events, out)
        })
    }

    fn match_prefix(&self, id: u64, keys: &Records<'_, KeyEntry<'_>>) -> Vec<u8> {
        let statuses: Vec<_> = keys.iter().map(|entry| self.look(entry.key)).collect();
        let is_hit = |status: &&KeyStatus| matches!(status, KeyStatus::Hit(_));
        let count = statuses.iter().take_while(is_hit).count();
        let end = statuses.get(count).copied();
        let count = count as u32;
        let matched = Matched { count, end };
        made(|out| reply::encode_matched(id, Flags::NONE, &self.head(), &matched, out))
    }

    fn remove_all(&self, id: u64) -> Vec<u8> {
        let mut store = self.node.store.lock().unwrap();
        let shards = self.node.shards.load(SeqCst);
        let (before, name) = (store.len(), self.name());
        store.retain(|(namespace, key), _| {
            let shard = KeyHash::of_named(namespace, key).shard(shards);
            *namespace != name || shard != self.shard
        });
        let count = (before - store.len()) as u64;
        let status = KeyStatus::Hit(Tier::Dram);
        let removed = Removed { status, count };
        made(|out| reply::encode_removed(id, Flags::NONE, &removed, out))
    }

    fn list(&self, id: u64, most: u32, list: &ListRequest<'_>) -> Vec<u8> {
        let store = self.node.store.lock().unwrap();
        let shards = self.node.shards.load(SeqCst);
        let mut keys: Vec<_> = store
            .iter()
            .filter(|((name, key), _)| {
                let shard = KeyHash::of_named(name, key).shard(shards);
                *name == self.name() && shard == self.shard && key.starts_with(list.prefix)
            })
            .map(|((_, key), value)| (key.clone(), value.len() as u32))
            .collect();
        keys.sort();
        let start = list.cursor as usize;
        let end = keys.len().min(start + most.max(1) as usize);
        let next = if end < keys.len() { end as u64 } else { 0 };
        let blocks = keys[start..end].iter().map(|(key, len)| ListedBlock {
            key,
            tier: Tier::Dram,
            durable: false,
            len: *len,
        });
        made(|out| reply::encode_listed(id, Flags::NONE, &self.head(), next, blocks.clone(), out))
    }
}
