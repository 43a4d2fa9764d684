//! The transfer engine over RDMA: one machine with itself, and two machines with two rails.

use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::transfer::chooser::RailState;
use terrace_fabric::transfer::{
    Access, Admission, BatchOptions, EngineConfig, LocalPart, Memory, Peer, Region, RemotePart,
    RemoteRegion, Request, Status, TransferEngine, TransportChoice, TransportKind,
};
use terrace_fabric::verbs::{RdmaConfig, RdmaTransport, VerbsError};

use crate::faults::set_link;
use crate::fixture::{device, pattern};
use crate::pair::{Agreement, Role, role};

const MIB: u64 = 1 << 20;

/// An engine that uses RDMA and nothing else, its transport, and a region on hugepages.
fn engine(listen: &str, devices: &[&str]) -> (TransferEngine, Arc<RdmaTransport>, Arc<Region>) {
    engine_for(Admission::Anyone, listen, devices)
}

fn engine_for(
    admission: Admission,
    listen: &str,
    devices: &[&str],
) -> (TransferEngine, Arc<RdmaTransport>, Arc<Region>) {
    let transport = RdmaTransport::open(&RdmaConfig {
        devices: devices.iter().map(|&name| name.to_owned()).collect(),
        ..RdmaConfig::default()
    })
    .unwrap();
    let config = EngineConfig {
        listen: listen
            .split_whitespace()
            .map(|at| at.parse().unwrap())
            .collect(),
        admission,
        transports: TransportChoice::Only(TransportKind::Rdma),
        // An emulated network drops what comes in long bursts.
        slice_len: 64 << 10,
        ..EngineConfig::default()
    };
    let engine = TransferEngine::start_with(config, vec![transport.clone()]).unwrap();
    let region = engine
        .register(Memory::hugepages(32 * MIB).unwrap(), Access::ReadWrite)
        .unwrap();
    (engine, transport, region)
}

fn requests(
    local: &Arc<Region>,
    remote: &Arc<RemoteRegion>,
    len: u64,
    count: u64,
    is_read: bool,
) -> Vec<Request> {
    let request = |index: u64| {
        let (offset, local, remote) = (index * len, local.clone(), remote.clone());
        let local = LocalPart {
            region: local,
            offset,
            len,
        };
        let remote = RemotePart {
            region: remote,
            offset,
            len,
        };
        match is_read {
            true => Request::read(local, remote),
            false => Request::write(local, remote),
        }
    };
    (0..count).map(request).collect()
}

/// Runs a batch to its end.
fn run(peer: &Peer, batch: &[Request]) -> Vec<Status> {
    let mut transfer = peer.submit(batch, BatchOptions::default()).unwrap();
    transfer.wait(Duration::from_secs(90)).unwrap()
}

fn fill(region: &Region, len: u64, seed: u64) {
    assert!(region.memory().write_at(0, &pattern(len as usize, seed)));
}

fn is_filled(region: &Region, len: u64, seed: u64) -> bool {
    let mut bytes = vec![0; len as usize];
    assert!(region.memory().read_at(0, &mut bytes));
    bytes == pattern(len as usize, seed)
}

#[test]
fn opener_that_is_sent_away_reads_no_more() {
    let Some(device) = device() else { return };
    let (server, _, theirs) = engine_for(Admission::Invited, "127.0.0.1:0", &[device.name()]);
    let (client, _, ours) = engine("", &[device.name()]);
    assert!(client.open(server.addresses()).is_err());
    let mut cut_off = 0;
    for round in 0..10 {
        let ticket = server.invite().unwrap();
        let peer = client.open_as(server.addresses(), &ticket).unwrap();
        let remote = peer.region(theirs.id()).unwrap();
        fill(&theirs, 8 * MIB, 2 * round);
        let batch = requests(&ours, &remote, MIB, 8, true);
        assert_eq!(run(&peer, &batch), vec![Status::Done; 8]);
        assert!(is_filled(&ours, 8 * MIB, 2 * round));
        let options = BatchOptions {
            timeout: Duration::from_secs(2),
            ..BatchOptions::default()
        };
        let mut transfer = peer.submit(&batch, options).unwrap();
        server.expel(&ticket, Duration::from_secs(10)).unwrap();
        fill(&theirs, 8 * MIB, 2 * round + 1);
        let statuses = transfer.wait(Duration::from_secs(90)).unwrap();
        cut_off += usize::from(statuses != [Status::Done; 8]);
        // What these reads bring is what was there before.
        assert!(is_filled(&ours, 8 * MIB, 2 * round), "read what came later");
        assert!(client.open_as(server.addresses(), &ticket).is_err());
    }
    assert!(cut_off > 0, "no read was under way");
}

