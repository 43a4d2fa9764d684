//! Shared memory of one host: leases, what the owner waits for, and when another way is taken.

use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::transfer::{
    Access, BatchOptions, EngineConfig, LocalPart, Memory, MemoryKind, RemotePart, Request, Status,
    TransferEngine, TransferError, TransportKind,
};

use crate::pair::{HANG, Pair, bytes_of, fill};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn leased_bytes_are_read_where_they_are() {
    let pair = Pair::new(TransportKind::SharedMemory, 1, 4 << 20);
    let served = fill(&pair.served, 1);
    let lease = pair
        .peer
        .lease(&pair.remote, 4097, 1 << 20, MINUTE)
        .unwrap()
        .unwrap();
    let mut bytes = vec![0; 1 << 20];
    assert!(lease.copy_to(&mut bytes));
    assert!(bytes == served[4097..4097 + (1 << 20)]);
    assert!(lease.address().is_some());
    assert!(!lease.copy_to(&mut vec![0; (1 << 20) + 1]));
    let id = pair.served.id();
    assert!(pair.owner.is_leased(id, 4097, 1));
    assert!(!pair.owner.is_leased(id, 0, 4097));
    // The owner keeps a leased region.
    let kept = pair.owner.unregister(id, Duration::from_millis(20));
    assert!(
        matches!(kept, Err(TransferError::RegionBusy { .. })),
        "{kept:?}"
    );
    drop(lease);
    pair.owner.unregister(id, HANG).unwrap();
    let gone = pair
        .peer
        .lease(&pair.remote, 0, 8, MINUTE)
        .unwrap()
        .map(drop);
    assert_eq!(gone, Err(Status::StaleRegion));
}

#[test]
fn lease_that_has_ended_gives_nothing() {
    let pair = Pair::new(TransportKind::SharedMemory, 1, 4096);
    let lease = pair
        .peer
        .lease(&pair.remote, 0, 4096, Duration::from_millis(1))
        .unwrap()
        .unwrap();
    while lease.is_live() {
        std::thread::yield_now();
    }
    assert!(!lease.copy_to(&mut [0; 8]));
    assert!(lease.address().is_none());
    let long = pair.peer.lease(&pair.remote, 0, 8, 2 * MINUTE);
    assert!(matches!(
        long.map(drop),
        Err(TransferError::Setting { value: 120_000, .. })
    ));
    let outside = pair
        .peer
        .lease(&pair.remote, 4090, 8, MINUTE)
        .unwrap()
        .map(drop);
    assert_eq!(outside, Err(Status::OutOfBounds));
}

#[test]
fn region_without_shared_memory_goes_over_tcp() {
    let owner = crate::pair::owner(1);
    let plain = owner
        .register(Memory::host(1 << 20).unwrap(), Access::Read)
        .unwrap();
    let bytes = fill(&plain, 3);
    let opener = TransferEngine::start(EngineConfig::default()).unwrap();
    let local = opener
        .register(Memory::host(1 << 20).unwrap(), Access::Local)
        .unwrap();
    let peer = opener.open(owner.addresses()).unwrap();
    assert!(peer.is_shared());
    let region = peer.region(plain.id()).unwrap();
    assert_eq!(region.key(TransportKind::SharedMemory), None);
    let (offset, len) = (0, 1 << 20);
    let request = Request::read(
        LocalPart {
            region: Arc::clone(&local),
            offset,
            len,
        },
        RemotePart {
            region,
            offset,
            len,
        },
    );
    let mut transfer = peer.submit(&[request], BatchOptions::default()).unwrap();
    assert_eq!(transfer.wait(HANG), Some(vec![Status::Done]));
    assert!(bytes_of(&local, 0, 1 << 20) == bytes);
    let moved: u64 = peer.rails().iter().map(|rail| rail.figures.moved_len).sum();
    assert_eq!(moved, 1 << 20);
}

