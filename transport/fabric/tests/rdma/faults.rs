//! One machine: what goes wrong on the way has a name, and the queue pair works again after.

use terrace_fabric::verbs::{
    Access, Completion, Operation, QueuePair, QueuePairSettings, QueuePairState, RegionOptions,
    RemoteSlice, Status, VerbsError, WorkRequest,
};

use crate::fixture::{End, connect, connected, device, register};

const LEN: u32 = 64 << 10;

/// Ends both connections, renews both and shows that a read arrives.
fn works_again(ours: &mut End, theirs: &mut End) {
    let mut ended = Vec::new();
    ours.queue_pair.disconnect(&mut ended).unwrap();
    theirs.queue_pair.disconnect(&mut ended).unwrap();
    ours.queue_pair.renew().unwrap();
    theirs.queue_pair.renew().unwrap();
    connect(ours, theirs);
    theirs.memory.fill(LEN as usize, 77);
    let from = theirs.region.remote(0, LEN.into()).unwrap();
    let requests = ours.read_one(from, LEN);
    ours.run(requests);
    assert!(ours.memory.is_filled(LEN as usize, 77));
}

fn statuses(ended: &[Completion]) -> Vec<Status> {
    ended.iter().map(|one| one.status).collect()
}

#[test]
fn forged_key_or_range_is_refused_and_flushes_what_follows() {
    let Some(device) = device() else { return };
    let (mut ours, mut theirs) = connected(&device, LEN as usize, Access::RemoteRead, false);
    let good = theirs.region.remote(0, LEN.into()).unwrap();
    let forged = RemoteSlice {
        rkey: good.rkey ^ 0x5a5a,
        ..good
    };
    let beyond = RemoteSlice {
        address: good.address + 1,
        ..good
    };
    for bad in [forged, beyond] {
        let read = |token, from| WorkRequest {
            token,
            operation: Operation::Read {
                into: ours.slice(0, LEN),
                from,
            },
        };
        let requests = vec![read(0, good), read(1, bad), read(2, good)];
        ours.queue_pair.post(requests).unwrap();
        let ended = ours.ended(3);
        assert_eq!(
            statuses(&ended),
            [Status::Success, Status::RemoteAccess, Status::Flushed]
        );
        assert_eq!(ours.queue_pair.state(), QueuePairState::Failed);
        let requests = ours.read_one(good, LEN);
        let refused = ours.queue_pair.post(requests);
        assert!(matches!(refused, Err(VerbsError::WrongState { .. })));
        works_again(&mut ours, &mut theirs);
    }
}

#[test]
fn write_to_a_region_that_may_only_be_read_is_refused_and_changes_nothing() {
    let Some(device) = device() else { return };
    let (ours, mut theirs) = connected(&device, LEN as usize, Access::RemoteReadWrite, false);
    theirs.region = register(&theirs.domain, &theirs.memory, &READ_ONLY).unwrap();
    is_refused(ours, theirs, Status::RemoteAccess);
}

#[test]
fn write_to_a_queue_pair_that_only_serves_reads_is_refused_and_changes_nothing() {
    let Some(device) = device() else { return };
    let (ours, theirs) = connected(&device, LEN as usize, Access::RemoteRead, false);
    is_refused(ours, theirs, Status::RemoteInvalidRequest);
}

const READ_ONLY: RegionOptions = RegionOptions {
    access: Access::RemoteRead,
    page_len: 4096,
    piece_len_max: u64::MAX,
    thread_count: 1,
};

fn is_refused(mut ours: End, mut theirs: End, expected: Status) {
    theirs.memory.fill(LEN as usize, 5);
    ours.memory.fill(LEN as usize, 6);
    let operation = Operation::Write {
        from: ours.slice(0, LEN),
        into: theirs.region.remote(0, LEN.into()).unwrap(),
        immediate: None,
    };
    let requests = vec![WorkRequest {
        token: 0,
        operation,
    }];
    ours.queue_pair.post(requests).unwrap();
    let ended = ours.ended(1);
    assert_eq!(statuses(&ended), [expected]);
    assert!(theirs.memory.is_filled(LEN as usize, 5));
    works_again(&mut ours, &mut theirs);
}

#[test]
fn key_of_another_domain_is_refused() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, LEN as usize, Access::RemoteRead, false);
    // A neighbour with memory of its own, which the peer of `ours` has nothing to do with.
    let neighbour = End::new(&device, LEN as usize, Access::RemoteRead, false);
    let from = neighbour.region.remote(0, LEN.into()).unwrap();
    let requests = ours.read_one(from, LEN);
    ours.queue_pair.post(requests).unwrap();
    let ended = ours.ended(1);
    assert_eq!(statuses(&ended), [Status::RemoteAccess]);
    drop(theirs);
}

