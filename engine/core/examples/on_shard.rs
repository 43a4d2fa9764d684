//! Work on a shard's own thread, as a server does: lookups are plain calls, without a hop, a
//! lock or an allocation.

use terrace_engine::{Engine, EngineConfig, GetOptions, PutOptions, TryGet, block_on};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open(EngineConfig {
        dram_bytes: 64 << 20,
        ..EngineConfig::default()
    })?;
    let namespace = engine.namespace("model")?;
    let key = namespace.key(b"k")?;
    let shard = engine.shard_of(&key);
    let sum = block_on(engine.run_on(shard, move |shard| async move {
        shard.put(&key, &[1; 1000], &PutOptions::default()).await;
        match shard.try_get(&key, &GetOptions::default()) {
            TryGet::Hit(pin) => pin.iter().map(|byte| u32::from(*byte)).sum(),
            _ => 0_u32,
        }
    }))
    .map_err(|reason| reason.to_string())?;
    assert_eq!(sum, 1000);
    eprintln!("summed {sum} in place");
    Ok(())
}
