//! Sets of devices in memory: made, opened again, changed, damaged, refused.

mod files;
mod memory;
mod plans;
mod power;

use std::cell::Cell;

use super::*;
use crate::format::{SEGMENTS_START, SUPERBLOCK_OFFSETS, SegmentHead, Sequence};
use memory::{Disk, Power};

const MIB: u64 = 1 << 20;
const SEGMENT_LEN: u64 = 8 * MIB;

fn options(shards: u32) -> SetOptions {
    seeded(shards, 0)
}

/// Options whose ids differ from those of other seeds.
fn seeded(shards: u32, seed: u8) -> SetOptions {
    let next = Cell::new(0_u32);
    let random = move || {
        next.set(next.get() + 1);
        let mut id = [seed; 16];
        id[..4].copy_from_slice(&next.get().to_le_bytes());
        Ok(id)
    };
    SetOptions {
        shards,
        block_len_max: 64 << 10,
        missing: MissingDevices::Refuse,
        drain: Vec::new(),
        read_only: false,
        random: Box::new(random),
    }
}

fn disk(name: &str, segments: u64) -> Disk {
    let len = SEGMENTS_START + segments * SEGMENT_LEN;
    Disk::new(name, len, &Power::default())
}

fn open(disks: &[&Disk], options: &SetOptions) -> Result<DeviceSet, SetError> {
    let boxed = |disk: &&Disk| Box::new((*disk).clone()) as Box<dyn SetMedium>;
    DeviceSet::open(disks.iter().map(boxed).collect(), options)
}

fn refusal(disks: &[&Disk], options: &SetOptions) -> SetError {
    let before: Vec<_> = disks.iter().map(|disk| disk.contents()).collect();
    let error = open(disks, options).map(drop).unwrap_err();
    let after: Vec<_> = disks.iter().map(|disk| disk.contents()).collect();
    assert!(before == after, "written although refused: {error}");
    error
}

/// A set of two devices, opened once and closed.
fn pair() -> (Disk, Disk) {
    let (a, b) = (disk("a", 20), disk("b", 20));
    let mut set = open(&[&a, &b], &seeded(1, 1)).unwrap();
    set.close().unwrap();
    (a, b)
}

fn newest(disk: &Disk) -> Superblock {
    let copies = SUPERBLOCK_OFFSETS.map(|offset| Superblock::decode(&disk.unit(offset)));
    let valid = copies.into_iter().flatten();
    valid.max_by_key(|copy| copy.write_count).unwrap()
}

fn write_head(disk: &Disk, set: &DeviceSet, place: usize, head: (u32, u32, u32)) {
    let (number, shard, shards) = head;
    let head = SegmentHead {
        device: set.devices[place].id,
        number,
        shard,
        shards,
        sequence: Sequence::new(set.open_epoch, u64::from(number)),
        salt: 1,
        len: SEGMENT_LEN,
    };
    let mut unit = vec![0; 4096];
    head.encode(&mut unit);
    disk.set_unit(head_at(number), &unit);
}

fn head_at(number: u32) -> u64 {
    SEGMENTS_START + u64::from(number) * SEGMENT_LEN
}

#[test]
fn new_devices_become_a_set() {
    let (a, b) = (disk("a", 20), disk("b", 33));
    let mut set = open(&[&a, &b], &options(2)).unwrap();
    assert_eq!((set.formatted, set.set_epoch, set.open_epoch), (2, 1, 1));
    assert!(set.previous_clean && set.previous_shards.is_none());
    assert_eq!(set.devices[1].segment_count, 33);
    assert_ne!(set.devices[0].id, set.devices[1].id);
    for (place, disk) in [&a, &b].into_iter().enumerate() {
        let superblock = newest(disk);
        assert!(!superblock.closed_cleanly);
        assert_eq!(superblock.place as usize, place);
        assert_eq!(superblock.devices.len(), 2);
        assert_eq!((superblock.set_epoch, superblock.open_epoch), (1, 1));
        assert_eq!(superblock.set_id, set.set_id);
    }
    for count in 3..6 {
        set.close().unwrap();
        let copies = SUPERBLOCK_OFFSETS.map(|offset| Superblock::decode(&a.unit(offset)).unwrap());
        let mut counts = copies.map(|copy| copy.write_count);
        counts.sort_unstable();
        assert_eq!(counts, [count - 1, count], "the older copy is written over");
    }
    assert!(newest(&a).closed_cleanly && newest(&b).closed_cleanly);
}

