//! Aim: no bytes on a device make the inspection panic, run on or say that junk is sound.
//! Method: parts of a sound set are overwritten with junk, or structures changed and given a
//! checksum that is right; the set is inspected and reported in this process, then mended.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

#[expect(dead_code, reason = "another test uses the rest")]
mod image;

use image::{Pair, SEGMENT_UNITS, offset, pair};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use terrace_cli::inspect::{InspectOptions, Inspection, inspect};
use terrace_cli::report::{ReportOptions, json, text};
use terrace_nvme::format::SUPERBLOCK_OFFSETS;
use xxhash_rust::xxh3::xxh3_64;

/// Places of units that hold a structure, and their devices: 0 is `a`, 1 is `b`.
fn structures(pair: &Pair) -> Vec<(usize, u64)> {
    let mut list = Vec::new();
    for device in [0, 1] {
        list.extend(SUPERBLOCK_OFFSETS.map(|at| (device, at)));
    }
    list.extend([(0, offset(1, 0)), (0, offset(1, SEGMENT_UNITS - 1))]);
    list.extend(pair.sealed.iter().map(|unit| (0, offset(1, *unit))));
    list.push((1, offset(2, 0)));
    list.extend(pair.unsealed.iter().map(|unit| (1, offset(2, *unit))));
    list
}

fn look(pair: &Pair) -> Inspection {
    let inspection = inspect(&InspectOptions {
        paths: vec![pair.a.path.clone(), pair.b.path.clone()],
        verify: true,
        segment_len: None,
        progress: false,
    });
    let options = ReportOptions {
        keys: true,
        segments: true,
    };
    let (mut plain, mut object) = (Vec::new(), Vec::new());
    text::write(&mut plain, &inspection, options).unwrap();
    json::write(&mut object, &inspection, options).unwrap();
    String::from_utf8(plain).unwrap();
    serde_json::from_slice::<serde_json::Value>(&object).unwrap();
    inspection
}

/// What is written over a unit: at which place of it, which bytes, and whether the checksum is
/// made right again.
#[derive(Clone, Debug)]
struct Junk {
    structure: prop::sample::Index,
    at: usize,
    bytes: Vec<u8>,
    is_resealed: bool,
}

fn junk() -> impl Strategy<Value = Junk> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..9),
        prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff)], 1..9),
        prop::collection::vec(any::<u8>(), 100..4000),
    ];
    let at = prop_oneof![0_usize..320, 0_usize..4096];
    (any::<prop::sample::Index>(), at, bytes, any::<bool>()).prop_map(
        |(structure, at, bytes, is_resealed)| Junk {
            structure,
            at,
            bytes,
            is_resealed,
        },
    )
}

#[test]
fn junk_never_panics() {
    let pair = pair(true);
    let structures = structures(&pair);
    let mut runner = TestRunner::new(Config {
        cases: 256,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&prop::collection::vec(junk(), 1..4), |list| {
        let mut mended = Vec::new();
        // Of an unsealed segment's last frame a whole head may vanish without a trace.
        let unsealed = structures.len() - pair.unsealed.len();
        let is_certain = list.len() == 1;
        let mut may_be_silent = false;
        for junk in &list {
            let (device, at) = *junk.structure.get(&structures);
            let image = [&pair.a, &pair.b][device];
            let before = image.get(at, 4096);
            let mut unit = before.clone();
            let end = (junk.at + junk.bytes.len()).min(4088);
            let start = junk.at.min(end);
            unit[start..end].copy_from_slice(&junk.bytes[..end - start]);
            if junk.is_resealed {
                let checksum = xxh3_64(&unit[..4088]);
                unit[4088..].copy_from_slice(&checksum.to_le_bytes());
            }
            let is_unsealed = junk.structure.index(structures.len()) >= unsealed;
            may_be_silent = junk.is_resealed || unit == before || is_unsealed;
            image.put(at, &unit);
            mended.push((image, at, before));
        }
        let code = look(&pair).exit_code();
        for (image, at, before) in mended.iter().rev() {
            image.put(*at, before);
        }
        // A right checksum is a right structure; anything else has to be told.
        prop_assert!(code != 0 || !is_certain || may_be_silent);
        Ok(())
    });
    outcome.unwrap();
    assert_eq!(look(&pair).exit_code(), 0, "it was mended");
}
