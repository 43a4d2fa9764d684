//! Wrong input: each is one named, bounded error, and the rest goes on.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::transfer::limits::{NOTIFICATION_LEN_MAX, REGION_COUNT_MAX};
use terrace_fabric::transfer::{
    Access, BatchOptions, EngineConfig, Memory, RegionId, RemotePart, RemoteRegion, Request,
    RequestError, Status, TransferEngine, TransferError, TransportKind,
};

use crate::pair::{HANG, Pair, bytes_of, config, fill};

fn statuses(pair: &Pair, requests: &[Request]) -> Vec<Status> {
    let mut transfer = pair.peer.submit(requests, BatchOptions::default()).unwrap();
    transfer.wait(HANG).unwrap()
}

/// The region as a peer would tell of it that lies.
fn forged(pair: &Pair, change: impl FnOnce(&mut RemoteRegion)) -> RemotePart {
    let mut region = (*pair.remote).clone();
    change(&mut region);
    RemotePart {
        region: Arc::new(region),
        offset: 0,
        len: 100,
    }
}

fn wrong_remote_regions_are_refused_by_name(kind: TransportKind) {
    let pair = Pair::new(kind, 1, 1 << 20);
    let only_read = pair
        .owner
        .register(Memory::shared(4096).unwrap(), Access::Read)
        .unwrap();
    let secret = pair
        .owner
        .register(Memory::shared(4096).unwrap(), Access::Local)
        .unwrap();
    fill(&pair.served, 1);
    let before = fill(&pair.local, 2);
    let is_id = |id: RegionId| move |region: &mut RemoteRegion| region.id = id;
    let id = pair.served.id();
    let cases = [
        (is_id(RegionId { slot: 900, ..id }), Status::UnknownRegion),
        (
            is_id(RegionId {
                epoch: id.epoch ^ 1,
                ..id
            }),
            Status::StaleRegion,
        ),
        (is_id(secret.id()), Status::AccessDenied),
    ];
    for (change, status) in cases {
        let part = forged(&pair, change);
        let read = Request::read(pair.local(0, 100), part.clone());
        let write = Request::write(pair.local(0, 100), part);
        assert_eq!(
            statuses(&pair, &[read, write]),
            [status, status],
            "{status}"
        );
    }
    let mut long = forged(&pair, |region| region.len = 1 << 40);
    long.offset = (1 << 20) - 99;
    let requests = [
        Request::read(pair.local(0, 100), long.clone()),
        Request::write(pair.local(0, 100), long),
        Request::write(pair.local(0, 100), forged(&pair, is_id(only_read.id()))),
    ];
    let expected = [
        Status::OutOfBounds,
        Status::OutOfBounds,
        Status::AccessDenied,
    ];
    assert_eq!(statuses(&pair, &requests), expected);
    assert!(bytes_of(&pair.local, 0, 1 << 20) == before);
    // One among many is refused alone.
    let mut requests: Vec<Request> = (0..200)
        .map(|i| Request::read(pair.local(i * 100, 100), pair.remote(i * 100, 100)))
        .collect();
    requests[77].remote[0] = forged(&pair, is_id(RegionId { slot: 900, ..id }));
    let outcome = statuses(&pair, &requests);
    for (i, status) in outcome.into_iter().enumerate() {
        let expected = if i == 77 {
            Status::UnknownRegion
        } else {
            Status::Done
        };
        assert_eq!(status, expected, "{i}");
        let wanted = if i == 77 { &pair.local } else { &pair.served };
        let at = i as u64 * 100;
        let wanted = if i == 77 {
            before[7700..7800].to_vec()
        } else {
            bytes_of(wanted, at, 100)
        };
        assert!(bytes_of(&pair.local, at, 100) == wanted, "{i}");
    }
}

#[test]
fn tcp_wrong_remote_regions_are_refused_by_name() {
    wrong_remote_regions_are_refused_by_name(TransportKind::Tcp);
}

#[test]
fn wrong_requests_name_the_request_and_its_fault() {
    let pair = Pair::new(TransportKind::Tcp, 1, 4096);
    let good = Request::read(pair.local(0, 8), pair.remote(0, 8));
    let cases = [
        (
            Request::read(pair.local(0, 8), pair.remote(0, 9)),
            RequestError::LengthsDiffer {
                local: 8,
                remote: 9,
            },
        ),
        (
            Request::read(pair.local(4090, 8), pair.remote(0, 8)),
            RequestError::OutOfBounds {
                offset: 4090,
                len: 8,
                region_len: 4096,
            },
        ),
        (
            Request::read(pair.local(u64::MAX, 8), pair.remote(0, 8)),
            RequestError::OutOfBounds {
                offset: u64::MAX,
                len: 8,
                region_len: 4096,
            },
        ),
        (
            Request::read(pair.local(0, 0), pair.remote(0, 0)),
            RequestError::EmptyPart { part: 0 },
        ),
        (
            Request {
                local: vec![],
                ..good.clone()
            },
            RequestError::PartCount {
                count: 0,
                max: 4096,
            },
        ),
    ];
    for (request, expected) in cases {
        let outcome = pair
            .peer
            .submit(&[good.clone(), request], BatchOptions::default());
        match outcome.map(drop) {
            Err(TransferError::Request { index: 1, cause }) => assert_eq!(cause, expected),
            other => panic!("{other:?} instead of {expected}"),
        }
    }
    let none = pair.peer.submit(&[], BatchOptions::default()).map(drop);
    assert!(matches!(
        none,
        Err(TransferError::BatchCount { count: 0, .. })
    ));
    let long = pair.peer.notify(&vec![0; NOTIFICATION_LEN_MAX + 1]);
    assert!(matches!(
        long,
        Err(TransferError::NotificationLength { .. })
    ));
}

