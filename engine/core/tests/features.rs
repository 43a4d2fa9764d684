//! Aim: what policies, chains and namespaces are promised, through the engine's own API. Method:
//! engines of a few MiB over files made for the test, with a policy that tells what it is asked.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

#[path = "files/scratch.rs"]
mod scratch;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace_engine::policy::{Admission, BlockIx, Policy, PolicyBytes, PolicyConfig, by_name};
use terrace_engine::{
    Access, BlockKey, Durability, Engine, EngineConfig, GetOptions, Hint, HugepageMode, Lookup,
    Namespace, NamespaceOptions, NvmeConfig, PutItem, PutOptions, RequestContext, Tier, block_on,
};

use scratch::{CLOSE, Scratch};

fn config(shards: usize, file: Option<&Scratch>) -> EngineConfig {
    let nvme = file.map_or_else(NvmeConfig::default, |file| NvmeConfig {
        paths: vec![file.0.clone()],
        file_bytes: Some(128 << 20),
        ..NvmeConfig::default()
    });
    EngineConfig {
        dram_bytes: (4 << 20) * shards as u64,
        shards,
        hugepages: HugepageMode::Off,
        nvme,
        ..EngineConfig::default()
    }
}

fn key(ns: Namespace, number: u64) -> BlockKey {
    ns.key(&number.to_le_bytes()).unwrap()
}

/// What the policies of an engine were asked and told.
#[derive(Default)]
struct Heard {
    configs: Vec<PolicyConfig>,
    /// Ids of each request, in the order in which it was announced.
    requests: Vec<Vec<Access>>,
    learned: Vec<Vec<u8>>,
    restored_after_insert: bool,
}

/// LRU that notes what it hears.
struct Listener {
    inner: Box<dyn Policy>,
    heard: Arc<Mutex<Heard>>,
    learned: Vec<u8>,
}

impl Policy for Listener {
    fn name(&self) -> &'static str {
        "listener"
    }
    fn set_capacity(&mut self, blocks: usize) {
        self.inner.set_capacity(blocks);
    }
    fn on_request(&mut self, accesses: &[Access]) {
        self.heard.lock().unwrap().requests.push(accesses.to_vec());
    }
    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        self.inner.on_hit(block, access);
    }
    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        self.inner.on_insert(block, access);
    }
    fn on_remove(&mut self, block: BlockIx) {
        self.inner.on_remove(block);
    }
    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        self.inner.victim(evictable)
    }
    fn save(&self, visit: &mut dyn FnMut(BlockIx, u8)) {
        self.inner.save(visit);
    }
    fn save_learned(&self) -> Vec<u8> {
        self.learned.clone()
    }
    fn restore_learned(&mut self, learned: &[u8]) {
        let mut heard = self.heard.lock().unwrap();
        heard.learned.push(learned.to_vec());
        heard.restored_after_insert |= !self.inner.is_empty();
    }
    fn admit(&mut self, access: &Access) -> Admission {
        self.inner.admit(access)
    }
    fn len(&self) -> usize {
        self.inner.len()
    }
    fn bytes(&self) -> PolicyBytes {
        self.inner.bytes()
    }
}

/// An engine whose shards' policies have learned `learned` and their number among those made.
fn listening(config: EngineConfig, learned: &[u8]) -> (Engine, Arc<Mutex<Heard>>) {
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let (told, learned) = (Arc::clone(&heard), learned.to_vec());
    let builder = Engine::builder(config).policy(move |config| {
        told.lock().unwrap().configs.push(config);
        Ok(Box::new(Listener {
            inner: by_name("LRU", config)?,
            heard: Arc::clone(&told),
            learned: learned.clone(),
        }))
    });
    (builder.open().unwrap(), heard)
}

#[test]
fn policy_hears_how_many_blocks_the_devices_hold() {
    let file = Scratch::new("below_blocks");
    for (nvme, expected) in [(None, 0..1), (Some(&file), 1500..2049)] {
        let config = EngineConfig {
            block_lens: vec![60_000],
            ..config(1, nvme)
        };
        let (engine, heard) = listening(config, b"");
        let below = heard.lock().unwrap().configs[0].below_blocks;
        assert!(expected.contains(&below), "{below}");
        block_on(engine.close(CLOSE));
    }
}

