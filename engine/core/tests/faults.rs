//! Aim: what goes wrong below the real io_uring device comes out as documented: a miss that is
//! counted, `Unavailable`, or a refusal that leaves the contents alone, and never wrong bytes.
//! Method: engines over real files and rings; the test damages, cuts and shortens the files
//! itself, and limits the process or the file system they are made in.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

mod files;
mod loops;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use files::{CLOSE, Scratch, config, look, put, served, value};
use loops::{LoopDisk, Mount};
use terrace_engine::{
    Durability, Engine, EngineConfig, EngineStats, Health, Lookup, PutOutcome, UnavailableReason,
    block_on,
};

const UNIT: usize = 4096;
const LEN: usize = 65_536;
const COUNT: u64 = 200;
const FILE_MIB: u64 = 64;
const FAILED: Lookup<()> = Lookup::Unavailable(UnavailableReason::TierFailed);

/// The bytes of a file, those that are not zero by unit.
struct Image(Vec<(u64, Vec<u8>)>);

impl Image {
    fn of(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let units = bytes.chunks(UNIT).zip(0..);
        let used = units.filter(|(unit, _)| unit.iter().any(|byte| *byte != 0));
        Self(used.map(|(unit, at)| (at, unit.to_vec())).collect())
    }

    /// Makes the file what it was.
    fn restore(&self, path: &Path) {
        let _ = std::fs::remove_file(path);
        let file = File::create_new(path).unwrap();
        file.set_len(FILE_MIB << 20).unwrap();
        for (at, unit) in &self.0 {
            file.write_all_at(unit, at * UNIT as u64).unwrap();
        }
    }

    /// The units that begin so.
    fn units(&self, start: &[u8]) -> Vec<u64> {
        let found = self.0.iter().filter(|(_, unit)| unit.starts_with(start));
        found.map(|(at, _)| *at).collect()
    }

    /// The first unit of a block's payload.
    fn payload(&self, number: u64) -> u64 {
        self.units(&value(number, LEN)[..UNIT])[0]
    }
}

/// A few blocks more than a segment takes, all durable, in a file that is closed cleanly or not.
async fn filled(file: &Scratch, close: bool) -> Image {
    let engine = Engine::open(config(4, &[file], FILE_MIB)).unwrap();
    for number in 0..COUNT {
        let outcome = put(&engine, number, LEN, Durability::Durable).await;
        assert_eq!(outcome, PutOutcome::Stored { durable: true });
    }
    if close {
        assert!(engine.close(CLOSE).await.devices_clean);
        return Image::of(&file.0);
    }
    let image = Image::of(&file.0);
    engine.close(CLOSE).await;
    image
}

/// What the engine serves of a file as it is now, and its stats then. Nothing is read up but by
/// the lookups.
async fn reopened(file: &Scratch) -> (Vec<u64>, EngineStats) {
    let engine = Engine::open(EngineConfig {
        fill_ratio_low: 0.1,
        fill_ratio_high: 0.5,
        ..config(4, &[file], FILE_MIB)
    });
    let engine = engine.unwrap();
    let (there, unavailable) = served(&engine, COUNT, LEN).await;
    assert_eq!(unavailable, []);
    let stats = engine.stats().await;
    engine.close(CLOSE).await;
    (there, stats)
}

