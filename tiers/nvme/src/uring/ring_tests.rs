//! Rings of this machine's kernel on a real file with direct I/O.

use std::fs::File;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;

use nix::sys::memfd::{MFdFlags, memfd_create};
use terrace_slab::{Arena, ArenaConfig, HugepageMode, RegisteredRegion};

use super::super::probe::{probe, probe_polled};
use super::*;
use crate::buffer::AlignedBuffer;
use crate::device::{BlockDevice, DeviceInfo};
use crate::file::{DeviceSpec, OpenedDevice, open_device};
use crate::uring::UringDevice;

const LEN: u32 = UNIT as u32;

/// A device file that goes away with the test, on a file system with direct I/O.
struct Disk {
    path: PathBuf,
    opened: OpenedDevice,
}

impl Disk {
    fn new(name: &str, len: u64) -> Self {
        let build = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target");
        for root in [std::env::temp_dir(), build] {
            let path = root.join(format!("terrace-ring-{}-{name}", std::process::id()));
            if let Ok(opened) = open_device(&DeviceSpec::file(&path, len)) {
                return Self { path, opened };
            }
        }
        panic!("no folder with direct I/O");
    }

    fn on(&self, ring: &Rc<Ring>) -> UringDevice {
        let handle = std::sync::Arc::clone(&self.opened.file);
        let info = self.opened.info.clone();
        UringDevice::new(Rc::clone(ring), Rc::clone(ring), handle, info).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn ring(config: RingConfig) -> Rc<Ring> {
    Ring::new(&config, None, &[]).unwrap()
}

fn unit_of(number: u64) -> IoBuffer {
    let mut buffer = AlignedBuffer::zeroed(UNIT as usize);
    buffer.bytes_mut()[..8].copy_from_slice(&number.to_le_bytes());
    IoBuffer::Owned(buffer)
}

fn number_of(buffer: IoBuffer) -> u64 {
    let buffer = buffer.owned().unwrap();
    u64::from_le_bytes(buffer.bytes()[..8].try_into().unwrap())
}

/// Turns the ring until the future resolves.
fn wait(ring: &Ring, mut future: IoFuture) -> IoOutcome {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        ring.submit();
        ring.reap(Nanos::ZERO);
        if let Poll::Ready(outcome) = Pin::new(&mut future).poll(&mut context) {
            return outcome;
        }
        std::thread::yield_now();
    }
}

fn write_units(ring: &Ring, device: &UringDevice, units: u64) {
    let write = |unit: u64| device.write(unit * UNIT, LEN, unit_of(unit), Nanos::MAX);
    let futures: Vec<IoFuture> = (0..units).map(write).collect();
    for future in futures {
        wait(ring, future).result.unwrap();
    }
    wait(ring, device.flush(Nanos::MAX)).result.unwrap();
}

/// Aim: every kind of ring and of memory moves the right bytes. Method: units with their own
/// number, written and read side by side, in rounds because the queue is short.
#[test]
fn ring_moves_bytes_with_every_setting() {
    let disk = Disk::new("moves", 256 * UNIT);
    let plain = RingConfig {
        entries: 8,
        ..RingConfig::default()
    };
    for (register, sq_poll) in [(true, false), (false, false), (true, true)] {
        let ring = ring(RingConfig {
            register,
            sq_poll,
            ..plain
        });
        assert_eq!(ring.report().registered_files, register);
        assert_eq!(ring.report().fixed_buffers, register);
        let device = disk.on(&ring);
        write_units(&ring, &device, 256);
        let reads: Vec<(u64, IoFuture)> = (0..256)
            .map(|i| i * 97 % 256)
            .map(|unit| (unit, device.read(unit * UNIT, LEN, unit_of(0), Nanos::MAX)))
            .collect();
        assert_eq!(ring.in_flight(), 256);
        for (unit, future) in reads {
            let outcome = wait(&ring, future);
            outcome.result.unwrap();
            assert_eq!(number_of(outcome.buffer.unwrap()), unit);
        }
        let counts = ring.counts();
        assert_eq!((counts.submitted, counts.completed), (513, 513));
        assert_eq!(ring.in_flight(), 0);
    }
}

/// Aim: memory of an arena and memory that is registered later are fixed, and operations on
/// them, on parts of them and on memory that was forgotten move the right bytes.
#[test]
fn ring_uses_fixed_memory() {
    let disk = Disk::new("fixed", 64 * UNIT);
    let arena = Arena::open(&ArenaConfig {
        hugepages: HugepageMode::Off,
        ..ArenaConfig::new(2 << 20)
    })
    .unwrap();
    let memory = (arena.address(0, 2 << 20), 2 << 20);
    let ring = Ring::new(&RingConfig::default(), None, &[memory]).unwrap();
    assert!(ring.report().fixed_buffers);
    let place_of =
        |address: NonNull<u8>, len| ring.fixed.borrow().place_of(address.addr().get(), len);
    assert_eq!(place_of(arena.address(4096, 8192), 8192), Some(0));

    let device = disk.on(&ring);
    write_units(&ring, &device, 64);
    let region = RegisteredRegion::allocate(64 * UNIT as usize).unwrap();
    for round in 0..3 {
        match round {
            0 => ring
                .register_region(region.address(), region.len())
                .unwrap(),
            1 => ring.forget_region(region.address(), region.len()),
            _ => ring
                .register_region(region.address(), region.len())
                .unwrap(),
        }
        let place = place_of(region.address(), region.len());
        assert_eq!(place, (round != 1).then_some(1));
        region.copy_from(&vec![0xaa; region.len()]);
        let half = region
            .slice(32 * UNIT as usize..64 * UNIT as usize)
            .unwrap();
        let buffer = IoBuffer::Region(half);
        let outcome = wait(&ring, device.read(0, 32 * LEN, buffer, Nanos::MAX));
        outcome.result.unwrap();
        let mut bytes = vec![0; region.len()];
        region.copy_to(&mut bytes);
        assert!(bytes[..32 * UNIT as usize].iter().all(|byte| *byte == 0xaa));
        for unit in 0..32 {
            let at = (32 + unit) * UNIT as usize;
            assert_eq!(bytes[at..at + 8], (unit as u64).to_le_bytes());
        }
    }
    assert!(
        ring.report()
            .to_string()
            .contains("+fixed-buffers +registered-files -polled")
    );
}

/// Aim: without the right to lock memory a ring warns, says so, and works all the same.
/// Method: capabilities belong to threads, so one thread gives that one up.
#[test]
fn ring_without_memlock_goes_on_unregistered() {
    let disk = Disk::new("memlock", 64 * UNIT);
    let disk = &disk;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if !give_up_ipc_lock() {
                return;
            }
            let len = setup::memlock_limit()
                .saturating_add(4 << 20)
                .next_multiple_of(2 << 20);
            if len > 256 << 20 {
                return;
            }
            let arena = Arena::open(&ArenaConfig {
                hugepages: HugepageMode::Off,
                ..ArenaConfig::new(len)
            })
            .unwrap();
            let memory = (arena.address(0, len), len as usize);
            let ring = Ring::new(&RingConfig::default(), None, &[memory]).unwrap();
            assert!(!ring.report().fixed_buffers);
            let refused = ring.register_region(memory.0, memory.1).unwrap_err();
            assert!(refused.to_string().contains("ulimit -l"), "{refused}");
            assert_eq!(
                ring.fixed.borrow().place_of(memory.0.addr().get(), 4096),
                None
            );
            write_units(&ring, &disk.on(&ring), 64);
        });
    });
}

