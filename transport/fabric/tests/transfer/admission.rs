//! Who may open an engine, and what is left of one who is sent away.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use terrace_fabric::transfer::limits::TICKET_COUNT_MAX;
use terrace_fabric::transfer::{
    Access, Admission, BatchOptions, EngineConfig, LocalPart, Memory, Peer, Region, RemotePart,
    Request, Status, Ticket, TransferEngine, TransferError, TransportChoice, TransportKind,
};

use crate::fake::{Does, Fake};
use crate::pair::{HANG, bytes_of, config, fill};

const LEN: u64 = 32 << 20;

fn owner() -> (TransferEngine, Arc<Region>) {
    let engine = TransferEngine::start(EngineConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        admission: Admission::Invited,
        ..EngineConfig::default()
    })
    .unwrap();
    let region = engine
        .register(Memory::shared(LEN).unwrap(), Access::Read)
        .unwrap();
    (engine, region)
}

fn opener(lost_timeout: Duration) -> (TransferEngine, Arc<Region>) {
    let engine = TransferEngine::start(EngineConfig {
        lost_timeout,
        ..config(TransportKind::Tcp)
    })
    .unwrap();
    let region = engine
        .register(Memory::shared(LEN).unwrap(), Access::Local)
        .unwrap();
    (engine, region)
}

/// Reads of a MiB each, over all of the region.
fn reads(peer: &Peer, local: &Arc<Region>, remote: &Arc<Region>) -> Vec<Request> {
    let remote = peer.region(remote.id()).unwrap();
    let request = |offset| {
        let local = LocalPart {
            region: Arc::clone(local),
            offset,
            len: 1 << 20,
        };
        let remote = RemotePart {
            region: Arc::clone(&remote),
            offset,
            len: 1 << 20,
        };
        Request::read(local, remote)
    };
    (0..LEN).step_by(1 << 20).map(request).collect()
}

fn is_refused(opened: Result<Peer, TransferError>) -> bool {
    let refused = opened.map(drop).unwrap_err().to_string();
    refused.contains("openers with a ticket only")
}

#[test]
fn uninvited_opener_is_refused_and_an_invited_one_reads() {
    let (owner, served) = owner();
    let (opener, local) = opener(HANG);
    let bytes = fill(&served, 1);
    assert!(is_refused(opener.open(owner.addresses())));
    let forged = Ticket::from_bytes([7; 16]);
    assert!(is_refused(opener.open_as(owner.addresses(), &forged)));
    let ticket = owner.invite().unwrap();
    for _ in 0..2 {
        // It may come back after it has left.
        let peer = opener.open_as(owner.addresses(), &ticket).unwrap();
        assert!(!peer.is_shared());
        let batch = reads(&peer, &local, &served);
        let mut transfer = peer.submit(&batch, BatchOptions::default()).unwrap();
        let statuses = transfer.wait(HANG).unwrap();
        assert!(statuses.iter().all(|status| *status == Status::Done));
        assert!(bytes_of(&local, 0, LEN) == bytes);
        fill(&local, 9);
    }
}

#[test]
fn shared_memory_is_not_offered_to_invited_openers() {
    let (owner, _served) = owner();
    let only_shared = TransferEngine::start(EngineConfig {
        transports: TransportChoice::Only(TransportKind::SharedMemory),
        ..EngineConfig::default()
    })
    .unwrap();
    let ticket = owner.invite().unwrap();
    let refused = only_shared.open_as(owner.addresses(), &ticket).map(drop);
    assert!(matches!(refused, Err(TransferError::Unreachable { .. })));
}

#[test]
fn expelled_opener_reads_nothing_that_was_written_afterwards() {
    let (owner, served) = owner();
    let (opener, local) = opener(Duration::from_millis(50));
    let mut cut_off = 0;
    for round in 0..20 {
        let old = fill(&served, 2 * round);
        let ticket = owner.invite().unwrap();
        let peer = opener.open_as(owner.addresses(), &ticket).unwrap();
        let batch = [reads(&peer, &local, &served), reads(&peer, &local, &served)].concat();
        let mut transfer = peer.submit(&batch, BatchOptions::default()).unwrap();
        owner.expel(&ticket, HANG).unwrap();
        fill(&served, 2 * round + 1);
        let statuses = transfer.wait(HANG).unwrap();
        let (first, second) = statuses.split_at(statuses.len() / 2);
        for (at, both) in first.iter().zip(second).enumerate() {
            if both == (&Status::Done, &Status::Done) {
                let offset = (at as u64) << 20;
                let expected = &old[offset as usize..][..1 << 20];
                assert!(bytes_of(&local, offset, 1 << 20) == expected);
            } else {
                cut_off += 1;
            }
        }
        assert!(is_refused(opener.open_as(owner.addresses(), &ticket)));
        // Nothing is left to end.
        owner.expel(&ticket, HANG).unwrap();
    }
    assert!(cut_off > 0, "no read was under way");
}

