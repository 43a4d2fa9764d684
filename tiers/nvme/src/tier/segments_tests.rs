//! Locations and phases of segments against what the module's text says.
//!
//! Aim: a location leads back to its segment and unit and is nobody else's; a segment goes only the
//! way round that is written down. Method: random segments, every pair of phases.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const PHASES: [Phase; 7] = [
    Phase::Free,
    Phase::Ready,
    Phase::Open,
    Phase::Sealing,
    Phase::Sealed,
    Phase::Reclaiming,
    Phase::Guest,
];

fn segment(number: u32, phase: Phase, opened: u64) -> Segment {
    let sequence = Sequence(opened);
    Segment {
        lane: 0,
        number,
        base: 0,
        identity: SegmentIdentity { sequence, salt: 0 },
        opened: sequence,
        phase,
        live_units: 0,
        readers: 0,
        legacy: false,
        proven: false,
    }
}

fn segments(phases: &[(Phase, u64)], units: u32) -> Option<Segments> {
    let list = phases.iter().enumerate();
    let list = list.map(|(at, (phase, opened))| segment(at as u32, *phase, *opened));
    Segments::new(list.collect(), units)
}

proptest! {
    #[test]
    fn location_leads_back_and_is_nobody_elses(
        count in 1_usize..40,
        units in 1_u32..3000,
        picks in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..60),
    ) {
        let segments = segments(&vec![(Phase::Free, 0); count], units).unwrap();
        let mut places = HashSet::new();
        let mut locations = HashSet::new();
        for (segment, unit) in picks {
            let ix = SegmentIx(segment.index(count) as u32);
            let unit = unit.index(units as usize) as u32;
            let location = segments.locate(ix, unit);
            prop_assert_eq!(segments.split(location), (ix, unit));
            let is_new = places.insert((ix, unit));
            prop_assert_eq!(locations.insert(location), is_new);
            prop_assert!(location.0 < u32::MAX);
        }
    }

    #[test]
    fn lowest_live_is_the_oldest_that_may_hold_records(
        list in vec((prop::sample::select(&PHASES[..]), 0_u64..1000), 1..30),
        except in any::<prop::sample::Index>(),
    ) {
        let except = except.index(list.len());
        let segments = segments(&list, 2048).unwrap();
        let mut expected = None;
        for (at, (phase, opened)) in list.iter().enumerate() {
            let holds_nothing = *phase == Phase::Free || *phase == Phase::Ready;
            if at != except && !holds_nothing && expected.is_none_or(|lowest| *opened < lowest) {
                expected = Some(*opened);
            }
        }
        let found = segments.lowest_live(SegmentIx(except as u32));
        prop_assert_eq!(found, expected.map(Sequence));
    }
}

#[test]
fn segments_whose_locations_pass_32_bits_are_refused() {
    // 65,537 of 65,535 units are the highest number that 32 bits hold, which is no location.
    let list = |count: usize| vec![(Phase::Free, 0); count];
    assert!(segments(&list(65_536), 65_535).is_some());
    assert!(segments(&list(65_537), 65_535).is_none());
    assert!(segments(&list(65_536), 65_536).is_none());
    assert!(segments(&[], u32::MAX).is_some());
}

/// Aim: the way round is free, ready, open, sealing, sealed, reclaiming, ready; recovery finds
/// sealed ones among the free and opens one again; what is given up is free.
#[test]
fn transition_is_only_what_the_way_round_allows() {
    let allowed = [
        "Free Ready",
        "Ready Open",
        "Open Sealing",
        "Sealing Sealed",
        "Sealed Reclaiming",
        "Reclaiming Ready", // the way round
        "Sealed Open",
        "Free Sealed",       // recovery, and a head that could not be written
        "Reclaiming Sealed", // given up before anything was lost
        "Guest Free",
        "Reclaiming Free",
        "Sealed Free",
        "Ready Free", // nothing is left in it
    ];
    for from in PHASES {
        for to in PHASES {
            let mut it = segment(7, from, 0);
            let went = catch_unwind(AssertUnwindSafe(|| it.transition(to))).is_ok();
            let step = format!("{from:?} {to:?}");
            assert_eq!(went, allowed.contains(&step.as_str()), "{step}");
            assert_eq!(it.phase, if went { to } else { from }, "{step}");
        }
    }
}
