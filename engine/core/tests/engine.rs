//! Aim: the engine as users get it, on real glommio threads and real arenas, keeps its words.
//! Method: each test opens an engine of a few MiB and checks outcomes, bytes and counters.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use terrace_engine::policy::{Lru, Policy, PolicyBytes, PolicyConfig};
use terrace_engine::{
    Access, BlockKey, Descriptor, Durability, Engine, EngineConfig, EventFilter, EventKind,
    GetOptions, HugepageMode, KeyHash, Lease, Lookup, Namespace, PrefetchReport, PutItem,
    PutOptions, PutOutcome, RegisteredRegion, RejectReason, RequestContext, Tier,
    UnavailableReason, block_on,
};

const GET: GetOptions = GetOptions {
    hint: terrace_engine::Hint {
        parent: None,
        depth: 0,
        kind: terrace_engine::BlockKind::Unknown,
    },
    context: terrace_engine::RequestContext {
        clock_ms: 0,
        tenant: 0,
        priority: 0,
    },
    placement: terrace_engine::Placement::Promote,
};
const STORED: PutOutcome = PutOutcome::Stored { durable: false };

fn config(mib: u64) -> EngineConfig {
    EngineConfig {
        dram_bytes: mib << 20,
        hugepages: HugepageMode::Off,
        busy_wait: Duration::from_millis(50),
        ..EngineConfig::default()
    }
}

fn put() -> PutOptions {
    PutOptions::default()
}

fn key(ns: Namespace, number: u64) -> BlockKey {
    ns.key(&number.to_le_bytes()).unwrap()
}

/// Bytes that tell blocks and positions apart.
fn value(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 8 * 8)) as u8 ^ at as u8)
        .collect()
}

#[test]
fn block_of_any_length_comes_back_whole() {
    let engine = Engine::open(config(256)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        for (number, len) in [
            1,
            15,
            4095,
            4096,
            4097,
            16_384,
            16_385,
            65_536,
            1_124_352,
            84_000_000,
            128 << 20,
        ]
        .into_iter()
        .enumerate()
        {
            let (key, value) = (key(ns, number as u64), value(number as u64, len));
            assert_eq!(engine.put(&key, &value, &put()).await, STORED, "{len}");
            let found = engine.get(&key, &GET).await;
            let Lookup::Hit {
                tier: Tier::Dram,
                value: block,
            } = found
            else {
                panic!("{found:?}")
            };
            assert!(block[..] == value[..], "{len}");
            assert!(matches!(
                engine.put(&key, b"other", &put()).await,
                PutOutcome::AlreadyExists { .. }
            ));
        }
        assert!(engine.check().await);
    });
}

#[test]
fn put_that_cannot_be_is_rejected_by_reason() {
    let engine = Engine::open(config(4)).unwrap();
    let other = Engine::open(config(4)).unwrap();
    let (ns, foreign) = (
        engine.namespace("m").unwrap(),
        other.namespace("m").unwrap(),
    );
    let rejected = PutOutcome::Rejected;
    block_on(async {
        let too_large = RejectReason::BlockTooLarge {
            len: 5 << 20,
            limit: 4 << 20,
        };
        let large = vec![0; 5 << 20];
        assert_eq!(
            engine.put(&key(ns, 1), large, &put()).await,
            rejected(too_large)
        );
        assert_eq!(
            engine.put(&key(ns, 1), [], &put()).await,
            rejected(RejectReason::BlockEmpty)
        );
        let durable = PutOptions {
            durability: Durability::Durable,
            ..put()
        };
        assert_eq!(
            engine.put(&key(ns, 1), [1], &durable).await,
            rejected(RejectReason::NotDurable)
        );
        let wrong = PutOptions {
            checksum: Some(terrace_engine::Checksum(1)),
            ..put()
        };
        let mismatch = rejected(RejectReason::ChecksumMismatch);
        assert_eq!(engine.put(&key(ns, 1), [1], &wrong).await, mismatch);
        let foreign = key(foreign, 1);
        assert_eq!(
            engine.put(&foreign, [1], &put()).await,
            rejected(RejectReason::ForeignNamespace)
        );
        assert_eq!(
            engine.get(&foreign, &GET).await.map(|_| ()),
            Lookup::Unavailable(UnavailableReason::ForeignNamespace)
        );
        assert_eq!(engine.stats().await.counters.puts_rejected, 5);
        assert!(engine.check().await);
        engine.close(Duration::from_secs(5)).await;
        assert_eq!(
            engine.put(&key(ns, 1), [1], &put()).await,
            rejected(RejectReason::Closing)
        );
        let closed = Lookup::Unavailable(UnavailableReason::Closing);
        assert_eq!(engine.get(&key(ns, 1), &GET).await.map(|_| ()), closed);
    });
}

