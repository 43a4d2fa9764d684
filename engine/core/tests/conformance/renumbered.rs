//! Policies under other numbers of blocks than those they are asked with.

use terrace_engine::policy::{Admission, Policy, PolicyBytes};
use terrace_types::{Access, BlockIx};

/// A policy under other block numbers: what is block `n` outside is `numbers[n]` to it.
pub(super) struct Renumbered {
    pub(super) policy: Box<dyn Policy>,
    pub(super) numbers: Vec<u32>,
}

impl Renumbered {
    fn inner(&self, outer: BlockIx) -> BlockIx {
        BlockIx(self.numbers[outer.0 as usize])
    }
}

fn outer(numbers: &[u32], inner: BlockIx) -> BlockIx {
    let outer = numbers.iter().position(|&number| number == inner.0);
    BlockIx(u32::try_from(outer.unwrap()).unwrap())
}

impl Policy for Renumbered {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn set_capacity(&mut self, blocks: usize) {
        self.policy.set_capacity(blocks);
    }

    fn on_request(&mut self, accesses: &[Access]) {
        self.policy.on_request(accesses);
    }

    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        self.policy.on_hit(self.inner(block), access);
    }

    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        self.policy.on_insert(self.inner(block), access);
    }

    fn on_remove(&mut self, block: BlockIx) {
        self.policy.on_remove(self.inner(block));
    }

    fn admit(&mut self, access: &Access) -> Admission {
        self.policy.admit(access)
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        let numbers = &self.numbers;
        let victim = self
            .policy
            .victim(&mut |block| evictable(outer(numbers, block)));
        victim.map(|block| outer(numbers, block))
    }

    fn take_pending(&mut self) -> Option<BlockIx> {
        let pending = self.policy.take_pending();
        pending.map(|block| outer(&self.numbers, block))
    }

    fn restore(&mut self, block: BlockIx, tag: u8, access: &Access) {
        self.policy.restore(self.inner(block), tag, access);
    }

    fn len(&self) -> usize {
        self.policy.len()
    }

    fn bytes(&self) -> PolicyBytes {
        self.policy.bytes()
    }

    fn check(&self) {
        self.policy.check();
    }
}
