//! The small node's transfer engine: its regions, the tickets it gave out, and what it answers about
//! them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace_fabric::transfer::{
    Access, Admission, BatchOptions, EngineConfig, LocalPart, Memory, Region, RegionId, RemotePart,
    Request as Transfer, Status, Ticket, TransferEngine,
};
use terrace_types::{Checksum, Tier, UnavailableReason};
use terrace_wire::{
    Descriptor, Endpoint, FrameHead, KeyEntry, KeyStatus, LeaseId, LeaseRecord, PullEntry,
    RailsTerms, RailsWanted, Reach, Records, RequestHead, Transport, rails,
};

use crate::node::{Node, Session, made, take};

const HANG: Duration = Duration::from_secs(60);

/// Length of each shard's region; half of it is for what is pulled.
const REGION_LEN: u64 = 512 << 20;

/// Blocks up to this length come with a locate's reply.
pub(crate) const INLINE_LEN_MAX: usize = 4096;

/// What a client showed with its wish for rails.
struct Guest {
    ticket: Ticket,
    /// The client's engine: what to show there, and where it listens.
    theirs: Option<(Ticket, Vec<std::net::SocketAddr>)>,
}

pub(crate) struct NodeEngine {
    engine: TransferEngine,
    regions: Vec<Arc<Region>>,
    next: AtomicU64,
    /// By client id.
    guests: Mutex<HashMap<[u8; 16], Guest>>,
    pub(crate) leases: Mutex<BTreeMap<u64, u32>>,
    leases_given: AtomicU64,
    /// Gives no rails.
    pub(crate) refuses: AtomicBool,
    /// Has no pulled puts.
    pub(crate) pulls_nothing: AtomicBool,
    /// Cannot read values that it is to pull.
    pub(crate) reads_nothing: AtomicBool,
    /// So many blocks lie where no region is.
    pub(crate) far: AtomicU32,
    /// A bit of so many blocks is wrong.
    pub(crate) corrupt: AtomicU32,
    /// How long leases hold at most, in ms.
    pub(crate) lease_ms: AtomicU32,
    /// How many there are at most.
    pub(crate) leases_max: AtomicUsize,
    pub(crate) rails_asked: AtomicUsize,
    pub(crate) pulls: AtomicUsize,
}

impl NodeEngine {
    fn start(shards: u32) -> Self {
        let engine = TransferEngine::start(EngineConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            admission: Admission::Invited,
            ..EngineConfig::default()
        })
        .unwrap();
        let region = |_| {
            let memory = Memory::host(REGION_LEN).unwrap();
            engine.register(memory, Access::Read).unwrap()
        };
        Self {
            regions: (0..shards).map(region).collect(),
            engine,
            next: AtomicU64::new(0),
            guests: Mutex::default(),
            leases: Mutex::default(),
            leases_given: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            pulls_nothing: AtomicBool::new(false),
            reads_nothing: AtomicBool::new(false),
            far: AtomicU32::new(0),
            corrupt: AtomicU32::new(0),
            lease_ms: AtomicU32::new(u32::MAX),
            leases_max: AtomicUsize::new(usize::MAX),
            rails_asked: AtomicUsize::new(0),
            pulls: AtomicUsize::new(0),
        }
    }

    /// Takes the tickets of all clients back, as when a lease ended without a release.
    pub(crate) fn expel_all(&self) {
        for (_, guest) in self.guests.lock().unwrap().drain() {
            self.engine.expel(&guest.ticket, HANG).unwrap();
        }
    }

    fn ticket_of(&self, client: [u8; 16]) -> Option<Ticket> {
        let guests = self.guests.lock().unwrap();
        guests.get(&client).map(|guest| guest.ticket)
    }

    fn rails(&self, client: [u8; 16], wanted: &RailsWanted<'_>) -> Ticket {
        self.rails_asked.fetch_add(1, SeqCst);
        let addresses = wanted.endpoints.iter().map(|endpoint| {
            let address = endpoint.host.parse().unwrap();
            std::net::SocketAddr::new(address, endpoint.port)
        });
        let addresses: Vec<_> = addresses.collect();
        let theirs = Ticket::from_bytes(wanted.ticket);
        let theirs = (!addresses.is_empty()).then_some((theirs, addresses));
        let mut guests = self.guests.lock().unwrap();
        let guest = guests.entry(client).or_insert_with(|| Guest {
            ticket: self.engine.invite().unwrap(),
            theirs: None,
        });
        guest.theirs = theirs;
        guest.ticket
    }

    /// Reads a value out of a client's memory. `None`: it cannot be.
    fn pull(&self, client: [u8; 16], shard: usize, entry: &PullEntry<'_>) -> Option<Vec<u8>> {
        let (ticket, addresses) = self.guests.lock().unwrap().get(&client)?.theirs.clone()?;
        let peer = self.engine.open_as(&addresses, &ticket).ok()?;
        let len = u64::from(entry.put.len);
        let id = RegionId {
            slot: entry.slot,
            epoch: entry.epoch,
        };
        let local = LocalPart {
            region: Arc::clone(&self.regions[shard]),
            offset: REGION_LEN / 2,
            len,
        };
        let remote = RemotePart {
            region: peer.region(id)?,
            offset: entry.offset,
            len,
        };
        let read = [Transfer::read(local, remote)];
        let mut reading = peer.submit(&read, BatchOptions::default()).ok()?;
        if reading.wait(HANG)? != [Status::Done] {
            return None;
        }
        let mut value = vec![0; len as usize];
        let memory = self.regions[shard].memory();
        memory.read_at(REGION_LEN / 2, &mut value).then_some(value)
    }
}

