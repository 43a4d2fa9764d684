//! The request under way, as the prefix-aware policies follow it: which accesses belong to it,
//! in what order, and which of its blocks are resident.
//!
//! [`Policy::on_request`](super::Policy::on_request) says how a request is told. One that was
//! not announced is put together from its accesses: one of the same clock and tenant whose
//! parent is the access before goes on with it, and any other begins the next.
//!
//! **Invariant**: a step names the block that its access hit or became, until that leaves.

use terrace_types::{Access, BlockIx, BlockKind, KeyHash};

/// One access of the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// The block's id.
    pub(super) id: KeyHash,
    /// Count of blocks before it in its chain, more than that of the step before.
    pub(super) depth: u32,
    /// The block, once it is known to be resident.
    pub(super) block: Option<BlockIx>,
    /// Whether it is the request's last, normally partial block.
    pub(super) is_tail: bool,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Request {
    steps: Vec<Step>,
    /// The step that the next access is expected at.
    next: usize,
    was_announced: bool,
    /// Whether the kind of any of its blocks is told.
    has_kinds: bool,
    clock_ms: u64,
    tenant: u32,
}

impl Request {
    /// A request of these accesses begins. Without any there is none under way.
    pub(super) fn begin(&mut self, accesses: &[Access]) {
        self.steps.clear();
        self.next = 0;
        self.was_announced = true;
        let context = accesses.first().map(|access| access.context);
        let context = context.unwrap_or_default();
        (self.clock_ms, self.tenant) = (context.clock_ms, context.tenant);
        let mut kinds = accesses.iter().map(|access| access.hint.kind);
        self.has_kinds = kinds.any(|kind| kind != BlockKind::Unknown);
        accesses.iter().for_each(|access| self.push(access));
        // A guess that gives way to what the caller says. A shard that hears of some blocks of a
        // chain only does not know which is the last.
        let is_whole =
            self.steps.last().map(|step| step.depth as usize + 1) == Some(self.steps.len());
        if let Some(last) = self
            .steps
            .last_mut()
            .filter(|_| is_whole && !self.has_kinds)
        {
            last.is_tail = true;
        }
    }

    /// A request of this access, which may go on, begins.
    pub(super) fn begin_unannounced(&mut self, access: &Access) {
        self.begin(&[]);
        self.was_announced = false;
        (self.clock_ms, self.tenant) = (access.context.clock_ms, access.context.tenant);
        self.push(access);
    }

    /// The step of an access that belongs to the request, which may be its next one; none when
    /// it belongs to another.
    pub(super) fn step_of(&mut self, access: &Access) -> Option<usize> {
        let step = self.find(access);
        if step.is_none() && self.goes_on_with(access) {
            self.push(access);
            self.next = self.steps.len();
            return Some(self.steps.len() - 1);
        }
        self.next = step.map_or(self.next, |step| step + 1);
        step
    }

    /// Where the access is announced: as a rule the next one, or again the one before, which
    /// was asked about before it is inserted.
    ///
    /// The same block at another time, or for another tenant, is of another request.
    fn find(&self, access: &Access) -> Option<usize> {
        if !self.is_of_same_time(access) {
            return None;
        }
        let is_at = |at: &usize| self.steps.get(*at).is_some_and(|step| step.id == access.id);
        let expected = Some(self.next).filter(is_at);
        let before = || self.next.checked_sub(1).filter(is_at);
        let anywhere = || self.steps.iter().position(|step| step.id == access.id);
        expected.or_else(before).or_else(anywhere)
    }

    fn goes_on_with(&self, access: &Access) -> bool {
        self.next == self.steps.len()
            && self.steps.last().map(|step| step.id) == access.hint.parent
            && access.hint.parent.is_some()
            && self.is_of_same_time(access)
    }

    fn is_of_same_time(&self, access: &Access) -> bool {
        (self.clock_ms, self.tenant) == (access.context.clock_ms, access.context.tenant)
    }

    fn push(&mut self, access: &Access) {
        let least = self
            .steps
            .last()
            .map_or(0, |step| step.depth.saturating_add(1));
        self.steps.push(Step {
            id: access.id,
            depth: access.hint.depth.max(least),
            block: None,
            is_tail: access.hint.kind == BlockKind::Tail,
        });
    }

    /// All its steps so far.
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether it was announced as a whole.
    pub(super) const fn was_announced(&self) -> bool {
        self.was_announced
    }

