//! Driving a ring on the real executor, and a device in memory under virtual time.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use terrace_nvme::file::{DeviceSpec, open_device};
use terrace_nvme::mem::{Behaviour, Fault, Kind, MemDevice, MemImage, SeededFaults};
use terrace_nvme::uring::{Ring, RingConfig, UringDevice};
use terrace_nvme::{AlignedBuffer, BlockDevice, IoBuffer, IoError, UNIT};

use super::*;
use crate::executor::{ExecutorConfig, ShardThread};
use crate::sim::Sim;

const LEN: u32 = UNIT as u32;

/// The next number of a splitmix64 sequence.
fn random(state: &Cell<u64>) -> u64 {
    state.set(state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
    let mixed = (state.get() ^ (state.get() >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn unit_of(number: u64) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(UNIT as usize);
    buffer.bytes_mut()[..8].copy_from_slice(&number.to_le_bytes());
    buffer
}

fn number_of(buffer: IoBuffer) -> u64 {
    let buffer = buffer.owned().unwrap();
    u64::from_le_bytes(buffer.bytes()[..8].try_into().unwrap())
}

/// Reads random units with so many tasks at once, and checks each; ends when all did.
async fn read_all(runtime: &Rc<dyn Runtime>, device: Rc<dyn BlockDevice>, tasks: u64, each: u64) {
    let left = Rc::new(Cell::new(tasks));
    let done = Rc::new(Signal::default());
    let seed = Rc::new(Cell::new(1));
    for _ in 0..tasks {
        let (device, left, done) = (Rc::clone(&device), Rc::clone(&left), Rc::clone(&done));
        let seed = Rc::clone(&seed);
        runtime.spawn(Box::pin(async move {
            for _ in 0..each {
                let unit = random(&seed) % (device.info().len / UNIT);
                let buffer = IoBuffer::Owned(unit_of(u64::MAX));
                let outcome = device.read(unit * UNIT, LEN, buffer, Nanos::MAX).await;
                outcome.result.unwrap();
                assert_eq!(number_of(outcome.buffer.unwrap()), unit);
            }
            left.set(left.get() - 1);
            if left.get() == 0 {
                done.raise();
            }
        }));
    }
    done.wait().await;
}

async fn write_all(device: &dyn BlockDevice) {
    for unit in 0..device.info().len / UNIT {
        let buffer = IoBuffer::Owned(unit_of(unit));
        let outcome = device.write(unit * UNIT, LEN, buffer, Nanos::MAX).await;
        outcome.result.unwrap();
    }
    device.flush(Nanos::MAX).await.result.unwrap();
}

fn folder() -> PathBuf {
    let build = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target");
    for root in [std::env::temp_dir(), build] {
        let folder = root.join(format!("terrace-io-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        if open_device(&DeviceSpec::file(folder.join("probe"), UNIT)).is_ok() {
            return folder;
        }
        fs::remove_dir_all(&folder).unwrap();
    }
    panic!("no folder with direct I/O");
}

/// Aim: a file, a ring and a pinned executor carry out a thousand reads at depth 32, once told
/// by eventfd and once asked. Then everything is let go: the file's lock is free again.
#[test]
fn drive_ring_on_glommio_reads_what_was_written() {
    let folder = folder();
    let path = folder.join("device");
    for by_event in [true, false] {
        let config = ExecutorConfig {
            shard: 0,
            cpu: None,
            spin: Duration::ZERO,
        };
        let spec = DeviceSpec::file(&path, 4 << 20);
        let thread = ShardThread::start(&config, move |runtime| async move {
            let opened = open_device(&spec).unwrap();
            let event = by_event.then(|| Eventfd::new().unwrap());
            let ring_event = event.as_ref().map(AsFd::as_fd);
            let ring = Ring::new(&RingConfig::default(), ring_event, &[]).unwrap();
            let (io, plain) = (Rc::clone(&ring), Rc::clone(&ring));
            let device = UringDevice::new(io, plain, opened.file, opened.info).unwrap();
            let device: Rc<dyn BlockDevice> = Rc::new(device);
            let driver = drive(&runtime, Rc::<Ring>::clone(&ring), event);
            write_all(&*device).await;
            read_all(&runtime, Rc::clone(&device), 32, 32).await;
            assert_eq!(ring.counts().completed, 1024 + 1024 + 1);
            assert_eq!(ring.in_flight(), 0);
            let enters = ring.counts().enters;
            assert!(
                !by_event || enters < 1024 + 512,
                "{enters} calls: reads go one by one"
            );
            drop((driver, device));
            // The tasks let go at their next turn.
            assert_eq!(Rc::strong_count(&ring), 1);
        });
        assert!(thread.unwrap().join());
    }
    drop(open_device(&DeviceSpec::existing(&path)).unwrap());
    fs::remove_dir_all(folder).unwrap();
}

fn sim_run(seed: u64) -> (u64, Nanos) {
    let sim = Sim::new(seed);
    let runtime = sim.runtime();
    let clock: Rc<dyn terrace_types::Clock> = Rc::<dyn Runtime>::clone(&runtime);
    let device = MemDevice::from_image(MemImage::empty(1 << 20), Some(clock));
    let driver = drive(&runtime, Rc::<MemDevice>::clone(&device), None);
    let mut faults = SeededFaults::new(seed, Duration::from_micros(200), Vec::new());
    device.set_plan(move |operation| faults.draw(operation));
    sim.run(async {
        write_all(&*device).await;
        read_all(&runtime, Rc::<MemDevice>::clone(&device), 8, 40).await;
        drop(driver);
        // The tasks end, and nothing is left that could run: only this timer.
        runtime
            .sleep_until(runtime.now() + Duration::from_secs(1))
            .await;
    });
    assert_eq!(device.counts().reads, 320);
    (sim.steps(), runtime.now())
}

/// Aim: no wake-up is lost in any order of tasks, and a seed repeats its run.
#[test]
fn drive_memory_under_sim_repeats_by_seed() {
    for seed in 0..20 {
        assert_eq!(sim_run(seed), sim_run(seed), "seed {seed}");
    }
    assert_ne!(sim_run(1), sim_run(2));
}

/// Aim: a stuck operation is given up at its deadline, and no timer runs when nothing is under
/// way. Method: virtual time stands still unless a timer moves it; with nothing to run the
/// simulation stops, and an hour of expire rounds would show in its steps.
#[test]
fn drive_expires_stuck_operations_and_sleeps_otherwise() {
    let sim = Sim::new(3);
    let runtime = sim.runtime();
    let clock: Rc<dyn terrace_types::Clock> = Rc::<dyn Runtime>::clone(&runtime);
    let device = MemDevice::from_image(MemImage::empty(1 << 20), Some(clock));
    let _driver = drive(&runtime, Rc::<MemDevice>::clone(&device), None);
    device.set_plan(|operation| Behaviour {
        stuck: operation.kind == Kind::Read,
        ..Behaviour::default()
    });
    sim.run(async {
        let deadline = runtime.now() + Duration::from_millis(500);
        let buffer = IoBuffer::Owned(unit_of(0));
        let outcome = device.read(0, LEN, buffer, deadline).await;
        assert_eq!(outcome.result.unwrap_err(), IoError::TimedOut);
        let late = runtime.now().since(deadline);
        assert!(late <= EXPIRE_INTERVAL, "{late:?} late");
        assert_eq!(device.in_flight(), 1);
        device.release_stuck();
        runtime
            .sleep_until(runtime.now() + EXPIRE_INTERVAL * 2)
            .await;
        assert_eq!(device.in_flight(), 0);
    });
    let before = sim.steps();
    sim.run(runtime.sleep_until(runtime.now() + Duration::from_secs(3600)));
    let steps = sim.steps() - before;
    assert!(steps <= 4, "{steps} steps while nothing is under way");
}

/// Aim: errors of the medium come out as they are, under the driver as without it.
#[test]
fn drive_passes_errors_on() {
    let sim = Sim::new(4);
    let runtime = sim.runtime();
    let device = MemDevice::new(1 << 20);
    let _driver = drive(&runtime, Rc::<MemDevice>::clone(&device), None);
    device.set_plan(|_| Fault::Os { errno: 5 }.into());
    let outcome = sim.run(device.flush(Nanos::MAX));
    assert_eq!(outcome.result.unwrap_err(), IoError::Os { errno: 5 });
}
