//! Reads and writes that arrive whole.

use terrace_fabric::transfer::{
    Access, BatchOptions, Memory, Operation, Priority, Request, Status, TransportKind,
};

use crate::pair::{HANG, Pair, bytes_of, fill, pattern};

const REGION_LEN: u64 = 24 << 20;

fn run(pair: &Pair, requests: &[Request]) -> Vec<Status> {
    let mut transfer = pair.peer.submit(requests, BatchOptions::default()).unwrap();
    transfer.wait(HANG).expect("over")
}

fn reads_and_writes_arrive(kind: TransportKind, rails: usize) {
    let pair = Pair::new(kind, rails, REGION_LEN);
    let served = fill(&pair.served, 1);
    for (len, remote_at, local_at) in [
        (1, 0, REGION_LEN - 1),
        (7, 4095, 1),
        (65_536, 3, 12_345),
        (1 << 20, 1 << 20, 0),
        (20 << 20, 1_000_001, 77),
    ] {
        let before = fill(&pair.local, 2);
        let request = Request::read(pair.local(local_at, len), pair.remote(remote_at, len));
        assert_eq!(run(&pair, &[request]), [Status::Done]);
        let (from, to) = (local_at as usize, (local_at + len) as usize);
        let after = bytes_of(&pair.local, 0, REGION_LEN);
        assert!(after[from..to] == served[remote_at as usize..(remote_at + len) as usize]);
        assert!(after[..from] == before[..from] && after[to..] == before[to..]);

        let request = Request::write(pair.local(0, len), pair.remote(0, len));
        assert_eq!(run(&pair, &[request]), [Status::Done]);
        let written = bytes_of(&pair.served, 0, REGION_LEN);
        let len = len as usize;
        assert!(written[..len] == after[..len]);
        assert!(written[len..] == served[len..]);
        fill(&pair.served, 1);
    }
}

#[test]
fn tcp_reads_and_writes_arrive() {
    reads_and_writes_arrive(TransportKind::Tcp, 1);
}

#[test]
fn tcp_reads_and_writes_arrive_over_three_rails() {
    reads_and_writes_arrive(TransportKind::Tcp, 3);
}

fn parts_are_scattered_and_gathered(kind: TransportKind) {
    let pair = Pair::new(kind, 2, REGION_LEN);
    let served = fill(&pair.served, 3);
    fill(&pair.local, 4);
    // Parts of both ends end at different places.
    let local: Vec<_> = (0..100).map(|i| pair.local(i * 20_000, 10_007)).collect();
    let remote: Vec<_> = (0..7)
        .map(|i| pair.remote(20_000_000 - i * 200_000, 142_957))
        .collect();
    let mut remote = remote;
    remote.push(pair.remote(5, 1));
    let gathered: Vec<u8> = remote
        .iter()
        .flat_map(|part| served[part.offset as usize..(part.offset + part.len) as usize].to_vec())
        .collect();
    let hash = xxhash(&gathered, 9);
    let request = Request {
        operation: Operation::Read,
        local,
        remote,
        expected: None,
    }
    .expecting(9, hash);
    assert_eq!(run(&pair, std::slice::from_ref(&request)), [Status::Done]);
    let scattered: Vec<u8> = request
        .local
        .iter()
        .flat_map(|part| bytes_of(&pair.local, part.offset, part.len))
        .collect();
    assert!(scattered == gathered);
    let wrong = request.expecting(9, hash ^ 1);
    assert_eq!(run(&pair, &[wrong]), [Status::ChecksumMismatch]);
}

fn xxhash(bytes: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed)
}

#[test]
fn tcp_parts_are_scattered_and_gathered() {
    parts_are_scattered_and_gathered(TransportKind::Tcp);
}

fn many_threads_do_not_mix_their_bytes(kind: TransportKind) {
    let pair = Pair::new(kind, 2, REGION_LEN);
    let served = fill(&pair.served, 5);
    let (threads, blocks, len) = (8, 30, 64 << 10);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (pair, served) = (&pair, &served);
            scope.spawn(move || {
                let base = thread * 40 * len;
                for round in 0..10 {
                    let at = |block: u64| (block * 37 + round * 11 + thread) % 300 * len;
                    let requests: Vec<Request> = (0..blocks)
                        .map(|block| {
                            let local = pair.local(base + block * len, len);
                            Request::read(local, pair.remote(at(block), len))
                        })
                        .collect();
                    assert_eq!(run(pair, &requests), vec![Status::Done; blocks as usize]);
                    for block in 0..blocks {
                        let got = bytes_of(&pair.local, base + block * len, len);
                        assert!(got == served[at(block) as usize..(at(block) + len) as usize]);
                    }
                }
            });
        }
    });
}

