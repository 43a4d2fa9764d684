//! Aim: what a namespace holds stays within its quotas and above its floor, whatever the others do;
//! priorities and lifetimes decide who goes. Method: random calls of several clients on the
//! deterministic runtime, with the bounds looked at after each; and scripts for single rules.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, Lookup, PutOutcome, RequestContext};

use super::sim_tests::seeds;
use super::sim_world::{Random, Spec, World, value};
use super::*;
use crate::config::NamespaceOptions;
use crate::stats::NamespaceStats;

/// Blocks of this length take two granules.
const LEN: usize = 8192;
const GRANULES: u64 = LEN as u64;

fn rules(options: &[(&str, NamespaceOptions)]) -> Vec<(String, NamespaceOptions)> {
    let named = options.iter();
    named
        .map(|(name, rules)| ((*name).to_owned(), *rules))
        .collect()
}

fn held(world: &World, name: &str) -> NamespaceStats {
    let stats = world.shard.stats().namespaces;
    let found = stats.into_iter().find(|held| held.name == name);
    found.unwrap_or_default()
}

async fn put_as(world: &World, name: &str, number: u64, options: &PutOptions) -> PutOutcome {
    world.shard.tick();
    let key = world.key(name, number);
    let outcome = world.shard.put(&key, &[7; LEN], options).await;
    world.shard.tick();
    outcome
}

async fn put(world: &World, name: &str, number: u64) -> PutOutcome {
    put_as(world, name, number, &PutOptions::default()).await
}

async fn is_there(world: &World, name: &str, number: u64) -> bool {
    let options = GetOptions::default();
    let found = world.shard.get(&world.key(name, number), &options).await;
    found.is_hit()
}

fn open(sim: &Sim, spec: &Spec) -> Rc<World> {
    let world = World::new(sim, spec, spec.blank(), 1);
    sim.run(world.shard.recover(None));
    world
}

const QUOTA: NamespaceOptions = NamespaceOptions {
    dram_quota_bytes: Some(6 * GRANULES),
    nvme_quota_bytes: Some(10 * GRANULES),
    dram_floor_bytes: 0,
    priority: 0,
    ttl: None,
};
const FLOOR: NamespaceOptions = NamespaceOptions {
    dram_quota_bytes: None,
    nvme_quota_bytes: None,
    dram_floor_bytes: 5 * GRANULES,
    priority: 0,
    ttl: None,
};

/// Random calls in one namespace; bounds of all are looked at after each.
async fn client(world: Rc<World>, seed: u64, id: u64) -> u64 {
    let random = Random::new(seed.wrapping_mul(97) + id);
    let name = ["bounded", "floored", "free"][id as usize % 3];
    let mut busy = 0;
    for _ in 0..150 {
        let number = random.below(60);
        let key = world.key(name, number);
        match random.below(10) {
            0..5 => {
                let durable = random.one_in(4);
                let options = PutOptions {
                    durability: if durable {
                        Durability::Durable
                    } else {
                        Durability::Volatile
                    },
                    context: RequestContext {
                        priority: random.below(3) as u8,
                        ..RequestContext::default()
                    },
                    ..PutOptions::default()
                };
                let bytes = value(id % 3, number, 1, 20_000);
                let put = world.shard.put(&key, &bytes, &options).await;
                busy += u64::from(put == PutOutcome::Busy);
            }
            5..8 => {
                let found = world.shard.get(&key, &GetOptions::default()).await;
                if let Lookup::Hit { value: pin, .. } = found {
                    assert_eq!(pin[..], value(id % 3, number, 1, 20_000)[..]);
                    world.sleep(Duration::from_micros(random.below(300))).await;
                }
            }
            8 => {
                let removed = world.shard.remove(&key).await;
                assert!(!matches!(removed, Lookup::Unavailable(_)));
            }
            _ => {
                let number = |at| world.key(name, (number + at) % 60);
                let keys: Vec<BlockKey> = (0..6).map(number).collect();
                let until = world.now() + Duration::from_micros(random.below(2000));
                world
                    .shard
                    .prefetch(prefetch::Chain::of(&keys), until)
                    .await;
            }
        }
        world.shard.tick();
        world.shard.check();
        let bounded = held(&world, "bounded");
        assert!(
            bounded.dram_bytes <= 6 * GRANULES,
            "seed {seed}: {bounded:?}"
        );
        assert!(
            bounded.nvme_bytes <= 10 * GRANULES,
            "seed {seed}: {bounded:?}"
        );
    }
    busy
}

