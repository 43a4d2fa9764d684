//! Doubly linked lists of blocks whose links lie in one array, 8 bytes a block, and the walks
//! over them that look for a victim.
//!
//! **Invariants**
//! - A block is in at most one of the lists that share a [`Links`]; its links are zero exactly
//!   when it is in none.
//! - From head to tail and from tail to head a list visits the same blocks, `len` of them.
//!
//! A list does not know its members by name: the caller passes the list that a block is in.

use terrace_slab::{HugeVec, HugeVecError};
use terrace_types::BlockIx;

use super::VICTIM_SCAN_MAX;

/// A link of a block that is in no list. Zero, so that fresh memory needs no set-up.
const UNLINKED: u32 = 0;
/// A link past the head or past the tail. Every other value is a block's number plus one.
const END: u32 = u32::MAX;

/// Which of a block's two links leads to the newer neighbour.
const TOWARD_HEAD: usize = 0;
/// Which of a block's two links leads to the older neighbour.
const TOWARD_TAIL: usize = 1;

/// The links of all blocks, for any number of lists.
pub(super) struct Links(HugeVec<[u32; 2]>);

/// One list: the newest block is at its head, the oldest at its tail.
pub(super) struct List {
    head: u32,
    tail: u32,
    len: usize,
}

impl List {
    /// A list without blocks.
    pub(super) const EMPTY: Self = Self {
        head: END,
        tail: END,
        len: 0,
    };

    /// Count of blocks in the list.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether no block is in the list.
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The oldest block.
    pub(super) const fn tail(&self) -> Option<BlockIx> {
        block_at(self.tail)
    }
}

impl Links {
    /// Links for blocks numbered below `blocks_max`. Takes address space, not memory.
    pub(super) fn new(blocks_max: u32) -> Result<Self, HugeVecError> {
        // A link holds a block's number plus one and must differ from `END`.
        let capacity = blocks_max.min(END - 1) as usize;
        Ok(Self(HugeVec::with_capacity(capacity)?))
    }

    /// Puts a block that is in no list at the head of `list`.
    pub(super) fn push_head(&mut self, list: &mut List, block: BlockIx) {
        let index = block.0 as usize;
        self.0.grow_to(index + 1);
        assert_eq!(
            self.0[index][TOWARD_HEAD], UNLINKED,
            "{block:?} is already known"
        );
        let link = block.0 + 1;
        self.0[index] = [END, list.head];
        match block_at(list.head) {
            None => list.tail = link,
            Some(newer) => self.0[newer.0 as usize][TOWARD_HEAD] = link,
        }
        list.head = link;
        list.len += 1;
    }

    /// Puts a block that is in no list beside `neighbour`, which is in `list`: as the next older.
    pub(super) fn push_beside(&mut self, list: &mut List, block: BlockIx, neighbour: BlockIx) {
        let index = block.0 as usize;
        self.0.grow_to(index + 1);
        assert_eq!(
            self.0[index][TOWARD_HEAD], UNLINKED,
            "{block:?} is already known"
        );
        let older = self.0[neighbour.0 as usize][TOWARD_TAIL];
        assert_ne!(older, UNLINKED, "{neighbour:?} is not known");
        let link = block.0 + 1;
        self.0[index] = [neighbour.0 + 1, older];
        self.0[neighbour.0 as usize][TOWARD_TAIL] = link;
        match block_at(older) {
            Some(older) => self.0[older.0 as usize][TOWARD_HEAD] = link,
            None => list.tail = link,
        }
        list.len += 1;
    }

    /// Takes `block` out of `list`, where it must be.
    pub(super) fn unlink(&mut self, list: &mut List, block: BlockIx) {
        let index = block.0 as usize;
        let [newer, older] = self.0[index];
        assert_ne!(newer, UNLINKED, "{block:?} is not known");
        match block_at(newer) {
            Some(newer) => self.0[newer.0 as usize][TOWARD_TAIL] = older,
            None => {
                assert_eq!(
                    list.head,
                    block.0 + 1,
                    "{block:?} is the head of another list"
                );
                list.head = older;
            }
        }
        match block_at(older) {
            Some(older) => self.0[older.0 as usize][TOWARD_HEAD] = newer,
            None => {
                assert_eq!(
                    list.tail,
                    block.0 + 1,
                    "{block:?} is the tail of another list"
                );
                list.tail = newer;
            }
        }
        self.0[index] = [UNLINKED; 2];
        list.len -= 1;
    }

    /// Makes `block`, which is in `list`, its newest.
    #[inline]
    pub(super) fn move_to_head(&mut self, list: &mut List, block: BlockIx) {
        if list.head != block.0 + 1 {
            self.unlink(list, block);
            self.push_head(list, block);
        }
    }

    /// Takes the oldest block out of `list`.
    pub(super) fn pop_tail(&mut self, list: &mut List) -> Option<BlockIx> {
        let oldest = list.tail()?;
        self.unlink(list, oldest);
        Some(oldest)
    }

