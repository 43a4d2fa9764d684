//! Which 2 MiB pages of an arena are free, handed out as runs of neighbours.
//!
//! **Invariants**
//! - A page is free or belongs to exactly one run that is out.
//! - Single pages come from the low end, longer runs from the high end, so that the small
//!   ones do not break up the room for the large ones.

/// A range of neighbouring 2 MiB pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Number of the first page.
    pub first: u32,
    /// Count of pages.
    pub count: u32,
}

/// See the module's text.
pub struct PageRuns {
    free: Vec<bool>,
    free_count: u32,
    /// No free page lies below this one.
    low: u32,
}

impl PageRuns {
    /// All of `pages` pages free.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        Self {
            free: vec![true; pages as usize],
            free_count: pages,
            low: 0,
        }
    }

    /// Count of all pages.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.free.len() as u32
    }

    /// Whether there are no pages at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Count of free pages.
    #[must_use]
    pub const fn free_count(&self) -> u32 {
        self.free_count
    }

    /// Whether page `page` is free.
    #[must_use]
    pub fn is_free(&self, page: u32) -> bool {
        self.free[page as usize]
    }

    /// Takes a run of `count` pages, or `None` when no gap is that long.
    pub fn take(&mut self, count: u32) -> Option<PageRun> {
        assert!(count > 0);
        if count > self.free_count {
            return None;
        }
        let first = if count == 1 {
            self.lowest()?
        } else {
            self.highest_gap(count)?
        };
        self.take_at(PageRun { first, count });
        Some(PageRun { first, count })
    }

    /// Takes exactly `run`, which must be free.
    pub fn take_at(&mut self, run: PageRun) {
        for page in run.first..run.first + run.count {
            assert!(self.free[page as usize], "page {page} is taken");
            self.free[page as usize] = false;
        }
        self.free_count -= run.count;
    }

    /// Gives `run` back.
    pub fn give(&mut self, run: PageRun) {
        for page in run.first..run.first + run.count {
            assert!(!self.free[page as usize], "page {page} is free already");
            self.free[page as usize] = true;
        }
        self.free_count += run.count;
        self.low = self.low.min(run.first);
    }

    fn lowest(&mut self) -> Option<u32> {
        while self.low < self.len() {
            if self.is_free(self.low) {
                return Some(self.low);
            }
            self.low += 1;
        }
        None
    }

    fn highest_gap(&self, count: u32) -> Option<u32> {
        let mut length = 0;
        for page in (0..self.len()).rev() {
            length = if self.is_free(page) { length + 1 } else { 0 };
            if length == count {
                return Some(page);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_come_from_both_ends() {
        let mut runs = PageRuns::new(8);
        assert_eq!(runs.take(1), Some(PageRun { first: 0, count: 1 }));
        assert_eq!(runs.take(3), Some(PageRun { first: 5, count: 3 }));
        assert_eq!(runs.take(5), None);
        assert_eq!(runs.take(4), Some(PageRun { first: 1, count: 4 }));
        assert_eq!(runs.take(1), None);
        runs.give(PageRun { first: 0, count: 1 });
        assert_eq!(runs.take(1), Some(PageRun { first: 0, count: 1 }));
    }

    proptest! {
        /// Random takes and gives against a list of the runs that are out.
        #[test]
        fn runs_never_overlap(ops in proptest::collection::vec((1_u32..9, any::<bool>()), 1..200)) {
            let mut runs = PageRuns::new(40);
            let mut out: Vec<PageRun> = Vec::new();
            for (count, give) in ops {
                if give && !out.is_empty() {
                    let at = count as usize % out.len();
                    runs.give(out.swap_remove(at));
                } else if let Some(run) = runs.take(count) {
                    prop_assert!(out.iter().all(|o| o.first + o.count <= run.first
                        || run.first + run.count <= o.first));
                    out.push(run);
                }
                let taken: u32 = out.iter().map(|run| run.count).sum();
                prop_assert_eq!(runs.free_count() + taken, 40);
            }
        }
    }
}