#[test]
fn learned_state_survives_a_close_and_a_change_of_the_shard_count() {
    let file = Scratch::new("learned");
    let mut wrote: Vec<u8> = Vec::new();
    for (round, shards) in [1, 2, 1, 2].into_iter().enumerate() {
        let writes = format!("round {round}").into_bytes();
        let (engine, heard) = listening(config(shards, Some(&file)), &writes);
        let ns = engine.namespace("n").unwrap();
        block_on(async {
            for number in 0..8 {
                let (key, options) = (key(ns, number), PutOptions::default());
                assert!(engine.put(&key, [1; 5000], &options).await.is_present());
            }
            assert!(engine.close(CLOSE).await.devices_clean);
        });
        let heard = heard.lock().unwrap();
        let expected = if round == 0 { 0 } else { shards };
        assert_eq!(heard.learned, vec![wrote; expected], "round {round}");
        assert!(!heard.restored_after_insert);
        wrote = writes;
    }
    // What is no clean close leaves nothing to go on with.
    drop(listening(config(1, Some(&file)), b"unclean").0);
    while listening_is_refused(&file) {}
    let (engine, heard) = listening(config(1, Some(&file)), b"");
    assert!(heard.lock().unwrap().learned.is_empty());
    block_on(engine.close(CLOSE));
}

/// Whether the engine that was dropped still has the file.
fn listening_is_refused(file: &Scratch) -> bool {
    let locked = std::fs::File::open(&file.0).unwrap();
    locked.try_lock().is_err()
}

#[test]
fn batches_with_hints_announce_each_request_once() {
    let (engine, heard) = listening(config(2, None), b"");
    let ns = engine.namespace("n").unwrap();
    let keys: Vec<BlockKey> = (0..40).map(|number| key(ns, number)).collect();
    let hint = |depth: usize| Hint {
        parent: depth.checked_sub(1).map(|parent| keys[parent].hash()),
        depth: depth as u32,
        ..Hint::default()
    };
    let lookups = |clock_ms: u64| -> Vec<GetOptions> {
        let context = RequestContext {
            clock_ms,
            ..RequestContext::default()
        };
        (0..keys.len())
            .map(|depth| GetOptions {
                hint: hint(depth),
                context,
                ..GetOptions::default()
            })
            .collect()
    };
    let told = || {
        let requests = std::mem::take(&mut heard.lock().unwrap().requests);
        let count: usize = requests.iter().map(Vec::len).sum();
        (requests.len(), count)
    };
    block_on(async {
        engine.get_batch(&keys, &[]).await;
        assert_eq!(told(), (0, 0), "nothing tells a chain");
        let options = lookups(5);
        engine.get_batch(&keys, &options).await;
        assert_eq!(told(), (2, 40), "each shard hears of its own");
        let value = [3; 100];
        let items: Vec<PutItem<'_>> = keys
            .iter()
            .zip(&options)
            .map(|(key, told)| PutItem {
                key,
                value: &value,
                options: PutOptions {
                    hint: told.hint,
                    context: told.context,
                    ..PutOptions::default()
                },
            })
            .collect();
        engine.put_batch(&items).await;
        assert_eq!(told(), (0, 0), "the request was announced by its lookup");
        engine.put_batch(&items).await;
        assert_eq!(told(), (2, 40), "a put by itself announces itself");
        let options = lookups(6);
        let accesses: Vec<Access> = keys
            .iter()
            .zip(&options)
            .map(|(key, told)| Access {
                id: key.hash(),
                len: 0,
                hint: told.hint,
                context: told.context,
            })
            .collect();
        engine.announce(&accesses).await.unwrap();
        engine.get_batch(&keys, &options).await;
        assert_eq!(told(), (2, 40), "the caller announced it");
        engine.get_batch(&keys, &options).await;
        assert_eq!(told(), (2, 40), "the same again is another request");
    });
}

#[test]
fn chain_below_is_read_ahead_over_all_shards_and_dropping_the_handle_cancels() {
    let file = Scratch::new("ahead");
    for shards in [1, 2] {
        let config = EngineConfig {
            dram_blocks: Some(64),
            prefetch_ratio_max: 0.25,
            ..config(shards, Some(&file))
        };
        let engine = Engine::open(config).unwrap();
        let ns = engine.namespace(&format!("{shards} shards")).unwrap();
        let keys: Vec<BlockKey> = (0..60).map(|number| key(ns, number)).collect();
        let durable = PutOptions {
            durability: Durability::Durable,
            ..PutOptions::default()
        };
        let context = RequestContext::default();
        block_on(async {
            for key in &keys {
                assert!(
                    engine
                        .put(key, vec![5; 20_000], &durable)
                        .await
                        .is_present()
                );
            }
            for number in 100..200 {
                let (key, options) = (key(ns, number), PutOptions::default());
                assert!(
                    engine
                        .put(&key, vec![5; 20_000], &options)
                        .await
                        .is_present()
                );
            }
            let before = engine.stats().await.counters;
            assert_eq!(engine.match_prefix(&keys).await, 60);
            let after = engine.stats().await.counters;
            assert_eq!(after.promotions, before.promotions, "a match moves nothing");
            let short = engine.prefetch(&keys[..8], CLOSE, &context).await.await;
            assert_eq!((short.begun + short.resident, short.cancelled), (8, 0));
            for key in &keys[..8] {
                let found = engine.get(key, &GetOptions::default()).await;
                assert!(matches!(
                    found,
                    Lookup::Hit {
                        tier: Tier::Dram,
                        ..
                    }
                ));
            }
            // The budget holds sixteen: the rest waits, and goes with the handle.
            let rest = engine.prefetch(&keys, CLOSE, &context).await;
            drop(rest);
            while engine.stats().await.counters.prefetch_cancelled == 0 {}
            let stats = engine.stats().await;
            assert!(stats.gauges.ahead_bytes <= 16 * 20_480, "{stats:?}");
            assert!(engine.check().await);
            engine.close(CLOSE).await;
        });
    }
}

