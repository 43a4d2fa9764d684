//! Open an engine, store a block, read it back without a copy.

use std::time::Duration;

use terrace_engine::{Engine, EngineConfig, GetOptions, Lookup, PutOptions, block_on};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open(EngineConfig {
        dram_bytes: 64 << 20,
        ..EngineConfig::default()
    })?;
    // Whatever must never be mixed goes into the namespace: model, dtype, layout, rank, length.
    let namespace = engine.namespace("llama-3.1-8b/bf16/tp1/16-tokens")?;
    let key = namespace.key(b"hash of the prefix up to here")?;
    block_on(async {
        let block = vec![42; 2 << 20];
        let outcome = engine.put(&key, &block, &PutOptions::default()).await;
        assert!(outcome.is_present(), "{outcome:?}");
        match engine.get(&key, &GetOptions::default()).await {
            Lookup::Hit { tier, value } => {
                assert!(value[..] == block[..]);
                eprintln!("{} bytes from {tier}, in the slot they lie in", value.len());
            }
            other => panic!("just stored, and now {other:?}"),
        }
        engine.close(Duration::from_secs(5)).await;
    });
    Ok(())
}
