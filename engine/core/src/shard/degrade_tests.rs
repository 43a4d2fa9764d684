//! Aim: devices that fail, hang or are gone degrade as promised: what they hold is `Unavailable`
//! and not missing, DRAM goes on, every call ends in time, and one line of the log says so.
//! Method: a shard over devices in memory, told to fail at a chosen moment, in virtual time.

use std::time::Duration;

use futures_util::future::join_all;
use terrace_nvme::mem::{Behaviour, Fault, Kind, MemImage};
use terrace_nvme::tier::Health;
use terrace_runtime::mailbox::mailbox;
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, Lookup, PutOutcome, Tier};

use super::log_lines::LogLines;
use super::sim_world::{Spec, World, value};
use super::*;

const DEADLINE: Duration = Duration::from_millis(100);
/// How late a deadline may be noticed, by the driver of the devices.
const NOTICED: Duration = Duration::from_millis(50);
/// Longer than any call may take in virtual time.
const CALL_MAX: Duration = Duration::from_secs(20);
/// Late operations that a device may have before it is offline.
const LATE_MAX: u64 = 64;
const EIO: Fault = Fault::Os { errno: 5 };
const FAILED: UnavailableReason = UnavailableReason::TierFailed;

fn spec(segments: Vec<u32>, dram_blocks: usize) -> Spec {
    Spec {
        segment_len: 1 << 20,
        segments,
        dram_blocks,
        io_deadline: DEADLINE,
        ..Spec::default()
    }
}

fn durable() -> PutOptions {
    PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    }
}

fn bytes(number: u64) -> Vec<u8> {
    value(0, number, 1, 9000)
}

impl World {
    fn k(&self, number: u64) -> BlockKey {
        self.key("n", number)
    }

    async fn give(&self, number: u64, options: &PutOptions) -> PutOutcome {
        let (key, bytes) = (self.k(number), bytes(number));
        let put = self.shard.put(&key, &bytes, options);
        self.within(|| format!("put {number}"), CALL_MAX, put).await
    }

    /// Stores blocks durably; with few slots in DRAM all but the last lie below only.
    async fn store(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let put = self.give(number, &durable()).await;
            assert_eq!(put, PutOutcome::Stored { durable: true }, "{number}");
        }
    }

    /// The tier that served a block with the right bytes, and the time that took.
    async fn look(&self, number: u64) -> (Lookup<()>, Duration) {
        let (key, begun) = (self.k(number), self.now());
        let options = GetOptions::default();
        let get = self.shard.get(&key, &options);
        let found = self.within(|| format!("get {number}"), CALL_MAX, get).await;
        let found = found.map(|pin| assert!(pin[..] == bytes(number)[..], "{number}"));
        (found, self.now().since(begun))
    }

    fn tier_of(&self, number: u64) -> Option<Tier> {
        match self.shard.exists(&self.k(number)) {
            Lookup::Hit { tier, .. } => Some(tier),
            _ => None,
        }
    }

    fn healths(&self) -> Vec<Health> {
        let stats = self.shard.stats();
        stats.nvme.iter().map(|device| device.health).collect()
    }

    fn fail(&self, device: usize, behaves: impl Fn(Kind) -> Behaviour + 'static) {
        self.devices[device].set_plan(move |operation| behaves(operation.kind));
    }
}

fn stuck() -> Behaviour {
    Behaviour {
        stuck: true,
        ..Behaviour::default()
    }
}

fn writes_fail(kind: Kind) -> Behaviour {
    match kind {
        Kind::Read => Behaviour::default(),
        Kind::Write | Kind::Flush => EIO.into(),
    }
}

fn reads_hang(kind: Kind) -> Behaviour {
    match kind {
        Kind::Read => stuck(),
        Kind::Write | Kind::Flush => EIO.into(),
    }
}

