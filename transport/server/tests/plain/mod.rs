//! A client for tests: a plain blocking socket, and the protocol's own state of a connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use terrace_types::{Checksum, Hint, KeyHash};
use terrace_wire::{
    ClientHello, ClientSession, Facts, Features, FrameHead, FrameLimits, GetEntry, KeyEntry,
    KeyStatus, NamespaceNumber, NodeTerms, Offer, OpenNamespace, Options, Partial, PutEntry, Reply,
    RequestHead, ValueRecord, Verb, part_checksum, request,
};

/// A frame from the node.
pub(crate) struct Frame {
    pub(crate) head: FrameHead,
    pub(crate) body: Vec<u8>,
    pub(crate) values: Vec<u8>,
}

impl Frame {
    pub(crate) fn reply(&self) -> Reply<'_> {
        Reply::decode(&self.head, &self.body).unwrap()
    }
}

pub(crate) struct PlainClient {
    pub(crate) socket: TcpStream,
    pub(crate) session: ClientSession,
    pub(crate) terms: NodeTerms,
    namespace: String,
}

pub(crate) fn hello(shard: Option<u32>) -> ClientHello<'static> {
    ClientHello {
        version_low: 1,
        version_high: 1,
        shard,
        features: Features::ALL,
        client_id: [7; 16],
        limits: FrameLimits::default(),
        token: b"",
        name: "test",
    }
}

pub(crate) fn read_frame(socket: &mut TcpStream) -> Option<Frame> {
    let mut bytes = [0; 32];
    socket.read_exact(&mut bytes).ok()?;
    let Partial::Whole(head) = FrameHead::parse(&bytes, &FrameLimits::default()).unwrap() else {
        unreachable!("32 bytes are a head");
    };
    let mut body = vec![0; head.body_len as usize];
    socket.read_exact(&mut body).ok()?;
    head.body(&body).unwrap();
    let mut values = vec![0; head.values_len as usize];
    socket.read_exact(&mut values).ok()?;
    Some(Frame { head, body, values })
}

impl PlainClient {
    /// Connects, says hello for `shard`, and opens `namespace` as number 0.
    pub(crate) fn connect(address: SocketAddr, shard: Option<u32>, namespace: &str) -> Self {
        Self::connect_as(address, &hello(shard), namespace)
    }

