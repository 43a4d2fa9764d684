//! The device in memory: what it forgets, and that each fault does what it says.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use super::*;
use crate::buffer::AlignedBuffer;

const LEN: u32 = UNIT as u32;

fn filled(byte: u8, units: usize) -> IoBuffer {
    let mut buffer = AlignedBuffer::zeroed(units * UNIT as usize);
    buffer.bytes_mut().fill(byte);
    IoBuffer::Owned(buffer)
}

/// Submits, reaps, and returns the outcome, which must be there then.
fn run(device: &MemDevice, future: IoFuture) -> IoOutcome {
    device.submit();
    device.reap(Nanos::MAX);
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("not completed"),
    }
}

fn write(device: &MemDevice, unit: u64, byte: u8) -> Result<(), IoError> {
    let future = device.write(unit * UNIT, LEN, filled(byte, 1), Nanos::MAX);
    run(device, future).result
}

fn read(device: &MemDevice, unit: u64) -> Result<Vec<u8>, IoError> {
    let future = device.read(unit * UNIT, LEN, filled(0xee, 1), Nanos::MAX);
    let outcome = run(device, future);
    let buffer = outcome.buffer.unwrap().owned().unwrap();
    outcome.result.map(|()| buffer.bytes().to_vec())
}

fn flush(device: &MemDevice) {
    run(device, device.flush(Nanos::MAX)).result.unwrap();
}

/// Aim: what was flushed survives, every subset of the rest can, and a write at the device is
/// among the rest.
#[test]
fn crash_keeps_the_flushed_and_the_chosen() {
    let device = MemDevice::new(1 << 40);
    write(&device, 0, 1).unwrap();
    flush(&device);
    write(&device, 0, 2).unwrap();
    write(&device, 1, 3).unwrap();
    device.set_plan(|_| Behaviour {
        stuck: true,
        ..Behaviour::default()
    });
    let _flying = device.write(2 * UNIT, LEN, filled(4, 1), Nanos::MAX);
    device.submit();
    assert_eq!(device.unflushed(), 3);

    for subset in 0..8 {
        let image = device.crash(&mut |at| subset >> at & 1 == 1);
        let first = |unit: u64| image.read(unit * UNIT, 1)[0];
        assert_eq!(first(0), if subset & 1 == 1 { 2 } else { 1 });
        assert_eq!(first(1), if subset & 2 == 2 { 3 } else { 0 });
        assert_eq!(first(2), if subset & 4 == 4 { 4 } else { 0 });
    }
    let torn = device.crash_torn(&mut |at, sectors| if at == 0 { sectors - 1 } else { 0 });
    let bytes = torn.read(0, LEN);
    assert!(bytes[..7 * 512].iter().all(|byte| *byte == 2));
    assert!(bytes[7 * 512..].iter().all(|byte| *byte == 1));

    let again = MemDevice::from_image(torn, None);
    assert_eq!(read(&again, 0).unwrap(), bytes);
    assert_eq!(again.unflushed(), 0);
}

/// Aim: a flush covers the writes completed before it was asked for, and no later ones.
#[test]
fn flush_covers_earlier_writes_only() {
    let device = MemDevice::new(1 << 20);
    write(&device, 0, 1).unwrap();
    device.set_plan(|operation| Behaviour {
        stuck: operation.kind == Kind::Flush,
        ..Behaviour::default()
    });
    let early = device.flush(Nanos::MAX);
    device.submit();
    write(&device, 1, 2).unwrap();
    device.release_stuck();
    run(&device, early).result.unwrap();
    let image = device.crash(&mut |_| false);
    assert_eq!(image.read(0, 1)[0], 1);
    assert_eq!(image.read(UNIT, 1)[0], 0, "completed after the flush began");
    assert_eq!(device.counts().flushes, 1);
    assert_eq!(device.counts().bytes_written, 2 * UNIT);
}

/// Aim: every fault does what it says.
#[test]
fn faults_do_what_they_say() {
    let device = MemDevice::new(1 << 20);
    let next = |fault: Fault| {
        device.set_plan(move |_| fault.into());
    };
    write(&device, 0, 1).unwrap();
    write(&device, 0, 2).unwrap();
    write(&device, 5, 5).unwrap();

    next(Fault::Stale);
    assert_eq!(read(&device, 0).unwrap()[0], 1);
    assert_eq!(read(&device, 9).unwrap()[0], 0, "never written");
    next(Fault::Misdirected { offset: 5 * UNIT });
    assert_eq!(read(&device, 0).unwrap()[0], 5);
    next(Fault::BitFlip { bit: 9 });
    assert_eq!(read(&device, 0).unwrap()[..3], [2, 0, 2]);
    next(Fault::Os { errno: libc::EIO });
    let errno = libc::EIO;
    assert_eq!(read(&device, 0).unwrap_err(), IoError::Os { errno });
    let short = IoError::Short {
        done: 512,
        wanted: LEN,
    };
    next(Fault::Short { done: 512 });
    assert_eq!(read(&device, 0).unwrap_err(), short);
    assert_eq!(write(&device, 0, 3).unwrap_err(), short);
    next(Fault::Torn { sectors: 2 });
    write(&device, 0, 4).unwrap();
    next(Fault::Misdirected { offset: 6 * UNIT });
    write(&device, 0, 7).unwrap();

    device.clear_plan();
    let bytes = read(&device, 0).unwrap();
    assert_eq!((bytes[0], bytes[1023], bytes[1024]), (4, 4, 2));
    assert_eq!(read(&device, 6).unwrap()[0], 7);
}