    /// The next newer block of the list that `block` is in; none past the head.
    #[inline]
    pub(super) fn toward_head(&self, block: BlockIx) -> Option<BlockIx> {
        let link = self.0[block.0 as usize][TOWARD_HEAD];
        debug_assert_ne!(link, UNLINKED, "{block:?} is not known");
        block_at(link)
    }

    /// Whether `block` is in a list.
    #[inline]
    pub(super) fn is_linked(&self, block: BlockIx) -> bool {
        self.0
            .get(block.0 as usize)
            .is_some_and(|links| links[TOWARD_HEAD] != UNLINKED)
    }

    /// The oldest block of `list` that the search accepts; it stays where it is.
    pub(super) fn find_oldest(&self, list: &List, search: &mut Search<'_>) -> Option<BlockIx> {
        let mut cursor = list.tail();
        while let Some(block) = cursor {
            if search.accepts(block) {
                return Some(block);
            }
            if search.is_over() {
                return None;
            }
            cursor = self.toward_head(block);
        }
        None
    }

    /// The oldest block that the search accepts and that has no chance left. Accepted blocks
    /// before it spend a chance, by `spend`, and move to the head; refused ones stay.
    ///
    /// When the search is over, the blocks it did not come to count as refused, so that a
    /// block that only spent its chances is still found.
    pub(super) fn find_without_chance(
        &mut self,
        list: &mut List,
        search: &mut Search<'_>,
        mut spend: impl FnMut(BlockIx) -> bool,
    ) -> Option<BlockIx> {
        let mut spared = None;
        let mut cursor = list.tail();
        while let Some(block) = cursor {
            if cursor == spared || search.is_over() {
                break;
            }
            let newer = self.toward_head(block);
            if search.accepts(block) {
                if !spend(block) {
                    return Some(block);
                }
                self.move_to_head(list, block);
                spared = spared.or(Some(block));
            }
            cursor = newer;
        }
        // From the first one spared up to the head all were accepted: they go round on their
        // own until one has no chance left.
        let mut block = spared?;
        while spend(block) {
            let newer = self.toward_head(block).unwrap_or(block);
            self.move_to_head(list, block);
            block = newer;
        }
        Some(block)
    }

    /// The blocks of `list` from its tail to its head.
    pub(super) fn oldest_first(&self, list: &List) -> impl Iterator<Item = BlockIx> {
        std::iter::successors(list.tail(), |&block| self.toward_head(block))
    }

    /// Bytes of the links in use.
    pub(super) const fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Bytes of the links in use of blocks from `number` on.
    pub(super) fn bytes_from(&self, number: u32) -> u64 {
        let count = self.0.len().saturating_sub(number as usize);
        (count * size_of::<[u32; 2]>()) as u64
    }

    /// Panics when a block of one of `lists` is not named to be in it; for tests.
    pub(super) fn check_named(&self, lists: &[List], list_of: &HugeVec<u8>) {
        for (number, list) in lists.iter().enumerate() {
            for block in self.oldest_first(list) {
                let named = usize::from(list_of[block.0 as usize]);
                assert_eq!(named, number, "queue of {block:?}");
            }
        }
    }

    /// Panics unless `lists` are whole and hold every linked block.
    pub(super) fn check(&self, lists: &[&List]) {
        for list in lists {
            let mut older = END;
            let mut count = 0;
            for block in self.oldest_first(list) {
                assert_eq!(
                    self.0[block.0 as usize][TOWARD_TAIL], older,
                    "links of {block:?}"
                );
                older = block.0 + 1;
                count += 1;
                assert!(count <= list.len, "a list of {} goes on", list.len);
            }
            assert_eq!(list.head, older, "the walk from the tail ends at the head");
            assert_eq!(list.len, count, "count of blocks in a list");
        }
        let linked = self
            .0
            .iter()
            .filter(|links| links[TOWARD_HEAD] != UNLINKED)
            .count();
        assert_eq!(
            linked,
            lists.iter().map(|list| list.len).sum::<usize>(),
            "linked blocks"
        );
    }
}

/// A search for a victim: the caller's filter, and how many refusals it may still make.
pub(super) struct Search<'a> {
    evictable: &'a mut dyn FnMut(BlockIx) -> bool,
    /// The blocks refused, the first `refusals` of these.
    refused: [BlockIx; VICTIM_SCAN_MAX],
    refusals: usize,
}

impl<'a> Search<'a> {
    /// A search that ends after [`VICTIM_SCAN_MAX`] refusals.
    pub(super) fn new(evictable: &'a mut dyn FnMut(BlockIx) -> bool) -> Self {
        Self {
            evictable,
            refused: [BlockIx(0); VICTIM_SCAN_MAX],
            refusals: 0,
        }
    }

    /// Whether the filter has refused as many blocks as it may.
    pub(super) const fn is_over(&self) -> bool {
        self.refusals == VICTIM_SCAN_MAX
    }

