//! Two engines in one process, each with its own memory; keys of one are refused by the other.

use terrace_engine::UnavailableReason::ForeignNamespace;
use terrace_engine::{Engine, EngineConfig, GetOptions, Lookup, PutOptions, block_on};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = EngineConfig {
        dram_bytes: 8 << 20,
        ..EngineConfig::default()
    };
    let (first, second) = (Engine::open(config.clone())?, Engine::open(config)?);
    let key = first.namespace("model")?.key(b"k")?;
    let same_name = second.namespace("model")?.key(b"k")?;
    block_on(async {
        assert!(
            first
                .put(&key, b"of the first", &PutOptions::default())
                .await
                .is_present()
        );
        let options = GetOptions::default();
        assert!(matches!(
            second.get(&key, &options).await,
            Lookup::Unavailable(ForeignNamespace)
        ));
        assert!(matches!(
            second.get(&same_name, &options).await,
            Lookup::Miss
        ));
        assert!(first.get(&key, &options).await.is_hit());
    });
    eprintln!("two engines, two sets of blocks");
    Ok(())
}