#[test]
fn set_that_is_opened_again_is_the_same_and_a_later_open() {
    let (a, b) = pair();
    // The order in which devices are given does not matter.
    let set = open(&[&b, &a], &options(1)).unwrap();
    assert_eq!((set.formatted, set.set_epoch, set.open_epoch), (0, 1, 2));
    assert_eq!(set.devices[0].id, newest(&b).device_id);
    assert!(set.previous_clean);
    drop(set);
    let set = open(&[&a, &b], &options(1)).unwrap();
    assert!(!set.previous_clean, "it was not closed");
    assert_eq!((set.open_epoch, set.previous_shards), (3, Some(1)));
}

#[test]
fn set_to_be_read_only_is_not_written() {
    let (a, b) = pair();
    let read_only = SetOptions {
        read_only: true,
        ..options(1)
    };
    let before = (a.contents(), b.contents());
    let mut set = open(&[&a, &b], &read_only).unwrap();
    set.close().unwrap();
    assert_eq!((set.open_epoch, set.set_epoch), (1, 1));
    assert!(before == (a.contents(), b.contents()));
    let error = refusal(&[&a, &disk("new", 20)], &read_only);
    assert!(matches!(error, SetError::NotFormatted { device } if device == "new"));
}

#[test]
fn damaged_copy_is_stood_in_for_by_the_other_and_written_over() {
    for damaged in SUPERBLOCK_OFFSETS {
        let (a, b) = pair();
        open(&[&a, &b], &options(1)).map(drop).unwrap();
        a.change(damaged, |unit| unit[100] ^= 1);
        let set = open(&[&a, &b], &options(1)).unwrap();
        assert_eq!((set.damaged_superblocks, set.open_epoch), (1, 3));
        for offset in SUPERBLOCK_OFFSETS {
            assert!(Superblock::decode(&a.unit(offset)).is_ok());
        }
    }
}

#[test]
fn device_with_both_copies_damaged_is_refused() {
    let (a, b) = pair();
    for offset in SUPERBLOCK_OFFSETS {
        a.change(offset, |unit| unit[100] ^= 1);
    }
    let error = refusal(&[&a, &b], &options(1));
    let text = error.to_string();
    assert!(matches!(error, SetError::SuperblocksDamaged { device, .. } if device == "a"));
    assert_eq!(text.matches("checksum is").count(), 2, "{text}");
    // One copy damaged and the magic of the other gone is no new device either.
    a.change(SUPERBLOCK_OFFSETS[1], |unit| unit[0] = 0);
    let error = refusal(&[&a, &b], &options(1));
    assert!(matches!(error, SetError::SuperblocksDamaged { .. }));
    // Nor is one whose other copy is zero, when a segment of it was written.
    a.set_unit(SUPERBLOCK_OFFSETS[1], &[0; 4096]);
    a.set_unit(head_at(7), &[1; 4096]);
    let error = refusal(&[&a, &b], &options(1));
    assert!(matches!(error, SetError::SuperblocksDamaged { .. }));
}