#[test]
fn namespace_stays_within_its_quotas_under_random_calls() {
    for seed in seeds(40) {
        let policy = policy::POLICY_NAMES[seed as usize % policy::POLICY_NAMES.len()];
        let spec = Spec {
            policy,
            dram_blocks: 20,
            namespaces: rules(&[("bounded", QUOTA), ("floored", FLOOR)]),
            ..Spec::default()
        };
        let sim = Sim::new(seed);
        let world = open(&sim, &spec);
        let clients = (0..6).map(|id| client(Rc::clone(&world), seed, id % 3 + id / 3 * 3));
        let clients: FuturesUnordered<_> = clients.collect();
        sim.run(clients.fold(0, |sum, busy| async move { sum + busy }));
        sim.run(world.sleep(Duration::from_secs(2)));
        sim.run(world.sleep(Duration::from_secs(1)));
        world.check_idle(&format!("seed {seed}, {policy}"));
    }
}

#[test]
fn floor_is_kept_against_others_and_not_against_the_own_blocks() {
    for seed in seeds(policy::POLICY_NAMES.len() as u64) {
        let policy = policy::POLICY_NAMES[seed as usize % policy::POLICY_NAMES.len()];
        let spec = Spec {
            policy,
            dram_blocks: 12,
            namespaces: rules(&[("floored", FLOOR)]),
            ..Spec::default()
        };
        let sim = Sim::new(seed);
        let world = open(&sim, &spec);
        sim.run(async {
            for number in 0..8 {
                assert!(put(&world, "floored", number).await.is_present());
            }
            for number in 0..100 {
                put(&world, "others", number).await;
                let kept = held(&world, "floored").dram_bytes;
                assert!(kept >= 5 * GRANULES, "{policy}, {number}: {kept}");
            }
            world.sleep(Duration::from_secs(1)).await;
            let kept = held(&world, "floored").dram_bytes;
            // All come at one instant, of which the default policy gives up the newest first.
            assert!(
                kept < 8 * GRANULES || policy == "default",
                "{policy}: above its floor it gives way, {kept}"
            );
            // Its own puts go on, at the floor too.
            for number in 100..130 {
                put(&world, "floored", number).await;
            }
            assert!(held(&world, "floored").blocks > 8, "{policy}");
            world.sleep(Duration::from_secs(1)).await;
        });
        sim.run(world.sleep(Duration::from_secs(1)));
        world.check_idle(policy);
    }
}

#[test]
fn block_that_no_quota_can_hold_is_rejected_and_a_full_one_is_busy() {
    let spec = Spec {
        namespaces: rules(&[("bounded", QUOTA)]),
        ..Spec::default()
    };
    let sim = Sim::new(1);
    let world = open(&sim, &spec);
    sim.run(async {
        let (key, options) = (world.key("bounded", 1), PutOptions::default());
        let put = world.shard.put(&key, &[1; 7 * LEN], &options).await;
        let limit = 6 * GRANULES;
        let refusal = RejectReason::BlockTooLarge {
            len: 7 * GRANULES,
            limit,
        };
        assert_eq!(put, PutOutcome::Rejected(refusal));
        // All of its blocks are held: none of them can make room.
        let mut pins = Vec::new();
        for number in 0..6 {
            assert!(
                put_as(&world, "bounded", number, &options)
                    .await
                    .is_present()
            );
            let key = world.key("bounded", number);
            pins.push(world.shard.get(&key, &GetOptions::default()).await);
        }
        assert_eq!(
            put_as(&world, "bounded", 9, &options).await,
            PutOutcome::Busy
        );
        assert!(put_as(&world, "free", 9, &options).await.is_present());
        drop(pins);
        assert!(put_as(&world, "bounded", 9, &options).await.is_present());
        assert!(held(&world, "bounded").dram_bytes <= limit);
        world.sleep(Duration::from_secs(1)).await;
    });
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("quota");
}

#[test]
fn lower_priority_goes_first_and_a_request_raises_a_block() {
    let important = NamespaceOptions {
        priority: 2,
        ..NamespaceOptions::default()
    };
    let spec = Spec {
        dram_blocks: 8,
        segments: vec![0],
        namespaces: rules(&[("important", important)]),
        ..Spec::default()
    };
    let sim = Sim::new(2);
    let world = open(&sim, &spec);
    sim.run(async {
        for number in 0..3 {
            put(&world, "important", number).await;
        }
        let raised = PutOptions {
            context: RequestContext {
                priority: 1,
                ..RequestContext::default()
            },
            ..PutOptions::default()
        };
        put_as(&world, "plain", 500, &raised).await;
        for number in 0..50 {
            assert!(put(&world, "plain", number).await.is_present());
        }
        for number in 0..3 {
            assert!(is_there(&world, "important", number).await);
        }
        assert!(is_there(&world, "plain", 500).await);
        assert!(!is_there(&world, "plain", 0).await);
    });
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("priorities");
}