    /// The blocks refused so far, in order; one that was asked about twice is there twice.
    pub(super) fn refused(&self) -> &[BlockIx] {
        &self.refused[..self.refusals]
    }

    /// Asks the filter; never again once the search is over.
    pub(super) fn accepts(&mut self, block: BlockIx) -> bool {
        if self.is_over() {
            return false;
        }
        let accepted = (self.evictable)(block);
        if !accepted {
            self.refused[self.refusals] = block;
            self.refusals += 1;
        }
        accepted
    }

    /// Asks the filter about a block that it has not refused yet.
    pub(super) fn accepts_unless_refused(&mut self, block: BlockIx) -> bool {
        !self.refused().contains(&block) && self.accepts(block)
    }
}

/// The block that a link or an end of a list names.
#[inline]
const fn block_at(link: u32) -> Option<BlockIx> {
    debug_assert!(link != UNLINKED);
    if link == END {
        None
    } else {
        Some(BlockIx(link - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(links: &Links, list: &List) -> Vec<u32> {
        links.check(&[list]);
        links.oldest_first(list).map(|block| block.0).collect()
    }

    fn list_of(count: u32) -> (Links, List) {
        let (mut links, mut list) = (Links::new(100).unwrap(), List::EMPTY);
        (0..count).for_each(|number| links.push_head(&mut list, BlockIx(number)));
        (links, list)
    }

    #[test]
    fn list_unlinked_anywhere_keeps_the_rest_in_order() {
        for (gone, left) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
            let (mut links, mut list) = list_of(3);
            links.unlink(&mut list, BlockIx(gone));
            assert_eq!(numbers(&links, &list), left);
            assert!(!links.is_linked(BlockIx(gone)));
            links.push_head(&mut list, BlockIx(gone));
            assert_eq!(numbers(&links, &list), [left[0], left[1], gone]);
        }
    }

    #[test]
    fn list_block_pushed_beside_another_is_the_next_older() {
        for (neighbour, order) in [(0, [9, 0, 1, 2]), (1, [0, 9, 1, 2]), (2, [0, 1, 9, 2])] {
            let (mut links, mut list) = list_of(3);
            links.push_beside(&mut list, BlockIx(9), BlockIx(neighbour));
            assert_eq!(numbers(&links, &list), order);
        }
    }

    #[test]
    fn list_of_one_block_empties() {
        let (mut links, mut list) = list_of(1);
        links.move_to_head(&mut list, BlockIx(0));
        assert_eq!(links.pop_tail(&mut list), Some(BlockIx(0)));
        assert_eq!(links.pop_tail(&mut list), None);
        assert!(list.is_empty());
        links.check(&[&list]);
    }

    #[test]
    fn two_lists_share_links() {
        let (mut links, mut left) = list_of(4);
        let mut right = List::EMPTY;
        for number in [1, 3] {
            links.unlink(&mut left, BlockIx(number));
            links.push_head(&mut right, BlockIx(number));
        }
        links.check(&[&left, &right]);
        assert_eq!(
            links
                .oldest_first(&right)
                .map(|block| block.0)
                .collect::<Vec<_>>(),
            [1, 3]
        );
    }

    #[test]
    fn find_without_chance_goes_round_past_refused_blocks() {
        let (mut links, mut list) = list_of(5);
        let mut chances = [2, 1, 2, 2, 2];
        let mut odd_only = |block: BlockIx| block.0 % 2 == 1;
        let mut search = Search::new(&mut odd_only);
        let found = links.find_without_chance(&mut list, &mut search, |block| {
            let left = &mut chances[block.0 as usize];
            *left -= 1;
            *left >= 0
        });
        assert_eq!(found, Some(BlockIx(1)));
        assert_eq!(numbers(&links, &list), [0, 2, 4, 1, 3]);
        assert_eq!(chances, [2, -1, 2, 1, 2]);
    }

    #[test]
    fn find_without_chance_with_one_accepted_block_finds_it() {
        let (mut links, mut list) = list_of(3);
        let mut chances = 3;
        let mut last_only = |block: BlockIx| block.0 == 2;
        let mut search = Search::new(&mut last_only);
        let found = links.find_without_chance(&mut list, &mut search, |_| {
            chances -= 1;
            chances >= 0
        });
        assert_eq!(found, Some(BlockIx(2)));
        assert_eq!(numbers(&links, &list), [0, 1, 2]);
    }

    #[test]
    #[should_panic(expected = "is not known")]
    fn unlink_of_an_unknown_block_panics() {
        let (mut links, mut list) = list_of(2);
        links.unlink(&mut list, BlockIx(0));
        links.unlink(&mut list, BlockIx(0));
    }

    #[test]
    #[should_panic(expected = "another list")]
    fn unlink_from_another_list_panics() {
        let (mut links, _list) = list_of(2);
        let mut other = List::EMPTY;
        links.unlink(&mut other, BlockIx(0));
    }
}