#[test]
fn device_of_another_set_is_refused_naming_both() {
    let (a, _) = pair();
    let other = disk("other", 20);
    open(&[&other], &seeded(1, 9)).map(drop).unwrap();
    let text = refusal(&[&a, &other], &options(1)).to_string();
    let sets = [newest(&a).set_id, newest(&other).set_id];
    assert_ne!(sets[0], sets[1]);
    for part in [
        "a is of set",
        "other is of set",
        &sets[0].to_string(),
        &sets[1].to_string(),
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn later_version_is_refused_by_number() {
    let (a, b) = pair();
    b.change(SUPERBLOCK_OFFSETS[0], |unit| {
        unit[8] = 2;
        let checksum = xxhash_rust::xxh3::xxh3_64(&unit[..4088]);
        unit[4088..].copy_from_slice(&checksum.to_le_bytes());
    });
    let error = refusal(&[&a, &b], &options(1));
    assert!(matches!(&error, SetError::Version { device, found: 2 } if device == "b"));
    assert!(error.to_string().contains("version 2"));
}

#[test]
fn device_given_twice_is_refused() {
    let (a, b) = pair();
    let error = refusal(&[&a, &b, &a.copy("copy")], &options(1));
    let SetError::Twice { device, other, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((&*device, &*other), ("copy", "a"));
}

#[test]
fn device_that_was_cut_is_refused() {
    let (a, b) = pair();
    for len in [SEGMENTS_START + 19 * SEGMENT_LEN, 4096] {
        let error = refusal(&[&a, &b.resized(len)], &options(1));
        assert!(matches!(error, SetError::Truncated { len: found, .. } if found == len));
    }
    open(&[&a, &b.resized(1 << 40)], &options(1))
        .map(drop)
        .unwrap();
}

#[test]
fn missing_device_is_refused_or_accepted_and_taken_back() {
    let (a, b) = pair();
    let (id, epoch) = (newest(&b).device_id, newest(&b).set_epoch);
    let text = refusal(&[&a], &options(1)).to_string();
    assert!(text.contains(&id.to_string()) && text.contains("last there in set epoch 1"));
    let accepting = SetOptions {
        missing: MissingDevices::Accept,
        ..options(1)
    };
    let set = open(&[&a], &accepting).unwrap();
    assert_eq!(set.set_epoch, epoch + 1);
    assert_eq!(set.absent.len(), 1);
    assert_eq!(
        (set.absent[0].id, set.absent[0].last_set_epoch),
        (id, epoch)
    );
    // It was accepted once and for all.
    let mut set = open(&[&a], &options(1)).unwrap();
    assert_eq!(set.set_epoch, epoch + 1);
    set.close().unwrap();
    let set = open(&[&a, &b], &options(1)).unwrap();
    assert_eq!((set.set_epoch, set.absent.len()), (epoch + 2, 0));
    assert!(!set.previous_clean, "the last open did without a device");
    assert_eq!(newest(&b).open_epoch, 4);
}

#[test]
fn forgotten_device_is_never_taken_back() {
    let (a, b) = pair();
    let forgetting = SetOptions {
        missing: MissingDevices::Forget,
        ..options(1)
    };
    let set = open(&[&a], &forgetting).unwrap();
    assert_eq!((set.set_epoch, set.absent.len()), (2, 0));
    assert_eq!(set.forgotten[0].id, newest(&b).device_id);
    let error = refusal(&[&a, &b], &options(1));
    let SetError::NotListed {
        device,
        epoch,
        set_epoch,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((&*device, epoch, set_epoch), ("b", 1, 2));
}

#[test]
fn parts_that_were_used_without_each_other_are_refused() {
    let accepting = SetOptions {
        missing: MissingDevices::Accept,
        ..options(1)
    };
    // Equal set epochs, and one that is higher: C is used alone by then.
    for more in 0..2 {
        let (a, b) = pair();
        let c = disk("c", 20);
        open(&[&a], &accepting).map(drop).unwrap();
        open(&[&b], &accepting).map(drop).unwrap();
        if more == 1 {
            open(&[&b, &c], &seeded(1, 7)).map(drop).unwrap();
        }
        let error = refusal(&[&a, &b], &accepting);
        assert!(matches!(error, SetError::Diverged { .. }), "{error}");
    }
}

#[test]
fn parts_that_changed_the_set_apart_are_refused_in_any_order() {
    let (a, b) = pair();
    let (c, d, b_before) = (disk("c", 20), disk("d", 20), b.copy("b"));
    open(&[&a, &b, &c], &seeded(1, 6)).map(drop).unwrap();
    // Power was lost before B knew of C, and then A was not given.
    let accepting = SetOptions {
        missing: MissingDevices::Accept,
        ..seeded(1, 7)
    };
    open(&[&b_before, &d], &accepting).map(drop).unwrap();
    for given in [[&a, &b_before], [&b_before, &a]] {
        let error = refusal(&given, &accepting);
        let parts = [newest(&a).set_epoch, newest(&b_before).set_epoch];
        assert_eq!(parts, [2, 2]);
        assert!(matches!(error, SetError::Diverged { .. }), "{error}");
    }
}

#[test]
fn device_is_added_and_raises_the_set_epoch() {
    let (a, b) = pair();
    let c = disk("c", 40);
    let set = open(&[&a, &c, &b], &seeded(1, 7)).unwrap();
    assert_eq!((set.formatted, set.set_epoch, set.open_epoch), (1, 2, 2));
    assert!(set.previous_clean, "a new device has no earlier open");
    assert_eq!(newest(&a).devices.len(), 3);
    assert_eq!(newest(&a).devices[2].id, set.devices[1].id);
    assert_eq!(newest(&c).devices, newest(&a).devices);
    assert_eq!(newest(&c).set_id, newest(&a).set_id);
}

#[test]
fn device_is_drained_and_then_done_without() {
    let (a, b) = pair();
    let draining = SetOptions {
        drain: vec![1],
        ..options(1)
    };
    let mut set = open(&[&a, &b], &draining).unwrap();
    assert_eq!(set.set_epoch, 2);
    assert!(set.devices[1].draining && !set.devices[1].drained);
    write_head(&b, &set, 1, (3, 0, 1));
    // Not emptied yet: it is needed.
    assert!(matches!(
        refusal(&[&a], &options(1)),
        SetError::Missing { .. }
    ));
    set.remove_drained(1).unwrap();
    assert_eq!(set.set_epoch, 3);
    assert_eq!(
        b.unit(head_at(3)),
        [0; 4096],
        "nothing is left to come back"
    );
    set.close().unwrap();
    // It may stay for a while, and is still to be emptied.
    let set = open(&[&a, &b], &draining).unwrap();
    assert_eq!(set.set_epoch, 3);
    assert!(set.previous_clean && set.devices[1].drained);
    let set = open(&[&a], &options(1)).unwrap();
    assert_eq!((set.set_epoch, set.absent.len()), (4, 0));
    assert_eq!(set.forgotten, [], "it was emptied");
    let error = refusal(&[&a, &b], &options(1));
    assert!(matches!(error, SetError::NotListed { .. }));
}

#[test]
fn drained_device_is_used_again_when_it_is_not_to_be_emptied() {
    let (a, b) = pair();
    let drain = |drain| SetOptions {
        drain,
        ..options(1)
    };
    let mut set = open(&[&a, &b], &drain(vec![0])).unwrap();
    set.remove_drained(0).unwrap();
    let set = open(&[&a, &b], &drain(vec![])).unwrap();
    assert!(!set.devices[0].draining && !set.devices[0].drained);
    assert_eq!(set.set_epoch, 4);
    let error = refusal(&[&a, &b], &drain(vec![0, 1]));
    assert!(matches!(error, SetError::AllDraining));
}

#[test]
fn too_few_segments_or_too_many_devices_are_refused() {
    let error = refusal(&[&disk("small", 7)], &options(2));
    let minimum = SEGMENTS_START + 8 * SEGMENT_LEN;
    let SetError::TooSmall {
        device,
        minimum: found,
        segments,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((&*device, found, segments), ("small", minimum, 7));
    open(&[&disk("enough", 8)], &options(2)).map(drop).unwrap();
    let (a, b) = pair();
    assert!(matches!(
        refusal(&[&a, &b], &options(6)),
        SetError::TooSmall { .. }
    ));
    assert!(matches!(refusal(&[], &options(1)), SetError::NoDevices));
    let many: Vec<Disk> = (0..65).map(|at| disk(&at.to_string(), 4)).collect();
    let many: Vec<&Disk> = many.iter().collect();
    let error = refusal(&many, &options(1));
    assert!(matches!(error, SetError::TooManyDevices { count: 65 }));
    let set = open(&many[..64], &options(1)).unwrap();
    assert_eq!(set.formatted, 64);
}

#[test]
fn open_epoch_passes_every_head_and_ends_before_it_wraps() {
    let (a, b) = pair();
    let set = open(&[&a, &b], &options(1)).unwrap();
    let before = SUPERBLOCK_OFFSETS.map(|offset| (a.unit(offset), b.unit(offset)));
    drop(set);
    let set = open(&[&a, &b], &options(1)).unwrap();
    assert_eq!(set.open_epoch, 3);
    write_head(&a, &set, 0, (2, 0, 1));
    // The newest copy of every superblock rots away.
    for (offset, (unit_a, unit_b)) in SUPERBLOCK_OFFSETS.into_iter().zip(before) {
        a.set_unit(offset, &unit_a);
        b.set_unit(offset, &unit_b);
    }
    let set = open(&[&a, &b], &options(1)).unwrap();
    assert_eq!(
        set.open_epoch, 4,
        "higher than the one that wrote the segment"
    );
    let mut superblock = newest(&a);
    superblock.open_epoch = OPEN_EPOCH_MAX;
    let mut unit = vec![0; 4096];
    superblock.encode(&mut unit);
    for offset in SUPERBLOCK_OFFSETS {
        a.set_unit(offset, &unit);
    }
    let error = refusal(&[&a, &b], &options(1));
    assert!(matches!(error, SetError::OpenEpochsUsedUp));
}

#[test]
fn set_that_cannot_be_made_or_changed_says_why() {
    let blind = SetOptions {
        random: Box::new(|| Err(std::io::Error::other("no bits"))),
        ..options(1)
    };
    let error = refusal(&[&disk("a", 20)], &blind);
    assert!(matches!(&error, SetError::Random(_)), "{error}");
    for sector in [0, 256, 1000, 8192] {
        let error = refusal(&[&disk("a", 20).with_sector(sector)], &options(1));
        let named = matches!(&error, SetError::Sector { sector: found, .. } if *found == sector);
        assert!(named, "{error}");
    }
    let (a, b) = pair();
    let draining = |read_only| SetOptions {
        drain: vec![1],
        read_only,
        ..options(1)
    };
    open(&[&a, &b], &draining(false)).map(drop).unwrap();
    let mut set = open(&[&a, &b], &draining(true)).unwrap();
    let before = (a.contents(), b.contents());
    assert!(matches!(set.remove_drained(1), Err(SetError::ReadOnly)));
    assert!(before == (a.contents(), b.contents()));
}
