//! Rails of several kinds to one peer: what one of them cannot move goes by another, and one whose
//! code panics takes nothing with it.

use std::sync::Arc;
use std::time::Duration;

use terrace_fabric::transfer::{
    Access, BatchOptions, EngineConfig, LocalPart, Memory, Peer, Region, RemotePart, Request,
    Status, TransferEngine, TransportChoice, TransportKind,
};

use crate::fake::{Does, Fake, KEYED_LEN_MAX};
use crate::pair::{HANG, bytes_of, fill};

const SHORT: u64 = 64 << 10;
const LONG: u64 = KEYED_LEN_MAX;

struct Ends {
    // Dropped first: its threads use the engine.
    peer: Peer,
    opener: TransferEngine,
    owner: TransferEngine,
}

/// Two engines with such a transport each, beside TCP.
fn ends(does: Does, transports: TransportChoice) -> Ends {
    let owner = TransferEngine::start_with(
        EngineConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            ..EngineConfig::default()
        },
        vec![Fake::new(does, false)],
    );
    let owner = owner.unwrap();
    let opener = TransferEngine::start_with(
        EngineConfig {
            transports,
            lost_timeout: Duration::from_millis(50),
            ..EngineConfig::default()
        },
        vec![Fake::new(does, true)],
    );
    let opener = opener.unwrap();
    let peer = opener.open(owner.addresses()).unwrap();
    Ends {
        peer,
        opener,
        owner,
    }
}

impl Ends {
    /// A region of the owner. It is no memfd, so that it goes over rails.
    fn served(&self, len: u64) -> Arc<Region> {
        let memory = Memory::host(len).unwrap();
        let region = self.owner.register(memory, Access::ReadWrite).unwrap();
        self.peer.refresh().unwrap();
        region
    }

    fn local(&self, len: u64) -> Arc<Region> {
        let memory = Memory::host(len).unwrap();
        self.opener.register(memory, Access::Local).unwrap()
    }

    /// `len` bytes of both regions from `offset` on.
    fn parts(
        &self,
        local: &Arc<Region>,
        served: &Region,
        offset: u64,
        len: u64,
    ) -> (LocalPart, RemotePart) {
        let local = LocalPart {
            region: Arc::clone(local),
            offset,
            len,
        };
        let remote = RemotePart {
            region: self.peer.region(served.id()).unwrap(),
            offset,
            len,
        };
        (local, remote)
    }

    fn read(&self, local: &Arc<Region>, served: &Region, offset: u64, len: u64) -> Request {
        let (local, remote) = self.parts(local, served, offset, len);
        Request::read(local, remote)
    }

    fn write(&self, local: &Arc<Region>, served: &Region, offset: u64, len: u64) -> Request {
        let (local, remote) = self.parts(local, served, offset, len);
        Request::write(local, remote)
    }

    fn statuses(&self, requests: &[Request]) -> Vec<Status> {
        let mut transfer = self.peer.submit(requests, BatchOptions::default()).unwrap();
        transfer.wait(HANG).unwrap()
    }
}

#[test]
fn region_without_a_key_at_either_end_goes_over_tcp() {
    let ends = ends(Does::Refuse, TransportChoice::Auto);
    let (keyed, keyless) = (ends.served(SHORT), ends.served(LONG));
    let (local, unregistered) = (ends.local(SHORT), ends.local(LONG));
    let bytes = [fill(&keyed, 1), fill(&keyless, 2)];
    let by_rdma = ends.read(&local, &keyed, 0, SHORT);
    let requests = [
        ends.read(&local, &keyless, 0, SHORT),
        by_rdma.clone(),
        ends.read(&unregistered, &keyed, 0, SHORT),
        by_rdma,
        ends.read(&unregistered, &keyless, SHORT, LONG - SHORT),
    ];
    let (tcp, rdma) = (Status::Done, Status::UnknownRegion);
    assert_eq!(ends.statuses(&requests), [tcp, rdma, tcp, rdma, tcp]);
    assert!(bytes_of(&local, 0, SHORT) == bytes[1][..SHORT as usize]);
    assert!(bytes_of(&unregistered, 0, SHORT) == bytes[0]);
    assert!(bytes_of(&unregistered, SHORT, LONG - SHORT) == bytes[1][SHORT as usize..]);
}

