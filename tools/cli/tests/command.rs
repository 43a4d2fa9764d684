//! Aim: `terrace inspect` as a user calls it, on sound sets and on each kind of damage. Method:
//! sets made by the format's own encoders, damaged byte by byte; the built binary as a child
//! process; its exit code and what it says are compared.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

mod image;

use std::process::Command;

use image::{
    DEVICE_LEN, Folder, Image, MIB, Pair, SEGMENT_LEN, SEGMENT_UNITS, block, offset, open_set,
    pair, pair_of, segment, write_segment,
};
use terrace_nvme::format::SUPERBLOCK_OFFSETS;
use xxhash_rust::xxh3::xxh3_64;

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn inspect(args: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .arg("inspect")
        .args(args)
        .output()
        .unwrap();
    let code = output.status.code();
    Said {
        code: code.expect("it ended by itself"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Said {
    #[track_caller]
    fn is(&self, code: i32, parts: &[&str]) {
        let all = format!("{}\n--- stderr\n{}", self.out, self.err);
        assert_eq!(self.code, code, "{all}");
        for part in parts {
            assert!(all.contains(part), "no `{part}` in\n{all}");
        }
    }

    #[track_caller]
    fn is_not(&self, part: &str) -> &Self {
        assert!(!self.out.contains(part), "`{part}` in\n{}", self.out);
        self
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

/// Both devices of a pair, then more arguments.
fn both(pair: &Pair, more: &[&str]) -> Said {
    inspect(&[&[pair.a.arg(), pair.b.arg()], more].concat())
}

#[test]
fn sound_set_is_told_and_left_alone() {
    let pair = pair(true);
    let before = [&pair.a, &pair.b].map(|it| it.get(0, DEVICE_LEN as usize));
    let said = both(&pair, &["--verify", "--keys", "--segments"]);
    said.is(
        0,
        &[
            "set epoch 1, open epoch 2",
            "last close        clean",
            "in use, 41 MiB: ",
            &format!("device 0: {}", pair.a.arg()),
            "length            41 MiB (42991616 bytes)",
            &pair.b.id.to_string(),
            "superblock 0      valid, write count 5, the one that counts",
            "superblock 1      valid, write count 4",
            "segments          5: 4 free, 1 used (1 sealed)",
            "segments          5: 4 free, 1 used (1 unsealed, walked)",
            "live              5 blocks, 81.44 KiB",
            "dead              3 blocks, 8.89 KiB",
            "tombstones        1 of keys, 1 of namespaces",
            "checkpoints       1, 100 B",
            "namespace gone: live 0 blocks, 0 B; dead 1 blocks, 10 B",
            "0:1       sealed         0/1 1.1 ",
            "1:2       unsealed       0/1 1.10 ",
            "m1 6b657074 \"kept\" 70000 1.3 0:1:4 ",
            "m2 656d707479 \"empty\" 0 1.13 1:2:0 ",
            "verified 9 payloads",
            "no damage found",
        ],
    );
    said.is_not("notices").is_not("\"removed\"");
    let after = [&pair.a, &pair.b].map(|it| it.get(0, DEVICE_LEN as usize));
    assert!(before == after, "the devices were written");
}

#[test]
fn json_has_all_of_it_and_nothing_else_is_on_stdout() {
    let pair = pair(true);
    let said = both(&pair, &["--verify", "--keys", "--segments", "--json"]);
    let json = said.json();
    let at = |path: &str| json.pointer(path).unwrap_or_else(|| panic!("{path}"));
    assert_eq!(at("/exit_code"), 0);
    assert_eq!(at("/set/devices/0/path"), pair.a.arg());
    assert_eq!(at("/set/missing").as_array().unwrap().len(), 0);
    assert_eq!(at("/devices/1/format_version"), 1);
    assert_eq!(at("/devices/0/superblocks/0/write_count"), 5);
    assert_eq!(at("/devices/0/segments/sealed"), 1);
    assert_eq!(at("/devices/1/segments/unsealed"), 1);
    assert_eq!(at("/usage/live/blocks"), 5);
    assert_eq!(at("/usage/blocks"), 8);
    assert_eq!(at("/segments").as_array().unwrap().len(), 10);
    assert_eq!(at("/keys").as_array().unwrap().len(), 5);
    assert_eq!(at("/keys/0/key_text"), "kept");
    assert_eq!(at("/keys/0/sequence/counter"), 3);
    assert_eq!(at("/verified/blocks"), 9);
    assert_eq!(at("/damage").as_array().unwrap().len(), 0);
    let json = both(&pair, &["--json"]).json();
    assert!(json.get("keys").is_none() && json["verified"].is_null());
}

#[test]
fn flipped_payload_byte_is_found_by_verifying() {
    let pair = pair(true);
    pair.a.flip(offset(1, 4) + 69_999);
    both(&pair, &[]).is(
        0,
        &["no damage found (payloads of sealed segments were not read"],
    );
    let said = both(&pair, &["--verify", "--keys"]);
    said.is(
        1,
        &[
            "damage: 1",
            "a.terrace: segment 1, unit 4: live block 6b657074 \"kept\" of m1 (68.36 KiB): the \
             payload's checksum is 0x",
            "70000 1.3 0:1:4",
            " damaged\n",
        ],
    );
    let json = both(&pair, &["--verify", "--json"]).json();
    assert_eq!(json["damage"][0]["block"]["key"], "6b657074");
    assert_eq!(json["damage"][0]["unit"], 4);
    assert_eq!(json["exit_code"], 1);
    pair.a.flip(offset(1, 4) + 69_999);
    pair.a.flip(offset(1, 2));
    both(&pair, &["--verify"]).is(1, &["dead block", "\"replaced\"", "segment 1, unit 2"]);
}

#[test]
fn byte_behind_a_payload_is_nobodys() {
    let pair = pair(true);
    pair.a.flip(offset(1, 4) + 70_001);
    both(&pair, &["--verify"]).is(0, &["no damage found"]);
}

#[test]
fn damaged_footer_is_told_and_frames_stand_in() {
    for at in [0, 20, 100, 4096 - 32, 4096 - 28, 4096 - 1] {
        let pair = pair(true);
        pair.a.flip(offset(1, SEGMENT_UNITS - 1) + at);
        let said = both(&pair, &[]);
        said.is(
            1,
            &[
                "damage: 1\n",
                "a.terrace: segment 1, unit 2047: ",
                "footer",
                "its frames were walked",
                "(1 with a damaged footer, walked)",
                "live              5 blocks, 81.44 KiB",
            ],
        );
    }
}

#[test]
fn damaged_frame_head_of_an_unsealed_segment_is_told() {
    // The magic, the checksum, and all of it.
    for at in [vec![0], vec![70], (0..4096).collect()] {
        let pair = pair(true);
        let unit = pair.unsealed[1];
        at.iter().for_each(|at| pair.b.flip(offset(2, unit) + at));
        let said = both(&pair, &["--keys"]);
        let place = format!("b.terrace: segment 2, unit {unit}: ");
        said.is(1, &["damage: 1\n", &place, "live              3 blocks"]);
        said.is_not("\"mid\"");
    }
}

#[test]
fn last_frame_that_a_crash_cut_off_is_no_damage() {
    for is_payload in [false, true] {
        let pair = pair(false);
        let unit = pair.unsealed[2] + u32::from(is_payload);
        pair.b.flip(offset(2, unit) + 80);
        both(&pair, &["--verify"]).is(
            0,
            &[
                "last close        not clean",
                "notices\n",
                &format!("segment 2, unit {unit}: "),
                "cut off before it was durable",
                "no damage found",
            ],
        );
    }
}

#[test]
fn clean_close_leaves_nothing_unsealed_and_nothing_cut_off() {
    let pair = pair_of(1, true);
    let lost = "segment 2, unit 2047: the footer is lost: the set was closed cleanly";
    both(&pair, &[]).is(1, &["damage: 1\n", lost, "live              5 blocks"]);
    let unit = pair.unsealed[2];
    pair.b.flip(offset(2, unit) + 80);
    let place = format!("segment 2, unit {unit}: frame head: checksum is");
    both(&pair, &[]).is(1, &["damage: 2\n", lost, &place]);
    // A segment that was made ready and never used is no loss.
    let pair = pair_of(1, false);
    write_segment(&pair.a, &unused(), &[]);
    both(&pair, &[]).is(0, &["5: 3 free, 1 used (1 sealed), 1 made ready"]);
}

fn unused() -> image::Segment {
    let mut unused = segment(4, 9);
    unused.is_sealed = false;
    unused
}

#[test]
fn damaged_payload_of_an_unsealed_segment_is_told_without_verifying() {
    let pair = pair(false);
    let unit = pair.unsealed[0] + 1;
    pair.b.flip(offset(2, unit));
    let place = format!("segment 2, unit {unit}: block 7265706c61636564 \"replaced\" of m1");
    both(&pair, &[]).is(1, &["damage: 1\n", &place]);
}

#[test]
fn damaged_frame_head_of_a_sealed_segment_is_found_by_verifying() {
    for frame in [0, 1] {
        let pair = pair(true);
        let unit = pair.sealed[frame];
        pair.a.flip(offset(1, unit) + 90);
        both(&pair, &[]).is(0, &[]);
        let place = format!("segment 1, unit {unit}: the frame head here is damaged");
        let said = both(&pair, &["--verify"]);
        said.is(1, &["damage: 1\n", &place, "verified 9 payloads"]);
    }
}

#[test]
fn damaged_segment_head_is_told() {
    let pair = pair(true);
    pair.a.flip(offset(1, 0) + 50);
    both(&pair, &[]).is(
        1,
        &[
            "5: 4 free, 0 used, 1 with a damaged head",
            "segment 1, unit 0: segment head: checksum is",
        ],
    );
    // A valid one that was written elsewhere.
    let head = pair.b.get(offset(2, 0), 4096);
    pair.a.put(offset(1, 0), &head);
    both(&pair, &[]).is(1, &["segment 1, unit 0: the segment head is of device"]);
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
fn payloads_longer_than_a_window_are_verified() {
    let folder = Folder::new();
    let mut images = [Image::new(&folder.path("long"))];
    open_set(&mut images, true);
    let [image] = images;
    let len = 3 * MIB as usize + 5;
    let frames = [
        vec![block("m", "long", 2, len)],
        vec![block("m", "b", 3, len)],
    ];
    write_segment(&image, &segment(0, 1), &frames);
    inspect(&[image.arg(), "--verify"]).is(0, &["verified 2 payloads, 6.00 MiB"]);
    image.flip(offset(0, 2) + 2 * MIB + 1);
    inspect(&[image.arg(), "--verify"]).is(1, &["damage: 1\n", "\"long\""]);
    assert!(SEGMENT_LEN > 2 * len as u64);
}