#[test]
fn block_past_its_lifetime_is_a_miss_and_stays_one() {
    let brief = NamespaceOptions {
        ttl: Some(Duration::from_secs(5)),
        ..NamespaceOptions::default()
    };
    let spec = Spec {
        namespaces: rules(&[("brief", brief)]),
        ..Spec::default()
    };
    let sim = Sim::new(3);
    let world = open(&sim, &spec);
    let durable = PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    };
    sim.run(async {
        put_as(&world, "brief", 1, &durable).await;
        put_as(&world, "lasting", 1, &durable).await;
        world.sleep(Duration::from_secs(3)).await;
        put_as(&world, "brief", 2, &durable).await;
        world.sleep(Duration::from_secs(3)).await;
        world.shard.tick();
        let first = world.key("brief", 1);
        assert_eq!(world.shard.exists(&first), Lookup::Miss, "a probe sees it");
        assert_eq!(world.shard.stat(&first), Lookup::Miss, "so does a stat");
        assert_eq!(world.shard.len_of(&first), None);
        let (listed, _) = world.shard.list(first.namespace(), b"", 0).unwrap();
        assert_eq!(listed.len(), 1, "and a list: {listed:?}");
        assert_eq!(held(&world, "brief").blocks, 2, "and moves nothing");
        assert!(!is_there(&world, "brief", 1).await);
        assert!(is_there(&world, "brief", 2).await && is_there(&world, "lasting", 1).await);
        assert_eq!(held(&world, "brief").blocks, 1);
        // It may be stored again, and lives anew.
        let again = put_as(&world, "brief", 1, &durable).await;
        assert_eq!(again, PutOutcome::Stored { durable: true });
        world.sleep(Duration::from_secs(3)).await;
        world.shard.tick();
        assert!(is_there(&world, "brief", 1).await && !is_there(&world, "brief", 2).await);
        world.sleep(Duration::from_secs(1)).await;
    });
    assert_eq!(world.shard.stats().counters.expired, 2);
    // After a crash what was given up does not come back.
    let images = world.devices.iter().map(|device| device.image()).collect();
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("lifetimes");
    let again = World::new(&sim, &spec, images, 2);
    sim.run(again.shard.recover(None));
    sim.run(async {
        assert!(!is_there(&again, "brief", 2).await);
        assert!(is_there(&again, "brief", 1).await && is_there(&again, "lasting", 1).await);
    });
}

#[test]
fn block_longer_than_the_quota_below_makes_no_other_go() {
    let narrow = NamespaceOptions {
        nvme_quota_bytes: Some(4 * GRANULES),
        ..NamespaceOptions::default()
    };
    let spec = Spec {
        namespaces: rules(&[("narrow", narrow)]),
        ..Spec::default()
    };
    let sim = Sim::new(4);
    let world = open(&sim, &spec);
    let durable = PutOptions {
        durability: Durability::Durable,
        ..PutOptions::default()
    };
    sim.run(async {
        for number in 0..4 {
            put_as(&world, "narrow", number, &durable).await;
        }
        assert_eq!(held(&world, "narrow").nvme_bytes, 4 * GRANULES);
        let key = world.key("narrow", 9);
        let put = world.shard.put(&key, &[1; 5 * LEN], &durable).await;
        assert_eq!(put, PutOutcome::Stored { durable: false });
        assert_eq!(held(&world, "narrow").nvme_bytes, 4 * GRANULES);
        assert_eq!(world.shard.stats().counters.quota_below_evictions, 0);
        world.sleep(Duration::from_secs(1)).await;
    });
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("a quota below");
}

#[test]
fn rules_changed_beside_a_lifetime_let_it_go_on() {
    let brief = NamespaceOptions {
        ttl: Some(Duration::from_secs(5)),
        ..NamespaceOptions::default()
    };
    let spec = Spec {
        namespaces: rules(&[("brief", brief)]),
        ..Spec::default()
    };
    let sim = Sim::new(5);
    let world = open(&sim, &spec);
    sim.run(async {
        put(&world, "brief", 1).await;
        world.sleep(Duration::from_secs(3)).await;
        world.shard.tick();
        let namespace = world.key("brief", 1).namespace();
        let raised = NamespaceOptions {
            priority: 1,
            ..brief
        };
        world.shard.set_namespace(namespace, &raised).unwrap();
        world.sleep(Duration::from_secs(3)).await;
        world.shard.tick();
        assert!(!is_there(&world, "brief", 1).await);
    });
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("changed rules");
}