/// Takes CAP_IPC_LOCK from the calling thread; false when it cannot be known to be gone.
fn give_up_ipc_lock() -> bool {
    const IPC_LOCK: u32 = 1 << 14;
    let mut head = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: the call fills two sets of three numbers for the thread itself.
    let got = unsafe { libc::syscall(libc::SYS_capget, head.as_mut_ptr(), sets.as_mut_ptr()) };
    sets[0] &= !IPC_LOCK;
    // SAFETY: the call reads the same.
    let set = unsafe { libc::syscall(libc::SYS_capset, head.as_mut_ptr(), sets.as_ptr()) };
    (got, set) == (0, 0)
}

/// Aim: an operation whose future is dropped keeps its memory until it completes. Method: the
/// memory is a mapping of its own, which the kernel lists under its name.
#[test]
fn dropped_future_leaves_memory_to_the_operation() {
    let disk = Disk::new("dropped", 1024 * UNIT);
    let mapped = || {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .contains("dropped-mid")
    };
    let ring = ring(RingConfig::default());
    let device = disk.on(&ring);
    for submit_first in [true, false] {
        let memfd: OwnedFd = memfd_create(c"dropped-mid", MFdFlags::empty()).unwrap();
        File::from(memfd.try_clone().unwrap())
            .set_len(1024 * UNIT)
            .unwrap();
        let region = RegisteredRegion::map(memfd, 1024 * UNIT as usize).unwrap();
        let future = device.read(0, 1024 * LEN, IoBuffer::Region(region), Nanos::MAX);
        if submit_first {
            ring.submit();
        }
        drop(future);
        assert_eq!(ring.in_flight(), 1);
        assert!(mapped(), "the kernel may still write there");
        while ring.in_flight() > 0 {
            ring.submit();
            ring.reap(Nanos::ZERO);
        }
        assert!(!mapped());
    }
    // A ring that goes away waits for what the kernel has, and gives up what it has not.
    let submitted = device.read(0, LEN, unit_of(0), Nanos::MAX);
    ring.submit();
    let queued = device.read(0, LEN, unit_of(0), Nanos::MAX);
    drop((device, ring));
    let mut context = Context::from_waker(Waker::noop());
    let mut outcome = |mut future: IoFuture| match Pin::new(&mut future).poll(&mut context) {
        Poll::Ready(IoOutcome { result, .. }) => result,
        Poll::Pending => panic!("left behind"),
    };
    outcome(submitted).unwrap();
    let errno = libc::ECANCELED;
    assert_eq!(outcome(queued).unwrap_err(), IoError::Os { errno });
}

