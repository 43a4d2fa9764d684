//! Aim: a pool hands out each granule of its arena at most once, in every mix of sizes.
//! Method: random takes, publishes, frees and slab moves against a map of what is out.

use std::collections::HashMap;

use proptest::prelude::*;
use terrace_types::limits::HUGEPAGE_LEN;

use super::*;
use crate::arena::{Arena, ArenaConfig, HugepageMode};
use crate::block::Returned;

fn pool(pages: u64) -> SlabPool {
    let config = ArenaConfig {
        hugepages: HugepageMode::Off,
        ..ArenaConfig::new(pages * HUGEPAGE_LEN)
    };
    SlabPool::new(ArenaShared::new(
        Arena::open(&config).unwrap(),
        Box::new(|| ()),
    ))
}

fn class_for(pool: &mut SlabPool, len: u64) -> ClassIx {
    match pool.choose_class(len) {
        ClassChoice::Fits(class) => class,
        ClassChoice::Retire(class) => panic!("retire {class:?}"),
    }
}

#[test]
fn pool_full_of_one_class_fits_exactly() {
    let mut pool = pool(4);
    let class = class_for(&mut pool, 65536);
    let slots: Vec<SlotIx> = std::iter::from_fn(|| pool.take(class)).collect();
    assert_eq!(slots.len(), 4 * 32);
    pool.check();
    for slot in slots {
        pool.give(slot);
    }
    pool.check();
    assert_eq!(pool.stats().free_page_bytes, pool.stats().arena_bytes);
}

#[test]
fn pool_moves_the_slab_of_least_value_and_skips_pinned() {
    let mut pool = pool(4);
    let small = class_for(&mut pool, 4096);
    let mut ix = 0;
    while let Some(slot) = pool.take(small) {
        pool.publish(slot, BlockIx(ix));
        ix += 1;
    }
    assert_eq!(ix, 4 * 512);
    let large = class_for(&mut pool, 2 << 20);
    assert_eq!(pool.take(large), None);
    // Blocks of slab 2 are worth least, but one of them (asked for only at the end) is pinned.
    let worth = |block: BlockIx| match block.0 / 512 {
        2 => (block.0 != 1025).then_some(1),
        3 => Some(5),
        _ => Some(9),
    };
    let blocks = pool.plan_move(large, &mut |block| worth(block)).unwrap();
    assert_eq!(blocks.len(), 512);
    assert!(
        blocks.iter().all(|block| block.0 / 512 == 3),
        "{:?}",
        blocks[0]
    );
    let mut slots = Vec::new();
    pool.for_each_block(|slot, block| {
        if blocks.contains(&block) {
            slots.push(slot);
        }
    });
    slots.into_iter().for_each(|slot| pool.give(slot));
    assert!(pool.take(large).is_some());
    assert_eq!(pool.plan_move(large, &mut |_| None), None);
    pool.check();
}

#[test]
fn pool_of_kv_geometries_wastes_little() {
    // A mix of the geometries of the common models per 16 tokens (bf16, fp8, TP8 ranks).
    let lens = [
        262_144, 655_360, 1_124_352, 562_176, 769_088, 2_359_296, 1_835_008, 294_912, 507_904,
        8_388_608, 5_242_880,
    ];
    let mut pool = pool(512);
    let (mut payload, mut n) = (0, 0);
    let mut full = false;
    while !full {
        let len: u64 = lens[n % lens.len()];
        n += 1;
        let class = class_for(&mut pool, len);
        match pool.take(class) {
            Some(_) => payload += len,
            None => full = true,
        }
    }
    let stats = pool.stats();
    let used = stats.arena_bytes - stats.free_page_bytes;
    let internal = stats.slot_bytes - payload;
    assert!(
        internal * 200 <= stats.slot_bytes,
        "{internal} of {} in slots",
        stats.slot_bytes
    );
    // Slab tails and the one open slab of each class are part of the loss too.
    assert!(
        (used - payload) * 20 <= used,
        "{} of {used}",
        used - payload
    );
}

