//! Every segment has one owner, whatever the count of shards was and is.

use super::*;

#[test]
fn heads_that_are_not_of_this_place_are_free_and_counted() {
    let (a, b) = pair();
    let set = open(&[&a, &b], &options(1)).unwrap();
    write_head(&a, &set, 0, (2, 0, 1));
    write_head(&a, &set, 0, (4, 0, 1));
    a.set_unit(head_at(5), &a.unit(head_at(4)));
    b.set_unit(head_at(4), &a.unit(head_at(4)));
    a.change(head_at(4), |unit| unit[200] ^= 1);
    let set = open(&[&a, &b], &options(1)).unwrap();
    assert_eq!(set.damaged_heads, 3);
    let is_used = |plan: &&SegmentPlan| plan.state != SegmentState::Free;
    let used: Vec<_> = set.plans[0].segments.iter().filter(is_used).collect();
    assert_eq!(used.len(), 1);
    assert_eq!((used[0].device, used[0].number), (0, 2));
}

/// Checks a set's plans; the used segments, by device and number.
fn check_plans(set: &DeviceSet, shards: u32) -> Vec<(usize, u32)> {
    assert_eq!(set.plans.len(), shards as usize);
    let mut owners = std::collections::BTreeMap::new();
    for (shard, plan) in (0..).zip(&set.plans) {
        for segment in plan.segments.iter().filter(|segment| segment.owned) {
            let at = (segment.device, segment.number);
            assert_eq!(owners.insert(at, (shard, *segment)), None, "two owners");
        }
    }
    let total: u32 = set.devices.iter().map(|device| device.segment_count).sum();
    assert_eq!(owners.len(), total as usize, "every segment has an owner");
    for (at, (owner, segment)) in &owners {
        let elsewhere = set.plans.iter().flat_map(|plan| &plan.segments);
        let copies = elsewhere.filter(|other| (other.device, other.number) == *at);
        match segment.state {
            SegmentState::Used(head) if head.shards != shards => {
                assert!(segment.legacy);
                assert_eq!(copies.count(), shards as usize, "every shard reads it");
            }
            SegmentState::Used(head) => {
                assert!(!segment.legacy);
                assert_eq!((head.shard, copies.count()), (*owner, 1));
            }
            SegmentState::Free => {
                assert!(!segment.legacy);
                assert_eq!(copies.count(), 1);
            }
        }
    }
    for device in 0..set.devices.len() {
        let owned = |plan: &ShardPlan| {
            let own = plan.segments.iter();
            own.filter(|segment| segment.owned && segment.device == device)
                .count()
        };
        let counts: Vec<usize> = set.plans.iter().map(owned).collect();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(most - least <= 1, "{counts:?}");
    }
    let used = owners
        .iter()
        .filter(|(_, (_, segment))| segment.state != SegmentState::Free);
    used.map(|(at, _)| *at).collect()
}

#[test]
fn shard_count_changes_and_no_used_segment_is_lost() {
    let (a, b) = (disk("a", 37), disk("b", 22));
    let mut expected = Vec::new();
    for (round, shards) in (0..).zip([1, 2, 4, 1, 3]) {
        let set = open(&[&a, &b], &options(shards)).unwrap();
        assert_eq!(check_plans(&set, shards), expected, "{shards} shards");
        let plans = set.plans.clone();
        // Every shard writes its first free segment of each device.
        for (shard, plan) in (0..).zip(&set.plans) {
            for (place, disk) in [&a, &b].into_iter().enumerate() {
                let is_free = |segment: &&SegmentPlan| {
                    segment.device == place && segment.state == SegmentState::Free
                };
                let free = plan.segments.iter().find(is_free).unwrap();
                write_head(disk, &set, place, (free.number, shard, shards));
                expected.push((place, free.number));
            }
        }
        expected.sort_unstable();
        let set = open(&[&a, &b], &options(shards)).unwrap();
        assert_eq!(check_plans(&set, shards), expected, "{shards} shards again");
        let owners =
            |plans: &[ShardPlan]| -> usize { plans.iter().map(|plan| plan.segments.len()).sum() };
        assert_eq!(owners(&plans), owners(&set.plans), "round {round}");
    }
    assert_eq!(expected.len(), 2 * (1 + 2 + 4 + 1 + 3));
}

#[test]
fn plans_of_equal_heads_are_equal() {
    let (a, b) = (disk("a", 37), disk("b", 22));
    let set = open(&[&a, &b], &options(2)).unwrap();
    write_head(&a, &set, 0, (9, 1, 2));
    let first = open(&[&a, &b], &options(5)).unwrap();
    let second = open(&[&a, &b], &options(5)).unwrap();
    assert_eq!(first.plans, second.plans);
}