/// Aim: an operation that would wait for ever is cancelled when its ring goes away, and its
/// memory comes back. Method: nobody writes to the pipe that it reads.
#[test]
fn dropped_ring_cancels_what_waits() {
    let (reader, _writer) = std::io::pipe().unwrap();
    for register in [true, false] {
        let ring = ring(RingConfig {
            register,
            ..RingConfig::default()
        });
        let file = ring
            .register_file(std::os::fd::AsFd::as_fd(&reader))
            .unwrap();
        let work = Work::Read {
            offset: 0,
            len: LEN,
        };
        let mut future = ring.start(file, work, unit_of(0), Nanos::MAX);
        ring.submit();
        assert_eq!((ring.reap(Nanos::ZERO), ring.taken()), (0, 1));
        drop(ring);
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(outcome) = Pin::new(&mut future).poll(&mut context) else {
            panic!("left behind");
        };
        assert!(outcome.result.is_err());
        assert!(outcome.buffer.is_some());
    }
}

/// Aim: a dropped ring holds neither the file nor its lock, at once.
#[test]
fn dropped_ring_gives_up_the_lock() {
    let disk = Disk::new("lock", 16 * UNIT);
    for _ in 0..50 {
        let opened = open_device(&DeviceSpec::existing(&disk.path));
        assert!(opened.is_err(), "locked by the test");
    }
    let Disk { path, opened } = &disk;
    drop(opened.file.unlock());
    for _ in 0..50 {
        let opened = open_device(&DeviceSpec::existing(path)).unwrap();
        let ring = ring(RingConfig::default());
        let io = Rc::clone(&ring);
        let device = UringDevice::new(io, Rc::clone(&ring), opened.file, opened.info).unwrap();
        wait(&ring, device.read(0, LEN, unit_of(0), Nanos::MAX))
            .result
            .unwrap();
    }
}