#[test]
fn pinned_blocks_stay_and_bound_what_can_be_pinned() {
    let engine = Engine::open(config(4)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        let mut pins = Vec::new();
        for number in 0..4 {
            assert_eq!(
                engine
                    .put(&key(ns, number), value(number, 1 << 20), &put())
                    .await,
                STORED
            );
            let found = engine.get(&key(ns, number), &GET).await;
            match found {
                Lookup::Hit { value, .. } => pins.push((number, value)),
                other => assert_eq!(
                    other.map(|_| ()),
                    Lookup::Unavailable(UnavailableReason::PinLimit)
                ),
            }
        }
        assert_eq!(pins.len(), 2, "half of DRAM may be pinned");
        for number in 10..40 {
            assert_eq!(
                engine
                    .put(&key(ns, number), value(number, 1 << 20), &put())
                    .await,
                STORED
            );
        }
        // Removal does not take the bytes away from who holds them.
        assert!(engine.remove(&key(ns, 0)).await.is_hit());
        assert_eq!(
            engine.get(&key(ns, 0), &GET).await.map(|_| ()),
            Lookup::Miss
        );
        for (number, block) in &pins {
            assert!(block[..] == value(*number, 1 << 20)[..]);
        }
        let stats = engine.stats().await;
        assert_eq!(stats.gauges.pinned_bytes, 2 << 20);
        drop(pins);
        assert_eq!(engine.stats().await.gauges.pinned_bytes, 0);
        assert!(engine.check().await);
    });
}

#[test]
fn full_of_writers_is_busy_until_one_comes_back() {
    let engine = Engine::open(config(2)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        let terrace_engine::Reservation::Granted(writer) =
            engine.reserve(&key(ns, 1), 2 << 20, &put()).await
        else {
            panic!("an empty engine has room")
        };
        assert_eq!(
            engine.put(&key(ns, 2), value(2, 1 << 20), &put()).await,
            PutOutcome::Busy
        );
        let (third, options) = (key(ns, 3), put());
        let waiting = engine.put(&third, [3; 9], &options);
        let dropper = async { drop(writer) };
        let (outcome, ()) = futures_lite::future::zip(waiting, dropper).await;
        assert_eq!(
            outcome, STORED,
            "a put that waits is woken by a slot that comes back"
        );
        let counters = engine.stats().await.counters;
        assert_eq!((counters.puts_busy, counters.puts_abandoned), (1, 1));
        assert!(engine.check().await);
    });
}

#[test]
fn mixed_sizes_move_slabs_between_classes() {
    let engine = Engine::open(config(64)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        let mut number = 0;
        for round in 0..6 {
            let len = [1, 65_536, 3_000_000, 700_000, 40 << 20, 4096][round];
            for _ in 0..((80 << 20) / len.max(16_384)).max(2) {
                number += 1;
                let outcome = engine
                    .put(&key(ns, number), value(number, len), &put())
                    .await;
                assert_eq!(outcome, STORED, "{len}");
            }
            let block = engine
                .get(&key(ns, number), &GET)
                .await
                .hit()
                .expect("the newest block");
            assert!(block[..] == value(number, len)[..]);
            drop(block);
            assert!(engine.check().await, "after {len}");
        }
        let stats = engine.stats().await;
        assert!(stats.gauges.pool.slab_moves > 0);
        assert!(stats.counters.slab_evictions > 0);
        let gone = stats.counters.evictions;
        assert_eq!(stats.counters.puts_stored, stats.gauges.dram_blocks + gone);
    });
}