#[test]
fn owner_that_has_left_is_lost() {
    let mut pair = Pair::new(TransportKind::SharedMemory, 1, 4096);
    let request = Request::read(pair.local(0, 4096), pair.remote(0, 4096));
    let submit = |pair: &Pair| {
        let requests = std::slice::from_ref(&request);
        let mut transfer = pair.peer.submit(requests, BatchOptions::default()).unwrap();
        transfer.wait(HANG).unwrap()
    };
    assert_eq!(submit(&pair), [Status::Done]);
    drop(std::mem::replace(&mut pair.owner, crate::pair::owner(1)));
    assert_eq!(submit(&pair), [Status::PeerLost]);
}

#[test]
fn shared_transfer_can_be_awaited_and_verified() {
    let pair = Pair::new(TransportKind::SharedMemory, 1, 8 << 20);
    let served = fill(&pair.served, 5);
    let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&served, 1);
    let read = Request::read(pair.local(0, 8 << 20), pair.remote(0, 8 << 20));
    let requests = [read.clone().expecting(1, sum), read.expecting(1, !sum)];
    let transfer = pair
        .peer
        .submit(&requests, BatchOptions::default())
        .unwrap();
    let statuses = futures_lite::future::block_on(transfer);
    assert_eq!(statuses, [Status::Done, Status::ChecksumMismatch]);
    assert!(bytes_of(&pair.local, 0, 8 << 20) == served);
}

#[test]
fn hugepages_are_shared_where_there_are_any() {
    let Ok(memory) = Memory::hugepages(2 << 20) else {
        eprintln!("skipped: no hugepages of 2 MiB are free");
        return;
    };
    assert_eq!(memory.kind(), MemoryKind::Hugepage { page_len: 2 << 20 });
    let pair = Pair::new(TransportKind::SharedMemory, 1, 4096);
    let huge = pair.owner.register(memory, Access::Read).unwrap();
    let bytes = fill(&huge, 8);
    pair.peer.refresh().unwrap();
    let region = pair.peer.region(huge.id()).unwrap();
    let request = Request::read(
        pair.local(0, 4096),
        RemotePart {
            region,
            offset: (2 << 20) - 4096,
            len: 4096,
        },
    );
    let mut transfer = pair
        .peer
        .submit(&[request], BatchOptions::default())
        .unwrap();
    assert_eq!(transfer.wait(HANG), Some(vec![Status::Done]));
    assert!(bytes_of(&pair.local, 0, 4096) == bytes[(2 << 20) - 4096..]);
}

#[test]
fn memfd_of_the_caller_is_shared_as_its_seals_allow() {
    use std::os::fd::AsFd;

    let owner = crate::pair::owner(1);
    let flags = nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING;
    let make = |seals: Option<i32>| {
        let memfd = nix::sys::memfd::memfd_create(c"callers", flags).unwrap();
        nix::unistd::ftruncate(&memfd, 8192).unwrap();
        let kept = memfd.as_fd().try_clone_to_owned().unwrap();
        let memory = Memory::from_fd(memfd, 8192).unwrap();
        if let Some(seals) = seals {
            let seals = nix::fcntl::SealFlag::from_bits_retain(seals);
            nix::fcntl::fcntl(&kept, nix::fcntl::FcntlArg::F_ADD_SEALS(seals)).unwrap();
        }
        memory
    };
    let length = libc::F_SEAL_SHRINK;
    let writes = length | libc::F_SEAL_FUTURE_WRITE;
    let cases = [
        (None, Access::ReadWrite, false),
        (Some(length), Access::ReadWrite, true),
        (Some(length), Access::Read, false),
        (Some(writes), Access::Read, true),
    ];
    let ids = cases.map(|(seals, access, _)| owner.register(make(seals), access).unwrap().id());
    let opener = TransferEngine::start(EngineConfig::default()).unwrap();
    let peer = opener.open(owner.addresses()).unwrap();
    for (id, (seals, access, is_shared)) in ids.into_iter().zip(cases) {
        let region = peer.region(id).unwrap();
        let key = region.key(TransportKind::SharedMemory);
        assert_eq!(key.is_some(), is_shared, "{seals:?} {access:?}");
    }
}