/// Aim: what the kernel refuses or cuts short comes out as such.
#[test]
fn ring_passes_errors_on() {
    let disk = Disk::new("errors", 16 * UNIT);
    let ring = ring(RingConfig {
        ops_max: 2,
        ..RingConfig::default()
    });
    let read_only = std::sync::Arc::new(File::open(&disk.path).unwrap());
    let info = DeviceInfo {
        len: 32 * UNIT,
        ..disk.opened.info.clone()
    };
    let io = Rc::clone(&ring);
    let device = UringDevice::new(io, Rc::clone(&ring), read_only, info).unwrap();
    let denied = wait(&ring, device.write(0, LEN, unit_of(0), Nanos::MAX));
    let errno = libc::EBADF;
    assert_eq!(denied.result.unwrap_err(), IoError::Os { errno });
    assert!(denied.buffer.is_some());

    let buffer = IoBuffer::Owned(AlignedBuffer::zeroed(2 * UNIT as usize));
    let cut = wait(&ring, device.read(15 * UNIT, 2 * LEN, buffer, Nanos::MAX));
    let (done, wanted) = (LEN, 2 * LEN);
    assert_eq!(cut.result.unwrap_err(), IoError::Short { done, wanted });

    for (ops_max, text) in [(0, "0 operations"), (1 << 20, "1 to 65536")] {
        let config = RingConfig {
            ops_max,
            ..RingConfig::default()
        };
        let refused = Ring::new(&config, None, &[]).err().unwrap().to_string();
        assert!(refused.contains(text), "{refused}");
    }
}

/// Aim: operations that the completion queue has no places for wait for their turn, in order, and
/// what waits longer than its deadline says so.
#[test]
fn more_operations_than_the_kernel_is_given_wait_for_their_turn() {
    let disk = Disk::new("turns", 64 * UNIT);
    let ring = ring(RingConfig {
        entries: 4,
        ops_max: 2,
        ..RingConfig::default()
    });
    let device = disk.on(&ring);
    let writes: Vec<IoFuture> = (0..40)
        .map(|at| device.write(at * UNIT, LEN, unit_of(at), Nanos::MAX))
        .collect();
    let late = device.read(0, LEN, unit_of(0), Nanos(1));
    ring.submit();
    assert!(ring.taken() <= 2, "{} operations", ring.taken());
    ring.expire(Nanos(2));
    assert_eq!(wait(&ring, late).result.unwrap_err(), IoError::TimedOut);
    for write in writes {
        wait(&ring, write).result.unwrap();
        assert!(ring.taken() <= 2, "{} operations", ring.taken());
    }
    for at in 0..40 {
        let read = wait(&ring, device.read(at * UNIT, LEN, unit_of(0), Nanos::MAX));
        assert_eq!(number_of(read.buffer.unwrap()), at);
    }
}

/// Aim: a thread without an executor can wait for a ring, and a signal to nobody is no harm.
#[test]
fn submit_and_wait_comes_back_with_a_completion() {
    let disk = Disk::new("waits", 64 * UNIT);
    let ring = ring(RingConfig {
        entries: 4,
        ..RingConfig::default()
    });
    ring.submit_and_wait();
    let device = disk.on(&ring);
    // More than the kernel's queue takes at once.
    let writes: Vec<IoFuture> = (0..11)
        .map(|at| device.write(at * UNIT, LEN, unit_of(at), Nanos::MAX))
        .collect();
    let mut reaped = 0;
    while reaped < writes.len() {
        ring.submit_and_wait();
        let count = ring.reap(Nanos::ZERO);
        assert!(count > 0, "it waited for a completion");
        reaped += count;
    }
    assert_eq!(ring.in_flight(), 0);
    for write in writes {
        wait(&ring, write).result.unwrap();
    }
}