#[test]
fn namespaces_are_apart_and_go_at_once() {
    let engine = Engine::open(EngineConfig {
        dram_blocks: Some(1000),
        ..config(16)
    })
    .unwrap();
    let (a, b) = (
        engine.namespace("a").unwrap(),
        engine.namespace("b").unwrap(),
    );
    block_on(async {
        for number in 0..300 {
            assert_eq!(engine.put(&key(a, number), [1], &put()).await, STORED);
            assert_eq!(engine.put(&key(b, number), [2], &put()).await, STORED);
        }
        let pinned = engine.get(&key(a, 7), &GET).await.hit().unwrap();
        assert_eq!(engine.remove_namespace(a).await, Ok(300));
        for number in 0..300 {
            assert!(!engine.exists(&key(a, number)).await.is_hit());
            assert_eq!(
                engine.get(&key(b, number), &GET).await.hit().unwrap()[..],
                [2]
            );
        }
        assert_eq!(pinned[..], [1]);
        assert_eq!(engine.put(&key(a, 7), [9], &put()).await, STORED);
        assert_eq!(engine.get(&key(a, 7), &GET).await.hit().unwrap()[..], [9]);
        drop(pinned);
        while engine.stats().await.gauges.index_blocks > 301 {}
        assert!(engine.check().await);
        assert_eq!(engine.remove_namespace(a).await, Ok(1));
        assert_eq!(engine.remove_namespace(a).await, Ok(0));
    });
}

#[test]
fn batches_answer_each_key_over_all_shards() {
    let engine = Engine::open(EngineConfig {
        shards: 2,
        ..config(32)
    })
    .unwrap();
    let ns = engine.namespace("m").unwrap();
    let keys: Vec<BlockKey> = (0..100).map(|number| key(ns, number)).collect();
    let values: Vec<Vec<u8>> = (0..100).map(|number| value(number, 20_000)).collect();
    block_on(async {
        let items: Vec<PutItem> = (0..60)
            .map(|i| PutItem {
                key: &keys[i],
                value: &values[i],
                options: put(),
            })
            .collect();
        assert!(
            engine
                .put_batch(&items)
                .await
                .iter()
                .all(|outcome| *outcome == STORED)
        );
        assert_eq!(engine.match_prefix(&keys).await, 60);
        assert_eq!(engine.match_prefix(&keys[60..]).await, 0);
        assert_eq!(engine.match_prefix(&keys[..0]).await, 0);
        let found = engine.get_batch(&keys, &[]).await;
        for (i, outcome) in found.into_iter().enumerate() {
            match outcome.hit() {
                Some(block) => assert!(i < 60 && block[..] == values[i][..]),
                None => assert!(i >= 60),
            }
        }
        assert!(engine.remove_batch(&keys[..1]).await[0].is_hit());
        assert_eq!(engine.match_prefix(&keys).await, 0);
        let (brief, context) = (Duration::from_millis(10), RequestContext::default());
        let ahead = engine.prefetch(&keys, brief, &context).await;
        assert_eq!(ahead.await, PrefetchReport::default());
        assert!(engine.touch(&keys[5], &GET).await.is_hit());
        assert_eq!(engine.upsert(&keys[5], b"new", &put()).await, STORED);
        assert_eq!(engine.pin(&keys[5]).await.hit().unwrap()[..], *b"new");
        assert!(engine.check().await);
    });
}