#[test]
fn tcp_many_threads_do_not_mix_their_bytes() {
    many_threads_do_not_mix_their_bytes(TransportKind::Tcp);
}

#[test]
fn transfer_can_be_awaited() {
    let pair = Pair::new(TransportKind::Tcp, 1, REGION_LEN);
    let served = fill(&pair.served, 6);
    let request = Request::read(pair.local(0, REGION_LEN), pair.remote(0, REGION_LEN));
    let transfer = pair
        .peer
        .submit(&[request], BatchOptions::default())
        .unwrap();
    let statuses = futures_lite::future::block_on(transfer);
    assert_eq!(statuses, [Status::Done]);
    assert!(bytes_of(&pair.local, 0, REGION_LEN) == served);
}

#[test]
fn small_urgent_read_overtakes_bulk() {
    let len = 512 << 20;
    let pair = Pair::new(TransportKind::Tcp, 1, len);
    let bulk = Request::read(pair.local(0, len), pair.remote(0, len));
    let mut bulk = pair.peer.submit(&[bulk], BatchOptions::default()).unwrap();
    let urgent = BatchOptions {
        priority: Priority::Urgent,
        ..BatchOptions::default()
    };
    let mut before = 0;
    for _ in 0..5 {
        let small = Request::read(pair.local(0, 64), pair.remote(0, 64));
        let mut small = pair.peer.submit(&[small], urgent).unwrap();
        assert_eq!(small.wait(HANG), Some(vec![Status::Done]));
        before += usize::from(!bulk.is_over());
    }
    assert!(
        before >= 3,
        "{before} of 5 small reads came before the bulk ended"
    );
    assert_eq!(bulk.wait(HANG), Some(vec![Status::Done]));
}

#[test]
fn notifications_arrive_in_order() {
    let pair = Pair::new(TransportKind::Tcp, 1, 4096);
    for i in 0..100_u8 {
        pair.peer.notify(&[i; 5]).unwrap();
    }
    for i in 0..100_u8 {
        let notification = pair.owner.notification(HANG).unwrap();
        assert_eq!(notification.bytes, [i; 5]);
    }
    assert_eq!(pair.owner.notification(std::time::Duration::ZERO), None);
}

#[test]
fn owner_that_starts_again_is_found_again() {
    let mut pair = Pair::new(TransportKind::Tcp, 1, 1 << 20);
    fill(&pair.served, 1);
    let address = pair.owner.addresses()[0];
    let stale = pair.remote(0, 1 << 20);
    drop(std::mem::replace(&mut pair.owner, crate::pair::owner(1)));
    let config = terrace_fabric::transfer::EngineConfig {
        listen: vec![address],
        ..Default::default()
    };
    let again = terrace_fabric::transfer::TransferEngine::start(config).unwrap();
    let region = again
        .register(Memory::shared(1 << 20).unwrap(), Access::Read)
        .unwrap();
    let bytes = pattern(9, 1 << 20);
    assert!(region.memory().write_at(0, &bytes));
    // The region of the one before is not taken for this one.
    let request = Request::read(pair.local(0, 1 << 20), stale);
    assert_eq!(run(&pair, &[request]), [Status::StaleRegion]);
    pair.peer.refresh().unwrap();
    pair.remote = pair.peer.region(region.id()).unwrap();
    let request = Request::read(pair.local(0, 1 << 20), pair.remote(0, 1 << 20));
    assert_eq!(run(&pair, &[request]), [Status::Done]);
    assert!(bytes_of(&pair.local, 0, 1 << 20) == bytes);
    drop(pair);
}

#[test]
fn shm_reads_and_writes_arrive() {
    reads_and_writes_arrive(TransportKind::SharedMemory, 1);
}

#[test]
fn shm_parts_are_scattered_and_gathered() {
    parts_are_scattered_and_gathered(TransportKind::SharedMemory);
}

#[test]
fn shm_many_threads_do_not_mix_their_bytes() {
    many_threads_do_not_mix_their_bytes(TransportKind::SharedMemory);
}
