//! Aim: what was acknowledged as durable survives power loss, and what was removed does not come
//! back, wherever power is lost. Method: short scripts that are the same in each run. At each
//! write and flush of a script, when the device got it and when it was carried out, the devices
//! keep what was flushed and one of several choices of the other writes; a shard recovers from
//! that, is compared with what clients were told by then, and once more after a second loss.
//! Devices that are equal and owe the same are recovered from once. A failure names its case:
//! script, cut and choice.

use super::crash_model::key;
use super::cut_world::Step::{
    Big, Close, Drop, Durable, Large, Put, Read, Remove, Replace, Upsert, Wait,
};
use super::cut_world::{Cut, Script, Step, Subset, cut_everywhere, only_cut, record};
use super::sim_world::{Spec, World};
use super::*;
use crate::config::WriteMode;

/// Writes at stake up to which each is lost alone, and kept alone.
const FEW: usize = 3;

fn spec(segments: &[u32]) -> Spec {
    Spec {
        segments: segments.to_vec(),
        dram_blocks: 48,
        dram_bytes: 2 << 20,
        keep_all: true,
        ..Spec::default()
    }
}

/// A script of one shard, without the rest.
fn script(name: &'static str, spec: Spec, clients: &[&[Step]]) -> Script {
    let clients = clients.iter().map(|steps| steps.to_vec()).collect();
    Script {
        name,
        strict: spec.keep_all,
        spec,
        opens: vec![(1, clients)],
        reopens: [1, 1],
        reaches: |_| true,
    }
}

fn subsets(cut: &Cut) -> Vec<Subset> {
    let all = std::env::var("TERRACE_CUTS").is_ok_and(|cuts| cuts == "all");
    let count = cut.at_stake();
    let mut subsets = vec![Subset::None, Subset::All, Subset::Mixed];
    if count > 0 && (all || count <= FEW || only_cut().is_some()) {
        subsets.extend((0..count).map(Subset::Without));
        subsets.extend((0..count).map(Subset::Only));
    }
    if let Some(last) = cut.newest() {
        let sectors = (last.len() / 512) as u32;
        if all || only_cut().is_some() {
            subsets.extend((1..sectors).map(Subset::Torn));
        } else {
            subsets.extend([1, sectors / 2, sectors - 1].map(Subset::Torn));
        }
    }
    subsets
}

/// Cuts a script everywhere; there must be as many recoveries as it was written for.
fn check(script: &Script, cases_min: usize) {
    let (_, cases) = cut_everywhere(script, subsets);
    let enough = match only_cut() {
        Some(cut) if cut.starts_with(&format!("{}:", script.name)) => cases > 0,
        Some(_) => true,
        None => cases >= cases_min,
    };
    assert!(enough, "{}: {cases} cases", script.name);
}

fn sum(worlds: &[Rc<World>], count: impl Fn(&World) -> u64) -> u64 {
    worlds.iter().map(|world| count(world)).sum()
}

fn reclaimed(worlds: &[Rc<World>]) -> u64 {
    sum(worlds, |world| world.tier.counters().segments_reclaimed)
}

fn puts() -> Script {
    let first = [
        Durable(0),
        Put(1),
        Replace(0),
        Remove(1),
        Durable(2),
        Upsert(2),
        Remove(2),
        Durable(2),
        Remove(0),
    ];
    let second = [
        Put(0),
        Durable(1),
        Durable(0),
        Replace(1),
        Replace(1),
        Remove(1),
        Wait(3000),
        Durable(3),
    ];
    script("puts", spec(&[4]), &[&first, &second])
}

fn drops() -> Script {
    let first = [
        Durable(0),
        Durable(1),
        Put(2),
        Drop,
        Durable(0),
        Put(1),
        Drop,
        Durable(3),
        Remove(3),
    ];
    let second = [
        Durable(0),
        Replace(0),
        Drop,
        Replace(0),
        Upsert(1),
        Wait(500),
        Drop,
        Durable(1),
    ];
    script("drops", spec(&[4]), &[&first, &second])
}

fn demotions() -> Script {
    let first = [
        Put(0),
        Put(1),
        Put(2),
        Put(3),
        Put(4),
        Put(5),
        Wait(3000),
        Read(0),
        Remove(1),
        Upsert(2),
        Put(6),
        Put(7),
        Remove(3),
        Wait(3000),
        Replace(0),
        Put(8),
        Upsert(4),
        Put(9),
    ];
    let second = [
        Put(0),
        Put(1),
        Put(2),
        Wait(2000),
        Upsert(0),
        Put(3),
        Remove(2),
        Put(4),
    ];
    Script {
        reaches: |worlds| worlds[0].shard.stats().counters.demotions > 8,
        ..script(
            "demotions",
            Spec {
                dram_blocks: 4,
                ..spec(&[4])
            },
            &[&first, &second],
        )
    }
}