#[test]
fn expelling_one_opener_leaves_the_others_alone() {
    let (owner, served) = owner();
    let (opener, local) = opener(HANG);
    let bytes = fill(&served, 1);
    let (gone, stays) = (owner.invite().unwrap(), owner.invite().unwrap());
    let _first = opener.open_as(owner.addresses(), &gone).unwrap();
    let peer = opener.open_as(owner.addresses(), &stays).unwrap();
    let batch = reads(&peer, &local, &served);
    let mut transfer = peer.submit(&batch, BatchOptions::default()).unwrap();
    owner.expel(&gone, HANG).unwrap();
    let statuses = transfer.wait(HANG).unwrap();
    assert!(statuses.iter().all(|status| *status == Status::Done));
    assert!(bytes_of(&local, 0, LEN) == bytes);
}

/// The code of the welcome that a hello is answered with.
fn welcome(owner: &TransferEngine, purpose: u8, token: [u8; 16]) -> u8 {
    let mut stream = TcpStream::connect(owner.addresses()[0]).unwrap();
    let head = [b"TERRXFER\x01\x00".as_slice(), &[purpose, 0, 0, 0, 0, 0]].concat();
    stream
        .write_all(&[head.as_slice(), &token].concat())
        .unwrap();
    let mut welcome = [0; 32];
    stream.read_exact(&mut welcome).unwrap();
    welcome[10]
}

#[test]
fn lane_is_taken_only_of_who_has_opened_with_its_ticket() {
    const CONTROL: u8 = 1;
    const LANE: u8 = 2;
    const ACCEPTED: u8 = 0;
    const NOT_INVITED: u8 = 4;
    let (owner, _served) = owner();
    let (opener, _local) = opener(HANG);
    let (used, unused) = (owner.invite().unwrap(), owner.invite().unwrap());
    let _peer = opener.open_as(owner.addresses(), &used).unwrap();
    for token in [[0; 16], [7; 16], unused.bytes()] {
        assert_eq!(welcome(&owner, LANE, token), NOT_INVITED);
    }
    assert_eq!(welcome(&owner, LANE, used.bytes()), ACCEPTED);
    assert_eq!(welcome(&owner, CONTROL, [0; 16]), NOT_INVITED);
    owner.expel(&used, HANG).unwrap();
    for purpose in [CONTROL, LANE] {
        assert_eq!(welcome(&owner, purpose, used.bytes()), NOT_INVITED);
    }
}

#[test]
fn expel_that_does_not_wait_names_who_is_there_and_is_tried_again() {
    let (owner, _served) = owner();
    let (opener, _local) = opener(HANG);
    let ticket = owner.invite().unwrap();
    let _peer = opener.open_as(owner.addresses(), &ticket).unwrap();
    if let Err(error) = owner.expel(&ticket, Duration::ZERO) {
        assert!(error.to_string().contains(" from 127.0.0.1:"), "{error}");
    }
    owner.expel(&ticket, HANG).unwrap();
    assert!(is_refused(opener.open_as(owner.addresses(), &ticket)));
}

/// Aim: a fence holds for queue pairs too, also of an opener that leaves at the same time.
#[test]
fn expelled_opener_has_no_session_left() {
    let fake = Fake::new(Does::Refuse, false);
    let owner = TransferEngine::start_with(
        EngineConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            admission: Admission::Invited,
            ..EngineConfig::default()
        },
        vec![Arc::clone(&fake) as _],
    );
    let owner = owner.unwrap();
    let opener = TransferEngine::start_with(
        EngineConfig::default(),
        vec![Fake::new(Does::Refuse, false)],
    );
    let opener = opener.unwrap();
    for round in 0..20 {
        let ticket = owner.invite().unwrap();
        let peer = opener.open_as(owner.addresses(), &ticket).unwrap();
        let kept = (round % 2 == 0).then_some(peer);
        owner.expel(&ticket, HANG).unwrap();
        assert_eq!(fake.sessions_ended.load(Ordering::SeqCst), round + 1);
        drop(kept);
    }
}

#[test]
fn tickets_beyond_the_count_are_refused_until_one_is_taken_back() {
    let (owner, _served) = owner();
    let tickets: Vec<Ticket> = (0..TICKET_COUNT_MAX)
        .map(|_| owner.invite().unwrap())
        .collect();
    let refused = owner.invite();
    assert!(matches!(refused, Err(TransferError::TooManyTickets { max }) if max == tickets.len()));
    owner.expel(&tickets[0], HANG).unwrap();
    assert!(owner.invite().is_ok());
}