    /// Its clock, zero when it was not told.
    pub(super) const fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// The block of `step` is resident.
    pub(super) fn enter(&mut self, step: usize, block: BlockIx) {
        self.steps[step].block = Some(block);
    }

    /// Whether it was announced and has accesses that did not come yet.
    pub(super) const fn is_under_way(&self) -> bool {
        self.was_announced && self.next < self.steps.len()
    }

    /// `block` is gone. Walks all steps: to be called for blocks that the request has come to.
    pub(super) fn leave(&mut self, block: BlockIx) {
        for step in &mut self.steps {
            step.block = step.block.filter(|other| *other != block);
        }
    }

    /// The nearest resident block before `step`, its parent in the order.
    pub(super) fn parent_of(&self, step: usize) -> Option<BlockIx> {
        self.steps[..step].iter().rev().find_map(|step| step.block)
    }

    /// Whether the access before `step` is not resident, so that the block would be of no use.
    /// Of the first step nothing is known: the block before it may be in another shard.
    pub(super) fn breaks_at(&self, step: usize) -> bool {
        step > 0 && self.steps[step - 1].block.is_none()
    }
}

#[cfg(test)]
mod tests {
    use terrace_types::{Hint, RequestContext};

    use super::*;

    fn access(id: u64, parent: Option<u64>) -> Access {
        Access {
            hint: Hint {
                parent: parent.map(KeyHash),
                ..Hint::default()
            },
            ..Access::plain(KeyHash(id))
        }
    }

    fn announced(ids: &[u64]) -> Request {
        let mut request = Request::default();
        let accesses = ids.iter().map(|&id| Access::plain(KeyHash(id)));
        request.begin(&Vec::from_iter(accesses));
        request
    }

    #[test]
    fn announced_access_is_found_in_any_order_and_twice() {
        let mut request = announced(&[7, 8, 9]);
        let steps = [7, 7, 9, 8, 8, 5].map(|id| request.step_of(&access(id, None)));
        let expected = [Some(0), Some(0), Some(2), Some(1), Some(1), None];
        assert_eq!(steps, expected);
    }

    #[test]
    fn last_announced_block_is_the_tail_unless_kinds_are_told() {
        let tails = |request: &Request| {
            let tails = request.steps().iter().map(|step| step.is_tail);
            tails.collect::<Vec<_>>()
        };
        assert_eq!(tails(&announced(&[7, 8])), [false, true]);
        let mut told = [access(7, None), access(8, Some(7))];
        told[0].hint.kind = BlockKind::Full;
        let mut request = Request::default();
        request.begin(&told);
        assert_eq!(tails(&request), [false, false]);
        told[0].hint.kind = BlockKind::Tail;
        request.begin(&told);
        assert_eq!(tails(&request), [true, false]);
    }

    #[test]
    fn access_without_announcement_goes_on_with_the_one_before_of_the_same_context() {
        let mut request = Request::default();
        assert_eq!(request.step_of(&access(1, None)), None);
        request.begin_unannounced(&access(1, None));
        assert_eq!(request.step_of(&access(1, None)), Some(0));
        assert_eq!(request.step_of(&access(2, Some(1))), Some(1));
        assert_eq!(request.step_of(&access(3, Some(1))), None);
        assert_eq!(request.step_of(&access(3, None)), None);
        let later = RequestContext {
            clock_ms: 5,
            ..RequestContext::default()
        };
        let other = Access {
            context: later,
            ..access(3, Some(2))
        };
        assert_eq!(request.step_of(&other), None);
        assert_eq!(request.step_of(&access(3, Some(2))), Some(2));
        assert_eq!(request.steps()[2].depth, 2);
        assert!(!request.was_announced());
    }

    #[test]
    fn parent_is_the_nearest_resident_step_before() {
        let mut request = announced(&[4, 5, 6, 7]);
        request.enter(0, BlockIx(10));
        request.enter(1, BlockIx(11));
        assert_eq!(request.parent_of(3), Some(BlockIx(11)));
        assert_eq!(request.parent_of(0), None);
        request.leave(BlockIx(11));
        assert_eq!(request.parent_of(3), Some(BlockIx(10)));
        let breaks = [0, 1, 2].map(|step| request.breaks_at(step));
        assert_eq!(breaks, [false, false, true]);
    }
}
