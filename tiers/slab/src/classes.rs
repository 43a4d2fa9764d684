//! Size classes: which slot lengths there are, and how many hugepages a slab of each takes.
//!
//! Classes are 4 KiB-granular and follow the block lengths that are declared or seen, because
//! KV geometries are not powers of two: DeepSeek's 1,124,352 bytes per 16 tokens would lose
//! 46% in a 2 MiB slot.
//!
//! **Invariants**
//! - At most 32 classes; no two of the same slot length.
//! - A class keeps its number and slot length while it owns a slab.

use terrace_types::limits::{
    CLASS_WASTE_MAX_INV, HUGEPAGE_LEN, SIZE_CLASSES_MAX, SLAB_TAIL_WASTE_MAX_INV, SLOT_ALIGN,
};

/// Granules of 4 KiB in one hugepage.
pub(crate) const UNITS_PER_PAGE: u32 = (HUGEPAGE_LEN / SLOT_ALIGN) as u32;

/// The number of a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassIx(pub u8);

/// One size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Slot length in granules of 4 KiB.
    pub units: u32,
    /// Hugepages in one slab.
    pub slab_pages: u32,
    /// Slots in one slab.
    pub slab_slots: u32,
    /// Slabs the class owns.
    pub slabs: u32,
    /// Whether the class was declared by its user and stays without slabs.
    pub declared: bool,
}

/// See the module's text.
pub struct SizeClasses {
    classes: Vec<SizeClass>,
    arena_pages: u32,
}

/// Where a block of a length should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassChoice {
    /// To this class.
    Fits(ClassIx),
    /// To this class once its slabs are emptied: the table is full and nothing else is near.
    Retire(ClassIx),
}

impl SizeClasses {
    /// No classes yet, for an arena of `arena_pages` hugepages.
    #[must_use]
    pub fn new(arena_pages: u32) -> Self {
        Self {
            classes: Vec::with_capacity(SIZE_CLASSES_MAX),
            arena_pages,
        }
    }

    /// The class with number `class`.
    #[must_use]
    pub fn get(&self, class: ClassIx) -> &SizeClass {
        &self.classes[usize::from(class.0)]
    }

    pub(crate) fn get_mut(&mut self, class: ClassIx) -> &mut SizeClass {
        &mut self.classes[usize::from(class.0)]
    }

    /// All classes, in order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (ClassIx, &SizeClass)> {
        self.classes
            .iter()
            .enumerate()
            .map(|(i, class)| (ClassIx(i as u8), class))
    }

    /// Makes a class for blocks of `len` bytes that is never given up. Returns false when all
    /// classes are taken by declared ones.
    pub fn declare(&mut self, len: u64) -> bool {
        let units = units_of(len);
        let found = self.exact(units).or_else(|| self.make(units));
        if let Some(class) = found {
            self.get_mut(class).declared = true;
        }
        found.is_some()
    }

    /// The class for a block of `len` bytes: its own when there is room for one, else the next
    /// with at most an eighth of its slot lost, else a class without slabs made over, else the
    /// next with at most half lost, else the class with the fewest slabs, to be retired.
    pub fn choose(&mut self, len: u64) -> ClassChoice {
        let units = units_of(len);
        if let Some(class) = self.exact(units) {
            return ClassChoice::Fits(class);
        }
        if self.classes.len() < SIZE_CLASSES_MAX
            && let Some(class) = self.make(units)
        {
            return ClassChoice::Fits(class);
        }
        if let Some(class) = self.next_within(units, CLASS_WASTE_MAX_INV) {
            return ClassChoice::Fits(class);
        }
        if let Some(class) = self.make(units) {
            return ClassChoice::Fits(class);
        }
        if let Some(class) = self.next_within(units, 2) {
            return ClassChoice::Fits(class);
        }
        let fewest = self
            .iter()
            .filter(|(_, c)| !c.declared)
            .min_by_key(|(_, c)| c.slabs);
        // Only declared classes: the block goes to the smallest that holds it, whatever is lost.
        let larger = || {
            self.iter()
                .filter(|(_, c)| c.units >= units)
                .min_by_key(|(_, c)| c.units)
        };
        match (fewest, larger()) {
            (Some((class, _)), _) => ClassChoice::Retire(class),
            (None, Some((class, _))) => ClassChoice::Fits(class),
            (None, None) => ClassChoice::Retire(ClassIx(0)),
        }
    }

    fn exact(&self, units: u32) -> Option<ClassIx> {
        self.iter()
            .find(|(_, class)| class.units == units)
            .map(|(ix, _)| ix)
    }

    /// The smallest class that holds `units` and loses at most one in `waste_inv` of its slot.
    fn next_within(&self, units: u32, waste_inv: u64) -> Option<ClassIx> {
        self.iter()
            .filter(|(_, c)| c.units >= units)
            .filter(|(_, c)| u64::from(c.units - units) * waste_inv <= u64::from(c.units))
            .min_by_key(|(_, c)| c.units)
            .map(|(ix, _)| ix)
    }

    /// A class of `units` in a free place of the table, or over one that owns no slab.
    fn make(&mut self, units: u32) -> Option<ClassIx> {
        let (slab_pages, slab_slots) = slab_shape(units, self.arena_pages);
        let class = SizeClass {
            units,
            slab_pages,
            slab_slots,
            slabs: 0,
            declared: false,
        };
        if self.classes.len() < SIZE_CLASSES_MAX {
            self.classes.push(class);
            return Some(ClassIx((self.classes.len() - 1) as u8));
        }
        let (idle, _) = self.iter().find(|(_, c)| c.slabs == 0 && !c.declared)?;
        *self.get_mut(idle) = class;
        Some(idle)
    }
}