/// Aim: many bytes go to the device before the driver's turn, and the driver still learns of
/// them, or nobody would ask a polled ring for their completions.
#[test]
fn many_bytes_are_handed_over_early_and_told() {
    let disk = Disk::new("early", 2 * EARLY_LEN);
    let ring = ring(RingConfig::default());
    let device = disk.on(&ring);
    let mut context = Context::from_waker(Waker::noop());
    let half = EARLY_LEN / 2;
    let read = |at: u64| {
        let buffer = IoBuffer::Owned(AlignedBuffer::zeroed(half as usize));
        device.read(at * half, half as u32, buffer, Nanos::MAX)
    };
    assert!(ring.poll_queued(&mut context).is_pending());
    let first = read(0);
    assert_eq!(ring.counts().submitted, 0);
    let second = read(1);
    assert_eq!(ring.counts().submitted, 2);
    assert!(ring.poll_queued(&mut context).is_ready());
    assert!(ring.poll_queued(&mut context).is_pending());
    ring.submit();
    assert_eq!(ring.counts().enters, 1, "nothing was left to hand over");
    for future in [first, second] {
        wait(&ring, future).result.unwrap();
    }
}

#[test]
fn many_bytes_are_taken_in_by_groups() {
    let disk = Disk::new("groups", 4 * EARLY_LEN);
    let ring = ring(RingConfig::default());
    let device = disk.on(&ring);
    let half = EARLY_LEN / 2;
    let reads: Vec<_> = (0..8)
        .map(|at| {
            let buffer = IoBuffer::Owned(AlignedBuffer::zeroed(half as usize));
            device.read(at * half, half as u32, buffer, Nanos::MAX)
        })
        .collect();
    let mut groups = Vec::new();
    while ring.in_flight() > 0 {
        ring.submit_and_wait();
        groups.push(ring.reap(Nanos::ZERO));
    }
    assert!(groups.iter().all(|group| *group <= 2), "{groups:?}");
    assert_eq!(groups.iter().sum::<usize>(), 8);
    for read in reads {
        wait(&ring, read).result.unwrap();
    }
}

#[test]
#[should_panic(expected = "8192 bytes in memory of 4096")]
fn read_past_its_memory_is_refused() {
    let disk = Disk::new("past", 16 * UNIT);
    let ring = ring(RingConfig::default());
    drop(disk.on(&ring).read(0, 2 * LEN, unit_of(0), Nanos::MAX));
}

#[test]
#[should_panic(expected = "65536 bytes of")]
fn read_past_the_device_is_refused() {
    let disk = Disk::new("end", 16 * UNIT);
    let ring = ring(RingConfig::default());
    drop(disk.on(&ring).read(16 * UNIT, LEN, unit_of(0), Nanos::MAX));
}

/// Aim: whether a device can be polled is found out without harm, and the answer holds: a
/// polled ring reads it, or says why not.
#[test]
fn probe_polled_tells_what_a_polled_ring_does() {
    let disk = Disk::new("polled", 16 * UNIT);
    let can = probe_polled(&disk.opened.file);
    assert!(probe().rings);
    let config = RingConfig {
        polled: true,
        ..RingConfig::default()
    };
    let (polled, plain) = (ring(config), ring(RingConfig::default()));
    assert_eq!(polled.completion(), Completion::Polled);
    let handle = std::sync::Arc::clone(&disk.opened.file);
    let info = disk.opened.info.clone();
    let device = UringDevice::new(Rc::clone(&polled), Rc::clone(&plain), handle, info).unwrap();
    let outcome = wait(&polled, device.read(0, LEN, unit_of(0), Nanos::MAX));
    assert_eq!(outcome.result.is_ok(), can, "{:?}", outcome.result);
    wait(&plain, device.flush(Nanos::MAX)).result.unwrap();
}

/// Aim: what a ring cannot take in is named.
#[test]
fn ring_that_cannot_take_something_in_says_what() {
    let disk = Disk::new("take-in", 16 * UNIT);
    let ring = ring(RingConfig::default());
    let file = || ring.register_file(std::os::fd::AsFd::as_fd(&*disk.opened.file));
    for _ in 0..FILES_MAX {
        file().unwrap();
    }
    assert!(matches!(file(), Err(RingError::Files)));
    // Nothing is mapped at the first page.
    let nothing = NonNull::new(std::ptr::without_provenance_mut(4096)).unwrap();
    let refused = ring.register_region(nothing, 4096).unwrap_err();
    assert!(matches!(refused, RingError::Register { .. }), "{refused}");
}