#[test]
fn region_that_no_rail_can_move_is_refused_alone() {
    let only = TransportChoice::Only(TransportKind::Rdma);
    let ends = ends(Does::Refuse, only);
    let (keyed, keyless) = (ends.served(SHORT), ends.served(LONG));
    let local = ends.local(SHORT);
    let requests = [
        ends.read(&local, &keyless, 0, SHORT),
        ends.read(&local, &keyed, 0, SHORT),
    ];
    let expected = [Status::AccessDenied, Status::UnknownRegion];
    assert_eq!(ends.statuses(&requests), expected);
}

/// Reads and writes of 4 KiB in turn, each of its own bytes.
fn reads_and_writes(ends: &Ends, local: &Arc<Region>, served: &Region) -> Vec<Request> {
    let offsets = (0..SHORT).step_by(4096);
    let request = |offset: u64| {
        if offset.is_multiple_of(8192) {
            ends.read(local, served, offset, 4096)
        } else {
            ends.write(local, served, offset, 4096)
        }
    };
    offsets.map(request).collect()
}

#[test]
fn slices_of_a_rail_that_panics_go_elsewhere() {
    let ends = ends(Does::Panic, TransportChoice::Auto);
    let (served, local) = (ends.served(SHORT), ends.local(SHORT));
    let (theirs, ours) = (fill(&served, 1), fill(&local, 2));
    let statuses = ends.statuses(&reads_and_writes(&ends, &local, &served));
    assert!(statuses.iter().all(|status| *status == Status::Done));
    for offset in (0..SHORT).step_by(4096) {
        let from = if offset.is_multiple_of(8192) {
            &theirs
        } else {
            &ours
        };
        let expected = &from[offset as usize..][..4096];
        assert!(bytes_of(&local, offset, 4096) == expected, "{offset}");
        assert!(bytes_of(&served, offset, 4096) == expected, "{offset}");
    }
    // It stays down, and the rest goes on.
    assert_eq!(
        ends.statuses(&[ends.read(&local, &served, 0, SHORT)]),
        [Status::Done]
    );
    let report = ends.peer.rails();
    let failures = report.iter().map(|rail| rail.figures.failures);
    assert!(failures.max() > Some(0), "{report:?}");
}

#[test]
fn writes_of_a_rail_that_cannot_be_fenced_are_lost_and_reads_are_not() {
    let ends = ends(Does::PanicAgain, TransportChoice::Auto);
    let (served, local) = (ends.served(SHORT), ends.local(SHORT));
    let requests = reads_and_writes(&ends, &local, &served);
    let statuses = ends.statuses(&requests);
    let (reads, writes): (Vec<_>, Vec<_>) = (0..statuses.len()).partition(|at| at % 2 == 0);
    assert!(reads.iter().all(|at| statuses[*at] == Status::Done));
    let is_ended = |status| matches!(status, Status::Done | Status::PeerLost);
    assert!(writes.iter().all(|at| is_ended(statuses[*at])));
    assert!(statuses.contains(&Status::PeerLost), "{statuses:?}");
}

#[test]
fn requests_end_when_the_only_rail_panics() {
    for does in [Does::Panic, Does::PanicAgain] {
        let ends = ends(does, TransportChoice::Only(TransportKind::Rdma));
        let (served, local) = (ends.served(SHORT), ends.local(SHORT));
        let statuses = ends.statuses(&reads_and_writes(&ends, &local, &served));
        assert!(statuses.iter().all(|status| *status == Status::PeerLost));
        ends.opener.unregister(local.id(), HANG).unwrap();
    }
}