fn seals() -> Script {
    let first = [
        Durable(0),
        Large(1),
        Put(2),
        Large(3),
        Durable(4),
        Large(5),
        Remove(0),
        Large(6),
    ];
    let second = [Large(0), Put(1), Durable(2), Large(3), Upsert(2)];
    Script {
        reaches: |worlds| sum(worlds, |world| world.tier.counters().segments_sealed) >= 3,
        ..script("seals", spec(&[8]), &[&first, &second])
    }
}

fn reclaims() -> Script {
    let mut first = vec![Durable(0), Durable(1), Durable(2), Durable(3)];
    first.extend([
        Large(5),
        Large(5),
        Remove(1),
        Large(5),
        Large(5),
        Replace(2),
    ]);
    first.extend([Large(5); 9]);
    first.extend([Replace(1), Remove(5)]);
    let second = [
        Durable(0),
        Wait(1000),
        Replace(0),
        Put(1),
        Wait(1000),
        Remove(0),
        Durable(1),
    ];
    // Shorter segments have no room for all that is kept, when part of it was placed before power
    // was lost and did not survive.
    let spec = Spec {
        segment_len: 512 << 10,
        ..spec(&[3])
    };
    Script {
        reaches: |worlds| {
            reclaimed(worlds) >= 2 && sum(worlds, |world| world.tier.counters().reinsertions) > 2
        },
        ..script("reclaims", spec, &[&first, &second])
    }
}

fn evictions() -> Script {
    let first = [
        Durable(0),
        Large(1),
        Large(2),
        Remove(0),
        Large(3),
        Large(4),
        Durable(0),
        Large(5),
        Large(6),
        Replace(1),
        Large(7),
        Large(8),
    ];
    let spec = Spec {
        keep_all: false,
        dram_blocks: 3,
        ..spec(&[3])
    };
    Script {
        reaches: |worlds| {
            let gone = (0..9).filter(|number| worlds[0].was_evicted(&key(worlds, 0, *number)));
            reclaimed(worlds) >= 2 && gone.count() > 1
        },
        ..script("evictions", spec, &[&first])
    }
}

fn through() -> Script {
    let first = [
        Put(0),
        Put(1),
        Wait(3000),
        Upsert(0),
        Remove(1),
        Put(1),
        Durable(2),
        Drop,
        Put(0),
        Durable(0),
        Remove(0),
    ];
    let second = [
        Put(0),
        Remove(0),
        Put(0),
        Wait(50),
        Remove(0),
        Wait(2500),
        Upsert(0),
        Durable(1),
    ];
    let spec = Spec {
        write_mode: WriteMode::Through,
        ..spec(&[4])
    };
    script("through", spec, &[&first, &second])
}

/// Blocks come faster than segments are made ready, and nobody waits for flushes: segments are
/// sealed with frames at stake, and filled again as soon as they may be.
fn rushes() -> Script {
    let first = [
        Big(0),
        Big(1),
        Big(2),
        Big(3),
        Put(9),
        Big(4),
        Big(5),
        Durable(6),
        Big(7),
        Big(8),
    ];
    let second = [
        Big(0),
        Put(9),
        Big(1),
        Big(2),
        Put(3),
        Big(4),
        Big(0),
        Put(6),
        Big(5),
        Big(7),
    ];
    let spec = Spec {
        keep_all: false,
        write_mode: WriteMode::Through,
        ..spec(&[3])
    };
    Script {
        reaches: |worlds| reclaimed(worlds) >= 3,
        ..script("rushes", spec, &[&first, &second])
    }
}

fn devices() -> Script {
    let first = [
        Durable(0),
        Large(1),
        Durable(2),
        Large(3),
        Replace(0),
        Large(1),
        Remove(2),
        Drop,
        Durable(0),
        Put(1),
        Close,
    ];
    let second = [Durable(0), Replace(0), Put(1), Replace(0), Remove(1)];
    Script {
        reaches: |worlds| {
            let counts = worlds[0].devices.iter().map(|device| device.counts());
            counts.clone().count() == 2 && counts.into_iter().all(|count| count.writes > 5)
        },
        ..script("devices", spec(&[4, 3]), &[&first, &second])
    }
}

fn reshards() -> Script {
    let before = [
        Durable(0),
        Durable(1),
        Large(2),
        Durable(3),
        Remove(3),
        Put(5),
        Durable(6),
    ];
    let after = [
        Replace(0),
        Large(2),
        Remove(1),
        Large(4),
        Durable(1),
        Drop,
        Durable(0),
    ];
    let aside = [
        Durable(0),
        Replace(0),
        Wait(4000),
        Remove(0),
        Upsert(2),
        Remove(6),
    ];
    Script {
        opens: vec![
            (1, vec![before.to_vec(), before.to_vec()]),
            (2, vec![after.to_vec(), aside.to_vec()]),
        ],
        reopens: [3, 1],
        reaches: |worlds| worlds.len() == 2 && worlds.iter().all(|w| w.tier.counters().frames > 2),
        ..script("reshards", spec(&[16]), &[])
    }
}

