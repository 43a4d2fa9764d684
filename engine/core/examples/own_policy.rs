//! A policy of one's own: random eviction, in forty lines.

use terrace_engine::policy::{BlockIx, Policy, PolicyBytes, VICTIM_SCAN_MAX};
use terrace_engine::{Access, Engine, EngineConfig, GetOptions, PutOptions, block_on};

#[derive(Default)]
struct Random {
    blocks: Vec<BlockIx>,
    state: u64,
}

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn set_capacity(&mut self, _blocks: usize) {}

    fn on_hit(&mut self, _block: BlockIx, _access: &Access) {}

    fn on_insert(&mut self, block: BlockIx, _access: &Access) {
        self.blocks.push(block);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.blocks.retain(|known| *known != block);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        for _ in 0..VICTIM_SCAN_MAX.min(self.blocks.len()) {
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = usize::try_from(self.state >> 33).ok()? % self.blocks.len();
            if evictable(self.blocks[at]) {
                return Some(self.blocks.swap_remove(at));
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn bytes(&self) -> PolicyBytes {
        PolicyBytes {
            resident: 4 * self.blocks.len() as u64,
            ghosts: 0,
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = EngineConfig {
        dram_blocks: Some(100),
        ..EngineConfig::default()
    };
    let engine = Engine::builder(config)
        .policy(|_| Ok(Box::new(Random::default())))
        .open()?;
    let namespace = engine.namespace("model")?;
    let keys: Vec<_> = (0..400_u32)
        .map(|number| namespace.key(&number.to_le_bytes()))
        .collect::<Result<_, _>>()?;
    block_on(async {
        for key in &keys {
            engine.put(key, [1; 4096], &PutOptions::default()).await;
        }
        let found = engine.get_batch(&keys, &[GetOptions::default(); 400]).await;
        let hits = found.iter().filter(|outcome| outcome.is_hit()).count();
        assert_eq!(hits, 100);
        eprintln!("{hits} of {} blocks stayed, picked at random", keys.len());
    });
    Ok(())
}