#[test]
fn memory_of_another_domain_is_not_posted() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, LEN as usize, Access::RemoteRead, false);
    let from = theirs.region.remote(0, LEN.into()).unwrap();
    let requests = theirs.read_one(from, LEN);
    let refused = ours.queue_pair.post(requests);
    assert!(matches!(refused, Err(VerbsError::ForeignMemory { .. })));
}

#[test]
fn send_without_a_receive_ends_by_name() {
    let Some(device) = device() else { return };
    let (mut ours, mut theirs) = connected(&device, LEN as usize, Access::RemoteRead, false);
    let operation = Operation::SendInline {
        message: b"nobody listens",
        immediate: None,
    };
    let requests = vec![WorkRequest {
        token: 0,
        operation,
    }];
    ours.queue_pair.post(requests).unwrap();
    assert_eq!(statuses(&ours.ended(1)), [Status::ReceiverNotReady]);
    works_again(&mut ours, &mut theirs);
}

#[test]
fn peer_that_fenced_the_queue_pair_serves_no_read() {
    let Some(device) = device() else { return };
    let (mut ours, mut theirs) = connected(&device, LEN as usize, Access::RemoteRead, false);
    theirs.memory.fill(LEN as usize, 1);
    let from = theirs.region.remote(0, LEN.into()).unwrap();
    let requests = ours.read_one(from, LEN);
    ours.run(requests);
    theirs.queue_pair.disconnect(&mut Vec::new()).unwrap();
    theirs.memory.fill(LEN as usize, 2);
    let requests = ours.read_one(from, LEN);
    ours.queue_pair.post(requests).unwrap();
    let ended = ours.ended(1);
    assert!(!ended[0].status.is_success(), "{ended:?}");
    assert!(ended[0].status.is_of_the_way(), "{ended:?}");
    assert!(ours.memory.is_filled(LEN as usize, 1));
}

#[test]
fn disconnect_under_way_flushes_and_leaves_the_memory() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, 8 << 20, Access::RemoteRead, false);
    theirs.memory.fill(8 << 20, 11);
    let from = theirs.region.remote(0, 8 << 20).unwrap();
    for round in 0..10 {
        let requests = ours.read_one(from, 8 << 20);
        ours.queue_pair.post(requests).unwrap();
        let mut ended = Vec::new();
        ours.queue_pair.disconnect(&mut ended).unwrap();
        assert_eq!(statuses(&ended), [Status::Flushed]);
        ours.memory.fill(8 << 20, 100 + round);
        // Time for a NIC that still writes: others of the machine go on meanwhile.
        assert!(
            !ours
                .completions
                .wait(0, std::time::Duration::from_millis(50))
                .unwrap()
        );
        assert!(ours.memory.is_filled(8 << 20, 100 + round), "round {round}");
        ours.queue_pair.renew().unwrap();
        ours.queue_pair
            .connect(&theirs.queue_pair.address())
            .unwrap();
    }
}

#[test]
fn drop_under_way_keeps_the_memory_until_the_nic_has_left() {
    let Some(device) = device() else { return };
    for _ in 0..5 {
        let (mut ours, theirs) = connected(&device, 8 << 20, Access::RemoteRead, false);
        let from = theirs.region.remote(0, 8 << 20).unwrap();
        let requests = ours.read_one(from, 8 << 20);
        ours.queue_pair.post(requests).unwrap();
        let memory = ours.memory.clone();
        drop(ours);
        memory.fill(8 << 20, 12);
        let (mut others, peer) = connected(&device, 4096, Access::RemoteRead, false);
        let from = peer.region.remote(0, 4096).unwrap();
        let requests = others.read_one(from, 4096);
        others.run(requests);
        assert!(memory.is_filled(8 << 20, 12));
    }
}

#[test]
fn device_down_is_named_and_works_again_when_up() {
    let Some(device) = device() else { return };
    if std::env::var_os("VM_RUN").is_none() {
        eprintln!("skipped: takes a link down, so it runs in virtual machines only");
        return;
    }
    let (mut ours, mut theirs) = connected(&device, LEN as usize, Access::RemoteRead, false);
    set_link("eth0", "down");
    let settings = QueuePairSettings::default();
    let made = QueuePair::new(&ours.domain, &ours.completions, settings);
    assert!(matches!(made, Err(VerbsError::PortDown { port: 1, .. })));
    let from = theirs.region.remote(0, LEN.into()).unwrap();
    let requests = ours.read_one(from, LEN);
    ours.queue_pair.post(requests).unwrap();
    let ended = ours.ended(1);
    set_link("eth0", "up");
    assert!(ended[0].status.is_of_the_way(), "{ended:?}");
    works_again(&mut ours, &mut theirs);
}

/// Takes a link of this virtual machine down or up.
pub(crate) fn set_link(interface: &str, state: &str) {
    let status = std::process::Command::new("ip")
        .args(["link", "set", interface, state])
        .status()
        .unwrap();
    assert!(status.success());
}