#[test]
fn device_that_fails_is_read_only_then_offline_and_dram_goes_on() {
    let lines = LogLines::default();
    let sim = Sim::new(1);
    let spec = spec(vec![8], 100);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    let of_shard = lines.clone();
    of_shard.during(|| {
        sim.run(async {
            world.store(0..200).await;
            assert_eq!(world.healths(), [Health::Good]);
            world.fail(0, writes_fail);
            let put = world.give(1000, &durable()).await;
            assert_eq!(put, PutOutcome::Stored { durable: false });
            assert_eq!(world.healths(), [Health::ReadOnly]);
            let put = world.give(1001, &durable()).await;
            let refused = PutOutcome::Rejected(RejectReason::NotDurable);
            assert_eq!(put, refused);
            // What it holds is served.
            assert_eq!(world.tier_of(0), Some(Tier::Nvme));
            assert!(world.look(0).await.0.is_hit());
            assert_eq!(world.shard.remove(&world.k(1)).await.hit(), None);

            world.fail(0, reads_hang);
            let below: Vec<u64> = (2..200)
                .filter(|number| world.tier_of(*number) == Some(Tier::Nvme))
                .take(LATE_MAX as usize + 1)
                .collect();
            let looks = join_all(below.iter().map(|number| world.look(*number))).await;
            for (found, took) in looks {
                assert_eq!(found, Lookup::Unavailable(FAILED));
                let bound = DEADLINE + NOTICED;
                assert!(took >= DEADLINE && took <= bound, "{took:?}");
            }
            assert_eq!(world.healths(), [Health::Offline]);
            let gauges = &world.shard.stats().nvme[0];
            assert_eq!(u64::from(gauges.late), LATE_MAX + 1);
            goes_on_in_dram(&world, &below).await;
        });
    });
    assert_eq!(lines.count("the device takes no more writes"), 1);
    assert_eq!(lines.count("the device does not answer: offline"), 1);
    world.devices[0].release_stuck();
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("released");
    assert_eq!(world.healths(), [Health::Offline], "until the next open");
}

/// An offline device's blocks are unavailable at once, and DRAM serves what it has.
async fn goes_on_in_dram(world: &World, below: &[u64]) {
    for number in below {
        let (found, took) = world.look(*number).await;
        assert_eq!(found, Lookup::Unavailable(FAILED), "{number}");
        assert_eq!(took, Duration::ZERO, "it is not asked any more");
        assert!(world.shard.exists(&world.k(*number)).is_hit(), "no miss");
    }
    for number in 2000..2300 {
        let put = world.give(number, &PutOptions::default()).await;
        assert_eq!(put, PutOutcome::Stored { durable: false });
        assert!(world.look(number).await.0.is_hit());
        assert!(!world.was_evicted(&world.k(number)));
    }
    assert_eq!(world.look(5000).await.0, Lookup::Miss, "never stored");
    world.shard.check();
}

#[test]
fn read_that_hangs_is_cut_off_and_keeps_its_slot_until_it_completes() {
    let sim = Sim::new(2);
    let spec = spec(vec![8], 4);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    sim.run(async {
        world.store(0..20).await;
        world.fail(0, |kind| match kind {
            Kind::Read => stuck(),
            _ => Behaviour::default(),
        });
        assert_eq!(world.tier_of(3), Some(Tier::Nvme));
        let (found, took) = world.look(3).await;
        assert_eq!(found, Lookup::Unavailable(FAILED));
        assert!(took >= DEADLINE && took <= DEADLINE + NOTICED, "{took:?}");
        assert_eq!(world.shard.stats().gauges.writers, 1, "the device has it");
        // Nothing else gets the slot: of four, three serve all that comes.
        world.store(100..150).await;
        let gauges = world.shard.stats().gauges;
        assert_eq!(gauges.writers, 1);
        assert!(gauges.dram_blocks <= 3, "{gauges:?}");
        world.devices[0].clear_plan();
        world.devices[0].release_stuck();
        world.sleep(Duration::from_millis(1)).await;
        let stats = world.shard.stats();
        assert_eq!(stats.gauges.writers, 0);
        assert_eq!(stats.counters.puts_abandoned, 0, "no put was given up");
        assert_eq!(stats.counters.promotions_failed, 1);
        assert!(
            world.look(3).await.0.is_hit(),
            "one late read changes nothing"
        );
        assert_eq!(world.healths(), [Health::Good]);
        for number in 100..150 {
            assert!(world.look(number).await.0.is_hit(), "{number}");
        }
    });
    world.check_idle("released");
}

