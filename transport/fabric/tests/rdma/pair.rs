//! Two machines: the same between two NICs, and links that go down and come back.
//!
//! Both run every test at the same time. The second serves: it offers memory and does what the
//! first asks for over a connection of their own, on the last network between them.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use terrace_fabric::verbs::{
    Access, Device, Operation, QueuePairAddress, QueuePairState, RemoteSlice, Status, WorkRequest,
};

use crate::faults::set_link;
use crate::fixture::{End, device};

const MIB: usize = 1 << 20;

/// Which of the two machines this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Reads and writes.
    First,
    /// Is read and written.
    Second,
}

pub(crate) fn role() -> Option<Role> {
    let of = |name| std::env::var(name).unwrap_or_default();
    match (of("VM_COUNT").as_str(), of("VM_INDEX").as_str()) {
        ("2", "1") => Some(Role::First),
        ("2", "2") => Some(Role::Second),
        _ => {
            eprintln!("skipped: takes two machines");
            None
        }
    }
}

/// The connection over which the two agree: lines of words.
pub(crate) struct Agreement {
    second: String,
    lines: BufReader<TcpStream>,
}

impl Agreement {
    /// Meets the other machine; each test has a port of its own.
    pub(crate) fn meet(role: Role, port: u16) -> Self {
        let addresses = std::env::var("VM_ADDRS").unwrap();
        let network = addresses.split_whitespace().count() - 1;
        let address = format!("10.77.{network}.2");
        let second = format!("{address}:{port}");
        let stream = match role {
            Role::Second => TcpListener::bind(&second).unwrap().accept().unwrap().0,
            Role::First => loop {
                // Refused until the other has got to this test; the run has a limit of its own.
                match TcpStream::connect(&second) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::yield_now(),
                }
            },
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let lines = BufReader::new(stream);
        Self {
            second: address,
            lines,
        }
    }

    /// The second machine's address on the network that no test takes down.
    pub(crate) fn second(&self) -> &str {
        &self.second
    }

    /// Says something that the other answers when it has done it.
    pub(crate) fn tell(&mut self, line: &str) {
        self.say(line);
        assert_eq!(self.hear(), "done");
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.lines.get_mut(), "{line}").unwrap();
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Tells the peer of this end, and connects to what it tells; the peer's memory.
    fn connect(&mut self, end: &mut End) -> RemoteSlice {
        let own = end.region.remote(0, end.region.len()).unwrap();
        let address = end.queue_pair.address().encode();
        let hex: String = address.iter().map(|byte| format!("{byte:02x}")).collect();
        self.say(&format!("{hex} {} {}", own.address, own.rkey));
        let line = self.hear();
        let words: Vec<&str> = line.split(' ').collect();
        let byte = |index: usize| u8::from_str_radix(&words[0][2 * index..2 * index + 2], 16);
        let bytes: [u8; QueuePairAddress::LEN] = std::array::from_fn(|index| byte(index).unwrap());
        let peer = QueuePairAddress::decode(&bytes).unwrap();
        end.queue_pair.connect(&peer).unwrap();
        // Nobody asks for anything before both are there.
        self.say("connected");
        assert_eq!(self.hear(), "connected");
        RemoteSlice {
            address: words[1].parse().unwrap(),
            rkey: words[2].parse().unwrap(),
        }
    }
}

/// What the second machine does until it hears an end: fills and checks its memory.
fn serve(agreement: &mut Agreement, end: &mut End) {
    loop {
        let line = agreement.hear();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        match words[0] {
            "fill" => {
                end.memory.fill(number(1) as usize, number(2));
                agreement.say("filled");
            }
            "check" => {
                let is_filled = end.memory.is_filled(number(1) as usize, number(2));
                agreement.say(if is_filled { "as written" } else { "differs" });
            }
            "link" => {
                set_link("eth0", words[1]);
                agreement.say("done");
            }
            "renew" => {
                end.queue_pair.disconnect(&mut Vec::new()).unwrap();
                end.queue_pair.renew().unwrap();
                agreement.connect(end);
            }
            _ => return,
        }
    }
}