/// Aim: a stuck operation resolves at its deadline and keeps its memory until it is released.
#[test]
fn stuck_operation_expires_and_keeps_its_memory() {
    let device = MemDevice::new(1 << 20);
    device.set_plan(|_| Behaviour {
        stuck: true,
        ..Behaviour::default()
    });
    let future = device.read(0, LEN, filled(0, 1), Nanos(100));
    device.submit();
    assert_eq!(device.completion(), Completion::At(Nanos::MAX));
    device.expire(Nanos(99));
    device.expire(Nanos(100));
    let outcome = run(&device, future);
    assert_eq!(outcome.result.unwrap_err(), IoError::TimedOut);
    assert!(outcome.buffer.is_none());
    assert_eq!((device.in_flight(), device.ops.late()), (1, 1));
    device.release_stuck();
    assert_eq!(device.reap(Nanos(101)), 1);
    assert_eq!((device.in_flight(), device.ops.late()), (0, 0));
}

/// Aim: operations take their time by the clock, and the same seed draws the same.
#[test]
fn latency_follows_the_clock_and_the_seed() {
    struct At(Cell<Nanos>);
    impl Clock for At {
        fn now(&self) -> Nanos {
            self.0.get()
        }
    }
    let clock = Rc::new(At(Cell::new(Nanos(1000))));
    let device = MemDevice::from_image(MemImage::empty(1 << 20), Some(clock));
    let draws = |seed: u64| {
        let mut faults = SeededFaults::new(
            seed,
            Duration::from_nanos(500),
            vec![(100, Fault::Stale), (100, Fault::Os { errno: libc::EIO })],
        );
        let operation = Operation::new(Kind::Read, 0, LEN);
        (0..1000)
            .map(|_| faults.draw(&operation))
            .collect::<Vec<_>>()
    };
    assert_eq!(draws(7), draws(7));
    assert_ne!(draws(7), draws(8));
    let stale = draws(7)
        .iter()
        .filter(|b| b.fault == Some(Fault::Stale))
        .count();
    assert!((50..200).contains(&stale), "{stale} of 1000");

    device.set_plan(|_| Behaviour {
        latency: Duration::from_nanos(300),
        ..Behaviour::default()
    });
    let _future = device.read(0, LEN, filled(0, 1), Nanos::MAX);
    device.submit();
    assert_eq!(device.completion(), Completion::At(Nanos(1300)));
    assert_eq!(device.reap(Nanos(1299)), 0);
    assert_eq!(device.reap(Nanos(1300)), 1);
}

#[test]
#[should_panic(expected = "in memory of 4096")]
fn read_past_its_memory_is_refused() {
    let device = MemDevice::new(1 << 20);
    drop(device.read(0, 2 * LEN, filled(0, 1), Nanos::MAX));
}

/// Aim: memory that changes hands while the device has it is noticed, on two devices as on one.
#[test]
fn memory_used_by_others_while_an_operation_has_it_is_told() {
    let region = terrace_slab::RegisteredRegion::allocate(2 * LEN as usize).unwrap();
    let memory = || IoBuffer::Region(region.clone());
    let (one, other) = (MemDevice::new(UNIT), MemDevice::new(UNIT));
    run(&one, one.write(0, LEN, memory(), Nanos::MAX))
        .result
        .unwrap();
    run(&one, one.read(0, LEN, memory(), Nanos::MAX))
        .result
        .unwrap();
    assert_eq!(one.misuses(), Vec::<String>::new());
    let reading = one.read(0, LEN, memory(), Nanos::MAX);
    run(&other, other.write(0, LEN, memory(), Nanos::MAX))
        .result
        .unwrap();
    assert_eq!(other.misuses().len(), 1, "{:?}", other.misuses());
    region.copy_from(&[7]);
    run(&one, reading).result.unwrap();
    assert_eq!(one.misuses().len(), 1, "{:?}", one.misuses());
    let writing = one.write(0, LEN, memory(), Nanos::MAX);
    region.copy_from(&[8]);
    run(&one, writing).result.unwrap();
    assert_eq!(one.misuses().len(), 2, "{:?}", one.misuses());
}