#[test]
fn batches_of_every_length_arrive_without_a_copy() {
    let Some(device) = device() else { return };
    let (server, _, theirs) = engine("127.0.0.1:0", &[device.name()]);
    let (client, transport, ours) = engine("", &[device.name()]);
    let peer = client.open(server.addresses()).unwrap();
    let remote = peer.region(theirs.id()).unwrap();
    for (seed, len) in [1, 4097, 65_536, MIB + 3, 8 * MIB].into_iter().enumerate() {
        let (seed, count) = (seed as u64 * 2, if len > MIB { 1 } else { 16 });
        fill(&theirs, count * len, seed);
        let statuses = run(&peer, &requests(&ours, &remote, len, count, true));
        assert_eq!(statuses, vec![Status::Done; count as usize]);
        assert!(is_filled(&ours, count * len, seed), "read {count} of {len}");
        fill(&ours, count * len, seed + 1);
        let statuses = run(&peer, &requests(&ours, &remote, len, count, false));
        assert_eq!(statuses, vec![Status::Done; count as usize]);
        assert!(
            is_filled(&theirs, count * len, seed + 1),
            "wrote {count} of {len}"
        );
    }
    let counters = transport.counters();
    assert_eq!(counters.copied_bytes, 0);
}

/// Aim: a batch costs the NIC few calls through the whole engine, too.
#[test]
fn batch_takes_a_doorbell_and_a_completion_for_16_requests() {
    let Some(device) = device() else { return };
    let (server, _, theirs) = engine("127.0.0.1:0", &[device.name()]);
    let (client, transport, ours) = engine("", &[device.name()]);
    let peer = client.open(server.addresses()).unwrap();
    let remote = peer.region(theirs.id()).unwrap();
    for (seed, len) in [(1, 64), (2, 4096), (3, 32_768)] {
        fill(&theirs, 256 * len, seed);
        let before = transport.counters();
        let statuses = run(&peer, &requests(&ours, &remote, len, 256, true));
        assert_eq!(statuses, vec![Status::Done; 256]);
        assert!(is_filled(&ours, 256 * len, seed));
        let after = transport.counters();
        let doorbells = after.doorbells - before.doorbells;
        let completions = after.completions - before.completions;
        assert_eq!(after.requests - before.requests, 256);
        assert!(
            doorbells <= 16 && completions <= 16,
            "{len}: {doorbells}, {completions}"
        );
        assert_eq!(after.copied_bytes, before.copied_bytes);
    }
}

#[test]
fn region_taken_back_is_stale_and_the_rail_goes_on() {
    let Some(device) = device() else { return };
    let (server, _, theirs) = engine("127.0.0.1:0", &[device.name()]);
    let memory = Memory::shared(MIB).unwrap();
    let other = server.register(memory, Access::Read).unwrap();
    let (client, _, ours) = engine("", &[device.name()]);
    let peer = client.open(server.addresses()).unwrap();
    let gone = peer.region(other.id()).unwrap();
    let stays = peer.region(theirs.id()).unwrap();
    let (id, timeout) = (other.id(), Duration::from_secs(10));
    drop(other);
    server.unregister(id, timeout).unwrap();
    let statuses = run(&peer, &requests(&ours, &gone, 4096, 1, true));
    assert_eq!(statuses, [Status::StaleRegion]);
    fill(&theirs, MIB, 8);
    let statuses = run(&peer, &requests(&ours, &stays, MIB, 1, true));
    assert_eq!(statuses, [Status::Done]);
    assert!(is_filled(&ours, MIB, 8));
}