impl Node {
    /// A node that grants one-sided access.
    pub(crate) fn with_rails(shards: u32) -> Arc<Self> {
        let node = Self::start(shards);
        assert!(node.engine.set(NodeEngine::start(shards)).is_ok());
        node
    }

    pub(crate) fn engine(&self) -> &NodeEngine {
        self.engine.get().unwrap()
    }
}

impl Session<'_> {
    /// `None`: it is refused.
    pub(crate) fn rails(&mut self, head: &FrameHead, wanted: &RailsWanted<'_>) -> Option<Vec<u8>> {
        let node = self.node.engine();
        if node.refuses.load(SeqCst) {
            node.rails_asked.fetch_add(1, SeqCst);
            return None;
        }
        let ticket = node.rails(self.client_id, wanted);
        self.ticket = Some(ticket);
        let region = &node.regions[self.shard as usize];
        let terms = RailsTerms {
            ticket: ticket.bytes(),
            slot: region.id().slot,
            epoch: region.id().epoch,
            reach: Reach::Arena,
            len: REGION_LEN,
        };
        let endpoints = node.engine.addresses().iter().map(|address| Endpoint {
            shard: None,
            port: address.port(),
            rail: 0,
            transport: Transport::Tcp,
            host: "",
        });
        Some(made(|out| {
            rails::encode(head.request_id, &terms, endpoints.clone(), out)
        }))
    }

    /// Whether the rails that this connection asked for were taken back.
    pub(crate) fn has_lost_rails(&self) -> bool {
        let held = self.ticket;
        held.is_some() && held != self.node.engine().ticket_of(self.client_id)
    }

    pub(crate) fn locate(
        &self,
        head: &FrameHead,
        told: &RequestHead,
        keys: &Records<'_, KeyEntry<'_>>,
    ) -> Vec<u8> {
        let mut short = Vec::new();
        let found = keys
            .iter()
            .map(|entry| self.descriptor(entry.key, told.argument, &mut short));
        let found: Vec<_> = found.collect();
        let mut frame = self.records(head, found);
        frame.extend(short);
        frame
    }

    fn descriptor(&self, key: &[u8], span_ms: u32, short: &mut Vec<u8>) -> Descriptor {
        let status = self.look(key);
        let mut descriptor = Descriptor {
            lease: LeaseRecord {
                status,
                id: LeaseId(0),
                block_len: 0,
                duration_ms: 0,
            },
            checksum: Checksum(0),
            address: 0,
            rkey: 0,
            generation: 0,
            inline_len: 0,
        };
        if !matches!(status, KeyStatus::Hit(_)) {
            return descriptor;
        }
        let mut value = self.stored(key);
        descriptor.checksum = Checksum::of_named(&self.name(), key, &value);
        descriptor.lease.block_len = value.len() as u32;
        let engine = self.node.engine.get();
        if engine.is_some_and(|engine| take(&engine.corrupt)) {
            value[0] ^= 1;
        }
        if value.len() <= INLINE_LEN_MAX {
            descriptor.inline_len = value.len() as u32;
            short.extend(value);
            return descriptor;
        }
        let Some(engine) = engine else {
            descriptor.lease.id = LeaseId(7);
            descriptor.lease.duration_ms = span_ms;
            return descriptor;
        };
        if engine.leases.lock().unwrap().len() >= engine.leases_max.load(SeqCst) {
            descriptor.lease.block_len = 0;
            descriptor.lease.status = KeyStatus::Unavailable(UnavailableReason::PinLimit);
            return descriptor;
        }
        descriptor.lease.id = LeaseId(engine.leases_given.fetch_add(1, SeqCst) + 1);
        descriptor.lease.duration_ms = span_ms.min(engine.lease_ms.load(SeqCst));
        engine
            .leases
            .lock()
            .unwrap()
            .insert(descriptor.lease.id.0, self.shard);
        let offset = engine.next.fetch_add(value.len() as u64, SeqCst);
        assert!(offset + (value.len() as u64) < REGION_LEN / 2);
        let memory = engine.regions[self.shard as usize].memory();
        assert!(memory.write_at(offset, &value));
        descriptor.address = match take(&engine.far) {
            true => u64::MAX / 2,
            false => offset,
        };
        descriptor
    }

    pub(crate) fn release(&self, lease: LeaseId) -> KeyStatus {
        let Some(engine) = self.node.engine.get() else {
            return KeyStatus::Hit(Tier::Dram);
        };
        match engine.leases.lock().unwrap().remove(&lease.0) {
            Some(shard) if shard == self.shard => KeyStatus::Hit(Tier::Dram),
            _ => KeyStatus::Miss,
        }
    }

    /// `None`: a value cannot be read.
    pub(crate) fn pull(
        &self,
        head: &FrameHead,
        entries: &Records<'_, PullEntry<'_>>,
    ) -> Option<Vec<u8>> {
        let engine = self.node.engine();
        engine.pulls.fetch_add(1, SeqCst);
        if engine.reads_nothing.load(SeqCst) {
            return None;
        }
        let mut statuses = Vec::new();
        for entry in entries.iter() {
            let value = engine.pull(self.client_id, self.shard as usize, &entry)?;
            let put = &entry.put;
            statuses.push(self.put(put.key, &value, put.checksum, false));
        }
        Some(self.records(head, statuses))
    }
}
