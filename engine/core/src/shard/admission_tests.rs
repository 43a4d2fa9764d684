//! Aim: what the policy declines stays out of the tier it was asked about, is served all the same,
//! and never costs what was promised. Method: a policy whose answers the test sets, over devices
//! in memory.

use std::sync::atomic::Ordering::Relaxed;

use std::time::Duration;
use terrace_nvme::mem::{Behaviour, Fault, Kind};
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, Lookup, PutOutcome, Tier};

use super::sim_world::{Spec, World};
use super::*;

const DURABLE: PutOptions = PutOptions {
    durability: Durability::Durable,
    hint: terrace_types::Hint {
        parent: None,
        depth: 0,
        kind: terrace_types::BlockKind::Unknown,
    },
    context: terrace_types::RequestContext {
        clock_ms: 0,
        tenant: 0,
        priority: 0,
    },
    checksum: None,
};

fn world(sim: &Sim, spec: &Spec) -> Rc<World> {
    let world = World::new(sim, spec, spec.blank(), 1);
    sim.run(world.shard.recover(None));
    world
}

impl World {
    async fn read_tier(&self, key: &BlockKey, bytes: &[u8]) -> Option<Tier> {
        match self.shard.get(key, &GetOptions::default()).await {
            Lookup::Hit { tier, value } => {
                assert_eq!(&value[..], bytes);
                Some(tier)
            }
            _ => None,
        }
    }

    /// Whether a block lies in DRAM, by the key alone.
    fn in_dram(&self, key: &BlockKey) -> bool {
        let dram = Tier::Dram;
        matches!(self.shard.exists(key), Lookup::Hit { tier, .. } if tier == dram)
    }
}

#[test]
fn declined_put_is_rejected_unless_it_is_durable() {
    let (sim, spec) = (Sim::new(1), Spec::default());
    let world = world(&sim, &spec);
    spec.choices.decline.store(true, Relaxed);
    sim.run(async {
        let (key, bytes) = (world.key("n", 1), vec![7; 9000]);
        let put = world.shard.put(&key, &bytes, &PutOptions::default()).await;
        assert_eq!(put, PutOutcome::Rejected(RejectReason::NotAdmitted));
        let put = world.shard.put(&key, &bytes, &DURABLE).await;
        assert_eq!(put, PutOutcome::Stored { durable: true });
        world.shard.tick();
        world.shard.check();
        assert!(!world.in_dram(&key), "it only passes through DRAM");
        assert_eq!(world.read_tier(&key, &bytes).await, Some(Tier::Nvme));
    });
    world.check_idle("declined puts");
    assert_eq!(world.shard.stats().gauges.dram_blocks, 0);
}

#[test]
fn declined_block_is_served_and_leaves_dram_with_its_last_pin() {
    let (sim, spec) = (Sim::new(2), Spec::default());
    let world = world(&sim, &spec);
    spec.choices.decline.store(true, Relaxed);
    sim.run(async {
        let (key, bytes) = (world.key("n", 1), vec![7; 9000]);
        world.shard.put(&key, &bytes, &DURABLE).await;
        world.shard.tick();
        let options = GetOptions::default();
        let first = world.shard.get(&key, &options).await.hit().unwrap();
        let second = world.shard.get(&key, &options).await.hit().unwrap();
        world.shard.check();
        drop(first);
        assert!(world.in_dram(&key) && second[..] == bytes[..]);
        drop(second);
        assert!(!world.in_dram(&key));
        let leased = world.shard.lease(&key, Duration::from_millis(1), &options);
        assert!(leased.await.is_hit(), "a lease keeps it as long as it runs");
        assert!(world.in_dram(&key));
        world.sleep(Duration::from_millis(2)).await;
        assert!(!world.in_dram(&key));
        // Two readers at once: it is worth a slot, and read once.
        let readers = [world.read_tier(&key, &bytes), world.read_tier(&key, &bytes)];
        let found = futures_util::future::join_all(readers).await;
        assert_eq!(found, [Some(Tier::Nvme); 2]);
    });
    let counters = world.shard.stats().counters;
    assert_eq!((counters.promotions_declined, counters.promotions), (2, 3));
    world.check_idle("declined reads");
}

#[test]
fn declined_durable_block_whose_write_fails_stays_in_dram() {
    let (sim, spec) = (Sim::new(3), Spec::default());
    let world = world(&sim, &spec);
    spec.choices.decline.store(true, Relaxed);
    world.devices[0].set_plan(|operation| match operation.kind {
        Kind::Read => Behaviour::default(),
        Kind::Write | Kind::Flush => Fault::Os { errno: 5 }.into(),
    });
    sim.run(async {
        let (key, bytes) = (world.key("n", 1), vec![7; 9000]);
        let put = world.shard.put(&key, &bytes, &DURABLE).await;
        assert_eq!(put, PutOutcome::Stored { durable: false });
        world.shard.tick();
        assert_eq!(world.read_tier(&key, &bytes).await, Some(Tier::Dram));
    });
    world.check_idle("a declined put that failed");
}

#[test]
fn block_declined_below_is_dropped_and_counted_and_a_promised_one_is_not() {
    let spec = Spec {
        dram_blocks: 4,
        ..Spec::default()
    };
    let sim = Sim::new(4);
    let world = world(&sim, &spec);
    spec.choices.decline_below.store(true, Relaxed);
    sim.run(async {
        let (promised, bytes) = (world.key("n", 99), vec![9; 5000]);
        world.shard.put(&promised, &bytes, &DURABLE).await;
        {
            // Its copy on the device goes, as with a damaged one.
            let mut state = world.shard.state.borrow_mut();
            let epoch = state.epochs.of(promised.namespace()).unwrap();
            let block = state.index.find(&promised, epoch).unwrap();
            state.lose_below(block, Some(&world.tier));
        }
        for number in 0..20 {
            let (key, options) = (world.key("n", number), PutOptions::default());
            assert!(
                world
                    .shard
                    .put(&key, &[7; 5000], &options)
                    .await
                    .is_present()
            );
            world.shard.tick();
        }
        assert_eq!(world.read_tier(&promised, &bytes).await, Some(Tier::Nvme));
    });
    let counters = world.shard.stats().counters;
    assert!(counters.below_declined >= 15, "{counters:?}");
    assert_eq!(counters.demotions, 1, "{counters:?}");
    world.check_idle("declined below");
}
