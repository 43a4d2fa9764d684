//! One machine: reads, writes and messages between two queue pairs of one device.

use std::time::Duration;

use terrace_fabric::verbs::{Access, Operation, RequestKind, WorkRequest};

use crate::fixture::{connected, device};

const MIB: usize = 1 << 20;

/// From one byte to the longest block, also lengths that no packet or hugepage divides.
const LENGTHS: [usize; 8] = [1, 7, 4095, 4096, 65_536, MIB + 3, 9 * MIB + 1, 128 * MIB];

#[test]
fn read_and_write_every_length_on_hugepages_arrives() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, 128 * MIB, Access::RemoteReadWrite, true);
    let remote = theirs.region.remote(0, 128 * MIB as u64).unwrap();
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        let seed = seed as u64 * 2;
        theirs.memory.fill(len, seed);
        ours.transfer(remote, len as u64, true);
        assert!(ours.memory.is_filled(len, seed), "read {len} bytes");
        ours.memory.fill(len, seed + 1);
        ours.transfer(remote, len as u64, false);
        assert!(theirs.memory.is_filled(len, seed + 1), "wrote {len} bytes");
    }
    assert_eq!(ours.queue_pair.counters().copied_bytes, 0);
    assert_eq!(theirs.queue_pair.counters(), Default::default());
}

#[test]
fn send_with_number_arrives_in_the_receive_posted_for_it() {
    let Some(device) = device() else { return };
    let (mut ours, mut theirs) = connected(&device, MIB, Access::Local, false);
    for (token, len) in [1_usize, 4096, 65_537, MIB].into_iter().enumerate() {
        let token = token as u64;
        ours.memory.fill(len, token + 50);
        let into = theirs.slice(0, MIB as u32);
        theirs.queue_pair.post_receive(token, into).unwrap();
        let from = ours.slice(0, len as u32);
        let immediate = Some(len as u32);
        let operation = Operation::Send { from, immediate };
        ours.run(vec![WorkRequest { token, operation }]);
        let received = theirs.ended(1)[0];
        assert_eq!(
            (received.token, received.kind),
            (token, RequestKind::Receive)
        );
        assert_eq!((received.len, received.immediate), (len as u64, immediate));
        assert!(theirs.memory.is_filled(len, token + 50), "sent {len} bytes");
    }
}

#[test]
fn inline_send_and_write_with_number_arrive() {
    let Some(device) = device() else { return };
    let (mut ours, mut theirs) = connected(&device, MIB, Access::RemoteReadWrite, false);
    let into = theirs.slice(0, 64);
    theirs.queue_pair.post_receive(1, into).unwrap();
    theirs.queue_pair.post_receive(2, Vec::new()).unwrap();
    let message = [7; 33];
    ours.memory.fill(MIB, 9);
    let into = theirs.region.remote(0, MIB as u64).unwrap();
    ours.run(vec![WorkRequest {
        token: 0,
        operation: Operation::SendInline {
            message: &message,
            immediate: None,
        },
    }]);
    let received = theirs.ended(1)[0];
    assert_eq!(
        (received.token, received.len, received.immediate),
        (1, 33, None)
    );
    assert_eq!(theirs.memory.bytes(33), message);
    assert_eq!(ours.queue_pair.counters().copied_bytes, 33);

    let from = ours.slice(0, MIB as u32);
    let immediate = Some(0xdead_beef);
    ours.run(vec![WorkRequest {
        token: 0,
        operation: Operation::Write {
            from,
            into,
            immediate,
        },
    }]);
    let told = theirs.ended(1)[0];
    assert_eq!((told.token, told.immediate), (2, immediate));
    assert!(theirs.memory.is_filled(MIB, 9));
}

#[test]
fn batch_of_16_takes_one_doorbell_one_completion_and_no_copy() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, MIB, Access::RemoteRead, true);
    theirs.memory.fill(MIB, 3);
    let remote = theirs.region.remote(0, MIB as u64).unwrap();
    let len = MIB as u32 / 16;
    for round in 1..=4 {
        let requests = (0..16).map(|token| WorkRequest {
            token,
            operation: Operation::Read {
                into: ours.slice(token * u64::from(len), len),
                from: terrace_fabric::verbs::RemoteSlice {
                    address: remote.address + token * u64::from(len),
                    ..remote
                },
            },
        });
        let requests = requests.collect();
        let ended = ours.run(requests);
        let tokens: Vec<u64> = ended.iter().map(|one| one.token).collect();
        assert_eq!(tokens, (0..16).collect::<Vec<u64>>());
        let counters = ours.queue_pair.counters();
        assert_eq!((counters.doorbells, counters.completions), (round, round));
        assert_eq!((counters.requests, counters.copied_bytes), (16 * round, 0));
    }
    assert_eq!(ours.completions.completions(), 4);
    assert!(ours.memory.is_filled(MIB, 3));
}

#[test]
fn gather_from_several_slices_arrives_in_order() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, 64 << 10, Access::RemoteReadWrite, false);
    ours.memory.fill(64 << 10, 4);
    let part = |offset| ours.region.slice(offset, 1000).unwrap();
    let from = vec![part(5000), part(0), part(40_000)];
    let into = theirs.region.remote(0, 3000).unwrap();
    let immediate = None;
    ours.run(vec![WorkRequest {
        token: 0,
        operation: Operation::Write {
            from,
            into,
            immediate,
        },
    }]);
    let source = ours.memory.bytes(64 << 10);
    let expected = [
        &source[5000..6000],
        &source[..1000],
        &source[40_000..41_000],
    ]
    .concat();
    assert_eq!(theirs.memory.bytes(3000), expected);
}

#[test]
fn wait_without_polling_is_woken_by_the_event() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, 4096, Access::RemoteRead, false);
    let nothing = ours.completions.wait(0, Duration::from_millis(1)).unwrap();
    assert!(!nothing);
    let from = theirs.region.remote(0, 4096).unwrap();
    for _ in 0..20 {
        let requests = ours.read_one(from, 4096);
        ours.queue_pair.post(requests).unwrap();
        assert!(ours.completions.wait(0, Duration::from_secs(60)).unwrap());
        let mut ended = Vec::new();
        ours.resolve(&mut ended);
        assert!(ended[0].status.is_success());
    }
}
