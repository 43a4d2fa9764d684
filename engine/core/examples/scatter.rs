//! Gather a block out of registered memory, and scatter it back into other places of it, as a
//! serving engine does with the layers of its own KV pool.

use terrace_engine::{Engine, EngineConfig, GetOptions, PutOptions, RegisteredRegion, block_on};

const LAYER_LEN: usize = 64 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open(EngineConfig {
        dram_bytes: 64 << 20,
        ..EngineConfig::default()
    })?;
    let namespace = engine.namespace("model/bf16/layer-first")?;
    let key = namespace.key(b"block 7")?;
    // A memfd that another process may have mapped too.
    let pool = engine.register(RegisteredRegion::allocate(64 * LAYER_LEN)?);
    let layer = |at: usize| pool.slice(at * LAYER_LEN..(at + 1) * LAYER_LEN);
    let sources = [layer(3)?, layer(17)?, layer(31)?];
    for (i, source) in sources.iter().enumerate() {
        source.copy_from(&vec![u8::try_from(i)? + 1; LAYER_LEN]);
    }
    block_on(async {
        let put = engine
            .put_from(&key, &sources, &PutOptions::default())
            .await;
        assert!(put.is_present(), "{put:?}");
    });
    let targets = [layer(40)?, layer(50)?, layer(60)?];
    let copied = block_on(engine.get_into(&key, &targets, &GetOptions::default())).hit();
    assert_eq!(copied, Some(3 * LAYER_LEN));
    let mut byte = [0];
    targets[2].copy_to(&mut byte);
    assert_eq!(byte, [3]);
    eprintln!("three layers gathered, stored, and scattered elsewhere");
    Ok(())
}