#[test]
fn namespaces_are_bounded_from_the_start_and_while_open() {
    let rules = NamespaceOptions {
        dram_quota_bytes: Some(1 << 20),
        ..NamespaceOptions::default()
    };
    let config = EngineConfig {
        namespaces: vec![("a".to_owned(), rules)],
        ..config(2, None)
    };
    let engine = Engine::open(config).unwrap();
    let held = || {
        let stats = block_on(engine.stats()).namespaces;
        let bytes = |name: &str| {
            let known = stats.iter().find(|known| known.name == name);
            known.map_or(0, |known| known.dram_bytes)
        };
        (bytes("a"), bytes("b"))
    };
    let fill = |name: &str| {
        let ns = engine.namespace(name).unwrap();
        block_on(async {
            for number in 0..200 {
                let (key, options) = (key(ns, number), PutOptions::default());
                assert!(
                    engine
                        .put(&key, vec![1; 16_384], &options)
                        .await
                        .is_present()
                );
            }
        });
    };
    fill("a");
    fill("b");
    assert_eq!(held(), (1 << 20, 200 * 16_384));
    block_on(engine.set_namespace("b", rules)).unwrap();
    assert_eq!(held(), (1 << 20, 1 << 20));
    assert!(block_on(engine.check()));
}

#[test]
fn namespace_out_of_range_names_field_value_and_limit() {
    let engine = Engine::open(config(2, None)).unwrap();
    let rules = NamespaceOptions {
        dram_quota_bytes: Some(1 << 20),
        ..NamespaceOptions::default()
    };
    type Change = fn(&mut NamespaceOptions);
    let wrong: [(&str, Change); 6] = [
        ("dram_quota_bytes", |it| it.dram_quota_bytes = Some(0)),
        ("nvme_quota_bytes", |it| it.nvme_quota_bytes = Some(4096)),
        ("dram_floor_bytes", |it| it.dram_floor_bytes = 2 << 20),
        ("dram_floor_bytes", |it| {
            *it = NamespaceOptions {
                dram_floor_bytes: 5 << 20,
                ..NamespaceOptions::default()
            }
        }),
        ("ttl", |it| it.ttl = Some(Duration::from_millis(10))),
        ("ttl", |it| it.ttl = Some(Duration::MAX)),
    ];
    for (field, change) in wrong {
        let mut options = rules;
        change(&mut options);
        let set = block_on(engine.set_namespace("b", options));
        let error = set.expect_err(field).to_string();
        assert!(
            error.contains(field) && error.contains("allowed"),
            "{error}"
        );
        let config = EngineConfig {
            namespaces: vec![("b".to_owned(), options)],
            ..engine.config().clone()
        };
        assert!(config.validate().is_err(), "{field}");
    }
    let twice = EngineConfig {
        namespaces: vec![("b".to_owned(), rules); 2],
        ..engine.config().clone()
    };
    assert!(twice.validate().is_err());
}

#[test]
fn page_for_operators_lists_every_counter_and_no_other() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("| `Counters` |").unwrap();
    let (table, _) = rest.split_once("\n\n").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" |").next());
    let listed: Vec<&str> = cells
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches('`'))
        .collect();
    let named = terrace_engine::Counters::default().named();
    let counters: Vec<&str> = named
        .iter()
        .filter_map(|(name, _)| name.strip_prefix("terrace_")?.strip_suffix("_total"))
        .collect();
    for name in &counters {
        assert!(listed.contains(name), "{name} is not listed");
    }
    for name in &listed {
        assert!(counters.contains(name), "{name} is listed and not counted");
    }
}