#[test]
fn caller_memory_is_scattered_into_and_gathered_from() {
    let engine = Engine::open(config(8)).unwrap();
    let ns = engine.namespace("m").unwrap();
    let memory = engine.register(RegisteredRegion::allocate(1 << 20).unwrap());
    let part = |range| memory.slice(range).unwrap();
    let bytes = value(5, 100_000);
    block_on(async {
        part(0..60_000).copy_from(&bytes[..60_000]);
        part(500_000..540_000).copy_from(&bytes[60_000..]);
        let sources = [part(0..60_000), part(500_000..540_000)];
        assert_eq!(engine.put_from(&key(ns, 1), &sources, &put()).await, STORED);
        let targets = [part(900_000..900_001), part(700_000..799_999)];
        assert_eq!(
            engine.get_into(&key(ns, 1), &targets, &GET).await.hit(),
            Some(100_000)
        );
        let mut back = vec![0; 99_999];
        targets[1].copy_to(&mut back);
        assert!(back[..] == bytes[1..]);
    });
}

/// Aim: a descriptor speaks of the block it was made for, and of no later one in its slot.
#[test]
fn descriptor_of_a_slot_that_was_used_again_resolves_to_nothing() {
    let engine = Engine::open(config(2)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        engine.put(&key(ns, 1), value(1, 1 << 20), &put()).await;
        let (first, ttl) = (key(ns, 1), Duration::from_secs(60));
        let lease = engine.lease(&first, ttl, &GET).await.hit().unwrap();
        let descriptor = lease.descriptor;
        let found = engine.resolve(&descriptor).await.unwrap();
        assert!(found[..] == value(1, 1 << 20)[..]);
        drop(found);
        assert!(engine.release(&lease).await);
        assert!(engine.remove(&key(ns, 1)).await.is_hit());
        assert!(engine.resolve(&descriptor).await.is_none(), "an empty slot");
        // The same bytes under the same key: only the generation tells them apart.
        let mut same_slot = false;
        for _ in 0..10 {
            engine.put(&key(ns, 1), value(1, 1 << 20), &put()).await;
            let again = engine.lease(&first, ttl, &GET).await.hit().unwrap();
            same_slot |= again.descriptor.offset == descriptor.offset;
            assert!(engine.resolve(&descriptor).await.is_none(), "used again");
            assert!(engine.resolve(&again.descriptor).await.is_some());
            assert!(engine.release(&again).await);
            assert!(engine.remove(&key(ns, 1)).await.is_hit());
        }
        assert!(same_slot, "the slot has to be used again");
        for junk in [
            Descriptor {
                shard: 9,
                ..descriptor
            },
            Descriptor {
                offset: u64::MAX,
                ..descriptor
            },
            Descriptor {
                offset: 4097,
                ..descriptor
            },
            Descriptor {
                offset: u64::MAX / 4096 * 4096,
                ..descriptor
            },
        ] {
            assert!(engine.resolve(&junk).await.is_none(), "{junk:?}");
            let never = Lease {
                descriptor: junk,
                ..lease
            };
            assert!(!engine.release(&never).await);
        }
        assert_eq!(engine.stats().await.gauges.pinned_bytes, 0);
    });
}

#[test]
fn lease_keeps_its_slot_until_it_ends() {
    let engine = Engine::open(EngineConfig {
        pinned_ratio_max: 1.0,
        ..config(2)
    })
    .unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        engine.put(&key(ns, 1), value(1, 1 << 20), &put()).await;
        let lease = engine
            .lease(&key(ns, 1), Duration::from_secs(60), &GET)
            .await
            .hit()
            .unwrap();
        assert_eq!(lease.descriptor.len, 1 << 20);
        for number in 2..9 {
            assert_eq!(
                engine
                    .put(&key(ns, number), value(number, 1 << 20), &put())
                    .await,
                STORED
            );
        }
        assert!(
            engine.exists(&key(ns, 1)).await.is_hit(),
            "a leased block is not evicted"
        );
        assert!(engine.release(&lease).await);
        assert!(!engine.release(&lease).await);
        let short = engine
            .lease(&key(ns, 8), Duration::from_millis(5), &GET)
            .await
            .hit()
            .unwrap();
        while engine.stats().await.counters.leases_expired == 0 {}
        assert!(!engine.release(&short).await);
        assert_eq!(engine.stats().await.gauges.pinned_bytes, 0);
        assert!(
            engine
                .lease(&key(ns, 77), Duration::from_secs(1), &GET)
                .await
                .hit()
                .is_none()
        );
    });
}

