//! Cancelled transfers: their memory is overwritten at once, and must stay as it is.

use terrace_fabric::transfer::{BatchOptions, Request, Status, Transfer, TransportKind};

use crate::pair::{HANG, Pair, bytes_of, fill};

/// Cancelled transfers of one run; the full count is 10,000.
const COUNT_ENV: &str = "TERRACE_CANCEL_COUNT";
const COUNT_USUAL: u64 = 600;

const LEN: u64 = 2 << 20;

fn count() -> u64 {
    let given = std::env::var(COUNT_ENV).ok();
    given.map_or(COUNT_USUAL, |count| count.parse().expect(COUNT_ENV))
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Waits for a part of a transfer that differs from time to time.
fn let_run(transfer: &mut Transfer, random: &mut Random) {
    let _ = transfer.wait(std::time::Duration::from_micros(random.below(400)));
}

fn nothing_is_written_after_a_cancel(kind: TransportKind, rails: usize) {
    let pair = Pair::new(kind, rails, 8 * LEN);
    fill(&pair.served, 7);
    let mut random = Random(3);
    // Load beside what is cancelled.
    let load = Request::read(pair.local(4 * LEN, 4 * LEN), pair.remote(4 * LEN, 4 * LEN));
    let mut load_transfer = None;
    let (mut cancelled, mut done) = (0, 0);
    let marks = vec![0xa5; LEN as usize];
    for round in 0..count() {
        if load_transfer.as_ref().is_none_or(Transfer::is_over) {
            let again = pair
                .peer
                .submit(std::slice::from_ref(&load), BatchOptions::default());
            load_transfer = Some(again.unwrap());
        }
        let slot = round % 2 * LEN;
        let requests: Vec<Request> = if round % 4 < 3 {
            let part = LEN / 8;
            let at = |i: u64| slot + i * part;
            let read = |i| Request::read(pair.local(at(i), part), pair.remote(at(i), part));
            (0..8).map(read).collect()
        } else {
            vec![Request::write(
                pair.local(slot, LEN),
                pair.remote(2 * LEN, LEN),
            )]
        };
        let mut transfer = pair
            .peer
            .submit(&requests, BatchOptions::default())
            .unwrap();
        let_run(&mut transfer, &mut random);
        let statuses = transfer.cancel();
        for status in statuses {
            assert!(
                matches!(status, Status::Cancelled | Status::Done),
                "{status}"
            );
            cancelled += u64::from(status == Status::Cancelled);
            done += u64::from(status == Status::Done);
        }
        // Both ends are the caller's again: nothing may come into either.
        assert!(pair.local.memory().write_at(slot, &marks));
        assert!(pair.served.memory().write_at(2 * LEN, &marks));
        if random.below(4) == 0 {
            let small = Request::read(pair.local(3 * LEN, 64), pair.remote(0, 64));
            let mut small = pair.peer.submit(&[small], BatchOptions::default()).unwrap();
            assert_eq!(small.wait(HANG), Some(vec![Status::Done]));
        }
        assert!(bytes_of(&pair.local, slot, LEN) == marks, "round {round}");
        assert!(
            bytes_of(&pair.served, 2 * LEN, LEN) == marks,
            "round {round}"
        );
    }
    eprintln!(
        "{} transfers: {cancelled} requests cancelled, {done} done before",
        count()
    );
    assert!(cancelled > 0);
    drop(load_transfer);
    // With the pins of all that gone too, the region is the caller's.
    pair.opener.unregister(pair.local.id(), HANG).unwrap();
    pair.owner.unregister(pair.served.id(), HANG).unwrap();
}

#[test]
fn tcp_nothing_is_written_after_a_cancel() {
    nothing_is_written_after_a_cancel(TransportKind::Tcp, 1);
}

#[test]
fn tcp_nothing_is_written_after_a_cancel_over_two_rails() {
    nothing_is_written_after_a_cancel(TransportKind::Tcp, 2);
}

#[test]
fn shm_nothing_is_written_after_a_cancel() {
    nothing_is_written_after_a_cancel(TransportKind::SharedMemory, 1);
}
