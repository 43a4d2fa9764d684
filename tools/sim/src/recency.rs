//! A list of blocks by their last use, for the reference schemes: numbers in, numbers out.
//!
//! **Invariant**: a block is in the list at most once, and `len` counts those that are.

/// The end of the list, in either direction.
const END: u32 = u32::MAX;

/// Neighbours of a block that is in no list.
const OUTSIDE: (u32, u32) = (END - 1, END - 1);

/// Blocks in order of use.
pub(crate) struct Recency {
    /// For each block, the one used next after it and the one used last before it.
    links: Vec<(u32, u32)>,
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Recency {
    /// An empty list of blocks below `unique_blocks`.
    pub(crate) fn new(unique_blocks: usize) -> Self {
        Self {
            links: vec![OUTSIDE; unique_blocks],
            newest: END,
            oldest: END,
            len: 0,
        }
    }

    /// Whether the block is in the list.
    pub(crate) fn contains(&self, block: u32) -> bool {
        self.links[block as usize] != OUTSIDE
    }

    /// Makes the block the one used last, whether it was in the list or not.
    pub(crate) fn touch(&mut self, block: u32) {
        self.remove(block);
        self.links[block as usize] = (END, self.newest);
        match self.newest {
            END => self.oldest = block,
            newest => self.links[newest as usize].0 = block,
        }
        self.newest = block;
        self.len += 1;
    }

    /// Takes the block out, if it is in the list.
    pub(crate) fn remove(&mut self, block: u32) {
        let links = std::mem::replace(&mut self.links[block as usize], OUTSIDE);
        if links == OUTSIDE {
            return;
        }
        let (newer, older) = links;
        match newer {
            END => self.newest = older,
            newer => self.links[newer as usize].1 = older,
        }
        match older {
            END => self.oldest = newer,
            older => self.links[older as usize].0 = newer,
        }
        self.len -= 1;
    }

    /// Takes out the block that was not used for longest, if there are more than `capacity`.
    pub(crate) fn pop_over(&mut self, capacity: usize) -> Option<u32> {
        (self.len > capacity).then(|| {
            let oldest = self.oldest;
            self.remove(oldest);
            oldest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oldest_first(mut list: Recency) -> Vec<u32> {
        std::iter::from_fn(|| list.pop_over(0)).collect()
    }

    #[test]
    fn touch_and_remove_keep_the_order_of_use() {
        let mut list = Recency::new(6);
        for block in [0, 1, 2, 3, 4, 1, 0] {
            list.touch(block);
        }
        list.remove(3);
        list.remove(3);
        list.remove(5);
        assert!(list.contains(1) && !list.contains(3) && !list.contains(5));
        assert_eq!(list.len, 4);
        assert_eq!(list.pop_over(4), None);
        assert_eq!(oldest_first(list), [2, 4, 1, 0]);
    }

    #[test]
    fn list_of_one_can_be_emptied_and_filled_again() {
        let mut list = Recency::new(1);
        for _ in 0..3 {
            list.touch(0);
            list.touch(0);
            assert_eq!((list.len, list.pop_over(0)), (1, Some(0)));
            assert_eq!(list.pop_over(0), None);
        }
    }
}
