//! The slabs of one arena: slots handed out by size class, and memory moved between classes.
//!
//! **Invariants**
//! - A slot is free, held by a writer, or holds one block; `slots[i]` of its slab says which.
//! - A slab with a free slot is on its class's list of partial slabs, and on no other.
//! - A slab with no slot in use does not exist: its pages are back in the free runs.
//! - One thread owns a pool; nothing here is atomic.

use std::sync::Arc;

use terrace_types::BlockIx;
use terrace_types::limits::{BLOCK_LEN_MAX, HUGEPAGE_LEN, SLOT_ALIGN};

use crate::block::{ArenaShared, SlotWriter};
use crate::classes::{ClassChoice, ClassIx, SizeClasses, UNITS_PER_PAGE};
use crate::runs::{PageRun, PageRuns};

/// A slot, by its first granule: its byte offset in the arena is `unit * 4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotIx(pub u32);

impl SlotIx {
    /// Offset of the slot's first byte in its arena.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.0 as u64 * SLOT_ALIGN
    }
}

const NONE: u32 = u32::MAX;
/// Marks a slot word as "free, the next free slot is in the low bits".
const FREE: u32 = 1 << 31;
const FREE_END: u32 = FREE - 1;
/// A slot word of a slot whose bytes are being written.
const WRITER: u32 = FREE - 2;
/// Slots of a slab that are asked for their value when a slab has to move.
const VALUE_SAMPLE: usize = 8;

struct Slab {
    run: PageRun,
    class: ClassIx,
    units: u32,
    used: u32,
    writers: u32,
    free_head: u32,
    prev: u32,
    next: u32,
    slots: Box<[u32]>,
}

/// Counts for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Bytes of pages that belong to no slab.
    pub free_page_bytes: u64,
    /// Bytes of slots in use.
    pub slot_bytes: u64,
    /// Slabs there are.
    pub slabs: u64,
    /// Slabs that changed their class since opening.
    pub slab_moves: u64,
}

/// See the module's text.
pub struct SlabPool {
    shared: Arc<ArenaShared>,
    runs: PageRuns,
    classes: SizeClasses,
    /// Partial slabs of each class, by the class's number.
    partial: [u32; terrace_types::limits::SIZE_CLASSES_MAX],
    slabs: Vec<Option<Slab>>,
    slabs_vacant: Vec<u32>,
    page_slab: Vec<u32>,
    slot_bytes: u64,
    slab_moves: u64,
}

impl SlabPool {
    /// A pool over all of an arena.
    #[must_use]
    pub fn new(shared: Arc<ArenaShared>) -> Self {
        let pages = (shared.arena().len() / HUGEPAGE_LEN) as u32;
        Self {
            runs: PageRuns::new(pages),
            classes: SizeClasses::new(pages),
            partial: [NONE; _],
            slabs: Vec::new(),
            slabs_vacant: Vec::new(),
            page_slab: vec![NONE; pages as usize],
            slot_bytes: 0,
            slab_moves: 0,
            shared,
        }
    }

    /// Longest block the arena can hold, in bytes.
    #[must_use]
    pub fn block_len_max(&self) -> u64 {
        self.shared.arena().len().min(BLOCK_LEN_MAX)
    }

    /// The size classes.
    #[must_use]
    pub const fn classes(&self) -> &SizeClasses {
        &self.classes
    }

    /// Makes a class for blocks of `len` bytes; false when the table is full of declared ones.
    pub fn declare(&mut self, len: u64) -> bool {
        self.classes.declare(len)
    }

    /// The class for a block of `len` bytes; see [`SizeClasses::choose`].
    pub fn choose_class(&mut self, len: u64) -> ClassChoice {
        self.classes.choose(len)
    }

    /// Takes a slot of `class`, from a slab with room or a new slab on free pages.
    pub fn take(&mut self, class: ClassIx) -> Option<SlotIx> {
        let mut slab_ix = self.partial[usize::from(class.0)];
        if slab_ix == NONE {
            let run = self.runs.take(self.classes.get(class).slab_pages)?;
            slab_ix = self.open_slab(class, run);
        }
        let slab = self.slab_mut(slab_ix);
        let slot = slab.free_head;
        slab.free_head = slab.slots[slot as usize] & !FREE;
        slab.slots[slot as usize] = WRITER;
        slab.used += 1;
        slab.writers += 1;
        let (units, first, full) = (slab.units, slab.run.first, slab.free_head == FREE_END);
        if full {
            self.unlink_partial(slab_ix);
        }
        self.slot_bytes += u64::from(units) * SLOT_ALIGN;
        Some(SlotIx(first * UNITS_PER_PAGE + slot * units))
    }

