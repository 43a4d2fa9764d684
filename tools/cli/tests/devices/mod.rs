//! Aim: `terrace inspect` on devices that are missing, cut, damaged at their superblocks, in use,
//! or not ours. Method: as for the rest of the command.

use crate::image::{
    DEVICE_LEN, Folder, MIB, block, offset, open_set, pair, segment, write_segment,
};
use crate::said::{both, inspect};
use terrace_nvme::format::SUPERBLOCK_OFFSETS;
use xxhash_rust::xxh3::xxh3_64;

#[test]
fn missing_device_is_named() {
    let pair = pair(true);
    let said = inspect(&[pair.a.arg()]);
    let id = pair.b.id.to_string();
    let name = format!("device {id} of {DEVICE_LEN} bytes belongs to the set and was not given");
    said.is(0, &[&name, "41 MiB: missing", "live              4 blocks"]);
    let json = inspect(&[pair.b.arg(), "--json"]).json();
    assert_eq!(json["set"]["missing"][0], pair.a.id.to_string());
}

#[test]
fn truncated_file_is_told_and_the_rest_read() {
    let pair = pair(true);
    pair.b.set_len(offset(2, 100) + 17);
    both(&pair, &["--verify"]).is(
        1,
        &[
            "b.terrace: 18235409 bytes long, and 42991616 when it was formatted: it was cut",
            "5: 2 free, 1 used (1 with a damaged footer, walked), 2 cut off",
            "segment 2, unit 2047: the footer cannot be read",
            "live              5 blocks",
        ],
    );
    pair.b.set_len(MIB + 100);
    both(&pair, &[]).is(1, &["5: 0 free, 0 used, 5 cut off"]);
    pair.b.set_len(100);
    both(&pair, &[]).is(2, &["b.terrace: holds bytes that are not Terrace's"]);
}

#[test]
fn foreign_content_is_named() {
    let folder = Folder::new();
    let path = folder.path("disk");
    let name = path.to_str().unwrap();
    let mut bytes = vec![0; 3 << 20];
    std::fs::write(&path, &bytes).unwrap();
    inspect(&[name]).is(2, &["holds nothing but zeros where it was looked"]);
    bytes[1080..1082].copy_from_slice(b"\x53\xef");
    std::fs::write(&path, &bytes).unwrap();
    inspect(&[name]).is(2, &[name, "holds an ext2, ext3 or ext4 file system"]);
    std::fs::write(&path, "some text\n").unwrap();
    let said = inspect(&[name]);
    said.is(2, &[name, "holds bytes that are not Terrace's"]);
    assert_eq!(said.out, "");
    let json = inspect(&[name, "--json"]).json();
    assert!(json["errors"][0].as_str().unwrap().contains(name));
}

#[test]
fn what_is_no_device_is_named() {
    let pair = pair(true);
    let empty = pair.folder.path("empty");
    std::fs::write(&empty, "").unwrap();
    let cases = [
        (empty.to_str().unwrap(), "an empty file"),
        (pair.folder.0.to_str().unwrap(), "a directory"),
        ("/nowhere/at.all", "there is nothing"),
        ("/dev/null", "a character device"),
    ];
    for (path, what) in cases {
        let said = inspect(&[path]);
        said.is(2, &[&format!("terrace: {path}: {what}")]);
        assert_eq!(said.out, "");
        // The others are inspected all the same.
        both(&pair, &[path]).is(2, &[what, "live              5 blocks"]);
    }
    inspect(&[]).is(2, &["<PATH>"]);
    inspect(&[pair.a.arg(), "--segment-len", "8parsec"]).is(2, &["parsec"]);
}

#[test]
fn later_version_is_named() {
    let pair = pair(true);
    for offset in SUPERBLOCK_OFFSETS {
        let mut unit = pair.a.get(offset, 4096);
        unit[8] = 2;
        let checksum = xxh3_64(&unit[..4088]);
        unit[4088..].copy_from_slice(&checksum.to_le_bytes());
        pair.a.put(offset, &unit);
    }
    let what = "a.terrace: its format is version 2, and this build reads 1";
    both(&pair, &[]).is(2, &[what]);
}

