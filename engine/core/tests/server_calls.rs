//! What a server asks of a shard on the shard's own thread: facts, lists, renewed leases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use terrace_engine::{
    BlockFacts, Checksum, Engine, EngineConfig, GetOptions, HugepageMode, LeaseId, PutOptions,
    block_on,
};

fn open() -> Engine {
    Engine::open(EngineConfig {
        dram_bytes: 32 << 20,
        hugepages: HugepageMode::Off,
        ..EngineConfig::default()
    })
    .unwrap()
}

#[test]
fn stat_tells_what_is_known_and_changes_nothing() {
    let engine = open();
    let key = engine.namespace("m").unwrap().key(b"k").unwrap();
    let expected = BlockFacts {
        len: 5,
        checksum: Checksum::of(&key, b"value"),
        durable: false,
        in_dram: true,
        on_nvme: false,
        pinned: false,
        leased: false,
    };
    block_on(async {
        engine.put(&key, b"value", &PutOptions::default()).await;
        let asked = key.clone();
        let facts = engine.run_on(0, move |shard| async move {
            let there = shard.stat(&asked).hit();
            let pin = shard
                .get(&asked, &GetOptions::default())
                .await
                .hit()
                .unwrap();
            assert_eq!(Some(pin.checksum()), there.map(|facts| facts.checksum));
            let pinned = shard.stat(&asked).hit().is_some_and(|facts| facts.pinned);
            drop(pin);
            (
                there,
                pinned,
                shard.stat(&asked).hit(),
                shard.len_of(&asked),
            )
        });
        let facts = facts.await.unwrap();
        assert_eq!(facts, (Some(expected), true, Some(expected), Some(5)));
        assert!(engine.remove(&key).await.is_hit());
        let gone = engine.run_on(0, move |shard| async move {
            shard.stat(&key).hit().is_none() && shard.len_of(&key).is_none()
        });
        assert_eq!(gone.await, Ok(true));
    });
}

/// Aim: a list goes through all blocks of its namespace in steps. Method: more blocks than a step
/// looks at, another namespace between them, removals.
#[test]
fn list_goes_through_a_namespace_in_steps() {
    let engine = open();
    let [ns, other] = ["m", "n"].map(|name| engine.namespace(name).unwrap());
    block_on(async {
        for number in 0..3000_u32 {
            let bytes = number.to_le_bytes();
            let namespace = if number.is_multiple_of(3) { other } else { ns };
            let key = namespace.key(&bytes).unwrap();
            engine.put(&key, bytes, &PutOptions::default()).await;
            if number.is_multiple_of(5) {
                engine.remove(&key).await;
            }
        }
        let listed = engine.run_on(0, move |shard| async move {
            let (mut named, mut place) = (Vec::new(), Some(0));
            while let Some(from) = place {
                let (blocks, next) = shard.list(ns, b"", from).unwrap();
                assert!(
                    blocks
                        .iter()
                        .all(|block| block.place >= from && block.len == 4)
                );
                named.extend(blocks.into_iter().map(|block| block.key));
                place = next;
            }
            named
        });
        let mut listed = listed.await.unwrap();
        listed.sort();
        let stays = |number: &u32| !number.is_multiple_of(3) && !number.is_multiple_of(5);
        let stay = (0..3000_u32)
            .filter(stays)
            .map(|n| Box::from(n.to_le_bytes()));
        let mut expected: Vec<Box<[u8]>> = stay.collect();
        expected.sort();
        assert!(listed == expected);
    });
}

/// Aim: a lease that is renewed outlives its first time. Method: two short ones, of which one is
/// renewed; the other's end tells that the time is over.
#[test]
fn lease_renewed_outlives_its_first_time() {
    let engine = open();
    let key = engine.namespace("m").unwrap().key(b"k").unwrap();
    block_on(async {
        engine.put(&key, b"value", &PutOptions::default()).await;
        let short = Duration::from_millis(20);
        let renewed = engine.lease(&key, short, &GetOptions::default()).await;
        let renewed = renewed.hit().unwrap();
        let renewal = engine.run_on(0, move |shard| async move {
            let never = shard.renew(LeaseId(u64::MAX), Duration::from_secs(1));
            (never, shard.renew(renewed.id, Duration::from_secs(60)))
        });
        let (never, until) = renewal.await.unwrap();
        assert_eq!(never, None);
        assert!(until.unwrap() > renewed.deadline);
        let other = engine.lease(&key, short, &GetOptions::default()).await;
        assert!(other.is_hit());
        while engine.stats().await.counters.leases_expired == 0 {}
        assert!(engine.release(&renewed).await, "it was renewed");
        let gauges = engine.stats().await.gauges;
        assert_eq!((gauges.leases, gauges.pinned_bytes), (0, 0));
    });
}
