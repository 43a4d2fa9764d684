//! One machine: what is asked for beyond a limit is refused by name, before the NIC is asked.

use std::sync::Mutex;

use terrace_fabric::verbs::{
    Access, CompletionQueue, Device, Gid, GidChoice, GidKind, LinkLayer, MemoryRegion, Operation,
    PortState, ProtectionDomain, QueuePair, QueuePairSettings, RegionOptions, VerbsError,
    WorkRequest,
};

use crate::fixture::{End, Memory, connected, device, register};

const HUGEPAGE: u64 = 2 << 20;

#[test]
fn device_and_port_are_described() {
    let Some(device) = device() else { return };
    let port = device.active_port(1).unwrap();
    assert_eq!(port.state, PortState::Active);
    assert!(device.limits().region_len_max > 0);
    assert!(device.limits().queue_depth_max >= 128);
    let gid = device.gid(1, GidChoice::Auto).unwrap();
    if port.link == LinkLayer::Ethernet {
        assert_eq!(gid.kind, GidKind::RoceV2);
    }
    if let Ok(addresses) = std::env::var("VM_ADDRS") {
        // It is not at the first place there: the address of the link is.
        let first = addresses.split(' ').next().unwrap();
        assert_eq!(gid.gid, Gid::from_ip(first.parse().unwrap()));
        assert_ne!(gid.index, 0);
        assert_eq!(gid.interface.as_deref(), Some("eth0"));
    }
}

#[test]
fn unknown_device_port_and_gid_are_named() {
    let Some(device) = device() else { return };
    let error = Device::open("nothing0").unwrap_err().to_string();
    assert!(
        error.contains("nothing0") && error.contains(device.name()),
        "{error}"
    );
    for port in [0, 200] {
        let error = device.port(port).unwrap_err().to_string();
        assert!(error.contains(&format!("no port {port}")), "{error}");
    }
    let wanted = GidChoice::Exactly(Gid::from_ip("192.0.2.1".parse().unwrap()));
    let error = device.gid(1, wanted).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1"), "{error}");
    assert!(
        error.contains("RoCE") || error.contains("InfiniBand"),
        "{error}"
    );
}

#[test]
fn region_without_bytes_or_beyond_the_limit_is_named() {
    let Some(device) = device() else { return };
    let domain = ProtectionDomain::new(&device).unwrap();
    let memory = Memory::new(HUGEPAGE as usize, false);
    let owner = || Box::new(memory.clone());
    let options = RegionOptions::default();
    // SAFETY: nothing is registered of no bytes.
    let nothing =
        unsafe { MemoryRegion::register(&domain, memory.base(), 0, &options, owner(), &|_| ()) };
    assert!(matches!(nothing, Err(VerbsError::RegionEmpty)));
    let options = RegionOptions {
        piece_len_max: 4095,
        ..options
    };
    let error = register(&domain, &memory, &options).err().unwrap();
    assert!(matches!(
        error,
        VerbsError::RegionTooLong { limit: 4095, .. }
    ));
}

#[test]
fn region_cut_between_hugepages_is_registered_in_parallel_and_read_whole() {
    let Some(device) = device() else { return };
    let len = 5 * HUGEPAGE;
    let (mut ours, theirs) = connected(&device, len as usize, Access::RemoteRead, true);
    let told = Mutex::new(Vec::new());
    let options = RegionOptions {
        page_len: HUGEPAGE,
        piece_len_max: 2 * HUGEPAGE + 1,
        ..RegionOptions::default()
    };
    let owner = Box::new(ours.memory.clone());
    // SAFETY: the mapping lives as long as the owner.
    let cut = unsafe {
        MemoryRegion::register(
            &ours.domain,
            ours.memory.base(),
            len,
            &options,
            owner,
            &|done| {
                told.lock().unwrap().push(done);
            },
        )
    };
    ours.region = cut.unwrap();
    assert_eq!(ours.region.piece_len(), 2 * HUGEPAGE);
    assert_eq!(ours.region.rkeys().count(), 3);
    let mut told = told.into_inner().unwrap();
    told.sort_unstable();
    assert_eq!((told.len(), told[2]), (3, len));

    assert!(ours.region.slice(len - 1, 1).is_ok());
    let across = ours.region.slice(2 * HUGEPAGE - 1, 2).err().unwrap();
    assert!(matches!(across, VerbsError::AcrossCut { len: 2, .. }));
    let beyond = ours.region.slice(len, 1).err().unwrap();
    assert!(matches!(beyond, VerbsError::OutOfRange { .. }));

    theirs.memory.fill(len as usize, 21);
    let remote = theirs.region.remote(0, len).unwrap();
    ours.transfer(remote, len, true);
    assert!(ours.memory.is_filled(len as usize, 21));
}