#[test]
fn device_that_an_engine_has_open_is_named() {
    let pair = pair(true);
    let held = std::fs::File::open(&pair.a.path).unwrap();
    held.try_lock().unwrap();
    let holder = format!("in use by process {}", std::process::id());
    inspect(&[pair.a.arg()]).is(2, &[pair.a.arg(), &holder, "close the engine"]);
    drop(held);
    let held = std::fs::File::open(&pair.a.path).unwrap();
    held.try_lock_shared().unwrap();
    both(&pair, &[]).is(0, &[]);
}

#[test]
fn devices_that_do_not_belong_together_are_named() {
    let (pair, other) = (pair(true), pair(true));
    let said = both(&pair, &[other.a.arg()]);
    said.is(
        2,
        &[
            other.a.arg(),
            ": of set ",
            "it is left out",
            "live              5 blocks",
        ],
    );
    let copy = pair.folder.path("copy");
    std::fs::copy(&pair.a.path, &copy).unwrap();
    let said = both(&pair, &[copy.to_str().unwrap()]);
    said.is(
        2,
        &[
            "the same device",
            "or a copy of it",
            "live              5 blocks",
        ],
    );
}

#[test]
fn lost_newest_superblock_is_told_by_segment_heads() {
    let mut pair = pair(true);
    let old: Vec<_> = SUPERBLOCK_OFFSETS.map(|at| pair.a.get(at, 4096)).into();
    let mut images = [pair.a, pair.b];
    open_set(&mut images, true);
    [pair.a, pair.b] = images;
    let mut later = segment(3, 1);
    later.epoch = 3;
    write_segment(&pair.a, &later, &[vec![block("m1", "new", 2, 10)]]);
    for (at, bytes) in SUPERBLOCK_OFFSETS.iter().zip(&old) {
        pair.a.put(*at, bytes);
    }
    let what = "segments were opened in open epoch 3, and the superblocks tell of 2";
    inspect(&[pair.a.arg()]).is(0, &[what]);
    both(&pair, &[])
        .is_not(what)
        .is(0, &["open epoch 3", "last close        not clean"]);
}

#[test]
fn lost_superblocks_are_told_and_segments_found_by_their_heads() {
    for erase in [false, true] {
        let pair = pair(true);
        for offset in SUPERBLOCK_OFFSETS {
            pair.a.put(offset + 100, &[0xff; 8]);
            if erase {
                pair.a.put(offset, &[0; 4096]);
            }
        }
        let parts = [
            "damage: 3\n",
            "both copies of the superblock are damaged: what the segment heads tell",
            "segment length    8 MiB, from the head of segment 1",
            "live              5 blocks",
        ];
        both(&pair, &[]).is(1, &parts);
        let said = both(&pair, &["--segment-len", "8MiB", "--verify"]);
        said.is(
            1,
            &[
                "segment length    8 MiB, as given",
                "live              5 blocks",
            ],
        );
        let alone = inspect(&[pair.a.arg()]);
        alone.is(1, &["the set is not known", "live              4 blocks"]);
        // With no head either nothing is left to go by.
        pair.a.put(offset(1, 0), &[0; 4096]);
        let said = both(&pair, &[]);
        match erase {
            false => said.is(
                1,
                &["no segment head was found", "segments          not known"],
            ),
            true => said.is(2, &["a.terrace: holds nothing but zeros"]),
        }
    }
}

#[test]
fn torn_superblock_is_told_and_the_other_copy_counts() {
    let pair = pair(true);
    pair.a.put(SUPERBLOCK_OFFSETS[0] + 512, &[0xff; 3584]);
    both(&pair, &[]).is(
        1,
        &[
            "superblock 0      damaged: superblock: checksum is",
            "superblock 1      valid, write count 4, the one that counts",
            "damage: 1\n",
            "superblock copy 0 at byte 0: ",
            "live              5 blocks",
        ],
    );
    pair.a.put(SUPERBLOCK_OFFSETS[0], &[0; 4096]);
    both(&pair, &[]).is(1, &["superblock 0      none", "its magic is missing"]);
}
