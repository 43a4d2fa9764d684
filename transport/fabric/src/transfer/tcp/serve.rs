//! The other end of a lane: answers groups out of and into this engine's regions, on a thread
//! of the lane's own.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::transfer::error::Status;
use crate::transfer::region::RegionPin;
use crate::transfer::table::RegionTable;
use crate::transfer::transport::Operation;
use crate::transfer::vectored::{Incoming, Outgoing};
use crate::transfer::wire::{
    ENTRY_LEN, Entry, GROUP_HEAD_LEN, decode_entries, decode_group, encode_answer,
};

/// Bytes of refused writes that are thrown away at once.
const SCRATCH_LEN: usize = 64 << 10;

/// A slice that was granted, or what it was refused with.
struct Granted {
    entry: Entry,
    pin: Result<RegionPin, Status>,
}

/// Serves a lane until the opener leaves or says something that is not of this protocol.
/// `is_busy` is set while regions are in use.
pub(in crate::transfer) fn serve(
    stream: &TcpStream,
    regions: &RegionTable,
    is_busy: &AtomicBool,
) -> io::Result<()> {
    let mut head = [0; GROUP_HEAD_LEN];
    let mut scratch = vec![0; SCRATCH_LEN];
    loop {
        (&*stream).read_exact(&mut head)?;
        let (operation, sequence, count) = decode_group(&head).ok_or_else(not_ours)?;
        let mut entries = vec![0; count * ENTRY_LEN];
        (&*stream).read_exact(&mut entries)?;
        let entries = decode_entries(&entries).ok_or_else(not_ours)?;
        is_busy.store(true, Ordering::Release);
        let grant = |entry: Entry| Granted {
            pin: regions.grant(entry.region, operation, entry.offset, u64::from(entry.len)),
            entry,
        };
        let granted: Vec<Granted> = entries.into_iter().map(grant).collect();
        let statuses: Vec<Status> = granted
            .iter()
            .map(|granted| granted.pin.as_ref().err().copied().unwrap_or(Status::Done))
            .collect();
        let answer = encode_answer(sequence, &statuses);
        match operation {
            Operation::Read => send_all(stream, &answer, &granted)?,
            Operation::Write => {
                receive_all(stream, &granted, &mut scratch)?;
                // The opener may reuse its memory, and its peer's, after the answer.
                drop(granted);
                (&*stream).write_all(&answer)?;
            }
        }
        is_busy.store(false, Ordering::Release);
    }
}

/// Sends an answer and the payloads that belong to it.
fn send_all(stream: &TcpStream, answer: &[u8], granted: &[Granted]) -> io::Result<()> {
    let payload: u64 = granted
        .iter()
        .filter(|granted| granted.pin.is_ok())
        .map(|granted| u64::from(granted.entry.len))
        .sum();
    let (mut sent, whole) = (0, answer.len() as u64 + payload);
    while sent < whole {
        let mut out = Outgoing::default();
        if sent < answer.len() as u64 {
            out.push(&answer[sent as usize..]);
        }
        let mut skip = sent.saturating_sub(answer.len() as u64);
        for Granted { entry, pin } in granted {
            let Ok(pin) = pin else { continue };
            let len = u64::from(entry.len);
            let from = skip.min(len);
            skip -= from;
            if from < len {
                out.push_memory(pin.memory(), entry.offset + from, len - from);
            }
        }
        sent += retried(|| out.send(stream.as_fd()))? as u64;
    }
    Ok(())
}

/// Receives the payload of a group of writes to where it belongs.
fn receive_all(stream: &TcpStream, granted: &[Granted], scratch: &mut [u8]) -> io::Result<()> {
    let whole: u64 = granted
        .iter()
        .map(|granted| u64::from(granted.entry.len))
        .sum();
    let mut received = 0;
    while received < whole {
        let mut into = Incoming::default();
        let mut skip = received;
        for Granted { entry, pin } in granted {
            let len = u64::from(entry.len);
            let from = skip.min(len);
            skip -= from;
            if from == len {
                continue;
            }
            let Ok(pin) = pin else {
                let thrown = (len - from).min(SCRATCH_LEN as u64) as usize;
                into.push(&mut scratch[..thrown]);
                break;
            };
            into.push_memory(pin.memory(), entry.offset + from, len - from);
        }
        match retried(|| into.receive(stream.as_fd()))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => received += count as u64,
        }
    }
    Ok(())
}

fn retried(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn not_ours() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not of this protocol")
}