/// Granules that a block of `len` bytes takes.
pub(crate) fn units_of(len: u64) -> u32 {
    len.max(1).div_ceil(SLOT_ALIGN) as u32
}

/// Hugepages and slots of a slab: the smallest run that loses at most 1/32 behind its last
/// slot. In an arena too small for that, the best run of at most an eighth of it (or of one
/// slot, when a slot is larger): a slab that takes most of the arena would starve the rest.
fn slab_shape(units: u32, arena_pages: u32) -> (u32, u32) {
    let slot_pages = units.div_ceil(UNITS_PER_PAGE);
    let longest = (arena_pages / 8).max(slot_pages);
    let mut best = (slot_pages, u64::MAX, 1_u64);
    for pages in slot_pages..=longest {
        let run_units = u64::from(pages) * u64::from(UNITS_PER_PAGE);
        let lost = run_units % u64::from(units);
        if lost * SLAB_TAIL_WASTE_MAX_INV <= run_units {
            best = (pages, lost, run_units);
            break;
        }
        // lost / run_units < best.lost / best.run_units, without a division.
        if best.1 == u64::MAX || lost * best.2 < best.1 * run_units {
            best = (pages, lost, run_units);
        }
    }
    (best.0, best.0 * UNITS_PER_PAGE / units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slab_of_a_kv_geometry_loses_little() {
        // 1,124,352 B (DeepSeek MLA, 16 tokens) is 275 granules; 6 pages hold 11 of them.
        assert_eq!(slab_shape(275, 1024), (6, 11));
        assert_eq!(slab_shape(16, 1024), (1, 32));
        assert_eq!(slab_shape(80 * 256, 1024), (40, 1));
        // Too small an arena for a good run: one slot.
        assert_eq!(slab_shape(513, 8), (2, 1));
    }

    #[test]
    fn class_table_when_full_goes_near_then_retires() {
        let mut classes = SizeClasses::new(1024);
        for i in 1..=SIZE_CLASSES_MAX as u64 {
            let ClassChoice::Fits(class) = classes.choose(i * 100 * 4096) else {
                panic!("full")
            };
            classes.get_mut(class).slabs = 1;
        }
        // 795 granules fit 800 with less than an eighth lost.
        let ClassChoice::Fits(near) = classes.choose(795 * 4096) else {
            panic!("near")
        };
        assert_eq!(classes.get(near).units, 800);
        // 60 in 100 loses 40%: still better than giving up a class.
        let ClassChoice::Fits(half) = classes.choose(60 * 4096) else {
            panic!("half")
        };
        assert_eq!(classes.get(half).units, 100);
        // Larger than all: a class has to go.
        assert!(matches!(
            classes.choose(4000 * 4096),
            ClassChoice::Retire(_)
        ));
        // A class that lost its slabs is made over at once.
        classes.get_mut(ClassIx(3)).slabs = 0;
        assert_eq!(classes.choose(4000 * 4096), ClassChoice::Fits(ClassIx(3)));
        assert_eq!(classes.get(ClassIx(3)).units, 4000);
    }

    proptest! {
        #[test]
        fn slab_holds_its_slots(units in 1_u32..=32768, pages in 64_u32..4096) {
            let (slab_pages, slots) = slab_shape(units, pages);
            prop_assert!(slots >= 1);
            prop_assert!(slots * units <= slab_pages * UNITS_PER_PAGE);
            let most = (pages / 8).max(units.div_ceil(UNITS_PER_PAGE));
            prop_assert!(slab_pages <= most);
        }
    }
}