#[test]
fn device_that_is_not_there_is_named() {
    let Some(device) = device() else { return };
    let open = |name: &str| {
        let devices = vec![name.to_owned()];
        RdmaTransport::open(&RdmaConfig {
            devices,
            ..RdmaConfig::default()
        })
        .err()
        .unwrap()
    };
    let unknown = open("mlx9_7");
    assert!(matches!(unknown, VerbsError::UnknownDevice { .. }));
    for port in ["/9", "/x"] {
        let error = open(&format!("{}{port}", device.name()));
        assert!(matches!(error, VerbsError::UnknownPort { .. }), "{error}");
    }
}

/// Bytes that each rail has moved.
fn moved(peer: &Peer) -> Vec<u64> {
    let rails = peer.rails();
    rails.iter().map(|rail| rail.figures.moved_len).collect()
}

/// Reads until every rail is up and has moved something since. After all rails were down, batches
/// end as [`Status::PeerLost`] until the first is probed.
fn until_both_are_used(client: &TransferEngine, peer: &Peer, batch: &[Request]) {
    let before = moved(peer);
    for _ in 0..300 {
        let statuses = run(peer, batch);
        if statuses.contains(&Status::PeerLost) {
            // Nobody notifies: this waits for a probe without using the processor.
            assert_eq!(client.notification(Duration::from_millis(100)), None);
            continue;
        }
        assert_eq!(statuses, vec![Status::Done; batch.len()]);
        let is_up = |up: &RailState| *up == RailState::Up;
        let are_up = peer.rails().iter().all(|rail| is_up(&rail.figures.state));
        let now = moved(peer);
        if are_up && before.iter().zip(&now).all(|(before, now)| now > before) {
            return;
        }
    }
    panic!("a rail is not used: {before:?}, then {:?}", moved(peer));
}

#[test]
fn two_rails_carry_a_batch_and_one_that_is_down_comes_back() {
    let (Some(_), Some(role)) = (device(), role()) else {
        return;
    };
    let mut agreement = Agreement::meet(role, 7010);
    let at = format!("{}:7011", agreement.second());
    if role == Role::Second {
        let (engine, _, region) = engine(&at, &["rxe0", "rxe1"]);
        fill(&region, 32 * MIB, 3);
        agreement.say("ready");
        serve_links(&mut agreement);
        drop(engine);
        return;
    }
    assert_eq!(agreement.hear(), "ready");
    let (client, transport, ours) = engine("", &["rxe0", "rxe1"]);
    assert_eq!(transport.ports(), ["rxe0/1", "rxe1/1"]);
    let peer = client.open(&[at.parse().unwrap()]).unwrap();
    let remote = peer.regions()[0].clone();
    let batch = requests(&ours, &remote, MIB, 16, true);
    until_both_are_used(&client, &peer, &batch);
    assert!(is_filled(&ours, 16 * MIB, 3));

    // One link goes down under way: all arrives over the other.
    fill(&ours, 32 * MIB, 4);
    let long = requests(&ours, &remote, MIB, 32, true);
    let mut transfer = peer.submit(&long, BatchOptions::default()).unwrap();
    agreement.tell("down eth0");
    let statuses = transfer.wait(Duration::from_secs(60)).unwrap();
    assert_eq!(statuses, vec![Status::Done; 32]);
    assert!(is_filled(&ours, 32 * MIB, 3));
    agreement.tell("up eth0");
    until_both_are_used(&client, &peer, &batch);

    // Without any link the batch ends by name, and works again with them.
    agreement.tell("down eth0");
    agreement.tell("down eth1");
    let statuses = run(&peer, &long);
    assert!(statuses.contains(&Status::PeerLost), "{statuses:?}");
    agreement.tell("up eth0");
    agreement.tell("up eth1");
    until_both_are_used(&client, &peer, &batch);
    agreement.say("end");
}

/// Takes links down and up as the other machine asks.
fn serve_links(agreement: &mut Agreement) {
    loop {
        let line = agreement.hear();
        let Some((state, interface)) = line.split_once(' ') else {
            return;
        };
        set_link(interface, state);
        agreement.say("done");
    }
}
