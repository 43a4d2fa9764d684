//! Power is lost at every write and flush of a change to a set; it opens again all the same.
//!
//! Method: what was flushed survives; of each other write a choice of its sectors does.

use super::*;

/// Loses power at every operation of `step`, each with several sets of sectors that survive;
/// then opens the devices with `again` and checks that they are one set.
fn cut_everywhere(
    prepare: impl Fn(&Power) -> Vec<Disk>,
    step: impl Fn(&[Disk]) -> Result<(), SetError>,
    check: impl Fn(&[Disk], DeviceSet),
    again: &SetOptions,
) {
    let power = Power::default();
    let disks = prepare(&power);
    let blank: Vec<usize> = (0..disks.len())
        .filter(|at| disks[*at].contents().is_empty())
        .collect();
    power.lose_after(None);
    step(&disks).unwrap();
    let operations = power.operations();
    assert!(operations > 3);
    for at in 0..operations {
        for sectors in [0x00, 0xff, 0x01, 0xfe, 0x0f, 0xf0, 0x80, 0x7f, 0x55] {
            let power = Power::default();
            let disks = prepare(&power);
            power.lose_after(Some(at));
            assert!(matches!(step(&disks), Err(SetError::Medium { .. })));
            power.lose_after(None);
            disks.iter().for_each(|disk| disk.restart(sectors));
            blank.iter().for_each(|at| check_ours_or_blank(&disks[*at]));
            let given: Vec<&Disk> = disks.iter().collect();
            let set = open(&given, again);
            let set = set.unwrap_or_else(|error| panic!("{at}, {sectors:#x}: {error}"));
            check(&disks, set);
        }
    }
}

/// A device that held nothing is told from a foreign one by a magic, or by holding nothing.
fn check_ours_or_blank(disk: &Disk) {
    let copies = SUPERBLOCK_OFFSETS.map(|offset| disk.unit(offset));
    let has_magic = copies.iter().any(|copy| copy.starts_with(b"TERRACES"));
    let is_zero = |unit: &Vec<u8>| unit.iter().all(|byte| *byte == 0);
    assert!(has_magic || disk.contents().values().all(is_zero));
}

fn fresh(names: &[&str], power: &Power) -> Vec<Disk> {
    let len = SEGMENTS_START + 5 * SEGMENT_LEN;
    names
        .iter()
        .map(|name| Disk::new(name, len, power))
        .collect()
}

#[test]
fn power_lost_while_a_set_is_made_leaves_one_that_opens() {
    let dirty = |power: &Power| {
        let disks = fresh(&["a", "b", "c"], power);
        disks[1].set_unit(SUPERBLOCK_OFFSETS[1], &[3; 4096]);
        disks[2].set_unit(head_at(2), &[3; 4096]);
        disks
    };
    let step = |disks: &[Disk]| {
        let given: Vec<&Disk> = disks.iter().collect();
        open(&given, &seeded(1, 1)).map(drop)
    };
    let check = |disks: &[Disk], set: DeviceSet| {
        assert_eq!((set.devices.len(), set.damaged_heads), (3, 0));
        assert!(set.open_epoch <= 2 && set.set_epoch <= 2);
        assert!(disks.iter().all(|disk| newest(disk).devices.len() == 3));
    };
    cut_everywhere(dirty, step, check, &seeded(1, 2));
}

#[test]
fn power_lost_while_a_set_is_opened_closed_or_changed_leaves_it_whole() {
    let prepare = |power: &Power| {
        let disks = fresh(&["a", "b", "c"], power);
        let mut set = open(&[&disks[0], &disks[1]], &seeded(1, 1)).unwrap();
        set.close().unwrap();
        disks
    };
    let step = |disks: &[Disk]| {
        let given: Vec<&Disk> = disks.iter().collect();
        let draining = SetOptions {
            drain: vec![0],
            ..seeded(1, 2)
        };
        let mut set = open(&given, &draining)?;
        write_head(&disks[0], &set, 0, (1, 0, 1));
        set.remove_drained(0)?;
        set.close()
    };
    let id = prepare(&Power::default())
        .iter()
        .take(2)
        .map(newest)
        .map(|own| own.set_id)
        .next();
    let check = |disks: &[Disk], set: DeviceSet| {
        assert_eq!(Some(set.set_id), id);
        assert!((2..=3).contains(&set.open_epoch));
        assert!(disks.iter().all(|disk| newest(disk).devices.len() == 3));
        assert!(set.absent.is_empty());
    };
    cut_everywhere(prepare, step, check, &seeded(1, 3));
}

#[test]
fn device_that_fails_to_be_written_is_named_and_the_others_are_closed() {
    let (power_a, power_b) = (Power::default(), Power::default());
    let disks = [fresh(&["a"], &power_a), fresh(&["b"], &power_b)].concat();
    let mut set = open(&[&disks[0], &disks[1]], &seeded(1, 1)).unwrap();
    power_a.lose_after(Some(0));
    let error = set.close().unwrap_err();
    assert!(matches!(error, SetError::Medium { device, doing: "write", .. } if device == "a"));
    assert!(newest(&disks[1]).closed_cleanly);
    // What failed is tried again at the same copy.
    power_a.lose_after(None);
    set.close().unwrap();
    assert!(newest(&disks[0]).closed_cleanly);
}