#[test]
fn write_that_hangs_is_cut_off_and_keeps_its_slot_until_it_completes() {
    for kind in [Kind::Write, Kind::Flush] {
        let sim = Sim::new(3);
        let spec = spec(vec![8], 4);
        let world = World::new(&sim, &spec, spec.blank(), 1);
        sim.run(async {
            world.store(0..20).await;
            world.fail(0, move |it| {
                if it == kind {
                    stuck()
                } else {
                    Behaviour::default()
                }
            });
            let begun = world.now();
            let put = world.give(50, &durable()).await;
            assert_eq!(put, PutOutcome::Stored { durable: false });
            let took = world.now().since(begun);
            assert!(took >= DEADLINE && took <= DEADLINE + NOTICED, "{took:?}");
            assert_eq!(world.healths(), [Health::ReadOnly]);
            let pinned = world.shard.stats().gauges.pinned_bytes;
            assert_eq!(pinned > 0, kind == Kind::Write, "the device reads from it");
            assert!(world.look(50).await.0.is_hit(), "DRAM has it");
            world.shard.remove(&world.k(50)).await;
            assert_eq!(world.shard.stats().gauges.pinned_bytes, pinned);
            world.devices[0].release_stuck();
            world.sleep(Duration::from_millis(1)).await;
            assert_eq!(world.shard.stats().gauges.pinned_bytes, 0);
        });
        world.check_idle("released");
    }
}

#[test]
fn shard_over_a_device_that_hangs_closes_in_time() {
    let lines = LogLines::default();
    let sim = Sim::new(4);
    let spec = spec(vec![8], 8);
    let world = World::new(&sim, &spec, spec.blank(), 1);
    let (sender, inbox) = mailbox::<Job>(8).unwrap();
    let (held, hung) = (Rc::downgrade(&world.shard), Rc::clone(&world.devices[0]));
    let took = lines.during(|| {
        sim.run(async {
            world.store(0..20).await;
            world.fail(0, |_| stuck());
            assert_eq!(world.look(3).await.0, Lookup::Unavailable(FAILED));
            let put = world.give(50, &PutOptions::default()).await;
            assert_eq!(put, PutOutcome::Stored { durable: false });
            let (runtime, begun) = (Rc::clone(world.shard.runtime()), world.now());
            let span = Duration::from_secs(1);
            let report = world.shard.persist(begun + span).await;
            assert!(!report.clean, "{report:?}");
            assert_eq!((report.blocks_written, report.blocks_lost), (0, 1));
            let job: Job = Box::new(|shard| {
                shard.begin_close();
                None
            });
            assert!(sender.send(job).await.is_ok());
            let shard = Rc::clone(&world.shard);
            drop(world);
            serve(shard, inbox).await;
            runtime.now().since(begun)
        })
    });
    let bound = Duration::from_secs(1) + DEADLINE + NOTICED;
    assert!(took <= bound, "{took:?}");
    assert_eq!(lines.count("closed while operations are under way"), 1);
    // The memory goes when the device has done with it, and not before.
    assert!(terrace_nvme::IoBackend::in_flight(&*hung) > 0);
    drop((hung, held));
}

#[test]
fn set_without_one_of_its_devices_serves_the_other_whole() {
    let sim = Sim::new(5);
    let both = spec(vec![8, 8], 8);
    let world = World::new(&sim, &both, both.blank(), 1);
    sim.run(world.store(0..60));
    let first = |number: &u64| {
        let (location, _) = world.location_of(&world.k(*number)).unwrap();
        world.tier.identify(world.tier.split(location).0).0.0[0] == 1
    };
    let (stays, goes): (Vec<u64>, Vec<u64>) = (0..60).partition(first);
    assert!(stays.len() > 10 && goes.len() > 10, "{stays:?} {goes:?}");
    let cut = |world: &World| -> Vec<MemImage> {
        let devices = world.devices.iter();
        devices.map(|device| device.crash(&mut |_| false)).collect()
    };
    let mut images = cut(&world);
    drop(world);

    let away = images.pop().unwrap();
    let one = Spec {
        absent: true,
        ..spec(vec![8], 8)
    };
    let world = World::new(&sim, &one, images, 2);
    sim.run(async {
        world.shard.recover(None).await;
        assert_eq!(world.shard.stats().recovery.blocks, stays.len() as u64);
        for number in &stays {
            assert!(world.look(*number).await.0.is_hit(), "{number} is durable");
        }
        for number in &goes {
            assert_eq!(world.look(*number).await.0, Lookup::Miss, "{number}");
        }
        // A removal counts for what is away, too.
        let removed = world.shard.remove(&world.k(goes[0])).await;
        assert_eq!(removed, Lookup::Miss);
    });
    let mut images = cut(&world);
    drop(world);

    images.push(away);
    let world = World::new(&sim, &both, images, 3);
    sim.run(async {
        world.shard.recover(None).await;
        for number in stays.iter().chain(&goes) {
            let found = world.look(*number).await.0;
            assert_eq!(found.is_hit(), *number != goes[0], "{number}: {found:?}");
        }
    });
    world.check_idle("both are back");
}