#[test]
fn writer_dropped_comes_back_and_pins_keep_the_arena() {
    let mut pool = pool(1);
    let class = class_for(&mut pool, 100);
    let slot = pool.take(class).unwrap();
    let shared = Arc::clone(pool.shared());
    drop(pool.writer(slot, 100));
    assert_eq!(shared.take_return(), Some(Returned::Writer(slot)));
    pool.give(slot);
    let slot = pool.take(class).unwrap();
    let mut writer = pool.writer(slot, 3);
    writer.write_at(0, b"abc");
    assert_eq!(writer.bytes(), b"abc");
    let slot = writer.finish();
    pool.publish(slot, BlockIx(0));
    let pinned = crate::block::PinnedBlock::new(&shared, slot, 3, BlockIx(0));
    let weak = Arc::downgrade(&shared);
    drop((pool, shared));
    assert_eq!(
        std::thread::spawn(move || pinned.to_vec()).join().unwrap(),
        b"abc"
    );
    assert!(weak.upgrade().is_none(), "the last pin frees the arena");
}

#[test]
fn return_wakes_a_waiting_shard_once() {
    let woken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    let config = ArenaConfig {
        hugepages: HugepageMode::Off,
        ..ArenaConfig::new(HUGEPAGE_LEN)
    };
    let wake = Box::new(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    let mut pool = SlabPool::new(ArenaShared::new(Arena::open(&config).unwrap(), wake));
    let class = class_for(&mut pool, 4096);
    let slots: Vec<SlotIx> = (0..3).map(|_| pool.take(class).unwrap()).collect();
    drop(pool.writer(slots[0], 1));
    pool.shared().want_return();
    drop(pool.writer(slots[1], 1));
    drop(pool.writer(slots[2], 1));
    assert_eq!(woken.load(std::sync::atomic::Ordering::SeqCst), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn slots_never_overlap(
        ops in proptest::collection::vec((0_usize..4, 1_u64..6_000_000, any::<u16>()), 1..300),
    ) {
        let mut pool = pool(24);
        let mut out: HashMap<SlotIx, u64> = HashMap::new();
        let mut blocks: HashMap<u32, SlotIx> = HashMap::new();
        let mut next = 0_u32;
        for (op, len, pick) in ops {
            match op {
                0 | 1 => {
                    let ClassChoice::Fits(class) = pool.choose_class(len) else { continue };
                    let Some(slot) = pool.take(class) else { continue };
                    let slot_len = pool.slot_len(slot);
                    prop_assert!(slot_len >= len);
                    let (start, end) = (slot.offset(), slot.offset() + slot_len);
                    prop_assert!(end <= 24 * HUGEPAGE_LEN);
                    for (other, other_len) in &out {
                        prop_assert!(other.offset() + other_len <= start || end <= other.offset());
                    }
                    out.insert(slot, slot_len);
                    pool.publish(slot, BlockIx(next));
                    blocks.insert(next, slot);
                    next += 1;
                }
                2 => {
                    let Some(&block) = blocks.keys().nth(usize::from(pick) % blocks.len().max(1))
                    else { continue };
                    let slot = blocks.remove(&block).unwrap();
                    out.remove(&slot);
                    pool.give(slot);
                }
                _ => {
                    let ClassChoice::Fits(class) = pool.choose_class(len) else { continue };
                    let pinned = u32::from(pick) % 7;
                    let plan = pool.plan_move(class, &mut |b| (b.0 % 7 != pinned).then_some(1));
                    for block in plan.unwrap_or_default() {
                        prop_assert_ne!(block.0 % 7, pinned);
                        let slot = blocks.remove(&block.0).unwrap();
                        out.remove(&slot);
                        pool.give(slot);
                    }
                }
            }
            pool.check();
        }
    }
}