#[test]
fn events_tell_what_happened_in_order_and_what_was_lost() {
    let engine = Engine::open(EngineConfig {
        dram_blocks: Some(2),
        ..config(2)
    })
    .unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        let events = engine.events(4).await.unwrap();
        for number in 0..3 {
            engine.put(&key(ns, number), [1], &put()).await;
        }
        engine.remove(&key(ns, 2)).await;
        let mut seen = Vec::new();
        for _ in 0..4 {
            let event = events.next().await;
            assert_eq!(event.sequence, seen.len() as u64 + 1);
            seen.push((event.kind, event.key[0]));
        }
        use EventKind::{Evicted, Removed, Stored};
        // The third put stored nothing before the first block was given up.
        assert_eq!(seen, [(Stored, 0), (Stored, 1), (Evicted, 0), (Stored, 2)]);
        assert_eq!(events.lost(), 1);
        engine.remove(&key(ns, 1)).await;
        let event = events.next().await;
        assert_eq!((event.kind, event.sequence), (Removed, 6));
        assert_eq!(engine.stats().await.counters.events_lost, 1);
    });
}

/// Aim: a subscriber is told of what it asked for only, and one that went away costs nothing more.
/// Method: two streams of one shard, one of a kind and a namespace, one dropped with its room full.
#[test]
fn streams_are_told_of_what_they_asked_for() {
    let engine = Engine::open(config(2)).unwrap();
    let [one, two] = ["one", "two"].map(|name| engine.namespace(name).unwrap());
    block_on(async {
        let streams = engine.run_on(0, move |shard| async move {
            let filter = EventFilter {
                kinds: Some(vec![EventKind::Removed]),
                namespace: Some(one),
            };
            let all = shard.events(1, EventFilter::default());
            (shard.events(8, filter), all)
        });
        let (chosen, full) = streams.await.unwrap();
        engine.put(&key(two, 1), [1], &put()).await;
        engine.put(&key(one, 1), [1], &put()).await;
        assert_eq!(full.lost(), 1);
        drop(full);
        engine.remove(&key(two, 1)).await;
        engine.remove(&key(one, 1)).await;
        let event = chosen.next().await;
        assert_eq!((event.kind, event.namespace), (EventKind::Removed, one));
        assert_eq!((event.sequence, chosen.lost()), (4, 0));
        assert!(chosen.try_next().is_none());
        assert_eq!(engine.stats().await.counters.events_lost, 1);
    });
}

/// A policy that panics when it sees a certain block.
struct Fragile {
    inner: Lru,
    at: KeyHash,
}

impl Policy for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.inner.set_capacity(blocks);
    }

    fn on_request(&mut self, accesses: &[Access]) {
        assert!(
            accesses.iter().all(|access| access.id != self.at),
            "on purpose"
        );
    }

    fn on_hit(&mut self, block: terrace_engine::policy::BlockIx, access: &Access) {
        assert_ne!(access.id, self.at, "on purpose");
        self.inner.on_hit(block, access);
    }

    fn on_insert(&mut self, block: terrace_engine::policy::BlockIx, access: &Access) {
        self.inner.on_insert(block, access);
    }

    fn on_remove(&mut self, block: terrace_engine::policy::BlockIx) {
        self.inner.on_remove(block);
    }

    fn victim(
        &mut self,
        evictable: &mut dyn FnMut(terrace_engine::policy::BlockIx) -> bool,
    ) -> Option<terrace_engine::policy::BlockIx> {
        self.inner.victim(evictable)
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn bytes(&self) -> PolicyBytes {
        self.inner.bytes()
    }
}