#[test]
fn regions_beyond_the_count_are_refused_and_places_are_used_again() {
    let engine = TransferEngine::start(EngineConfig::default()).unwrap();
    let regions: Vec<_> = (0..REGION_COUNT_MAX)
        .map(|_| {
            engine
                .register(Memory::host(1).unwrap(), Access::Read)
                .unwrap()
        })
        .collect();
    let refused = engine.register(Memory::host(1).unwrap(), Access::Read);
    assert!(matches!(refused, Err(TransferError::RegionCount { .. })));
    let old = regions[5].id();
    engine.unregister(old, HANG).unwrap();
    let again = engine
        .register(Memory::host(1).unwrap(), Access::Read)
        .unwrap();
    assert_eq!(again.id().slot, old.slot);
    assert_ne!(again.id().epoch, old.epoch);
    let gone = engine.unregister(old, HANG);
    assert!(matches!(gone, Err(TransferError::UnknownRegion { id }) if id == old));
}

#[test]
fn settings_outside_their_limits_are_named() {
    let wrong = EngineConfig {
        slice_len: 1,
        ..EngineConfig::default()
    };
    let error = TransferEngine::start(wrong)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(error.contains("slice_len is 1"), "{error}");
    let engine = TransferEngine::start(EngineConfig::default()).unwrap();
    let error = engine.open(&[]).map(drop).unwrap_err().to_string();
    assert!(error.contains("addresses is 0"), "{error}");
}

#[test]
fn unregistered_region_is_stale_to_peers() {
    let pair = Pair::new(TransportKind::Tcp, 1, 4096);
    pair.owner.unregister(pair.served.id(), HANG).unwrap();
    let request = Request::read(pair.local(0, 8), pair.remote(0, 8));
    assert_eq!(statuses(&pair, &[request]), [Status::StaleRegion]);
}

#[test]
fn peer_that_is_no_engine_or_not_there_is_a_named_error() {
    let mut settings = config(TransportKind::Tcp);
    settings.stall_timeout = Duration::from_millis(300);
    let engine = TransferEngine::start(settings).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let silent = engine.open(&[address]).map(drop).unwrap_err();
    assert!(silent.to_string().contains("nothing moved for"), "{silent}");
    let other = std::thread::spawn(move || {
        let mut held = Vec::new();
        // The silent one's connections come first.
        for stream in listener.incoming().take(8) {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n------");
            held.push(stream);
            if held.len() > 1 {
                break;
            }
        }
    });
    let wrong = engine.open(&[address]).map(drop).unwrap_err();
    let text = wrong.to_string();
    assert!(
        text.contains("no transfer engine") || text.contains("ended"),
        "{text}"
    );
    other.join().unwrap();
    let gone = engine.open(&[address]).map(drop).unwrap_err();
    assert!(matches!(gone, TransferError::Unreachable { .. }), "{gone}");
}

#[test]
fn owner_answers_nonsense_with_the_end_of_the_connection() {
    let owner = crate::pair::owner(1);
    for nonsense in [
        &b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n\r\n"[..],
        &[0; 64],
        &[255; 64],
    ] {
        let mut stream = std::net::TcpStream::connect(owner.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(nonsense).unwrap();
        let mut answer = Vec::new();
        // A reset is as good as an end.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
}

#[test]
fn peer_that_dies_ends_requests_by_name() {
    let mut pair = Pair::new(TransportKind::Tcp, 1, 64 << 20);
    let mut settings = config(TransportKind::Tcp);
    settings.lost_timeout = Duration::from_millis(200);
    let opener = TransferEngine::start(settings).unwrap();
    let local = opener
        .register(Memory::shared(64 << 20).unwrap(), Access::Local)
        .unwrap();
    let peer = opener.open(pair.owner.addresses()).unwrap();
    let owner = std::mem::replace(&mut pair.owner, crate::pair::owner(1));
    let begin = |options| {
        let mut part = pair.local(0, 64 << 20);
        part.region = Arc::clone(&local);
        let request = Request::read(part, pair.remote(0, 64 << 20));
        peer.submit(&[request], options).unwrap()
    };
    let mut transfer = begin(BatchOptions::default());
    drop(owner);
    let first = transfer.wait(HANG).unwrap();
    assert!(
        first == [Status::PeerLost] || first == [Status::Done],
        "{first:?}"
    );
    drop(transfer);
    assert_eq!(
        begin(BatchOptions::default()).wait(HANG),
        Some(vec![Status::PeerLost])
    );
    let late = BatchOptions {
        timeout: Duration::from_millis(1),
        ..BatchOptions::default()
    };
    let ended = begin(late).wait(HANG).unwrap()[0];
    assert!(
        matches!(ended, Status::DeadlineExceeded | Status::PeerLost),
        "{ended}"
    );
    opener.unregister(local.id(), HANG).unwrap();
}

#[test]
fn shm_wrong_remote_regions_are_refused_by_name() {
    wrong_remote_regions_are_refused_by_name(TransportKind::SharedMemory);
}