    /// A writer over the first `len` bytes of a slot just taken.
    ///
    /// # Panics
    /// When the slot is not held by a writer or is shorter than `len`.
    pub fn writer(&self, slot: SlotIx, len: u32) -> SlotWriter {
        let (slab, at) = self.locate(slot);
        assert_eq!(slab.slots[at], WRITER, "{slot:?} is not being written");
        assert!(
            u64::from(len) <= u64::from(slab.units) * SLOT_ALIGN,
            "{len} in {slot:?}"
        );
        SlotWriter::new(Arc::clone(&self.shared), slot, len)
    }

    /// The slot's bytes are written and belong to `block` from now on.
    pub fn publish(&mut self, slot: SlotIx, block: BlockIx) {
        assert!(
            block.0 < WRITER,
            "block numbers stay below the slot markers"
        );
        let (slab_ix, at) = self.locate_ix(slot);
        let slab = self.slab_mut(slab_ix);
        assert_eq!(slab.slots[at], WRITER, "{slot:?} is not being written");
        slab.slots[at] = block.0;
        slab.writers -= 1;
    }

    /// Frees a slot; frees its slab's pages too when it was the last one in use.
    pub fn give(&mut self, slot: SlotIx) {
        let (slab_ix, at) = self.locate_ix(slot);
        let slab = self.slab_mut(slab_ix);
        let word = slab.slots[at];
        assert_eq!(word & FREE, 0, "{slot:?} is free already");
        if word == WRITER {
            slab.writers -= 1;
        }
        let was_full = slab.free_head == FREE_END;
        slab.slots[at] = FREE | slab.free_head;
        slab.free_head = at as u32;
        slab.used -= 1;
        let (class, units, used) = (slab.class, slab.units, slab.used);
        self.slot_bytes -= u64::from(units) * SLOT_ALIGN;
        if was_full {
            self.link_partial(class, slab_ix);
        }
        if used == 0 {
            self.close_slab(slab_ix);
        }
    }

    /// The block in the slot that begins at `offset`, which may be any number.
    #[must_use]
    pub fn block_at(&self, offset: u64) -> Option<(SlotIx, BlockIx)> {
        if !offset.is_multiple_of(SLOT_ALIGN) {
            return None;
        }
        let unit = u32::try_from(offset / SLOT_ALIGN).ok()?;
        let ix = *self.page_slab.get((unit / UNITS_PER_PAGE) as usize)?;
        let slab = self.slabs.get(ix as usize)?.as_ref()?;
        let from_first = unit - slab.run.first * UNITS_PER_PAGE;
        if !from_first.is_multiple_of(slab.units) {
            return None;
        }
        let word = *slab.slots.get((from_first / slab.units) as usize)?;
        (word < WRITER).then_some((SlotIx(unit), BlockIx(word)))
    }

    /// The class of the slab a slot lies in.
    #[must_use]
    pub fn class_of(&self, slot: SlotIx) -> ClassIx {
        self.locate(slot).0.class
    }

    /// Length of a slot in bytes.
    #[must_use]
    pub fn slot_len(&self, slot: SlotIx) -> u64 {
        u64::from(self.locate(slot).0.units) * SLOT_ALIGN
    }

    /// The blocks that must go so that `class` can get a slab: those in the neighbouring slabs
    /// of least value whose pages are enough. `value` tells what a block is worth, or `None`
    /// when it cannot go. `None` when no such neighbours exist.
    pub fn plan_move(
        &self,
        class: ClassIx,
        value: &mut dyn FnMut(BlockIx) -> Option<u64>,
    ) -> Option<Vec<BlockIx>> {
        let pages = self.classes.get(class).slab_pages;
        let mut barred = vec![false; self.slabs.len()];
        for (ix, slab) in self.slabs.iter().enumerate() {
            barred[ix] = slab
                .as_ref()
                .is_none_or(|s| s.writers > 0 || s.class == class);
        }
        let mut values: Vec<u64> = Vec::with_capacity(self.slabs.len());
        for (ix, slab) in self.slabs.iter().enumerate() {
            let worth = slab
                .as_ref()
                .filter(|_| !barred[ix])
                .and_then(|s| sampled(s, value));
            barred[ix] |= worth.is_none();
            values.push(worth.unwrap_or(0));
        }
        // Only a sample was asked so far; a pinned block elsewhere in the slab bars it too.
        loop {
            let window = self.cheapest_window(pages, &barred, &values)?;
            match self.blocks_in(&window, value) {
                Ok(blocks) => return Some(blocks),
                Err(slab) => barred[slab] = true,
            }
        }
    }