#[test]
fn shard_that_panics_is_fenced_and_the_rest_lives() {
    let probe = Engine::open(config(2)).unwrap();
    let fatal = key(probe.namespace("m").unwrap(), 13).hash();
    let config = EngineConfig {
        shards: 2,
        ..config(16)
    };
    let engine = Engine::builder(config)
        .policy(move |config: PolicyConfig| {
            let inner = Lru::new(config)?;
            Ok(Box::new(Fragile { inner, at: fatal }) as Box<dyn Policy>)
        })
        .open()
        .unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        let mut pins = Vec::new();
        for number in 0..40 {
            engine
                .put(&key(ns, number), value(number, 4096), &put())
                .await;
            if number != 13 {
                pins.push((
                    number,
                    engine.get(&key(ns, number), &GET).await.hit().unwrap(),
                ));
            }
        }
        let fenced = engine.shard_of(&key(ns, 13));
        let gone = Lookup::Unavailable(UnavailableReason::ShardFenced);
        assert_eq!(engine.get(&key(ns, 13), &GET).await.map(|_| ()), gone);
        for number in 0..40 {
            let (key, on_fenced) = (key(ns, number), engine.shard_of(&key(ns, number)) == fenced);
            assert_eq!(
                engine.get(&key, &GET).await.map(|_| ()) == gone,
                on_fenced,
                "{number}"
            );
        }
        let refused = PutOutcome::Rejected(RejectReason::ShardFenced);
        assert_eq!(engine.put(&key(ns, 13), [1], &put()).await, refused);
        for (number, block) in &pins {
            assert!(block[..] == value(*number, 4096)[..], "pins stay valid");
        }
        let stats = engine.stats().await;
        assert!(stats.shards[fenced].clone().unwrap().fenced);
        assert!(!stats.shards[1 - fenced].clone().unwrap().fenced);
        engine.close(Duration::from_secs(5)).await;
        assert!(
            pins.iter()
                .all(|(number, block)| block[..] == value(*number, 4096)[..])
        );
    });
}

#[test]
fn announced_request_reaches_the_policy_of_each_shard() {
    let probe = Engine::open(config(2)).unwrap();
    let fatal = key(probe.namespace("m").unwrap(), 3).hash();
    let engine = Engine::builder(EngineConfig {
        shards: 2,
        ..config(8)
    })
    .policy(move |config: PolicyConfig| {
        let inner = Lru::new(config)?;
        Ok(Box::new(Fragile { inner, at: fatal }) as Box<dyn Policy>)
    })
    .open()
    .unwrap();
    let ns = engine.namespace("m").unwrap();
    let access = |number| Access::plain(key(ns, number).hash());
    block_on(async {
        let harmless: Vec<Access> = (10..30).map(access).collect();
        assert_eq!(engine.announce(&harmless).await, Ok(()));
        let fatal = engine.announce(&[access(3)]).await;
        assert_eq!(
            fatal,
            Err(UnavailableReason::ShardFenced),
            "the policy saw it"
        );
    });
}

