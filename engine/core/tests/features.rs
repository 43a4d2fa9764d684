//! Aim: what policies, chains and namespaces are promised, through the engine's own API. Method:
//! engines of a few MiB over files made for the test, with a policy that tells what it is asked.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace_engine::policy::{Admission, BlockIx, Policy, PolicyBytes, PolicyConfig, by_name};
use terrace_engine::{
    Access, BlockKey, Engine, EngineConfig, GetOptions, Hint, HugepageMode, Namespace, NvmeConfig,
    PutItem, PutOptions, RequestContext, block_on,
};

const CLOSE: Duration = Duration::from_secs(60);

/// A file of a test's own, removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

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
        heard.restored_after_insert |= self.inner.len() > 0;
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