    pub(crate) fn connect_as(
        address: SocketAddr,
        hello: &ClientHello<'_>,
        namespace: &str,
    ) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        // A value follows its frame in a write of its own.
        socket.set_nodelay(true).unwrap();
        let mut out = [0; 4096];
        let len = hello.encode(&mut out).unwrap();
        socket.write_all(&out[..len]).unwrap();
        let mut session = ClientSession::new(Offer {
            features: hello.features,
            limits: hello.limits,
        });
        let frame = read_frame(&mut socket).expect("the hello is answered");
        session.on_head(&frame.head).unwrap();
        let Reply::Hello(answer) = frame.reply() else {
            panic!("no hello but {:?}", frame.reply());
        };
        session.on_hello(&answer.terms).unwrap();
        let terms = answer.terms;
        let mut client = Self {
            socket,
            session,
            terms,
            namespace: namespace.to_owned(),
        };
        let open = OpenNamespace {
            number: NamespaceNumber(0),
            name: namespace,
        };
        let id = client.session.next_id();
        let len = open.encode(id, &mut out).unwrap();
        client.begin(Verb::OpenNamespace, &out[..len], 0, 0);
        let frame = client.frame();
        assert!(matches!(frame.reply(), Reply::Statuses(..)));
        client
    }

    /// Notes and sends a request whose frame was encoded.
    pub(crate) fn begin(
        &mut self,
        verb: Verb,
        frame: &[u8],
        values_len: u64,
        entries: usize,
    ) -> u64 {
        let id = self
            .session
            .begin(verb, frame.len() - 32, values_len, entries)
            .unwrap();
        self.socket.write_all(frame).unwrap();
        id
    }

    /// The next frame, checked by the session.
    pub(crate) fn frame(&mut self) -> Frame {
        let frame = read_frame(&mut self.socket).expect("the node answers");
        self.session.on_head(&frame.head).unwrap();
        self.session.on_reply(&frame.head, &frame.reply()).unwrap();
        frame
    }

    pub(crate) fn checksum(&self, key: &[u8], value: &[u8]) -> Checksum {
        Checksum::of_named(&self.namespace, key, value)
    }

    pub(crate) fn begin_put(
        &mut self,
        verb: Verb,
        blocks: &[(&[u8], &[u8])],
        options: Options,
    ) -> u64 {
        let entries: Vec<PutEntry<'_>> = blocks
            .iter()
            .map(|(key, value)| PutEntry {
                key,
                hint: Hint::default(),
                len: value.len() as u32,
                checksum: self.checksum(key, value),
            })
            .collect();
        let mut out = vec![0; 1 << 20];
        let head = RequestHead {
            options,
            ..RequestHead::default()
        };
        let id = self.session.next_id();
        let len = request::encode(verb, id, &head, entries, &mut out).unwrap();
        let values_len = blocks.iter().map(|(_, value)| value.len() as u64).sum();
        self.begin(verb, &out[..len], values_len, blocks.len())
    }

    pub(crate) fn put(&mut self, blocks: &[(&[u8], &[u8])], options: Options) -> Vec<KeyStatus> {
        self.store(Verb::Put, blocks, options)
    }

    pub(crate) fn store(
        &mut self,
        verb: Verb,
        blocks: &[(&[u8], &[u8])],
        options: Options,
    ) -> Vec<KeyStatus> {
        self.begin_put(verb, blocks, options);
        for (_, value) in blocks {
            self.socket.write_all(value).unwrap();
        }
        self.statuses()
    }

    pub(crate) fn statuses(&mut self) -> Vec<KeyStatus> {
        let mut all = Vec::new();
        loop {
            let frame = self.frame();
            let Reply::Statuses(_, records) = frame.reply() else {
                panic!("no statuses but {:?}", frame.reply());
            };
            all.extend(records);
            if !frame.head.flags.has(terrace_wire::Flags::MORE) {
                return all;
            }
        }
    }

    pub(crate) fn begin_keys(&mut self, verb: Verb, keys: &[&[u8]], head: &RequestHead) -> u64 {
        let mut out = vec![0; 1 << 20];
        let entries = keys.iter().map(|key| KeyEntry::plain(key));
        let id = self.session.next_id();
        let len = request::encode(verb, id, head, entries, &mut out).unwrap();
        self.begin(verb, &out[..len], 0, keys.len())
    }

    pub(crate) fn of_keys(&mut self, verb: Verb, keys: &[&[u8]]) -> Vec<KeyStatus> {
        self.begin_keys(verb, keys, &RequestHead::default());
        self.statuses()
    }

    pub(crate) fn of_stat(&mut self, keys: &[&[u8]]) -> Vec<Facts> {
        self.begin_keys(Verb::Stat, keys, &RequestHead::default());
        let frame = self.frame();
        let Reply::Facts(_, records) = frame.reply() else {
            panic!("no facts but {:?}", frame.reply());
        };
        records.iter().collect()
    }

    pub(crate) fn begin_get(&mut self, entries: &[GetEntry<'_>]) -> u64 {
        let mut out = vec![0; 1 << 20];
        let id = self.session.next_id();
        let told = RequestHead::default();
        let len = request::encode(Verb::Get, id, &told, entries.iter().copied(), &mut out).unwrap();
        self.begin(Verb::Get, &out[..len], 0, entries.len())
    }

    /// Gets parts of blocks, and compares each with its checksum.
    pub(crate) fn get_parts(&mut self, entries: &[GetEntry<'_>]) -> Vec<(ValueRecord, Vec<u8>)> {
        self.begin_get(entries);
        self.values(entries)
    }

    pub(crate) fn values(&mut self, entries: &[GetEntry<'_>]) -> Vec<(ValueRecord, Vec<u8>)> {
        let mut all: Vec<(ValueRecord, Vec<u8>)> = Vec::new();
        loop {
            let frame = self.frame();
            let Reply::Values(_, records) = frame.reply() else {
                panic!("no values but {:?}", frame.reply());
            };
            let mut at = 0;
            for record in records {
                let value = frame.values[at..at + record.len as usize].to_vec();
                at += value.len();
                let entry = &entries[all.len()];
                if matches!(record.status, KeyStatus::Hit(_)) {
                    let expected = if record.len == record.block_len {
                        self.checksum(entry.key, &value)
                    } else {
                        let hash = KeyHash::of_named(&self.namespace, entry.key);
                        let start = entry.part(record.block_len, u32::MAX).start;
                        part_checksum(hash, record.block_len, start, &value)
                    };
                    assert_eq!(record.checksum, expected);
                }
                all.push((record, value));
            }
            if !frame.head.flags.has(terrace_wire::Flags::MORE) {
                return all;
            }
        }
    }

    pub(crate) fn get(&mut self, keys: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let entries: Vec<GetEntry<'_>> = keys
            .iter()
            .map(|key| GetEntry::whole(key, Hint::default()))
            .collect();
        let found = self.get_parts(&entries);
        let hit = |(record, value): (ValueRecord, Vec<u8>)| {
            matches!(record.status, KeyStatus::Hit(_)).then_some(value)
        };
        found.into_iter().map(hit).collect()
    }
}

/// Bytes that tell themselves apart.
pub(crate) fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