fn end(device: &Device) -> End {
    let mut end = End::new(device, 32 * MIB, Access::RemoteReadWrite, true);
    // An emulated network drops what comes in long bursts, more often than a NIC tries again.
    end.part_len_max = 64 << 10;
    end.batch_len = 4;
    end
}

#[test]
fn read_and_write_between_machines_arrive() {
    let (Some(device), Some(role)) = (device(), role()) else {
        return;
    };
    let mut agreement = Agreement::meet(role, 7001);
    let mut end = end(&device);
    let peer = agreement.connect(&mut end);
    if role == Role::Second {
        return serve(&mut agreement, &mut end);
    }
    for (seed, len) in [1, 4097, 65_536, 3 * MIB + 5].into_iter().enumerate() {
        let seed = seed as u64 * 2;
        agreement.say(&format!("fill {len} {seed}"));
        assert_eq!(agreement.hear(), "filled");
        end.transfer(peer, len as u64, true);
        assert!(end.memory.is_filled(len, seed), "read {len} bytes");
        end.memory.fill(len, seed + 1);
        end.transfer(peer, len as u64, false);
        agreement.say(&format!("check {len} {}", seed + 1));
        assert_eq!(agreement.hear(), "as written", "wrote {len} bytes");
    }
    agreement.say("end");
}

#[test]
fn link_of_the_peer_down_under_way_ends_by_name_and_works_again_when_up() {
    link_down(7002, Role::Second);
}

#[test]
fn link_of_this_end_down_under_way_ends_by_name_and_works_again_when_up() {
    link_down(7003, Role::First);
}

/// Reads while the link of one of the two goes down, and again when it is up.
fn link_down(port: u16, whose: Role) {
    let (Some(device), Some(role)) = (device(), role()) else {
        return;
    };
    let mut agreement = Agreement::meet(role, port);
    let mut end = end(&device);
    let peer = agreement.connect(&mut end);
    if role == Role::Second {
        return serve(&mut agreement, &mut end);
    }
    let set = |agreement: &mut Agreement, state: &str| match whose {
        Role::First => set_link("eth0", state),
        Role::Second => {
            agreement.tell(&format!("link {state}"));
        }
    };
    end.part_len_max = MIB as u64;
    let parts = end.parts(32 * MIB as u64);
    let requests = parts.iter().map(|(offset, len)| WorkRequest {
        token: *offset,
        operation: Operation::Read {
            into: end.slice(*offset, *len),
            from: RemoteSlice {
                address: peer.address + offset,
                ..peer
            },
        },
    });
    let requests = requests.collect();
    agreement.say(&format!("fill {} 9", 32 << 20));
    assert_eq!(agreement.hear(), "filled");
    end.queue_pair.post(requests).unwrap();
    set(&mut agreement, "down");
    // The NIC gives up by itself, long before the patience of this test ends.
    let ended = end.ended(parts.len());
    let first_failed = ended.iter().find(|one| !one.status.is_success()).unwrap();
    assert!(first_failed.status.is_of_the_way(), "{ended:?}");
    if whose == Role::Second {
        assert_eq!(first_failed.status, Status::RetriesExceeded);
    }
    assert_eq!(end.queue_pair.state(), QueuePairState::Failed);

    set(&mut agreement, "up");
    agreement.say("renew");
    end.queue_pair.disconnect(&mut Vec::new()).unwrap();
    end.queue_pair.renew().unwrap();
    end.part_len_max = 64 << 10;
    let peer = agreement.connect(&mut end);
    agreement.say("fill 1000000 5");
    assert_eq!(agreement.hear(), "filled");
    end.transfer(peer, 1_000_000, true);
    assert!(end.memory.is_filled(1_000_000, 5));
    agreement.say("end");
}
