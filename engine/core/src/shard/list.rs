//! Naming the blocks that a shard stores, a step at a time.

use terrace_types::{Namespace, Tier, UnavailableReason};

use super::Shard;

/// Record numbers that one step looks at: what may be done before other tasks run.
const STEP_NUMBERS: u32 = 1024;

/// A block as a list names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBlock {
    /// Its key.
    pub key: Box<[u8]>,
    /// The fastest tier that holds it.
    pub tier: Tier,
    /// It survives kill -9 and power loss.
    pub durable: bool,
    /// Its length in bytes.
    pub len: u32,
    /// Its place in the list: a step from here on begins with it.
    pub place: u32,
}

impl Shard {
    /// One step of a list: blocks of `namespace` whose keys begin with `prefix`, from `place` on,
    /// and where the next step begins. `None`: this was the last one. Blocks that are there from
    /// the first step to the last are named once; others may be.
    ///
    /// # Errors
    /// [`UnavailableReason`] when the shard is fenced or closing, or the namespace is another
    /// engine's.
    pub fn list(
        &self,
        namespace: Namespace,
        prefix: &[u8],
        place: u32,
    ) -> Result<(Vec<ListedBlock>, Option<u32>), UnavailableReason> {
        if namespace.engine() != self.engine {
            return Err(UnavailableReason::ForeignNamespace);
        }
        if let Some(reason) = self.unavailable() {
            return Err(reason);
        }
        let state = self.state.borrow();
        let Some(epoch) = state.epochs.of(namespace) else {
            return Ok((Vec::new(), None));
        };
        state.tenants.look_at_clock(self.now.get());
        let mut blocks = Vec::new();
        let step = state.index.scan(place, STEP_NUMBERS);
        for (block, record) in step.filter(|(_, record)| record.namespace() == epoch) {
            if state.is_expired(block) {
                continue;
            }
            let key = state.index.key_of(record);
            if key.starts_with(prefix) {
                let in_dram = record.slot().is_some();
                blocks.push(ListedBlock {
                    key: key.into(),
                    tier: if in_dram { Tier::Dram } else { Tier::Nvme },
                    durable: self.is_durable(record),
                    len: record.len,
                    place: block.0,
                });
            }
        }
        let next = place.saturating_add(STEP_NUMBERS);
        Ok((blocks, (next < state.index.numbers()).then_some(next)))
    }
}