    /// Blocks of every slab of `class`, for retiring it; `None` when one of them cannot go.
    pub fn plan_retire(
        &self,
        class: ClassIx,
        value: &mut dyn FnMut(BlockIx) -> Option<u64>,
    ) -> Option<Vec<BlockIx>> {
        let of_class = |slab: &Option<Slab>| slab.as_ref().is_some_and(|s| s.class == class);
        let slabs: Vec<usize> = (0..self.slabs.len())
            .filter(|ix| of_class(&self.slabs[*ix]))
            .collect();
        self.blocks_in(&slabs, value).ok()
    }

    /// Counts a slab as moved; the caller emptied it by [`SlabPool::plan_move`].
    pub const fn count_move(&mut self) {
        self.slab_moves += 1;
    }

    /// Counts for reports.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            arena_bytes: self.shared.arena().len(),
            free_page_bytes: u64::from(self.runs.free_count()) * HUGEPAGE_LEN,
            slot_bytes: self.slot_bytes,
            slabs: (self.slabs.len() - self.slabs_vacant.len()) as u64,
            slab_moves: self.slab_moves,
        }
    }

    /// Bytes of bookkeeping beside the slots.
    #[must_use]
    pub fn bookkeeping_bytes(&self) -> u64 {
        let slots: usize = self
            .slabs
            .iter()
            .flatten()
            .map(|slab| slab.slots.len() * 4)
            .sum();
        (slots + self.slabs.len() * size_of::<Option<Slab>>() + self.page_slab.len() * 5) as u64
    }

    /// The arena and its return queue.
    #[must_use]
    pub const fn shared(&self) -> &Arc<ArenaShared> {
        &self.shared
    }

    /// Calls `f` with every slot that holds a block.
    pub fn for_each_block(&self, mut f: impl FnMut(SlotIx, BlockIx)) {
        for slab in self.slabs.iter().flatten() {
            for (at, &word) in slab.slots.iter().enumerate() {
                if word < WRITER {
                    let unit = slab.run.first * UNITS_PER_PAGE + at as u32 * slab.units;
                    f(SlotIx(unit), BlockIx(word));
                }
            }
        }
    }

    /// Panics when an invariant of the module is broken; for tests.
    pub fn check(&self) {
        let mut pages = 0;
        for (ix, slab) in self.slabs.iter().enumerate() {
            let Some(slab) = slab else { continue };
            pages += slab.run.count;
            let used = slab.slots.iter().filter(|word| *word & FREE == 0).count();
            assert_eq!(used, slab.used as usize);
            assert!(used > 0, "an empty slab was kept");
            let writers = slab.slots.iter().filter(|word| **word == WRITER).count();
            assert_eq!(writers, slab.writers as usize);
            for page in slab.run.first..slab.run.first + slab.run.count {
                assert_eq!(self.page_slab[page as usize], ix as u32);
                assert!(!self.runs.is_free(page));
            }
            let mut at = self.partial[usize::from(slab.class.0)];
            while at != NONE && at != ix as u32 {
                at = self.slabs[at as usize].as_ref().map_or(NONE, |s| s.next);
            }
            assert_eq!(
                at != NONE,
                slab.free_head != FREE_END,
                "partial list of slab {ix}"
            );
        }
        assert_eq!(pages + self.runs.free_count(), self.runs.len());
    }

    fn open_slab(&mut self, class: ClassIx, run: PageRun) -> u32 {
        let shape = *self.classes.get(class);
        let count = shape.slab_slots;
        let slots: Box<[u32]> = (1..=count)
            .map(|next| FREE | if next == count { FREE_END } else { next })
            .collect();
        let slab = Slab {
            run,
            class,
            units: shape.units,
            used: 0,
            writers: 0,
            free_head: 0,
            prev: NONE,
            next: NONE,
            slots,
        };
        let ix = self.slabs_vacant.pop().unwrap_or_else(|| {
            self.slabs.push(None);
            (self.slabs.len() - 1) as u32
        });
        self.slabs[ix as usize] = Some(slab);
        for page in run.first..run.first + run.count {
            self.page_slab[page as usize] = ix;
        }
        self.classes.get_mut(class).slabs += 1;
        self.link_partial(class, ix);
        ix
    }

    fn close_slab(&mut self, ix: u32) {
        self.unlink_partial(ix);
        let Some(slab) = self.slabs[ix as usize].take() else {
            return;
        };
        for page in slab.run.first..slab.run.first + slab.run.count {
            self.page_slab[page as usize] = NONE;
        }
        self.runs.give(slab.run);
        self.classes.get_mut(slab.class).slabs -= 1;
        self.slabs_vacant.push(ix);
    }

    fn link_partial(&mut self, class: ClassIx, ix: u32) {
        let head = std::mem::replace(&mut self.partial[usize::from(class.0)], ix);
        if head != NONE {
            self.slab_mut(head).prev = ix;
        }
        let slab = self.slab_mut(ix);
        (slab.prev, slab.next) = (NONE, head);
    }

    fn unlink_partial(&mut self, ix: u32) {
        let slab = self.slab_mut(ix);
        let (class, prev, next) = (slab.class, slab.prev, slab.next);
        (slab.prev, slab.next) = (NONE, NONE);
        if prev == NONE {
            debug_assert_eq!(self.partial[usize::from(class.0)], ix);
            self.partial[usize::from(class.0)] = next;
        } else {
            self.slab_mut(prev).next = next;
        }
        if next != NONE {
            self.slab_mut(next).prev = prev;
        }
    }

    /// The neighbouring slabs and free pages of least value that hold `pages` pages.
    fn cheapest_window(&self, pages: u32, barred: &[bool], values: &[u64]) -> Option<Vec<usize>> {
        // Cells in page order: (pages, slab or none for a free page).
        let mut cells: Vec<(u32, Option<usize>)> = Vec::new();
        let mut page = 0;
        while page < self.runs.len() {
            let slab = self.page_slab[page as usize];
            let count = if slab == NONE {
                1
            } else {
                self.run_of(slab).count
            };
            cells.push((count, (slab != NONE).then_some(slab as usize)));
            page += count;
        }
        let worth = |cell: &(u32, Option<usize>)| cell.1.map_or(0, |slab| values[slab]);
        let mut best: Option<(u64, usize, usize)> = None;
        let (mut start, mut length, mut cost) = (0, 0, 0);
        for end in 0..cells.len() {
            if cells[end].1.is_some_and(|slab| barred[slab]) {
                (start, length, cost) = (end + 1, 0, 0);
                continue;
            }
            length += cells[end].0;
            cost += worth(&cells[end]);
            while length - cells[start].0 >= pages {
                length -= cells[start].0;
                cost -= worth(&cells[start]);
                start += 1;
            }
            if length >= pages && best.is_none_or(|(least, ..)| cost < least) {
                best = Some((cost, start, end));
            }
        }
        best.map(|(_, start, end)| {
            cells[start..=end]
                .iter()
                .filter_map(|cell| cell.1)
                .collect()
        })
    }

    /// The blocks in `slabs`, or the first slab with one that cannot go.
    fn blocks_in(
        &self,
        slabs: &[usize],
        value: &mut dyn FnMut(BlockIx) -> Option<u64>,
    ) -> Result<Vec<BlockIx>, usize> {
        let mut blocks = Vec::new();
        for &ix in slabs {
            let Some(slab) = &self.slabs[ix] else {
                continue;
            };
            if slab.writers > 0 {
                return Err(ix);
            }
            for &word in slab.slots.iter().filter(|word| **word < WRITER) {
                value(BlockIx(word)).ok_or(ix)?;
                blocks.push(BlockIx(word));
            }
        }
        Ok(blocks)
    }

    fn run_of(&self, slab: u32) -> PageRun {
        self.slabs[slab as usize]
            .as_ref()
            .map_or(PageRun { first: 0, count: 1 }, |s| s.run)
    }

    fn slab_mut(&mut self, ix: u32) -> &mut Slab {
        self.slabs[ix as usize]
            .as_mut()
            .expect("links and page_slab name live slabs only")
    }

    fn locate_ix(&self, slot: SlotIx) -> (u32, usize) {
        let ix = self.page_slab[(slot.0 / UNITS_PER_PAGE) as usize];
        assert_ne!(ix, NONE, "{slot:?} lies in no slab");
        let run = self.run_of(ix);
        let units = self.slabs[ix as usize].as_ref().map_or(1, |s| s.units);
        let from_first = slot.0 - run.first * UNITS_PER_PAGE;
        assert!(
            from_first.is_multiple_of(units),
            "{slot:?} is not the first granule of a slot"
        );
        (ix, (from_first / units) as usize)
    }

    fn locate(&self, slot: SlotIx) -> (&Slab, usize) {
        let (ix, at) = self.locate_ix(slot);
        (
            self.slabs[ix as usize]
                .as_ref()
                .expect("page_slab names live slabs only"),
            at,
        )
    }
}

/// The worth of a slab's blocks, from a sample of them; `None` when one in it cannot go.
fn sampled(slab: &Slab, value: &mut dyn FnMut(BlockIx) -> Option<u64>) -> Option<u64> {
    let step = slab.slots.len().div_ceil(VALUE_SAMPLE);
    let (mut asked, mut sum) = (0, 0);
    for &word in slab
        .slots
        .iter()
        .step_by(step)
        .filter(|word| **word < WRITER)
    {
        sum += value(BlockIx(word))?;
        asked += 1;
    }
    // A worth of 1 for each unasked slot in use keeps nearly empty slabs ahead of full ones.
    Some(
        (sum * u64::from(slab.used))
            .checked_div(asked)
            .unwrap_or(u64::from(slab.used)),
    )
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