/// Flips a bit in each of these units.
fn damage(file: &Scratch, units: &[u64], within: u64) {
    let disk = OpenOptions::new().read(true).write(true).open(&file.0);
    let disk = disk.unwrap();
    for unit in units {
        let (mut byte, at) = ([0], unit * UNIT as u64 + within);
        disk.read_exact_at(&mut byte, at).unwrap();
        disk.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
}

/// Writes zeros over sectors of a unit: the write of it ended before them.
fn tear(file: &Scratch, unit: u64, kept: u64) {
    let disk = OpenOptions::new().write(true).open(&file.0).unwrap();
    let lost = UNIT - kept as usize * 512;
    let at = unit * UNIT as u64 + kept * 512;
    disk.write_all_at(&vec![0; lost], at).unwrap();
}

fn all() -> Vec<u64> {
    (0..COUNT).collect()
}

#[test]
fn damaged_bytes_are_missed_and_counted_or_stood_in_for() {
    let file = Scratch::new("faults-damaged");
    block_on(async {
        let image = filled(&file, true).await;
        let (frames, footers) = (image.units(b"TERRFRAM"), image.units(b"TERRFOOT"));
        let (heads, copies) = (image.units(b"TERRSEGM"), image.units(b"TERRACES"));
        assert!(
            footers.len() >= 2 && heads.len() >= 2,
            "{footers:?} {heads:?}"
        );
        assert_eq!(copies, [0, 128]);

        // A payload: its block alone is missed, and counted.
        image.restore(&file.0);
        damage(&file, &[image.payload(7)], 100);
        let (there, stats) = reopened(&file).await;
        assert_eq!(
            there,
            all().into_iter().filter(|it| *it != 7).collect::<Vec<_>>()
        );
        assert_eq!(stats.counters.checksum_mismatches, 1);

        // A head of a frame that a footer tells of, a footer whose frames are walked, and one
        // superblock: nothing is missed.
        for units in [&frames[..], &footers[..], &copies[..1], &copies[1..]] {
            image.restore(&file.0);
            damage(&file, units, 40);
            let (there, stats) = reopened(&file).await;
            assert_eq!(there, all(), "{units:?}");
            assert_eq!(stats.counters.checksum_mismatches, 0);
            let walked = stats.recovery.segments_walked > 0;
            assert_eq!(walked, units == footers, "{units:?}");
        }

        // Footers and one frame: its blocks are missed, whoever wrote the others.
        image.restore(&file.0);
        damage(&file, &[&footers[..], &frames[1..2]].concat(), 40);
        let (there, _) = reopened(&file).await;
        let missed = COUNT as usize - there.len();
        assert!((1..=16).contains(&missed), "{missed} of a frame");

        // The head of a segment: all that lies in it is missed, and the others are not.
        image.restore(&file.0);
        damage(&file, &heads[..1], 40);
        let (there, _) = reopened(&file).await;
        assert!(!there.is_empty() && there.len() < 100, "{}", there.len());
    });
}

#[test]
fn both_superblocks_damaged_are_refused_and_left_alone() {
    let file = Scratch::new("faults-superblocks");
    block_on(async {
        let image = filled(&file, true).await;
        damage(&file, &image.units(b"TERRACES"), 40);
        let before = std::fs::read(&file.0).unwrap();
        for format in [false, true] {
            let mut config = config(4, &[&file], FILE_MIB);
            config.nvme.format = format;
            let error = Engine::open(config).err().unwrap().to_string();
            let named = error.contains(file.0.to_str().unwrap());
            assert!(named && error.contains("both copies"), "{error}");
            assert!(std::fs::read(&file.0).unwrap() == before, "untouched");
        }
    });
}

#[test]
fn write_torn_at_any_sector_costs_what_it_wrote_and_no_more() {
    let file = Scratch::new("faults-torn");
    block_on(async {
        let image = filled(&file, false).await;
        let frames = image.units(b"TERRFRAM");
        let footers = image.units(b"TERRFOOT");
        let last = *frames.last().unwrap();
        assert!(footers.iter().all(|footer| *footer < last), "not sealed");
        for kept in 0..8 {
            // The head of the last frame, as its write was cut.
            image.restore(&file.0);
            tear(&file, last, kept);
            let (there, _) = reopened(&file).await;
            let expected = COUNT - 1;
            assert_eq!(there, (0..expected).collect::<Vec<_>>(), "{kept} sectors");
            // Its payload.
            image.restore(&file.0);
            tear(&file, image.payload(COUNT - 1), kept);
            let (there, stats) = reopened(&file).await;
            assert_eq!(there, (0..expected).collect::<Vec<_>>(), "{kept} sectors");
            assert_eq!(stats.recovery.blocks_torn, 1);
            // One superblock.
            image.restore(&file.0);
            tear(&file, 128 * (kept % 2), kept);
            assert_eq!(reopened(&file).await.0, all(), "{kept} sectors");
        }
    });
}

#[test]
fn file_shortened_while_it_is_open_is_unavailable_and_never_wrong() {
    let file = Scratch::new("faults-shortened");
    block_on(async {
        // Not closed cleanly: nothing comes up by itself while the file is cut.
        let image = filled(&file, false).await;
        image.restore(&file.0);
        let engine = Engine::open(config(4, &[&file], FILE_MIB)).unwrap();
        // In the middle of a block: what lies before is served, it and all behind is not.
        let cut = image.payload(100) + 3;
        let disk = OpenOptions::new().write(true).open(&file.0).unwrap();
        disk.set_len(cut * UNIT as u64).unwrap();
        // Beyond the cut the kernel says that a read is short; or it gives zeros, once the engine
        // wrote further behind and made the file long again.
        let (mut failed, mut missed) = (Vec::new(), 0);
        for number in 0..COUNT {
            match look(&engine, number, LEN).await {
                found if image.payload(number) + (LEN / UNIT) as u64 <= cut => {
                    assert!(found.is_hit(), "{number}: {found:?}");
                }
                Lookup::Miss => missed += 1,
                found => {
                    assert_eq!(found, FAILED, "{number}");
                    failed.push(number);
                }
            }
        }
        let stats = engine.stats().await;
        assert!(failed.len() as u64 + missed > 50);
        let device = &stats.nvme[0];
        assert_eq!(device.counters.reads_failed, failed.len() as u64);
        assert_eq!(device.health, Health::Good, "reads alone change nothing");
        assert_eq!(stats.counters.checksum_mismatches, missed);
        // Its length is back, and its bytes are not: misses, and counted.
        disk.set_len(FILE_MIB << 20).unwrap();
        for number in &failed {
            assert_eq!(look(&engine, *number, LEN).await, Lookup::Miss);
        }
        let mismatches = engine.stats().await.counters.checksum_mismatches;
        assert_eq!(mismatches, missed + failed.len() as u64);
        assert!(look(&engine, 0, LEN).await.is_hit());
        engine.close(CLOSE).await;
    });
}

/// In the child's environment: the file that it is to make.
const LIMITED: &str = "TERRACE_FAULTS_LIMITED";

#[test]
fn file_beyond_the_limit_of_the_process_is_refused_and_not_left_behind() {
    if let Some(path) = std::env::var_os(LIMITED) {
        let file = Scratch(path.into());
        let error = Engine::open(config(4, &[&file], FILE_MIB)).err().unwrap();
        eprintln!("told: {error}");
        assert!(!file.0.exists(), "left behind");
        return;
    }
    let file = Scratch::new("faults-limited");
    let name = "file_beyond_the_limit_of_the_process_is_refused_and_not_left_behind";
    // The shell ignores the signal for its child, so that the call fails in place of it.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 20000; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(LIMITED, &file.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let told = text.lines().find(|line| line.contains("told: ")).unwrap();
    assert!(told.contains(file.0.to_str().unwrap()), "{told}");
    assert!(told.contains("File too large"), "{told}");
    assert!(!file.0.exists());
}

#[test]
fn full_file_system_refuses_a_file_and_fails_writes_in_place() {
    let Some(mount) = Mount::new("faults-full", 96) else {
        let name = "full_file_system_refuses_a_file_and_fails_writes_in_place";
        eprintln!("skipped: {name}: no loop device may be mounted");
        return;
    };
    block_on(async {
        // Too long for what is free.
        let file = Scratch::at(&mount.folder, "long");
        let error = Engine::open(config(4, &[&file], 128)).err().unwrap();
        let error = error.to_string();
        assert!(error.contains(file.0.to_str().unwrap()), "{error}");
        assert!(error.contains("are free on its file system"), "{error}");
        assert!(!file.0.exists());
        // A file with holes on a file system that fills up: writes fail, and no byte is wrong.
        let file = Scratch::at(&mount.folder, "holes");
        File::create(&file.0).unwrap().set_len(64 << 20).unwrap();
        let engine = Engine::open(config(4, &[&file], 64)).unwrap();
        for number in 0..10 {
            let outcome = put(&engine, number, LEN, Durability::Durable).await;
            assert_eq!(outcome, PutOutcome::Stored { durable: true });
        }
        mount.fill();
        let mut lost = 0;
        for number in 10..COUNT {
            match put(&engine, number, LEN, Durability::Durable).await {
                PutOutcome::Stored { durable } => lost += u64::from(!durable),
                PutOutcome::Rejected(_) => lost += 1,
                other => panic!("{number}: {other:?}"),
            }
        }
        assert!(lost > 0, "the file system is full");
        assert_eq!(engine.stats().await.nvme[0].health, Health::ReadOnly);
        let (there, unavailable) = served(&engine, 10, LEN).await;
        assert_eq!((there.len(), unavailable.len()), (10, 0));
        engine.close(CLOSE).await;
    });
}

#[test]
fn block_device_is_used_refused_while_mounted_and_by_its_sectors() {
    let name = "block_device_is_used_refused_while_mounted_and_by_its_sectors";
    let Some(disk) = LoopDisk::new("faults-loop", 64, 512) else {
        eprintln!("skipped: {name}: no loop device may be set up");
        return;
    };
    block_on(async {
        for round in 0..2 {
            let engine = Engine::open(disk.config()).unwrap();
            if round == 0 {
                for number in 0..COUNT {
                    let outcome = put(&engine, number, LEN, Durability::Durable).await;
                    assert_eq!(outcome, PutOutcome::Stored { durable: true });
                }
            }
            let (there, unavailable) = served(&engine, COUNT, LEN).await;
            assert_eq!((there, unavailable), (all(), Vec::new()));
            let error = Engine::open(disk.config()).err().unwrap().to_string();
            assert!(error.contains("in use by process"), "{error}");
            assert!(engine.close(CLOSE).await.devices_clean);
        }
    });
    drop(disk);
    if let Some(mount) = Mount::new("faults-mounted", 64) {
        let error = Engine::open(mount.disk.config()).err().unwrap();
        assert!(error.to_string().contains("lsblk"), "{error}");
    }
    match LoopDisk::new("faults-sectors", 64, 2048) {
        Some(disk) => {
            let error = Engine::open(disk.config()).err().unwrap();
            assert!(error.to_string().contains("sectors of 2048"), "{error}");
        }
        None => eprintln!("skipped: {name}: no loop device with sectors of 2048"),
    }
}