#[test]
fn requests_beyond_the_queue_pairs_limits_are_named() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, 16 << 20, Access::RemoteRead, false);
    let from = theirs.region.remote(0, 16 << 20).unwrap();
    let longest = ours.queue_pair.message_len_max();
    if longest < 16 << 20 {
        let requests = ours.read_one(from, longest + 1);
        let error = ours.queue_pair.post(requests).unwrap_err().to_string();
        assert!(error.contains(&longest.to_string()), "{error}");
    }
    let many = ours.queue_pair.room() + 1;
    let requests = (0..many).flat_map(|_| ours.read_one(from, 1)).collect();
    let error = ours.queue_pair.post(requests).unwrap_err();
    assert!(matches!(error, VerbsError::QueueFull { count, .. } if count == many));
    let slices = (0..5).flat_map(|_| ours.slice(0, 1)).collect();
    let operation = Operation::Read { into: slices, from };
    let requests = vec![WorkRequest {
        token: 0,
        operation,
    }];
    let error = ours.queue_pair.post(requests).unwrap_err();
    assert!(matches!(
        error,
        VerbsError::Request {
            field: "slices",
            ..
        }
    ));
    // None of them has taken a place or broken the connection.
    let requests = ours.read_one(from, 1);
    ours.run(requests);
}

#[test]
fn completion_queue_never_has_fewer_places_than_its_requests() {
    let Some(device) = device() else { return };
    let settings = QueuePairSettings::default();
    let domain = ProtectionDomain::new(&device).unwrap();
    let places = settings.completion_count();
    let completions = CompletionQueue::new(&device, places + 1).unwrap();
    let first = QueuePair::new(&domain, &completions, settings).unwrap();
    let second = QueuePair::new(&domain, &completions, settings)
        .err()
        .unwrap();
    assert!(matches!(second, VerbsError::QueueFull { room: 1, .. }));
    drop(first);
    QueuePair::new(&domain, &completions, settings).unwrap();
    let none = CompletionQueue::new(&device, 0).err().unwrap();
    assert!(matches!(none, VerbsError::Setting { .. }));
}

#[test]
fn connect_twice_is_named() {
    let Some(device) = device() else { return };
    let (mut ours, theirs) = connected(&device, 4096, Access::RemoteRead, false);
    let error = ours.queue_pair.connect(&theirs.queue_pair.address());
    assert!(matches!(error, Err(VerbsError::WrongState { .. })));
    let error = ours.queue_pair.renew();
    assert!(matches!(error, Err(VerbsError::WrongState { .. })));
}

/// Set for the process that may lock little memory.
const LITTLE_MEMORY: &str = "TERRACE_TEST_LITTLE_MEMORY";

#[test]
fn memory_beyond_what_may_be_locked_is_named() {
    let Some(device) = device() else { return };
    if std::env::var_os(LITTLE_MEMORY).is_some() {
        let domain = ProtectionDomain::new(&device).unwrap();
        let memory = Memory::new(16 << 20, false);
        let error = register(&domain, &memory, &RegionOptions::default());
        let Err(VerbsError::Memlock { limit, len, .. }) = error else {
            panic!("{:?}", error.err());
        };
        assert_eq!((limit, len), (8 << 20, 16 << 20));
        return;
    }
    if std::env::var_os("VM_RUN").is_none() {
        eprintln!("skipped: gives up rights, so it runs in virtual machines only");
        return;
    }
    // Root may lock all there is, unless it gives up the right to.
    let status = std::process::Command::new("prlimit")
        .args(["--memlock=8388608:8388608", "setpriv"])
        .args(["--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "bounds::memory_beyond_what_may_be_locked_is_named",
        ])
        .env(LITTLE_MEMORY, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn region_lives_as_long_as_a_slice_of_it() {
    let Some(device) = device() else { return };
    let end = End::new(&device, 4096, Access::Local, false);
    let memory = std::sync::Arc::downgrade(&end.memory);
    let slice = end.slice(0, 1);
    drop(end);
    assert!(memory.upgrade().is_some());
    drop(slice);
    assert!(memory.upgrade().is_none());
}
