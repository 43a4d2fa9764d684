//! Two engines, a region of each, and bytes that tell where they belong.

use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::transfer::{
    Access, EngineConfig, LocalPart, Memory, Peer, Region, RemotePart, RemoteRegion,
    TransferEngine, TransportChoice, TransportKind,
};

/// Long enough that only a hang reaches it.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// One engine that opened another, with a region each.
pub(crate) struct Pair {
    // Dropped first: its threads use the engine.
    pub(crate) peer: Peer,
    pub(crate) remote: Arc<RemoteRegion>,
    pub(crate) local: Arc<Region>,
    pub(crate) opener: TransferEngine,
    pub(crate) served: Arc<Region>,
    pub(crate) owner: TransferEngine,
}

pub(crate) fn config(kind: TransportKind) -> EngineConfig {
    EngineConfig {
        transports: TransportChoice::Only(kind),
        ..EngineConfig::default()
    }
}

/// An engine that listens at `rails` ports of this host.
pub(crate) fn owner(rails: usize) -> TransferEngine {
    let listen = vec!["127.0.0.1:0".parse().unwrap(); rails];
    TransferEngine::start(EngineConfig {
        listen,
        ..EngineConfig::default()
    })
    .unwrap()
}

impl Pair {
    /// Over transport `kind`, with `rails` rails, and regions of `len` bytes.
    pub(crate) fn new(kind: TransportKind, rails: usize, len: u64) -> Self {
        let owner = owner(rails);
        let served = owner
            .register(Memory::shared(len).unwrap(), Access::ReadWrite)
            .unwrap();
        let opener = TransferEngine::start(config(kind)).unwrap();
        let local = opener
            .register(Memory::shared(len).unwrap(), Access::Local)
            .unwrap();
        let peer = opener.open(owner.addresses()).unwrap();
        let remote = peer.region(served.id()).unwrap();
        Self {
            peer,
            remote,
            local,
            opener,
            served,
            owner,
        }
    }

    pub(crate) fn local(&self, offset: u64, len: u64) -> LocalPart {
        LocalPart {
            region: Arc::clone(&self.local),
            offset,
            len,
        }
    }

    pub(crate) fn remote(&self, offset: u64, len: u64) -> RemotePart {
        RemotePart {
            region: Arc::clone(&self.remote),
            offset,
            len,
        }
    }
}

/// Bytes in which every eight tell where they are.
pub(crate) fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).map(|at| (at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len as usize);
    bytes
}

/// Writes a pattern over a whole region; the pattern.
pub(crate) fn fill(region: &Region, seed: u64) -> Vec<u8> {
    let bytes = pattern(seed, region.len());
    assert!(region.memory().write_at(0, &bytes));
    bytes
}

pub(crate) fn bytes_of(region: &Region, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    assert!(region.memory().read_at(offset, &mut bytes));
    bytes
}