/// The shards of another count have to empty each other's segments. Of full devices the first
/// segment that goes takes what has no room with it.
fn squeezes() -> Script {
    let before = [
        Durable(0),
        Durable(1),
        Large(2),
        Durable(3),
        Remove(3),
        Put(5),
        Durable(6),
    ];
    let mut after = vec![
        Replace(0),
        Large(2),
        Remove(1),
        Large(4),
        Durable(1),
        Drop,
        Durable(0),
    ];
    after.extend([
        Large(2),
        Large(4),
        Large(2),
        Large(4),
        Remove(0),
        Large(2),
        Large(4),
    ]);
    after.extend([Large(2), Large(4)]);
    let aside = [Durable(0), Replace(0), Wait(4000), Remove(0), Durable(1)];
    let spec = Spec {
        segment_len: 512 << 10,
        ..spec(&[6])
    };
    Script {
        strict: false,
        opens: vec![
            (1, vec![before.to_vec(), before.to_vec()]),
            (2, vec![after, aside.to_vec()]),
        ],
        reopens: [3, 1],
        // One shard empties what the other owned a part of.
        reaches: |worlds| {
            let moved = |world: &Rc<World>| world.tier.counters().reinsertions > 0;
            worlds.len() == 2 && reclaimed(worlds) >= 1 && worlds.iter().all(moved)
        },
        ..script("squeezes", spec, &[])
    }
}

#[test]
fn power_lost_at_every_operation_of_puts_and_removals_loses_nothing_durable() {
    check(&puts(), 130);
}

#[test]
fn power_lost_at_every_operation_of_namespace_removals_brings_nothing_back() {
    check(&drops(), 100);
}

#[test]
fn power_lost_at_every_operation_of_demotions_leaves_right_bytes() {
    check(&demotions(), 230);
}

#[test]
fn power_lost_at_every_operation_of_seals_loses_nothing_durable() {
    check(&seals(), 260);
}

#[test]
fn power_lost_at_every_operation_of_reclaim_loses_nothing_kept() {
    check(&reclaims(), 440);
}

#[test]
fn power_lost_at_every_operation_of_reclaim_that_evicts_brings_nothing_back() {
    check(&evictions(), 220);
}

#[test]
fn power_lost_at_every_operation_of_writing_through_brings_nothing_back() {
    check(&through(), 110);
}

#[test]
fn power_lost_at_every_operation_of_a_rush_leaves_right_bytes() {
    check(&rushes(), 380);
}

#[test]
fn power_lost_at_every_operation_over_two_devices_loses_nothing_durable() {
    check(&devices(), 230);
}

#[test]
fn power_lost_at_every_operation_of_shards_that_change_in_count_loses_nothing_durable() {
    check(&reshards(), 340);
}

#[test]
fn power_lost_at_every_operation_of_shards_that_empty_segments_of_others_brings_nothing_back() {
    // Three shards for each recovery take their time: fewer choices.
    let (_, cases) = cut_everywhere(&squeezes(), |cut| {
        let all = subsets(cut);
        all[..if only_cut().is_some() { all.len() } else { 3 }].to_vec()
    });
    assert!(only_cut().is_some() || cases >= 280, "{cases} cases");
}

/// Cuts in which the device just got a structure that begins with `magic`: it is torn at each
/// of its sectors.
fn check_torn(script: &Script, magic: &[u8; 8], least: usize) {
    let (cuts, cases) = cut_everywhere(script, |cut| match cut.newest() {
        Some(bytes) if bytes.starts_with(magic) => {
            let sectors = (bytes.len() / 512) as u32;
            assert!(sectors >= 8);
            (0..=sectors).map(Subset::Torn).collect()
        }
        _ => Vec::new(),
    });
    let enough = cuts >= least && cases >= least * 8;
    let context = || format!("{}: {cuts} cuts, {cases} cases", script.name);
    assert!(enough || only_cut().is_some(), "{}", context());
}

#[test]
fn structure_torn_at_every_sector_counts_whole_or_not_at_all() {
    check_torn(&puts(), b"TERRFRAM", 8);
    check_torn(&seals(), b"TERRFOOT", 3);
    check_torn(&reclaims(), b"TERRSEGM", 4);
}

#[test]
fn script_run_twice_is_cut_at_the_same_moments() {
    let moments = || {
        let cuts = record(&reclaims());
        cuts.iter().map(Cut::identity).collect::<Vec<_>>()
    };
    assert_eq!(moments(), moments());
}