#[test]
fn unpaced_puts_from_many_threads_lose_nothing_in_silence() {
    let engine = Engine::open(config(32)).unwrap();
    let ns = engine.namespace("m").unwrap();
    let threads: Vec<_> = (0..8_u64)
        .map(|thread| {
            let engine = engine.clone();
            std::thread::spawn(move || {
                let (mut stored, mut refused) = (0, 0);
                for i in 0..400 {
                    let number = thread * 1000 + i;
                    let outcome =
                        block_on(engine.put(&key(ns, number), value(number, 65_536), &put()));
                    match outcome {
                        PutOutcome::Stored { .. } => stored += 1,
                        PutOutcome::Busy => refused += 1,
                        other => panic!("{other:?}"),
                    }
                }
                (stored, refused)
            })
        })
        .collect();
    let (mut stored, mut busy) = (0_u64, 0_u64);
    for thread in threads {
        let (s, b) = thread.join().unwrap();
        stored += s;
        busy += b;
    }
    assert_eq!(stored + busy, 3200);
    block_on(async {
        let stats = engine.stats().await;
        assert_eq!(stats.counters.puts_stored, stored);
        assert_eq!(stats.counters.puts_busy, busy);
        let mut found = 0;
        for number in (0..8).flat_map(|thread| (0..400).map(move |i| thread * 1000 + i)) {
            if let Some(block) = engine.get(&key(ns, number), &GET).await.hit() {
                assert!(block[..] == value(number, 65_536)[..]);
                found += 1;
            }
        }
        assert_eq!(
            found + stats.counters.evictions,
            stored,
            "readable, or evicted and counted"
        );
        assert!(engine.check().await);
    });
}

#[test]
fn opened_and_closed_again_and_again_leaves_nothing() {
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = || {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        text.lines()
            .filter(|line| line.contains("terrace-arena"))
            .count()
    };
    let round = |i: u64| {
        let engine = Engine::open(EngineConfig {
            shards: 2,
            ..config(4)
        })
        .unwrap();
        let ns = engine.namespace("m").unwrap();
        block_on(async {
            engine.put(&key(ns, i), value(i, 70_000), &put()).await;
            let report = engine.close(Duration::from_secs(20)).await;
            assert_eq!((report.blocks_lost, report.shards_unclean), (1, 0));
        });
    };
    (0..3).for_each(round);
    let before = fds();
    (0..100).for_each(round);
    // Tests of this binary run side by side; nextest gives each a process of its own.
    if std::env::var_os("NEXTEST").is_some() {
        assert_eq!(maps(), 0);
        // glommio closes files by its ring; an idle executor comes to it at its next beat. One
        // that never does shows as a test that nextest ends.
        while fds() > before {
            std::thread::yield_now();
        }
    }
}

#[test]
fn dropped_calls_leave_no_pin_and_no_slot_behind() {
    let engine = Engine::open(config(8)).unwrap();
    let ns = engine.namespace("m").unwrap();
    block_on(async {
        engine.put(&key(ns, 1), value(1, 100_000), &put()).await;
        for _ in 0..200 {
            // Polled once, so that the message is on its way, then dropped.
            drop(futures_lite::future::poll_once(engine.get(&key(ns, 1), &GET)).await);
            let (other, options) = (key(ns, 2), put());
            let reserve = engine.reserve(&other, 1 << 20, &options);
            drop(futures_lite::future::poll_once(reserve).await);
        }
        engine.sync().await.unwrap();
        let gauges = engine.stats().await.gauges;
        assert_eq!((gauges.pinned_bytes, gauges.writers), (0, 0));
        assert!(engine.check().await);
    });
}

#[test]
fn code_on_the_shards_thread_needs_no_hop() {
    let engine = Engine::open(config(8)).unwrap();
    let ns = engine.namespace("m").unwrap();
    let hits = block_on(engine.run_on(0, move |shard| async move {
        shard.put(&key(ns, 1), b"abc", &put()).await;
        let terrace_engine::TryGet::Hit(pin) = shard.try_get(&key(ns, 1), &GET) else {
            panic!()
        };
        assert_eq!(&pin[..], b"abc");
        shard.stats().counters.dram_hits
    }));
    assert_eq!(hits, Ok(1));
    let panicked = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&panicked);
    let outcome = block_on(engine.run_on(0, move |_| async move {
        flag.store(true, Ordering::SeqCst);
        panic!("on purpose")
    }));
    assert_eq!(outcome, Err::<(), _>(UnavailableReason::ShardFenced));
    assert!(panicked.load(Ordering::SeqCst));
}
